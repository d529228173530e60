/* The heap from C: a program of one's own on the library's text, launched around cla_heap_use; what else the interface promises
 * and Lua does not reach: visitors, numbers of kernels, arguments that are missing, a forked child. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "heap/heap.h"

static const char KERNELS[] = "\n"
                              "kernel void grab(CLA_HEAP heap, ulong nbytes, global uint *out) {\n"
                              "  out[get_global_id(0)] = cla_ref(heap, cla_malloc(heap, nbytes));\n"
                              "}\n"
                              "kernel void drop(CLA_HEAP heap, global uint *refs) {\n"
                              "  cla_free(heap, cla_at(heap, refs[get_global_id(0)]));\n"
                              "}\n";

enum { ITEMS = 64 };

/* ---- A program without the library's launches ---- */

typedef struct user {
  cla_device *device;
  cla_heap *heap;
  cla_stream *stream;
  cl_program program;
  cl_kernel grab, drop;
  cl_mem out;
} user;

static user begin(cla_device *d) {
  user u = {.device = d};
  const char *texts[] = {cla_heap_source(), KERNELS};
  cl_device_id id = cla_device_id(d);
  cl_int err = CL_SUCCESS;
  CHECK(cla_device_heap(d, &u.heap) == CLA_OK);
  CHECK(cla_stream_create(d, &u.stream) == CLA_OK);
  u.program = clCreateProgramWithSource(cla_device_context(d), 2, texts, NULL, &err);
  CHECK(err == CL_SUCCESS);
  CHECK(clBuildProgram(u.program, 1, &id, cla_heap_build_options(d), NULL, NULL) == CL_SUCCESS);
  u.grab = clCreateKernel(u.program, "grab", &err);
  u.drop = clCreateKernel(u.program, "drop", &err);
  u.out = clCreateBuffer(cla_device_context(d), CL_MEM_READ_WRITE, 4 * ITEMS, NULL, &err);
  CHECK(u.grab && u.drop && u.out);
  return u;
}

static void end(const user *u) {
  clReleaseMemObject(u->out);
  clReleaseKernel(u->grab);
  clReleaseKernel(u->drop);
  clReleaseProgram(u->program);
  cla_stream_release(u->stream);
}

static void launch(const user *u, bool grabs) {
  const size_t items = ITEMS;
  const cl_ulong nbytes = 100;
  cl_kernel k = grabs ? u->grab : u->drop;
  cl_mem memory = NULL;
  CHECK(cla_heap_use(u->heap, u->stream, &memory) == CLA_OK);
  CHECK(clSetKernelArg(k, 0, sizeof memory, &memory) == CL_SUCCESS);
  if (grabs) CHECK(clSetKernelArg(k, 1, sizeof nbytes, &nbytes) == CL_SUCCESS);
  CHECK(clSetKernelArg(k, grabs ? 2 : 1, sizeof u->out, &u->out) == CL_SUCCESS);
  CHECK(clEnqueueNDRangeKernel(cla_stream_queue(u->stream), k, 1, NULL, &items, NULL, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla_stream_submitted(u->stream) == CLA_OK);
  CHECK(cla_heap_used(u->heap, u->stream) == CLA_OK);
}

static bool add_ref(const cla_heap_block *b, void *arg) {
  uint64_t *sum = arg;
  CHECK(b->offset % 16 == 0 && b->size >= 100 && b->kernel == NULL && b->line == 0);
  *sum += b->ref;
  return true;
}

static bool first_only(const cla_heap_block *b, void *arg) {
  (void)b;
  ++*(int *)arg;
  return false;
}

static void a_program_of_ones_own(cla_device *d) {
  user u = begin(d);
  uint32_t refs[ITEMS];
  uint64_t sum = 0, seen = 0;
  int calls = 0;
  cla_heap_stats s;
  launch(&u, true);
  CHECK(clEnqueueReadBuffer(cla_stream_queue(u.stream), u.out, CL_TRUE, 0, sizeof refs, refs, 0, NULL, NULL) ==
        CL_SUCCESS);
  CHECK(cla_heap_get_stats(u.heap, &s) == CLA_OK);
  CHECK(s.mallocs == ITEMS && s.live_blocks == ITEMS && s.failed == 0);
  for (int i = 0; i < ITEMS; i++) sum += refs[i];
  CHECK(cla_heap_blocks(u.heap, add_ref, &seen) == CLA_OK && seen == sum);
  CHECK(cla_heap_blocks(u.heap, first_only, &calls) == CLA_OK && calls == 1);
  CHECK(cla_heap_set_limit(u.heap, 1 << 20) == CLA_E_BUSY);
  launch(&u, false);
  CHECK(cla_heap_check(u.heap) == CLA_OK);
  CHECK(cla_heap_get_stats(u.heap, &s) == CLA_OK && s.live_blocks == 0 && s.frees == ITEMS && s.used == 0);
  CHECK(cla_heap_reset(u.heap) == CLA_OK);
  CHECK(cla_heap_set_limit(u.heap, 1 << 20) == CLA_OK && cla_heap_limit(u.heap) == 1 << 20);
  end(&u);
}

static void blocks_of_the_hosts(cla_heap *h) {
  char text[8] = "";
  uint32_t ref = 0;
  CHECK(cla_heap_alloc(h, 1000, &ref) == CLA_OK && ref != 0);
  CHECK(cla_heap_write(h, ref, 992, "abcdefg", 8) == CLA_OK);
  CHECK(cla_heap_read(h, ref, 992, text, 8) == CLA_OK && strcmp(text, "abcdefg") == 0);
  CHECK(cla_heap_read(h, ref, 1 << 20, text, 8) == CLA_E_BOUNDS);
  CHECK(cla_heap_read(h, ref, UINT64_MAX, text, 8) == CLA_E_BOUNDS);
  CHECK(cla_heap_free(h, ref) == CLA_OK && cla_heap_free(h, 0) == CLA_OK);
  CHECK(cla_heap_free(h, ref) == CLA_E_FREED);
  CHECK(cla_heap_free(h, UINT32_MAX) == CLA_E_FOREIGN);
  CHECK(cla_heap_alloc(h, UINT64_MAX, &ref) == CLA_E_NOMEM);
  CHECK(cla_heap_alloc(h, 0, &ref) == CLA_OK && ref == 0);
  CHECK(cla_heap_reset(h) == CLA_OK);
}

/* ---- Notes that a kernel has written over: each rule of the recount finds its own contradiction ---- */

static uint32_t get_word(const cla_heap *h, uint64_t at) {
  uint32_t word = 0;
  CHECK(clEnqueueReadBuffer(h->device->service->queue, h->memory, CL_TRUE, 4 * at, 4, &word, 0, NULL, NULL) ==
        CL_SUCCESS);
  return word;
}

static void set_word(const cla_heap *h, uint64_t at, uint32_t word) {
  CHECK(clEnqueueWriteBuffer(h->device->service->queue, h->memory, CL_TRUE, 4 * at, 4, &word, 0, NULL, NULL) ==
        CL_SUCCESS);
}

static void finds(cla_heap *h, const char *what) {
  const bool is_found = cla_heap_check(h) == CLA_E_INVALID && strstr(cla_last_error(), what) != NULL;
  if (!CHECK(is_found)) fprintf(stderr, "  wanted: %s\n  got:    %s\n", what, cla_last_error());
}

/* With another value in one word; then it is put back. */
static void spoil(cla_heap *h, uint64_t at, uint32_t word, const char *what) {
  const uint32_t before = get_word(h, at);
  CHECK(before != word);
  set_word(h, at, word);
  finds(h, what);
  set_word(h, at, before);
  CHECK(cla_heap_check(h) == CLA_OK);
}

static uint64_t word_of(uint32_t page) { return cla__page_word(page); }

/* A page with one block, the first. */
static void spoil_slab(cla_heap *h, uint32_t page) {
  const cla__heap_plan *plan = &h->plan;
  const uint64_t at = word_of(page), bits = cla__heap_bits_at(plan, page);
  const uint32_t word = get_word(h, at), k = cla__page_code(word) - 1, last = plan->capacity[k];
  CHECK((word & CLA_HEAP_USED) == 1 && get_word(h, bits) == 1 && last > 1 && last % 32);
  spoil(h, at, word + last, "more blocks are used than it has");
  spoil(h, at, word + 1, "its count of blocks differs from its bits");
  spoil(h, bits, 3, "its count of blocks differs from its bits");
  spoil(h, bits, 0, "its count of blocks differs from its bits");
  spoil(h, at, word + ((plan->nclasses - k) << CLA_HEAP_CODE_SHIFT), "it is a slab of a class that there is not");
  spoil(h, at, word - ((k + 1) << CLA_HEAP_CODE_SHIFT), "it is free and has blocks");
  /* the block's bit moved behind the last */
  set_word(h, bits, 0);
  const uint32_t before = get_word(h, bits + last / 32);
  set_word(h, bits + last / 32, before | UINT32_C(1) << last % 32);
  finds(h, "a block lies beyond its last");
  set_word(h, bits + last / 32, before);
  set_word(h, bits, 1);
}

static void spoil_maps(cla_heap *h, uint32_t page, uint32_t free_page) {
  const cla__heap_plan *plan = &h->plan;
  const uint32_t k = cla__page_code(get_word(h, word_of(page))) - 1, nhints = 4 * plan->nhints[k];
  const uint64_t room = plan->room_maps + (uint64_t)k * (plan->level0 + plan->level1);
  const uint64_t free_word = plan->free_map + free_page / 32, room_word = room + page / 32;
  const uint32_t free_bit = UINT32_C(1) << free_page % 32, room_bit = UINT32_C(1) << page % 32;
  spoil(h, free_word, get_word(h, free_word) & ~free_bit, "it is free and nobody will find it");
  spoil(h, plan->free_map + plan->level0 + free_page / 1024, 0, "level 1 of the free pages misses it");
  CHECK(get_word(h, room_word) == 0 && get_word(h, room + plan->level0 + page / 1024) == 0); /* a hint has it */
  spoil(h, room_word, room_bit, "level 1 of the pages with room misses it");
  for (uint32_t i = 0; i < nhints; i++)
    if (get_word(h, plan->hints[k] + i) == page)
      spoil(h, plan->hints[k] + i, CLA_HEAP_NONE, "it has room that nobody will");
}

static void spoil_run(cla_heap *h, uint32_t head, uint32_t free_page) {
  const uint32_t free_word = get_word(h, word_of(free_page)), code = UINT32_C(1) << CLA_HEAP_CODE_SHIFT;
  const uint64_t length = cla__heap_bits_at(&h->plan, head);
  spoil(h, length, 0, "its run has an impossible length");
  spoil(h, length, h->plan.npages - head + 1, "its run has an impossible length");
  spoil(h, length, get_word(h, length) + 1, "its run is broken");
  spoil(h, length, get_word(h, length) - 1, "it continues a run that does not begin");
  spoil(h, word_of(head + 1), free_word, "its run is broken");
  spoil(h, word_of(free_page), free_word + CLA_HEAP_BODY * code, "it continues a run that does not begin");
  spoil(h, word_of(free_page), free_word + CLA_HEAP_TAKEN * code, "it is half taken");
  spoil(h, word_of(free_page), free_word + 1, "it is free and has blocks");
}

static void contradictions_are_found(cla_heap *h) {
  const cla__heap_plan *plan = &h->plan;
  uint32_t block = 0, run = 0;
  CHECK(cla_heap_set_limit(h, 3 << 20) == CLA_OK);
  CHECK(cla_heap_alloc(h, 100, &block) == CLA_OK && cla_heap_alloc(h, 1 << 20, &run) == CLA_OK);
  const uint32_t page = (uint32_t)(cla__heap_offset(plan, block) >> plan->page_shift);
  const uint32_t head = (uint32_t)(cla__heap_offset(plan, run) >> plan->page_shift);
  const uint32_t free_page = head + (UINT32_C(1) << 20 >> plan->page_shift); /* behind the run */
  CHECK(cla__page_code(get_word(h, word_of(free_page))) == CLA_HEAP_FREE && free_page < page);
  spoil(h, CLA_HEAP_NPAGES, 1, "description of itself has been overwritten");
  spoil(h, CLA_HEAP_CLASS, 1, "description of itself has been overwritten");
  spoil_slab(h, page);
  spoil_maps(h, page, free_page);
  spoil_run(h, head, free_page);
  spoil(h, CLA_HEAP_SHARDS_AT + CLA_HEAP_SHARD_MALLOCS, 77, "allocations less");
  spoil(h, CLA_HEAP_PAGES_NOW, 1, "1 pages counted as taken");
  CHECK(cla_heap_free(h, block) == CLA_OK && cla_heap_free(h, run) == CLA_OK && cla_heap_check(h) == CLA_OK);
  CHECK(cla_heap_reset(h) == CLA_OK && cla_heap_set_limit(h, CLA_HEAP_DEFAULT_LIMIT) == CLA_OK);
}

/* ---- Between cla_heap_use and cla_heap_used ---- */

static void uses_come_in_pairs(cla_device *d, cla_device *other) {
  cla_heap *h = NULL;
  cla_heap_stats s;
  cl_mem memory = NULL, again = NULL;
  uint32_t ref;
  cla_stream *stream = cla_device_stream(d);
  CHECK(cla_device_heap(d, &h) == CLA_OK);
  CHECK(cla_heap_used(h, stream) == CLA_E_INVALID);
  CHECK(cla_heap_use(h, cla_device_stream(other), &memory) == CLA_E_INVALID && memory == NULL);
  CHECK(cla_heap_use(h, stream, &memory) == CLA_OK && memory != NULL);
  CHECK(cla_heap_use(h, stream, &again) == CLA_OK && again == memory); /* any number at a time */
  CHECK(cla_heap_get_stats(h, &s) == CLA_E_BUSY && cla_heap_check(h) == CLA_E_BUSY && cla_heap_reset(h) == CLA_E_BUSY);
  CHECK(strstr(cla_last_error(), "cla_heap_used") != NULL);
  CHECK(d != NULL && (cla_device_get_info(d)->simulated || cla_heap_alloc(h, 10, &ref) == CLA_E_BUSY));
  CHECK(cla_heap_used(h, stream) == CLA_OK);
  CHECK(cla_heap_reset(h) == CLA_E_BUSY);
  CHECK(cla_heap_used(h, stream) == CLA_OK);
  CHECK(cla_heap_get_stats(h, &s) == CLA_OK && s.reserved > s.limit);
  CHECK(cla_heap_reset(h) == CLA_OK);
}

/* What is submitted in between is waited for. */
static void uses_are_waited_for(void) {
  const cla_simulation late = {.capacity = (uint64_t)1 << 30, .manual = true};
  const cl_uint zero = 0;
  cla_device *d;
  cla_heap *h = NULL;
  cl_mem memory = NULL;
  CHECK(cla_simulate(&late, &d) == CLA_OK && cla_device_heap(d, &h) == CLA_OK);
  cla_stream *s = cla_device_stream(d);
  CHECK(cla_heap_use(h, s, &memory) == CLA_OK && !cla__heap_is_idle(h));
  CHECK(cla__enqueue_fill(d->driver, s->queue, memory, &zero, 4, 256, 4, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla_stream_submitted(s) == CLA_OK);
  const uint64_t number = cla__stream_submitted(s);
  CHECK(cla_heap_used(h, s) == CLA_OK);
  CHECK(!cla__stream_done(s, number) && !cla__heap_is_idle(h));
  CHECK(cla_heap_reset(h) == CLA_OK);
  CHECK(cla__stream_done(s, number) && cla__heap_is_idle(h));
  cla_device_release(d);
}

/* ---- Arguments, numbers ---- */

static void missing_arguments(cla_heap *h, cla_stream *s) {
  cl_mem memory;
  uint32_t number;
  char byte = 0;
  cla_heap *none = NULL;
  const cla_status all[] = {cla_device_heap(NULL, &none),
                            cla_device_heap(s->device, NULL),
                            cla_heap_set_limit(NULL, 1),
                            cla_heap_set_counting(NULL, true),
                            cla_heap_set_sites(NULL, true),
                            cla_heap_use(NULL, s, &memory),
                            cla_heap_use(h, NULL, &memory),
                            cla_heap_use(h, s, NULL),
                            cla_heap_used(NULL, s),
                            cla_heap_used(h, NULL),
                            cla_heap_reset(NULL),
                            cla_heap_alloc(NULL, 1, &number),
                            cla_heap_alloc(h, 1, NULL),
                            cla_heap_free(NULL, 1),
                            cla_heap_read(NULL, 1, 0, &byte, 1),
                            cla_heap_read(h, 1, 0, NULL, 1),
                            cla_heap_write(NULL, 1, 0, &byte, 1),
                            cla_heap_write(h, 1, 0, NULL, 1),
                            cla_heap_get_stats(h, NULL),
                            cla_heap_get_stats(NULL, NULL),
                            cla_heap_reset_peaks(NULL, true),
                            cla_heap_blocks(h, NULL, NULL),
                            cla_heap_blocks(NULL, first_only, NULL),
                            cla_heap_check(NULL),
                            cla_heap_kernel_number(h, NULL, &number),
                            cla_heap_kernel_number(h, "k", NULL),
                            cla_heap_kernel_number(NULL, "k", &number)};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!CHECK(all[i] == CLA_E_INVALID)) fprintf(stderr, "call %zu gave %s\n", i, cla_status_name(all[i]));
  CHECK(strcmp(cla_heap_build_options(NULL), "") == 0);
}

static void kernels_have_numbers(cla_heap *h) {
  uint32_t a = 0, b = 0, again = 0, last = 0;
  CHECK(cla_heap_kernel_number(h, "a", &a) == CLA_OK && a == 1);
  CHECK(cla_heap_kernel_number(h, "b", &b) == CLA_OK && b == 2);
  CHECK(cla_heap_kernel_number(h, "a", &again) == CLA_OK && again == a);
  for (int i = 0; i < 5000; i++) {
    char name[16];
    snprintf(name, sizeof name, "k%d", i);
    CHECK(cla_heap_kernel_number(h, name, &last) == CLA_OK);
    CHECK(i < 4093 ? last == (uint32_t)i + 3 : last == 0);
  }
  CHECK(cla_heap_kernel_number(h, "b", &again) == CLA_OK && again == b);
}

/* ---- Fork ---- */

static int child(cla_device *d, cla_heap *h, cla_stream *s) {
  cla_heap *other = NULL;
  cla_heap_stats stats;
  cl_mem memory;
  uint32_t ref = 0;
  char byte = 0;
  const cla_status all[] = {cla_device_heap(d, &other),
                            cla_heap_set_limit(h, 1),
                            cla_heap_set_counting(h, false),
                            cla_heap_set_sites(h, true),
                            cla_heap_use(h, s, &memory),
                            cla_heap_used(h, s),
                            cla_heap_reset(h),
                            cla_heap_alloc(h, 1, &ref),
                            cla_heap_free(h, 1),
                            cla_heap_read(h, 1, 0, &byte, 1),
                            cla_heap_write(h, 1, 0, &byte, 1),
                            cla_heap_get_stats(h, &stats),
                            cla_heap_blocks(h, first_only, &d),
                            cla_heap_check(h),
                            cla_heap_kernel_number(h, "k", &ref),
                            cla_heap_reset_peaks(h, true)};
  alarm(20); /* the settings are read without the lock, which is held */
  CHECK(cla_heap_limit(h) == CLA_HEAP_DEFAULT_LIMIT && cla_heap_counting(h) && !cla_heap_sites(h));
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!CHECK(all[i] == CLA_E_FORKED)) fprintf(stderr, "call %zu gave %s\n", i, cla_status_name(all[i]));
  cla_device_release(d);
  return check_failed ? 1 : 0;
}

static void forked(cla_device *d, cla_heap *h) {
  cl_mem memory = NULL;
  cla_stream *s = cla_device_stream(d);
  int status = -1;
  CHECK(cla_heap_use(h, s, &memory) == CLA_OK && cla_heap_used(h, s) == CLA_OK);
  fflush(NULL);
  pthread_mutex_lock(&h->lock); /* as another thread would at a bad moment */
  pid_t pid = fork();
  if (pid == 0) _exit(child(d, h, s));
  pthread_mutex_unlock(&h->lock);
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(cla_heap_check(h) == CLA_OK); /* the parent goes on */
}

int main(void) {
  cla_device *d, *sim;
  cla_heap *h;
  const cla_simulation capacity = {.capacity = (uint64_t)1 << 30};
  CHECK(cla_simulate(&capacity, &sim) == CLA_OK);
  CHECK(cla_device_open(NULL, &d) == CLA_OK);
  CHECK(cla_device_heap(d, &h) == CLA_OK);
  a_program_of_ones_own(d);
  blocks_of_the_hosts(h);
  contradictions_are_found(h);
  uses_come_in_pairs(d, sim);
  uses_come_in_pairs(sim, d);
  uses_are_waited_for();
  missing_arguments(h, cla_device_stream(d));
  kernels_have_numbers(h);
  forked(d, h);
  CHECK(cla_device_heap(sim, &h) == CLA_OK);
  forked(sim, h);
  cla_device_release(sim); /* with a heap that has been used */
  cla_device_release(d);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("heap_host");
}
