/* ---- a warp's instructions ---- */

/* NVIDIA's, which no other compiler offers. `lanes`: those that execute the instruction together, a bit a lane. What
 * stands here, and nothing else, differs from one machine that has warps to another: spec/c/heap_warp.c plays one. */

#if defined(__NV_CL_C_VERSION) && !defined(CLA_HEAP_SCALAR)
#define CLA__WARP 1

static inline uint cla__lane(void) {
  uint lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
/* The lanes that are here now. */
static inline uint cla__lanes_here(void) {
  uint lanes;
  asm volatile("activemask.b32 %0;" : "=r"(lanes));
  return lanes;
}
/* Those with the same value. */
static inline uint cla__lanes_alike(uint lanes, uint value) {
  uint alike;
  asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(alike) : "r"(value), "r"(lanes));
  return alike;
}
/* Those where it is not 0. */
static inline uint cla__lanes_with(uint lanes, uint is_true) {
  uint with;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2;}"
               : "=r"(with)
               : "r"(is_true), "r"(lanes));
  return with;
}
static inline uint cla__value_of_lane(uint lanes, uint value, uint lane) {
  uint there;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, %3;" : "=r"(there) : "r"(value), "r"(lane), "r"(lanes));
  return there;
}
static inline uint cla__or_of_lanes(uint lanes, uint value) {
  uint all;
  asm volatile("redux.sync.or.b32 %0, %1, %2;" : "=r"(all) : "r"(value), "r"(lanes));
  return all;
}
/* Tells apart the warps that are running. */
static inline uint cla__warp_number(void) {
  uint sm, warp, nsm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm("mov.u32 %0, %%nsmid;" : "=r"(nsm));
  return warp * nsm + sm;
}
static inline uint cla__bits_reversed(uint x) {
  uint reversed;
  asm("brev.b32 %0, %1;" : "=r"(reversed) : "r"(x));
  return reversed;
}
/* Words that no kernel changes. The compiler may keep them across atomics and fences, which it could not know of plain
 * loads. */
static inline uint cla__load(const __global uint *at) {
  uint word;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(at));
  return word;
}
static inline uint4 cla__load4(const __global uint *at) { /* 16-byte aligned */
  uint4 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
#endif
