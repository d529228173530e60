/* The simulated device keeps OpenCL's promises: capacity, sub-buffers, order, gates, events,
 * programs. Everything the other tests conclude from it rests on these. */
#include "sim_world.h"

#include <stdlib.h>
#include <string.h>

static cl_int status_of(cl_event e) {
  cl_int status = 99;
  CHECK(cla__get_event_info(d, e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) == CL_SUCCESS);
  return status;
}

static void describes_itself(void) {
  world w = open_world((cla_sim_config){.capacity = 80 * GiB, .align_bytes = 128});
  char text[512];
  cl_ulong big = 0;
  cl_uint bits = 0, platforms = 9;
  cl_platform_id platform = (cl_platform_id)&w;
  size_t used = 0;
  CHECK(cla__get_device_info(d, w.dev, CL_DEVICE_NAME, sizeof text, text, &used) == CL_SUCCESS);
  CHECK(strcmp(text, "Simulated 80 GiB device") == 0 && used == strlen(text) + 1);
  CHECK(cla__get_device_info(d, w.dev, CL_DEVICE_NAME, 3, text, NULL) == CL_INVALID_VALUE);
  CHECK(cla__get_device_info(d, w.dev, CL_DEVICE_VERSION, sizeof text, text, NULL) == CL_SUCCESS);
  CHECK(strncmp(text, "OpenCL 3.0 ", 11) == 0);
  CHECK(cla__get_device_info(d, w.dev, CL_DEVICE_GLOBAL_MEM_SIZE, 8, &big, NULL) == CL_SUCCESS);
  CHECK(big == 80 * GiB);
  CHECK(cla__get_device_info(d, w.dev, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 8, &big, NULL) == CL_SUCCESS);
  CHECK(big == 80 * GiB);
  CHECK(cla__get_device_info(d, w.dev, CL_DEVICE_MEM_BASE_ADDR_ALIGN, 4, &bits, NULL) == CL_SUCCESS);
  CHECK(bits == 1024);
  CHECK(cla__get_device_info(d, w.dev, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) == CL_SUCCESS);
  CHECK(platform == NULL);
  CHECK(cla__get_device_info(d, w.dev, 0x7777, 8, &big, NULL) == CL_INVALID_VALUE);
  CHECK(cla__get_platform_ids(d, 0, NULL, &platforms) == CL_SUCCESS && platforms == 0);
  close_world(w);
}

static void counts_capacity_to_the_byte(void) {
  world w = open_world((cla_sim_config){.capacity = 16 * GiB, .max_alloc = 8 * GiB});
  cl_int err = CL_SUCCESS;
  const size_t odd = ((size_t)1 << 32) + 4096; /* JuliaGPU/OpenCL.jl#183 */
  cl_mem a = buffer(w, odd, &err);
  CHECK(a != NULL && cla__sim_used(w.dev) == odd);
  CHECK(buffer(w, 0, &err) == NULL && err == CL_INVALID_BUFFER_SIZE);
  CHECK(buffer(w, 8 * GiB + 1, &err) == NULL && err == CL_INVALID_BUFFER_SIZE);
  CHECK(buffer(w, SIZE_MAX, &err) == NULL && err == CL_INVALID_BUFFER_SIZE);
  cl_mem b = buffer(w, 8 * GiB, &err), c = buffer(w, 16 * GiB - 8 * GiB - odd, &err);
  CHECK(b != NULL && c != NULL && cla__sim_used(w.dev) == 16 * GiB);
  CHECK(buffer(w, 1, &err) == NULL && err == CL_MEM_OBJECT_ALLOCATION_FAILURE);
  cl_mem pinned = cla__create_buffer(d, w.context, CL_MEM_ALLOC_HOST_PTR, 4096, NULL, &err);
  CHECK(pinned != NULL && cla__sim_used(w.dev) == 16 * GiB);
  CHECK(cla__create_buffer(d, w.context, CL_MEM_USE_HOST_PTR, 1, NULL, &err) == NULL);
  CHECK(err == CL_INVALID_HOST_PTR);
  cl_mem all[] = {a, b, c, pinned};
  for (int i = 0; i < 4; i++) CHECK(cla__release_buffer(d, all[i]) == CL_SUCCESS);
  CHECK(cla__release_buffer(d, a) == CL_INVALID_MEM_OBJECT);
  close_world(w);
}

static void wrong_limits_as_some_drivers_have(void) {
  cl_int err = CL_SUCCESS; /* OpenCL-Docs#584, pocl#1720 */
  world w =
      open_world((cla_sim_config){.capacity = 1000, .max_alloc = 100, .accepts_oversize = true, .refuse_above = 500});
  cl_mem m = buffer(w, 200, &err);
  CHECK(m != NULL);
  CHECK(buffer(w, 500, &err) == NULL && err == CL_MEM_OBJECT_ALLOCATION_FAILURE);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  close_world(w);
}

static void lazy_memory_is_taken_by_the_first_command(void) {
  world w = open_world((cla_sim_config){.capacity = 1024, .max_alloc = 4096, .lazy = true});
  cl_int err = CL_SUCCESS;
  cl_event none = NULL;
  cl_mem a = buffer(w, 1024, &err), b = buffer(w, 512, &err);
  CHECK(a != NULL && b != NULL && cla__sim_used(w.dev) == 0);
  cl_mem part = cla__create_sub_buffer(d, a, 0, 512, 512, &err);
  CHECK(part != NULL && cla__sim_used(w.dev) == 0);
  CHECK(cla__enqueue_migrate(d, w.q, &part, 0, NULL) == CL_SUCCESS);
  CHECK(cla__sim_used(w.dev) == 1024); /* the whole parent */
  CHECK(cla__enqueue_migrate(d, w.q, &b, 0, &none) == CL_MEM_OBJECT_ALLOCATION_FAILURE);
  CHECK(none == NULL && cla__sim_used(w.dev) == 1024);
  CHECK(cla__release_buffer(d, a) == CL_SUCCESS);
  CHECK(cla__sim_used(w.dev) == 1024); /* a sub-buffer keeps its parent */
  CHECK(cla__release_sub_buffer(d, part) == CL_SUCCESS && cla__sim_used(w.dev) == 0);
  CHECK(cla__enqueue_fill(d, w.q, b, "", 1, 0, 512, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla__sim_used(w.dev) == 512);
  CHECK(cla__release_buffer(d, b) == CL_SUCCESS);
  close_world(w);
}

static void sub_buffers_are_aligned_and_in_range(void) {
  for (uint32_t align = 128; align <= 4096; align *= 2) {
    world w = open_world((cla_sim_config){.capacity = 1 << 20, .align_bytes = align});
    cl_int err = CL_SUCCESS;
    cl_mem m = buffer(w, 16384, &err);
    cl_mem sub = cla__create_sub_buffer(d, m, 0, align, 1, &err);
    CHECK(sub != NULL);
    CHECK(cla__create_sub_buffer(d, sub, 0, 0, 1, &err) == NULL && err == CL_INVALID_MEM_OBJECT);
    CHECK(cla__create_sub_buffer(d, m, 0, 64, 1, &err) == NULL);
    CHECK(err == CL_MISALIGNED_SUB_BUFFER_OFFSET);
    CHECK(cla__create_sub_buffer(d, m, 0, align, 16384, &err) == NULL && err == CL_INVALID_VALUE);
    CHECK(cla__create_sub_buffer(d, m, 0, align, 0, &err) == NULL);
    CHECK(err == CL_INVALID_BUFFER_SIZE);
    CHECK(cla__enqueue_fill(d, w.q, sub, "", 1, 0, 2, 0, NULL, NULL) == CL_INVALID_VALUE);
    CHECK(cla__release_sub_buffer(d, sub) == CL_SUCCESS);
    CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
    close_world(w);
  }
}

static void commands_check_their_bounds(void) {
  world w = open_world((cla_sim_config){.capacity = 4096});
  char host[64];
  memset(host, 'x', sizeof host);
  cl_mem m = buffer(w, 64, NULL);
  CHECK(cla__enqueue_read(d, w.q, m, CL_TRUE, 32, 32, host, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(host[0] == 0 && host[31] == 0 && host[32] == 'x');
  CHECK(cla__enqueue_read(d, w.q, m, CL_TRUE, 33, 32, host, 0, NULL, NULL) == CL_INVALID_VALUE);
  CHECK(cla__enqueue_read(d, w.q, m, CL_TRUE, SIZE_MAX, 2, host, 0, NULL, NULL) == CL_INVALID_VALUE);
  CHECK(cla__enqueue_write(d, w.q, m, CL_FALSE, 0, 65, host, 0, NULL, NULL) == CL_INVALID_VALUE);
  CHECK(cla__enqueue_copy(d, w.q, m, m, 0, 32, 32, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla__enqueue_copy(d, w.q, m, m, 0, 31, 32, 0, NULL, NULL) == CL_MEM_COPY_OVERLAP);
  CHECK(cla__enqueue_fill(d, w.q, m, "abc", 3, 0, 63, 0, NULL, NULL) == CL_INVALID_VALUE);
  CHECK(cla__enqueue_fill(d, w.q, m, "abcd", 4, 2, 4, 0, NULL, NULL) == CL_INVALID_VALUE);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  close_world(w);
}

static void maps_give_zeroed_host_memory(void) {
  world w = open_world((cla_sim_config){.capacity = 64 * GiB});
  cl_int err = CL_SUCCESS;
  cl_mem m = buffer(w, 32 * GiB, NULL);
  char *p = cla__enqueue_map(d, w.q, m, CL_TRUE, CL_MAP_WRITE, GiB, 31 * GiB, 0, NULL, NULL, &err);
  CHECK(p != NULL && err == CL_SUCCESS && p[30 * GiB] == 0);
  p[0] = 1;
  CHECK(cla__enqueue_unmap(d, w.q, m, p + 1, 0, NULL, NULL) == CL_INVALID_VALUE);
  CHECK(cla__enqueue_unmap(d, w.q, m, p, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla__enqueue_unmap(d, w.q, m, p, 0, NULL, NULL) == CL_INVALID_VALUE);
  CHECK(cla__enqueue_map(d, w.q, m, CL_TRUE, 0, 0, 1, 0, NULL, NULL, &err) == NULL);
  CHECK(err == CL_INVALID_VALUE);
  CHECK(cla__enqueue_map(d, w.q, m, CL_TRUE, CL_MAP_READ, 0, 4096, 0, NULL, NULL, &err) != NULL);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS); /* still mapped: goes with it */

  char own[256];
  m = cla__create_buffer(d, w.context, CL_MEM_USE_HOST_PTR, sizeof own, own, &err);
  p = cla__enqueue_map(d, w.q, m, CL_TRUE, CL_MAP_READ, 16, 16, 0, NULL, NULL, &err);
  CHECK(p == own + 16);
  CHECK(cla__enqueue_unmap(d, w.q, m, p, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  close_world(w);
}

static void a_gate_holds_a_queue_and_what_waits_for_it(void) {
  world w = open_world((cla_sim_config){.capacity = 4096});
  char host = 'x';
  cl_mem m = buffer(w, 4096, NULL);
  cl_event gate = cla__create_user_event(d, w.context, NULL);
  cl_event e[4] = {NULL};
  e[0] = marker(w.q, 1, &gate);
  CHECK(cla__enqueue_read(d, w.q, m, CL_FALSE, 0, 1, &host, 0, NULL, &e[1]) == CL_SUCCESS);
  e[2] = marker(w.q2, 1, &e[1]);
  e[3] = marker(w.q2, 0, NULL);
  for (int i = 0; i < 4; i++) CHECK(status_of(e[i]) > CL_COMPLETE);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  CHECK(cla__sim_used(w.dev) == 4096 && host == 'x'); /* the read still needs it: pocl#812 */
  CHECK(cla__release_buffer(d, m) == CL_INVALID_MEM_OBJECT);
  CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_SUCCESS);
  for (int i = 0; i < 4; i++) CHECK(status_of(e[i]) == CL_COMPLETE);
  CHECK(cla__sim_used(w.dev) == 0 && host == 0);
  CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_INVALID_OPERATION);
  CHECK(cla__set_user_event(d, e[0], CL_COMPLETE) == CL_INVALID_EVENT);
  CHECK(cla__finish(d, w.q) == CL_SUCCESS && cla__finish(d, w.q2) == CL_SUCCESS);
  release_events(4, e);
  CHECK(cla__release_event(d, gate) == CL_SUCCESS);
  close_world(w);
}

static void an_error_ends_what_waits_for_it_and_no_more(void) {
  world w = open_world((cla_sim_config){.capacity = 4096});
  const cl_int expected = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
  char host = 'x';
  cl_mem m = buffer(w, 4096, NULL);
  cl_event gate = cla__create_user_event(d, w.context, NULL), e[4] = {NULL};
  CHECK(cla__enqueue_read(d, w.q, m, CL_FALSE, 0, 1, &host, 1, &gate, &e[0]) == CL_SUCCESS);
  e[1] = marker(w.q, 0, NULL);
  e[2] = marker(w.q2, 1, &e[0]);
  CHECK(cla__set_user_event(d, gate, -77) == CL_SUCCESS);
  CHECK(status_of(gate) == -77 && status_of(e[0]) == expected && status_of(e[2]) == expected);
  CHECK(status_of(e[1]) == CL_COMPLETE && host == 'x');
  CHECK(cla__wait_events(d, 1, &e[1]) == CL_SUCCESS);
  CHECK(cla__wait_events(d, 3, e) == expected);
  e[3] = marker(w.q, 1, &gate); /* an error that is already there */
  CHECK(status_of(e[3]) == expected);
  CHECK(cla__enqueue_read(d, w.q, m, CL_TRUE, 0, 1, &host, 1, &gate, NULL) == expected);
  CHECK(cla__finish(d, w.q) == CL_SUCCESS && host == 'x');
  release_events(4, e);
  CHECK(cla__release_event(d, gate) == CL_SUCCESS);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  close_world(w);
}

static void a_manual_device_runs_what_it_is_told_to(void) {
  world w = open_world((cla_sim_config){.capacity = 4096, .manual = true});
  cl_event e[6] = {NULL};
  for (int i = 0; i < 3; i++) e[i] = marker(w.q, 0, NULL);
  e[3] = marker(w.q2, 1, &e[1]);
  CHECK(status_of(e[0]) > CL_COMPLETE);
  CHECK(cla__sim_complete(w.q2, UINT64_MAX) == 0); /* waits for the other queue */
  CHECK(cla__sim_complete(w.q, 1) == 1);
  CHECK(status_of(e[0]) == CL_COMPLETE && status_of(e[1]) > CL_COMPLETE);
  CHECK(cla__wait_events(d, 1, &e[3]) == CL_SUCCESS);                     /* runs what it needs... */
  CHECK(status_of(e[1]) == CL_COMPLETE && status_of(e[2]) > CL_COMPLETE); /* ...and nothing else */
  e[4] = marker(w.q, 0, NULL);
  e[5] = marker(w.q, 0, NULL);
  CHECK(cla__sim_complete(w.q, 2) == 2);
  CHECK(status_of(e[5]) > CL_COMPLETE);
  CHECK(cla__sim_complete(w.q, UINT64_MAX) == 1 && cla__sim_complete(w.q, 1) == 0);
  release_events(6, e);
  close_world(w);
}

static void a_manual_device_runs_for_a_blocking_call(void) {
  world w = open_world((cla_sim_config){.capacity = 4096, .manual = true});
  char host = 'x';
  cl_mem m = buffer(w, 64, NULL);
  cl_event e[2] = {NULL};
  e[0] = marker(w.q2, 0, NULL);
  CHECK(cla__enqueue_fill(d, w.q, m, "", 1, 0, 64, 1, e, &e[1]) == CL_SUCCESS);
  CHECK(cla__enqueue_read(d, w.q, m, CL_TRUE, 0, 1, &host, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(host == 0 && status_of(e[0]) == CL_COMPLETE && status_of(e[1]) == CL_COMPLETE);
  release_events(2, e);
  e[0] = marker(w.q, 0, NULL);
  CHECK(cla__enqueue_migrate(d, w.q, &m, 0, NULL) == CL_SUCCESS);
  CHECK(cla__finish(d, w.q) == CL_SUCCESS && status_of(e[0]) == CL_COMPLETE);
  CHECK(cla__release_event(d, e[0]) == CL_SUCCESS);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  close_world(w);
}

/* As NVIDIA's driver does when several threads enqueue. */
static void a_migration_reads_its_list_when_it_runs(void) {
  world w = open_world((cla_sim_config){.capacity = 4096, .manual = true});
  cl_mem m = buffer(w, 64, NULL), kept = m, moved = m;
  cl_event e[2] = {NULL};
  CHECK(cla__enqueue_migrate(d, w.q, &kept, 0, &e[0]) == CL_SUCCESS);
  CHECK(cla__enqueue_migrate(d, w.q, &moved, 0, &e[1]) == CL_SUCCESS);
  moved = NULL;
  CHECK(cla__sim_complete(w.q, 2) == 2);
  CHECK(status_of(e[0]) == CL_COMPLETE && status_of(e[1]) == CL_INVALID_MEM_OBJECT);
  release_events(2, e);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  close_world(w);
}

/* Two queues that wait for each other's last command, a hundred thousand deep. */
static void long_chains_need_no_stack(void) {
  for (int is_manual = 0; is_manual < 2; is_manual++) {
    world w = open_world((cla_sim_config){.capacity = 4096, .manual = is_manual != 0});
    cl_event gate = cla__create_user_event(d, w.context, NULL), last = gate;
    for (int i = 0; i < 100000; i++) {
      cl_event e = marker(i % 2 == 0 ? w.q : w.q2, 1, &last);
      if (last != gate) CHECK(cla__release_event(d, last) == CL_SUCCESS);
      last = e;
    }
    CHECK(status_of(last) > CL_COMPLETE);
    CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_SUCCESS);
    CHECK(cla__wait_events(d, 1, &last) == CL_SUCCESS);
    CHECK(status_of(last) == CL_COMPLETE);
    CHECK(cla__release_event(d, last) == CL_SUCCESS);
    CHECK(cla__release_event(d, gate) == CL_SUCCESS);
    close_world(w);
  }
}

static void a_released_queue_ends_its_commands(void) {
  world w = open_world((cla_sim_config){.capacity = 4096, .manual = true});
  cl_command_queue q = cla__create_queue(d, w.context, w.dev, NULL, NULL);
  cl_event gate = cla__create_user_event(d, w.context, NULL);
  cl_event e[2] = {marker(q, 0, NULL), marker(q, 1, &gate)};
  CHECK(cla__release_queue(d, q) == CL_SUCCESS); /* pytorch#66941 keeps using it */
  CHECK(cla__finish(d, q) == CL_INVALID_COMMAND_QUEUE);
  CHECK(cla__retain_queue(d, q) == CL_INVALID_COMMAND_QUEUE);
  CHECK(status_of(e[0]) == CL_COMPLETE && status_of(e[1]) > CL_COMPLETE);
  CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_SUCCESS);
  CHECK(status_of(e[1]) == CL_COMPLETE);
  release_events(2, e);
  CHECK(cla__release_event(d, gate) == CL_SUCCESS);
  close_world(w);
}

static cl_ulong profile(cl_event e, cl_profiling_info what) {
  cl_ulong ns = 0;
  CHECK(cla__get_event_profile(d, e, what, sizeof ns, &ns, NULL) == CL_SUCCESS);
  return ns;
}

static void events_tell_what_they_are(void) {
  world w = open_world((cla_sim_config){.capacity = 4096, .manual = true});
  cl_event e[2] = {marker(w.q, 0, NULL), marker(w.q, 0, NULL)};
  cl_event user = cla__create_user_event(d, w.context, NULL), bare = marker(w.q2, 0, NULL);
  cl_ulong ns;
  cl_command_type type;
  cl_command_queue queue;
  cl_uint refs;
  CHECK(cla__get_event_profile(d, e[0], CL_PROFILING_COMMAND_END, 8, &ns, NULL) == CL_PROFILING_INFO_NOT_AVAILABLE);
  CHECK(cla__finish(d, w.q) == CL_SUCCESS && cla__finish(d, w.q2) == CL_SUCCESS);
  CHECK(profile(e[0], CL_PROFILING_COMMAND_QUEUED) <= profile(e[0], CL_PROFILING_COMMAND_SUBMIT));
  CHECK(profile(e[0], CL_PROFILING_COMMAND_SUBMIT) <= profile(e[0], CL_PROFILING_COMMAND_START));
  CHECK(profile(e[0], CL_PROFILING_COMMAND_END) - profile(e[0], CL_PROFILING_COMMAND_START) == 1000);
  CHECK(profile(e[0], CL_PROFILING_COMMAND_END) == profile(e[1], CL_PROFILING_COMMAND_START));
  CHECK(cla__get_event_profile(d, user, CL_PROFILING_COMMAND_END, 8, &ns, NULL) == CL_PROFILING_INFO_NOT_AVAILABLE);
  CHECK(cla__get_event_profile(d, bare, CL_PROFILING_COMMAND_END, 8, &ns, NULL) == CL_PROFILING_INFO_NOT_AVAILABLE);
  CHECK(cla__get_event_info(d, bare, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL) == CL_SUCCESS);
  CHECK(type == CL_COMMAND_MARKER);
  CHECK(cla__get_event_info(d, bare, CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, NULL) == CL_SUCCESS);
  CHECK(queue == w.q2);
  CHECK(cla__retain_event(d, bare) == CL_SUCCESS);
  CHECK(cla__get_event_info(d, bare, CL_EVENT_REFERENCE_COUNT, sizeof refs, &refs, NULL) == CL_SUCCESS);
  CHECK(refs == 2);
  cl_event all[] = {e[0], e[1], user, bare, bare};
  release_events(5, all);
  CHECK(cla__release_event(d, bare) == CL_INVALID_EVENT);
  close_world(w);
}

static int seen[8], nseen;

static void CL_CALLBACK note(cl_event e, cl_int status, void *arg) {
  CHECK(status_of(e) <= CL_COMPLETE); /* calls the driver: no lock is held */
  seen[nseen++] = *(int *)arg * 100 + status;
}

static void callbacks_come_once_in_order(void) {
  world w = open_world((cla_sim_config){.capacity = 4096});
  int id[] = {1, 2, 3, 4};
  cl_event gate = cla__create_user_event(d, w.context, NULL), e = marker(w.q, 1, &gate);
  nseen = 0;
  CHECK(cla__set_event_callback(d, e, CL_COMPLETE, note, &id[0]) == CL_SUCCESS);
  CHECK(cla__set_event_callback(d, e, CL_COMPLETE, note, &id[1]) == CL_SUCCESS);
  CHECK(cla__set_event_callback(d, gate, CL_COMPLETE, note, &id[2]) == CL_SUCCESS);
  CHECK(cla__set_event_callback(d, e, 7, note, &id[0]) == CL_INVALID_VALUE && nseen == 0);
  CHECK(cla__release_event(d, e) == CL_SUCCESS); /* the callbacks still come */
  CHECK(cla__set_user_event(d, gate, -5) == CL_SUCCESS);
  CHECK(nseen == 3 && seen[0] == 295 && seen[1] == 86 && seen[2] == 186);
  CHECK(cla__set_event_callback(d, gate, CL_COMPLETE, note, &id[3]) == CL_SUCCESS);
  CHECK(nseen == 4 && seen[3] == 395);
  CHECK(cla__release_event(d, gate) == CL_SUCCESS);
  gate = cla__create_user_event(d, w.context, NULL);
  CHECK(cla__set_event_callback(d, gate, CL_COMPLETE, note, &id[0]) == CL_SUCCESS);
  CHECK(cla__release_event(d, gate) == CL_SUCCESS && nseen == 4); /* never set: never called */
  close_world(w);
}

static const char source[] = "/* kernel void no(int a) {} */\n"
                             "#define N 4 /* { */\n"
                             "typedef struct { int a; } pair;\n"
                             "static float half_of(float a) { return a / 2; } // kernel\n"
                             "#if 0\n"
                             "kernel void off(int a) {\n"
                             "#else\n"
                             "__kernel __attribute__((reqd_work_group_size(8, 4, 1)))\n"
                             "void first(float a, __global const float *restrict x, global float4 *y,\n"
                             "           local uint *scratch, constant unsigned char *table, const int n)\n"
                             "#endif\n"
                             "{ char brace = '{'; const char *s = \"}{\"; y[0] = half_of(a); }\n"
                             "kernel void first(float a);\n"
                             "kernel void second(void) {}\n"
                             "kernel void third(pair p, unsigned long int u, global volatile uchar16 *v, double3 w,\n"
                             "                  global float z[4], size_t n, float *const hidden) {}\n";

static cl_program program(world w, const char *text, const char *options, cl_int *built) {
  cl_int err;
  cl_program p = cla__create_program(d, w.context, text, strlen(text), &err);
  CHECK(p != NULL);
  *built = cla__build_program(d, p, w.dev, options);
  return p;
}

typedef struct expected_arg {
  const char *name, *type;
  cl_kernel_arg_address_qualifier address;
  cl_kernel_arg_type_qualifier qualifiers;
} expected_arg;

static void check_args(cl_kernel k, const expected_arg *expected, cl_uint n) {
  cl_uint nargs = 0;
  CHECK(cla__get_kernel_info(d, k, CL_KERNEL_NUM_ARGS, sizeof nargs, &nargs, NULL) == CL_SUCCESS);
  CHECK(nargs == n);
  for (cl_uint i = 0; i < n; i++) {
    char name[64] = "", type[64] = "";
    cl_kernel_arg_address_qualifier address = 0;
    cl_kernel_arg_type_qualifier qualifiers = 0;
    CHECK(cla__get_kernel_arg_info(d, k, i, CL_KERNEL_ARG_NAME, 64, name, NULL) == CL_SUCCESS);
    CHECK(cla__get_kernel_arg_info(d, k, i, CL_KERNEL_ARG_TYPE_NAME, 64, type, NULL) == CL_SUCCESS);
    CHECK(cla__get_kernel_arg_info(d, k, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof address, &address, NULL) ==
          CL_SUCCESS);
    CHECK(cla__get_kernel_arg_info(d, k, i, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof qualifiers, &qualifiers, NULL) ==
          CL_SUCCESS);
    if (!CHECK(strcmp(name, expected[i].name) == 0 && strcmp(type, expected[i].type) == 0))
      fprintf(stderr, "  argument %u: %s %s\n", i, type, name);
    CHECK(address == expected[i].address && qualifiers == expected[i].qualifiers);
  }
}

static void programs_tell_their_kernels(void) {
  world w = open_world((cla_sim_config){.capacity = 4096});
  cl_int err;
  char text[4096];
  size_t n = 0, group[3] = {0};
  cl_program p = program(w, source, "-cl-kernel-arg-info", &err);
  CHECK(err == CL_SUCCESS);
  CHECK(cla__get_program_info(d, p, CL_PROGRAM_KERNEL_NAMES, sizeof text, text, NULL) == CL_SUCCESS);
  CHECK(strcmp(text, "first;second;third") == 0);
  CHECK(cla__get_program_info(d, p, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL) == CL_SUCCESS);
  CHECK(n == 3);
  CHECK(cla__get_program_info(d, p, CL_PROGRAM_SOURCE, sizeof text, text, NULL) == CL_SUCCESS);
  CHECK(strcmp(text, source) == 0);
  CHECK(cla__create_kernel(d, p, "off", &err) == NULL && err == CL_INVALID_KERNEL_NAME);

  cl_kernel k = cla__create_kernel(d, p, "first", &err);
  const cl_kernel_arg_address_qualifier global = CL_KERNEL_ARG_ADDRESS_GLOBAL;
  const cl_kernel_arg_address_qualifier private = CL_KERNEL_ARG_ADDRESS_PRIVATE;
  check_args(k,
             (expected_arg[]){{"a", "float", private, 0},
                              {"x", "float*", global, CL_KERNEL_ARG_TYPE_CONST | CL_KERNEL_ARG_TYPE_RESTRICT},
                              {"y", "float4*", global, 0},
                              {"scratch", "uint*", CL_KERNEL_ARG_ADDRESS_LOCAL, 0},
                              {"table", "uchar*", CL_KERNEL_ARG_ADDRESS_CONSTANT, CL_KERNEL_ARG_TYPE_CONST},
                              {"n", "int", private, 0}},
             6);
  CHECK(cla__get_kernel_group_info(d, k, w.dev, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof group, group, NULL) ==
        CL_SUCCESS);
  CHECK(group[0] == 8 && group[1] == 4 && group[2] == 1);
  CHECK(cla__build_program(d, p, w.dev, "") == CL_INVALID_OPERATION); /* it has kernels */
  CHECK(cla__release_kernel(d, k) == CL_SUCCESS);
  k = cla__create_kernel(d, p, "third", &err);
  check_args(k,
             (expected_arg[]){{"p", "pair", private, 0},
                              {"u", "ulong", private, 0},
                              {"v", "uchar16*", global, CL_KERNEL_ARG_TYPE_VOLATILE},
                              {"w", "double3", private, 0},
                              {"z", "float*", global, 0},
                              {"n", "size_t", private, 0},
                              {"hidden", "float*", global, 0}},
             7);
  CHECK(cla__set_kernel_arg(d, k, 3, 24, text) == CL_INVALID_ARG_SIZE);
  CHECK(cla__set_kernel_arg(d, k, 3, 32, text) == CL_SUCCESS);
  CHECK(cla__set_kernel_arg(d, k, 0, 12, text) == CL_SUCCESS); /* a struct may have any size */
  CHECK(cla__release_program(d, p) == CL_SUCCESS);             /* the kernel keeps it */
  CHECK(cla__release_kernel(d, k) == CL_SUCCESS);

  p = program(w, source, "", &err);
  k = cla__create_kernel(d, p, "first", &err);
  CHECK(cla__get_kernel_arg_info(d, k, 0, CL_KERNEL_ARG_NAME, 64, text, NULL) == CL_KERNEL_ARG_INFO_NOT_AVAILABLE);
  CHECK(cla__release_kernel(d, k) == CL_SUCCESS && cla__release_program(d, p) == CL_SUCCESS);
  close_world(w);
}

static void bad_source_fails_with_a_log(void) {
  static const struct {
    const char *text, *log;
  } cases[] = {
      {"\nkernel void f() {}\n  #error too old\n", "<source>:3: error: #error too old\n"},
      {"kernel void f() {\n", "<source>:1: error: '{' is never closed\n"},
      {"kernel void f(int a\n]", "<source>:2: error: expected ')', not ']'\n"},
      {"kernel void f( {}", "<source>:1: error: '(' is never closed\n"},
      {"}\n", "<source>:1: error: '}' without opening\n"},
      {"int a; /* open", "<source>:1: error: unterminated comment\n"},
      {"#ifdef X\n", "<source>:2: error: unterminated conditional\n"},
      {"int a;\n#endif\n", "<source>:2: error: #endif without #if\n"},
  };
  world w = open_world((cla_sim_config){.capacity = 4096});
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char log[256] = "";
    cl_int err;
    cl_build_status status = 99;
    cl_program p = program(w, cases[i].text, "", &err);
    CHECK(err == CL_BUILD_PROGRAM_FAILURE);
    CHECK(cla__get_build_info(d, p, w.dev, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL) == CL_SUCCESS);
    if (!CHECK(strcmp(log, cases[i].log) == 0)) fprintf(stderr, "  %s", log);
    CHECK(cla__get_build_info(d, p, w.dev, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL) == CL_SUCCESS);
    CHECK(status == CL_BUILD_ERROR);
    CHECK(cla__create_kernel(d, p, "f", &err) == NULL && err == CL_INVALID_PROGRAM_EXECUTABLE);
    CHECK(cla__release_program(d, p) == CL_SUCCESS);
  }
  cl_int err;
  cl_program p = program(w, "#if X < 2\n#error for another device\n#endif\n\"#error\"", "", &err);
  CHECK(err == CL_SUCCESS);
  CHECK(cla__release_program(d, p) == CL_SUCCESS);
  close_world(w);
}

/* The parser meets every prefix of a source: it may refuse, and must not read outside. */
static void cut_sources_are_harmless(void) {
  world w = open_world((cla_sim_config){.capacity = 4096});
  for (size_t n = 1; n < sizeof source; n++) {
    cl_int err;
    char *cut = malloc(n);
    memcpy(cut, source, n);
    cl_program p = cla__create_program(d, w.context, cut, n, &err);
    free(cut);
    err = cla__build_program(d, p, w.dev, "");
    CHECK(err == CL_SUCCESS || err == CL_BUILD_PROGRAM_FAILURE);
    CHECK(cla__release_program(d, p) == CL_SUCCESS);
  }
  close_world(w);
}

static void launches_check_their_arguments(void) {
  world w = open_world((cla_sim_config){.capacity = 1000, .lazy = true});
  const char text[] = "kernel void f(float a, global float *x, local float *s) {}";
  const size_t global = 64, odd = 3, none = 0;
  float a = 1;
  uint64_t junk[8] = {0};
  cl_int err;
  cl_program p = program(w, text, "", &err);
  cl_kernel k = cla__create_kernel(d, p, "f", &err);
  cl_mem x = buffer(w, 600, &err), y = buffer(w, 600, &err), foreign = (cl_mem)(void *)junk;
  CHECK(cla__set_kernel_arg(d, k, 3, 4, &a) == CL_INVALID_ARG_INDEX);
  CHECK(cla__set_kernel_arg(d, k, 0, 8, &a) == CL_INVALID_ARG_SIZE);
  CHECK(cla__set_kernel_arg(d, k, 0, 4, NULL) == CL_INVALID_ARG_VALUE);
  CHECK(cla__set_kernel_arg(d, k, 1, 4, &x) == CL_INVALID_ARG_SIZE);
  CHECK(cla__set_kernel_arg(d, k, 1, sizeof foreign, &foreign) == CL_INVALID_MEM_OBJECT);
  CHECK(cla__set_kernel_arg(d, k, 2, 16, &a) == CL_INVALID_ARG_VALUE);
  CHECK(cla__set_kernel_arg(d, k, 2, 0, NULL) == CL_INVALID_ARG_SIZE);
  CHECK(cla__set_kernel_arg(d, k, 0, 4, &a) == CL_SUCCESS);
  CHECK(cla__set_kernel_arg(d, k, 1, sizeof x, &x) == CL_SUCCESS);
  CHECK(cla__enqueue_kernel(d, w.q, k, 1, NULL, &global, NULL, 0, NULL, NULL) == CL_INVALID_KERNEL_ARGS);
  CHECK(cla__set_kernel_arg(d, k, 2, 256, NULL) == CL_SUCCESS);
  CHECK(cla__enqueue_kernel(d, w.q, k, 0, NULL, &global, NULL, 0, NULL, NULL) == CL_INVALID_WORK_DIMENSION);
  CHECK(cla__enqueue_kernel(d, w.q, k, 1, NULL, &global, &odd, 0, NULL, NULL) == CL_INVALID_WORK_GROUP_SIZE);
  CHECK(cla__enqueue_kernel(d, w.q, k, 1, NULL, &global, &none, 0, NULL, NULL) == CL_INVALID_WORK_GROUP_SIZE);
  CHECK(cla__sim_used(w.dev) == 0);
  CHECK(cla__enqueue_kernel(d, w.q, k, 1, NULL, &global, &global, 0, NULL, NULL) == CL_SUCCESS);
  CHECK(cla__sim_used(w.dev) == 600);
  CHECK(cla__set_kernel_arg(d, k, 1, sizeof y, &y) == CL_SUCCESS);
  CHECK(cla__enqueue_kernel(d, w.q, k, 1, NULL, &global, NULL, 0, NULL, NULL) == CL_MEM_OBJECT_ALLOCATION_FAILURE);
  CHECK(cla__release_buffer(d, x) == CL_SUCCESS && cla__release_buffer(d, y) == CL_SUCCESS);
  y = buffer(w, 100, &err); /* may well get the handle of the old one */
  CHECK(cla__enqueue_kernel(d, w.q, k, 1, NULL, &global, NULL, 0, NULL, NULL) == CL_INVALID_KERNEL_ARGS);
  CHECK(cla__set_kernel_arg(d, k, 1, sizeof y, &y) == CL_SUCCESS);
  cl_event gate = cla__create_user_event(d, w.context, NULL);
  CHECK(cla__enqueue_kernel(d, w.q, k, 1, NULL, &global, NULL, 1, &gate, NULL) == CL_SUCCESS);
  CHECK(cla__release_buffer(d, y) == CL_SUCCESS && cla__sim_used(w.dev) == 100);
  CHECK(cla__release_kernel(d, k) == CL_SUCCESS && cla__release_program(d, p) == CL_SUCCESS);
  CHECK(cla__set_user_event(d, gate, CL_COMPLETE) == CL_SUCCESS);
  CHECK(cla__release_event(d, gate) == CL_SUCCESS);
  close_world(w);
}

static void foreign_handles_are_refused(void) {
  world w = open_world((cla_sim_config){.capacity = 4096}), other = open_world((cla_sim_config){.capacity = 4096});
  uint64_t junk[8] = {0};
  void *handles[] = {NULL, (void *)1, (char *)junk + 1, junk, w.context};
  cl_uint refs = 0;
  cl_mem m = buffer(w, 64, NULL);
  for (size_t i = 0; i < sizeof handles / sizeof *handles; i++) {
    CHECK(cla__finish(d, handles[i]) == CL_INVALID_COMMAND_QUEUE);
    CHECK(cla__release_buffer(d, handles[i]) == CL_INVALID_MEM_OBJECT);
    CHECK(cla__release_event(d, handles[i]) == CL_INVALID_EVENT);
    CHECK(cla__release_kernel(d, handles[i]) == CL_INVALID_KERNEL);
    CHECK(cla__release_program(d, handles[i]) == CL_INVALID_PROGRAM);
    CHECK(cla__enqueue_migrate(d, w.q, (cl_mem[]){handles[i]}, 0, NULL) == CL_INVALID_MEM_OBJECT);
    CHECK(cla__enqueue_marker(d, w.q, 1, (cl_event *)&handles[i], NULL) == CL_INVALID_EVENT_WAIT_LIST);
    CHECK(cla__wait_events(d, 1, (cl_event *)&handles[i]) == CL_INVALID_EVENT);
    CHECK(cla__sim_complete(handles[i], 1) == 0);
  }
  CHECK(cla__release_context(d, (cl_context)(void *)m) == CL_INVALID_CONTEXT);
  CHECK(cla__enqueue_migrate(d, other.q, &m, 0, NULL) == CL_INVALID_CONTEXT);
  CHECK(cla__enqueue_marker(d, w.q, 1, NULL, NULL) == CL_INVALID_EVENT_WAIT_LIST);
  CHECK(cla__get_queue_info(d, w.q, CL_QUEUE_REFERENCE_COUNT, sizeof refs, &refs, NULL) == CL_SUCCESS);
  CHECK(refs == 1);
  CHECK(cla__release_buffer(d, m) == CL_SUCCESS);
  CHECK(cla__release_queue(d, other.q) == CL_SUCCESS);
  CHECK(cla__release_queue(d, other.q2) == CL_SUCCESS);
  cla__sim_destroy(other.dev); /* lives on until its context goes */
  CHECK(cla__create_queue(d, other.context, other.dev, NULL, NULL) == NULL);
  CHECK(cla__release_context(d, other.context) == CL_SUCCESS);
  close_world(w);
}

int main(void) {
  describes_itself();
  counts_capacity_to_the_byte();
  wrong_limits_as_some_drivers_have();
  lazy_memory_is_taken_by_the_first_command();
  sub_buffers_are_aligned_and_in_range();
  commands_check_their_bounds();
  maps_give_zeroed_host_memory();
  a_gate_holds_a_queue_and_what_waits_for_it();
  an_error_ends_what_waits_for_it_and_no_more();
  a_manual_device_runs_what_it_is_told_to();
  a_manual_device_runs_for_a_blocking_call();
  a_migration_reads_its_list_when_it_runs();
  long_chains_need_no_stack();
  a_released_queue_ends_its_commands();
  events_tell_what_they_are();
  callbacks_come_once_in_order();
  programs_tell_their_kernels();
  bad_source_fails_with_a_log();
  cut_sources_are_harmless();
  launches_check_their_arguments();
  foreign_handles_are_refused();
  return check_done("sim_driver");
}
