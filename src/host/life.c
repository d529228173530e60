/* The life of a pinned cache: made, shared as a device's own, closed.
 *
 * A cache is open until it is closed, and there until its last block is gone: blocks that streams may still use, and live
 * allocations, outlast the closing. The device's own cache goes with the device, and takes what nobody freed along. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/host.h"

cla_host_options cla_host_defaults(void) {
  size_t memory = cla__host_machine_memory();
  return (cla_host_options){.kind = CLA_HOST_MAPPED,
                            .power_of_two_up_to = 1 << 20,
                            .steps_up_to = (size_t)256 << 20,
                            .max_cached = memory / 4,
                            .max_block = memory / 4};
}

static cla_lock spare_lock;
static cla_host *spares;

/* All zero, but for the lock of one that was used before: somebody late may hold it just now. */
static cla_host *blank(void) {
  cla__lock(&spare_lock);
  cla_host *c = spares;
  if (c) spares = c->spare;
  cla__unlock(&spare_lock);
  if (c) memset(&c->refs, 0, sizeof *c - offsetof(cla_host, refs));
  return c ? c : calloc(1, sizeof *c);
}

static cla_status check_hooks(const cla_host_hooks *h) {
  if (h->allocate && h->free && h->record && h->query) return CLA_OK;
  return cla__error(CLA_E_INVALID, "host_create: allocate, free, record and query must all be given");
}

static cla_status host_new(cla_device *d, const cla_host_options *options, bool is_default, cla_host **out) {
  cla_host_options o = options ? *options : cla_host_defaults();
  if ((unsigned)o.kind > CLA_HOST_PLAIN) return cla__error(CLA_E_INVALID, "host_create: kind %d", (int)o.kind);
  if (o.power_of_two_up_to > o.steps_up_to)
    return cla__error(CLA_E_INVALID, "host_create: power_of_two_up_to (%zu) is above steps_up_to (%zu)",
                      o.power_of_two_up_to, o.steps_up_to);
  cla_status status = o.hooks ? check_hooks(o.hooks) : CLA_OK;
  if (status) return status;
  cla_host *c = blank();
  if (!c) return cla__error(CLA_E_NOMEM, "no host memory for a cache of pinned memory");
  atomic_store(&c->refs, 1);
  atomic_store(&c->keeps, 1);
  c->is_default = is_default;
  c->device = d;
  c->hooks = o.hooks ? *o.hooks : cla__host_hooks_for(d, o.kind);
  c->options = o;
  c->options.hooks = NULL;
  c->max_cached = o.max_cached;
  c->max_block = o.max_block;
  cla__magazines_fit(c);
  pthread_condattr_t monotonic; /* a wait does not end late when somebody sets the clock */
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&c->sleep_lock, NULL);
  pthread_cond_init(&c->sleep, &monotonic);
  pthread_condattr_destroy(&monotonic);
  if (!is_default) cla_device_retain(d);
  *out = c;
  return CLA_OK;
}

static void drop(cla_host *c) {
  if (atomic_fetch_sub(&c->refs, 1) != 1) return;
  cla__host_waitings_free(c->waitings);
  pthread_mutex_destroy(&c->sleep_lock);
  pthread_cond_destroy(&c->sleep);
  cla__lock(&spare_lock);
  c->spare = spares;
  spares = c;
  cla__unlock(&spare_lock);
}

void cla__host_ref(cla_host *c) {
  atomic_fetch_add(&c->keeps, 1);
  atomic_fetch_add(&c->refs, 1);
}

void cla__host_unref(cla_host *c) {
  cla_device *d = c->is_default ? NULL : c->device;
  bool is_last = atomic_fetch_sub(&c->keeps, 1) == 1;
  drop(c);
  if (is_last && d) cla_device_release(d);
}

void cla__host_linger(cla_host *c, cla_host_block *b) {
  b->lingers = true;
  atomic_fetch_add(&c->refs, 1);
}

void cla__host_unref_block(cla_host *c, bool lingers) {
  if (lingers) drop(c);
  else cla__host_unref(c);
}

/* Pending blocks of a closed cache: the stream itself is waited for, whatever the hooks say, or, behind a gate of this
 * thread's, followed later: when somebody asks the stream, at the latest when it ends. That keeps the cache, but not the
 * device, which would never end if nobody asked any more. */
typedef struct leftover {
  cla_host *cache;
  cla_host_waiting *on;
} leftover;

static void finish_waiting(cla_host *c, cla_host_waiting *w) {
  cla_host_block *chain = NULL;
  cla__lock(&c->lock);
  cla__host_collect(c, w, UINT64_MAX, &chain);
  cla__unlock(&c->lock);
  cla__host_release(c, chain);
}

static void leftover_done(void *arg) {
  leftover *l = arg;
  finish_waiting(l->cache, l->on);
  drop(l->cache);
  free(l);
}

static void follow(cla_host *c, cla_host_waiting *w, uint64_t all) {
  leftover *l = malloc(sizeof *l);
  if (!l) return; /* the memory stays: better than memory that is still written */
  *l = (leftover){c, w};
  atomic_fetch_add(&c->refs, 1);
  if (cla__stream_defer(w->stream, all, leftover_done, l)) {
    atomic_fetch_sub(&c->refs, 1);
    free(l);
  }
}

/* Waits for what the stream still does with the cache's memory, or has it followed; then lets go of the stream. One that does
 * nothing is not followed: that would keep the cache. */
static void close_waiting(cla_host *c, cla_host_waiting *w) {
  cla_stream *s = w->stream;
  uint64_t all = cla__stream_submitted(s);
  cla__lock(&c->lock);
  bool is_used = w->nuses != 0;
  cla__unlock(&c->lock);
  if (!is_used || (!cla__stream_would_hang(s, all) && !cla__stream_wait(s, all))) {
    finish_waiting(c, w);
  } else {
    follow(c, w, all);
  }
  cla__lock(&c->lock);
  w->stream = NULL;
  cla__unlock(&c->lock);
  cla__stream_unhold(s);
}

/* What is pending keeps the device no longer. Holds the lock; the caller lets go of the cache as often as this says. */
static size_t linger_all(cla_host *c) {
  size_t n = 0;
  for (cla_host_block *b = c->youngest; b; b = b->elder)
    if (atomic_load(&b->state) == CLA_HOST_PENDING && !b->lingers) {
      cla__host_linger(c, b);
      n++;
    }
  return n;
}

static void end(cla_host *c) {
  if (atomic_exchange(&c->is_closed, true)) return;
  cla_host_block *chain = NULL;
  cla__background_stop(c);
  cla__lock(&c->lock); /* from now on nothing that becomes free is kept */
  cla__magazines_detach(c, &chain);
  cla__host_drain(c, &chain);
  size_t nlingering = linger_all(c);
  cla_host_waiting *waitings = c->waitings;
  cla__unlock(&c->lock);
  cla__host_release(c, chain);
  for (cla_host_waiting *w = waitings; w; w = w->next) close_waiting(c, w);
  if (c->is_default) cla__host_drop_active(c);
  while (nlingering--) cla__host_unref(c);
  cla__host_unref(c);
}

void cla_host_close(cla_host *c) {
  if (c && !cla__driver_forbidden() && !c->is_default) end(c); /* a device's own goes with the device */
}

cla_status cla_host_create(cla_device *d, const cla_host_options *options, cla_host **out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !out) return cla__error(CLA_E_INVALID, "host_create: no device");
  return host_new(d, options, false, out);
}

cla_status cla_device_host(cla_device *d, cla_host **out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !out) return cla__error(CLA_E_INVALID, "device_host: no device");
  pthread_mutex_lock(&d->lock);
  cla_host *c = d->host;
  pthread_mutex_unlock(&d->lock);
  if (!c) {
    cla_host *fresh = NULL;
    status = host_new(d, NULL, true, &fresh);
    if (status) return status;
    pthread_mutex_lock(&d->lock);
    c = d->host;
    if (!c) {
      c = d->host = fresh;
      d->host_closer = end;
      fresh = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    if (fresh) end(fresh);
  }
  *out = c;
  return CLA_OK;
}
