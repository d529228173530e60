/* A launch as a C program would write it: arguments set, a kernel of 16 items enqueued, waited for. Prints the median in
 * nanoseconds: the peer of tensor.small. */
#include <string.h>

#include "bench.h"
#include "clalloc.h"

enum { N = 16, LAUNCHES = 2000 };

static const char source[] = "kernel void add(global float *c, global const float *a, global const float *b) {\n"
                             "  const size_t i = get_global_id(0);\n"
                             "  c[i] = a[i] + b[i];\n"
                             "}\n";

static cl_kernel kernel;
static cl_command_queue queue;
static cl_mem memory[3];

static void check(cl_int code, const char *what) {
  if (!code) return;
  fprintf(stderr, "%s: %d\n", what, (int)code);
  exit(1);
}

static void launch(void) {
  const size_t size = N;
  for (cl_uint i = 0; i < 3; i++) clSetKernelArg(kernel, i, sizeof(cl_mem), &memory[i]);
  clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL);
  clFinish(queue);
}

int main(void) {
  cla_device *device = NULL;
  cl_int err = CL_SUCCESS;
  if (cla_device_open(NULL, &device)) {
    fprintf(stderr, "%s\n", cla_last_error());
    return 1;
  }
  cl_context context = cla_device_context(device);
  queue = clCreateCommandQueueWithProperties(context, cla_device_id(device), NULL, &err);
  check(err, "clCreateCommandQueueWithProperties");
  const char *text = source;
  cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &err);
  check(err, "clCreateProgramWithSource");
  check(clBuildProgram(program, 0, NULL, "", NULL, NULL), "clBuildProgram");
  kernel = clCreateKernel(program, "add", &err);
  check(err, "clCreateKernel");
  for (int i = 0; i < 3; i++) {
    memory[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, N * sizeof(float), NULL, &err);
    check(err, "clCreateBuffer");
  }
  double runs[BENCH_RUNS];
  bench_time(launch, LAUNCHES / 10);
  for (int i = 0; i < BENCH_RUNS; i++) runs[i] = bench_time(launch, LAUNCHES);
  printf("%.1f\n", bench_median(runs, BENCH_RUNS));
  for (int i = 0; i < 3; i++) clReleaseMemObject(memory[i]);
  clReleaseKernel(kernel);
  clReleaseProgram(program);
  clReleaseCommandQueue(queue);
  cla_device_release(device);
  return 0;
}
