/* The simulated device's own types, shared by simulated.c (device, contexts, memory), sim_queue.c
 * (queues, events), sim_command.c (commands), sim_program.c (programs, kernels) and sim_source.c
 * (the scanner).
 *
 * One mutex per device guards every field below that may change; the functions named here want it
 * held unless they say otherwise. An object exists while `holds > 0`, and is a valid handle while
 * `refs > 0`: a queue released with commands still in it, or a buffer that queued commands use, is
 * no longer a handle but lives on. Structs are recycled and never returned to the system before
 * the device goes, so that a stale handle is recognised instead of followed. */
#ifndef CLA_SIM_H
#define CLA_SIM_H

#include "driver/driver.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum sim_kind {
  SIM_DEVICE,
  SIM_CONTEXT,
  SIM_QUEUE,
  SIM_BUFFER, /* sub-buffers too */
  SIM_EVENT,  /* of commands and of users */
  SIM_PROGRAM,
  SIM_KERNEL,
  SIM_KINDS
} sim_kind;

enum {
  SIM_MAX_GROUP = 1024,    /* CL_DEVICE_MAX_WORK_GROUP_SIZE */
  SIM_WARP = 32,           /* CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE */
  SIM_LOCAL_BYTES = 49152, /* CL_DEVICE_LOCAL_MEM_SIZE */
  SIM_COMMAND_NS = 1000,   /* the device's clock advances by this for each command */
  SIM_INLINE_USES = 4,     /* buffers a waiting command names without an array of its own */
};

#define SIM_MAGIC UINT64_C(0x5e1fdec0dec1a100)

/* The head of every object. holds == (refs > 0) + what inside the device points to it. */
typedef struct sim_object {
  _Atomic uint64_t tag; /* SIM_MAGIC + kind while refs > 0, else 0; read without the lock */
  cl_device_id device;  /* the same for the life of the memory */
  sim_kind kind;
  uint32_t refs;                /* the application's references */
  uint32_t holds;               /* 0: on the device's free list */
  struct sim_object *next_free; /* while it is there */
} sim_object;

typedef struct sim_callback {
  struct sim_callback *next;
  void(CL_CALLBACK *fn)(cl_event, cl_int, void *);
  void *arg;
  cl_event event; /* once due, with a reference */
  cl_int status;  /* the one asked for; once due, the one to report */
} sim_callback;

struct _cl_device_id {
  sim_object o; /* held by its maker and by each context */
  cla_sim_config config;
  char name[64];
  pthread_mutex_t lock;
  pthread_cond_t changed; /* some event has ended */
  uint32_t sleepers;      /* threads that wait for that */
  uint64_t used;          /* == sum of nbytes over buffers with is_backed */
  uint64_t clock_ns;
  uint64_t serial;        /* buffers made */
  uint64_t pass;          /* calls of demand() */
  cl_command_queue ready; /* automatic queues whose first command may run, through next_ready */
  sim_callback *due;      /* to call once the lock is released, in this order */
  sim_callback **due_end;
  sim_object *free_objects[SIM_KINDS];
  struct sim_chunk *chunks; /* the memory of all objects */
};

struct _cl_context {
  sim_object o; /* holds the device */
};

struct _cl_command_queue {
  sim_object o; /* holds the context; held by its events */
  cl_context context;
  cl_queue_properties properties;
  bool is_automatic; /* commands complete as soon as they may */
  bool is_ready;     /* on the device's ready list, and held by it */
  cl_event first;    /* waiting commands in order, through next; none of them has ended */
  cl_event last;
  cl_command_queue next_ready;
};

typedef struct sim_map {
  struct sim_map *next;
  void *host;
  size_t nbytes;
  bool is_mmapped; /* else a part of the host memory the buffer was made over */
} sim_map;

struct _cl_mem {
  sim_object o; /* holds its parent or context; held by sub-buffers and waiting commands */
  cl_context context;
  cl_mem parent; /* NULL: a buffer */
  size_t offset; /* in the parent */
  size_t nbytes;
  cl_mem_flags flags;
  char *host;      /* with CL_MEM_USE_HOST_PTR */
  bool is_backed;  /* counted in the device's used; never in a sub-buffer */
  uint64_t serial; /* tells it from a later buffer at the same address */
  sim_map *maps;
  cl_mem subs;         /* of a buffer whose device has ordered_subs: the sub-buffers not yet released, newest first */
  cl_mem newer, older; /* among them */
};

/* `waiter` waits for `needed`: on both their lists; holds `needed` until `waiter` ends. */
typedef struct sim_edge {
  cl_event waiter, needed;
  struct sim_edge *next_need;   /* in waiter->needs */
  struct sim_edge *next_waiter; /* in needed->waiters */
} sim_edge;

/* What a command does besides its turn in the queue. */
typedef struct sim_work {
  cl_command_type type;
  bool is_blocking;
  const cl_mem *uses; /* nuses buffers */
  size_t nuses;
  const cl_mem *listed; /* of a migration: the caller's list, which NVIDIA's driver reads when the command runs */
  void *zero_host;      /* a read */
  size_t zero_nbytes;
  sim_map *unmap; /* goes when it ends */
} sim_work;

struct _cl_event {
  sim_object o; /* holds its queue, or the context for a user event; held by its queue until it ends */
  cl_context context;
  cl_command_queue queue; /* NULL: a user event */
  sim_work work;          /* while it waits, its uses are its own and held */
  cl_int status;          /* CL_SUBMITTED until it ends, then CL_COMPLETE or an error */
  bool is_wait_failed;    /* one of its wait list ended with an error */
  uint32_t waits_left;    /* == number of `needs` that have not ended */
  sim_edge *needs;
  sim_edge *waiters;
  cl_event next; /* behind it in the queue */
  sim_callback *callbacks;
  uint64_t queued_ns, start_ns, end_ns;
  cl_mem few_uses[SIM_INLINE_USES];
  uint64_t blocked_pass; /* the last demand() that found it out of reach */
  cl_event outer_goal;   /* what this one is wanted for, in demand() */
};

typedef struct sim_arg {
  char *name, *type;
  cl_kernel_arg_address_qualifier address;
  cl_kernel_arg_access_qualifier access;
  cl_kernel_arg_type_qualifier qualifiers;
  bool is_pointer;
  size_t nbytes; /* of a value; 0: a type that is not built in */
} sim_arg;

typedef struct sim_function {
  char *name;
  size_t nargs;
  sim_arg *args;
  size_t group[3]; /* reqd_work_group_size, or zeros */
} sim_function;

struct _cl_program {
  sim_object o; /* holds the context; held by kernels */
  cl_context context;
  char *source, *options, *log;
  cl_build_status status;
  size_t nfunctions;
  sim_function *functions; /* while status == CL_BUILD_SUCCESS */
  uint32_t nkernels;       /* kernels made from it that live */
};

typedef struct sim_value {
  bool is_set;
  cl_mem mem; /* of a pointer to global or constant memory; may be NULL */
  uint64_t serial;
  size_t local_nbytes;
} sim_value;

struct _cl_kernel {
  sim_object o; /* holds the program */
  cl_program program;
  const sim_function *function;
  sim_value *values; /* function->nargs */
  cl_mem *uses;      /* room for as many; filled by a launch */
  size_t nunset;     /* == number of values not set */
};

/* Is this a live handle of that kind? Without the lock. */
static inline bool sim_is(const void *handle, sim_kind kind) {
  const sim_object *o = handle;
  return (uintptr_t)handle >= 4096 && (uintptr_t)handle % _Alignof(sim_object) == 0 &&
         atomic_load_explicit(&o->tag, memory_order_relaxed) == SIM_MAGIC + kind;
}

static inline void sim_enter(cl_device_id dev) { pthread_mutex_lock(&dev->lock); }
static inline void sim_hold(void *object) { ((sim_object *)object)->holds++; }

/* The end of a creator: the error goes through the pointer, if there is one. */
static inline void *sim_made(void *object, cl_int err, cl_int *out) {
  if (out != NULL) *out = err;
  return object;
}

/* ---- simulated.c ---- */

void *cla__sim_new(cl_device_id dev, sim_kind kind); /* refs == holds == 1, rest zero; or NULL */
void cla__sim_drop(void *object);                    /* undoes a hold */
void cla__sim_ref(void *object);
void cla__sim_unref(void *object);                                    /* the last one ends the handle */
cl_int cla__sim_retain(void *handle, sim_kind kind, cl_int invalid);  /* takes the lock itself */
cl_int cla__sim_release(void *handle, sim_kind kind, cl_int invalid); /* takes the lock itself */
void cla__sim_leave(cl_device_id dev);                                /* ends sim_enter: calls what is due, unlocked */
cl_int cla__sim_answer(const void *from, size_t n, size_t size, void *out, size_t *used);
bool cla__sim_back(cl_mem m); /* takes a lazy buffer's bytes: false when the device is full */
void cla__sim_free_map(sim_map *map);

/* ---- sim_queue.c ---- */

/* The end of every enqueue, its arguments checked and its buffers backed: runs the command now or
 * puts it in its queue, and waits for it if it blocks. */
cl_int cla__sim_submit(cl_command_queue q, const sim_work *work, cl_uint nwait, const cl_event *wait, cl_event *out);
void cla__sim_run_due(cl_device_id dev);           /* calls what is due; unlocks meanwhile */
void cla__sim_queue_abandoned(cl_command_queue q); /* its last reference is gone */
void cla__sim_event_free(cl_event e);

/* ---- sim_program.c ---- */

void cla__sim_program_free(cl_program p);
void cla__sim_kernel_free(cl_kernel k);

/* Checks a launch and gathers the buffers it uses in k->uses. */
cl_int cla__sim_kernel_ready(cl_kernel k, cl_uint dims, const size_t *global, const size_t *local, size_t *nuses);

/* ---- sim_source.c: pure functions, no lock ---- */

/* Finds a source's kernels, or says in a log (to be freed) what is wrong with it. */
cl_int cla__sim_scan(const char *source, sim_function **functions, size_t *n, char **log);
void cla__sim_functions_free(sim_function *functions, size_t n);

/* The entries of the table: cla__sim_create_buffer and so on. */
#define SIM_ENTRY(name, function) __typeof__(function) cla__sim_##name;
CLA_DRIVER_CALLS(SIM_ENTRY)
#undef SIM_ENTRY

#endif
