/* The thread that completes pending blocks when an option asks for it: they are ready before anybody misses them.
 *
 * It sleeps until a block becomes pending, then looks every 100 µs as long as any is. It is joined before anything it reads
 * goes away (pytorch#154117); where a hook that it runs closes the cache it cannot be, and ends by itself, as one of the
 * cache's holders. It never touches Lua, no signal is delivered to it, so no handler that does either, and it does not exist
 * in a forked child, where every call says so. */
#include <signal.h>
#include <time.h>

#include "host/host.h"

enum { LOOK_EVERY_NS = 100000 };

static bool has_pending(cla_host *c) {
  cla__lock(&c->lock);
  bool any = c->totals.pending_blocks != 0;
  cla__unlock(&c->lock);
  return any;
}

static void sleep_a_moment(cla_host *c) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += LOOK_EVERY_NS;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  pthread_cond_timedwait(&c->sleep, &c->sleep_lock, &until); /* the condition's clock: host_new */
}

static void *run(void *arg) {
  cla_host *c = arg;
  pthread_mutex_lock(&c->sleep_lock);
  while (!c->must_stop) {
    pthread_mutex_unlock(&c->sleep_lock);
    cla__host_process(c);
    bool more = has_pending(c);
    pthread_mutex_lock(&c->sleep_lock);
    if (c->must_stop) break;
    if (more) sleep_a_moment(c);
    else if (!c->is_woken) pthread_cond_wait(&c->sleep, &c->sleep_lock);
    c->is_woken = false;
  }
  pthread_mutex_unlock(&c->sleep_lock);
  cla__host_unref(c);
  return NULL;
}

static bool start(cla_host *c) {
  sigset_t all, before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before)) return false;
  cla__host_ref(c);
  bool runs = pthread_create(&c->thread, NULL, run, c) == 0;
  if (!runs) cla__host_unref(c); /* one of several: the caller has one too */
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return runs;
}

void cla__background_wake(cla_host *c) {
  pthread_mutex_lock(&c->sleep_lock);
  if (!c->has_thread && !c->must_stop) c->has_thread = start(c);
  c->is_woken = true;
  pthread_cond_signal(&c->sleep);
  pthread_mutex_unlock(&c->sleep_lock);
}

void cla__background_stop(cla_host *c) {
  pthread_mutex_lock(&c->sleep_lock);
  c->must_stop = true;
  bool joins = c->has_thread;
  c->has_thread = false;
  pthread_cond_signal(&c->sleep);
  pthread_mutex_unlock(&c->sleep_lock);
  if (joins && pthread_equal(c->thread, pthread_self())) pthread_detach(c->thread);
  else if (joins) pthread_join(c->thread, NULL);
}
