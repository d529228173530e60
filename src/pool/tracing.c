/* A pool's recording: what is noted, and how it is read.
 *
 * Guarantees that events and blocks are read at one moment: what the events did is what the blocks show. */
#include "pool/tracing.h"

#include <stdlib.h>
#include <string.h>

static bool is_recording(const cla_pool *p) { return p->ring && !p->ring->blocks; }

static uint64_t id_of(const cla_owner *o) { return o && o->stream ? o->stream->id : 0; }

void cla__traced_block(const cla_pool *p, cla_trace_action action, const cla_block *b) {
  if (!is_recording(p)) return;
  cla__ring_note(p->ring, action, b->segment->range.base + b->offset, b->requested, b->size, id_of(b->owner));
}

void cla__trace_segment(const cla_pool *p, cla_trace_action action, const cla_segment *g, const cla_owner *o) {
  if (is_recording(p)) cla__ring_note(p->ring, action, g->range.base, g->size, 0, id_of(o));
}

void cla__trace_oom(const cla_pool *p, size_t nbytes, const cla_owner *o) {
  if (!is_recording(p)) return;
  size_t used = (size_t)p->stats.reserved_bytes + p->growing;
  cla__ring_note(p->ring, CLA_TRACE_OOM, used < p->limit ? p->limit - used : 0, nbytes, 0, id_of(o));
}

/* ---- Starting, stopping, reading ---- */

cla_status cla_pool_trace_start(cla_pool *p, size_t nevents) {
  cla_ring *fresh = NULL, *old;
  cla_status status = cla__alive();
  if (!status && !p) status = cla__error(CLA_E_INVALID, "trace: no pool");
  if (!status) status = cla__ring_new(nevents, &fresh);
  if (status) return status;
  cla__lock(&p->lock);
  status = cla__pool_live(p);
  if (status) {
    old = fresh;
  } else {
    old = p->ring;
    p->ring = fresh;
  }
  cla__unlock(&p->lock);
  cla__ring_free(old);
  return status;
}

static cla_status never_recorded(void) {
  return cla__error(CLA_E_INVALID, "trace: the pool records nothing; start it with pool:trace(true)");
}

cla_status cla_pool_trace_stop(cla_pool *p) {
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  cla_ring *r = p->ring;
  if (!r) status = never_recorded();
  else if (!r->blocks) status = cla__pool_copy_blocks(p, &r->blocks, &r->nblocks);
  cla__unlock(&p->lock);
  return status;
}

cla_status cla_pool_trace_read(cla_pool *p, cla_trace *out) {
  if (!out) return cla__error(CLA_E_INVALID, "trace: no place for the events");
  cla_status status = cla__pool_lock_live(p);
  if (status) return status;
  const cla_ring *r = p->ring;
  cla_block_info *now = NULL;
  size_t nblocks = 0;
  if (!r) status = never_recorded();
  else if (r->blocks) nblocks = r->nblocks;
  else status = cla__pool_copy_blocks(p, &now, &nblocks);
  if (!status) {
    const size_t fit = nblocks < out->blocks_room ? nblocks : out->blocks_room;
    if (fit) memcpy(out->blocks, now ? now : r->blocks, fit * sizeof *out->blocks);
    out->nblocks = nblocks;
    out->nevents = cla__ring_copy(r, out->events, out->events_room);
    out->nlost = r->count - out->nevents;
    out->start_us = r->start_us;
    out->is_recording = now != NULL;
  }
  cla__unlock(&p->lock);
  free(now);
  return status;
}
