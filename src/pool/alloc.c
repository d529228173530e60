/* Allocation: the hit path, what happens on a miss, and the order of steps when memory runs out.
 *
 * A hit takes the pool's lock once, calls no driver and asks no event. A miss asks about the streams that have
 * something to give, then grows. Every step drops the lock before it calls the driver, Lua or a user, and looks in
 * the pool again afterwards, because others may have freed meanwhile and because a step that only prepares memory
 * must not be mistaken for a failure (pytorch#189504). */
#include <stdio.h>

#include "pool/count.h"
#include "pool/tracing.h"

static void activate(cla_pool *p, cla_block *b, size_t nbytes) {
  b->state = CLA_ACTIVE; /* a quick block is QUICK until now */
  b->requested = nbytes;
  b->generation = ++p->generation;
  b->segment->nlive++;
  cla__count_alloc(p, b);
  cla__trace_block(p, CLA_TRACE_ALLOC, b);
}

/* ---- Out of memory ---- */

typedef struct attempt {
  cla_pool *pool;
  cla_owner *owner;
  size_t nbytes, size;
  cla_reclaim reclaim;
  void *arg;
  unsigned tried;   /* bit i: step i of step_names */
  bool has_missed;  /* functions have been asked in vain, ... */
  cla_moment since; /* ... at this moment */
} attempt;

enum step { ADOPT_WAITING, COLLECT, GIVE_BACK, WAIT_HELD, ASK };
static const char *const step_names[] = {"adopting with a wait", "collecting garbage", "giving segments back",
                                         "waiting for streams", "the oom function"};

enum { ASKED_AT_MOST = 8 /* times for one allocation: who says "again" for ever does not hang it */ };

static bool memory_is_short(cla_status status) { return status == CLA_E_LIMIT || status == CLA_E_NOMEM; }

/* Gives wholly free segments back, largest first, until `enough` says so. Holds the lock before and after. */
static void give_back(cla_pool *p, bool (*enough)(const cla_pool *, size_t), size_t need) {
  cla_segment *chain = NULL;
  cla__pool_flush(p);
  for (cla_segment *g; !enough(p, need) && (g = cla__segment_releasable(p)) != NULL;) cla__segment_unlink(p, g, &chain);
  if (!chain) return;
  cla__unlock(&p->lock);
  cla__segments_release(p, p->device, chain);
  cla__lock(&p->lock);
}

static bool below_peak(const cla_pool *p, size_t need) {
  return p->stats.reserved_bytes + p->growing + need <= p->stats.peak_reserved_bytes;
}
static bool one_went(const cla_pool *p, size_t driver_frees) { return p->stats.driver_frees != driver_frees; }

static bool over_limit(const cla_pool *p, size_t need) {
  size_t used = (size_t)p->stats.reserved_bytes + p->growing;
  return used > p->limit || need > p->limit - used;
}

static cla_status at_limit(void) { return cla__error(CLA_E_LIMIT, "the limit is reached"); }

/* Before the high-water mark is raised: what is wholly free goes back, and less is wanted. */
static void stay_below_peak(cla_pool *p, size_t need, size_t *want) {
  if (!below_peak(p, need)) give_back(p, below_peak, need);
  size_t used = (size_t)p->stats.reserved_bytes + p->growing;
  if (!below_peak(p, need) || *want <= p->stats.peak_reserved_bytes - used) return;
  *want = (size_t)(p->stats.peak_reserved_bytes - used) / p->policy.grain * p->policy.grain;
  if (*want < need) *want = need;
}

/* The size wanted, else of whole grains, else of the bare request. */
static cla_status grow_plain(cla_pool *p, cla_owner *o, size_t size, size_t need, size_t want) {
  if (over_limit(p, want)) want = need;
  if (over_limit(p, want)) { /* a whole grain does not fit any more: the request alone may */
    need = want = size;
    if (over_limit(p, want)) return at_limit();
  }
  cla_status status = cla__segment_make(p, o, want);
  if (status == CLA_E_NOMEM && want > need && !over_limit(p, need)) status = cla__segment_make(p, o, need);
  if (status == CLA_E_NOMEM && need > size && !over_limit(p, size)) status = cla__segment_make(p, o, size);
  return status;
}

/* The policy's function says how much, and how much less when that is refused. */
static cla_status grow_asking(const attempt *a, size_t need, size_t want) {
  enum { SIZES_TRIED = 64 };
  cla_pool *p = a->pool;
  cla_status status = CLA_E_LIMIT;
  size_t refused = 0;
  for (int i = 0; i < SIZES_TRIED; i++) {
    size_t n = !refused ? want : refused > need ? need : a->size;
    const cla_request r = cla__request(p, a->nbytes, a->size, a->owner);
    cla_status asked = cla__ask_grow(p, &r, refused, &n);
    if (asked) return asked;
    if (refused && n >= refused) break;
    status = over_limit(p, n) ? at_limit() : cla__segment_make(p, a->owner, n);
    if (!memory_is_short(status)) break;
    refused = n;
  }
  return status;
}

/* A new segment. Holds the lock before and after. */
static cla_status grow(const attempt *a) {
  cla_pool *p = a->pool;
  size_t need, want;
  if (a->size > p->limit) return at_limit(); /* whatever went back: the cache is not spoiled for it */
  cla__policy_grow(p, a->size, &need, &want);
  if (p->policy.keep == CLA_KEEP_PEAK) stay_below_peak(p, need, &want);
  if (p->policy.exclusive && cla__policy_tail(p) > want) want = cla__policy_tail(p);
  if (p->decisions.grow) return grow_asking(a, need, want);
  return grow_plain(p, a->owner, a->size, need, want);
}

/* Looks in the pool. Functions are not asked the same twice. */
static cla_status look(attempt *a, cla_block **out) {
  cla_pool *p = a->pool;
  *out = NULL;
  if (a->has_missed && cla__is_now(p, &a->since)) return CLA_OK;
  cla_status status = cla__choose(p, a->owner, a->nbytes, a->size, out);
  a->has_missed = !p->is_plain && !status && !*out;
  if (a->has_missed) a->since = cla__now(p);
  return status;
}

/* Looks in the pool, then asks the driver. */
static cla_status find_or_grow(attempt *a, cla_block **out) {
  cla_pool *p = a->pool;
  cla_status status = cla__pool_live(p);
  if (!status) status = look(a, out);
  if (status || *out) return status;
  status = grow(a);
  if (status) return status;
  status = cla__choose_fresh(p, a->owner, a->nbytes, a->size, out);
  if (status || *out) return status;
  return cla__error(CLA_E_NOMEM, "another thread took the memory just got");
}

/* Another stream's free block that its commands may still use: ours wait for them. */
static bool adopt_waiting(attempt *a, cla_block **out) {
  cla_pool *p = a->pool;
  for (cla_owner *other = p->owners; other; other = other->next) {
    if (other == a->owner || !other->stream) continue;
    cla__owner_flush(other);
    cla_block *b = cla__choose_of(p, other, a->size, UINT64_MAX);
    if (!b) continue;
    uint64_t number = b->freed_at;
    cla_stream *ours = a->owner->stream, *theirs = other->stream;
    b = cla__take(p, a->owner, b, a->size);
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

/* Asks the scripting layer, then the policy; *again: there may be memory now. What they do leaves no message but their own
 * failure's. */
static cla_status ask_for_help(attempt *a, const cla_request *r, unsigned times, bool *again) {
  cla_error_memo cause;
  cla__error_keep(&cause);
  cla_status asked = CLA_OK;
  *again = ask_reclaim(a, CLA_STAGE_OOM);
  if (!*again && a->pool->decisions.oom) asked = cla__ask_oom(a->pool, r, times, again);
  if (!asked) cla__error_restore(&cause);
  return asked;
}

/* Whoever may know more is asked, and again as long as there is hope. */
static cla_status ask_last(attempt *a, cla_status status, cla_block **out) {
  cla_pool *p = a->pool;
  for (unsigned i = 0; i < ASKED_AT_MOST && memory_is_short(status); i++) {
    const cla_request r = cla__request(p, a->nbytes, a->size, a->owner);
    bool again;
    cla_status asked = ask_for_help(a, &r, i, &again);
    if (asked) return asked;
    if (!again) break;
    a->tried |= 1u << ASK;
    cla__pool_consolidate(p);
    status = give_back_one_by_one(a, find_or_grow(a, out), out);
  }
  return status;
}

/* The steps, in order; after each the pool is looked in again. Holds the lock before and after. */
static cla_status recover(attempt *a, cla_status status, cla_block **out) {
  cla_pool *p = a->pool;
  if (a->size > p->limit) return ask_last(a, status, out); /* nothing but another limit helps */
  if (p->policy.caches) {
    cla__pool_consolidate(p);
    cla_status chosen = look(a, out);
    if (chosen || *out) return chosen;
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
  return ask_last(a, status, out);
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
  cla_status status = CLA_OK;
  *out = NULL;
  if (!p->is_plain) { /* not looked for yet: the streams are asked only if there is nothing at hand */
    status = look(a, out);
    if (status || *out) return status;
  }
  cla__unlock(&p->lock);
  cla__pool_poll(p);
  cla__lock(&p->lock);
  cla__owners_reap(p, &ended);
  if (p->nundecided) cla__ask_keep(p);
  cla__pool_sweep(p, &given);
  status = find_or_grow(a, out);
  if (memory_is_short(status)) {
    status = recover(a, status, out);
    if (!status) p->stats.retries++;
  }
  if (memory_is_short(status)) {
    cla_error_memo cause;
    cla__error_keep(&cause);
    status = report(a, status, cause.text);
  } else if (!status) {
    cla__error_restore(&before);
  }
  cla__unlock(&p->lock);
  cla__owners_release(ended);
  cla__debug_check(p);
  if (given) cla__segments_release(p, p->device, given);
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
  if (!b && p->is_plain && (b = cla__choose_own(p, o, size)) != NULL) b = cla__take(p, o, b, size);
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

/* ---- Policies that are told, and may refuse ---- */

/* Asks `admit` until it agrees. Where it refuses for want of memory, garbage and whoever is asked last may help. */
static cla_status admit(cla_pool *p, size_t nbytes, const cla_stream *s, cla_reclaim reclaim, void *arg) {
  attempt a = {.pool = p, .nbytes = nbytes, .reclaim = reclaim, .arg = arg};
  cla__lock(&p->lock);
  cla_status status = cla__pool_live(p);
  unsigned times = 0;
  for (bool again = !status; again;) {
    cla_request r = cla__request(p, nbytes, nbytes, NULL);
    r.stream = s->id;
    status = cla__ask_admit(p, &r);
    if (!memory_is_short(status)) break;
    if (!(a.tried & 1u << COLLECT)) {
      a.tried |= 1u << COLLECT;
      if (ask_reclaim(&a, CLA_STAGE_COLLECT)) continue;
    }
    if (times == ASKED_AT_MOST) break;
    cla_status asked = ask_for_help(&a, &r, times++, &again);
    if (asked) status = asked;
    if (asked) break;
  }
  if (memory_is_short(status)) p->stats.ooms++;
  cla__unlock(&p->lock);
  return status;
}

static __attribute__((noinline)) cla_status alloc_watched(cla_pool *p, size_t nbytes, cla_stream *s,
                                                          cla_reclaim reclaim, void *arg, cla_handle *out,
                                                          void **address) {
  cla_handle h;
  void *at = NULL;
  cla_status status = p->decisions.admit ? admit(p, nbytes, s, reclaim, arg) : CLA_OK;
  if (!status) status = pool_alloc(p, nbytes, s, reclaim, arg, &h, &at);
  if (status) {
    const cla_note failure = {.what = CLA_NOTE_FAIL, .nbytes = nbytes, .stream = s->id};
    cla_error_memo cause;
    cla__error_keep(&cause);
    cla_status told = cla__tell(p, &failure);
    cla__error_restore(&cause);
    (void)told; /* one failure is enough */
    return status;
  }
  const cla_note note = cla__note_of(CLA_NOTE_ALLOC, &h);
  status = cla__tell(p, &note);
  if (status) {
    cla_error_memo cause;
    cla__error_keep(&cause);
    cla__pool_free_silently(&h);
    cla__error_restore(&cause);
    return status;
  }
  *out = h;
  if (address) *address = at;
  return CLA_OK;
}

cla_status cla__pool_alloc(cla_pool *p, size_t nbytes, cla_stream *s, cla_reclaim reclaim, void *arg, cla_handle *out,
                           void **address) {
  if (p->is_watched) return alloc_watched(p, nbytes, s, reclaim, arg, out, address);
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
  if (p->is_watched) return alloc_watched(p, nbytes, s, NULL, NULL, &h, address);
  return pool_alloc(p, nbytes, s, NULL, NULL, &h, address);
}
