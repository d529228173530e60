/* A policy of a Lua state, and allocations that do not come from it: from another thread, while the state runs and while it
 * does not, and after it has closed. Lua is never called there: the default decides, which is counted. */
#include <pthread.h>
#include <stdint.h>

#include "check.h"
#include "clalloc.h"
#include "lua_host.h"

enum { TIMES = 200 };

static cla_pool *pool;

static void *allocate(void *arg) {
  (void)arg;
  void *addresses[8] = {NULL};
  for (int i = 0; i < TIMES; i++) {
    void **address = &addresses[i % 8];
    if (*address) CHECK(cla_free(*address) == CLA_OK);
    CHECK(cla_alloc(pool, (size_t)i * 100, cla_device_stream(cla_pool_device(pool)), address) == CLA_OK);
  }
  for (int i = 0; i < 8; i++) CHECK(cla_free(addresses[i]) == CLA_OK);
  return NULL;
}

static void on_another_thread(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, allocate, NULL);
  pthread_join(thread, NULL);
}

static int meanwhile(lua_State *L) {
  (void)L;
  on_another_thread();
  return 0;
}

static lua_Integer global_integer(lua_State *L, const char *name) {
  lua_getglobal(L, name);
  lua_Integer value = lua_tointeger(L, -1);
  lua_pop(L, 1);
  return value;
}

static const char OPEN[] = "cl = require 'clalloc' "
                           "calls = {} "
                           "local function count(name) return function(r) calls[name] = (calls[name] or 0) + 1 "
                           "  if other and name == 'fit' then other() end end end "
                           "policy = {name = 'counting'} "
                           "for _, name in ipairs{'round', 'fit', 'split', 'grow', 'keep', 'oom', 'admit', 'note'} do "
                           "  policy[name] = count(name) end "
                           "sim = cl.simulate{capacity = 1 << 30} "
                           "pool = sim:pool{policy = policy} "
                           "buf = assert(pool:alloc(1000)) "
                           "address = buf.address";

static const char LOOK[] = "missed = pool:stats().missed_decisions assert(pool:check())";

int main(void) {
  lua_State *L = luaL_newstate();
  host_open(L);
  CHECK(host_run(L, OPEN));
  cla_buffer b;
  void *address = (void *)(intptr_t)global_integer(L, "address"); /* NOLINT: a device address */
  CHECK(cla_resolve(address, &b) == CLA_OK);
  pool = b.pool;
  cla_pool_retain(pool);

  on_another_thread();
  CHECK(host_run(L, "for _, n in pairs(calls) do assert(n <= 1) end"));
  CHECK(host_run(L, LOOK));
  lua_Integer missed = global_integer(L, "missed");
  CHECK(missed >= 3 * (lua_Integer)TIMES);

  /* While one of its functions runs. */
  lua_pushcfunction(L, meanwhile);
  lua_setglobal(L, "other");
  CHECK(host_run(L, "before = calls.note assert(pool:alloc(5000)):close() other = nil "
                    "assert(calls.note == before + 2 and calls.fit > 0) assert(pool:check())"));
  CHECK(host_run(L, LOOK));
  CHECK(global_integer(L, "missed") >= 2 * missed - 10);

  /* The pool lives on without the state. */
  cla_device_retain(cla_pool_device(pool));
  cla_device *device = cla_pool_device(pool);
  lua_close(L);
  on_another_thread();
  CHECK(cla_pool_check(pool) == CLA_OK);
  cla_pool_release(pool);
  cla_device_release(device);
  CHECK(cla_debug_live(NULL) == 0);
  return check_done("lua_policy");
}
