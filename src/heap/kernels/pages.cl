enum { CLA__NO_PAGE, CLA__WITH_ROOM, CLA__FRESH }; /* where a page comes from */

enum { CLA__LARGE_WINDOW = 16 }; /* words: of a heap with thousands of pages */

#if defined(CLA__CPU)
/* Is the page the current one of a hint of that class? Two threads on one page would pass its cache lines to and fro for
 * good. */
static bool cla__is_hinted(CLA_HEAP heap, uint code, uint page) {
  if (!cla__is_slab(code)) return false;
  cla__class c;
  cla__class_of_code(heap, code, &c);
  uint i = 0;
  while (i <= c.hint_mask && *(cla__words)(heap + c.hints + (i << 2)) != page) i++;
  return i <= c.hint_mask;
}

/* Is the empty page better left alone? It may be in a hint of the class that it is of, and in one of the class that it
 * would be of from earlier. */
static inline bool cla__is_left(CLA_HEAP heap, uint code, uint page) {
  return cla__is_hinted(heap, cla__page_code(*cla__page(heap, page)), page) || cla__is_hinted(heap, code, page);
}

/* Takes a page with room out of the bitmap; false: another thread did, or it has no room by now. */
static bool cla__take_room_bit(CLA_HEAP heap, cla__class c, uint page) {
  const uint bit = 1u << (page & 31u);
  const uint before = cla__map_clear(cla__room_map(heap, c.code), cla__fixed(heap, CLA_HEAP_LEVEL0), page >> 5, bit);
  return (before & bit) != 0u &&
         cla__has_room(atomic_and(cla__page(heap, page), ~CLA_HEAP_ROOM_BIT), c.code, c.capacity);
}
#else
static inline bool cla__is_hinted(CLA_HEAP heap, uint code, uint page) { return false; }
static inline bool cla__is_left(CLA_HEAP heap, uint code, uint page) { return false; }
#endif

/* A page of the class's room bitmap, its bit cleared; NONE if there is none, or none among *tries pages: those left are
 * written there. (Hints fill their pages without clearing the bits.) */
static uint cla__take_page_with_room(CLA_HEAP heap, cla__class c, uint seed, uint *tries) {
  const uint level0 = cla__fixed(heap, CLA_HEAP_LEVEL0);
  cla__words map = cla__room_map(heap, c.code), level1 = map + level0;
  uint found = CLA_HEAP_NONE, left = *tries;
  bool is_over = false;
  for (uint group = cla__fixed(heap, CLA_HEAP_LEVEL1) >> 2; group > 0u && !is_over; group--) {
    const uint4 four = ((volatile __global uint4 *)level1)[group - 1u]; /* the highest first */
    for (uint turn = (four.x | four.y | four.z | four.w) != 0u ? 0u : 4u; turn < 4u && !is_over; turn++) {
      const uint j = ((seed >> 8) + turn) & 3u, at = (group - 1u) * 4u + j;
      uint above = j == 0u ? four.x : j == 1u ? four.y : j == 2u ? four.z : four.w;
      while (above != 0u && !is_over) {
        const uint b = cla__pick_bit(above, seed), word = at * 32u + b;
        uint pages = map[word];
        if (pages == 0u) {
          above &= level1[at];
          if ((above >> b & 1u) != 0u) cla__map_tidy(map, level0, word);
        }
        while (pages != 0u && !is_over) {
          const uint bit = cla__pick_bit(pages, seed >> 5), page = word * 32u + bit;
          const uint before = cla__map_clear(map, level0, word, 1u << bit);
          if ((before >> bit & 1u) != 0u) { /* a page in a hint is found without the bit */
            const uint now = atomic_and(cla__page(heap, page), ~CLA_HEAP_ROOM_BIT);
            if (cla__has_room(now, c.code, c.capacity) && !cla__is_hinted(heap, c.code, page)) found = page;
          }
          pages = before & ~(1u << bit);
          left--;
          is_over = found != CLA_HEAP_NONE || left == 0u;
        }
        above &= ~(1u << b);
      }
    }
  }
  *tries = left;
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

/* Takes a page out of the bitmap of empty pages; false: another item did, or it is not empty by now. */
static inline bool cla__take_empty_bit(CLA_HEAP heap, uint page) {
  const uint bit = 1u << (page & 31u);
  cla__words map = heap + cla__fixed(heap, CLA_HEAP_FREE_MAP);
  return (cla__map_clear(map, cla__fixed(heap, CLA_HEAP_LEVEL0), page >> 5, bit) & bit) != 0u &&
         cla__is_empty(atomic_and(cla__page(heap, page), ~CLA_HEAP_FREE_BIT));
}

/* The next page from the top that was not handed out this way before, its bit cleared: a crowd finds each its own, without
 * a search. NONE: `most` of the heap's pages were, or the page is in use. */
static inline uint cla__next_untouched(CLA_HEAP heap, uint seed, uint most) {
  const uint stripe = (seed >> 20) % CLA_HEAP_STRIPES, npages = cla__fixed(heap, CLA_HEAP_NPAGES);
  cla__words count = heap + CLA_HEAP_STRIPES_AT + stripe * CLA_HEAP_STRIPE_WORDS;
  if (*count * CLA_HEAP_STRIPES + stripe >= most) return CLA_HEAP_NONE;
  const uint n = atomic_inc(count) * CLA_HEAP_STRIPES + stripe;
  return n < npages && cla__take_empty_bit(heap, npages - 1u - n) ? npages - 1u - n : CLA_HEAP_NONE;
}

/* An empty page from near the top, its bit cleared, for the class; NONE if there is none. Items pick at random within a
 * window of words, for they come in crowds; a small heap's window is narrow, so that its lower part stays whole for
 * runs. In a large heap of a GPU the bits of pages that are in use again would mislead a crowd: there the upper three
 * quarters are handed out page by page first, and the others where looking did not help. */
static uint cla__take_empty_page(CLA_HEAP heap, cla__class c, uint seed) {
  const uint level0 = cla__fixed(heap, CLA_HEAP_LEVEL0), window = cla__fixed(heap, CLA_HEAP_WINDOW);
  cla__words map = heap + cla__fixed(heap, CLA_HEAP_FREE_MAP), level1 = map + level0;
  const bool is_large = window >= CLA__LARGE_WINDOW;
  uint found = CLA_HEAP_NONE, above = 1, nhinted = 0, nlooks = 0;
#if !defined(CLA__CPU)
  const uint npages = cla__fixed(heap, CLA_HEAP_NPAGES);
  if (is_large) found = cla__next_untouched(heap, seed, npages - npages / 4u);
#endif
  while (nlooks < CLA__FRESH_TRIES && above != 0u && found == CLA_HEAP_NONE) {
    uint i = cla__highest_word(level1, cla__fixed(heap, CLA_HEAP_LEVEL1), &above), pages = 0, word = 0, nstale = 0;
    const uint dice = cla__mix(seed + nlooks * 0x51ED27u);
    if (above != 0u) {
      const bool is_wide = is_large && nlooks >= 2u; /* a crowd, or old bits: a wider stretch at each look */
      if (is_wide && i > 0u) {
        const uint lower = i - cla__mix(seed ^ nlooks) % min(i + 1u, 2u * nlooks - 2u), there = level1[lower];
        if (there != 0u) above = there, i = lower;
      }
      const uint highest = 31u - clz(above);
      if (highest >= window && !is_wide) above &= CLA_HEAP_NONE << (highest + 1u - window);
      const uint b = cla__pick_bit(above, dice);
      word = i * 32u + b;
      pages = map[word];
      if (pages == 0u && (level1[i] >> b & 1u) != 0u) cla__map_tidy(map, level0, word);
    }
    while (pages != 0u && found == CLA_HEAP_NONE && nstale < CLA__WORD_TRIES) {
      const uint bit = cla__pick_bit(pages, dice >> 5), page = word * 32u + bit;
      pages &= ~(1u << bit);
      if (nhinted < CLA__HINTED_TRIES && cla__is_left(heap, c.code, page)) {
        nhinted++;
      } else {
        if (cla__take_empty_bit(heap, page)) found = page;
        nstale++;
      }
    }
    nlooks++;
#if !defined(CLA__CPU)
    if (found == CLA_HEAP_NONE && is_large && nlooks <= CLA__LOWER_TRIES)
      found = cla__next_untouched(heap, dice, npages);
#endif
  }
  return found;
}

/* Half of the heap's pages and more are in use (from the top). */
static inline bool cla__is_scarce(CLA_HEAP heap) {
  uint above = 0;
  const uint i = cla__highest_word(heap + cla__fixed(heap, CLA_HEAP_FREE_MAP) + cla__fixed(heap, CLA_HEAP_LEVEL0),
                                   cla__fixed(heap, CLA_HEAP_LEVEL1), &above);
  return above == 0u || i * 32u + (31u - clz(above)) < cla__fixed(heap, CLA_HEAP_NPAGES) >> 6;
}

/* A page with room that one of sixteen of those hints holds; NONE if there is none. Where empty pages are few, hints
 * share: else each class would hold a page a hint, and those that need the pages found none. */
static uint cla__page_of_others(CLA_HEAP heap, cla__class c, uint hints, uint seed) {
  uint found = CLA_HEAP_NONE;
  for (uint i = 0; i < 16u && i <= hints && found == CLA_HEAP_NONE; i += 4u) {
    uint pages[4], words[4]; /* four reads on their way at once */
    for (uint j = 0; j < 4u; j++) pages[j] = *(cla__words)(heap + c.hints + (((seed + i + j) & hints) << 2));
    for (uint j = 0; j < 4u; j++)
      words[j] = pages[j] < cla__fixed(heap, CLA_HEAP_NPAGES) ? *cla__page(heap, pages[j]) : 0u;
    for (uint j = 0; j < 4u; j++)
      if (cla__has_room(words[j], c.code, c.capacity)) found = pages[j];
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

/* A slab of the class that had room when seen; NONE: the heap has no room for the class. hints: a mask, those of the
 * class that the caller's kind uses. */
static uint cla__new_page(CLA_HEAP heap, cla__class c, uint hints, uint seed, uint *source) {
  uint page = CLA_HEAP_NONE, most = CLA__ROOM_TRIES;
  bool is_over = false;
  for (uint attempt = 0; attempt < CLA__PAGE_TRIES && !is_over; attempt++, seed += 0x9E3779B1u) {
    bool is_moving = false;
    *source = CLA__WITH_ROOM;
    uint tries = most;
    page = cla__take_page_with_room(heap, c, seed, &tries);
    if (page == CLA_HEAP_NONE && cla__is_scarce(heap)) page = cla__page_of_others(heap, c, hints, seed);
    if (page == CLA_HEAP_NONE) {
      page = cla__take_empty_page(heap, c, seed);
      if (page == CLA_HEAP_NONE && tries == 0u) most = CLA_HEAP_NONE; /* nothing is left but others with room */
      if (page == CLA_HEAP_NONE && tries > 0u) page = cla__last_page(heap, c, &is_moving);
      *source = page == CLA_HEAP_NONE ? CLA__NO_PAGE : cla__make_slab(heap, c, page);
    }
    is_over = *source != CLA__NO_PAGE || (page == CLA_HEAP_NONE && !is_moving && tries > 0u);
    if (*source == CLA__NO_PAGE) page = CLA_HEAP_NONE;
  }
  if (page != CLA_HEAP_NONE) cla__undry(heap, c.code);
  return page;
}
