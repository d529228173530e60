/* The simulated device's commands: what each checks before it joins its queue (sim_queue.c).
 *
 * Bounds, contexts, wait lists and host access are checked as OpenCL has it, so that a wrong call
 * fails here as it would on hardware. The first command that names a lazy buffer takes its memory.
 * A map gives zeroed host memory of its own, or the caller's under CL_MEM_USE_HOST_PTR. */
#include "driver/sim.h"

#include <stdlib.h>
#include <sys/mman.h>

/* ---- Checks ---- */

static cl_int check_waits(cl_command_queue q, cl_uint nwait, const cl_event *wait) {
  if ((nwait == 0) != (wait == NULL)) return CL_INVALID_EVENT_WAIT_LIST;
  for (cl_uint i = 0; i < nwait; i++) {
    if (!sim_is(wait[i], SIM_EVENT)) return CL_INVALID_EVENT_WAIT_LIST;
    if (wait[i]->context != q->context) return CL_INVALID_CONTEXT;
  }
  return CL_SUCCESS;
}

static cl_int check_command(cl_command_queue q, cl_uint nwait, const cl_event *wait) {
  return sim_is(q, SIM_QUEUE) ? check_waits(q, nwait, wait) : CL_INVALID_COMMAND_QUEUE;
}

static cl_int check_range(cl_command_queue q, cl_mem m, size_t offset, size_t nbytes) {
  if (!sim_is(m, SIM_BUFFER)) return CL_INVALID_MEM_OBJECT;
  if (m->context != q->context) return CL_INVALID_CONTEXT;
  if (nbytes == 0 || offset > m->nbytes || nbytes > m->nbytes - offset) return CL_INVALID_VALUE;
  return CL_SUCCESS;
}

/* check_command, then check_range: what commands on one buffer share. */
static cl_int check_access(cl_command_queue q, cl_mem m, size_t offset, size_t nbytes, cl_mem_flags forbidden,
                           cl_uint nwait, const cl_event *wait) {
  cl_int err = check_command(q, nwait, wait);
  if (err == CL_SUCCESS) err = check_range(q, m, offset, nbytes);
  if (err == CL_SUCCESS && (m->flags & forbidden) != 0) err = CL_INVALID_OPERATION;
  return err;
}

/* Backs what a command names, then submits it. */
static cl_int submit_locked(cl_command_queue q, const sim_work *work, cl_uint nwait, const cl_event *wait,
                            cl_event *out) {
  cl_device_id dev = q->o.device;
  cl_int err = CL_SUCCESS;
  sim_enter(dev);
  for (size_t i = 0; i < work->nuses && err == CL_SUCCESS; i++)
    if (!cla__sim_back(work->uses[i])) err = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  if (err == CL_SUCCESS) err = cla__sim_submit(q, work, nwait, wait, out);
  cla__sim_leave(dev);
  return err;
}

/* ---- Reads, writes, copies, fills ---- */

static const cl_mem_flags no_host_read = CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS;
static const cl_mem_flags no_host_write = CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;

cl_int cla__sim_enqueue_read(cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset, size_t size, void *host,
                             cl_uint nwait, const cl_event *wait, cl_event *out) {
  const cl_int err = check_access(q, m, offset, size, no_host_read, nwait, wait);
  if (err != CL_SUCCESS) return err;
  if (host == NULL) return CL_INVALID_VALUE;
  const sim_work work = {.type = CL_COMMAND_READ_BUFFER,
                         .is_blocking = blocking != CL_FALSE,
                         .uses = &m,
                         .nuses = 1,
                         .zero_host = host,
                         .zero_nbytes = size};
  return submit_locked(q, &work, nwait, wait, out);
}

cl_int cla__sim_enqueue_write(cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset, size_t size,
                              const void *host, cl_uint nwait, const cl_event *wait, cl_event *out) {
  const cl_int err = check_access(q, m, offset, size, no_host_write, nwait, wait);
  if (err != CL_SUCCESS) return err;
  if (host == NULL) return CL_INVALID_VALUE;
  const sim_work work = {.type = CL_COMMAND_WRITE_BUFFER, .is_blocking = blocking != CL_FALSE, .uses = &m, .nuses = 1};
  return submit_locked(q, &work, nwait, wait, out);
}

/* Where a range lies in the buffer that owns the memory. */
static size_t root_offset(cl_mem m, size_t offset) { return m->offset + offset; }
static cl_mem root_of(cl_mem m) { return m->parent != NULL ? m->parent : m; }

cl_int cla__sim_enqueue_copy(cl_command_queue q, cl_mem src, cl_mem dst, size_t src_offset, size_t dst_offset,
                             size_t size, cl_uint nwait, const cl_event *wait, cl_event *out) {
  cl_int err = check_access(q, src, src_offset, size, 0, nwait, wait);
  if (err == CL_SUCCESS) err = check_range(q, dst, dst_offset, size);
  if (err != CL_SUCCESS) return err;
  if (root_of(src) == root_of(dst)) {
    const size_t a = root_offset(src, src_offset), b = root_offset(dst, dst_offset);
    if ((a > b ? a - b : b - a) < size) return CL_MEM_COPY_OVERLAP;
  }
  const cl_mem uses[2] = {src, dst};
  const sim_work work = {.type = CL_COMMAND_COPY_BUFFER, .uses = uses, .nuses = 2};
  return submit_locked(q, &work, nwait, wait, out);
}

cl_int cla__sim_enqueue_fill(cl_command_queue q, cl_mem m, const void *pattern, size_t pattern_size, size_t offset,
                             size_t size, cl_uint nwait, const cl_event *wait, cl_event *out) {
  const cl_int err = check_access(q, m, offset, size, 0, nwait, wait);
  if (err != CL_SUCCESS) return err;
  if (pattern == NULL || pattern_size == 0 || pattern_size > 128 || (pattern_size & (pattern_size - 1)) != 0 ||
      offset % pattern_size != 0 || size % pattern_size != 0)
    return CL_INVALID_VALUE;
  const sim_work work = {.type = CL_COMMAND_FILL_BUFFER, .uses = &m, .nuses = 1};
  return submit_locked(q, &work, nwait, wait, out);
}

/* ---- Maps ---- */

/* Host memory for a mapped range, not yet on the buffer's list. */
static sim_map *new_map(cl_mem m, size_t offset, size_t nbytes) {
  sim_map *map = malloc(sizeof *map);
  if (map == NULL) return NULL;
  *map = (sim_map){.nbytes = nbytes, .is_mmapped = m->host == NULL};
  if (!map->is_mmapped) map->host = m->host + offset;
  else map->host = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map->host != MAP_FAILED) return map;
  free(map);
  return NULL;
}

static cl_mem_flags map_forbids(cl_map_flags flags) {
  cl_mem_flags forbidden = 0;
  if ((flags & CL_MAP_READ) != 0) forbidden |= no_host_read;
  if ((flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION)) != 0) forbidden |= no_host_write;
  return forbidden;
}

static bool are_map_flags_valid(cl_map_flags flags) {
  const cl_map_flags plain = CL_MAP_READ | CL_MAP_WRITE;
  return flags == CL_MAP_WRITE_INVALIDATE_REGION || (flags != 0 && (flags & ~plain) == 0);
}

void *cla__sim_enqueue_map(cl_command_queue q, cl_mem m, cl_bool blocking, cl_map_flags flags, size_t offset,
                           size_t size, cl_uint nwait, const cl_event *wait, cl_event *out, cl_int *err) {
  cl_int status = check_access(q, m, offset, size, map_forbids(flags), nwait, wait);
  if (status == CL_SUCCESS && !are_map_flags_valid(flags)) status = CL_INVALID_VALUE;
  if (status != CL_SUCCESS) return sim_made(NULL, status, err);
  sim_map *map = new_map(m, offset, size);
  if (map == NULL) return sim_made(NULL, CL_MAP_FAILURE, err);
  const sim_work work = {.type = CL_COMMAND_MAP_BUFFER, .is_blocking = blocking != CL_FALSE, .uses = &m, .nuses = 1};
  status = submit_locked(q, &work, nwait, wait, out);
  if (status != CL_SUCCESS) {
    cla__sim_free_map(map);
    return sim_made(NULL, status, err);
  }
  void *host = map->host;
  sim_enter(m->o.device);
  map->next = m->maps;
  m->maps = map;
  cla__sim_leave(m->o.device);
  return sim_made(host, CL_SUCCESS, err);
}

cl_int cla__sim_enqueue_unmap(cl_command_queue q, cl_mem m, void *host, cl_uint nwait, const cl_event *wait,
                              cl_event *out) {
  cl_int err = check_command(q, nwait, wait);
  if (err != CL_SUCCESS) return err;
  if (!sim_is(m, SIM_BUFFER)) return CL_INVALID_MEM_OBJECT;
  if (m->context != q->context) return CL_INVALID_CONTEXT;
  cl_device_id dev = q->o.device;
  sim_enter(dev);
  sim_map **link = &m->maps;
  while (*link != NULL && (*link)->host != host) link = &(*link)->next;
  sim_map *map = *link;
  if (map == NULL) err = CL_INVALID_VALUE;
  else {
    *link = map->next;
    const sim_work work = {.type = CL_COMMAND_UNMAP_MEM_OBJECT, .uses = &m, .nuses = 1, .unmap = map};
    err = cla__sim_submit(q, &work, nwait, wait, out);
    if (err != CL_SUCCESS) {
      map->next = m->maps;
      m->maps = map;
    }
  }
  cla__sim_leave(dev);
  return err;
}

/* ---- Commands without data, kernels ---- */

cl_int cla__sim_enqueue_migrate(cl_command_queue q, cl_uint nmems, const cl_mem *mems, cl_mem_migration_flags flags,
                                cl_uint nwait, const cl_event *wait, cl_event *out) {
  const cl_mem_migration_flags known = CL_MIGRATE_MEM_OBJECT_HOST | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED;
  const cl_int err = check_command(q, nwait, wait);
  if (err != CL_SUCCESS) return err;
  if (nmems == 0 || mems == NULL || (flags & ~known) != 0) return CL_INVALID_VALUE;
  for (cl_uint i = 0; i < nmems; i++) {
    if (!sim_is(mems[i], SIM_BUFFER)) return CL_INVALID_MEM_OBJECT;
    if (mems[i]->context != q->context) return CL_INVALID_CONTEXT;
  }
  const sim_work work = {.type = CL_COMMAND_MIGRATE_MEM_OBJECTS, .uses = mems, .nuses = nmems, .listed = mems};
  return submit_locked(q, &work, nwait, wait, out);
}

static cl_int enqueue_nothing(cl_command_queue q, cl_command_type type, cl_uint nwait, const cl_event *wait,
                              cl_event *out) {
  const cl_int err = check_command(q, nwait, wait);
  if (err != CL_SUCCESS) return err;
  return submit_locked(q, &(sim_work){.type = type}, nwait, wait, out);
}

cl_int cla__sim_enqueue_marker(cl_command_queue q, cl_uint nwait, const cl_event *wait, cl_event *out) {
  return enqueue_nothing(q, CL_COMMAND_MARKER, nwait, wait, out);
}

cl_int cla__sim_enqueue_barrier(cl_command_queue q, cl_uint nwait, const cl_event *wait, cl_event *out) {
  return enqueue_nothing(q, CL_COMMAND_BARRIER, nwait, wait, out);
}

cl_int cla__sim_enqueue_kernel(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset,
                               const size_t *global, const size_t *local, cl_uint nwait, const cl_event *wait,
                               cl_event *out) {
  (void)offset; /* any is valid: no work item will see it */
  cl_int err = check_command(q, nwait, wait);
  if (err != CL_SUCCESS) return err;
  if (!sim_is(k, SIM_KERNEL)) return CL_INVALID_KERNEL;
  if (k->program->context != q->context) return CL_INVALID_CONTEXT;
  cl_device_id dev = q->o.device;
  size_t nuses = 0;
  sim_enter(dev);
  err = cla__sim_kernel_ready(k, dims, global, local, &nuses);
  for (size_t i = 0; i < nuses && err == CL_SUCCESS; i++)
    if (!cla__sim_back(k->uses[i])) err = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  if (err == CL_SUCCESS) {
    const sim_work work = {.type = CL_COMMAND_NDRANGE_KERNEL, .uses = k->uses, .nuses = nuses};
    err = cla__sim_submit(q, &work, nwait, wait, out);
  }
  cla__sim_leave(dev);
  return err;
}
