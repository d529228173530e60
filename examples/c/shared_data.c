/* Data that a C program and Lua share: numbers made on the device in C, in a file as they lie in memory.
 *
 *   shared_data write FILE      makes 100000 numbers and writes them
 *   shared_data read FILE       reads numbers, through the device
 *   shared_data                 both, with a file that is removed again
 *
 * You will see, each time: "100000 numbers, sum S, xor X". examples/shared_data.lua reads and changes the same file
 * and compares. */
#include <clalloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 100000 };

static void must(cla_status status) {
  if (status == CLA_OK) return;
  fprintf(stderr, "%s: %s\n", cla_status_name(status), cla_last_error());
  exit(1);
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void say(const uint32_t *numbers, size_t n) {
  uint64_t sum = 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < n; i++) {
    sum += numbers[i];
    bits ^= numbers[i];
  }
  printf("%zu numbers, sum %" PRIu64 ", xor %" PRIu32 "\n", n, sum, bits);
}

/* Fills memory of the device with numbers that look random. */
static void make(cla_device *device, cla_stream *stream, void *address, size_t n) {
  const char *source = "kernel void make(global uint *x) {"
                       "  uint h = get_global_id(0) * 2654435761u; x[get_global_id(0)] = h ^ (h >> 15); }";
  cl_int err = CL_SUCCESS;
  cl_mem mem;
  must(cla_buffer_mem(address, &mem, NULL));
  cl_program program = clCreateProgramWithSource(cla_device_context(device), 1, &source, NULL, &err);
  if (!err) err = clBuildProgram(program, 0, NULL, NULL, NULL, NULL);
  cl_kernel kernel = err ? NULL : clCreateKernel(program, "make", &err);
  if (!err) err = clSetKernelArg(kernel, 0, sizeof mem, &mem);
  if (!err) err = clEnqueueNDRangeKernel(cla_stream_queue(stream), kernel, 1, NULL, &n, NULL, 0, NULL, NULL);
  if (err) {
    fprintf(stderr, "no kernel: OpenCL error %d\n", err);
    exit(1);
  }
  must(cla_stream_submitted(stream)); /* the library did not see this command */
  clReleaseKernel(kernel);
  clReleaseProgram(program);
}

static void write_file(cla_device *device, const char *path) {
  cla_stream *stream = cla_device_stream(device);
  static uint32_t numbers[N];
  void *address;
  must(cla_alloc(NULL, sizeof numbers, stream, &address));
  make(device, stream, address, N);
  must(cla_copy(numbers, address, sizeof numbers, stream, NULL));
  must(cla_free(address));
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(numbers, sizeof numbers, 1, file) != 1 || fclose(file)) fail(path);
  say(numbers, N);
}

/* There and back: what is said is what the device has. */
static void read_file(cla_device *device, const char *path) {
  cla_stream *stream = cla_device_stream(device);
  static uint32_t numbers[N];
  void *address;
  FILE *file = fopen(path, "rb");
  if (!file || fread(numbers, sizeof numbers, 1, file) != 1) fail(path);
  fclose(file);
  must(cla_alloc(NULL, sizeof numbers, stream, &address));
  must(cla_copy(address, numbers, sizeof numbers, stream, NULL));
  memset(numbers, 0, sizeof numbers);
  must(cla_copy(numbers, address, sizeof numbers, stream, NULL));
  must(cla_free(address));
  say(numbers, N);
}

int main(int argc, char **argv) {
  cla_device *device;
  must(cla_device_open(NULL, &device));
  const char *what = argc == 3 ? argv[1] : "";
  if (argc == 1) {
    const char *path = "shared_data.tmp";
    write_file(device, path);
    read_file(device, path);
    remove(path);
  } else if (strcmp(what, "write") == 0) {
    write_file(device, argv[2]);
  } else if (strcmp(what, "read") == 0) {
    read_file(device, argv[2]);
  } else {
    fprintf(stderr, "usage: %s [write FILE | read FILE]\n", argv[0]);
    return 2;
  }
  cla_device_release(device);
  return 0;
}
