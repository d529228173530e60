/* The pinned-memory cache against what a C program would do without it: a pinned buffer made, mapped, unmapped and
 * released; malloc; a marker event a block. Then with more threads, with many blocks pending, and what its rounding
 * costs for the sizes of a recorded training step; transfers from pinned and from pageable memory.
 *
 *   host [FILE.csv ...]    recordings: one figure for the first, one for all; without them they are left out */
#include <math.h>
#include <mimalloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "clalloc.h"

enum { SIZE = 4096, PENDING = 100000, STREAMS = 8, BURST = 64, MOST_THREADS = 16 };

static cla_device *device;
static cla_host *cache;
static cla_stream *stream;

static void must(cla_status status) {
  if (!status) return;
  fprintf(stderr, "%s\n", cla_last_error());
  exit(1);
}

static void check(cl_int err) {
  if (!err) return;
  fprintf(stderr, "OpenCL error %d\n", (int)err);
  exit(1);
}

/* ---- One thread ---- */

static void ours(void) {
  void *memory, *context;
  cla_host_alloc(cache, SIZE, &memory, &context);
  cla_host_free(context);
}

static void raw(void) {
  cl_int err;
  cl_command_queue q = cla_stream_queue(stream);
  cl_mem mem = clCreateBuffer(cla_device_context(device), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, SIZE, NULL, &err);
  void *p = clEnqueueMapBuffer(q, mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, SIZE, 0, NULL, NULL, &err);
  clEnqueueUnmapMemObject(q, mem, p, 0, NULL, NULL);
  clReleaseMemObject(mem);
}

static void mimalloc(void) {
  void *volatile p = mi_malloc(SIZE); /* volatile: or the compiler drops the pair */
  mi_free(p);
}

/* ---- Many threads ---- */

typedef struct worker {
  pthread_t thread;
  pthread_barrier_t *start;
  double ns; /* median of a pair */
} worker;

static void *work(void *arg) {
  enum { RUNS = 101, PAIRS = 20000 };
  worker *w = arg;
  static _Thread_local double runs[RUNS];
  bench_time(ours, 1000);
  pthread_barrier_wait(w->start);
  for (int i = 0; i < RUNS; i++) runs[i] = bench_time(ours, PAIRS);
  w->ns = bench_median(runs, RUNS);
  return NULL;
}

/* Median over the threads of each one's median. */
static double with_threads(int n) {
  worker workers[MOST_THREADS];
  double ns[MOST_THREADS] = {0};
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, (unsigned)n);
  for (int i = 0; i < n; i++) {
    workers[i].start = &start;
    pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  }
  for (int i = 0; i < n; i++) {
    pthread_join(workers[i].thread, NULL);
    ns[i] = workers[i].ns;
  }
  pthread_barrier_destroy(&start);
  return bench_median(ns, n);
}

/* PyTorch's cache of pinned memory on a machine with an H200, lower of the figures measured: no machine but such a one
 * compares with them. */
static void threads_against_pytorch(void) {
  static const struct {
    int threads;
    double ns;
  } theirs[] = {{1, 163}, {4, 650}, {16, 1050}};
  for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
    char name[64];
    if (sysconf(_SC_NPROCESSORS_ONLN) < theirs[i].threads) continue;
    snprintf(name, sizeof name, "host.pair.threads.%d", theirs[i].threads);
    bench_line(name, with_threads(theirs[i].threads), "ns", "pytorch", theirs[i].ns);
  }
}

/* ---- Pending blocks ---- */

static double pair_among(int npending) {
  cla_stream *streams[STREAMS];
  cla_gate *gate;
  void *memory, *context;
  double runs[BENCH_RUNS];
  must(cla_host_create(device, NULL, &cache));
  must(cla_gate_create(device, &gate));
  for (int i = 0; i < STREAMS; i++) {
    must(cla_stream_create(device, &streams[i]));
    must(cla_stream_wait_gate(streams[i], gate));
  }
  for (int i = 0; i < npending; i++) {
    must(cla_host_alloc(cache, 64, &memory, &context));
    must(cla_host_record(NULL, context, streams[i % STREAMS]));
    must(cla_host_free(context));
  }
  bench_time(ours, 1000);
  for (int i = 0; i < BENCH_RUNS; i++) runs[i] = bench_time(ours, 200000);
  must(cla_gate_open(gate));
  for (int i = 0; i < STREAMS; i++) {
    must(cla_stream_finish(streams[i]));
    cla_stream_release(streams[i]);
  }
  cla_gate_release(gate);
  cla_host_close(cache);
  return bench_median(runs, BENCH_RUNS);
}

/* ---- Recorded blocks ---- */

/* A launch, as far as the stream is concerned, on a queue that the program enqueues on itself. */
static void launch(void) {
  check(clEnqueueMarkerWithWaitList(cla_stream_queue(stream), 0, NULL, NULL));
  must(cla_stream_submitted(stream));
}

static void recorded_burst(void) {
  void *memory, *context;
  for (int i = 0; i < BURST; i++) {
    cla_host_alloc(cache, SIZE, &memory, &context);
    cla_host_record(NULL, context, stream);
    cla_host_free(context);
  }
}

static void marker_burst(void) {
  cl_event event;
  for (int i = 0; i < BURST; i++) {
    clEnqueueMarkerWithWaitList(cla_stream_queue(stream), 0, NULL, &event);
    clReleaseEvent(event);
  }
}

/* ns a block; the launches themselves are not counted. */
static double burst(void (*blocks)(void)) {
  enum { BURSTS = 400 };
  double ns = 0;
  for (int i = 0; i < BURSTS; i++) {
    launch();
    double start = bench_now();
    blocks();
    ns += bench_now() - start;
    if (i % 8 == 7) check(clFinish(cla_stream_queue(stream)));
  }
  return ns / BURSTS / BURST;
}

static void recording(void) {
  double a[BENCH_RUNS], b[BENCH_RUNS];
  must(cla_host_create(device, NULL, &cache));
  burst(recorded_burst);
  for (int i = 0; i < BENCH_RUNS; i++) {
    a[i] = burst(recorded_burst);
    b[i] = burst(marker_burst);
  }
  bench_line("host.record", bench_median(a, BENCH_RUNS), "ns", "marker_event", bench_median(b, BENCH_RUNS));
  cla_host_close(cache);
}

/* ---- Rounding ---- */

/* The figure is bounded by what powers of two cost. In lm_512_train.csv most sizes are powers of two already: what is live at
 * the peak, rounded up so, is 1.032 of what was requested; with blocks cached in sizes not asked for just then, that cache
 * reserves 1.069 of it at most (1.033 at the moment of the peak). One that never reserved a byte more than is requested would
 * have 1 / 1.069 = 0.935 of that (1 / 1.033 = 0.968): no rounding and no policy gets further on this recording. Ours rounds
 * what is live to 1.0013 and keeps as much as the other. Giving cached blocks back before more is reserved than ever before,
 * as the device pool does, would get to 0.937 (0.80 over all seven recordings, in place of 0.86), and cost 104 to 743 pins in
 * each repetition of the recording, 450 to 581 of lm_512_infer.csv, where now there are none: the cache is there to save
 * just those, so it does not. Nor does a cached block of up to an eighth more in place of a new one help: no request meets
 * one between two steps. */

/* Address space in place of memory: a recording may be larger than the machine. */
static cla_status reserve(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  (void)arg, (void)backing, (void)is_pinned;
  *memory = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *memory == MAP_FAILED ? CLA_E_INVALID : CLA_OK;
}
static void unreserve(void *arg, void *memory, void *backing, size_t nbytes) {
  (void)arg, (void)backing;
  munmap(memory, nbytes);
}
static cla_status no_ticket(void *arg, cla_stream *s, uint64_t *ticket) {
  (void)arg, (void)s;
  *ticket = 0;
  return CLA_OK;
}
static bool is_done(void *arg, cla_stream *s, uint64_t ticket) {
  (void)arg, (void)s, (void)ticket;
  return true;
}

typedef struct live {
  unsigned long long address;
  void *context;
  size_t nbytes;
} live;

enum { MOST_LIVE = 1 << 16 };
static live blocks[MOST_LIVE];
static size_t nlive, requested, most_requested;

static void begin(unsigned long long address, unsigned long long nbytes) {
  void *memory;
  if (nlive == MOST_LIVE) return;
  live *b = &blocks[nlive++];
  *b = (live){.address = address, .nbytes = nbytes};
  must(cla_host_alloc(cache, nbytes, &memory, &b->context));
  requested += nbytes;
  if (requested > most_requested) most_requested = requested;
}

static void end(unsigned long long address) {
  size_t i = 0;
  while (i < nlive && blocks[i].address != address) i++;
  if (i == nlive) return;
  must(cla_host_free(blocks[i].context));
  requested -= blocks[i].nbytes;
  blocks[i] = blocks[--nlive];
}

/* What was live before the recording began: X.initial.csv comes along with X.csv. */
static void read_initial(const char *path) {
  char name[512], text[512], kind[32];
  unsigned long long address, nbytes;
  size_t n = strlen(path);
  if (n < 4 || n + 16 > sizeof name) return;
  snprintf(name, sizeof name, "%.*s.initial.csv", (int)(n - 4), path);
  FILE *file = fopen(name, "r");
  if (!file) return;
  while (fgets(text, sizeof text, file))
    if (sscanf(text, "%31[^,],%llx,%llu", kind, &address, &nbytes) == 3 && strcmp(kind, "live") == 0)
      begin(address, nbytes);
  fclose(file);
}

/* The recording's allocations through a cache: most bytes reserved to most bytes requested at a time. */
static double rounding(const char *path, size_t power_of_two_up_to, size_t steps_up_to) {
  const cla_host_hooks hooks = {.allocate = reserve, .free = unreserve, .record = no_ticket, .query = is_done};
  cla_host_options options = cla_host_defaults();
  options.power_of_two_up_to = power_of_two_up_to;
  options.steps_up_to = steps_up_to;
  options.max_cached = options.max_block = SIZE_MAX / 2;
  options.hooks = &hooks;
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(1);
  }
  must(cla_host_create(device, &options, &cache));
  nlive = requested = most_requested = 0;
  read_initial(path);
  char text[512], action[32];
  unsigned long long address, nbytes;
  while (fgets(text, sizeof text, file)) {
    if (sscanf(text, "%*[^,],%31[^,],%llx,%llu", action, &address, &nbytes) != 3) continue;
    if (strcmp(action, "alloc") == 0) begin(address, nbytes);
    else if (strcmp(action, "free_completed") == 0) end(address);
  }
  fclose(file);
  cla_host_stats stats;
  must(cla_host_get_stats(cache, &stats));
  while (nlive) must(cla_host_free(blocks[--nlive].context));
  cla_host_close(cache);
  return (double)stats.peak_reserved_bytes / (double)most_requested;
}

static void rounding_of(int n, char *const *paths) {
  double ours_product = 1, theirs_product = 1;
  for (int i = 0; i < n; i++) {
    double a = rounding(paths[i], 1 << 20, (size_t)256 << 20), b = rounding(paths[i], SIZE_MAX / 4, SIZE_MAX / 2);
    if (i == 0) bench_line("host.rounding", a, "reserved/requested", "powers_of_two", b);
    ours_product *= a;
    theirs_product *= b;
  }
  if (n > 1)
    bench_line("host.rounding.all", pow(ours_product, 1.0 / n), "reserved/requested", "powers_of_two",
               pow(theirs_product, 1.0 / n));
}

/* ---- Bandwidth ---- */

static double seconds_of(void *to, const void *from, size_t nbytes) {
  enum { RUNS = 5 };
  double runs[RUNS];
  must(cla_copy(to, from, nbytes, stream, NULL));
  for (int i = 0; i < RUNS; i++) {
    double start = bench_now();
    must(cla_copy(to, from, nbytes, stream, NULL));
    runs[i] = (bench_now() - start) * 1e-9;
  }
  return bench_median(runs, RUNS);
}

static void bandwidth(void) {
  const size_t nbytes = (size_t)256 << 20;
  void *pinned, *context, *on_device, *pageable = malloc(nbytes);
  const double gb = (double)nbytes * 1e-9;
  if (!pageable) return;
  memset(pageable, 1, nbytes);
  must(cla_host_create(device, NULL, &cache));
  must(cla_host_alloc(cache, nbytes, &pinned, &context));
  memset(pinned, 1, nbytes);
  must(cla_alloc(NULL, nbytes, stream, &on_device));
  double ours_in = seconds_of(on_device, pinned, nbytes), theirs_in = seconds_of(on_device, pageable, nbytes);
  double ours_out = seconds_of(pinned, on_device, nbytes), theirs_out = seconds_of(pageable, on_device, nbytes);
  bench_line("host.bandwidth.h2d", gb / ours_in, "GB/s", "pageable", gb / theirs_in);
  bench_line("host.bandwidth.d2h", gb / ours_out, "GB/s", "pageable", gb / theirs_out);
  must(cla_free(on_device));
  must(cla_host_free(context));
  cla_host_close(cache);
  free(pageable);
}

int main(int argc, char **argv) {
  must(cla_device_open(NULL, &device));
  must(cla_stream_create(device, &stream));
  must(cla_host_create(device, NULL, &cache));
  bench_side_by_side("host.pair.c.raw", ours, 500000, "create_map_unmap_release", raw, 2000);
  bench_side_by_side("host.pair.c.mimalloc", ours, 500000, "mimalloc", mimalloc, 1000000);
  bench_line("host.pair.threads", with_threads(2), "ns", "1_thread", with_threads(1));
  if (cla_device_get_info(device)->type & CL_DEVICE_TYPE_GPU) threads_against_pytorch();
  cla_host_close(cache);
  bench_line("host.pair.pending", pair_among(PENDING), "ns", "none_pending", pair_among(0));
  recording();
  rounding_of(argc - 1, argv + 1);
  bandwidth();
  cla_stream_release(stream);
  cla_device_release(device);
  return 0;
}
