/* clalloc: a caching device allocator for OpenCL.
 *
 * This header is the manual of the C core, in the order create, use, inspect, debug.
 *
 * - A device address is a `void *` that stands for OpenCL memory. Adding an offset gives an address
 *   inside the same allocation; reading through it on the host faults at once. Only pools made with
 *   CLA_POOL_SVM give addresses that the host may dereference (after mapping, as OpenCL says).
 * - Sizes and offsets are bytes. Zero bytes is a valid allocation with an address of its own.
 * - Functions return CLA_OK or a negative cla_status and leave a message in cla_last_error(), which
 *   belongs to the calling thread. A call that fails changes nothing.
 * - Every function may be called from any thread. In a forked child every function returns
 *   CLA_E_FORKED: the driver's threads and mappings stay with the parent.
 * - Out-pointers are written only on success. */
#ifndef CLALLOC_H
#define CLALLOC_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
#include <CL/cl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CLA_STATIC: the core is part of a module that shows none of it. */
#ifdef CLA_STATIC
#define CLA_API __attribute__((visibility("hidden")))
#else
#define CLA_API __attribute__((visibility("default")))
#endif

typedef enum cla_status {
  CLA_OK = 0,
  CLA_E_INVALID = -1,     /* an argument is out of range; the message names it */
  CLA_E_FOREIGN = -2,     /* the address was never issued by this library */
  CLA_E_FREED = -3,       /* the address or handle was issued and has been freed */
  CLA_E_BOUNDS = -4,      /* offset and length reach outside the allocation */
  CLA_E_NOMEM = -5,       /* the device or the host has no memory left */
  CLA_E_LIMIT = -6,       /* the pool's byte limit is reached */
  CLA_E_TOO_LARGE = -7,   /* more than the device gives in one allocation */
  CLA_E_NO_DEVICE = -8,   /* no OpenCL device, or none that the selector names */
  CLA_E_DRIVER = -9,      /* an OpenCL call failed; the message has its name and code */
  CLA_E_CLOSED = -10,     /* the object has been closed */
  CLA_E_FORKED = -11,     /* called in a forked child */
  CLA_E_BUSY = -12,       /* in use, or would wait for a gate that only this thread can open */
  CLA_E_UNSUPPORTED = -13 /* the device has no such capability */
} cla_status;

typedef struct cla_device cla_device; /* an OpenCL device with its context, default stream and default pool */
typedef struct cla_stream cla_stream; /* an in-order queue and its timeline */
typedef struct cla_pool cla_pool;     /* a caching allocator over one device */
typedef struct cla_gate cla_gate;     /* an event that the host opens: holds streams still in tests */

/* ---- Create ---- */

/* Devices of all platforms, in the ICD loader's order; platforms that are empty or broken are skipped. */
CLA_API cla_status cla_device_count(size_t *out);

/* Selector: an index ("0"), a type ("gpu", "cpu", "accelerator"), or a part of the device's or platform's
 * name, ignoring case. NULL: $CLALLOC_DEVICE when set, else the first GPU, else the first CPU, else the
 * first. The same device is one object for all callers; each open is matched by a release. */
CLA_API cla_status cla_device_open(const char *selector, cla_device **out);
CLA_API cla_status cla_device_open_index(size_t index, cla_device **out);
CLA_API void cla_device_retain(cla_device *);
CLA_API void cla_device_release(cla_device *);

/* A device with a capacity and no memory, for sizes and races no real machine has. */
typedef struct cla_simulation {
  uint64_t capacity;     /* bytes */
  uint64_t max_alloc;    /* most bytes in one buffer; 0: the capacity */
  uint32_t align_bytes;  /* sub-buffer alignment; 0: 512 */
  bool lazy;             /* buffers take memory at first use, as NVIDIA's driver does */
  bool manual;           /* commands complete by cla_simulate_complete, or when something waits for them */
  bool accepts_oversize; /* the driver itself does not check max_alloc */
  uint64_t refuse_above; /* creation fails above this size, although max_alloc allows it; 0: never */
  bool ordered_subs;     /* sub-buffers that overlap must be released newest first, as for NVIDIA's driver */
} cla_simulation;
CLA_API cla_status cla_simulate(const cla_simulation *, cla_device **out);
CLA_API cla_status cla_simulate_complete(cla_stream *, uint64_t ncommands, uint64_t *completed);

CLA_API cla_status cla_stream_create(cla_device *, cla_stream **out);
/* An in-order queue of yours, of this device's context (cla_device_context); it is retained. After your own
 * enqueues call cla_stream_submitted, so that the timeline knows of them. */
CLA_API cla_status cla_stream_wrap(cla_device *, cl_command_queue, cla_stream **out);
CLA_API cla_status cla_stream_submitted(cla_stream *);
CLA_API void cla_stream_retain(cla_stream *);
/* Pools keep what they need of a released stream until its commands are complete. */
CLA_API void cla_stream_release(cla_stream *);

/* ---- Policies: a set of decisions ----
 *
 * round   the block size for a request
 * fit     which free block serves it, and where in it, or that memory is to be got instead
 * split   how much of the block is cut off for it
 * grow    how large a segment is asked of the driver
 * keep    whether a segment that has become wholly free stays with the pool
 * oom     asked last, when nothing else gave memory: free something, raise the limit, and say "again"
 *
 * Each is decided by the parameters of cla_policy, or by a function of cla_decisions where there is one. */

/* What a decision is about; sizes in bytes, all as of the moment before the call. */
typedef struct cla_request {
  cla_pool *pool;   /* borrowed */
  size_t nbytes;    /* asked for; 0 in `keep` */
  size_t size;      /* rounded: a block of at least this size is needed; in `keep`, of the segment; in `admit` nbytes */
  uint64_t segment; /* in `keep`: its number */
  uint64_t stream;  /* id of the stream that asks; 0: none */
  uint64_t active, requested, cached, held, reserved, peak_reserved, limit;
  uint64_t alike; /* live allocations of about this size */
} cla_request;

/* A free block that is large enough. */
typedef struct cla_candidate {
  uint64_t segment;    /* number, ascending in the order they were made */
  size_t segment_size; /* size == segment_size: the whole segment is free */
  size_t offset, size;
  uint64_t stream; /* whose it is; 0: nobody's. Not the one that asks: that stream's commands are done with it */
  uint64_t age;    /* commands given to its stream since it was freed */
} cla_candidate;

typedef enum cla_choice {
  CLA_CHOOSE_DEFAULT, /* as without the function */
  CLA_CHOOSE_BLOCK,   /* the free block that begins at this place; `split` cuts it */
  CLA_CHOOSE_PLACE,   /* exactly here, inside one free block */
  CLA_CHOOSE_MORE,    /* none of these: the next candidates. Without any more: CLA_CHOOSE_GROW */
  CLA_CHOOSE_GROW     /* a new segment */
} cla_choice;
typedef struct cla_fit {
  cla_choice choice;
  uint64_t segment; /* of CLA_CHOOSE_BLOCK and _PLACE */
  size_t offset;
  bool may_miss;        /* a place that is not free is no error, but means `otherwise`: */
  cla_choice otherwise; /* CLA_CHOOSE_DEFAULT or _GROW */
} cla_fit;

/* What happened, for those who count; see `note`. */
typedef enum cla_happening { CLA_NOTE_ALLOC, CLA_NOTE_FREE, CLA_NOTE_FAIL } cla_happening;
typedef struct cla_note {
  cla_happening what;
  void *address; /* NULL: CLA_NOTE_FAIL */
  size_t nbytes, size;
  uint64_t segment; /* number */
  size_t offset;    /* in it */
  uint64_t stream;  /* id */
} cla_note;

/* Functions of a program's own, any of them NULL. They are called without locks on the thread that allocates or frees,
 * with the default answer in place: leaving it there decides nothing. What the pool looked like before the call is
 * checked again after it: an answer that has become impossible meanwhile is asked for again, three times at most, then
 * the default counts. A status other than CLA_OK fails the allocation with the status and message that the function
 * left by cla_decision_error; the pool is as it was before. A function must not allocate from the pool that asks
 * (CLA_E_BUSY); it may free in it, trim it, and close it. */
typedef struct cla_decisions {
  void *arg;
  void (*release)(void *arg); /* the pool is gone, and nothing is called any more */
  /* *is_fixed: requests of nbytes get this size from now on, and the function is not called for them again. */
  cla_status (*round)(void *arg, size_t nbytes, size_t *size, bool *is_fixed);
  /* Best first: the stream's own, smallest and lowest first, then those of others; policy.look of them at a time. */
  cla_status (*fit)(void *arg, const cla_request *, const cla_candidate *, size_t ncandidates, cla_fit *answer);
  cla_status (*split)(void *arg, const cla_request *, const cla_candidate *block, size_t *size);
  /* `refused`: bytes that the driver or the limit has just refused, or 0. Answers above what the device gives in one
   * allocation mean that. After a refusal a smaller answer is tried, another one ends the asking. */
  cla_status (*grow)(void *arg, const cla_request *, size_t refused, size_t *nbytes);
  bool (*keep)(void *arg, const cla_request *);
  cla_status (*oom)(void *arg, const cla_request *, unsigned times_asked, bool *again);
  /* Before an allocation is tried: CLA_E_LIMIT or CLA_E_NOMEM is treated as running out of memory, others fail it. */
  cla_status (*admit)(void *arg, const cla_request *);
  /* After it, after a failure and after a free. CLA_NOTE_ALLOC with a status but CLA_OK undoes the allocation. */
  cla_status (*note)(void *arg, const cla_note *);
} cla_decisions;
/* Leaves a message for cla_last_error() and returns the status. */
CLA_API cla_status cla_decision_error(cla_status, const char *message);
/* A rounding function: up to a power of two. */
CLA_API cla_status cla_round_power_of_two(void *arg, size_t nbytes, size_t *size, bool *is_fixed);

typedef enum cla_keeping {
  CLA_KEEP_PEAK,   /* wholly free segments stay, but go before more is reserved than ever before */
  CLA_KEEP_ALWAYS, /* they stay until memory runs out, or a trim */
  CLA_KEEP_NEVER   /* they go at once */
} cla_keeping;

/* A policy's parameters; bytes unless said otherwise. cla_policy_caching() and cla_policy_direct() fill in the
 * defaults, whose reasons stand in src/pool/policy.c. */
typedef struct cla_policy {
  const char *name; /* shown in messages and statistics; copied, at most 63 characters */
  size_t align;     /* block sizes and offsets are multiples of it, and of the device's own alignment */
  size_t round_to;  /* round: sizes are multiples of it, too; 0: of the alignment alone */
  size_t grain;     /* grow: segments are multiples of it */
  size_t grow_by;   /* grow: a segment has this size, or grains for the request when that is more; 0: the rules below */
  size_t growth_min;   /* a new segment is sized for at least this much ... */
  size_t growth_max;   /* ... and at most this much, from half of what is reserved */
  size_t growth_share; /* 1/share of the reserved bytes, when that is more, up to growth_cap */
  size_t growth_cap;   /* the cap of growth_share */
  size_t max_split;    /* split: blocks above it are neither split nor handed to smaller requests; 0: no limit */
  bool splits;         /* split: false: blocks go out whole */
  bool exact;          /* fit: only a block of exactly the rounded size */
  unsigned look;       /* fit: candidates that a function is shown at a time, 1 to 8; 0: 8 */
  bool exclusive;      /* grow: the program has the device to itself: the last tenth of the limit is one segment */
  bool caches;         /* false: every allocation is its own segment, given back when freed */
  cla_keeping keep;
} cla_policy;
CLA_API cla_policy cla_policy_caching(void);
CLA_API cla_policy cla_policy_direct(void);

enum {
  CLA_POOL_SVM = 1,      /* shared virtual memory: addresses are what kernels see */
  CLA_POOL_NO_COMMIT = 2 /* do not ask the driver to back a segment when it is made */
};
typedef struct cla_pool_options {
  cla_policy policy;
  size_t limit;                   /* most reserved bytes; 0: 7/8 of the device's memory */
  unsigned flags;                 /* CLA_POOL_... */
  const cla_decisions *decisions; /* NULL: none; copied. Released with the pool, not when making it fails */
} cla_pool_options;
CLA_API cla_status cla_pool_create(cla_device *, const cla_policy *, cla_pool **out); /* NULL: cla_policy_caching() */
CLA_API cla_status cla_pool_create_with(cla_device *, const cla_pool_options *, cla_pool **out);
CLA_API void cla_pool_retain(cla_pool *);
/* The last release closes the pool: its allocations are freed, the driver gets the memory when queued commands
 * are done with it. */
CLA_API void cla_pool_release(cla_pool *);
CLA_API void cla_pool_close(cla_pool *); /* now, whoever else holds the pool; they see CLA_E_CLOSED */

CLA_API cla_stream *cla_device_stream(cla_device *);              /* the default stream; borrowed */
CLA_API cla_status cla_device_pool(cla_device *, cla_pool **out); /* the default pool, made on first use; borrowed */

/* ---- Use ---- */

/* NULL pool: the default pool of the stream's device, or of the current device. NULL stream: the current stream when
 * it is on the pool's device, else the default one. The memory belongs to that stream: freed, it is reused there at
 * once, elsewhere when the stream's commands are done. */
CLA_API cla_status cla_alloc(cla_pool *, size_t nbytes, cla_stream *, void **address);
/* Exactly an address that cla_alloc gave; NULL is refused as any foreign address is. */
CLA_API cla_status cla_free(void *address);
CLA_API void cla_deleter(void *address); /* the same in the shape frameworks ask for; NULL is ignored */

/* What an address stands for. */
typedef struct cla_buffer {
  cl_mem mem;          /* the block's segment; NULL only when a pool has none */
  size_t offset;       /* of the address in mem */
  size_t nbytes;       /* from the address to the end of what was requested */
  size_t requested;    /* bytes asked for */
  size_t size;         /* bytes set aside */
  void *address;       /* start of the allocation */
  cla_device *device;  /* borrowed */
  cla_pool *pool;      /* borrowed */
  cla_stream *stream;  /* owner; borrowed */
  uint64_t generation; /* never the same for two allocations of one process */
} cla_buffer;
/* Any address in [start, start + requested), and the start of an empty allocation. */
CLA_API cla_status cla_resolve(const void *address, cla_buffer *out);
CLA_API bool cla_owns(const void *address);
CLA_API bool cla_buffer_valid(const cla_buffer *); /* false for ever once freed, also when the address lives again */

/* Marks use on a stream the library does not see: the memory is not reused before the stream's present commands are
 * done. */
CLA_API cla_status cla_record(const void *address, cla_stream *);
/* A cl_mem for one allocation and the offset of the address in it, for clSetKernelArg. An aligned interior address
 * gives a sub-buffer that begins there, offset 0. Valid until the allocation is freed; retain it to keep it longer. */
CLA_API cla_status cla_buffer_mem(const void *address, cl_mem *out, size_t *offset);

/* Copies real bytes; either side may be a device address or plain host memory. Ranges of one allocation must not
 * overlap. The default stream of the device side, or the current one, when NULL. With `out`, asynchronous: host
 * memory must stay until the event is complete. Without, the copy is done on return. Between devices the bytes pass
 * through host memory. */
CLA_API cla_status cla_copy(void *dst, const void *src, size_t nbytes, cla_stream *, cl_event *out);
/* Fills with a pattern of 1, 2, 4, 8 or 16 bytes; nbytes and the address's offset are multiples of it. */
CLA_API cla_status cla_fill(void *dst, const void *pattern, size_t pattern_size, size_t nbytes, cla_stream *,
                            cl_event *out);

enum { CLA_MAP_READ = 1, CLA_MAP_WRITE = 2, CLA_MAP_DISCARD = 4 };
/* Waits for the stream's earlier commands. While mapped, a freed allocation is kept; it goes back at the last unmap. A map
 * that is left when its pool closes ends there. */
CLA_API cla_status cla_map(void *address, size_t nbytes, unsigned flags, void **host);
CLA_API cla_status cla_unmap(void *address); /* the address given to cla_map; the latest map of it */

CLA_API cla_status cla_stream_finish(cla_stream *);
CLA_API cla_status cla_stream_query(cla_stream *, bool *idle);
CLA_API cla_status cla_stream_wait_event(cla_stream *, cl_event); /* later commands wait for it */
CLA_API cla_status cla_stream_wait_gate(cla_stream *, cla_gate *);

/* Events that this library gave out; a simulated device's are unknown to OpenCL itself. */
CLA_API cla_status cla_event_wait(cla_device *, cl_event);
CLA_API cla_status cla_event_query(cla_device *, cl_event, bool *complete);
CLA_API void cla_event_release(cla_device *, cl_event);

CLA_API cla_status cla_gate_create(cla_device *, cla_gate **out);
CLA_API cla_status cla_gate_open(cla_gate *); /* idempotent */
CLA_API void cla_gate_release(cla_gate *);    /* opens it first */
/* Says that only the calling thread will open the gate: a wait on this thread that could never end is CLA_E_BUSY. */
CLA_API void cla_gate_set_exclusive(cla_gate *, bool);

/* The device (and stream; NULL: its default) that NULL arguments mean on this thread, until left. Guards nest. */
typedef struct cla_guard {
  cla_device *device;
  cla_stream *stream;
  bool active;
} cla_guard;
CLA_API cla_status cla_guard_enter(cla_device *, cla_stream *, cla_guard *saved);
CLA_API void cla_guard_leave(const cla_guard *saved);
CLA_API cla_status cla_current(cla_device **device, cla_stream **stream); /* borrowed */

/* ---- Pinned host memory ---- */

/* A cache of host memory that the device reaches by DMA: pinning costs from 0.03 ms to 40 ms a time, reuse nanoseconds. Blocks
 * are not split. A freed block that no stream was recorded on is reusable at once, another one when the commands that
 * had been submitted to each recorded stream are done; a stream that stands still delays only its own blocks. */
typedef struct cla_host cla_host;

/* What a backend supplies; all called without locks, from any thread. `arg` is handed back. When `allocate` fails with
 * CLA_E_NOMEM, CLA_E_DRIVER or CLA_E_UNSUPPORTED, plain memory takes its place; with another status the request fails. */
typedef struct cla_host_hooks {
  void *arg;
  /* nbytes of memory that nobody else has, 64-byte aligned; `backing` is the backend's own. is_pinned comes as true. */
  cla_status (*allocate)(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned);
  void (*free)(void *arg, void *memory, void *backing, size_t nbytes);
  /* A ticket for what has been submitted; tickets of a stream ascend. 0: there is nothing to wait for. */
  cla_status (*record)(void *arg, cla_stream *, uint64_t *ticket);
  bool (*query)(void *arg, cla_stream *, uint64_t ticket); /* is it done; a failure counts as not yet */
} cla_host_hooks;

typedef enum cla_host_kind {
  CLA_HOST_MAPPED,     /* a CL_MEM_ALLOC_HOST_PTR buffer, kept mapped: the default */
  CLA_HOST_REGISTERED, /* ordinary memory under a CL_MEM_USE_HOST_PTR buffer, kept mapped */
  CLA_HOST_SVM,        /* shared virtual memory, mapped for good */
  CLA_HOST_PLAIN       /* malloc: not pinned, for experiments */
} cla_host_kind;

typedef struct cla_host_options {
  cla_host_kind kind;
  size_t power_of_two_up_to; /* sizes are rounded to powers of two up to here, default 1 MiB ... */
  size_t steps_up_to; /* ... to steps that waste at most 1/8 up to here, default 256 MiB; above to pages of 4 KiB */
  size_t max_cached;  /* most bytes kept free, those of threads included; default a quarter of the machine's memory */
  size_t max_block;   /* a larger block is not kept; default: max_cached */
  bool background;    /* a thread completes pending blocks; default false */
  const cla_host_hooks *hooks; /* NULL: `kind` decides; copied */
} cla_host_options;
CLA_API cla_host_options cla_host_defaults(void);

CLA_API cla_status cla_host_create(cla_device *, const cla_host_options *, cla_host **out); /* NULL: the defaults */
CLA_API cla_status cla_device_host(cla_device *, cla_host **out); /* the default cache, made on first use; borrowed */
/* Closes the cache: what is free goes back now, what is pending when its streams are done, live allocations when they are
 * freed, by whatever thread. Does nothing to a device's own, which goes with its device. */
CLA_API void cla_host_close(cla_host *);

/* `context` is for free and record; it is never an address and is recognised for ever. Zero bytes: a valid allocation. When
 * pinning fails, the block is plain memory, and counted as such. NULL cache: the current device's. */
CLA_API cla_status cla_host_alloc(cla_host *, size_t nbytes, void **memory, void **context);
CLA_API cla_status cla_host_free(void *context);
/* Marks use on a stream of the cache's device. The context, or any address inside the allocation when it is NULL.
 * CLA_E_FOREIGN: not ours. */
CLA_API cla_status cla_host_record(const void *address, void *context, cla_stream *);
CLA_API cla_status cla_host_process_events(cla_host *); /* pending blocks that are done become free */
CLA_API cla_status cla_host_process_events_for_size(cla_host *, size_t nbytes); /* until one of this size is free */
CLA_API cla_status cla_host_trim(cla_host *, size_t *freed);                    /* PyTorch's empty_cache */

typedef struct cla_host_info {
  void *memory;
  size_t requested, size;
  bool is_pinned;
} cla_host_info;
CLA_API cla_status cla_host_resolve(const void *address, cla_host_info *out);

/* reserved_bytes == active_bytes + cached_bytes + pending_bytes. */
typedef struct cla_host_stats {
  uint64_t active_bytes, requested_bytes, cached_bytes, pending_bytes, reserved_bytes, plain_bytes;
  uint64_t active_blocks, cached_blocks, pending_blocks, reserved_blocks, plain_blocks;
  uint64_t allocs, frees, hits;                                  /* requests, frees, requests served from the cache */
  uint64_t driver_allocs, driver_frees;                          /* of the hooks */
  uint64_t alloc_us, free_us, longest_alloc_us, longest_free_us; /* time spent in the hooks */
  uint64_t failed_pins;
  uint64_t peak_active_bytes; /* exact to what threads hold back: at most 1 MiB each */
  uint64_t peak_reserved_bytes, peak_pending_bytes;
  uint64_t classes[64]; /* reserved blocks of 2^i up to 2^(i+1)-1 bytes */
} cla_host_stats;
CLA_API cla_status cla_host_get_stats(cla_host *, cla_host_stats *out);
CLA_API cla_status cla_host_reset_peaks(cla_host *);
CLA_API cla_status cla_host_set_limits(cla_host *, size_t max_cached, size_t max_block);
CLA_API cla_status cla_host_check(cla_host *);

/* ---- Plans: offsets for allocations whose lifetimes are known ---- */

typedef struct cla_lifetime {
  uint64_t lower, upper; /* lives in [lower, upper), in any unit; lower < upper */
  uint64_t nbytes;
} cla_lifetime;
typedef struct cla_plan_options {
  uint64_t align; /* offsets are multiples of it: a power of two; 0: 512 */
  double
      seconds; /* of processor time, to search for a lower plan, when trying orders has not reached the floor; 0: none */
  uint64_t steps; /* the search's steps at most: for a result that does not depend on time; 0: no such bound */
} cla_plan_options;
typedef struct cla_plan_result {
  uint64_t nbytes;        /* the plan's height: every block ends at or below it */
  uint64_t floor;         /* the most bytes live at once, rounded to the alignment: floor <= nbytes */
  uint64_t orders, steps; /* that were tried */
} cla_plan_result;
/* Offsets at which no two blocks that live at once overlap, in time about n * (live at once). NULL options: none set.
 * The plan is verified before it is returned. CLA_E_INVALID: no blocks, one that never lives, an alignment that is none.
 * `result` may be NULL. Needs no device. */
CLA_API cla_status cla_plan(const cla_lifetime *blocks, size_t n, const cla_plan_options *options, uint64_t *offsets,
                            cla_plan_result *result);
/* CLA_OK, or CLA_E_INVALID naming two blocks that live at once and overlap, or one that is misaligned. */
CLA_API cla_status cla_plan_check(const cla_lifetime *blocks, size_t n, uint64_t align, const uint64_t *offsets);

/* ---- Memory that kernels allocate ---- */

/* OpenCL C has no malloc. A device's heap is one buffer, apart from all pools, from which kernels allocate and into which
 * they free, without locks and without waiting for each other. What one kernel allocates another may use and free, until
 * the heap is reset. Nothing is set aside before the first use. */
typedef struct cla_heap cla_heap;
CLA_API cla_status cla_device_heap(cla_device *, cla_heap **out); /* borrowed: it ends with the device */

/* What has to stand before the text of a program whose kernels take a heap: OpenCL C, also installed as clalloc_heap.cl. A
 * kernel has a parameter `CLA_HEAP heap` and calls cla_malloc(heap, nbytes), cla_free(heap, pointer) and their like. */
CLA_API const char *cla_heap_source(void);
CLA_API const char *cla_heap_build_options(const cla_device *); /* to add to the program's: " -..." or "" */

/* The three settings below are fixed from the first use by a kernel or by cla_heap_alloc until cla_heap_reset: CLA_E_BUSY.
 *
 * The limit is how many bytes kernels can have, rounded up to whole pages (512 bytes in a small heap, 1 MiB in a huge one);
 * what the heap notes about them lies outside it. A limit that the device cannot give in one buffer is refused as
 * CLA_E_TOO_LARGE; whether it has the memory shows at the first use. With 0 every allocation gives null. */
#define CLA_HEAP_DEFAULT_LIMIT ((uint64_t)8 << 20)
CLA_API uint64_t cla_heap_limit(cla_heap *);
CLA_API cla_status cla_heap_set_limit(cla_heap *, uint64_t nbytes);
/* Whether allocations are counted; failures and faults always are. Default: true. */
CLA_API bool cla_heap_counting(cla_heap *);
CLA_API cla_status cla_heap_set_counting(cla_heap *, bool);
/* Whether blocks remember where they were allocated; see cla_heap_rewrite. Default: false. */
CLA_API bool cla_heap_sites(cla_heap *);
CLA_API cla_status cla_heap_set_sites(cla_heap *, bool);

/* OpenCL C as CUDA and HIP programs have it, made into what OpenCL compilers take: kernels that reach malloc, free, calloc,
 * realloc or aligned_alloc get hidden parameters behind their own, last a `CLA_HEAP cla__heap`, which the functions they call
 * pass on. With CLA_HEAP_WITH_SITES one more stands behind it, `uint cla__site`: the kernel's number shifted left by
 * CLA_HEAP_LINE_BITS, which whoever launches sets (cla_heap_kernel_number). CLA_E_INVALID for what cannot be rewritten; the
 * message names line and function. */
#define CLA_HEAP_WITH_SITES 1u
enum { CLA_HEAP_LINE_BITS = 20, CLA_HEAP_MAX_LINE = (1 << CLA_HEAP_LINE_BITS) - 1 };

/* What a rewritten source is. Everything belongs to the struct; cla_heap_rewritten_free gives it back. */
typedef struct cla_heap_rewritten {
  char *text;         /* to compile behind cla_heap_source() and a line "#line 1"; no line has moved */
  size_t nbytes;      /* of the text, without its final zero */
  char **kernels;     /* the kernels with hidden arguments, in the order of the source, each once */
  size_t nkernels;    /* 0: no kernel allocates */
  bool is_changed;    /* false: text equals the source byte by byte */
  bool needs_library; /* the text names CLA_HEAP or cla_... functions, by itself or through the rewriting */
} cla_heap_rewritten;
CLA_API cla_status cla_heap_rewrite(const char *source, unsigned flags, cla_heap_rewritten *out);
CLA_API void cla_heap_rewritten_free(cla_heap_rewritten *);
/* The number that stands for a kernel of this name in sites; 0 when all are taken: blocks then do not know their kernel. */
CLA_API cla_status cla_heap_kernel_number(cla_heap *, const char *kernel, uint32_t *number);

/* Around each launch of yours: cla_heap_use gives the memory to set as the heap argument, made and ready for that stream;
 * after the enqueue and cla_stream_submitted, or without them when the enqueue failed, cla_heap_used. In between the heap
 * cannot be reset or inspected. The memory stays until the stream is done with it. */
CLA_API cla_status cla_heap_use(cla_heap *, cla_stream *, cl_mem *out);
CLA_API cla_status cla_heap_used(cla_heap *, cla_stream *);

/* Gives the memory back and lifts the fixing; everything allocated is gone. The functions below that look at the heap, and
 * this one, wait for the kernels that use it: CLA_E_BUSY behind a gate that only this thread opens. */
CLA_API cla_status cla_heap_reset(cla_heap *);

/* Blocks from the host, in the same heap. A reference is what cla_ref(heap, pointer) gives in a kernel, and cla_at(heap,
 * reference) is the pointer there; 0 stands for null. CLA_E_NOMEM: the heap has no such block left. What is refused is counted
 * as it is when kernels do it. */
CLA_API cla_status cla_heap_alloc(cla_heap *, uint64_t nbytes, uint32_t *ref);
/* 0 is ignored; CLA_E_FREED or CLA_E_FOREIGN: no live block. */
CLA_API cla_status cla_heap_free(cla_heap *, uint32_t ref);
/* Bytes of one live block; the reference may point inside it, and the offset counts from there. */
CLA_API cla_status cla_heap_read(cla_heap *, uint32_t ref, uint64_t offset, void *to, size_t nbytes);
CLA_API cla_status cla_heap_write(cla_heap *, uint32_t ref, uint64_t offset, const void *from, size_t nbytes);

typedef enum cla_heap_fault_kind {
  CLA_HEAP_FREE_DOUBLE = 1, /* of a block that is free */
  CLA_HEAP_FREE_FOREIGN,    /* of an address outside the heap */
  CLA_HEAP_FREE_MISALIGNED, /* no multiple of 16 */
  CLA_HEAP_FREE_INTERIOR    /* inside a block, or where none can begin */
} cla_heap_fault_kind;
/* A free, or realloc, of what is no live block: it changed nothing. */
typedef struct cla_heap_fault {
  cla_heap_fault_kind kind;
  uint64_t pointer; /* as the kernel gave it */
  uint64_t offset;  /* in what kernels can have; UINT64_MAX: outside */
  uint64_t item;    /* global linear id of the work-item */
} cla_heap_fault;
enum { CLA_HEAP_MOST_FAULTS = 8 };

/* Exact: the kernels that use the heap are waited for. Without counting, peak, peak_live, mallocs and frees are 0. */
typedef struct cla_heap_stats {
  uint64_t limit;           /* bytes that kernels can have */
  uint64_t reserved;        /* bytes of the buffer, 0 before the first use */
  uint64_t used;            /* bytes in live blocks, as set aside */
  uint64_t live_blocks;     /* how many */
  uint64_t largest_free;    /* bytes of the largest block that is free in one piece */
  uint64_t waste;           /* bytes in pages that only blocks of one size can get, outside live blocks */
  uint64_t peak;            /* most bytes taken at a time, whole pages: what a limit has to cover */
  uint64_t peak_live;       /* the most `used` has been, while it is followed: cla_heap_reset_peaks */
  uint64_t mallocs, frees;  /* those that succeeded */
  uint64_t failed;          /* allocations that got null, but for those of 0 bytes */
  uint64_t largest_refused; /* bytes of the largest of them */
  uint64_t double_frees, bad_frees;
  cla_heap_fault faults[CLA_HEAP_MOST_FAULTS]; /* the first double and bad frees */
  unsigned nfaults;
} cla_heap_stats;
CLA_API cla_status cla_heap_get_stats(cla_heap *, cla_heap_stats *out);
/* Both peaks begin anew at what is taken now. `exact`: from here on peak_live is followed, by one word that all work-items
 * share, until the next call. */
CLA_API cla_status cla_heap_reset_peaks(cla_heap *, bool exact);

typedef struct cla_heap_block {
  uint32_t ref;
  uint64_t offset, size; /* in what kernels can have; size: bytes set aside */
  uint32_t site;         /* 0: unknown */
  const char *kernel;    /* that allocated it; NULL: unknown */
  unsigned line;         /* of its source; 0: unknown */
} cla_heap_block;
/* Calls the visitor for every live block in the order of offsets, on a copy taken at one moment; false ends the walk. */
CLA_API cla_status cla_heap_blocks(cla_heap *, bool (*visit)(const cla_heap_block *, void *arg), void *arg);
/* Recounts everything from what the heap notes: CLA_OK, or CLA_E_INVALID with the first contradiction. */
CLA_API cla_status cla_heap_check(cla_heap *);

/* ---- Inspect ---- */

typedef struct cla_device_info {
  char name[256], platform[128], vendor[128], version[128], driver_version[128];
  cl_device_type type;
  uint64_t global_mem, max_alloc; /* bytes */
  size_t align_bytes;             /* sub-buffer alignment; OpenCL reports bits */
  size_t max_group;               /* work-items in a group */
  size_t local_mem;               /* bytes */
  unsigned compute_units;
  bool has_fp64, has_svm, simulated;
  bool has_rounded_divide; /* -cl-fp32-correctly-rounded-divide-sqrt may be asked of the compiler */
  size_t index;            /* in the list of devices; SIZE_MAX when simulated */
} cla_device_info;
CLA_API const cla_device_info *cla_device_get_info(const cla_device *);
CLA_API cl_device_id cla_device_id(const cla_device *);
CLA_API cl_context cla_device_context(const cla_device *);
CLA_API cl_command_queue cla_stream_queue(const cla_stream *);
CLA_API cla_device *cla_stream_device(const cla_stream *); /* borrowed */

typedef struct cla_stream_stats {
  uint64_t submitted, completed; /* commands: completed <= submitted */
  size_t markers;                /* marker events waiting */
} cla_stream_stats;
CLA_API void cla_stream_get_stats(cla_stream *, cla_stream_stats *out);

/* reserved_bytes == active_bytes + cached_bytes + held_bytes; requested_bytes <= active_bytes. */
typedef struct cla_stats {
  uint64_t active_bytes;    /* set aside for live allocations */
  uint64_t requested_bytes; /* asked for by live allocations */
  uint64_t reserved_bytes;  /* got from the driver */
  uint64_t cached_bytes;    /* free in the pool */
  uint64_t held_bytes;      /* freed, waiting for other streams or for an unmap */
  uint64_t active_blocks, cached_blocks, held_blocks, segments;
  uint64_t allocs, frees;               /* successful ones since the pool was made */
  uint64_t driver_allocs, driver_frees; /* segments made and given back */
  uint64_t retries;                     /* allocations that needed an out-of-memory step and then succeeded */
  uint64_t ooms;                        /* allocations that failed for want of memory */
  uint64_t largest_free;                /* bytes of the largest free block */
  uint64_t peak_active_bytes, peak_requested_bytes, peak_reserved_bytes, peak_cached_bytes, peak_held_bytes;
  uint64_t limit;
} cla_stats;
CLA_API cla_status cla_pool_stats(cla_pool *, cla_stats *out);
/* Bytes of now alone, in constant time and without a trace: what is allocated where does not depend on having asked.
 * (Statistics merge free blocks first, so that they can tell the largest.) */
typedef struct cla_usage {
  uint64_t reserved, active, requested, held;
} cla_usage;
CLA_API cla_status cla_pool_usage(cla_pool *, cla_usage *out);
CLA_API cla_status cla_pool_reset_peaks(cla_pool *);
CLA_API cla_status cla_pool_set_limit(cla_pool *,
                                      size_t limit); /* 0: the default; not below what is reserved after a trim */
/* Gives wholly free segments back, after waiting for the commands that still use them; streams held by a gate
 * of this thread are left alone. `freed`: bytes given back; may be NULL. */
CLA_API cla_status cla_pool_trim(cla_pool *, size_t *freed);
CLA_API cla_device *cla_pool_device(const cla_pool *); /* borrowed */
CLA_API const cla_policy *cla_pool_policy(const cla_pool *);

typedef enum cla_block_state {
  CLA_BLOCK_ACTIVE, /* allocated */
  CLA_BLOCK_FREE,   /* in its stream's bins */
  CLA_BLOCK_HELD    /* freed, in use on other streams or mapped */
} cla_block_state;
typedef struct cla_block_info {
  uint64_t segment; /* number of the segment, from 0 */
  void *address;
  size_t offset, size, requested;
  cla_block_state state;
  uint64_t stream;     /* the owner's id; 0: nobody's */
  size_t segment_size; /* bytes */
  void *segment_address;
} cla_block_info;
/* Calls the visitor for every block, segment by segment in address order, on a copy taken at one moment. A
 * visitor that returns false ends the walk. */
CLA_API cla_status cla_pool_snapshot(cla_pool *, bool (*visit)(const cla_block_info *, void *arg), void *arg);

/* What happens to a pool's blocks and segments, recorded in a ring of the newest events. The names are those of
 * PyTorch's memory snapshots. */
typedef enum cla_trace_action {
  CLA_TRACE_ALLOC,          /* a block was handed out */
  CLA_TRACE_FREE_REQUESTED, /* it was freed, and is held: other streams use it, or it is mapped */
  CLA_TRACE_FREE_COMPLETED, /* what was held is free */
  CLA_TRACE_FREE,           /* both at once */
  CLA_TRACE_SEGMENT_ALLOC,  /* from the driver */
  CLA_TRACE_SEGMENT_FREE,   /* back to it */
  CLA_TRACE_OOM             /* an allocation failed */
} cla_trace_action;
typedef struct cla_trace_event {
  uint64_t time_ns;    /* since the recording began */
  uint64_t address;    /* the segment's address + the block's offset in it, so that blocks tile their segments: it tells
                          blocks apart, but is not the allocation's address where gaps are set aside (see cla_alloc);
                          of CLA_TRACE_OOM: the bytes that were left below the limit */
  uint64_t size;       /* bytes requested; of a segment: all of it */
  uint64_t block_size; /* bytes that the block takes up; 0 where the event is about no block */
  uint64_t stream;     /* id of the stream; 0: nobody's */
  uint32_t thread;     /* the operating system's number of the thread */
  cla_trace_action action;
} cla_trace_event;

/* Starts recording, whatever was recorded before: room for at least `nevents` (0: 2^20), 48 bytes each. */
CLA_API cla_status cla_pool_trace_start(cla_pool *, size_t nevents);
CLA_API cla_status cla_pool_trace_stop(cla_pool *); /* what is recorded can be read until the next start */

/* Events, and the blocks that were there after the last of them, at one moment. The caller gives both arrays and their room;
 * the counts are how many there are, of which as many are written as there is room for. */
typedef struct cla_trace {
  cla_trace_event *events; /* oldest first */
  size_t events_room, nevents;
  cla_block_info *blocks; /* as cla_pool_snapshot gives them */
  size_t blocks_room, nblocks;
  uint64_t nlost;    /* events that the ring has no room for any more */
  uint64_t start_us; /* of the wall clock since 1970, when the recording began */
  bool is_recording;
} cla_trace;
CLA_API cla_status cla_pool_trace_read(cla_pool *, cla_trace *); /* CLA_E_INVALID: nothing was ever recorded */

/* The last failure on this thread, or "" when there was none. */
CLA_API const char *cla_last_error(void);
CLA_API const char *cla_status_name(cla_status); /* "NOMEM" */

/* ---- Debug ---- */

/* Recounts everything from the blocks; CLA_OK, or CLA_E_INVALID with the first contradiction. */
CLA_API cla_status cla_pool_check(cla_pool *);

/* Driver calls by name, in the form clCreateBuffer -> "create_buffer"; "" or NULL: of all kinds. */
CLA_API uint64_t cla_debug_calls(const char *name);
CLA_API int64_t cla_debug_live(const char *kind); /* "buffer", "event", "queue", ...; NULL: all */
/* Makes the n-th such call from now fail with an OpenCL code (0: a likely one); NULL: of any kind. n 0 disarms. */
CLA_API cla_status cla_debug_fail(const char *name, uint64_t n, int code);
CLA_API bool cla_debug_armed(void);

#ifdef __cplusplus
}
#endif
#endif
