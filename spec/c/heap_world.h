/* What the tests of the heap's kernels share: a device through plain OpenCL, heaps made as heap_layout.h says, launches,
 * and the oracles of heap_oracles.h asked.
 *
 * The device is the first whose platform's or own name contains $CLALLOC_DEVICE (any if unset). A failing OpenCL call ends
 * the program. */
#ifndef HEAP_WORLD_H
#define HEAP_WORLD_H

#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "clalloc.h"
#include "heap_oracles.h"

extern const char cla__heap_settle_text[];

#define OK(call)    world_ok((call), #call, __LINE__)
#define SOURCE(...) #__VA_ARGS__

static inline void world_ok(cl_int err, const char *call, int line) {
  if (err == CL_SUCCESS) return;
  fprintf(stderr, "line %d: %s: OpenCL error %d\n", line, call, err);
  exit(1);
}

typedef struct world {
  cl_device_id device;
  cl_context context;
  cl_command_queue queue;
  cl_program program;
  cla__heap_device kind;
  char platform[128];
  bool is_slow; /* a simulator */
} world;

typedef struct heap {
  world *w;
  cla__heap_plan plan;
  cl_mem memory;
  uint64_t payload; /* byte offset in the buffer */
} heap;

/* ---- the device ---- */

static inline bool world_find(world *w) {
  const char *want = getenv("CLALLOC_DEVICE");
  cl_platform_id platforms[16];
  cl_uint n = 0;
  if (clGetPlatformIDs(16, platforms, &n) || n == 0) return false;
  for (cl_uint i = 0; i < n && i < 16; i++) {
    char name[256] = "";
    OK(clGetPlatformInfo(platforms[i], CL_PLATFORM_NAME, sizeof w->platform, w->platform, NULL));
    if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &w->device, NULL)) continue;
    OK(clGetDeviceInfo(w->device, CL_DEVICE_NAME, sizeof name, name, NULL));
    if (!want || strstr(w->platform, want) || strstr(name, want)) return true;
  }
  return false;
}

static inline cl_program world_build(world *w, const char *a, const char *b, const char *options) {
  const char *texts[] = {a, b};
  cl_int err;
  cl_program program = clCreateProgramWithSource(w->context, 2, texts, NULL, &err);
  OK(err);
  if (clBuildProgram(program, 1, &w->device, options, NULL, NULL) != CL_SUCCESS) {
    static char log[1 << 16];
    clGetProgramBuildInfo(program, w->device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
    fprintf(stderr, "%s\n", log);
    exit(1);
  }
  return program;
}

/* False: there is no OpenCL device. `kernels` is built after the heap's text. */
static inline bool world_open(world *w, const char *kernels, const char *options) {
  cl_int err;
  cl_device_type type = 0;
  memset(w, 0, sizeof *w);
  if (!world_find(w)) return false;
  OK(clGetDeviceInfo(w->device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint), &w->kind.compute_units, NULL));
  OK(clGetDeviceInfo(w->device, CL_DEVICE_TYPE, sizeof type, &type, NULL));
  w->kind.is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0;
  w->kind.width = strstr(w->platform, "NVIDIA") ? 32 : 1;
  w->is_slow = strstr(w->platform, "Oclgrind") != NULL;
  w->context = clCreateContext(NULL, 1, &w->device, NULL, NULL, &err);
  OK(err);
  const cl_queue_properties timed[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  w->queue = clCreateCommandQueueWithProperties(w->context, w->device, timed, &err);
  OK(err);
  w->program = world_build(w, cla_heap_source(), kernels, options);
  return true;
}

static inline void world_close(world *w) {
  OK(clReleaseProgram(w->program));
  OK(clReleaseCommandQueue(w->queue));
  OK(clReleaseContext(w->context));
}

static inline cl_mem world_buffer(world *w, size_t nbytes) {
  cl_int err;
  cl_mem memory = clCreateBuffer(w->context, CL_MEM_READ_WRITE, nbytes, NULL, &err);
  OK(err);
  return memory;
}

static inline void world_fill(world *w, cl_mem memory, uint32_t value, size_t offset, size_t nbytes) {
  if (nbytes > 0) OK(clEnqueueFillBuffer(w->queue, memory, &value, 4, offset, nbytes, 0, NULL, NULL));
}

static inline void world_read(world *w, cl_mem memory, size_t offset, size_t nbytes, void *to) {
  OK(clEnqueueReadBuffer(w->queue, memory, CL_TRUE, offset, nbytes, to, 0, NULL, NULL));
}

static inline void world_write(world *w, cl_mem memory, size_t offset, size_t nbytes, const void *from) {
  OK(clEnqueueWriteBuffer(w->queue, memory, CL_TRUE, offset, nbytes, from, 0, NULL, NULL));
}

/* ---- launches: a kernel by name, arguments in order ---- */

typedef struct launch {
  world *w;
  cl_kernel kernel;
  cl_uint nargs;
} launch;

static inline launch launch_of(world *w, const char *name) {
  cl_int err;
  launch l = {w, clCreateKernel(w->program, name, &err), 0};
  OK(err);
  return l;
}

static inline void give_mem(launch *l, cl_mem m) { OK(clSetKernelArg(l->kernel, l->nargs++, sizeof m, &m)); }
static inline void give_uint(launch *l, cl_uint v) { OK(clSetKernelArg(l->kernel, l->nargs++, sizeof v, &v)); }
static inline void give_ulong(launch *l, cl_ulong v) { OK(clSetKernelArg(l->kernel, l->nargs++, sizeof v, &v)); }

/* Runs it over `n` items and releases it; milliseconds by the device's clock. group 0: the driver's choice. */
static inline double run_shape(launch *l, cl_uint ndims, const size_t *size, const size_t *group) {
  cl_event event;
  cl_ulong begin = 0, end = 0;
  OK(clEnqueueNDRangeKernel(l->w->queue, l->kernel, ndims, NULL, size, group, 0, NULL, &event));
  OK(clFinish(l->w->queue));
  OK(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof begin, &begin, NULL));
  OK(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL));
  OK(clReleaseEvent(event));
  OK(clReleaseKernel(l->kernel));
  return (double)(end - begin) / 1e6;
}

static inline double run(launch *l, size_t n, size_t group) {
  const size_t size = group ? (n + group - 1) / group * group : n;
  return run_shape(l, 1, &size, group ? &group : NULL);
}

/* ---- heaps ---- */

static inline void heap_fill(heap *h) {
  world *w = h->w;
  const cla__heap_plan *plan = &h->plan;
  const size_t nfree = plan->level0 + plan->level1;
  uint32_t control[CLA_HEAP_CONTROL_WORDS], *free_words = malloc(4 * (nfree + 1));
  world_fill(w, h->memory, 0, 0, plan->metadata_bytes);
  world_fill(w, h->memory, 0xffffffffu, plan->hints_begin, plan->hints_end - plan->hints_begin);
  cla__heap_free_words(plan, free_words);
  if (nfree > 0) world_write(w, h->memory, 4 * (size_t)plan->free_map, 4 * nfree, free_words);
  cla__heap_control(plan, control);
  world_write(w, h->memory, 0, sizeof control, control);
  free(free_words);
}

static inline void heap_reset(heap *h) {
  world *w = h->w, settling = *w;
  uint32_t payload16;
  heap_fill(h);
  settling.program = world_build(w, "", cla__heap_settle_text, "");
  launch l = launch_of(&settling, "cla__heap_settle");
  give_mem(&l, h->memory);
  run(&l, 1, 0);
  OK(clReleaseProgram(settling.program));
  world_read(w, h->memory, 4 * CLA_HEAP_PAYLOAD16, 4, &payload16);
  h->payload = UINT64_C(16) * payload16;
}

static const uint32_t canary = 0xca9a24u;

/* `slack` bytes lie behind the heap, filled with canaries. */
static inline heap heap_make_with(world *w, uint64_t limit, uint32_t flags, bool has_sites) {
  heap h = {.w = w};
  CHECK(cla__heap_plan_make(limit, &w->kind, flags, has_sites, &h.plan));
  h.memory = world_buffer(w, h.plan.total_bytes + 4096);
  uint32_t behind[1024];
  for (int i = 0; i < 1024; i++) behind[i] = canary;
  world_write(w, h.memory, h.plan.total_bytes, sizeof behind, behind); /* NVIDIA fails to fill beyond 4 GiB */
  heap_reset(&h);
  return h;
}

static inline heap heap_make(world *w, uint64_t limit) {
  return heap_make_with(w, limit, CLA_HEAP_COUNT | CLA_HEAP_PEAK, false);
}

static inline uint32_t heap_word(heap *h, uint32_t at) {
  uint32_t word;
  world_read(h->w, h->memory, 4 * (size_t)at, 4, &word);
  return word;
}

static inline uint64_t heap_count(heap *h, uint32_t at) {
  return heap_word(h, at) | (uint64_t)heap_word(h, at + 1) << 32;
}

/* ---- the oracles ---- */

/* Recounts everything from the metadata; true if nothing is wrong. The queue has finished. */
static inline bool heap_audit(heap *h, cla__heap_tally *tally) {
  uint32_t *meta = malloc(h->plan.metadata_bytes), behind[1024];
  int strays = 0;
  world_read(h->w, h->memory, 0, h->plan.metadata_bytes, meta);
  world_read(h->w, h->memory, h->plan.total_bytes, sizeof behind, behind);
  for (int i = 0; i < 1024; i++) strays += behind[i] != canary;
  const int faults = audit(&h->plan, meta, tally);
  free(meta);
  if (strays) fprintf(stderr, "%d words behind the heap were written\n", strays);
  return faults == 0 && strays == 0;
}

/* Whole, and so many blocks live. */
static inline bool heap_is_sound(heap *h, uint64_t nlive) {
  cla__heap_tally tally;
  const bool is_sound = heap_audit(h, &tally);
  if (tally.live_blocks != nlive)
    fprintf(stderr, "%llu blocks live, not %llu\n", (unsigned long long)tally.live_blocks, (unsigned long long)nlive);
  return is_sound && tally.live_blocks == nlive;
}

static inline bool heap_is_empty(heap *h) {
  cla__heap_tally tally;
  return heap_audit(h, &tally) && is_whole(&h->plan, &tally);
}

static inline void heap_close(heap *h) { OK(clReleaseMemObject(h->memory)); }

#endif
