/* What is closed while commands still use it waits for its streams, and keeps nothing for that: when the last handle goes, the
 * device ends and takes it along, whatever was closed first and whichever thread was last. Run under ThreadSanitizer and
 * AddressSanitizer. */
#include <pthread.h>

#include "check.h"
#include "clalloc.h"

enum { THREADS = 3, ROUNDS = 100 };

static cla_device *device;
static cla_gate *gate;
static cla_stream *stream; /* NULL: the device's default stream */

/* The stream stands still behind a gate of this thread's. */
static void begin(bool has_stream, bool manual) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30, .manual = manual};
  CHECK(cla_simulate(&sim, &device) == CLA_OK);
  stream = NULL;
  if (has_stream) CHECK(cla_stream_create(device, &stream) == CLA_OK);
  CHECK(cla_gate_create(device, &gate) == CLA_OK);
  cla_gate_set_exclusive(gate, true);
  CHECK(cla_stream_wait_gate(stream ? stream : cla_device_stream(device), gate) == CLA_OK);
}

static void end(const char *what) {
  if (!CHECK(cla_debug_live(NULL) == 0)) fprintf(stderr, "%s: %lld\n", what, (long long)cla_debug_live(NULL));
}

static cla_pool *used_pool(void) {
  cla_pool *p = NULL;
  void *a = NULL;
  cl_event event = NULL;
  CHECK(cla_pool_create(device, NULL, &p) == CLA_OK);
  CHECK(cla_alloc(p, 4096, stream, &a) == CLA_OK);
  CHECK(cla_fill(a, "x", 1, 4096, stream, &event) == CLA_OK);
  cla_event_release(device, event);
  return p;
}

/* One block is freed while the stream may use it, another one lives. */
static cla_host *used_cache(void **live) {
  cla_host *c = NULL;
  void *memory[2] = {NULL, NULL}, *context[2] = {NULL, NULL};
  cla_stream *s = stream ? stream : cla_device_stream(device);
  CHECK(cla_host_create(device, NULL, &c) == CLA_OK);
  CHECK(cla_stream_submitted(s) == CLA_OK);
  for (int i = 0; i < 2; i++) {
    CHECK(cla_host_alloc(c, 4096, &memory[i], &context[i]) == CLA_OK);
    CHECK(cla_host_record(memory[i], NULL, s) == CLA_OK);
  }
  CHECK(cla_host_free(context[0]) == CLA_OK);
  *live = context[1];
  return c;
}

/* ---- One after the other, in every order ---- */

enum { POOL, STREAM, GATE, DEVICE, HANDLES };
static const int orders[][HANDLES] = {
    {POOL, STREAM, GATE, DEVICE}, {POOL, STREAM, DEVICE, GATE}, {POOL, GATE, STREAM, DEVICE},
    {POOL, DEVICE, GATE, STREAM}, {STREAM, POOL, GATE, DEVICE}, {STREAM, DEVICE, POOL, GATE},
    {DEVICE, STREAM, POOL, GATE}, {DEVICE, POOL, STREAM, GATE},
};
enum { ORDERS = sizeof orders / sizeof *orders };

static void let_go(int handle, void (*close)(void *), void *of) {
  switch (handle) {
  case POOL: close(of); break;
  case STREAM: cla_stream_release(stream); break;
  case GATE: cla_gate_release(gate); break;
  case DEVICE: cla_device_release(device); break;
  }
}

static void close_pool(void *p) { cla_pool_release(p); }
static void close_cache(void *c) { cla_host_close(c); }

static void a_pool(bool has_stream, bool manual) {
  for (int i = 0; i < ORDERS; i++) {
    begin(has_stream, manual);
    cla_pool *p = used_pool();
    for (int k = 0; k < HANDLES; k++) let_go(orders[i][k], close_pool, p);
    end("a pool");
  }
}

static void a_cache(bool has_stream, bool manual) {
  for (int i = 0; i < ORDERS; i++) {
    begin(has_stream, manual);
    void *live = NULL;
    cla_host *c = used_cache(&live);
    CHECK(cla_host_free(live) == CLA_OK);
    for (int k = 0; k < HANDLES; k++) let_go(orders[i][k], close_cache, c);
    end("a pinned cache");
  }
}

/* An allocation that lives keeps the device: freed at any time, it is the last that does. */
static void a_live_allocation(bool has_stream, bool manual) {
  for (int i = 0; i < ORDERS; i++)
    for (int last = 0; last <= HANDLES; last++) {
      begin(has_stream, manual);
      void *live = NULL;
      cla_host *c = used_cache(&live);
      for (int k = 0; k < HANDLES; k++) {
        if (k == last) CHECK(cla_host_free(live) == CLA_OK);
        let_go(orders[i][k], close_cache, c);
      }
      if (last == HANDLES) {
        CHECK(cla_debug_live("context") == 1);
        CHECK(cla_host_free(live) == CLA_OK);
      }
      end("a live pinned allocation");
    }
}

/* The stream is gone for its owner, but what lives as long as the device still keeps it. */
static void a_stream_that_the_device_keeps(void) {
  begin(true, false);
  void *a = NULL, *live = NULL;
  cl_event event = NULL;
  CHECK(cla_alloc(NULL, 4096, stream, &a) == CLA_OK);
  CHECK(cla_fill(a, "x", 1, 4096, stream, &event) == CLA_OK);
  cla_event_release(device, event);
  cla_pool *p = used_pool();
  cla_host *c = used_cache(&live);
  CHECK(cla_host_free(live) == CLA_OK);
  cla_pool_release(p);
  cla_host_close(c);
  cla_stream_release(stream);
  cla_gate_release(gate);
  cla_device_release(device);
  end("a stream that the device keeps");
}

/* A block that two streams use waits for one after the other: here one of them stands still. */
static void a_block_of_two_streams(int held) {
  cla_stream *streams[2] = {NULL, NULL};
  cla_host *c = NULL;
  void *memory = NULL, *context = NULL;
  begin(false, false);
  CHECK(cla_host_create(device, NULL, &c) == CLA_OK && cla_host_alloc(c, 100, &memory, &context) == CLA_OK);
  for (int i = 0; i < 2; i++) {
    if (i == held) streams[i] = cla_device_stream(device);
    else CHECK(cla_stream_create(device, &streams[i]) == CLA_OK);
    CHECK(cla_stream_submitted(streams[i]) == CLA_OK && cla_host_record(memory, NULL, streams[i]) == CLA_OK);
  }
  CHECK(cla_host_free(context) == CLA_OK);
  cla_host_close(c);
  cla_stream_release(streams[1 - held]);
  cla_gate_release(gate);
  cla_device_release(device);
  end("a block of two streams");
}

/* A handle to a closed pool keeps its device, although nothing can be got from it. */
static void a_closed_pool_with_a_handle(void) {
  begin(false, false);
  cla_pool *p = used_pool();
  void *a = NULL;
  cla_pool_close(p);
  cla_gate_release(gate);
  cla_device_release(device);
  CHECK(cla_debug_live("context") == 1 && cla_pool_device(p) == device);
  CHECK(cla_alloc(p, 1, NULL, &a) == CLA_E_CLOSED);
  cla_pool_release(p);
  end("a handle to a closed pool");
}

/* Maps that nobody ended, of live blocks and of one that was freed meanwhile, end with their pool. */
static void maps_that_are_left(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  cla_pool *p = NULL;
  void *a[2] = {NULL, NULL}, *host = NULL;
  CHECK(cla_simulate(&sim, &device) == CLA_OK && cla_pool_create(device, NULL, &p) == CLA_OK);
  for (int i = 0; i < 2; i++) CHECK(cla_alloc(p, 4096, NULL, &a[i]) == CLA_OK);
  CHECK(cla_map(a[0], 4096, CLA_MAP_WRITE, &host) == CLA_OK && cla_map(a[0], 0, CLA_MAP_READ, &host) == CLA_OK);
  CHECK(cla_map((char *)a[1] + 16, 100, CLA_MAP_READ, &host) == CLA_OK && cla_free(a[1]) == CLA_OK);
  cla_pool_close(p);
  CHECK(cla_unmap(a[0]) != CLA_OK);
  cla_pool_release(p);
  cla_device_release(device);
  end("maps that are left");
}

/* ---- The last handle goes on any thread, while others find out what is done ---- */

static pthread_barrier_t start;
static void *live_context;

static void *frees(void *arg) {
  (void)arg;
  pthread_barrier_wait(&start);
  CHECK(cla_host_free(live_context) == CLA_OK);
  cla_device_release(device);
  return NULL;
}

static void *asks(void *arg) {
  (void)arg;
  bool idle = false;
  pthread_barrier_wait(&start);
  for (int i = 0; i < 4 && !idle; i++)
    CHECK(cla_stream_query(stream ? stream : cla_device_stream(device), &idle) == CLA_OK);
  cla_stream_release(stream);
  cla_device_release(device);
  return NULL;
}

static void *(*const work[THREADS])(void *) = {frees, asks, asks};

static void on_threads(bool has_stream) {
  for (int round = 0; round < ROUNDS; round++) {
    pthread_t threads[THREADS];
    begin(has_stream, false);
    cla_pool *p = used_pool();
    cla_host *c = used_cache(&live_context);
    cla_pool_release(p);
    cla_host_close(c);
    pthread_barrier_init(&start, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
      cla_device_retain(device);
      if (work[i] == asks) cla_stream_retain(stream);
      CHECK(pthread_create(&threads[i], NULL, work[i], NULL) == 0);
    }
    cla_stream_release(stream);
    cla_device_release(device);
    pthread_barrier_wait(&start);
    cla_gate_release(gate);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    end("threads");
  }
}

static void *mapped;

static void *maps(void *arg) {
  void *host = NULL;
  (void)arg;
  pthread_barrier_wait(&start);
  for (int i = 0; i < ROUNDS; i++)
    CHECK(cla_map(mapped, 64, CLA_MAP_READ, &host) == CLA_OK && host && cla_unmap(mapped) == CLA_OK);
  return NULL;
}

/* Several threads have maps of one address: each ends one, whosever it is. */
static void maps_of_threads(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  pthread_t threads[THREADS];
  cla_pool *p = NULL;
  CHECK(cla_simulate(&sim, &device) == CLA_OK && cla_device_pool(device, &p) == CLA_OK);
  CHECK(cla_alloc(p, 64, NULL, &mapped) == CLA_OK);
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, maps, NULL) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&start);
  CHECK(cla_unmap(mapped) == CLA_E_INVALID && cla_free(mapped) == CLA_OK);
  cla_device_release(device);
  end("maps of threads");
}

static void *fills(void *arg) {
  cla_status status = CLA_OK;
  (void)arg;
  pthread_barrier_wait(&start);
  for (int i = 0; i < ROUNDS && !status; i++) {
    void *host = NULL;
    status = i % 4 ? cla_fill(mapped, "x", 1, 4096, NULL, NULL) : cla_map(mapped, 64, CLA_MAP_READ, &host);
    if (i % 4 == 0 && !status) cla_unmap(mapped);
  }
  CHECK(status == CLA_OK || status == CLA_E_CLOSED || status == CLA_E_FREED);
  return NULL;
}

/* A pool is closed while other threads enqueue commands on its memory. */
static void closed_under_way(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  for (int round = 0; round < ROUNDS; round++) {
    pthread_t threads[THREADS];
    cla_pool *p = NULL;
    CHECK(cla_simulate(&sim, &device) == CLA_OK && cla_pool_create(device, NULL, &p) == CLA_OK);
    CHECK(cla_alloc(p, 4096, NULL, &mapped) == CLA_OK);
    pthread_barrier_init(&start, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, fills, NULL) == 0);
    pthread_barrier_wait(&start);
    cla_pool_close(p);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    cla_pool_release(p);
    cla_device_release(device);
    end("closed under way");
  }
}

int main(void) {
  for (int i = 0; i < 4; i++) {
    a_pool(i & 1, i & 2);
    a_cache(i & 1, i & 2);
    a_live_allocation(i & 1, i & 2);
  }
  a_stream_that_the_device_keeps();
  a_block_of_two_streams(0);
  a_block_of_two_streams(1);
  a_closed_pool_with_a_handle();
  maps_that_are_left();
  maps_of_threads();
  closed_under_way();
  on_threads(false);
  on_threads(true);
  return check_done("threads_leftovers");
}
