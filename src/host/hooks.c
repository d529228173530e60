/* The hooks that stand for OpenCL: memory of the four kinds, tickets of the streams' timelines.
 *
 * The fastest pinned memory OpenCL has is a CL_MEM_ALLOC_HOST_PTR buffer that stays mapped. The map is made on the device's
 * own service queue, which nothing holds up, and waited for. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/host.h"

enum { ALIGNMENT = 4096 };

/* More than the machine has would be promised all the same, and end the process at its use. */
void *cla__host_plain(size_t alignment, size_t nbytes) {
  if (nbytes > cla__host_machine_memory()) return NULL;
  return aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment);
}

size_t cla__host_machine_memory(void) {
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : (size_t)1 << 32;
}

static cla_status map_buffer(cla_device *d, cl_mem mem, size_t nbytes, void **memory) {
  cl_int err = CL_SUCCESS;
  *memory = cla__enqueue_map(d->driver, d->service->queue, mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, nbytes, 0, NULL,
                             NULL, &err);
  return err || !*memory ? cla__driver_error(CLA_CALL_enqueue_map, err) : CLA_OK;
}

static cla_status mapped_allocate(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  cla_device *d = arg;
  (void)is_pinned;
  cl_int err = CL_SUCCESS;
  cl_mem mem = cla__create_buffer(d->driver, d->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, nbytes, NULL, &err);
  if (!mem) return cla__driver_error(CLA_CALL_create_buffer, err);
  cla_status status = map_buffer(d, mem, nbytes, memory);
  if (status) cla__release_buffer(d->driver, mem);
  else *backing = mem;
  return status;
}

static void mapped_free(void *arg, void *memory, void *backing, size_t nbytes) {
  cla_device *d = arg;
  (void)nbytes;
  cla__enqueue_unmap(d->driver, d->service->queue, backing, memory, 0, NULL, NULL);
  cla__flush(d->driver, d->service->queue);
  cla__release_buffer(d->driver, backing);
}

static cla_status registered_allocate(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  cla_device *d = arg;
  (void)is_pinned;
  size_t whole = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  void *ours = cla__host_plain(ALIGNMENT, whole), *mapped = NULL;
  if (!ours) return cla__error(CLA_E_NOMEM, "no host memory for %zu bytes", nbytes);
  cl_int err = CL_SUCCESS;
  cl_mem mem = cla__create_buffer(d->driver, d->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, whole, ours, &err);
  cla_status status = mem ? map_buffer(d, mem, whole, &mapped) : cla__driver_error(CLA_CALL_create_buffer, err);
  if (!status && mapped != ours) status = cla__error(CLA_E_UNSUPPORTED, "the driver maps registered memory elsewhere");
  if (status) {
    if (mem) cla__release_buffer(d->driver, mem);
    free(ours);
    return status;
  }
  *memory = ours;
  *backing = mem;
  return CLA_OK;
}

static void registered_free(void *arg, void *memory, void *backing, size_t nbytes) {
  cla_device *d = arg;
  mapped_free(arg, memory, backing, nbytes);
  cla__finish(d->driver, d->service->queue); /* the unmap may still write the memory */
  free(memory);
}

static cla_status svm_allocate(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  cla_device *d = arg;
  (void)is_pinned;
  if (!d->info.has_svm) return cla__error(CLA_E_UNSUPPORTED, "%s has no shared virtual memory", d->info.name);
  void *svm = cla__svm_alloc(d->driver, d->context, CL_MEM_READ_WRITE, nbytes, 0);
  if (!svm) return cla__driver_error(CLA_CALL_svm_alloc, CL_MEM_OBJECT_ALLOCATION_FAILURE);
  cl_int err = CL_SUCCESS;
  void *mapped = NULL;
  cl_mem mem = cla__create_buffer(d->driver, d->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, nbytes, svm, &err);
  cla_status status = mem ? map_buffer(d, mem, nbytes, &mapped) : cla__driver_error(CLA_CALL_create_buffer, err);
  if (status) {
    if (mem) cla__release_buffer(d->driver, mem);
    cla__svm_free(d->driver, d->context, svm);
    return status;
  }
  *memory = svm;
  *backing = mem;
  return CLA_OK;
}

static void svm_free(void *arg, void *memory, void *backing, size_t nbytes) {
  cla_device *d = arg;
  mapped_free(arg, memory, backing, nbytes);
  cla__finish(d->driver, d->service->queue);
  cla__svm_free(d->driver, d->context, memory);
}

static cla_status plain_allocate(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  (void)arg;
  *is_pinned = false;
  *backing = NULL;
  *memory = cla__host_plain(CLA_HOST_LEAST, nbytes);
  return *memory ? CLA_OK : cla__error(CLA_E_NOMEM, "no host memory for %zu bytes", nbytes);
}

static void plain_free(void *arg, void *memory, void *backing, size_t nbytes) {
  (void)arg;
  (void)backing;
  (void)nbytes;
  free(memory);
}

cla_status cla__host_ticket(void *arg, cla_stream *s, uint64_t *ticket) {
  (void)arg;
  *ticket = cla__stream_submitted(s);
  cla__stream_want(s, *ticket);
  return CLA_OK;
}

static bool ticket_is_done(void *arg, cla_stream *s, uint64_t ticket) {
  (void)arg;
  return cla__stream_done(s, ticket) || cla__stream_poll(s, ticket);
}

cla_host_hooks cla__host_hooks_for(cla_device *d, cla_host_kind kind) {
  cla_host_hooks hooks = {.arg = d, .record = cla__host_ticket, .query = ticket_is_done};
  switch (kind) {
  case CLA_HOST_MAPPED: hooks.allocate = mapped_allocate, hooks.free = mapped_free; break;
  case CLA_HOST_REGISTERED: hooks.allocate = registered_allocate, hooks.free = registered_free; break;
  case CLA_HOST_SVM: hooks.allocate = svm_allocate, hooks.free = svm_free; break;
  case CLA_HOST_PLAIN: hooks.allocate = plain_allocate, hooks.free = plain_free; break;
  }
  return hooks;
}
