/* The device heap's memory, as host and kernels see it. Valid C11 and valid OpenCL C 1.2: what programs
 * get (the installed clalloc_heap.cl) is this text followed by that of kernels/.
 *
 * One buffer holds everything, all word offsets count 32-bit words from its start:
 *
 *   control | stripes | counter shards | page words | hints[class][shard] | free bitmap | room bitmap[class]
 *   | block bitmap | sites | payload
 *
 * The payload is `npages` pages of 2^page_shift bytes. A page is FREE, a SLAB of one class (equal slots), or part of a
 * RUN (consecutive pages, one block). The page word is the truth about it:
 *
 *   ticket (5 bits) | FREE_BIT | ROOM_BIT | code (6) | used (19)
 *
 *   code      FREE 0, class + 1, TAKEN (being made a run), HEAD, BODY
 *   used      slots reserved in a slab; may for a moment be too high, never too low
 *   FREE_BIT  the page's bit in the free bitmap is set or about to be; likewise ROOM_BIT in its class's room bitmap
 *   ticket    counts reservations, spreads them over the block bitmap's words
 *
 * Block bitmap: 2^(page_shift - 9) words a page, a bit a slot, set while the block is live; of a HEAD page, word 0 holds
 * the run's length in pages. At quiescence: used == bits set, for every slab; every page that is FREE or an empty slab is
 * in the free bitmap; every slab that is neither full nor empty is in its room bitmap or in a hint. (Both levels of a
 * bitmap: a set bit of level 1 says that the word of level 0 may be non-zero.) Each page word has 128 bytes to itself,
 * see cla__page_word().
 *
 * Limits. The payload is the limit rounded up to whole pages: malloc(limit) always succeeds on an empty heap, and the
 * effective limit is plan.payload_bytes. A limit of 0 has no pages: every malloc gives null. Pages are small in small
 * heaps (512 bytes up to 1 MiB: a limit of 1 gives 512) and grow to 1 MiB.
 *
 * How the host makes a heap (any buffer of plan.total_bytes; kernels need nothing but the buffer):
 *   1. fill [0, plan.metadata_bytes) with 0
 *   2. fill [plan.hints_begin, plan.hints_end) with 0xff bytes
 *   3. write cla__heap_free_words() at 4 * plan.free_map: plan.level0 + plan.level1 words
 *   4. write cla__heap_control() at 0: CLA_HEAP_CONTROL_WORDS words
 *   5. run `cla__heap_settle` (kernels/settle.cl after this text) with one item: it finds where the payload starts, so that
 *      the pointers (not only the offsets) of pages are aligned to a page. Left out, all works but aligned_alloc beyond
 *      the buffer's own alignment.
 * reset() is the same again. Byte `ref` of the payload (ref from 0) is at
 *   16 * control[CLA_HEAP_PAYLOAD16] + ref
 * of the buffer, the control word read back after step 5.
 *
 * What the host reads back after the queue finished: the control words, the counter shards (sum them), the page words.
 * Live blocks, used bytes and the largest free run follow from the page words alone and are exact (cla__heap_tally()).
 * Peaks: PAGES_PEAK counts pages that are no longer FREE (slabs emptied are counted: they serve as free pages, yet stay
 * slabs until taken), so PAGES_PEAK << page_shift as a limit lets the same run pass again. (A GPU's large heap prefers
 * pages never used to emptied ones: there a crowd's changing sizes may raise it to twice the pages in use at a time.)
 * PEAK16 is the exact high-water mark of live bytes / 16, kept only while the flag CLA_HEAP_PEAK is set (one word for all
 * items: costs time). Flags may be rewritten between kernels, as may any counter.
 *
 * Build options for NVIDIA devices. Below compute capability 8.0: -D CLA_HEAP_SCALAR (the warp instructions need 8.0).
 * Else -cl-nv-maxrregcount=64 pays: left alone, a kernel with malloc takes up to 88 registers, and fewer of its warps fit
 * a multiprocessor (on an H200 churn of 100,000 items takes 1.25 to 1.5 times as long, a million mallocs 1.1 times).
 *
 * Host-side blocks in the same heap: kernels/host.cl has one-item kernels that allocate and free by offset. */
#ifndef CLA_HEAP_LAYOUT_H
#define CLA_HEAP_LAYOUT_H

/* ---- page words ---- */

#define CLA_HEAP_TICKET   0x08000000u
#define CLA_HEAP_TICKETS  0xf8000000u
#define CLA_HEAP_FREE_BIT 0x04000000u
#define CLA_HEAP_ROOM_BIT 0x02000000u
#define CLA_HEAP_USED     0x0007ffffu
#define CLA_HEAP_NONE     0xffffffffu /* no page */
#define CLA_HEAP_MAGIC    0x48414c43u

enum {
  CLA_HEAP_CODE_SHIFT = 19,
  CLA_HEAP_CODE_MASK = 63,
  CLA_HEAP_FREE = 0,
  CLA_HEAP_TAKEN = 61, /* by a run that is not made yet, or being dismantled */
  CLA_HEAP_HEAD = 62,
  CLA_HEAP_BODY = 63,
  CLA_HEAP_CLASSES_MAX = 60,
  CLA_HEAP_GRAIN = 16, /* bytes: alignment of every block, and every class is a multiple of it */
  CLA_HEAP_LEAST_SHIFT = 9,
  CLA_HEAP_MOST_SHIFT = 20
};

/* ---- control words: geometry ---- */

/* Written once by the host; kernels read four at a time, so those of a fast path stand together. */

enum {
  CLA_HEAP_PAGE_SHIFT,
  CLA_HEAP_NPAGES,
  CLA_HEAP_BLOCK_MAP, /* word offset */

  CLA_HEAP_PAYLOAD16, /* where the payload starts / 16: plan.payload_offset, and what step 5 adds */

  CLA_HEAP_FLAGS, /* CLA_HEAP_COUNT | CLA_HEAP_PEAK */
  CLA_HEAP_SITES, /* 0: no sites kept; else a word for each 16 bytes of payload, at the block's start */
  CLA_HEAP_NCLASSES,
  CLA_HEAP_REF_SHIFT, /* 0, or 4 above 4 GiB: what cla_ref() divides by */

  CLA_HEAP_FREE_MAP,
  CLA_HEAP_ROOM_MAPS, /* class k's at + k * (level0 + level1) */
  CLA_HEAP_LEVEL0,    /* words of a bitmap's level 0, a multiple of 4 */
  CLA_HEAP_LEVEL1,    /* and of its level 1, right after it */

  CLA_HEAP_MIXED_MASK, /* of a class's hints, those for crowds that want blocks of many classes */
  CLA_HEAP_WINDOW,     /* words of level 0 among which fresh pages are picked */
  CLA_HEAP_MAGIC_WORD
};

enum {
  CLA_HEAP_COUNT = 1, /* mallocs, frees and page peaks; failures and bad frees are always counted */
  CLA_HEAP_PEAK = 2   /* the exact peak */
};

/* ---- control words: what kernels count; 64-bit counts are two words, low first ---- */

enum {
  CLA_HEAP_FAILED = 64,  /* 2 words: mallocs that gave null (not malloc(0)) */
  CLA_HEAP_REFUSED = 66, /* largest size refused, if under 4 GiB */
  CLA_HEAP_REFUSED_64K =
      67, /* largest size refused of those from 4 GiB on, / 65536 rounded up, at most 2^32 - 1; 0: none */
  CLA_HEAP_FAILED_HOST = 68,  /* 2 words: of those that failed, the host's own */
  CLA_HEAP_DOUBLES = 80,      /* 2 words: double frees */
  CLA_HEAP_BADS = 82,         /* 2 words: frees (reallocs too) of what is no block: foreign, interior, misaligned */
  CLA_HEAP_RECORDS_USED = 84, /* bad and double frees so far, the first CLA_HEAP_RECORDS of them recorded */
  CLA_HEAP_USED16 = 96, /* with CLA_HEAP_PEAK: live bytes / 16 since the flag was set, from what the host wrote here */
  CLA_HEAP_PEAK16 = 97,
  CLA_HEAP_PAGES_NOW = 112, /* pages not FREE */
  CLA_HEAP_PAGES_PEAK = 113,
  CLA_HEAP_RECORDED = 128, /* CLA_HEAP_RECORDS records of CLA_HEAP_RECORD_WORDS words */
  CLA_HEAP_RECORDS = 8,
  CLA_HEAP_RECORD_WORDS = 8,
  CLA_HEAP_ANY_DRY = 192, /* some DRY word is set */
  CLA_HEAP_TOKENS = 208,  /* counts dry tokens */
  CLA_HEAP_DRY = 224,     /* a word a class: 0, a token << 2 | 1 (being looked into), or 2: no room anywhere */
  CLA_HEAP_CLASS = 320,   /* CLA_HEAP_CLASS_WORDS words a class */
  CLA_HEAP_BUCKETS = 800, /* for each quarter octave of sizes, its class again, or the next, if it has none */
  CLA_HEAP_CONTROL_WORDS = 1312
};

enum { /* a record: the pointer is given as it was passed, and as offset into the payload */
       CLA_HEAP_RECORD_KIND,
       CLA_HEAP_RECORD_POINTER,    /* 2 words */
       CLA_HEAP_RECORD_OFFSET = 3, /* 2 words; wraps for a foreign pointer */
       CLA_HEAP_RECORD_ITEM = 5,   /* 2 words: global linear id */
};

enum { /* kinds of bad frees */
       CLA_HEAP_DOUBLE = 1,
       CLA_HEAP_FOREIGN = 2,    /* outside the payload */
       CLA_HEAP_MISALIGNED = 3, /* not a multiple of 16 */
       CLA_HEAP_INTERIOR = 4    /* inside a block, or where no block can start */
};

enum { /* a class's words */
       CLA_HEAP_CLASS_SIZE,
       CLA_HEAP_CLASS_CAPACITY,   /* slots a page */
       CLA_HEAP_CLASS_RECIPROCAL, /* offset / size == mul_hi(offset >> 3, reciprocal), of multiples of 16 in a page */
       CLA_HEAP_CLASS_BITWORDS,   /* words of the block bitmap in use */
       CLA_HEAP_CLASS_HINTS,      /* word offset of the hints: 4 words a shard: current page, three earlier ones */
       CLA_HEAP_CLASS_HINT_MASK,  /* shards - 1 */
       CLA_HEAP_CLASS_LAST_BITS,  /* the slots that the last of the bit words stands for */
       CLA_HEAP_CLASS_CODE,       /* in the page word */
       CLA_HEAP_CLASS_WORDS = 8
};

enum { /* a counter shard, 16 words; mallocs and frees are 64-bit */
       CLA_HEAP_SHARD_MALLOCS = 0,
       CLA_HEAP_SHARD_FREES = 2,
       CLA_HEAP_SHARD_WORDS = 16,
       CLA_HEAP_SHARDS = 256
};

/* A GPU's large heap hands its pages out once from the top, page after page, in stripes: a counter each, the n-th page from
 * the top is of stripe n % STRIPES. */
enum { CLA_HEAP_STRIPES = 8, CLA_HEAP_STRIPE_WORDS = 32 /* a cache line */ };

/* Word offsets of what comes first. */
enum {
  CLA_HEAP_STRIPES_AT = CLA_HEAP_CONTROL_WORDS,
  CLA_HEAP_SHARDS_AT = CLA_HEAP_STRIPES_AT + CLA_HEAP_STRIPES * CLA_HEAP_STRIPE_WORDS,
  CLA_HEAP_PAGES_AT = CLA_HEAP_SHARDS_AT + CLA_HEAP_SHARDS * CLA_HEAP_SHARD_WORDS
};

/* Where page p's word stands. It has a cache line to itself (two of a CPU's): pages are different items' business, and
 * a GPU's second-level cache does one atomic operation a line at a time (on an H200 a million frees in random order take
 * a third of the time that they take with eight page words a line). */
static inline unsigned cla__page_word(unsigned p) { return CLA_HEAP_PAGES_AT + (p << 5); }

static inline unsigned cla__page_code(unsigned word) { return word >> CLA_HEAP_CODE_SHIFT & CLA_HEAP_CODE_MASK; }

/* ---- the host's side ---- */

#ifndef __OPENCL_VERSION__
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct cla__heap_plan {
  uint64_t limit_bytes;   /* as asked */
  uint64_t payload_bytes; /* npages << page_shift: what kernels can have */
  uint64_t payload_offset, metadata_bytes,
      total_bytes;                 /* payload_offset == metadata_bytes; total has room for the shift */
  uint64_t hints_begin, hints_end; /* bytes */
  uint32_t npages, page_shift, nclasses, level0, level1;
  uint32_t free_map, room_maps, block_map, sites; /* word offsets, as in the control words */
  uint32_t window, mixed_mask, ref_shift, flags;
  uint32_t size[CLA_HEAP_CLASSES_MAX], capacity[CLA_HEAP_CLASSES_MAX];
  uint32_t hints[CLA_HEAP_CLASSES_MAX], nhints[CLA_HEAP_CLASSES_MAX];
} cla__heap_plan;

typedef struct cla__heap_device {
  uint32_t compute_units;
  uint32_t width; /* items that allocate together: 32 on NVIDIA, else 1 */
  bool is_gpu;
} cla__heap_device;

typedef struct cla__heap_tally {                  /* from the page words */
  uint64_t live_blocks, used_bytes, largest_free; /* largest_free: bytes of the longest stretch a run could take */
  uint64_t slab_pages, run_pages, free_pages;     /* free: FREE or empty slabs */
  uint64_t waste_bytes;                           /* in slab pages that hold blocks: bytes outside live blocks */
} cla__heap_tally;

static inline uint32_t cla__heap_log2_up(uint64_t v) {
  uint32_t n = 0;
  while (n < 63 && (UINT64_C(1) << n) < v) n++;
  return n;
}

/* Largest size, in grains, of bucket j: four buckets an octave, the first four are 1, 2, 3, 4 grains. */
static inline uint32_t cla__heap_bucket_top(uint32_t j) { return j < 4 ? j + 1 : (5 + (j & 3)) << (j / 4 - 1); }

/* A page of few slots is cut evenly, so that nothing is left over: the largest page / m, in grains, that is in bucket j,
 * 0: there is none. */
static inline uint32_t cla__heap_bucket_size(uint32_t page_grains, uint32_t j) {
  const uint32_t top = cla__heap_bucket_top(j), m = page_grains / top, below = j == 0 ? 0 : cla__heap_bucket_top(j - 1);
  const uint32_t size = page_grains / m <= top ? page_grains / m : page_grains / (m + 1);
  return size > below ? size : 0;
}

/* Small pages leave small heaps whole; of large ones a crowd of items needs fewer: a GPU's heap has larger ones. */
static inline uint32_t cla__heap_page_shift(uint64_t limit_bytes, bool is_gpu) {
  const uint32_t log2 = cla__heap_log2_up(limit_bytes), shift = log2 - (is_gpu ? 12 : 13);
  if (log2 <= 20) return CLA_HEAP_LEAST_SHIFT;
  if (log2 <= 23) return log2 - 11;
  if (log2 <= 33) return shift < 12 ? 12 : shift > 18 ? 18 : shift;
  return log2 - 15 < CLA_HEAP_MOST_SHIFT ? log2 - 15 : CLA_HEAP_MOST_SHIFT;
}

/* There a run of most of the heap must find room beside small blocks: few hints, and pages from the very top. */
static inline bool cla__heap_is_small(const cla__heap_plan *plan) { return plan->limit_bytes <= UINT64_C(16) << 20; }

/* Hint shards of a class: enough that the items at work do not meet, so few that partly filled pages leave room. */
static inline uint32_t cla__heap_nhints(const cla__heap_plan *plan, const cla__heap_device *device, uint32_t capacity) {
  const uint32_t bitwords = (capacity + 31) / 32;
  uint64_t want =
      device->is_gpu ? UINT64_C(4) * device->compute_units * 64 / bitwords : UINT64_C(8) * device->compute_units;
  if (device->is_gpu && want < 256) want = 256;
  if (want > 8192) want = 8192;
  /* A crowd's large blocks fill a page a warp: for them as many hints as pages. */
  const uint32_t part = !device->is_gpu ? 16 : capacity <= 64 ? 1 : 4;
  const uint64_t most = plan->npages / (cla__heap_is_small(plan) ? 16 * plan->nclasses : part);
  uint32_t n = 1u << cla__heap_log2_up(want);
  while (n > 1 && n > most) n >>= 1;
  return n;
}

static inline void cla__heap_plan_classes(cla__heap_plan *plan) {
  const uint32_t grains = 1u << (plan->page_shift - 4);
  for (uint32_t j = 0; cla__heap_bucket_top(j) <= grains / 2; j++) {
    const uint32_t size = cla__heap_bucket_size(grains, j);
    if (size == 0) continue;
    plan->size[plan->nclasses] = size * CLA_HEAP_GRAIN;
    plan->capacity[plan->nclasses++] = grains / size;
  }
}

/* False: the heap is too large for 32-bit word offsets. */
static inline bool cla__heap_plan_make(uint64_t limit_bytes, const cla__heap_device *device, uint32_t flags,
                                       bool has_sites, cla__heap_plan *plan) {
  memset(plan, 0, sizeof *plan);
  plan->limit_bytes = limit_bytes;
  plan->flags = flags;
  plan->page_shift = cla__heap_page_shift(limit_bytes, device->is_gpu);
  if (limit_bytes > UINT64_C(1) << 40) return false;
  plan->npages = (uint32_t)((limit_bytes + (UINT64_C(1) << plan->page_shift) - 1) >> plan->page_shift);
  plan->payload_bytes = (uint64_t)plan->npages << plan->page_shift;
  plan->level0 = ((plan->npages + 31) / 32 + 3) & ~3u;
  plan->level1 = ((plan->level0 + 31) / 32 + 3) & ~3u;
  plan->ref_shift = plan->payload_bytes > UINT64_C(0xffffffff) ? 4 : 0;
  cla__heap_plan_classes(plan);

  uint64_t at = cla__page_word(plan->npages);
  plan->hints_begin = 4 * at;
  for (uint32_t k = 0; k < plan->nclasses; k++) {
    plan->hints[k] = (uint32_t)at;
    plan->nhints[k] = cla__heap_nhints(plan, device, plan->capacity[k]);
    at += UINT64_C(16) * plan->nhints[k] / 4;
  }
  plan->hints_end = 4 * at;
  at = (at + 31) & ~UINT64_C(31);
  plan->free_map = (uint32_t)at, at += plan->level0 + plan->level1;
  plan->room_maps = (uint32_t)at, at += (uint64_t)plan->nclasses * (plan->level0 + plan->level1);
  at = (at + 31) & ~UINT64_C(31);
  plan->block_map = (uint32_t)at, at += (uint64_t)plan->npages << (plan->page_shift - 9);
  if (has_sites) plan->sites = (uint32_t)at, at += plan->payload_bytes / CLA_HEAP_GRAIN;
  if (at > UINT32_MAX) return false;
  plan->metadata_bytes = plan->payload_offset = (4 * at + 4095) & ~UINT64_C(4095);
  plan->total_bytes = plan->payload_offset + plan->payload_bytes + (UINT64_C(1) << plan->page_shift);

  const uint32_t window = plan->level0 / (device->is_gpu && !cla__heap_is_small(plan) ? 8 : 32);
  plan->window = window < 1 ? 1 : window > 32 ? 32 : window;
  /* Each hint of each class may hold a page with a few blocks: thirty classes or more must leave pages over. */
  plan->mixed_mask = plan->npages >= 16384 ? 0xffffffffu : (1u << cla__heap_log2_up(plan->npages / 128)) - 1;
  return true;
}

/* The control words of a new heap. */
static inline void cla__heap_control(const cla__heap_plan *plan, uint32_t control[CLA_HEAP_CONTROL_WORDS]) {
  memset(control, 0, 4 * CLA_HEAP_CONTROL_WORDS);
  control[CLA_HEAP_MAGIC_WORD] = CLA_HEAP_MAGIC;
  control[CLA_HEAP_NPAGES] = plan->npages;
  control[CLA_HEAP_PAGE_SHIFT] = plan->page_shift;
  control[CLA_HEAP_NCLASSES] = plan->nclasses;
  control[CLA_HEAP_LEVEL0] = plan->level0;
  control[CLA_HEAP_LEVEL1] = plan->level1;
  control[CLA_HEAP_FREE_MAP] = plan->free_map;
  control[CLA_HEAP_ROOM_MAPS] = plan->room_maps;
  control[CLA_HEAP_BLOCK_MAP] = plan->block_map;
  control[CLA_HEAP_SITES] = plan->sites;
  control[CLA_HEAP_PAYLOAD16] = (uint32_t)(plan->payload_offset / CLA_HEAP_GRAIN);
  control[CLA_HEAP_FLAGS] = plan->flags;
  control[CLA_HEAP_WINDOW] = plan->window;
  control[CLA_HEAP_MIXED_MASK] = plan->mixed_mask;
  control[CLA_HEAP_REF_SHIFT] = plan->ref_shift;
  for (uint32_t k = 0; k < plan->nclasses; k++) {
    uint32_t *c = control + CLA_HEAP_CLASS + CLA_HEAP_CLASS_WORDS * k;
    const uint32_t grains = plan->size[k] / CLA_HEAP_GRAIN;
    c[CLA_HEAP_CLASS_SIZE] = plan->size[k];
    c[CLA_HEAP_CLASS_CAPACITY] = plan->capacity[k];
    c[CLA_HEAP_CLASS_RECIPROCAL] = (0x80000000u + grains - 1) / grains;
    c[CLA_HEAP_CLASS_BITWORDS] = (plan->capacity[k] + 31) / 32;
    c[CLA_HEAP_CLASS_HINTS] = plan->hints[k];
    c[CLA_HEAP_CLASS_HINT_MASK] = plan->nhints[k] - 1;
    c[CLA_HEAP_CLASS_LAST_BITS] = 0xffffffffu >> (32 * c[CLA_HEAP_CLASS_BITWORDS] - plan->capacity[k]);
    c[CLA_HEAP_CLASS_CODE] = k + 1;
  }
  const uint32_t page_grains = 1u << (plan->page_shift - 4);
  for (uint32_t j = 0, k = 0; cla__heap_bucket_top(j) <= page_grains / 2; j++) { /* the last has a class */
    memcpy(control + CLA_HEAP_BUCKETS + CLA_HEAP_CLASS_WORDS * j, control + CLA_HEAP_CLASS + CLA_HEAP_CLASS_WORDS * k,
           4 * CLA_HEAP_CLASS_WORDS);
    k += cla__heap_bucket_size(page_grains, j) != 0;
  }
}

/* Level 0 and level 1 of the free bitmap of an empty heap: level0 + level1 words. */
static inline void cla__heap_free_words(const cla__heap_plan *plan, uint32_t *words) {
  memset(words, 0, 4 * ((size_t)plan->level0 + plan->level1));
  for (uint32_t p = 0; p < plan->npages; p++) {
    words[p >> 5] |= 1u << (p & 31);
    words[plan->level0 + (p >> 10)] |= 1u << (p >> 5 & 31);
  }
}

/* What the page words say, of a heap's words; exact once the queue has finished. */
static inline void cla__heap_tally_make(const cla__heap_plan *plan, const uint32_t *words, cla__heap_tally *tally) {
  const uint64_t page = UINT64_C(1) << plan->page_shift;
  uint64_t stretch = 0;
  memset(tally, 0, sizeof *tally);
  for (uint32_t p = 0; p < plan->npages; p++) {
    const uint32_t word = words[cla__page_word(p)], code = cla__page_code(word), used = word & CLA_HEAP_USED;
    const bool is_slab = code != CLA_HEAP_FREE && code <= CLA_HEAP_CLASSES_MAX;
    const bool is_free = code == CLA_HEAP_FREE || (is_slab && used == 0);
    stretch = is_free ? stretch + page : 0;
    if (stretch > tally->largest_free) tally->largest_free = stretch;
    if (is_free) {
      tally->free_pages++;
    } else if (is_slab) {
      tally->slab_pages++, tally->live_blocks += used, tally->used_bytes += (uint64_t)used * plan->size[code - 1];
      tally->waste_bytes += page - (uint64_t)used * plan->size[code - 1];
    } else {
      tally->run_pages++, tally->used_bytes += page, tally->live_blocks += code == CLA_HEAP_HEAD;
    }
  }
}

_Static_assert(CLA_HEAP_TICKETS + CLA_HEAP_FREE_BIT + CLA_HEAP_ROOM_BIT +
                       ((unsigned)CLA_HEAP_CODE_MASK << CLA_HEAP_CODE_SHIFT) + CLA_HEAP_USED ==
                   0xffffffffu,
               "the page word's fields fill it");
_Static_assert(CLA_HEAP_CLASSES_MAX + 1 <= CLA_HEAP_TAKEN, "codes of classes lie below the others");
_Static_assert(CLA_HEAP_DRY + CLA_HEAP_CLASSES_MAX <= CLA_HEAP_CLASS, "the dry words end before the classes");
_Static_assert(CLA_HEAP_CLASS + CLA_HEAP_CLASSES_MAX * CLA_HEAP_CLASS_WORDS <= CLA_HEAP_BUCKETS,
               "the classes before the buckets");
_Static_assert(CLA_HEAP_BUCKETS + (4 * (CLA_HEAP_MOST_SHIFT - 6) + 1) * CLA_HEAP_CLASS_WORDS <= CLA_HEAP_CONTROL_WORDS,
               "the buckets, and what is read behind the last, before the end");
_Static_assert(CLA_HEAP_PAGES_AT % 32 == 0, "page words begin cache lines");
_Static_assert((1 << (CLA_HEAP_MOST_SHIFT - 4)) < CLA_HEAP_USED / 2,
               "used holds a full page and as many transient claims");
#endif

#endif
