/* Policies from C: constants, functions of a program's own, and their failures. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

static const size_t KIB = 1024, MIB = 1024 * 1024;

static cla_device *device;

/* What the functions below are to answer, and what they were asked. */
typedef struct script {
  cla_pool *pool;
  unsigned asked;
  size_t size;
  cla_status status;
  cla_fit fit;
  bool allocates, frees, closes, keeps;
  void *victim;
  unsigned released;
} script;

static cla_status act(script *s) {
  s->asked++;
  void *address = NULL;
  if (s->allocates) return cla_alloc(s->pool, 100, NULL, &address);
  if (s->frees && s->victim) {
    CHECK(cla_free(s->victim) == CLA_OK);
    s->victim = NULL;
  }
  if (s->closes) cla_pool_close(s->pool);
  return s->status ? cla_decision_error(s->status, "no") : CLA_OK;
}

static cla_status round_by(void *arg, size_t nbytes, size_t *size, bool *is_fixed) {
  script *s = arg;
  if (s->size) *size = nbytes + s->size;
  *is_fixed = true;
  return act(s);
}
static cla_status fit(void *arg, const cla_request *r, const cla_candidate *c, size_t n, cla_fit *answer) {
  script *s = arg;
  CHECK(n > 0 && c[0].size >= r->size);
  *answer = s->fit;
  return act(s);
}
static cla_status split(void *arg, const cla_request *r, const cla_candidate *c, size_t *size) {
  script *s = arg;
  CHECK(*size == (c->size < r->size ? c->size : r->size));
  if (s->size) *size = s->size;
  return act(s);
}
static cla_status grow(void *arg, const cla_request *r, size_t refused, size_t *nbytes) {
  script *s = arg;
  CHECK(refused == 0 || refused >= r->size);
  if (s->size) *nbytes = s->size;
  return act(s);
}
static bool keep(void *arg, const cla_request *r) {
  script *s = arg;
  CHECK(r->nbytes == 0 && r->size > 0);
  act(s);
  return s->keeps;
}
static cla_status admit(void *arg, const cla_request *r) {
  CHECK(r->nbytes > 0);
  return act(arg);
}
static void release(void *arg) { ((script *)arg)->released++; }

static cla_pool *open_pool(script *s, cla_decisions d, size_t limit) {
  char name[] = "temporary";
  cla_pool_options options = {.policy = cla_policy_caching(), .limit = limit, .decisions = &d};
  options.policy.name = name;
  d.arg = s;
  d.release = release;
  CHECK(cla_pool_create_with(device, &options, &s->pool) == CLA_OK);
  memset(name, 'x', sizeof name - 1);
  CHECK(strcmp(cla_pool_policy(s->pool)->name, "temporary") == 0);
  return s->pool;
}

static void end_pool(script *s) {
  CHECK(s->released == 0);
  cla_pool_release(s->pool);
  CHECK(s->released == 1);
}

static void rounds_once_a_size(void) {
  script s = {.size = 1000};
  cla_pool *p = open_pool(&s, (cla_decisions){.round = round_by}, 0);
  void *address;
  cla_buffer b;
  for (int i = 0; i < 10; i++) {
    CHECK(cla_alloc(p, 100, NULL, &address) == CLA_OK);
    CHECK(cla_resolve(address, &b) == CLA_OK && b.requested == 100 && b.size == 1536);
    CHECK(cla_free(address) == CLA_OK);
  }
  CHECK(s.asked == 1);
  s.size = (size_t)-1000; /* less than was asked for */
  CHECK(cla_alloc(p, 5000, NULL, &address) == CLA_E_INVALID);
  CHECK(strstr(cla_last_error(), "policy 'temporary': round: 4000 bytes for a request of 5000"));
  CHECK(cla_alloc(p, 100, NULL, &address) == CLA_OK);
  CHECK(cla_pool_check(p) == CLA_OK);
  end_pool(&s);
}

static void places_where_it_is_told(void) {
  script s = {0};
  cla_pool *p = open_pool(&s, (cla_decisions){.fit = fit}, 0);
  void *a, *b;
  cla_buffer found;
  s.fit = (cla_fit){.choice = CLA_CHOOSE_PLACE, .segment = 0, .offset = 64 * KIB};
  CHECK(cla_alloc(p, 1000, NULL, &a) == CLA_OK);
  CHECK(cla_resolve(a, &found) == CLA_OK && found.offset == 64 * KIB && found.size == 1024);
  CHECK(cla_alloc(p, 1000, NULL, &b) == CLA_E_INVALID);
  CHECK(strstr(cla_last_error(), "1024 bytes at offset 65536 of segment 0 are not free"));
  s.fit.offset = 64 * KIB + 1;
  CHECK(cla_alloc(p, 1000, NULL, &b) == CLA_E_INVALID && strstr(cla_last_error(), "alignment"));
  s.fit.offset = (size_t)1 << 62;
  CHECK(cla_alloc(p, 1000, NULL, &b) == CLA_E_INVALID);
  s.fit = (cla_fit){.choice = CLA_CHOOSE_BLOCK, .segment = 7};
  CHECK(cla_alloc(p, 1000, NULL, &b) == CLA_E_INVALID);
  s.fit.may_miss = true;
  CHECK(cla_alloc(p, 1000, NULL, &b) == CLA_OK);
  CHECK(cla_pool_check(p) == CLA_OK);
  end_pool(&s);
}

static void fails_as_it_is_told(void) {
  const cla_decisions each[] = {{.round = round_by}, {.fit = fit}, {.split = split}, {.grow = grow}, {.admit = admit}};
  const cla_status statuses[] = {CLA_E_INVALID, CLA_E_NOMEM, CLA_E_LIMIT, CLA_E_DRIVER};
  for (size_t i = 0; i < sizeof each / sizeof *each; i++)
    for (size_t k = 0; k < sizeof statuses / sizeof *statuses; k++) {
      script s = {.status = statuses[k]};
      cla_pool *p = open_pool(&s, each[i], 0);
      void *address = NULL;
      CHECK(cla_alloc(p, 1000, NULL, &address) == statuses[k]);
      CHECK(strstr(cla_last_error(), "no") && s.asked > 0 && !address);
      cla_stats stats;
      CHECK(cla_pool_stats(p, &stats) == CLA_OK && stats.active_blocks == 0 && stats.allocs == 0);
      CHECK(cla_pool_check(p) == CLA_OK);
      s.status = CLA_OK;
      CHECK(cla_alloc(p, 1000, NULL, &address) == CLA_OK && cla_free(address) == CLA_OK);
      end_pool(&s);
    }
}

static void refuses_itself(void) {
  const cla_decisions each[] = {{.round = round_by}, {.fit = fit}, {.split = split}, {.grow = grow}, {.admit = admit}};
  for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
    script s = {.allocates = true};
    cla_pool *p = open_pool(&s, each[i], 0);
    void *address = NULL;
    CHECK(cla_alloc(p, 1000, NULL, &address) == CLA_E_BUSY);
    CHECK(strstr(cla_last_error(), "a decision of the policy 'temporary' allocates from its own pool"));
    CHECK(cla_pool_check(p) == CLA_OK);
    s = (script){.pool = p, .frees = true};
    CHECK(cla_alloc(p, 500, NULL, &s.victim) == CLA_OK);
    CHECK(cla_alloc(p, 3000, NULL, &address) == CLA_OK);
    CHECK(cla_alloc(p, 5 * MIB, NULL, &address) == CLA_OK);
    CHECK(!s.victim && cla_pool_check(p) == CLA_OK);
    s.closes = true;
    cla_status status = cla_alloc(p, 9 * MIB, NULL, &address);
    CHECK(status == CLA_E_CLOSED);
    end_pool(&s);
  }
}

static void keeps_what_it_is_told(void) {
  script s = {.keeps = true};
  cla_pool *p = open_pool(&s, (cla_decisions){.keep = keep}, 0);
  void *address;
  cla_stats stats;
  CHECK(cla_alloc(p, 1000, NULL, &address) == CLA_OK && cla_free(address) == CLA_OK);
  CHECK(cla_pool_stats(p, &stats) == CLA_OK && stats.segments == 1 && s.asked == 1);
  s.keeps = false;
  CHECK(cla_alloc(p, 1000, NULL, &address) == CLA_OK && cla_free(address) == CLA_OK);
  CHECK(cla_pool_stats(p, &stats) == CLA_OK && stats.segments == 0 && s.asked == 2);
  s.closes = true;
  CHECK(cla_alloc(p, 1000, NULL, &address) == CLA_OK && cla_free(address) == CLA_OK);
  end_pool(&s);
}

static void grows_as_it_is_told(void) {
  script s = {.size = 5 * MIB};
  cla_pool *p = open_pool(&s, (cla_decisions){.grow = grow}, 16 * MIB);
  void *address;
  cla_stats stats;
  CHECK(cla_alloc(p, 1000, NULL, &address) == CLA_OK);
  CHECK(cla_pool_stats(p, &stats) == CLA_OK && stats.reserved_bytes == 5 * MIB);
  CHECK(cla_debug_fail("create_buffer", 1, 0) == CLA_OK);
  CHECK(cla_alloc(p, 5 * MIB, NULL, &address) == CLA_E_NOMEM || cla_pool_check(p) == CLA_OK);
  CHECK(cla_debug_fail("create_buffer", 0, 0) == CLA_OK);
  s.size = 100;
  CHECK(cla_alloc(p, 7 * MIB, NULL, &address) == CLA_E_INVALID);
  CHECK(strstr(cla_last_error(), "policy 'temporary': grow: 100 bytes for a request of 7340032"));
  CHECK(cla_pool_check(p) == CLA_OK);
  end_pool(&s);
}

static void does_not_release_what_was_not_taken(void) {
  script s = {0};
  cla_decisions d = {.arg = &s, .release = release, .fit = fit};
  cla_pool_options options = {.policy = cla_policy_caching(), .decisions = &d};
  options.policy.align = 3;
  cla_pool *p = NULL;
  CHECK(cla_pool_create_with(device, &options, &p) == CLA_E_INVALID && !p && s.released == 0);
}

static void rounds_to_powers_of_two(void) {
  const size_t pairs[][2] = {{0, 7}, {1, 7}, {2, 2},      {3, 4},
                             {4, 4}, {5, 8}, {513, 1024}, {((size_t)1 << 62) - 1, (size_t)1 << 62}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    size_t size = 7;
    bool is_fixed = false;
    CHECK(cla_round_power_of_two(NULL, pairs[i][0], &size, &is_fixed) == CLA_OK && is_fixed);
    CHECK(size == pairs[i][1]);
  }
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  cla_guard guard;
  CHECK(cla_guard_enter(device, NULL, &guard) == CLA_OK);
  rounds_once_a_size();
  places_where_it_is_told();
  fails_as_it_is_told();
  refuses_itself();
  keeps_what_it_is_told();
  grows_as_it_is_told();
  does_not_release_what_was_not_taken();
  rounds_to_powers_of_two();
  cla_guard_leave(&guard);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("policy");
}
