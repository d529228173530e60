/* Built after what programs get; one item each: what the host does in a heap that kernels share. Offsets are into the
 * payload. */

/* out[0]: the block's offset + 1, 0: null. align: 0 or a power of two. */
kernel void cla__heap_alloc(CLA_HEAP heap, ulong nbytes, ulong align, uint site, global ulong *out) {
  global char *p = align == 0 ? cla_malloc_at(heap, nbytes, site) : cla_aligned_alloc_at(heap, align, nbytes, site);
  if (p == 0 && nbytes != 0ul) cla__count(heap + CLA_HEAP_FAILED_HOST, 1u); /* a launch that watches is not to blame */
  out[0] = p == 0 ? 0 : (ulong)(p - (global char *)cla__payload(heap)) + 1;
}

/* out[0]: 0, or the kind of bad free (CLA_HEAP_DOUBLE and so on). */
kernel void cla__heap_free(CLA_HEAP heap, ulong offset, global ulong *out) {
  out[0] = cla__free(heap, (global char *)cla__payload(heap) + offset);
}
