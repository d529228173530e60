/* malloc and free in kernels: a lock-free heap in one buffer. Include or prepend this text (clalloc_heap.cl), give every
 * kernel that allocates a CLA_HEAP parameter, and pass it on:
 *
 *   kernel void k(CLA_HEAP heap, global int *out) { global int *p = cla_malloc(heap, 64); ... cla_free(heap, p); }
 *
 * Every function may be called by any item at any time: in divergent branches, between barriers, at any group size. No
 * item depends on another's going on. (On NVIDIA a crowd of items that all need a page let one look for it: the others
 * read a word at most a few hundred times, and then look too.) Blocks are aligned to 16 bytes and live until freed, by
 * any item, in any kernel with the same heap.
 *
 *   cla_malloc(heap, n)               n bytes; null if n is 0, if there is no room, or if heap is null
 *   cla_calloc(heap, n, size)         the same, zeroed; null if n * size overflows
 *   cla_realloc(heap, p, n)           in place while the block is large enough; null leaves p as it was; n 0 frees p
 *   cla_aligned_alloc(heap, align, n) align: any power of two
 *   cla_free(heap, p)                 null: nothing. What is no live block is left alone, counted and recorded
 *   cla_usable_size(heap, p)          bytes of the live block at p, at least what was asked; 0: no live block there
 *   cla_ref(heap, p), cla_at(heap, r) pointer to 32-bit reference and back, 0 is null. For data that the host reads:
 *                                     1 + the offset, or above 4 GiB 1 + offset / 16
 *   cla_fence()                       what the item reads and writes before comes before what it does afterwards, for all
 *                                     items of the device; OpenCL 1.2's mem_fence says so for the item alone
 *   cla_malloc_at(heap, n, site), cla_calloc_at, cla_realloc_at, cla_aligned_alloc_at: `site`, a number of the
 *                                     caller's, is kept for the block while the heap keeps sites
 *
 * A block is handed to another item of the same kernel as any other global memory is: cla_fence() before its address is
 * published, and after it was read. Later kernels need nothing. Limits of others: llvmpipe ends an item's loops after
 * 65535 rounds in all, so a run of that many pages, or zeroing or moving a MiB at once, is beyond it.
 *
 * How it works (the memory is described in heap_layout.h). A small block: one atomic add on a page's word reserves
 * slots, an atomic or on the page's bitmap takes them. A free: an atomic and, then a subtraction. Which page: the
 * caller's hint shard says; a full page is replaced by one with room or a fresh one, found in the bitmaps, from the top
 * of the heap down (in a large heap of a GPU by counters, while there are pages never used). A large block takes whole
 * pages, from the bottom up, and gives them back if another item was faster.
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
static void cla_fence(void);
static __global void *cla_malloc_at(CLA_HEAP heap, ulong nbytes, uint site);
static __global void *cla_calloc_at(CLA_HEAP heap, ulong n, ulong size, uint site);
static __global void *cla_realloc_at(CLA_HEAP heap, __global void *p, ulong nbytes, uint site);
static __global void *cla_aligned_alloc_at(CLA_HEAP heap, ulong align, ulong nbytes, uint site);

#if defined(__x86_64__) || defined(__aarch64__)
#define CLA__CPU  1
#define CLA__RARE __attribute__((noinline)) /* a CPU keeps its registers for what is usual */
#else
#define CLA__RARE
#endif

typedef volatile __global uint *cla__words; /* shared with other items */

/* Bounds of retries: reached only when other items win every time, and then the answer is "no room". */
enum { CLA__RESERVE_TRIES = 512, CLA__PAGE_TRIES = 64, CLA__FRESH_TRIES = 4096, CLA__RUN_TRIES = 256 };

enum {                         /* how long one way is tried before another */
       CLA__CROWD_TRIES = 256, /* so often an item of a crowd leaves the search for a page to another */
       CLA__EARLIER_TRIES = 4, /* so often the shard's earlier pages are looked at before the bitmaps */
       CLA__ROOM_TRIES = 8,    /* so many pages of a room bitmap before a fresh one is taken */
       CLA__WORD_TRIES = 2,    /* so many pages of a word of the bitmap of empty pages before another word */
       CLA__LOWER_TRIES = 2,   /* so many looks at that bitmap are each followed by one at the pages never handed out */
       CLA__HINTED_TRIES = 32, /* so often an empty page is left to the thread that has it in a hint */
       CLA__LEAST_HINTS = 64   /* of a class's hints at least so many serve any kind of crowd */
};
