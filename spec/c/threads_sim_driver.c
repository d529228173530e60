/* The simulated device under several threads: for the thread sanitizer as much as the checks. */
#include "sim_world.h"

#include <pthread.h>

typedef struct hammer {
  world w;
  cl_command_queue own;
  unsigned seed;
} hammer;

static void *hammer_device(void *arg) {
  hammer *h = arg;
  for (int i = 0; i < 5000; i++) {
    cl_int err;
    cl_event e[2] = {NULL};
    char host;
    h->seed = h->seed * 1103515245u + 12345u;
    cl_mem m = buffer(h->w, 512 + h->seed % 4096, &err);
    if (!CHECK(m != NULL)) break;
    cl_mem sub = cla__create_sub_buffer(d, m, 0, 0, 256, &err);
    CHECK(cla__enqueue_fill(d, h->own, sub, "", 1, 0, 256, 0, NULL, &e[0]) == CL_SUCCESS);
    CHECK(cla__enqueue_marker(d, h->w.q, 1, e, &e[1]) == CL_SUCCESS); /* both threads' */
    CHECK(cla__release_sub_buffer(d, sub) == CL_SUCCESS);
    if (h->seed % 3 == 0) CHECK(cla__wait_events(d, 2, e) == CL_SUCCESS);
    if (h->seed % 7 == 0) {
      CHECK(cla__enqueue_read(d, h->own, m, CL_TRUE, 0, 1, &host, 0, NULL, NULL) == CL_SUCCESS);
      CHECK(host == 0);
    }
    if (h->seed % 11 == 0) cla__sim_complete(h->w.q, 3);
    release_events(2, e);
    CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  }
  CHECK(cla__finish(d, h->own) == CL_SUCCESS);
  return NULL;
}

static void two_threads_share_a_device(void) {
  for (int is_manual = 0; is_manual < 2; is_manual++) {
    world w = open_world((cla_sim_config){.capacity = GiB, .manual = is_manual != 0});
    hammer h[2];
    pthread_t threads[2];
    for (unsigned i = 0; i < 2; i++) {
      h[i] = (hammer){w, cla__create_queue(d, w.context, w.dev, NULL, NULL), i + 1};
      CHECK(pthread_create(&threads[i], NULL, hammer_device, &h[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
      pthread_join(threads[i], NULL);
      CHECK(cla__finish(d, w.q) == CL_SUCCESS);
    }
    for (int i = 0; i < 2; i++) CHECK(cla__release_queue(d, h[i].own) == CL_SUCCESS);
    close_world(w);
  }
}

typedef struct sleeper {
  world w;
  cl_event *e;
  char host;
  atomic_int step;
} sleeper;

static void *sleep_behind_gate(void *arg) {
  sleeper *s = arg;
  cl_mem m = buffer(s->w, 64, NULL);
  s->host = 'x';
  atomic_store(&s->step, 1);
  CHECK(cla__enqueue_read(d, s->w.q, m, CL_TRUE, 0, 1, &s->host, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(s->host == 0 && atomic_load(&s->step) == 2);
  CHECK(cla__wait_events(d, 1, s->e) == CL_SUCCESS);
  CHECK(cla__finish(d, s->w.q) == CL_SUCCESS);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  return NULL;
}

static void a_thread_opens_the_gate_another_waits_for(void) {
  for (int i = 0; i < 200; i++) {
    world w = open_world((cla_sim_config){.capacity = 4096, .manual = i % 2 != 0});
    cl_event gate = cla__create_user_event(d, w.context, NULL);
    cl_event e[2] = {marker(w.q2, 1, &gate), NULL};
    e[1] = marker(w.q, 1, e);
    sleeper s = {.w = w, .e = &e[1]};
    atomic_init(&s.step, 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sleep_behind_gate, &s) == 0);
    while (atomic_load(&s.step) == 0) {
    }
    atomic_store(&s.step, 2);
    CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_SUCCESS);
    pthread_join(thread, NULL);
    release_events(2, e);
    CHECK(cla__release_event(d, gate) == CL_SUCCESS);
    close_world(w);
  }
}

int main(void) {
  two_threads_share_a_device();
  a_thread_opens_the_gate_another_waits_for();
  return check_done("threads_sim_driver");
}
