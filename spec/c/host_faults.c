/* The pinned-host cache against hooks that lie, limits that must hold, contexts that must never come round, and what a cache
 * that is closed in the middle of a call may touch. What several threads do at a time is in threads_host_life.c. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "host/host.h"

static cla_device *device;

static cla_host *cache_with(const cla_host_hooks *hooks, bool background) {
  cla_host_options options = cla_host_defaults();
  cla_host *c = NULL;
  options.hooks = hooks;
  options.background = background;
  CHECK(cla_host_create(device, &options, &c) == CLA_OK);
  return c;
}

static cla_host_stats stats_of(cla_host *c) {
  cla_host_stats s = {0};
  CHECK(cla_host_get_stats(c, &s) == CLA_OK);
  if (!CHECK(cla_host_check(c) == CLA_OK)) fprintf(stderr, "%s\n", cla_last_error());
  return s;
}

/* ---- Hooks over plain memory ---- */

typedef struct backend {
  atomic_int given, put_back;
  uint64_t tickets;
  bool says_done;
  cla_host *closes; /* by the next question */
  atomic_bool was_blocked;
  void *same; /* given again and again */
  cla_status refuses;
  size_t room; /* bytes there are, unless 0 */
} backend;

static cla_status give(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  backend *b = arg;
  (void)backing, (void)is_pinned;
  if (b->refuses) return b->refuses;
  if (b->same) *memory = b->same;
  else if (posix_memalign(memory, 64, nbytes)) return CLA_E_NOMEM;
  atomic_fetch_add(&b->given, 1);
  return CLA_OK;
}

static void put(void *arg, void *memory, void *backing, size_t nbytes) {
  backend *b = arg;
  (void)backing, (void)nbytes;
  atomic_fetch_add(&b->put_back, 1);
  if (memory != b->same) free(memory);
}

static cla_status ticket(void *arg, cla_stream *s, uint64_t *out) {
  backend *b = arg;
  (void)s;
  *out = ++b->tickets;
  return b->refuses;
}

static bool ask(void *arg, cla_stream *s, uint64_t number) {
  backend *b = arg;
  (void)number;
  if (b->closes) {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    atomic_store(&b->was_blocked, sigismember(&now, SIGINT) == 1);
    cla_host *c = b->closes;
    b->closes = NULL;
    cla_host_close(c);
    cla_stream_stats stats; /* of a stream that only the cache kept */
    cla_stream_get_stats(s, &stats);
    CHECK(stats.completed <= stats.submitted);
  }
  return b->says_done;
}

static cla_host_hooks hooks_of(backend *b) {
  return (cla_host_hooks){.arg = b, .allocate = give, .free = put, .record = ticket, .query = ask};
}

/* ---- Hooks that lie ---- */

static void memory_given_twice(void) {
  static char memory[4096];
  backend b = {.same = memory};
  const cla_host_hooks hooks = hooks_of(&b);
  cla_host *c = cache_with(&hooks, false);
  void *p = NULL, *first = NULL, *second = NULL;
  CHECK(cla_host_alloc(c, 1000, &p, &first) == CLA_OK && p == memory);
  CHECK(cla_host_alloc(c, 1000, &p, &second) == CLA_E_INVALID && strstr(cla_last_error(), "in use"));
  b.same = memory + 512; /* the end of another is inside too */
  CHECK(cla_host_alloc(c, 200, &p, &second) == CLA_E_INVALID);
  b.same = (char *)UINTPTR_MAX - 63; /* NOLINT: not to be followed */
  CHECK(cla_host_alloc(c, 1000, &p, &second) == CLA_E_INVALID);
  b.same = memory;
  CHECK(b.put_back == 0 && stats_of(c).active_blocks == 1 && stats_of(c).driver_allocs == 1);
  CHECK(cla_host_free(first) == CLA_OK);
  CHECK(cla_host_trim(c, NULL) == CLA_OK && b.put_back == 1);
  CHECK(cla_host_alloc(c, 3000, &p, &first) == CLA_OK && p == memory); /* it is nobody's now */
  CHECK(cla_host_free(first) == CLA_OK);
  cla_host_close(c);
}

static void failures_have_messages(void) {
  backend b = {.refuses = CLA_E_LIMIT};
  const cla_host_hooks hooks = hooks_of(&b);
  cla_host *c = cache_with(&hooks, false);
  void *p = NULL, *context = NULL;
  CHECK(cla_host_alloc(c, 1000, &p, &context) == CLA_E_LIMIT && strstr(cla_last_error(), "'allocate' failed for 1024"));
  b.refuses = CLA_OK;
  CHECK(cla_host_alloc(c, 1000, &p, &context) == CLA_OK);
  b.refuses = CLA_E_LIMIT;
  CHECK(cla_host_record(p, NULL, cla_device_stream(device)) == CLA_E_LIMIT);
  CHECK(strstr(cla_last_error(), "'record' failed: LIMIT"));
  CHECK(cla_host_free(context) == CLA_OK && stats_of(c).pending_blocks == 0);
  cla_host_close(c);
}

/* pytorch#189504: no memory, pinned or plain, while a block that fits is only pending. */
static cla_status give_space(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  backend *b = arg;
  (void)backing, (void)is_pinned;
  if (nbytes > b->room) return CLA_E_NOMEM;
  *memory = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*memory == MAP_FAILED) return CLA_E_LIMIT;
  b->room -= nbytes;
  return CLA_OK;
}

static void put_space(void *arg, void *memory, void *backing, size_t nbytes) {
  backend *b = arg;
  (void)backing;
  munmap(memory, nbytes);
  b->room += nbytes;
}

static void a_pending_block_is_waited_for_at_last(void) {
  const size_t nbytes = cla__host_machine_memory() + 4096; /* so that plain memory cannot take its place */
  backend b = {.room = nbytes / 2 * 3, .says_done = true};
  const cla_host_hooks hooks = {.arg = &b, .allocate = give_space, .free = put_space, .record = ticket, .query = ask};
  cla_stream *s = NULL;
  void *p = NULL, *q = NULL, *context = NULL;
  cla_host_options options = cla_host_defaults();
  options.hooks = &hooks;
  options.max_cached = options.max_block = SIZE_MAX / 2;
  options.steps_up_to = options.power_of_two_up_to;
  cla_host *c = NULL;
  CHECK(cla_host_create(device, &options, &c) == CLA_OK && cla_stream_create(device, &s) == CLA_OK);
  b.says_done = false;
  CHECK(cla_host_alloc(c, nbytes, &p, &context) == CLA_OK && cla_host_record(p, NULL, s) == CLA_OK);
  CHECK(cla_host_free(context) == CLA_OK);
  CHECK(cla_host_alloc(c, nbytes, &q, &context) == CLA_E_NOMEM && stats_of(c).pending_blocks == 1);
  b.says_done = true;
  CHECK(cla_host_alloc(c, nbytes, &q, &context) == CLA_OK && q == p && stats_of(c).driver_allocs == 1);
  CHECK(cla_host_free(context) == CLA_OK);
  cla_stream_release(s);
  cla_host_close(c);
}

/* The library's own tickets: the stream itself is waited for, unless that would hang. */
static void waiting_moves_the_stream_on(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 50, .max_alloc = (uint64_t)1 << 50, .manual = true};
  const size_t nbytes = cla__host_machine_memory() + 4096;
  backend b = {.room = nbytes / 2 * 3};
  cla_device *d = NULL;
  CHECK(cla_simulate(&sim, &d) == CLA_OK);
  cla_host_hooks hooks = cla__host_hooks_for(d, CLA_HOST_PLAIN);
  hooks.allocate = give_space, hooks.free = put_space, hooks.arg = &b;
  cla_host_options options = cla_host_defaults();
  options.hooks = &hooks;
  options.max_cached = options.max_block = SIZE_MAX / 2;
  options.steps_up_to = options.power_of_two_up_to;
  cla_host *c = NULL;
  cla_stream *s = NULL;
  cla_gate *gate = NULL;
  void *p = NULL, *q = NULL, *context = NULL;
  CHECK(cla_host_create(d, &options, &c) == CLA_OK && cla_stream_create(d, &s) == CLA_OK);
  CHECK(cla_gate_create(d, &gate) == CLA_OK);
  cla_gate_set_exclusive(gate, true);
  CHECK(cla_stream_wait_gate(s, gate) == CLA_OK);
  CHECK(cla_host_alloc(c, nbytes, &p, &context) == CLA_OK && cla_host_record(p, NULL, s) == CLA_OK);
  CHECK(cla_host_free(context) == CLA_OK);
  CHECK(cla_host_alloc(c, nbytes, &q, &context) == CLA_E_NOMEM);
  CHECK(cla_gate_open(gate) == CLA_OK);
  CHECK(cla_host_alloc(c, nbytes, &q, &context) == CLA_OK && q == p);
  CHECK(cla_host_free(context) == CLA_OK);
  cla_gate_release(gate);
  cla_stream_release(s);
  cla_host_close(c);
  cla_device_release(d);
}

/* ---- Hooks that use their own cache ---- */

/* No lock is held while a hook runs: it may count, check, trim, allocate and free, on any thread (pytorch#159352). */
typedef struct user {
  backend memory;
  cla_host *cache;
  bool is_inside;
  int calls;
} user;

static void *work_aside(void *arg) {
  user *u = arg;
  cla_host_stats s;
  cla_host_info info;
  void *p = NULL, *context = NULL;
  CHECK(cla_host_get_stats(u->cache, &s) == CLA_OK && cla_host_reset_peaks(u->cache) == CLA_OK);
  CHECK(cla_host_alloc(u->cache, 200, &p, &context) == CLA_OK && cla_host_resolve(p, &info) == CLA_OK);
  CHECK(cla_host_record(p, NULL, cla_device_stream(device)) == CLA_OK && cla_host_free(context) == CLA_OK);
  CHECK(cla_host_process_events(u->cache) == CLA_OK && cla_host_process_events_for_size(u->cache, 77) == CLA_OK);
  CHECK(cla_host_trim(u->cache, NULL) == CLA_OK);
  return NULL;
}

static void use_aside(user *u) {
  if (u->is_inside) return;
  u->is_inside = true;
  u->calls++;
  pthread_t t;
  CHECK(pthread_create(&t, NULL, work_aside, u) == 0 && pthread_join(t, NULL) == 0);
  work_aside(u);
  u->is_inside = false;
}

static cla_status busy_give(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  user *u = arg;
  use_aside(u);
  return give(&u->memory, nbytes, memory, backing, is_pinned);
}
static void busy_put(void *arg, void *memory, void *backing, size_t nbytes) {
  user *u = arg;
  use_aside(u);
  put(&u->memory, memory, backing, nbytes);
}
static cla_status busy_ticket(void *arg, cla_stream *s, uint64_t *out) {
  user *u = arg;
  use_aside(u);
  return ticket(&u->memory, s, out);
}
static bool busy_ask(void *arg, cla_stream *s, uint64_t number) {
  user *u = arg;
  use_aside(u);
  return ask(&u->memory, s, number);
}

static void hooks_may_use_their_cache(void) {
  user u = {.memory = {.says_done = true}};
  const cla_host_hooks hooks = {
      .arg = &u, .allocate = busy_give, .free = busy_put, .record = busy_ticket, .query = busy_ask};
  cla_host *c = u.cache = cache_with(&hooks, false);
  void *p = NULL, *context = NULL;
  CHECK(cla_host_alloc(c, 3000, &p, &context) == CLA_OK && u.calls == 1);
  CHECK(cla_host_record(p, NULL, cla_device_stream(device)) == CLA_OK && u.calls == 2);
  CHECK(cla_host_free(context) == CLA_OK && stats_of(c).pending_blocks == 1);
  CHECK(cla_host_process_events(c) == CLA_OK && u.calls == 3);
  CHECK(cla_host_alloc(c, 9000, &p, &context) == CLA_OK && cla_host_free(context) == CLA_OK);
  const int calls = u.calls;
  CHECK(cla_host_trim(c, NULL) == CLA_OK && u.calls > calls && stats_of(c).reserved_bytes == 0);
  u.is_inside = true;
  cla_host_close(c);
  CHECK(u.memory.given == u.memory.put_back);
}

/* While one stream is asked about, what waits for another is there for whoever wants it. */
typedef struct passer {
  backend memory;
  cla_host *cache;
  cla_stream *stuck;
  void *wanted;
  int questions;
} passer;

static bool ask_two(void *arg, cla_stream *s, uint64_t number) {
  passer *x = arg;
  (void)number;
  x->questions++;
  if (s != x->stuck) return true;
  if (!x->wanted) return false;
  void *p = NULL, *context = NULL;
  void *wanted = x->wanted;
  x->wanted = NULL;
  CHECK(cla_host_alloc(x->cache, 5000, &p, &context) == CLA_OK && p == wanted);
  CHECK(cla_host_free(context) == CLA_OK);
  return false;
}

static void a_pass_hides_nothing(void) {
  enum { N = 100 };
  passer x = {.memory = {0}};
  const cla_host_hooks hooks = {.arg = &x, .allocate = give, .free = put, .record = ticket, .query = ask_two};
  cla_host *c = x.cache = cache_with(&hooks, false);
  cla_stream *other = NULL;
  void *p = NULL, *q = NULL, *context = NULL, *theirs[N];
  CHECK(cla_stream_create(device, &x.stuck) == CLA_OK && cla_stream_create(device, &other) == CLA_OK);
  for (int i = 0; i < N; i++) CHECK(cla_host_alloc(c, 5000, &p, &theirs[i]) == CLA_OK);
  CHECK(cla_host_alloc(c, 5000, &q, &context) == CLA_OK && cla_host_record(q, NULL, other) == CLA_OK);
  for (int i = 0; i < N; i++)
    CHECK(cla_host_record(NULL, theirs[i], x.stuck) == CLA_OK && cla_host_free(theirs[i]) == CLA_OK);
  CHECK(cla_host_free(context) == CLA_OK && stats_of(c).pending_blocks == N + 1);
  x.wanted = q;
  CHECK(cla_host_process_events(c) == CLA_OK && !x.wanted);
  CHECK(stats_of(c).driver_allocs == N + 1 && stats_of(c).pending_blocks == N);
  x.questions = 0;
  CHECK(cla_host_process_events_for_size(c, 300) == CLA_OK && x.questions == 1); /* one, for a hundred that wait */
  cla_stream_release(x.stuck);
  cla_stream_release(other);
  cla_host_close(c);
}

/* ---- Limits ---- */

/* At most max_cached bytes are kept, threads' own blocks included, however often the figures are asked for in between. */
static void limits_hold(void) {
  enum { N = 1000, BYTES = 65536 };
  static void *contexts[N];
  static const size_t limits[] = {0, 1000, 65536, 1 << 20, 3 << 20, 20 << 20, SIZE_MAX};
  backend b = {0};
  const cla_host_hooks hooks = hooks_of(&b);
  void *p = NULL;
  for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
    cla_host *c = cache_with(&hooks, false);
    CHECK(cla_host_set_limits(c, limits[k], SIZE_MAX) == CLA_OK);
    for (int i = 0; i < N; i++) CHECK(cla_host_alloc(c, BYTES >> i % 4, &p, &contexts[i]) == CLA_OK);
    for (int i = 0; i < N; i++) {
      CHECK(cla_host_free(contexts[i]) == CLA_OK);
      if (i % 8 == 7) CHECK(stats_of(c).cached_bytes <= limits[k]);
    }
    const uint64_t all = stats_of(c).cached_bytes;
    CHECK(limits[k] < (1 << 20) || all > limits[k] / 2 || limits[k] == SIZE_MAX);
    for (size_t lower = all; lower > 0; lower /= 3) {
      CHECK(cla_host_set_limits(c, lower, SIZE_MAX) == CLA_OK && stats_of(c).cached_bytes <= lower);
      CHECK(cla_host_alloc(c, 64, &p, &contexts[0]) == CLA_OK && cla_host_free(contexts[0]) == CLA_OK);
      CHECK(stats_of(c).cached_bytes <= lower);
    }
    cla_host_close(c);
  }
  CHECK(b.given == b.put_back);
}

static void *use_once(void *arg) {
  void *p = NULL, *context = NULL;
  CHECK(cla_host_alloc(arg, 1000, &p, &context) == CLA_OK && cla_host_free(context) == CLA_OK);
  return p;
}

/* A thread that ends leaves its blocks to the others. */
static void threads_end(void) {
  enum { N = 40 };
  cla_host *c = cache_with(NULL, false);
  void *first = NULL, *p = NULL, *context = NULL;
  for (int i = 0; i < N; i++) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, use_once, c) == 0 && pthread_join(t, &p) == 0);
    CHECK(!first || p == first);
    first = p;
  }
  CHECK(stats_of(c).cached_blocks == 1 && stats_of(c).driver_allocs == 1);
  CHECK(cla_host_alloc(c, 1000, &p, &context) == CLA_OK && p == first && cla_host_free(context) == CLA_OK);
  cla_host_close(c);
}

/* Out of memory, what another thread keeps to itself goes back first. */
static pthread_barrier_t stage;

static void *keep_one(void *arg) {
  use_once(arg);
  pthread_barrier_wait(&stage); /* kept ... */
  pthread_barrier_wait(&stage); /* ... until the other has what it wants */
  return NULL;
}

static void magazines_of_others_are_flushed(void) {
  backend b = {.room = 70000};
  const cla_host_hooks hooks = {.arg = &b, .allocate = give_space, .free = put_space, .record = ticket, .query = ask};
  cla_host *c = cache_with(&hooks, false);
  pthread_t t;
  void *p = NULL, *context = NULL;
  pthread_barrier_init(&stage, NULL, 2);
  CHECK(pthread_create(&t, NULL, keep_one, c) == 0);
  pthread_barrier_wait(&stage);
  CHECK(b.room == 70000 - 1024 && stats_of(c).cached_blocks == 1);
  b.room = 65536 - 1024;
  CHECK(cla_host_alloc(c, 65536, &p, &context) == CLA_OK);
  CHECK(stats_of(c).failed_pins == 0 && stats_of(c).cached_blocks == 0 && stats_of(c).plain_blocks == 0);
  pthread_barrier_wait(&stage);
  CHECK(pthread_join(t, NULL) == 0 && cla_host_free(context) == CLA_OK);
  pthread_barrier_destroy(&stage);
  cla_host_close(c);
}

/* A thread that uses many caches in turn keeps what it uses most, and loses nothing. */
static void many_caches(void) {
  enum { CACHES = 20, ROUNDS = 3 };
  cla_host *caches[CACHES];
  for (int i = 0; i < CACHES; i++) caches[i] = cache_with(NULL, false);
  for (int i = 0; i < CACHES * ROUNDS; i++) use_once(caches[i % CACHES]);
  for (int i = 0; i < CACHES; i++) {
    const cla_host_stats s = stats_of(caches[i]);
    CHECK(s.driver_allocs == 1 && s.hits == ROUNDS - 1 && s.cached_blocks == 1);
    cla_host_close(caches[i]);
  }
  CHECK(cla_debug_live("buffer") == 0);
}

/* ---- Contexts ---- */

/* The generation of a context has so many bits: before it comes round, the block is given up. */
static void contexts_never_come_round(void) {
  cla_host *c = cache_with(NULL, false);
  void *p = NULL, *first = NULL, *context = NULL, *old = NULL;
  bool was_issued;
  uint64_t life;
  CHECK(cla_host_alloc(c, 100, &p, &first) == CLA_OK);
  cla_host_block *b = cla__host_block_of(first, &life, &was_issued);
  if (!CHECK(b && cla__host_is_active(life))) return;
  const uint32_t index = b->index;
  const uint64_t last = ((uint64_t)1 << CLA_HOST_GENERATION_BITS) - 1;
  atomic_store(&b->life, (last - 6) << 1);
  context = cla__host_context(b, (last - 6) << 1);
  for (int i = 0; i < 3; i++) { /* as if it had been used so often */
    CHECK(cla_host_free(context) == CLA_OK);
    CHECK(cla_host_free(context) == CLA_E_FREED);
    old = context;
    CHECK(cla_host_alloc(c, 100, &p, &context) == CLA_OK && context != old);
    CHECK(cla__host_block_of(context, &life, &was_issued) == b);
  }
  CHECK(cla__host_generation(life) == last && stats_of(c).driver_frees == 0);
  CHECK(cla_host_free(context) == CLA_OK);
  CHECK(cla_host_free(context) == CLA_E_FREED);
  CHECK(stats_of(c).driver_frees == 1 && stats_of(c).cached_blocks == 0);
  for (int i = 0; i < 2000; i++) { /* nor is its descriptor taken again */
    void *other = NULL;
    CHECK(cla_host_alloc(c, 100, &p, &other) == CLA_OK);
    CHECK(cla__host_block_of(other, &life, &was_issued)->index != index);
    CHECK(cla_host_free(other) == CLA_OK);
    if (i % 100 == 0) CHECK(cla_host_trim(c, NULL) == CLA_OK);
  }
  CHECK(cla_host_free(context) == CLA_E_FREED && cla_host_free(old) == CLA_E_FREED &&
        cla_host_free(first) == CLA_E_FREED);
  CHECK(cla_host_record(NULL, context, cla_device_stream(device)) == CLA_E_FREED);
  cla_host_close(c);
}

/* ---- Closing ---- */

static void the_devices_own_cache_is_not_closed(void) {
  cla_host *c = NULL, *again = NULL;
  void *p = NULL, *context = NULL;
  CHECK(cla_device_host(device, &c) == CLA_OK);
  cla_host_close(c);
  cla_host_close(NULL);
  CHECK(cla_device_host(device, &again) == CLA_OK && again == c);
  CHECK(cla_host_alloc(c, 100, &p, &context) == CLA_OK && cla_host_free(context) == CLA_OK);
  CHECK(cla_host_trim(c, NULL) == CLA_OK && stats_of(c).reserved_bytes == 0);
}

/* A question that closes the cache, which alone kept the stream. */
static void closed_by_a_question(void) {
  backend b = {0};
  const cla_host_hooks hooks = hooks_of(&b);
  cla_host *c = cache_with(&hooks, false);
  cla_stream *s = NULL;
  void *p = NULL, *context = NULL;
  const int64_t queues = cla_debug_live("queue");
  CHECK(cla_stream_create(device, &s) == CLA_OK && cla_host_alloc(c, 100, &p, &context) == CLA_OK);
  CHECK(cla_host_record(p, context, s) == CLA_OK && cla_host_free(context) == CLA_OK);
  cla_stream_release(s);
  b.closes = c;
  CHECK(cla_host_process_events(c) == CLA_OK);
  CHECK(!b.closes && b.given == 1 && b.put_back == 1 && cla_debug_live("queue") == queues);
}

/* A stream that does nothing with the cache's memory any more keeps neither the cache nor the device, though a gate holds it and
 * others know it. */
static void closed_beside_a_gate(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30, .manual = true};
  const int64_t contexts = cla_debug_live("context");
  cla_device *d = NULL;
  cla_stream *s = NULL;
  cla_gate *gate = NULL;
  cla_host *c = NULL;
  void *p = NULL, *x = NULL, *context = NULL;
  CHECK(cla_simulate(&sim, &d) == CLA_OK && cla_stream_create(d, &s) == CLA_OK);
  CHECK(cla_host_create(d, NULL, &c) == CLA_OK && cla_gate_create(d, &gate) == CLA_OK);
  cla_gate_set_exclusive(gate, true);
  CHECK(cla_alloc(NULL, 100, s, &x) == CLA_OK && cla_free(x) == CLA_OK); /* the default pool keeps the stream */
  CHECK(cla_host_alloc(c, 100, &p, &context) == CLA_OK && cla_host_record(p, NULL, s) == CLA_OK);
  CHECK(cla_stream_finish(s) == CLA_OK && cla_host_free(context) == CLA_OK);
  CHECK(cla_host_process_events(c) == CLA_OK && cla_stream_wait_gate(s, gate) == CLA_OK);
  cla_host_close(c);
  cla_stream_release(s);
  cla_gate_release(gate);
  cla_device_release(d);
  CHECK(cla_debug_live("context") == contexts);
}

/* The same on the background thread, which can then not be joined; and no signal reaches that thread. */
static void closed_by_the_background(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  cla_device *own = device, *d = NULL;
  CHECK(cla_simulate(&sim, &d) == CLA_OK);
  device = d;
  static backend b; /* the thread outlives this function */
  static cla_host_hooks hooks;
  hooks = hooks_of(&b);
  cla_host *c = cache_with(&hooks, true);
  device = own;
  void *p = NULL, *context = NULL;
  CHECK(cla_host_alloc(c, 100, &p, &context) == CLA_OK);
  CHECK(cla_host_record(p, context, cla_device_stream(d)) == CLA_OK);
  b.closes = c;
  CHECK(cla_host_free(context) == CLA_OK);
  const int64_t contexts = cla_debug_live("context");
  cla_device_release(d);
  while (cla_debug_live("context") == contexts)
    sched_yield(); /* the thread lets go of the cache, and that of the device */
  CHECK(b.put_back == 1 && b.was_blocked);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 34};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  memory_given_twice();
  failures_have_messages();
  a_pending_block_is_waited_for_at_last();
  waiting_moves_the_stream_on();
  hooks_may_use_their_cache();
  a_pass_hides_nothing();
  limits_hold();
  threads_end();
  magazines_of_others_are_flushed();
  many_caches();
  contexts_never_come_round();
  the_devices_own_cache_is_not_closed();
  closed_by_a_question();
  closed_beside_a_gate();
  closed_by_the_background();
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("host_faults");
}
