/* Streams from C: foreign queues, queues released while blocks wait for them, waits for gates that another thread
 * opens, guards, copies between devices, events. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

static cla_device *device;

static cla_stats stats_of(cla_pool *p) {
  cla_stats s;
  CHECK(cla_pool_stats(p, &s) == CLA_OK);
  CHECK(cla_pool_check(p) == CLA_OK);
  return s;
}

static void *open_gate(void *gate) {
  CHECK(cla_gate_open(gate) == CLA_OK);
  return NULL;
}

/* pytorch#189504: the block that would do is only waiting for an event; the allocation waits and uses it. */
static void a_held_block_is_waited_for(void) {
  const cla_pool_options options = {.policy = cla_policy_caching(), .limit = 100000000};
  cla_pool *p;
  cla_stream *q1, *q2;
  cla_gate *gate;
  void *h, *g;
  cl_event event = NULL;
  pthread_t thread;
  CHECK(cla_pool_create_with(device, &options, &p) == CLA_OK);
  CHECK(cla_stream_create(device, &q1) == CLA_OK);
  CHECK(cla_stream_create(device, &q2) == CLA_OK);
  CHECK(cla_gate_create(device, &gate) == CLA_OK); /* not exclusive: others may open it */
  CHECK(cla_alloc(p, 80000000, q1, &h) == CLA_OK);
  CHECK(cla_stream_wait_gate(q2, gate) == CLA_OK);
  CHECK(cla_fill(h, "x", 1, 4096, q2, &event) == CLA_OK);
  CHECK(cla_record(h, q2) == CLA_OK);
  CHECK(cla_free(h) == CLA_OK);
  CHECK(stats_of(p).held_blocks == 1);
  CHECK(pthread_create(&thread, NULL, open_gate, gate) == 0);
  CHECK(cla_alloc(p, 60000000, q1, &g) == CLA_OK);
  pthread_join(thread, NULL);
  CHECK(g == h);
  cla_stats s = stats_of(p);
  CHECK(s.segments == 1 && s.ooms == 0);
  CHECK(cla_free(g) == CLA_OK);
  cla_event_release(device, event);
  cla_gate_release(gate);
  cla_stream_release(q1);
  cla_stream_release(q2);
  cla_pool_release(p);
}

/* pytorch#66941: the queue is gone for its owner while a block still waits for it. */
static void a_foreign_queue_is_retained(void) {
  cla_pool *p;
  cla_stream *wrapped = NULL, *none = NULL;
  void *h, *g;
  cl_int err = CL_SUCCESS;
  cl_command_queue queue =
      clCreateCommandQueueWithProperties(cla_device_context(device), cla_device_id(device), NULL, &err);
  CHECK(err == CL_SUCCESS);
  CHECK(cla_pool_create(device, NULL, &p) == CLA_OK);
  CHECK(cla_stream_wrap(device, queue, &wrapped) == CLA_OK);
  CHECK(cla_alloc(p, 4096, NULL, &h) == CLA_OK);
  cl_mem mem;
  size_t offset;
  CHECK(cla_buffer_mem(h, &mem, &offset) == CLA_OK && offset == 0);
  char zeros[16] = {0}, ones[16];
  memset(ones, 1, sizeof ones);
  CHECK(clEnqueueWriteBuffer(queue, mem, CL_FALSE, 0, 16, ones, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla_stream_submitted(wrapped) == CLA_OK);
  CHECK(cla_record(h, wrapped) == CLA_OK);
  clReleaseCommandQueue(queue);
  CHECK(cla_copy(zeros, h, 16, wrapped, NULL) == CLA_OK);
  CHECK(memcmp(zeros, ones, 16) == 0);
  cla_stream_release(wrapped);
  CHECK(cla_free(h) == CLA_OK);
  CHECK(cla_alloc(p, 4096, NULL, &g) == CLA_OK);
  CHECK(cla_free(g) == CLA_OK);
  cla_pool_release(p);
  const cl_queue_properties unordered[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
  queue = clCreateCommandQueueWithProperties(cla_device_context(device), cla_device_id(device), unordered, &err);
  if (!err) {
    CHECK(cla_stream_wrap(device, queue, &none) == CLA_E_UNSUPPORTED && !none);
    clReleaseCommandQueue(queue);
  }
  cl_device_id id = cla_device_id(device);
  cl_context other = clCreateContext(NULL, 1, &id, NULL, NULL, &err);
  queue = clCreateCommandQueueWithProperties(other, id, NULL, &err);
  CHECK(cla_stream_wrap(device, queue, &none) == CLA_E_INVALID && !none);
  clReleaseCommandQueue(queue);
  clReleaseContext(other);
}

/* cuml#2632: every stream is gone; their memory is not. */
static void memory_of_closed_streams_is_reused(void) {
  cla_pool *p;
  void *x[8], *y;
  CHECK(cla_pool_create(device, NULL, &p) == CLA_OK);
  for (int i = 0; i < 8; i++) {
    cla_stream *s;
    CHECK(cla_stream_create(device, &s) == CLA_OK);
    CHECK(cla_alloc(p, 2 << 20, s, &x[i]) == CLA_OK);
    CHECK(cla_fill(x[i], "a", 1, 2 << 20, s, NULL) == CLA_OK);
    if (i % 2) CHECK(cla_free(x[i]) == CLA_OK);
    cla_stream_release(s);
    if (i % 2 == 0) CHECK(cla_free(x[i]) == CLA_OK);
  }
  cla_stats before = stats_of(p);
  CHECK(cla_alloc(p, 2 << 20, NULL, &y) == CLA_OK);
  CHECK(stats_of(p).driver_allocs == before.driver_allocs);
  CHECK(cla_free(y) == CLA_OK);
  size_t freed = 0;
  CHECK(cla_pool_trim(p, &freed) == CLA_OK && freed == before.reserved_bytes);
  CHECK(cla_debug_live("queue") == 2); /* the device's own */
  cla_pool_release(p);
}

/* Pieces of a segment that belonged to a closed stream and to a live one become whole, and go back. */
static void trim_merges_what_closed_streams_left(void) {
  cla_pool *p;
  cla_stream *s;
  void *x, *y;
  CHECK(cla_pool_create(device, NULL, &p) == CLA_OK);
  CHECK(cla_stream_create(device, &s) == CLA_OK);
  CHECK(cla_alloc(p, 1 << 20, s, &x) == CLA_OK);
  CHECK(cla_fill(x, "a", 1, 1 << 20, s, NULL) == CLA_OK);
  CHECK(cla_free(x) == CLA_OK);
  CHECK(cla_alloc(p, 1 << 20, NULL, &y) == CLA_OK); /* adopts a part */
  CHECK(stats_of(p).segments == 1);
  CHECK(cla_free(y) == CLA_OK);
  cla_stream_release(s);
  size_t freed = 0;
  CHECK(cla_pool_trim(p, &freed) == CLA_OK && freed == 2 << 20);
  CHECK(stats_of(p).reserved_bytes == 0);
  cla_pool_release(p);
}

static void guards_nest(void) {
  cla_guard outer, inner;
  cla_device *sim, *d;
  cla_stream *s, *mine;
  const cla_simulation description = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&description, &sim) == CLA_OK);
  CHECK(cla_stream_create(device, &mine) == CLA_OK);
  CHECK(cla_guard_enter(device, mine, &outer) == CLA_OK);
  CHECK(cla_guard_enter(sim, NULL, &inner) == CLA_OK);
  CHECK(cla_current(&d, &s) == CLA_OK && d == sim && s == cla_device_stream(sim));
  void *x;
  cla_buffer b;
  CHECK(cla_alloc(NULL, 10, NULL, &x) == CLA_OK);
  CHECK(cla_resolve(x, &b) == CLA_OK && b.device == sim);
  CHECK(cla_free(x) == CLA_OK);
  cla_guard_leave(&inner);
  CHECK(cla_current(&d, &s) == CLA_OK && d == device && s == mine);
  CHECK(cla_alloc(NULL, 10, NULL, &x) == CLA_OK);
  CHECK(cla_resolve(x, &b) == CLA_OK && b.device == device && b.stream == mine);
  CHECK(cla_free(x) == CLA_OK);
  CHECK(cla_guard_enter(sim, mine, &inner) == CLA_E_INVALID);
  cla_guard_leave(&outer);
  cla_stream_release(mine);
  cla_device_release(sim);
}

int main(void) {
  CHECK(cla_device_open(NULL, &device) == CLA_OK);
  a_held_block_is_waited_for();
  a_foreign_queue_is_retained();
  memory_of_closed_streams_is_reused();
  trim_merges_what_closed_streams_left();
  guards_nest();
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("streams");
}
