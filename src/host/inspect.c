/* The pinned cache's statistics and the check that recounts them. */
#include "host/host.h"

static cla_status lock_open(cla_host *c) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!c) return cla__error(CLA_E_INVALID, "no cache of pinned memory");
  if (atomic_load(&c->is_closed)) return cla__error(CLA_E_CLOSED, "the cache of pinned memory is closed");
  cla__lock(&c->lock);
  cla__magazines_lock(c);
  return CLA_OK;
}

static void unlock(cla_host *c) {
  cla__magazines_unlock(c);
  cla__unlock(&c->lock);
}

/* The magazines are locked. */
static cla_host_stats totals(cla_host *c) {
  cla_host_stats s = c->totals;
  const cla_host_share sum = cla__host_shares(c);
  s.active_bytes = (uint64_t)sum.active_bytes;
  s.active_blocks = (uint64_t)sum.active_blocks;
  s.requested_bytes = (uint64_t)sum.requested_bytes;
  s.cached_bytes = (uint64_t)sum.cached_bytes;
  s.cached_blocks = (uint64_t)sum.cached_blocks;
  s.allocs = (uint64_t)sum.allocs;
  s.frees = (uint64_t)sum.frees;
  s.hits = (uint64_t)sum.hits;
  if (s.active_bytes > s.peak_active_bytes) s.peak_active_bytes = c->totals.peak_active_bytes = s.active_bytes;
  return s;
}

cla_status cla_host_get_stats(cla_host *c, cla_host_stats *out) {
  cla_status status = lock_open(c);
  if (status) return status;
  *out = totals(c);
  unlock(c);
  return CLA_OK;
}

cla_status cla_host_reset_peaks(cla_host *c) {
  cla_status status = lock_open(c);
  if (status) return status;
  const cla_host_stats s = totals(c);
  c->totals.peak_active_bytes = s.active_bytes;
  c->totals.peak_reserved_bytes = s.reserved_bytes;
  c->totals.peak_pending_bytes = s.pending_bytes;
  unlock(c);
  return CLA_OK;
}

cla_status cla_host_set_limits(cla_host *c, size_t max_cached, size_t max_block) {
  cla_status status = cla__host_enter(c);
  if (status) return status;
  cla_host_block *chain = NULL;
  cla__lock(&c->lock);
  cla__magazines_detach(c, &chain); /* under the old limits; those for which the new ones have room come back */
  bool over = (uint64_t)c->share.cached_bytes > max_cached || max_block < c->max_block;
  c->max_cached = max_cached;
  c->max_block = max_block;
  if (over) cla__host_drain(c, &chain);
  cla__magazines_fit(c);
  cla__unlock(&c->lock);
  cla__host_release(c, chain);
  cla__host_unref(c);
  return CLA_OK;
}

void cla__host_limits(cla_host *c, size_t *max_cached, size_t *max_block) {
  cla__lock(&c->lock);
  *max_cached = c->max_cached;
  *max_block = c->max_block;
  cla__unlock(&c->lock);
}

cla_status cla__host_look(const void *address, cla_host_info *out, void **context, cla_host **cache) {
  cla_host_block *b = cla__host_block_at(address);
  if (!b) return cla__error(CLA_E_FOREIGN, "address %p is in no pinned allocation", address);
  uint64_t life;
  cla_host *c = cla__host_lock_active(b, NULL, &life);
  if (!c) return cla__error(CLA_E_FREED, "the pinned allocation at %p is freed", address);
  cla_status status = CLA_OK;
  size_t inside = (uintptr_t)address - (uintptr_t)b->memory, requested = atomic_load(&b->requested);
  if (inside >= b->size || cla__host_generation(atomic_load(&b->life)) != cla__host_generation(life))
    status = cla__error(CLA_E_FREED, "the pinned allocation at %p is freed", address); /* while we looked */
  else if (inside >= requested && inside)
    status = cla__error(CLA_E_BOUNDS, "address %p is %zu bytes into a pinned allocation of %zu bytes", address, inside,
                        requested);
  if (!status) {
    *out = (cla_host_info){.memory = b->memory, .requested = requested, .size = b->size, .is_pinned = b->is_pinned};
    if (context) *context = cla__host_context(b, life);
    if (cache) {
      *cache = c;
      cla_device_retain(c->device);
    }
  }
  cla__unlock(&c->lock);
  return status;
}

cla_status cla_host_resolve(const void *address, cla_host_info *out) {
  cla_status status = cla__alive();
  if (!status && !out) status = cla__error(CLA_E_INVALID, "host_resolve: no place for the result");
  return status ? status : cla__host_look(address, out, NULL, NULL);
}

#define EXPECT(condition, ...)                                                 \
  do {                                                                         \
    if (!(condition)) return cla__error(CLA_E_INVALID, "check: " __VA_ARGS__); \
  } while (0)

static cla_status check_magazines(cla_host *c, uint64_t *blocks, uint64_t *bytes) {
  for (const cla_magazine *m = c->magazines; m; m = m->next) {
    uint64_t nblocks = 0, nbytes = 0;
    for (unsigned i = 0; i < CLA_MAGAZINE_CLASSES; i++)
      for (uint32_t k = 0; k < cla__magazine_count(m, i); k++) {
        const cla_host_block *b = m->classes[i].blocks[k];
        EXPECT(atomic_load(&b->state) == CLA_HOST_FREE && cla__host_class(b->size) == i && !b->nuses,
               "a magazine holds a wrong block");
        nblocks++;
        nbytes += b->size;
      }
    EXPECT((int64_t)nblocks == m->share.cached_blocks && (int64_t)nbytes == m->share.cached_bytes &&
               nbytes <= CLA_MAGAZINE_BYTES,
           "a magazine holds %llu bytes, counted %lld", (unsigned long long)nbytes, (long long)m->share.cached_bytes);
    *blocks += nblocks;
    *bytes += nbytes;
  }
  return CLA_OK;
}

static cla_status check_waiting(cla_host *c, uint64_t *blocks, uint64_t *bytes) {
  for (const cla_host_waiting *w = c->waitings; w; w = w->next)
    for (const cla_host_block *b = w->first; b; b = b->after) {
      EXPECT(atomic_load(&b->state) == CLA_HOST_PENDING && b->nuses, "a waiting list has a block that is not pending");
      EXPECT(b->uses[b->nuses - 1].on == w, "a block waits in the wrong list");
      EXPECT(!b->after || b->after->uses[b->after->nuses - 1].ticket >= b->uses[b->nuses - 1].ticket,
             "a waiting list does not ascend");
      ++*blocks;
      *bytes += b->size;
    }
  return CLA_OK;
}

static cla_status check_locked(cla_host *c) {
  const cla_host_stats s = totals(c);
  uint64_t reserved = 0, blocks = 0, active = 0, nactive = 0, requested = 0, plain = 0, cached = 0, ncached = 0,
           pending = 0, npending = 0;
  uint64_t classes[64] = {0};
  for (const cla_host_block *b = c->youngest; b; b = b->elder) {
    reserved += b->size;
    blocks++;
    classes[63u - (unsigned)__builtin_clzll(b->size)]++;
    if (!b->is_pinned) plain += b->size;
    if (!cla__host_is_active(atomic_load(&b->life))) continue;
    size_t asked = atomic_load(&b->requested);
    active += b->size;
    requested += asked;
    nactive++;
    EXPECT(asked <= b->size, "a block of %zu bytes holds %zu", b->size, asked);
  }
  for (unsigned i = 0; i < CLA_HOST_CLASSES; i++) {
    size_t n = 0;
    for (const cla_host_block *b = c->bins[i].first; b; b = b->after, n++) {
      EXPECT(atomic_load(&b->state) == CLA_HOST_FREE && cla__host_class(b->size) == i && !b->nuses,
             "bin %u holds a wrong block", i);
      cached += b->size;
      ncached++;
    }
    EXPECT(n == c->bins[i].count, "bin %u: %zu blocks, counted %zu", i, n, c->bins[i].count);
  }
  cla_status status = check_magazines(c, &ncached, &cached);
  if (!status) status = check_waiting(c, &npending, &pending);
  if (status) return status;
  EXPECT(reserved == s.reserved_bytes && blocks == s.reserved_blocks, "reserved: %llu bytes counted, %llu kept",
         (unsigned long long)reserved, (unsigned long long)s.reserved_bytes);
  EXPECT(active == s.active_bytes && nactive == s.active_blocks, "active: %llu bytes counted, %llu kept",
         (unsigned long long)active, (unsigned long long)s.active_bytes);
  EXPECT(requested == s.requested_bytes, "requested: %llu bytes counted, %llu kept", (unsigned long long)requested,
         (unsigned long long)s.requested_bytes);
  EXPECT(cached == s.cached_bytes && ncached == s.cached_blocks, "cached: %llu bytes counted, %llu kept",
         (unsigned long long)cached, (unsigned long long)s.cached_bytes);
  EXPECT(pending == s.pending_bytes && npending == s.pending_blocks, "pending: %llu bytes counted, %llu kept",
         (unsigned long long)pending, (unsigned long long)s.pending_bytes);
  EXPECT(plain == s.plain_bytes, "plain: %llu bytes counted, %llu kept", (unsigned long long)plain,
         (unsigned long long)s.plain_bytes);
  for (int i = 0; i < 64; i++)
    EXPECT(classes[i] == s.classes[i], "class %d: %llu blocks, counted %llu", i, (unsigned long long)classes[i],
           (unsigned long long)s.classes[i]);
  EXPECT(reserved == active + cached + pending, "reserved is not active + cached + pending");
  EXPECT(cached <= c->max_cached, "%llu bytes are cached, the limit is %zu", (unsigned long long)cached, c->max_cached);
  return CLA_OK;
}

cla_status cla_host_check(cla_host *c) {
  cla_status status = lock_open(c);
  if (status) return status;
  status = check_locked(c);
  unlock(c);
  return status;
}
