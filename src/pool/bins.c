/* Two-level size bins. Classes below 64 units hold one size each; above, 32 to each power of two.
 *
 * Plain TLSF rounds a request up and takes any block of the next class: O(1), but it misses the exact hole and
 * drifts over repeated passes (1.104 against 1.034 times the live peak on the traces of bench/replay). So the
 * request's own class is looked at first, for the smallest block that fits, by a look bounded by CLA_FIT_LOOK. */
#include "pool/pool.h"

static unsigned log2_of(uint64_t x) { return 63u - (unsigned)__builtin_clzll(x); }

void cla__bins_insert(cla_bins *bins, cla_block *b, unsigned align_log2) {
  unsigned class = cla__class_of(b->size >> align_log2), fl = class / CLA_SL, sl = class % CLA_SL;
  cla_block **head = &bins->heads[fl][sl];
  b->before = NULL;
  b->after = *head;
  if (*head) (*head)->before = b;
  *head = b;
  bins->sl[fl] |= 1u << sl;
  bins->fl |= (uint64_t)1 << fl;
}

void cla__bins_remove(cla_bins *bins, cla_block *b, unsigned align_log2) {
  if (b->after) b->after->before = b->before;
  if (b->before) {
    b->before->after = b->after;
    return;
  }
  unsigned class = cla__class_of(b->size >> align_log2), fl = class / CLA_SL, sl = class % CLA_SL;
  bins->heads[fl][sl] = b->after;
  if (b->after) return;
  bins->sl[fl] &= ~(1u << sl);
  if (!bins->sl[fl]) bins->fl &= ~((uint64_t)1 << fl);
}

unsigned cla__bins_next(const cla_bins *bins, unsigned class) {
  if (class >= CLA_CLASSES) return CLA_CLASSES;
  unsigned fl = class / CLA_SL;
  uint32_t sl = bins->sl[fl] & (~0u << class % CLA_SL);
  if (!sl) {
    uint64_t above = fl + 1 < 64 ? bins->fl & (~(uint64_t)0 << (fl + 1)) : 0;
    if (!above) return CLA_CLASSES;
    fl = (unsigned)__builtin_ctzll(above);
    sl = bins->sl[fl];
  }
  return fl * CLA_SL + (unsigned)__builtin_ctz(sl);
}

static cla_block *smallest_of(const cla_bins *bins, unsigned class, size_t size, size_t most, uint64_t done) {
  cla_block *best = NULL;
  int look = CLA_FIT_LOOK;
  for (cla_block *b = bins->heads[class / CLA_SL][class % CLA_SL]; b && look--; b = b->after) {
    if (b->size < size || b->size > most || b->freed_at > done) continue;
    if (!best || b->size < best->size) best = b;
    if (b->size == size) break;
  }
  return best;
}

cla_block *cla__bins_fit(const cla_bins *bins, size_t size, size_t most, uint64_t done, unsigned align_log2) {
  enum { CLASSES_TRIED = 4 }; /* more only when blocks are passed over as not done or too large */
  unsigned class = cla__class_of(size >> align_log2);
  for (int tried = 0; tried < CLASSES_TRIED; tried++, class ++) {
    class = cla__bins_next(bins, class);
    if (class == CLA_CLASSES) return NULL;
    cla_block *b = smallest_of(bins, class, size, most, done);
    if (b) return b;
  }
  return NULL;
}

cla_block *cla__bins_largest(const cla_bins *bins, uint64_t done) {
  for (uint64_t fls = bins->fl; fls;) {
    unsigned fl = log2_of(fls);
    for (uint32_t sls = bins->sl[fl]; sls;) {
      unsigned sl = log2_of(sls);
      int look = CLA_FIT_LOOK;
      cla_block *best = NULL;
      for (cla_block *b = bins->heads[fl][sl]; b && look--; b = b->after)
        if (b->freed_at <= done && (!best || b->size > best->size)) best = b;
      if (best) return best;
      sls &= ~(1u << sl);
    }
    fls &= ~((uint64_t)1 << fl);
  }
  return NULL;
}
