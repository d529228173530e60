/* The pinned-host cache from C: the contract, and each known fault of the design it follows, as what is right. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

static cla_device *device;

static cla_host *cache_with(cla_host_options options) {
  cla_host *c = NULL;
  CHECK(cla_host_create(device, &options, &c) == CLA_OK);
  return c;
}

static cla_host_stats stats_of(cla_host *c) {
  cla_host_stats s;
  CHECK(cla_host_get_stats(c, &s) == CLA_OK);
  if (!CHECK(cla_host_check(c) == CLA_OK)) fprintf(stderr, "%s\n", cla_last_error());
  return s;
}

static void freed_memory_is_reused_at_once(void) {
  cla_host *c = cache_with(cla_host_defaults());
  void *p, *q, *context, *other;
  CHECK(cla_host_alloc(c, 1000, &p, &context) == CLA_OK);
  memset(p, 7, 1000);
  CHECK(stats_of(c).active_bytes == 1024 && stats_of(c).requested_bytes == 1000);
  CHECK(cla_host_free(context) == CLA_OK);
  CHECK(cla_host_free(context) == CLA_E_FREED);
  CHECK(cla_host_alloc(c, 900, &q, &other) == CLA_OK && q == p && other != context);
  CHECK(cla_host_record(NULL, context, cla_device_stream(device)) == CLA_E_FREED);
  CHECK(cla_host_free(other) == CLA_OK);
  cla_host_stats s = stats_of(c);
  CHECK(s.driver_allocs == 1 && s.allocs == 2 && s.frees == 2 && s.hits == 1 && s.active_bytes == 0 &&
        s.cached_bytes == 1024);
  size_t freed = 0;
  CHECK(cla_host_trim(c, &freed) == CLA_OK && freed == 1024);
  CHECK(stats_of(c).reserved_bytes == 0);
  cla_host_close(c);
}

static void zero_bytes_and_edges(void) {
  cla_host *c = cache_with(cla_host_defaults());
  void *p, *q, *a, *b = NULL;
  CHECK(cla_host_alloc(c, 0, &p, &a) == CLA_OK && cla_host_alloc(c, 0, &q, &b) == CLA_OK && p != q && p && q);
  CHECK(cla_host_record(p, NULL, cla_device_stream(device)) == CLA_OK);
  CHECK(cla_host_free(a) == CLA_OK && cla_host_free(b) == CLA_OK);
  for (size_t k = 0; k < 1024; k++) CHECK(cla_host_alloc(c, SIZE_MAX - k, &p, &a) == CLA_E_TOO_LARGE); /* #182446 */
  CHECK(cla_host_alloc(c, (size_t)1 << 63, &p, &a) == CLA_E_TOO_LARGE);
  int on_stack = 0;
  void *const foreign[] = {NULL, &on_stack, (void *)1, (void *)~(uintptr_t)0, p};
  for (int i = 0; i < 5; i++) {
    CHECK(cla_host_free(foreign[i]) != CLA_OK);
    if (foreign[i]) CHECK(cla_host_record(NULL, foreign[i], cla_device_stream(device)) != CLA_OK);
  }
  CHECK(cla_host_record(&on_stack, NULL, cla_device_stream(device)) == CLA_E_FOREIGN);
  stats_of(c);
  cla_host_close(c);
}

/* pytorch#150517: 129.5 MB must not pin 256. #192722: a class that holds several sizes checks the size. */
static void rounding_has_a_ceiling(void) {
  cla_host_options options = cla_host_defaults();
  options.power_of_two_up_to = 65536;
  cla_host *c = cache_with(options);
  void *p, *q, *a, *b;
  CHECK(cla_host_alloc(c, 129500000, &p, &a) == CLA_OK);
  CHECK(stats_of(c).reserved_bytes <= 129500000 / 8 * 9);
  CHECK(cla_host_free(a) == CLA_OK);
  CHECK(cla_host_alloc(c, 150000, &p, &a) == CLA_OK && cla_host_free(a) == CLA_OK);
  CHECK(cla_host_alloc(c, 163000, &q, &b) == CLA_OK);
  memset(q, 1, 163000);
  cla_host_info info;
  CHECK(cla_host_resolve(q, &info) == CLA_OK && info.size >= 163000 && info.requested == 163000);
  CHECK(cla_host_resolve((char *)q + 162999, &info) == CLA_OK && cla_host_resolve((char *)q + 163000, &info) != CLA_OK);
  CHECK(cla_host_free(b) == CLA_OK);
  for (size_t n = 65; n < 3000000; n = n * 9 / 8 + 1) {
    CHECK(cla_host_alloc(c, n, &p, &a) == CLA_OK && cla_host_resolve(p, &info) == CLA_OK);
    CHECK(info.size >= n && (n <= 65536 ? info.size < 2 * n : info.size <= n + n / 8 + 64));
    CHECK(cla_host_free(a) == CLA_OK);
  }
  cla_host_close(c);
}

/* pytorch#68749: an interior address is recorded. #183501: a stuck stream delays only its own. */
static void pending_blocks_wait_for_their_streams(void) {
  cla_host *c = cache_with(cla_host_defaults());
  cla_stream *stuck, *free_stream;
  cla_gate *gate = NULL;
  void *x, *p[100], *context[100], *q, *other;
  cl_event event = NULL;
  CHECK(cla_stream_create(device, &stuck) == CLA_OK && cla_stream_create(device, &free_stream) == CLA_OK);
  CHECK(cla_gate_create(device, &gate) == CLA_OK);
  cla_gate_set_exclusive(gate, true);
  CHECK(cla_stream_wait_gate(stuck, gate) == CLA_OK);
  CHECK(cla_alloc(NULL, 1 << 20, cla_device_stream(device), &x) == CLA_OK);
  for (int i = 0; i < 100; i++) {
    CHECK(cla_host_alloc(c, 1 << 20, &p[i], &context[i]) == CLA_OK);
    CHECK(cla_host_record((char *)p[i] + 4096, NULL, stuck) == CLA_OK);
    CHECK(cla_host_free(context[i]) == CLA_OK);
  }
  CHECK(stats_of(c).pending_blocks == 100);
  CHECK(cla_host_alloc(c, 1 << 20, &q, &other) == CLA_OK);
  for (int i = 0; i < 100; i++) CHECK(q != p[i]);
  memcpy(q, "from the host", 14);
  CHECK(cla_copy(x, q, 64, free_stream, &event) == CLA_OK); /* records the pinned end by itself */
  CHECK(cla_host_free(other) == CLA_OK);
  CHECK(cla_event_wait(device, event) == CLA_OK);
  cla_event_release(device, event);
  CHECK(cla_stream_finish(free_stream) == CLA_OK);
  void *again, *context_again;
  CHECK(cla_host_alloc(c, 1 << 20, &again, &context_again) == CLA_OK && again == q);
  CHECK(stats_of(c).pending_blocks == 100 && stats_of(c).driver_allocs == 101);
  CHECK(cla_host_free(context_again) == CLA_OK);
  CHECK(cla_gate_open(gate) == CLA_OK && cla_stream_finish(stuck) == CLA_OK);
  CHECK(cla_host_process_events(c) == CLA_OK && stats_of(c).pending_blocks == 0);
  size_t freed = 0;
  CHECK(cla_host_trim(c, &freed) == CLA_OK && freed == (size_t)101 << 20);
  CHECK(cla_free(x) == CLA_OK);
  cla_gate_release(gate);
  cla_stream_release(stuck);
  cla_stream_release(free_stream);
  cla_host_close(c);
}

/* A block whose ticket is done becomes free although others of its stream, recorded later, are stuck; `asked`: the cache
 * knows already that it is done. */
static void late_frees_wait_for_their_own(bool asked) {
  enum { N = 100 };
  cla_host *c = cache_with(cla_host_defaults());
  cla_stream *s;
  cla_gate *gate = NULL;
  void *p, *early, *q, *other, *context;
  CHECK(cla_stream_create(device, &s) == CLA_OK && cla_gate_create(device, &gate) == CLA_OK);
  cla_gate_set_exclusive(gate, true);
  CHECK(cla_host_alloc(c, 5000, &p, &early) == CLA_OK && cla_host_record(NULL, early, s) == CLA_OK);
  CHECK(cla_stream_finish(s) == CLA_OK && cla_stream_wait_gate(s, gate) == CLA_OK);
  for (int i = 0; i < N; i++) {
    CHECK(cla_host_alloc(c, 5000, &q, &context) == CLA_OK && cla_host_record(NULL, context, s) == CLA_OK);
    CHECK(cla_host_free(context) == CLA_OK);
  }
  if (asked) CHECK(cla_host_process_events(c) == CLA_OK);
  CHECK(cla_host_free(early) == CLA_OK);
  CHECK(stats_of(c).pending_blocks >= N && stats_of(c).driver_allocs == N + 1);
  CHECK(cla_host_alloc(c, 5000, &q, &other) == CLA_OK && q == p);
  CHECK(cla_host_free(other) == CLA_OK);
  CHECK(cla_gate_open(gate) == CLA_OK && cla_stream_finish(s) == CLA_OK);
  CHECK(cla_host_process_events(c) == CLA_OK && stats_of(c).pending_blocks == 0);
  cla_gate_release(gate);
  cla_stream_release(s);
  cla_host_close(c);
}

/* A stream of another device, whose end the cache would not see. */
static void streams_of_other_devices_are_refused(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30, .max_alloc = 200000000};
  cla_device *other;
  cla_host *c = cache_with(cla_host_defaults()), *theirs;
  void *p, *context;
  cla_host_info info;
  CHECK(cla_simulate(&sim, &other) == CLA_OK);
  CHECK(cla_host_alloc(c, 100, &p, &context) == CLA_OK);
  CHECK(cla_host_record(p, NULL, cla_device_stream(other)) == CLA_E_INVALID);
  /* Nor is an asynchronous copy begun there; one that waits is. */
  void *x;
  cl_event event = NULL;
  cla_gate *gate = NULL;
  cla_stream *s = NULL;
  cla_stream_stats before, after;
  CHECK(cla_stream_create(other, &s) == CLA_OK && cla_gate_create(other, &gate) == CLA_OK);
  cla_gate_set_exclusive(gate, true);
  CHECK(cla_alloc(NULL, 100, cla_device_stream(other), &x) == CLA_OK);
  CHECK(cla_copy(x, p, 100, s, NULL) == CLA_OK && cla_stream_wait_gate(s, gate) == CLA_OK);
  cla_stream_get_stats(s, &before);
  CHECK(cla_copy(x, p, 100, s, &event) == CLA_E_INVALID && !event);
  CHECK(cla_copy(p, x, 100, s, &event) == CLA_E_INVALID && !event);
  cla_stream_get_stats(s, &after);
  CHECK(after.submitted == before.submitted);
  cla_gate_release(gate);
  CHECK(cla_free(x) == CLA_OK);
  cla_stream_release(s);
  CHECK(cla_host_free(context) == CLA_OK && stats_of(c).pending_blocks == 0);
  cla_host_close(c);
  /* And rounding does not take a request over the most that a device gives. */
  CHECK(cla_host_create(other, NULL, &theirs) == CLA_OK);
  CHECK(cla_host_alloc(theirs, 199999999, &p, &context) == CLA_OK);
  CHECK(cla_host_resolve(p, &info) == CLA_OK && info.is_pinned && info.size <= 200000000);
  CHECK(cla_host_free(context) == CLA_OK && stats_of(theirs).failed_pins == 0);
  cla_host_close(theirs);
  cla_device_release(other);
}

/* A cache closed while a stream behind a gate still uses its memory. */
static void closing_waits_behind_a_gate(void) {
  cla_host *c = cache_with(cla_host_defaults());
  cla_stream *s;
  cla_gate *gate = NULL;
  void *p, *context, *kept = NULL, *kept_context = NULL;
  CHECK(cla_stream_create(device, &s) == CLA_OK && cla_gate_create(device, &gate) == CLA_OK);
  cla_gate_set_exclusive(gate, true);
  CHECK(cla_stream_wait_gate(s, gate) == CLA_OK);
  CHECK(cla_host_alloc(c, 5000, &p, &context) == CLA_OK && cla_host_alloc(c, 5000, &kept, &kept_context) == CLA_OK);
  CHECK(cla_host_record(p, context, s) == CLA_OK && cla_host_record(kept, kept_context, s) == CLA_OK);
  CHECK(cla_host_free(context) == CLA_OK);
  int64_t before = cla_debug_live("buffer");
  cla_host_close(c);
  CHECK(cla_debug_live("buffer") == before);
  if (kept) memset(kept, 3, 5000); /* still the user's */
  CHECK(cla_host_free(kept_context) == CLA_OK);
  CHECK(cla_host_free(kept_context) == CLA_E_FREED);
  CHECK(cla_gate_open(gate) == CLA_OK && cla_stream_finish(s) == CLA_OK);
  CHECK(cla_debug_live("buffer") == before - 2);
  cla_gate_release(gate);
  cla_stream_release(s);
}

/* Hooks that fail (john#5845) and hooks that never say yes. */
static cla_status refuse(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  (void)arg, (void)nbytes, (void)memory, (void)backing, (void)is_pinned;
  return CLA_E_NOMEM;
}
static cla_status give_null(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  (void)arg, (void)nbytes, (void)backing, (void)is_pinned;
  *memory = NULL;
  return CLA_OK;
}
static cla_status plain(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  (void)arg, (void)backing, (void)is_pinned;
  *memory = malloc(nbytes);
  return *memory ? CLA_OK : CLA_E_NOMEM;
}
/* Has room for 100,000 bytes at a time. */
static cla_status has_little(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  if (*(int *)arg == 0 && nbytes <= 100000) return plain(arg, nbytes, memory, backing, is_pinned);
  return *(int *)arg > 0 ? plain(arg, nbytes, memory, backing, is_pinned) : CLA_E_NOMEM;
}
static void put(void *arg, void *memory, void *backing, size_t nbytes) {
  (void)backing, (void)nbytes;
  ++*(int *)arg;
  free(memory);
}
static cla_status ticket(void *arg, cla_stream *s, uint64_t *out) {
  (void)arg, (void)s;
  *out = 1;
  return CLA_OK;
}
static bool never(void *arg, cla_stream *s, uint64_t t) {
  (void)arg, (void)s, (void)t;
  return false;
}

static void hostile_hooks(void) {
  int put_back = 0;
  cla_host_hooks hooks = {.arg = &put_back, .allocate = refuse, .free = put, .record = ticket, .query = never};
  cla_host_options options = cla_host_defaults();
  options.hooks = &hooks;
  void *p, *context, *q, *other;
  for (int i = 0; i < 2; i++) {
    hooks.allocate = i ? give_null : refuse;
    cla_host *c = cache_with(options);
    cla_host_info info;
    CHECK(cla_host_alloc(c, 3000, &p, &context) == CLA_OK);
    memset(p, 1, 3000);
    CHECK(cla_host_resolve(p, &info) == CLA_OK && !info.is_pinned);
    cla_host_stats s = stats_of(c);
    CHECK(s.failed_pins == 1 && s.plain_blocks == 1 && s.plain_bytes == s.reserved_bytes);
    CHECK(cla_host_free(context) == CLA_OK);
    cla_host_close(c);
    CHECK(put_back == 0); /* what the hook did not give is not handed to it */
  }
  hooks.allocate = plain;
  cla_host *c = cache_with(options);
  CHECK(cla_host_alloc(c, 3000, &p, &context) == CLA_OK);
  CHECK(cla_host_record(p, context, cla_device_stream(device)) == CLA_OK && cla_host_free(context) == CLA_OK);
  CHECK(cla_host_alloc(c, 3000, &q, &other) == CLA_OK && q != p);
  CHECK(stats_of(c).pending_blocks == 1);
  CHECK(cla_host_free(other) == CLA_OK);
  cla_host_close(c); /* the stream itself is asked */
  CHECK(put_back == 2);
  hooks.query = NULL;
  CHECK(cla_host_create(device, &options, &c) == CLA_E_INVALID);
}

/* What is cached in other sizes goes back before a pin counts as failed. */
static void pinning_again_after_a_trim(void) {
  int put_back = 0;
  const cla_host_hooks hooks = {
      .arg = &put_back, .allocate = has_little, .free = put, .record = ticket, .query = never};
  cla_host_options options = cla_host_defaults();
  options.hooks = &hooks;
  cla_host *c = cache_with(options);
  void *p, *context;
  CHECK(cla_host_alloc(c, 60000, &p, &context) == CLA_OK && cla_host_free(context) == CLA_OK);
  CHECK(cla_host_alloc(c, 120000, &p, &context) == CLA_OK && stats_of(c).failed_pins == 0 && put_back == 1);
  CHECK(cla_host_free(context) == CLA_OK);
  cla_host_close(c);
}

static void limits_are_kept(void) {
  cla_host_options options = cla_host_defaults();
  options.max_cached = 1 << 20;
  options.max_block = 1 << 19;
  cla_host *c = cache_with(options);
  void *p[8], *context[8];
  for (int i = 0; i < 8; i++) CHECK(cla_host_alloc(c, 200000, &p[i], &context[i]) == CLA_OK);
  for (int i = 0; i < 8; i++) CHECK(cla_host_free(context[i]) == CLA_OK);
  CHECK(stats_of(c).cached_bytes <= 1 << 20 && stats_of(c).cached_blocks > 0);
  CHECK(cla_host_alloc(c, 600000, &p[0], &context[0]) == CLA_OK && cla_host_free(context[0]) == CLA_OK);
  CHECK(stats_of(c).classes[19] == 0);
  CHECK(cla_host_set_limits(c, SIZE_MAX, 1000) == CLA_OK && stats_of(c).cached_blocks == 0);
  CHECK(cla_host_set_limits(c, SIZE_MAX, SIZE_MAX) == CLA_OK);
  CHECK(cla_host_alloc(c, 600000, &p[0], &context[0]) == CLA_OK && cla_host_free(context[0]) == CLA_OK);
  CHECK(stats_of(c).cached_blocks == 1);
  CHECK(cla_host_set_limits(c, 0, 0) == CLA_OK && stats_of(c).reserved_bytes == 0);
  CHECK(cla_host_alloc(c, 100, &p[0], &context[0]) == CLA_OK && cla_host_free(context[0]) == CLA_OK);
  CHECK(stats_of(c).reserved_bytes == 0);
  cla_host_close(c);
}

static void every_kind_of_memory(void) {
  for (int kind = CLA_HOST_MAPPED; kind <= CLA_HOST_PLAIN; kind++) {
    if (kind == CLA_HOST_SVM && !cla_device_get_info(device)->has_svm) continue;
    cla_host_options options = cla_host_defaults();
    options.kind = (cla_host_kind)kind;
    cla_host *c = cache_with(options);
    void *p, *context, *x;
    char text[32] = "";
    cla_host_info info;
    CHECK(cla_host_alloc(c, 100000, &p, &context) == CLA_OK);
    CHECK(cla_host_resolve(p, &info) == CLA_OK && info.is_pinned == (kind != CLA_HOST_PLAIN));
    memcpy(p, "there and back", 15);
    CHECK(cla_alloc(NULL, 100000, cla_device_stream(device), &x) == CLA_OK);
    CHECK(cla_copy(x, p, 32, cla_device_stream(device), NULL) == CLA_OK);
    CHECK(cla_copy(text, x, 32, cla_device_stream(device), NULL) == CLA_OK && strcmp(text, p) == 0);
    CHECK(cla_free(x) == CLA_OK && cla_host_free(context) == CLA_OK);
    cla_host_close(c);
  }
}

/* Every driver call fails in turn; nothing is lost. */
static void faults(void) {
  for (int n = 1, fired = 1; fired && n < 200; n++) {
    cla_host *c = NULL;
    cla_stream *s = NULL;
    void *p, *context;
    CHECK(cla_debug_fail(NULL, (uint64_t)n, 0) == CLA_OK);
    if (!cla_host_create(device, NULL, &c) && !cla_stream_create(device, &s)) {
      for (int i = 0; i < 3; i++)
        if (!cla_host_alloc(c, 5000, &p, &context)) {
          memset(p, 1, 5000);
          cla_host_record(p, context, s);
          CHECK(cla_host_free(context) == CLA_OK);
        }
      cla_host_process_events(c);
      stats_of(c);
      cla_host_trim(c, NULL);
    }
    fired = !cla_debug_armed();
    CHECK(cla_debug_fail(NULL, 0, 0) == CLA_OK);
    cla_host_close(c);
    cla_stream_release(s);
    CHECK(cla_debug_live("buffer") == 0 && cla_debug_live("event") == 0);
  }
}

int main(void) {
  CHECK(cla_device_open(NULL, &device) == CLA_OK);
  freed_memory_is_reused_at_once();
  zero_bytes_and_edges();
  rounding_has_a_ceiling();
  pending_blocks_wait_for_their_streams();
  late_frees_wait_for_their_own(false);
  late_frees_wait_for_their_own(true);
  streams_of_other_devices_are_refused();
  CHECK(cla_debug_live("buffer") <= 1); /* the default pool's segment */
  cla_pool *pool;
  CHECK(cla_device_pool(device, &pool) == CLA_OK && cla_pool_trim(pool, NULL) == CLA_OK);
  closing_waits_behind_a_gate();
  hostile_hooks();
  pinning_again_after_a_trim();
  limits_are_kept();
  every_kind_of_memory();
  CHECK(cla_pool_trim(pool, NULL) == CLA_OK);
  faults();
  cla_host *host;
  void *p, *context = NULL;
  CHECK(cla_device_host(device, &host) == CLA_OK && cla_host_alloc(host, 100, &p, &context) == CLA_OK);
  cla_device_release(device); /* memory of the default cache goes with its device */
  CHECK(cla_host_free(context) == CLA_E_FREED);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("host_cache");
}
