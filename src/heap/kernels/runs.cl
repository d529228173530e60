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

static CLA__RARE __global void *cla__malloc_run(CLA_HEAP heap, ulong nbytes, ulong align_bytes, uint site) {
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
