/* The heap's kernels against the oracles of heap_world.h: every block is stamped with its owner, verified before it is freed, its
 * interval compared with the others'; afterwards all metadata are recounted. */
#include "heap_world.h"

#ifndef OPTIONS /* see heap_crowds.c */
#define OPTIONS "-cl-std=CL1.2"
#define CHOSEN  NULL
#define NAME    "heap_device"
#endif

/* clang-format off */
static const char KERNELS[] = SOURCE(
  static uint dice(uint x) {
    x ^= x << 13; x ^= x >> 17; x ^= x << 5;
    return x;
  }

  static uchar mark(uint owner, ulong i) { return (uchar)(owner * 31u + (uint)i * 7u); }

  /* Every word of a block up to 512 bytes, at least 128 spread over a larger one (llvmpipe ends an item's loops after 65535
   * rounds in all), and the last bytes. */
  static ulong step_of(ulong n) { return n <= 512ul ? 1ul : n / 512ul; }

  static void stamp(__global uchar *p, ulong n, uint owner) {
    __global uint *words = (__global uint *)p;
    for (ulong i = 0; i < n / 4ul; i += step_of(n)) words[i] = owner * 0x9E3779B1u + (uint)i;
    for (ulong i = n & ~3ul; i < n; i++) p[i] = mark(owner, i);
  }

  static uint is_stamped(__global uchar *p, ulong n, uint owner) {
    __global uint *words = (__global uint *)p;
    uint good = 1;
    for (ulong i = 0; i < n / 4ul; i += step_of(n)) good &= words[i] == owner * 0x9E3779B1u + (uint)i ? 1u : 0u;
    for (ulong i = n & ~3ul; i < n; i++) good &= p[i] == mark(owner, i) ? 1u : 0u;
    return good;
  }

  static ulong offset_of(CLA_HEAP heap, __global void *p) {
    return p == 0 ? 0ul : (ulong)p - (ulong)cla__payload(heap) + 1ul;
  }

  static __global uchar *block_at(CLA_HEAP heap, ulong offset) {
    return (__global uchar *)cla__payload(heap) + (offset - 1ul);
  }

  kernel void take(CLA_HEAP heap, global ulong *offsets, global uint *sizes, uint n, uint least, uint most, uint seed) {
    const uint i = get_global_id(0);
    if (i >= n) return;
    const uint size = least + (dice((i + 1u) * 2654435761u ^ seed) >> 4) % (most - least + 1u);
    global uchar *p = cla_malloc(heap, size);
    sizes[i] = size;
    offsets[i] = offset_of(heap, p);
  }

  kernel void write(CLA_HEAP heap, global const ulong *offsets, global const uint *sizes, uint n) {
    const uint i = get_global_id(0);
    if (i < n && offsets[i] != 0ul) stamp(block_at(heap, offsets[i]), sizes[i], i);
  }

  kernel void give(CLA_HEAP heap, global const ulong *offsets, global const uint *sizes, uint n, uint step, global uint *bad) {
    const uint i = (uint)((ulong)get_global_id(0) * step % n);
    if (get_global_id(0) >= n || offsets[i] == 0ul) return;
    if (!is_stamped(block_at(heap, offsets[i]), sizes[i], i)) atomic_inc(bad);
    cla_free(heap, block_at(heap, offsets[i]));
  }

  /* Four blocks an item, taken and given at random. */
  kernel void churn(CLA_HEAP heap, global uint *bad, uint rounds, uint most, uint seed) {
    const uint id = get_global_id(0);
    global uchar *block[4] = {0, 0, 0, 0};
    uint size[4] = {0, 0, 0, 0};
    uint r = (id + 1u) * 2654435761u ^ seed;
    for (uint round = 0; round < rounds + 4u; round++) {
      r = dice(r);
      const uint k = round < rounds ? (r >> 7) & 3u : round - rounds;
      if (block[k] != 0) {
        if (!is_stamped(block[k], size[k], id * 4u + k)) atomic_inc(bad);
        cla_free(heap, block[k]);
        block[k] = 0;
      } else if (round < rounds) {
        size[k] = 1u + (r >> 8) % most;
        block[k] = cla_malloc(heap, size[k]);
        if (block[k] == 0) atomic_inc(bad + 1);
        else stamp(block[k], size[k], id * 4u + k);
      }
    }
  }

  /* Branches, a loop of barriers, three dimensions: every item takes a block, its neighbour in the group frees it. */
  kernel void shapes(CLA_HEAP heap, global uint *bad, local ulong *held, uint rounds) {
    const uint n = get_local_size(0) * get_local_size(1) * get_local_size(2);
    const uint me = get_local_id(0) + get_local_size(0) * (get_local_id(1) + get_local_size(1) * get_local_id(2));
    for (uint round = 0; round < rounds; round++) {
      global uint *p = 0;
      if (me % 3u == 0u) p = cla_malloc(heap, 16u + me % 50u);
      else if (me % 3u == 1u) p = cla_malloc(heap, 700u);
      else
        for (uint i = 0; i < me % 4u + 1u; i++) {
          cla_free(heap, p);
          p = cla_malloc(heap, 40u * (i + 1u));
        }
      if (p != 0) p[0] = me * 1000u + round;
      else atomic_inc(bad + 1);
      held[me] = (ulong)p;
      barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
      const uint next = (me + 1u) % n;
      global uint *q = (global uint *)held[next];
      if (q != 0 && q[0] != next * 1000u + round) atomic_inc(bad);
      if (me & 1u) cla_free(heap, q);
      barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
      if (!(me & 1u)) cla_free(heap, q);
    }
  }

  /* Every block is freed by `times` items that race. */
  kernel void free_often(CLA_HEAP heap, global const ulong *offsets, uint n, uint times, global uint *kinds) {
    const uint i = get_global_id(0);
    if (i < n * times) atomic_inc(kinds + cla__free(heap, block_at(heap, offsets[i / times])));
  }

  /* Single steps, by one item each, with the block in a slot of held: a kernel a kind, for compilers put each call's whole
   * code where it stands (llvmpipe takes minutes over a kernel that has them all). */
  kernel void step_malloc(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    held[0] = (ulong)cla_malloc(heap, a);
    answer[0] = offset_of(heap, (global void *)held[0]);
  }

  kernel void step_calloc(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    global uchar *p = cla_calloc(heap, a, b);
    ulong said = offset_of(heap, p);
    if (p != 0)
      for (ulong k = 0; k < a * b; k++)
        if (p[k] != 0) said = ~0ul;
    held[0] = (ulong)p;
    answer[0] = said;
  }

  kernel void step_aligned(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    held[0] = (ulong)cla_aligned_alloc(heap, a, b);
    answer[0] = (held[0] & (a - 1ul)) != 0ul ? ~0ul : offset_of(heap, (global void *)held[0]);
  }

  kernel void step_realloc(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    global void *moved = cla_realloc(heap, (global void *)held[0], a);
    if (moved != 0 || a == 0ul) held[0] = (ulong)moved;
    answer[0] = offset_of(heap, moved);
  }

  kernel void step_free(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    answer[0] = cla__free(heap, held[0] == 0ul ? 0 : (global void *)(held[0] + a));
  }

  kernel void step_usable(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    answer[0] = cla_usable_size(heap, (global void *)(held[0] + a));
  }

  kernel void step_stamp(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    stamp((global uchar *)held[0], a, (uint)b);
    answer[0] = 0;
  }

  kernel void step_is_stamped(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    answer[0] = is_stamped((global uchar *)held[0], a, (uint)b);
  }

  kernel void step_ref(CLA_HEAP heap, global ulong *held, ulong a, ulong b, global ulong *answer) {
    answer[0] = cla_at(heap, cla_ref(heap, (global void *)held[0])) == (global void *)held[0];
  }

  kernel void sited(CLA_HEAP heap, global ulong *offsets, uint size) {
    const uint i = get_global_id(0);
    offsets[i] = offset_of(heap, cla_malloc_at(heap, size, 1000u + i));
  }

  kernel void bare(CLA_HEAP heap, global uint *said) {
    const uint i = get_global_id(0);
    global void *p = cla_malloc(heap, 1u + i);
    if (p != 0) atomic_inc(said);
    cla_free(heap, p);
  }
);
/* clang-format on */

enum { ITEMS_MOST = 1 << 16 };

static world w;
static cl_mem offsets, sizes, words;
static cl_ulong host_offsets[ITEMS_MOST];
static cl_uint host_sizes[ITEMS_MOST];

/* ---- one round: take, check, write, verify and give ---- */

/* Blocks taken; those that fail are null. */
static size_t take(heap *h, cl_uint n, cl_uint least, cl_uint most, cl_uint seed, size_t group) {
  size_t nblocks;
  launch l = launch_of(&w, "take");
  give_mem(&l, h->memory), give_mem(&l, offsets), give_mem(&l, sizes);
  give_uint(&l, n), give_uint(&l, least), give_uint(&l, most), give_uint(&l, seed);
  run(&l, n, group);
  world_read(&w, offsets, 0, n * sizeof(cl_ulong), host_offsets);
  world_read(&w, sizes, 0, n * sizeof(cl_uint), host_sizes);
  CHECK(intervals_are_good(&h->plan, host_offsets, host_sizes, n, &nblocks));
  return nblocks;
}

static void write_all(heap *h, cl_uint n, size_t group) {
  launch l = launch_of(&w, "write");
  give_mem(&l, h->memory), give_mem(&l, offsets), give_mem(&l, sizes), give_uint(&l, n);
  run(&l, n, group);
}

static void give_all(heap *h, cl_uint n, cl_uint step, size_t group) {
  cl_uint bad;
  launch l = launch_of(&w, "give");
  world_fill(&w, words, 0, 0, 4);
  give_mem(&l, h->memory), give_mem(&l, offsets), give_mem(&l, sizes), give_uint(&l, n), give_uint(&l, step);
  give_mem(&l, words);
  run(&l, n, group);
  world_read(&w, words, 0, 4, &bad);
  CHECK(bad == 0);
}

static size_t round_trip(heap *h, cl_uint n, cl_uint least, cl_uint most, cl_uint seed, size_t group) {
  const size_t nblocks = take(h, n, least, most, seed, group);
  write_all(h, n, group);
  give_all(h, n, seed % 2 ? 7919 : 1, group);
  return nblocks;
}

/* ---- scripts ---- */

enum kind { MALLOC, CALLOC, ALIGNED, REALLOC, FREE, USABLE, STAMP, IS_STAMPED, REF };

static const char *const kernels[] = {"step_malloc", "step_calloc", "step_aligned",    "step_realloc", "step_free",
                                      "step_usable", "step_stamp",  "step_is_stamped", "step_ref"};

#define SOME  (~(cl_ulong)1) /* wanted: any block */
#define NEVER (~(cl_ulong)0) /* what an item answers if a block is not zero, not aligned */

typedef struct step {
  cl_ulong kind, slot, a, b, wanted;
} step;

enum { SLOTS = 128 };

static cl_mem answer, held[SLOTS];

/* Takes the steps one after the other; *last: the last answer. */
static bool follow(heap *h, const char *name, const step *script, size_t n, cl_ulong *last) {
  bool is_good = true;
  for (size_t i = 0; i < n; i++) {
    const step *s = &script[i];
    launch l = launch_of(&w, kernels[s->kind]);
    give_mem(&l, h->memory), give_mem(&l, held[s->slot]), give_ulong(&l, s->a), give_ulong(&l, s->b),
        give_mem(&l, answer);
    run(&l, 1, 1);
    world_read(&w, answer, 0, sizeof *last, last);
    if (s->wanted == SOME ? *last != 0 && *last != NEVER : *last == s->wanted) continue;
    fprintf(stderr, "%s, step %zu: %llu, not %lld\n", name, i, (unsigned long long)*last, (long long)s->wanted);
    is_good = false;
  }
  return is_good;
}

#define FOLLOW(h, script) follow(h, #script, script, sizeof(script) / sizeof *(script), &last)

/* ---- tests ---- */

/* 7 MiB of 8, on an empty heap and beside a hundred small blocks; every kind of bad free; nothing and too much. */
static void test_stories(void) {
  static const cl_ulong mib = 1 << 20;
  heap h = heap_make(&w, 8 << 20);
  cl_ulong last;
  step small[100], gone[99];
  for (cl_ulong i = 0; i < 100; i++) small[i] = (step){MALLOC, i, 16 + 20 * i, 0, SOME};
  for (cl_ulong i = 1; i < 100; i++) gone[i - 1] = (step){FREE, i, 0, 0, 0};
  const step whole[] = {{MALLOC, 100, 7 * mib, 0, SOME}, {MALLOC, 101, 7 * mib, 0, 0}, {FREE, 100, 0, 0, 0}};
  const step beside[] = {{MALLOC, 100, 7 * mib, 0, SOME},
                         {FREE, 100, 1 << 16, 0, CLA_HEAP_INTERIOR},
                         {FREE, 100, 0, 0, 0},
                         {FREE, 100, 0, 0, CLA_HEAP_DOUBLE},
                         {FREE, 0, 0, 0, 0},
                         {FREE, 0, 0, 0, CLA_HEAP_DOUBLE},
                         {FREE, 10, 16, 0, CLA_HEAP_INTERIOR},
                         {FREE, 10, 3, 0, CLA_HEAP_MISALIGNED},
                         {FREE, 10, 0x10000000, 0, CLA_HEAP_FOREIGN},
                         {FREE, 10, (cl_ulong)-0x10000000, 0, CLA_HEAP_FOREIGN},
                         {MALLOC, 101, 0, 0, 0},
                         {FREE, 101, 0, 0, 0}};
  const step full[] = {{MALLOC, 0, 8 * mib, 0, SOME},  {MALLOC, 1, 1, 0, 0},           {FREE, 0, 0, 0, 0},
                       {MALLOC, 0, 1, 0, SOME},        {MALLOC, 1, 8 * mib, 0, 0},     {FREE, 0, 0, 0, 0},
                       {MALLOC, 1, 8 * mib + 1, 0, 0}, {MALLOC, 1, ~(cl_ulong)0, 0, 0}};
  CHECK(FOLLOW(&h, whole));
  CHECK(FOLLOW(&h, small));
  CHECK(FOLLOW(&h, beside));
  CHECK(FOLLOW(&h, gone));
  CHECK(FOLLOW(&h, full));
  CHECK(heap_is_empty(&h));
  CHECK(heap_count(&h, CLA_HEAP_DOUBLES) == 2);
  CHECK(heap_count(&h, CLA_HEAP_BADS) == 5);
  CHECK(heap_count(&h, CLA_HEAP_FAILED) == 5);
  CHECK(heap_word(&h, CLA_HEAP_REFUSED) == (8 << 20) + 1 && heap_word(&h, CLA_HEAP_REFUSED_64K) == 0xffffffffu);
  CHECK(heap_word(&h, CLA_HEAP_RECORDS_USED) == 7);
  const uint32_t first = CLA_HEAP_RECORDED;
  CHECK(heap_word(&h, first + CLA_HEAP_RECORD_KIND) == CLA_HEAP_INTERIOR);
  CHECK(heap_word(&h, first + CLA_HEAP_RECORD_OFFSET) == 1 << 16 && heap_word(&h, first + CLA_HEAP_RECORD_ITEM) == 0);
  CHECK(heap_word(&h, CLA_HEAP_PEAK16) == 8 << 16);
  heap_close(&h);
}

static void test_relatives(void) {
  heap h = heap_make(&w, 10 << 20); /* wherever it begins, nine multiples of 1 MiB lie in it, eight with room behind */
  cl_ulong last, usable;
  const step sized[] = {{MALLOC, 0, 100, 0, SOME}, {STAMP, 0, 100, 5, 0}, {USABLE, 0, 1, 0, 0},
                        {USABLE, 0, 16, 0, 0},     {REF, 0, 0, 0, 1},     {USABLE, 0, 0, 0, SOME}};
  CHECK(FOLLOW(&h, sized));
  usable = last;
  CHECK(usable >= 100 && usable < 128);
  const step whither[] = {{REALLOC, 0, 1, 0, SOME}};
  CHECK(FOLLOW(&h, whither));
  const cl_ulong place = last;
  const step stays[] = {{REALLOC, 0, usable, 0, place},
                        {REALLOC, 0, 5000, 0, SOME}, /* moves */
                        {IS_STAMPED, 0, 100, 5, 1},
                        {STAMP, 0, 5000, 6, 0},
                        {REALLOC, 0, 100000, 0, SOME},
                        {IS_STAMPED, 0, 5000, 6, 1},
                        {REALLOC, 0, (cl_ulong)1 << 40, 0, 0}, /* keeps the block */
                        {IS_STAMPED, 0, 5000, 6, 1},
                        {REALLOC, 0, 0, 0, 0}, /* frees it */
                        {REALLOC, 0, 64, 0, SOME},
                        {STAMP, 0, 64, 7, 0},
                        {FREE, 0, 0, 0, 0},
                        {CALLOC, 0, 16, 4, SOME}, /* what was freed is zero again */
                        {FREE, 0, 0, 0, 0},
                        {CALLOC, 0, (cl_ulong)1 << 33, (cl_ulong)1 << 31, 0},
                        {CALLOC, 0, 0, 5, 0},
                        {CALLOC, 0, 5, 0, 0},
                        {ALIGNED, 0, 24, 8, 0},
                        {ALIGNED, 0, 0, 8, 0},
                        {ALIGNED, 0, 64, 0, 0},
                        {REF, 0, 0, 0, 1}};
  CHECK(FOLLOW(&h, stays));
  for (cl_ulong align = 1; align <= 1 << 20; align <<= w.is_slow ? 4 : 1) {
    step aligned[24];
    size_t n = 0;
    for (cl_ulong size = 1; size <= 100000; size = 5 * size + 1) {
      aligned[n] = (step){ALIGNED, n, align, size, SOME}, n++;
      aligned[n] = (step){STAMP, n - 1, size, 9, 0}, n++;
    }
    for (size_t i = 0, m = n; i < m; i += 2) aligned[n++] = (step){FREE, aligned[i].slot, 0, 0, 0};
    CHECK(follow(&h, "aligned", aligned, n, &last));
  }
  CHECK(heap_is_empty(&h));
  heap_close(&h);
}

/* Every class's size, one less and one more, and the same about pages. */
static void test_boundaries(void) {
  heap h = heap_make(&w, 8 << 20);
  const cl_uint page = 1u << h.plan.page_shift;
  for (cl_uint k = 0; k < h.plan.nclasses; k++) {
    const cl_uint size = h.plan.size[k];
    CHECK(round_trip(&h, 300, size - 1, size + 1, k, w.is_slow ? 8 : 64) == 300);
  }
  for (cl_uint n = 1; n <= 4; n++) CHECK(round_trip(&h, 100, n * page - 1, n * page + 1, n, 4) == 100);
  CHECK(round_trip(&h, 1, 8 << 20, 8 << 20, 1, 1) == 1);
  CHECK(heap_is_empty(&h));
  heap_close(&h);
}

/* Exactly as many blocks as fit, at every size; afterwards the heap is whole. */
static void test_capacity(uint64_t limit) {
  heap h = heap_make(&w, limit);
  const cl_uint shown[] = {16, 48, 100, 256, 1000, 1024, 2048, 3000, 4096, 20000};
  for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
    cl_uint k = 0;
    while (k < h.plan.nclasses && h.plan.size[k] < shown[i]) k++;
    const uint64_t pages_each = (shown[i] + (1u << h.plan.page_shift) - 1) >> h.plan.page_shift;
    const uint64_t fit =
        k < h.plan.nclasses ? (uint64_t)h.plan.capacity[k] * h.plan.npages : h.plan.npages / pages_each;
    if (fit + 100 > ITEMS_MOST || (w.is_slow && fit > 3000)) continue;
    const cl_uint n = (cl_uint)fit + 100;
    for (int round = 0; round < 2; round++) {
      const uint64_t failed = heap_count(&h, CLA_HEAP_FAILED);
      if (!CHECK(take(&h, n, shown[i], shown[i], 1, 64) == fit))
        fprintf(stderr, "size %u, limit %llu\n", shown[i], (unsigned long long)limit);
      CHECK(heap_count(&h, CLA_HEAP_FAILED) == failed + 100);
      CHECK(heap_is_sound(&h, fit));
      write_all(&h, n, 64);
      give_all(&h, n, 7919, 64);
      CHECK(heap_is_empty(&h));
    }
    if (limit >= 8 << 20) {
      CHECK(take(&h, 1, 7 << 20, 7 << 20, 1, 1) == 1);
      write_all(&h, 1, 1);
      give_all(&h, 1, 1, 1);
    }
  }
  heap_close(&h);
}

static void test_limits(void) {
  const uint64_t limits[] = {0, 1, 512, 513, 4096, 5000, 65536, (1 << 20) - 1, (1 << 20) + 1, (3 << 20) + 17};
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    heap h = heap_make(&w, limits[i]);
    CHECK(h.plan.payload_bytes >= limits[i] && h.plan.payload_bytes < limits[i] + (1u << h.plan.page_shift));
    const cl_uint most = (cl_uint)h.plan.payload_bytes;
    CHECK(take(&h, 1, most + 1, most + 1, 1, 1) == 0);
    CHECK(take(&h, 1, most, most, 1, 1) == (limits[i] > 0));
    write_all(&h, 1, 1);
    give_all(&h, 1, 1, 1);
    CHECK(heap_is_empty(&h));
    CHECK(take(&h, 1, 16, 16, 1, 1) == (limits[i] > 0));
    write_all(&h, 1, 1);
    give_all(&h, 1, 1, 1);
    CHECK(heap_is_empty(&h));
    heap_close(&h);
    if (limits[i] <= 5000) test_capacity(limits[i]);
  }
  test_capacity((1 << 20) + 1);
}

/* A hundred small blocks of those that filled 512 KiB stay: 7 MiB still fit beside them. */
static void test_two_ends(void) {
  heap h = heap_make(&w, 8 << 20);
  const cl_uint mixes[][2] = {{16, 16}, {64, 64}, {100, 100}, {16, 256}, {1, 500}, {500, 2048}, {1, 2048}};
  for (size_t m = 0; m < sizeof mixes / sizeof mixes[0]; m++) {
    const cl_uint least = mixes[m][0], most = mixes[m][1], mean = (least + most) / 2 + (least != most ? most / 8 : 8);
    cl_uint n = (512 << 10) / mean, kept = 0;
    if (w.is_slow && n > 2000) continue;
    CHECK(take(&h, n, least, most, (cl_uint)m, 64) == n);
    write_all(&h, n, 64);
    for (cl_uint i = 0; i < n && kept < 100; i += n / 100) host_offsets[i] = 0, kept++;
    world_write(&w, offsets, 0, n * sizeof(cl_ulong), host_offsets);
    give_all(&h, n, 1, 64);
    CHECK(heap_is_sound(&h, kept));
    cl_mem others = offsets;
    offsets = world_buffer(&w, 8 * ITEMS_MOST);
    if (!CHECK(take(&h, 1, 7 << 20, 7 << 20, 1, 1) == 1))
      fprintf(stderr, "beside %u blocks of %u to %u bytes\n", kept, least, most);
    write_all(&h, 1, 1);
    give_all(&h, 1, 1, 1);
    OK(clReleaseMemObject(offsets));
    offsets = others;
    heap_reset(&h);
  }
  heap_close(&h);
}

static void test_rounds(void) {
  const cl_uint n = w.is_slow ? 128 : ITEMS_MOST, rounds = w.is_slow ? 2 : strstr(w.platform, "rusticl") ? 8 : 100;
  const size_t groups[] = {1, 2, 64, 256};
  heap h = heap_make(&w, (uint64_t)64 << 20);
  for (cl_uint i = 0; i < rounds; i++) CHECK(round_trip(&h, n, 8, 512, i, groups[i % 4]) == n);
  CHECK(heap_is_empty(&h));
  heap_close(&h);
}

static void test_churn(void) {
  const cl_uint mosts[] = {64, 600, 2000, 20000}, n = w.is_slow ? 60 : 1024, rounds = w.is_slow ? 20 : 100;
  const size_t groups[] = {64, 1, 2, 256};
  heap h = heap_make(&w, 8 << 20);
  for (int m = 0; m < 4; m++) {
    cl_uint bad[2];
    launch l = launch_of(&w, "churn");
    world_fill(&w, words, 0, 0, sizeof bad);
    give_mem(&l, h.memory), give_mem(&l, words), give_uint(&l, rounds), give_uint(&l, mosts[m]), give_uint(&l, 77 + m);
    run(&l, n, w.is_slow ? 4 : groups[m]);
    world_read(&w, words, 0, sizeof bad, bad);
    CHECK(bad[0] == 0);
    CHECK(bad[1] == heap_count(&h, CLA_HEAP_FAILED));
    CHECK(heap_is_empty(&h));
    heap_reset(&h);
  }
  heap_close(&h);
}

static void test_shapes(void) {
  const size_t size[][3] = {{64, 1, 1}, {256, 4, 1}, {16, 8, 4}, {32, 1, 1}},
               group[][3] = {{64, 1, 1}, {64, 1, 1}, {4, 4, 4}, {1, 1, 1}};
  heap h = heap_make(&w, 8 << 20);
  for (int i = 0; i < 4; i++) {
    cl_uint bad[2];
    launch l = launch_of(&w, "shapes");
    world_fill(&w, words, 0, 0, sizeof bad);
    give_mem(&l, h.memory), give_mem(&l, words);
    OK(clSetKernelArg(l.kernel, l.nargs++, 8 * 64, NULL));
    give_uint(&l, w.is_slow ? 2 : 20);
    run_shape(&l, 3, size[i], group[i]);
    world_read(&w, words, 0, sizeof bad, bad);
    CHECK(bad[0] == 0 && bad[1] == 0);
    CHECK(heap_is_empty(&h));
  }
  heap_close(&h);
}

static void test_double_frees(void) {
  const cl_uint n = w.is_slow ? 64 : 1024, kinds_wanted[2] = {n, 3 * n}, shown[] = {64, 3000, 9000};
  heap h = heap_make(&w, 16 << 20);
  for (int i = 0; i < 3; i++) {
    cl_uint kinds[5];
    CHECK(take(&h, n, shown[i], shown[i], 1, 64) == n);
    launch l = launch_of(&w, "free_often");
    world_fill(&w, words, 0, 0, sizeof kinds);
    give_mem(&l, h.memory), give_mem(&l, offsets), give_uint(&l, n), give_uint(&l, 4), give_mem(&l, words);
    run(&l, 4 * n, 64);
    world_read(&w, words, 0, sizeof kinds, kinds);
    CHECK(kinds[0] == kinds_wanted[0] && kinds[CLA_HEAP_DOUBLE] == kinds_wanted[1]);
    CHECK(heap_is_empty(&h));
  }
  CHECK(heap_count(&h, CLA_HEAP_DOUBLES) == 9 * n && heap_word(&h, CLA_HEAP_RECORDS_USED) >= CLA_HEAP_RECORDS);
  heap_close(&h);
}

/* 64 items ask for 1 MiB of 8: exactly eight get it. */
static void test_crowded_runs(void) {
  heap h = heap_make(&w, 8 << 20);
  for (int i = 0; i < (w.is_slow ? 2 : 50); i++) {
    CHECK(take(&h, 64, 1 << 20, 1 << 20, 1, i % 2 ? 64 : 1) == 8);
    write_all(&h, 64, 1);
    give_all(&h, 64, 1, 64);
  }
  CHECK(heap_is_empty(&h));
  heap_close(&h);
}

/* Random sizes until nine tenths of the heap are live, and back to nothing. */
static void test_mixed_fill(void) {
  const uint64_t limit = w.is_slow ? (1 << 20) + 1 : 8 << 20,
                 percent = w.is_slow ? 80 : 90; /* the slow one's pages hold 400 bytes */
  heap h = heap_make(&w, limit);
  for (cl_uint i = 0; i < (w.is_slow ? 1 : 10); i++) {
    cla__heap_tally tally;
    const cl_uint n = (cl_uint)(limit * percent / 100 / 224);
    const size_t got = take(&h, n, 16, 400, i, 64);
    if (!CHECK(got == n)) fprintf(stderr, "%zu of %u blocks\n", got, n);
    CHECK(heap_audit(&h, &tally) && tally.used_bytes > limit * (percent - 2) / 100);
    write_all(&h, n, 64);
    give_all(&h, n, i % 2 ? 7919 : 1, 64);
    CHECK(heap_is_empty(&h));
  }
  heap_close(&h);
}

/* Everyone asks at once, any size: all the classes want pages, and each finds them (64 MiB, six tenths of them asked for). */
static void test_crowd(void) {
  const uint64_t limit = (uint64_t)(w.is_slow ? 4 : 64) << 20;
  const cl_uint n = (cl_uint)(limit / 10 * 6 / 2052), rounds = w.is_slow ? 1 : 4;
  if (w.is_slow && n > 1500) return;
  heap h = heap_make(&w, limit);
  for (cl_uint i = 0; i < rounds; i++) CHECK(round_trip(&h, n, 8, 4096, i, i % 2 ? 64 : 256) == n);
  CHECK(heap_is_empty(&h));
  heap_close(&h);
}

static void test_sites(void) {
  heap h = heap_make_with(&w, 1 << 20, CLA_HEAP_COUNT, true);
  const cl_uint shown[] = {16, 100, 5000};
  for (int s = 0; s < 3; s++) {
    cl_ulong where[64];
    launch l = launch_of(&w, "sited");
    give_mem(&l, h.memory), give_mem(&l, offsets), give_uint(&l, shown[s]);
    run(&l, 64, 16);
    world_read(&w, offsets, 0, sizeof where, where);
    for (cl_uint i = 0; i < 64; i++)
      CHECK(where[i] != 0 && heap_word(&h, h.plan.sites + (cl_uint)((where[i] - 1) / 16)) == 1000 + i);
  }
  CHECK(heap_is_sound(&h, 192));
  heap_close(&h);
}

/* A heap that was never made, or is null: null for every item, never a fault (chipStar#1402). */
static void test_no_heap(void) {
  cl_mem zeros = world_buffer(&w, 65536);
  world_fill(&w, zeros, 0, 0, 65536);
  cl_mem heaps[2] = {zeros, NULL};
  for (int i = 0; i < 2; i++) {
    cl_uint said;
    launch l = launch_of(&w, "bare");
    world_fill(&w, words, 0, 0, 4);
    give_mem(&l, heaps[i]), give_mem(&l, words);
    run(&l, 64, 16);
    world_read(&w, words, 0, 4, &said);
    CHECK(said == 0);
  }
  OK(clReleaseMemObject(zeros));
}

int main(int argc, char **argv) {
  const char *chosen = argc > 1 ? argv[1] : CHOSEN; /* names of tests */
  static const struct {
    const char *name;
    void (*test)(void);
  } tests[] = {{"stories", test_stories},
               {"relatives", test_relatives},
               {"boundaries", test_boundaries},
               {"limits", test_limits},
               {"two_ends", test_two_ends},
               {"shapes", test_shapes},
               {"double_frees", test_double_frees},
               {"churn", test_churn},
               {"crowded_runs", test_crowded_runs},
               {"mixed_fill", test_mixed_fill},
               {"crowd", test_crowd},
               {"sites", test_sites},
               {"no_heap", test_no_heap},
               {"rounds", test_rounds}};
  if (!world_open(&w, KERNELS, OPTIONS)) {
    puts("no OpenCL device");
    return 77;
  }
  for (int i = 0; i < SLOTS; i++) {
    held[i] = world_buffer(&w, 8);
    world_fill(&w, held[i], 0, 0, 8);
  }
  answer = world_buffer(&w, 8);
  offsets = world_buffer(&w, sizeof host_offsets), sizes = world_buffer(&w, sizeof host_sizes),
  words = world_buffer(&w, 4096);
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
    struct timespec a, b;
    if (chosen && !strstr(chosen, tests[i].name)) continue;
    clock_gettime(CLOCK_MONOTONIC, &a);
    tests[i].test();
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%s: %.2f s\n", tests[i].name, (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9);
    fflush(stdout);
  }
  if (!chosen) test_capacity(8 << 20);
  for (int i = 0; i < SLOTS; i++) OK(clReleaseMemObject(held[i]));
  OK(clReleaseMemObject(answer));
  OK(clReleaseMemObject(offsets));
  OK(clReleaseMemObject(sizes));
  OK(clReleaseMemObject(words));
  world_close(&w);
  return check_done(NAME);
}
