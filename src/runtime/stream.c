/* Streams as timelines.
 *
 * A stream is an in-order queue and two counters. Commands are numbered in the order in which their enqueues
 * returned; `completed` follows by asking the driver about marker events. Somebody who wants to know about a
 * number says so (cla__stream_want); the marker is enqueued before the next command, or when he polls, so a burst
 * of frees between two launches costs one marker however long it is.
 *
 * An event that ends with an error is complete: nothing will use the memory any more (gpuowl#86). A status read
 * from the driver is no synchronisation by itself, so a wait on the completed event follows (OpenCL-Docs#1558). A
 * marker is flushed, or polling it could go on for ever (chipStar#1542). */
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"

/* ---- Slots: small indices for tables, process-wide ---- */

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  size_t *free; /* a stack */
  size_t nfree, capacity, issued;
} slots;

static cla_status slot_take(size_t *out) {
  cla_status status = CLA_OK;
  pthread_mutex_lock(&slots_lock);
  if (slots.nfree) {
    *out = slots.free[--slots.nfree];
  } else {
    if (slots.issued == slots.capacity) { /* room to give every slot back without allocating */
      size_t capacity = slots.capacity ? slots.capacity * 2 : 32;
      size_t *grown = realloc(slots.free, capacity * sizeof *grown);
      if (grown) slots.free = grown, slots.capacity = capacity;
      else status = cla__error(CLA_E_NOMEM, "no host memory for a stream");
    }
    if (!status) *out = slots.issued++;
  }
  pthread_mutex_unlock(&slots_lock);
  return status;
}

static void slot_give(size_t slot) {
  pthread_mutex_lock(&slots_lock);
  slots.free[slots.nfree++] = slot;
  pthread_mutex_unlock(&slots_lock);
}

/* ---- Numbers and markers ---- */

static cla_marker *ring_at(const cla_stream *s, size_t i) {
  return s->markers[(s->first_marker + i) % CLA_MAX_MARKERS];
}

static uint64_t newest_marked(const cla_stream *s) {
  return s->marker_count ? ring_at(s, s->marker_count - 1)->number : 0;
}

static void marker_drop(const cla_driver *driver, cla_marker *m) {
  if (atomic_fetch_sub(&m->refs, 1) != 1) return;
  cla__release_event(driver, m->event);
  free(m);
}

/* Enqueues a marker; its number is what had been submitted before. */
static cla_status marker_new(cla_stream *s, cla_marker **out) {
  const cla_driver *driver = s->device->driver;
  cla_marker *m = malloc(sizeof *m);
  if (!m) return cla__error(CLA_E_NOMEM, "no host memory for a marker");
  atomic_init(&m->refs, 1);
  m->number = cla__stream_submitted(s);
  m->event = NULL;
  cl_int err = cla__enqueue_marker(driver, s->queue, 0, NULL, &m->event);
  if (err) {
    free(m);
    return cla__driver_error(CLA_CALL_enqueue_marker, err);
  }
  /* Unflushed, it would let another stream that waits for it wait for ever. */
  if ((err = cla__flush(driver, s->queue)) != CL_SUCCESS) {
    marker_drop(driver, m);
    return cla__driver_error(CLA_CALL_flush, err);
  }
  *out = m;
  return CLA_OK;
}

static void raise_completed(cla_stream *s, uint64_t number) {
  uint64_t known = atomic_load(&s->completed);
  while (known < number && !atomic_compare_exchange_weak(&s->completed, &known, number)) {
  }
}

void cla__stream_reached(cla_stream *s, uint64_t number) { raise_completed(s, number); }

/* Enqueues a marker that covers `number`, unless one does, the ring is full, or another thread is at it. */
static cla_status place_marker(cla_stream *s, uint64_t number) {
  pthread_mutex_lock(&s->lock);
  bool needed = !s->is_marking && s->marker_count < CLA_MAX_MARKERS && newest_marked(s) < number &&
                atomic_load(&s->completed) < number;
  if (needed) s->is_marking = true;
  pthread_mutex_unlock(&s->lock);
  if (!needed) return CLA_OK;
  cla_marker *m = NULL;
  cla_status status = marker_new(s, &m);
  pthread_mutex_lock(&s->lock);
  s->is_marking = false;
  if (m) s->markers[(s->first_marker + s->marker_count++) % CLA_MAX_MARKERS] = m;
  pthread_mutex_unlock(&s->lock);
  return status;
}

/* The marker's event is complete: it leaves the ring if it is still the oldest there, and completed follows. */
static void retire_marker(cla_stream *s, cla_marker *m) {
  pthread_mutex_lock(&s->lock);
  bool is_oldest = s->marker_count && ring_at(s, 0) == m;
  if (is_oldest) {
    s->first_marker = (s->first_marker + 1) % CLA_MAX_MARKERS;
    s->marker_count--;
  }
  pthread_mutex_unlock(&s->lock);
  raise_completed(s, m->number);
  if (is_oldest) marker_drop(s->device->driver, m);
}

/* The oldest marker that covers `number` (0: the oldest), with a reference of the caller's; NULL: none. */
static cla_marker *borrow_marker(cla_stream *s, uint64_t number) {
  cla_marker *found = NULL;
  pthread_mutex_lock(&s->lock);
  for (size_t i = 0; i < s->marker_count && !found; i++)
    if (ring_at(s, i)->number >= number) found = ring_at(s, i);
  if (found) atomic_fetch_add(&found->refs, 1);
  pthread_mutex_unlock(&s->lock);
  return found;
}

static void run_deferred(cla_deferred *list) {
  while (list) {
    cla_deferred *next = list->next;
    list->run(list->arg);
    free(list);
    list = next;
  }
}

static void run_due(cla_stream *s) {
  if (!atomic_load_explicit(&s->deferred_count, memory_order_relaxed)) return;
  cla_deferred *due = NULL;
  pthread_mutex_lock(&s->lock);
  for (cla_deferred **p = &s->deferred; *p;) {
    cla_deferred *x = *p;
    if (cla__stream_done(s, x->number)) {
      *p = x->next;
      x->next = due;
      due = x;
      atomic_fetch_sub(&s->deferred_count, 1);
    } else {
      p = &x->next;
    }
  }
  pthread_mutex_unlock(&s->lock);
  run_deferred(due);
}

bool cla__stream_poll(cla_stream *s, uint64_t number) {
  const cla_driver *driver = s->device->driver;
  if (number && !cla__stream_done(s, number)) place_marker(s, number);
  for (cla_marker *m; (m = borrow_marker(s, 0)) != NULL;) {
    bool complete = cla__stream_done(s, m->number); /* known already: somebody waited for it, or for more */
    if (!complete) {
      cl_int state = CL_QUEUED;
      cl_int err = cla__get_event_info(driver, m->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
      complete = !err && state <= CL_COMPLETE;
      if (complete) cla__wait_events(driver, 1, &m->event);
    }
    if (complete) retire_marker(s, m);
    marker_drop(driver, m);
    if (!complete) break;
  }
  run_due(s);
  return cla__stream_done(s, number);
}

cla_status cla__stream_wait(cla_stream *s, uint64_t number) {
  if (cla__stream_done(s, number)) {
    cla__stream_poll(s, 0); /* markers that a blocking command has overtaken are let go */
    return CLA_OK;
  }
  if (cla__stream_would_hang(s, number)) return cla__stream_busy(s);
  const cla_driver *driver = s->device->driver;
  cla_status status = place_marker(s, number);
  cla_marker *m = status ? NULL : borrow_marker(s, number);
  if (m) {
    cl_int err = cla__wait_events(driver, 1, &m->event);
    if (!err || err == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) raise_completed(s, m->number);
    else status = cla__driver_error(CLA_CALL_wait_events, err);
    marker_drop(driver, m);
    if (status) return status;
  } else if (!cla__stream_done(s, number)) { /* no marker to be had: wait for everything */
    uint64_t all = cla__stream_submitted(s);
    cl_int err = cla__finish(driver, s->queue);
    if (err) return cla__driver_error(CLA_CALL_finish, err);
    raise_completed(s, all);
  }
  cla__stream_poll(s, 0);
  return CLA_OK;
}

void cla__stream_before(cla_stream *s) {
  uint64_t wanted = atomic_load_explicit(&s->wanted, memory_order_relaxed);
  if (wanted && !cla__stream_done(s, wanted)) place_marker(s, wanted);
}

uint64_t cla__stream_after(cla_stream *s) {
  uint64_t number = atomic_fetch_add_explicit(&s->submitted, 1, memory_order_acq_rel) + 1;
  /* Deferred work is looked at now and then, so that a script that never waits does not pile it up. */
  if (number % 32 == 0 && atomic_load_explicit(&s->deferred_count, memory_order_relaxed)) cla__stream_poll(s, number);
  return number;
}

cla_status cla__stream_order_after(cla_stream *s, cla_stream *other, uint64_t number) {
  if (s == other || cla__stream_done(other, number)) return CLA_OK;
  const cla_driver *driver = s->device->driver;
  cla_status status = place_marker(other, number);
  cla_marker *m = status ? NULL : borrow_marker(other, number);
  if (!status && !m) status = marker_new(other, &m); /* the ring is full of older markers: one that nobody keeps */
  if (status) return status;
  cla__stream_before(s);
  cla__stream_inherit_gates(s, other, m->number);
  cl_int err = cla__enqueue_barrier(driver, s->queue, 1, &m->event, NULL);
  marker_drop(driver, m);
  if (err) return cla__driver_error(CLA_CALL_enqueue_barrier, err);
  cla__stream_after(s);
  return CLA_OK;
}

cla_status cla__stream_defer(cla_stream *s, uint64_t number, void (*run)(void *), void *arg) {
  cla_deferred *x = malloc(sizeof *x);
  if (!x) return cla__error(CLA_E_NOMEM, "no host memory to defer a release");
  *x = (cla_deferred){NULL, number, run, arg};
  cla__stream_want(s, number);
  pthread_mutex_lock(&s->lock);
  x->next = s->deferred;
  s->deferred = x;
  atomic_fetch_add(&s->deferred_count, 1);
  pthread_mutex_unlock(&s->lock);
  return CLA_OK;
}

/* ---- Life ---- */

static cla_status stream_new(cla_device *d, cl_command_queue queue, bool is_own, cla_stream **out) {
  static atomic_uint_fast64_t next_id = 1;
  cla_stream *s = calloc(1, sizeof *s);
  if (!s) return cla__error(CLA_E_NOMEM, "no host memory for a stream");
  cla_status status = slot_take(&s->slot);
  if (status) {
    free(s);
    return status;
  }
  atomic_init(&s->refs, 1);
  atomic_init(&s->user_refs, 1);
  pthread_mutex_init(&s->lock, NULL);
  s->device = d;
  s->queue = queue;
  s->is_own = is_own;
  s->id = atomic_fetch_add(&next_id, 1);
  if (!is_own) cla_device_retain(d);
  *out = s;
  return CLA_OK;
}

cla_status cla__stream_create(cla_device *d, bool is_own, cla_stream **out) {
  const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  cl_int err = CL_SUCCESS;
  cl_command_queue q = cla__create_queue(d->driver, d->context, d->id, properties, &err);
  if (!q) return cla__driver_error(CLA_CALL_create_queue, err);
  cla_status status = stream_new(d, q, is_own, out);
  if (status) cla__release_queue(d->driver, q);
  return status;
}

cla_status cla_stream_create(cla_device *d, cla_stream **out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !out) return cla__error(CLA_E_INVALID, "stream: no device");
  return cla__stream_create(d, false, out);
}

cla_status cla_stream_wrap(cla_device *d, cl_command_queue q, cla_stream **out) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d || !q || !out) return cla__error(CLA_E_INVALID, "stream_wrap: no device or no queue");
  cl_context context = NULL;
  cl_command_queue_properties properties = 0;
  cl_int err = cla__get_queue_info(d->driver, q, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
  if (!err) err = cla__get_queue_info(d->driver, q, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
  if (err) return cla__driver_error(CLA_CALL_get_queue_info, err);
  if (context != d->context)
    return cla__error(CLA_E_INVALID, "stream_wrap: the queue belongs to another context than %s's", d->info.name);
  if (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
    return cla__error(CLA_E_UNSUPPORTED, "stream_wrap: an out-of-order queue is no timeline");
  /* Retained: the owner may release his queue while blocks still wait for it (pytorch#66941). */
  if ((err = cla__retain_queue(d->driver, q)) != CL_SUCCESS) return cla__driver_error(CLA_CALL_retain_queue, err);
  status = stream_new(d, q, false, out);
  if (status) {
    cla__release_queue(d->driver, q);
    return status;
  }
  /* What the owner enqueued before we came is unknown: it counts as one command. */
  cla__stream_after(*out);
  return CLA_OK;
}

static bool only_we_open(cla_gate *g) {
  return !atomic_load(&g->is_open) && atomic_load(&g->is_exclusive) && pthread_equal(g->thread, pthread_self());
}

static void stream_free(cla_stream *s) {
  const cla_driver *driver = s->device->driver;
  /* Deferred work must not run early. A queue behind a gate of this thread's would never finish: then its gates
   * are opened, since nobody can hold the stream any more. */
  if (s->deferred) {
    for (size_t i = 0; i < s->gate_count; i++)
      if (only_we_open(s->gates[i].gate)) cla_gate_open(s->gates[i].gate);
    cla__finish(driver, s->queue);
  }
  run_deferred(s->deferred);
  while (s->marker_count) retire_marker(s, ring_at(s, 0));
  for (size_t i = 0; i < s->gate_count; i++) cla__gate_unhold(s->gates[i].gate);
  free(s->gates);
  cla__release_queue(driver, s->queue);
  slot_give(s->slot);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

void cla__stream_hold(cla_stream *s) { atomic_fetch_add(&s->refs, 1); }

void cla__stream_unhold(cla_stream *s) {
  if (atomic_fetch_sub(&s->refs, 1) == 1) stream_free(s);
}

/* A handle to one of the device's own streams is a handle to the device, which they live as long as. */
void cla_stream_retain(cla_stream *s) {
  if (!s) return;
  if (s->is_own) {
    cla_device_retain(s->device);
    return;
  }
  atomic_fetch_add(&s->user_refs, 1);
  cla__stream_hold(s);
}

void cla_stream_release(cla_stream *s) {
  if (!s || cla__driver_forbidden()) return;
  if (s->is_own) {
    cla_device_release(s->device);
    return;
  }
  cla_device *d = s->device;
  bool last = atomic_fetch_sub(&s->user_refs, 1) == 1;
  if (last) cla__flush(d->driver, s->queue);
  cla__stream_unhold(s);
  if (last) cla_device_release(d);
}

void cla__stream_end_own(cla_stream *s) {
  if (!s) return;
  cla__finish(s->device->driver, s->queue);
  cla__stream_unhold(s);
}

/* ---- Gates that hold a stream ---- */

static void note_gate(cla_stream *s, cla_gate *gate, uint64_t number) {
  pthread_mutex_lock(&s->lock);
  if (s->gate_count == s->gate_capacity) {
    size_t capacity = s->gate_capacity ? s->gate_capacity * 2 : 4;
    cla_gate_wait *grown = realloc(s->gates, capacity * sizeof *grown);
    if (grown) s->gates = grown, s->gate_capacity = capacity;
  }
  if (s->gate_count < s->gate_capacity) { /* unnoted, a wait may hang as a driver's does: no error */
    cla__gate_hold(gate);
    s->gates[s->gate_count++] = (cla_gate_wait){gate, number};
  }
  pthread_mutex_unlock(&s->lock);
}

void cla__stream_note_gate(cla_stream *s, cla_gate *gate) {
  if (!atomic_load(&gate->is_open)) note_gate(s, gate, cla__stream_submitted(s) + 1);
}

void cla__stream_inherit_gates(cla_stream *s, cla_stream *other, uint64_t number) {
  if (s == other) return;
  for (size_t i = 0;; i++) { /* one at a time: two streams' locks are never held together */
    pthread_mutex_lock(&other->lock);
    cla_gate *gate = NULL;
    if (i < other->gate_count && other->gates[i].number <= number) {
      gate = other->gates[i].gate;
      cla__gate_hold(gate);
    }
    bool end = i >= other->gate_count;
    pthread_mutex_unlock(&other->lock);
    if (gate) {
      cla__stream_note_gate(s, gate);
      cla__gate_unhold(gate);
    }
    if (end) return;
  }
}

/* Notes of opened gates are dropped on the way, a few at a time. */
bool cla__stream_would_hang(cla_stream *s, uint64_t number) {
  bool hangs = false;
  cla_gate *opened[8];
  size_t nopened = 0;
  pthread_mutex_lock(&s->lock);
  for (size_t i = 0; i < s->gate_count;) {
    cla_gate_wait *w = &s->gates[i];
    if (nopened < sizeof opened / sizeof *opened && atomic_load(&w->gate->is_open)) {
      opened[nopened++] = w->gate;
      *w = s->gates[--s->gate_count];
      continue;
    }
    if (w->number <= number && only_we_open(w->gate)) hangs = true;
    i++;
  }
  pthread_mutex_unlock(&s->lock);
  for (size_t i = 0; i < nopened; i++) cla__gate_unhold(opened[i]);
  return hangs;
}

/* ---- Public ---- */

cla_status cla_stream_submitted(cla_stream *s) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!s) return cla__error(CLA_E_INVALID, "stream_submitted: no stream");
  cla__stream_after(s);
  return CLA_OK;
}

cla_status cla_stream_finish(cla_stream *s) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!s) return cla__error(CLA_E_INVALID, "stream_finish: no stream");
  return cla__stream_wait(s, cla__stream_submitted(s));
}

cla_status cla_stream_query(cla_stream *s, bool *idle) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!s || !idle) return cla__error(CLA_E_INVALID, "stream_query: no stream");
  *idle = cla__stream_poll(s, cla__stream_submitted(s));
  return CLA_OK;
}

cla_status cla_stream_wait_event(cla_stream *s, cl_event event) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!s || !event) return cla__error(CLA_E_INVALID, "stream_wait_event: no stream or no event");
  cla__stream_before(s);
  cl_int err = cla__enqueue_barrier(s->device->driver, s->queue, 1, &event, NULL);
  if (err) return cla__driver_error(CLA_CALL_enqueue_barrier, err);
  cla__stream_after(s);
  return CLA_OK;
}

cla_status cla_stream_wait_gate(cla_stream *s, cla_gate *gate) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!s || !gate) return cla__error(CLA_E_INVALID, "stream_wait_gate: no stream or no gate");
  if (gate->device != s->device)
    return cla__error(CLA_E_INVALID, "stream_wait_gate: the gate belongs to %s, the stream to %s",
                      gate->device->info.name, s->device->info.name);
  cla__stream_before(s);
  cla__stream_note_gate(s, gate);
  return cla_stream_wait_event(s, gate->event);
}

void cla_stream_get_stats(cla_stream *s, cla_stream_stats *out) {
  pthread_mutex_lock(&s->lock);
  out->completed = atomic_load(&s->completed);
  out->submitted = cla__stream_submitted(s);
  out->markers = s->marker_count;
  pthread_mutex_unlock(&s->lock);
}

cl_command_queue cla_stream_queue(const cla_stream *s) { return s->queue; }
cla_device *cla_stream_device(const cla_stream *s) { return s->device; }
