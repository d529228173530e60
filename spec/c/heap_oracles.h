/* Two oracles of the heap's tests, for a heap's words wherever they are: a recount of all metadata, and intervals of
 * blocks that must not meet. */
#ifndef HEAP_ORACLES_H
#define HEAP_ORACLES_H

#include <stdio.h>
#include <stdlib.h>

#include "heap/heap_layout.h"

/* ---- the recount ---- */

static inline bool in_map(const cla__heap_plan *plan, const uint32_t *map, uint32_t p) {
  const bool below = map[p >> 5] >> (p & 31) & 1, above = map[plan->level0 + (p >> 10)] >> (p >> 5 & 31) & 1;
  return below && above;
}

static inline bool in_hint(const cla__heap_plan *plan, const uint32_t *meta, uint32_t k, uint32_t p) {
  for (uint32_t i = 0; i < plan->nhints[k]; i++)
    if (meta[plan->hints[k] + 4 * i] == p) return true;
  return false;
}

/* Faults of one page that is no run. */
static inline int audit_page(const cla__heap_plan *plan, const uint32_t *meta, uint32_t p) {
  const uint32_t word = meta[cla__page_word(p)], code = cla__page_code(word), used = word & CLA_HEAP_USED;
  const uint32_t *bits = meta + plan->block_map + ((size_t)p << (plan->page_shift - 9));
  const uint32_t *rooms = meta + plan->room_maps, *free_map = meta + plan->free_map,
                 nbits = 1u << (plan->page_shift - 4);
  const bool is_slab = code != CLA_HEAP_FREE;
  const uint32_t capacity = is_slab ? plan->capacity[code - 1] : 0, each = plan->level0 + plan->level1;
  uint32_t set = 0;
  int faults = 0;
  if (code > plan->nclasses) return 1;
  for (uint32_t i = 0; i < nbits; i++) {
    const uint32_t bit = bits[i / 32] >> i % 32 & 1;
    set += bit, faults += bit && i >= capacity;
  }
  faults += set != used;
  faults += used == 0 && !in_map(plan, free_map, p);
  faults += (word & CLA_HEAP_FREE_BIT) && !in_map(plan, free_map, p);
  if (!is_slab) return faults;
  const bool has_room = in_map(plan, rooms + (code - 1) * each, p);
  faults += (word & CLA_HEAP_ROOM_BIT) && !has_room;
  faults += used > 0 && used < capacity && !has_room && !in_hint(plan, meta, code - 1, p);
  return faults;
}

/* A sum over the counter shards. */
static inline uint64_t heap_calls(const uint32_t *meta, uint32_t which) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < CLA_HEAP_SHARDS; i++) {
    const uint32_t *shard = meta + CLA_HEAP_SHARDS_AT + i * CLA_HEAP_SHARD_WORDS + which;
    sum += shard[0] | (uint64_t)shard[1] << 32;
  }
  return sum;
}

/* Faults in a heap's words, which no kernel is changing: 0 if all is well. */
static inline int audit(const cla__heap_plan *plan, const uint32_t *meta, cla__heap_tally *tally) {
  int faults = 0;
  for (uint32_t p = 0; p < plan->npages; p++) {
    const uint32_t word = meta[cla__page_word(p)], code = cla__page_code(word);
    if (code < CLA_HEAP_TAKEN) {
      const int found = audit_page(plan, meta, p);
      if (found && faults < 5) fprintf(stderr, "page %u of %u: word %08x, %d faults\n", p, plan->npages, word, found);
      faults += found;
      continue;
    }
    const uint32_t length = meta[plan->block_map + ((size_t)p << (plan->page_shift - 9))];
    const bool is_run =
        code == CLA_HEAP_HEAD && length > 0 && length <= plan->npages - p && (word & CLA_HEAP_USED) == 0;
    if (!is_run) {
      faults++;
      continue;
    }
    for (uint32_t i = 1; i < length; i++) faults += cla__page_code(meta[cla__page_word(p + i)]) != CLA_HEAP_BODY;
    p += length - 1;
  }
  cla__heap_tally_make(plan, meta, tally);
  if (plan->flags & CLA_HEAP_COUNT)
    faults += heap_calls(meta, CLA_HEAP_SHARD_MALLOCS) - heap_calls(meta, CLA_HEAP_SHARD_FREES) != tally->live_blocks;
  if (plan->flags & CLA_HEAP_PEAK) faults += UINT64_C(16) * meta[CLA_HEAP_USED16] != tally->used_bytes;
  if (faults) fprintf(stderr, "audit: %d faults\n", faults);
  return faults;
}

/* Nothing is live in a heap of that tally, and all of it can be had. */
static inline bool is_whole(const cla__heap_plan *plan, const cla__heap_tally *tally) {
  return tally->live_blocks == 0 && tally->used_bytes == 0 && tally->largest_free == plan->payload_bytes &&
         tally->free_pages == plan->npages;
}

/* ---- intervals ---- */

typedef struct interval {
  uint64_t begin, end;
} interval;

static inline int interval_order(const void *a, const void *b) {
  const interval *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Blocks at offsets[i] - 1 (0: none) of sizes[i] bytes: 16-byte aligned, inside the payload, disjoint? *nblocks: how many. */
static inline bool intervals_are_good(const cla__heap_plan *plan, const uint64_t *offsets, const uint32_t *sizes,
                                      size_t n, size_t *nblocks) {
  interval *v = malloc((n + 1) * sizeof *v);
  size_t m = 0;
  bool is_good = true;
  for (size_t i = 0; i < n; i++)
    if (offsets[i] != 0) v[m++] = (interval){offsets[i] - 1, offsets[i] - 1 + sizes[i]};
  qsort(v, m, sizeof *v, interval_order);
  for (size_t i = 0; i < m; i++) {
    if (v[i].begin % 16 != 0 || v[i].end > plan->payload_bytes) is_good = false;
    if (i > 0 && v[i - 1].end > v[i].begin) is_good = false;
  }
  free(v);
  *nblocks = m;
  return is_good;
}

#endif
