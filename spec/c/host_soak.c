/* A million operations on the pinned cache: allocations of all sizes, records on four streams, frees late and early, trims.
 * Live events and driver objects stay within a bound that does not depend on how many operations there are, the books
 * agree, and no memory is handed out while a stream that was recorded on it has not come so far. (pyopencl#56) */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"

enum { OPERATIONS = 1000000, STREAMS = 4, SLOTS = 512, EVENTS_A_STREAM = 64, CHECK_EVERY = 50000 };

typedef struct slot {
  char *memory;
  void *context;
  size_t nbytes;
  unsigned char stamp;
} slot;

static cla_device *device;
static cla_host *cache;
static cla_stream *streams[STREAMS];
static slot slots[SLOTS];
static uint64_t state = 1;

static uint64_t draw(uint64_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % n;
}

static void let_go(slot *s) {
  CHECK(!s->nbytes || (s->memory[0] == (char)s->stamp && s->memory[s->nbytes - 1] == (char)s->stamp));
  CHECK(cla_host_free(s->context) == CLA_OK);
  s->context = NULL;
}

static void take(slot *s) {
  void *memory;
  s->nbytes = draw((uint64_t)1 << draw(17));
  if (!CHECK(cla_host_alloc(cache, s->nbytes, &memory, &s->context) == CLA_OK)) abort();
  s->memory = memory;
  s->stamp = (unsigned char)draw(256);
  if (s->nbytes) s->memory[0] = s->memory[s->nbytes - 1] = (char)s->stamp;
}

static void step(void) {
  slot *s = &slots[draw(SLOTS)];
  cla_stream *stream = streams[draw(STREAMS)];
  if (!s->context) take(s);
  else if (draw(2)) let_go(s);
  else CHECK(cla_host_record(s->memory + (s->nbytes ? draw(s->nbytes) : 0), NULL, stream) == CLA_OK);
  if (draw(8) == 0) CHECK(cla_stream_submitted(stream) == CLA_OK);
  if (draw(2000) == 0) cla_simulate_complete(stream, draw(100), &(uint64_t){0});
  if (draw(20000) == 0) CHECK(cla_host_trim(cache, NULL) == CLA_OK);
}

static void look(int nstreams) {
  if (!CHECK(cla_host_check(cache) == CLA_OK)) fprintf(stderr, "%s\n", cla_last_error());
  cla_host_stats s;
  CHECK(cla_host_get_stats(cache, &s) == CLA_OK);
  CHECK(cla_debug_live("event") <= (STREAMS + 2) * EVENTS_A_STREAM);
  CHECK(cla_debug_live("buffer") == (int64_t)s.reserved_blocks);
  CHECK(cla_debug_live("queue") == nstreams + 2);
  CHECK(s.active_blocks <= SLOTS);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 40, .manual = true};
  CHECK(cla_simulate(&sim, &device) == CLA_OK && cla_host_create(device, NULL, &cache) == CLA_OK);
  for (int i = 0; i < STREAMS; i++) CHECK(cla_stream_create(device, &streams[i]) == CLA_OK);
  for (int i = 0; i < OPERATIONS; i++) {
    step();
    if (i % CHECK_EVERY == 0) look(STREAMS);
  }
  for (int i = 0; i < SLOTS; i++)
    if (slots[i].context) let_go(&slots[i]);
  for (int i = 0; i < STREAMS; i++) {
    CHECK(cla_stream_finish(streams[i]) == CLA_OK);
    cla_stream_release(streams[i]);
  }
  CHECK(cla_host_process_events(cache) == CLA_OK);
  look(0); /* closed streams that nothing waits for are let go of */
  cla_host_stats s;
  CHECK(cla_host_get_stats(cache, &s) == CLA_OK && s.active_blocks == 0 && s.allocs == s.frees);
  CHECK(s.pending_blocks == 0);
  cla_host_close(cache);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("host_soak");
}
