/* malloc and free in kernels: a lock-free heap in one buffer. Include or prepend this text (after heap_layout.h, which
 * the installed clalloc_heap.cl contains), give every kernel that allocates a CLA_HEAP parameter, and pass it on:
 *
 *   kernel void k(CLA_HEAP heap, global int *out) { global int *p = cla_malloc(heap, 64); ... cla_free(heap, p); }
 *
 * Every function may be called by any item at any time: in divergent branches, between barriers, at any group size. No
 * item ever waits for another. Blocks are aligned to 16 bytes and live until freed, by any item, in any kernel with the
 * same heap.
 *
 *   cla_malloc(heap, n)               n bytes; null if n is 0, if there is no room, or if heap is null
 *   cla_calloc(heap, n, size)         the same, zeroed; null if n * size overflows
 *   cla_realloc(heap, p, n)           in place while the block is large enough; null leaves p as it was; n 0 frees p
 *   cla_aligned_alloc(heap, align, n) align: any power of two
 *   cla_free(heap, p)                 null: nothing. What is no live block is left alone, counted and recorded
 *   cla_usable_size(heap, p)          bytes of the live block at p, at least what was asked; 0: no live block there
 *   cla_ref(heap, p), cla_at(heap, r) pointer to 32-bit reference and back, 0 is null. For data that the host reads:
 *                                     1 + the offset, or above 4 GiB 1 + offset / 16
 *   cla_malloc_at(heap, n, site), cla_calloc_at, cla_realloc_at, cla_aligned_alloc_at: `site`, a number of the
 *                                     caller's, is kept for the block while the heap keeps sites
 *
 * Handing a block to another item needs the fences that handing over any other global memory needs. Limits of others:
 * llvmpipe ends an item's loops after 65535 rounds in all, so a run of that many pages, or zeroing or moving a MiB at
 * once, is beyond it.
 *
 * How it works (the memory is described in heap_layout.h). A small block: one atomic add on a page's word reserves
 * slots, an atomic or on the page's bitmap takes them. A free: an atomic and, then a subtraction. Which page: the
 * caller's hint shard says; a full page is replaced by one with room or a fresh one, found in the bitmaps, from the top
 * of the heap down. A large block takes whole pages, from the bottom up, and gives them back if another item was
 * faster.
 *
 * What must stay true, in this order of events:
 *   1. bits are set after their slots are reserved, and cleared before: used 0 means that the page's bitmap is zero, so
 *      nothing is initialised when a page changes its class;
 *   2. a live block pins its page's class;
 *   3. who gives room sets the flag, then the bit; who takes clears the bit, then the flag, and the word that this
 *      returns says whether the page is of use: "flag set, bit clear" never lasts, so room is never lost. A bit set too
 *      many is harmless;
 *   4. a page that leaves a hint is looked at once more afterwards, for its room may have come back in between.
 *
 * A loop has one way out, by its condition: llvmpipe 22.3 loses what items computed that left it otherwise. */
#ifndef CLA_HEAP_INCLUDED
#define CLA_HEAP_INCLUDED

typedef uint cla_heap_word; /* a name of its own: drivers tell it to whoever asks about a parameter */
#define CLA_HEAP __global cla_heap_word *

static __global void *cla_malloc(CLA_HEAP heap, ulong nbytes);
static __global void *cla_calloc(CLA_HEAP heap, ulong n, ulong size);
static __global void *cla_realloc(CLA_HEAP heap, __global void *p, ulong nbytes);
static __global void *cla_aligned_alloc(CLA_HEAP heap, ulong align, ulong nbytes);
static void cla_free(CLA_HEAP heap, __global void *p);
static ulong cla_usable_size(CLA_HEAP heap, __global void *p);
static uint cla_ref(CLA_HEAP heap, __global void *p);
static __global void *cla_at(CLA_HEAP heap, uint ref);
static __global void *cla_malloc_at(CLA_HEAP heap, ulong nbytes, uint site);
static __global void *cla_calloc_at(CLA_HEAP heap, ulong n, ulong size, uint site);
static __global void *cla_realloc_at(CLA_HEAP heap, __global void *p, ulong nbytes, uint site);
static __global void *cla_aligned_alloc_at(CLA_HEAP heap, ulong align, ulong nbytes, uint site);

typedef volatile __global uint *cla__words; /* shared with other items */

enum { /* bounds of retries: reached only when other items win every time, and then the answer is "no room" */
       CLA__RESERVE_TRIES = 512,
       CLA__PAGE_TRIES = 64,
       CLA__FRESH_TRIES = 4096,
       CLA__RUN_TRIES = 256,
       CLA__CROWD_TRIES = 256, /* so often an item of a crowd leaves the search for a page to another */
       CLA__EARLIER_TRIES = 4, /* so often the shard's earlier pages are looked at before the bitmaps */
       CLA__LEAST_HINTS = 64   /* a class's hints, for any kind of crowd */
};

/* ---- items that act together ---- */

/* The lanes of an NVIDIA warp that are here now and want the same; elsewhere each item for itself. */

typedef struct {
  uint lanes; /* a bit a lane */
  uint lane, leader, rank, count;
} cla__team;

#if defined(__NV_CL_C_VERSION) && !defined(CLA_HEAP_SCALAR)
#define CLA__WARP 1

static inline uint cla__lowest_bit(uint x) { return 31u - clz(x & -x); }

static inline cla__team cla__team_of(uint want) {
  cla__team t;
  uint active;
  asm volatile("activemask.b32 %0;" : "=r"(active));
  asm("mov.u32 %0, %%laneid;" : "=r"(t.lane));
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(t.lanes) : "r"(want), "r"(active));
  t.leader = cla__lowest_bit(t.lanes);
  t.rank = popcount(t.lanes & ((1u << t.lane) - 1u));
  t.count = popcount(t.lanes);
  return t;
}
static inline uint cla__from(cla__team t, uint value, uint lane) {
  uint r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, %3;" : "=r"(r) : "r"(value), "r"(lane), "r"(t.lanes));
  return r;
}
static inline uint cla__or_of_all(cla__team t, uint value) {
  uint r;
  asm volatile("redux.sync.or.b32 %0, %1, %2;" : "=r"(r) : "r"(value), "r"(t.lanes));
  return r;
}
static inline uint cla__lanes_where(cla__team t, uint is_true) {
  uint r;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2;}"
               : "=r"(r)
               : "r"(is_true), "r"(t.lanes));
  return r;
}
/* Is another lane of the team, before this one, at the same bit? */
static inline bool cla__is_repeated(cla__team t, uint bit) {
  uint same;
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(same) : "r"(bit), "r"(t.lanes));
  return cla__lowest_bit(same) != t.lane;
}
/* Tells apart the warps that are running. */
static inline uint cla__slot(void) {
  uint sm, warp, nsm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm("mov.u32 %0, %%nsmid;" : "=r"(nsm));
  return warp * nsm + sm;
}
static inline uint cla__lanes_before(void) { /* of those here now */
  uint active, lane;
  asm volatile("activemask.b32 %0;" : "=r"(active));
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return popcount(active & ((1u << lane) - 1u));
}

#else

static inline uint cla__lowest_bit(uint x) { return 31u - clz(x & -x); }

static inline cla__team cla__team_of(uint want) {
  cla__team t = {1u, 0u, 0u, 0u, 1u};
  return t;
}
#define cla__from(team, value, lane) (value)
#define cla__or_of_all(team, value)  (value)
#define cla__is_repeated(team, bit)  false
#define cla__lanes_before()          0u

#if defined(__x86_64__) || defined(__aarch64__)
/* A CPU: what tells its threads apart is where their stacks are, some MiB from one another. */
static inline uint cla__slot(void) {
  volatile uint here;
  const uint mebibytes = (uint)((ulong)&here >> 21);
  return mebibytes + (mebibytes >> 2);
}
#else
static inline uint cla__slot(void) {
  return (uint)(get_group_id(0) + get_num_groups(0) * (get_group_id(1) + get_num_groups(1) * get_group_id(2)));
}
#endif
#endif

#if defined(__NV_CL_C_VERSION)
static inline void cla__fence(void) { asm volatile("membar.gl;" ::: "memory"); }
static inline void cla__release_fence(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
#else
/* rusticl 22.3 takes mem_fence for a barrier, which loses items in divergent code; Oclgrind knows only mem_fence. */
#if defined(__clang__) && !defined(__SPIR__)
#define cla__fence() __sync_synchronize()
#else
#define cla__fence() mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif
#if defined(__x86_64__) || defined(__aarch64__)
#define cla__release_fence() /* atomics order by themselves there */
#else
#define cla__release_fence() cla__fence()
#endif
#endif

/* ---- bits and numbers ---- */

#if defined(CLA__WARP)
/* Place of the n-th set bit, n from 0. */
static inline uint cla__nth_bit(uint x, uint n) {
  uint at = 0;
  for (uint width = 16; width > 0; width >>= 1) {
    const uint below = popcount(x & ((1u << width) - 1u));
    if (n >= below) n -= below, at += width, x >>= width;
  }
  return at;
}
/* The n lowest set bits. */
static inline uint cla__lowest_bits(uint x, uint n) {
  return (uint)popcount(x) <= n ? x : x & ((1u << cla__nth_bit(x, n)) - 1u);
}
/* One of the set bits, each as likely: crowds that follow one another to the first bit get in each other's way. */
static inline uint cla__pick_bit(uint x, uint seed) {
  return cla__nth_bit(x, ((uint)popcount(x) * (seed & 0xffffu)) >> 16);
}
#else
static inline uint cla__pick_bit(uint x, uint seed) {
  const uint above = x & (CLA_HEAP_NONE << (seed & 31u));
  return cla__lowest_bit(above ? above : x);
}
#endif

/* The high half of a product: PoCL 3.1's mul_hi takes four multiplications. */
static inline uint cla__times(uint a, uint b) { return (uint)((ulong)a * b >> 32); }

static inline uint cla__mix(uint x) {
  x *= 0x9E3779B1u;
  x ^= x >> 15;
  x *= 0x85EBCA77u;
  return x ^ (x >> 13);
}

#if defined(__NV_CL_C_VERSION)
#define cla__plain(x) (x)
#else
/* Keeps LLVM from making a switch on an odd-sized integer of a page's code, which Oclgrind 21.10 takes the wrong
 * way. */
static inline uint cla__plain(uint x) {
  volatile uint plain = x;
  return plain;
}
#endif

/* ---- geometry: words that no kernel changes ---- */

#if defined(CLA__WARP)
/* Four words, at a multiple of four. The compiler may keep them across atomics and fences, which it could not know
 * of plain loads. */
static inline uint4 cla__fixed4(CLA_HEAP heap, uint at) {
  uint4 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(heap + at));
  return v;
}
/* `at` is a constant. */
static inline uint cla__fixed(CLA_HEAP heap, uint at) {
  const uint4 v = cla__fixed4(heap, at & ~3u);
  return (at & 3u) == 0u ? v.x : (at & 3u) == 1u ? v.y : (at & 3u) == 2u ? v.z : v.w;
}
static inline uint cla__fixed_at(CLA_HEAP heap, uint at) {
  uint word;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(heap + at));
  return word;
}
#else
static inline uint4 cla__fixed4(CLA_HEAP heap, uint at) { return *(const __global uint4 *)(heap + at); }
static inline uint cla__fixed(CLA_HEAP heap, uint at) { return heap[at]; }
static inline uint cla__fixed_at(CLA_HEAP heap, uint at) { return heap[at]; }
#endif

typedef struct {
  uint size, capacity, reciprocal, bitwords, hints, hint_mask, last_bits;
  uint code; /* in the page word */
} cla__class;

#if defined(CLA__WARP)
static inline cla__class cla__class_from(uint4 a, uint4 b) {
  const cla__class c = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  return c;
}
#else
static inline cla__class cla__class_at(CLA_HEAP heap, uint at) {
  const CLA_HEAP w = heap + at;
  const cla__class c = {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]};
  return c;
}
#endif

static inline cla__class cla__class_of_code(CLA_HEAP heap, uint code) {
  const uint at = CLA_HEAP_CLASS + (code - 1u) * CLA_HEAP_CLASS_WORDS;
#if defined(CLA__WARP)
  return cla__class_from(cla__fixed4(heap, at), cla__fixed4(heap, at + 4u));
#else
  return cla__class_at(heap, at);
#endif
}

/* The least class that holds nbytes, from 1 to half a page: its bucket's, or that of the next. */
static inline cla__class cla__class_for(CLA_HEAP heap, uint nbytes) {
  const uint rest = ((nbytes + 15u) >> 4) - 1u, octave = 31u - clz(rest | 1u);
  const uint bucket = rest < 4u ? rest : 4u * (octave - 1u) + ((rest >> (octave - 2u)) & 3u);
  const uint at = CLA_HEAP_BUCKETS + bucket * CLA_HEAP_CLASS_WORDS;
#if defined(CLA__WARP) /* both are on their way at once */
  const uint4 a = cla__fixed4(heap, at), b = cla__fixed4(heap, at + 4u), c = cla__fixed4(heap, at + 8u),
              d = cla__fixed4(heap, at + 12u);
  const bool is_next = nbytes > a.x;
  return cla__class_from(is_next ? c : a, is_next ? d : b);
#else
  return cla__class_at(heap, at + (nbytes > heap[at] ? (uint)CLA_HEAP_CLASS_WORDS : 0u));
#endif
}

static inline __global char *cla__payload(CLA_HEAP heap) {
  return (__global char *)heap + ((ulong)cla__fixed(heap, CLA_HEAP_PAYLOAD16) << 4);
}

static inline cla__words cla__page(CLA_HEAP heap, uint page) {
  return heap + cla__page_word(page);
}

static inline cla__words cla__block_words(CLA_HEAP heap, uint page) {
  return heap + cla__fixed(heap, CLA_HEAP_BLOCK_MAP) + ((ulong)page << (cla__fixed(heap, CLA_HEAP_PAGE_SHIFT) - 9u));
}

static inline bool cla__is_slab(uint code) { return code - 1u < CLA_HEAP_CLASSES_MAX; }

/* FREE, or a slab without blocks: a run or another class may take the page. */
static inline bool cla__is_empty(uint word) {
  return cla__page_code(word) < CLA_HEAP_TAKEN && (word & CLA_HEAP_USED) == 0u;
}

static inline bool cla__has_room(uint word, uint code, uint capacity) {
  return cla__page_code(word) == code && (word & CLA_HEAP_USED) < capacity;
}

/* ---- counters ---- */

static inline void cla__count(cla__words count, uint n) {
  const uint before = atomic_add(count, n);
  if (before + n < before) atomic_inc(count + 1);
}

static inline void cla__raise(cla__words most, uint value) {
  if (*most < value) atomic_max(most, value);
}

/* n blocks of nbytes together were allocated or freed (`which`, a counter of a shard). */
static inline void cla__count_blocks(CLA_HEAP heap, uint which, uint n, ulong nbytes, uint slot) {
  const uint flags = cla__fixed(heap, CLA_HEAP_FLAGS);
  if (flags == 0u) return;
  if ((flags & CLA_HEAP_COUNT) != 0u) {
    const uint shard = slot & (CLA_HEAP_SHARDS - 1u);
    cla__count(heap + CLA_HEAP_SHARDS_AT + shard * CLA_HEAP_SHARD_WORDS + which, n);
  }
  if ((flags & CLA_HEAP_PEAK) != 0u) {
    const uint grains = (uint)(nbytes >> 4);
    cla__words used = heap + CLA_HEAP_USED16;
    if (which == CLA_HEAP_SHARD_MALLOCS) cla__raise(heap + CLA_HEAP_PEAK16, atomic_add(used, grains) + grains);
    else atomic_sub(used, grains);
  }
}

static inline void cla__count_pages(CLA_HEAP heap, uint added, uint removed) {
  if ((cla__fixed(heap, CLA_HEAP_FLAGS) & CLA_HEAP_COUNT) == 0u || added == removed) return;
  cla__words now = heap + CLA_HEAP_PAGES_NOW;
  if (added > removed) cla__raise(heap + CLA_HEAP_PAGES_PEAK, atomic_add(now, added - removed) + added - removed);
  else atomic_sub(now, removed - added);
}

static void cla__count_failure(CLA_HEAP heap, ulong nbytes, uint n) {
  if (n > 0u) cla__count(heap + CLA_HEAP_FAILED, n);
  if (nbytes <= 0xffffffffu) cla__raise(heap + CLA_HEAP_REFUSED, (uint)nbytes);
  else cla__raise(heap + CLA_HEAP_REFUSED_64K, (uint)min((nbytes - 1ul) / 65536ul + 1ul, 0xfffffffful));
}

/* Counts and records what is no free; gives the kind back. */
static uint cla__bad_free(CLA_HEAP heap, __global void *p, uint kind) {
  cla__words used = heap + CLA_HEAP_RECORDS_USED;
  cla__count(heap + (kind == CLA_HEAP_DOUBLE ? CLA_HEAP_DOUBLES : CLA_HEAP_BADS), 1u);
  if (*used >= CLA_HEAP_RECORDS) return kind;
  const uint i = atomic_inc(used);
  if (i >= CLA_HEAP_RECORDS) return kind;
  __global uint *record = heap + CLA_HEAP_RECORDED + i * CLA_HEAP_RECORD_WORDS;
  const ulong offset = (ulong)p - (ulong)cla__payload(heap);
  const ulong item = (get_global_id(2) - get_global_offset(2)) * get_global_size(1) * get_global_size(0) +
                     (get_global_id(1) - get_global_offset(1)) * get_global_size(0) + get_global_id(0) -
                     get_global_offset(0);
  record[CLA_HEAP_RECORD_KIND] = kind;
  record[CLA_HEAP_RECORD_POINTER] = (uint)(ulong)p;
  record[CLA_HEAP_RECORD_POINTER + 1] = (uint)((ulong)p >> 32);
  record[CLA_HEAP_RECORD_OFFSET] = (uint)offset;
  record[CLA_HEAP_RECORD_OFFSET + 1] = (uint)(offset >> 32);
  record[CLA_HEAP_RECORD_ITEM] = (uint)item;
  record[CLA_HEAP_RECORD_ITEM + 1] = (uint)(item >> 32);
  return kind;
}

/* ---- two-level bitmaps of pages ---- */

static inline cla__words cla__room_map(CLA_HEAP heap, uint code) {
  return heap + cla__fixed(heap, CLA_HEAP_ROOM_MAPS) +
         (code - 1u) * (cla__fixed(heap, CLA_HEAP_LEVEL0) + cla__fixed(heap, CLA_HEAP_LEVEL1));
}

static inline void cla__map_set(cla__words map, uint level0, uint word, uint bits) {
  const uint above = 1u << (word & 31u);
  cla__words level1 = map + level0 + (word >> 5);
  atomic_or(map + word, bits);
  cla__fence();
  if ((*level1 & above) == 0u) atomic_or(level1, above);
}

/* Level 0's word may have become zero: its bit of level 1 goes, unless the word has filled again. */
static inline void cla__map_tidy(cla__words map, uint level0, uint word) {
  const uint above = 1u << (word & 31u);
  cla__words level1 = map + level0 + (word >> 5);
  atomic_and(level1, ~above);
  cla__fence();
  if (map[word] != 0u) atomic_or(level1, above);
}

/* Clears the bits; what the word was before. */
static inline uint cla__map_clear(cla__words map, uint level0, uint word, uint bits) {
  const uint before = atomic_and(map + word, ~bits);
  if (before != 0u && (before & ~bits) == 0u) cla__map_tidy(map, level0, word);
  return before;
}

/* A dry class has no room anywhere; whoever makes room says that this may have changed. */
static inline void cla__undry(CLA_HEAP heap, uint code) {
  cla__words dry = heap + CLA_HEAP_DRY + code - 1u;
  if (*dry != 0u) atomic_xchg(dry, 0u);
}

static inline void cla__undry_all(CLA_HEAP heap) {
  cla__words any = heap + CLA_HEAP_ANY_DRY;
  if (*any == 0u) return;
  atomic_xchg(any, 0u);
  cla__fence();
  for (uint code = 1; code <= CLA_HEAP_CLASSES_MAX; code++) cla__undry(heap, code);
}

/* The page has room (ROOM_BIT), is empty (FREE_BIT): flags first, then the bitmaps (invariant 3). */
static void cla__advertise(CLA_HEAP heap, uint page, uint flags) {
  const uint before = atomic_or(cla__page(heap, page), flags), code = cla__page_code(before),
             level0 = cla__fixed(heap, CLA_HEAP_LEVEL0);
  const uint added = flags & ~before;
  const bool has_room = (added & CLA_HEAP_ROOM_BIT) != 0u && cla__is_slab(code),
             is_free = (added & CLA_HEAP_FREE_BIT) != 0u;
  if (added == 0u) return;
  if (has_room) cla__map_set(cla__room_map(heap, code), level0, page >> 5, 1u << (page & 31u));
  if (is_free) cla__map_set(heap + cla__fixed(heap, CLA_HEAP_FREE_MAP), level0, page >> 5, 1u << (page & 31u));
  cla__fence();
  if (has_room) cla__undry(heap, code);
  if (is_free) cla__undry_all(heap);
}

/* ---- reserving slots ---- */

/* n slots of the page were given back, of a class with that capacity; `word`: before. */
static inline void cla__gave_slots(CLA_HEAP heap, uint page, uint word, uint n, uint capacity) {
  const uint before = word & CLA_HEAP_USED, has_room = before >= capacity && before - n < capacity ? CLA_HEAP_ROOM_BIT : 0u;
  const uint flags = (before == n ? CLA_HEAP_FREE_BIT : 0u) | has_room;
  if ((flags & ~word) != 0u) cla__advertise(heap, page, flags & ~word);
}

/* Gives n reserved slots back of a page whose class the caller does not pin. */
static void cla__unreserve(CLA_HEAP heap, uint page, uint n) {
  const uint word = atomic_sub(cla__page(heap, page), n), code = cla__page_code(word);
  uint capacity = CLA_HEAP_NONE;
  if (cla__is_slab(code))
    capacity = cla__fixed_at(heap, CLA_HEAP_CLASS + (code - 1u) * CLA_HEAP_CLASS_WORDS + CLA_HEAP_CLASS_CAPACITY);
  if (code < CLA_HEAP_TAKEN) cla__gave_slots(heap, page, word, n, capacity);
}

/* Takes a page that is in a hint out of its class's room bitmap again, lest a second hint gets it: the bit, then the
 * flag. Should it leave the hint meanwhile, it is looked at once more then. */
static inline void cla__withdraw(CLA_HEAP heap, uint code, uint page) {
  cla__map_clear(cla__room_map(heap, code), cla__fixed(heap, CLA_HEAP_LEVEL0), page >> 5, 1u << (page & 31u));
  atomic_and(cla__page(heap, page), ~CLA_HEAP_ROOM_BIT);
}

enum { CLA__NO_PAGE, CLA__WITH_ROOM, CLA__FRESH }; /* where a page comes from */

/* A page of the class's room bitmap, its bit cleared; NONE if there is none. */
static uint cla__take_page_with_room(CLA_HEAP heap, cla__class c, uint seed) {
  const uint level0 = cla__fixed(heap, CLA_HEAP_LEVEL0);
  cla__words map = cla__room_map(heap, c.code), level1 = map + level0;
  uint found = CLA_HEAP_NONE;
  for (uint group = cla__fixed(heap, CLA_HEAP_LEVEL1) >> 2; group > 0u && found == CLA_HEAP_NONE; group--) {
    const uint4 four = ((volatile __global uint4 *)level1)[group - 1u]; /* the highest first */
    for (uint turn = (four.x | four.y | four.z | four.w) != 0u ? 0u : 4u; turn < 4u && found == CLA_HEAP_NONE; turn++) {
      const uint j = ((seed >> 8) + turn) & 3u, at = (group - 1u) * 4u + j;
      uint above = j == 0u ? four.x : j == 1u ? four.y : j == 2u ? four.z : four.w;
      while (above != 0u && found == CLA_HEAP_NONE) {
        const uint b = cla__pick_bit(above, seed), word = at * 32u + b;
        uint pages = map[word];
        if (pages == 0u) {
          above &= level1[at];
          if ((above >> b & 1u) != 0u) cla__map_tidy(map, level0, word);
        }
        while (pages != 0u && found == CLA_HEAP_NONE) {
          const uint bit = cla__pick_bit(pages, seed >> 5), page = word * 32u + bit;
          const uint before = cla__map_clear(map, level0, word, 1u << bit);
          if ((before >> bit & 1u) != 0u &&
              cla__has_room(atomic_and(cla__page(heap, page), ~CLA_HEAP_ROOM_BIT), c.code, c.capacity))
            found = page;
          pages = before & ~(1u << bit);
        }
        above &= ~(1u << b);
      }
    }
  }
  return found;
}

/* The highest non-zero word of level 1 and its value; NONE: all are zero. */
static inline uint cla__highest_word(cla__words level1, uint nwords, uint *value) {
  uint at = CLA_HEAP_NONE;
  for (uint group = nwords >> 2; group > 0u && at == CLA_HEAP_NONE; group--) {
    const uint4 four = ((volatile __global uint4 *)level1)[group - 1u];
    const uint j = four.w != 0u ? 3u : four.z != 0u ? 2u : four.y != 0u ? 1u : 0u;
    *value = four.w != 0u ? four.w : four.z != 0u ? four.z : four.y != 0u ? four.y : four.x;
    if (*value != 0u) at = (group - 1u) * 4u + j;
  }
  return at;
}

/* An empty page from near the top, its bit cleared; NONE if there is none. Items pick at random within a window of
 * words, for they come in crowds; a small heap's window is narrow, so that its lower part stays whole for runs. */
static uint cla__take_empty_page(CLA_HEAP heap, uint seed) {
  const uint level0 = cla__fixed(heap, CLA_HEAP_LEVEL0), window = cla__fixed(heap, CLA_HEAP_WINDOW);
  cla__words map = heap + cla__fixed(heap, CLA_HEAP_FREE_MAP), level1 = map + level0;
  uint found = CLA_HEAP_NONE, above = 1;
  for (uint attempt = 0; attempt < CLA__FRESH_TRIES && above != 0u && found == CLA_HEAP_NONE; attempt++) {
    uint i = cla__highest_word(level1, cla__fixed(heap, CLA_HEAP_LEVEL1), &above), pages = 0, word = 0;
    const uint dice = cla__mix(seed + attempt * 0x51ED27u);
    if (above != 0u) {
      if (attempt >= 2u && i > 0u && window >= 16u) { /* a crowd: over more words, a wider stretch at each attempt */
        const uint lower = i - cla__mix(seed ^ attempt) % min(i + 1u, attempt), there = level1[lower];
        if (there != 0u) above = there, i = lower;
      }
      const uint highest = 31u - clz(above);
      if (highest >= window) above &= CLA_HEAP_NONE << (highest + 1u - window);
      const uint b = cla__pick_bit(above, dice);
      word = i * 32u + b;
      pages = map[word];
      if (pages == 0u && (level1[i] >> b & 1u) != 0u) cla__map_tidy(map, level0, word);
    }
    while (pages != 0u && found == CLA_HEAP_NONE) {
      const uint bit = cla__pick_bit(pages, dice >> 5), page = word * 32u + bit;
      const uint before = cla__map_clear(map, level0, word, 1u << bit);
      if ((before >> bit & 1u) != 0u && cla__is_empty(atomic_and(cla__page(heap, page), ~CLA_HEAP_FREE_BIT)))
        found = page;
      pages = before & ~(1u << bit);
    }
  }
  return found;
}

/* The page words themselves, from the top: an empty page or one with room. is_moving: there are pages that may yet
 * be given back. */
static uint cla__scan_pages(CLA_HEAP heap, cla__class c, bool *is_moving) {
  uint found = CLA_HEAP_NONE;
  *is_moving = false;
  for (uint page = cla__fixed(heap, CLA_HEAP_NPAGES); page > 0u && found == CLA_HEAP_NONE;) {
    uint words[8]; /* several reads on their way at once */
    const uint n = min(page, 8u);
    for (uint j = 0; j < 8u; j++) words[j] = *cla__page(heap, page - 1u - min(j, n - 1u));
    for (uint j = 0; j < 8u; j++) {
      if (cla__is_empty(words[j]) || cla__has_room(words[j], c.code, c.capacity)) found = page - 1u - min(j, n - 1u);
      if (cla__plain(cla__page_code(words[j])) == CLA_HEAP_TAKEN) *is_moving = true;
    }
    page -= n;
  }
  return found;
}

/* The bitmaps are empty: look at every page word, unless someone did and nothing was given back since. */
static uint cla__last_page(CLA_HEAP heap, cla__class c, bool *is_moving) {
  cla__words dry = heap + CLA_HEAP_DRY + c.code - 1u;
  *is_moving = false;
  if (*dry == 2u) return CLA_HEAP_NONE;
  const uint token = atomic_inc(heap + CLA_HEAP_TOKENS) << 2 | 1u;
  atomic_xchg(dry, token);
  cla__fence();
  atomic_xchg(heap + CLA_HEAP_ANY_DRY, 1u);
  cla__fence();
  const uint page = cla__scan_pages(heap, c, is_moving);
  if (page == CLA_HEAP_NONE && !*is_moving) atomic_cmpxchg(dry, token, 2u);
  return page;
}

/* Makes an empty page a slab of the class. WITH_ROOM: another item did; NO_PAGE: the page went another way. */
static uint cla__make_slab(CLA_HEAP heap, cla__class c, uint page) {
  cla__words at = cla__page(heap, page);
  uint word = *at;
  bool is_made = false;
  while (cla__is_empty(word) && !is_made) {
    const uint slab = (word & (CLA_HEAP_TICKETS | CLA_HEAP_FREE_BIT)) | c.code << CLA_HEAP_CODE_SHIFT;
    const uint seen = atomic_cmpxchg(at, word, slab);
    is_made = seen == word;
    if (!is_made) word = seen;
  }
  if (is_made) {
    cla__count_pages(heap, cla__page_code(word) == CLA_HEAP_FREE ? 1u : 0u, 0u);
    return CLA__FRESH;
  }
  if (cla__has_room(word, c.code, c.capacity)) return CLA__WITH_ROOM;
  if (cla__plain(cla__page_code(word)) == CLA_HEAP_FREE)
    cla__advertise(heap, page, CLA_HEAP_FREE_BIT); /* a stray claim's moment */
  return CLA__NO_PAGE;
}

/* A slab of the class that had room when seen; NONE: the heap has no room for the class. */
static uint cla__new_page(CLA_HEAP heap, cla__class c, uint seed, uint *source) {
  uint page = CLA_HEAP_NONE;
  bool is_over = false;
  for (uint attempt = 0; attempt < CLA__PAGE_TRIES && !is_over; attempt++, seed += 0x9E3779B1u) {
    bool is_moving = false;
    *source = CLA__WITH_ROOM;
    page = cla__take_page_with_room(heap, c, seed);
    if (page == CLA_HEAP_NONE) {
      page = cla__take_empty_page(heap, seed);
      if (page == CLA_HEAP_NONE) page = cla__last_page(heap, c, &is_moving);
      *source = page == CLA_HEAP_NONE ? CLA__NO_PAGE : cla__make_slab(heap, c, page);
    }
    is_over = *source != CLA__NO_PAGE || (page == CLA_HEAP_NONE && !is_moving);
    if (*source == CLA__NO_PAGE) page = CLA_HEAP_NONE;
  }
  if (page != CLA_HEAP_NONE) cla__undry(heap, c.code);
  return page;
}

/* One of the three pages that the hint had before, if it has room; NONE else. place: which. */
static inline uint cla__earlier_page(CLA_HEAP heap, cla__class c, cla__words hint, uint page, uint *place) {
  const uint4 four = *(volatile __global uint4 *)hint;
  const uint npages = cla__fixed(heap, CLA_HEAP_NPAGES);
  const uint y = four.y < npages ? *cla__page(heap, four.y) : 0u, z = four.z < npages ? *cla__page(heap, four.z) : 0u,
             w = four.w < npages ? *cla__page(heap, four.w) : 0u;
  if (four.y != page && cla__has_room(y, c.code, c.capacity)) return *place = 1u, four.y;
  if (four.z != page && cla__has_room(z, c.code, c.capacity)) return *place = 2u, four.z;
  if (four.w != page && cla__has_room(w, c.code, c.capacity)) return *place = 3u, four.w;
  return CLA_HEAP_NONE;
}

typedef struct {
  uint page, granted; /* NONE, or so many slots of the page are the caller's, to be found in its bitmap */
  uint word;          /* the page word before */
} cla__claim;

static inline bool cla__try_reserve(CLA_HEAP heap, cla__class c, uint page, uint need, cla__claim *claim) {
  if (page >= cla__fixed(heap, CLA_HEAP_NPAGES)) return false; /* no page in the hint */
  const uint word = atomic_add(cla__page(heap, page), CLA_HEAP_TICKET + need);
  if (!cla__has_room(word, c.code, c.capacity)) {
    cla__unreserve(heap, page, need);
    return false;
  }
  const uint granted = min(need, c.capacity - (word & CLA_HEAP_USED));
  if (granted < need) cla__unreserve(heap, page, need - granted);
  claim->page = page, claim->granted = granted, claim->word = word;
  return true;
}

/* A page has left its hint (invariant 4). */
static inline void cla__retire(CLA_HEAP heap, cla__class c, uint page) {
  const uint word = *cla__page(heap, page);
  uint flags = cla__has_room(word, c.code, c.capacity) ? CLA_HEAP_ROOM_BIT : 0u;
  if (cla__is_empty(word)) flags |= CLA_HEAP_FREE_BIT;
  if ((flags & ~word) != 0u) cla__advertise(heap, page, flags & ~word);
}

static inline cla__words cla__hint(CLA_HEAP heap, cla__class c, uint need, uint slot) {
  uint mask = c.hint_mask;
#if defined(CLA__WARP) /* the fewer slots a warp wants of a page, the more warps can share it */
  const uint shift = need > 1u ? clz(need - 1u) - 27u : 5u;
  mask = mask >> shift | (mask & (CLA__LEAST_HINTS - 1u));
#endif
  return heap + c.hints + ((slot & mask) << 2);
}

#if defined(CLA__WARP) || defined(CLA_HEAP_TEST_CROWDS)
enum { CLA__POLLS = 256 }; /* reads of a hint, a tenth of a millisecond or two */
#define CLA__SOUGHT (CLA_HEAP_NONE - 1u) /* in a hint: an item is looking for its next page */

/* A crowd that looks for pages gets into its own way in the bitmaps, and ends up all over the heap with a few blocks a page.
 * So one item looks, and the others give it a moment, no more: true: look; false: *page may be of use now. (On an H200
 * 100,000 first blocks of 64 bytes take 16 us instead of 50, and a heap of 8 MiB can be filled.) */
static inline bool cla__is_seeker(CLA_HEAP heap, cla__class c, cla__words hint, uint attempt, uint *page) {
  const cla__words dry = heap + CLA_HEAP_DRY + c.code - 1u;
  if (attempt >= CLA__CROWD_TRIES || *dry == 2u) return true;
  const uint was = *page;
  if (was != CLA__SOUGHT) {
    *page = atomic_cmpxchg(hint, was, CLA__SOUGHT);
    if (*page != was) return false;
    *page = CLA__SOUGHT;
    return true;
  }
  const uint polls = CLA__POLLS + cla__mix(cla__slot()) % CLA__POLLS; /* not all lose patience at once */
  for (uint i = 0; i < polls && *page == CLA__SOUGHT; i++) *page = *hint;
  return *page == CLA__SOUGHT;
}
#else
#define cla__is_seeker(heap, c, hint, attempt, page) true
#endif

/* Another page for the hint, which holds `page`; false: there is none. is_borrowed: the page is in no hint, and its bit
 * was cleared. */
static inline bool cla__next_page(CLA_HEAP heap, cla__class c, cla__words hint, uint slot, uint attempt, uint *page,
                                  bool *is_borrowed) {
  const uint was = *page, seed = cla__mix(slot) + attempt * 0x85EBCA77u;
  if (!cla__is_seeker(heap, c, hint, attempt, page)) return true;
  const uint there = *page; /* what the hint holds now: the page, or that a next one is sought */
  const bool is_page = was < cla__fixed(heap, CLA_HEAP_NPAGES);
  uint source = CLA__WITH_ROOM, place = 1u + seed % 3u, next = CLA_HEAP_NONE;
  if (is_page && attempt < CLA__EARLIER_TRIES) next = cla__earlier_page(heap, c, hint, was, &place);
  if (next == CLA_HEAP_NONE) next = cla__new_page(heap, c, seed, &source);
  if (next == CLA_HEAP_NONE) {
    if (there != was && atomic_cmpxchg(hint, there, was) != there && is_page) cla__retire(heap, c, was);
    return false;
  }
  const uint seen = atomic_cmpxchg(hint, there, next);
  if (is_page && (seen == there || there != was)) cla__retire(heap, c, was);
  *page = next;
  if (seen == there) {
    if (is_page) hint[place] = was;
  } else if (source == CLA__FRESH) { /* another item was faster: its page will do */
    cla__advertise(heap, next, CLA_HEAP_FREE_BIT | CLA_HEAP_ROOM_BIT);
    *page = seen;
  } else {
    *is_borrowed = true;
  }
  return true;
}

/* Reserves up to `need` slots, at least one; claim.page NONE: no room. */
static inline cla__claim cla__reserve(CLA_HEAP heap, cla__class c, uint need, uint slot) {
  cla__claim claim = {CLA_HEAP_NONE, 0u, 0u};
  cla__words hint = cla__hint(heap, c, need, slot);
  uint page = *hint, attempt = 0;
  bool is_borrowed = false;
  while (!cla__try_reserve(heap, c, page, need, &claim) && attempt < CLA__RESERVE_TRIES) {
    const uint latest = *hint;
    is_borrowed = false;
    if (latest != page) page = latest;
    else if (!cla__next_page(heap, c, hint, slot, attempt, &page, &is_borrowed)) attempt = CLA__RESERVE_TRIES, page = CLA_HEAP_NONE;
    attempt++;
  }
  if (claim.page == CLA_HEAP_NONE) return claim;
  const uint word = claim.word;
#if !defined(CLA__WARP) /* two threads on one page would pass its cache lines to and fro */
  if ((word & CLA_HEAP_ROOM_BIT) != 0u) cla__withdraw(heap, c.code, claim.page);
#endif
  if (is_borrowed && (word & CLA_HEAP_USED) + claim.granted < c.capacity)
    cla__advertise(heap, claim.page, CLA_HEAP_ROOM_BIT);
  return claim;
}

/* ---- slots ---- */

/* Those bits of a word of a page's bitmap that stand for slots. */
static inline uint cla__valid_bits(cla__class c, uint word) {
  return word == c.bitwords - 1u ? c.last_bits : CLA_HEAP_NONE;
}

#if defined(CLA__WARP)

/* Where the search for free bits starts: the ticket's bits reversed spread a page's claims over its words, the slot
 * within. */
static inline uint cla__first_word(cla__class c, cla__claim claim, uint slot) {
  uint ticket;
  asm("brev.b32 %0, %1;" : "=r"(ticket) : "r"(claim.word));
  return cla__times(ticket << 27 | slot * 0x9E3779B1u >> 5, c.bitwords);
}

/* Takes the bits of the claimed slots, the first for the team's first lane; each lane's slot, NONE beyond those
 * granted. */
static inline uint cla__take_slots(cla__class c, cla__team team, cla__claim claim, cla__words bits, uint slot) {
  uint word = cla__first_word(c, claim, slot), taken = 0, mine = CLA_HEAP_NONE;
  while (taken < claim.granted) {
    uint got = 0;
    if (team.lane == team.leader) {
      uint want = cla__valid_bits(c, word);
      if (claim.granted - taken < 32u) want = cla__lowest_bits(want & ~bits[word], claim.granted - taken);
      if (want != 0u) got = want & ~atomic_or(bits + word, want);
    }
    got = cla__from(team, got, team.leader);
    const uint n = popcount(got);
    if (team.rank - taken < n) mine = word * 32u + cla__nth_bit(got, team.rank - taken);
    taken += n;
    if (taken >= claim.granted) break;
    word = word + 1u >= c.bitwords ? 0u : word + 1u;
    if (n == 0u && team.count > 1u && c.bitwords > 2u) { /* each lane looks at a word */
      const uint there = (word + team.rank) % c.bitwords;
      const uint lanes = cla__lanes_where(team, cla__valid_bits(c, there) & ~bits[there]);
      word = lanes != 0u ? cla__from(team, there, cla__lowest_bit(lanes)) : (word + team.count) % c.bitwords;
    }
  }
  return mine;
}

#else

/* A slot of those in a word of the bitmap; NONE: there is none left, or another item took it. */
static inline uint cla__take_slot(cla__class c, cla__words bits, uint word) {
  const uint empty = cla__valid_bits(c, word) & ~bits[word], bit = empty & -empty;
  return empty != 0u && (atomic_or(bits + word, bit) & bit) == 0u ? word * 32u + cla__lowest_bit(bit) : CLA_HEAP_NONE;
}

static inline uint cla__take_slots(cla__class c, cla__team team, cla__claim claim, cla__words bits, uint slot) {
  uint word = (claim.word & CLA_HEAP_USED) >> 5, mine = cla__take_slot(c, bits, word);
  while (mine == CLA_HEAP_NONE) {
    word = word + 1u >= c.bitwords ? 0u : word + 1u;
    mine = cla__take_slot(c, bits, word);
  }
  return mine;
}

#endif

static inline void cla__set_site(CLA_HEAP heap, ulong offset, uint site) {
  if (cla__fixed(heap, CLA_HEAP_SITES) != 0u) (heap + cla__fixed(heap, CLA_HEAP_SITES))[offset >> 4] = site;
}

static inline __global void *cla__malloc_slot(CLA_HEAP heap, ulong nbytes, uint site) {
  const cla__class c = cla__class_for(heap, (uint)nbytes);
  const uint slot = cla__slot();
  __global void *block = 0;
  bool is_over = false;
  while (!is_over) {
    const cla__team team = cla__team_of(c.code);
    cla__claim claim = {CLA_HEAP_NONE, 0u, 0u};
    if (team.lane == team.leader) claim = cla__reserve(heap, c, team.count, slot);
    claim.page = cla__from(team, claim.page, team.leader);
    if (claim.page == CLA_HEAP_NONE) {
      cla__count_failure(heap, nbytes, team.lane == team.leader ? team.count : 0u);
      is_over = true;
    } else {
      claim.granted = cla__from(team, claim.granted, team.leader);
      claim.word = cla__from(team, claim.word, team.leader);
      const uint mine = cla__take_slots(c, team, claim, cla__block_words(heap, claim.page), slot);
      if (mine != CLA_HEAP_NONE) {
        const ulong offset = ((ulong)claim.page << cla__fixed(heap, CLA_HEAP_PAGE_SHIFT)) + mine * c.size;
        cla__set_site(heap, offset, site);
        block = cla__payload(heap) + offset;
        is_over = true;
      }
      if (team.lane == team.leader)
        cla__count_blocks(heap, CLA_HEAP_SHARD_MALLOCS, claim.granted, (ulong)claim.granted * c.size, slot);
    }
  }
  return block;
}

/* ---- runs ---- */

/* Start of the first stretch of npages pages at or after `at` that the free bitmap shows; NONE if there is none. The
 * start is `phase` beyond a multiple of `align` pages. */
static inline uint cla__next_stretch(CLA_HEAP heap, uint at, uint npages, uint align, uint phase) {
  cla__words map = heap + cla__fixed(heap, CLA_HEAP_FREE_MAP), level1 = map + cla__fixed(heap, CLA_HEAP_LEVEL0);
  const uint end = cla__fixed(heap, CLA_HEAP_NPAGES);
  uint start = 0, found = CLA_HEAP_NONE;
  bool is_open = false;
  while (at < end && found == CLA_HEAP_NONE) {
    const uint left = 32u - (at & 31u), bits = map[at >> 5] >> (at & 31u);
    if ((at & 1023u) == 0u && level1[at >> 10] == 0u) {
      is_open = false;
      at += 1024u;
    } else if ((bits & 1u) == 0u) {
      is_open = false;
      at += bits != 0u ? cla__lowest_bit(bits) : left;
    } else {
      if (!is_open) start = at + (align - 1u - (at + align - 1u - phase) % align);
      is_open = true;
      at += bits == CLA_HEAP_NONE ? 32u : cla__lowest_bit(~bits);
      if (at >= start && at - start >= npages) found = start;
    }
  }
  return found;
}

/* Makes the pages TAKEN, from the lowest on; how many could be. blocker: the word of the one that could not. */
static inline uint cla__take_pages(CLA_HEAP heap, uint start, uint npages, uint *blocker, uint *nfree) {
  uint taken = 0;
  bool is_blocked = false;
  *nfree = 0;
  while (taken < npages && !is_blocked) {
    cla__words at = cla__page(heap, start + taken);
    const uint word = *at;
    const uint busy = (word & (CLA_HEAP_TICKETS | CLA_HEAP_FREE_BIT)) | (uint)CLA_HEAP_TAKEN << CLA_HEAP_CODE_SHIFT;
    const uint seen = cla__is_empty(word) ? atomic_cmpxchg(at, word, busy) : ~word;
    is_blocked = seen != word;
    if (is_blocked) { /* by what is there; an empty page, by someone who is busy with it, as if it were taken */
      *blocker = !cla__is_empty(word) ? word : cla__is_empty(seen) ? busy : seen;
    } else {
      if (cla__page_code(word) == CLA_HEAP_FREE) ++*nfree;
      taken++;
    }
  }
  return taken;
}

static inline void cla__untake_pages(CLA_HEAP heap, uint start, uint npages) {
  while (npages > 0u) {
    const uint page = start + --npages;
    const uint word = atomic_sub(cla__page(heap, page), (uint)CLA_HEAP_TAKEN << CLA_HEAP_CODE_SHIFT);
    if ((word & CLA_HEAP_FREE_BIT) == 0u) cla__advertise(heap, page, CLA_HEAP_FREE_BIT);
  }
}

/* The bits of a run's pages in a bitmap's word: those of the pages from `page` on that are in the same word, at most
 * `most`. */
static inline uint cla__bits_from(uint page, uint most, uint *n) {
  *n = min(32u - (page & 31u), most);
  return (*n == 32u ? CLA_HEAP_NONE : (1u << *n) - 1u) << (page & 31u);
}

/* Pages that are TAKEN become a run. Their bits go from the highest page down: others see a shorter stretch from the
 * same start, never one that starts inside. */
static inline void cla__make_run(CLA_HEAP heap, uint start, uint npages) {
  cla__words map = heap + cla__fixed(heap, CLA_HEAP_FREE_MAP);
  *cla__block_words(heap, start) = npages;
  for (uint left = npages, n; left > 0u; left -= n) {
    const uint last = start + left - 1u, first = max(start, last & ~31u);
    const uint bits = cla__bits_from(first, last - first + 1u, &n);
    cla__map_clear(map, cla__fixed(heap, CLA_HEAP_LEVEL0), first >> 5, bits);
  }
  cla__fence();
  for (uint i = 0; i < npages; i++) atomic_and(cla__page(heap, start + i), ~CLA_HEAP_FREE_BIT);
  for (uint i = 1; i < npages; i++)
    atomic_add(cla__page(heap, start + i), (uint)(CLA_HEAP_BODY - CLA_HEAP_TAKEN) << CLA_HEAP_CODE_SHIFT);
  atomic_add(cla__page(heap, start), (uint)(CLA_HEAP_HEAD - CLA_HEAP_TAKEN) << CLA_HEAP_CODE_SHIFT);
}

/* A bit of the free bitmap that is out of date. */
static inline void cla__clear_stale(CLA_HEAP heap, uint page) {
  cla__map_clear(heap + cla__fixed(heap, CLA_HEAP_FREE_MAP), cla__fixed(heap, CLA_HEAP_LEVEL0), page >> 5,
                 1u << (page & 31u));
  if (cla__is_empty(atomic_and(cla__page(heap, page), ~CLA_HEAP_FREE_BIT)))
    cla__advertise(heap, page, CLA_HEAP_FREE_BIT);
}

/* First page of a new run; NONE: no room. Several items at once start at different stretches; whoever meets another's
 * pages gives its own back and tries further on, so one of them always gets through. */
static inline uint cla__find_run(CLA_HEAP heap, uint npages, uint align, uint phase) {
  uint skip = cla__lanes_before(), dice = cla__mix(cla__slot() * 32u + skip), found = CLA_HEAP_NONE;
  bool is_over = false;
  for (uint attempt = 0; attempt < CLA__RUN_TRIES && !is_over; attempt++) {
    bool is_contended = false;
    uint start = cla__next_stretch(heap, 0u, npages, align, phase);
    while (start != CLA_HEAP_NONE && found == CLA_HEAP_NONE) {
      uint next = start + npages;
      if (skip > 0u) {
        skip--;
        is_contended = true;
      } else {
        uint blocker = 0, nfree;
        const uint taken = cla__take_pages(heap, start, npages, &blocker, &nfree);
        if (taken == npages) {
          cla__make_run(heap, start, npages);
          cla__count_pages(heap, nfree, 0u);
          found = start;
        } else {
          cla__untake_pages(heap, start, taken);
          const uint code = cla__plain(cla__page_code(blocker));
          if (code == CLA_HEAP_TAKEN || code == CLA_HEAP_FREE) {
            is_contended = true;
            dice = dice * 1664525u + 1013904223u;
            next = start + taken + npages * (1u + (attempt > 0u ? 0u : (dice >> 16) & 7u));
          } else {
            cla__clear_stale(heap, start + taken);
            next = start + taken + 1u;
          }
        }
      }
      if (found == CLA_HEAP_NONE) start = cla__next_stretch(heap, next, npages, align, phase);
    }
    skip = 0;
    is_over = found != CLA_HEAP_NONE || !is_contended;
  }
  return found;
}

static __global void *cla__malloc_run(CLA_HEAP heap, ulong nbytes, ulong align_bytes, uint site) {
  const uint shift = cla__fixed(heap, CLA_HEAP_PAGE_SHIFT);
  const ulong limit = (ulong)cla__fixed(heap, CLA_HEAP_NPAGES) << shift;
  uint start = CLA_HEAP_NONE;
  if (nbytes <= limit && align_bytes <= limit) {
    const uint npages = (uint)((nbytes + (1ul << shift) - 1ul) >> shift), align = max((uint)(align_bytes >> shift), 1u);
    const uint phase = (uint)((0ul - (ulong)cla__payload(heap)) >> shift) & (align - 1u);
    start = cla__find_run(heap, npages, align, phase);
    if (start != CLA_HEAP_NONE)
      cla__count_blocks(heap, CLA_HEAP_SHARD_MALLOCS, 1u, (ulong)npages << shift, cla__slot());
  }
  if (start == CLA_HEAP_NONE) {
    cla__count_failure(heap, nbytes, 1u);
    return 0;
  }
  const ulong offset = (ulong)start << shift;
  cla__set_site(heap, offset, site);
  return cla__payload(heap) + offset;
}

/* ---- free ---- */

static inline uint cla__free_slot(CLA_HEAP heap, __global void *p, uint page, uint within, cla__words at, uint code) {
  const cla__class c = cla__class_of_code(heap, code);
  const uint index = cla__times(within >> 3, c.reciprocal), bit = 1u << (index & 31u);
  if (index * c.size != within || index >= c.capacity) return cla__bad_free(heap, p, CLA_HEAP_INTERIOR);
  const uint word = (page << (cla__fixed(heap, CLA_HEAP_PAGE_SHIFT) - 9u)) + (index >> 5);
  cla__words map = heap + cla__fixed(heap, CLA_HEAP_BLOCK_MAP);
  cla__release_fence();
  const cla__team team = cla__team_of(word);
  const uint bits = cla__or_of_all(team, bit);
  uint before = 0;
  if (team.lane == team.leader) {
    before = atomic_and(map + word, ~bits);
    const uint n = popcount(before & bits);
    if (n > 0u) {
      cla__gave_slots(heap, page, atomic_sub(at, n), n, c.capacity);
      cla__count_blocks(heap, CLA_HEAP_SHARD_FREES, n, (ulong)n * c.size, cla__slot());
    }
  }
  before = cla__from(team, before, team.leader);
  bool is_double = (before & bit) == 0u;
  if ((uint)popcount(bits) != team.count) is_double = is_double || cla__is_repeated(team, bit);
  return is_double ? cla__bad_free(heap, p, CLA_HEAP_DOUBLE) : 0u;
}

static uint cla__free_run(CLA_HEAP heap, __global void *p, uint page, uint within, uint code) {
  if (code == CLA_HEAP_FREE) return cla__bad_free(heap, p, CLA_HEAP_DOUBLE);
  if (code != CLA_HEAP_HEAD || within != 0u) return cla__bad_free(heap, p, CLA_HEAP_INTERIOR);
  cla__release_fence();
  const uint npages = atomic_xchg(cla__block_words(heap, page), 0u); /* whoever gets the length frees the run */
  if (npages == 0u) return cla__bad_free(heap, p, CLA_HEAP_DOUBLE);
  cla__count_pages(heap, 0u, npages);
  cla__count_blocks(heap, CLA_HEAP_SHARD_FREES, 1u, (ulong)npages << cla__fixed(heap, CLA_HEAP_PAGE_SHIFT), cla__slot());
  for (uint i = npages; i > 0u; i--) { /* the head last */
    const uint other = page + i - 1u, was = i == 1u ? CLA_HEAP_HEAD : CLA_HEAP_BODY;
    const uint before = atomic_add(cla__page(heap, other), CLA_HEAP_FREE_BIT - (was << CLA_HEAP_CODE_SHIFT));
    if ((before & CLA_HEAP_FREE_BIT) != 0u) atomic_or(cla__page(heap, other), CLA_HEAP_FREE_BIT); /* set late: see 3 */
  }
  cla__fence();
  for (uint i = 0, n; i < npages; i += n) {
    const uint bits = cla__bits_from(page + i, npages - i, &n);
    cla__map_set(heap + cla__fixed(heap, CLA_HEAP_FREE_MAP), cla__fixed(heap, CLA_HEAP_LEVEL0), (page + i) >> 5, bits);
  }
  cla__fence();
  cla__undry_all(heap);
  return 0;
}

/* 0, or the kind of bad free. */
static inline uint cla__free(CLA_HEAP heap, __global void *p) {
  if (p == 0 || heap == 0) return 0;
  const uint shift = cla__fixed(heap, CLA_HEAP_PAGE_SHIFT);
  const ulong offset = (ulong)p - (ulong)cla__payload(heap);
  if (offset >= (ulong)cla__fixed(heap, CLA_HEAP_NPAGES) << shift) return cla__bad_free(heap, p, CLA_HEAP_FOREIGN);
  if ((offset & 15ul) != 0ul) return cla__bad_free(heap, p, CLA_HEAP_MISALIGNED);
  const uint page = (uint)(offset >> shift), within = (uint)offset & ((1u << shift) - 1u);
  cla__words at = cla__page(heap, page);
  const uint code = cla__page_code(*at);
  if (cla__is_slab(code)) return cla__free_slot(heap, p, page, within, at, code);
  return cla__free_run(heap, p, page, within, cla__plain(code));
}

/* ---- the interface ---- */

static inline __global void *cla__malloc(CLA_HEAP heap, ulong nbytes, uint site) {
  if (nbytes == 0ul || heap == 0) return 0;
  if (nbytes <= (1ul << cla__fixed(heap, CLA_HEAP_PAGE_SHIFT)) / 2ul && cla__fixed(heap, CLA_HEAP_NPAGES) != 0u)
    return cla__malloc_slot(heap, nbytes, site);
  return cla__malloc_run(heap, nbytes, 1ul, site);
}

static __global void *cla_malloc_at(CLA_HEAP heap, ulong nbytes, uint site) { return cla__malloc(heap, nbytes, site); }

static __global void *cla_malloc(CLA_HEAP heap, ulong nbytes) { return cla__malloc(heap, nbytes, 0u); }

static void cla_free(CLA_HEAP heap, __global void *p) { cla__free(heap, p); }

static __global void *cla_calloc_at(CLA_HEAP heap, ulong n, ulong size, uint site) {
  const ulong nbytes = n * size;
  if (mul_hi(n, size) != 0ul) {
    if (heap != 0) cla__count_failure(heap, 0xfffffffffffffffful, 1u);
    return 0;
  }
  __global uint4 *block = cla_malloc_at(heap, nbytes, site);
  if (block != 0)
    for (ulong i = 0; i < (nbytes + 15ul) >> 4; i++) block[i] = (uint4)(0u);
  return block;
}

static __global void *cla_calloc(CLA_HEAP heap, ulong n, ulong size) { return cla_calloc_at(heap, n, size, 0u); }

static __global void *cla_aligned_alloc_at(CLA_HEAP heap, ulong align, ulong nbytes, uint site) {
  if (nbytes == 0ul || heap == 0) return 0;
  if (align == 0ul ||
      1ul << (63ul - clz(align)) != align) { /* the usual test becomes a population count, which Oclgrind lacks */
    cla__count_failure(heap, nbytes, 1u);
    return 0;
  }
  const ulong page = 1ul << cla__fixed(heap, CLA_HEAP_PAGE_SHIFT), least = max(nbytes, align);
  if (align <= 16ul) return cla_malloc_at(heap, nbytes, site);
  if (least <= page / 2ul)
    return cla_malloc_at(heap, 1ul << (64ul - clz(least - 1ul)), site); /* powers of two divide a page */
  return cla__malloc_run(heap, nbytes, align, site);
}

static __global void *cla_aligned_alloc(CLA_HEAP heap, ulong align, ulong nbytes) {
  return cla_aligned_alloc_at(heap, align, nbytes, 0u);
}

static ulong cla_usable_size(CLA_HEAP heap, __global void *p) {
  if (p == 0 || heap == 0) return 0;
  const uint shift = cla__fixed(heap, CLA_HEAP_PAGE_SHIFT);
  const ulong offset = (ulong)p - (ulong)cla__payload(heap);
  if (offset >= (ulong)cla__fixed(heap, CLA_HEAP_NPAGES) << shift || (offset & 15ul) != 0ul) return 0;
  const uint page = (uint)(offset >> shift), within = (uint)offset & ((1u << shift) - 1u);
  const uint code = cla__page_code(*cla__page(heap, page));
  cla__words bits = cla__block_words(heap, page);
  if (!cla__is_slab(code)) return cla__plain(code) == CLA_HEAP_HEAD && within == 0u ? (ulong)bits[0] << shift : 0ul;
  const cla__class c = cla__class_of_code(heap, code);
  const uint index = cla__times(within >> 3, c.reciprocal);
  const bool is_live = index * c.size == within && index < c.capacity && (bits[index >> 5] >> (index & 31u) & 1u) != 0u;
  return is_live ? c.size : 0ul;
}

static __global void *cla_realloc_at(CLA_HEAP heap, __global void *p, ulong nbytes, uint site) {
  if (p == 0) return cla_malloc_at(heap, nbytes, site);
  const ulong usable = cla_usable_size(heap, p);
  if (usable == 0ul || nbytes == 0ul) { /* free tells what is wrong with p, if anything is */
    cla_free(heap, p);
    return 0;
  }
  if (nbytes <= usable) return p;
  __global uint4 *block = cla_malloc_at(heap, nbytes, site);
  if (block == 0) return 0;
  const __global uint4 *old = p;
  for (ulong i = 0; i < usable >> 4; i++) block[i] = old[i];
  cla_free(heap, p);
  return block;
}

static __global void *cla_realloc(CLA_HEAP heap, __global void *p, ulong nbytes) {
  return cla_realloc_at(heap, p, nbytes, 0u);
}

static uint cla_ref(CLA_HEAP heap, __global void *p) {
  if (p == 0 || heap == 0) return 0;
  return (uint)(((ulong)p - (ulong)cla__payload(heap)) >> cla__fixed(heap, CLA_HEAP_REF_SHIFT)) + 1u;
}

static __global void *cla_at(CLA_HEAP heap, uint ref) {
  if (ref == 0u || heap == 0) return 0;
  return cla__payload(heap) + ((ulong)(ref - 1u) << cla__fixed(heap, CLA_HEAP_REF_SHIFT));
}

#endif
