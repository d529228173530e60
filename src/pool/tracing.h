/* What the pool notes in its event ring. All are called with the pool's lock held. */
#ifndef CLA_POOL_TRACING_H
#define CLA_POOL_TRACING_H

#include "pool/pool.h"

/* Off the hit path: calls it only when something is recorded. */
void cla__traced_block(const cla_pool *p, cla_trace_action action, const cla_block *b);

static inline void cla__trace_block(const cla_pool *p, cla_trace_action action, const cla_block *b) {
  if (__builtin_expect(p->ring != NULL, 0)) cla__traced_block(p, action, b);
}
void cla__trace_segment(const cla_pool *p, cla_trace_action action, const cla_segment *g, const cla_owner *o);
void cla__trace_oom(const cla_pool *p, size_t nbytes, const cla_owner *o);

#endif
