/* The module `clalloc.core`: what `require "clalloc"` builds on. Loading it makes no OpenCL call.
 *
 * Every Lua state that loads it gets a world and types of its own; devices are shared by all of the process. */
#include <dlfcn.h>
#include <time.h>

#include "binding.h"

#define VERSION "0.1.0"

__attribute__((visibility("default"))) int luaopen_clalloc_core(lua_State *L);

/* Callbacks of commands that are still running come after the state has closed: the code stays mapped. */
static void stay_loaded(void) {
  Dl_info here;
  if (!dladdr(CLA_LUA_POOL, &here)) return;
  void *handle = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (handle) dlclose(handle);
}

static int core_current(lua_State *L) {
  cla_device *d;
  cla_stream *s;
  cla_lua_current(L, &d, &s);
  cla_lua_pushdevice(L, d);
  cla_lua_pushstream(L, s);
  return 2;
}

/* Seconds that pass while the device works too; only differences mean something. */
static int core_clock(lua_State *L) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  lua_pushnumber(L, (lua_Number)now.tv_sec + (lua_Number)now.tv_nsec * 1e-9);
  return 1;
}

static const luaL_Reg functions[] = {{"device", cla_lua_device},
                                     {"devices", cla_lua_devices},
                                     {"simulate", cla_lua_simulate},
                                     {"guard", cla_lua_guard},
                                     {"current", core_current},
                                     {"owns", cla_lua_owns},
                                     {"resolve", cla_lua_resolve},
                                     {"localmem", cla_lua_localmem},
                                     {"clock", core_clock},
                                     {"plan", cla_lua_plan},
                                     {"heap_source", cla_lua_heap_source},
                                     {NULL, NULL}};

int luaopen_clalloc_core(lua_State *L) {
  luaL_checkversion(L);
  stay_loaded();
  cla_lua_open_world(L);
  cla_lua_open_device(L);
  cla_lua_open_stream(L);
  cla_lua_open_event(L);
  cla_lua_open_gate(L);
  cla_lua_open_pool(L);
  cla_lua_open_buffer(L);
  cla_lua_open_map(L);
  cla_lua_open_guard(L);
  cla_lua_open_host(L);
  cla_lua_open_host_buffer(L);
  cla_lua_open_heap(L);
  cla_lua_open_program(L);
  cla_lua_open_kernel(L);
  luaL_newlib(L, functions);
  cla_lua_debug_table(L);
  lua_setfield(L, -2, "debug");
  cla_lua_pool_trace_table(L);
  lua_setfield(L, -2, "pool_trace");
  lua_pushliteral(L, VERSION);
  lua_setfield(L, -2, "version");
  return 1;
}
