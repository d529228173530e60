/* A lock for short critical sections: one locked instruction to take it, a plain store to give it back, about half
 * the cost of a pthread mutex when nobody else wants it, and a hit of the allocator is two such sections. Contended, it
 * spins a little, then yields, then sleeps, so a thread of higher priority cannot starve the holder. Not recursive, not
 * fair; nothing that blocks may be done under it. */
#ifndef CLA_LOCK_H
#define CLA_LOCK_H

#include <stdatomic.h>

typedef struct cla_lock {
  atomic_uint taken;
} cla_lock;

void cla__lock_wait(cla_lock *l); /* lock.c */

static inline void cla__lock(cla_lock *l) {
  if (atomic_exchange_explicit(&l->taken, 1, memory_order_acquire)) cla__lock_wait(l);
}

static inline void cla__unlock(cla_lock *l) { atomic_store_explicit(&l->taken, 0, memory_order_release); }

#endif
