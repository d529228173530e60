/* ---- two-level bitmaps of pages ---- */

static inline cla__words cla__room_map(CLA_HEAP heap, uint code) {
  return heap + cla__fixed(heap, CLA_HEAP_ROOM_MAPS) +
         (code - 1u) * (cla__fixed(heap, CLA_HEAP_LEVEL0) + cla__fixed(heap, CLA_HEAP_LEVEL1));
}

static inline void cla__map_set(cla__words map, uint level0, uint word, uint bits) {
  const uint above = 1u << (word & 31u);
  cla__words level1 = map + level0 + (word >> 5);
  atomic_or(map + word, bits);
  cla__fence();
  if ((*level1 & above) == 0u) atomic_or(level1, above);
}

/* Level 0's word may have become zero: its bit of level 1 goes, unless the word has filled again. */
static inline void cla__map_tidy(cla__words map, uint level0, uint word) {
  const uint above = 1u << (word & 31u);
  cla__words level1 = map + level0 + (word >> 5);
  atomic_and(level1, ~above);
  cla__fence();
  if (map[word] != 0u) atomic_or(level1, above);
}

/* Clears the bits; what the word was before. */
static inline uint cla__map_clear(cla__words map, uint level0, uint word, uint bits) {
  const uint before = atomic_and(map + word, ~bits);
  if (before != 0u && (before & ~bits) == 0u) cla__map_tidy(map, level0, word);
  return before;
}

/* A dry class has no room anywhere; whoever makes room says that this may have changed. */
static inline void cla__undry(CLA_HEAP heap, uint code) {
  cla__words dry = heap + CLA_HEAP_DRY + code - 1u;
  if (*dry != 0u) atomic_xchg(dry, 0u);
}

static inline void cla__undry_all(CLA_HEAP heap) {
  cla__words any = heap + CLA_HEAP_ANY_DRY;
  if (*any == 0u) return;
  atomic_xchg(any, 0u);
  cla__fence();
  for (uint code = 1; code <= CLA_HEAP_CLASSES_MAX; code++) cla__undry(heap, code);
}

/* The page has room (ROOM_BIT), is empty (FREE_BIT): flags first, then the bitmaps (invariant 3). */
static CLA__RARE void cla__advertise(CLA_HEAP heap, uint page, uint flags) {
  const uint before = atomic_or(cla__page(heap, page), flags), code = cla__page_code(before),
             level0 = cla__fixed(heap, CLA_HEAP_LEVEL0);
  const uint added = flags & ~before;
  const bool has_room = (added & CLA_HEAP_ROOM_BIT) != 0u && cla__is_slab(code),
             is_free = (added & CLA_HEAP_FREE_BIT) != 0u;
  if (added == 0u) return;
  if (has_room) cla__map_set(cla__room_map(heap, code), level0, page >> 5, 1u << (page & 31u));
  if (is_free) cla__map_set(heap + cla__fixed(heap, CLA_HEAP_FREE_MAP), level0, page >> 5, 1u << (page & 31u));
  cla__fence();
  if (has_room) cla__undry(heap, code);
  if (is_free) cla__undry_all(heap);
}
