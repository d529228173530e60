/* Allocation: the hit path, what happens on a miss, and the order of steps when memory runs out.
 *
 * A hit takes the pool's lock once, calls no driver and asks no event. A miss asks about the streams that have
 * something to give, then grows. Every step drops the lock before it calls the driver, Lua or a user, and looks in
 * the pool again afterwards, because others may have freed meanwhile and because a step that only prepares memory
 * must not be mistaken for a failure (pytorch#189504). */
#include <stdio.h>

#include "pool/count.h"
#include "pool/tracing.h"

/* ---- Taking a free block ---- */

static void activate(cla_pool *p, cla_block *b, size_t nbytes) {
  b->state = CLA_ACTIVE; /* a quick block is QUICK until now */
  b->requested = nbytes;
  b->generation = ++p->generation;
  b->segment->nlive++;
  cla__count_alloc(p, b);
  cla__trace_block(p, CLA_TRACE_ALLOC, b);
}

/* A binned block, cut to size, for `o`. What is cut off stays with the owner it came from. */
static cla_block *take(cla_pool *p, cla_owner *o, cla_block *b, size_t size) {
  cla_owner *from = b->owner;
  cla__owner_unbin(b);
  b->state = CLA_ACTIVE; /* in no list, and not live yet: generation is 0 */
  if (cla__policy_may_split(p, b, size)) {
    cla_block *rest = cla__block_split(p, b, size);
    if (rest) cla__owner_bin(from, rest);
  }
  if (from != o) cla__block_give(b, o);
  return b;
}

/* The best of one owner's free blocks that are done up to `done`; blocks beside live ones before whole segments. */
static cla_block *fit(cla_pool *p, const cla_owner *o, size_t size, uint64_t done) {
  size_t most = cla__policy_largest_for(p, size);
  cla_block *part = cla__bins_fit(&o->parts, size, most, done, p->align_log2);
  if (part && part->size == size) return part;
  cla_block *whole = cla__bins_fit(&o->wholes, size, most, done, p->align_log2);
  return part && !(whole && whole->size == size) ? part : whole;
}

static cla_block *find_own(cla_pool *p, cla_owner *o, size_t size) {
  cla_block *b = fit(p, o, size, UINT64_MAX);
  if (o->nquick && !(b && b->size == size)) {
    cla__owner_flush(o);
    b = fit(p, o, size, UINT64_MAX);
  }
  return b;
}

/* Memory that other streams are done with: one bounded look a stream. */
static cla_block *find_adoptable(cla_pool *p, cla_owner *o, size_t size) {
  cla_block *b = fit(p, p->nobody, size, UINT64_MAX);
  if (b || p->nstreams < 2) return b;
  for (cla_owner *other = p->owners; other; other = other->next) {
    if (other == o || !other->stream) continue;
    cla__owner_flush(other);
    b = fit(p, other, size, cla__owner_done(other));
    if (b) return b;
  }
  return NULL;
}

static cla_block *find(cla_pool *p, cla_owner *o, size_t size) {
  if (!p->policy.caches || p->is_closed) return NULL;
  cla_block *b = find_own(p, o, size);
  if (!b) b = find_adoptable(p, o, size);
  return b ? take(p, o, b, size) : NULL;
}

/* ---- Out of memory ---- */

typedef struct attempt {
  cla_pool *pool;
  cla_owner *owner;
  size_t nbytes, size;
  cla_reclaim reclaim;
  void *arg;
  unsigned tried; /* bit i: step i of step_names */
} attempt;

enum step { ADOPT_WAITING, COLLECT, GIVE_BACK, WAIT_HELD, ASK };
static const char *const step_names[] = {"adopting with a wait", "collecting garbage", "giving segments back",
                                         "waiting for streams", "the oom function"};

/* Gives wholly free segments back, largest first, until `enough` says so. Holds the lock before and after. */
static void give_back(cla_pool *p, bool (*enough)(const cla_pool *, size_t), size_t need) {
  cla_segment *chain = NULL;
  cla__pool_flush(p);
  for (cla_segment *g; !enough(p, need) && (g = cla__segment_releasable(p)) != NULL;) cla__segment_unlink(p, g, &chain);
  if (!chain) return;
  cla__unlock(&p->lock);
  cla__segments_release(p, chain);
  cla__lock(&p->lock);
}

static bool below_peak(const cla_pool *p, size_t need) {
  return p->stats.reserved_bytes + p->growing + need <= p->stats.peak_reserved_bytes;
}
static bool one_went(const cla_pool *p, size_t driver_frees) { return p->stats.driver_frees != driver_frees; }

static cla_status over_limit(const cla_pool *p, size_t need) {
  size_t used = (size_t)p->stats.reserved_bytes + p->growing;
  return used > p->limit || need > p->limit - used ? CLA_E_LIMIT : CLA_OK;
}

/* A new segment: of the size wanted, else of whole grains, else of the bare request. Holds the lock before and after. */
static cla_status grow(cla_pool *p, cla_owner *o, size_t size) {
  size_t need, want;
  if (size > p->limit) return CLA_E_LIMIT; /* whatever went back: the cache is not spoiled for it */
  cla__policy_grow(p, size, &need, &want);
  if (p->policy.keeps_peak) {
    if (!below_peak(p, need)) give_back(p, below_peak, need);
    size_t used = (size_t)p->stats.reserved_bytes + p->growing;
    if (below_peak(p, need) && want > p->stats.peak_reserved_bytes - used) {
      want = (size_t)(p->stats.peak_reserved_bytes - used) / p->policy.grain * p->policy.grain;
      if (want < need) want = need;
    }
  }
  if (over_limit(p, want)) want = need;
  if (over_limit(p, want)) { /* a whole grain does not fit any more: the request alone may */
    need = want = size;
    if (over_limit(p, want)) return CLA_E_LIMIT;
  }
  cla_status status = cla__segment_make(p, o, want);
  if (status == CLA_E_NOMEM && want > need && !over_limit(p, need)) status = cla__segment_make(p, o, need);
  if (status == CLA_E_NOMEM && need > size && !over_limit(p, size)) status = cla__segment_make(p, o, size);
  return status;
}

/* Looks in the pool, then asks the driver. */
static cla_status find_or_grow(attempt *a, cla_block **out) {
  cla_pool *p = a->pool;
  cla_status status = cla__pool_live(p);
  if (status) return status;
  if ((*out = find(p, a->owner, a->size)) != NULL) return CLA_OK;
  status = grow(p, a->owner, a->size);
  if (status) return status;
  if (p->policy.caches) {
    *out = find(p, a->owner, a->size);
  } else {
    *out = fit(p, a->owner, a->size, UINT64_MAX);
    if (*out) *out = take(p, a->owner, *out, a->size);
  }
  return *out ? CLA_OK : cla__error(CLA_E_NOMEM, "another thread took the memory just got");
}

/* Another stream's free block that its commands may still use: ours wait for them. */
static bool adopt_waiting(attempt *a, cla_block **out) {
  cla_pool *p = a->pool;
  for (cla_owner *other = p->owners; other; other = other->next) {
    if (other == a->owner || !other->stream) continue;
    cla__owner_flush(other);
    cla_block *b = fit(p, other, a->size, UINT64_MAX);
    if (!b) continue;
    uint64_t number = b->freed_at;
    cla_stream *ours = a->owner->stream, *theirs = other->stream;
    b = take(p, a->owner, b, a->size);
    cla__stream_hold(theirs);
    other->nrefs++;
    cla__unlock(&p->lock);
    cla_status status = cla__stream_order_after(ours, theirs, number);
    cla__stream_unhold(theirs);
    cla__lock(&p->lock);
    other->nrefs--;
    if (p->is_closed) return false; /* the block went with its pool */
    if (!status) {
      *out = b;
      return true;
    }
    cla__block_give(b, other);
    b->freed_at = number;
    cla__owner_bin(other, b);
  }
  return false;
}

static bool ask_reclaim(attempt *a, cla_stage stage) {
  if (!a->reclaim) return false;
  cla__unlock(&a->pool->lock);
  bool any = a->reclaim(a->arg, stage, a->nbytes);
  if (any) cla__pool_poll(a->pool);
  cla__lock(&a->pool->lock);
  return any;
}

static bool memory_is_short(cla_status status) { return status == CLA_E_LIMIT || status == CLA_E_NOMEM; }

static cla_status give_back_one_by_one(attempt *a, cla_status status, cla_block **out) {
  cla_pool *p = a->pool;
  while (memory_is_short(status)) {
    uint64_t frees = p->stats.driver_frees;
    give_back(p, one_went, frees);
    if (frees == p->stats.driver_frees) break;
    status = find_or_grow(a, out);
  }
  return status;
}

/* The steps, in order; after each the pool is looked in again. Holds the lock before and after. */
static cla_status recover(attempt *a, cla_status status, cla_block **out) {
  enum { ASKED_AT_MOST = 8 };
  cla_pool *p = a->pool;
  if (a->size > p->limit) return status;
  if (p->policy.caches) {
    cla__pool_consolidate(p);
    if ((*out = find(p, a->owner, a->size)) != NULL) return CLA_OK;
    if (p->nstreams > 1) {
      a->tried |= 1u << ADOPT_WAITING;
      if (adopt_waiting(a, out)) return CLA_OK;
    }
  }
  if (ask_reclaim(a, CLA_STAGE_COLLECT)) {
    a->tried |= 1u << COLLECT;
    if (!memory_is_short(status = find_or_grow(a, out))) return status;
  }
  a->tried |= 1u << GIVE_BACK;
  status = give_back_one_by_one(a, status, out);
  if (!memory_is_short(status)) return status;
  a->tried |= 1u << WAIT_HELD;
  cla__unlock(&p->lock);
  cla__pool_wait_streams(p);
  cla__lock(&p->lock);
  cla__pool_consolidate(p);
  status = find_or_grow(a, out);
  status = give_back_one_by_one(a, status, out);
  for (int i = 0; i < ASKED_AT_MOST && memory_is_short(status) && a->reclaim; i++) {
    if (!ask_reclaim(a, CLA_STAGE_OOM)) break;
    a->tried |= 1u << ASK;
    cla__pool_consolidate(p);
    status = find_or_grow(a, out);
  }
  return status;
}

static cla_status report(attempt *a, cla_status status, const char *cause) {
  cla_pool *p = a->pool;
  p->stats.ooms++;
  cla__trace_oom(p, a->nbytes, a->owner);
  const cla_stats totals = cla__pool_totals(p), *s = &totals;
  char tried[160] = "";
  size_t used = 0;
  for (unsigned i = 0; i < sizeof step_names / sizeof *step_names; i++)
    if (a->tried >> i & 1 && used < sizeof tried) {
      int n = snprintf(tried + used, sizeof tried - used, "%s%s", used ? ", " : "", step_names[i]);
      used += n > 0 ? (size_t)n : 0;
    }
  return cla__error(status,
                    "out of memory on %s: %zu bytes asked (%zu rounded); active %llu, cached %llu, held %llu, "
                    "reserved %llu of a limit of %zu, largest free block %llu; %s; tried: %s",
                    p->device->info.name, a->nbytes, a->size, (unsigned long long)s->active_bytes,
                    (unsigned long long)s->cached_bytes, (unsigned long long)s->held_bytes,
                    (unsigned long long)s->reserved_bytes, p->limit, (unsigned long long)s->largest_free, cause, tried);
}

/* ---- Allocating ---- */

/* No exact or fitting block at hand. Holds the lock before and after. */
static __attribute__((noinline)) cla_status alloc_slow(attempt *a, cla_block **out) {
  cla_pool *p = a->pool;
  cla_error_memo before;
  cla__error_keep(&before);
  cla_owner *ended = NULL;
  cla_segment *given = NULL;
  cla__unlock(&p->lock);
  cla__pool_poll(p);
  cla__lock(&p->lock);
  cla__owners_reap(p, &ended);
  cla__pool_sweep(p, &given);
  cla_status status = find_or_grow(a, out);
  if (memory_is_short(status)) {
    status = recover(a, status, out);
    if (!status) p->stats.retries++;
  }
  if (memory_is_short(status)) {
    cla_error_memo cause;
    cla__error_keep(&cause);
    status = report(a, status, status == CLA_E_LIMIT ? "the limit is reached" : cause.text);
  } else if (!status) {
    cla__error_restore(&before);
  }
  cla__unlock(&p->lock);
  cla__owners_release(ended);
  cla__debug_check(p);
  if (given) cla__segments_release(p, given);
  cla__lock(&p->lock);
  return status ? status : cla__pool_live(p); /* closed meanwhile, the block went with it */
}

/* Inlined into both of its callers: the hit path is short, and its seven arguments are not. */
static inline __attribute__((always_inline)) cla_status pool_alloc(cla_pool *p, size_t nbytes, cla_stream *s,
                                                                   cla_reclaim reclaim, void *arg, cla_handle *out,
                                                                   void **address) {
  size_t size;
  cla_owner *o = NULL;
  cla_block *b;
  cla__lock(&p->lock);
  cla_status status = cla__pool_live(p);
  if (!status && s->device != p->device)
    status = cla__error(CLA_E_INVALID, "alloc: the stream belongs to %s, the pool to %s", s->device->info.name,
                        p->device->info.name);
  if (!status) status = cla__policy_round(p, nbytes, &size);
  if (!status) status = cla__owner_of(p, s, &o);
  if (status) goto done;
  b = cla__owner_quick(o, size);
  if (!b && p->policy.caches && (b = find_own(p, o, size)) != NULL) b = take(p, o, b, size);
  if (!b) {
    attempt a = {.pool = p, .owner = o, .nbytes = nbytes, .size = size, .reclaim = reclaim, .arg = arg};
    o->nrefs++;
    status = alloc_slow(&a, &b);
    o->nrefs--;
    if (status) goto done;
  }
  activate(p, b, nbytes);
  *out = (cla_handle){p, b, b->generation};
  if (address) *address = cla__block_address(b);
done:
  cla__unlock(&p->lock);
  return status;
}

cla_status cla__pool_alloc(cla_pool *p, size_t nbytes, cla_stream *s, cla_reclaim reclaim, void *arg, cla_handle *out,
                           void **address) {
  return pool_alloc(p, nbytes, s, reclaim, arg, out, address);
}

cla_status cla_alloc(cla_pool *p, size_t nbytes, cla_stream *s, void **address) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!address) return cla__error(CLA_E_INVALID, "alloc: no place for the address");
  if (!s || !p) {
    cla_device *d = p ? p->device : s ? s->device : NULL;
    cla_device *current = NULL;
    cla_stream *stream = NULL;
    if (!d || !s) {
      /* A process that never names a device gets the default one; one that does never opens another. */
      if ((status = cla__current_for(d, &current, &stream)) != CLA_OK) return status;
      if (!d) d = current;
    }
    if (!s) s = stream;
    if (!p && (status = cla_device_pool(d, &p)) != CLA_OK) return status;
  }
  cla_handle h;
  return pool_alloc(p, nbytes, s, NULL, NULL, &h, address);
}
