/* The event ring. Assumes that its owner's lock is held in every call but new and free. Guarantees that
 * times ascend, and that noting an event never fails and calls nobody but the clock. */
#include "trace/ring.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t nanoseconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The kernel's number of the thread, as tools show it. A child of a fork never gets here. */
static uint32_t thread_number(void) {
  static _Thread_local uint32_t known;
  if (!known) known = (uint32_t)syscall(SYS_gettid);
  return known;
}

cla_status cla__ring_new(size_t capacity, cla_ring **out) {
  if (capacity > CLA_RING_MOST)
    return cla__error(CLA_E_INVALID, "trace: a ring of %zu events; it has at most %d", capacity, CLA_RING_MOST);
  size_t room = 1, wanted = capacity ? capacity : CLA_RING_DEFAULT;
  while (room < wanted) room *= 2;
  cla_ring *r = malloc(sizeof *r + room * sizeof *r->events);
  if (!r) return cla__error(CLA_E_NOMEM, "no host memory for a ring of %zu events", room);
  r->capacity = room;
  r->count = 0;
  r->start_ns = nanoseconds(CLOCK_MONOTONIC);
  r->start_us = nanoseconds(CLOCK_REALTIME) / 1000;
  r->blocks = NULL;
  r->nblocks = 0;
  *out = r;
  return CLA_OK;
}

void cla__ring_free(cla_ring *r) {
  if (r) free(r->blocks);
  free(r);
}

void cla__ring_note(cla_ring *r, cla_trace_action action, uint64_t address, uint64_t size, uint64_t block_size,
                    uint64_t stream) {
  r->events[r->count++ & (r->capacity - 1)] = (cla_trace_event){.time_ns = nanoseconds(CLOCK_MONOTONIC) - r->start_ns,
                                                                .address = address,
                                                                .size = size,
                                                                .block_size = block_size,
                                                                .stream = stream,
                                                                .thread = thread_number(),
                                                                .action = action};
}

size_t cla__ring_copy(const cla_ring *r, cla_trace_event *out, size_t room) {
  uint64_t kept = r->count < r->capacity ? r->count : r->capacity;
  for (uint64_t i = 0; i < kept && i < room; i++) out[i] = r->events[(r->count - kept + i) & (r->capacity - 1)];
  return (size_t)kept;
}
