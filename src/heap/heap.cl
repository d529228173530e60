/* malloc and free in kernels: a lock-free heap in one buffer. Include or prepend this text (after heap_layout.h, which the installed
 * clalloc_heap.cl contains), give every kernel that allocates a CLA_HEAP parameter, and pass it on:
 *
 *   kernel void k(CLA_HEAP heap, global int *out) { global int *p = cla_malloc(heap, 64); ... cla_free(heap, p); }
 *
 * Every function may be called by any item at any time: in divergent branches, between barriers, at any group size. No item ever
 * waits for another. Blocks are aligned to 16 bytes and live until freed, by any item, in any kernel that has the same heap.
 *
 *   cla_malloc(heap, n)              n bytes; null if n is 0, if there is no room, or if heap is null
 *   cla_calloc(heap, n, size)        the same, zeroed; null if n * size overflows
 *   cla_realloc(heap, p, n)          in place while the block is large enough; null leaves p as it was; n 0 frees p
 *   cla_aligned_alloc(heap, align, n) align: any power of two
 *   cla_free(heap, p)                null: nothing. What is no live block is left alone, counted and recorded
 *   cla_usable_size(heap, p)         bytes of the live block at p, at least what was asked; 0: no live block starts there
 *   cla_ref(heap, p), cla_at(heap, r) pointer to 32-bit reference and back; 0 is null. For data that the host reads: 1 + the
 *                                    offset, or above 4 GiB 1 + offset / 16
 *   cla_malloc_at(heap, n, site), cla_calloc_at, cla_realloc_at, cla_aligned_alloc_at: `site`, a number of the caller's, is
 *                                    kept for the block while the heap keeps sites
 *
 *
 * Which fences a program needs around handing a block to another item is as for any other global memory. */
#define CLA_HEAP __global uint *

__global void *cla_malloc(CLA_HEAP heap, ulong nbytes);
__global void *cla_calloc(CLA_HEAP heap, ulong n, ulong size);
__global void *cla_realloc(CLA_HEAP heap, __global void *p, ulong nbytes);
__global void *cla_aligned_alloc(CLA_HEAP heap, ulong align, ulong nbytes);
void cla_free(CLA_HEAP heap, __global void *p);
ulong cla_usable_size(CLA_HEAP heap, __global void *p);
uint cla_ref(CLA_HEAP heap, __global void *p);
__global void *cla_at(CLA_HEAP heap, uint ref);
__global void *cla_malloc_at(CLA_HEAP heap, ulong nbytes, uint site);
__global void *cla_calloc_at(CLA_HEAP heap, ulong n, ulong size, uint site);
__global void *cla_realloc_at(CLA_HEAP heap, __global void *p, ulong nbytes, uint site);
__global void *cla_aligned_alloc_at(CLA_HEAP heap, ulong align, ulong nbytes, uint site);
