/* Block and segment descriptors, cutting and joining, and finding blocks by address.
 *
 * Descriptors come from slabs that belong to the pool and are recycled, never freed (see pool.h). Every block's
 * start address is in the pool's table, so an exact address is one hash look-up. An interior address goes through
 * the segment's bitmap of starts, whose summaries make "the last start at or before here" a few word operations
 * however many blocks there are. The bitmap is made when a segment is first cut. */
#include <stdlib.h>
#include <string.h>

#include "pool/pool.h"

/* ---- Descriptors ---- */

enum { SLAB_BLOCKS = 64, SLAB_SEGMENTS = 16 };

struct cla_slab {
  cla_slab *next;
  union {
    cla_block blocks[SLAB_BLOCKS];
    cla_segment segments[SLAB_SEGMENTS];
  } of;
};

static cla_slab *slab_new(cla_pool *p) {
  cla_slab *slab = calloc(1, sizeof *slab);
  if (!slab) return NULL;
  slab->next = p->slabs;
  p->slabs = slab;
  return slab;
}

cla_block *cla__block_new(cla_pool *p) {
  if (!p->spare_blocks) {
    cla_slab *slab = slab_new(p);
    if (!slab) return NULL;
    for (int i = SLAB_BLOCKS - 1; i >= 0; i--) cla__block_drop(p, &slab->of.blocks[i]);
  }
  cla_block *b = p->spare_blocks;
  p->spare_blocks = b->after;
  b->after = b->before = b->prev = b->next = NULL;
  b->requested = 0;
  b->generation = b->freed_at = 0;
  b->pins = 0;
  b->sub = NULL;
  return b;
}

void cla__block_drop(cla_pool *p, cla_block *b) {
  b->state = CLA_UNUSED;
  b->segment = NULL;
  b->owner = NULL;
  b->after = p->spare_blocks;
  p->spare_blocks = b;
}

cla_segment *cla__segment_new(cla_pool *p) {
  if (!p->spare_segments) {
    cla_slab *slab = slab_new(p);
    if (!slab) return NULL;
    for (int i = SLAB_SEGMENTS - 1; i >= 0; i--) {
      cla_segment *g = &slab->of.segments[i];
      g->range.owner = p;
      g->next = p->spare_segments;
      p->spare_segments = g;
    }
  }
  cla_segment *g = p->spare_segments;
  p->spare_segments = g->next;
  /* The range is left as it is: who found it before the segment was dropped reads its owner without a lock. */
  memset((char *)g + sizeof g->range, 0, sizeof *g - sizeof g->range);
  return g;
}

void cla__segment_drop(cla_pool *p, cla_segment *g) {
  free(g->starts[0]); /* the summaries lie in the same piece */
  g->starts[0] = NULL;
  g->nlevels = 0;
  g->first = NULL;
  g->next = p->spare_segments;
  p->spare_segments = g;
}

/* ---- The bitmap of starts ---- */

static void mark_start(cla_segment *g, size_t unit) {
  for (unsigned level = 0; level < g->nlevels; level++, unit /= 64) {
    uint64_t *word = &g->starts[level][unit / 64], before = *word;
    *word |= (uint64_t)1 << unit % 64;
    if (before) return; /* the summaries know of this word */
  }
}

static void clear_start(cla_segment *g, size_t unit) {
  for (unsigned level = 0; level < g->nlevels; level++, unit /= 64) {
    uint64_t *word = &g->starts[level][unit / 64];
    *word &= ~((uint64_t)1 << unit % 64);
    if (*word) return;
  }
}

/* The last start at or before `unit`. There is always one: the first block starts at 0. */
static size_t start_before(const cla_segment *g, size_t unit) {
  unsigned level = 0;
  uint64_t bits = 0;
  for (; level < g->nlevels; level++) {
    bits = g->starts[level][unit / 64] & (~(uint64_t)0 >> (63 - unit % 64));
    if (bits) break;
    unit /= 64;
    if (!unit) return 0;
    unit--;
  }
  if (!bits) return 0;
  unit = unit / 64 * 64 + 63u - (unsigned)__builtin_clzll(bits);
  while (level-- > 0) unit = unit * 64 + 63u - (unsigned)__builtin_clzll(g->starts[level][unit]);
  return unit;
}

static bool make_starts(cla_pool *p, cla_segment *g) {
  if (g->nlevels) return true;
  size_t words[CLA_MAX_LEVELS], total = 0, n = g->size >> p->align_log2;
  unsigned levels = 0;
  do {
    n = (n + 63) / 64;
    words[levels++] = n;
    total += n;
  } while (n > 1 && levels < CLA_MAX_LEVELS);
  uint64_t *piece = calloc(total, sizeof *piece);
  if (!piece) return false;
  for (unsigned i = 0; i < levels; piece += words[i++]) g->starts[i] = piece;
  g->nlevels = levels;
  mark_start(g, 0);
  return true;
}

/* ---- Cutting and joining ---- */

cla_block *cla__block_split(cla_pool *p, cla_block *b, size_t size) {
  cla_segment *g = b->segment;
  if (!make_starts(p, g) || cla__table_room(&p->blocks)) return NULL;
  cla_block *rest = cla__block_new(p);
  if (!rest) return NULL;
  rest->segment = g;
  rest->offset = b->offset + size;
  rest->size = b->size - size;
  rest->freed_at = b->freed_at;
  rest->state = b->state;
  rest->owner = b->owner;
  rest->owner->nrefs++;
  b->size = size;
  rest->prev = b;
  rest->next = b->next;
  if (b->next) b->next->prev = rest;
  b->next = rest;
  mark_start(g, rest->offset >> p->align_log2);
  cla__table_add(&p->blocks, rest);
  return rest;
}

void cla__block_join(cla_pool *p, cla_block *b) {
  cla_block *gone = b->next;
  clear_start(b->segment, gone->offset >> p->align_log2);
  cla__table_remove(&p->blocks, gone);
  b->size += gone->size;
  if (gone->freed_at > b->freed_at) b->freed_at = gone->freed_at;
  b->next = gone->next;
  if (b->next) b->next->prev = b;
  gone->owner->nrefs--;
  cla__block_drop(p, gone);
}

cla_block *cla__block_at(const cla_pool *p, const cla_segment *g, size_t offset) {
  if (!g->nlevels) return g->first;
  size_t start = start_before(g, offset >> p->align_log2) << p->align_log2;
  return cla__table_find(&p->blocks, g->range.base + (start << g->stretch));
}

/* ---- The table of start addresses ---- */

static void place(cla_table *t, cla_block *b) {
  size_t i = cla__table_home(t, (uintptr_t)cla__block_address(b));
  while (t->places[i]) i = (i + 1) & (t->capacity - 1);
  t->places[i] = b;
}

cla_status cla__table_room(cla_table *t) {
  if (t->count * 2 < t->capacity) return CLA_OK;
  cla_table grown = {.count = t->count, .capacity = t->capacity ? t->capacity * 2 : 256};
  grown.places = calloc(grown.capacity, sizeof *grown.places);
  if (!grown.places) return cla__error(CLA_E_NOMEM, "no host memory for the table of blocks");
  for (size_t i = 0; i < t->capacity; i++)
    if (t->places[i]) place(&grown, t->places[i]);
  free(t->places);
  *t = grown;
  return CLA_OK;
}

void cla__table_add(cla_table *t, cla_block *b) {
  place(t, b);
  t->count++;
}

void cla__table_remove(cla_table *t, const cla_block *b) {
  size_t mask = t->capacity - 1, hole = cla__table_home(t, (uintptr_t)cla__block_address(b));
  while (t->places[hole] != b) hole = (hole + 1) & mask;
  /* Later blocks of the same run move up, so that no look-up meets a gap before its block. */
  for (size_t i = (hole + 1) & mask; t->places[i]; i = (i + 1) & mask) {
    size_t home = cla__table_home(t, (uintptr_t)cla__block_address(t->places[i]));
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      t->places[hole] = t->places[i];
      hole = i;
    }
  }
  t->places[hole] = NULL;
  t->count--;
}
