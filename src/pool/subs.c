/* The sub-buffers through which commands use blocks.
 *
 * OpenCL leaves the concurrent use of a buffer and its sub-buffers undefined, so a block that does not fill its segment is
 * used through a sub-buffer in every command. It is made on first use and kept for the next block that is cut at the same
 * place with the same size: loose, while no such block lives.
 *
 * NVIDIA's driver (580, H200) crashes when a sub-buffer is released before a later one that overlaps it, also in a program
 * of fifty lines without this library; released newest first, any overlap is borne. So one that lies under a
 * later one is never dropped here, whatever the driver. Where the order matters (device->subs_are_ordered), making and
 * dropping are one step at a time, whatever overlaps a new one goes first if it can, and only kernel arguments are made of
 * them: that driver keeps the order between a buffer and its sub-buffers. For other drivers only what overlaps in part
 * goes first: PoCL has shown stale contents through such pairs (pocl#1969). */
#include <stdlib.h>
#include <string.h>

#include "pool/pool.h"

enum {
  LOOSE_KEPT = 1024, /* a segment: a loop over this many cuts makes no driver call */
  LOOSE_LOOKS = 16   /* at those beyond, from either end, each time one is made */
};

/* ---- The hash ---- */

static cla_sub **chain_of(const cla_segment *g, size_t offset, size_t size) {
  uint64_t x = (uint64_t)offset * 0x9E3779B97F4A7C15u ^ (uint64_t)size * 0xC2B2AE3D27D4EB4Fu;
  return &g->subs[(size_t)(x >> 32) & (g->sub_capacity - 1)];
}

static cla_sub *find(const cla_segment *g, size_t offset, size_t size) {
  if (!g->sub_capacity) return NULL;
  cla_sub *s = *chain_of(g, offset, size);
  while (s && (s->offset != offset || s->size != size)) s = s->chain;
  return s;
}

static bool make_room(cla_segment *g) {
  if (g->nsubs < g->sub_capacity) return true;
  cla_sub **old = g->subs;
  size_t n = g->sub_capacity, capacity = n ? n * 2 : 16;
  cla_sub **grown = calloc(capacity, sizeof *grown);
  if (!grown) return n != 0; /* longer chains do as well */
  g->subs = grown;
  g->sub_capacity = capacity;
  for (size_t i = 0; i < n; i++)
    for (cla_sub *next, *s = old[i]; s; s = next) {
      next = s->chain;
      cla_sub **chain = chain_of(g, s->offset, s->size);
      s->chain = *chain;
      *chain = s;
    }
  free(old);
  return true;
}

static void insert(cla_segment *g, cla_sub *s) {
  cla_sub **chain = chain_of(g, s->offset, s->size);
  s->chain = *chain;
  *chain = s;
  s->newer = NULL;
  s->older = g->newest;
  if (g->newest) g->newest->newer = s;
  g->newest = s;
  g->nsubs++;
}

/* ---- Loose ones ---- */

static void loosen(cla_segment *g, cla_sub *s) {
  s->is_loose = true;
  s->after = NULL;
  s->before = g->loose_last;
  if (g->loose_last) g->loose_last->after = s;
  else g->loose_first = s;
  g->loose_last = s;
  g->nloose++;
}

static void tighten(cla_segment *g, cla_sub *s) {
  if (s->before) s->before->after = s->after;
  else g->loose_first = s->after;
  if (s->after) s->after->before = s->before;
  else g->loose_last = s->before;
  s->is_loose = false;
  g->nloose--;
}

void cla__sub_loosen(cla_block *b) {
  loosen(b->segment, b->sub);
  b->sub = NULL;
}

static bool overlaps(const cla_sub *s, size_t offset, size_t end) {
  return s->offset < end && offset < s->offset + s->size;
}

static bool is_under_newer(const cla_sub *s) {
  for (const cla_sub *n = s->newer; n; n = n->newer)
    if (overlaps(n, s->offset, s->offset + s->size)) return true;
  return false;
}

/* Of a loose one. */
static bool may_drop(const cla_pool *p, const cla_segment *g, const cla_sub *s) {
  if (s->pins || is_under_newer(s)) return false;
  return !s->promised_to || cla__block_at(p, g, s->offset)->generation != s->promised_to;
}

/* Takes a loose one out of the segment, to the end of a chain to be released. */
static void drop(cla_segment *g, cla_sub *s, cla_sub **chain) {
  tighten(g, s);
  cla_sub **link = chain_of(g, s->offset, s->size);
  while (*link != s) link = &(*link)->chain;
  *link = s->chain;
  if (s->newer) s->newer->older = s->older;
  else g->newest = s->older;
  if (s->older) s->older->newer = s->newer;
  g->nsubs--;
  s->chain = NULL;
  while (*chain) chain = &(*chain)->chain;
  *chain = s;
}

static bool is_in_the_way(const cla_pool *p, const cla_sub *s, size_t offset, size_t end) {
  size_t s_end = s->offset + s->size;
  bool inside = s->offset >= offset && s_end <= end, around = s->offset <= offset && s_end >= end;
  return overlaps(s, offset, end) && (p->device->subs_are_ordered || (!inside && !around));
}

/* Drops what is in the way of a new one and may go. The last used are looked at first: they lie on top. */
static void clear_the_way(const cla_pool *p, cla_segment *g, size_t offset, size_t size, cla_sub **chain) {
  for (cla_sub *next, *s = g->loose_last; s; s = next) {
    next = s->before;
    if (is_in_the_way(p, s, offset, offset + size) && may_drop(p, g, s)) drop(g, s, chain);
  }
}

/* Makes room for one more: the oldest go, or else those made last, on which no others lie. What may not go is looked at
 * again when the others have been. */
static void drop_surplus(const cla_pool *p, cla_segment *g, cla_sub **chain) {
  for (int looks = 0; g->nloose >= LOOSE_KEPT && looks < LOOSE_LOOKS; looks++) {
    cla_sub *s = g->loose_first;
    if (may_drop(p, g, s)) {
      drop(g, s, chain);
    } else {
      tighten(g, s);
      loosen(g, s);
    }
  }
  cla_sub *next, *s = g->newest;
  for (int looks = 0; g->nloose >= LOOSE_KEPT && looks < LOOSE_LOOKS && s; looks++, s = next) {
    next = s->older;
    if (s->is_loose && may_drop(p, g, s)) drop(g, s, chain);
  }
}

void cla__subs_release(const cla_driver *driver, cla_sub *chain) {
  while (chain) {
    cla_sub *next = chain->chain;
    cla__release_sub_buffer(driver, chain->mem);
    free(chain);
    chain = next;
  }
}

cla_sub *cla__subs_take_all(cla_segment *g) {
  cla_sub *all = g->newest;
  for (cla_sub *s = all; s; s = s->older) s->chain = s->older;
  free(g->subs);
  g->subs = NULL;
  g->nsubs = g->sub_capacity = g->nloose = 0;
  g->newest = g->loose_first = g->loose_last = NULL;
  return all;
}

/* ---- Getting one ---- */

static cla_sub *use(cla_segment *g, cla_block *b, cla_sub *s) {
  if (s->is_loose) tighten(g, s);
  if (s->offset == b->offset && s->size == b->size && b->generation) b->sub = s;
  else loosen(g, s); /* a view's: the most recently used again */
  s->pins++;
  return s;
}

/* A new one, without the lock; what is in the way is released first. */
static cl_mem create(cla_pool *p, const cla_segment *g, size_t offset, size_t size, cla_sub *dropped, cl_int *err) {
  const cla_driver *driver = p->device->driver;
  size_t nbytes = size < g->nbytes - offset ? size : g->nbytes - offset;
  cla__subs_release(driver, dropped);
  return cla__create_sub_buffer(driver, g->mem, 0, offset, nbytes, err);
}

static cla_status make_new(cla_pool *p, cla_block *b, size_t offset, size_t size, cla_sub **out) {
  cla_segment *g = b->segment;
  cla_sub *dropped = NULL, *fresh = malloc(sizeof *fresh);
  if (!fresh || !make_room(g)) {
    free(fresh);
    return cla__error(CLA_E_NOMEM, "no host memory for a sub-buffer");
  }
  *fresh = (cla_sub){.offset = offset, .size = size};
  clear_the_way(p, g, offset, size, &dropped);
  drop_surplus(p, g, &dropped);
  cl_int err = CL_SUCCESS;
  cla__unlock(&p->lock);
  fresh->mem = create(p, g, offset, size, dropped, &err);
  cla__lock(&p->lock);
  if (!fresh->mem) {
    free(fresh);
    return cla__driver_error(CLA_CALL_create_sub_buffer, err);
  }
  const cla_status status = cla__pool_live(p);
  cla_sub *known = status ? NULL : find(g, offset, size); /* another thread may have been quicker */
  const bool is_new = !status && !known;
  if (is_new) insert(g, fresh);
  if (!status) *out = use(g, b, known ? known : fresh);
  if (!is_new) {
    cla__unlock(&p->lock);
    cla__subs_release(p->device->driver, fresh);
    cla__lock(&p->lock);
  }
  return status;
}

/* Where the order matters, one thread at a time goes through what it drops and what it makes: the device's `subs_lock`
 * is the one lock that is held while a driver is called. Nothing but the driver runs under it. */
static cla_status make(cla_pool *p, cla_block *b, size_t offset, size_t size, cla_sub **out) {
  if (!p->device->subs_are_ordered) return make_new(p, b, offset, size, out);
  cla__unlock(&p->lock);
  pthread_mutex_lock(&p->device->subs_lock);
  cla__lock(&p->lock);
  cla_status status = cla__pool_live(p);
  cla_sub *known = status ? NULL : find(b->segment, offset, size);
  if (known) *out = use(b->segment, b, known);
  if (!status && !known) status = make_new(p, b, offset, size, out);
  pthread_mutex_unlock(&p->device->subs_lock);
  return status;
}

cla_status cla__sub_get(cla_pool *p, cla_block *b, size_t offset, size_t size, cla_sub **sub, cl_mem *out) {
  cla_segment *g = b->segment;
  *sub = NULL;
  if (offset == 0 && size >= g->nbytes) {
    *out = g->mem;
    return CLA_OK;
  }
  if (b->sub && offset == b->offset && size == b->size) {
    *sub = b->sub;
    b->sub->pins++;
  } else {
    cla_sub *known = find(g, offset, size);
    if (known) *sub = use(g, b, known);
  }
  cla_status status = *sub ? CLA_OK : make(p, b, offset, size, sub);
  if (!status) *out = (*sub)->mem;
  return status;
}
