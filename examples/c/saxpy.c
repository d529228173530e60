/* clalloc from C: a pool, two allocations, a kernel on them, an interior address, and the statistics.
 *
 *   cc saxpy.c $(pkg-config --cflags --libs clalloc) && ./a.out
 *
 * You will see the device's name, "y[10] = 25", what an address inside an allocation stands for, and what the pool did. */
#include <clalloc.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1000 };

static void must(cla_status status) {
  if (status == CLA_OK) return;
  fprintf(stderr, "%s: %s\n", cla_status_name(status), cla_last_error());
  exit(1);
}

static cl_kernel build(cla_device *device, const char *source) {
  cl_int err = CL_SUCCESS;
  cl_program program = clCreateProgramWithSource(cla_device_context(device), 1, &source, NULL, &err);
  if (!err) err = clBuildProgram(program, 0, NULL, NULL, NULL, NULL);
  cl_kernel kernel = err ? NULL : clCreateKernel(program, "saxpy", &err);
  clReleaseProgram(program);
  if (err) {
    fprintf(stderr, "no kernel: OpenCL error %d\n", err);
    exit(1);
  }
  return kernel;
}

int main(void) {
  cla_device *device;
  cla_pool *pool;
  void *x, *y;
  float host[N];
  must(cla_device_open(NULL, &device));
  must(cla_device_pool(device, &pool));
  cla_stream *stream = cla_device_stream(device);
  printf("device: %s\n", cla_device_get_info(device)->name);

  must(cla_alloc(pool, sizeof host, stream, &x));
  must(cla_alloc(pool, sizeof host, stream, &y));
  for (int i = 0; i < N; i++) host[i] = (float)i;
  must(cla_copy(x, host, sizeof host, stream, NULL));
  for (int i = 0; i < N; i++) host[i] = 5;
  must(cla_copy(y, host, sizeof host, stream, NULL));

  /* A device address is no cl_mem: cla_buffer_mem says what to pass to the kernel. */
  cl_kernel kernel = build(device, "kernel void saxpy(float a, global const float *x, global float *y) {"
                                   "  size_t i = get_global_id(0); y[i] = a * x[i] + y[i]; }");
  cl_mem mem_x, mem_y;
  const float a = 2;
  const size_t n = N;
  must(cla_buffer_mem(x, &mem_x, NULL));
  must(cla_buffer_mem(y, &mem_y, NULL));
  clSetKernelArg(kernel, 0, sizeof a, &a);
  clSetKernelArg(kernel, 1, sizeof mem_x, &mem_x);
  clSetKernelArg(kernel, 2, sizeof mem_y, &mem_y);
  clEnqueueNDRangeKernel(cla_stream_queue(stream), kernel, 1, NULL, &n, NULL, 0, NULL, NULL);
  must(cla_stream_submitted(stream)); /* the library did not see this command */
  must(cla_copy(host, y, sizeof host, stream, NULL));
  printf("y[10] = %g\n", host[10]);
  clReleaseKernel(kernel);

  cla_buffer b;
  must(cla_resolve((char *)y + 100, &b));
  printf("y + 100 bytes: offset %zu of an allocation of %zu bytes\n", sizeof host - b.nbytes, b.requested);
  must(cla_free(x));
  must(cla_free(y));
  printf("freeing y again: %s\n", cla_free(y) == CLA_E_FREED ? cla_last_error() : "not refused");

  cla_stats s;
  must(cla_pool_stats(pool, &s));
  printf("%llu allocations, %llu driver allocation(s), %llu bytes cached\n", (unsigned long long)s.allocs,
         (unsigned long long)s.driver_allocs, (unsigned long long)s.cached_bytes);
  cla_device_release(device);
  return host[10] == 25 ? 0 : 1;
}
