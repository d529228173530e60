/* In place of kernels/warp.cl, and behind kernels/begin.cl: the instructions of a warp that heap_warp.c plays (unless
 * CLA_HEAP_SCALAR: each item for itself), and what OpenCL has built in. What the C program defines bears names that begin
 * with `played_`. */

#if !defined(CLA_HEAP_SCALAR)
#define CLA__WARP 1

uint played_lane(void);
uint played_lanes_here(void);
uint played_lanes_alike(uint lanes, uint value);
uint played_lanes_with(uint lanes, uint is_true);
uint played_value_of_lane(uint lanes, uint value, uint lane);
uint played_or_of_lanes(uint lanes, uint value);
uint played_warp_number(void);

#define cla__lane                 played_lane
#define cla__lanes_here           played_lanes_here
#define cla__lanes_alike          played_lanes_alike
#define cla__lanes_with           played_lanes_with
#define cla__value_of_lane        played_value_of_lane
#define cla__or_of_lanes          played_or_of_lanes
#define cla__warp_number          played_warp_number
#define cla__load(at)             (*(at))
#define cla__load4(at)            (*(const __global uint4 *)(at))
#define cla__bits_reversed(value) __builtin_bitreverse32(value)
#endif

uint played_item(void);
uint played_nitems(void);

#define get_global_id(dimension)     ((dimension) == 0 ? played_item() : 0u)
#define get_global_size(dimension)   ((dimension) == 0 ? played_nitems() : 1u)
#define get_global_offset(dimension) 0u
#define get_group_id(dimension)      (get_global_id(dimension) >> 5)
#define get_num_groups(dimension)    ((get_global_size(dimension) + 31u) >> 5)

uint played_add(cla__words at, uint value);
uint played_and(cla__words at, uint value);
uint played_or(cla__words at, uint value);
uint played_max(cla__words at, uint value);
uint played_xchg(cla__words at, uint value);
uint played_cmpxchg(cla__words at, uint expected, uint value);

#define atomic_add                          played_add
#define atomic_sub(at, value)               played_add(at, 0u - (value))
#define atomic_inc(at)                      played_add(at, 1u)
#define atomic_and                          played_and
#define atomic_or                           played_or
#define atomic_max                          played_max
#define atomic_xchg                         played_xchg
#define atomic_cmpxchg(at, expected, value) played_cmpxchg(at, expected, value)

uint played_clz(ulong value, uint nbits);
ulong played_mul_hi(ulong a, ulong b);

#define clz(value)      played_clz(value, 8u * sizeof(value))
#define popcount(value) (uint) __builtin_popcount(value)
#define mul_hi          played_mul_hi
#define min(a, b)       ((a) < (b) ? (a) : (b))
#define max(a, b)       ((a) > (b) ? (a) : (b))
