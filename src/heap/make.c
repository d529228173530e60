/* Making a heap: the plan, its first contents, the kernel that finds out where the payload lies.
 *
 * Called sealed; everything goes through the device's own service queue, which nothing holds up, and is waited for. A
 * call of the driver's that fails leaves no memory behind. */
#include <stdlib.h>
#include <string.h>

#include "heap/heap.h"

/* ---- The plan ----------------------------------------------------------------------------------- */

uint32_t cla__heap_flags(const cla_heap *h, bool exact) {
  return exact ? CLA_HEAP_COUNT | CLA_HEAP_PEAK : h->counts ? CLA_HEAP_COUNT : 0;
}

bool cla__heap_plan_for(const cla_heap *h, uint64_t limit, cla__heap_plan *out) {
  const cla_device_info *info = &h->device->info;
  const cla__heap_device device = {.compute_units = info->compute_units ? info->compute_units : 1,
                                   .width = strstr(info->platform, "NVIDIA") ? 32 : 1,
                                   .is_gpu = (info->type & CL_DEVICE_TYPE_GPU) != 0};
  return cla__heap_plan_make(limit, &device, cla__heap_flags(h, h->is_exact), h->has_sites, out);
}

void cla__heap_pristine(const cla__heap_plan *plan, uint32_t *words) {
  memset((char *)words + plan->hints_begin, 0xff, plan->hints_end - plan->hints_begin);
  cla__heap_free_words(plan, words + plan->free_map);
  cla__heap_control(plan, words);
}

cla_status cla__heap_check_size(const cla_heap *h, const cla__heap_plan *plan) {
  const cla_device_info *info = &h->device->info;
  if (plan->total_bytes <= info->max_alloc && plan->total_bytes <= info->global_mem) return CLA_OK;
  const bool is_max = info->max_alloc <= info->global_mem;
  return cla__error(CLA_E_TOO_LARGE, "heap: a limit of %llu bytes, with %llu more for notes: %s %s %llu",
                    (unsigned long long)plan->limit_bytes, (unsigned long long)(plan->total_bytes - plan->limit_bytes),
                    info->name, is_max ? "gives at most, in one buffer," : "has at most",
                    (unsigned long long)(is_max ? info->max_alloc : info->global_mem));
}

/* ---- Build options ------------------------------------------------------------------------------ */

enum { COMPUTE_CAPABILITY_MAJOR_NV = 0x4000, LEAST_MAJOR = 8 /* the instructions in kernels/warp.cl need it */ };

const char *cla_heap_build_options(const cla_device *d) {
  cl_uint major = 0;
  if (!d || !strstr(d->info.platform, "NVIDIA")) return "";
  if (cla__get_device_info(d->driver, d->id, COMPUTE_CAPABILITY_MAJOR_NV, sizeof major, &major, NULL)) major = 0;
  return major < LEAST_MAJOR ? " -D CLA_HEAP_SCALAR" : " -cl-nv-maxrregcount=64"; /* see heap_layout.h */
}

/* ---- First contents ----------------------------------------------------------------------------- */

static cla_status failed(const cla_heap *h, cla_call call, cl_int err) {
  const cla_status status = cla__driver_error(call, err);
  if (status != CLA_E_NOMEM) return status;
  return cla__error(CLA_E_NOMEM, "heap: %s cannot give %llu bytes, %llu of them for kernels: %s", h->device->info.name,
                    (unsigned long long)h->plan.total_bytes, (unsigned long long)h->plan.payload_bytes,
                    cla_last_error());
}

static cla_status fill(const cla_heap *h, cl_mem memory, uint32_t value, uint64_t begin, uint64_t end) {
  if (begin == end) return CLA_OK;
  const cl_int err = cla__enqueue_fill(h->device->driver, h->device->service->queue, memory, &value, sizeof value,
                                       (size_t)begin, (size_t)(end - begin), 0, NULL, NULL);
  return err ? failed(h, CLA_CALL_enqueue_fill, err) : CLA_OK;
}

static cla_status put(const cla_heap *h, cl_mem memory, uint32_t at, const uint32_t *words, size_t nwords) {
  if (!nwords) return CLA_OK;
  const cl_int err = cla__enqueue_write(h->device->driver, h->device->service->queue, memory, CL_TRUE, 4 * (size_t)at,
                                        4 * nwords, words, 0, NULL, NULL);
  return err ? failed(h, CLA_CALL_enqueue_write, err) : CLA_OK;
}

/* The maps and the control words are small; what is large is filled. */
static cla_status initialise(const cla_heap *h, cl_mem memory) {
  const cla__heap_plan *plan = &h->plan;
  const size_t nfree = (size_t)plan->level0 + plan->level1;
  const size_t nwords = nfree > CLA_HEAP_CONTROL_WORDS ? nfree : CLA_HEAP_CONTROL_WORDS;
  uint32_t *words = malloc(4 * nwords);
  if (!words) return cla__error(CLA_E_NOMEM, "no host memory to make a heap");
  cla_status status = fill(h, memory, 0, 0, plan->metadata_bytes);
  if (!status) status = fill(h, memory, 0xffffffffu, plan->hints_begin, plan->hints_end);
  cla__heap_free_words(plan, words);
  if (!status) status = put(h, memory, plan->free_map, words, nfree);
  cla__heap_control(plan, words);
  if (!status) status = put(h, memory, 0, words, CLA_HEAP_CONTROL_WORDS);
  free(words);
  return status;
}

/* ---- Where the payload lies --------------------------------------------------------------------- */

static cla_status run_settle(const cla_heap *h, cl_mem memory, cl_kernel k) {
  const cla_driver *driver = h->device->driver;
  const size_t one = 1;
  cl_int err = cla__set_kernel_arg(driver, k, 0, sizeof memory, &memory);
  if (err) return cla__driver_error(CLA_CALL_set_kernel_arg, err);
  err = cla__enqueue_kernel(driver, h->device->service->queue, k, 1, NULL, &one, NULL, 0, NULL, NULL);
  return err ? failed(h, CLA_CALL_enqueue_kernel, err) : CLA_OK;
}

cla_status cla__heap_build(const cla_device *d, const char *text, cl_program *out) {
  cl_int err = CL_SUCCESS;
  cl_program p = cla__create_program(d->driver, d->context, text, strlen(text), &err);
  if (!p) return cla__driver_error(CLA_CALL_create_program, err);
  err = cla__build_program(d->driver, p, d->id, cla_heap_build_options(d));
  if (!err) {
    *out = p;
    return CLA_OK;
  }
  const cla_status status = cla__driver_error(CLA_CALL_build_program, err);
  char log[600] = "";
  cla__get_build_info(d->driver, p, d->id, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
  cla__release_program(d->driver, p);
  return cla__error(status, "heap: %s%s%.500s", cla_last_error(), *log ? "\n" : "", log);
}

static cla_status settle(cla_heap *h, cl_mem memory) {
  const cla_driver *driver = h->device->driver;
  cl_program program = NULL;
  cla_status status = cla__heap_build(h->device, cla__heap_settle_text, &program);
  if (status) return status;
  cl_int err = CL_SUCCESS;
  cl_kernel k = cla__create_kernel(driver, program, "cla__heap_settle", &err);
  status = k ? run_settle(h, memory, k) : cla__driver_error(CLA_CALL_create_kernel, err);
  uint32_t payload16 = 0;
  if (!status) {
    err = cla__enqueue_read(driver, h->device->service->queue, memory, CL_TRUE, 4 * CLA_HEAP_PAYLOAD16,
                            sizeof payload16, &payload16, 0, NULL, NULL);
    if (err) status = failed(h, CLA_CALL_enqueue_read, err);
  }
  if (k) cla__release_kernel(driver, k);
  cla__release_program(driver, program);
  /* A simulated device reads zeros. */
  h->payload_at = h->device->info.simulated ? h->plan.payload_offset : CLA_HEAP_GRAIN * (uint64_t)payload16;
  return status;
}

cla_status cla__heap_make(cla_heap *h) {
  if (h->memory) return CLA_OK;
  const cla_device *d = h->device;
  cl_int err = CL_SUCCESS;
  cla__heap_plan_for(h, h->limit, &h->plan);
  cla_status status = cla__heap_check_size(h, &h->plan);
  if (status) return status;
  cl_mem memory = cla__create_buffer(d->driver, d->context, CL_MEM_READ_WRITE, (size_t)h->plan.total_bytes, NULL, &err);
  if (!memory) return failed(h, CLA_CALL_create_buffer, err);
  status = initialise(h, memory);
  if (!status) status = settle(h, memory);
  if (!status) {
    h->memory = memory;
    return CLA_OK;
  }
  cla_error_memo memo; /* what comes before the call that failed may still be at work on the buffer */
  cla__error_keep(&memo);
  cla__finish(d->driver, d->service->queue);
  cla__release_buffer(d->driver, memory);
  cla__error_restore(&memo);
  return status;
}
