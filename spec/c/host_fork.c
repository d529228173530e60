/* Pinned memory after fork: in the child every call says that the driver stays with the parent, closing is harmless, threads
 * that end give nothing back, the background thread does not run, and the child exits cleanly; the parent goes on as if
 * nothing had been. (pytorch#130610, #33754) */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "clalloc.h"

typedef struct world {
  cla_device *device;
  cla_host *cache;
  cla_stream *stream;
  cla_gate *gate;
  void *memory, *context;
} world;

static void *end_at_once(void *arg) { return arg; }

static int child(const world *w) {
  void *p, *context;
  cla_host *c;
  cla_host_stats stats;
  cla_host_info info;
  const cla_status all[] = {cla_host_alloc(w->cache, 100, &p, &context),
                            cla_host_alloc(NULL, 100, &p, &context),
                            cla_host_free(w->context),
                            cla_host_record(w->memory, NULL, w->stream),
                            cla_host_record(NULL, w->context, w->stream),
                            cla_host_process_events(w->cache),
                            cla_host_process_events_for_size(w->cache, 100),
                            cla_host_trim(w->cache, NULL),
                            cla_host_resolve(w->memory, &info),
                            cla_host_get_stats(w->cache, &stats),
                            cla_host_reset_peaks(w->cache),
                            cla_host_set_limits(w->cache, 0, 0),
                            cla_host_check(w->cache),
                            cla_host_create(w->device, NULL, &c),
                            cla_device_host(w->device, &c)};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!CHECK(all[i] == CLA_E_FORKED)) fprintf(stderr, "call %zu gave %s\n", i, cla_status_name(all[i]));
  CHECK(strstr(cla_last_error(), "forked") != NULL);
  pthread_t t;
  CHECK(pthread_create(&t, NULL, end_at_once, NULL) == 0 && pthread_join(t, NULL) == 0);
  cla_host_close(w->cache);
  cla_stream_release(w->stream);
  cla_gate_release(w->gate);
  cla_device_release(w->device);
  return check_failed ? 1 : 0;
}

static void fork_and_wait(const world *w, bool exits) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    const int code = child(w);
    if (exits) exit(code); /* with all that runs at an exit */
    _exit(code);
  }
  int status = -1;
  CHECK(waitpid(pid, &status, 0) == pid);
  if (!CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0)) fprintf(stderr, "the child: status %#x\n", status);
}

static void run(cla_device *d, bool background) {
  cla_host_options options = cla_host_defaults();
  options.background = background;
  world w = {.device = d};
  CHECK(cla_host_create(d, &options, &w.cache) == CLA_OK && cla_stream_create(d, &w.stream) == CLA_OK);
  CHECK(cla_gate_create(d, &w.gate) == CLA_OK && cla_stream_wait_gate(w.stream, w.gate) == CLA_OK);
  CHECK(cla_host_alloc(w.cache, 100, &w.memory, &w.context) == CLA_OK);
  CHECK(cla_host_free(w.context) == CLA_OK); /* into this thread's magazine */
  void *p, *pending;
  CHECK(cla_host_alloc(w.cache, 5000, &p, &pending) == CLA_OK && cla_host_record(p, NULL, w.stream) == CLA_OK);
  CHECK(cla_host_alloc(w.cache, 100, &w.memory, &w.context) == CLA_OK);
  memset(w.memory, 7, 100);
  CHECK(cla_host_free(pending) == CLA_OK); /* the background thread, if any, looks every 100 us from now on */
  for (int i = 0; i < 20; i++) fork_and_wait(&w, i % 2);
  cla_host_stats s;
  CHECK(cla_host_check(w.cache) == CLA_OK && cla_host_get_stats(w.cache, &s) == CLA_OK && s.pending_blocks == 1);
  CHECK(cla_gate_open(w.gate) == CLA_OK && cla_stream_finish(w.stream) == CLA_OK);
  if (!background) CHECK(cla_host_process_events(w.cache) == CLA_OK);
  do {
    CHECK(cla_host_get_stats(w.cache, &s) == CLA_OK);
    sched_yield();
  } while (s.pending_blocks); /* here the thread runs on */
  CHECK(((char *)w.memory)[99] == 7 && cla_host_free(w.context) == CLA_OK);
  cla_gate_release(w.gate);
  cla_host_close(w.cache);
  cla_stream_release(w.stream);
}

int main(void) {
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  cla_device *d;
  CHECK(cla_simulate(&sim, &d) == CLA_OK);
  run(d, false);
  run(d, true);
  cla_device_release(d);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("host_fork");
}
