/* ---- free ---- */

static inline uint cla__free_slot(CLA_HEAP heap, __global void *p, uint page, uint within, uint code) {
  cla__class c;
  cla__class_of_code(heap, code, &c);
  const uint index = cla__times(within >> 3, c.reciprocal);
  if (index * c.size != within || index >= c.capacity) return cla__bad_free(heap, p, CLA_HEAP_INTERIOR);
  cla__release_fence();
  return cla__give_slot(heap, c, page, index) ? 0u : cla__bad_free(heap, p, CLA_HEAP_DOUBLE);
}

static CLA__RARE uint cla__free_run(CLA_HEAP heap, __global void *p, uint page, uint within, uint code) {
  if (code == CLA_HEAP_FREE) return cla__bad_free(heap, p, CLA_HEAP_DOUBLE);
  if (code != CLA_HEAP_HEAD || within != 0u) return cla__bad_free(heap, p, CLA_HEAP_INTERIOR);
  cla__release_fence();
  const uint npages = atomic_xchg(cla__block_words(heap, page), 0u); /* whoever gets the length frees the run */
  if (npages == 0u) return cla__bad_free(heap, p, CLA_HEAP_DOUBLE);
  cla__count_pages(heap, 0u, npages);
  cla__count_blocks(heap, CLA_HEAP_SHARD_FREES, 1u, (ulong)npages << cla__fixed(heap, CLA_HEAP_PAGE_SHIFT),
                    cla__slot());
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
  const uint code = cla__page_code(*cla__page(heap, page));
  if (cla__is_slab(code)) return cla__free_slot(heap, p, page, within, code);
  return cla__free_run(heap, p, page, within, cla__plain(code));
}
