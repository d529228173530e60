/* After fork the driver stays with the parent: in the child every call says so and touches nothing, closing is
 * harmless, and the child exits cleanly, whatever the parent held (pytorch#33754). */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "clalloc.h"

static int child(cla_device *d, cla_pool *p, cla_stream *s, void *x) {
  void *y = NULL, *host = NULL;
  cla_device *again = NULL;
  cla_stats stats;
  char text[16] = "";
  bool idle;
  cla_stream *other = NULL;
  const cla_status all[] = {cla_alloc(p, 100, s, &y),
                            cla_free(x),
                            cla_record(x, s),
                            cla_copy(x, text, 16, s, NULL),
                            cla_copy(text, x, 16, s, NULL),
                            cla_fill(x, "a", 1, 16, s, NULL),
                            cla_map(x, 16, CLA_MAP_READ, &host),
                            cla_stream_finish(s),
                            cla_stream_query(s, &idle),
                            cla_pool_stats(p, &stats),
                            cla_pool_trim(p, NULL),
                            cla_pool_check(p),
                            cla_device_open(NULL, &again),
                            cla_stream_create(d, &other)};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!CHECK(all[i] == CLA_E_FORKED)) fprintf(stderr, "call %zu gave %s\n", i, cla_status_name(all[i]));
  CHECK(strstr(cla_last_error(), "forked") != NULL);
  CHECK(!cla_owns(x));
  cla_deleter(x);
  cla_stream_release(s);
  cla_pool_release(p);
  cla_device_release(d);
  return check_failed ? 1 : 0;
}

static void run(cla_device *d) {
  cla_pool *p;
  cla_stream *s;
  void *x;
  CHECK(cla_pool_create(d, NULL, &p) == CLA_OK);
  CHECK(cla_stream_create(d, &s) == CLA_OK);
  CHECK(cla_alloc(p, 4096, s, &x) == CLA_OK);
  CHECK(cla_fill(x, "z", 1, 4096, s, NULL) == CLA_OK);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) _exit(child(d, p, s, x));
  int status = -1;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  char text[2] = "";
  CHECK(cla_copy(text, x, 1, s, NULL) == CLA_OK); /* the parent goes on */
  CHECK(cla_free(x) == CLA_OK);
  cla_stream_release(s);
  cla_pool_release(p);
  cla_device_release(d);
  CHECK(cla_debug_live(NULL) == 0);
}

int main(void) {
  cla_device *d;
  const cla_simulation sim = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&sim, &d) == CLA_OK);
  run(d);
  CHECK(cla_device_open(NULL, &d) == CLA_OK);
  run(d);
  return check_done("fork");
}
