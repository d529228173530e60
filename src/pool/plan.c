/* Plans: an offset for every block of a recording, so that no two that live at once overlap.
 *
 * Assumes that all lifetimes are known. Placing is first fit in a given order; which order is plan_search.c's. Placing a
 * block takes time in proportion to the placed blocks that overlap it in time, plus 1/64 of all placed: they are found in
 * a tree of ends, and come out sorted by offset because each marks its bit in the sorted list of chunks. What is returned was
 * checked by a sweep over time that knows nothing of how it was found. */
#include "pool/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"

/* ---- Opening ---- */

typedef struct beginning {
  uint64_t lower;
  uint32_t caller;
} beginning;

static int by_lower(const void *a, const void *b) {
  const beginning *x = a, *y = b;
  if (x->lower != y->lower) return x->lower < y->lower ? -1 : 1;
  return x->caller < y->caller ? -1 : 1;
}

/* How many blocks begin before `time`. */
static uint32_t count_before(const beginning *all, size_t n, uint64_t time) {
  size_t low = 0, high = n;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (all[middle].lower < time) low = middle + 1;
    else high = middle;
  }
  return (uint32_t)low;
}

static cla_status number_blocks(cla_planner *p, const cla_lifetime *blocks, uint64_t align) {
  beginning *all = malloc((size_t)p->n * sizeof *all);
  if (!all) return cla__error(CLA_E_NOMEM, "plan: no host memory for %u blocks", p->n);
  for (uint32_t i = 0; i < p->n; i++) all[i] = (beginning){blocks[i].lower, i};
  qsort(all, p->n, sizeof *all, by_lower);
  for (uint32_t i = 0; i < p->n; i++) {
    const cla_lifetime *b = &blocks[all[i].caller];
    p->caller[i] = all[i].caller;
    p->until[i] = count_before(all, p->n, b->upper);
    p->size[i] = ((b->nbytes ? b->nbytes : 1) + align - 1) & ~(align - 1);
  }
  free(all);
  return CLA_OK;
}

/* The most bytes live at once. Every moment of most begins with a block: only those are looked at. */
static cla_status find_floor(cla_planner *p) {
  uint64_t *ending = calloc((size_t)p->n + 1, sizeof *ending), live = 0; /* bytes that end before block i begins */
  if (!ending) return cla__error(CLA_E_NOMEM, "plan: no host memory for %u blocks", p->n);
  p->floor = 0;
  for (uint32_t i = 0; i < p->n; i++) {
    live += p->size[i] - ending[i];
    ending[p->until[i]] += p->size[i];
    if (live > p->floor) p->floor = live;
  }
  free(ending);
  return CLA_OK;
}

static bool make_room(cla_planner *p) {
  size_t n = p->n, nchunks = n / (CLA_PLAN_CHUNK / 2) + 2;
  p->caller = malloc(n * sizeof *p->caller);
  p->until = malloc(n * sizeof *p->until);
  p->size = malloc(n * sizeof *p->size);
  p->offset = malloc(n * sizeof *p->offset);
  p->chunk_of = malloc(n * sizeof *p->chunk_of);
  p->place_of = malloc(n * sizeof *p->place_of);
  p->chunks = malloc(nchunks * sizeof *p->chunks);
  p->sequence = malloc(nchunks * sizeof *p->sequence);
  size_t width = n;
  do {
    p->level[p->nlevels] = malloc(width * sizeof **p->level);
    if (!p->level[p->nlevels++]) return false;
    width = (width + CLA_PLAN_FAN - 1) / CLA_PLAN_FAN;
  } while (width > 1);
  return p->caller && p->until && p->size && p->offset && p->chunk_of && p->place_of && p->chunks && p->sequence;
}

static cla_status check_blocks(const cla_lifetime *blocks, size_t n, uint64_t align, const uint64_t *offsets) {
  if (!n || n > UINT32_MAX / 2) return cla__error(CLA_E_INVALID, "plan: %zu blocks, not 1 to 2^31", n);
  if (!blocks || !offsets) return cla__error(CLA_E_INVALID, "plan: no %s", blocks ? "place for offsets" : "blocks");
  if (!align || align & (align - 1) || align > UINT64_MAX / 8)
    return cla__error(CLA_E_INVALID, "plan: align %" PRIu64 " is no power of two below 2^62", align);
  uint64_t total = 0;
  for (size_t i = 0; i < n; i++) {
    const cla_lifetime *b = &blocks[i];
    if (b->lower >= b->upper)
      return cla__error(CLA_E_INVALID, "plan: block %zu lives from %" PRIu64 " to %" PRIu64, i, b->lower, b->upper);
    if (b->nbytes > UINT64_MAX / 2 - align || (total += b->nbytes + align) > UINT64_MAX / 2)
      return cla__error(CLA_E_INVALID, "plan: the blocks' bytes do not fit 63 bits");
  }
  return CLA_OK;
}

cla_status cla__planner_open(cla_planner *p, const cla_lifetime *blocks, size_t n, uint64_t align) {
  *p = (cla_planner){.n = (uint32_t)n};
  cla_status status = CLA_OK;
  if (!make_room(p)) status = cla__error(CLA_E_NOMEM, "plan: no host memory for %zu blocks", n);
  if (!status) status = number_blocks(p, blocks, align);
  if (!status) status = find_floor(p);
  return status;
}

void cla__planner_close(cla_planner *p) {
  free(p->caller);
  free(p->until);
  free(p->size);
  free(p->offset);
  free(p->chunk_of);
  free(p->place_of);
  free(p->chunks);
  free(p->sequence);
  for (unsigned i = 0; i < p->nlevels; i++) free(p->level[i]);
  *p = (cla_planner){0};
}

/* ---- Which placed blocks overlap in time ---- */

static inline void mark(cla_planner *p, uint32_t i) {
  p->chunks[p->chunk_of[i]].marked |= (uint64_t)1 << p->place_of[i];
}

/* Marks the placed blocks with numbers below `end` that still live when number `from` begins. Nodes first to last - 1 of
 * a level; all of their ancestors are known to hold one. */
static void mark_under(cla_planner *p, unsigned level, uint32_t first, uint32_t last, uint32_t from, uint32_t end) {
  const uint32_t *latest = p->level[level];
  for (uint32_t node = first; node < last; node++) {
    if (latest[node] <= from) continue;
    if (!level) {
      mark(p, node);
      continue;
    }
    unsigned shift = CLA_PLAN_FAN_LOG2 * (level - 1);
    uint32_t below = ((end - 1) >> shift) + 1, next = (node + 1) << CLA_PLAN_FAN_LOG2;
    mark_under(p, level - 1, node << CLA_PLAN_FAN_LOG2, next < below ? next : below, from, end);
  }
}

static void mark_overlapping(cla_planner *p, uint32_t i) {
  unsigned top = p->nlevels - 1;
  uint32_t end = p->until[i];
  mark_under(p, top, 0, ((end - 1) >> (CLA_PLAN_FAN_LOG2 * top)) + 1, i, end);
}

static void tree_add(cla_planner *p, uint32_t i) {
  uint32_t latest = p->until[i];
  for (unsigned level = 0; level < p->nlevels; level++, i >>= CLA_PLAN_FAN_LOG2) {
    if (p->level[level][i] >= latest) return;
    p->level[level][i] = latest;
  }
}

static void tree_clear(cla_planner *p) {
  size_t width = p->n;
  for (unsigned level = 0; level < p->nlevels; level++) {
    memset(p->level[level], 0, width * sizeof **p->level);
    width = (width + CLA_PLAN_FAN - 1) / CLA_PLAN_FAN;
  }
}

/* ---- The lowest gap between them ---- */

/* Walks the marked blocks by offset, and takes the marks away. */
static uint64_t lowest_gap(cla_planner *p, uint64_t size) {
  uint64_t reach = 0;
  bool is_found = false;
  for (uint32_t s = 0; s < p->nchunks; s++) {
    cla_plan_chunk *c = &p->chunks[p->sequence[s]];
    uint64_t marked = c->marked;
    c->marked = 0;
    for (; marked && !is_found; marked &= marked - 1) {
      uint32_t i = c->item[__builtin_ctzll(marked)];
      if (p->offset[i] >= reach + size) is_found = true; /* never below reach otherwise: sorted by offset */
      else if (p->offset[i] + p->size[i] > reach) reach = p->offset[i] + p->size[i];
    }
  }
  return reach;
}

/* ---- The list of placed blocks ---- */

/* The last chunk that begins at or below `offset`, as an index in the sequence; the first, if none does. */
static uint32_t chunk_at(const cla_planner *p, uint64_t offset) {
  uint32_t low = 0, high = p->nchunks;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (p->offset[p->chunks[p->sequence[middle]].item[0]] <= offset) low = middle;
    else high = middle;
  }
  return low;
}

static void set_item(cla_planner *p, uint32_t chunk, uint32_t place, uint32_t i) {
  p->chunks[chunk].item[place] = i;
  p->chunk_of[i] = chunk;
  p->place_of[i] = (uint8_t)place;
}

static void insert_chunk(cla_planner *p, uint32_t at) {
  memmove(&p->sequence[at + 1], &p->sequence[at], (p->nchunks - at) * sizeof *p->sequence);
  p->sequence[at] = p->nchunks;
  p->chunks[p->nchunks].marked = 0;
  p->chunks[p->nchunks].count = 0;
  p->nchunks++;
}

static void split_chunk(cla_planner *p, uint32_t at) {
  insert_chunk(p, at + 1);
  uint32_t from = p->sequence[at], to = p->sequence[at + 1], kept = CLA_PLAN_CHUNK / 2;
  for (uint32_t k = kept; k < CLA_PLAN_CHUNK; k++) set_item(p, to, k - kept, p->chunks[from].item[k]);
  p->chunks[to].count = CLA_PLAN_CHUNK - kept;
  p->chunks[from].count = kept;
}

static void list_add(cla_planner *p, uint32_t i) {
  if (!p->nchunks) insert_chunk(p, 0);
  uint32_t at = chunk_at(p, p->offset[i]);
  if (p->chunks[p->sequence[at]].count == CLA_PLAN_CHUNK) {
    split_chunk(p, at);
    at = chunk_at(p, p->offset[i]);
  }
  uint32_t chunk = p->sequence[at], place = p->chunks[chunk].count++;
  for (; place && p->offset[p->chunks[chunk].item[place - 1]] > p->offset[i]; place--)
    set_item(p, chunk, place, p->chunks[chunk].item[place - 1]);
  set_item(p, chunk, place, i);
}

uint64_t cla__planner_place(cla_planner *p, const uint32_t *order, uint32_t kept, uint64_t most) {
  uint64_t height = 0;
  tree_clear(p);
  p->nchunks = 0;
  for (uint32_t k = 0; k < p->n; k++) {
    uint32_t i = order[k];
    if (k >= kept) {
      mark_overlapping(p, i);
      p->offset[i] = lowest_gap(p, p->size[i]);
    }
    uint64_t end = p->offset[i] + p->size[i];
    if (end > most) return UINT64_MAX;
    if (end > height) height = end;
    tree_add(p, i);
    list_add(p, i);
  }
  return height;
}

/* ---- Checking ---- */

/* What lives at a moment, in ascending order of offsets. */
typedef struct live_block {
  uint64_t offset, end;
  size_t index;
} live_block;

typedef struct moment {
  uint64_t time;
  size_t index;
  bool begins; /* at one time, ends come first */
} moment;

static int by_time(const void *a, const void *b) {
  const moment *x = a, *y = b;
  if (x->time != y->time) return x->time < y->time ? -1 : 1;
  if (x->begins != y->begins) return x->begins ? 1 : -1;
  return 0;
}

static size_t live_at(const live_block *live, size_t count, uint64_t offset) { /* the first at or above */
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (live[middle].offset < offset) low = middle + 1;
    else high = middle;
  }
  return low;
}

static cla_status overlapping(const live_block *a, const live_block *b) {
  return cla__error(CLA_E_INVALID, "plan: block %zu at %" PRIu64 " and block %zu at %" PRIu64 " overlap", a->index,
                    a->offset, b->index, b->offset);
}

static cla_status walk(const cla_lifetime *blocks, const uint64_t *offsets, const moment *moments, size_t n,
                       live_block *live) {
  size_t count = 0;
  for (size_t m = 0; m < 2 * n; m++) {
    size_t i = moments[m].index;
    uint64_t nbytes = blocks[i].nbytes ? blocks[i].nbytes : 1; /* an empty block has an address of its own */
    live_block it = {offsets[i], offsets[i] + nbytes, i};
    size_t at = live_at(live, count, it.offset);
    if (moments[m].begins) {
      if (at < count && live[at].offset < it.end) return overlapping(&live[at], &it);
      if (at > 0 && live[at - 1].end > it.offset) return overlapping(&live[at - 1], &it);
      memmove(&live[at + 1], &live[at], (count++ - at) * sizeof *live);
      live[at] = it;
    } else {
      memmove(&live[at], &live[at + 1], (--count - at) * sizeof *live);
    }
  }
  return CLA_OK;
}

static cla_status check_offsets(const cla_lifetime *blocks, size_t n, uint64_t align, const uint64_t *offsets) {
  for (size_t i = 0; i < n; i++) {
    if (offsets[i] & (align - 1) || offsets[i] > UINT64_MAX / 2)
      return cla__error(CLA_E_INVALID, "plan: block %zu: offset %" PRIu64 " is no multiple of %" PRIu64, i, offsets[i],
                        align);
  }
  moment *moments = calloc(2 * n, sizeof *moments);
  live_block *live = calloc(n, sizeof *live);
  cla_status status = CLA_OK;
  if (!moments || !live) status = cla__error(CLA_E_NOMEM, "plan: no host memory for %zu blocks", n);
  for (size_t i = 0; i < n && !status; i++) {
    moments[2 * i] = (moment){blocks[i].lower, i, true};
    moments[2 * i + 1] = (moment){blocks[i].upper, i, false};
  }
  if (!status) {
    qsort(moments, 2 * n, sizeof *moments, by_time);
    status = walk(blocks, offsets, moments, n, live);
  }
  free(moments);
  free(live);
  return status;
}

cla_status cla_plan_check(const cla_lifetime *blocks, size_t n, uint64_t align, const uint64_t *offsets) {
  cla_status status = check_blocks(blocks, n, align, offsets);
  return status ? status : check_offsets(blocks, n, align, offsets);
}

/* ---- Planning ---- */

enum { DEFAULT_ALIGN = 512 };

cla_status cla_plan(const cla_lifetime *blocks, size_t n, const cla_plan_options *options, uint64_t *offsets,
                    cla_plan_result *result) {
  const cla_plan_options none = {0};
  if (!options) options = &none;
  uint64_t align = options->align ? options->align : DEFAULT_ALIGN;
  cla_status status = check_blocks(blocks, n, align, offsets);
  if (status) return status;
  cla_planner p;
  cla_plan_result found = {0};
  uint64_t *best = malloc(n * sizeof *best);
  status = cla__planner_open(&p, blocks, n, align);
  if (!best) status = cla__error(CLA_E_NOMEM, "plan: no host memory for %zu blocks", n);
  if (!status) status = cla__plan_search(&p, options, best, &found);
  for (size_t i = 0; i < n && !status; i++) offsets[p.caller[i]] = best[i];
  if (!status) status = check_offsets(blocks, n, align, offsets);
  if (!status && result) *result = found;
  cla__planner_close(&p);
  free(best);
  return status;
}
