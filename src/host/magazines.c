/* A few free blocks of each small class for every thread, so that a hit shares nothing with other threads.
 *
 * A thread finds its magazines through thread-local pointers, one a cache; a magazine also hangs in its cache's list, where
 * trims and statistics find it under its own lock. When a thread ends, its blocks go to the bins; when a cache closes, its
 * magazines are emptied and forgotten by their threads the next time they look. All of a cache's may hold half of what the
 * cache may keep: threads that come when that is given out go without. Magazines are type-stable. */
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

cla_host_share cla__host_shares(const cla_host *c) {
  cla_host_share sum = c->share;
  for (const cla_magazine *m = c->magazines; m; m = m->next) add_share(&sum, &m->share);
  return sum;
}

/* Holds the cache's lock and the magazine's. */
static void empty(cla_host *c, cla_magazine *m, cla_host_block **chain) {
  for (unsigned i = 0; m->share.cached_blocks && i < CLA_MAGAZINE_CLASSES; i++)
    while (cla__magazine_count(m, i)) cla__host_keep(c, cla__magazine_pop(m, i), chain);
  add_share(&c->share, &m->share);
  m->share = (cla_host_share){0};
}

void cla__magazines_lock(cla_host *c) {
  for (cla_magazine *m = c->magazines; m; m = m->next) cla__lock(&m->lock);
}

void cla__magazines_unlock(cla_host *c) {
  for (cla_magazine *m = c->magazines; m; m = m->next) cla__unlock(&m->lock);
}

void cla__magazines_flush(cla_host *c, cla_host_block **chain) {
  for (cla_magazine *m = c->magazines; m; m = m->next) {
    cla__lock(&m->lock);
    empty(c, m, chain);
    cla__unlock(&m->lock);
  }
}

void cla__magazines_fit(cla_host *c) {
  uint64_t theirs = ((uint64_t)c->nmagazines + 1) * CLA_MAGAZINE_BYTES, binned = (uint64_t)c->share.cached_bytes;
  bool has_room = theirs <= c->max_cached / 2 && binned <= c->max_cached - theirs && !atomic_load(&c->is_closed);
  atomic_store_explicit(&c->has_room, has_room, memory_order_relaxed);
}

/* `link` leads to the magazine in the cache's list. Holds both locks; afterwards nothing gets into the magazine. */
static void take_out(cla_host *c, cla_magazine **link, cla_host_block **chain) {
  cla_magazine *m = *link;
  *link = m->next;
  c->nmagazines--;
  empty(c, m, chain);
  atomic_store(&m->cache, NULL);
  cla__magazines_fit(c);
}

void cla__magazines_detach(cla_host *c, cla_host_block **chain) {
  while (c->magazines) {
    cla_magazine *m = c->magazines;
    cla__lock(&m->lock);
    take_out(c, &c->magazines, chain); /* its thread gives it back */
    cla__unlock(&m->lock);
  }
}

/* Takes a magazine from its cache, if it still has one, and keeps it for another. */
static void give_back(cla_magazine *m) {
  cla__lock(&m->lock);
  cla_host *c = m->cache;
  if (c) cla__host_ref(c); /* a cache that has magazines is open */
  cla__unlock(&m->lock);
  if (c) {
    cla_host_block *chain = NULL;
    cla__lock(&c->lock);
    cla__lock(&m->lock);
    cla_magazine **link = &c->magazines;
    while (*link && *link != m) link = &(*link)->next;
    if (*link) take_out(c, link, &chain);
    cla__unlock(&m->lock);
    cla__unlock(&c->lock);
    cla__host_release(c, chain);
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
    cla_magazine *m = mine[i];
    mine[i] = NULL; /* first: a hook may come here again */
    if (m) give_back(m);
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

/* Where this thread keeps a new magazine: in place of one that has lost its cache, or else of each in turn. */
static cla_magazine **place(void) {
  for (int i = 0; i < PER_THREAD; i++)
    if (!mine[i] || !atomic_load_explicit(&mine[i]->cache, memory_order_relaxed)) return &mine[i];
  next_place = (next_place + 1) % PER_THREAD;
  return &mine[next_place];
}

static __attribute__((noinline)) cla_magazine *magazine_new(cla_host *c) {
  pthread_once(&once, make_key);
  if (pthread_setspecific(thread_end, mine)) return NULL; /* any value but NULL: the destructor runs */
  cla_magazine **at = place(), *old = *at;
  *at = NULL;
  if (old) give_back(old);
  at = place(); /* again: a hook may have taken it */
  cla_magazine *m = *at ? NULL : fresh();
  if (!m) return NULL;
  cla__lock(&c->lock);
  cla__magazines_fit(c);
  bool has_room = atomic_load_explicit(&c->has_room, memory_order_relaxed);
  if (has_room) {
    cla__lock(&m->lock);
    atomic_store(&m->cache, c);
    m->next = c->magazines;
    c->magazines = m;
    c->nmagazines++;
    cla__magazines_fit(c);
    cla__unlock(&m->lock);
  }
  cla__unlock(&c->lock);
  *at = m;
  return has_room ? m : NULL;
}

cla_magazine *cla__magazine_of(cla_host *c) {
  for (int i = 0; i < PER_THREAD; i++)
    if (mine[i] && atomic_load_explicit(&mine[i]->cache, memory_order_relaxed) == c) return mine[i];
  return atomic_load_explicit(&c->has_room, memory_order_relaxed) ? magazine_new(c) : NULL;
}
