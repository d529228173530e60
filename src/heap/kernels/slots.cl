/* ---- slots ---- */

/* Those bits of a word of a page's bitmap that stand for slots. */
static inline uint cla__valid_bits(cla__class c, uint word) {
  return word == c.bitwords - 1u ? c.last_bits : CLA_HEAP_NONE;
}

static inline void cla__set_site(CLA_HEAP heap, ulong offset, uint site) {
  if (cla__fixed(heap, CLA_HEAP_SITES) != 0u) (heap + cla__fixed(heap, CLA_HEAP_SITES))[offset >> 4] = site;
}

/* The block that a slot is. */
static inline __global void *cla__slot_made(CLA_HEAP heap, cla__class c, uint page, uint index, uint site) {
  const ulong offset = ((ulong)page << cla__fixed(heap, CLA_HEAP_PAGE_SHIFT)) + index * c.size;
  cla__set_site(heap, offset, site);
  return cla__payload(heap) + offset;
}

#if defined(CLA__WARP)

/* Where the search for free bits starts: the ticket's bits reversed spread a page's claims over its words, the slot
 * within. */
static inline uint cla__first_word(cla__class c, cla__claim claim, uint slot) {
  return cla__times(cla__bits_reversed(claim.word) << 27 | slot * 0x9E3779B1u >> 5, c.bitwords);
}

/* Takes the bits of the claimed slots, the first for the team's first lane; each lane's slot, NONE beyond those
 * granted. */
static inline uint cla__take_slots(cla__class c, cla__team team, cla__claim claim, cla__words bits, uint slot) {
  uint word = cla__first_word(c, claim, slot), taken = 0, mine = CLA_HEAP_NONE;
  while (taken < claim.granted) {
    uint got = 0;
    if (team.lane == team.leader) {
      uint want = cla__valid_bits(c, word);
      if (claim.granted - taken < 32u) want = cla__lowest_bits(want & ~bits[word], claim.granted - taken);
      if (want != 0u) got = want & ~atomic_or(bits + word, want);
    }
    got = cla__from(team, got, team.leader);
    const uint n = popcount(got);
    if (team.rank - taken < n) mine = word * 32u + cla__nth_bit(got, team.rank - taken);
    taken += n;
    if (taken >= claim.granted) break;
    word = word + 1u >= c.bitwords ? 0u : word + 1u;
    if (n == 0u && team.count > 1u && c.bitwords > 2u) { /* each lane looks at a word */
      const uint there = (word + team.rank) % c.bitwords;
      const uint lanes = cla__lanes_with(team.lanes, cla__valid_bits(c, there) & ~bits[there]);
      word = lanes != 0u ? cla__from(team, there, cla__lowest_bit(lanes)) : (word + team.count) % c.bitwords;
    }
  }
  return mine;
}

static inline __global void *cla__malloc_slot(CLA_HEAP heap, ulong nbytes, uint site) {
  cla__class c;
  cla__class_for(heap, (uint)nbytes, &c);
  const uint slot = cla__slot();
  __global void *block = 0;
  bool is_over = false;
  while (!is_over) {
    const cla__team team = cla__team_of(c.code);
    cla__claim claim = {CLA_HEAP_NONE, 0u, 0u};
    if (team.lane == team.leader) cla__reserve(heap, c, team.count, slot, &claim);
    claim.page = cla__from(team, claim.page, team.leader);
    if (claim.page == CLA_HEAP_NONE) {
      cla__count_failure(heap, nbytes, team.lane == team.leader ? team.count : 0u);
      is_over = true;
    } else {
      claim.granted = cla__from(team, claim.granted, team.leader);
      claim.word = cla__from(team, claim.word, team.leader);
      const uint mine = cla__take_slots(c, team, claim, cla__block_words(heap, claim.page), slot);
      if (mine != CLA_HEAP_NONE) {
        block = cla__slot_made(heap, c, claim.page, mine, site);
        is_over = true;
      }
      if (team.lane == team.leader)
        cla__count_blocks(heap, CLA_HEAP_SHARD_MALLOCS, claim.granted, (ulong)claim.granted * c.size, slot);
    }
  }
  return block;
}

/* The lanes whose blocks share a word of the bitmap act together. */
static inline bool cla__give_slot(CLA_HEAP heap, cla__class c, uint page, uint index) {
  const uint word = (page << (cla__fixed(heap, CLA_HEAP_PAGE_SHIFT) - 9u)) + (index >> 5), bit = 1u << (index & 31u);
  const cla__team team = cla__team_of_neighbours(word);
  const uint bits = team.count > 1u ? cla__or_of_lanes(team.lanes, bit) : bit;
  uint before = 0;
  if (team.lane == team.leader) {
    before = atomic_and((cla__words)heap + cla__fixed(heap, CLA_HEAP_BLOCK_MAP) + word, ~bits);
    const uint n = popcount(before & bits);
    if (n > 0u) {
      cla__gave_slots(heap, page, atomic_sub(cla__page(heap, page), n), n, c.capacity);
      cla__count_blocks(heap, CLA_HEAP_SHARD_FREES, n, (ulong)n * c.size, cla__slot());
    }
  }
  if (team.count > 1u) before = cla__from(team, before, team.leader);
  if ((uint)popcount(bits) != team.count && cla__is_repeated(team, bit)) return false;
  return (before & bit) != 0u;
}

#else

/* A slot of those in a word of the bitmap; NONE: there is none left, or another item took it. */
static inline uint cla__take_slot(cla__class c, cla__words bits, uint word) {
  const uint empty = cla__valid_bits(c, word) & ~bits[word], bit = empty & -empty;
  return empty != 0u && (atomic_or(bits + word, bit) & bit) == 0u ? word * 32u + cla__lowest_bit(bit) : CLA_HEAP_NONE;
}

static inline __global void *cla__malloc_slot(CLA_HEAP heap, ulong nbytes, uint site) {
  cla__class c;
  cla__class_for(heap, (uint)nbytes, &c);
  const uint slot = cla__slot();
  cla__claim claim;
  cla__reserve(heap, c, 1u, slot, &claim);
  if (claim.page == CLA_HEAP_NONE) {
    cla__count_failure(heap, nbytes, 1u);
    return 0;
  }
  cla__words bits = cla__block_words(heap, claim.page);
  uint word = (claim.word & CLA_HEAP_USED) >> 5, mine = cla__take_slot(c, bits, word);
  while (mine == CLA_HEAP_NONE) { /* the claim says that there is one */
    word = word + 1u >= c.bitwords ? 0u : word + 1u;
    mine = cla__take_slot(c, bits, word);
  }
  cla__count_blocks(heap, CLA_HEAP_SHARD_MALLOCS, 1u, c.size, slot);
  return cla__slot_made(heap, c, claim.page, mine, site);
}

/* Clears the block's bit and gives its slot back; false: it was not set. */
static inline bool cla__give_slot(CLA_HEAP heap, cla__class c, uint page, uint index) {
  const uint bit = 1u << (index & 31u);
  if ((atomic_and(cla__block_words(heap, page) + (index >> 5), ~bit) & bit) == 0u) return false;
  cla__gave_slots(heap, page, atomic_sub(cla__page(heap, page), 1u), 1u, c.capacity);
  cla__count_blocks(heap, CLA_HEAP_SHARD_FREES, 1u, c.size, cla__slot());
  return true;
}

#endif
