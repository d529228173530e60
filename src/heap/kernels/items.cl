/* ---- items that act together ---- */

/* The lanes of an NVIDIA warp that are here now and want the same; elsewhere each item for itself. */

#if defined(__NV_CL_C_VERSION) && !defined(CLA_HEAP_SCALAR)
#define CLA__WARP 1

typedef struct {
  uint lanes; /* a bit a lane */
  uint lane, leader, rank, count;
} cla__team;

static inline uint cla__lowest_bit(uint x) { return 31u - clz(x & -x); }

static inline cla__team cla__team_of(uint want) {
  cla__team t;
  uint active;
  asm volatile("activemask.b32 %0;" : "=r"(active));
  asm("mov.u32 %0, %%laneid;" : "=r"(t.lane));
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(t.lanes) : "r"(want), "r"(active));
  t.leader = cla__lowest_bit(t.lanes);
  t.rank = popcount(t.lanes & ((1u << t.lane) - 1u));
  t.count = popcount(t.lanes);
  return t;
}
static inline uint cla__from(cla__team t, uint value, uint lane) {
  uint r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, %3;" : "=r"(r) : "r"(value), "r"(lane), "r"(t.lanes));
  return r;
}
static inline uint cla__or_of_all(cla__team t, uint value) {
  uint r;
  asm volatile("redux.sync.or.b32 %0, %1, %2;" : "=r"(r) : "r"(value), "r"(t.lanes));
  return r;
}
static inline uint cla__lanes_where(cla__team t, uint is_true) {
  uint r;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2;}"
               : "=r"(r)
               : "r"(is_true), "r"(t.lanes));
  return r;
}
/* Is another lane of the team, before this one, at the same bit? */
static inline bool cla__is_repeated(cla__team t, uint bit) {
  uint same;
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(same) : "r"(bit), "r"(t.lanes));
  return cla__lowest_bit(same) != t.lane;
}
/* Tells apart the warps that are running. */
static inline uint cla__slot(void) {
  uint sm, warp, nsm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm("mov.u32 %0, %%nsmid;" : "=r"(nsm));
  return warp * nsm + sm;
}
static inline uint cla__lanes_before(void) { /* of those here now */
  uint active, lane;
  asm volatile("activemask.b32 %0;" : "=r"(active));
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return popcount(active & ((1u << lane) - 1u));
}

#else

static inline uint cla__lowest_bit(uint x) { return 31u - clz(x & -x); }

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
