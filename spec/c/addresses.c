/* Addresses: what resolves, what does not, and why; handles that stay stale for ever. On a real device, and with
 * sizes no machine here has on a simulated one. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

static cla_pool *pool_on(cla_device *d, unsigned flags) {
  cla_pool *p = NULL;
  const cla_pool_options options = {.policy = cla_policy_caching(), .flags = flags};
  CHECK(cla_pool_create_with(d, &options, &p) == CLA_OK);
  return p;
}

/* pytorch#182924 and its kind: an offset is added to the handle. */
static void interior_addresses_resolve(cla_device *d) {
  cla_pool *p = pool_on(d, 0);
  void *h, *neighbour;
  cla_buffer b;
  CHECK(cla_alloc(p, 1024, NULL, &h) == CLA_OK);
  CHECK(cla_alloc(p, 1024, NULL, &neighbour) == CLA_OK);
  const size_t offsets[] = {0, 1, 4, 64, 1020, 1023};
  for (int i = 0; i < 6; i++) {
    CHECK(cla_resolve((char *)h + offsets[i], &b) == CLA_OK);
    CHECK(b.address == h && b.nbytes == 1024 - offsets[i] && b.requested == 1024 && b.pool == p && b.device == d);
    CHECK(b.size % 512 == 0 && b.size >= 1024);
  }
  CHECK(cla_resolve((char *)h + 1024, &b) == CLA_E_BOUNDS); /* also with a neighbour there */
  CHECK(cla_resolve((char *)h - 1, &b) != CLA_OK);
  CHECK(cla_resolve((char *)neighbour - 1, &b) != CLA_OK);
  CHECK(cla_resolve((char *)neighbour + 1024, &b) != CLA_OK);
  CHECK(cla_free((char *)h + 4) == CLA_E_INVALID && strstr(cla_last_error(), "inside") != NULL);
  CHECK(cla_free(h) == CLA_OK && cla_free(neighbour) == CLA_OK);
  cla_pool_release(p);
}

static void foreign_addresses_are_refused(cla_device *d) {
  cla_pool *p = pool_on(d, 0);
  int on_stack = 0;
  void *on_heap = malloc(64), *closed, *h;
  cla_buffer b;
  cl_int err;
  cl_mem mem = d ? clCreateBuffer(cla_device_context(d), CL_MEM_READ_WRITE, 64, NULL, &err) : NULL;
  cla_pool *gone = pool_on(d, 0);
  CHECK(cla_alloc(gone, 64, NULL, &closed) == CLA_OK);
  cla_pool_release(gone);
  CHECK(cla_alloc(p, 64, NULL, &h) == CLA_OK);
  void *const foreign[] = {NULL, (void *)1, &on_stack, on_heap, mem, closed, (void *)~(uintptr_t)0};
  uint64_t calls = cla_debug_calls(NULL);
  for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
    CHECK(cla_free(foreign[i]) != CLA_OK);
    CHECK(cla_resolve(foreign[i], &b) != CLA_OK);
    CHECK(cla_record(foreign[i], cla_device_stream(d)) != CLA_OK);
    CHECK(!cla_owns(foreign[i]));
    CHECK(cla_buffer_mem(foreign[i], &mem, NULL) != CLA_OK);
  }
  CHECK(cla_debug_calls(NULL) == calls); /* none of it reached the driver */
  CHECK(cla_owns(h) && cla_free(h) == CLA_OK);
  if (mem) clReleaseMemObject(mem);
  free(on_heap);
  cla_pool_release(p);
}

static void stale_handles_stay_stale(cla_device *d) {
  cla_pool *p = pool_on(d, 0);
  void *h, *g;
  cla_buffer first = {0}, second = {0};
  CHECK(cla_alloc(p, 512, NULL, &h) == CLA_OK && cla_resolve(h, &first) == CLA_OK);
  CHECK(cla_free(h) == CLA_OK);
  CHECK(cla_free(h) == CLA_E_FREED); /* cub#329 */
  CHECK(!cla_buffer_valid(&first));
  CHECK(cla_alloc(p, 512, NULL, &g) == CLA_OK && g == h && cla_resolve(g, &second) == CLA_OK);
  CHECK(!cla_buffer_valid(&first) && cla_buffer_valid(&second));
  CHECK(first.generation != second.generation);
  char text[4] = "";
  CHECK(cla_copy(g, "abc", 4, NULL, NULL) == CLA_OK && cla_copy(text, g, 4, NULL, NULL) == CLA_OK);
  CHECK(strcmp(text, "abc") == 0);
  CHECK(cla_free(g) == CLA_OK);
  cla_stats s;
  CHECK(cla_pool_stats(p, &s) == CLA_OK && s.allocs == 2 && s.frees == 2 && s.active_blocks == 0);
  cla_pool_release(p);
}

/* The last error belongs to failures: a failure that was mended leaves none (cub#47). */
static void zero_bytes_and_huge_sizes(void) {
  cla_device *d;
  const cla_simulation sim = {.capacity = (uint64_t)80 << 30};
  CHECK(cla_simulate(&sim, &d) == CLA_OK);
  cla_pool *p = pool_on(d, 0);
  void *a, *b, *big;
  cla_buffer r;
  CHECK(cla_alloc(p, 0, NULL, &a) == CLA_OK);
  CHECK(cla_alloc(p, 0, NULL, &b) == CLA_OK);
  CHECK(a != b);
  CHECK(cla_resolve(a, &r) == CLA_OK && r.nbytes == 0);
  CHECK(cla_resolve((char *)a + 1, &r) == CLA_E_BOUNDS);
  CHECK(cla_copy(a, b, 0, NULL, NULL) == CLA_OK);
  CHECK(cla_free(a) == CLA_OK);
  CHECK(cla_free(b) == CLA_OK);
  for (size_t k = 0; k <= 1024; k++) CHECK(cla_alloc(p, SIZE_MAX - k, NULL, &big) == CLA_E_TOO_LARGE);
  const size_t huge[] = {(size_t)1 << 63, ((size_t)1 << 63) - 1, ((size_t)1 << 61) * 4, (size_t)80 << 31,
                         ((size_t)80 << 30) + 1};
  for (int i = 0; i < 5; i++) CHECK(cla_alloc(p, huge[i], NULL, &big) == CLA_E_TOO_LARGE);
  CHECK(cla_alloc(p, ((size_t)1 << 32) + 4096, NULL, &big) == CLA_OK); /* OpenCL.jl#183 */
  CHECK(cla_resolve(big, &r) == CLA_OK && r.requested == ((size_t)1 << 32) + 4096);
  CHECK(cla_resolve((char *)big + ((size_t)1 << 32), &r) == CLA_OK && r.offset >= (size_t)1 << 32 && r.nbytes == 4096);
  CHECK(cla_free(big) == CLA_OK);
  CHECK(cla_pool_check(p) == CLA_OK);
  cla_pool_release(p);
  cla_device_release(d);
}

static void svm_addresses_are_the_memory(cla_device *d) {
  if (!cla_device_get_info(d)->has_svm) return;
  cla_pool *p = pool_on(d, CLA_POOL_SVM);
  void *h, *host;
  cla_buffer b;
  CHECK(cla_alloc(p, 4096, NULL, &h) == CLA_OK);
  CHECK(cla_copy(h, "shared", 7, NULL, NULL) == CLA_OK);
  CHECK(cla_map(h, 7, CLA_MAP_READ, &host) == CLA_OK);
  CHECK(host == h && strcmp(h, "shared") == 0);
  CHECK(cla_unmap(h) == CLA_OK);
  CHECK(cla_unmap(h) == CLA_E_INVALID);
  CHECK(cla_resolve((char *)h + 100, &b) == CLA_OK && b.nbytes == 3996);
  CHECK(cla_free(h) == CLA_OK);
  CHECK(cla_free(h) == CLA_E_FREED);
  CHECK(cla_pool_check(p) == CLA_OK);
  cla_pool_release(p);
}

/* Each alignment a driver may ask for; OpenCL says it in bits (llama.cpp#7090). */
static void alignment_is_kept(uint32_t align_bytes) {
  cla_device *d;
  const cla_simulation sim = {.capacity = (uint64_t)8 << 30, .align_bytes = align_bytes};
  CHECK(cla_simulate(&sim, &d) == CLA_OK && cla_device_get_info(d)->align_bytes == align_bytes);
  cla_pool *p = pool_on(d, 0);
  enum { N = 2000 };
  void *x[N];
  uint64_t random = align_bytes;
  for (int i = 0; i < N; i++) {
    cla_buffer b = {0};
    random = random * 6364136223846793005u + 1442695040888963407u;
    size_t nbytes = (random >> 33) % 100000;
    CHECK(cla_alloc(p, nbytes, NULL, &x[i]) == CLA_OK && cla_resolve(x[i], &b) == CLA_OK);
    CHECK(b.offset % align_bytes == 0 && b.requested == nbytes && b.size >= nbytes);
    if (i % 3 == 0) CHECK(cla_free(x[i]) == CLA_OK);
  }
  cl_mem mem;
  size_t offset = 99;
  void *h;
  CHECK(cla_alloc(p, 100000, NULL, &h) == CLA_OK);
  CHECK(cla_buffer_mem((char *)h + align_bytes, &mem, NULL) == CLA_OK);
  CHECK(cla_buffer_mem((char *)h + align_bytes / 2, &mem, NULL) == CLA_E_UNSUPPORTED);
  CHECK(cla_buffer_mem((char *)h + align_bytes / 2, &mem, &offset) == CLA_OK && offset == align_bytes / 2);
  CHECK(cla_pool_check(p) == CLA_OK);
  cla_pool_release(p);
  cla_device_release(d);
}

int main(void) {
  cla_device *d;
  CHECK(cla_device_open(NULL, &d) == CLA_OK);
  interior_addresses_resolve(d);
  foreign_addresses_are_refused(d);
  stale_handles_stay_stale(d);
  svm_addresses_are_the_memory(d);
  zero_bytes_and_huge_sizes();
  alignment_is_kept(128);
  alignment_is_kept(512);
  alignment_is_kept(4096);
  cla_device_release(d);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("addresses");
}
