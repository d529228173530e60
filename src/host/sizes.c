/* Size classes of the pinned cache.
 *
 * Always rounding to a power of two pins 256 MiB for a request of 129.5 (pytorch#150517). Here powers of two end at a
 * threshold; above it eight steps to a doubling waste at most an eighth, and above a second threshold only a page. A class
 * may then hold blocks of several sizes, so whoever takes one checks its size (pytorch#192722). */
#include "host/host.h"

enum { PAGE = 4096 };

static unsigned log2_of(size_t x) { return 63u - (unsigned)__builtin_clzll(x); }

static size_t up(size_t n, size_t multiple) {
  return n > SIZE_MAX - multiple ? 0 : (n + multiple - 1) / multiple * multiple;
}

size_t cla__host_round(const cla_host_options *o, size_t nbytes) {
  if (nbytes <= CLA_HOST_LEAST) return CLA_HOST_LEAST;
  if (nbytes > SIZE_MAX / 2) return 0;
  unsigned log2 = log2_of(nbytes - 1); /* 2^log2 < nbytes <= 2^(log2 + 1) */
  if (nbytes <= o->power_of_two_up_to) return (size_t)1 << (log2 + 1);
  if (nbytes > o->steps_up_to) return up(nbytes, PAGE);
  size_t step = (size_t)1 << (log2 > CLA_HOST_STEPS_LOG2 ? log2 - CLA_HOST_STEPS_LOG2 : 0);
  return up(nbytes, step < CLA_HOST_LEAST ? CLA_HOST_LEAST : step);
}

unsigned cla__host_class(size_t size) {
  unsigned log2 = log2_of(size);
  unsigned step = (unsigned)(size >> (log2 - CLA_HOST_STEPS_LOG2)) & (CLA_HOST_STEPS - 1);
  return (log2 - 6) * CLA_HOST_STEPS + step;
}
