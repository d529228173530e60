/* Threads that free, record, resolve and count while another closes the cache, changes its limits or ends the very allocation
 * they use. Whoever comes late gets an error; no block is lost, none is given out twice, nothing that is gone is touched.
 * Run under ThreadSanitizer and AddressSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

enum { THREADS = 4, BLOCKS = 32, ROUNDS = 200 };

static cla_device *device;
static cla_host *cache;
static cla_stream *stream;
static void *memory[THREADS][BLOCKS], *contexts[THREADS][BLOCKS];
static pthread_barrier_t start;

static void all(void *(*work)(void *), void (*meanwhile)(void)) {
  pthread_t threads[THREADS];
  pthread_barrier_init(&start, NULL, THREADS + 1);
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
  pthread_barrier_wait(&start);
  meanwhile();
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&start);
}

static void check(void) {
  if (!CHECK(cla_host_check(cache) == CLA_OK)) fprintf(stderr, "%s\n", cla_last_error());
}

static void take(uintptr_t i) {
  for (int k = 0; k < BLOCKS; k++)
    CHECK(cla_host_alloc(cache, 64u << (k % 12), &memory[i][k], &contexts[i][k]) == CLA_OK);
}

static void open_cache(bool background) {
  cla_host_options options = cla_host_defaults();
  options.background = background;
  CHECK(cla_host_create(device, &options, &cache) == CLA_OK);
  CHECK(cla_stream_create(device, &stream) == CLA_OK);
}

static void close_cache(void) { cla_host_close(cache); }
static void nothing(void) {}

/* ---- Freeing while the cache is closed: allocations outlive it ---- */

static void *free_all(void *arg) {
  const uintptr_t i = (uintptr_t)arg;
  take(i);
  for (int k = 0; k < BLOCKS; k += 4) CHECK(cla_host_record(memory[i][k], NULL, stream) == CLA_OK);
  pthread_barrier_wait(&start);
  for (int k = 0; k < BLOCKS; k++) CHECK(cla_host_free(contexts[i][k]) == CLA_OK);
  return NULL;
}

static void frees_and_closing(bool background) {
  for (int round = 0; round < ROUNDS; round++) {
    open_cache(background);
    all(free_all, close_cache);
    cla_stream_release(stream);
    if (!CHECK(cla_debug_live("buffer") == 0 && cla_debug_live("queue") == 2)) return;
  }
}

/* ---- Asking while the cache is closed ---- */

static void *ask(void *arg) {
  const uintptr_t i = (uintptr_t)arg;
  take(i);
  for (int k = 0; k < BLOCKS; k++) CHECK(cla_host_record(memory[i][k], NULL, stream) == CLA_OK);
  for (int k = 1; k < BLOCKS; k++) CHECK(cla_host_free(contexts[i][k]) == CLA_OK);
  pthread_barrier_wait(&start);
  cla_status status = cla_host_record(NULL, contexts[i][0], stream);
  CHECK(status == CLA_OK || status == CLA_E_CLOSED);
  CHECK(cla_host_free(contexts[i][0]) == CLA_OK);
  return NULL;
}

static void records_and_closing(void) {
  for (int round = 0; round < ROUNDS; round++) {
    open_cache(round % 2 == 0);
    all(ask, close_cache);
    cla_stream_release(stream);
    if (!CHECK(cla_debug_live("buffer") == 0 && cla_debug_live("queue") == 2)) return;
  }
}

/* ---- The limits change meanwhile ---- */

static void *churn(void *arg) {
  const uintptr_t i = (uintptr_t)arg;
  pthread_barrier_wait(&start);
  for (int n = 0; n < 20; n++) {
    take(i);
    for (int k = 0; k < BLOCKS; k++) CHECK(cla_host_free(contexts[i][k]) == CLA_OK);
  }
  return NULL;
}

static void change_limits(void) {
  static const size_t limits[] = {0, SIZE_MAX, 1 << 16, 3 << 20, 1 << 20, 100 << 20};
  for (int n = 0; n < 200; n++) {
    CHECK(cla_host_set_limits(cache, limits[n % 6], n % 2 ? SIZE_MAX : 4096) == CLA_OK);
    check();
  }
}

static void frees_and_limits(void) {
  open_cache(false);
  all(churn, change_limits);
  CHECK(cla_host_set_limits(cache, 0, 0) == CLA_OK);
  CHECK(cla_debug_live("buffer") == 0);
  cla_host_close(cache);
  cla_stream_release(stream);
}

/* ---- One allocation, used by all: freed by one of them, whoever it is ---- */

static atomic_int freed;

static void *end_it(void *arg) {
  const uintptr_t i = (uintptr_t)arg;
  void *p = NULL, *context = NULL;
  cla_host_info info;
  pthread_barrier_wait(&start);
  if (i % 2) {
    cla_status status = cla_host_record(i == 1 ? memory[0][0] : NULL, i == 1 ? NULL : contexts[0][0], stream);
    CHECK(status == CLA_OK || status == CLA_E_FREED || status == CLA_E_FOREIGN);
    status = cla_host_resolve(memory[0][0], &info);
    CHECK(status == CLA_E_FREED || status == CLA_E_FOREIGN ||
          (status == CLA_OK && info.memory == memory[0][0] && (info.requested == 100 || info.requested == 90)));
  } else {
    cla_status status = cla_host_free(contexts[0][0]);
    CHECK(status == CLA_OK || status == CLA_E_FREED);
    if (!status) {
      atomic_fetch_add(&freed, 1);
      CHECK(cla_host_alloc(cache, 90, &p, &context) == CLA_OK && cla_host_free(context) == CLA_OK);
    }
  }
  return NULL;
}

static void trim(void) { CHECK(cla_host_trim(cache, NULL) == CLA_OK); }

static void uses_and_the_end(void) {
  open_cache(false);
  for (int round = 0; round < ROUNDS * 2; round++) {
    atomic_store(&freed, 0);
    CHECK(cla_host_alloc(cache, 100, &memory[0][0], &contexts[0][0]) == CLA_OK);
    all(end_it, round % 2 ? trim : nothing);
    CHECK(atomic_load(&freed) == 1);
    check();
  }
  cla_host_close(cache);
  cla_stream_release(stream);
  CHECK(cla_debug_live("buffer") == 0 && cla_debug_live("queue") == 2);
}

/* ---- Streams come and go ---- */

static void *with_streams(void *arg) {
  (void)arg;
  pthread_barrier_wait(&start);
  for (int n = 0; n < 50; n++) {
    cla_stream *s = NULL;
    void *p = NULL, *context = NULL;
    CHECK(cla_stream_create(device, &s) == CLA_OK && cla_host_alloc(cache, 1000, &p, &context) == CLA_OK);
    CHECK(cla_host_record(p, NULL, s) == CLA_OK && cla_host_record(p, NULL, stream) == CLA_OK);
    CHECK(cla_stream_submitted(s) == CLA_OK && cla_host_record(NULL, context, s) == CLA_OK);
    CHECK(cla_host_free(context) == CLA_OK);
    cla_stream_release(s);
    CHECK(cla_host_process_events_for_size(cache, 1000) == CLA_OK);
  }
  return NULL;
}

static void process(void) {
  for (int n = 0; n < 100; n++) CHECK(cla_host_process_events(cache) == CLA_OK);
}

static void streams_come_and_go(void) {
  open_cache(true);
  all(with_streams, process);
  check();
  cla_host_close(cache);
  cla_stream_release(stream);
  CHECK(cla_debug_live("buffer") == 0 && cla_debug_live("queue") == 2);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  frees_and_closing(false);
  frees_and_closing(true);
  records_and_closing();
  frees_and_limits();
  uses_and_the_end();
  streams_come_and_go();
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("threads_host_life");
}
