/* ---- items that act together ---- */

static inline uint cla__lowest_bit(uint x) { return 31u - clz(x & -x); }

#if defined(CLA__WARP)

/* The lanes of a warp that are here now and want the same. */
typedef struct {
  uint lanes; /* a bit a lane */
  uint lane, leader, rank, count;
} cla__team;

static inline cla__team cla__team_with(uint lanes, uint lane) {
  const cla__team t = {lanes, lane, cla__lowest_bit(lanes), popcount(lanes & ((1u << lane) - 1u)), popcount(lanes)};
  return t;
}
static inline cla__team cla__team_of(uint want) {
  const uint here = cla__lanes_here();
  return cla__team_with(cla__lanes_alike(here, want), cla__lane());
}
/* The same where neighbours want the same; each lane for itself where none do: with 32 answers cla__lanes_alike takes a
 * quarter of what a free in permuted order costs. */
static inline cla__team cla__team_of_neighbours(uint want) {
  const uint here = cla__lanes_here(), lane = cla__lane();
  const uint other = (here >> (lane ^ 1u) & 1u) != 0u ? lane ^ 1u : lane;
  const bool is_same = cla__value_of_lane(here, want, other) == want && other != lane;
  return cla__team_with(cla__lanes_with(here, is_same) != 0u ? cla__lanes_alike(here, want) : 1u << lane, lane);
}
static inline uint cla__from(cla__team t, uint value, uint lane) { return cla__value_of_lane(t.lanes, value, lane); }

/* Is another lane of the team, before this one, at the same bit? */
static inline bool cla__is_repeated(cla__team t, uint bit) {
  return cla__lowest_bit(cla__lanes_alike(t.lanes, bit)) != t.lane;
}
static inline uint cla__slot(void) { return cla__warp_number(); }

static inline uint cla__lanes_before(void) { /* of those here now */
  const uint here = cla__lanes_here();
  return popcount(here & ((1u << cla__lane()) - 1u));
}

#else

#define cla__lanes_before() 0u

#if defined(CLA__CPU)
/* A CPU: what tells its threads apart is where their stacks are, some MiB from one another. */
static inline uint cla__slot(void) {
  volatile uint here;
  const uint mebibytes = (uint)((ulong)&here >> 21);
  return mebibytes + (mebibytes >> 2);
}
#else
static inline uint cla__slot(void) {
  return (uint)(get_group_id(0) + get_num_groups(0) * (get_group_id(1) + get_num_groups(1) * get_group_id(2)));
}
#endif
#endif

#if defined(__NV_CL_C_VERSION)
static inline void cla__fence(void) { asm volatile("membar.gl;" ::: "memory"); }
static inline void cla__release_fence(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
#else
/* rusticl 22.3 takes mem_fence for a barrier, which loses items in divergent code; Oclgrind knows only mem_fence. */
#if defined(__clang__) && !defined(__SPIR__)
#define cla__fence() __sync_synchronize()
#else
#define cla__fence() mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif
#if defined(CLA__CPU)
#define cla__release_fence() /* atomics order by themselves there */
#else
#define cla__release_fence() cla__fence()
#endif
#endif
