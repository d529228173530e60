/* malloc in kernels from C: work-items build a linked list, the host hands a block in and reads the result.
 *
 *   cc lists.c $(pkg-config --cflags --libs clalloc) && ./a.out
 *
 * The kernels say malloc, as in CUDA: cla_heap_rewrite makes of them what OpenCL compilers take. Kernels that take a heap
 * explicitly (CLA_HEAP heap, cla_malloc) need only cla_heap_source() or the installed clalloc_heap.cl in front of them.
 *
 * You will see how many nodes there are, their sum, which is 499500, and that nothing is left. */
#include <clalloc.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1000 };

/* A pointer that work-items exchange is an integer: OpenCL C has no atomics on pointers. */
static const char KERNELS[] = "typedef struct node { global struct node *next; ulong value; } node;\n"
                              "kernel void push(uint head) {\n"
                              "  volatile global uint *first = cla_at(cla__heap, head);\n"
                              "  global node *n = malloc(sizeof(node));\n"
                              "  if (!n) return;\n"
                              "  n->value = get_global_id(0);\n"
                              "  n->next = cla_at(cla__heap, atomic_xchg(first, cla_ref(cla__heap, n)));\n"
                              "}\n"
                              "kernel void sum(uint head) {\n"
                              "  global ulong *out = cla_at(cla__heap, head);\n"
                              "  global node *n = cla_at(cla__heap, *(global uint *)out);\n"
                              "  out[0] = out[1] = 0;\n"
                              "  while (n) {\n"
                              "    global node *next = n->next;\n"
                              "    out[0]++; out[1] += n->value;\n"
                              "    free(n);\n"
                              "    n = next;\n"
                              "  }\n"
                              "}\n";

static void must(cla_status status) {
  if (status == CLA_OK) return;
  fprintf(stderr, "%s: %s\n", cla_status_name(status), cla_last_error());
  exit(1);
}

static void ok(cl_int err, const char *what) {
  if (err == CL_SUCCESS) return;
  fprintf(stderr, "%s: OpenCL error %d\n", what, err);
  exit(1);
}

static cl_program build(cla_device *device) {
  cla_heap_rewritten r;
  must(cla_heap_rewrite(KERNELS, 0, &r));
  const char *texts[] = {cla_heap_source(), "\n#line 1\n", r.text};
  cl_int err = CL_SUCCESS;
  cl_program program = clCreateProgramWithSource(cla_device_context(device), 3, texts, NULL, &err);
  if (!err) err = clBuildProgram(program, 0, NULL, cla_heap_build_options(device), NULL, NULL);
  ok(err, "build");
  cla_heap_rewritten_free(&r);
  return program;
}

/* The hidden heap argument is the last one. */
static void launch(cla_heap *heap, cla_stream *stream, cl_kernel k, cl_uint head, size_t items) {
  cl_mem memory;
  must(cla_heap_use(heap, stream, &memory));
  ok(clSetKernelArg(k, 0, sizeof head, &head), "argument");
  ok(clSetKernelArg(k, 1, sizeof memory, &memory), "heap argument");
  ok(clEnqueueNDRangeKernel(cla_stream_queue(stream), k, 1, NULL, &items, NULL, 0, NULL, NULL), "launch");
  must(cla_stream_submitted(stream));
  must(cla_heap_used(heap, stream));
}

int main(void) {
  cla_device *device;
  cla_heap *heap;
  cla_heap_stats stats;
  uint32_t head; /* a block for the head of the list, then for the results */
  uint64_t out[2] = {0, 0};
  must(cla_device_open(NULL, &device));
  must(cla_device_heap(device, &heap));
  must(cla_heap_set_limit(heap, 1 << 20));
  cla_stream *stream = cla_device_stream(device);

  cl_program program = build(device);
  cl_int err = CL_SUCCESS;
  cl_kernel push = clCreateKernel(program, "push", &err), sum = clCreateKernel(program, "sum", &err);
  ok(err, "kernels");
  must(cla_heap_alloc(heap, sizeof out, &head));
  must(cla_heap_write(heap, head, 0, out, sizeof out));
  launch(heap, stream, push, head, N);
  must(cla_heap_get_stats(heap, &stats)); /* waits for the kernel */
  printf("%llu blocks, %llu bytes\n", (unsigned long long)stats.live_blocks, (unsigned long long)stats.used);
  launch(heap, stream, sum, head, 1);
  must(cla_heap_read(heap, head, 0, out, sizeof out));
  printf("%llu nodes, sum %llu\n", (unsigned long long)out[0], (unsigned long long)out[1]);
  must(cla_heap_free(heap, head));
  must(cla_heap_get_stats(heap, &stats));
  printf("%llu blocks left\n", (unsigned long long)stats.live_blocks);

  clReleaseKernel(push);
  clReleaseKernel(sum);
  clReleaseProgram(program);
  cla_device_release(device);
  return out[0] == N && out[1] == N * (N - 1) / 2 && stats.live_blocks == 0 ? 0 : 1;
}
