/* The simulated device's queues and events, and when commands run.
 *
 * A queue runs in order. A command is eligible once all before it have ended and its wait list has.
 * On an automatic device eligible commands complete at once: when they are enqueued, or when the
 * event that held them ends. On a manual one they complete through cla__sim_complete, or because a
 * caller waits (finish, wait_events, a blocking command): the device then runs what that needs and
 * nothing else. What needs an unset user event makes the caller sleep until a thread sets it.
 * A queue whose last reference is released becomes automatic: nobody can name it any more.
 *
 * A command whose wait list holds an error ends with
 * CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST; the ones behind it run. A command on an idle
 * automatic queue costs no struct unless an event is asked for; nothing here walks the past. */
#include "driver/sim.h"

#include <stdlib.h>
#include <string.h>

static bool has_ended(const struct _cl_event *e) { return e->status <= CL_COMPLETE; }

/* ---- Running commands ---- */

/* Its first command may run: settle() will see to it, if it is the device's to decide. */
static void make_ready(cl_command_queue q) {
  if (!q->is_automatic || q->is_ready) return;
  q->is_ready = true;
  sim_hold(q);
  q->next_ready = q->o.device->ready;
  q->o.device->ready = q;
}

/* Puts a callback at the end of what is due; it gets a reference to its event, which the
 * function may want to ask about though the application has released its own. */
static void make_due(sim_callback *cb, cl_int ended) {
  cl_device_id dev = cb->event->o.device;
  cla__sim_ref(cb->event);
  if (ended < 0) cb->status = ended;
  cb->next = NULL;
  *dev->due_end = cb;
  dev->due_end = &cb->next;
}

void cla__sim_run_due(cl_device_id dev) {
  sim_callback *cb = dev->due;
  dev->due = NULL;
  dev->due_end = &dev->due;
  while (cb != NULL) {
    sim_callback *next = cb->next;
    pthread_mutex_unlock(&dev->lock);
    cb->fn(cb->event, cb->status, cb->arg);
    pthread_mutex_lock(&dev->lock);
    cla__sim_unref(cb->event);
    free(cb);
    cb = next;
  }
}

static void end_event(cl_event e, cl_int status) {
  e->status = status;
  for (sim_edge *edge = e->waiters; edge != NULL; edge = edge->next_waiter) {
    cl_event w = edge->waiter;
    if (status < 0) w->is_wait_failed = true;
    if (--w->waits_left == 0 && w->queue->first == w) make_ready(w->queue);
  }
  e->waiters = NULL;
  for (sim_callback *cb = e->callbacks, *next; cb != NULL; cb = next) {
    next = cb->next;
    make_due(cb, status);
  }
  e->callbacks = NULL;
  if (e->o.device->sleepers > 0) pthread_cond_broadcast(&e->o.device->changed);
}

/* The effect and the time of a command that has its turn. Returns how it ended. */
static cl_int perform(cl_command_queue q, const sim_work *work, bool is_wait_failed) {
  q->o.device->clock_ns += SIM_COMMAND_NS;
  if (work->unmap != NULL) cla__sim_free_map(work->unmap); /* even if failed: nobody may use it */
  if (is_wait_failed) return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
  for (size_t i = 0; work->listed && i < work->nuses; i++)
    if (work->listed[i] != work->uses[i]) return CL_INVALID_MEM_OBJECT;
  if (work->zero_nbytes > 0) memset(work->zero_host, 0, work->zero_nbytes);
  return CL_COMPLETE;
}

static void complete_first(cl_command_queue q) {
  cl_event e = q->first;
  cl_device_id dev = q->o.device;
  q->first = e->next;
  if (q->first == NULL) q->last = NULL;
  else if (q->first->waits_left == 0) make_ready(q);
  e->start_ns = dev->clock_ns;
  const cl_int status = perform(q, &e->work, e->is_wait_failed);
  e->end_ns = dev->clock_ns;
  for (size_t i = 0; i < e->work.nuses; i++) cla__sim_drop(e->work.uses[i]);
  if (e->work.uses != e->few_uses) free((void *)e->work.uses);
  for (sim_edge *edge = e->needs, *next; edge != NULL; edge = next) {
    next = edge->next_need;
    cla__sim_drop(edge->needed);
    free(edge);
  }
  e->needs = NULL;
  end_event(e, status);
  cla__sim_drop(e);
}

/* Runs all that automatic queues may. A loop, not a recursion: chains of events may be long. */
static void settle(cl_device_id dev) {
  while (dev->ready != NULL) {
    cl_command_queue q = dev->ready;
    dev->ready = q->next_ready;
    while (q->first != NULL && q->first->waits_left == 0) complete_first(q);
    q->is_ready = false;
    cla__sim_drop(q);
  }
}

static cl_event need_in_reach(cl_event e, uint64_t pass) {
  for (sim_edge *edge = e->needs; edge != NULL; edge = edge->next_need)
    if (!has_ended(edge->needed) && edge->needed->blocked_pass != pass) return edge->needed;
  return NULL;
}

/* Completes a command and what it needs, as far as no unset user event is in the way. Each goal was
 * enqueued before the one it is wanted for, so the stack of goals has no cycle. */
static void demand(cl_event target) {
  const uint64_t pass = ++target->o.device->pass;
  cl_event goal = target;
  target->outer_goal = NULL;
  while (goal != NULL) {
    cl_event need = NULL;
    if (!has_ended(goal) && goal->queue != NULL) {
      cl_event first = goal->queue->first;
      if (first->waits_left == 0) {
        complete_first(goal->queue);
        continue;
      }
      need = need_in_reach(first, pass);
    }
    if (need != NULL) {
      need->outer_goal = goal;
      goal = need;
    } else {
      goal->blocked_pass = pass;
      goal = goal->outer_goal;
    }
  }
}

/* Sleeps until e ends. */
static void wait_for(cl_event e) {
  cl_device_id dev = e->o.device;
  sim_hold(e);
  while (!has_ended(e)) {
    demand(e);
    settle(dev);
    if (has_ended(e)) break;
    if (dev->due != NULL) {
      cla__sim_run_due(dev);
      continue;
    }
    dev->sleepers++;
    pthread_cond_wait(&dev->changed, &dev->lock);
    dev->sleepers--;
  }
  cla__sim_drop(e);
}

/* ---- Queues ---- */

cl_command_queue cla__sim_create_queue(cl_context c, cl_device_id dev, const cl_queue_properties *properties,
                                       cl_int *err) {
  const cl_queue_properties known = CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE;
  cl_queue_properties bits = 0;
  if (!sim_is(c, SIM_CONTEXT)) return sim_made(NULL, CL_INVALID_CONTEXT, err);
  if (!sim_is(dev, SIM_DEVICE) || c->o.device != dev) return sim_made(NULL, CL_INVALID_DEVICE, err);
  for (const cl_queue_properties *p = properties; p != NULL && p[0] != 0; p += 2) {
    if (p[0] != CL_QUEUE_PROPERTIES) return sim_made(NULL, CL_INVALID_VALUE, err);
    bits = p[1];
  }
  if ((bits & ~known) != 0) return sim_made(NULL, CL_INVALID_QUEUE_PROPERTIES, err);
  sim_enter(dev);
  cl_command_queue q = cla__sim_new(dev, SIM_QUEUE);
  if (q != NULL) {
    q->context = c;
    q->properties = bits;
    q->is_automatic = !dev->config.manual;
    sim_hold(c);
  }
  cla__sim_leave(dev);
  return sim_made(q, q != NULL ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, err);
}

cl_int cla__sim_retain_queue(cl_command_queue q) { return cla__sim_retain(q, SIM_QUEUE, CL_INVALID_COMMAND_QUEUE); }

cl_int cla__sim_release_queue(cl_command_queue q) { return cla__sim_release(q, SIM_QUEUE, CL_INVALID_COMMAND_QUEUE); }

void cla__sim_queue_abandoned(cl_command_queue q) {
  q->is_automatic = true;
  if (q->first != NULL && q->first->waits_left == 0) make_ready(q);
  settle(q->o.device);
}

cl_int cla__sim_get_queue_info(cl_command_queue q, cl_command_queue_info what, size_t size, void *out, size_t *used) {
  if (!sim_is(q, SIM_QUEUE)) return CL_INVALID_COMMAND_QUEUE;
  cl_device_id dev = q->o.device;
  sim_enter(dev);
  const cl_uint refs = q->o.refs;
  cla__sim_leave(dev);
  switch (what) {
  case CL_QUEUE_CONTEXT: return cla__sim_answer(&q->context, sizeof q->context, size, out, used);
  case CL_QUEUE_DEVICE: return cla__sim_answer(&dev, sizeof dev, size, out, used);
  case CL_QUEUE_REFERENCE_COUNT: return cla__sim_answer(&refs, sizeof refs, size, out, used);
  case CL_QUEUE_PROPERTIES: return cla__sim_answer(&q->properties, sizeof q->properties, size, out, used);
  default: return CL_INVALID_VALUE;
  }
}

cl_int cla__sim_flush(cl_command_queue q) { return sim_is(q, SIM_QUEUE) ? CL_SUCCESS : CL_INVALID_COMMAND_QUEUE; }

cl_int cla__sim_finish(cl_command_queue q) {
  if (!sim_is(q, SIM_QUEUE)) return CL_INVALID_COMMAND_QUEUE;
  cl_device_id dev = q->o.device;
  sim_enter(dev);
  if (q->last != NULL) wait_for(q->last);
  cla__sim_leave(dev);
  return CL_SUCCESS;
}

uint64_t cla__sim_complete(cl_command_queue q, uint64_t n) {
  if (!sim_is(q, SIM_QUEUE)) return 0;
  cl_device_id dev = q->o.device;
  uint64_t done = 0;
  sim_enter(dev);
  for (; done < n && q->first != NULL && q->first->waits_left == 0; done++) complete_first(q);
  settle(dev);
  cla__sim_leave(dev);
  return done;
}

/* ---- Submitting ---- */

static cl_event new_event(cl_command_queue q, cl_command_type type) {
  cl_event e = cla__sim_new(q->o.device, SIM_EVENT);
  if (e == NULL) return NULL;
  e->context = q->context;
  e->queue = q;
  e->work.type = type;
  e->queued_ns = q->o.device->clock_ns;
  sim_hold(q);
  return e;
}

static bool add_edge(cl_event waiter, cl_event needed) {
  sim_edge *edge = malloc(sizeof *edge);
  if (edge == NULL) return false;
  *edge = (sim_edge){waiter, needed, waiter->needs, NULL};
  waiter->needs = edge;
  return true;
}

/* Enters the waiter on its needs' lists: from here on they count it down. */
static void link_edges(cl_event waiter) {
  for (sim_edge *edge = waiter->needs; edge != NULL; edge = edge->next_need) {
    edge->next_waiter = edge->needed->waiters;
    edge->needed->waiters = edge;
    sim_hold(edge->needed);
    waiter->waits_left++;
  }
}

/* Undoes add_edge before link_edges, and the event with it. */
static void forget_unlinked(cl_event e) {
  for (sim_edge *edge = e->needs, *next; edge != NULL; edge = next) {
    next = edge->next_need;
    free(edge);
  }
  e->needs = NULL;
  cla__sim_unref(e);
}

/* Puts a command that cannot end now at the end of its queue; its reference is the caller's. */
static cl_event append(cl_command_queue q, const sim_work *work, cl_uint nwait, const cl_event *wait) {
  cl_event e = new_event(q, work->type);
  if (e == NULL) return NULL;
  e->status = CL_SUBMITTED;
  for (cl_uint i = 0; i < nwait; i++) {
    if (wait[i]->status < 0) e->is_wait_failed = true;
    if (!has_ended(wait[i]) && !add_edge(e, wait[i])) goto fail;
  }
  cl_mem *uses = e->few_uses;
  if (work->nuses > SIM_INLINE_USES) {
    uses = malloc(work->nuses * sizeof *uses);
    if (uses == NULL) goto fail;
  }
  for (size_t i = 0; i < work->nuses; i++) sim_hold(uses[i] = work->uses[i]);
  e->work = *work;
  e->work.uses = uses;
  link_edges(e);
  sim_hold(e); /* the queue's */
  if (q->last != NULL) q->last->next = e;
  else q->first = e;
  q->last = e;
  return e;
fail:
  forget_unlinked(e);
  return NULL;
}

static cl_int submit_waiting(cl_command_queue q, const sim_work *work, cl_uint nwait, const cl_event *wait,
                             cl_event *out) {
  cl_event e = append(q, work, nwait, wait);
  if (e == NULL) return CL_OUT_OF_HOST_MEMORY;
  if (q->first == e && e->waits_left == 0) make_ready(q);
  settle(q->o.device);
  if (work->is_blocking) wait_for(e);
  const bool is_failed = work->is_blocking && e->status < 0;
  const bool is_wanted = out != NULL && !is_failed;
  if (is_wanted) *out = e;
  else cla__sim_unref(e);
  return is_failed ? CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST : CL_SUCCESS;
}

cl_int cla__sim_submit(cl_command_queue q, const sim_work *work, cl_uint nwait, const cl_event *wait, cl_event *out) {
  bool is_free = q->is_automatic && q->first == NULL;
  bool is_wait_failed = false;
  for (cl_uint i = 0; i < nwait; i++) {
    if (!has_ended(wait[i])) is_free = false;
    else if (wait[i]->status < 0) is_wait_failed = true;
  }
  if (!is_free) return submit_waiting(q, work, nwait, wait, out);
  if (work->is_blocking && is_wait_failed) return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
  cl_event e = NULL;
  if (out != NULL && (e = new_event(q, work->type)) == NULL) return CL_OUT_OF_HOST_MEMORY;
  const cl_int status = perform(q, work, is_wait_failed);
  if (e != NULL) {
    e->status = status;
    e->start_ns = e->queued_ns;
    e->end_ns = q->o.device->clock_ns;
    *out = e;
  }
  return CL_SUCCESS;
}

/* ---- Events ---- */

cl_event cla__sim_create_user_event(cl_context c, cl_int *err) {
  if (!sim_is(c, SIM_CONTEXT)) return sim_made(NULL, CL_INVALID_CONTEXT, err);
  sim_enter(c->o.device);
  cl_event e = cla__sim_new(c->o.device, SIM_EVENT);
  if (e != NULL) {
    e->context = c;
    e->work.type = CL_COMMAND_USER;
    e->status = CL_SUBMITTED;
    sim_hold(c);
  }
  cla__sim_leave(c->o.device);
  return sim_made(e, e != NULL ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, err);
}

void cla__sim_event_free(cl_event e) {
  while (e->callbacks != NULL) { /* of a user event that was never set */
    sim_callback *cb = e->callbacks;
    e->callbacks = cb->next;
    free(cb);
  }
  cla__sim_drop(e->queue != NULL ? (void *)e->queue : (void *)e->context);
}

cl_int cla__sim_set_user_event(cl_event e, cl_int status) {
  if (!sim_is(e, SIM_EVENT) || e->queue != NULL) return CL_INVALID_EVENT;
  if (status > CL_COMPLETE) return CL_INVALID_VALUE;
  cl_device_id dev = e->o.device;
  sim_enter(dev);
  const cl_int err = has_ended(e) ? CL_INVALID_OPERATION : CL_SUCCESS;
  if (err == CL_SUCCESS) {
    end_event(e, status);
    settle(dev);
  }
  cla__sim_leave(dev);
  return err;
}

cl_int cla__sim_retain_event(cl_event e) { return cla__sim_retain(e, SIM_EVENT, CL_INVALID_EVENT); }

cl_int cla__sim_release_event(cl_event e) { return cla__sim_release(e, SIM_EVENT, CL_INVALID_EVENT); }

cl_int cla__sim_get_event_info(cl_event e, cl_event_info what, size_t size, void *out, size_t *used) {
  if (!sim_is(e, SIM_EVENT)) return CL_INVALID_EVENT;
  sim_enter(e->o.device);
  const cl_int status = e->status;
  const cl_uint refs = e->o.refs;
  cla__sim_leave(e->o.device);
  switch (what) {
  case CL_EVENT_COMMAND_EXECUTION_STATUS: return cla__sim_answer(&status, sizeof status, size, out, used);
  case CL_EVENT_REFERENCE_COUNT: return cla__sim_answer(&refs, sizeof refs, size, out, used);
  case CL_EVENT_COMMAND_TYPE: return cla__sim_answer(&e->work.type, sizeof e->work.type, size, out, used);
  case CL_EVENT_COMMAND_QUEUE: return cla__sim_answer(&e->queue, sizeof e->queue, size, out, used);
  case CL_EVENT_CONTEXT: return cla__sim_answer(&e->context, sizeof e->context, size, out, used);
  default: return CL_INVALID_VALUE;
  }
}

cl_int cla__sim_wait_events(cl_uint n, const cl_event *events) {
  if (n == 0 || events == NULL) return CL_INVALID_VALUE;
  for (cl_uint i = 0; i < n; i++) {
    if (!sim_is(events[i], SIM_EVENT)) return CL_INVALID_EVENT;
    if (events[i]->context != events[0]->context) return CL_INVALID_CONTEXT;
  }
  cl_device_id dev = events[0]->o.device;
  cl_int err = CL_SUCCESS;
  sim_enter(dev);
  for (cl_uint i = 0; i < n; i++) {
    wait_for(events[i]);
    if (events[i]->status < 0) err = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
  }
  cla__sim_leave(dev);
  return err;
}

cl_int cla__sim_get_event_profile(cl_event e, cl_profiling_info what, size_t size, void *out, size_t *used) {
  if (!sim_is(e, SIM_EVENT)) return CL_INVALID_EVENT;
  sim_enter(e->o.device);
  const bool is_complete = e->status == CL_COMPLETE;
  cla__sim_leave(e->o.device);
  if (!is_complete || e->queue == NULL || (e->queue->properties & CL_QUEUE_PROFILING_ENABLE) == 0)
    return CL_PROFILING_INFO_NOT_AVAILABLE;
  switch (what) {
  case CL_PROFILING_COMMAND_QUEUED:
  case CL_PROFILING_COMMAND_SUBMIT: return cla__sim_answer(&e->queued_ns, 8, size, out, used);
  case CL_PROFILING_COMMAND_START: return cla__sim_answer(&e->start_ns, 8, size, out, used);
  case CL_PROFILING_COMMAND_END:
  case CL_PROFILING_COMMAND_COMPLETE: return cla__sim_answer(&e->end_ns, 8, size, out, used);
  default: return CL_INVALID_VALUE;
  }
}

cl_int cla__sim_set_event_callback(cl_event e, cl_int status, void(CL_CALLBACK *fn)(cl_event, cl_int, void *),
                                   void *arg) {
  if (!sim_is(e, SIM_EVENT)) return CL_INVALID_EVENT;
  if (fn == NULL || status < CL_COMPLETE || status > CL_SUBMITTED) return CL_INVALID_VALUE;
  sim_callback *cb = malloc(sizeof *cb);
  if (cb == NULL) return CL_OUT_OF_HOST_MEMORY;
  cl_device_id dev = e->o.device;
  sim_enter(dev);
  *cb = (sim_callback){.fn = fn, .arg = arg, .event = e, .status = status};
  if (has_ended(e) || status == CL_SUBMITTED) make_due(cb, e->status);
  else {
    sim_callback **link = &e->callbacks;
    while (*link != NULL) link = &(*link)->next;
    *link = cb;
  }
  cla__sim_leave(dev);
  return CL_SUCCESS;
}
