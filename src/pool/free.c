/* Freeing, recording, and what an address stands for.
 *
 * A freed block goes back to its stream at once: the queue's order makes reuse there safe. If other streams were
 * recorded on it, it waits in their owners' held lists, one after the other, until their numbers are complete. */
#include <stdlib.h>

#include "pool/count.h"
#include "pool/tracing.h"

/* ---- Segments that become free ---- */

/* The counts behind `chores` change with the flags. */
static void set_flag(cla_pool *p, bool *flag, size_t *count, bool value) {
  if (*flag == value) return;
  *flag = value;
  if (value) ++*count, ++p->chores;
  else --*count, --p->chores;
}

void cla__segment_decided(cla_pool *p, cla_segment *g, bool is_unwanted) {
  set_flag(p, &g->is_undecided, &p->nundecided, false);
  set_flag(p, &g->is_unwanted, &p->nunwanted, is_unwanted);
}

/* Nothing in the segment is live any more. */
static void segment_idle(cla_pool *p, cla_segment *g) {
  if (p->decisions.keep && !g->is_bad) set_flag(p, &g->is_undecided, &p->nundecided, true);
}

/* ---- Freeing ---- */

/* A block in no list, no longer live: waits for the first recorded stream that is not done, or becomes free. */
void cla__pool_settle(cla_pool *p, cla_block *b) {
  if (b->pins) return;
  while (b->nuses) {
    cla_use *use = &b->uses[b->nuses - 1];
    if (!cla__stream_done(use->owner->stream, use->number)) {
      cla__owner_hold(use->owner, b, use->number);
      return;
    }
    use->owner->nrefs--;
    b->nuses--;
  }
  b->segment->nlive--;
  cla__trace_block(p, CLA_TRACE_FREE_COMPLETED, b);
  if (b->segment->is_bad) return; /* stays held until its segment goes */
  if (!b->segment->nlive) segment_idle(p, b->segment);
  cla__uncount_held(p, b);
  cla__raise_cached(p);
  cla__owner_put(b->owner, b);
}

static cla_status stale(const cla_handle *h) {
  return h->pool->is_closed ? cla__error(CLA_E_CLOSED, "the pool of this allocation is closed")
                            : cla__error(CLA_E_FREED, "the allocation has been freed");
}

/* The driver could not back this segment: nothing more is cut from it, and it goes when its last block does. */
void cla__segment_spoil(cla_pool *p, cla_segment *g) {
  if (g->is_bad) return;
  cla__pool_flush(p);
  g->is_bad = true;
  p->nspoiled++;
  p->chores++;
  for (cla_block *b = g->first; b; b = b->next) {
    if (b->state != CLA_BINNED) continue;
    cla__owner_unbin(b);
    b->state = CLA_HELD;
    b->before = b->after = NULL;
    cla__count_held(p, b);
  }
}

static void give_back_spoiled(cla_pool *p, cla_segment *g, cla_segment **chain) {
  for (cla_block *b = g->first; b; b = b->next) cla__uncount_held(p, b);
  cla__segment_clear(p, g);
  cla__segment_unlink(p, g, chain);
  p->nspoiled--;
  p->chores--;
}

static bool may_go(const cla_segment *g) {
  const cla_block *b = g->first;
  return cla__is_whole(b) && b->state == CLA_BINNED && b->freed_at <= cla__owner_done(b->owner) && !g->pins;
}

void cla__pool_sweep(cla_pool *p, cla_segment **chain) {
  if (p->nspoiled | p->nunwanted)
    for (cla_segment *next, *g = p->segments; g; g = next) {
      next = g->next;
      if (g->is_bad && !g->nlive) give_back_spoiled(p, g, chain);
      else if (g->is_unwanted && may_go(g)) cla__segment_unlink(p, g, chain);
    }
  if (p->policy.caches && p->policy.keep != CLA_KEEP_NEVER) return;
  for (cla_segment *g; (g = cla__segment_releasable(p)) != NULL;) cla__segment_unlink(p, g, chain);
}

/* What a free leaves to do. May drop the lock. */
static __attribute__((noinline)) void do_chores(cla_pool *p, cla_segment *g, cla_segment **chain) {
  if (!g->nlive) segment_idle(p, g);
  if (p->nundecided) cla__ask_keep(p);
  if (!p->is_closed) cla__pool_sweep(p, chain);
}

static void free_locked(cla_pool *p, cla_block *b, cla_segment **chain) {
  cla_owner *o = b->owner;
  cla_segment *g = b->segment;
  cla__count_free(p, b);
  b->generation = 0;
  if (b->sub) cla__sub_loosen(b);
  b->freed_at = o->stream ? cla__stream_submitted(o->stream) : 0;
  if (p->nstreams > 1 && b->freed_at) cla__stream_want(o->stream, b->freed_at);
  if (b->nuses | b->pins | g->is_bad) {
    b->state = CLA_HELD;
    b->before = b->after = NULL;
    cla__count_held(p, b);
    cla__trace_block(p, CLA_TRACE_FREE_REQUESTED, b);
    cla__pool_settle(p, b);
  } else {
    g->nlive--;
    cla__trace_block(p, CLA_TRACE_FREE, b);
    cla__owner_put(o, b);
  }
  if (p->chores) do_chores(p, g, chain);
}

static cla_note note_of(cla_happening what, const cla_block *b) {
  return (cla_note){.what = what,
                    .address = cla__block_address(b),
                    .nbytes = b->requested,
                    .size = b->size,
                    .segment = b->segment->number,
                    .offset = b->offset,
                    .stream = b->owner->stream ? b->owner->stream->id : 0};
}

cla_note cla__note_of(cla_happening what, const cla_handle *h) {
  cla__lock(&h->pool->lock);
  cla_note note = {.what = what};
  if (h->block->generation == h->generation) note = note_of(what, h->block);
  cla__unlock(&h->pool->lock);
  return note;
}

/* A live block of a pool whose policy is told. Gives the lock back. */
static __attribute__((noinline)) void free_watched(cla_pool *p, cla_block *b, bool is_told) {
  const cla_note note = note_of(CLA_NOTE_FREE, b);
  cla_segment *chain = NULL;
  free_locked(p, b, &chain);
  cla__unlock(&p->lock);
  if (chain) cla__segments_release(p, p->device, chain);
  if (is_told) cla__tell(p, &note);
}

static inline __attribute__((always_inline)) cla_status pool_free(const cla_handle *h, bool is_told) {
  cla_status status = cla__alive();
  if (status) return status;
  cla_pool *p = h->pool;
  cla_segment *chain = NULL;
  cla__lock(&p->lock);
  if (h->block->generation == h->generation) {
    if (p->is_watched) {
      free_watched(p, h->block, is_told);
      return CLA_OK;
    }
    free_locked(p, h->block, &chain);
  } else {
    status = stale(h);
  }
  cla__unlock(&p->lock);
  if (chain) cla__segments_release(p, p->device, chain);
  return status;
}

cla_status cla__pool_free(const cla_handle *h) { return pool_free(h, true); }
cla_status cla__pool_free_silently(const cla_handle *h) { return pool_free(h, false); }

/* ---- From addresses to handles ---- */

static cla_status unknown_address(const void *address) {
  if (!address) return cla__error(CLA_E_FOREIGN, "NULL is not an address of this library");
  if (cla__map_was_issued(address))
    return cla__error(CLA_E_FREED, "address %p is freed, or lies in no allocation", address);
  return cla__error(CLA_E_FOREIGN, "address %p was not issued by this library", address);
}

/* Locks and returns the pool whose segment holds the address, or NULL. */
static cla_pool *lock_pool_of(const void *address, cla_segment **out) {
  cla_range *r = cla__map_find(address);
  if (!r || r->record) return NULL;
  cla_pool *p = r->owner;
  cla__lock(&p->lock);
  if (cla__range_holds(r, address)) {
    *out = (cla_segment *)r;
    return p;
  }
  cla__unlock(&p->lock);
  return NULL;
}

cla_status cla__handle_of(const void *address, cla_handle *out, size_t *offset) {
  cla_segment *g = NULL;
  cla_pool *p = lock_pool_of(address, &g);
  if (!p) return unknown_address(address);
  cla_status status = CLA_OK;
  size_t at = (uintptr_t)address - g->range.base;
  cla_block *b = cla__block_at(p, g, at >> g->stretch);
  size_t inside = (uintptr_t)address - (uintptr_t)cla__block_address(b);
  if (b->state != CLA_ACTIVE || !b->generation) /* without one: on its way to somebody */
    status = cla__error(CLA_E_FREED, "address %p is freed, or lies in no allocation", address);
  else if (inside >= b->requested && !(inside == 0 && b->requested == 0))
    status = cla__error(CLA_E_BOUNDS, "address %p is %zu bytes into an allocation of %zu bytes", address, inside,
                        b->requested);
  else {
    *out = (cla_handle){p, b, b->generation};
    *offset = inside;
  }
  cla__unlock(&p->lock);
  return status;
}

cla_status cla__handle_check_locked(const cla_handle *h) {
  return h->block->generation == h->generation ? CLA_OK : stale(h);
}

cla_status cla__handle_check(const cla_handle *h) {
  cla__lock(&h->pool->lock);
  cla_status status = cla__handle_check_locked(h);
  cla__unlock(&h->pool->lock);
  return status;
}

cla_status cla_free(void *address) {
  cla_status status = cla__alive();
  if (status) return status;
  cla_segment *g = NULL, *chain = NULL;
  cla_pool *p = lock_pool_of(address, &g);
  if (!p) return unknown_address(address);
  cla_block *b = cla__table_find(&p->blocks, (uintptr_t)address);
  if (b && b->state == CLA_ACTIVE && b->generation) {
    if (p->is_watched) {
      free_watched(p, b, true);
      return CLA_OK;
    }
    free_locked(p, b, &chain);
  } else if (b) {
    status = cla__error(CLA_E_FREED, "address %p is freed already", address);
  } else {
    b = cla__block_at(p, g, ((uintptr_t)address - g->range.base) >> g->stretch);
    status = b->state == CLA_ACTIVE && b->generation
                 ? cla__error(CLA_E_INVALID, "address %p lies inside the allocation at %p; only its start can be freed",
                              address, cla__block_address(b))
                 : cla__error(CLA_E_FREED, "address %p is freed already", address);
  }
  cla__unlock(&p->lock);
  if (chain) cla__segments_release(p, p->device, chain);
  return status;
}

void cla_deleter(void *address) {
  if (address) cla_free(address);
}

cla_status cla_resolve(const void *address, cla_buffer *out) {
  cla_handle h;
  size_t offset;
  cla_status status = cla__alive();
  if (!status) status = cla__handle_of(address, &h, &offset);
  if (status) return status;
  cla__lock(&h.pool->lock);
  const cla_block *b = h.block;
  if (b->generation == h.generation)
    *out = (cla_buffer){.mem = b->segment->mem,
                        .offset = b->offset + offset,
                        .nbytes = b->requested - offset,
                        .requested = b->requested,
                        .size = b->size,
                        .address = cla__block_address(b),
                        .device = h.pool->device,
                        .pool = h.pool,
                        .stream = b->owner->stream,
                        .generation = h.generation};
  else status = stale(&h);
  cla__unlock(&h.pool->lock);
  return status;
}

bool cla_owns(const void *address) {
  cla_error_memo memo; /* a question, not a failure */
  cla__error_keep(&memo);
  cla_handle h;
  size_t offset;
  bool owns = !cla__alive() && !cla__handle_of(address, &h, &offset);
  cla__error_restore(&memo);
  return owns;
}

bool cla_buffer_valid(const cla_buffer *buffer) {
  cla_buffer now;
  cla_error_memo memo;
  cla__error_keep(&memo);
  bool valid = buffer && !cla_resolve(buffer->address, &now) && now.generation == buffer->generation;
  cla__error_restore(&memo);
  return valid;
}

cla_mapping *cla__mapping_take(const void *address) {
  cla_segment *g = NULL;
  cla_pool *p = lock_pool_of(address, &g);
  if (!p) return NULL;
  cla_block *b = cla__block_at(p, g, ((uintptr_t)address - g->range.base) >> g->stretch);
  size_t inside = (uintptr_t)address - (uintptr_t)cla__block_address(b);
  cla_mapping **link = &b->maps;
  while (*link && !((*link)->is_by_address && (*link)->offset == inside)) link = &(*link)->next;
  cla_mapping *m = *link;
  if (m) cla__mapping_unlist(p, link);
  cla__unlock(&p->lock);
  return m;
}

/* ---- Recording ---- */

/* Notes that the block is in use on `s` up to `number`. */
cla_status cla__pool_record(cla_pool *p, cla_block *b, cla_stream *s, uint64_t number) {
  if (b->owner->stream == s) return CLA_OK;
  cla_owner *o = NULL;
  cla_status status = cla__owner_of(p, s, &o);
  if (status) return status;
  for (uint32_t i = 0; i < b->nuses; i++)
    if (b->uses[i].owner == o) {
      if (number > b->uses[i].number) b->uses[i].number = number;
      return CLA_OK;
    }
  if (b->nuses == b->uses_capacity) {
    uint32_t capacity = b->uses_capacity ? b->uses_capacity * 2 : 2;
    cla_use *grown = realloc(b->uses, capacity * sizeof *grown);
    if (!grown) return cla__error(CLA_E_NOMEM, "no host memory to record a stream");
    b->uses = grown;
    b->uses_capacity = capacity;
  }
  b->uses[b->nuses++] = (cla_use){o, number};
  o->nrefs++;
  return CLA_OK;
}

cla_status cla__handle_record(const cla_handle *h, cla_stream *s) {
  cla_pool *p = h->pool;
  cla__lock(&p->lock);
  cla_status status = h->block->generation == h->generation ? CLA_OK : stale(h);
  if (!status && s->device != p->device)
    status = cla__error(CLA_E_INVALID, "record: the stream belongs to %s, the memory to %s", s->device->info.name,
                        p->device->info.name);
  if (!status) status = cla__pool_record(p, h->block, s, cla__stream_submitted(s));
  cla__unlock(&p->lock);
  return status;
}

cla_status cla_record(const void *address, cla_stream *s) {
  cla_handle h;
  size_t offset;
  cla_status status = cla__alive();
  if (!status && !s) status = cla__error(CLA_E_INVALID, "record: no stream");
  const cla_range *r = status ? NULL : cla__map_find(address);
  if (r && r->record) return r->record(address, s); /* pinned memory */
  if (!status) status = cla__handle_of(address, &h, &offset);
  return status ? status : cla__handle_record(&h, s);
}

/* ---- Asking the streams ---- */

/* Held blocks whose stream is done go on to the next stream they wait for, or back to their owner. */
static void collect_held(cla_pool *p, cla_owner *o) {
  while (o->held_first && cla__stream_done(o->stream, o->held_first->held_until)) {
    cla_block *b = o->held_first;
    cla__owner_unhold(o, b);
    cla__pool_settle(p, b);
  }
}

/* Calls `ask` for every stream of the pool that may have something to give, without the lock. */
static void for_streams(cla_pool *p, void (*ask)(cla_stream *, uint64_t number)) {
  cla__lock(&p->lock);
  for (cla_owner *o = p->owners; o; o = o->next) {
    if (!o->stream) continue;
    uint64_t number = cla__stream_submitted(o->stream);
    if (cla__stream_done(o->stream, number)) continue;
    if (!o->held_first && !o->parts.fl && !o->wholes.fl && !o->nquick && !p->is_closed) continue;
    /* What blocks wait for, not what has been submitted since: the stream may never be idle. */
    uint64_t wanted = atomic_load(&o->stream->wanted);
    if (cla__stream_done(o->stream, wanted)) wanted = number;
    cla_stream *s = o->stream;
    cla__stream_hold(s);
    o->nrefs++;
    cla__unlock(&p->lock);
    ask(s, wanted);
    cla__stream_unhold(s);
    cla__lock(&p->lock);
    o->nrefs--;
    collect_held(p, o);
  }
  for (cla_owner *o = p->owners; o; o = o->next) collect_held(p, o);
  cla__unlock(&p->lock);
}

static void ask_driver(cla_stream *s, uint64_t number) { cla__stream_poll(s, number); }

static void wait_for_it(cla_stream *s, uint64_t number) {
  (void)number;
  uint64_t all = cla__stream_submitted(s);
  if (!cla__stream_would_hang(s, all)) cla__stream_wait(s, all);
}

void cla__pool_poll(cla_pool *p) { for_streams(p, ask_driver); }
void cla__pool_wait_streams(cla_pool *p) { for_streams(p, wait_for_it); }

void cla__pool_consolidate(cla_pool *p) {
  cla__pool_flush(p);
  if (p->nstreams < 2 && !p->nobody->parts.fl) return; /* one owner's neighbours have merged already */
  for (cla_segment *g = p->segments; g; g = g->next)
    for (cla_block *b = g->first; b; b = b->next) {
      if (b->state != CLA_BINNED || b->owner == p->nobody || b->freed_at > cla__owner_done(b->owner)) continue;
      cla__owner_unbin(b);
      cla__block_give(b, p->nobody);
      b->freed_at = 0;
      cla_block *before = b->prev;
      bool joins_before = before && before->state == CLA_BINNED && before->owner == p->nobody;
      cla__owner_bin(p->nobody, b);
      if (joins_before) b = before;
    }
}
