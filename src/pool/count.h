/* The running totals of a pool, changed so that reserved == active + cached + held stays true. All are called with the
 * pool's lock held. */
#ifndef CLA_POOL_COUNT_H
#define CLA_POOL_COUNT_H

#include "pool/pool.h"

static inline void cla__raise_peak(uint64_t *peak, uint64_t now) {
  if (now > *peak) *peak = now;
}

/* What is free follows from the rest: nothing is kept for it on the hit path but its peak. */
static inline void cla__raise_cached(cla_pool *p) {
  cla__raise_peak(&p->stats.peak_cached_bytes, p->stats.reserved_bytes - p->stats.active_bytes - p->stats.held_bytes);
}

static inline void cla__count_alloc(cla_pool *p, const cla_block *b) {
  cla_stats *s = &p->stats;
  s->allocs++;
  s->active_blocks++;
  s->active_bytes += b->size;
  s->requested_bytes += b->requested;
  cla__raise_peak(&s->peak_active_bytes, s->active_bytes);
  cla__raise_peak(&s->peak_requested_bytes, s->requested_bytes);
  p->live_of_class[cla__class_of(b->size >> p->align_log2)]++;
}

static inline void cla__count_free(cla_pool *p, const cla_block *b) {
  cla_stats *s = &p->stats;
  s->active_blocks--;
  s->active_bytes -= b->size;
  s->requested_bytes -= b->requested;
  cla__raise_cached(p);
  p->live_of_class[cla__class_of(b->size >> p->align_log2)]--;
}

static inline void cla__count_held(cla_pool *p, const cla_block *b) {
  p->stats.held_blocks++;
  p->stats.held_bytes += b->size;
  cla__raise_peak(&p->stats.peak_held_bytes, p->stats.held_bytes);
}

static inline void cla__uncount_held(cla_pool *p, const cla_block *b) {
  p->stats.held_blocks--;
  p->stats.held_bytes -= b->size;
}

#endif
