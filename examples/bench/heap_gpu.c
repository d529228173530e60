/* Times of the heap's kernels on a GPU, from profiling events, for heap_gpu.lua. One line a cell:
 *
 *   cell HEAP_MIB N SIZE malloc_us free_us churn_us cold_us     (size 0: random sizes from 1 to 8192, sizes in permuted order)
 *
 * One item a block, groups of 256, malloc and free in kernels of their own, best of three after one; churn: ten rounds of malloc,
 * write, free in one kernel, best of two. A line with FAILED, and status 1, if blocks are missing or overwritten.
 * "steady N SIZE least median most": mallocs of 40 such rounds. "count": with counting; "nv": at most 64 registers an item, an
 * option of NVIDIA's compiler.
 *
 *   heap_gpu HEAP_MIB [count,nv] */
#include "../../spec/c/heap_world.h"
#include "bench.h"

enum { GROUP = 256, MOST = 1100000, CHURN_ROUNDS = 10 };

/* clang-format off */
static const char KERNELS[] = SOURCE(
  kernel void nothing(global ulong *blocks, uint n) {
    if (get_global_id(0) >= n) blocks[0] = 0;
  }

  kernel void take(CLA_HEAP heap, global ulong *blocks, uint n, uint size) {
    const uint i = get_global_id(0);
    if (i < n) blocks[i] = (ulong)cla_malloc(heap, size);
  }

  kernel void take_random(CLA_HEAP heap, global ulong *blocks, uint n) {
    const uint i = get_global_id(0);
    uint r = (i + 1u) * 2654435761u;
    r ^= r << 13; r ^= r >> 17; r ^= r << 5;
    if (i < n) blocks[i] = (ulong)cla_malloc(heap, 1u + (r >> 4) % 8192u);
  }

  kernel void permute(global const ulong *from, global ulong *to, uint n, uint step) {
    const uint i = get_global_id(0);
    if (i < n) to[i] = from[(uint)((ulong)i * step % n)];
  }

  kernel void give(CLA_HEAP heap, global const ulong *blocks, uint n) {
    const uint i = get_global_id(0);
    if (i < n) cla_free(heap, (global void *)blocks[i]);
  }

  kernel void stamp(global const ulong *blocks, uint n, uint size, uint is_check, global uint *bad) {
    const uint i = get_global_id(0);
    if (i >= n) return;
    volatile global uint *p = (volatile global uint *)blocks[i];
    if (p == 0) atomic_inc(bad);
    else
      for (uint k = 0; k < size / 4u; k += size > 64u ? size / 64u : 1u)
        if (is_check == 0u) p[k] = i;
        else if (p[k] != i) atomic_inc(bad + 1);
  }

  kernel void churn(CLA_HEAP heap, uint n, uint size, uint rounds, global uint *bad) {
    const uint i = get_global_id(0);
    if (i >= n) return;
    for (uint k = 0; k < rounds; k++) {
      volatile global uint *p = cla_malloc(heap, size);
      if (p == 0) {
        atomic_inc(bad);
        continue;
      }
      *p = i;
      if (*p != i) atomic_inc(bad + 1);
      cla_free(heap, (global void *)p);
    }
  }
);
/* clang-format on */

static world w;
static cl_mem blocks, permuted, bad;
static int failures;

static double take(heap *h, cl_uint n, cl_uint size) {
  launch l = launch_of(&w, size ? "take" : "take_random");
  give_mem(&l, h->memory), give_mem(&l, blocks), give_uint(&l, n);
  if (size) give_uint(&l, size);
  return 1000 * run(&l, n, GROUP);
}

static void permute(cl_uint n) {
  launch l = launch_of(&w, "permute");
  give_mem(&l, blocks), give_mem(&l, permuted), give_uint(&l, n), give_uint(&l, 7919);
  run(&l, n, GROUP);
}

static double give(heap *h, cl_mem which, cl_uint n) {
  launch l = launch_of(&w, "give");
  give_mem(&l, h->memory), give_mem(&l, which), give_uint(&l, n);
  return 1000 * run(&l, n, GROUP);
}

static void stamp(cl_uint n, cl_uint size, cl_uint is_check) {
  launch l = launch_of(&w, "stamp");
  give_mem(&l, blocks), give_uint(&l, n), give_uint(&l, size ? size : 4), give_uint(&l, is_check), give_mem(&l, bad);
  run(&l, n, GROUP);
}

static double churn(heap *h, cl_uint n, cl_uint size) {
  launch l = launch_of(&w, "churn");
  give_mem(&l, h->memory), give_uint(&l, n), give_uint(&l, size), give_uint(&l, CHURN_ROUNDS), give_mem(&l, bad);
  return 1000 * run(&l, n, GROUP);
}

static void none_bad(const char *what, cl_uint n, cl_uint size) {
  cl_uint counts[2];
  world_read(&w, bad, 0, sizeof counts, counts);
  if (counts[0] || counts[1])
    failures++, printf("FAILED %s n=%u size=%u: %u nulls, %u overwritten\n", what, n, size, counts[0], counts[1]);
  world_fill(&w, bad, 0, 0, sizeof counts);
}

static double least(double a, double b) { return a < b ? a : b; }

/* What the mallocs took; *giving: the frees. */
static double round_trip(heap *h, cl_uint n, cl_uint size, bool is_permuted, double *giving) {
  const double taking = take(h, n, size);
  stamp(n, size, 0);
  stamp(n, size, 1);
  if (is_permuted) permute(n);
  *giving = give(h, is_permuted ? permuted : blocks, n);
  return taking;
}

static void cell(heap *h, cl_uint n, cl_uint size, bool is_permuted) {
  double cold = 0, taking = 1e12, giving = 1e12, churning = 0;
  for (int i = 0; i < 4; i++) {
    double b;
    const double a = round_trip(h, n, size, is_permuted, &b);
    if (i == 0) cold = a;
    else taking = least(taking, a), giving = least(giving, b);
  }
  none_bad("blocks", n, size);
  if (size && n <= 100000 && !is_permuted) {
    churning = churn(h, n, size);
    churning = least(churning, churn(h, n, size));
    none_bad("churn", n, size);
  }
  printf("cell %llu %u %u %.2f %.2f %.2f %.2f%s\n", (unsigned long long)(h->plan.limit_bytes >> 20), n, size, taking,
         giving, churning, cold, is_permuted ? " permuted" : "");
  fflush(stdout);
}

/* Again and again the same blocks, freed in order and in permuted order: what a round takes at least, in the middle and at
 * most. */
static void steady(heap *h, cl_uint n, cl_uint size) {
  enum { ROUNDS = 40 };
  double taking[ROUNDS], giving;
  for (int i = 0; i <= ROUNDS; i++) /* the last takes the place of the first, which was cold */
    taking[i % ROUNDS] = round_trip(h, n, size, i % 3 != 0, &giving);
  none_bad("blocks", n, size);
  const double median = bench_median(taking, ROUNDS);
  printf("steady %u %u %.2f %.2f %.2f\n", n, size, taking[0], median, taking[ROUNDS - 1]);
  fflush(stdout);
}

static void failing(heap *h) {
  const cl_uint size = 8192, fits = (cl_uint)(h->plan.payload_bytes / size);
  cl_mem kept = blocks;
  blocks = world_buffer(&w, sizeof(cl_ulong) * ((size_t)fits + MOST));
  take(h, fits, size);
  stamp(fits, 4, 0);
  none_bad("full", fits, size);
  double best = 1e12;
  for (int i = 0; i < 4; i++) best = least(best, (take)(h, 100000, 64));
  printf("failing %.2f\n", best);
  OK(clReleaseMemObject(blocks));
  blocks = kept;
}

int main(int argc, char **argv) {
  static const cl_uint numbers[] = {1024, 10000, 100000, 1000000}, sizes[] = {16, 64, 256, 1024, 4096, 8192};
  /* More registers than that cost the malloc kernels a quarter of the warps that a multiprocessor holds. */
  const bool is_nvidia = argc > 2 && strstr(argv[2], "nv");
  if (argc < 2 || !world_open(&w, KERNELS, is_nvidia ? "-cl-std=CL1.2 -cl-nv-maxrregcount=64" : "-cl-std=CL1.2"))
    return 2;
  const uint64_t limit = strtoull(argv[1], NULL, 10) << 20;
  blocks = world_buffer(&w, sizeof(cl_ulong) * MOST), permuted = world_buffer(&w, sizeof(cl_ulong) * MOST);
  bad = world_buffer(&w, 8);
  world_fill(&w, bad, 0, 0, 8);
  heap h = heap_make_with(&w, limit, argc > 2 && strstr(argv[2], "count") ? CLA_HEAP_COUNT : 0, false);
  double making = 1e12;
  for (int i = 0; i < 3; i++) {
    const double start = bench_now();
    heap_fill(&h);
    OK(clFinish(w.queue));
    making = least(making, (bench_now() - start) / 1e3);
  }
  heap_reset(&h);
  printf("making %.1f\n", making);
  for (int i = 0; i < 4; i++) {
    double best = 1e12;
    for (int k = 0; k < 20; k++) { /* the clocks rise meanwhile */
      launch l = launch_of(&w, "nothing");
      give_mem(&l, blocks), give_uint(&l, MOST * 2);
      best = least(best, 1000 * run(&l, numbers[i], GROUP));
    }
    printf("nothing %u %.2f\n", numbers[i], best);
  }
  printf("cold %.2f\n", take(&h, 1000000, 64));
  give(&h, blocks, 1000000);
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 6; k++)
      if ((uint64_t)numbers[i] * sizes[k] <= limit * 8 / 10 && (uint64_t)numbers[i] * sizes[k] < UINT64_C(2200) << 20)
        cell(&h, numbers[i], sizes[k], false);
  for (int k = 1; k < 4; k++) {
    cell(&h, 100000, sizes[k], true);
    if ((uint64_t)1000000 * sizes[k] <= limit * 8 / 10) cell(&h, 1000000, sizes[k], true);
  }
  if (limit >= UINT64_C(1) << 30) {
    cell(&h, 100000, 0, false), cell(&h, 100000, 0, true), cell(&h, 100000, 8192, true);
    steady(&h, 100000, 8192), steady(&h, 100000, 0);
    cell(&h, limit < UINT64_C(6) << 30 ? 150000 : 1000000, 0, false); /* half of 8 GiB, six tenths of 1 GiB */
  }
  cla__heap_tally tally;
  if (!heap_audit(&h, &tally) || tally.live_blocks)
    failures++, printf("FAILED audit: %llu live\n", (unsigned long long)tally.live_blocks);
  failing(&h);
  OK(clReleaseMemObject(blocks));
  OK(clReleaseMemObject(permuted));
  OK(clReleaseMemObject(bad));
  heap_close(&h);
  world_close(&w);
  return failures ? 1 : 0;
}
