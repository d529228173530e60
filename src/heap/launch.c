/* What a launch may ask for: memory that is free beforehand, and to be told when an allocation failed.
 *
 * Failures are counted in the heap, not by launch. So a launch that wants to be told has the heap to itself on the device, and
 * the counts before and after it are read on its own stream: nothing is waited for on the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heap/heap.h"

static cla_status check_need(const cla_heap_stats *s, uint64_t nbytes) {
  const uint64_t free_bytes = s->limit - s->used;
  if (nbytes <= free_bytes) return CLA_OK;
  return cla__error(CLA_E_LIMIT,
                    "heap: %llu bytes are needed, %llu are free: limit %llu, used %llu in %llu blocks, largest free "
                    "piece %llu",
                    (unsigned long long)nbytes, (unsigned long long)free_bytes, (unsigned long long)s->limit,
                    (unsigned long long)s->used, (unsigned long long)s->live_blocks,
                    (unsigned long long)s->largest_free);
}

cla_status cla__heap_need(cla_heap *h, uint64_t nbytes) {
  cla_heap_stats stats;
  const cla_status status = cla_heap_get_stats(h, &stats);
  return status ? status : check_need(&stats, nbytes);
}

cla_heap_watch *cla__heap_watch_new(const char *kernel) {
  cla_heap_watch *w = calloc(1, sizeof *w);
  if (w) snprintf(w->kernel, sizeof w->kernel, "%s", kernel);
  return w;
}

/* Without host memory for the note it is waited for, and behind a shut gate, where no wait would end, it is never freed. */
void cla__heap_watch_free(cla_heap_watch *w, cla_stream *s) {
  cla_error_memo memo;
  if (!w) return;
  cla__error_keep(&memo);
  const bool is_noted = !cla__stream_done(s, w->number) && !cla__stream_defer(s, w->number, free, w);
  if (!is_noted && !cla__stream_wait(s, w->number)) free(w);
  cla__error_restore(&memo);
}

static cla_status read_counts(cla_heap *h, cla_stream *s, uint32_t out[6], uint64_t *number) {
  cla__stream_before(s);
  const cl_int err = cla__enqueue_read(h->device->driver, s->queue, h->memory, CL_FALSE, 4 * CLA_HEAP_FAILED,
                                       6 * sizeof *out, out, 0, NULL, NULL);
  if (err) return cla__driver_error(CLA_CALL_enqueue_read, err);
  *number = cla__stream_after(s);
  return CLA_OK;
}

cla_status cla__heap_watch_before(cla_heap *h, cla_stream *s, cla_heap_watch *w) {
  w->limit = h->plan.payload_bytes;
  return read_counts(h, s, w->before, &w->number);
}

cla_status cla__heap_watch_after(cla_heap *h, cla_stream *s, cla_heap_watch *w) {
  return read_counts(h, s, w->after, &w->number);
}

/* Of kernels: without the host's own, which run beside them. */
static uint64_t failures(const uint32_t counts[6]) {
  return (counts[0] | (uint64_t)counts[1] << 32) - (counts[4] | (uint64_t)counts[5] << 32);
}

cla_status cla__heap_watch_result(const cla_heap_watch *w) {
  const uint64_t n = failures(w->after) - failures(w->before);
  const uint64_t refused = w->after[2], huge = (uint64_t)w->after[3] << 16;
  if (w->is_lost)
    return cla__error(CLA_E_DRIVER, "%s: whether allocations failed is unknown: the heap's counts could not be read",
                      w->kernel);
  if (!n) return CLA_OK;
  return cla__error(CLA_E_NOMEM,
                    "%s: %llu allocation%s failed: the heap of %llu bytes had no room; the largest refused "
                    "so far asked for %llu bytes",
                    w->kernel, (unsigned long long)n, n == 1 ? "" : "s", (unsigned long long)w->limit,
                    (unsigned long long)(huge > refused ? huge : refused));
}
