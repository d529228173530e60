/* A few free blocks of each small class for every thread, so that a hit shares nothing with other threads.
 *
 * A thread finds its magazines through thread-local pointers, one a cache; a magazine also hangs in its cache's list, where
 * trims and statistics find it under its own lock. When a thread ends, its blocks go to the bins; when a cache closes, its
 * magazines are emptied and forgotten by their threads the next time they look. Magazines are type-stable. */
#include <stdlib.h>

#include "host/host.h"

enum { PER_THREAD = 8 /* caches a thread uses at a time; more take turns */ };

static cla_lock spare_lock;
static cla_magazine *spares;
static _Thread_local cla_magazine *mine[PER_THREAD];
static _Thread_local unsigned next_place;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end;

static void add_share(cla_host_share *to, const cla_host_share *s) {
  to->allocs += s->allocs;
  to->frees += s->frees;
  to->hits += s->hits;
  to->active_bytes += s->active_bytes;
  to->active_blocks += s->active_blocks;
  to->requested_bytes += s->requested_bytes;
  to->cached_bytes += s->cached_bytes;
  to->cached_blocks += s->cached_blocks;
}

/* Holds the cache's lock and the magazine's. */
static void empty(cla_host *c, cla_magazine *m) {
  for (unsigned i = 0; i < CLA_MAGAZINE_CLASSES; i++)
    while (m->classes[i].count) {
      cla_host_block *b = m->classes[i].blocks[--m->classes[i].count];
      m->share.cached_bytes -= (int64_t)b->size;
      m->share.cached_blocks--;
      cla__host_bin_put(c, b);
    }
  add_share(&c->share, &m->share);
  m->share = (cla_host_share){0};
}

void cla__magazines_lock(cla_host *c) {
  for (cla_magazine *m = c->magazines; m; m = m->next) {
    cla__lock(&m->lock);
    empty(c, m);
  }
}

void cla__magazines_unlock(cla_host *c) {
  for (cla_magazine *m = c->magazines; m; m = m->next) cla__unlock(&m->lock);
}

void cla__magazines_detach(cla_host *c) {
  for (cla_magazine *next, *m = c->magazines; m; m = next) {
    next = m->next;
    cla__lock(&m->lock);
    m->cache = NULL; /* its thread gives it back */
    cla__unlock(&m->lock);
  }
  c->magazines = NULL;
}

/* Takes a magazine from its cache, if it still has one, and keeps it for another. */
static void give_back(cla_magazine *m) {
  cla__lock(&m->lock);
  cla_host *c = m->cache;
  if (c) atomic_fetch_add(&c->refs, 1); /* a cache that has magazines is open */
  cla__unlock(&m->lock);
  if (c) {
    cla__lock(&c->lock);
    cla__lock(&m->lock);
    if (m->cache == c) {
      empty(c, m);
      cla_magazine **link = &c->magazines;
      while (*link != m) link = &(*link)->next;
      *link = m->next;
      m->cache = NULL;
    }
    cla__unlock(&m->lock);
    cla__unlock(&c->lock);
    cla__host_unref(c);
  }
  cla__lock(&spare_lock);
  m->next = spares;
  spares = m;
  cla__unlock(&spare_lock);
}

static void end_of_thread(void *unused) {
  (void)unused;
  if (cla__driver_forbidden()) return;
  for (int i = 0; i < PER_THREAD; i++) {
    if (mine[i]) give_back(mine[i]);
    mine[i] = NULL;
  }
}

static void make_key(void) { pthread_key_create(&thread_end, end_of_thread); }

static cla_magazine *fresh(void) {
  cla__lock(&spare_lock);
  cla_magazine *m = spares;
  if (m) spares = m->next;
  cla__unlock(&spare_lock);
  return m ? m : calloc(1, sizeof *m);
}

static __attribute__((noinline)) cla_magazine *magazine_new(cla_host *c) {
  pthread_once(&once, make_key);
  pthread_setspecific(thread_end, mine); /* any value but NULL: the destructor runs */
  cla_magazine *m = fresh();
  if (!m) return NULL;
  cla_magazine *old = mine[next_place];
  if (old) give_back(old);
  mine[next_place] = m;
  next_place = (next_place + 1) % PER_THREAD;
  cla__lock(&c->lock);
  bool is_open = !atomic_load(&c->is_closed);
  if (is_open) {
    cla__lock(&m->lock);
    atomic_store(&m->cache, c);
    m->next = c->magazines;
    c->magazines = m;
    cla__unlock(&m->lock);
  }
  cla__unlock(&c->lock);
  return is_open ? m : NULL;
}

cla_magazine *cla__magazine_of(cla_host *c) {
  for (int i = 0; i < PER_THREAD; i++)
    if (mine[i] && atomic_load_explicit(&mine[i]->cache, memory_order_relaxed) == c) return mine[i];
  return magazine_new(c);
}
