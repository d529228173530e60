/* Threads on one heap: two launch, one of them wanting it to itself now and then, two prepare launches from outside, one
 * inspects, one resets and changes the limit. What can be busy says so; nothing else goes wrong. Run under ThreadSanitizer. */
#include <pthread.h>

#include "check.h"
#include "heap/heap.h"

enum { ROUNDS = 1500 };

static cla_device *device;
static cla_heap *heap;
static atomic_bool finished;
static atomic_int resets, looks;

static bool is_fine(cla_status status) { return status == CLA_OK || status == CLA_E_BUSY; }

/* A command that stands for a kernel with the heap. */
static uint64_t enqueue(cla_stream *s, cl_mem memory) {
  const cl_uint zero = 0;
  cla__stream_before(s);
  CHECK(cla__enqueue_fill(device->driver, s->queue, memory, &zero, 4, 256, 4, 0, NULL, NULL) == CL_SUCCESS);
  return cla__stream_after(s);
}

static void *launcher(void *arg) {
  const bool is_alone = arg != NULL;
  cla_stream *s;
  CHECK(cla_stream_create(device, &s) == CLA_OK);
  for (int i = 0; i < ROUNDS; i++) {
    const bool alone = is_alone && i % 7 == 0;
    cl_mem memory = NULL;
    const cla_status status = cla__heap_enter(heap, s, alone, &memory);
    CHECK(alone ? is_fine(status) : status == CLA_OK);
    if (status) continue;
    CHECK(memory != NULL);
    for (int n = i % 3; n > 0; n--) sched_yield(); /* nobody takes it away from who is inside, however long he is */
    CHECK(heap->memory == memory);
    cla__heap_leave(heap, s, alone, i % 5 ? enqueue(s, memory) : 0);
  }
  CHECK(cla_stream_finish(s) == CLA_OK);
  cla_stream_release(s);
  return NULL;
}

static void *outsider(void *arg) {
  cla_stream *s;
  (void)arg;
  CHECK(cla_stream_create(device, &s) == CLA_OK);
  for (int i = 0; i < ROUNDS; i++) {
    cl_mem memory = NULL;
    const cla_status status = cla_heap_use(heap, s, &memory);
    if (!CHECK(status == CLA_OK)) continue;
    if (i % 3 == 0) sched_yield();
    CHECK(heap->memory == memory);
    enqueue(s, memory);
    CHECK(cla_heap_used(heap, s) == CLA_OK);
  }
  CHECK(cla_stream_finish(s) == CLA_OK);
  cla_stream_release(s);
  return NULL;
}

static bool count(const cla_heap_block *b, void *arg) {
  (void)b;
  ++*(int *)arg;
  return true;
}

static void *looker(void *arg) {
  (void)arg;
  while (!atomic_load(&finished)) {
    cla_heap_stats s;
    int blocks = 0;
    uint32_t number;
    const cla_status status = cla_heap_get_stats(heap, &s);
    CHECK(is_fine(status));
    if (!status) CHECK(s.used == 0 && s.limit == s.largest_free);
    CHECK(is_fine(cla_heap_check(heap)) && is_fine(cla_heap_blocks(heap, count, &blocks)) && blocks == 0);
    CHECK(cla_heap_kernel_number(heap, "kernel", &number) == CLA_OK && number == 1);
    cla__heap_is_idle(heap);
    atomic_fetch_add(&looks, !status);
  }
  return NULL;
}

static void *resetter(void *arg) {
  (void)arg;
  for (uint64_t i = 0; !atomic_load(&finished); i++) {
    const cla_status status = cla_heap_reset(heap);
    CHECK(is_fine(status));
    CHECK(is_fine(cla_heap_set_limit(heap, (1 + i % 3) << 20)) && is_fine(cla_heap_set_sites(heap, i % 2)));
    CHECK(is_fine(cla_heap_set_counting(heap, i % 2)) && cla_heap_limit(heap) > 0);
    CHECK(is_fine(cla_heap_reset_peaks(heap, i % 2)));
    atomic_fetch_add(&resets, !status);
  }
  return NULL;
}

/* Whoever finds no memory makes it, or finds that another has made it meanwhile and is at work outside the library. */
static void *maker(void *arg) {
  cla_stream *s;
  (void)arg;
  CHECK(cla_stream_create(device, &s) == CLA_OK);
  for (int i = 0; i < ROUNDS; i++) {
    cl_mem memory = NULL;
    if (!CHECK(cla_heap_use(heap, s, &memory) == CLA_OK)) continue;
    for (int n = i % 5; n > 0; n--) sched_yield();
    CHECK(cla_heap_used(heap, s) == CLA_OK && is_fine(cla_heap_reset(heap)));
  }
  cla_stream_release(s);
  return NULL;
}

static void makers_meet(void) {
  enum { MAKERS = 3 };
  pthread_t makers[MAKERS];
  for (int i = 0; i < MAKERS; i++) pthread_create(&makers[i], NULL, maker, NULL);
  for (int i = 0; i < MAKERS; i++) pthread_join(makers[i], NULL);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  CHECK(cla_device_heap(device, &heap) == CLA_OK);
  enum { WORKERS = 4 };
  pthread_t workers[WORKERS], others[2];
  pthread_create(&workers[0], NULL, launcher, NULL);
  pthread_create(&workers[1], NULL, launcher, &finished);
  pthread_create(&workers[2], NULL, outsider, NULL);
  pthread_create(&workers[3], NULL, outsider, NULL);
  pthread_create(&others[0], NULL, looker, NULL);
  pthread_create(&others[1], NULL, resetter, NULL);
  for (int i = 0; i < WORKERS; i++) pthread_join(workers[i], NULL);
  while (!atomic_load(&resets) || !atomic_load(&looks)) sched_yield(); /* both come through once nobody launches */
  atomic_store(&finished, true);
  for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
  CHECK(cla_heap_check(heap) == CLA_OK);
  makers_meet();
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("threads_heap");
}
