/* An allocation and its free, cached, against what a C program would do without us: a buffer made and released by
 * the driver, and malloc on the host. Then the same with many blocks live or held: the time must not grow with their
 * number. */
#include <mimalloc.h>

#include "bench.h"
#include "clalloc.h"

enum { SIZE = 4096, MANY = 100000, FEW = 10 };

static cla_device *device;
static cla_pool *pool;
static cla_stream *stream;

static void must(cla_status status) {
  if (!status) return;
  fprintf(stderr, "%s\n", cla_last_error());
  exit(1);
}

static void ours(void) {
  void *address;
  cla_alloc(pool, SIZE, stream, &address);
  cla_free(address);
}

static void raw(void) {
  cl_int err;
  cl_mem mem = clCreateBuffer(cla_device_context(device), CL_MEM_READ_WRITE, SIZE, NULL, &err);
  clReleaseMemObject(mem);
}

static void mimalloc(void) {
  void *volatile p = mi_malloc(SIZE); /* volatile: or the compiler drops the pair */
  mi_free(p);
}

/* Time a pair with `n` other blocks live, or freed but held by a stream that stands still. */
static double pair_among(size_t n, bool held) {
  void **others = malloc(n * sizeof *others);
  cla_stream *stuck = NULL;
  cla_gate *gate = NULL;
  must(cla_pool_create(device, NULL, &pool));
  must(cla_stream_create(device, &stuck));
  must(cla_gate_create(device, &gate));
  must(cla_stream_wait_gate(stuck, gate));
  for (size_t i = 0; i < n; i++) {
    must(cla_alloc(pool, SIZE, stream, &others[i]));
    if (held) must(cla_record(others[i], stuck));
  }
  if (held)
    for (size_t i = 0; i < n; i++) must(cla_free(others[i]));
  double runs[BENCH_RUNS];
  bench_time(ours, 1000);
  for (int i = 0; i < BENCH_RUNS; i++) runs[i] = bench_time(ours, 200000);
  must(cla_gate_open(gate));
  must(cla_stream_finish(stuck));
  cla_gate_release(gate);
  cla_stream_release(stuck);
  cla_pool_release(pool);
  free(others);
  return bench_median(runs, BENCH_RUNS);
}

/* Driver calls of any kind in one round of a thousand mixed sizes, once the pool has seen them. */
static void steady_calls(void) {
  enum { N = 1000, WARM_UP = 10 };
  static void *blocks[N];
  must(cla_pool_create(device, NULL, &pool));
  uint64_t before = 0;
  for (int round = 0; round <= WARM_UP; round++) {
    uint64_t random = 42;
    before = cla_debug_calls(NULL);
    for (int i = 0; i < N; i++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      size_t size = (size_t)1 << (4 + (random >> 60));
      must(cla_alloc(pool, size + (random >> 40) % size, stream, &blocks[i]));
      if (i % 3 == 2) {
        must(cla_free(blocks[i - 1]));
        blocks[i - 1] = NULL;
      }
    }
    for (int i = 0; i < N; i++)
      if (blocks[i]) {
        must(cla_free(blocks[i]));
        blocks[i] = NULL;
      }
  }
  uint64_t calls = cla_debug_calls(NULL) - before;
  printf("bench device.steady.calls ours=%llu calls peer=limit:0 ratio=%llu\n", (unsigned long long)calls,
         (unsigned long long)calls);
  cla_pool_release(pool);
}

int main(void) {
  must(cla_device_open(NULL, &device));
  stream = cla_device_stream(device);
  must(cla_pool_create(device, NULL, &pool));
  bench_side_by_side("device.pair.c.raw", ours, 500000, "clCreateBuffer", raw, 100000);
  bench_side_by_side("device.pair.c.mimalloc", ours, 500000, "mimalloc", mimalloc, 1000000);
  cla_pool_release(pool);
  bench_line("device.pair.live", pair_among(MANY, false), "ns", "10_live", pair_among(FEW, false));
  bench_line("device.pair.held", pair_among(MANY, true), "ns", "10_held", pair_among(FEW, true));
  steady_calls();
  cla_device_release(device);
  return 0;
}
