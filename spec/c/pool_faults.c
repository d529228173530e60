/* Every driver call of a session fails in turn: the first, the second, ... until the session makes fewer calls than
 * that. Each time every error is clean, the pools' recount agrees, and nothing of the driver's is left when all is
 * closed (ROCm/rocm-systems#11643). Done on the simulated device and on a real one. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

static int errors; /* of this session */

/* A status that must come with a message when it is an error. */
static bool went(cla_status status) {
  if (status == CLA_OK) return true;
  errors++;
  CHECK(cla_last_error()[0] != 0);
  CHECK(strcmp(cla_status_name(status), "UNKNOWN") != 0);
  return false;
}

static void check_pool(cla_pool *p) {
  cla_status status = cla_pool_check(p);
  if (status) fprintf(stderr, "%s\n", cla_last_error());
  CHECK(status == CLA_OK);
}

static void use(cla_device *d, cla_pool *p, cla_stream *a, cla_stream *b) {
  void *x = NULL, *y = NULL, *z = NULL, *host = NULL;
  char text[64] = "some bytes", back[64] = "";
  cl_event event = NULL;
  went(cla_alloc(p, 5000, a, &x));
  went(cla_alloc(p, 1000000, b, &y));
  check_pool(p);
  if (x && went(cla_copy(x, text, sizeof text, a, NULL)) && went(cla_copy(back, x, sizeof back, a, NULL)) &&
      !cla_device_get_info(d)->simulated)
    CHECK(strcmp(text, back) == 0);
  if (x && y) {
    went(cla_copy(y, x, 4096, a, NULL)); /* y is recorded on a */
    if (went(cla_copy(y, x, 4096, b, &event))) cla_event_release(d, event);
    went(cla_fill((char *)y + 4096, "pq", 2, 8192, a, NULL));
    went(cla_record(x, b));
  }
  check_pool(p);
  if (x && went(cla_map(x, 100, CLA_MAP_READ | CLA_MAP_WRITE, &host))) {
    CHECK(cla_free(x) == CLA_OK); /* kept until unmapped */
    went(cla_unmap(x));
    x = NULL;
  }
  check_pool(p);
  if (x) CHECK(cla_free(x) == CLA_OK);
  if (y) CHECK(cla_free(y) == CLA_OK);
  went(cla_alloc(p, 1000000, a, &z)); /* adopts, waits or grows */
  check_pool(p);
  if (z) CHECK(cla_free(z) == CLA_OK);
  bool idle;
  went(cla_stream_query(a, &idle));
  went(cla_stream_finish(b));
  went(cla_pool_trim(p, NULL));
  check_pool(p);
}

static void session(const char *selector, unsigned flags) {
  cla_device *d = NULL;
  cla_pool *p = NULL;
  cla_stream *a = NULL, *b = NULL;
  cla_gate *gate = NULL;
  const cla_simulation sim = {.capacity = (uint64_t)64 << 20,
                              .manual = selector != NULL && strcmp(selector, "manual") == 0};
  bool simulated = selector != NULL;
  if (!went(simulated ? cla_simulate(&sim, &d) : cla_device_open(NULL, &d))) return;
  const cla_pool_options options = {.policy = cla_policy_caching(), .limit = (size_t)4 << 20, .flags = flags};
  if (went(cla_pool_create_with(d, &options, &p)) && went(cla_stream_create(d, &a)) && went(cla_stream_create(d, &b))) {
    use(d, p, a, b);
    if (went(cla_gate_create(d, &gate))) {
      went(cla_stream_wait_gate(b, gate));
      went(cla_gate_open(gate));
    }
    use(d, p, b, a);
    cla_stream *wrapped = NULL;
    if (went(cla_stream_wrap(d, cla_stream_queue(a), &wrapped))) {
      void *x = NULL;
      if (went(cla_alloc(p, 100, wrapped, &x))) CHECK(cla_free(x) == CLA_OK);
      cla_stream_release(wrapped);
    }
  }
  cla_gate_release(gate);
  cla_stream_release(a);
  cla_pool_release(p);
  cla_stream_release(b);
  cla_device_release(d);
}

static void every_fault(const char *selector, unsigned flags) {
  int n = 1, harmless = 0;
  for (bool fired = true; fired && n < 2000; n++) {
    CHECK(cla_debug_fail(NULL, n, 0) == CLA_OK);
    errors = 0;
    session(selector, flags);
    fired = !cla_debug_armed();
    CHECK(cla_debug_fail(NULL, 0, 0) == CLA_OK);
    harmless += fired && !errors; /* a release, a flush, a marker that another call made up for */
    if (!CHECK(cla_debug_live(NULL) == 0)) {
      fprintf(stderr, "after fault %d: %lld driver objects live\n", n, (long long)cla_debug_live(NULL));
      exit(1);
    }
  }
  CHECK(n > 30 && n < 2000);
  CHECK(harmless < n); /* some were felt */
}

int main(void) {
  every_fault("automatic", 0);
  every_fault("manual", 0);
  every_fault("automatic", CLA_POOL_NO_COMMIT);
  every_fault(NULL, 0);
  return check_done("pool_faults");
}
