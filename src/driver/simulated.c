/* The simulated device: a capacity, an alignment, an order of commands, and no memory.
 *
 * It checks arguments as a strict OpenCL 3.0 driver does and keeps exact account of bytes, but
 * holds no data: reads and maps find zero bytes, writes, fills and copies only check their bounds,
 * kernels compute nothing. It has no platform, no images, no SVM (svm_alloc gives NULL). Buffers
 * over pinned or the caller's host memory take no device memory, as on a discrete GPU.
 *
 * This file: object lifetime, the device, contexts and buffers. A handle that is not one of ours,
 * or no longer, gets OpenCL's CL_INVALID_... as long as its memory can be read. */
#include "driver/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK_OBJECTS = 32 };

typedef struct sim_chunk {
  struct sim_chunk *next;
  max_align_t objects[];
} sim_chunk;

const cla_driver cla__driver_simulated = {.name = "simulated",
#define TABLE_ENTRY(name, function) .name = cla__sim_##name,
                                          CLA_DRIVER_CALLS(TABLE_ENTRY)
#undef TABLE_ENTRY
};

/* ---- Objects ---- */

static const size_t object_sizes[SIM_KINDS] = {
    [SIM_CONTEXT] = sizeof(struct _cl_context), [SIM_QUEUE] = sizeof(struct _cl_command_queue),
    [SIM_BUFFER] = sizeof(struct _cl_mem),      [SIM_EVENT] = sizeof(struct _cl_event),
    [SIM_PROGRAM] = sizeof(struct _cl_program), [SIM_KERNEL] = sizeof(struct _cl_kernel),
};

static __attribute__((noinline)) bool grow(cl_device_id dev, sim_kind kind) {
  const size_t unit = sizeof(max_align_t);
  const size_t step = (object_sizes[kind] + unit - 1) / unit;
  sim_chunk *chunk = calloc(1, sizeof *chunk + CHUNK_OBJECTS * step * unit);
  if (chunk == NULL) return false;
  chunk->next = dev->chunks;
  dev->chunks = chunk;
  for (size_t i = CHUNK_OBJECTS; i-- > 0;) {
    sim_object *o = (sim_object *)&chunk->objects[i * step];
    o->device = dev;
    o->kind = kind;
    o->next_free = dev->free_objects[kind];
    dev->free_objects[kind] = o;
  }
  return true;
}

void *cla__sim_new(cl_device_id dev, sim_kind kind) {
  if (dev->free_objects[kind] == NULL && !grow(dev, kind)) return NULL;
  sim_object *o = dev->free_objects[kind];
  dev->free_objects[kind] = o->next_free;
  memset(o + 1, 0, object_sizes[kind] - sizeof *o);
  o->refs = o->holds = 1;
  atomic_store_explicit(&o->tag, SIM_MAGIC + kind, memory_order_relaxed);
  return o;
}

static void free_buffer(cl_mem m) {
  while (m->maps != NULL) {
    sim_map *map = m->maps;
    m->maps = map->next;
    cla__sim_free_map(map);
  }
  if (m->is_backed) m->o.device->used -= m->nbytes;
  cla__sim_drop(m->parent != NULL ? (void *)m->parent : (void *)m->context);
}

static __attribute__((noinline)) void free_rare(sim_object *o) {
  switch (o->kind) {
  case SIM_CONTEXT: cla__sim_drop(o->device); break;
  case SIM_QUEUE: cla__sim_drop(((cl_command_queue)o)->context); break;
  case SIM_PROGRAM: cla__sim_program_free((cl_program)o); break;
  case SIM_KERNEL: cla__sim_kernel_free((cl_kernel)o); break;
  default: break;
  }
}

void cla__sim_drop(void *object) {
  sim_object *o = object;
  if (--o->holds > 0 || o->kind == SIM_DEVICE) return; /* a device goes in cla__sim_leave */
  if (o->kind == SIM_BUFFER) free_buffer((cl_mem)o);
  else if (o->kind == SIM_EVENT) cla__sim_event_free((cl_event)o);
  else free_rare(o);
  o->next_free = o->device->free_objects[o->kind];
  o->device->free_objects[o->kind] = o;
}

void cla__sim_ref(void *object) {
  sim_object *o = object;
  if (o->refs++ > 0) return;
  o->holds++;
  atomic_store_explicit(&o->tag, SIM_MAGIC + o->kind, memory_order_relaxed);
}

void cla__sim_unref(void *object) {
  sim_object *o = object;
  if (--o->refs > 0) return;
  atomic_store_explicit(&o->tag, 0, memory_order_relaxed);
  if (o->kind == SIM_QUEUE) cla__sim_queue_abandoned((cl_command_queue)o);
  cla__sim_drop(o);
}

cl_int cla__sim_retain(void *handle, sim_kind kind, cl_int invalid) {
  sim_object *o = handle;
  if (!sim_is(o, kind)) return invalid;
  sim_enter(o->device);
  cla__sim_ref(o);
  cla__sim_leave(o->device);
  return CL_SUCCESS;
}

cl_int cla__sim_release(void *handle, sim_kind kind, cl_int invalid) {
  sim_object *o = handle;
  if (!sim_is(o, kind)) return invalid;
  cl_device_id dev = o->device;
  sim_enter(dev);
  cla__sim_unref(o);
  cla__sim_leave(dev);
  return CL_SUCCESS;
}

static void free_device(cl_device_id dev) {
  while (dev->chunks != NULL) {
    sim_chunk *chunk = dev->chunks;
    dev->chunks = chunk->next;
    free(chunk);
  }
  pthread_cond_destroy(&dev->changed);
  pthread_mutex_destroy(&dev->lock);
  free(dev);
}

void cla__sim_leave(cl_device_id dev) {
  if (dev->due != NULL) cla__sim_run_due(dev);
  bool is_last = dev->o.holds == 0;
  pthread_mutex_unlock(&dev->lock);
  if (is_last) free_device(dev);
}

/* OpenCL's protocol for every query: out may be NULL, else it must be large enough. */
cl_int cla__sim_answer(const void *from, size_t n, size_t size, void *out, size_t *used) {
  if (out != NULL) {
    if (size < n) return CL_INVALID_VALUE;
    if (n > 0) memcpy(out, from, n);
  }
  if (used != NULL) *used = n;
  return CL_SUCCESS;
}

/* ---- The device ---- */

static void name_device(cl_device_id dev) {
  const uint64_t n = dev->config.capacity;
  const struct {
    unsigned shift;
    const char *unit;
  } units[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}, {0, "byte"}};
  size_t i = 0;
  while (n % (UINT64_C(1) << units[i].shift) != 0) i++;
  snprintf(dev->name, sizeof dev->name, "Simulated %" PRIu64 " %s device", n >> units[i].shift, units[i].unit);
}

cl_device_id cla__sim_create(const cla_sim_config *config) {
  cl_device_id dev = calloc(1, sizeof *dev);
  if (dev == NULL) return NULL;
  dev->o.device = dev;
  dev->o.kind = SIM_DEVICE;
  dev->o.refs = dev->o.holds = 1;
  dev->config = *config;
  if (config->max_alloc == 0) dev->config.max_alloc = config->capacity;
  if (config->align_bytes == 0) dev->config.align_bytes = 512;
  name_device(dev);
  dev->due_end = &dev->due;
  pthread_mutex_init(&dev->lock, NULL);
  pthread_cond_init(&dev->changed, NULL);
  atomic_store_explicit(&dev->o.tag, SIM_MAGIC + SIM_DEVICE, memory_order_relaxed);
  return dev;
}

void cla__sim_destroy(cl_device_id dev) {
  if (dev != NULL) cla__sim_release(dev, SIM_DEVICE, CL_INVALID_DEVICE);
}

uint64_t cla__sim_used(cl_device_id dev) {
  if (!sim_is(dev, SIM_DEVICE)) return 0;
  sim_enter(dev);
  uint64_t used = dev->used;
  cla__sim_leave(dev);
  return used;
}

cl_int cla__sim_get_platform_ids(cl_uint n, cl_platform_id *out, cl_uint *count) {
  if ((out == NULL && count == NULL) || (out != NULL && n == 0)) return CL_INVALID_VALUE;
  if (count != NULL) *count = 0;
  return CL_SUCCESS;
}

cl_int cla__sim_get_platform_info(cl_platform_id p, cl_platform_info what, size_t size, void *out, size_t *used) {
  (void)p, (void)what, (void)size, (void)out, (void)used;
  return CL_INVALID_PLATFORM;
}

cl_int cla__sim_get_device_ids(cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id *out, cl_uint *count) {
  (void)p, (void)type, (void)n, (void)out, (void)count;
  return CL_INVALID_PLATFORM;
}

/* What every simulated device answers. `width` is sizeof of the type OpenCL gives the answer. */
static const struct {
  cl_device_info what;
  uint32_t width;
  uint64_t value;
} constants[] = {
    {CL_DEVICE_TYPE, 8, CL_DEVICE_TYPE_GPU},
    {CL_DEVICE_VENDOR_ID, 4, 0},
    {CL_DEVICE_MAX_COMPUTE_UNITS, 4, 8},
    {CL_DEVICE_MAX_CLOCK_FREQUENCY, 4, 1000},
    {CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, 4, 3},
    {CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t), SIM_MAX_GROUP},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR, 4, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_SHORT, 4, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_INT, 4, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_LONG, 4, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, 4, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE, 4, 1},
    {CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF, 4, 0},
    {CL_DEVICE_ADDRESS_BITS, 4, 64},
    {CL_DEVICE_IMAGE_SUPPORT, 4, CL_FALSE},
    {CL_DEVICE_MAX_PARAMETER_SIZE, sizeof(size_t), 4352},
    {CL_DEVICE_MIN_DATA_TYPE_ALIGN_SIZE, 4, 128},
    {CL_DEVICE_SINGLE_FP_CONFIG, 8,
     CL_FP_DENORM | CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST | CL_FP_ROUND_TO_ZERO | CL_FP_FMA},
    {CL_DEVICE_DOUBLE_FP_CONFIG, 8,
     CL_FP_DENORM | CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST | CL_FP_ROUND_TO_ZERO | CL_FP_ROUND_TO_INF | CL_FP_FMA},
    {CL_DEVICE_GLOBAL_MEM_CACHE_TYPE, 4, CL_NONE},
    {CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, 8, 0},
    {CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE, 4, 128},
    {CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, 8, 65536},
    {CL_DEVICE_MAX_CONSTANT_ARGS, 4, 9},
    {CL_DEVICE_LOCAL_MEM_TYPE, 4, CL_LOCAL},
    {CL_DEVICE_LOCAL_MEM_SIZE, 8, SIM_LOCAL_BYTES},
    {CL_DEVICE_ERROR_CORRECTION_SUPPORT, 4, CL_FALSE},
    {CL_DEVICE_HOST_UNIFIED_MEMORY, 4, CL_FALSE},
    {CL_DEVICE_PROFILING_TIMER_RESOLUTION, sizeof(size_t), SIM_COMMAND_NS},
    {CL_DEVICE_ENDIAN_LITTLE, 4, CL_TRUE},
    {CL_DEVICE_AVAILABLE, 4, CL_TRUE},
    {CL_DEVICE_COMPILER_AVAILABLE, 4, CL_TRUE},
    {CL_DEVICE_LINKER_AVAILABLE, 4, CL_TRUE},
    {CL_DEVICE_EXECUTION_CAPABILITIES, 8, CL_EXEC_KERNEL},
    {CL_DEVICE_QUEUE_ON_HOST_PROPERTIES, 8, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE},
    {CL_DEVICE_SVM_CAPABILITIES, 8, 0},
    {CL_DEVICE_PLATFORM, sizeof(void *), 0},
    {CL_DEVICE_PARENT_DEVICE, sizeof(void *), 0},
    {CL_DEVICE_REFERENCE_COUNT, 4, 1},
    {CL_DEVICE_PRINTF_BUFFER_SIZE, sizeof(size_t), 1 << 20},
    {CL_DEVICE_PREFERRED_INTEROP_USER_SYNC, 4, CL_TRUE},
};

static const struct {
  cl_device_info what;
  const char *value;
} texts[] = {
    {CL_DEVICE_VENDOR, "clalloc"},
    {CL_DRIVER_VERSION, "1.0"},
    {CL_DEVICE_PROFILE, "FULL_PROFILE"},
    {CL_DEVICE_VERSION, "OpenCL 3.0 clalloc-simulated"},
    {CL_DEVICE_OPENCL_C_VERSION, "OpenCL C 1.2 clalloc-simulated"},
    {CL_DEVICE_BUILT_IN_KERNELS, ""},
    {CL_DEVICE_EXTENSIONS, "cl_khr_byte_addressable_store cl_khr_fp64 cl_khr_global_int32_base_atomics "
                           "cl_khr_global_int32_extended_atomics cl_khr_local_int32_base_atomics "
                           "cl_khr_local_int32_extended_atomics cl_khr_int64_base_atomics "
                           "cl_khr_int64_extended_atomics"},
};

static cl_int answer_text(const char *text, size_t size, void *out, size_t *used) {
  return cla__sim_answer(text, strlen(text) + 1, size, out, used);
}

/* Answers that depend on the configuration. */
static cl_int configured_info(cl_device_id dev, cl_device_info what, size_t size, void *out, size_t *used) {
  const size_t items[3] = {SIM_MAX_GROUP, SIM_MAX_GROUP, 64};
  const cl_ulong capacity = dev->config.capacity, max_alloc = dev->config.max_alloc;
  const cl_uint align_bits = dev->config.align_bytes * 8;
  switch (what) {
  case CL_DEVICE_NAME: return answer_text(dev->name, size, out, used);
  case CL_DEVICE_GLOBAL_MEM_SIZE: return cla__sim_answer(&capacity, 8, size, out, used);
  case CL_DEVICE_MAX_MEM_ALLOC_SIZE: return cla__sim_answer(&max_alloc, 8, size, out, used);
  case CL_DEVICE_MEM_BASE_ADDR_ALIGN: return cla__sim_answer(&align_bits, 4, size, out, used);
  case CL_DEVICE_MAX_WORK_ITEM_SIZES: return cla__sim_answer(items, sizeof items, size, out, used);
  default: return CL_INVALID_VALUE;
  }
}

cl_int cla__sim_get_device_info(cl_device_id dev, cl_device_info what, size_t size, void *out, size_t *used) {
  if (!sim_is(dev, SIM_DEVICE)) return CL_INVALID_DEVICE;
  for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
    if (constants[i].what != what) continue;
    const cl_uint narrow = (cl_uint)constants[i].value;
    return constants[i].width == 4 ? cla__sim_answer(&narrow, 4, size, out, used)
                                   : cla__sim_answer(&constants[i].value, 8, size, out, used);
  }
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].what == what) return answer_text(texts[i].value, size, out, used);
  return configured_info(dev, what, size, out, used);
}

/* ---- Contexts ---- */

cl_context cla__sim_create_context(const cl_context_properties *properties, cl_uint ndevices,
                                   const cl_device_id *devices,
                                   void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *arg,
                                   cl_int *err) {
  (void)notify, (void)arg; /* errors are reported by the calls that meet them */
  if (ndevices != 1 || devices == NULL) return sim_made(NULL, CL_INVALID_VALUE, err);
  for (const cl_context_properties *p = properties; p != NULL && p[0] != 0; p += 2) {
    if (p[0] != CL_CONTEXT_PLATFORM) return sim_made(NULL, CL_INVALID_PROPERTY, err);
    if (p[1] != 0) return sim_made(NULL, CL_INVALID_PLATFORM, err);
  }
  cl_device_id dev = devices[0];
  if (!sim_is(dev, SIM_DEVICE)) return sim_made(NULL, CL_INVALID_DEVICE, err);
  sim_enter(dev);
  cl_context c = cla__sim_new(dev, SIM_CONTEXT);
  if (c != NULL) sim_hold(dev);
  cla__sim_leave(dev);
  return sim_made(c, c != NULL ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, err);
}

cl_int cla__sim_release_context(cl_context c) { return cla__sim_release(c, SIM_CONTEXT, CL_INVALID_CONTEXT); }

/* ---- Memory ---- */

void cla__sim_free_map(sim_map *map) {
  if (map->is_mmapped) munmap(map->host, map->nbytes);
  free(map);
}

bool cla__sim_back(cl_mem m) {
  cl_mem root = m->parent != NULL ? m->parent : m;
  cl_device_id dev = root->o.device;
  if (root->is_backed || (root->flags & (CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR)) != 0) return true;
  if (root->nbytes > dev->config.capacity - dev->used) return false;
  dev->used += root->nbytes;
  return root->is_backed = true;
}

static const cl_mem_flags access_flags = CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY;
static const cl_mem_flags host_access_flags = CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
static const cl_mem_flags place_flags = CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR;

static bool is_at_most_one(cl_mem_flags bits) { return (bits & (bits - 1)) == 0; }

static bool are_flags_valid(cl_mem_flags flags) {
  const bool is_clash =
      (flags & CL_MEM_USE_HOST_PTR) != 0 && (flags & (CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)) != 0;
  return !is_clash && (flags & ~(access_flags | host_access_flags | place_flags)) == 0 &&
         is_at_most_one(flags & access_flags) && is_at_most_one(flags & host_access_flags);
}

static cl_int check_buffer(const cla_sim_config *config, cl_mem_flags flags, size_t nbytes, const void *host) {
  if (!are_flags_valid(flags)) return CL_INVALID_VALUE;
  if (nbytes == 0) return CL_INVALID_BUFFER_SIZE;
  if ((host != NULL) != ((flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR)) != 0)) return CL_INVALID_HOST_PTR;
  if (nbytes > config->max_alloc && !config->accepts_oversize) return CL_INVALID_BUFFER_SIZE;
  if (config->refuse_above != 0 && nbytes >= config->refuse_above) return CL_MEM_OBJECT_ALLOCATION_FAILURE;
  return CL_SUCCESS;
}

cl_mem cla__sim_create_buffer(cl_context c, cl_mem_flags flags, size_t nbytes, void *host, cl_int *err) {
  if (!sim_is(c, SIM_CONTEXT)) return sim_made(NULL, CL_INVALID_CONTEXT, err);
  cl_device_id dev = c->o.device;
  cl_int status = check_buffer(&dev->config, flags, nbytes, host);
  if (status != CL_SUCCESS) return sim_made(NULL, status, err);
  sim_enter(dev);
  cl_mem m = cla__sim_new(dev, SIM_BUFFER);
  if (m == NULL) {
    status = CL_OUT_OF_HOST_MEMORY;
    goto done;
  }
  m->context = c;
  m->nbytes = nbytes;
  m->flags = (flags & access_flags) != 0 ? flags : flags | CL_MEM_READ_WRITE;
  m->host = (flags & CL_MEM_USE_HOST_PTR) != 0 ? host : NULL;
  m->serial = ++dev->serial;
  sim_hold(c);
  if (!dev->config.lazy && !cla__sim_back(m)) {
    status = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    cla__sim_unref(m);
    m = NULL;
  }
done:
  cla__sim_leave(dev);
  return sim_made(m, status, err);
}

/* Sub-buffers of a device that wants them released in order; nothing here retains one twice. */
static void list_sub(cl_mem parent, cl_mem m) {
  m->newer = NULL;
  m->older = parent->subs;
  if (parent->subs != NULL) parent->subs->newer = m;
  parent->subs = m;
}

static void unlist_sub(cl_mem m) {
  if (m->newer != NULL) m->newer->older = m->older;
  else m->parent->subs = m->older;
  if (m->older != NULL) m->older->newer = m->newer;
}

static bool is_under_newer(const struct _cl_mem *m) {
  for (const struct _cl_mem *n = m->newer; n != NULL; n = n->newer)
    if (n->offset < m->offset + m->nbytes && m->offset < n->offset + n->nbytes) return true;
  return false;
}

static cl_int check_region(cl_mem parent, cl_mem_flags flags, cl_buffer_create_type type,
                           const cl_buffer_region *region) {
  if (!sim_is(parent, SIM_BUFFER) || parent->parent != NULL) return CL_INVALID_MEM_OBJECT;
  if (type != CL_BUFFER_CREATE_TYPE_REGION || region == NULL || !are_flags_valid(flags) || (flags & place_flags) != 0)
    return CL_INVALID_VALUE;
  if (region->size == 0) return CL_INVALID_BUFFER_SIZE;
  if (region->origin > parent->nbytes || region->size > parent->nbytes - region->origin) return CL_INVALID_VALUE;
  if (region->origin % parent->o.device->config.align_bytes != 0) return CL_MISALIGNED_SUB_BUFFER_OFFSET;
  return CL_SUCCESS;
}

cl_mem cla__sim_create_sub_buffer(cl_mem parent, cl_mem_flags flags, cl_buffer_create_type type, const void *info,
                                  cl_int *err) {
  const cl_buffer_region *region = info;
  const cl_int status = check_region(parent, flags, type, region);
  if (status != CL_SUCCESS) return sim_made(NULL, status, err);
  cl_device_id dev = parent->o.device;
  sim_enter(dev);
  cl_mem m = cla__sim_new(dev, SIM_BUFFER);
  if (m != NULL) {
    m->context = parent->context;
    m->parent = parent;
    m->offset = region->origin;
    m->nbytes = region->size;
    m->flags = flags | (parent->flags & place_flags);
    if ((flags & access_flags) == 0) m->flags |= parent->flags & access_flags;
    if ((flags & host_access_flags) == 0) m->flags |= parent->flags & host_access_flags;
    m->host = parent->host != NULL ? parent->host + region->origin : NULL;
    m->serial = ++dev->serial;
    sim_hold(parent);
    if (dev->config.ordered_subs) list_sub(parent, m);
  }
  cla__sim_leave(dev);
  return sim_made(m, m != NULL ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, err);
}

cl_int cla__sim_release_mem(cl_mem m) {
  if (sim_is(m, SIM_BUFFER) && m->parent != NULL && m->o.device->config.ordered_subs) {
    cl_device_id dev = m->o.device;
    sim_enter(dev);
    const bool is_under = is_under_newer(m);
    if (!is_under) unlist_sub(m);
    cla__sim_leave(dev);
    if (is_under) return CL_INVALID_OPERATION;
  }
  return cla__sim_release(m, SIM_BUFFER, CL_INVALID_MEM_OBJECT);
}

/* CL_DEVICE_SVM_CAPABILITIES is 0, and this is the answer that goes with it. */
void *cla__sim_svm_alloc(cl_context c, cl_svm_mem_flags flags, size_t size, cl_uint align_bytes) {
  (void)c, (void)flags, (void)size, (void)align_bytes;
  return NULL;
}

void cla__sim_svm_free(cl_context c, void *p) { (void)c, (void)p; }
