/* Statistics, snapshots, trimming, and the check that recounts everything.
 *
 * The quick lists are emptied first everywhere, so what is seen is what has been merged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/count.h"

cla_status cla__pool_lock_live(cla_pool *p) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!p) return cla__error(CLA_E_INVALID, "no pool");
  cla__lock(&p->lock);
  status = cla__pool_live(p);
  if (status) cla__unlock(&p->lock);
  return status;
}

cla_device *cla_pool_device(const cla_pool *p) { return p->device; }
const cla_policy *cla_pool_policy(const cla_pool *p) { return &p->policy; }

uint64_t cla__pool_largest(cla_pool *p) {
  uint64_t largest = 0;
  cla__pool_flush(p);
  for (cla_owner *o = p->owners; o; o = o->next) {
    const cla_block *part = cla__bins_largest(&o->parts, UINT64_MAX),
                    *whole = cla__bins_largest(&o->wholes, UINT64_MAX);
    if (part && part->size > largest) largest = part->size;
    if (whole && whole->size > largest) largest = whole->size;
  }
  return largest;
}

cla_stats cla__pool_totals(cla_pool *p) {
  cla_stats s = p->stats;
  s.largest_free = cla__pool_largest(p); /* empties the quick lists */
  s.limit = p->limit;
  s.frees = s.allocs - s.active_blocks;
  s.cached_bytes = s.reserved_bytes - s.active_bytes - s.held_bytes;
  s.cached_blocks = p->blocks.count - s.active_blocks - s.held_blocks;
  return s;
}

cla_status cla_pool_stats(cla_pool *p, cla_stats *out) {
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  *out = cla__pool_totals(p);
  cla__unlock(&p->lock);
  return CLA_OK;
}

cla_status cla_pool_usage(cla_pool *p, cla_usage *out) {
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  const cla_stats *s = &p->stats;
  *out = (cla_usage){s->reserved_bytes, s->active_bytes, s->requested_bytes, s->held_bytes};
  cla__unlock(&p->lock);
  return CLA_OK;
}

cla_status cla_pool_reset_peaks(cla_pool *p) {
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  cla_stats *s = &p->stats;
  s->peak_active_bytes = s->active_bytes;
  s->peak_requested_bytes = s->requested_bytes;
  s->peak_reserved_bytes = s->reserved_bytes;
  s->peak_cached_bytes = cla__pool_totals(p).cached_bytes;
  s->peak_held_bytes = s->held_bytes;
  cla__unlock(&p->lock);
  return CLA_OK;
}

cla_status cla_pool_trim(cla_pool *p, size_t *freed) {
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  uint64_t before = p->stats.reserved_bytes;
  cla__unlock(&p->lock);
  cla__pool_wait_streams(p);
  cla_segment *chain = NULL;
  cla_owner *ended = NULL;
  status = cla__pool_lock_live(p); /* someone may have closed it while we waited */
  if (status) return status;
  cla__owners_reap(p, &ended);
  cla__pool_consolidate(p);
  cla__pool_sweep(p, &chain);
  for (cla_segment *g; (g = cla__segment_releasable(p)) != NULL;) cla__segment_unlink(p, g, &chain);
  uint64_t after = p->stats.reserved_bytes;
  cla__unlock(&p->lock);
  if (chain) cla__segments_release(p, p->device, chain);
  cla__owners_release(ended);
  cla__debug_check(p);
  if (freed) *freed = before > after ? (size_t)(before - after) : 0;
  return CLA_OK;
}

cla_status cla_pool_set_limit(cla_pool *p, size_t limit) {
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  if (!limit) limit = cla__pool_default_limit(p);
  bool over = p->stats.reserved_bytes > limit;
  cla__unlock(&p->lock);
  if (over && (status = cla_pool_trim(p, NULL)) != CLA_OK) return status;
  status = cla__pool_lock_live(p);
  if (status) return status;
  if (p->stats.reserved_bytes + p->growing > limit)
    status =
        cla__error(CLA_E_INVALID, "a limit of %zu bytes is below the %llu bytes that live allocations keep reserved",
                   limit, (unsigned long long)p->stats.reserved_bytes + p->growing);
  else p->limit = limit;
  cla__unlock(&p->lock);
  return status;
}

/* ---- Snapshot ---- */

/* An active block without a generation is on its way to a stream: nobody has it yet. */
static cla_block_state state_of(const cla_block *b) {
  if (b->state == CLA_ACTIVE && b->generation) return CLA_BLOCK_ACTIVE;
  return b->state == CLA_HELD ? CLA_BLOCK_HELD : CLA_BLOCK_FREE;
}

static cla_block_info info_of(const cla_block *b) {
  const cla_segment *g = b->segment;
  const cla_block_state state = state_of(b);
  return (cla_block_info){.segment = g->number,
                          .address = cla__block_address(b),
                          .offset = b->offset,
                          .size = b->size,
                          .requested = state == CLA_BLOCK_FREE ? 0 : b->requested,
                          .state = state,
                          .stream = b->owner->stream ? b->owner->stream->id : 0,
                          .segment_size = g->size,
                          .segment_address = (void *)g->range.base}; /* NOLINT: never read through */
}

cla_status cla__pool_copy_blocks(cla_pool *p, cla_block_info **out, size_t *count) {
  cla__pool_flush(p);
  size_t n = p->blocks.count, i = 0;
  cla_block_info *copy = malloc((n ? n : 1) * sizeof *copy);
  if (!copy) return cla__error(CLA_E_NOMEM, "no host memory for a snapshot of %zu blocks", n);
  cla_segment *oldest = p->segments;
  while (oldest && oldest->next) oldest = oldest->next;
  for (cla_segment *g = oldest; g; g = g->prev)
    for (cla_block *b = g->first; b; b = b->next) copy[i++] = info_of(b);
  *out = copy;
  *count = n;
  return CLA_OK;
}

cla_status cla_pool_snapshot(cla_pool *p, bool (*visit)(const cla_block_info *, void *), void *arg) {
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  size_t n = 0;
  cla_block_info *copy = NULL;
  status = cla__pool_copy_blocks(p, &copy, &n);
  cla__unlock(&p->lock);
  for (size_t k = 0; !status && k < n && visit(&copy[k], arg); k++) {
  }
  free(copy);
  return status;
}

/* ---- Check ---- */

/* What a recount finds; compared with the running totals at the end. */
typedef struct recount {
  uint64_t reserved, active, requested, cached, held;
  uint64_t active_blocks, cached_blocks, held_blocks, segments, blocks;
  uint64_t quick, binned;
  uint32_t live_of_class[CLA_CLASSES];
} recount;

#define EXPECT(condition, ...)                                                 \
  do {                                                                         \
    if (!(condition)) return cla__error(CLA_E_INVALID, "check: " __VA_ARGS__); \
  } while (0)

static cla_status check_block(const cla_pool *p, const cla_segment *g, const cla_block *b) {
  unsigned long long at = b->offset, n = g->number;
  EXPECT(b->segment == g, "segment %llu: block at %llu belongs to another", n, at);
  EXPECT(b->size && b->size % p->align == 0 && b->offset % p->align == 0, "segment %llu: block at %llu is misaligned",
         n, at);
  EXPECT(!b->next || (b->next->prev == b && b->next->offset == b->offset + b->size), "segment %llu: a gap after %llu",
         n, at);
  EXPECT(b->requested <= b->size || !b->generation, "segment %llu: block at %llu is smaller than its request", n, at);
  EXPECT(cla__table_find(&p->blocks, (uintptr_t)cla__block_address(b)) == b,
         "segment %llu: block at %llu is not in the table", n, at);
  EXPECT(cla__block_at(p, g, b->offset) == b && cla__block_at(p, g, b->offset + b->size - 1) == b,
         "segment %llu: block at %llu is not found by its addresses", n, at);
  EXPECT(b->state != CLA_UNUSED, "segment %llu: block at %llu is a spare descriptor", n, at);
  EXPECT((b->generation != 0) <= (b->state == CLA_ACTIVE), "segment %llu: free block at %llu has a generation", n, at);
  EXPECT(b->state != CLA_BINNED || !b->next || b->next->state != CLA_BINNED || b->next->owner != b->owner,
         "segment %llu: free neighbours at %llu are not merged", n, at);
  EXPECT(b->state == CLA_ACTIVE || b->state == CLA_HELD || (!b->nuses && !b->pins),
         "segment %llu: free block at %llu is in use", n, at);
  return CLA_OK;
}

static void count_block(const cla_pool *p, recount *r, const cla_block *b) {
  r->blocks++;
  if (b->state == CLA_ACTIVE && b->generation) {
    r->active += b->size;
    r->requested += b->requested;
    r->active_blocks++;
    r->live_of_class[cla__class_of(b->size >> p->align_log2)]++;
  } else if (b->state == CLA_HELD) {
    r->held += b->size;
    r->held_blocks++;
  } else { /* an active block without a generation is on its way to a stream: still counted as cached */
    r->cached += b->size;
    r->cached_blocks++;
    r->quick += b->state == CLA_QUICK;
    r->binned += b->state == CLA_BINNED;
  }
}

static cla_status check_segment(const cla_pool *p, const cla_segment *g, recount *r) {
  size_t end = 0, live = 0;
  EXPECT(g->first && g->first->offset == 0 && !g->first->prev, "segment %llu has no first block",
         (unsigned long long)g->number);
  for (const cla_block *b = g->first; b; b = b->next) {
    cla_status status = check_block(p, g, b);
    if (status) return status;
    count_block(p, r, b);
    end = b->offset + b->size;
    live += (b->state == CLA_ACTIVE && b->generation) || b->state == CLA_HELD;
  }
  EXPECT(end == g->size, "segment %llu: blocks end at %zu of %zu", (unsigned long long)g->number, end, g->size);
  EXPECT(g->is_bad || live == g->nlive, "segment %llu: %zu live blocks, counted %zu", (unsigned long long)g->number,
         live, g->nlive);
  r->reserved += g->size;
  r->segments++;
  return CLA_OK;
}

static cla_status check_bins(const cla_owner *o, const cla_bins *bins, bool whole, uint64_t *found) {
  for (unsigned class = 0; class < CLA_CLASSES; class ++) {
    const cla_block *head = bins->heads[class / CLA_SL][class % CLA_SL];
    bool bit = bins->sl[class / CLA_SL] >> class % CLA_SL & 1;
    EXPECT(bit == (head != NULL), "bins: the bit of class %u is wrong", class);
    for (const cla_block *b = head; b; b = b->after, ++*found) {
      EXPECT(b->state == CLA_BINNED && b->owner == o, "bins: class %u holds a block that is not free", class);
      EXPECT(cla__class_of(b->size >> o->pool->align_log2) == class, "bins: a block of %zu bytes in class %u", b->size,
             class);
      EXPECT(cla__is_whole(b) == whole, "bins: a block of %zu bytes among the wrong kind", b->size);
    }
  }
  return CLA_OK;
}

static cla_status check_owner(const cla_owner *o, uint64_t *binned, uint64_t *quick) {
  cla_status status = check_bins(o, &o->parts, false, binned);
  if (!status) status = check_bins(o, &o->wholes, true, binned);
  if (status) return status;
  size_t n = 0;
  for (int i = 0; i < CLA_QUICK_SLOTS; i++) {
    uint32_t in_slot = 0;
    if (o->quick[i].count)
      for (const cla_block *b = o->quick[i].head; b && in_slot < o->quick[i].count; b = b->after, in_slot++)
        EXPECT(b->state == CLA_QUICK && b->owner == o && b->size == o->quick[i].size,
               "quick list %d holds a wrong block", i);
    EXPECT(in_slot == o->quick[i].count, "quick list %d: %u blocks of %u", i, in_slot, o->quick[i].count);
    n += in_slot;
  }
  EXPECT(n == o->nquick, "quick lists: %zu blocks, counted %zu", n, o->nquick);
  *quick += n;
  for (const cla_block *b = o->held_first; b; b = b->after) {
    EXPECT(b->state == CLA_HELD && b->waits_for == o, "a held list has a block that does not wait for it");
    EXPECT(!b->after || b->after->held_until >= b->held_until, "a held list does not ascend");
  }
  return CLA_OK;
}

static cla_status check_totals(cla_pool *p, const recount *r) {
  const cla_stats s = cla__pool_totals(p);
  const struct {
    const char *name;
    uint64_t counted, kept;
  } rows[] = {{"reserved bytes", r->reserved, s.reserved_bytes},
              {"active bytes", r->active, s.active_bytes},
              {"requested bytes", r->requested, s.requested_bytes},
              {"cached bytes", r->cached, s.cached_bytes},
              {"held bytes", r->held, s.held_bytes},
              {"active blocks", r->active_blocks, s.active_blocks},
              {"cached blocks", r->cached_blocks, s.cached_blocks},
              {"held blocks", r->held_blocks, s.held_blocks},
              {"segments", r->segments, s.segments},
              {"segments made and not given back", s.driver_allocs - s.driver_frees, s.segments},
              {"blocks in the table", r->blocks, p->blocks.count}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    EXPECT(rows[i].counted == rows[i].kept, "%s: %llu counted, %llu kept", rows[i].name,
           (unsigned long long)rows[i].counted, (unsigned long long)rows[i].kept);
  for (unsigned i = 0; i < CLA_CLASSES; i++)
    EXPECT(r->live_of_class[i] == p->live_of_class[i], "class %u: %u live, counted %u", i, r->live_of_class[i],
           p->live_of_class[i]);
  EXPECT(s.peak_reserved_bytes >= s.reserved_bytes && s.peak_active_bytes >= s.active_bytes &&
             s.peak_requested_bytes >= s.requested_bytes && s.peak_held_bytes >= s.held_bytes &&
             s.peak_cached_bytes >= s.cached_bytes,
         "a peak is below the present figure");
  return CLA_OK;
}

static cla_status check_lists(cla_pool *p, recount *r) {
  uint64_t binned = 0, quick = 0;
  cla_status status = CLA_OK;
  for (const cla_segment *g = p->segments; g && !status; g = g->next) status = check_segment(p, g, r);
  for (const cla_owner *o = p->owners; o && !status; o = o->next) status = check_owner(o, &binned, &quick);
  if (status) return status;
  EXPECT(binned == r->binned, "%llu free blocks in bins, %llu in segments", (unsigned long long)binned,
         (unsigned long long)r->binned);
  EXPECT(quick == r->quick, "%llu blocks in quick lists, %llu in segments", (unsigned long long)quick,
         (unsigned long long)r->quick);
  return CLA_OK;
}

/* The lists as they are; then once more with the quick lists emptied, as the totals are meant. */
static cla_status check_locked(cla_pool *p, recount *r) {
  cla_status status = check_lists(p, r);
  if (status) return status;
  cla__pool_flush(p);
  *r = (recount){0};
  status = check_lists(p, r);
  return status ? status : check_totals(p, r);
}

#ifdef CLA_DEBUG
void cla__debug_check(cla_pool *p) {
  cla_error_memo memo;
  cla__error_keep(&memo);
  if (cla_pool_check(p) == CLA_E_INVALID) {
    fprintf(stderr, "clalloc: %s\n", cla_last_error());
    abort();
  }
  cla__error_restore(&memo);
}
#endif

cla_status cla_pool_check(cla_pool *p) {
  recount *r = calloc(1, sizeof *r);
  if (!r) return cla__error(CLA_E_NOMEM, "no host memory for a check");
  cla_status status = cla__pool_lock_live(p);
  if (!status) {
    status = check_locked(p, r);
    cla__unlock(&p->lock);
  }
  free(r);
  return status;
}
