/* The device heap, from the host: what it is made of, who uses it, what it says.
 *
 * A heap is one buffer of the driver's, laid out by heap_layout.h and worked on by the OpenCL C in kernels/. The host makes it,
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

/* What host-side allocation runs, made on first use: all of it or nothing. */
typedef struct cla_heap_service {
  cl_program program;
  cl_kernel alloc, free;
  cl_mem answer; /* 8 bytes: what a kernel found */
} cla_heap_service;

struct cla_heap {
  cla_device *device; /* not counted: the heap ends with it */
  pthread_mutex_t lock;
  pthread_cond_t changed; /* entered fell to 0, or is_sealed ended */
  /* The settings, in force once there is memory; the limit is a whole number of pages. Changed with the lock, read without:
   * in a forked child nobody may hold it that would let go. */
  _Atomic uint64_t limit;
  atomic_bool counts, has_sites;
  size_t entered; /* launches of the library's inside */
  size_t outside; /* cla_heap_use without cla_heap_used */
  bool is_sealed;
  cl_mem memory; /* NULL: not made; it and the next five change only while sealed */
  cla__heap_plan plan;
  uint64_t payload_at; /* offset in the buffer of what kernels can have */
  bool is_exact;       /* peak_live is kept */
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

/* Makes the memory if there is none, if need be with what the device's pool only keeps. It may be gone again at once. */
cla_status cla__heap_ready(cla_heap *h);
/* CLA_OK: the heap is the caller's until cla__heap_unseal. `quiet`: after every kernel that uses it is done. */
cla_status cla__heap_seal(cla_heap *h, bool quiet);
void cla__heap_unseal(cla_heap *h);
void cla__heap_close(cla_heap *h);
bool cla__heap_is_idle(cla_heap *h); /* no kernel known to use it; asks the driver, waits for nobody */

/* ---- source.c: OpenCL C inside the library ---- */

extern const char cla__heap_settle_text[] __attribute__((visibility("hidden")));  /* run once in a new heap */
extern const char cla__heap_service_text[] __attribute__((visibility("hidden"))); /* the heap and the host's kernels */

/* ---- make.c: memory as a new heap has it ---- */

uint32_t cla__heap_flags(const cla_heap *h, bool exact);                         /* what the control word has */
bool cla__heap_plan_for(const cla_heap *h, uint64_t limit, cla__heap_plan *out); /* false: too large for the layout */
/* CLA_OK, or CLA_E_TOO_LARGE with the figures. */
cla_status cla__heap_check_size(const cla_heap *h, const cla__heap_plan *plan);
cla_status cla__heap_make(cla_heap *h); /* sealed: the memory, unless it is there */
cla_status cla__heap_build(const cla_device *d, const char *text, cl_program *out); /* the message has the log */
/* The words of a new heap up to its payload, zeroed before: what the buffer holds after making it. */
void cla__heap_pristine(const cla__heap_plan *plan, uint32_t *words);

/* ---- access.c: the host's own blocks ---- */

void cla__heap_end_service(cla_heap *h); /* sealed */

/* ---- inspect.c: what the notes say ---- */

/* A copy of the heap's words before its payload, those that were asked for; the others are 0. */
typedef struct cla_heap_image {
  cla__heap_plan plan; /* its flags are those of now */
  uint32_t payload16;
  bool counts;     /* whether mallocs and frees are counted */
  uint32_t *words; /* the caller frees it; NULL: the heap is not made */
} cla_heap_image;

typedef enum cla_heap_parts {
  CLA_HEAP_NOTES,     /* control words, counter shards, page words */
  CLA_HEAP_EVERYTHING /* the maps, hints and sites too */
} cla_heap_parts;

/* Sealed and quiet. */
cla_status cla__heap_image_take(cla_heap *h, cla_heap_parts parts, cla_heap_image *out);
/* Adds the bits of the page that this byte of the payload lies in, and of the head of its run. */
cla_status cla__heap_read_bits(cla_heap *h, cla_heap_image *image, uint64_t at);
cla_status cla__heap_look(cla_heap *h, cla_heap_image *out); /* everything; seals for the time of the copy */
void cla__heap_read_stats(const cla_heap_image *image, cla_heap_stats *out); /* all but the limit */
/* Where the live block that this byte of the payload lies in starts, and its bytes; needs the page's bits. False: it lies in
 * none. */
bool cla__heap_block_at(const cla_heap_image *image, uint64_t at, uint64_t *start, uint64_t *size);

static inline uint32_t cla__heap_page(const cla_heap_image *image, uint32_t p) {
  return image->words[cla__page_word(p)];
}
/* A page's part of the block bitmap, and where it stands in words. */
static inline uint64_t cla__heap_bits_at(const cla__heap_plan *plan, uint32_t p) {
  return plan->block_map + ((uint64_t)p << (plan->page_shift - CLA_HEAP_LEAST_SHIFT));
}
static inline const uint32_t *cla__heap_page_bits(const cla_heap_image *image, uint32_t p) {
  return image->words + cla__heap_bits_at(&image->plan, p);
}
static inline bool cla__heap_is_live(const cla_heap_image *image, uint32_t p, uint32_t slot) {
  return cla__heap_page_bits(image, p)[slot / 32] >> (slot % 32) & 1;
}
static inline uint32_t cla__heap_ref(const cla__heap_plan *plan, uint64_t offset) {
  return (uint32_t)(offset >> plan->ref_shift) + 1;
}
static inline uint64_t cla__heap_offset(const cla__heap_plan *plan, uint32_t ref) {
  return (uint64_t)(ref - 1) << plan->ref_shift;
}

/* ---- launch.c: what a launch may ask for ---- */

/* CLA_OK when `nbytes` are free: CLA_E_LIMIT with the figures otherwise. Waits for the kernels that use the heap. */
cla_status cla__heap_need(cla_heap *h, uint64_t nbytes);

/* Counts of failed allocations before and after a launch. It belongs to an event; freed when `number` is complete. */
typedef struct cla_heap_watch {
  uint32_t before[6], after[6]; /* the control words from CLA_HEAP_FAILED on */
  uint64_t limit;               /* of the heap then */
  uint64_t number;              /* of the last command that reads into it; 0: none did */
  bool is_lost;                 /* `after` could not be read */
  char kernel[64];              /* for messages */
} cla_heap_watch;
cla_heap_watch *cla__heap_watch_new(const char *kernel);     /* NULL: no host memory */
void cla__heap_watch_free(cla_heap_watch *w, cla_stream *s); /* once the stream has done with it; NULL is ignored */
/* Around the launch, on its stream, alone in the heap: each enqueues a read. */
cla_status cla__heap_watch_before(cla_heap *h, cla_stream *s, cla_heap_watch *w);
cla_status cla__heap_watch_after(cla_heap *h, cla_stream *s, cla_heap_watch *w);
/* Complete: CLA_OK, or CLA_E_NOMEM with how many allocations failed. */
cla_status cla__heap_watch_result(const cla_heap_watch *w);

#endif
