/* What the allocators stand on: errors, the address map, devices, streams as timelines, gates.
 *
 * Lock order: a device's subs_lock, a pool's lock, then a stream's lock, then the address map's or a device's; no lock is
 * held while a driver is called, nor while code of a user runs. */
#ifndef CLA_RUNTIME_H
#define CLA_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>

#include "clalloc.h"
#include "driver/driver.h"

/* ---- error.c ---- */

/* Leaves the message for cla_last_error() and gives the status. A macro, so that whoever reads the caller, an analyser too,
 * sees which status comes back. */
void cla__note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline cla_status cla__same(cla_status status) { return status; } /* may be ignored */
#define cla__error(status, ...) (cla__note(__VA_ARGS__), cla__same(status))

const char *cla__cl_name(cl_int code); /* "CL_OUT_OF_RESOURCES" */
bool cla__is_out_of_memory(cl_int code);
/* "create_buffer failed: CL_OUT_OF_RESOURCES (-5)"; the status tells a lack of memory from other failures. */
void cla__note_driver(cla_call call, cl_int code);
static inline cla_status cla__driver_error(cla_call call, cl_int code) {
  cla__note_driver(call, code);
  if (cla__driver_forbidden()) return CLA_E_FORKED;
  return cla__is_out_of_memory(code) ? CLA_E_NOMEM : CLA_E_DRIVER;
}

/* A failure that was mended leaves no trace: keep the message before trying, put it back afterwards. */
typedef struct cla_error_memo {
  char text[1024];
} cla_error_memo;
void cla__error_keep(cla_error_memo *memo);
void cla__error_restore(const cla_error_memo *memo);

/* CLA_OK, or CLA_E_FORKED with its message: the first line of every public function. */
cla_status cla__forked(void);
static inline cla_status cla__alive(void) { return cla__driver_forbidden() ? cla__forked() : CLA_OK; }

/* ---- address_map.c ---- */

/* A range of addresses and what it belongs to. Ranges are type-stable: a struct that was once in the map stays
 * a cla_range of the same owner for ever, so that a lookup may race with its removal; whoever found it takes the
 * owner's lock and asks cla__range_holds again. */
typedef struct cla_range {
  uintptr_t base;      /* 0: not in the map */
  size_t span;         /* addresses covered */
  void *owner;         /* the pool, or the pinned block; never changes */
  bool is_host_memory; /* SVM or pinned: not cut from the reservation */
  /* How use by a stream is recorded where the owner is no pool; NULL: it is one. Never changes. */
  cla_status (*record)(const void *address, cla_stream *s);
} cla_range;

cla_status cla__map_reserve(cla_range *r, size_t span);            /* chooses base; base is a multiple of 64 KiB */
cla_status cla__map_insert(cla_range *r, void *base, size_t span); /* memory that has an address already */
void cla__map_remove(cla_range *r);
cla_range *cla__map_find(const void *address); /* NULL: nobody's */
bool cla__map_was_issued(const void *address); /* in the part of the reservation handed out so far */

static inline bool cla__range_holds(const cla_range *r, const void *address) {
  return r->base != 0 && (uintptr_t)address - r->base < r->span;
}

/* ---- device.c ---- */

struct cla_device {
  atomic_int refs;
  const cla_driver *driver;
  cl_platform_id platform;
  cl_device_id id;
  cl_context context;
  cla_device_info info;
  bool is_manual;            /* simulated: its commands run only when told to, or when something waits for them */
  cla_stream *stream;        /* the default stream; its reference to the device is not counted */
  cla_stream *service;       /* the library's own queue: backing of segments, maps; likewise */
  bool subs_are_ordered;     /* sub-buffers that overlap must be released newest first: see pool/subs.c */
  pthread_mutex_t subs_lock; /* see there too */
  pthread_mutex_t lock;
  cla_pool *pool;                  /* the default pool, or NULL; guarded by lock; likewise not counted */
  void (*pool_closer)(cla_pool *); /* how to let go of it: pools live above this layer */
  cla_host *host;                  /* the default pinned cache, likewise */
  void (*host_closer)(cla_host *);
  cla_heap *heap; /* what kernels allocate from, likewise */
  void (*heap_closer)(cla_heap *);
};

/* cla_current, but for device d's sake when it is not NULL: a guard counts only if it is d's, else d's default
 * stream. */
cla_status cla__current_for(cla_device *d, cla_device **device, cla_stream **stream);

/* ---- stream.c ---- */

enum {
  CLA_MAX_MARKERS = 64 /* markers outstanding a stream: later ones wait, so events stay bounded behind a stuck queue */
};

/* Every command numbered at most `number` is complete when the event is. Counted, because one thread may ask the
 * driver about a marker that another retires. */
typedef struct cla_marker {
  atomic_int refs;
  uint64_t number;
  cl_event event;
} cla_marker;

/* Work for the moment when a number is complete. Runs without locks, on the thread that noticed. */
typedef struct cla_deferred {
  struct cla_deferred *next;
  uint64_t number;
  void (*run)(void *arg);
  void *arg;
} cla_deferred;

typedef struct cla_gate_wait {
  cla_gate *gate;  /* retained */
  uint64_t number; /* the first command held by it */
} cla_gate_wait;

/* completed <= submitted. A command is in the queue before its number is given out, so a marker enqueued after
 * reading `submitted` covers that number, whatever other threads do. */
struct cla_stream {
  atomic_int refs;      /* all holders, pools included */
  atomic_int user_refs; /* handles outside the library; 0: closed, pools let go when its commands are done */
  cla_device *device;   /* retained while user_refs > 0: pools that hold on longer hold the device or end with it */
  cl_command_queue queue;
  uint64_t id; /* 1 is the first stream of a device; never reused */
  size_t slot; /* small index for tables; reused after the last reference is gone */
  bool is_own; /* one of the device's own two */
  atomic_uint_fast64_t submitted, completed;
  atomic_uint_fast64_t wanted; /* a number somebody waits for: the next command is preceded by a marker */
  atomic_size_t deferred_count;
  pthread_mutex_t lock;                 /* guards the rest */
  cla_marker *markers[CLA_MAX_MARKERS]; /* a ring, by ascending number */
  size_t first_marker, marker_count;
  bool is_marking; /* a thread is enqueuing a marker */
  cla_deferred *deferred;
  cla_gate_wait *gates;
  size_t gate_count, gate_capacity;
};

/* Around every enqueue of the library's: before() places the marker that somebody wants, after() gives the number. */
void cla__stream_before(cla_stream *s);
uint64_t cla__stream_after(cla_stream *s);

static inline uint64_t cla__stream_submitted(cla_stream *s) {
  return atomic_load_explicit(&s->submitted, memory_order_acquire);
}
/* Known complete; asks nobody. */
static inline bool cla__stream_done(cla_stream *s, uint64_t number) {
  return number <= atomic_load_explicit(&s->completed, memory_order_acquire);
}
/* Asks that `number` be found out: marks it wanted, so that the marker comes before the next command. */
static inline void cla__stream_want(cla_stream *s, uint64_t number) {
  if (number > atomic_load_explicit(&s->wanted, memory_order_relaxed))
    atomic_store_explicit(&s->wanted, number, memory_order_relaxed);
}
/* Asks the driver about the oldest markers, placing one for `number` if none covers it; one status query a marker
 * that is complete, plus one. Returns whether `number` is complete. 0 asks for no new marker. */
bool cla__stream_poll(cla_stream *s, uint64_t number);
void cla__stream_reached(cla_stream *s, uint64_t number); /* something else showed that it is complete */
/* Waits until `number` is complete. CLA_E_BUSY when a gate of this thread's holds it. */
cla_status cla__stream_wait(cla_stream *s, uint64_t number);
/* Makes later commands of `s` wait for `number` of `other`; same device. */
cla_status cla__stream_order_after(cla_stream *s, cla_stream *other, uint64_t number);
/* Runs `run(arg)` when `number` is complete, at the latest when the stream ends: so nothing that waits there may keep the
 * device, which ends its streams. */
cla_status cla__stream_defer(cla_stream *s, uint64_t number, void (*run)(void *), void *arg);
static inline cla_status cla__stream_busy(const cla_stream *s) { /* the error where a wait would hang */
  return cla__error(CLA_E_BUSY, "stream %llu waits for a gate that this thread has not opened",
                    (unsigned long long)s->id);
}
bool cla__stream_would_hang(cla_stream *s, uint64_t number); /* behind a gate that only this thread opens */
/* Notes that the next command of `s` waits for what `other` has up to `number`: gates are inherited. */
void cla__stream_inherit_gates(cla_stream *s, cla_stream *other, uint64_t number);
void cla__stream_note_gate(cla_stream *s, cla_gate *gate);
cla_status cla__stream_create(cla_device *d, bool is_own, cla_stream **out);
void cla__stream_hold(cla_stream *s); /* a pool's reference */
void cla__stream_unhold(cla_stream *s);
static inline bool cla__stream_closed(cla_stream *s) {
  return atomic_load_explicit(&s->user_refs, memory_order_acquire) == 0;
}
void cla__stream_end_own(cla_stream *s); /* the device's own stream, when the device ends */

/* ---- gate.c ---- */

struct cla_gate {
  atomic_int refs;    /* the user's handle and the streams that noted it */
  cla_device *device; /* retained by the handle, not by the notes: valid while not open */
  cl_event event;     /* likewise */
  atomic_bool is_open;
  atomic_bool is_exclusive; /* only `thread` opens it */
  pthread_t thread;         /* that made it */
};
void cla__gate_hold(cla_gate *g);
void cla__gate_unhold(cla_gate *g);

#endif
