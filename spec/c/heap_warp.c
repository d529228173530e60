/* The heap's kernels as warps run them, without a GPU: clang compiles the kernels' text for this machine, with
 * warp/warp.cl in the place of NVIDIA's instructions, and this program plays the lanes, one at a time, each on a stack
 * of its own. Another lane goes on at any atomic operation, at any read or write of a shared word (clang's
 * instrumentation for ThreadSanitizer calls us there) and wherever lanes meet. Who goes on and who meets whom is drawn
 * by a seed, so a failure can be had again: heap_warp FIRST [LAST].
 *
 * What is played: every order of events (not the weaker orders of a GPU's memory), and that lanes of a warp part and
 * meet anywhere. Lanes that wait for one that never comes are a failure, as is one that waits for another's progress.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "check.h"
#include "heap_oracles.h"

enum { WARP = 32, LANES_MOST = 4 * WARP, STACK = 64 << 10, STACKS_APART = 4 << 20, STEPS_MOST = 4000000 };
enum { CHAINS_MOST = 64, BATCHES_MOST = 128 };
#define STACKS    ((size_t)LANES_MOST * STACKS_APART) /* of address space */
#define STACKS_AT 0x500000000000

/* ---- the kernels, as warp/kernels.cl has them ---- */

typedef struct kernels {
  const char *name;
  void (*take)(uint32_t *heap, void **blocks, uint32_t *sizes, uint32_t least, uint32_t most, uint32_t seed);
  uint32_t (*give)(uint32_t *heap, void **blocks, uint32_t *sizes, uint32_t step);
  uint32_t (*swap)(uint32_t *heap, void **blocks, uint32_t *sizes, uint32_t nrounds, uint32_t most, uint32_t seed);
  void (*table)(uint32_t *heap, uint32_t *heads, uint32_t nchains, uint32_t nkeys, uint32_t nrounds, uint32_t seed);
  uint32_t (*can_have)(uint32_t *heap, uint32_t nbytes);
  void (*give_twice)(uint32_t *heap, void **blocks);
  uint32_t (*live)(uint32_t *heap, uint32_t nrounds, uint32_t most, uint32_t seed);
} kernels;

#define BUILD(name)                                                                                               \
  void take_##name(uint32_t *heap, void **blocks, uint32_t *sizes, uint32_t least, uint32_t most, uint32_t seed); \
  uint32_t give_##name(uint32_t *heap, void **blocks, uint32_t *sizes, uint32_t step);                            \
  uint32_t swap_##name(uint32_t *heap, void **blocks, uint32_t *sizes, uint32_t nrounds, uint32_t most,           \
                       uint32_t seed);                                                                            \
  void table_##name(uint32_t *heap, uint32_t *heads, uint32_t nchains, uint32_t nkeys, uint32_t nrounds,          \
                    uint32_t seed);                                                                               \
  uint32_t can_have_##name(uint32_t *heap, uint32_t nbytes);                                                      \
  void give_twice_##name(uint32_t *heap, void **blocks);                                                          \
  uint32_t live_##name(uint32_t *heap, uint32_t nrounds, uint32_t most, uint32_t seed);                           \
  static const kernels name = {#name,        take_##name,     give_##name,       swap_##name,                     \
                               table_##name, can_have_##name, give_twice_##name, live_##name};
BUILD(warp)   /* as on NVIDIA */
BUILD(scalar) /* as on other GPUs */
BUILD(crowds) /* the same, and one item of a crowd looks for pages */
BUILD(cpu)

/* ---- lanes ---- */

typedef enum { READY, MEETS, JOINED, DONE } lane_state; /* MEETS: asks who is here; JOINED: waits for all of `lanes` */
typedef enum { ALIKE, WITH, VALUE_OF, OR_OF } meeting;

typedef struct lane {
  ucontext_t context;
  lane_state state;
  meeting kind;
  const void *place; /* in the kernel's code */
  uint32_t lanes, value, from, result, rank;
  void *stack;
} lane;

typedef enum { ANYHOW, TOGETHER, BY_RANK, SCHEDULES } schedule;

static struct play {
  ucontext_t director;
  lane lanes[LANES_MOST];
  uint32_t nlanes, now; /* now: the lane that runs */
  uint32_t first_warp;
  schedule schedule;
  uint64_t dice;
  uint64_t nsteps, naccesses; /* accesses: to shared words */
  void (*body)(void);
} play;

static uint32_t draw(uint32_t n) {
  play.dice = play.dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((play.dice >> 33) % n);
}

/* Gives the others a turn. */
static void pause_lane(void) { swapcontext(&play.lanes[play.now].context, &play.director); }

/* TOGETHER: lanes of a warp go on until they meet, as on a GPU that has no reason to part them. */
static void maybe_pause(void) {
  play.naccesses++;
  if (play.schedule == BY_RANK ? draw(64) == 0 : draw(play.schedule == TOGETHER ? 16 : 3) == 0) pause_lane();
}

static void run_lane(void) {
  play.body();
  play.lanes[play.now].state = DONE;
  pause_lane();
}

/* ---- where lanes meet ---- */

static lane *peers_of(uint32_t i) { return play.lanes + i / WARP * WARP; }

/* All of a meeting's lanes are there: each gets its answer. */
static void hold_meeting(lane *peers, uint32_t lanes) {
  uint32_t with = 0, all = 0;
  for (uint32_t i = 0; i < WARP; i++) {
    if (!(lanes >> i & 1)) continue;
    all |= peers[i].value;
    if (peers[i].value) with |= 1u << i;
  }
  for (uint32_t i = 0; i < WARP; i++) {
    if (!(lanes >> i & 1)) continue;
    lane *l = &peers[i];
    if (l->kind == WITH) l->result = with;
    if (l->kind == OR_OF) l->result = all;
    if (l->kind == VALUE_OF) l->result = peers[l->from].value;
    if (l->kind == ALIKE) {
      l->result = 0;
      for (uint32_t j = 0; j < WARP; j++)
        if ((lanes >> j & 1) && peers[j].value == l->value) l->result |= 1u << j;
    }
    l->state = READY;
  }
}

static uint32_t meet(meeting kind, uint32_t lanes, uint32_t value, uint32_t from) {
  lane *peers = peers_of(play.now), *l = &play.lanes[play.now];
  l->state = JOINED, l->kind = kind, l->lanes = lanes, l->value = value, l->from = from;
  bool is_complete = true;
  CHECK(lanes >> play.now % WARP & 1);
  CHECK(kind != VALUE_OF || (lanes >> from & 1));
  for (uint32_t i = 0; i < WARP; i++)
    if (lanes >> i & 1) is_complete &= peers[i].state == JOINED && peers[i].kind == kind && peers[i].lanes == lanes;
  if (is_complete) hold_meeting(peers, lanes);
  pause_lane();
  return l->result;
}

/* Those that ask at the same place, all of them or some, get to know of one another. */
static void introduce(uint32_t asking) {
  lane *peers = peers_of(asking);
  const bool is_all = play.schedule == TOGETHER || draw(2);
  uint32_t lanes = 1u << asking % WARP;
  for (uint32_t i = 0; i < WARP; i++)
    if (peers[i].state == MEETS && peers[i].place == play.lanes[asking].place && (is_all || draw(2))) lanes |= 1u << i;
  for (uint32_t i = 0; i < WARP; i++)
    if (lanes >> i & 1) peers[i].state = READY, peers[i].result = lanes;
}

/* ---- who goes on ---- */

static bool warp_is_busy(uint32_t i) {
  const lane *peers = peers_of(i);
  for (uint32_t j = 0; j < WARP; j++)
    if (peers[j].state == READY) return true;
  return false;
}

static bool may_go_on(uint32_t i) {
  const lane *l = &play.lanes[i];
  return l->state == READY || (l->state == MEETS && (play.schedule != TOGETHER || !warp_is_busy(i)));
}

/* The lane that goes on; nlanes: none can. */
static uint32_t choose(void) {
  const uint32_t n = play.nlanes, first = draw(n);
  uint32_t best = n;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t j = (first + i) % n;
    if (!may_go_on(j)) continue;
    if (play.schedule != BY_RANK) return j;
    if (best == n || play.lanes[j].rank > play.lanes[best].rank) best = j;
  }
  if (best < n && draw(256) == 0) play.lanes[best].rank = draw(1u << 30) / 4; /* the first falls behind */
  return best;
}

/* The kernels tell a CPU's threads apart by their stacks' addresses: so these are the same in every run, if to be had. */
static char *make_stacks(void) {
  char *memory =
      mmap((void *)STACKS_AT, STACKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("heap_warp: stacks");
    exit(1);
  }
  for (uint32_t i = 0; i < LANES_MOST; i++) play.lanes[i].stack = memory + (size_t)i * STACKS_APART;
  return memory;
}

static void start(lane *l) {
  l->state = READY, l->rank = draw(1U << 30);
  getcontext(&l->context);
  l->context.uc_stack.ss_sp = l->stack, l->context.uc_stack.ss_size = STACK, l->context.uc_link = NULL;
  makecontext(&l->context, run_lane, 0);
}

/* Runs the body in so many lanes to its end; false: some wait for ever. */
static bool perform(void (*body)(void), uint32_t nlanes, uint32_t seed) {
  play.body = body, play.nlanes = nlanes, play.dice = seed * UINT64_C(0x9E3779B97F4A7C15);
  play.schedule = (schedule)(seed % SCHEDULES), play.nsteps = 0, play.naccesses = 0;
  for (uint32_t i = 0; i < LANES_MOST; i++) play.lanes[i].state = DONE;
  for (uint32_t i = 0; i < nlanes; i++) start(&play.lanes[i]);
  for (;;) {
    play.now = choose();
    if (play.now == nlanes) break;
    if (play.lanes[play.now].state == MEETS) introduce(play.now);
    if (++play.nsteps == STEPS_MOST) {
      fprintf(stderr, "seed %u: no end\n", seed);
      exit(1);
    }
    swapcontext(&play.director, &play.lanes[play.now].context);
  }
  uint32_t nwaiting = 0;
  for (uint32_t i = 0; i < nlanes; i++) nwaiting += play.lanes[i].state != DONE;
  if (nwaiting) fprintf(stderr, "seed %u: %u lanes wait for ever\n", seed, nwaiting);
  return nwaiting == 0;
}

/* ---- what the kernels call ---- */

uint32_t played_lane(void);
uint32_t played_lanes_here(void);
uint32_t played_lanes_alike(uint32_t lanes, uint32_t value);
uint32_t played_lanes_with(uint32_t lanes, uint32_t is_true);
uint32_t played_value_of_lane(uint32_t lanes, uint32_t value, uint32_t from);
uint32_t played_or_of_lanes(uint32_t lanes, uint32_t value);
uint32_t played_warp_number(void);
uint32_t played_item(void);
uint32_t played_nitems(void);
uint32_t played_add(volatile uint32_t *at, uint32_t value);
uint32_t played_and(volatile uint32_t *at, uint32_t value);
uint32_t played_or(volatile uint32_t *at, uint32_t value);
uint32_t played_max(volatile uint32_t *at, uint32_t value);
uint32_t played_xchg(volatile uint32_t *at, uint32_t value);
uint32_t played_cmpxchg(volatile uint32_t *at, uint32_t expected, uint32_t value);
uint32_t played_clz(uint64_t value, uint32_t nbits);
uint64_t played_mul_hi(uint64_t a, uint64_t b);
void played_born(uint32_t *heap, char *block, uint64_t nbytes);
void played_dies(char *block);

uint32_t played_lane(void) { return play.now % WARP; }
uint32_t played_warp_number(void) { return play.first_warp + play.now / WARP; }
uint32_t played_item(void) { return play.now; }
uint32_t played_nitems(void) { return play.nlanes; }

uint32_t played_lanes_here(void) {
  lane *l = &play.lanes[play.now];
  l->place = __builtin_return_address(0);
  l->state = MEETS;
  pause_lane();
  return l->result;
}

uint32_t played_lanes_alike(uint32_t lanes, uint32_t value) { return meet(ALIKE, lanes, value, 0); }
uint32_t played_lanes_with(uint32_t lanes, uint32_t is_true) { return meet(WITH, lanes, is_true, 0); }
uint32_t played_or_of_lanes(uint32_t lanes, uint32_t value) { return meet(OR_OF, lanes, value, 0); }
uint32_t played_value_of_lane(uint32_t lanes, uint32_t value, uint32_t from) {
  return meet(VALUE_OF, lanes, value, from);
}

#define ATOMIC(name, change)                             \
  uint32_t name(volatile uint32_t *at, uint32_t value) { \
    maybe_pause();                                       \
    const uint32_t was = *at;                            \
    *at = (change);                                      \
    return was;                                          \
  }
ATOMIC(played_add, was + value)
ATOMIC(played_and, was &value)
ATOMIC(played_or, was | value)
ATOMIC(played_max, was > value ? was : value)
ATOMIC(played_xchg, value)

uint32_t played_cmpxchg(volatile uint32_t *at, uint32_t expected, uint32_t value) {
  maybe_pause();
  const uint32_t was = *at;
  if (was == expected) *at = value;
  return was;
}

uint32_t played_clz(uint64_t value, uint32_t nbits) {
  return value ? (uint32_t)__builtin_clzll(value) - (64 - nbits) : nbits;
}
uint64_t played_mul_hi(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }

/* ThreadSanitizer's, whose names the compiler gives: of the accesses, those to shared words are volatile. */
#define SHARED(name)                                                    \
  void shared_##name(const void *at) __asm__("__tsan_volatile_" #name); \
  void shared_##name(const void *at) { (void)at, maybe_pause(); }
#define PRIVATE(name)                                           \
  void private_##name(const void *at) __asm__("__tsan_" #name); \
  void private_##name(const void *at) { (void)at; }
SHARED(read4)
SHARED(read16)
SHARED(write4)
PRIVATE(read1)
PRIVATE(read2)
PRIVATE(read4)
PRIVATE(read8)
PRIVATE(read16)
PRIVATE(write1)
PRIVATE(write2)
PRIVATE(write4)
PRIVATE(write8)
PRIVATE(write16)
void begin_instrumented(void) __asm__("__tsan_init");
void begin_instrumented(void) {}

/* ---- a heap ---- */

static struct {
  cla__heap_plan plan;
  uint32_t *words;
  char *payload;
  uint32_t *owner; /* of each 16 bytes of payload: 0, or 1 + the block's first */
  void *blocks[LANES_MOST];
  uint32_t sizes[LANES_MOST];
  uint32_t nblocks, ngood, a, b, c, d;
  uint32_t heads[CHAINS_MOST];
} h;

static const kernels *under_test;

static void heap_open(uint64_t limit, uint32_t compute_units) {
  const cla__heap_device kind = {
      .compute_units = compute_units, .width = under_test == &warp ? WARP : 1, .is_gpu = under_test != &cpu};
  uint32_t control[CLA_HEAP_CONTROL_WORDS];
  memset(&h, 0, sizeof h);
  CHECK(cla__heap_plan_make(limit, &kind, CLA_HEAP_COUNT | CLA_HEAP_PEAK, false, &h.plan));
  h.owner = calloc(h.plan.payload_bytes / 16 + 1, sizeof *h.owner);
  const size_t page = (size_t)1 << h.plan.page_shift;
  const size_t align = page > 4096 ? page : 4096;
  h.words = aligned_alloc(align, (h.plan.total_bytes + align - 1) & ~(align - 1));
  memset(h.words, 0, h.plan.total_bytes);
  memset((char *)h.words + h.plan.hints_begin, 0xff, h.plan.hints_end - h.plan.hints_begin);
  cla__heap_control(&h.plan, control);
  memcpy(h.words, control, sizeof control);
  cla__heap_free_words(&h.plan, h.words + h.plan.free_map);
  const size_t payload = ((size_t)h.plan.payload_offset + page - 1) & ~(page - 1); /* as cla__heap_settle does */
  h.words[CLA_HEAP_PAYLOAD16] = (uint32_t)(payload / 16);
  h.payload = (char *)h.words + payload;
}

static void heap_done(void) { free(h.owner), free(h.words); }

static bool heap_is(uint64_t nlive) {
  cla__heap_tally tally;
  const bool is_sound = audit(&h.plan, h.words, &tally) == 0;
  if (tally.live_blocks != nlive) fprintf(stderr, "%llu live\n", (unsigned long long)tally.live_blocks);
  return is_sound && tally.live_blocks == nlive && (nlive > 0 || is_whole(&h.plan, &tally));
}

void played_born(uint32_t *heap, char *block, uint64_t nbytes) {
  const size_t first = (size_t)(block - h.payload) / 16;
  bool is_free = heap == h.words && block >= h.payload && (block - h.payload) % 16 == 0 &&
                 (size_t)(block - h.payload) + nbytes <= h.plan.payload_bytes;
  for (size_t i = 0; is_free && i < (nbytes + 15) / 16; i++)
    is_free = h.owner[first + i] == 0, h.owner[first + i] = (uint32_t)first + 1;
  CHECK(is_free);
  h.nblocks++;
}

void played_dies(char *block) {
  const size_t first = (size_t)(block - h.payload) / 16;
  CHECK(h.owner[first] == first + 1);
  for (size_t i = first; i < h.plan.payload_bytes / 16 && h.owner[i] == first + 1; i++) h.owner[i] = 0;
  h.nblocks--;
}

/* ---- tests ---- */

static uint64_t count(uint32_t at) { return h.words[at] | (uint64_t)h.words[at + 1] << 32; }

static void take_body(void) { under_test->take(h.words, h.blocks, h.sizes, h.a, h.b, h.c); }
static void give_body(void) { h.ngood += under_test->give(h.words, h.blocks, h.sizes, h.a); }
static void give_twice_body(void) { under_test->give_twice(h.words, h.blocks); }
static void swap_body(void) { h.ngood += under_test->swap(h.words, h.blocks, h.sizes, h.a, h.b, h.c); }
static void can_have_body(void) { h.ngood += under_test->can_have(h.words, h.a); }
static void table_body(void) { under_test->table(h.words, h.heads, h.a, h.b, h.d, h.c); }
static void live_body(void) { h.ngood += under_test->live(h.words, h.a, h.b, h.c); }

static uint32_t nulls(uint32_t n) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < n; i++) sum += h.blocks[i] == NULL;
  return sum;
}

/* Blocks of least to most bytes; how many items got none. */
static uint32_t take_all(uint32_t n, uint32_t least, uint32_t most, uint32_t seed) {
  const uint64_t failed = count(CLA_HEAP_FAILED);
  const uint32_t before = h.nblocks;
  h.a = least, h.b = most, h.c = seed;
  CHECK(perform(take_body, n, seed));
  CHECK(h.nblocks == before + n - nulls(n) && count(CLA_HEAP_FAILED) == failed + nulls(n));
  CHECK(heap_is(h.nblocks));
  return nulls(n);
}

static void give_all(uint32_t n, uint32_t step, uint32_t seed) {
  const uint32_t before = h.nblocks;
  h.ngood = 0, h.a = step;
  CHECK(perform(give_body, n, seed));
  CHECK(h.ngood == n && h.nblocks == before - (n - nulls(n)));
  CHECK(heap_is(h.nblocks));
}

/* What is taken in several batches, until it is given back. */
static void *batches[BATCHES_MOST][LANES_MOST];
static void keep_batch(uint32_t i) { memcpy(batches[i], h.blocks, sizeof h.blocks); }
static void bring_batch(uint32_t i) { memcpy(h.blocks, batches[i], sizeof h.blocks); }

static void take_batch(uint32_t i, uint32_t size, uint32_t seed) {
  CHECK(take_all(LANES_MOST, size, size, seed) == 0);
  keep_batch(i);
}

static void give_batch(uint32_t i, uint32_t seed) {
  bring_batch(i);
  give_all(LANES_MOST, 1, seed);
}

/* As many blocks of one size as the heap holds, no fewer, and everything back. */
static void test_one_size(uint32_t seed) {
  static const uint64_t limits[] = {512, 2048, 5000, 20000, 65536, 300000};
  static const uint32_t sizes[] = {16, 48, 64, 100, 250, 500, 1000, 2000, 3000};
  const uint64_t limit = limits[seed % 6];
  const uint32_t size = sizes[seed / 6 % 9], n = 1 + seed * 7 % LANES_MOST;
  heap_open(limit, 2);
  uint32_t k = 0;
  while (k < h.plan.nclasses && h.plan.size[k] < size) k++;
  const uint32_t pages_each = (size + (1u << h.plan.page_shift) - 1) >> h.plan.page_shift;
  const uint64_t fit = k < h.plan.nclasses ? (uint64_t)h.plan.capacity[k] * h.plan.npages : h.plan.npages / pages_each;
  const uint32_t wanted = fit < n ? n - (uint32_t)fit : 0;
  for (uint32_t round = 0; round < 2; round++) {
    const uint32_t got = take_all(n, size, size, seed + round);
    if (!CHECK(got == wanted)) fprintf(stderr, "seed %u: %u of %u blocks null, not %u\n", seed, got, n, wanted);
    give_all(n, round ? 7919 : 1, seed + round);
  }
  heap_done();
}

/* Random sizes that use half of the heap, or more than there is. */
static void test_sizes(uint32_t seed) {
  const uint32_t n = LANES_MOST, most = 40 + seed % 11 * 60;
  const bool is_ample = seed % 2;
  heap_open(is_ample ? (uint64_t)n * most * 4 : (uint64_t)n * most / 3, 1 + seed % 5);
  const uint32_t got = take_all(n, 1, most, seed);
  CHECK(is_ample ? got == 0 : got < n);
  give_all(n, 7919, seed);
  heap_done();
}

static void test_live(uint32_t seed) {
  const uint32_t n = 1 + seed * 13 % LANES_MOST;
  heap_open((uint64_t)2048 << seed % 8, 1 + seed % 3);
  h.ngood = 0, h.a = 12, h.b = 20 + seed % 7 * 100, h.c = seed;
  CHECK(perform(live_body, n, seed));
  CHECK(h.ngood == n && h.nblocks == 0 && heap_is(0));
  CHECK(count(CLA_HEAP_DOUBLES) == 0 && count(CLA_HEAP_BADS) == 0);
  heap_done();
}

/* Once nobody is at work, what the pages have room for is to be had. */
static void check_room(uint32_t seed) {
  for (uint32_t k = 0; k < h.plan.nclasses; k++) {
    bool has_room = false;
    for (uint32_t p = 0; p < h.plan.npages && !has_room; p++) {
      const uint32_t word = h.words[cla__page_word(p)], code = cla__page_code(word), used = word & CLA_HEAP_USED;
      has_room = code < CLA_HEAP_TAKEN && (used == 0 || (code == k + 1 && used < h.plan.capacity[k]));
    }
    h.ngood = 0, h.a = h.plan.size[k];
    CHECK(perform(can_have_body, 1, seed + k));
    if (!CHECK(h.ngood == has_room)) fprintf(stderr, "seed %u: no %u bytes\n", seed, h.plan.size[k]);
  }
}

/* Blocks come and go, in heaps that are nearly full: nothing is lost. */
static void test_swap(uint32_t seed) {
  const uint32_t n = 1 + seed * 29 % LANES_MOST, most = 30 + seed % 9 * 50;
  heap_open((uint64_t)n * most * (1 + seed % 4) / 5 + 1, 1 + seed % 3);
  h.ngood = 0, h.a = 16, h.b = most, h.c = seed;
  CHECK(perform(swap_body, n, seed));
  CHECK(h.ngood == n && heap_is(h.nblocks));
  check_room(seed);
  give_all(n, 1, seed);
  heap_done();
}

/* A hash table with chains that all items fill: each key is there once, and was counted as often as it came. */
static void test_table(uint32_t seed) {
  enum { ROUNDS = 6 };
  const uint32_t n = 1 + seed * 31 % LANES_MOST, nchains = 1 + seed % CHAINS_MOST, nkeys = 1 + seed * 7 % LANES_MOST;
  bool is_known[LANES_MOST] = {false};
  uint32_t nnodes = 0, sum = 0;
  heap_open(UINT64_C(65536) << seed % 4, 1 + seed % 3);
  h.a = nchains, h.b = nkeys, h.c = seed, h.d = ROUNDS;
  CHECK(perform(table_body, n, seed));
  for (uint32_t i = 0; i < nchains; i++)
    for (uint32_t at = h.heads[i], next; at != 0 && nnodes < LANES_MOST; at = next) {
      uint32_t *node = (uint32_t *)(h.payload + at - 1);
      CHECK(node[1] < nkeys && node[1] % nchains == i && !is_known[node[1]]);
      is_known[node[1]] = true, sum += node[2], next = node[0];
      h.sizes[nnodes] = 12, h.blocks[nnodes] = node;
      node[0] = nnodes++; /* as give wants it */
    }
  CHECK(sum == n * ROUNDS && h.nblocks == nnodes && heap_is(nnodes));
  give_all(nnodes, 1, seed);
  heap_done();
}

/* An item each frees the same block, small and of pages: one of them does. */
static void test_twice(uint32_t seed) {
  const uint32_t n = 1 + seed % LANES_MOST, size = seed % 2 ? 100 : 1000;
  heap_open(65536, 1);
  CHECK(take_all(2, size, size, seed) == 0);
  CHECK(perform(give_twice_body, n, seed));
  CHECK(count(CLA_HEAP_DOUBLES) == n - 1 && count(CLA_HEAP_BADS) == 2 * n);
  CHECK(heap_is(1));
  heap_done();
}

static uint32_t code_of(uint32_t page) { return cla__page_code(h.words[cla__page_word(page)]); }

/* A page of the class that is the current one of two hints; NONE: there is none. */
static uint32_t page_in_two_hints(uint32_t k) {
  const uint32_t *hints = h.words + h.plan.hints[k];
  for (uint32_t i = 0; i < h.plan.nhints[k]; i++)
    for (uint32_t j = 0; j < i; j++) {
      const uint32_t page = hints[4 * i];
      if (page == hints[4 * j] && page < h.plan.npages && code_of(page) == k + 1) return page;
    }
  return CLA_HEAP_NONE;
}

/* Two threads of a CPU do not share a page while there are others: its cache lines would go to and fro. (Where both take
 * an empty page in the same instant they may; none of these seeds does it.) */
static void test_apart(uint32_t seed) {
  if (under_test != &cpu) return;
  heap_open(UINT64_C(1) << 20, 2);
  for (uint32_t round = 0; round < 3; round++) {
    h.ngood = 0, h.a = 60, h.b = 100 + seed % 5 * 100, h.c = seed + round;
    CHECK(perform(round % 2 ? live_body : swap_body, 2, seed + round) && h.ngood == 2);
    for (uint32_t k = 0; k < h.plan.nclasses; k++)
      if (!CHECK(page_in_two_hints(k) == CLA_HEAP_NONE)) fprintf(stderr, "seed %u: class %u\n", seed, k);
  }
  give_all(2, 1, seed);
  heap_done();
}

/* Warps that free their pages and fill them again leave bits in the bitmaps that are no longer true. One that has no page
 * yet does not go through all of them. */
static void test_old_bits(uint32_t seed) {
  if (under_test != &warp || seed % 50 != 1) return;
  heap_open(UINT64_C(32) << 20, 16);
  enum { AT_ONCE = LANES_MOST / WARP, NTIMES = 64, NWARPS = AT_ONCE * NTIMES };
  const uint32_t size = (1u << h.plan.page_shift) / WARP; /* a page a warp */
  for (uint32_t i = 0; i < NTIMES; i++, play.first_warp += AT_ONCE) take_batch(i, size, seed);
  for (uint32_t i = 0; i < NTIMES; i++) give_batch(i, seed);
  play.first_warp = 0;
  for (uint32_t i = 0; i < NTIMES; i++, play.first_warp += AT_ONCE) take_all(LANES_MOST, size, size, seed);
  CHECK(h.nblocks == NWARPS * WARP);
  for (uint32_t i = 0; i < 8; i++, play.first_warp++) {
    CHECK(take_all(1, size, size, seed + i) == 0);
    if (!CHECK(play.naccesses < NWARPS)) fprintf(stderr, "%llu accesses\n", (unsigned long long)play.naccesses);
  }
  play.first_warp = 0;
  heap_done();
}

static uint32_t page_of(const void *block) {
  return (uint32_t)(((const char *)block - h.payload) >> h.plan.page_shift);
}

/* On a GPU a page that another class took and gave up is its former hint's next page: there is no search. */
static void test_again(uint32_t seed) {
  if (under_test == &cpu) return;
  enum { SIZE = 64, OTHER = 128 };
  heap_open(UINT64_C(1) << 20, 1);
  CHECK(take_all(1, SIZE, SIZE, seed) == 0);
  const uint32_t page = page_of(h.blocks[0]), code = code_of(page);
  give_all(1, 1, seed);
  uint32_t ntimes = 0;
  for (; ntimes < 64 && code_of(page) == code; ntimes++) take_batch(ntimes, OTHER, seed + ntimes);
  CHECK(code_of(page) != code);
  while (ntimes > 0) give_batch(--ntimes, seed);
  CHECK(take_all(1, SIZE, SIZE, seed) == 0 && page_of(h.blocks[0]) == page);
  if (!CHECK(play.naccesses <= 24)) fprintf(stderr, "%llu accesses\n", (unsigned long long)play.naccesses);
  CHECK(code_of(page) == code);
  give_all(1, 1, seed);
  heap_done();
}

/* A heap of thousands of pages: all of it is to be had, twice, and is whole again. */
static void test_large(uint32_t seed) {
  if (seed % 100 != 1) return;
  heap_open(UINT64_C(32) << 20, 16);
  const uint32_t size = 1u << (h.plan.page_shift - 1), ntimes = 2 * h.plan.npages / LANES_MOST; /* two blocks a page */
  for (uint32_t round = 0; round < 2; round++) {
    h.a = h.b = size, h.c = seed;
    for (uint32_t i = 0; i < ntimes; i++) {
      CHECK(perform(take_body, LANES_MOST, seed + i) && nulls(LANES_MOST) == 0);
      keep_batch(i);
    }
    CHECK(heap_is(ntimes * LANES_MOST));
    CHECK(take_all(LANES_MOST, size, size, seed) == LANES_MOST);
    h.ngood = 0, h.a = round ? 77 : 1;
    for (uint32_t i = 0; i < ntimes; i++) {
      bring_batch(i);
      CHECK(perform(give_body, LANES_MOST, seed + i));
    }
    CHECK(h.ngood == ntimes * LANES_MOST && heap_is(0));
    h.ngood = 0, h.a = (uint32_t)h.plan.payload_bytes;
    CHECK(perform(can_have_body, 1, seed) && h.ngood == 1);
  }
  heap_done();
}

int main(int argc, char **argv) {
  void (*const tests[])(uint32_t) = {test_one_size, test_sizes, test_live,     test_swap,  test_table,
                                     test_twice,    test_apart, test_old_bits, test_again, test_large};
  const kernels *const builds[] = {&warp, &scalar, &crowds, &cpu};
  const uint32_t first = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1,
                 last = argc > 2   ? (uint32_t)strtoul(argv[2], NULL, 0)
                        : argc > 1 ? first
                                   : 100;
  char *stacks = make_stacks();
  for (size_t b = 0; b < sizeof builds / sizeof builds[0]; b++) {
    under_test = builds[b];
    for (uint32_t seed = first; seed <= last; seed++)
      for (size_t t = 0; t < sizeof tests / sizeof tests[0]; t++) {
        const int failed = atomic_load(&check_failed);
        tests[t](seed);
        if (atomic_load(&check_failed) > failed) fprintf(stderr, "%s, test %zu, seed %u\n", under_test->name, t, seed);
      }
  }
  munmap(stacks, STACKS);
  return check_done("heap_warp");
}
