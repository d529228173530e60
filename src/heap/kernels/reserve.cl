/* ---- reserving slots ---- */

/* n slots of the page were given back, of a class with that capacity; `word`: before. */
static inline void cla__gave_slots(CLA_HEAP heap, uint page, uint word, uint n, uint capacity) {
  const uint before = word & CLA_HEAP_USED;
  const uint flags = (before == n ? CLA_HEAP_FREE_BIT : 0u) |
                     (before - capacity < n ? CLA_HEAP_ROOM_BIT : 0u); /* it was full, and is not now */
  if ((flags & ~word) != 0u) cla__advertise(heap, page, flags & ~word);
}

/* Gives n reserved slots back of a page whose class the caller does not pin. */
static CLA__RARE void cla__unreserve(CLA_HEAP heap, uint page, uint n) {
  const uint word = atomic_sub(cla__page(heap, page), n), code = cla__page_code(word);
  uint capacity = CLA_HEAP_NONE;
  if (cla__is_slab(code))
    capacity = cla__fixed_at(heap, CLA_HEAP_CLASS + (code - 1u) * CLA_HEAP_CLASS_WORDS + CLA_HEAP_CLASS_CAPACITY);
  if (code < CLA_HEAP_TAKEN) cla__gave_slots(heap, page, word, n, capacity);
}

/* A page has left its hint (invariant 4). */
static inline void cla__retire(CLA_HEAP heap, cla__class c, uint page) {
  const uint word = *cla__page(heap, page);
  uint flags = cla__has_room(word, c.code, c.capacity) ? CLA_HEAP_ROOM_BIT : 0u;
  if (cla__is_empty(word)) flags |= CLA_HEAP_FREE_BIT;
  if ((flags & ~word) != 0u) cla__advertise(heap, page, flags & ~word);
}

/* Takes the hint's page out of its class's room bitmap again, lest a second hint gets it: the bit, then the flag. The
 * page may have left the hint, and been looked at, before its bit was cleared: so the hint is read afterwards. */
static CLA__RARE void cla__withdraw(CLA_HEAP heap, uint code, cla__words hint, uint page) {
  cla__map_clear(cla__room_map(heap, code), cla__fixed(heap, CLA_HEAP_LEVEL0), page >> 5, 1u << (page & 31u));
  atomic_and(cla__page(heap, page), ~CLA_HEAP_ROOM_BIT);
  cla__fence();
  if (*hint != page) {
    cla__class c;
    cla__class_of_code(heap, code, &c);
    cla__retire(heap, c, page);
  }
}

/* One of the three pages that the hint had before, if it has room. Else, on a GPU, the hint's page or one of the three
 * again, if it has become another class's and is empty: crowds whose sizes change take pages from one another, and what
 * is at hand is found without a search. NONE: none of them. place: which. */
static inline uint cla__earlier_page(CLA_HEAP heap, cla__class c, cla__words hint, uint page, uint *place,
                                     uint *source) {
  const uint4 four = *(volatile __global uint4 *)hint;
  const uint npages = cla__fixed(heap, CLA_HEAP_NPAGES);
  const uint y = four.y < npages ? *cla__page(heap, four.y) : 0u, z = four.z < npages ? *cla__page(heap, four.z) : 0u,
             w = four.w < npages ? *cla__page(heap, four.w) : 0u;
#if !defined(CLA__CPU)
  const uint x = *cla__page(heap, page);
#endif
  uint found = CLA_HEAP_NONE;
  if (four.y != page && cla__has_room(y, c.code, c.capacity)) *place = 1u, found = four.y;
  else if (four.z != page && cla__has_room(z, c.code, c.capacity)) *place = 2u, found = four.z;
  else if (four.w != page && cla__has_room(w, c.code, c.capacity)) *place = 3u, found = four.w;
#if defined(CLA__CPU) /* or it is another thread's by now */
  if (found != CLA_HEAP_NONE && (cla__is_hinted(heap, c.code, found) || !cla__take_room_bit(heap, c, found)))
    found = CLA_HEAP_NONE;
#else
  if (found == CLA_HEAP_NONE) {
    if (cla__is_empty(x)) found = page;
    else if (four.y < npages && cla__is_empty(y)) *place = 1u, found = four.y;
    else if (four.z < npages && cla__is_empty(z)) *place = 2u, found = four.z;
    else if (four.w < npages && cla__is_empty(w)) *place = 3u, found = four.w;
    if (found != CLA_HEAP_NONE) {
      *source = cla__take_empty_bit(heap, found) ? cla__make_slab(heap, c, found) : CLA__NO_PAGE;
      if (*source == CLA__NO_PAGE) found = CLA_HEAP_NONE;
    }
  }
#endif
  return found;
}

typedef struct {
  uint page, granted; /* NONE, or so many slots of the page are the caller's, to be found in its bitmap */
  uint word;          /* the page word before */
} cla__claim;

static inline bool cla__try_reserve(CLA_HEAP heap, cla__class c, cla__words hint, uint page, uint need,
                                    cla__claim *claim) {
  if (page >= cla__fixed(heap, CLA_HEAP_NPAGES)) return false; /* no page in the hint */
  const uint word = atomic_add(cla__page(heap, page), CLA_HEAP_TICKET + need);
  if (!cla__has_room(word, c.code, c.capacity)) {
    cla__unreserve(heap, page, need);
    return false;
  }
  const uint granted = min(need, c.capacity - (word & CLA_HEAP_USED));
  if (granted < need) cla__unreserve(heap, page, need - granted);
  claim->page = page, claim->granted = granted, claim->word = word;
#if !defined(CLA__WARP) /* two threads on one page would pass its cache lines to and fro */
  if ((word & CLA_HEAP_ROOM_BIT) != 0u) cla__withdraw(heap, c.code, hint, page);
#endif
  return true;
}

/* Which of the class's hints serve those that want `need` slots of a page: 2^n - 1, a mask. */
static inline uint cla__hints_for(CLA_HEAP heap, cla__class c, uint need) {
#if defined(CLA__WARP) /* the fewer slots a warp wants, the more warps can share a page */
  const uint shift = need > 1u ? clz(need - 1u) - 27u : 5u;
  const uint mask = c.hint_mask >> shift | (c.hint_mask & (CLA__LEAST_HINTS - 1u));
  return shift == 0u ? mask : mask & cla__fixed(heap, CLA_HEAP_MIXED_MASK);
#else
  return c.hint_mask;
#endif
}

#if defined(CLA__WARP) || defined(CLA_HEAP_TEST_CROWDS)
enum { CLA__POLLS = 256 };               /* reads of a hint, a tenth of a millisecond or two */
#define CLA__SOUGHT (CLA_HEAP_NONE - 1u) /* in a hint: an item is looking for its next page */

/* A crowd that looks for pages gets into its own way in the bitmaps, and ends up all over the heap with a few blocks a
 * page. So one item looks, and the others give it a moment, no more: true: look; false: *page may be of use now. (On an
 * H200 100,000 first blocks of 64 bytes take 16 us instead of 50, and a heap of 8 MiB can be filled.) */
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
static inline bool cla__next_page(CLA_HEAP heap, cla__class c, cla__words hint, uint need, uint slot, uint attempt,
                                  uint *page, bool *is_borrowed) {
  const uint was = *page, seed = cla__mix(slot) + attempt * 0x85EBCA77u;
  if (!cla__is_seeker(heap, c, hint, attempt, page)) return true;
  const uint there = *page; /* what the hint holds now: the page, or that a next one is sought */
  const bool is_page = was < cla__fixed(heap, CLA_HEAP_NPAGES);
  uint source = CLA__WITH_ROOM, place = 1u + seed % 3u, next = CLA_HEAP_NONE;
  if (is_page && attempt < CLA__EARLIER_TRIES) next = cla__earlier_page(heap, c, hint, was, &place, &source);
  if (next == CLA_HEAP_NONE) next = cla__new_page(heap, c, cla__hints_for(heap, c, need), seed, &source);
  if (next == CLA_HEAP_NONE) {
    if (there != was && atomic_cmpxchg(hint, there, was) != there && is_page) cla__retire(heap, c, was);
    return false;
  }
  const uint seen = atomic_cmpxchg(hint, there, next);
  if (is_page && (seen == there ? next != was : there != was)) cla__retire(heap, c, was);
  *page = next;
  if (seen == there) {
    if (is_page && next != was) hint[place] = was;
  } else if (source == CLA__FRESH) { /* another item was faster: its page will do */
    cla__advertise(heap, next, CLA_HEAP_FREE_BIT | CLA_HEAP_ROOM_BIT);
    *page = seen;
  } else {
    *is_borrowed = true;
  }
  return true;
}

/* Where the hinted page has no room, or may have none. */
static inline void cla__reserve_anew(CLA_HEAP heap, cla__class c, cla__words hint, uint need, uint slot, uint page,
                                     cla__claim *claim) {
  uint attempt = 0;
  bool is_borrowed = false;
#if defined(CLA__WARP)
  bool is_claimed = cla__try_reserve(heap, c, hint, page, need, claim);
#else
  bool is_claimed = false; /* it was tried */
#endif
  while (!is_claimed && attempt < CLA__RESERVE_TRIES) {
    const uint latest = *hint;
    is_borrowed = false;
    attempt++;
    if (latest != page) page = latest;
    else if (!cla__next_page(heap, c, hint, need, slot, attempt - 1u, &page, &is_borrowed))
      attempt = CLA__RESERVE_TRIES, page = CLA_HEAP_NONE;
    is_claimed = cla__try_reserve(heap, c, hint, page, need, claim);
  }
  if (is_borrowed && claim->page != CLA_HEAP_NONE && (claim->word & CLA_HEAP_USED) + claim->granted < c.capacity)
    cla__advertise(heap, claim->page, CLA_HEAP_ROOM_BIT);
}

#if !defined(CLA__WARP)
/* The same, called with as little as possible, for what is at hand in the usual case has to stay in registers. */
static CLA__RARE void cla__reserve_slowly(CLA_HEAP heap, uint code, cla__words hint, uint slot, cla__claim *claim) {
  cla__class c;
  cla__class_of_code(heap, code, &c);
  cla__reserve_anew(heap, c, hint, 1u, slot, *hint, claim);
}
#endif

/* Reserves up to `need` slots, at least one; claim->page NONE: no room. */
static inline void cla__reserve(CLA_HEAP heap, cla__class c, uint need, uint slot, cla__claim *claim) {
  cla__words hint = heap + c.hints + ((slot & cla__hints_for(heap, c, need)) << 2);
  claim->page = CLA_HEAP_NONE;
#if defined(CLA__WARP)
  cla__reserve_anew(heap, c, hint, need, slot, *hint, claim);
#else
  if (!cla__try_reserve(heap, c, hint, *hint, need, claim)) cla__reserve_slowly(heap, c.code, hint, slot, claim);
#endif
}
