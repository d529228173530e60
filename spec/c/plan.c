/* Plans: no two blocks that live at once overlap, whatever the lifetimes; heights that are known; what is refused. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

static uint64_t random_state = 1;

static uint64_t below(uint64_t n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state % n;
}

/* The definition, pair by pair. */
static bool is_plan(const cla_lifetime *b, size_t n, uint64_t align, const uint64_t *at) {
  for (size_t i = 0; i < n; i++) {
    if (at[i] % align) return false;
    for (size_t j = 0; j < i; j++) {
      bool in_time = b[i].lower < b[j].upper && b[j].lower < b[i].upper;
      uint64_t end_i = at[i] + (b[i].nbytes ? b[i].nbytes : 1), end_j = at[j] + (b[j].nbytes ? b[j].nbytes : 1);
      if (in_time && at[i] < end_j && at[j] < end_i) return false;
    }
  }
  return true;
}

static uint64_t height_of(const cla_lifetime *b, size_t n, uint64_t align, const uint64_t *at) {
  uint64_t height = 0;
  for (size_t i = 0; i < n; i++) {
    uint64_t end = at[i] + ((b[i].nbytes ? b[i].nbytes : 1) + align - 1) / align * align;
    if (end > height) height = end;
  }
  return height;
}

/* Bytes live when block i begins, pair by pair: the largest is the floor. */
static uint64_t floor_of(const cla_lifetime *b, size_t n, uint64_t align) {
  uint64_t most = 0;
  for (size_t i = 0; i < n; i++) {
    uint64_t live = 0;
    for (size_t j = 0; j < n; j++)
      if (b[j].lower <= b[i].lower && b[i].lower < b[j].upper)
        live += ((b[j].nbytes ? b[j].nbytes : 1) + align - 1) / align * align;
    if (live > most) most = live;
  }
  return most;
}

enum { MOST = 700 };

/* Numbers around 16, 64 and 256 are where nodes and chunks begin. */
static void random_plans_are_plans(void) {
  static cla_lifetime b[MOST];
  static uint64_t at[MOST];
  for (int round = 0; round < 400; round++) {
    size_t n = round < 280 ? 1 + (size_t)round : 1 + below(MOST);
    uint64_t times = 1 + below(2 * n), sizes = (uint64_t)1 << below(24), align = (uint64_t)1 << below(10);
    for (size_t i = 0; i < n; i++) {
      b[i].lower = below(times);
      b[i].upper = b[i].lower + 1 + below(below(4) ? 8 : times);
      b[i].nbytes = below(sizes);
    }
    const cla_plan_options options = {.align = align, .steps = below(2) ? below(200) : 0};
    cla_plan_result r;
    if (!CHECK(cla_plan(b, n, &options, at, &r) == CLA_OK)) continue;
    CHECK(is_plan(b, n, align, at) && cla_plan_check(b, n, align, at) == CLA_OK);
    CHECK(r.nbytes == height_of(b, n, align, at));
    CHECK(r.floor == floor_of(b, n, align) && r.floor <= r.nbytes);
    CHECK(r.steps <= options.steps && r.orders >= 1);
  }
}

/* A check that always says yes would pass the test above: the same plans, with one block moved. */
static void a_spoiled_plan_is_found(void) {
  static cla_lifetime b[MOST];
  static uint64_t at[MOST];
  unsigned found = 0;
  for (int round = 0; round < 300; round++) {
    size_t n = 2 + below(60);
    for (size_t i = 0; i < n; i++) b[i] = (cla_lifetime){below(30), 31 + below(30), 1 + below(5000)};
    CHECK(cla_plan(b, n, NULL, at, NULL) == CLA_OK);
    at[below(n)] = 512 * below(40);
    bool is_good = is_plan(b, n, 512, at);
    cla_status status = cla_plan_check(b, n, 512, at);
    CHECK(status == (is_good ? CLA_OK : CLA_E_INVALID));
    if (!is_good) CHECK(strstr(cla_last_error(), "overlap") != NULL);
    found += !is_good;
  }
  CHECK(found > 100);
}

static void known_heights(void) {
  const cla_plan_options bytes = {.align = 1};
  uint64_t at[4];
  cla_plan_result r;
  const cla_lifetime in_turn[] = {{0, 5, 100}, {5, 9, 70}, {9, 10, 100}}; /* a block may begin as another ends */
  CHECK(cla_plan(in_turn, 3, &bytes, at, &r) == CLA_OK && r.nbytes == 100 && at[0] == 0 && at[1] == 0 && at[2] == 0);
  const cla_lifetime at_once[] = {{0, 5, 100}, {4, 9, 70}, {0, 10, 1}};
  CHECK(cla_plan(at_once, 3, &bytes, at, &r) == CLA_OK && r.nbytes == 171);
  const cla_lifetime empty[] = {{0, 2, 0}, {1, 3, 0}}; /* an address each */
  CHECK(cla_plan(empty, 2, &bytes, at, &r) == CLA_OK && r.nbytes == 2 && at[0] != at[1]);
  CHECK(cla_plan(empty, 2, NULL, at, &r) == CLA_OK && r.nbytes == 1024);
  const cla_lifetime far[] = {{0, UINT64_MAX, (uint64_t)1 << 60}, {UINT64_MAX - 1, UINT64_MAX, (uint64_t)1 << 60}};
  CHECK(cla_plan(far, 2, NULL, at, &r) == CLA_OK && r.nbytes == (uint64_t)1 << 61);
}

static void what_cannot_be_is_refused(void) {
  const cla_lifetime good = {0, 1, 8}, never = {3, 3, 8}, backwards = {3, 2, 8};
  const cla_lifetime huge[] = {{0, 1, UINT64_MAX}, {0, 1, UINT64_MAX / 2}, {0, 1, UINT64_MAX / 2 - 4096}};
  const cla_lifetime sum[] = {{0, 1, UINT64_MAX / 4}, {0, 1, UINT64_MAX / 4}, {0, 1, UINT64_MAX / 4}};
  uint64_t at[3] = {7, 7, 7};
  cla_plan_result r = {.nbytes = 7};
  CHECK(cla_plan(&good, 0, NULL, at, &r) == CLA_E_INVALID);
  CHECK(cla_plan(NULL, 1, NULL, at, &r) == CLA_E_INVALID);
  CHECK(cla_plan(&good, 1, NULL, NULL, &r) == CLA_E_INVALID);
  CHECK(cla_plan(&good, (size_t)1 << 33, NULL, at, &r) == CLA_E_INVALID);
  CHECK(cla_plan(&never, 1, NULL, at, &r) == CLA_E_INVALID && strstr(cla_last_error(), "from 3 to 3"));
  CHECK(cla_plan(&backwards, 1, NULL, at, &r) == CLA_E_INVALID);
  for (size_t i = 0; i < 2; i++) CHECK(cla_plan(&huge[i], 1, NULL, at, &r) == CLA_E_INVALID);
  CHECK(cla_plan(sum, 3, NULL, at, &r) == CLA_E_INVALID);
  const uint64_t aligns[] = {3, 100, 513, UINT64_MAX, (uint64_t)1 << 63};
  for (size_t i = 0; i < 5; i++) {
    const cla_plan_options options = {.align = aligns[i]};
    CHECK(cla_plan(&good, 1, &options, at, &r) == CLA_E_INVALID && strstr(cla_last_error(), "power of two"));
    CHECK(cla_plan_check(&good, 1, aligns[i], at) == CLA_E_INVALID);
  }
  CHECK(at[0] == 7 && r.nbytes == 7); /* nothing was written */
  CHECK(cla_plan_check(&good, 1, 512, at) == CLA_E_INVALID && strstr(cla_last_error(), "multiple"));
  CHECK(cla_plan(&huge[2], 1, NULL, at, &r) == CLA_OK);
}

/* More blocks than two levels of the tree hold, most of them short: it must take no time to speak of. */
static void many_blocks(void) {
  enum { N = 30000 };
  cla_lifetime *b = malloc(N * sizeof *b);
  uint64_t *at = malloc(N * sizeof *at);
  cla_plan_result r;
  if (CHECK(b && at)) {
    for (size_t i = 0; i < N; i++) {
      uint64_t lower = below(2 * N), length = below(50) ? 1 + below(100) : 1 + below(2 * N);
      b[i] = (cla_lifetime){lower, lower + length, 1 + below((uint64_t)1 << below(20))};
    }
    CHECK(cla_plan(b, N, NULL, at, &r) == CLA_OK && r.nbytes < r.floor + r.floor / 5);
    CHECK(cla_plan_check(b, N, 512, at) == CLA_OK);
  }
  free(b);
  free(at);
}

/* The same steps give the same plan. */
static void steps_are_deterministic(void) {
  cla_lifetime b[80];
  uint64_t first[80], second[80];
  for (size_t i = 0; i < 80; i++) {
    uint64_t lower = below(100);
    b[i] = (cla_lifetime){lower, lower + 1 + below(60), 1 + below(100)};
  }
  const cla_plan_options options = {.align = 1, .steps = 500}, none = {.align = 1};
  cla_plan_result r, without;
  CHECK(cla_plan(b, 80, &none, first, &without) == CLA_OK);
  CHECK(cla_plan(b, 80, &options, first, &r) == CLA_OK && cla_plan(b, 80, &options, second, &r) == CLA_OK);
  CHECK(memcmp(first, second, sizeof first) == 0);
  CHECK(r.nbytes <= without.nbytes && (r.steps == 500 || r.nbytes == r.floor));
}

int main(void) {
  known_heights();
  random_plans_are_plans();
  a_spoiled_plan_is_found();
  what_cannot_be_is_refused();
  steps_are_deterministic();
  many_blocks();
  return check_done("plan");
}
