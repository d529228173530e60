/* A pool's life: made, shared, closed while commands still use its memory, recycled. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/count.h"

/* ---- Life ---- */

static pthread_mutex_t recycled_lock = PTHREAD_MUTEX_INITIALIZER;
static cla_pool *recycled_pools;

enum { GENERATION_BITS = 44 /* 1.7e13 allocations a pool before two pools' generations could meet */ };

static cla_pool *pool_struct(void) {
  static uint64_t pools_made;
  pthread_mutex_lock(&recycled_lock);
  cla_pool *p = recycled_pools;
  if (p) recycled_pools = p->recycled;
  uint64_t id = ++pools_made;
  pthread_mutex_unlock(&recycled_lock);
  if (!p) {
    p = calloc(1, sizeof *p);
    if (!p) return NULL;
  }
  cla__lock(&p->lock);
  p->generation = id << GENERATION_BITS;
  p->is_closed = false;
  atomic_store(&p->users, 1);
  atomic_store(&p->refs, 1);
  cla__unlock(&p->lock);
  return p;
}

/* The struct, its lock and its descriptors stay for ever: stale handles still point there. */
static void pool_recycle(cla_pool *p) {
  cla_device *d = p->is_default ? NULL : p->device;
  const cla_decisions decisions = p->decisions;
  cla__owners_release(p->closed_owners);
  cla__lock(&p->lock);
  free(p->memo);
  p->memo = NULL;
  p->decisions = (cla_decisions){0};
  p->closed_owners = NULL;
  free(p->by_slot);
  free(p->blocks.places);
  p->by_slot = NULL;
  p->nslots = 0;
  p->blocks = (cla_table){0};
  p->device = NULL;
  cla__unlock(&p->lock);
  pthread_mutex_lock(&recycled_lock);
  p->recycled = recycled_pools;
  recycled_pools = p;
  pthread_mutex_unlock(&recycled_lock);
  if (decisions.release) decisions.release(decisions.arg);
  if (d) cla_device_release(d);
}

static cla_status check_policy(const cla_policy *policy) {
  if (!policy->align || (policy->align & (policy->align - 1)))
    return cla__error(CLA_E_INVALID, "pool: an alignment of %zu bytes is no power of two", policy->align);
  if (!policy->grain || policy->grain % policy->align)
    return cla__error(CLA_E_INVALID, "pool: a grain of %zu bytes is no multiple of the alignment, %zu", policy->grain,
                      policy->align);
  if (!policy->growth_share) return cla__error(CLA_E_INVALID, "pool: growth_share is 0");
  return CLA_OK;
}

/* The policy, and what of it the hit path needs to know. */
static cla_status adopt_policy(cla_pool *p, const cla_pool_options *options) {
  const cla_decisions none = {0}, *d = options->decisions ? options->decisions : &none;
  const cla_policy *policy = &options->policy;
  if (d->round) {
    p->memo = calloc(1, sizeof *p->memo);
    if (!p->memo) return cla__error(CLA_E_NOMEM, "no host memory for a pool");
  }
  p->policy = *policy;
  snprintf(p->name, sizeof p->name, "%s", policy->name ? policy->name : "");
  p->policy.name = p->name;
  p->is_plain = policy->caches && !d->fit && !d->split;
  p->has_quick = p->is_plain && !d->keep && policy->keep != CLA_KEEP_NEVER;
  p->is_watched = d->admit || d->note;
  p->chores = !policy->caches || policy->keep == CLA_KEEP_NEVER || d->keep;
  p->decisions = *d;
  if (p->decisions.keep) p->policy.keep = CLA_KEEP_ALWAYS;
  return CLA_OK;
}

size_t cla__pool_default_limit(const cla_pool *p) {
  uint64_t limit = p->device->info.global_mem / 8 * 7;
  return limit > SIZE_MAX ? SIZE_MAX : (size_t)limit;
}

static cla_status pool_new(cla_device *d, const cla_pool_options *options, bool is_default, cla_pool **out) {
  cla_status status = check_policy(&options->policy);
  if (status) return status;
  if ((options->flags & CLA_POOL_SVM) && !d->info.has_svm)
    return cla__error(CLA_E_UNSUPPORTED, "pool: %s has no shared virtual memory", d->info.name);
  cla_pool *p = pool_struct();
  if (!p) return cla__error(CLA_E_NOMEM, "no host memory for a pool");
  p->device = d;
  p->is_default = is_default;
  status = adopt_policy(p, options);
  p->flags = options->flags;
  p->limit = options->limit ? options->limit : cla__pool_default_limit(p);
  p->align = options->policy.align;
  while (p->align < d->info.align_bytes) p->align *= 2;
  if (p->policy.grain < p->align) p->policy.grain = p->align;
  p->align_log2 = (unsigned)__builtin_ctzll(p->align);
  p->round_most = d->info.max_alloc < SIZE_MAX / 2 ? (size_t)d->info.max_alloc : SIZE_MAX / 2;
  if (p->policy.round_to || p->decisions.round) p->round_most = 0;
  p->growing = 0;
  p->segment_number = 0;
  p->stats = (cla_stats){0};
  p->ring = NULL;
  memset(p->live_of_class, 0, sizeof p->live_of_class);
  p->owners = NULL;
  p->nstreams = p->nspoiled = p->nunwanted = p->nundecided = 0;
  p->cuts = 0;
  p->named = NULL;
  if (!is_default) cla_device_retain(d);
  p->closed_owners = NULL;
  p->nobody = status ? NULL : cla__owner_new(p, NULL);
  if (!p->nobody) {
    p->is_closed = true;
    p->decisions.release = NULL;
    pool_recycle(p);
    return cla__error(CLA_E_NOMEM, "no host memory for a pool");
  }
  *out = p;
  return CLA_OK;
}

cla_status cla_pool_create_with(cla_device *d, const cla_pool_options *options, cla_pool **out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !options || !out) return cla__error(CLA_E_INVALID, "pool: no device");
  return pool_new(d, options, false, out);
}

cla_status cla_pool_create(cla_device *d, const cla_policy *policy, cla_pool **out) {
  const cla_pool_options options = {.policy = policy ? *policy : cla_policy_caching()};
  return cla_pool_create_with(d, &options, out);
}

void cla__pool_unref(cla_pool *p) {
  if (atomic_fetch_sub(&p->refs, 1) == 1) pool_recycle(p);
}

static void close_default(cla_pool *p) {
  cla_pool_close(p);
  cla__pool_unref(p);
}

cla_status cla_device_pool(cla_device *d, cla_pool **out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !out) return cla__error(CLA_E_INVALID, "pool: no device");
  pthread_mutex_lock(&d->lock);
  cla_pool *p = d->pool;
  pthread_mutex_unlock(&d->lock);
  if (!p) {
    const cla_pool_options options = {.policy = cla_policy_caching()};
    cla_pool *fresh = NULL;
    status = pool_new(d, &options, true, &fresh);
    if (status) return status;
    pthread_mutex_lock(&d->lock);
    p = d->pool;
    if (!p) {
      p = d->pool = fresh;
      d->pool_closer = close_default;
      fresh = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    if (fresh) close_default(fresh);
  }
  *out = p;
  return CLA_OK;
}

/* A handle to the default pool is a handle to its device. */
void cla_pool_retain(cla_pool *p) {
  if (!p) return;
  if (p->is_default) cla_device_retain(p->device);
  else atomic_fetch_add(&p->users, 1);
}

void cla_pool_release(cla_pool *p) {
  if (!p || cla__driver_forbidden()) return;
  if (p->is_default) {
    cla_device_release(p->device);
    return;
  }
  if (atomic_fetch_sub(&p->users, 1) != 1) return;
  cla_pool_close(p);
  cla__pool_unref(p);
}

/* ---- Closing ---- */

/* What a closed pool leaves behind while queued commands still use it. It keeps neither pool nor device: it would keep the
 * device for ever, if nobody asked any more whether the commands are done. So the device ends with its last handle, and its
 * streams' end is the end of this, at the latest. */
typedef struct wreck {
  cla_device *device;
  cla_pool *pool; /* that the segments' descriptors belong to; it may be recycled meanwhile */
  cla_segment *chain;
  atomic_int waiting; /* streams not done yet */
} wreck;

static void wreck_sink(void *arg) {
  wreck *w = arg;
  if (atomic_fetch_sub(&w->waiting, 1) != 1) return;
  cla__segments_release(w->pool, w->device, w->chain);
  free(w);
}

/* The wreck waits for the commands, or this does, when there is no host memory for that. */
static void wait_for(wreck *w, cla_stream *s, uint64_t number) {
  if (cla__stream_done(s, number)) return;
  atomic_fetch_add(&w->waiting, 1);
  if (!cla__stream_defer(s, number, wreck_sink, w)) return;
  atomic_fetch_sub(&w->waiting, 1);
  cla__stream_wait(s, number);
}

void cla__call_begin(cla_pool *p) {
  p->ncalls++;
  atomic_fetch_add(&p->refs, 1);
}

void cla__call_end(cla_pool *p, cla_stream *s, uint64_t number) {
  cla__lock(&p->lock);
  wreck *w = p->wreck; /* stays while this call does */
  if (w && number) {
    cla__unlock(&p->lock);
    wait_for(w, s, number);
    cla__lock(&p->lock);
  }
  const bool is_last = --p->ncalls == 0;
  w = is_last ? p->wreck : NULL;
  if (is_last) p->wreck = NULL;
  cla__unlock(&p->lock);
  if (w) wreck_sink(w);
  cla__pool_unref(p);
}

/* Without host memory for a wreck the closing thread waits itself. */
static void wait_for_calls(cla_pool *p) {
  cla__lock(&p->lock);
  while (p->ncalls) {
    cla__unlock(&p->lock);
    sched_yield();
    cla__lock(&p->lock);
  }
  cla__unlock(&p->lock);
}

static void close_stats(cla_pool *p) {
  p->stats.active_blocks = p->stats.held_blocks = 0;
  p->stats.active_bytes = p->stats.requested_bytes = p->stats.held_bytes = 0;
}

void cla_pool_close(cla_pool *p) {
  if (!p || cla__driver_forbidden()) return;
  cla__lock(&p->lock);
  bool was_closed = p->is_closed;
  p->is_closed = true;
  cla__unlock(&p->lock);
  if (was_closed) return;
  /* Streams are waited for, but not behind a gate of this thread's: there the memory follows when the gate opens. */
  cla__pool_wait_streams(p);
  cla_segment *chain = NULL;
  cla__lock(&p->lock);
  cla__pool_flush(p);
  while (p->segments) {
    cla__segment_decided(p, p->segments, false);
    cla__segment_clear(p, p->segments);
    cla__segment_unlink(p, p->segments, &chain);
  }
  close_stats(p);
  cla_owner *owners = p->owners;
  p->owners = p->nobody = NULL;
  cla_mapping *left = p->left_maps;
  p->left_maps = NULL;
  cla_ring *ring = p->ring;
  p->ring = NULL;
  p->nstreams = 0;
  for (size_t i = 0; i < p->nslots; i++) p->by_slot[i] = NULL;
  p->closed_owners = owners;
  cla__unlock(&p->lock);
  cla__ring_free(ring);
  cla__maps_end(left);

  wreck *w = malloc(sizeof *w);
  if (!w) wait_for_calls(p);
  if (w) {
    *w = (wreck){.device = p->device, .pool = p, .chain = chain};
    atomic_init(&w->waiting, 1);
    cla__lock(&p->lock);
    if (p->ncalls) p->wreck = w, atomic_fetch_add(&w->waiting, 1);
    cla__unlock(&p->lock);
  }
  for (cla_owner *o = owners; o; o = o->next) {
    if (!o->stream) continue;
    uint64_t number = cla__stream_submitted(o->stream);
    if (w) wait_for(w, o->stream, number);
    else cla__stream_wait(o->stream, number);
  }
  /* Calls of other threads may be under way, outside the lock, and hold on to owners, but not to their streams. */
  for (cla_owner *o = owners; o; o = o->next) {
    cla__lock(&p->lock);
    cla_stream *s = o->stream;
    o->stream = NULL;
    cla__unlock(&p->lock);
    if (s) cla__stream_unhold(s);
  }
  if (w) wreck_sink(w);
  else cla__segments_release(p, p->device, chain);
}
