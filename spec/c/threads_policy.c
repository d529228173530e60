/* A policy whose every decision is a function, on several threads: while one is asked, others allocate, free, trim and
 * look, so answers become stale all the time. Nothing may be lost or handed out twice. Run under ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "check.h"
#include "clalloc.h"

enum { ROUNDS = 3000, MAILBOX = 64, WORKERS = 3 };

static cla_device *device;
static cla_pool *pool;
static _Atomic(void *) mailbox[MAILBOX];
static atomic_bool finished;
static atomic_int asked[6], notes[3], released;

static cla_status round_up(void *arg, size_t nbytes, size_t *size, bool *is_fixed) {
  (void)arg;
  atomic_fetch_add(&asked[0], 1);
  *size = (nbytes + 1023) / 1024 * 1024;
  *is_fixed = true;
  return CLA_OK;
}

/* The last candidate, or a place at its end; the others run meanwhile. */
static cla_status fit(void *arg, const cla_request *r, const cla_candidate *candidates, size_t n, cla_fit *answer) {
  (void)arg;
  int turn = atomic_fetch_add(&asked[1], 1);
  CHECK(n > 0 && r->pool == pool);
  const cla_candidate *c = &candidates[n - 1];
  CHECK(c->size >= r->size && c->offset + c->size <= c->segment_size);
  sched_yield();
  if (turn % 4 == 0) return CLA_OK;
  answer->choice = turn % 4 == 1 ? CLA_CHOOSE_PLACE : CLA_CHOOSE_BLOCK;
  answer->segment = c->segment;
  answer->offset = c->offset + (turn % 4 == 1 ? c->size - r->size : 0);
  return CLA_OK;
}

static cla_status split(void *arg, const cla_request *r, const cla_candidate *block, size_t *size) {
  (void)arg;
  int turn = atomic_fetch_add(&asked[2], 1);
  CHECK(block->size >= r->size);
  sched_yield();
  *size = turn % 8 ? r->size : block->size;
  return CLA_OK;
}

static cla_status grow(void *arg, const cla_request *r, size_t refused, size_t *nbytes) {
  (void)arg;
  atomic_fetch_add(&asked[3], 1);
  sched_yield();
  *nbytes = refused ? r->size : (size_t)1 << 20;
  return CLA_OK;
}

static bool keep(void *arg, const cla_request *r) {
  (void)arg;
  sched_yield();
  return atomic_fetch_add(&asked[4], 1) % 2 || r->segment == 0;
}

static cla_status oom(void *arg, const cla_request *r, unsigned times, bool *again) {
  (void)arg;
  (void)r;
  atomic_fetch_add(&asked[5], 1);
  void *hostage = atomic_exchange(&mailbox[times % MAILBOX], NULL); /* frees in its own pool */
  if (hostage) CHECK(cla_free(hostage) == CLA_OK);
  *again = hostage != NULL;
  return CLA_OK;
}

static cla_status note(void *arg, const cla_note *n) {
  (void)arg;
  atomic_fetch_add(&notes[n->what], 1);
  return CLA_OK;
}

static void release(void *arg) {
  CHECK(arg == &released);
  atomic_fetch_add(&released, 1);
}

static void *worker(void *arg) {
  uint64_t random = (uintptr_t)arg * 0x9E3779B97F4A7C15u + 1;
  cla_stream *stream;
  CHECK(cla_stream_create(device, &stream) == CLA_OK);
  for (int i = 0; i < ROUNDS; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    size_t nbytes = 100 + (random >> 40) % 60000;
    void *address = NULL;
    cla_status status = cla_alloc(pool, nbytes, stream, &address);
    if (!CHECK(status == CLA_OK || status == CLA_E_LIMIT || status == CLA_E_NOMEM)) {
      fprintf(stderr, "%s\n", cla_last_error());
      break;
    }
    if (status) continue;
    cla_buffer b;
    CHECK(cla_resolve((char *)address + nbytes - 1, &b) == CLA_OK && b.address == address && b.size >= nbytes);
    if (i % 32 == 0) CHECK(cla_record(address, cla_device_stream(device)) == CLA_OK);
    void *other = atomic_exchange(&mailbox[(random >> 20) % MAILBOX], address);
    if (other) CHECK(cla_free(other) == CLA_OK);
  }
  cla_stream_release(stream);
  return NULL;
}

static void *keeper(void *arg) {
  (void)arg;
  while (!atomic_load(&finished)) {
    if (!CHECK(cla_pool_check(pool) == CLA_OK)) fprintf(stderr, "%s\n", cla_last_error());
    CHECK(cla_pool_trim(pool, NULL) == CLA_OK);
    sched_yield();
  }
  return NULL;
}

/* Whatever the threads have met, the limit is reached here, by segments that one stream has to itself. */
static void run_dry(void) {
  void *held[16] = {NULL};
  int n = 0;
  CHECK(cla_pool_trim(pool, NULL) == CLA_OK);
  while (n < 16 && cla_alloc(pool, (size_t)512 << 10, cla_device_stream(device), &held[n]) == CLA_OK) n++;
  CHECK(n > 0 && n < 16);
  while (n > 0) CHECK(cla_free(held[--n]) == CLA_OK);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  const cla_decisions decisions = {.arg = &released,
                                   .release = release,
                                   .round = round_up,
                                   .fit = fit,
                                   .split = split,
                                   .grow = grow,
                                   .keep = keep,
                                   .oom = oom,
                                   .note = note};
  const cla_pool_options options = {.policy = cla_policy_caching(), .limit = (size_t)3 << 20, .decisions = &decisions};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  CHECK(cla_pool_create_with(device, &options, &pool) == CLA_OK);
  pthread_t workers[WORKERS], other;
  for (uintptr_t i = 0; i < WORKERS; i++) pthread_create(&workers[i], NULL, worker, (void *)(i + 1));
  pthread_create(&other, NULL, keeper, NULL);
  for (int i = 0; i < WORKERS; i++) pthread_join(workers[i], NULL);
  atomic_store(&finished, true);
  pthread_join(other, NULL);
  for (int i = 0; i < MAILBOX; i++) {
    void *left = atomic_exchange(&mailbox[i], NULL);
    if (left) CHECK(cla_free(left) == CLA_OK);
  }
  run_dry();
  for (int i = 0; i < 6; i++)
    if (!CHECK(atomic_load(&asked[i]) > 0)) fprintf(stderr, "decision %d was never asked for\n", i);
  CHECK(atomic_load(&notes[CLA_NOTE_ALLOC]) == atomic_load(&notes[CLA_NOTE_FREE]));
  cla_stats s;
  CHECK(cla_pool_stats(pool, &s) == CLA_OK && s.active_blocks == 0);
  CHECK(s.allocs == (uint64_t)atomic_load(&notes[CLA_NOTE_ALLOC]));
  CHECK(cla_pool_check(pool) == CLA_OK);
  cla_pool_release(pool);
  CHECK(atomic_load(&released) == 1);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("threads_policy");
}
