/* Threads on one pool: two allocate, fill, record and free on streams of their own and free each other's memory; one
 * trims, asks for statistics, snapshots and checks; one resolves addresses that may be freed under its hands. Run under
 * ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "check.h"
#include "clalloc.h"

enum { ROUNDS = 5000, MAILBOX = 64 };

static cla_device *device;
static cla_pool *pool;
static _Atomic(void *) mailbox[MAILBOX]; /* memory handed from one thread to another */
static atomic_bool finished;

static void *worker(void *arg) {
  uint64_t random = (uintptr_t)arg * 0x9E3779B97F4A7C15u + 1;
  cla_stream *stream;
  CHECK(cla_stream_create(device, &stream) == CLA_OK);
  for (int i = 0; i < ROUNDS; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    size_t nbytes = 100 + (random >> 40) % 10000;
    void *address = NULL;
    if (!CHECK(cla_alloc(pool, nbytes, stream, &address) == CLA_OK)) break;
    if (i % 8 == 0) {
      cl_event event = NULL;
      CHECK(cla_fill(address, "f", 1, nbytes, stream, &event) == CLA_OK);
      cla_event_release(device, event);
    }
    if (i % 16 == 0) CHECK(cla_record(address, cla_device_stream(device)) == CLA_OK);
    void *other = atomic_exchange(&mailbox[(random >> 20) % MAILBOX], address);
    if (other) CHECK(cla_free(other) == CLA_OK);
  }
  cla_stream_release(stream);
  return NULL;
}

static bool count(const cla_block_info *block, void *arg) {
  *(uint64_t *)arg += block->size;
  return true;
}

static void *keeper(void *arg) {
  (void)arg;
  while (!atomic_load(&finished)) {
    cla_stats s;
    uint64_t bytes = 0;
    CHECK(cla_pool_stats(pool, &s) == CLA_OK);
    CHECK(s.reserved_bytes == s.active_bytes + s.cached_bytes + s.held_bytes);
    CHECK(cla_pool_snapshot(pool, count, &bytes) == CLA_OK);
    if (!CHECK(cla_pool_check(pool) == CLA_OK)) fprintf(stderr, "%s\n", cla_last_error());
    CHECK(cla_pool_trim(pool, NULL) == CLA_OK);
  }
  return NULL;
}

static void *looker(void *arg) {
  (void)arg;
  for (unsigned i = 0; !atomic_load(&finished); i++) {
    cla_buffer b;
    void *address = atomic_load(&mailbox[i % MAILBOX]);
    if (!address) continue;
    cla_status status = cla_resolve((char *)address + i % 100, &b);
    CHECK(status == CLA_OK || status == CLA_E_FREED || status == CLA_E_BOUNDS);
    cla_owns(address);
  }
  return NULL;
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  CHECK(cla_pool_create(device, NULL, &pool) == CLA_OK);
  pthread_t workers[2], others[2];
  for (uintptr_t i = 0; i < 2; i++) pthread_create(&workers[i], NULL, worker, (void *)(i + 1));
  pthread_create(&others[0], NULL, keeper, NULL);
  pthread_create(&others[1], NULL, looker, NULL);
  for (int i = 0; i < 2; i++) pthread_join(workers[i], NULL);
  atomic_store(&finished, true);
  for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
  for (int i = 0; i < MAILBOX; i++)
    if (mailbox[i]) CHECK(cla_free(mailbox[i]) == CLA_OK);
  CHECK(cla_pool_check(pool) == CLA_OK);
  cla_pool_release(pool);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("threads_pool");
}
