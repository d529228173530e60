/* Devices: discovery over all platforms, selection, one context each, and what "current" means on a thread.
 *
 * The same OpenCL device is one cla_device for everybody in the process, found again through the registry and
 * counted. Its default stream, service stream and default pool live and die with it. The registry's lock is
 * never held while a driver is called: what two threads make at once, one of them throws away. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/runtime.h"

/* ---- Fork: the driver stays with the parent ---- */

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static void watch_forks(void) { pthread_atfork(NULL, NULL, cla__forbid_driver); }

/* ---- Registry ---- */

typedef struct entry {
  cl_platform_id platform;
  cl_device_id id;
  cla_device_info info;
  cla_device *open; /* NULL while nobody uses it */
} entry;

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  entry *entries; /* written once */
  size_t count;
} registry;

static void text_info(const cla_driver *driver, cl_device_id id, cl_device_info what, char *out, size_t size) {
  if (cla__get_device_info(driver, id, what, size, out, NULL) != CL_SUCCESS) snprintf(out, size, "?");
  out[size - 1] = 0;
}

static bool ask(const cla_driver *driver, cl_device_id id, cl_device_info what, void *out, size_t size) {
  return cla__get_device_info(driver, id, what, size, out, NULL) == CL_SUCCESS;
}

/* False when the device cannot say what every device must know: it is broken, and skipped. */
static bool read_info(const cla_driver *driver, cl_platform_id platform, cl_device_id id, cla_device_info *out) {
  memset(out, 0, sizeof *out);
  cl_bool available = CL_FALSE;
  cl_ulong local_mem = 0, global_mem = 0, max_alloc = 0;
  cl_uint align_bits = 0, units = 0;
  cl_device_fp_config fp32 = 0, fp64 = 0;
  cl_device_svm_capabilities svm = 0;
  if (!ask(driver, id, CL_DEVICE_AVAILABLE, &available, sizeof available) || !available) return false;
  if (!ask(driver, id, CL_DEVICE_GLOBAL_MEM_SIZE, &global_mem, sizeof global_mem) || !global_mem) return false;
  if (!ask(driver, id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, &max_alloc, sizeof max_alloc) || !max_alloc) return false;
  if (!ask(driver, id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, &align_bits, sizeof align_bits)) return false;
  ask(driver, id, CL_DEVICE_TYPE, &out->type, sizeof out->type);
  ask(driver, id, CL_DEVICE_LOCAL_MEM_SIZE, &local_mem, sizeof local_mem);
  ask(driver, id, CL_DEVICE_MAX_COMPUTE_UNITS, &units, sizeof units);
  ask(driver, id, CL_DEVICE_MAX_WORK_GROUP_SIZE, &out->max_group, sizeof out->max_group);
  if (!ask(driver, id, CL_DEVICE_SINGLE_FP_CONFIG, &fp32, sizeof fp32)) fp32 = 0;
  if (!ask(driver, id, CL_DEVICE_DOUBLE_FP_CONFIG, &fp64, sizeof fp64)) fp64 = 0;
  if (!ask(driver, id, CL_DEVICE_SVM_CAPABILITIES, &svm, sizeof svm)) svm = 0;
  text_info(driver, id, CL_DEVICE_NAME, out->name, sizeof out->name);
  text_info(driver, id, CL_DEVICE_VENDOR, out->vendor, sizeof out->vendor);
  text_info(driver, id, CL_DEVICE_VERSION, out->version, sizeof out->version);
  text_info(driver, id, CL_DRIVER_VERSION, out->driver_version, sizeof out->driver_version);
  if (!platform || cla__get_platform_info(driver, platform, CL_PLATFORM_NAME, sizeof out->platform, out->platform,
                                          NULL) != CL_SUCCESS)
    snprintf(out->platform, sizeof out->platform, "none");
  out->global_mem = global_mem;
  out->max_alloc = max_alloc;
  out->align_bytes = align_bits / 8 ? align_bits / 8 : 1; /* OpenCL counts bits (llama.cpp#7090) */
  out->compute_units = units;
  out->local_mem = (size_t)local_mem;
  out->has_fp64 = fp64 != 0;
  out->has_rounded_divide = (fp32 & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
  out->has_svm = (svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0;
  out->simulated = driver == &cla__driver_simulated;
  out->index = SIZE_MAX;
  return true;
}

static bool append(entry **list, size_t *count, const entry *e) {
  entry *grown = realloc(*list, (*count + 1) * sizeof **list);
  if (!grown) return false;
  *list = grown;
  grown[*count] = *e;
  grown[*count].info.index = *count;
  (*count)++;
  return true;
}

static void list_platform(const cla_driver *driver, cl_platform_id platform, entry **list, size_t *count) {
  cl_device_id ids[64];
  cl_uint n = 0;
  if (cla__get_device_ids(driver, platform, CL_DEVICE_TYPE_ALL, 64, ids, &n) != CL_SUCCESS) return;
  for (cl_uint i = 0; i < n && i < 64; i++) {
    entry e = {.platform = platform, .id = ids[i]};
    if (read_info(driver, platform, ids[i], &e.info)) append(list, count, &e);
  }
}

static cla_status discover(void) {
  pthread_once(&fork_once, watch_forks);
  cla_status status = cla__alive();
  if (status) return status;
  pthread_mutex_lock(&registry_lock);
  bool known = registry.count > 0;
  pthread_mutex_unlock(&registry_lock);
  if (known) return CLA_OK;
  const cla_driver *driver = &cla__driver_opencl;
  cl_platform_id platforms[32];
  cl_uint n = 0;
  cl_int err = cla__get_platform_ids(driver, 32, platforms, &n);
  if (err && err != -1001 /* no platform at all */) return cla__driver_error(CLA_CALL_get_platform_ids, err);
  if (err) n = 0;
  if (n > 32) n = 32;
  entry *list = NULL;
  size_t count = 0;
  for (cl_uint i = 0; i < n; i++) list_platform(driver, platforms[i], &list, &count);
  if (!count)
    return cla__error(CLA_E_NO_DEVICE,
                      "no OpenCL device: %u platform%s found, none with a usable device; install a driver, "
                      "for example: apt-get install pocl-opencl-icd",
                      (unsigned)n, n == 1 ? "" : "s");
  pthread_mutex_lock(&registry_lock);
  if (!registry.count) {
    registry.entries = list;
    registry.count = count;
    list = NULL;
  }
  pthread_mutex_unlock(&registry_lock);
  free(list);
  return CLA_OK;
}

cla_status cla_device_count(size_t *out) {
  cla_status status = discover();
  if (status == CLA_E_NO_DEVICE) {
    *out = 0;
    return CLA_OK;
  }
  if (!status) *out = registry.count;
  return status;
}

/* ---- Life ---- */

static void device_free(cla_device *d) {
  if (d->heap) d->heap_closer(d->heap);
  if (d->host) d->host_closer(d->host);
  if (d->pool) d->pool_closer(d->pool);
  cla__stream_end_own(d->stream);
  cla__stream_end_own(d->service);
  if (d->context) cla__release_context(d->driver, d->context);
  if (d->driver == &cla__driver_simulated && d->id) cla__sim_destroy(d->id);
  pthread_mutex_destroy(&d->lock);
  pthread_mutex_destroy(&d->subs_lock);
  free(d);
}

static cla_status device_new(const cla_driver *driver, const entry *e, cla_device **out) {
  cla_device *d = calloc(1, sizeof *d);
  if (!d) return cla__error(CLA_E_NOMEM, "no host memory for a device");
  atomic_init(&d->refs, 1);
  pthread_mutex_init(&d->lock, NULL);
  pthread_mutex_init(&d->subs_lock, NULL);
  d->driver = driver;
  d->platform = e->platform;
  d->info = e->info;
  d->subs_are_ordered = strstr(d->info.vendor, "NVIDIA") != NULL;
  cl_int err = CL_SUCCESS;
  const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)e->platform, 0};
  d->context = cla__create_context(driver, e->platform ? properties : NULL, e->id, &err);
  cla_status status = d->context ? CLA_OK : cla__driver_error(CLA_CALL_create_context, err);
  d->id = e->id;
  if (!status) status = cla__stream_create(d, true, &d->stream);
  if (!status) status = cla__stream_create(d, true, &d->service);
  if (status) {
    d->id = NULL; /* a simulated device is the caller's until we succeed */
    device_free(d);
    return status;
  }
  *out = d;
  return CLA_OK;
}

cla_status cla_device_open_index(size_t index, cla_device **out) {
  cla_status status = discover();
  if (status) return status;
  if (!out) return cla__error(CLA_E_INVALID, "device_open: no place for the result");
  if (index >= registry.count)
    return cla__error(CLA_E_NO_DEVICE, "no device %zu: there %s %zu, counted from 0", index,
                      registry.count == 1 ? "is" : "are", registry.count);
  entry *e = &registry.entries[index];
  cla_device *fresh = NULL;
  for (;;) {
    pthread_mutex_lock(&registry_lock);
    if (e->open) {
      cla_device_retain(e->open);
      *out = e->open;
    } else if (fresh) {
      *out = e->open = fresh;
      fresh = NULL;
    } else {
      *out = NULL;
    }
    pthread_mutex_unlock(&registry_lock);
    if (*out) break;
    status = device_new(&cla__driver_opencl, e, &fresh);
    if (status) return status;
  }
  if (fresh) device_free(fresh);
  return CLA_OK;
}

void cla_device_retain(cla_device *d) {
  if (d) atomic_fetch_add(&d->refs, 1);
}

void cla_device_release(cla_device *d) {
  if (!d || cla__driver_forbidden()) return;
  pthread_mutex_lock(&registry_lock);
  bool last = atomic_fetch_sub(&d->refs, 1) == 1;
  if (last && d->info.index < registry.count && registry.entries[d->info.index].open == d)
    registry.entries[d->info.index].open = NULL;
  pthread_mutex_unlock(&registry_lock);
  if (last) device_free(d);
}

cla_status cla_simulate(const cla_simulation *sim, cla_device **out) {
  pthread_once(&fork_once, watch_forks);
  cla_status status = cla__alive();
  if (status) return status;
  if (!sim || !out) return cla__error(CLA_E_INVALID, "simulate: no description");
  if (!sim->capacity) return cla__error(CLA_E_INVALID, "simulate: a capacity of 0 bytes");
  if (sim->align_bytes & (sim->align_bytes - 1))
    return cla__error(CLA_E_INVALID, "simulate: an alignment of %u bytes is no power of two", sim->align_bytes);
  const cla_sim_config config = {.capacity = sim->capacity,
                                 .max_alloc = sim->max_alloc,
                                 .align_bytes = sim->align_bytes,
                                 .lazy = sim->lazy,
                                 .manual = sim->manual,
                                 .accepts_oversize = sim->accepts_oversize,
                                 .refuse_above = sim->refuse_above,
                                 .ordered_subs = sim->ordered_subs};
  entry e = {.id = cla__sim_create(&config)};
  if (!e.id) return cla__error(CLA_E_NOMEM, "no host memory for a simulated device");
  if (!read_info(&cla__driver_simulated, NULL, e.id, &e.info))
    status = cla__error(CLA_E_DRIVER, "the simulated device does not answer");
  if (!status) status = device_new(&cla__driver_simulated, &e, out);
  if (!status) (*out)->is_manual = sim->manual, (*out)->subs_are_ordered = sim->ordered_subs;
  if (status) cla__sim_destroy(e.id);
  return status;
}

cla_status cla_simulate_complete(cla_stream *s, uint64_t ncommands, uint64_t *completed) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!s) return cla__error(CLA_E_INVALID, "simulate_complete: no stream");
  if (s->device->driver != &cla__driver_simulated)
    return cla__error(CLA_E_UNSUPPORTED, "simulate_complete: %s is not simulated", s->device->info.name);
  uint64_t n = cla__sim_complete(s->queue, ncommands);
  if (completed) *completed = n;
  return CLA_OK;
}

/* ---- Selection ---- */

static bool contains(const char *text, const char *part) {
  size_t n = strlen(part);
  for (; *text; text++)
    if (strncasecmp(text, part, n) == 0) return true;
  return n == 0;
}

static bool type_named(const char *selector, cl_device_type *out) {
  static const struct {
    const char *name;
    cl_device_type type;
  } types[] = {{"gpu", CL_DEVICE_TYPE_GPU},
               {"cpu", CL_DEVICE_TYPE_CPU},
               {"accelerator", CL_DEVICE_TYPE_ACCELERATOR},
               {"custom", CL_DEVICE_TYPE_CUSTOM}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcasecmp(selector, types[i].name) == 0) {
      *out = types[i].type;
      return true;
    }
  return false;
}

/* The index of the first device that the predicate's arguments fit, or the count. */
static size_t first_of_type(cl_device_type type) {
  size_t i = 0;
  while (i < registry.count && !(registry.entries[i].info.type & type)) i++;
  return i;
}

static size_t first_named(const char *part) {
  size_t i = 0;
  while (i < registry.count && !contains(registry.entries[i].info.name, part) &&
         !contains(registry.entries[i].info.platform, part))
    i++;
  return i;
}

static cla_status no_such_device(const char *selector) {
  char list[600] = "";
  size_t used = 0;
  for (size_t i = 0; i < registry.count && used < sizeof list; i++) {
    int n = snprintf(list + used, sizeof list - used, "%s%zu: %s (%s)", i ? "; " : "", i, registry.entries[i].info.name,
                     registry.entries[i].info.platform);
    used += n > 0 ? (size_t)n : 0;
  }
  return cla__error(CLA_E_NO_DEVICE, "no device '%.64s'; there are %s", selector, list);
}

cla_status cla_device_open(const char *selector, cla_device **out) {
  cla_status status = discover();
  if (status) return status;
  if (!selector) selector = getenv("CLALLOC_DEVICE");
  size_t i;
  cl_device_type type;
  if (!selector || !*selector) {
    i = first_of_type(CL_DEVICE_TYPE_GPU);
    if (i == registry.count) i = first_of_type(CL_DEVICE_TYPE_CPU);
    if (i == registry.count) i = 0;
  } else if (selector[strspn(selector, "0123456789")] == 0) {
    char *end;
    unsigned long long n = strtoull(selector, &end, 10);
    i = n < registry.count ? (size_t)n : registry.count;
  } else if (type_named(selector, &type)) {
    i = first_of_type(type);
  } else {
    i = first_named(selector);
  }
  if (i == registry.count) return no_such_device(selector);
  return cla_device_open_index(i, out);
}

/* ---- Current ---- */

static _Thread_local cla_guard current; /* retained while active */

/* The device of NULL arguments outside any guard: opened once, kept until the process ends. */
static cla_status fallback_device(cla_device **out) {
  static _Atomic(cla_device *) fallback;
  cla_device *d = atomic_load(&fallback);
  if (!d) {
    cla_status status = cla_device_open(NULL, &d);
    if (status) return status;
    cla_device *none = NULL;
    if (!atomic_compare_exchange_strong(&fallback, &none, d)) {
      cla_device_release(d);
      d = none;
    }
  }
  *out = d;
  return CLA_OK;
}

cla_status cla_current(cla_device **device, cla_stream **stream) {
  cla_status status = cla__alive();
  if (status) return status;
  cla_device *d = current.device;
  if (!current.active && (status = fallback_device(&d)) != CLA_OK) return status;
  if (device) *device = d;
  if (stream) *stream = current.active && current.stream ? current.stream : d->stream;
  return CLA_OK;
}

cla_status cla__current_for(cla_device *d, cla_device **device, cla_stream **stream) {
  if (!d) return cla_current(device, stream);
  *device = d;
  *stream = current.active && current.device == d && current.stream ? current.stream : d->stream;
  return CLA_OK;
}

cla_status cla_guard_enter(cla_device *d, cla_stream *s, cla_guard *saved) {
  cla_status status = cla__alive();
  if (status) return status;
  if (!d && s) d = s->device;
  if (!d || !saved) return cla__error(CLA_E_INVALID, "guard: no device");
  if (s && s->device != d)
    return cla__error(CLA_E_INVALID, "guard: the stream belongs to %s, not to %s", s->device->info.name, d->info.name);
  *saved = current;
  cla_device_retain(d);
  cla_stream_retain(s);
  current = (cla_guard){.device = d, .stream = s, .active = true};
  return CLA_OK;
}

void cla_guard_leave(const cla_guard *saved) {
  if (!saved) return;
  cla_guard left = current;
  current = *saved;
  if (!left.active) return;
  cla_stream_release(left.stream);
  cla_device_release(left.device);
}

/* ---- Inspect ---- */

const cla_device_info *cla_device_get_info(const cla_device *d) { return &d->info; }
cl_device_id cla_device_id(const cla_device *d) { return d->id; }
cl_context cla_device_context(const cla_device *d) { return d->context; }
cla_stream *cla_device_stream(cla_device *d) { return d->stream; }
