/* Several Lua states in one process: devices are shared, what a state makes is its own and goes with it, in whichever
 * order the states are closed, and on whichever thread each of them runs. */
#include <pthread.h>
#include <stdint.h>

#include "check.h"
#include "clalloc.h"
#include "lua_host.h"

static lua_State *open_state(void) {
  lua_State *L = luaL_newstate();
  host_open(L);
  CHECK(host_run(L, "cl = require 'clalloc'; every_type = require 'every_type'"));
  return L;
}

static lua_Integer global_integer(lua_State *L, const char *name) {
  lua_getglobal(L, name);
  lua_Integer value = lua_tointeger(L, -1);
  lua_pop(L, 1);
  return value;
}

static const char MAKE[] = "dev = cl.device() "
                           "buf = assert(dev:alloc(1000)) "
                           "buf:fill(42) "
                           "address = buf.address";

/* The address means the same in the other state, until the buffer is closed where it was made. */
static const char LOOK[] = "dev = cl.device() "
                           "found, offset = cl.resolve(address + 10) "
                           "assert(offset == 10 and found.size == 1000 and found.device == dev) "
                           "assert(found:read(0, 2) == '**') "
                           "found:write('ab', 10) "
                           "mine = assert(dev:alloc(1000)) "
                           "assert(mine.address ~= address)";

static void two_states(bool maker_first) {
  lua_State *a = open_state(), *b = open_state();
  CHECK(host_run(a, MAKE));
  lua_pushinteger(b, global_integer(a, "address"));
  lua_setglobal(b, "address");
  CHECK(host_run(b, LOOK));
  CHECK(host_run(a, "assert(buf:read(10, 2) == 'ab')"));
  CHECK(host_run(a, "buf:close()"));
  CHECK(host_run(b, "assert(found.closed and not pcall(found.read, found))"));
  CHECK(host_run(b, "assert(not cl.resolve(address))"));
  CHECK(host_run(a, MAKE));
  lua_close(maker_first ? a : b);
  lua_State *rest = maker_first ? b : a;
  if (maker_first) CHECK(host_run(rest, "mine:fill(1) assert(mine:read(0, 1) == '\\1')"));
  else CHECK(host_run(rest, "assert(buf:read(999) == '*')"));
  CHECK(host_run(rest, "local x <close> = assert(cl.device():alloc(10)) x:fill(0)"));
  lua_close(rest);
  CHECK(cla_debug_live(NULL) == 0);
}

/* A guard, a fault and the pressure on the collector are one state's own. */
static void states_apart(void) {
  lua_State *a = open_state(), *b = open_state();
  CHECK(host_run(a, "sim = cl.simulate{capacity = 1 << 30} guard = cl.guard(sim:stream())"));
  CHECK(host_run(a, "assert(cl.current().simulated)"));
  CHECK(host_run(b, "assert(not cl.current().simulated)"));
  lua_close(a);
  CHECK(host_run(b, "assert(not cl.current().simulated)"));
  lua_close(b);
  CHECK(cla_debug_live(NULL) == 0);
}

static const char EVERYTHING[] = "a = every_type.make(cl, cl.device()) "
                                 "if use then every_type.use(cl, a) end "
                                 "b = every_type.make(cl, cl.simulate{capacity = 1 << 30}) "
                                 "if use then every_type.use(cl, b) end";

/* Closed with live objects, some behind a shut gate. */
static void many_in_a_row(void) {
  enum { STATES = 50 };
  for (int i = 0; i < STATES; i++) {
    lua_State *L = open_state();
    lua_pushboolean(L, i % 2);
    lua_setglobal(L, "use");
    CHECK(host_run(L, EVERYTHING));
    lua_close(L);
    if (!CHECK(cla_debug_live(NULL) == 0)) break;
  }
}

static void *thread_with_state(void *arg) {
  enum { ROUNDS = 20 };
  for (int i = 0; i < ROUNDS; i++) {
    lua_State *L = open_state();
    lua_pushboolean(L, ((intptr_t)arg + i) % 2 == 1);
    lua_setglobal(L, "use");
    CHECK(host_run(L, EVERYTHING));
    CHECK(host_run(L, "for i = 1, 200 do local x = assert(cl.device():alloc(i * 10)) x:fill(0) end"));
    lua_close(L);
  }
  return NULL;
}

static void two_threads(void) {
  pthread_t threads[2];
  for (intptr_t i = 0; i < 2; i++) pthread_create(&threads[i], NULL, thread_with_state, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  CHECK(cla_debug_live(NULL) == 0);
}

int main(void) {
  two_states(true);
  two_states(false);
  states_apart();
  many_in_a_row();
  two_threads();
  return check_done("lua_states");
}
