/* The layer over the drivers: counts of calls and of live objects, faults on demand, and the end of
 * all driver calls in a forked child. Runs on a simulated device. */
#include "check.h"
#include "driver/driver.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const cla_driver *const d = &cla__driver_simulated;

typedef struct world {
  cl_device_id dev;
  cl_context context;
  cl_command_queue queue;
} world;

static world open_world(void) {
  world w = {.dev = cla__sim_create(&(cla_sim_config){.capacity = 1 << 20})};
  cl_int err;
  w.context = cla__create_context(d, NULL, w.dev, &err);
  CHECK(err == CL_SUCCESS);
  w.queue = cla__create_queue(d, w.context, w.dev, NULL, &err);
  CHECK(err == CL_SUCCESS);
  return w;
}

static void close_world(world w) {
  CHECK(cla__release_queue(d, w.queue) == CL_SUCCESS);
  CHECK(cla__release_context(d, w.context) == CL_SUCCESS);
  cla__sim_destroy(w.dev);
}

static bool is_nothing_live(void) {
  for (int i = 0; i < CLA_LIVE_COUNT; i++)
    if (cla__live_count((cla_live)i) != 0) return false;
  return true;
}

static void names(void) {
  CHECK(strcmp(cla__call_name(CLA_CALL_create_buffer), "create_buffer") == 0);
  CHECK(strcmp(cla__call_name(CLA_CALL_COUNT), "?") == 0);
  CHECK(strcmp(cla__live_name(CLA_LIVE_KERNEL), "kernel") == 0);
  for (int i = 0; i < CLA_CALL_COUNT; i++) CHECK(cla__call_find(cla__call_name((cla_call)i)) == i);
  CHECK(cla__call_find("no_such_call") == -1);
}

static void counts_calls(void) {
  world w = open_world();
  cla__calls_reset();
  CHECK(cla__call_total() == 0);
  cl_mem m = cla__create_buffer(d, w.context, 0, 256, NULL, NULL);
  CHECK(cla__enqueue_fill(d, w.queue, m, "\0", 1, 0, 256, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla__create_buffer(d, w.context, 0, 0, NULL, NULL) == NULL); /* a failed call counts too */
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  CHECK(cla__call_count(CLA_CALL_create_buffer) == 2);
  CHECK(cla__call_count(CLA_CALL_enqueue_fill) == 1);
  CHECK(cla__call_count(CLA_CALL_release_mem) == 1);
  CHECK(cla__call_total() == 4);
  close_world(w);
}

static void counts_live_objects(void) {
  world w = open_world();
  cl_int err;
  CHECK(cla__live_count(CLA_LIVE_CONTEXT) == 1 && cla__live_count(CLA_LIVE_QUEUE) == 1);
  CHECK(cla__retain_queue(d, w.queue) == CL_SUCCESS && cla__live_count(CLA_LIVE_QUEUE) == 2);
  CHECK(cla__release_queue(d, w.queue) == CL_SUCCESS && cla__live_count(CLA_LIVE_QUEUE) == 1);

  cl_mem m = cla__create_buffer(d, w.context, 0, 4096, NULL, &err);
  cl_mem sub = cla__create_sub_buffer(d, m, 0, 512, 512, &err);
  CHECK(cla__live_count(CLA_LIVE_BUFFER) == 1 && cla__live_count(CLA_LIVE_SUB) == 1);
  CHECK(cla__create_sub_buffer(d, m, 0, 4096, 1, &err) == NULL && err == CL_INVALID_VALUE);
  CHECK(cla__live_count(CLA_LIVE_SUB) == 1);
  CHECK(cla__release_sub_buffer(d, sub) == CL_SUCCESS && cla__live_count(CLA_LIVE_SUB) == 0);
  CHECK(cla__release_sub_buffer(d, sub) == CL_INVALID_MEM_OBJECT);
  CHECK(cla__live_count(CLA_LIVE_SUB) == 0);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS && cla__live_count(CLA_LIVE_BUFFER) == 0);

  cl_event gate = cla__create_user_event(d, w.context, &err), marker = NULL;
  CHECK(cla__live_count(CLA_LIVE_EVENT) == 1);
  CHECK(cla__enqueue_marker(d, w.queue, 1, &gate, NULL) == CL_SUCCESS);
  CHECK(cla__live_count(CLA_LIVE_EVENT) == 1); /* no event was asked for */
  CHECK(cla__enqueue_marker(d, w.queue, 0, NULL, &marker) == CL_SUCCESS);
  CHECK(cla__retain_event(d, marker) == CL_SUCCESS && cla__live_count(CLA_LIVE_EVENT) == 3);
  CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_SUCCESS);
  CHECK(cla__release_event(d, gate) == CL_SUCCESS);
  CHECK(cla__release_event(d, marker) == CL_SUCCESS);
  CHECK(cla__release_event(d, marker) == CL_SUCCESS && cla__live_count(CLA_LIVE_EVENT) == 0);

  const char source[] = "kernel void f(int a) {}";
  cl_program p = cla__create_program(d, w.context, source, strlen(source), &err);
  CHECK(cla__build_program(d, p, w.dev, "") == CL_SUCCESS);
  cl_kernel k = cla__create_kernel(d, p, "f", &err);
  CHECK(cla__live_count(CLA_LIVE_PROGRAM) == 1 && cla__live_count(CLA_LIVE_KERNEL) == 1);
  CHECK(cla__release_kernel(d, k) == CL_SUCCESS && cla__release_program(d, p) == CL_SUCCESS);
  CHECK(cla__svm_alloc(d, w.context, 0, 64, 0) == NULL && cla__live_count(CLA_LIVE_SVM) == 0);
  close_world(w);
  CHECK(is_nothing_live());
}

static void fails_the_nth_call_once(void) {
  world w = open_world();
  cl_int err = CL_SUCCESS;
  cla__fail(CLA_CALL_create_buffer, 2, 0);
  cl_mem a = cla__create_buffer(d, w.context, 0, 64, NULL, &err);
  CHECK(a != NULL && cla__fail_armed());
  CHECK(cla__flush(d, w.queue) == CL_SUCCESS && cla__fail_armed()); /* another kind */
  CHECK(cla__create_buffer(d, w.context, 0, 64, NULL, &err) == NULL);
  CHECK(err == CL_MEM_OBJECT_ALLOCATION_FAILURE && !cla__fail_armed());
  CHECK(cla__live_count(CLA_LIVE_BUFFER) == 1 && cla__sim_used(w.dev) == 64);
  cl_mem b = cla__create_buffer(d, w.context, 0, 64, NULL, &err);
  CHECK(b != NULL && err == CL_SUCCESS);

  cla__fail(-1, 2, CL_OUT_OF_HOST_MEMORY);
  CHECK(cla__flush(d, w.queue) == CL_SUCCESS);
  CHECK(cla__finish(d, w.queue) == CL_OUT_OF_HOST_MEMORY);
  CHECK(cla__finish(d, w.queue) == CL_SUCCESS);
  cla__fail(CLA_CALL_flush, 1, 0);
  CHECK(cla__flush(d, w.queue) == CL_OUT_OF_RESOURCES);
  cla__fail(CLA_CALL_flush, 1, 0);
  cla__fail(CLA_CALL_flush, 0, 0); /* disarms */
  CHECK(!cla__fail_armed() && cla__flush(d, w.queue) == CL_SUCCESS);

  cl_event e = NULL;
  cla__fail(CLA_CALL_enqueue_marker, 1, 0);
  CHECK(cla__enqueue_marker(d, w.queue, 0, NULL, &e) == CL_OUT_OF_RESOURCES && e == NULL);
  CHECK(cla__live_count(CLA_LIVE_EVENT) == 0);
  CHECK(cla__release_buffer(d, a) == CL_SUCCESS && cla__release_buffer(d, b) == CL_SUCCESS);
  close_world(w);
}

static void releases_and_gates_do_their_work_when_they_fail(void) {
  world w = open_world();
  cl_mem m = cla__create_buffer(d, w.context, 0, 64, NULL, NULL);
  cla__fail(CLA_CALL_release_mem, 1, 0);
  CHECK(cla__release_buffer(d, m) == CL_OUT_OF_RESOURCES);
  CHECK(cla__live_count(CLA_LIVE_BUFFER) == 0 && cla__sim_used(w.dev) == 0);

  cl_event gate = cla__create_user_event(d, w.context, NULL);
  CHECK(cla__enqueue_marker(d, w.queue, 1, &gate, NULL) == CL_SUCCESS);
  cla__fail(CLA_CALL_set_user_event, 1, 0);
  CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_OUT_OF_RESOURCES);
  CHECK(cla__finish(d, w.queue) == CL_SUCCESS); /* would hang on a shut gate */
  CHECK(cla__release_event(d, gate) == CL_SUCCESS);

  cla__fail(-1, 1, 0);
  cla__svm_free(d, w.context, NULL); /* cannot fail, so it is not drawn */
  CHECK(cla__fail_armed());
  cla__fail(-1, 0, 0);
  close_world(w);
  CHECK(is_nothing_live());
}

static int child_is_refused(world w, cl_mem m) {
  cla__forbid_driver();
  cl_int err = CL_SUCCESS;
  const uint64_t calls = cla__call_total();
  char byte;
  int good = cla__driver_forbidden();
  good &= cla__create_buffer(d, w.context, 0, 64, NULL, &err) == NULL;
  good &= err == CL_INVALID_OPERATION;
  good &= cla__enqueue_read(d, w.queue, m, CL_TRUE, 0, 1, &byte, 0, NULL, NULL) == CL_INVALID_OPERATION;
  good &= cla__finish(d, w.queue) == CL_INVALID_OPERATION;
  good &= cla__release_buffer(d, m) == CL_INVALID_OPERATION;
  cla__svm_free(d, w.context, &byte);
  cla__fail(-1, 1, 0);
  good &= !cla__fail_armed();
  good &= cla__live_count(CLA_LIVE_BUFFER) == 1 && cla__live_count(CLA_LIVE_SVM) == 0;
  good &= cla__call_total() == calls;
  return good ? 0 : 1;
}

static void a_forked_child_is_refused(void) {
  world w = open_world();
  cl_mem m = cla__create_buffer(d, w.context, 0, 64, NULL, NULL);
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) _exit(child_is_refused(w, m));
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  close_world(w);
}

int main(void) {
  names();
  counts_calls();
  counts_live_objects();
  fails_the_nth_call_once();
  releases_and_gates_do_their_work_when_they_fail();
  a_forked_child_is_refused();
  CHECK(is_nothing_live());
  return check_done("faults");
}
