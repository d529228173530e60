/* The decisions of the device allocator, and the numbers behind them.
 *
 * `caching`, simulated on 35 recorded training and inference runs, reserves 1.034 times the live peak where the rules
 * of PyTorch's allocator (two pools, 2 MiB and 20 MiB segments) take 1.104. Three things make the difference:
 * blocks are always split and merged; a segment is a whole number of requests of the size that asked for it, as many as
 * are live, so that it leaves no tail; and before more is reserved than ever before, wholly free segments go
 * back, so that memory cut for one phase of a program is not kept beside the memory of the next. Leaving out the third
 * costs 0.036, the second 0.018. A pool of its own for small requests makes it worse (1.047). */
#include "pool/pool.h"

static const size_t KIB = 1024, MIB = 1024 * 1024;

cla_policy cla_policy_caching(void) {
  return (cla_policy){
      .name = "caching",
      .align = 512,           /* what drivers align buffers to; 128 saves less than 0.001 of the peak */
      .grain = 2 * MIB,       /* finer grains cost driver calls, coarser ones memory */
      .growth_min = 2 * MIB,  /* half of what is reserved, between these two: few calls while a program warms up, */
      .growth_max = 64 * MIB, /* and at most this much too much when it stops growing */
      .growth_share = 48,     /* 2 % of what is reserved, when that is more: calls stay few on large devices */
      .growth_cap = 512 * MIB,
      .max_split = 0, /* splitting everything is best where segments can go back; see the option's test */
      .splits = true,
      .caches = true,
      .keep = CLA_KEEP_PEAK,
  };
}

cla_policy cla_policy_direct(void) {
  return (cla_policy){
      .name = "direct", .align = 512, .grain = 512, .growth_min = 0, .growth_share = 1 << 30, .keep = CLA_KEEP_NEVER};
}

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static size_t round_down(size_t n, size_t multiple) { return n / multiple * multiple; }

/* A segment may end `align` beyond max_alloc on paper (its buffer does not), never further. */
size_t cla__policy_most(const cla_pool *p) {
  size_t most = (size_t)p->device->info.max_alloc;
  if (most > SIZE_MAX / 4) most = SIZE_MAX / 4;
  return (most + p->align - 1) & ~(p->align - 1);
}

cla_status cla__policy_round_edge(cla_pool *p, size_t nbytes, size_t *out) {
  uint64_t most = p->device->info.max_alloc;
  if (nbytes > most)
    return cla__error(CLA_E_TOO_LARGE, "%zu bytes asked, but %s gives at most %llu in one allocation", nbytes,
                      p->device->info.name, (unsigned long long)most);
  if (nbytes > SIZE_MAX - p->align)
    return cla__error(CLA_E_TOO_LARGE, "%zu bytes asked: more than can be addressed", nbytes);
  size_t size = nbytes ? round_up(nbytes, p->align) : p->align, multiple = p->policy.round_to;
  if (multiple && nbytes <= SIZE_MAX - multiple - p->align) {
    size_t rounded = round_up(round_up(nbytes ? nbytes : 1, multiple), p->align);
    if (rounded <= cla__policy_most(p)) size = rounded;
  }
  if (p->decisions.round) return cla__ask_round(p, nbytes, size, out);
  *out = size;
  return CLA_OK;
}

cla_status cla_round_power_of_two(void *arg, size_t nbytes, size_t *size, bool *is_fixed) {
  (void)arg;
  if (nbytes > 1 && nbytes <= SIZE_MAX / 2) *size = (size_t)1 << (64 - __builtin_clzll(nbytes - 1));
  *is_fixed = true;
  return CLA_OK;
}

/* Nine tenths: from half of the limit on, and a quarter of it at most, is a little worse on the recorded programs (the
 * smallest limit with which they run is 1.030 times the live peak, here 1.022), and takes more from others. */
size_t cla__policy_tail(const cla_pool *p) {
  size_t used = (size_t)p->stats.reserved_bytes + p->growing;
  if (!p->policy.exclusive || used < p->limit - p->limit / 10 || used >= p->limit) return 0;
  size_t rest = round_down(p->limit - used, p->policy.grain), most = round_down(cla__policy_most(p), p->policy.grain);
  return rest < most ? rest : most;
}

void cla__policy_grow(const cla_pool *p, size_t size, size_t *need, size_t *want) {
  const cla_policy *policy = &p->policy;
  size_t most = cla__policy_most(p);
  *need = round_up(size, policy->grain);
  if (*need > most) *need = size;
  *want = *need;
  if (policy->grow_by) {
    size_t fixed = round_up(policy->grow_by < most ? policy->grow_by : most, p->align);
    if (fixed >= size && policy->grow_by > 1) *need = *want = fixed;
    return;
  }
  size_t reserved = (size_t)p->stats.reserved_bytes, growth = reserved / 2, share = reserved / policy->growth_share;
  if (growth > policy->growth_max) growth = policy->growth_max;
  if (growth < policy->growth_min) growth = policy->growth_min;
  if (share > policy->growth_cap) share = policy->growth_cap;
  if (share > growth) growth = share;
  if (growth > *need) {
    size_t fit = growth / size, live = (size_t)p->live_of_class[cla__class_of(size >> p->align_log2)] + 2;
    size_t together = round_up((fit < live ? fit : live) * size, policy->grain);
    if (together > most) together = round_down(most, policy->grain);
    if (together > *need) *want = together;
  }
}

bool cla__policy_may_split(const cla_pool *p, const cla_block *b, size_t size) {
  if (!p->policy.caches || !p->policy.splits || b->size == size) return false;
  return !p->policy.max_split || b->size <= p->policy.max_split;
}

/* With a split limit, a block above it goes only to requests that would nearly fill it: PyTorch's rule (20 MiB of
 * excess), so that it can be had whole again or given back (pytorch#35901). */
size_t cla__policy_largest_for(const cla_pool *p, size_t size) {
  size_t limit = p->policy.max_split;
  if (p->policy.exact) return size;
  if (!limit) return SIZE_MAX;
  if (size <= limit) return limit;
  return size > SIZE_MAX - 20480 * KIB ? SIZE_MAX : size + 20480 * KIB;
}
