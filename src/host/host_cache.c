/* The pinned-host cache: allocate, free, record, and what happens to blocks that streams may still use.
 *
 * Assumes that a hook call is slow (pinning) and may fail; no lock is held during one, and it may do anything, closing the
 * cache included. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/host.h"

static cla_status check_open(cla_host *c) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!c) return cla__error(CLA_E_INVALID, "no cache of pinned memory");
  return atomic_load(&c->is_closed) ? cla__error(CLA_E_CLOSED, "the cache of pinned memory is closed") : CLA_OK;
}

/* ---- The hooks, timed ---- */

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void raise(uint64_t *peak, uint64_t now) {
  if (now > *peak) *peak = now;
}

static unsigned histogram(size_t size) { return 63u - (unsigned)__builtin_clzll(size); }

/* Whether memory that a hook gave is somebody's already, or reaches past the end of all addresses. */
static bool is_taken(const char *memory, size_t size) {
  return (uintptr_t)memory > UINTPTR_MAX - size || cla__map_find(memory) || cla__map_find(memory + size - 1);
}

static cla_status ask_for_memory(cla_host *c, size_t size, cla_host_block *b, uint64_t *took) {
  b->memory = b->backing = NULL;
  b->is_pinned = true;
  cla__note("the hook 'allocate' failed for %zu bytes", size); /* unless it says more */
  uint64_t start = now_us();
  cla_status status = c->hooks.allocate(c->hooks.arg, size, &b->memory, &b->backing, &b->is_pinned);
  *took = now_us() - start;
  if (status || !b->memory || !is_taken(b->memory, size)) return status;
  return cla__error(CLA_E_INVALID, "the hook 'allocate' gave memory that is in use: %zu bytes at %p", size, b->memory);
}

/* Memory for a block: pinned, or plain when that fails. */
static cla_status fetch(cla_host *c, size_t size, cla_host_block *b, bool *failed_pin, uint64_t *took) {
  cla_status status = ask_for_memory(c, size, b, took);
  size_t given_back = 0;
  if (status == CLA_E_NOMEM && !cla_host_trim(c, &given_back) &&
      given_back) /* pinned memory is cached in other sizes */
    status = ask_for_memory(c, size, b, took);
  if (!status && b->memory) return CLA_OK;
  if (status && status != CLA_E_NOMEM && status != CLA_E_DRIVER && status != CLA_E_UNSUPPORTED) return status;
  *failed_pin = true;
  b->is_pinned = false;
  b->backing = NULL;
  b->memory = cla__host_plain(CLA_HOST_LEAST, size);
  b->is_fallback = true;
  return b->memory ? CLA_OK : cla__error(CLA_E_NOMEM, "no host memory for %zu bytes, pinned or not", size);
}

/* Makes a block active. Under the lock that `s` lies under, as the end of it is: so a check never meets a block between two
 * states. */
static void activate(cla_host_share *s, cla_host_block *b, size_t nbytes, bool is_hit) {
  atomic_store_explicit(&b->requested, nbytes, memory_order_relaxed);
  cla__host_set_state(b, CLA_HOST_ACTIVE);
  atomic_fetch_add_explicit(&b->life, 2, memory_order_release);
  s->allocs++;
  s->hits += is_hit;
  s->active_blocks++;
  s->active_bytes += (int64_t)b->size;
  s->requested_bytes += (int64_t)nbytes;
}

/* Of two threads that free the same context, one wins; and none where a record came in between. */
static bool deactivate(cla_host_share *s, cla_host_block *b, uint64_t life) {
  if (!atomic_compare_exchange_strong(&b->life, &life, (life | 1) + 1)) return false;
  s->frees++;
  s->active_blocks--;
  s->active_bytes -= (int64_t)b->size;
  s->requested_bytes -= (int64_t)atomic_load_explicit(&b->requested, memory_order_relaxed);
  return true;
}

/* Active bytes as far as known without asking the threads; holds the lock. */
static void note_peak(cla_host *c) {
  int64_t known = (int64_t)c->totals.reserved_bytes - c->share.cached_bytes - (int64_t)c->totals.pending_bytes;
  if (known > 0) raise(&c->totals.peak_active_bytes, (uint64_t)known);
}

static cla_status record_range(const void *address, cla_stream *s) { return cla_host_record(address, NULL, s); }

/* A new block, active for the caller. Called without locks. */
static cla_status make(cla_host *c, size_t size, size_t nbytes, cla_host_block **out) {
  cla_host_block *b = cla__host_block_new(record_range);
  if (!b) return cla__error(CLA_E_NOMEM, "no host memory for a pinned block");
  bool failed_pin = false;
  uint64_t took = 0;
  b->is_fallback = b->lingers = false;
  atomic_store(&b->cache, c);
  b->size = size;
  cla_status status = fetch(c, size, b, &failed_pin, &took);
  if (!status && (status = cla__map_insert(&b->range, b->memory, size)) != CLA_OK) {
    if (b->is_fallback) free(b->memory);
    else c->hooks.free(c->hooks.arg, b->memory, b->backing, size);
  }
  cla__lock(&c->lock);
  c->totals.failed_pins += failed_pin;
  if (!status) {
    cla_host_stats *t = &c->totals;
    t->driver_allocs++;
    t->alloc_us += took;
    raise(&t->longest_alloc_us, took);
    t->reserved_bytes += size;
    t->reserved_blocks++;
    if (!b->is_pinned) t->plain_bytes += size, t->plain_blocks++;
    raise(&t->peak_reserved_bytes, t->reserved_bytes);
    t->classes[histogram(size)]++;
    b->elder = c->youngest;
    b->younger = NULL;
    if (b->elder) b->elder->younger = b;
    c->youngest = b;
    cla__host_ref(c);
    activate(&c->share, b, nbytes, false);
    note_peak(c);
  }
  cla__unlock(&c->lock);
  if (status) cla__host_block_drop(b);
  else *out = b;
  return status;
}

/* Takes a block that is in no list out of the books, and chains it by `after` for release_chain. Holds the lock. */
static void leave(cla_host *c, cla_host_block *b, cla_host_block **chain) {
  cla_host_stats *t = &c->totals;
  cla__host_set_state(b, CLA_HOST_LEAVING);
  t->driver_frees++;
  t->reserved_bytes -= b->size;
  t->reserved_blocks--;
  if (!b->is_pinned) t->plain_bytes -= b->size, t->plain_blocks--;
  t->classes[histogram(b->size)]--;
  if (b->elder) b->elder->younger = b->younger;
  if (b->younger) b->younger->elder = b->elder;
  else c->youngest = b->elder;
  b->after = *chain;
  *chain = b;
}

/* Called without locks; may end a closed cache. */
void cla__host_release(cla_host *c, cla_host_block *chain) {
  for (cla_host_block *next, *b = chain; b; b = next) {
    next = b->after;
    cla__map_remove(&b->range);
    uint64_t start = now_us();
    if (b->is_fallback) free(b->memory);
    else c->hooks.free(c->hooks.arg, b->memory, b->backing, b->size);
    uint64_t took = now_us() - start;
    cla__lock(&c->lock);
    c->totals.free_us += took;
    raise(&c->totals.longest_free_us, took);
    cla__unlock(&c->lock);
    bool lingers = b->lingers;
    cla__host_block_drop(b);
    cla__host_unref_block(c, lingers);
  }
}

/* ---- Bins ---- */

static void bin_put(cla_host *c, cla_host_block *b) {
  cla_host_bin *bin = &c->bins[cla__host_class(b->size)];
  cla__host_set_state(b, CLA_HOST_FREE);
  b->before = NULL;
  b->after = bin->first;
  if (bin->first) bin->first->before = b;
  bin->first = b;
  bin->count++;
  c->share.cached_bytes += (int64_t)b->size;
  c->share.cached_blocks++;
}

static void bin_remove(cla_host *c, cla_host_block *b) {
  cla_host_bin *bin = &c->bins[cla__host_class(b->size)];
  if (b->before) b->before->after = b->after;
  else bin->first = b->after;
  if (b->after) b->after->before = b->before;
  b->before = b->after = NULL;
  bin->count--;
  c->share.cached_bytes -= (int64_t)b->size;
  c->share.cached_blocks--;
  if (!atomic_load_explicit(&c->has_room, memory_order_relaxed)) cla__magazines_fit(c);
}

/* One of just the size, or the smallest that a bounded look in the class finds: a class holds several sizes. */
static cla_host_block *bin_take(cla_host *c, size_t size) {
  enum { LOOK = 16 };
  cla_host_block *best = NULL;
  int look = LOOK;
  for (cla_host_block *b = c->bins[cla__host_class(size)].first; b && look--; b = b->after) {
    if (b->size >= size && (!best || b->size < best->size)) best = b;
    if (b->size == size) break;
  }
  if (best) bin_remove(c, best);
  return best;
}

/* A block that has become free: kept, or chained to go back when a limit says so, or when no context is left to give it out
 * under. Holds the lock. */
void cla__host_keep(cla_host *c, cla_host_block *b, cla_host_block **chain) {
  const size_t most = c->max_cached - c->nmagazines * CLA_MAGAZINE_BYTES, cached = (size_t)c->share.cached_bytes;
  bool fits = b->size <= c->max_block && b->size <= most && cached <= most - b->size;
  if (fits && !atomic_load(&c->is_closed) && !cla__host_is_worn(atomic_load(&b->life))) bin_put(c, b);
  else leave(c, b, chain);
}

/* ---- Allocating ---- */

static bool is_small(size_t size) { return size <= CLA_MAGAZINE_LARGEST; }

/* From the magazine of this thread, or NULL. */
static cla_host_block *quick_alloc(cla_magazine *m, size_t size, size_t nbytes) {
  cla_host_block *b = NULL;
  unsigned class = cla__host_class(size);
  if (!cla__magazine_count(m, class)) return NULL;
  cla__lock(&m->lock);
  unsigned count = cla__magazine_count(m, class);
  if (count && m->classes[class].blocks[count - 1]->size >= size) {
    b = cla__magazine_pop(m, class);
    activate(&m->share, b, nbytes, true);
  }
  cla__unlock(&m->lock);
  return b;
}

static cla_host_block *shared_alloc(cla_host *c, size_t size, size_t nbytes) {
  cla__lock(&c->lock);
  cla_host_block *b = bin_take(c, size);
  if (b) {
    activate(&c->share, b, nbytes, true);
    note_peak(c);
  }
  cla__unlock(&c->lock);
  return b;
}

/* Without memory once more when what is cached in other sizes has gone back, and then when the streams of pending blocks are
 * done, if those blocks may make the difference (pytorch#189504). */
static cla_status grow(cla_host *c, size_t size, size_t nbytes, cla_host_block **out) {
  enum { FIRST, TRIMMED, WAITED, TRIES };
  cla_error_memo before;
  cla__error_keep(&before);
  cla_status status = CLA_E_NOMEM;
  for (int try = FIRST; status == CLA_E_NOMEM && try < TRIES; try++) {
    if (try == WAITED && !cla__host_wait(c, size)) break;
    bool may_hit = cla__host_process(c) || try == WAITED;
    if (may_hit && (*out = shared_alloc(c, size, nbytes)) != NULL) {
      status = CLA_OK;
    } else {
      if (try != FIRST) cla_host_trim(c, NULL);
      status = make(c, size, nbytes, out);
    }
  }
  if (!status) cla__error_restore(&before); /* a pin that failed and was made up for leaves a count, no message */
  return status;
}

static __attribute__((noinline)) cla_status slow_alloc(cla_host *c, size_t size, size_t nbytes, cla_host_block **out) {
  cla__host_ref(c); /* a hook may close the cache */
  cla_status status = grow(c, size, nbytes, out);
  cla__host_unref(c);
  return status;
}

/* Rounding takes no request over what the device gives in one buffer. */
static size_t block_size(const cla_host *c, size_t nbytes) {
  size_t size = cla__host_round(&c->options, nbytes), most = c->device->info.max_alloc;
  if (size <= most || nbytes > most) return size;
  size = (nbytes + CLA_HOST_LEAST - 1) / CLA_HOST_LEAST * CLA_HOST_LEAST;
  return size <= most ? size : nbytes;
}

cla_status cla_host_alloc(cla_host *c, size_t nbytes, void **memory, void **context) {
  cla_status status = CLA_OK;
  if (!c) {
    cla_device *d;
    if ((status = cla_current(&d, NULL)) != CLA_OK || (status = cla_device_host(d, &c)) != CLA_OK) return status;
  }
  status = check_open(c);
  if (status || !c) return status;
  if (!memory || !context) return cla__error(CLA_E_INVALID, "host_alloc: no place for the address or the context");
  size_t size = block_size(c, nbytes);
  if (!size) return cla__error(CLA_E_TOO_LARGE, "%zu bytes of host memory asked: more than can be addressed", nbytes);
  cla_magazine *m = is_small(size) ? cla__magazine_of(c) : NULL;
  cla_host_block *b = m ? quick_alloc(m, size, nbytes) : NULL;
  if (!b) b = shared_alloc(c, size, nbytes);
  if (!b && (status = slow_alloc(c, size, nbytes, &b)) != CLA_OK) return status;
  *memory = b->memory;
  *context = cla__host_context(b, atomic_load_explicit(&b->life, memory_order_relaxed));
  return CLA_OK;
}

/* ---- Freeing ---- */

static cla_status unknown(bool was_issued) {
  return was_issued ? cla__error(CLA_E_FREED, "the pinned allocation is freed already")
                    : cla__error(CLA_E_FOREIGN, "this context was not issued by this library");
}

/* Into the thread's magazine, if it fits and no stream is recorded. */
static bool quick_free(cla_host *c, cla_magazine *m, cla_host_block *b, uint64_t life) {
  unsigned class = cla__host_class(b->size);
  bool freed = false;
  cla__lock(&m->lock);
  if (atomic_load_explicit(&m->cache, memory_order_relaxed) == c &&
      cla__magazine_count(m, class) < CLA_MAGAZINE_BLOCKS &&
      m->share.cached_bytes + (int64_t)b->size <= CLA_MAGAZINE_BYTES && b->size <= c->max_block)
    freed = deactivate(&m->share, b, life);
  if (freed) {
    cla__host_set_state(b, CLA_HOST_FREE);
    cla__magazine_push(m, class, b);
  }
  cla__unlock(&m->lock);
  return freed;
}

/* `life` may be that of before a record. */
static bool shared_free(cla_host *c, cla_host_block *b, uint64_t life) {
  cla_host_block *chain = NULL;
  cla__lock(&c->lock);
  uint64_t now = atomic_load(&b->life);
  bool freed = cla__host_generation(now) == cla__host_generation(life) && deactivate(&c->share, b, now);
  bool wakes = false, lingers = false;
  if (freed && b->nuses) {
    bool is_closed = atomic_load(&c->is_closed);
    cla__host_pend(c, b, &chain);
    wakes = c->options.background && !is_closed;
    lingers = is_closed && b->nuses;
    if (wakes) cla__host_ref(c); /* the block may be gone before we are done, and the cache with it */
    if (lingers) cla__host_linger(c, b);
  } else if (freed) {
    cla__host_keep(c, b, &chain);
  }
  cla__unlock(&c->lock);
  if (wakes) cla__background_wake(c);
  cla__host_release(c, chain); /* may be the last of a closed cache */
  if (wakes || lingers) cla__host_unref(c);
  return freed;
}

cla_status cla_host_free(void *context) {
  cla_status status = cla__alive();
  if (status) return status;
  bool was_issued;
  uint64_t life = 0;
  cla_host_block *b = cla__host_block_of(context, &life, &was_issued);
  if (!b) return unknown(was_issued);
  cla_host *c = atomic_load_explicit(&b->cache, memory_order_relaxed);
  bool is_quick = !cla__host_is_recorded(life) && is_small(b->size) && !cla__host_is_worn(life);
  cla_magazine *m = is_quick ? cla__magazine_of(c) : NULL;
  bool freed = m && quick_free(c, m, b, life);
  if (!freed) freed = shared_free(c, b, life);
  return freed ? CLA_OK : unknown(true);
}

/* ---- Recording ---- */

/* Adds the use, or raises the ticket of one that is there. Holds the lock. */
static cla_status add_use(cla_host *c, cla_host_block *b, uint64_t life, cla_stream *s, uint64_t ticket,
                          cla_host_waiting **gone) {
  for (uint32_t i = 0; i < b->nuses; i++)
    if (b->uses[i].on->stream == s) {
      if (ticket > b->uses[i].ticket) b->uses[i].ticket = ticket;
      return CLA_OK;
    }
  if (b->nuses == b->uses_capacity) {
    uint32_t capacity = b->uses_capacity ? b->uses_capacity * 2 : 2;
    cla_host_use *grown = realloc(b->uses, capacity * sizeof *grown);
    if (!grown) return cla__error(CLA_E_NOMEM, "no host memory to record a stream");
    b->uses = grown;
    b->uses_capacity = capacity;
  }
  cla_host_waiting *w = cla__host_waiting_of(c, s, gone);
  if (!w) return cla__error(CLA_E_NOMEM, "no host memory to record a stream");
  if (!cla__host_is_recorded(life) && !atomic_compare_exchange_strong(&b->life, &life, life | 1)) {
    w->nuses--;
    return unknown(true); /* freed just now, by a thread that does not take the lock */
  }
  b->uses[b->nuses++] = (cla_host_use){w, ticket};
  return CLA_OK;
}

/* Whether a stream's commands can be waited for here. A stream of another device is refused: the cache would have to keep
 * that device, and two caches each other's. */
static cla_status check_stream(cla_host *c, const cla_stream *s) {
  if (atomic_load(&c->is_closed)) return cla__error(CLA_E_CLOSED, "the cache of this pinned allocation is closed");
  if (s->device == c->device) return CLA_OK;
  return cla__error(CLA_E_INVALID, "the stream belongs to %s, the pinned allocation to %s", s->device->info.name,
                    c->device->info.name);
}

cla_host_block *cla__host_block_at(const void *address) {
  cla_range *r = cla__map_find(address);
  return r && r->record == record_range ? r->owner : NULL;
}

cla_host *cla__host_lock_active(cla_host_block *b, const void *context, uint64_t *life) {
  uint64_t before = atomic_load(&b->life);
  if (!cla__host_is_active(before) || (context && cla__host_context(b, before) != context)) return NULL;
  cla_host *c = atomic_load(&b->cache);
  cla__lock(&c->lock);
  *life = atomic_load(&b->life);
  if (cla__host_generation(*life) == cla__host_generation(before)) return c; /* so it was that cache's all the time */
  cla__unlock(&c->lock);
  return NULL;
}

/* The end of a record, when the ticket is known; gives the lock back. */
static cla_status note_use(cla_host *c, cla_host_block *b, uint64_t life, cla_stream *s, uint64_t ticket) {
  cla_host_waiting *gone = NULL;
  cla_status status = check_stream(c, s); /* closed meanwhile? */
  if (!status) status = add_use(c, b, life, s, ticket, &gone);
  if (gone) cla__host_ref(c); /* streams go before their device does */
  cla__unlock(&c->lock);
  if (!gone) return status;
  cla__host_waitings_free(gone);
  cla__host_unref(c);
  return status;
}

/* Gives the lock back while the hook is asked, which may close the stream. */
static cla_status ask_and_note(cla_host *c, cla_host_block *b, uint64_t life, cla_stream *s) {
  uint64_t ticket = 0;
  cla__host_ref(c);
  cla__stream_hold(s);
  cla__unlock(&c->lock);
  cla_status status = check_stream(c, s);
  if (!status && (status = c->hooks.record(c->hooks.arg, s, &ticket)) != CLA_OK)
    cla__note("host_record: the hook 'record' failed: %s", cla_status_name(status));
  if (!status && !cla__host_lock_active(b, cla__host_context(b, life), &life)) status = unknown(true);
  if (!status) status = note_use(c, b, life, s, ticket);
  cla__stream_unhold(s);
  cla__host_unref(c);
  return status;
}

cla_status cla_host_record(const void *address, void *context, cla_stream *s) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!s) return cla__error(CLA_E_INVALID, "host_record: no stream");
  bool was_issued = false;
  uint64_t life = 0, ticket = 0;
  cla_host_block *b = context ? cla__host_block_of(context, &life, &was_issued) : cla__host_block_at(address);
  if (!b && context) return unknown(was_issued);
  if (!b) return cla__error(CLA_E_FOREIGN, "address %p is in no pinned allocation", address);
  cla_host *c = cla__host_lock_active(b, context, &life);
  if (!c) return unknown(true);
  if (!context && (uintptr_t)address - (uintptr_t)b->memory >= b->size) { /* it lives elsewhere by now */
    cla__unlock(&c->lock);
    return unknown(true);
  }
  if (c->hooks.record != cla__host_ticket) return ask_and_note(c, b, life, s);
  cla__host_ticket(NULL, s, &ticket); /* the library's own: no reason to let go of the lock */
  return note_use(c, b, life, s, ticket);
}

cla_status cla__host_expect(void *context, cla_stream *s) {
  bool was_issued = false;
  uint64_t life;
  cla_host_block *b = cla__host_block_of(context, &life, &was_issued);
  cla_host *c = b ? cla__host_lock_active(b, context, &life) : NULL;
  return c ? note_use(c, b, life, s, 0) : unknown(was_issued || b);
}

/* ---- Giving back ---- */

void cla__host_drain(cla_host *c, cla_host_block **chain) {
  cla__magazines_flush(c, chain);
  for (unsigned i = 0; i < CLA_HOST_CLASSES; i++)
    while (c->bins[i].first) {
      cla_host_block *b = c->bins[i].first;
      bin_remove(c, b);
      leave(c, b, chain);
    }
}

cla_status cla__host_enter(cla_host *c) {
  cla_status status = check_open(c);
  if (!status) cla__host_ref(c);
  return status;
}

cla_status cla_host_trim(cla_host *c, size_t *freed) {
  cla_status status = cla__host_enter(c);
  if (status) return status;
  cla_host_block *chain = NULL;
  size_t nbytes = 0;
  cla__host_process(c);
  cla__lock(&c->lock);
  cla__host_drain(c, &chain);
  for (const cla_host_block *b = chain; b; b = b->after) nbytes += b->size;
  cla__unlock(&c->lock);
  cla__host_release(c, chain);
  if (freed) *freed = nbytes;
  cla__host_unref(c);
  return CLA_OK;
}

cla_status cla_host_process_events(cla_host *c) {
  cla_status status = cla__host_enter(c);
  if (status) return status;
  cla__host_process(c);
  cla__host_unref(c);
  return CLA_OK;
}

cla_status cla_host_process_events_for_size(cla_host *c, size_t nbytes) {
  cla_status status = cla__host_enter(c);
  if (status) return status;
  size_t size = block_size(c, nbytes);
  cla_host_block *chain = NULL;
  cla__lock(&c->lock);
  for (cla_host_waiting *w = c->waitings; w && size && !c->bins[cla__host_class(size)].count; w = w->next)
    cla__host_ask(c, w, &chain);
  cla__unlock(&c->lock);
  cla__host_release(c, chain);
  cla__host_unref(c);
  return CLA_OK;
}

/* The device ends: memory that nobody freed goes with it. */
void cla__host_drop_active(cla_host *c) {
  cla_host_block *chain = NULL;
  cla__lock(&c->lock);
  for (cla_host_block *b = c->youngest; b; b = b->elder) {
    uint64_t life = atomic_load(&b->life);
    if (!cla__host_is_active(life) || !deactivate(&c->share, b, life)) continue;
    cla__host_pend(c, b, &chain);
  }
  cla__unlock(&c->lock);
  cla__host_release(c, chain);
}
