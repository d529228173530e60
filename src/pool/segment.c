/* Segments: memory got from the driver and given back.
 *
 * Assumes that creating a buffer is slow and may fail late: drivers back buffers lazily, so a new segment is migrated
 * to the device and the migration waited for, which shows exhaustion at once (arrayfire#2650). PoCL backs memory at
 * first touch whatever is asked: there the pool's limit is the guard. */
#include <stdlib.h>

#include "pool/count.h"
#include "pool/tracing.h"

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

/* `mem` has to stay until the command has ended: a wait that fails for another reason says nothing about that. */
static cla_status backing_commit(cla_device *d, cl_mem mem) {
  cl_event event = NULL;
  cl_int err =
      cla__enqueue_migrate(d->driver, d->service->queue, &mem, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, &event);
  if (err) return cla__driver_error(CLA_CALL_enqueue_migrate, err);
  cl_int state = CL_COMPLETE;
  err = cla__wait_events(d->driver, 1, &event);
  if (err == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
    cla__get_event_info(d->driver, event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
  else if (err) cla__finish(d->driver, d->service->queue);
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
  cla__trace_segment(p, CLA_TRACE_SEGMENT_ALLOC, g, o);
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
  cla__trace_segment(p, CLA_TRACE_SEGMENT_FREE, g, b->owner);
  cla__segment_decided(p, g, false);
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

static void leave_maps(cla_pool *p, cla_block *b) {
  for (cla_mapping *next, *m = b->maps; m; m = next) {
    next = m->next;
    if (!m->is_by_address) continue; /* its holder finds it gone */
    m->next = p->left_maps;
    p->left_maps = m;
  }
  b->maps = NULL;
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
    leave_maps(p, b);
    b->sub = NULL;
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

void cla__segments_release(cla_pool *p, cla_device *d, cla_segment *chain) {
  for (cla_segment *g = chain; g; g = g->next) {
    cla__subs_release(d->driver, cla__subs_take_all(g));
    backing b = {g->mem, g->svm};
    backing_release(d, &b);
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
