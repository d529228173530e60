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
} cla_host_state;

typedef struct cla_host_waiting cla_host_waiting;

typedef struct cla_host_use {
  cla_host_waiting *on; /* counted in its nuses */
  uint64_t ticket;      /* from the record hook */
} cla_host_use;

typedef struct cla_host_block {
  cla_range range;        /* in the address map while it has memory; owner: the block itself */
  struct cla_host *cache; /* of the present or last use */
  void *memory;
  void *backing; /* the hooks' own */
  size_t size, requested;
  bool is_pinned, is_fallback;     /* fallback: plain memory in place of what the hook refused */
  atomic_uint_fast64_t generation; /* odd while active: the context's; ascends */
  atomic_int state;
  uint32_t index; /* of the descriptor; never changes */
  uint32_t nuses, uses_capacity;
  cla_host_use *uses;                     /* guarded by the cache's lock */
  struct cla_host_block *before, *after;  /* in a bin or a waiting list; `after` in the spares */
  struct cla_host_block *elder, *younger; /* all of the cache's blocks that have memory */
} cla_host_block;

cla_host_block *cla__host_block_new(void); /* NULL: no host memory */
void cla__host_block_drop(cla_host_block *b);
void *cla__host_context(const cla_host_block *b);                          /* of the present allocation */
cla_host_block *cla__host_block_of(const void *context, bool *was_issued); /* NULL: stale (was_issued) or foreign */

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
  cla_host_share share;
  struct {
    uint32_t count;
    cla_host_block *blocks[CLA_MAGAZINE_BLOCKS];
  } classes[CLA_MAGAZINE_CLASSES];
} cla_magazine;

struct cla_host {
  atomic_int refs; /* one for being open, one for every block that has memory */
  atomic_bool is_closed;
  bool is_default; /* the device's own: its reference to the device is not counted */
  cla_device *device;
  cla_host_options options;
  cla_host_hooks hooks;
  cla_lock lock; /* guards the rest; taken before magazines' locks, never under one */
  cla_host_bin bins[CLA_HOST_CLASSES];
  cla_host_waiting *waitings;
  bool has_moved; /* a block has gone from one waiting list to another since this was last cleared */
  cla_magazine *magazines;
  cla_host_block *youngest;
  cla_host_share share;  /* of what did not go through a magazine */
  cla_host_stats totals; /* the figures that are not shares: reserved, pending, plain, driver, peaks, classes */
  pthread_t thread;      /* of the background; see background.c */
  pthread_mutex_t sleep_lock;
  pthread_cond_t sleep;
  bool has_thread, is_woken, must_stop;
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

/* ---- magazines.c ---- */

cla_magazine *cla__magazine_of(cla_host *c); /* this thread's; NULL: no host memory for one */
/* Takes every magazine's blocks and share out, and keeps the magazines locked, so that the figures stand still. Holds the
 * cache's lock. */
void cla__magazines_lock(cla_host *c);
void cla__magazines_unlock(cla_host *c);
void cla__magazines_detach(cla_host *c);                /* of a cache that is closed, after a flush */
void cla__host_bin_put(cla_host *c, cla_host_block *b); /* a free block into its bin; holds the lock */

/* ---- life.c ---- */

void cla__host_unref(cla_host *c);

/* ---- host_cache.c ---- */

/* A block that has become free: kept, or chained when a limit says so. Holds the lock. */
void cla__host_keep(cla_host *c, cla_host_block *b, cla_host_block **chain);
void cla__host_release(cla_host *c,
                       cla_host_block *chain); /* back to the hooks, without locks; may end a closed cache */
size_t cla__host_give_back(cla_host *c);       /* what is free, in bytes; without locks */
void cla__host_drop_active(cla_host *c);
cla_host_block *cla__host_block_at(const void *address); /* whose memory holds it; NULL: none */
/* Makes room for a record of this stream, so that the one after a command's enqueue cannot fail for want of memory. Until
 * then the stream counts as recorded with nothing to wait for. */
cla_status cla__host_expect(void *context, cla_stream *s);

/* ---- hooks.c ---- */

cla_host_hooks cla__host_hooks_for(cla_device *d, cla_host_kind kind);
size_t cla__host_machine_memory(void);                  /* bytes */
void *cla__host_plain(size_t alignment, size_t nbytes); /* for free(); NULL: no memory */

/* ---- background.c ---- */

void cla__background_wake(cla_host *c); /* starts the thread on first use */
void cla__background_stop(cla_host *c); /* and joins it */

#endif
