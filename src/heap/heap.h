/* The device heap, from the host: what it is made of, who uses it, what it says.
 *
 * A heap is one buffer of the driver's, laid out by heap_layout.h and worked on by heap.cl in kernels. The host makes it,
 * hands it to launches, and looks at it while no kernel is at work.
 *
 * Two ways in. A launch *enters* (cla__heap_enter, cla__heap_leave around the enqueue): any number at a time. Whoever
 * makes, inspects or drops the memory *seals* the heap: alone, while nobody is inside, and, quiet, while no kernel that uses
 * it runs. Both are held for the time of driver calls that depend on nobody but the library, never while waiting for
 * kernels; so nothing here waits for something that a script would still have to do. */
#ifndef CLA_HEAP_HEAP_H
#define CLA_HEAP_HEAP_H

#include "heap/heap_layout.h"
#include "runtime/runtime.h"

/* A stream whose commands up to `number` may use the memory. */
typedef struct cla_heap_user {
  cla_stream *stream; /* held */
  uint64_t number;
} cla_heap_user;

/* What host-side allocation runs, made on first use. */
typedef struct cla_heap_service {
  cl_program program;
  cl_kernel alloc, free;
  cl_mem answer; /* of CLA_HEAP_ANSWER bytes */
} cla_heap_service;

struct cla_heap {
  cla_device *device; /* not counted: the heap ends with it */
  pthread_mutex_t lock;
  pthread_cond_t changed; /* entered fell to 0, or is_sealed ended */
  uint64_t limit;         /* the settings: as they are wanted, in force once there is memory */
  bool counts, has_sites;
  size_t entered; /* launches of the library's inside */
  size_t outside; /* cla_heap_use without cla_heap_used */
  bool is_sealed;
  cl_mem memory; /* NULL: not made; it and the next two change only while sealed */
  cla_heap_plan plan;
  cla_heap_service service;
  cla_heap_user *users; /* room for nusers + entered + outside + 1 */
  size_t nusers, room;
  cla_stream *alone; /* the stream of the last launch that wanted the heap to itself, held; or NULL */
  uint64_t alone_number;
  char **kernels; /* names by number - 1, for sites */
  size_t nkernels;
};

/* ---- heap.c: the memory and its users ---- */

/* Makes the memory if there is none; `out` is what to pass. CLA_OK: cla__heap_leave must follow. `alone`: the device runs no
 * other kernel that uses the heap from the next command of `s` to the last before cla__heap_leave. */
cla_status cla__heap_enter(cla_heap *h, cla_stream *s, bool alone, cl_mem *out);
/* number: of the last command that uses the memory; 0: none does. */
void cla__heap_leave(cla_heap *h, cla_stream *s, bool alone, uint64_t number);

/* CLA_OK: the heap is the caller's until cla__heap_unseal. `quiet`: after every kernel that uses it is done. */
cla_status cla__heap_seal(cla_heap *h, bool quiet);
void cla__heap_unseal(cla_heap *h);
cla_status cla__heap_make(cla_heap *h); /* sealed: the memory, unless it is there */
void cla__heap_close(cla_heap *h);
bool cla__heap_is_idle(cla_heap *h); /* no kernel known to use it; asks the driver, waits for nobody */

#endif
