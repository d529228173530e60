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
/* One of the set bits, by a place between the lowest and the highest. */
static inline uint cla__pick_bit(uint x, uint seed) {
  const uint lowest = cla__lowest_bit(x), width = 32u - clz(x) - lowest;
  return cla__lowest_bit(x & (CLA_HEAP_NONE << (lowest + (width * (seed & 0xffffu) >> 16))));
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
/* `at` is a constant. */
static inline uint cla__fixed(CLA_HEAP heap, uint at) {
  const uint4 v = cla__load4(heap + (at & ~3u));
  return (at & 3u) == 0u ? v.x : (at & 3u) == 1u ? v.y : (at & 3u) == 2u ? v.z : v.w;
}
static inline uint cla__fixed_at(CLA_HEAP heap, uint at) { return cla__load(heap + at); }
#else
static inline uint cla__fixed(CLA_HEAP heap, uint at) { return heap[at]; }
static inline uint cla__fixed_at(CLA_HEAP heap, uint at) { return heap[at]; }
#endif

typedef struct {
  uint size, capacity, reciprocal, bitwords, hints, hint_mask, last_bits;
  uint code; /* in the page word */
} cla__class;

/* (Results that are structs are noalias, which Oclgrind 21.10 does not know.) */
static inline void cla__class_at(CLA_HEAP heap, uint at, cla__class *out) {
#if defined(CLA__WARP)
  const uint4 a = cla__load4(heap + at), b = cla__load4(heap + at + 4u);
  const cla__class c = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#else
  const CLA_HEAP w = heap + at;
  const cla__class c = {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]};
#endif
  *out = c;
}

static inline void cla__class_of_code(CLA_HEAP heap, uint code, cla__class *out) {
  cla__class_at(heap, CLA_HEAP_CLASS + (code - 1u) * CLA_HEAP_CLASS_WORDS, out);
}

/* The least class that holds nbytes, from 1 to half a page: its bucket's, or that of the next. */
static inline void cla__class_for(CLA_HEAP heap, uint nbytes, cla__class *out) {
  const uint rest = ((nbytes + 15u) >> 4) - 1u, octave = 31u - clz(rest | 1u);
  const uint bucket = rest < 4u ? rest : 4u * (octave - 1u) + ((rest >> (octave - 2u)) & 3u);
  const uint at = CLA_HEAP_BUCKETS + bucket * CLA_HEAP_CLASS_WORDS;
#if defined(CLA__WARP) /* both are on their way at once */
  const uint4 a0 = cla__load4(heap + at), a1 = cla__load4(heap + at + 4u), b0 = cla__load4(heap + at + 8u),
              b1 = cla__load4(heap + at + 12u);
  const bool is_next = nbytes > a0.x;
  const uint4 a = is_next ? b0 : a0, b = is_next ? b1 : a1;
  const cla__class c = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  *out = c;
#else
  cla__class_at(heap, at + (nbytes > heap[at] ? (uint)CLA_HEAP_CLASS_WORDS : 0u), out);
#endif
}

static inline __global char *cla__payload(CLA_HEAP heap) {
  return (__global char *)heap + ((ulong)cla__fixed(heap, CLA_HEAP_PAYLOAD16) << 4);
}

static inline cla__words cla__page(CLA_HEAP heap, uint page) { return heap + cla__page_word(page); }

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

static CLA__RARE void cla__count_failure(CLA_HEAP heap, ulong nbytes, uint n) {
  if (n > 0u) cla__count(heap + CLA_HEAP_FAILED, n);
  if (nbytes <= 0xffffffffu) cla__raise(heap + CLA_HEAP_REFUSED, (uint)nbytes);
  else cla__raise(heap + CLA_HEAP_REFUSED_64K, (uint)min((nbytes - 1ul) / 65536ul + 1ul, 0xfffffffful));
}

/* Counts and records what is no free; gives the kind back. */
static CLA__RARE uint cla__bad_free(CLA_HEAP heap, __global void *p, uint kind) {
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
