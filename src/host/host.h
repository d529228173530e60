/* The pinned-host cache's own types.
 *
 * A block is one piece of host memory from the hooks, never split. It is active, free (in a thread's magazine or in its
 * class's bin), or pending (freed, while recorded streams may still read or write it). Block descriptors are type-stable and
 * known by number, so a context that was ever given out is recognised for ever and a foreign one never followed. */
#ifndef CLA_HOST_H
#define CLA_HOST_H

#include "runtime/lock.h"
#include "runtime/runtime.h"

/* ---- sizes.c: classes and rounding ---- */

enum {
  CLA_HOST_LEAST = 64, /* bytes of the smallest class: a cache line, so that two blocks never share one */
  CLA_HOST_STEPS_LOG2 = 3,
  CLA_HOST_STEPS = 1 << CLA_HOST_STEPS_LOG2, /* sizes to a power of two above the threshold: at most 1/8 is wasted */
  CLA_HOST_CLASSES = 64 * CLA_HOST_STEPS
};

/* Bytes set aside for a request under the cache's thresholds; 0: too large to be rounded. */
size_t cla__host_round(const cla_host_options *o, size_t nbytes);
unsigned cla__host_class(size_t size); /* equal sizes share a class; a class may hold several sizes */

/* ---- blocks.c: descriptors and contexts ---- */

typedef enum cla_host_state {
  CLA_HOST_UNUSED,  /* a spare descriptor */
  CLA_HOST_ACTIVE,  /* allocated */
  CLA_HOST_FREE,    /* in a magazine or a bin */
  CLA_HOST_PENDING, /* freed, recorded streams not done */
  CLA_HOST_LEAVING  /* on its way to the hooks */
} cla_host_state;   /* for checks alone: what is done with a block depends on its life and its list */

typedef struct cla_host_waiting cla_host_waiting;

typedef struct cla_host_use {
  cla_host_waiting *on; /* counted in its nuses */
  uint64_t ticket;      /* from the record hook */
} cla_host_use;

typedef struct cla_host_block {
  cla_range range;                  /* in the address map while it has memory; owner: the block itself */
  _Atomic(struct cla_host *) cache; /* of the present or last use */
  void *memory;
  void *backing; /* the hooks' own */
  size_t size;
  atomic_size_t requested;
  bool is_pinned, is_fallback; /* fallback: plain memory in place of what the hook refused */
  bool lingers;                /* does not keep the device; see cla_host.keeps */
  /* Twice the generation, plus 1 once a stream is recorded on the allocation, so that a free without the cache's lock fails
   * where a record came first. The generation is odd while active: the context's; it ascends. */
  atomic_uint_fast64_t life;
  atomic_int state;
  uint32_t index; /* of the descriptor; never changes */
  uint32_t nuses, uses_capacity;
  cla_host_use *uses;                     /* guarded by the cache's lock */
  struct cla_host_block *before, *after;  /* in a bin or a waiting list; `after` in the spares */
  struct cla_host_block *elder, *younger; /* all of the cache's blocks that have memory */
} cla_host_block;

/* Generations end here: a context has no more bits. A block that has got so far is never given out again. */
enum { CLA_HOST_GENERATION_BITS = 39 };
static inline uint64_t cla__host_generation(uint64_t life) { return life >> 1; }
static inline bool cla__host_is_active(uint64_t life) { return (life & 2) != 0; }
static inline bool cla__host_is_recorded(uint64_t life) { return (life & 1) != 0; }
static inline void cla__host_set_state(cla_host_block *b, cla_host_state state) {
  atomic_store_explicit(&b->state, state, memory_order_relaxed);
}
static inline bool cla__host_is_worn(uint64_t life) { /* its next free is its last */
  return cla__host_generation(life) >= ((uint64_t)1 << CLA_HOST_GENERATION_BITS) - 1;
}

/* `record`: of its range, the same at every call. NULL: no host memory. */
cla_host_block *cla__host_block_new(cla_status (*record)(const void *address, cla_stream *s));
void cla__host_block_drop(cla_host_block *b);
void *cla__host_context(const cla_host_block *b, uint64_t life); /* of the allocation that has or had that life */
/* The block and its life if the context is live; NULL: stale (was_issued) or foreign. */
cla_host_block *cla__host_block_of(const void *context, uint64_t *life, bool *was_issued);

/* ---- host_cache.c ---- */

typedef struct cla_host_bin {
  cla_host_block *first; /* newest first */
  size_t count;
} cla_host_bin;

/* Blocks that wait for one stream, by ascending ticket of their last use; first's ticket > done. */
struct cla_host_waiting {
  cla_host_waiting *next;
  cla_stream *stream; /* held; NULL once the cache is closed */
  size_t nuses;       /* uses recorded on the stream; pins of threads that ask the driver, without the lock */
  uint64_t done; /* the highest ticket known to be done; UINT64_MAX: the cache is closed and the stream done with it */
  cla_host_block *first, *last;
};

enum {
  CLA_MAGAZINE_BLOCKS = 8,        /* a class, a thread */
  CLA_MAGAZINE_LARGEST = 1 << 16, /* larger blocks go to the shared bins: there a lock is little beside the use */
  CLA_MAGAZINE_BYTES = 1 << 20,   /* a thread: eight of each power of two */
  CLA_MAGAZINE_CLASSES = (16 - 6) * CLA_HOST_STEPS + 1 /* classes of sizes up to that */
};

/* A share of the figures, kept by whoever holds the lock it lies under; single shares may be negative, only the sums mean
 * something. */
typedef struct cla_host_share {
  int64_t allocs, frees, hits, active_bytes, active_blocks, requested_bytes, cached_bytes, cached_blocks;
} cla_host_share;

/* One thread's part of a cache. The lock is the thread's own, taken by others only to flush and to count. */
typedef struct cla_magazine {
  cla_lock lock;
  _Atomic(struct cla_host *) cache; /* NULL: closed, or not in use; written under both locks */
  struct cla_magazine *next;        /* in the cache's list */
  cla_host_share share;             /* cached_bytes, cached_blocks: exactly what lies below */
  struct {
    atomic_uint count; /* written under the lock; the thread itself may look without: 0 stays 0 */
    cla_host_block *blocks[CLA_MAGAZINE_BLOCKS];
  } classes[CLA_MAGAZINE_CLASSES];
} cla_magazine;

static inline unsigned cla__magazine_count(const cla_magazine *m, unsigned class) {
  return atomic_load_explicit(&m->classes[class].count, memory_order_relaxed);
}

/* Both hold the lock; there is one, or room for one. */
static inline cla_host_block *cla__magazine_pop(cla_magazine *m, unsigned class) {
  unsigned count = cla__magazine_count(m, class) - 1;
  cla_host_block *b = m->classes[class].blocks[count];
  atomic_store_explicit(&m->classes[class].count, count, memory_order_relaxed);
  m->share.cached_bytes -= (int64_t)b->size;
  m->share.cached_blocks--;
  return b;
}

static inline void cla__magazine_push(cla_magazine *m, unsigned class, cla_host_block *b) {
  unsigned count = cla__magazine_count(m, class);
  m->classes[class].blocks[count] = b;
  atomic_store_explicit(&m->classes[class].count, count + 1, memory_order_relaxed);
  m->share.cached_bytes += (int64_t)b->size;
  m->share.cached_blocks++;
}

/* Type-stable, so that whoever found a block may take the lock of what was its cache, and see there whether it still is. */
struct cla_host {
  cla_lock lock; /* guards what is not atomic; taken before magazines' locks, never under one */
  atomic_int
      refs; /* one for being open, one for every block that has memory, one for every call that may run hooks ... */
  atomic_int
      keeps; /* ... and those of them that keep the device: all but blocks that linger, and what waits for those */
  atomic_bool is_closed;
  bool is_default;    /* the device's own: its reference to the device is not counted */
  cla_device *device; /* retained while keeps > 0; what is left then ends with the device's streams, at the latest */
  cla_host_options options; /* as given at first */
  cla_host_hooks hooks;
  /* Limits; written under the lock and all magazines' locks. Cached bytes: at most max_cached, of which each magazine may
   * hold CLA_MAGAZINE_BYTES and all of them half. */
  size_t max_cached, max_block;
  cla_host_bin bins[CLA_HOST_CLASSES];
  cla_host_waiting *waitings;
  bool has_moved; /* a block has gone from one waiting list to another since this was last cleared */
  cla_magazine *magazines;
  size_t nmagazines;
  atomic_bool has_room; /* for one more magazine */
  cla_host_block *youngest;
  cla_host_share share;  /* of what did not go through a magazine */
  cla_host_stats totals; /* the figures that are not shares: reserved, pending, plain, driver, peaks, classes */
  pthread_t thread;      /* of the background; see background.c. It counts as a holder */
  pthread_mutex_t sleep_lock;
  pthread_cond_t sleep;
  bool has_thread, is_woken, must_stop;
  struct cla_host *spare; /* the next of the closed ones */
};

/* ---- pending.c ---- */

/* Completes what is done; returns whether anything became free. */
bool cla__host_process(cla_host *c);
/* The others hold the lock. What becomes free is kept, or chained for cla__host_release. */
void cla__host_pend(cla_host *c, cla_host_block *b, cla_host_block **chain); /* a freed block with uses, of no list */
bool cla__host_collect(cla_host *c, cla_host_waiting *w, uint64_t done,
                       cla_host_block **chain);                               /* tickets up to `done` */
bool cla__host_ask(cla_host *c, cla_host_waiting *w, cla_host_block **chain); /* drops the lock meanwhile */
/* The entry of a stream, with a use counted; NULL: no host memory. `gone` is for cla__host_waitings_free without lock. */
cla_host_waiting *cla__host_waiting_of(cla_host *c, cla_stream *s, cla_host_waiting **gone);
void cla__host_waitings_free(cla_host_waiting *w);
/* Waits until the streams of pending blocks have done what they have now, all but those that would hang. Without locks. False,
 * without waiting: less than so much is pending. */
bool cla__host_wait(cla_host *c, size_t nbytes);

/* ---- magazines.c ---- */

/* This thread's; NULL: no host memory for one, or no room under the cache's limit. */
cla_magazine *cla__magazine_of(cla_host *c);
/* The others hold the cache's lock. Locked, the figures stand still. */
void cla__magazines_lock(cla_host *c);
void cla__magazines_unlock(cla_host *c);
void cla__magazines_flush(cla_host *c, cla_host_block **chain);  /* to the bins, or chained where the limits say so */
void cla__magazines_detach(cla_host *c, cla_host_block **chain); /* and takes them from the cache */
void cla__magazines_fit(cla_host *c);                            /* after a change of the limits or their number */
cla_host_share cla__host_shares(const cla_host *c);              /* the sum; the magazines are locked */

/* ---- life.c ---- */

void cla__host_ref(cla_host *c);
void cla__host_unref(cla_host *c);
/* A pending block of a closed cache stops keeping the device: the caller keeps it in the block's place, until he calls
 * cla__host_unref, without the lock. Holds the lock. */
void cla__host_linger(cla_host *c, cla_host_block *b);
void cla__host_unref_block(cla_host *c, bool lingers); /* its memory is gone */

/* ---- host_cache.c ---- */

/* A block that has become free: kept, or chained when a limit says so. Holds the lock. */
void cla__host_keep(cla_host *c, cla_host_block *b, cla_host_block **chain);
/* Back to the hooks, without locks; may end a closed cache. */
void cla__host_release(cla_host *c, cla_host_block *chain);
void cla__host_drain(cla_host *c, cla_host_block **chain); /* all that is free; holds the lock */
/* The cache for a call that runs hooks, which may close it: cla__host_unref when the call is over. */
cla_status cla__host_enter(cla_host *c);
void cla__host_drop_active(cla_host *c);
cla_host_block *cla__host_block_at(const void *address); /* whose memory holds it; NULL: none */
/* The block's cache, locked, if the block is active and its context is the one given (NULL: whatever it is). It stays in the
 * cache as long as the lock is held, though not active. NULL: it is freed. */
cla_host *cla__host_lock_active(cla_host_block *b, const void *context, uint64_t *life);
/* Makes room for a record of this stream, so that the one after a command's enqueue cannot fail for want of memory. Until
 * then the stream counts as recorded with nothing to wait for. */
cla_status cla__host_expect(void *context, cla_stream *s);

/* ---- inspect.c ---- */

/* cla_host_resolve; the context and the cache's device, retained, come along. */
cla_status cla__host_look(const void *address, cla_host_info *out, void **context, cla_host **cache);
void cla__host_limits(cla_host *c, size_t *max_cached, size_t *max_block);

/* ---- hooks.c ---- */

cla_host_hooks cla__host_hooks_for(cla_device *d, cla_host_kind kind);
cla_status cla__host_ticket(void *arg, cla_stream *s, uint64_t *ticket); /* their `record`: it reads a counter */
size_t cla__host_machine_memory(void);                                   /* bytes */
void *cla__host_plain(size_t alignment, size_t nbytes);                  /* for free(); NULL: no memory */

/* ---- background.c ---- */

void cla__background_wake(cla_host *c); /* starts the thread on first use */
void cla__background_stop(cla_host *c); /* and joins it */

#endif
