/* Segments: memory got from the driver and given back, and the sub-buffers commands use.
 *
 * Assumes that creating a buffer is slow and may fail late: drivers back buffers lazily, so a new segment is migrated
 * to the device and the migration waited for, which shows exhaustion at once (arrayfire#2650). PoCL backs memory at
 * first touch whatever is asked: there the pool's limit is the guard.
 *
 * OpenCL leaves the concurrent use of a buffer and its sub-buffers undefined, so a block that does not fill its
 * segment is used through a sub-buffer in every command. Sub-buffers are made on first use and kept for the next
 * block cut at the same place with the same size. */
#include <stdlib.h>

#include "pool/count.h"

/* ---- From the driver ---- */

typedef struct backing {
  cl_mem mem;
  void *svm;
} backing;

static void backing_release(cla_device *d, backing *b) {
  if (b->mem) cla__release_buffer(d->driver, b->mem);
  if (b->svm) cla__svm_free(d->driver, d->context, b->svm);
  *b = (backing){0};
}

static cla_status backing_commit(cla_device *d, cl_mem mem) {
  cl_event event = NULL;
  cl_int err = cla__enqueue_migrate(d->driver, d->service->queue, mem, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, &event);
  if (err) return cla__driver_error(CLA_CALL_enqueue_migrate, err);
  cl_int state = CL_COMPLETE;
  err = cla__wait_events(d->driver, 1, &event);
  if (err == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
    cla__get_event_info(d->driver, event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
  cla__release_event(d->driver, event);
  if (err && state < 0 && cla__is_out_of_memory(state)) err = state;
  return err ? cla__driver_error(CLA_CALL_wait_events, err) : CLA_OK;
}

static cla_status backing_make(cla_pool *p, size_t nbytes, backing *out) {
  cla_device *d = p->device;
  backing b = {0};
  cl_int err = CL_SUCCESS;
  cl_mem_flags flags = CL_MEM_READ_WRITE;
  if (p->flags & CLA_POOL_SVM) {
    b.svm = cla__svm_alloc(d->driver, d->context, CL_MEM_READ_WRITE, nbytes, 0);
    if (!b.svm) return cla__driver_error(CLA_CALL_svm_alloc, CL_MEM_OBJECT_ALLOCATION_FAILURE);
    if ((uintptr_t)b.svm % d->info.align_bytes) { /* the policy's own alignment counts from there */
      backing_release(d, &b);
      return cla__error(CLA_E_UNSUPPORTED, "%s aligns SVM to less than %zu bytes", d->info.name, d->info.align_bytes);
    }
    flags |= CL_MEM_USE_HOST_PTR; /* a buffer over SVM: every command works on both (OpenCL 2.0, 5.2.1) */
  }
  b.mem = cla__create_buffer(d->driver, d->context, flags, nbytes, b.svm, &err);
  cla_status status = b.mem ? CLA_OK : cla__driver_error(CLA_CALL_create_buffer, err);
  if (!status && !(p->flags & CLA_POOL_NO_COMMIT)) status = backing_commit(d, b.mem);
  if (status) backing_release(d, &b);
  else *out = b;
  return status;
}

/* ---- Into the pool ---- */

static void link_segment(cla_pool *p, cla_segment *g) {
  g->prev = NULL;
  g->next = p->segments;
  if (g->next) g->next->prev = g;
  p->segments = g;
}

static cla_status adopt_backing(cla_pool *p, cla_owner *o, size_t size, size_t nbytes, const backing *from) {
  cla_segment *g = cla__segment_new(p);
  cla_block *b = g ? cla__block_new(p) : NULL;
  cla_status status = b ? cla__table_room(&p->blocks) : cla__error(CLA_E_NOMEM, "no host memory for a segment");
  if (!status) {
    g->stretch = from->svm ? 0 : 1;
    status = from->svm ? cla__map_insert(&g->range, from->svm, size) : cla__map_reserve(&g->range, size << 1);
  }
  if (status) {
    if (b) cla__block_drop(p, b);
    if (g) cla__segment_drop(p, g);
    return status;
  }
  g->size = size;
  g->nbytes = nbytes;
  g->mem = from->mem;
  g->svm = from->svm;
  g->number = p->segment_number++;
  g->first = b;
  link_segment(p, g);
  b->segment = g;
  b->offset = 0;
  b->size = size;
  b->owner = o;
  o->nrefs++;
  cla__table_add(&p->blocks, b);
  p->stats.segments++;
  p->stats.driver_allocs++;
  p->stats.reserved_bytes += size;
  cla__raise_peak(&p->stats.peak_reserved_bytes, p->stats.reserved_bytes);
  cla__raise_cached(p);
  cla__owner_bin(o, b);
  return CLA_OK;
}

cla_status cla__segment_make(cla_pool *p, cla_owner *o, size_t size) {
  size_t most = (size_t)p->device->info.max_alloc, nbytes = size < most ? size : most;
  backing b = {0};
  p->growing += size;
  o->nrefs++; /* kept while the lock is dropped */
  cla__unlock(&p->lock);
  cla_status status = backing_make(p, nbytes, &b);
  cla__lock(&p->lock);
  o->nrefs--;
  p->growing -= size;
  if (status) return status;
  status = cla__pool_live(p);
  if (!status) status = adopt_backing(p, o, size, nbytes, &b);
  if (status) {
    cla__unlock(&p->lock);
    backing_release(p->device, &b);
    cla__lock(&p->lock);
  }
  return status;
}

/* ---- Back to the driver ---- */

cla_segment *cla__segment_releasable(cla_pool *p) {
  cla_block *best = NULL;
  for (cla_owner *o = p->owners; o; o = o->next) {
    cla_block *b = cla__bins_largest(&o->wholes, cla__owner_done(o));
    if (b && !b->segment->pins && (!best || b->size > best->size)) best = b;
  }
  return best ? best->segment : NULL;
}

void cla__segment_unlink(cla_pool *p, cla_segment *g, cla_segment **chain) {
  cla_block *b = g->first;
  cla__owner_unbin(b);
  cla__table_remove(&p->blocks, b);
  b->owner->nrefs--;
  cla__block_drop(p, b);
  g->first = NULL;
  cla__map_remove(&g->range);
  if (g->prev) g->prev->next = g->next;
  else p->segments = g->next;
  if (g->next) g->next->prev = g->prev;
  p->stats.segments--;
  p->stats.driver_frees++;
  p->stats.reserved_bytes -= g->size;
  g->next = *chain;
  *chain = g;
}

static void drop_uses(cla_block *b) {
  for (uint32_t i = 0; i < b->nuses; i++) b->uses[i].owner->nrefs--;
  b->nuses = 0;
}

/* Every block of the segment becomes one free block again, whatever it was: nobody's, in no statistics. */
void cla__segment_clear(cla_pool *p, cla_segment *g) {
  cla_block *b = g->first; /* there is always one */
  do {
    if (b->state == CLA_BINNED) cla__owner_unbin(b);
    if (b->waits_for) cla__owner_unhold(b->waits_for, b);
    drop_uses(b);
    free(b->uses);
    b->uses = NULL;
    b->uses_capacity = 0;
    b->maps = NULL; /* their holders find them gone */
    b->generation = 0;
    b->pins = 0;
    b->state = CLA_ACTIVE; /* in no list */
    cla__block_give(b, p->nobody);
  } while ((b = b->next) != NULL);
  while (g->first->next) cla__block_join(p, g->first);
  g->first->freed_at = 0;
  g->nlive = 0;
  g->pins = 0;
  cla__owner_bin(p->nobody, g->first);
}

void cla__segments_release(cla_pool *p, cla_segment *chain) {
  const cla_driver *driver = p->device->driver;
  for (cla_segment *g = chain; g; g = g->next) {
    for (size_t i = 0; i < g->sub_capacity; i++)
      if (g->subs[i].mem) cla__release_sub_buffer(driver, g->subs[i].mem);
    backing b = {g->mem, g->svm};
    backing_release(p->device, &b);
    g->mem = NULL;
    g->svm = NULL;
  }
  cla__lock(&p->lock);
  while (chain) {
    cla_segment *next = chain->next;
    cla__segment_drop(p, chain);
    chain = next;
  }
  cla__unlock(&p->lock);
}

/* ---- Sub-buffers ---- */

enum {
  SUBS_KEPT = 1024 /* that no live allocation needs, a segment: a loop over this many cuts makes no driver call */
};

static size_t sub_home(const cla_segment *g, size_t offset, size_t size) {
  uint64_t x = (uint64_t)offset * 0x9E3779B97F4A7C15u ^ (uint64_t)size * 0xC2B2AE3D27D4EB4Fu;
  return (size_t)(x >> 32) & (g->sub_capacity - 1);
}

static cla_sub *sub_find(cla_segment *g, size_t offset, size_t size) {
  if (!g->sub_capacity) return NULL;
  for (size_t i = sub_home(g, offset, size);; i = (i + 1) & (g->sub_capacity - 1)) {
    cla_sub *s = &g->subs[i];
    if (!s->mem) return NULL;
    if (s->offset == offset && s->size == size) return s;
  }
}

static void sub_place(cla_segment *g, const cla_sub *s) {
  size_t i = sub_home(g, s->offset, s->size);
  while (g->subs[i].mem) i = (i + 1) & (g->sub_capacity - 1);
  g->subs[i] = *s;
}

static void sub_touch(cla_pool *p, cla_sub *s) {
  s->used_at = ++p->sub_clock;
  s->generation = p->generation;
}

/* A live allocation needs it: it is the allocation's own, or promised. (A held block's generation is gone.) A view's is not
 * needed once its command is enqueued, which the newest always survive: many views of one buffer do not pile up. */
static bool sub_in_use(const cla_pool *p, const cla_segment *g, const cla_sub *s) {
  const cla_block *b = cla__block_at(p, g, s->offset);
  bool is_live = b && (b->state == CLA_ACTIVE || b->state == CLA_HELD) && s->generation >= b->generation;
  return is_live && (s->is_promised || (s->offset == b->offset && s->size == b->size));
}

void cla__segment_promise(cla_segment *g, size_t offset, size_t size) {
  cla_sub *s = sub_find(g, offset, size);
  if (s) s->is_promised = true;
}

static int by_age(const void *a, const void *b) {
  uint64_t x = ((const cla_sub *)a)->used_at, y = ((const cla_sub *)b)->used_at;
  return (x > y) - (x < y);
}

/* Makes the table anew with twice the room, or, when more than SUBS_KEPT lie on dead places, without the older half of
 * those; what is dropped is handed to the caller. Amortised O(1): it takes as many insertions to fill again. */
static cla_status subs_renew(cla_pool *p, cla_segment *g, cla_sub **dropped, size_t *ndropped) {
  cla_sub *dead = malloc((g->nsubs + 1) * sizeof *dead);
  if (!dead) return cla__error(CLA_E_NOMEM, "no host memory for sub-buffers");
  size_t ndead = 0;
  for (size_t i = 0; i < g->sub_capacity; i++)
    if (g->subs[i].mem && !sub_in_use(p, g, &g->subs[i])) dead[ndead++] = g->subs[i];
  size_t ndrop = ndead > SUBS_KEPT ? ndead - SUBS_KEPT / 2 : 0;
  if (ndrop) qsort(dead, ndead, sizeof *dead, by_age);
  size_t keep = g->nsubs - ndrop, capacity = 16;
  while (capacity < keep * 4) capacity *= 2;
  cla_sub *old = g->subs, *fresh = calloc(capacity, sizeof *fresh);
  if (!fresh) {
    free(dead);
    return cla__error(CLA_E_NOMEM, "no host memory for sub-buffers");
  }
  size_t old_capacity = g->sub_capacity;
  uint64_t newest_dropped = ndrop ? dead[ndrop - 1].used_at : 0;
  g->subs = fresh;
  g->sub_capacity = capacity;
  g->nsubs = keep;
  for (size_t i = 0; i < old_capacity; i++) {
    if (!old[i].mem) continue;
    if (ndrop && old[i].used_at <= newest_dropped && !sub_in_use(p, g, &old[i])) continue;
    sub_place(g, &old[i]);
  }
  free(old);
  *dropped = dead;
  *ndropped = ndrop;
  return CLA_OK;
}

cla_status cla__segment_mem(cla_pool *p, cla_segment *g, size_t offset, size_t size, cl_mem *out) {
  if (offset == 0 && size >= g->nbytes) {
    *out = g->mem;
    return CLA_OK;
  }
  cla_sub *known = sub_find(g, offset, size);
  if (known) {
    sub_touch(p, known);
    *out = known->mem;
    return CLA_OK;
  }
  const cla_driver *driver = p->device->driver;
  size_t nbytes = size < g->nbytes - offset ? size : g->nbytes - offset;
  cl_int err = CL_SUCCESS;
  cla__unlock(&p->lock);
  cl_mem mem = cla__create_sub_buffer(driver, g->mem, 0, offset, nbytes, &err);
  cla__lock(&p->lock);
  if (!mem) return cla__driver_error(CLA_CALL_create_sub_buffer, err);
  cla_sub *dropped = NULL;
  size_t ndropped = 0;
  cla_status status = CLA_OK;
  if (g->nsubs * 2 >= g->sub_capacity) status = subs_renew(p, g, &dropped, &ndropped);
  known = status ? NULL : sub_find(g, offset, size); /* another thread may have been quicker */
  if (known) {
    sub_touch(p, known);
    *out = known->mem;
  } else if (!status) {
    cla_sub fresh = {.offset = offset, .size = size, .mem = mem};
    sub_touch(p, &fresh);
    sub_place(g, &fresh);
    g->nsubs++;
    *out = mem;
    mem = NULL;
  }
  if (mem || ndropped) {
    cla__unlock(&p->lock);
    if (mem) cla__release_sub_buffer(driver, mem);
    for (size_t i = 0; i < ndropped; i++) cla__release_sub_buffer(driver, dropped[i].mem);
    cla__lock(&p->lock);
  }
  free(dropped);
  return status;
}
