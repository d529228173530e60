/* The contended path of the lock: spin while the holder is likely running, then let it run. */
#include "runtime/lock.h"

#include <sched.h>
#include <time.h>

static void pause_briefly(unsigned round) {
  enum { SPINS = 64, YIELDS = 512 };
  if (round < SPINS) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  } else if (round < SPINS + YIELDS) {
    sched_yield();
  } else {
    const struct timespec moment = {0, 50000};
    nanosleep(&moment, NULL);
  }
}

void cla__lock_wait(cla_lock *l) {
  for (unsigned round = 0;; round++) {
    pause_briefly(round);
    if (!atomic_load_explicit(&l->taken, memory_order_relaxed) &&
        !atomic_exchange_explicit(&l->taken, 1, memory_order_acquire))
      return;
  }
}
