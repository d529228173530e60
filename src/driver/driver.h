/* The driver table: the only way this library reaches OpenCL.
 *
 * A driver is a table of functions with OpenCL's own signatures. `opencl.c` fills it with the ICD
 * loader's entry points, `simulated.c` with a device that has a capacity and no memory. Everything
 * above calls the `cla__` functions declared here (faults.c), never a table entry itself: they
 * count calls and live objects, make the n-th call fail when a test asks for it, and refuse to
 * reach a driver in a forked child, where its threads and mappings no longer exist.
 *
 * Objects of the simulated driver are its own structs behind the OpenCL handle types; they never
 * meet the ICD loader. Rule for all callers: hold no lock while calling anything in this file. */
#ifndef CLA_DRIVER_H
#define CLA_DRIVER_H

#include <CL/cl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, function): one row for each driver call the library makes. The name is what
 * cl.debug.calls() and cl.debug.fail() use. */
#define CLA_DRIVER_CALLS(X)                           \
  X(get_platform_ids, clGetPlatformIDs)               \
  X(get_platform_info, clGetPlatformInfo)             \
  X(get_device_ids, clGetDeviceIDs)                   \
  X(get_device_info, clGetDeviceInfo)                 \
  X(create_context, clCreateContext)                  \
  X(release_context, clReleaseContext)                \
  X(create_queue, clCreateCommandQueueWithProperties) \
  X(retain_queue, clRetainCommandQueue)               \
  X(release_queue, clReleaseCommandQueue)             \
  X(get_queue_info, clGetCommandQueueInfo)            \
  X(create_buffer, clCreateBuffer)                    \
  X(create_sub_buffer, clCreateSubBuffer)             \
  X(release_mem, clReleaseMemObject)                  \
  X(svm_alloc, clSVMAlloc)                            \
  X(svm_free, clSVMFree)                              \
  X(enqueue_read, clEnqueueReadBuffer)                \
  X(enqueue_write, clEnqueueWriteBuffer)              \
  X(enqueue_copy, clEnqueueCopyBuffer)                \
  X(enqueue_fill, clEnqueueFillBuffer)                \
  X(enqueue_map, clEnqueueMapBuffer)                  \
  X(enqueue_unmap, clEnqueueUnmapMemObject)           \
  X(enqueue_migrate, clEnqueueMigrateMemObjects)      \
  X(enqueue_marker, clEnqueueMarkerWithWaitList)      \
  X(enqueue_barrier, clEnqueueBarrierWithWaitList)    \
  X(enqueue_kernel, clEnqueueNDRangeKernel)           \
  X(flush, clFlush)                                   \
  X(finish, clFinish)                                 \
  X(create_user_event, clCreateUserEvent)             \
  X(set_user_event, clSetUserEventStatus)             \
  X(retain_event, clRetainEvent)                      \
  X(release_event, clReleaseEvent)                    \
  X(get_event_info, clGetEventInfo)                   \
  X(wait_events, clWaitForEvents)                     \
  X(get_event_profile, clGetEventProfilingInfo)       \
  X(set_event_callback, clSetEventCallback)           \
  X(create_program, clCreateProgramWithSource)        \
  X(build_program, clBuildProgram)                    \
  X(get_build_info, clGetProgramBuildInfo)            \
  X(get_program_info, clGetProgramInfo)               \
  X(release_program, clReleaseProgram)                \
  X(create_kernel, clCreateKernel)                    \
  X(release_kernel, clReleaseKernel)                  \
  X(get_kernel_info, clGetKernelInfo)                 \
  X(get_kernel_arg_info, clGetKernelArgInfo)          \
  X(get_kernel_group_info, clGetKernelWorkGroupInfo)  \
  X(set_kernel_arg, clSetKernelArg)

typedef enum cla_call {
#define CLA_CALL_ENUM(name, function) CLA_CALL_##name,
  CLA_DRIVER_CALLS(CLA_CALL_ENUM)
#undef CLA_CALL_ENUM
      CLA_CALL_COUNT
} cla_call;

typedef struct cla_driver {
  const char *name; /* "opencl" or "simulated" */
#define CLA_CALL_FIELD(name, function) __typeof__(function) *name;
  CLA_DRIVER_CALLS(CLA_CALL_FIELD)
#undef CLA_CALL_FIELD
} cla_driver;

extern const cla_driver cla__driver_opencl;    /* opencl.c */
extern const cla_driver cla__driver_simulated; /* simulated.c */

/* ---- Counting and faults (faults.c) ---- */

/* Kinds of driver objects whose references the library owns. */
typedef enum cla_live {
  CLA_LIVE_CONTEXT, /* clCreateContext */
  CLA_LIVE_QUEUE,   /* clCreateCommandQueue..., clRetainCommandQueue */
  CLA_LIVE_BUFFER,  /* clCreateBuffer */
  CLA_LIVE_SUB,     /* clCreateSubBuffer */
  CLA_LIVE_SVM,     /* clSVMAlloc */
  CLA_LIVE_EVENT,   /* events handed out by enqueues, user events, clRetainEvent */
  CLA_LIVE_PROGRAM, /* clCreateProgramWithSource */
  CLA_LIVE_KERNEL,  /* clCreateKernel */
  CLA_LIVE_COUNT
} cla_live;

const char *cla__call_name(cla_call call); /* "create_buffer" */
const char *cla__live_name(cla_live kind); /* "buffer" */
int cla__call_find(const char *name);      /* cla_call, or -1 */
uint64_t cla__call_count(cla_call call);   /* calls made since the start or the last reset */
uint64_t cla__call_total(void);            /* of all kinds */
void cla__calls_reset(void);
int64_t cla__live_count(cla_live kind); /* references owned now */

/* Makes the n-th call from now (1: the next) of this kind fail with `code`; call < 0 means calls
 * of any kind. code 0 picks a likely one. n == 0 disarms. One fault is armed at a time; it disarms
 * itself when it fires. Calls that release, and the opening of a gate, do their work all the same
 * and only report failure: a driver that keeps what it was told to let go cannot be mended from
 * here. svm_free has no result: it is counted, but neither fails nor counts towards n. */
void cla__fail(int call, uint64_t n, cl_int code);
bool cla__fail_armed(void); /* still waiting: the script made fewer than n such calls */

void cla__forbid_driver(void); /* after fork, in the child: every call below fails from now on */
extern atomic_bool cla__forbidden;
static inline bool cla__driver_forbidden(void) { return atomic_load_explicit(&cla__forbidden, memory_order_relaxed); }

/* The calls, in the order of the table; same arguments and results as OpenCL's, after the driver.
 * svm_free and the releases do nothing in a forked child. Creators return NULL and set *err. */
cl_int cla__get_platform_ids(const cla_driver *d, cl_uint n, cl_platform_id *out, cl_uint *count);
cl_int cla__get_platform_info(const cla_driver *d, cl_platform_id p, cl_platform_info what, size_t size, void *out,
                              size_t *used);
cl_int cla__get_device_ids(const cla_driver *d, cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id *out,
                           cl_uint *count);
cl_int cla__get_device_info(const cla_driver *d, cl_device_id dev, cl_device_info what, size_t size, void *out,
                            size_t *used);
cl_context cla__create_context(const cla_driver *d, const cl_context_properties *properties, cl_device_id dev,
                               cl_int *err);
cl_int cla__release_context(const cla_driver *d, cl_context c);
cl_command_queue cla__create_queue(const cla_driver *d, cl_context c, cl_device_id dev,
                                   const cl_queue_properties *properties, cl_int *err);
cl_int cla__retain_queue(const cla_driver *d, cl_command_queue q);
cl_int cla__release_queue(const cla_driver *d, cl_command_queue q);
cl_int cla__get_queue_info(const cla_driver *d, cl_command_queue q, cl_command_queue_info what, size_t size, void *out,
                           size_t *used);
cl_mem cla__create_buffer(const cla_driver *d, cl_context c, cl_mem_flags flags, size_t size, void *host, cl_int *err);
cl_mem cla__create_sub_buffer(const cla_driver *d, cl_mem parent, cl_mem_flags flags, size_t offset_bytes, size_t size,
                              cl_int *err);
cl_int cla__release_buffer(const cla_driver *d, cl_mem m);
cl_int cla__release_sub_buffer(const cla_driver *d, cl_mem m);
void *cla__svm_alloc(const cla_driver *d, cl_context c, cl_svm_mem_flags flags, size_t size, cl_uint align_bytes);
void cla__svm_free(const cla_driver *d, cl_context c, void *p);
cl_int cla__enqueue_read(const cla_driver *d, cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset,
                         size_t size, void *host, cl_uint nwait, const cl_event *wait, cl_event *out);
cl_int cla__enqueue_write(const cla_driver *d, cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset,
                          size_t size, const void *host, cl_uint nwait, const cl_event *wait, cl_event *out);
cl_int cla__enqueue_copy(const cla_driver *d, cl_command_queue q, cl_mem src, cl_mem dst, size_t src_offset,
                         size_t dst_offset, size_t size, cl_uint nwait, const cl_event *wait, cl_event *out);
cl_int cla__enqueue_fill(const cla_driver *d, cl_command_queue q, cl_mem m, const void *pattern, size_t pattern_size,
                         size_t offset, size_t size, cl_uint nwait, const cl_event *wait, cl_event *out);
void *cla__enqueue_map(const cla_driver *d, cl_command_queue q, cl_mem m, cl_bool blocking, cl_map_flags flags,
                       size_t offset, size_t size, cl_uint nwait, const cl_event *wait, cl_event *out, cl_int *err);
cl_int cla__enqueue_unmap(const cla_driver *d, cl_command_queue q, cl_mem m, void *host, cl_uint nwait,
                          const cl_event *wait, cl_event *out);
/* *m stays where it is until the command has ended: NVIDIA's driver (580) reads it then, on a thread of its own, when
 * several threads enqueue at once. (OpenCL promises that lists of events are copied, and is silent about this one.) */
cl_int cla__enqueue_migrate(const cla_driver *d, cl_command_queue q, const cl_mem *m, cl_mem_migration_flags flags,
                            cl_event *out);
cl_int cla__enqueue_marker(const cla_driver *d, cl_command_queue q, cl_uint nwait, const cl_event *wait, cl_event *out);
cl_int cla__enqueue_barrier(const cla_driver *d, cl_command_queue q, cl_uint nwait, const cl_event *wait,
                            cl_event *out);
cl_int cla__enqueue_kernel(const cla_driver *d, cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset,
                           const size_t *global, const size_t *local, cl_uint nwait, const cl_event *wait,
                           cl_event *out);
cl_int cla__flush(const cla_driver *d, cl_command_queue q);
cl_int cla__finish(const cla_driver *d, cl_command_queue q);
cl_event cla__create_user_event(const cla_driver *d, cl_context c, cl_int *err);
cl_int cla__set_user_event(const cla_driver *d, cl_event e, cl_int status);
cl_int cla__retain_event(const cla_driver *d, cl_event e);
cl_int cla__release_event(const cla_driver *d, cl_event e);
cl_int cla__get_event_info(const cla_driver *d, cl_event e, cl_event_info what, size_t size, void *out, size_t *used);
cl_int cla__wait_events(const cla_driver *d, cl_uint n, const cl_event *events);
cl_int cla__get_event_profile(const cla_driver *d, cl_event e, cl_profiling_info what, size_t size, void *out,
                              size_t *used);
cl_int cla__set_event_callback(const cla_driver *d, cl_event e, cl_int status,
                               void(CL_CALLBACK *fn)(cl_event, cl_int, void *), void *arg);
cl_program cla__create_program(const cla_driver *d, cl_context c, const char *source, size_t length, cl_int *err);
cl_int cla__build_program(const cla_driver *d, cl_program p, cl_device_id dev, const char *options);
cl_int cla__get_build_info(const cla_driver *d, cl_program p, cl_device_id dev, cl_program_build_info what, size_t size,
                           void *out, size_t *used);
cl_int cla__get_program_info(const cla_driver *d, cl_program p, cl_program_info what, size_t size, void *out,
                             size_t *used);
cl_int cla__release_program(const cla_driver *d, cl_program p);
cl_kernel cla__create_kernel(const cla_driver *d, cl_program p, const char *name, cl_int *err);
cl_int cla__release_kernel(const cla_driver *d, cl_kernel k);
cl_int cla__get_kernel_info(const cla_driver *d, cl_kernel k, cl_kernel_info what, size_t size, void *out,
                            size_t *used);
cl_int cla__get_kernel_arg_info(const cla_driver *d, cl_kernel k, cl_uint index, cl_kernel_arg_info what, size_t size,
                                void *out, size_t *used);
cl_int cla__get_kernel_group_info(const cla_driver *d, cl_kernel k, cl_device_id dev, cl_kernel_work_group_info what,
                                  size_t size, void *out, size_t *used);
cl_int cla__set_kernel_arg(const cla_driver *d, cl_kernel k, cl_uint index, size_t size, const void *value);

/* ---- The simulated device (simulated.c, sim_*.c) ---- */

/* It keeps account of device memory and of the order of commands; kernels compute nothing and reads
 * find zeros. Buffers over host memory (pinned) take none of the capacity. */
typedef struct cla_sim_config {
  uint64_t capacity;     /* bytes of device memory; beyond it buffers are refused, or see lazy */
  uint64_t max_alloc;    /* CL_DEVICE_MAX_MEM_ALLOC_SIZE; 0: the capacity */
  uint32_t align_bytes;  /* of sub-buffers (reported in bits, as OpenCL does); 0: 512 */
  bool lazy;             /* creation succeeds; the first command takes the memory or fails */
  bool manual;           /* commands run when cla__sim_complete or a wait asks; else at once */
  bool accepts_oversize; /* the driver does not check max_alloc itself (OpenCL-Docs#584) */
  uint64_t refuse_above; /* creation fails from this size on, below max_alloc (pocl#1720); 0: none */
  bool ordered_subs;     /* sub-buffers that overlap can be released newest first only: NVIDIA's driver crashes else */
} cla_sim_config;

/* Makes a device; it appears on no platform. NULL: no host memory. Destroying it ends the handle;
 * what was made from it stays usable until released. */
cl_device_id cla__sim_create(const cla_sim_config *config);
void cla__sim_destroy(cl_device_id dev);
/* Completes the next n commands of a queue that nothing holds back (UINT64_MAX: all): how many. */
uint64_t cla__sim_complete(cl_command_queue q, uint64_t n);
uint64_t cla__sim_used(cl_device_id dev); /* bytes of device memory backed now */

#endif
