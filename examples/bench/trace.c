/* What recording costs: an allocation and its free, two events, with and without. */
#include "bench.h"
#include "clalloc.h"

enum { SIZE = 4096, PAIRS = 400000 };

static cla_pool *pools[2]; /* [1] records */
static cla_stream *stream;

static void must(cla_status status) {
  if (!status) return;
  fprintf(stderr, "%s\n", cla_last_error());
  exit(1);
}

static void pair(cla_pool *pool) {
  void *address;
  cla_alloc(pool, SIZE, stream, &address);
  cla_free(address);
}
static void plain(void) { pair(pools[0]); }
static void recorded(void) { pair(pools[1]); }

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  cla_device *device;
  must(cla_simulate(&sim, &device));
  stream = cla_device_stream(device);
  must(cla_pool_create(device, NULL, &pools[0]));
  must(cla_pool_create(device, NULL, &pools[1]));
  must(cla_pool_trace_start(pools[1], 0));
  double extra[BENCH_RUNS];
  for (int warm = 0; warm < 2; warm++) bench_time(recorded, PAIRS * 2), bench_time(plain, PAIRS);
  for (int i = 0; i < BENCH_RUNS; i++) extra[i] = (bench_time(recorded, PAIRS) - bench_time(plain, PAIRS)) / 2;
  bench_line("trace.record", bench_median(extra, BENCH_RUNS), "ns", "limit", 80);
  cla_pool_release(pools[0]);
  cla_pool_release(pools[1]);
  cla_device_release(device);
  return 0;
}
