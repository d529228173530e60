/* The device allocator's own types: pools, segments, blocks, bins.
 *
 * A segment is one buffer of the driver's. It is cut into blocks, which tile it: first->offset == 0,
 * b->offset + b->size == b->next->offset, and the last ends at segment->size. Two neighbours that are both free and of
 * the same owner are one block, except while they sit in the quick lists.
 *
 * Everything here is guarded by the pool's lock. Pools, segments and blocks are type-stable: their memory is
 * recycled for others of the same pool, and pools for pools, never given back; so a stale pointer leads to a lock and a
 * generation that says "freed", never to memory of something else. */
#ifndef CLA_POOL_H
#define CLA_POOL_H

#include "runtime/lock.h"
#include "runtime/runtime.h"
#include "trace/ring.h"

typedef struct cla_segment cla_segment;
typedef struct cla_block cla_block;
typedef struct cla_owner cla_owner;
typedef struct cla_sub cla_sub;
typedef struct cla_memo cla_memo;

/* ---- Blocks ---- */

typedef enum cla_state {
  CLA_UNUSED, /* descriptor on the pool's free list */
  CLA_ACTIVE, /* allocated; generation != 0 */
  CLA_QUICK,  /* free, in its owner's quick lists: not merged, handed out again for exactly its size */
  CLA_BINNED, /* free, in its owner's bins */
  CLA_HELD    /* freed; waits for recorded streams or an unmap */
} cla_state;

/* The block is in use by commands of the owner's stream up to `number`. */
typedef struct cla_use {
  cla_owner *owner; /* counted in its nrefs */
  uint64_t number;
} cla_use;

typedef struct cla_mapping cla_mapping; /* see transfer.c below */

struct cla_block {
  cla_segment *segment;
  size_t offset, size; /* in the segment; multiples of pool->align */
  size_t requested;    /* bytes asked for; requested <= size */
  uint64_t generation; /* of the live allocation; 0 when there is none */
  uint64_t freed_at;   /* number of the owner's stream when it was freed: after it, anyone may use the memory */
  cla_sub *sub;        /* of exactly this block, while it is live and has one */
  cla_owner *owner;
  cla_owner *waits_for; /* held: the owner in whose held list it is; NULL: it waits for pins or maps */
  uint64_t held_until;  /* its place there */
  cla_state state;
  unsigned pins; /* commands being enqueued, maps: a freed block with pins is held */
  uint32_t nuses, uses_capacity;
  cla_use *uses; /* streams other than the owner's */
  cla_mapping *maps;
  cla_block *prev, *next;    /* neighbours in the segment */
  cla_block *before, *after; /* in a bin, a quick list, a held list; `after` in the free list of descriptors */
};

/* ---- Segments ---- */

/* A sub-buffer of a segment. See subs.c. */
struct cla_sub {
  size_t offset, size;
  cl_mem mem;
  cla_sub *chain;          /* in the segment's hash; in a chain to be released */
  cla_sub *newer, *older;  /* among all of the segment's, in the order they were made */
  cla_sub *before, *after; /* in the segment's loose list, least recently used first */
  bool is_loose;           /* no live block's own: dropped when in the way, or when there are many */
  unsigned pins;           /* commands being enqueued */
  uint64_t promised_to;    /* generation of the allocation for whose life a C program may keep it; 0: none */
};

enum { CLA_MAX_LEVELS = 8 };

struct cla_segment {
  cla_range range;  /* first: the address map gives it back. owner: the pool */
  size_t size;      /* sum of its blocks' sizes; a multiple of pool->align */
  size_t nbytes;    /* of the buffer: size - nbytes < align, never read beyond the request */
  unsigned stretch; /* addresses = base + (offset << stretch): 1 leaves a gap after every block, 0 for SVM */
  cl_mem mem;
  void *svm;         /* SVM memory under mem, or NULL */
  uint64_t number;   /* ascending in the order they were made */
  size_t nlive;      /* blocks that are active or held */
  unsigned pins;     /* sub-buffers in use by enqueues */
  bool is_bad;       /* the driver could not back it: give it back as soon as it is free */
  bool is_unwanted;  /* not to be kept: goes as soon as its stream is done with it, unless it is used again first */
  bool is_undecided; /* has become wholly free, and `keep` has not been asked yet */
  cla_block *first;
  cla_segment *prev, *next;
  uint64_t
      *starts[CLA_MAX_LEVELS]; /* a bit for every align bytes: does a block start there; above it, summaries of 64 */
  unsigned nlevels;            /* 0: not split yet, first is the only block */
  cla_sub **subs;              /* hash by offset and size: sub_capacity chains */
  size_t nsubs, sub_capacity, nloose;
  cla_sub *newest;
  cla_sub *loose_first, *loose_last;
};

/* ---- Bins: two-level size classes (TLSF) ---- */

enum {
  CLA_SL_LOG2 = 5, /* 32 second-level classes: rounding up misses at most 1/32 */
  CLA_SL = 1 << CLA_SL_LOG2,
  CLA_FL = 65 - CLA_SL_LOG2, /* first-level classes of a 64-bit number of units */
  CLA_CLASSES = CLA_FL * CLA_SL,
  CLA_FIT_LOOK = 32 /* blocks looked at in the request's own class for the smallest that fits */
};

typedef struct cla_bins {
  uint64_t fl;         /* bit i: sl[i] != 0 */
  uint32_t sl[CLA_FL]; /* bit j: heads[i][j] != NULL */
  cla_block *heads[CLA_FL][CLA_SL];
} cla_bins;

/* The class that holds blocks of this many units; < CLA_CLASSES. Below 32 units one size each, above 32 to a power
 * of two. */
static inline unsigned cla__class_of(size_t units) {
  if (units < CLA_SL) return (unsigned)units;
  unsigned log2 = 63u - (unsigned)__builtin_clzll(units);
  unsigned sl = (unsigned)(units >> (log2 - CLA_SL_LOG2)) & (CLA_SL - 1);
  return (log2 - CLA_SL_LOG2 + 1) * CLA_SL + sl;
}
/* align_log2: log2 of the bytes in a unit. */
void cla__bins_insert(cla_bins *bins, cla_block *b, unsigned align_log2);
void cla__bins_remove(cla_bins *bins, cla_block *b, unsigned align_log2);
/* The smallest block of at least `size` bytes that a bounded look finds: in the request's own class, else in the next
 * classes that have any. Only blocks with freed_at <= done count, and none larger than `most`. NULL: none seen. */
cla_block *cla__bins_fit(const cla_bins *bins, size_t size, size_t most, uint64_t done, unsigned align_log2);
unsigned cla__bins_next(const cla_bins *bins,
                        unsigned class); /* the first from `class` on with blocks, or CLA_CLASSES */
cla_block *cla__bins_largest(const cla_bins *bins, uint64_t done); /* of the highest class that has one done */

/* ---- Owners: a stream's share of a pool ---- */

enum {
  CLA_QUICK_SLOTS_LOG2 = 6,
  CLA_QUICK_SLOTS = 1 << CLA_QUICK_SLOTS_LOG2, /* sizes remembered; direct-mapped */
  CLA_QUICK_MAX = 16,                          /* blocks a size */
  CLA_QUICK_LARGEST = 1 << 20 /* larger ones merge at once: there the cut costs little beside the use */
};

typedef struct cla_quick {
  size_t size;
  uint32_t count;
  cla_block *head;
} cla_quick;

/* A stream in one pool. The pool's `nobody` owner has no stream: its free blocks are complete, anyone's. */
struct cla_owner {
  cla_pool *pool;
  cla_stream *stream; /* held; NULL: nobody */
  cla_owner *next;    /* in the pool's list */
  size_t nrefs;       /* blocks of any state that it owns, and uses recorded on its stream */
  size_t nquick;      /* blocks in quick lists */
  cla_bins parts;     /* free blocks beside live ones */
  cla_bins wholes;    /* free blocks that are whole segments: used last, given back first */
  cla_quick quick[CLA_QUICK_SLOTS];
  /* Blocks held for this stream (owned by others), by ascending number. */
  cla_block *held_first, *held_last;
};

/* ---- The pool ---- */

typedef struct cla_slab cla_slab;

typedef struct cla_table { /* start address -> block, free ones too; open addressing */
  cla_block **places;
  size_t count, capacity;
} cla_table;

/* reserved == active + cached + held, in bytes of blocks; + growing = what counts against the limit. Of the
 * statistics, `frees`, `cached_*` and `largest_free` are not kept but follow from the others (cla__pool_totals). */
struct cla_pool {
  cla_lock lock;
  cla_pool *recycled; /* in the list of closed pools; guarded by that list's lock */
  atomic_int users;   /* handles of a pool that is no device's default; the last to go closes it */
  atomic_int refs;    /* of the struct: one for all users, one a pin, one of what closing left behind */
  bool is_closed;
  bool is_default;    /* the device's own: its reference to the device is not counted */
  cla_device *device; /* retained; stays set when closed until the struct is recycled */
  cla_policy policy;  /* its name is `name` */
  char name[64];
  cla_decisions decisions;
  bool is_plain;   /* free blocks are chosen and cut without asking anybody */
  bool has_quick;  /* and kept in quick lists */
  bool is_watched; /* admit and note are called */
  cla_memo *memo;  /* of the rounding function, or NULL */
  size_t align, limit;
  unsigned align_log2;
  size_t round_most; /* requests of 1 byte to this many are rounded up to `align`; 0: all go the long way */
  unsigned flags;
  size_t growing;      /* bytes of segments being made by threads outside the lock */
  uint64_t generation; /* last one given; ascends, distinct across pools */
  uint64_t segment_number;
  uint64_t cuts; /* blocks taken out of the bins: with other counts, tells whether the pool is as it was */
  cla_stats stats;
  cla_ring *ring;        /* events are noted while it has no `blocks`; NULL: nothing was ever recorded. See tracing.h */
  cla_segment *segments; /* in the order made, newest first */
  cla_segment *named;    /* that a policy has named last; maybe gone since */
  cla_owner *owners;     /* all, nobody included */
  cla_owner *nobody;
  unsigned ncalls;          /* commands being enqueued: a closed pool's memory goes when the last of them is out */
  struct wreck *wreck;      /* closed: what that one lets go */
  cla_mapping *left_maps;   /* of cla_map, when their allocations go with the pool: it ends them */
  cla_owner *closed_owners; /* of a closed pool, without their streams: freed with the last reference */
  cla_owner **by_slot;      /* stream->slot -> owner */
  size_t nslots;
  size_t nstreams;                        /* owners but nobody */
  size_t nspoiled, nunwanted, nundecided; /* segments that are bad, not to be kept, not asked about */
  size_t chores; /* their sum, and 1 for a policy that keeps nothing: 0 says that a free leaves nothing to do */
  cla_table blocks;
  uint32_t live_of_class[CLA_CLASSES]; /* live allocations, for sizing segments */
  cla_block *spare_blocks;             /* descriptors */
  cla_segment *spare_segments;
  cla_slab *slabs; /* where descriptors come from */
};

/* ---- block.c: descriptors, splitting, merging, lookup ---- */

cla_block *cla__block_new(cla_pool *p); /* NULL: no host memory */
void cla__block_drop(cla_pool *p, cla_block *b);
cla_segment *cla__segment_new(cla_pool *p);
void cla__segment_drop(cla_pool *p, cla_segment *g); /* frees its tables; the descriptor is kept */
/* Cuts b down to `size`; the rest becomes a block of the same owner and freed_at, in no list. NULL: no host memory. */
cla_block *cla__block_split(cla_pool *p, cla_block *b, size_t size);
void cla__block_join(cla_pool *p, cla_block *b); /* joins b with the block after it, which disappears */
cla_block *cla__block_at(const cla_pool *p, const cla_segment *g, size_t offset); /* the block that covers it */

cla_status cla__table_room(cla_table *t); /* room for one more */
void cla__table_add(cla_table *t, cla_block *b);
void cla__table_remove(cla_table *t, const cla_block *b);

static inline void *cla__block_address(const cla_block *b) {
  return (void *)(b->segment->range.base + (b->offset << b->segment->stretch)); /* NOLINT: never read through */
}
static inline size_t cla__table_home(const cla_table *t, uintptr_t address) {
  return (size_t)((uint64_t)(address >> 4) * 0x9E3779B97F4A7C15u >> 20) & (t->capacity - 1);
}
static inline cla_block *cla__table_find(const cla_table *t, uintptr_t address) {
  if (!t->capacity) return NULL;
  for (size_t i = cla__table_home(t, address);; i = (i + 1) & (t->capacity - 1)) {
    cla_block *b = t->places[i];
    if (!b || (uintptr_t)cla__block_address(b) == address) return b;
  }
}
static inline bool cla__is_whole(const cla_block *b) { return b->size == b->segment->size; }

/* ---- owner.c: free blocks of a stream ---- */

cla_status cla__owner_make(cla_pool *p, cla_stream *s, cla_owner **out);
static inline cla_status cla__owner_of(cla_pool *p, cla_stream *s, cla_owner **out) { /* made on first use */
  if (s->slot < p->nslots && (*out = p->by_slot[s->slot]) != NULL) return CLA_OK;
  return cla__owner_make(p, s, out);
}
cla_owner *cla__owner_new(cla_pool *p, cla_stream *s);
/* Owners of closed streams whose commands are done: free blocks go to nobody, and the owner, once nothing refers to it,
 * is unlinked and chained by `next`; cla__owners_release ends them without the lock. */
void cla__owners_reap(cla_pool *p, cla_owner **chain);
void cla__owners_release(cla_owner *chain);

void cla__owner_bin(cla_owner *o, cla_block *b); /* merges with free neighbours, then into the bins */
void cla__owner_unbin(cla_block *b);             /* out of its owner's bins */
static inline cla_quick *cla__quick_slot(cla_owner *o, size_t units) {
  return &o->quick[(uint64_t)units * 0x9E3779B97F4A7C15u >> (64 - CLA_QUICK_SLOTS_LOG2)];
}
static inline cla_block *cla__owner_quick(cla_owner *o, size_t size) { /* a block of exactly this size, or NULL */
  cla_quick *q = cla__quick_slot(o, size >> o->pool->align_log2);
  if (q->size != size || !q->head) return NULL;
  cla_block *b = q->head;
  q->head = b->after;
  q->count--;
  o->nquick--;
  return b;
}
/* A block that has just become free: into the quick lists, or the bins. */
static inline void cla__owner_put(cla_owner *o, cla_block *b) {
  if (b->size <= CLA_QUICK_LARGEST && o->pool->has_quick) {
    cla_quick *q = cla__quick_slot(o, b->size >> o->pool->align_log2);
    if (!q->count) q->size = b->size;
    if (q->size == b->size && q->count < CLA_QUICK_MAX) {
      b->state = CLA_QUICK;
      b->after = q->head;
      q->head = b;
      q->count++;
      o->nquick++;
      return;
    }
  }
  cla__owner_bin(o, b);
}
void cla__owner_flush(cla_owner *o);               /* quick lists into the bins */
void cla__pool_flush(cla_pool *p);                 /* of all owners */
void cla__block_give(cla_block *b, cla_owner *to); /* changes the owner of a block that is in no list */
uint64_t cla__owner_done(const cla_owner *o);      /* freed_at up to here means: anyone may use it */

/* Held blocks wait in the owner of the stream that still uses them, by ascending number. */
void cla__owner_hold(cla_owner *o, cla_block *b, uint64_t number);
void cla__owner_unhold(cla_owner *o, cla_block *b);

/* ---- segment.c: memory from and to the driver ---- */

/* A segment for `o`; the caller holds the lock, which is dropped meanwhile. CLA_OK: its one block is in o's bins. */
cla_status cla__segment_make(cla_pool *p, cla_owner *o, size_t size);
/* Takes a wholly free segment out of the pool, and chains it by `next`. */
void cla__segment_unlink(cla_pool *p, cla_segment *g, cla_segment **chain);
/* Every block of the segment becomes one free block again, whatever it was: nobody's, in no statistics. */
void cla__segment_clear(cla_pool *p, cla_segment *g);
/* Gives a chain back to the driver. Called without the lock, which it takes to recycle the descriptors: so the pool may be
 * closed, or be another one by now, on another device than the segments'. */
void cla__segments_release(cla_pool *p, cla_device *d, cla_segment *chain);
/* Largest wholly free segment that nothing queued uses any more, or NULL. */
cla_segment *cla__segment_releasable(cla_pool *p);

/* ---- subs.c: sub-buffers ---- */

/* A cl_mem for [offset, offset + size) of the segment, inside block b: the whole buffer, a cached sub-buffer or a new one, with
 * a pin that the caller gives back (*sub is NULL for the whole buffer). The caller holds the lock, which is dropped while the
 * driver is called, and has pinned block and segment. */
cla_status cla__sub_get(cla_pool *p, cla_block *b, size_t offset, size_t size, cla_sub **sub, cl_mem *out);
void cla__sub_loosen(cla_block *b);          /* b is freed: its own sub-buffer is nobody's now */
cla_sub *cla__subs_take_all(cla_segment *g); /* chained, newest first; the segment is in no pool any more */
void cla__subs_release(const cla_driver *driver, cla_sub *chain);

/* ---- policy.c: the decisions in C ---- */

/* Block size for a request: never 0, never wraps, never beyond max_alloc for a legal request. The long way may ask a
 * function: the lock is dropped meanwhile. */
cla_status cla__policy_round_edge(cla_pool *p, size_t nbytes, size_t *out);
static inline cla_status cla__policy_round(cla_pool *p, size_t nbytes, size_t *out) {
  if (nbytes - 1 >= p->round_most) return cla__policy_round_edge(p, nbytes, out);
  *out = (nbytes + p->align - 1) & ~(p->align - 1);
  return CLA_OK;
}
/* Sizes for a new segment that must hold `size`: what is needed, and what is wanted. */
void cla__policy_grow(const cla_pool *p, size_t size, size_t *need, size_t *want);
/* What a program that has the device to itself takes at once when nine tenths of the limit are reserved: the rest;
 * otherwise 0. */
size_t cla__policy_tail(const cla_pool *p);
size_t cla__policy_most(const cla_pool *p); /* bytes of the largest segment */
bool cla__policy_may_split(const cla_pool *p, const cla_block *b, size_t size);
size_t cla__policy_largest_for(const cla_pool *p, size_t size); /* no block above this goes to such a request */

/* ---- ask.c: the decisions of others ---- */

/* Sizes that a rounding function has fixed: direct-mapped by request. */
enum { CLA_MEMO_SLOTS_LOG2 = 10 };
struct cla_memo {
  struct {
    size_t nbytes, size; /* size 0: free */
  } slots[1 << CLA_MEMO_SLOTS_LOG2];
};

/* All hold the lock before and after, drop it while they ask, and fail with CLA_E_CLOSED when the pool was closed
 * meanwhile: then no block of before may be touched. */
cla_status cla__ask_round(cla_pool *p, size_t nbytes, size_t otherwise, size_t *out);
cla_status cla__ask_fit(cla_pool *p, const cla_request *r, const cla_candidate *candidates, size_t n, cla_fit *answer);
cla_status cla__ask_split(cla_pool *p, const cla_request *r, const cla_candidate *block, size_t *size);
cla_status cla__ask_grow(cla_pool *p, const cla_request *r, size_t refused, size_t *nbytes);
cla_status cla__ask_oom(cla_pool *p, const cla_request *r, unsigned times, bool *again);
cla_status cla__ask_admit(cla_pool *p, const cla_request *r);
void cla__ask_keep(cla_pool *p); /* about every segment that is undecided; no failure: what is closed has none */
/* Without the lock. */
cla_status cla__tell(cla_pool *p, const cla_note *note);
bool cla__is_asking(const cla_pool *p); /* one of its decisions is being made on this thread */
cla_request cla__request(const cla_pool *p, size_t nbytes, size_t size, const cla_owner *o);

/* ---- choose.c: which free block, and how it is cut ---- */

/* Two that are equal: nobody has allocated, freed, cut, got or given back in between, nor has a stream gone on. */
typedef struct cla_moment {
  uint64_t counts[7], completed;
} cla_moment;
cla_moment cla__now(const cla_pool *p);
bool cla__is_now(const cla_pool *p, const cla_moment *m);

/* A block for `o` in *out, or NULL there: none is free. Holds the lock before and after, dropping it to ask. */
cla_status cla__choose(cla_pool *p, cla_owner *o, size_t nbytes, size_t size, cla_block **out);
/* The same from a segment just made, which is there for this request. */
cla_status cla__choose_fresh(cla_pool *p, cla_owner *o, size_t nbytes, size_t size, cla_block **out);
/* For policies that ask nobody: the best of o's own free blocks, or NULL; then cut, for `o`. */
cla_block *cla__choose_own(cla_pool *p, cla_owner *o, size_t size);
cla_block *cla__choose_of(cla_pool *p, const cla_owner *o, size_t size, uint64_t done);
cla_block *cla__take(cla_pool *p, cla_owner *o, cla_block *b, size_t size);
/* Cuts a block of any owner as the policy says. It is taken out of its lists first, so nobody else gets it meanwhile. */
cla_status cla__cut(cla_pool *p, cla_owner *o, size_t nbytes, cla_block *b, size_t size, cla_block **out);

/* ---- alloc.c, free.c: allocation and free ---- */

/* What one allocation is, for holders that outlive it: stale for ever once generation differs. */
typedef struct cla_handle {
  cla_pool *pool;
  cla_block *block;
  uint64_t generation;
} cla_handle;

/* A scripting layer's part in running out of memory; called on the allocating thread without locks. Returns whether
 * anything may have been freed. */
typedef enum cla_stage { CLA_STAGE_COLLECT, CLA_STAGE_OOM } cla_stage;
typedef bool (*cla_reclaim)(void *arg, cla_stage stage, size_t nbytes);

cla_status cla__pool_alloc(cla_pool *p, size_t nbytes, cla_stream *s, cla_reclaim reclaim, void *arg, cla_handle *out,
                           void **address);
cla_status cla__pool_free(const cla_handle *h);
cla_status cla__pool_free_silently(const cla_handle *h); /* the policy's `note` is not called */
cla_note cla__note_of(cla_happening what, const cla_handle *h);
cla_status cla__handle_of(const void *address, cla_handle *out, size_t *offset); /* any interior address */
cla_status cla__handle_check(const cla_handle *h); /* CLA_OK, CLA_E_FREED or CLA_E_CLOSED */
cla_status cla__handle_check_locked(const cla_handle *h);
cla_status cla__handle_record(const cla_handle *h, cla_stream *s);
static inline cla_status cla__pool_live(const cla_pool *p) { /* locked by the caller: CLA_OK or CLA_E_CLOSED */
  return p->is_closed ? cla__error(CLA_E_CLOSED, "the pool is closed") : CLA_OK;
}
/* Blocks whose recorded streams are done go back to their owners. Asks the driver, without the lock. */
void cla__pool_poll(cla_pool *p);
/* Moves what is complete to `nobody`, and merges across streams. Holds the lock; asks nobody. */
void cla__pool_consolidate(cla_pool *p);
void cla__pool_settle(cla_pool *p, cla_block *b); /* a held block in no list: waits on, or goes back to its owner */
cla_status cla__pool_record(cla_pool *p, cla_block *b, cla_stream *s, uint64_t number); /* use on s; holds the lock */
void cla__segment_spoil(cla_pool *p, cla_segment *g); /* the driver could not back it */
/* Chains what must not be kept: spoiled segments, unwanted ones, free ones of a policy that keeps nothing. */
void cla__pool_sweep(cla_pool *p, cla_segment **chain);
void cla__segment_decided(cla_pool *p, cla_segment *g, bool is_unwanted); /* or in use again: then wanted */
size_t cla__pool_default_limit(const cla_pool *p);
void cla__pool_unref(cla_pool *p);           /* the struct's reference, as opposed to a user's */
void cla__pool_wait_streams(cla_pool *p);    /* those that are not behind a gate of this thread's */
cla_status cla__pool_lock_live(cla_pool *p); /* CLA_OK: the lock is held */
/* A malloc'ed copy of what cla_pool_snapshot shows, never NULL; holds the lock. */
cla_status cla__pool_copy_blocks(cla_pool *p, cla_block_info **out, size_t *count);
uint64_t cla__pool_largest(cla_pool *p); /* bytes of the largest free block; holds the lock */
cla_stats cla__pool_totals(cla_pool *p); /* the statistics, complete; holds the lock */
#ifdef CLA_DEBUG
void cla__debug_check(
    cla_pool *p); /* aborts on a contradiction: after every slow allocation and trim of a debug build */
#else
static inline void cla__debug_check(cla_pool *p) { (void)p; }
#endif

/* ---- transfer.c: commands on allocations ---- */

/* One allocation taking part in a command: memory that cannot go away before the enqueue returned. */
typedef struct cla_pin {
  cla_handle handle;
  cla_sub *sub; /* pinned too; NULL: mem is the segment's */
  cl_mem mem;
  size_t offset; /* to add in the command */
  bool is_call;  /* of a command being enqueued; a map that stands is none */
} cla_pin;

/* [offset, offset + nbytes) of the allocation. `for_kernel`: mem begins at the offset exactly, or the call is refused
 * with the alignment named. */
cla_status cla__pin(const cla_handle *h, size_t offset, size_t nbytes, bool for_kernel, cla_pin *out);
/* After the enqueue: the use is recorded (number 0: it was not enqueued). */
void cla__unpin(const cla_pin *pin, cla_stream *s, uint64_t number);
/* The error of an enqueue that failed; a segment that the driver cannot back is not used any more. */
cla_status cla__enqueue_failed(const cla_pin *pin, cla_call call, cl_int code);

enum { CLA_MOST_WAITS = 64 };

/* How a command is to be enqueued. */
typedef struct cla_order {
  cla_stream *stream;
  bool blocking;
  cl_uint nwait; /* at most CLA_MOST_WAITS */
  const cl_event *wait;
  cla_device *wait_device; /* whose events these are; NULL: the stream's */
  cl_event *out;           /* or NULL */
} cla_order;

cla_status cla__write(const cla_handle *h, size_t offset, const void *from, size_t nbytes, const cla_order *o);
cla_status cla__read(const cla_handle *h, size_t offset, void *to, size_t nbytes, const cla_order *o);
cla_status cla__fill(const cla_handle *h, size_t offset, const void *pattern, size_t pattern_size, size_t nbytes,
                     const cla_order *o);
/* The stream is of either device. */
cla_status cla__copy(const cla_handle *dst, size_t dst_offset, const cla_handle *src, size_t src_offset, size_t nbytes,
                     const cla_order *o);

struct cla_mapping {
  cla_mapping *next; /* of the same block, newest first */
  void *host;
  size_t offset, nbytes; /* in the allocation */
  cla_pin pin;
  cla_stream *stream; /* held; the unmap goes there */
  bool is_by_address; /* of cla_map: in nobody's hands but the block's */
};
cla_status cla__map(const cla_handle *h, size_t offset, size_t nbytes, unsigned flags, cla_stream *s,
                    cla_mapping **out);
cla_status cla__unmap(const cla_handle *h, cla_mapping *m);
/* Out of its block's list; its unmap is under way from now on. With the lock. */
void cla__mapping_unlist(cla_pool *p, cla_mapping **link);
/* Takes the newest map of cla_map that begins at this address, also of an allocation freed since; NULL: none. */
cla_mapping *cla__mapping_take(const void *address);
/* The pool is closed, its memory not released yet. */
void cla__maps_end(cla_mapping *left);

/* Between them the pool may be closed, and keeps its memory. The first with the lock, the second without; `number` of the
 * stream's commands (0: none) use the memory. */
void cla__call_begin(cla_pool *p);
void cla__call_end(cla_pool *p, cla_stream *s, uint64_t number);

#endif
