/* Random operations on two pools and four streams of a simulated device whose commands complete only when told to.
 *
 * What must hold all along: the pools' own recount agrees; live allocations do not overlap; and memory is never handed
 * to a stream while a command of another stream may still use it, unless the new owner was made to wait. The second is
 * checked against a model that knows every use and nothing of how the pool works. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

enum { STREAMS = 4, POOLS = 2, LIVE = 600, USES = 20000 };

static uint64_t seed;
static uint64_t next_random(void) { /* xorshift64* */
  seed ^= seed >> 12;
  seed ^= seed << 25;
  seed ^= seed >> 27;
  return seed * 0x2545F4914F6CDD1Du;
}
static size_t below(size_t n) { return (size_t)(next_random() % n); }

static cla_device *device;
static cla_stream *streams[STREAMS];
static cla_pool *pools[POOLS];

typedef struct allocation {
  char *address;
  size_t nbytes;
  int stream;
} allocation;
static allocation live[LIVE];
static size_t nlive;

/* Bytes used by a command: number `number` of stream `stream`. */
typedef struct use {
  char *from, *to;
  int stream;
  uint64_t number;
} use;
static use uses[USES];
static size_t nuses;

static uint64_t submitted(int i) {
  cla_stream_stats s;
  cla_stream_get_stats(streams[i], &s);
  return s.submitted;
}

static uint64_t done[STREAMS]; /* numbers known complete, because the device was told to */
static bool ordered;           /* a limit bites: streams may have been made to wait for one another */

static void note_use(const allocation *a, int stream) {
  if (nuses == USES) {
    size_t kept = 0;
    for (size_t i = 0; i < nuses; i++)
      if (uses[i].number > done[uses[i].stream]) uses[kept++] = uses[i];
    nuses = kept;
  }
  if (nuses < USES) uses[nuses++] = (use){a->address, a->address + a->nbytes, stream, submitted(stream)};
}

/* Streams may wait for one another: round and round until nothing moves. */
static void complete_all(void) {
  uint64_t before[STREAMS], moved = 1;
  for (int i = 0; i < STREAMS; i++) before[i] = submitted(i);
  while (moved) {
    moved = 0;
    for (int i = 0; i < STREAMS; i++) {
      uint64_t n = 0;
      cla_simulate_complete(streams[i], UINT64_MAX, &n);
      moved += n;
    }
  }
  memcpy(done, before, sizeof done);
}

static void complete_one(int i) {
  uint64_t before = submitted(i), n = 0;
  cla_simulate_complete(streams[i], UINT64_MAX, &n);
  if (!ordered) done[i] = before; /* nothing of another stream's holds it back */
}

static size_t random_size(void) {
  switch (below(6)) {
  case 0: return below(3);
  case 1: return 512 * (1 + below(8));
  case 2: return 1 + below(100000);
  case 3: return 1 + below(3000000);
  default: return 4096;
  }
}

static void allocate(void) {
  if (nlive == LIVE) return;
  int s = (int)below(STREAMS);
  cla_pool *p = pools[below(POOLS)];
  size_t nbytes = random_size();
  void *address = NULL;
  cla_status status = cla_alloc(p, nbytes, streams[s], &address);
  if (status) {
    CHECK(ordered && (status == CLA_E_LIMIT || status == CLA_E_NOMEM));
    return;
  }
  allocation a = {address, nbytes, s};
  for (size_t i = 0; i < nlive; i++)
    CHECK(a.address + (nbytes ? nbytes : 1) <= live[i].address ||
          live[i].address + (live[i].nbytes ? live[i].nbytes : 1) <= a.address);
  if (!ordered) /* else a wait may stand in for completion */
    for (size_t i = 0; i < nuses; i++)
      if (uses[i].from < a.address + nbytes && a.address < uses[i].to && uses[i].stream != s)
        CHECK(uses[i].number <= done[uses[i].stream]);
  live[nlive++] = a;
}

static void release(void) {
  if (!nlive) return;
  size_t i = below(nlive);
  CHECK(cla_free(live[i].address) == CLA_OK);
  CHECK(cla_free(live[i].address) != CLA_OK);
  live[i] = live[--nlive];
}

/* A command on some stream, seen by the library or recorded by hand. */
static void command(void) {
  if (!nlive) return;
  allocation *a = &live[below(nlive)];
  int s = (int)below(STREAMS);
  cl_event event = NULL;
  if (!a->nbytes) return;
  CHECK(cla_fill(a->address, "x", 1, a->nbytes, streams[s], &event) == CLA_OK);
  cla_event_release(device, event);
  note_use(a, s);
}

static void record(void) {
  if (!nlive) return;
  allocation *a = &live[below(nlive)];
  int s = (int)below(STREAMS);
  CHECK(cla_record(a->address + (a->nbytes ? below(a->nbytes) : 0), streams[s]) == CLA_OK);
}

static void check_pools(void) {
  for (int i = 0; i < POOLS; i++) {
    cla_status status = cla_pool_check(pools[i]);
    if (status) fprintf(stderr, "%s\n", cla_last_error());
    CHECK(status == CLA_OK);
  }
}

static void step(void) {
  switch (below(16)) {
  case 0:
  case 1:
  case 2:
  case 3:
  case 4: allocate(); break;
  case 5:
  case 6:
  case 7:
  case 8: release(); break;
  case 9:
  case 10:
  case 11: command(); break;
  case 12: record(); break;
  case 13: complete_one((int)below(STREAMS)); break;
  case 14:
    if (below(20) == 0) complete_all();
    break;
  default:
    if (below(200) == 0) {
      complete_all(); /* a trim waits, which completes commands behind the model's back */
      CHECK(cla_pool_trim(pools[below(POOLS)], NULL) == CLA_OK);
    }
    if (below(300) == 0) CHECK(cla_pool_reset_peaks(pools[below(POOLS)]) == CLA_OK);
  }
}

static void run(uint64_t with_seed, size_t limit, int operations) {
  const cla_simulation sim = {.capacity = (uint64_t)4 << 30, .align_bytes = 512, .manual = true};
  seed = with_seed;
  ordered = limit != 0;
  nlive = nuses = 0;
  memset(done, 0, sizeof done);
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  const cla_pool_options options = {.policy = cla_policy_caching(), .limit = limit};
  for (int i = 0; i < POOLS; i++) CHECK(cla_pool_create_with(device, &options, &pools[i]) == CLA_OK);
  for (int i = 0; i < STREAMS; i++) CHECK(cla_stream_create(device, &streams[i]) == CLA_OK);
  for (int i = 0; i < operations; i++) {
    step();
    if (i % 100 == 0) check_pools();
    if (check_failed > 20) break;
  }
  check_pools();
  while (nlive) release();
  complete_all();
  check_pools();
  for (int i = 0; i < POOLS; i++) {
    cla_stats s;
    CHECK(cla_pool_trim(pools[i], NULL) == CLA_OK);
    CHECK(cla_pool_stats(pools[i], &s) == CLA_OK);
    CHECK(s.reserved_bytes == 0 && s.active_blocks == 0 && s.held_blocks == 0 && s.segments == 0);
    CHECK(s.allocs == s.frees && s.driver_allocs == s.driver_frees);
  }
  for (int i = 0; i < STREAMS; i++) cla_stream_release(streams[i]);
  for (int i = 0; i < POOLS; i++) cla_pool_release(pools[i]);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
}

int main(void) {
  for (uint64_t s = 1; s <= 4; s++) run(s * 7919, 0, 100000);
  for (uint64_t s = 1; s <= 4; s++) run(s * 104729, (size_t)24 << 20, 100000);
  return check_done("pool_random");
}
