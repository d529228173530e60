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
  cla__class c;
  cla__class_of_code(heap, code, &c);
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

static void cla_fence(void) { cla__fence(); }

#endif
