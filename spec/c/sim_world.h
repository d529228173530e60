/* A simulated device with a context and two queues (q measures time), and the calls on it that most
 * tests make. close_world checks that nothing is left of anything. */
#ifndef CLA_SIM_WORLD_H
#define CLA_SIM_WORLD_H

#include "check.h"
#include "driver/driver.h"

static const cla_driver *const d = &cla__driver_simulated;
static const uint64_t GiB = UINT64_C(1) << 30;

typedef struct world {
  cl_device_id dev;
  cl_context context;
  cl_command_queue q, q2;
} world;

static inline world open_world(cla_sim_config config) {
  static const cl_queue_properties profiling[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  world w = {.dev = cla__sim_create(&config)};
  w.context = cla__create_context(d, NULL, w.dev, NULL);
  w.q = cla__create_queue(d, w.context, w.dev, profiling, NULL);
  w.q2 = cla__create_queue(d, w.context, w.dev, NULL, NULL);
  CHECK(w.q != NULL && w.q2 != NULL);
  return w;
}

static inline void close_world(world w) {
  CHECK(cla__sim_used(w.dev) == 0);
  CHECK(cla__release_queue(d, w.q) == CL_SUCCESS && cla__release_queue(d, w.q2) == CL_SUCCESS);
  CHECK(cla__release_context(d, w.context) == CL_SUCCESS);
  cla__sim_destroy(w.dev);
  for (int i = 0; i < CLA_LIVE_COUNT; i++) CHECK(cla__live_count((cla_live)i) == 0);
}

static inline cl_mem buffer(world w, size_t nbytes, cl_int *err) {
  return cla__create_buffer(d, w.context, CL_MEM_READ_WRITE, nbytes, NULL, err);
}

static inline cl_event marker(cl_command_queue q, cl_uint nwait, const cl_event *wait) {
  cl_event e = NULL;
  CHECK(cla__enqueue_marker(d, q, nwait, wait, &e) == CL_SUCCESS);
  return e;
}

static inline void release_events(size_t n, cl_event *events) {
  for (size_t i = 0; i < n; i++) CHECK(cla__release_event(d, events[i]) == CL_SUCCESS);
}

#endif
