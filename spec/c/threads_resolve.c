/* Look-ups while others allocate and free (gpuowl#37: a look-up that missed handed the host's pointer to a kernel): a
 * live address always resolves to its own allocation, a dead one never to somebody else's, and the bytes behind it are
 * those that were put there. Then four threads that free each other's memory, under one that trims (rmm#735,
 * cupy#105). Then look-ups of addresses whose memory is just given back to the driver. Run under ThreadSanitizer. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

enum { CHURNERS = 2, USERS = 2, KEPT = 8, MOST = 64 << 10, STAMP = 64, WORKERS = 4, SHARED = 256 };

static cla_device *device;
static cla_pool *pool;
static bool has_memory; /* a simulated device keeps no bytes */
static int rounds;
static atomic_bool finished;

static uint64_t draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* ---- Look-ups ---------------------------------------------------------------------------------- */

static void *churner(void *arg) {
  uint64_t random = (uintptr_t)arg + 100;
  void *live[16] = {0};
  cla_stream *stream;
  CHECK(cla_stream_create(device, &stream) == CLA_OK);
  while (!atomic_load(&finished)) {
    void **place = &live[draw(&random) % 16];
    if (*place) {
      CHECK(cla_free(*place) == CLA_OK);
      *place = NULL;
    } else {
      CHECK(cla_alloc(pool, 1 + draw(&random) % MOST, stream, place) == CLA_OK);
    }
  }
  for (int i = 0; i < 16; i++)
    if (live[i]) CHECK(cla_free(live[i]) == CLA_OK);
  cla_stream_release(stream);
  return NULL;
}

typedef struct kept {
  char *address;
  size_t nbytes;
  uint64_t generation;
  unsigned char stamp[STAMP];
} kept;

static void keep(kept *k, uint64_t *random, cla_stream *stream) {
  cla_buffer b;
  k->nbytes = STAMP + draw(random) % MOST;
  CHECK(cla_alloc(pool, k->nbytes, stream, (void **)&k->address) == CLA_OK);
  CHECK(cla_resolve(k->address, &b) == CLA_OK && b.requested == k->nbytes);
  k->generation = b.generation;
  for (int i = 0; i < STAMP; i++) k->stamp[i] = (unsigned char)draw(random);
  CHECK(cla_copy(k->address, k->stamp, STAMP, stream, NULL) == CLA_OK);
}

static void let_go(kept *k) {
  const cla_buffer was = {.address = k->address, .generation = k->generation};
  CHECK(cla_buffer_valid(&was));
  CHECK(cla_free(k->address) == CLA_OK);
  CHECK(!cla_buffer_valid(&was));
}

static void look(const kept *k, size_t offset) {
  cla_buffer b;
  if (!CHECK(cla_resolve(k->address + offset, &b) == CLA_OK)) return;
  CHECK(b.address == k->address && b.generation == k->generation && b.pool == pool);
  CHECK(b.nbytes == k->nbytes - offset && b.mem != NULL);
  cla_status past = cla_resolve(k->address + k->nbytes, &b); /* where twice the room is set aside: nobody's */
  CHECK(past != CLA_OK);
}

/* Through device memory of its own and back. */
static void use(const kept *k, void *scratch, cla_stream *stream) {
  unsigned char back[STAMP] = {0};
  CHECK(cla_copy(scratch, k->address, STAMP, stream, NULL) == CLA_OK);
  CHECK(cla_copy(back, scratch, STAMP, stream, NULL) == CLA_OK);
  if (has_memory) CHECK(memcmp(back, k->stamp, STAMP) == 0);
}

static void *user(void *arg) {
  uint64_t random = (uintptr_t)arg + 1;
  kept all[KEPT];
  cla_stream *stream;
  void *scratch;
  cla_buffer b;
  CHECK(cla_stream_create(device, &stream) == CLA_OK);
  CHECK(cla_alloc(pool, STAMP, stream, &scratch) == CLA_OK);
  for (int i = 0; i < KEPT; i++) keep(&all[i], &random, stream);
  for (int i = 0; i < rounds; i++) {
    kept *k = &all[draw(&random) % KEPT];
    look(k, draw(&random) % k->nbytes);
    if (i % 8 == 0) use(k, scratch, stream);
    if (i % 16 == 0) {
      let_go(k);
      keep(k, &random, stream);
    }
    CHECK(cla_resolve(&random, &b) == CLA_E_FOREIGN);
    CHECK(cla_resolve((void *)(uintptr_t)draw(&random), &b) == CLA_E_FOREIGN);
  }
  for (int i = 0; i < KEPT; i++) let_go(&all[i]);
  CHECK(cla_free(scratch) == CLA_OK);
  cla_stream_release(stream);
  return NULL;
}

static void look_ups(void) {
  pthread_t users[USERS], churners[CHURNERS];
  atomic_store(&finished, false);
  for (uintptr_t i = 0; i < USERS; i++) pthread_create(&users[i], NULL, user, (void *)i);
  for (uintptr_t i = 0; i < CHURNERS; i++) pthread_create(&churners[i], NULL, churner, (void *)i);
  for (int i = 0; i < USERS; i++) pthread_join(users[i], NULL);
  atomic_store(&finished, true);
  for (int i = 0; i < CHURNERS; i++) pthread_join(churners[i], NULL);
}

/* ---- One list of memory ------------------------------------------------------------------------ */

static _Atomic(void *) shared[SHARED];
static void *worker(void *arg) {
  const unsigned number = (unsigned)(uintptr_t)arg + 1;
  uint64_t random = number;
  for (int i = 0; i < rounds; i++) {
    void *address = NULL;
    if (!CHECK(cla_alloc(pool, 100 + draw(&random) % 9901, NULL, &address) == CLA_OK)) break;
    void *other = atomic_exchange(&shared[draw(&random) % SHARED], address);
    if (!other) continue;
    cla_buffer b;
    CHECK(cla_resolve(other, &b) == CLA_OK && b.address == other);
    CHECK(cla_free(other) == CLA_OK);
  }
  return NULL;
}

static void *keeper(void *arg) {
  (void)arg;
  while (!atomic_load(&finished)) {
    cla_stats s;
    CHECK(cla_pool_trim(pool, NULL) == CLA_OK);
    CHECK(cla_pool_stats(pool, &s) == CLA_OK);
    CHECK(s.reserved_bytes == s.active_bytes + s.cached_bytes + s.held_bytes);
    CHECK(s.requested_bytes <= s.active_bytes && s.peak_active_bytes >= s.active_bytes);
    CHECK(s.active_blocks <= SHARED + WORKERS);
  }
  return NULL;
}

static int by_address(const void *a, const void *b) {
  const uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
  return (x > y) - (x < y);
}

/* What is left in the list lies apart. */
static void check_apart(void) {
  void *left[SHARED];
  size_t n = 0;
  for (int i = 0; i < SHARED; i++)
    if (shared[i]) left[n++] = atomic_exchange(&shared[i], NULL);
  qsort(left, n, sizeof *left, by_address);
  for (size_t i = 0; i < n; i++) {
    cla_buffer b;
    CHECK(cla_resolve(left[i], &b) == CLA_OK && b.address == left[i]);
    if (i + 1 < n) CHECK((char *)left[i] + b.requested <= (char *)left[i + 1]);
  }
  for (size_t i = 0; i < n; i++) CHECK(cla_free(left[i]) == CLA_OK);
}

static void one_list(void) {
  pthread_t workers[WORKERS], other;
  atomic_store(&finished, false);
  for (uintptr_t i = 0; i < WORKERS; i++) pthread_create(&workers[i], NULL, worker, (void *)i);
  pthread_create(&other, NULL, keeper, NULL);
  for (int i = 0; i < WORKERS; i++) pthread_join(workers[i], NULL);
  atomic_store(&finished, true);
  pthread_join(other, NULL);
  check_apart();
}

/* ---- Addresses whose segments come and go ------------------------------------------------------ */

static _Atomic(void *) latest;
static void *looker(void *arg) {
  (void)arg;
  while (!atomic_load(&finished)) {
    void *address = atomic_load(&latest);
    cla_buffer b;
    cla_status status = cla_resolve(address, &b);
    CHECK(status == CLA_OK ? b.address == address : status == CLA_E_FREED || status == CLA_E_FOREIGN);
  }
  return NULL;
}

static void comings_and_goings(void) {
  pthread_t lookers[USERS];
  void *address = NULL;
  atomic_store(&finished, false);
  for (int i = 0; i < USERS; i++) pthread_create(&lookers[i], NULL, looker, NULL);
  for (int i = 0; i < rounds / 10; i++) {
    CHECK(cla_alloc(pool, 100, NULL, &address) == CLA_OK);
    atomic_store(&latest, address);
    CHECK(cla_free(address) == CLA_OK && cla_pool_trim(pool, NULL) == CLA_OK);
  }
  atomic_store(&finished, true);
  for (int i = 0; i < USERS; i++) pthread_join(lookers[i], NULL);
}

/* ---- All, on a device -------------------------------------------------------------------------- */

static void run(cla_device *d, int n) {
  device = d;
  rounds = n;
  has_memory = !cla_device_get_info(d)->simulated;
  CHECK(cla_pool_create(device, NULL, &pool) == CLA_OK);
  look_ups();
  one_list();
  comings_and_goings();
  CHECK(cla_pool_check(pool) == CLA_OK);
  cla_stats s;
  CHECK(cla_pool_stats(pool, &s) == CLA_OK);
  CHECK(s.active_blocks == 0 && s.allocs == s.frees);
  cla_pool_release(pool);
  cla_device_release(d);
  CHECK(cla_debug_live(NULL) == 0);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  cla_device *d;
  if (CHECK(cla_simulate(&sim, &d) == CLA_OK)) run(d, 10000);
  if (CHECK(cla_device_open(NULL, &d) == CLA_OK)) run(d, 2000);
  return check_done("threads_resolve");
}
