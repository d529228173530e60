/* A ring of events: what happened to an allocator's blocks and segments, the newest `capacity` of them.
 *
 * Knows no pool and takes no lock: its owner guards it. Noting an event writes 48 bytes and reads the clock. */
#ifndef CLA_TRACE_RING_H
#define CLA_TRACE_RING_H

#include "runtime/runtime.h"

typedef struct cla_ring {
  size_t capacity;        /* a power of two */
  uint64_t count;         /* events noted; the newest min(count, capacity) are kept, event i at events[i % capacity] */
  uint64_t start_ns;      /* of the monotonic clock, when the recording began */
  uint64_t start_us;      /* of the wall clock, at the same moment */
  cla_block_info *blocks; /* what was there when the recording was stopped; NULL: it goes on */
  size_t nblocks;
  cla_trace_event events[];
} cla_ring;

enum { CLA_RING_DEFAULT = 1 << 20, CLA_RING_MOST = 1 << 28 };

/* Room for at least `capacity` events (0: CLA_RING_DEFAULT). The pages are taken as they are written. */
cla_status cla__ring_new(size_t capacity, cla_ring **out);
void cla__ring_free(cla_ring *r); /* NULL is ignored */
void cla__ring_note(cla_ring *r, cla_trace_action action, uint64_t address, uint64_t size, uint64_t block_size,
                    uint64_t stream);
/* The oldest kept first, at most `room`; returns how many are kept. */
size_t cla__ring_copy(const cla_ring *r, cla_trace_event *out, size_t room);

#endif
