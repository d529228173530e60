/* The device heap on a CPU against libc's malloc in two threads, and against itself: lengths of pairs in nanoseconds, all cores
 * busy; the fill is the part of the heap that blocks of one size can use. */
#include <pthread.h>

#include "../../spec/c/heap_world.h"
#include "bench.h"

enum { RUNS = 7, ITEMS = 1024, GROUP = 64, THREADS = 2, LIVE = 64, CHURN_ROUNDS = 1000, MIXED_ROUNDS = 1000 };

/* clang-format off */
static const char KERNELS[] = SOURCE(
  static uint dice(uint x) {
    x ^= x << 13; x ^= x >> 17; x ^= x << 5;
    return x;
  }

  kernel void churn(CLA_HEAP heap, uint rounds, uint size, global uint *failed) {
    uint nulls = 0;
    for (uint i = 0; i < rounds; i++) {
      volatile global uint *p = cla_malloc(heap, size);
      if (p == 0) nulls++;
      else *p = i;
      cla_free(heap, (global void *)p);
    }
    if (nulls > 0) atomic_add(failed, nulls);
  }

  kernel void mixed(CLA_HEAP heap, uint rounds, uint most, global uint *failed) {
    global uint *live[64];
    uint nulls = 0, r = ((uint)get_global_id(0) + 1u) * 2654435761u;
    for (uint i = 0; i < 64u; i++) live[i] = 0;
    for (uint i = 0; i < rounds; i++) {
      r = dice(r);
      const uint k = r & 63u;
      cla_free(heap, live[k]);
      live[k] = cla_malloc(heap, 4u + (r >> 8) % (most - 3u));
      if (live[k] == 0) nulls++;
      else *live[k] = i;
    }
    for (uint i = 0; i < 64u; i++) cla_free(heap, live[i]);
    if (nulls > 0) atomic_add(failed, nulls);
  }

  kernel void occupy(CLA_HEAP heap, uint n, global uint *failed) {
    for (uint i = 0; i < n; i++)
      if (cla_malloc(heap, 4u + dice(i + 1u) % 497u) == 0) atomic_inc(failed);
  }

  kernel void fill(CLA_HEAP heap, uint size, global uint *n) {
    uint got = 0;
    while (cla_malloc(heap, size) != 0) got++;
    atomic_add(n, got);
  }
);
/* clang-format on */

static world w;
static cl_mem failed;

static void none_failed(void) {
  cl_uint n;
  world_read(&w, failed, 0, 4, &n);
  if (n == 0) return;
  fprintf(stderr, "%u mallocs failed\n", n);
  exit(1);
}

/* ns of a pair, with `items` items at it. */
static double kernel_pair(heap *h, const char *name, cl_uint rounds, cl_uint size) {
  launch l = launch_of(&w, name);
  give_mem(&l, h->memory), give_uint(&l, rounds), give_uint(&l, size), give_mem(&l, failed);
  const double ms = run(&l, ITEMS, GROUP);
  none_failed();
  return ms * 1e6 / ((double)ITEMS * rounds);
}

/* ---- the same with libc ---- */

typedef struct task {
  unsigned rounds, size, seed;
} task;

static unsigned dice(unsigned x) {
  x ^= x << 13, x ^= x >> 17, x ^= x << 5;
  return x;
}

static void *libc_churn(void *arg) {
  const task *t = arg;
  for (unsigned i = 0; i < t->rounds; i++) {
    volatile unsigned *p = malloc(t->size);
    *p = i;
    free((void *)p);
  }
  return NULL;
}

static void *libc_mixed(void *arg) {
  const task *t = arg;
  unsigned r = t->seed * 2654435761u;
  unsigned *live[LIVE] = {0};
  for (unsigned i = 0; i < t->rounds; i++) {
    r = dice(r);
    const unsigned k = r % LIVE;
    free(live[k]);
    live[k] = malloc(4 + (r >> 8) % (t->size - 3));
    *live[k] = i;
  }
  for (int i = 0; i < LIVE; i++) free(live[i]);
  return NULL;
}

static double libc_pair(void *(*body)(void *), unsigned rounds, unsigned size) {
  pthread_t threads[THREADS];
  task tasks[THREADS];
  const double start = bench_now();
  for (unsigned i = 0; i < THREADS; i++) {
    tasks[i] = (task){rounds, size, i + 1};
    pthread_create(&threads[i], NULL, body, &tasks[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  return (bench_now() - start) / ((double)rounds * THREADS);
}

/* ---- figures ---- */

static void against_libc(heap *h, const char *figure, const char *kernel, cl_uint rounds, cl_uint size,
                         void *(*body)(void *)) {
  double ours[RUNS], theirs[RUNS];
  kernel_pair(h, kernel, rounds, size);
  for (int i = 0; i < RUNS; i++) {
    ours[i] = kernel_pair(h, kernel, rounds, size);
    theirs[i] = libc_pair(body, 1000000, size);
  }
  bench_line(figure, bench_median(ours, RUNS), "ns", "libc", bench_median(theirs, RUNS));
}

static void against(heap *a, heap *b, const char *figure, const char *peer) {
  double ours[RUNS], theirs[RUNS];
  for (int i = 0; i < RUNS; i++) {
    ours[i] = kernel_pair(a, "churn", CHURN_ROUNDS, 64);
    theirs[i] = kernel_pair(b, "churn", CHURN_ROUNDS, 64);
  }
  bench_line(figure, bench_median(ours, RUNS), "ns", peer, bench_median(theirs, RUNS));
}

static void occupy(heap *h, cl_uint n) {
  launch l = launch_of(&w, "occupy");
  give_mem(&l, h->memory), give_uint(&l, n), give_mem(&l, failed);
  run(&l, 1, 1);
  none_failed();
}

/* The part of a 64 MiB heap that blocks of one size fill. */
static double fill_of(heap *h, cl_uint size) {
  cl_uint n;
  launch l = launch_of(&w, "fill");
  heap_reset(h);
  world_fill(&w, failed, 0, 0, 4);
  give_mem(&l, h->memory), give_uint(&l, size), give_mem(&l, failed);
  run(&l, 1, 1);
  world_read(&w, failed, 0, 4, &n);
  world_fill(&w, failed, 0, 0, 4);
  return (double)n * ((size + 15) & ~15u) / (double)h->plan.limit_bytes;
}

static void fills(void) {
  heap h = heap_make_with(&w, UINT64_C(64) << 20, 0, false);
  double least = 1, mean = 0, least_class = 1;
  int n = 0;
  for (cl_uint size = 16; size <= 2048; size += 4, n++) {
    const double fill = fill_of(&h, size);
    mean += fill, least = fill < least ? fill : least;
  }
  for (cl_uint k = 0; k < h.plan.nclasses && h.plan.size[k] <= 2048; k++) {
    const double fill = fill_of(&h, h.plan.size[k]);
    least_class = fill < least_class ? fill : least_class;
  }
  bench_line("heap.fill.least", least, "of the heap", "wanted", 0.75);
  bench_line("heap.fill.mean", mean / n, "of the heap", "wanted", 0.75);
  bench_line("heap.fill.class", least_class, "of the heap", "wanted", 0.97);
  heap_close(&h);
}

int main(void) {
  if (!world_open(&w, KERNELS, "-cl-std=CL1.2")) {
    puts("-- heap: left out, no OpenCL device");
    return 0;
  }
  failed = world_buffer(&w, 4);
  world_fill(&w, failed, 0, 0, 4);
  heap counted = heap_make_with(&w, UINT64_C(64) << 20, CLA_HEAP_COUNT, false);
  heap plain = heap_make_with(&w, UINT64_C(64) << 20, 0, false);

  static const cl_uint sizes[] = {16, 64, 256, 1024};
  for (int i = 0; i < 4; i++) {
    char name[40];
    snprintf(name, sizeof name, "heap.churn.libc.%u", sizes[i]);
    against_libc(&counted, name, "churn", CHURN_ROUNDS, sizes[i], libc_churn);
  }
  against_libc(&counted, "heap.mixed.libc", "mixed", MIXED_ROUNDS, 500, libc_mixed);
  against(&counted, &plain, "heap.stats", "uncounted");

  heap full = heap_make_with(&w, UINT64_C(64) << 20, CLA_HEAP_COUNT, false);
  occupy(&full, 100000);
  occupy(&counted, 10);
  against(&full, &counted, "heap.scaling", "10.live");
  fills();
  heap_close(&full);
  heap_close(&plain);
  heap_close(&counted);
  OK(clReleaseMemObject(failed));
  world_close(&w);
  return 0;
}
