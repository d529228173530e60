/* The simulated device's programs and kernels.
 *
 * A build is a scan (sim_source.c) that finds the kernels and the types of their parameters, and
 * fails on what it cannot read. Kernels compute nothing; what is checked is what a driver checks
 * of arguments and launches. Argument information is there only if the program was built with
 * -cl-kernel-arg-info, as OpenCL has it. An argument remembers which buffer it was given: a launch
 * after that buffer was released gets CL_INVALID_KERNEL_ARGS even if its handle was reused. */
#include "driver/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- Programs ---- */

static char *join_sources(cl_uint n, const char **strings, const size_t *lengths) {
  size_t total = 0;
  for (cl_uint i = 0; i < n; i++) total += lengths != NULL && lengths[i] != 0 ? lengths[i] : strlen(strings[i]);
  char *source = malloc(total + 1);
  if (source == NULL) return NULL;
  char *end = source;
  for (cl_uint i = 0; i < n; i++) {
    const size_t len = lengths != NULL && lengths[i] != 0 ? lengths[i] : strlen(strings[i]);
    memcpy(end, strings[i], len);
    end += len;
  }
  *end = '\0';
  return source;
}

cl_program cla__sim_create_program(cl_context c, cl_uint n, const char **strings, const size_t *lengths, cl_int *err) {
  if (!sim_is(c, SIM_CONTEXT)) return sim_made(NULL, CL_INVALID_CONTEXT, err);
  if (n == 0 || strings == NULL) return sim_made(NULL, CL_INVALID_VALUE, err);
  for (cl_uint i = 0; i < n; i++)
    if (strings[i] == NULL) return sim_made(NULL, CL_INVALID_VALUE, err);
  char *source = join_sources(n, strings, lengths);
  if (source == NULL) return sim_made(NULL, CL_OUT_OF_HOST_MEMORY, err);
  cl_device_id dev = c->o.device;
  sim_enter(dev);
  cl_program p = cla__sim_new(dev, SIM_PROGRAM);
  if (p != NULL) {
    p->context = c;
    p->source = source;
    p->status = CL_BUILD_NONE;
    sim_hold(c);
  } else free(source);
  cla__sim_leave(dev);
  return sim_made(p, p != NULL ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, err);
}

static void unbuild(cl_program p) {
  cla__sim_functions_free(p->functions, p->nfunctions);
  free(p->options);
  free(p->log);
  p->functions = NULL;
  p->nfunctions = 0;
  p->options = p->log = NULL;
  p->status = CL_BUILD_NONE;
}

void cla__sim_program_free(cl_program p) {
  unbuild(p);
  free(p->source);
  cla__sim_drop(p->context);
}

cl_int cla__sim_release_program(cl_program p) { return cla__sim_release(p, SIM_PROGRAM, CL_INVALID_PROGRAM); }

static cl_int build(cl_program p, const char *options) {
  if (p->nkernels > 0) return CL_INVALID_OPERATION;
  unbuild(p);
  p->options = strdup(options != NULL ? options : "");
  if (p->options == NULL) return CL_OUT_OF_HOST_MEMORY;
  const cl_int err = cla__sim_scan(p->source, &p->functions, &p->nfunctions, &p->log);
  p->status = err == CL_SUCCESS ? CL_BUILD_SUCCESS : CL_BUILD_ERROR;
  return err;
}

cl_int cla__sim_build_program(cl_program p, cl_uint ndevices, const cl_device_id *devices, const char *options,
                              void(CL_CALLBACK *notify)(cl_program, void *), void *arg) {
  if (!sim_is(p, SIM_PROGRAM)) return CL_INVALID_PROGRAM;
  if ((ndevices == 0) != (devices == NULL) || (notify == NULL && arg != NULL)) return CL_INVALID_VALUE;
  for (cl_uint i = 0; i < ndevices; i++)
    if (devices[i] != p->o.device) return CL_INVALID_DEVICE;
  sim_enter(p->o.device);
  const cl_int err = build(p, options);
  cla__sim_leave(p->o.device);
  if (notify != NULL) notify(p, arg);
  return err;
}

static cl_int answer_text(const char *text, size_t size, void *out, size_t *used) {
  if (text == NULL) text = "";
  return cla__sim_answer(text, strlen(text) + 1, size, out, used);
}

cl_int cla__sim_get_build_info(cl_program p, cl_device_id dev, cl_program_build_info what, size_t size, void *out,
                               size_t *used) {
  if (!sim_is(p, SIM_PROGRAM)) return CL_INVALID_PROGRAM;
  if (dev != p->o.device) return CL_INVALID_DEVICE;
  sim_enter(dev);
  const cl_program_binary_type type =
      p->status == CL_BUILD_SUCCESS ? CL_PROGRAM_BINARY_TYPE_EXECUTABLE : CL_PROGRAM_BINARY_TYPE_NONE;
  cl_int err = CL_INVALID_VALUE;
  switch (what) {
  case CL_PROGRAM_BUILD_STATUS: err = cla__sim_answer(&p->status, sizeof p->status, size, out, used); break;
  case CL_PROGRAM_BUILD_OPTIONS: err = answer_text(p->options, size, out, used); break;
  case CL_PROGRAM_BUILD_LOG: err = answer_text(p->log, size, out, used); break;
  case CL_PROGRAM_BINARY_TYPE: err = cla__sim_answer(&type, sizeof type, size, out, used); break;
  default: break;
  }
  cla__sim_leave(dev);
  return err;
}

/* "a;b;c" */
static cl_int answer_names(cl_program p, size_t size, void *out, size_t *used) {
  size_t total = 1;
  for (size_t i = 0; i < p->nfunctions; i++) total += strlen(p->functions[i].name) + 1;
  char *names = malloc(total), *end = names;
  if (names == NULL) return CL_OUT_OF_HOST_MEMORY;
  for (size_t i = 0; i < p->nfunctions; i++) {
    if (i > 0) *end++ = ';';
    const size_t len = strlen(p->functions[i].name);
    memcpy(end, p->functions[i].name, len);
    end += len;
  }
  *end = '\0';
  const cl_int err = answer_text(names, size, out, used);
  free(names);
  return err;
}

static cl_int program_info(cl_program p, cl_program_info what, size_t size, void *out, size_t *used) {
  const cl_uint one = 1, refs = p->o.refs;
  const bool is_built = p->status == CL_BUILD_SUCCESS;
  switch (what) {
  case CL_PROGRAM_REFERENCE_COUNT: return cla__sim_answer(&refs, sizeof refs, size, out, used);
  case CL_PROGRAM_CONTEXT: return cla__sim_answer(&p->context, sizeof p->context, size, out, used);
  case CL_PROGRAM_NUM_DEVICES: return cla__sim_answer(&one, sizeof one, size, out, used);
  case CL_PROGRAM_DEVICES: return cla__sim_answer(&p->o.device, sizeof p->o.device, size, out, used);
  case CL_PROGRAM_SOURCE: return answer_text(p->source, size, out, used);
  case CL_PROGRAM_NUM_KERNELS:
    return is_built ? cla__sim_answer(&p->nfunctions, sizeof p->nfunctions, size, out, used)
                    : CL_INVALID_PROGRAM_EXECUTABLE;
  case CL_PROGRAM_KERNEL_NAMES: return is_built ? answer_names(p, size, out, used) : CL_INVALID_PROGRAM_EXECUTABLE;
  default: return CL_INVALID_VALUE;
  }
}

cl_int cla__sim_get_program_info(cl_program p, cl_program_info what, size_t size, void *out, size_t *used) {
  if (!sim_is(p, SIM_PROGRAM)) return CL_INVALID_PROGRAM;
  sim_enter(p->o.device);
  const cl_int err = program_info(p, what, size, out, used);
  cla__sim_leave(p->o.device);
  return err;
}

/* ---- Kernels ---- */

static const sim_function *find_function(cl_program p, const char *name) {
  for (size_t i = 0; i < p->nfunctions; i++)
    if (strcmp(p->functions[i].name, name) == 0) return &p->functions[i];
  return NULL;
}

static cl_kernel new_kernel(cl_program p, const sim_function *f) {
  sim_value *values = calloc(f->nargs + 1, sizeof *values);
  cl_mem *uses = calloc(f->nargs + 1, sizeof *uses);
  cl_kernel k = values != NULL && uses != NULL ? cla__sim_new(p->o.device, SIM_KERNEL) : NULL;
  if (k == NULL) {
    free(values);
    free(uses);
    return NULL;
  }
  k->program = p;
  k->function = f;
  k->values = values;
  k->uses = uses;
  k->nunset = f->nargs;
  p->nkernels++;
  sim_hold(p);
  return k;
}

cl_kernel cla__sim_create_kernel(cl_program p, const char *name, cl_int *err) {
  if (!sim_is(p, SIM_PROGRAM)) return sim_made(NULL, CL_INVALID_PROGRAM, err);
  if (name == NULL) return sim_made(NULL, CL_INVALID_VALUE, err);
  cl_int status = CL_SUCCESS;
  cl_kernel k = NULL;
  sim_enter(p->o.device);
  const sim_function *f = find_function(p, name);
  if (p->status != CL_BUILD_SUCCESS) status = CL_INVALID_PROGRAM_EXECUTABLE;
  else if (f == NULL) status = CL_INVALID_KERNEL_NAME;
  else if ((k = new_kernel(p, f)) == NULL) status = CL_OUT_OF_HOST_MEMORY;
  cla__sim_leave(p->o.device);
  return sim_made(k, status, err);
}

void cla__sim_kernel_free(cl_kernel k) {
  free(k->values);
  free(k->uses);
  k->program->nkernels--;
  cla__sim_drop(k->program);
}

cl_int cla__sim_release_kernel(cl_kernel k) { return cla__sim_release(k, SIM_KERNEL, CL_INVALID_KERNEL); }

cl_int cla__sim_get_kernel_info(cl_kernel k, cl_kernel_info what, size_t size, void *out, size_t *used) {
  if (!sim_is(k, SIM_KERNEL)) return CL_INVALID_KERNEL;
  const cl_uint nargs = (cl_uint)k->function->nargs;
  sim_enter(k->o.device);
  const cl_uint refs = k->o.refs;
  cla__sim_leave(k->o.device);
  switch (what) {
  case CL_KERNEL_FUNCTION_NAME: return answer_text(k->function->name, size, out, used);
  case CL_KERNEL_NUM_ARGS: return cla__sim_answer(&nargs, sizeof nargs, size, out, used);
  case CL_KERNEL_REFERENCE_COUNT: return cla__sim_answer(&refs, sizeof refs, size, out, used);
  case CL_KERNEL_CONTEXT: return cla__sim_answer(&k->program->context, sizeof(cl_context), size, out, used);
  case CL_KERNEL_PROGRAM: return cla__sim_answer(&k->program, sizeof k->program, size, out, used);
  case CL_KERNEL_ATTRIBUTES: return answer_text("", size, out, used);
  default: return CL_INVALID_VALUE;
  }
}

cl_int cla__sim_get_kernel_arg_info(cl_kernel k, cl_uint index, cl_kernel_arg_info what, size_t size, void *out,
                                    size_t *used) {
  if (!sim_is(k, SIM_KERNEL)) return CL_INVALID_KERNEL;
  if (index >= k->function->nargs) return CL_INVALID_ARG_INDEX;
  if (strstr(k->program->options, "-cl-kernel-arg-info") == NULL) return CL_KERNEL_ARG_INFO_NOT_AVAILABLE;
  const sim_arg *arg = &k->function->args[index];
  switch (what) {
  case CL_KERNEL_ARG_ADDRESS_QUALIFIER: return cla__sim_answer(&arg->address, sizeof arg->address, size, out, used);
  case CL_KERNEL_ARG_ACCESS_QUALIFIER: return cla__sim_answer(&arg->access, sizeof arg->access, size, out, used);
  case CL_KERNEL_ARG_TYPE_QUALIFIER: return cla__sim_answer(&arg->qualifiers, sizeof arg->qualifiers, size, out, used);
  case CL_KERNEL_ARG_TYPE_NAME: return answer_text(arg->type, size, out, used);
  case CL_KERNEL_ARG_NAME: return answer_text(arg->name, size, out, used);
  default: return CL_INVALID_VALUE;
  }
}

static size_t local_nbytes(cl_kernel k) {
  size_t total = 0;
  for (size_t i = 0; i < k->function->nargs; i++) total += k->values[i].local_nbytes;
  return total;
}

cl_int cla__sim_get_kernel_group_info(cl_kernel k, cl_device_id dev, cl_kernel_work_group_info what, size_t size,
                                      void *out, size_t *used) {
  if (!sim_is(k, SIM_KERNEL)) return CL_INVALID_KERNEL;
  if (dev != NULL && dev != k->o.device) return CL_INVALID_DEVICE;
  const size_t group = SIM_MAX_GROUP, warp = SIM_WARP;
  sim_enter(k->o.device);
  const cl_ulong none = 0, local = local_nbytes(k);
  cla__sim_leave(k->o.device);
  switch (what) {
  case CL_KERNEL_WORK_GROUP_SIZE: return cla__sim_answer(&group, sizeof group, size, out, used);
  case CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE: return cla__sim_answer(&warp, sizeof warp, size, out, used);
  case CL_KERNEL_COMPILE_WORK_GROUP_SIZE:
    return cla__sim_answer(k->function->group, sizeof k->function->group, size, out, used);
  case CL_KERNEL_LOCAL_MEM_SIZE: return cla__sim_answer(&local, sizeof local, size, out, used);
  case CL_KERNEL_PRIVATE_MEM_SIZE: return cla__sim_answer(&none, sizeof none, size, out, used);
  default: return CL_INVALID_VALUE;
  }
}

/* Checks a value against its parameter and describes it in *set. */
static cl_int check_arg(cl_kernel k, const sim_arg *arg, size_t size, const void *value, sim_value *set) {
  *set = (sim_value){.is_set = true};
  if (!arg->is_pointer) {
    if (value == NULL) return CL_INVALID_ARG_VALUE;
    return size == 0 || (arg->nbytes != 0 && size != arg->nbytes) ? CL_INVALID_ARG_SIZE : CL_SUCCESS;
  }
  if (arg->address == CL_KERNEL_ARG_ADDRESS_LOCAL) {
    set->local_nbytes = size;
    if (value != NULL) return CL_INVALID_ARG_VALUE;
    return size == 0 ? CL_INVALID_ARG_SIZE : CL_SUCCESS;
  }
  if (size != sizeof(cl_mem)) return CL_INVALID_ARG_SIZE;
  if (value != NULL) memcpy(&set->mem, value, sizeof set->mem);
  if (set->mem == NULL) return CL_SUCCESS;
  if (!sim_is(set->mem, SIM_BUFFER) || set->mem->context != k->program->context) return CL_INVALID_MEM_OBJECT;
  set->serial = set->mem->serial;
  return CL_SUCCESS;
}

cl_int cla__sim_set_kernel_arg(cl_kernel k, cl_uint index, size_t size, const void *value) {
  if (!sim_is(k, SIM_KERNEL)) return CL_INVALID_KERNEL;
  if (index >= k->function->nargs) return CL_INVALID_ARG_INDEX;
  sim_value set;
  const cl_int err = check_arg(k, &k->function->args[index], size, value, &set);
  if (err != CL_SUCCESS) return err;
  sim_enter(k->o.device);
  if (!k->values[index].is_set) k->nunset--;
  k->values[index] = set;
  cla__sim_leave(k->o.device);
  return CL_SUCCESS;
}

/* ---- Launches ---- */

static cl_int check_group(const sim_function *f, cl_uint dims, const size_t *global, const size_t *local) {
  const size_t max[3] = {SIM_MAX_GROUP, SIM_MAX_GROUP, 64};
  size_t total = 1;
  for (cl_uint i = 0; i < dims; i++) {
    if (local[i] == 0) return CL_INVALID_WORK_GROUP_SIZE;
    if (local[i] > max[i]) return CL_INVALID_WORK_ITEM_SIZE;
    if (global[i] % local[i] != 0) return CL_INVALID_WORK_GROUP_SIZE;
    if (f->group[0] != 0 && local[i] != f->group[i]) return CL_INVALID_WORK_GROUP_SIZE;
    total *= local[i];
  }
  return total > SIM_MAX_GROUP ? CL_INVALID_WORK_GROUP_SIZE : CL_SUCCESS;
}

static cl_int check_range(const sim_function *f, cl_uint dims, const size_t *global, const size_t *local) {
  if (dims < 1 || dims > 3) return CL_INVALID_WORK_DIMENSION;
  if (global == NULL) return CL_INVALID_GLOBAL_WORK_SIZE;
  if (local != NULL) return check_group(f, dims, global, local);
  for (cl_uint i = 0; f->group[0] != 0 && i < dims; i++)
    if (global[i] % f->group[i] != 0) return CL_INVALID_WORK_GROUP_SIZE;
  return CL_SUCCESS;
}

cl_int cla__sim_kernel_ready(cl_kernel k, cl_uint dims, const size_t *global, const size_t *local, size_t *nuses) {
  const cl_int err = check_range(k->function, dims, global, local);
  if (err != CL_SUCCESS) return err;
  if (k->nunset > 0) return CL_INVALID_KERNEL_ARGS;
  size_t n = 0, shared_nbytes = 0;
  for (size_t i = 0; i < k->function->nargs; i++) {
    const sim_value *value = &k->values[i];
    shared_nbytes += value->local_nbytes;
    if (value->mem == NULL) continue;
    if (!sim_is(value->mem, SIM_BUFFER) || value->mem->serial != value->serial) return CL_INVALID_KERNEL_ARGS;
    k->uses[n++] = value->mem;
  }
  *nuses = n;
  return shared_nbytes > SIM_LOCAL_BYTES ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}
