/* The driver table over the ICD loader.
 *
 * Assumes headers of OpenCL 3.0 and a loader that exports its symbols; the platforms behind it may
 * be as old as 1.2. Guarantees that each entry has the meaning of the call it is named after; only
 * queue creation needs help, for platforms that lack the call with properties. */
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include "driver/driver.h"

#include <string.h>

/* A platform older than 2.0 has no entry for the newer call in its dispatch table. */
static bool platform_before_2(cl_device_id dev) {
  cl_platform_id platform = NULL;
  char version[1024] = ""; /* PoCL lists its whole build in it */
  if (clGetDeviceInfo(dev, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) != CL_SUCCESS ||
      clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof version - 1, version, NULL) != CL_SUCCESS)
    return false;
  return strncmp(version, "OpenCL 1.", 9) == 0;
}

static cl_command_queue create_queue_1_2(cl_context c, cl_device_id dev, const cl_queue_properties *properties,
                                         cl_int *err) {
  cl_command_queue_properties bits = 0;
  for (const cl_queue_properties *p = properties; p != NULL && p[0] != 0; p += 2) {
    if (p[0] != CL_QUEUE_PROPERTIES) {
      *err = CL_INVALID_QUEUE_PROPERTIES;
      return NULL;
    }
    bits = p[1];
  }
  return clCreateCommandQueue(c, dev, bits, err);
}

static cl_command_queue create_queue(cl_context c, cl_device_id dev, const cl_queue_properties *properties,
                                     cl_int *err) {
  cl_int status = CL_INVALID_OPERATION;
  cl_command_queue q = NULL;
  if (!platform_before_2(dev)) q = clCreateCommandQueueWithProperties(c, dev, properties, &status);
  if (status == CL_INVALID_OPERATION) q = create_queue_1_2(c, dev, properties, &status);
  if (err != NULL) *err = status;
  return q;
}

const cla_driver cla__driver_opencl = {
    .name = "opencl",
    .get_platform_ids = clGetPlatformIDs,
    .get_platform_info = clGetPlatformInfo,
    .get_device_ids = clGetDeviceIDs,
    .get_device_info = clGetDeviceInfo,
    .create_context = clCreateContext,
    .release_context = clReleaseContext,
    .create_queue = create_queue,
    .retain_queue = clRetainCommandQueue,
    .release_queue = clReleaseCommandQueue,
    .get_queue_info = clGetCommandQueueInfo,
    .create_buffer = clCreateBuffer,
    .create_sub_buffer = clCreateSubBuffer,
    .release_mem = clReleaseMemObject,
    .svm_alloc = clSVMAlloc,
    .svm_free = clSVMFree,
    .enqueue_read = clEnqueueReadBuffer,
    .enqueue_write = clEnqueueWriteBuffer,
    .enqueue_copy = clEnqueueCopyBuffer,
    .enqueue_fill = clEnqueueFillBuffer,
    .enqueue_map = clEnqueueMapBuffer,
    .enqueue_unmap = clEnqueueUnmapMemObject,
    .enqueue_migrate = clEnqueueMigrateMemObjects,
    .enqueue_marker = clEnqueueMarkerWithWaitList,
    .enqueue_barrier = clEnqueueBarrierWithWaitList,
    .enqueue_kernel = clEnqueueNDRangeKernel,
    .flush = clFlush,
    .finish = clFinish,
    .create_user_event = clCreateUserEvent,
    .set_user_event = clSetUserEventStatus,
    .retain_event = clRetainEvent,
    .release_event = clReleaseEvent,
    .get_event_info = clGetEventInfo,
    .wait_events = clWaitForEvents,
    .get_event_profile = clGetEventProfilingInfo,
    .set_event_callback = clSetEventCallback,
    .create_program = clCreateProgramWithSource,
    .build_program = clBuildProgram,
    .get_build_info = clGetProgramBuildInfo,
    .get_program_info = clGetProgramInfo,
    .release_program = clReleaseProgram,
    .create_kernel = clCreateKernel,
    .release_kernel = clReleaseKernel,
    .get_kernel_info = clGetKernelInfo,
    .get_kernel_arg_info = clGetKernelArgInfo,
    .get_kernel_group_info = clGetKernelWorkGroupInfo,
    .set_kernel_arg = clSetKernelArg,
};
