/* Eight threads allocate, write, record and free pinned memory, and free each other's; one trims, counts and checks. The
 * first bytes of a block say whose it is, so memory handed out twice shows. Run under ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

enum { THREADS = 8, ROUNDS = 3000, SLOTS = 64 };

typedef struct parcel {
  void *memory, *context;
  uint64_t stamp;
} parcel;

static cla_device *device;
static cla_host *cache;
static parcel slots[SLOTS];
static pthread_mutex_t slot_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool finished;

static parcel swap(size_t i, parcel mine) {
  pthread_mutex_lock(&slot_lock);
  parcel theirs = slots[i];
  slots[i] = mine;
  pthread_mutex_unlock(&slot_lock);
  return theirs;
}

static void let_go(parcel x) {
  if (!x.context) return;
  uint64_t stamp;
  memcpy(&stamp, x.memory, sizeof stamp);
  CHECK(stamp == x.stamp);
  CHECK(cla_host_free(x.context) == CLA_OK);
}

static void *worker(void *arg) {
  uint64_t random = (uintptr_t)arg * 0x9E3779B97F4A7C15u + 1;
  cla_stream *stream;
  CHECK(cla_stream_create(device, &stream) == CLA_OK);
  for (uint64_t i = 0; i < ROUNDS; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    parcel x = {.stamp = (uintptr_t)arg << 32 | i};
    size_t nbytes = sizeof x.stamp + (random >> 40) % (i % 50 == 0 ? 300000 : 5000);
    if (!CHECK(cla_host_alloc(cache, nbytes, &x.memory, &x.context) == CLA_OK)) break;
    memcpy(x.memory, &x.stamp, sizeof x.stamp);
    if (i % 4 == 0) CHECK(cla_host_record((char *)x.memory + 1, NULL, stream) == CLA_OK);
    if (i % 16 == 0) CHECK(cla_stream_submitted(stream) == CLA_OK);
    let_go(swap((random >> 20) % SLOTS, x));
  }
  cla_stream_release(stream);
  return NULL;
}

static void *keeper(void *arg) {
  (void)arg;
  while (!atomic_load(&finished)) {
    cla_host_stats s;
    CHECK(cla_host_get_stats(cache, &s) == CLA_OK);
    if (!CHECK(cla_host_check(cache) == CLA_OK)) fprintf(stderr, "%s\n", cla_last_error());
    CHECK(cla_host_trim(cache, NULL) == CLA_OK);
  }
  return NULL;
}

static void run(bool background, cla_host_kind kind) {
  cla_host_options options = cla_host_defaults();
  options.background = background;
  options.kind = kind;
  CHECK(cla_host_create(device, &options, &cache) == CLA_OK);
  atomic_store(&finished, false);
  pthread_t threads[THREADS], other;
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, worker, (void *)(i + 1));
  pthread_create(&other, NULL, keeper, NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  atomic_store(&finished, true);
  pthread_join(other, NULL);
  for (size_t i = 0; i < SLOTS; i++) let_go(swap(i, (parcel){0}));
  CHECK(cla_host_process_events(cache) == CLA_OK);
  cla_host_stats s;
  CHECK(cla_host_get_stats(cache, &s) == CLA_OK);
  CHECK(s.active_blocks == 0 && s.allocs == (uint64_t)THREADS * ROUNDS && s.frees == s.allocs);
  CHECK(cla_host_check(cache) == CLA_OK);
  cla_host_close(cache);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  run(false, CLA_HOST_MAPPED);
  run(true, CLA_HOST_MAPPED);
  run(false, CLA_HOST_PLAIN);
  run(true, CLA_HOST_REGISTERED);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("threads_host");
}
