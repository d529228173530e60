/* Commands on allocations: reads, writes, copies, fills and maps, each a real transfer.
 *
 * A command pins what it uses while it is being enqueued, then records itself there: the memory is not reused before
 * it is done, whatever is freed meanwhile. Commands go through a block's sub-buffer or, where those
 * are delicate, the segment's buffer (see subs.c); offsets are added in the command, so any byte offset works, but for
 * kernel arguments. */
#include <stdlib.h>
#include <string.h>

#include "pool/count.h"

/* ---- Pins ---- */

static cla_status check_range(const cla_block *b, size_t offset, size_t nbytes) {
  if (offset <= b->requested && nbytes <= b->requested - offset) return CLA_OK;
  return cla__error(CLA_E_BOUNDS, "%zu bytes at offset %zu reach outside an allocation of %zu bytes", nbytes, offset,
                    b->requested);
}

static cla_status check_alignment(const cla_pool *p, const cla_block *b, size_t offset) {
  size_t align = p->device->info.align_bytes;
  if ((b->offset + offset) % align == 0) return CLA_OK;
  return cla__error(CLA_E_UNSUPPORTED, "offset %zu is no multiple of %zu, the alignment %s asks of kernel arguments",
                    offset, align, p->device->info.name);
}

cla_status cla__pin(const cla_handle *h, size_t offset, size_t nbytes, bool for_kernel, cla_pin *out) {
  cla_pool *p = h->pool;
  cla_block *b = h->block;
  cla__lock(&p->lock);
  cla__call_begin(p);
  cla_status status = cla__handle_check_locked(h);
  if (!status) status = check_range(b, offset, nbytes);
  const bool is_part =
      for_kernel && offset && nbytes; /* an empty view stands for the allocation: it may lie at its end */
  if (!status && is_part) status = check_alignment(p, b, offset);
  if (!status) {
    cla_segment *g = b->segment;
    size_t start = b->offset, size = b->size;
    if (is_part) start += offset, size = nbytes;
    b->pins++;
    g->pins++;
    const bool takes_parent = !for_kernel && p->device->subs_are_ordered;
    if (takes_parent) out->mem = g->mem, out->sub = NULL;
    else status = cla__sub_get(p, b, start, size, &out->sub, &out->mem);
    if (status && !p->is_closed) {
      g->pins--;
      b->pins--;
      if (b->state == CLA_HELD) cla__pool_settle(p, b);
    } else if (!status) {
      atomic_fetch_add(&p->refs, 1);
      out->is_call = true;
      out->handle = *h;
      out->offset = for_kernel ? 0 : takes_parent ? b->offset + offset : offset;
    }
  }
  cla__unlock(&p->lock);
  if (status) cla__call_end(p, NULL, 0);
  return status;
}

void cla__unpin(const cla_pin *pin, cla_stream *s, uint64_t number) {
  cla_pool *p = pin->handle.pool;
  cla_block *b = pin->handle.block;
  cla_error_memo memo;
  cla__lock(&p->lock);
  if (!p->is_closed) {
    cla__error_keep(&memo);
    if (number && cla__pool_record(p, b, s, number)) { /* no host memory for the note: be done with it instead */
      cla__unlock(&p->lock);
      cla__stream_wait(s, number);
      cla__lock(&p->lock);
      cla__error_restore(&memo);
    }
  }
  if (!p->is_closed) {
    if (pin->sub) pin->sub->pins--;
    b->pins--;
    b->segment->pins--;
    if (b->state == CLA_HELD) cla__pool_settle(p, b);
  }
  const bool is_over = pin->is_call && !p->wreck; /* the usual end, without another turn of the lock */
  if (is_over) p->ncalls--;
  cla__unlock(&p->lock);
  if (is_over) cla__pool_unref(p);
  else if (pin->is_call) cla__call_end(p, s, number);
  cla__pool_unref(p);
}

cla_status cla__enqueue_failed(const cla_pin *pin, cla_call call, cl_int code) {
  if (code != CL_MEM_OBJECT_ALLOCATION_FAILURE) return cla__driver_error(call, code);
  cla_pool *p = pin->handle.pool;
  cla__lock(&p->lock);
  size_t requested = pin->handle.block->requested;
  if (!p->is_closed) cla__segment_spoil(p, pin->handle.block->segment);
  cla__unlock(&p->lock);
  return cla__error(CLA_E_NOMEM, "%s failed: %s (%d): the driver cannot back the allocation of %zu bytes it promised",
                    cla__call_name(call), cla__cl_name(code), (int)code, requested);
}

/* ---- Enqueuing ---- */

/* `seen`: what is in the queue before the command. */
static cla_status before(const cla_order *o, uint64_t *seen) {
  if (o->blocking && cla__stream_would_hang(o->stream, UINT64_MAX)) return cla__stream_busy(o->stream);
  cla__stream_before(o->stream);
  *seen = cla__stream_submitted(o->stream);
  return CLA_OK;
}

/* The command with this number has been waited for, so what it saw is complete. A number between the two is another
 * thread's, whose command may have come into the queue after ours and is not. */
static void waited_for(const cla_order *o, uint64_t seen, uint64_t number) {
  cla__stream_reached(o->stream, number == seen + 1 ? number : seen);
}

/* After an enqueue that went well: its number; what a blocking one waited for is known complete. */
static uint64_t after(const cla_order *o, uint64_t seen) {
  uint64_t number = cla__stream_after(o->stream);
  if (o->blocking) waited_for(o, seen, number);
  return number;
}

static cla_status check_stream(const cla_handle *h, const cla_order *o) {
  if (o->stream->device == h->pool->device) return CLA_OK;
  cla_status status = cla__handle_check(h);
  if (status) return status;
  return cla__error(CLA_E_INVALID, "the stream belongs to %s, the memory to %s", o->stream->device->info.name,
                    h->pool->device->info.name);
}

/* Nothing to do, but the event and the waits that were asked for. */
static cla_status empty_command(const cla_order *o) {
  if (!o->out && !o->nwait) return CLA_OK;
  uint64_t seen;
  cla_status status = before(o, &seen);
  if (status) return status;
  cl_int err = cla__enqueue_marker(o->stream->device->driver, o->stream->queue, o->nwait, o->wait, o->out);
  if (err) return cla__driver_error(CLA_CALL_enqueue_marker, err);
  uint64_t number = cla__stream_after(o->stream);
  return o->blocking ? cla__stream_wait(o->stream, number) : CLA_OK;
}

static void finish_order(const cla_order *o) {
  if (o->out) cla__flush(o->stream->device->driver, o->stream->queue);
}

/* What the four transfers have in common: `enqueue` gets the pinned memory of the one or two ends. */
typedef struct transfer {
  const void *from; /* host memory, or the pattern of a fill */
  void *to;
  size_t nbytes, pattern_size;
} transfer;
typedef cl_int (*enqueuer)(const cla_order *, const cla_pin *, const cla_pin *, const transfer *);

static cla_status one_end(const cla_handle *h, size_t offset, const transfer *t, const cla_order *o, cla_call call,
                          enqueuer enqueue) {
  cla_pin pin;
  cla_status status = check_stream(h, o);
  if (!status) status = cla__pin(h, offset, t->nbytes, false, &pin);
  if (status) return status;
  uint64_t number = 0, seen;
  if (!t->nbytes) {
    status = empty_command(o);
  } else if (!(status = before(o, &seen))) {
    cl_int err = enqueue(o, &pin, NULL, t);
    if (err) status = cla__enqueue_failed(&pin, call, err);
    else number = after(o, seen);
  }
  cla__unpin(&pin, o->stream, number);
  if (!status) finish_order(o);
  return status;
}

static cl_int enqueue_write(const cla_order *o, const cla_pin *to, const cla_pin *none, const transfer *t) {
  (void)none;
  return cla__enqueue_write(o->stream->device->driver, o->stream->queue, to->mem, o->blocking, to->offset, t->nbytes,
                            t->from, o->nwait, o->wait, o->out);
}
static cl_int enqueue_read(const cla_order *o, const cla_pin *from, const cla_pin *none, const transfer *t) {
  (void)none;
  return cla__enqueue_read(o->stream->device->driver, o->stream->queue, from->mem, o->blocking, from->offset, t->nbytes,
                           t->to, o->nwait, o->wait, o->out);
}
static cl_int enqueue_fill(const cla_order *o, const cla_pin *to, const cla_pin *none, const transfer *t) {
  (void)none;
  return cla__enqueue_fill(o->stream->device->driver, o->stream->queue, to->mem, t->from, t->pattern_size, to->offset,
                           t->nbytes, o->nwait, o->wait, o->out);
}
static cl_int enqueue_copy(const cla_order *o, const cla_pin *to, const cla_pin *from, const transfer *t) {
  return cla__enqueue_copy(o->stream->device->driver, o->stream->queue, from->mem, to->mem, from->offset, to->offset,
                           t->nbytes, o->nwait, o->wait, o->out);
}

cla_status cla__write(const cla_handle *h, size_t offset, const void *from, size_t nbytes, const cla_order *o) {
  const transfer t = {.from = from, .nbytes = nbytes};
  return one_end(h, offset, &t, o, CLA_CALL_enqueue_write, enqueue_write);
}

cla_status cla__read(const cla_handle *h, size_t offset, void *to, size_t nbytes, const cla_order *o) {
  const transfer t = {.to = to, .nbytes = nbytes};
  return one_end(h, offset, &t, o, CLA_CALL_enqueue_read, enqueue_read);
}

cla_status cla__fill(const cla_handle *h, size_t offset, const void *pattern, size_t pattern_size, size_t nbytes,
                     const cla_order *o) {
  if (pattern_size == 0 || pattern_size > 16 || (pattern_size & (pattern_size - 1)))
    return cla__error(CLA_E_INVALID, "fill: a pattern of %zu bytes; it must have 1, 2, 4, 8 or 16", pattern_size);
  if (nbytes % pattern_size || offset % pattern_size)
    return cla__error(CLA_E_INVALID, "fill: %zu bytes at offset %zu are no multiples of the pattern's %zu bytes",
                      nbytes, offset, pattern_size);
  const transfer t = {.from = pattern, .pattern_size = pattern_size, .nbytes = nbytes};
  /* The driver's fill never blocks: it is waited for here. */
  uint64_t seen;
  cla_order order = *o;
  cla_status status = o->blocking ? before(o, &seen) : CLA_OK;
  order.blocking = false;
  if (!status) status = one_end(h, offset, &t, &order, CLA_CALL_enqueue_fill, enqueue_fill);
  if (status || !o->blocking || (!nbytes && !o->nwait)) return status;
  return cla__stream_wait(o->stream, cla__stream_submitted(o->stream));
}

/* ---- Copies between allocations ---- */

static cla_status copy_on_device(const cla_handle *dst, size_t dst_offset, const cla_handle *src, size_t src_offset,
                                 size_t nbytes, const cla_order *o) {
  if (dst->block == src->block && dst_offset < src_offset + nbytes && src_offset < dst_offset + nbytes && nbytes)
    return cla__error(CLA_E_INVALID, "copy: %zu bytes at offsets %zu and %zu of one allocation overlap", nbytes,
                      src_offset, dst_offset);
  cla_pin to, from;
  cla_status status = check_stream(dst, o);
  if (!status) status = cla__pin(dst, dst_offset, nbytes, false, &to);
  if (status) return status;
  status = cla__pin(src, src_offset, nbytes, false, &from);
  if (status) {
    cla__unpin(&to, o->stream, 0);
    return status;
  }
  uint64_t number = 0, seen;
  cl_event done = NULL;
  cla_order order = *o;
  if (o->blocking && !o->out) order.out = &done;
  if (!nbytes) {
    status = empty_command(o);
  } else if (!(status = before(o, &seen))) {
    const transfer t = {.nbytes = nbytes};
    cl_int err = enqueue_copy(&order, &to, &from, &t);
    if (err) {
      cla__enqueue_failed(&from, CLA_CALL_enqueue_copy, err); /* OpenCL does not say which of them it is */
      status = cla__enqueue_failed(&to, CLA_CALL_enqueue_copy, err);
    } else {
      number = cla__stream_after(o->stream);
    }
  }
  cla__unpin(&from, o->stream, number);
  cla__unpin(&to, o->stream, number);
  if (done) {
    const cla_driver *driver = o->stream->device->driver;
    cl_int err = cla__wait_events(driver, 1, &done);
    cla__release_event(driver, done);
    if (err) status = cla__driver_error(CLA_CALL_wait_events, err);
    else waited_for(o, seen, number);
  }
  if (!status) finish_order(o);
  return status;
}

/* Between devices: a piece of host memory in the middle, and a user event of the receiving context that the end of
 * the read sets, since events do not reach across contexts. */
typedef struct staging {
  void *host;
  const cla_driver *driver; /* of the receiving device */
  cl_event ready;           /* of its context */
  atomic_int refs;          /* the read's callback, the write */
} staging;

static void staging_unref(void *arg) {
  staging *s = arg;
  if (atomic_fetch_sub(&s->refs, 1) != 1) return;
  cla__release_event(s->driver, s->ready);
  free(s->host);
  free(s);
}

static void CL_CALLBACK read_is_done(cl_event event, cl_int state, void *arg) {
  (void)event;
  staging *s = arg;
  cla__set_user_event(s->driver, s->ready, state < 0 ? state : CL_COMPLETE);
  staging_unref(s);
}

/* NULL: *status says why. */
static staging *staging_new(cla_device *d, size_t nbytes, cla_status *status) {
  staging *s = calloc(1, sizeof *s);
  cl_int err = CL_SUCCESS;
  if (s) s->host = malloc(nbytes ? nbytes : 1);
  if (!s || !s->host) {
    free(s);
    *status = cla__error(CLA_E_NOMEM, "copy: no host memory for %zu bytes between two devices", nbytes);
    return NULL;
  }
  atomic_init(&s->refs, 1);
  s->driver = d->driver;
  s->ready = cla__create_user_event(d->driver, d->context, &err);
  if (s->ready) return s;
  *status = cla__driver_error(CLA_CALL_create_user_event, err);
  free(s->host);
  free(s);
  return NULL;
}

/* Our share of the memory ends when the stream has done what it has now. Without host memory to note that, and behind a gate,
 * the memory stays for good: better than memory that is still written. */
static void keep_until(cla_stream *stream, staging *s) {
  uint64_t number = cla__stream_submitted(stream);
  cla_error_memo memo;
  cla__error_keep(&memo);
  if (cla__stream_defer(stream, number, staging_unref, s) && !cla__stream_wait(stream, number)) staging_unref(s);
  cla__error_restore(&memo);
}

/* The second half: a write that waits for the read, and for the events of o if `waits`. */
static cla_status write_staged(const cla_handle *dst, size_t dst_offset, staging *s, size_t nbytes, cla_stream *source,
                               const cla_order *o, bool waits) {
  cl_event wait[CLA_MOST_WAITS + 1];
  cl_uint nwait = 0;
  wait[nwait++] = s->ready;
  for (cl_uint i = 0; i < o->nwait && waits; i++) wait[nwait++] = o->wait[i];
  const cla_order to = {.stream = o->stream, .out = o->out, .nwait = nwait, .wait = wait};
  cla__stream_inherit_gates(o->stream, source, cla__stream_submitted(source));
  cla_status status = cla__write(dst, dst_offset, s->host, nbytes, &to);
  if (status) staging_unref(s); /* the callback has a share while the read goes on */
  else keep_until(o->stream, s);
  return status;
}

static cla_status copy_async_between(const cla_handle *dst, size_t dst_offset, const cla_handle *src, size_t src_offset,
                                     size_t nbytes, cla_stream *source, const cla_order *o) {
  cl_event read = NULL;
  /* A device that runs only when waited for would leave the receiving one waiting for ever: its half is done now. */
  if (source->device->is_manual && cla__stream_would_hang(source, UINT64_MAX))
    return cla__error(CLA_E_BUSY,
                      "copy: stream %llu of a manual device waits for a gate that this thread has not opened",
                      (unsigned long long)source->id);
  cla_status status = CLA_OK;
  staging *s = staging_new(o->stream->device, nbytes, &status);
  if (!s) return status;
  const bool waits_at_source = o->nwait && o->wait_device == source->device;
  const cla_order from = {.stream = source,
                          .out = &read,
                          .nwait = waits_at_source ? o->nwait : 0,
                          .wait = waits_at_source ? o->wait : NULL};
  status = cla__read(src, src_offset, s->host, nbytes, &from);
  if (status) {
    cla__set_user_event(s->driver, s->ready, CL_COMPLETE);
    staging_unref(s);
    return status;
  }
  const cla_driver *driver = source->device->driver;
  /* The read must be on its way before anything waits for it: rusticl completes what is flushed together as one. */
  cla_call call = CLA_CALL_flush;
  cl_int err = cla__flush(driver, source->queue);
  atomic_fetch_add(&s->refs, 1); /* the callback's */
  if (!err)
    call = CLA_CALL_set_event_callback, err = cla__set_event_callback(driver, read, CL_COMPLETE, read_is_done, s);
  if (err) { /* nobody will tell when the read is over: no copy; the memory is kept for the read, which may stand at a gate */
    status = cla__driver_error(call, err);
    atomic_fetch_sub(&s->refs, 1);
    cla__set_user_event(s->driver, s->ready, CL_COMPLETE);
    keep_until(source, s);
  } else if (source->device->is_manual &&
             (status = cla__stream_wait(source, cla__stream_submitted(source))) != CLA_OK) {
    staging_unref(s);
  } else {
    status = write_staged(dst, dst_offset, s, nbytes, source, o, !waits_at_source);
  }
  cla__release_event(driver, read);
  return status;
}

static cla_status copy_between(const cla_handle *dst, size_t dst_offset, const cla_handle *src, size_t src_offset,
                               size_t nbytes, cla_stream *source, const cla_order *o) {
  enum { PIECE = 4 << 20 };
  if (!o->blocking) return copy_async_between(dst, dst_offset, src, src_offset, nbytes, source, o);
  size_t piece = nbytes < PIECE ? nbytes : PIECE;
  void *host = malloc(piece ? piece : 1);
  if (!host) return cla__error(CLA_E_NOMEM, "copy: no host memory for %zu bytes between two devices", piece);
  cla_order from = {.stream = source, .blocking = true}, to = {.stream = o->stream, .blocking = true};
  cla_order *waiting = o->nwait && o->wait_device == source->device ? &from : &to;
  waiting->nwait = o->nwait;
  waiting->wait = o->wait;
  cla_status status = CLA_OK;
  size_t done = 0;
  do {
    size_t n = nbytes - done < piece ? nbytes - done : piece;
    status = cla__read(src, src_offset + done, host, n, &from);
    if (!status) status = cla__write(dst, dst_offset + done, host, n, &to);
    done += n;
  } while (!status && done < nbytes);
  free(host);
  return status;
}

cla_status cla__copy(const cla_handle *dst, size_t dst_offset, const cla_handle *src, size_t src_offset, size_t nbytes,
                     const cla_order *o) {
  cla_status status = cla__handle_check(dst);
  if (!status) status = cla__handle_check(src);
  if (status) return status;
  cla_device *to = dst->pool->device, *from = src->pool->device, *none = NULL;
  if (to == from) return copy_on_device(dst, dst_offset, src, src_offset, nbytes, o);
  cla_stream *source = NULL;
  cla_order order = *o;
  status = cla__current_for(from, &none, &source);
  if (status) return status;
  if (o->stream->device == from) { /* the stream given is the sending side's */
    source = o->stream;
    status = cla__current_for(to, &none, &order.stream);
    if (status) return status;
  }
  return copy_between(dst, dst_offset, src, src_offset, nbytes, source, &order);
}

/* ---- Maps ---- */

/* Of a mapping that is in no list; is_there: so is its memory. */
static cla_status end_mapping(cla_mapping *m, bool is_there) {
  cla_stream *s = m->stream;
  cla_status status = CLA_OK;
  uint64_t number = 0;
  if (!is_there) {
    status = cla__error(CLA_E_CLOSED, "the pool of the mapped allocation is closed");
  } else if (m->nbytes) {
    cla__stream_before(s);
    cl_int err = cla__enqueue_unmap(s->device->driver, s->queue, m->pin.mem, m->host, 0, NULL, NULL);
    if (err) status = cla__driver_error(CLA_CALL_enqueue_unmap, err);
    else number = cla__stream_after(s);
    cla__flush(s->device->driver, s->queue);
  }
  cla__unpin(&m->pin, s, number);
  cla__stream_unhold(s);
  free(m);
  return status;
}

/* by_address: NULL, or for the host's address, of a map that is in nobody's hands: any thread may end it from now on. */
static cla_status map_block(const cla_handle *h, size_t offset, size_t nbytes, unsigned flags, cla_stream *s,
                            void **by_address, cla_mapping **out) {
  cl_map_flags cl_flags = 0;
  if (flags & CLA_MAP_READ) cl_flags |= CL_MAP_READ;
  if (flags & CLA_MAP_WRITE) cl_flags |= CL_MAP_WRITE;
  if (flags & CLA_MAP_DISCARD) cl_flags = CL_MAP_WRITE_INVALIDATE_REGION;
  if (!flags || flags > 7 || ((flags & CLA_MAP_DISCARD) && (flags & CLA_MAP_READ)))
    return cla__error(CLA_E_INVALID, "map: flags %u; read, write, both, or discard", flags);
  const cla_order o = {.stream = s, .blocking = true};
  cla_pin pin;
  cla_status status = check_stream(h, &o);
  if (!status) status = cla__pin(h, offset, nbytes, false, &pin);
  if (status) return status;
  cla_mapping *m = malloc(sizeof *m);
  uint64_t seen;
  if (!m) status = cla__error(CLA_E_NOMEM, "no host memory for a map");
  if (!status) status = before(&o, &seen);
  if (status) {
    free(m);
    cla__unpin(&pin, s, 0);
    return status;
  }
  *m = (cla_mapping){.offset = offset, .nbytes = nbytes, .pin = pin, .stream = s, .is_by_address = by_address != NULL};
  if (nbytes) {
    cl_int err = CL_SUCCESS;
    m->host = cla__enqueue_map(s->device->driver, s->queue, pin.mem, CL_TRUE, cl_flags, pin.offset, nbytes, 0, NULL,
                               NULL, &err);
    if (err || !m->host) {
      status = cla__enqueue_failed(&pin, CLA_CALL_enqueue_map, err);
      free(m);
      cla__unpin(&pin, s, 0);
      return status;
    }
    after(&o, seen);
  } else {
    m->host = m; /* an address of its own; nothing may be read there */
  }
  cla__stream_hold(s);
  if (by_address) *by_address = m->host;
  else *out = m;
  cla_pool *p = h->pool;
  cla__lock(&p->lock);
  const bool is_closed = p->is_closed; /* by now: whoever holds the map is told at its end */
  if (!is_closed) m->next = h->block->maps, h->block->maps = m;
  m->pin.is_call = is_closed && by_address;
  cla__unlock(&p->lock);
  if (is_closed && by_address) return end_mapping(m, false);
  cla__call_end(p, NULL, 0);
  return CLA_OK;
}

cla_status cla__map(const cla_handle *h, size_t offset, size_t nbytes, unsigned flags, cla_stream *s,
                    cla_mapping **out) {
  return map_block(h, offset, nbytes, flags, s, NULL, out);
}

void cla__mapping_unlist(cla_pool *p, cla_mapping **link) {
  (*link)->pin.is_call = true;
  *link = (*link)->next;
  cla__call_begin(p);
}

/* Takes the mapping out of its block's list: false when it is not there any more. */
static bool unlist(cla_pool *p, cla_block *b, const cla_mapping *m) {
  cla__lock(&p->lock);
  cla_mapping **link = &b->maps;
  while (*link && *link != m) link = &(*link)->next;
  bool found = *link != NULL;
  if (found) cla__mapping_unlist(p, link);
  cla__unlock(&p->lock);
  return found;
}

cla_status cla__unmap(const cla_handle *h, cla_mapping *m) { return end_mapping(m, unlist(h->pool, h->block, m)); }

void cla__maps_end(cla_mapping *left) {
  cla_error_memo memo;
  cla__error_keep(&memo);
  for (cla_mapping *next; left; left = next) {
    next = left->next;
    end_mapping(left, true);
  }
  cla__error_restore(&memo);
}

cla_status cla_map(void *address, size_t nbytes, unsigned flags, void **host) {
  cla_handle h;
  size_t offset = 0;
  cla_device *d = NULL;
  cla_stream *s = NULL;
  cla_status status = cla__alive();
  if (!status && !host) status = cla__error(CLA_E_INVALID, "map: no place for the host address");
  if (!status) status = cla__handle_of(address, &h, &offset);
  if (!status) status = cla__current_for(h.pool->device, &d, &s);
  return status ? status : map_block(&h, offset, nbytes, flags, s, host, NULL);
}

cla_status cla_unmap(void *address) {
  const cla_status status = cla__alive();
  if (status) return status;
  cla_mapping *m = cla__mapping_take(address);
  return m ? end_mapping(m, true) : cla__error(CLA_E_INVALID, "unmap: address %p is not mapped", address);
}

/* ---- Public copies ---- */

/* One end of a copy: an allocation, or host memory (pool NULL). A freed or outside address is neither. */
static cla_status end_of(const void *address, size_t nbytes, cla_handle *h, size_t *offset) {
  cla_error_memo memo;
  cla__error_keep(&memo);
  cla_status status = cla__handle_of(address, h, offset);
  if (status != CLA_E_FOREIGN) return status;
  if (!address && nbytes) return cla__error(CLA_E_INVALID, "copy: NULL for %zu bytes", nbytes);
  cla__error_restore(&memo);
  h->pool = NULL;
  return CLA_OK;
}

static cla_status order_for(cla_device *d, cla_stream *s, cl_event *out, cla_order *o) {
  cla_device *current;
  *o = (cla_order){.stream = s, .out = out, .blocking = !out};
  return s ? CLA_OK : cla__current_for(d, &current, &o->stream);
}

/* Pinned memory at the host end of an asynchronous copy is in use by the stream; plain memory is the caller's to keep. */
static cla_status record_host(const void *address, cla_stream *s) {
  const cla_range *r = cla__map_find(address);
  return r && r->record ? r->record(address, s) : CLA_OK;
}

/* Recorded before the copy too: there is room for the record then, or the copy is not begun. */
static cla_status copy_host(void *dst, const void *src, size_t nbytes, const cla_handle *h, size_t offset, bool is_read,
                            const cla_order *o) {
  const void *host = is_read ? dst : src;
  cla_status status = o->out ? record_host(host, o->stream) : CLA_OK;
  if (!status) status = is_read ? cla__read(h, offset, dst, nbytes, o) : cla__write(h, offset, src, nbytes, o);
  if (status || !o->out) return status;
  status = record_host(host, o->stream);
  if (!status) return CLA_OK;
  cla__stream_wait(o->stream,
                   cla__stream_submitted(o->stream)); /* nobody may have the memory before the copy is over */
  cla__release_event(o->stream->device->driver, *o->out);
  *o->out = NULL;
  return status;
}

cla_status cla_copy(void *dst, const void *src, size_t nbytes, cla_stream *s, cl_event *out) {
  cla_handle to, from;
  size_t to_offset = 0, from_offset = 0;
  cla_order o;
  cla_status status = cla__alive();
  if (!status) status = end_of(dst, nbytes, &to, &to_offset);
  if (!status) status = end_of(src, nbytes, &from, &from_offset);
  if (status) return status;
  if (!to.pool && !from.pool) {
    if (out) return cla__error(CLA_E_INVALID, "copy: no event between two pieces of host memory");
    if (nbytes) memmove(dst, src, nbytes);
    return CLA_OK;
  }
  status = order_for(to.pool ? to.pool->device : from.pool->device, s, out, &o);
  if (status) return status;
  if (!to.pool) return copy_host(dst, src, nbytes, &from, from_offset, true, &o);
  if (!from.pool) return copy_host(dst, src, nbytes, &to, to_offset, false, &o);
  return cla__copy(&to, to_offset, &from, from_offset, nbytes, &o);
}

cla_status cla_fill(void *dst, const void *pattern, size_t pattern_size, size_t nbytes, cla_stream *s, cl_event *out) {
  cla_handle h;
  size_t offset;
  cla_order o;
  cla_status status = cla__alive();
  if (!status && !pattern) status = cla__error(CLA_E_INVALID, "fill: no pattern");
  if (!status) status = cla__handle_of(dst, &h, &offset);
  if (!status) status = order_for(h.pool->device, s, out, &o);
  if (status) return status;
  return cla__fill(&h, offset, pattern, pattern_size, nbytes, &o);
}

cla_status cla_buffer_mem(const void *address, cl_mem *out, size_t *offset) {
  cla_handle h;
  cla_pin pin;
  size_t inside;
  cla_status status = cla__alive();
  if (!status && !out) status = cla__error(CLA_E_INVALID, "buffer_mem: no place for the cl_mem");
  if (!status) status = cla__handle_of(address, &h, &inside);
  if (status) return status;
  cla__lock(&h.pool->lock);
  bool starts_here = h.block->requested > inside && (h.block->offset + inside) % h.pool->device->info.align_bytes == 0;
  size_t rest = h.block->requested - inside;
  cla__unlock(&h.pool->lock);
  if (!starts_here && !offset)
    return cla__error(CLA_E_UNSUPPORTED, "buffer_mem: offset %zu is no multiple of %zu, and no place for it was given",
                      inside, h.pool->device->info.align_bytes);
  status = starts_here ? cla__pin(&h, inside, rest, true, &pin) : cla__pin(&h, inside, 0, false, &pin);
  if (status) return status;
  *out = pin.mem;
  if (offset) *offset = pin.offset;
  if (pin.sub) {
    cla__lock(&h.pool->lock);
    if (!h.pool->is_closed) pin.sub->promised_to = h.generation;
    cla__unlock(&h.pool->lock);
  }
  cla__unpin(&pin, NULL, 0);
  return CLA_OK;
}
