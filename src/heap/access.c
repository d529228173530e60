/* The host in the heap: blocks of its own, and the bytes of any block.
 *
 * Allocation and free run the kernels' own code, one work-item of it, beside whatever kernels are at work: so there is one
 * implementation, and the host waits for none of them. Bytes are moved once the kernels that use the heap are done. */
#include <stdlib.h>
#include <string.h>

#include "heap/heap.h"

/* ---- The host's kernels ------------------------------------------------------------------------- */

void cla__heap_end_service(cla_heap *h) {
  const cla_driver *driver = h->device->driver;
  cla_heap_service *v = &h->service;
  if (v->alloc) cla__release_kernel(driver, v->alloc);
  if (v->free) cla__release_kernel(driver, v->free);
  if (v->program) cla__release_program(driver, v->program);
  if (v->answer) cla__release_buffer(driver, v->answer);
  *v = (cla_heap_service){0};
}

/* Sealed. */
static cla_status begin_service(cla_heap *h) {
  const cla_device *d = h->device;
  cla_heap_service *v = &h->service;
  if (v->program) return CLA_OK;
  cla_call call = CLA_CALL_create_kernel;
  cl_int err = CL_SUCCESS;
  cla_status status = cla__heap_build(d, cla__heap_service_text, &v->program);
  if (status) return status;
  v->alloc = cla__create_kernel(d->driver, v->program, "cla__heap_alloc", &err);
  if (v->alloc) v->free = cla__create_kernel(d->driver, v->program, "cla__heap_free", &err);
  if (v->free) {
    call = CLA_CALL_create_buffer;
    v->answer = cla__create_buffer(d->driver, d->context, CL_MEM_READ_WRITE, sizeof(uint64_t), NULL, &err);
  }
  if (v->answer) return CLA_OK;
  status = cla__driver_error(call, err);
  cla__heap_end_service(h);
  return status;
}

typedef struct argument {
  size_t size;
  const void *value;
} argument;

/* One work-item of a kernel, whose answer is waited for. Sealed. */
static cla_status ask(cla_heap *h, cl_kernel k, const argument *args, cl_uint nargs, uint64_t *answer) {
  const cla_driver *driver = h->device->driver;
  cl_command_queue queue = h->device->service->queue;
  const size_t one = 1;
  cl_int err = CL_SUCCESS;
  for (cl_uint i = 0; i < nargs && !err; i++) err = cla__set_kernel_arg(driver, k, i, args[i].size, args[i].value);
  if (err) return cla__driver_error(CLA_CALL_set_kernel_arg, err);
  err = cla__enqueue_kernel(driver, queue, k, 1, NULL, &one, &one, 0, NULL, NULL);
  if (err) return cla__driver_error(CLA_CALL_enqueue_kernel, err);
  err = cla__enqueue_read(driver, queue, h->service.answer, CL_TRUE, 0, sizeof *answer, answer, 0, NULL, NULL);
  if (!err) return CLA_OK;
  const cla_status status = cla__driver_error(CLA_CALL_enqueue_read, err);
  cla__finish(driver, queue);
  return status;
}

static cla_status check_real(const cla_heap *h, const char *what) {
  if (!h->device->info.simulated) return CLA_OK;
  return cla__error(CLA_E_UNSUPPORTED, "%s: %s runs no kernels", what, h->device->info.name);
}

/* The heap sealed, with memory and kernels. */
static cla_status open_service(cla_heap *h) {
  cla_status status = cla__heap_ready(h);
  if (!status) status = cla__heap_seal(h, false);
  if (status) return status;
  status = cla__heap_make(h);
  if (!status) status = begin_service(h);
  if (status) cla__heap_unseal(h);
  return status;
}

/* ---- Blocks ------------------------------------------------------------------------------------- */

static cla_status refused(const cla_heap *h, uint64_t nbytes) {
  return cla__error(CLA_E_NOMEM, "heap_alloc: no block of %llu bytes is free in a heap of %llu",
                    (unsigned long long)nbytes, (unsigned long long)h->plan.payload_bytes);
}

cla_status cla_heap_alloc(cla_heap *h, uint64_t nbytes, uint32_t *ref) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h || !ref) return cla__error(CLA_E_INVALID, "heap_alloc: no heap or no place for the result");
  status = check_real(h, "heap_alloc");
  if (!status) status = open_service(h);
  if (status) return status;
  const cl_ulong size = nbytes, align = 0;
  const cl_uint site = 0;
  const argument args[] = {{sizeof h->memory, &h->memory},
                           {sizeof size, &size},
                           {sizeof align, &align},
                           {sizeof site, &site},
                           {sizeof h->service.answer, &h->service.answer}};
  uint64_t answer = 0; /* the offset + 1 */
  status = ask(h, h->service.alloc, args, 5, &answer);
  if (!status && !answer && nbytes) status = refused(h, nbytes);
  else if (!status) *ref = answer ? cla__heap_ref(&h->plan, answer - 1) : 0;
  cla__heap_unseal(h);
  return status;
}

static cla_status check_ref(const cla_heap *h, const char *what, uint32_t ref) {
  if (h->memory && ref && cla__heap_offset(&h->plan, ref) < h->plan.payload_bytes) return CLA_OK;
  return cla__error(CLA_E_FOREIGN, "%s: %lu is no reference into the heap", what, (unsigned long)ref);
}

static cla_status free_refused(uint32_t ref, uint64_t kind) {
  if (kind == CLA_HEAP_DOUBLE)
    return cla__error(CLA_E_FREED, "heap_free: the block at %lu has been freed", (unsigned long)ref);
  return cla__error(CLA_E_FOREIGN, "heap_free: no block begins at %lu", (unsigned long)ref);
}

cla_status cla_heap_free(cla_heap *h, uint32_t ref) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!h) return cla__error(CLA_E_INVALID, "heap_free: no heap");
  if (!ref) return CLA_OK;
  status = check_real(h, "heap_free");
  if (!status) status = cla__heap_seal(h, false);
  if (status) return status;
  status = check_ref(h, "heap_free", ref); /* a heap that is not made has no block, and is not made to say so */
  if (!status) status = begin_service(h);
  if (!status) {
    const cl_ulong offset = cla__heap_offset(&h->plan, ref);
    const argument args[] = {
        {sizeof h->memory, &h->memory}, {sizeof offset, &offset}, {sizeof h->service.answer, &h->service.answer}};
    uint64_t kind = 0;
    status = ask(h, h->service.free, args, 3, &kind);
    if (!status && kind) status = free_refused(ref, kind);
  }
  cla__heap_unseal(h);
  return status;
}

/* ---- Bytes -------------------------------------------------------------------------------------- */

/* Sealed and quiet: where [ref + offset, + nbytes) lies in the buffer, if one live block has all of it. */
static cla_status locate(cla_heap *h, const char *what, uint32_t ref, uint64_t offset, size_t nbytes, size_t *at) {
  cla_heap_image image;
  cla_status status = check_ref(h, what, ref);
  if (!status) status = cla__heap_image_take(h, CLA_HEAP_NOTES, &image);
  if (status) return status;
  const uint64_t place = cla__heap_offset(&image.plan, ref);
  uint64_t start = 0, size = 0;
  status = cla__heap_read_bits(h, &image, place);
  if (!status && !cla__heap_block_at(&image, place, &start, &size))
    status = cla__error(CLA_E_FREED, "%s: no live block is at %lu", what, (unsigned long)ref);
  free(image.words);
  if (status) return status;
  const uint64_t left = size - (place - start);
  if (offset > left || nbytes > left - offset)
    return cla__error(CLA_E_BOUNDS, "%s: %zu bytes at offset %llu reach outside the block's %llu", what, nbytes,
                      (unsigned long long)offset, (unsigned long long)left);
  *at = (size_t)(h->payload_at + place + offset);
  return CLA_OK;
}

static cla_status move(cla_heap *h, const char *what, uint32_t ref, uint64_t offset, void *to, const void *from,
                       size_t nbytes) {
  const cla_driver *driver = h->device->driver;
  cl_command_queue queue = h->device->service->queue;
  size_t at = 0;
  cla_status status = cla__heap_seal(h, true);
  if (status) return status;
  status = locate(h, what, ref, offset, nbytes, &at);
  if (!status && nbytes) {
    const cl_int err = to ? cla__enqueue_read(driver, queue, h->memory, CL_TRUE, at, nbytes, to, 0, NULL, NULL)
                          : cla__enqueue_write(driver, queue, h->memory, CL_TRUE, at, nbytes, from, 0, NULL, NULL);
    if (err) status = cla__driver_error(to ? CLA_CALL_enqueue_read : CLA_CALL_enqueue_write, err);
  }
  cla__heap_unseal(h);
  return status;
}

cla_status cla_heap_read(cla_heap *h, uint32_t ref, uint64_t offset, void *to, size_t nbytes) {
  const cla_status status = cla__alive();
  if (status) return status;
  if (!h || !to) return cla__error(CLA_E_INVALID, "heap_read: no heap or no place for the bytes");
  return move(h, "heap_read", ref, offset, to, NULL, nbytes);
}

cla_status cla_heap_write(cla_heap *h, uint32_t ref, uint64_t offset, const void *from, size_t nbytes) {
  const cla_status status = cla__alive();
  if (status) return status;
  if (!h || !from) return cla__error(CLA_E_INVALID, "heap_write: no heap or no bytes");
  return move(h, "heap_write", ref, offset, NULL, from, nbytes);
}
