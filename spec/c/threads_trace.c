/* A pool that records while threads allocate, free, read, stop and start: every reading is a consistent one, in which
 * the events, played back from the end, leave no block twice, and the counts agree. Run under ThreadSanitizer. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

enum { WORKERS = 3, ROUNDS = 4000, LIVE = 24, RING = 1 << 12, ROOM = 1 << 14 };

static cla_device *device;
static cla_pool *pool;
static atomic_bool finished;

static uint64_t draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void *worker(void *arg) {
  uint64_t random = (uintptr_t)arg + 7;
  void *live[LIVE] = {0};
  cla_stream *stream;
  CHECK(cla_stream_create(device, &stream) == CLA_OK);
  for (int i = 0; i < ROUNDS; i++) {
    void **place = &live[draw(&random) % LIVE];
    if (*place) {
      CHECK(cla_free(*place) == CLA_OK);
      *place = NULL;
    } else {
      CHECK(cla_alloc(pool, 1 + draw(&random) % 100000, stream, place) == CLA_OK);
    }
    if (draw(&random) % 1000 == 0) CHECK(cla_pool_trim(pool, NULL) == CLA_OK);
  }
  for (int i = 0; i < LIVE; i++)
    if (live[i]) CHECK(cla_free(live[i]) == CLA_OK);
  cla_stream_release(stream);
  return NULL;
}

static int by_address(const void *a, const void *b) {
  const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
  return (x > y) - (x < y);
}

/* Undoes the events from the last to the first, on the set of blocks that were there at the end. */
static void check_reading(const cla_trace *t) {
  static uintptr_t live[ROOM];
  size_t n = 0;
  for (size_t i = 0; i < t->nblocks; i++)
    if (t->blocks[i].state == CLA_BLOCK_ACTIVE)
      live[n++] = (uintptr_t)t->blocks[i].segment_address + t->blocks[i].offset;
  for (size_t i = t->nevents; i-- > 0;) {
    const cla_trace_event *e = &t->events[i];
    if (i) CHECK(e->time_ns >= t->events[i - 1].time_ns);
    if (e->action == CLA_TRACE_FREE || e->action == CLA_TRACE_FREE_REQUESTED) {
      live[n++] = e->address;
      CHECK(n < ROOM);
    } else if (e->action == CLA_TRACE_ALLOC) {
      size_t at = 0;
      while (at < n && live[at] != e->address) at++;
      if (CHECK(at < n)) live[at] = live[--n];
    }
  }
  qsort(live, n, sizeof *live, by_address);
  for (size_t i = 1; i < n; i++) CHECK(live[i - 1] != live[i]);
  CHECK(n <= WORKERS * LIVE);
}

static void *reader(void *arg) {
  (void)arg;
  static cla_trace_event events[ROOM];
  static cla_block_info blocks[ROOM];
  for (int i = 0; !atomic_load(&finished); i++) {
    cla_trace t = {.events = events, .events_room = ROOM, .blocks = blocks, .blocks_room = ROOM};
    CHECK(cla_pool_trace_read(pool, &t) == CLA_OK);
    CHECK(t.nevents <= RING && t.nblocks <= ROOM);
    check_reading(&t);
    if (i % 5 == 3) CHECK(cla_pool_trace_stop(pool) == CLA_OK);
    if (i % 5 == 4) CHECK(cla_pool_trace_start(pool, RING) == CLA_OK);
  }
  return NULL;
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  pthread_t workers[WORKERS], other;
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  CHECK(cla_pool_create(device, NULL, &pool) == CLA_OK);
  cla_trace t = {0};
  CHECK(cla_pool_trace_read(pool, &t) == CLA_E_INVALID && cla_pool_trace_stop(pool) == CLA_E_INVALID);
  CHECK(cla_pool_trace_start(NULL, 0) == CLA_E_INVALID && cla_pool_trace_read(NULL, &t) == CLA_E_INVALID);
  CHECK(cla_pool_trace_start(pool, SIZE_MAX) == CLA_E_INVALID && cla_pool_trace_read(pool, NULL) == CLA_E_INVALID);
  CHECK(cla_pool_trace_start(pool, RING) == CLA_OK);
  pthread_create(&other, NULL, reader, NULL);
  for (uintptr_t i = 0; i < WORKERS; i++) pthread_create(&workers[i], NULL, worker, (void *)i);
  for (int i = 0; i < WORKERS; i++) pthread_join(workers[i], NULL);
  atomic_store(&finished, true);
  pthread_join(other, NULL);
  CHECK(cla_pool_trace_start(pool, 0) == CLA_OK);
  CHECK(cla_pool_check(pool) == CLA_OK);
  cla_pool_close(pool);
  CHECK(cla_pool_trace_read(pool, &t) == CLA_E_CLOSED && cla_pool_trace_start(pool, 1) == CLA_E_CLOSED);
  cla_pool_release(pool);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("threads_trace");
}
