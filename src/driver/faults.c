/* Counting and faults: the functions through which everything above reaches a driver.
 *
 * Assumes nothing about the driver but OpenCL's rules for results. Guarantees: each call that
 * reaches a driver, or is made to fail in its place, is counted once; a live count changes only
 * when the driver did what it was asked; after cla__forbid_driver no driver is touched again.
 * Counters are relaxed atomics: exact when threads have been joined, monotonic meanwhile. */
#include "driver/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static const char *const call_names[CLA_CALL_COUNT] = {
#define CALL_NAME(name, function) #name,
    CLA_DRIVER_CALLS(CALL_NAME)
#undef CALL_NAME
};

static const char *const live_names[CLA_LIVE_COUNT] = {
    [CLA_LIVE_CONTEXT] = "context", [CLA_LIVE_QUEUE] = "queue",   [CLA_LIVE_BUFFER] = "buffer",
    [CLA_LIVE_SUB] = "sub_buffer",  [CLA_LIVE_SVM] = "svm",       [CLA_LIVE_EVENT] = "event",
    [CLA_LIVE_PROGRAM] = "program", [CLA_LIVE_KERNEL] = "kernel",
};

static _Atomic uint64_t calls[CLA_CALL_COUNT];
static _Atomic int64_t live[CLA_LIVE_COUNT];
atomic_bool cla__forbidden;

/* The armed fault. `armed` may be read without the lock; the rest only under it. */
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool armed;
static struct {
  int call;      /* a cla_call; negative: any */
  uint64_t left; /* calls to go; the one that takes it to 0 fails */
  cl_int code;   /* what it reports; 0: default_code() */
} fault;

const char *cla__call_name(cla_call call) { return (unsigned)call < CLA_CALL_COUNT ? call_names[call] : "?"; }

const char *cla__live_name(cla_live kind) { return (unsigned)kind < CLA_LIVE_COUNT ? live_names[kind] : "?"; }

int cla__call_find(const char *name) {
  for (int i = 0; i < CLA_CALL_COUNT; i++)
    if (strcmp(call_names[i], name) == 0) return i;
  return -1;
}

uint64_t cla__call_count(cla_call call) { return atomic_load_explicit(&calls[call], memory_order_relaxed); }

uint64_t cla__call_total(void) {
  uint64_t total = 0;
  for (int i = 0; i < CLA_CALL_COUNT; i++) total += cla__call_count((cla_call)i);
  return total;
}

void cla__calls_reset(void) {
  for (int i = 0; i < CLA_CALL_COUNT; i++) atomic_store_explicit(&calls[i], 0, memory_order_relaxed);
}

int64_t cla__live_count(cla_live kind) { return atomic_load_explicit(&live[kind], memory_order_relaxed); }

void cla__fail(int call, uint64_t n, cl_int code) {
  if (cla__driver_forbidden()) return; /* the lock may have been held by a thread lost in the fork */
  pthread_mutex_lock(&fault_lock);
  fault.call = call;
  fault.left = n;
  fault.code = code;
  atomic_store_explicit(&armed, n != 0, memory_order_relaxed);
  pthread_mutex_unlock(&fault_lock);
}

bool cla__fail_armed(void) { return atomic_load_explicit(&armed, memory_order_relaxed); }

void cla__forbid_driver(void) { atomic_store_explicit(&cla__forbidden, true, memory_order_relaxed); }

/* ---- The common path ---- */

static cl_int default_code(cla_call call) {
  return call == CLA_CALL_create_buffer ? CL_MEM_OBJECT_ALLOCATION_FAILURE : CL_OUT_OF_RESOURCES;
}

/* A fault is armed: counts this call towards it. */
static __attribute__((noinline)) cl_int draw_fault(cla_call call) {
  cl_int code = CL_SUCCESS;
  pthread_mutex_lock(&fault_lock);
  if (fault.left > 0 && (fault.call < 0 || fault.call == (int)call) && --fault.left == 0) {
    code = fault.code != CL_SUCCESS ? fault.code : default_code(call);
    atomic_store_explicit(&armed, false, memory_order_relaxed);
  }
  pthread_mutex_unlock(&fault_lock);
  return code;
}

/* Counts a call. Anything but CL_SUCCESS is to be reported in place of the driver's answer. */
static cl_int enter(cla_call call) {
  if (cla__driver_forbidden()) return CL_INVALID_OPERATION;
  atomic_fetch_add_explicit(&calls[call], 1, memory_order_relaxed);
  return cla__fail_armed() ? draw_fault(call) : CL_SUCCESS;
}

static void live_add(cla_live kind, int64_t n) { atomic_fetch_add_explicit(&live[kind], n, memory_order_relaxed); }

/* The end of a call that makes or retains an object of this kind. */
static cl_int gained(cla_live kind, cl_int err) {
  if (err == CL_SUCCESS) live_add(kind, 1);
  return err;
}

/* The same for a creator, which reports through a pointer. */
static void created(cla_live kind, cl_int err, cl_int *out) {
  gained(kind, err);
  if (out != NULL) *out = err;
}

/* The end of a release: the driver has let go, whatever the fault makes us say. */
static cl_int released(cla_live kind, cl_int err, cl_int drawn) {
  if (err == CL_SUCCESS) live_add(kind, -1);
  return err != CL_SUCCESS ? err : drawn;
}

/* The end of an enqueue that may have handed out an event. */
static cl_int enqueued(cl_int err, const cl_event *out) {
  if (err == CL_SUCCESS && out != NULL) live_add(CLA_LIVE_EVENT, 1);
  return err;
}

/* ---- Platforms, devices, contexts, queues ---- */

cl_int cla__get_platform_ids(const cla_driver *d, cl_uint n, cl_platform_id *out, cl_uint *count) {
  cl_int err = enter(CLA_CALL_get_platform_ids);
  return err != CL_SUCCESS ? err : d->get_platform_ids(n, out, count);
}

cl_int cla__get_platform_info(const cla_driver *d, cl_platform_id p, cl_platform_info what, size_t size, void *out,
                              size_t *used) {
  cl_int err = enter(CLA_CALL_get_platform_info);
  return err != CL_SUCCESS ? err : d->get_platform_info(p, what, size, out, used);
}

cl_int cla__get_device_ids(const cla_driver *d, cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id *out,
                           cl_uint *count) {
  cl_int err = enter(CLA_CALL_get_device_ids);
  return err != CL_SUCCESS ? err : d->get_device_ids(p, type, n, out, count);
}

cl_int cla__get_device_info(const cla_driver *d, cl_device_id dev, cl_device_info what, size_t size, void *out,
                            size_t *used) {
  cl_int err = enter(CLA_CALL_get_device_info);
  return err != CL_SUCCESS ? err : d->get_device_info(dev, what, size, out, used);
}

cl_context cla__create_context(const cla_driver *d, const cl_context_properties *properties, cl_device_id dev,
                               cl_int *err) {
  cl_context c = NULL;
  cl_int e = enter(CLA_CALL_create_context);
  if (e == CL_SUCCESS) c = d->create_context(properties, 1, &dev, NULL, NULL, &e);
  created(CLA_LIVE_CONTEXT, e, err);
  return c;
}

cl_int cla__release_context(const cla_driver *d, cl_context c) {
  cl_int drawn = enter(CLA_CALL_release_context);
  if (cla__driver_forbidden()) return drawn;
  return released(CLA_LIVE_CONTEXT, d->release_context(c), drawn);
}

cl_command_queue cla__create_queue(const cla_driver *d, cl_context c, cl_device_id dev,
                                   const cl_queue_properties *properties, cl_int *err) {
  cl_command_queue q = NULL;
  cl_int e = enter(CLA_CALL_create_queue);
  if (e == CL_SUCCESS) q = d->create_queue(c, dev, properties, &e);
  created(CLA_LIVE_QUEUE, e, err);
  return q;
}

cl_int cla__retain_queue(const cla_driver *d, cl_command_queue q) {
  cl_int err = enter(CLA_CALL_retain_queue);
  return gained(CLA_LIVE_QUEUE, err != CL_SUCCESS ? err : d->retain_queue(q));
}

cl_int cla__release_queue(const cla_driver *d, cl_command_queue q) {
  cl_int drawn = enter(CLA_CALL_release_queue);
  if (cla__driver_forbidden()) return drawn;
  return released(CLA_LIVE_QUEUE, d->release_queue(q), drawn);
}

cl_int cla__get_queue_info(const cla_driver *d, cl_command_queue q, cl_command_queue_info what, size_t size, void *out,
                           size_t *used) {
  cl_int err = enter(CLA_CALL_get_queue_info);
  return err != CL_SUCCESS ? err : d->get_queue_info(q, what, size, out, used);
}

/* ---- Memory ---- */

cl_mem cla__create_buffer(const cla_driver *d, cl_context c, cl_mem_flags flags, size_t size, void *host, cl_int *err) {
  cl_mem m = NULL;
  cl_int e = enter(CLA_CALL_create_buffer);
  if (e == CL_SUCCESS) m = d->create_buffer(c, flags, size, host, &e);
  created(CLA_LIVE_BUFFER, e, err);
  return m;
}

cl_mem cla__create_sub_buffer(const cla_driver *d, cl_mem parent, cl_mem_flags flags, size_t offset_bytes, size_t size,
                              cl_int *err) {
  const cl_buffer_region region = {.origin = offset_bytes, .size = size};
  cl_mem m = NULL;
  cl_int e = enter(CLA_CALL_create_sub_buffer);
  if (e == CL_SUCCESS) m = d->create_sub_buffer(parent, flags, CL_BUFFER_CREATE_TYPE_REGION, &region, &e);
  created(CLA_LIVE_SUB, e, err);
  return m;
}

static cl_int release_mem(const cla_driver *d, cl_mem m, cla_live kind) {
  cl_int drawn = enter(CLA_CALL_release_mem);
  if (cla__driver_forbidden()) return drawn;
  return released(kind, d->release_mem(m), drawn);
}

cl_int cla__release_buffer(const cla_driver *d, cl_mem m) { return release_mem(d, m, CLA_LIVE_BUFFER); }

cl_int cla__release_sub_buffer(const cla_driver *d, cl_mem m) { return release_mem(d, m, CLA_LIVE_SUB); }

void *cla__svm_alloc(const cla_driver *d, cl_context c, cl_svm_mem_flags flags, size_t size, cl_uint align_bytes) {
  if (enter(CLA_CALL_svm_alloc) != CL_SUCCESS) return NULL;
  void *p = d->svm_alloc(c, flags, size, align_bytes);
  if (p != NULL) live_add(CLA_LIVE_SVM, 1);
  return p;
}

/* It has no result to report a fault with, so it is no candidate for one. */
void cla__svm_free(const cla_driver *d, cl_context c, void *p) {
  if (cla__driver_forbidden()) return;
  atomic_fetch_add_explicit(&calls[CLA_CALL_svm_free], 1, memory_order_relaxed);
  d->svm_free(c, p);
  if (p != NULL) live_add(CLA_LIVE_SVM, -1);
}

/* ---- Commands ---- */

cl_int cla__enqueue_read(const cla_driver *d, cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset,
                         size_t size, void *host, cl_uint nwait, const cl_event *wait, cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_read);
  if (err == CL_SUCCESS) err = d->enqueue_read(q, m, blocking, offset, size, host, nwait, wait, out);
  return enqueued(err, out);
}

cl_int cla__enqueue_write(const cla_driver *d, cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset,
                          size_t size, const void *host, cl_uint nwait, const cl_event *wait, cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_write);
  if (err == CL_SUCCESS) err = d->enqueue_write(q, m, blocking, offset, size, host, nwait, wait, out);
  return enqueued(err, out);
}

cl_int cla__enqueue_copy(const cla_driver *d, cl_command_queue q, cl_mem src, cl_mem dst, size_t src_offset,
                         size_t dst_offset, size_t size, cl_uint nwait, const cl_event *wait, cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_copy);
  if (err == CL_SUCCESS) err = d->enqueue_copy(q, src, dst, src_offset, dst_offset, size, nwait, wait, out);
  return enqueued(err, out);
}

cl_int cla__enqueue_fill(const cla_driver *d, cl_command_queue q, cl_mem m, const void *pattern, size_t pattern_size,
                         size_t offset, size_t size, cl_uint nwait, const cl_event *wait, cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_fill);
  if (err == CL_SUCCESS) err = d->enqueue_fill(q, m, pattern, pattern_size, offset, size, nwait, wait, out);
  return enqueued(err, out);
}

void *cla__enqueue_map(const cla_driver *d, cl_command_queue q, cl_mem m, cl_bool blocking, cl_map_flags flags,
                       size_t offset, size_t size, cl_uint nwait, const cl_event *wait, cl_event *out, cl_int *err) {
  void *host = NULL;
  cl_int e = enter(CLA_CALL_enqueue_map);
  if (e == CL_SUCCESS) host = d->enqueue_map(q, m, blocking, flags, offset, size, nwait, wait, out, &e);
  enqueued(e, out);
  if (err != NULL) *err = e;
  return host;
}

cl_int cla__enqueue_unmap(const cla_driver *d, cl_command_queue q, cl_mem m, void *host, cl_uint nwait,
                          const cl_event *wait, cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_unmap);
  if (err == CL_SUCCESS) err = d->enqueue_unmap(q, m, host, nwait, wait, out);
  return enqueued(err, out);
}

cl_int cla__enqueue_migrate(const cla_driver *d, cl_command_queue q, const cl_mem *m, cl_mem_migration_flags flags,
                            cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_migrate);
  if (err == CL_SUCCESS) err = d->enqueue_migrate(q, 1, m, flags, 0, NULL, out);
  return enqueued(err, out);
}

cl_int cla__enqueue_marker(const cla_driver *d, cl_command_queue q, cl_uint nwait, const cl_event *wait,
                           cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_marker);
  if (err == CL_SUCCESS) err = d->enqueue_marker(q, nwait, wait, out);
  return enqueued(err, out);
}

cl_int cla__enqueue_barrier(const cla_driver *d, cl_command_queue q, cl_uint nwait, const cl_event *wait,
                            cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_barrier);
  if (err == CL_SUCCESS) err = d->enqueue_barrier(q, nwait, wait, out);
  return enqueued(err, out);
}

cl_int cla__enqueue_kernel(const cla_driver *d, cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset,
                           const size_t *global, const size_t *local, cl_uint nwait, const cl_event *wait,
                           cl_event *out) {
  cl_int err = enter(CLA_CALL_enqueue_kernel);
  if (err == CL_SUCCESS) err = d->enqueue_kernel(q, k, dims, offset, global, local, nwait, wait, out);
  return enqueued(err, out);
}

cl_int cla__flush(const cla_driver *d, cl_command_queue q) {
  cl_int err = enter(CLA_CALL_flush);
  return err != CL_SUCCESS ? err : d->flush(q);
}

cl_int cla__finish(const cla_driver *d, cl_command_queue q) {
  cl_int err = enter(CLA_CALL_finish);
  return err != CL_SUCCESS ? err : d->finish(q);
}

/* ---- Events ---- */

cl_event cla__create_user_event(const cla_driver *d, cl_context c, cl_int *err) {
  cl_event event = NULL;
  cl_int e = enter(CLA_CALL_create_user_event);
  if (e == CL_SUCCESS) event = d->create_user_event(c, &e);
  created(CLA_LIVE_EVENT, e, err);
  return event;
}

/* A gate that stays shut because a test made its opening fail would hang everything behind it. */
cl_int cla__set_user_event(const cla_driver *d, cl_event e, cl_int status) {
  cl_int drawn = enter(CLA_CALL_set_user_event);
  if (cla__driver_forbidden()) return drawn;
  cl_int err = d->set_user_event(e, status);
  return err != CL_SUCCESS ? err : drawn;
}

cl_int cla__retain_event(const cla_driver *d, cl_event e) {
  cl_int err = enter(CLA_CALL_retain_event);
  return gained(CLA_LIVE_EVENT, err != CL_SUCCESS ? err : d->retain_event(e));
}

cl_int cla__release_event(const cla_driver *d, cl_event e) {
  cl_int drawn = enter(CLA_CALL_release_event);
  if (cla__driver_forbidden()) return drawn;
  return released(CLA_LIVE_EVENT, d->release_event(e), drawn);
}

cl_int cla__get_event_info(const cla_driver *d, cl_event e, cl_event_info what, size_t size, void *out, size_t *used) {
  cl_int err = enter(CLA_CALL_get_event_info);
  return err != CL_SUCCESS ? err : d->get_event_info(e, what, size, out, used);
}

cl_int cla__wait_events(const cla_driver *d, cl_uint n, const cl_event *events) {
  cl_int err = enter(CLA_CALL_wait_events);
  return err != CL_SUCCESS ? err : d->wait_events(n, events);
}

cl_int cla__get_event_profile(const cla_driver *d, cl_event e, cl_profiling_info what, size_t size, void *out,
                              size_t *used) {
  cl_int err = enter(CLA_CALL_get_event_profile);
  return err != CL_SUCCESS ? err : d->get_event_profile(e, what, size, out, used);
}

cl_int cla__set_event_callback(const cla_driver *d, cl_event e, cl_int status,
                               void(CL_CALLBACK *fn)(cl_event, cl_int, void *), void *arg) {
  cl_int err = enter(CLA_CALL_set_event_callback);
  return err != CL_SUCCESS ? err : d->set_event_callback(e, status, fn, arg);
}

/* ---- Programs and kernels ---- */

cl_program cla__create_program(const cla_driver *d, cl_context c, const char *source, size_t length, cl_int *err) {
  cl_program p = NULL;
  cl_int e = enter(CLA_CALL_create_program);
  if (e == CL_SUCCESS) p = d->create_program(c, 1, &source, &length, &e);
  created(CLA_LIVE_PROGRAM, e, err);
  return p;
}

cl_int cla__build_program(const cla_driver *d, cl_program p, cl_device_id dev, const char *options) {
  cl_int err = enter(CLA_CALL_build_program);
  return err != CL_SUCCESS ? err : d->build_program(p, 1, &dev, options, NULL, NULL);
}

cl_int cla__get_build_info(const cla_driver *d, cl_program p, cl_device_id dev, cl_program_build_info what, size_t size,
                           void *out, size_t *used) {
  cl_int err = enter(CLA_CALL_get_build_info);
  return err != CL_SUCCESS ? err : d->get_build_info(p, dev, what, size, out, used);
}

cl_int cla__get_program_info(const cla_driver *d, cl_program p, cl_program_info what, size_t size, void *out,
                             size_t *used) {
  cl_int err = enter(CLA_CALL_get_program_info);
  return err != CL_SUCCESS ? err : d->get_program_info(p, what, size, out, used);
}

cl_int cla__release_program(const cla_driver *d, cl_program p) {
  cl_int drawn = enter(CLA_CALL_release_program);
  if (cla__driver_forbidden()) return drawn;
  return released(CLA_LIVE_PROGRAM, d->release_program(p), drawn);
}

cl_kernel cla__create_kernel(const cla_driver *d, cl_program p, const char *name, cl_int *err) {
  cl_kernel k = NULL;
  cl_int e = enter(CLA_CALL_create_kernel);
  if (e == CL_SUCCESS) k = d->create_kernel(p, name, &e);
  created(CLA_LIVE_KERNEL, e, err);
  return k;
}

cl_int cla__release_kernel(const cla_driver *d, cl_kernel k) {
  cl_int drawn = enter(CLA_CALL_release_kernel);
  if (cla__driver_forbidden()) return drawn;
  return released(CLA_LIVE_KERNEL, d->release_kernel(k), drawn);
}

cl_int cla__get_kernel_info(const cla_driver *d, cl_kernel k, cl_kernel_info what, size_t size, void *out,
                            size_t *used) {
  cl_int err = enter(CLA_CALL_get_kernel_info);
  return err != CL_SUCCESS ? err : d->get_kernel_info(k, what, size, out, used);
}

cl_int cla__get_kernel_arg_info(const cla_driver *d, cl_kernel k, cl_uint index, cl_kernel_arg_info what, size_t size,
                                void *out, size_t *used) {
  cl_int err = enter(CLA_CALL_get_kernel_arg_info);
  return err != CL_SUCCESS ? err : d->get_kernel_arg_info(k, index, what, size, out, used);
}

cl_int cla__get_kernel_group_info(const cla_driver *d, cl_kernel k, cl_device_id dev, cl_kernel_work_group_info what,
                                  size_t size, void *out, size_t *used) {
  cl_int err = enter(CLA_CALL_get_kernel_group_info);
  return err != CL_SUCCESS ? err : d->get_kernel_group_info(k, dev, what, size, out, used);
}

cl_int cla__set_kernel_arg(const cla_driver *d, cl_kernel k, cl_uint index, size_t size, const void *value) {
  cl_int err = enter(CLA_CALL_set_kernel_arg);
  return err != CL_SUCCESS ? err : d->set_kernel_arg(k, index, size, value);
}
