/* A Lua allocator that runs dry at its n-th call, for n = 1, 2, 3 ... until a run goes through: nothing but "not enough
 * memory" is ever seen, and whatever the script had made by then is closed with its state (lunatik#577, sol2#1384).
 * With a single failed call Lua collects in its emergency and goes on, and so does the script.
 *
 * Calls in which Lua opens its own libraries and compiles are not among the n: they run nothing of clalloc's, and would be
 * most of all. For the same reason what was compiled once is kept, for the thousands of states that follow. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clalloc.h"
#include "lua_host.h"

typedef struct supply {
  long left;     /* calls until the failure */
  bool is_dry;   /* fails from then on, not just once */
  bool is_ample; /* never fails, and nothing is counted */
} supply;

static void *allocate(void *arg, void *block, size_t old_size, size_t size) {
  supply *s = arg;
  if (size == 0) {
    free(block);
    return NULL;
  }
  const bool grows = !block || size > old_size; /* Lua relies on shrinking */
  if (grows && !s->is_ample && s->left > 0 && --s->left == 0) {
    if (s->is_dry) s->left = 1;
    return NULL;
  }
  return realloc(block, size);
}

static supply *supply_of(lua_State *L) {
  void *s;
  lua_getallocf(L, &s);
  return s;
}

/* ---- What Lua has compiled ---- */

typedef struct compiled {
  char name[64];
  char *code;
  size_t nbytes;
} compiled;

static compiled known[64];
static size_t nknown;

static const compiled *find(const char *name) {
  for (size_t i = 0; i < nknown; i++)
    if (strcmp(known[i].name, name) == 0) return &known[i];
  return NULL;
}

static int append(lua_State *L, const void *piece, size_t nbytes, void *arg) {
  compiled *c = arg;
  (void)L;
  char *grown = realloc(c->code, c->nbytes + nbytes);
  if (!grown) abort();
  memcpy(grown + c->nbytes, piece, nbytes);
  c->code = grown;
  c->nbytes += nbytes;
  return 0;
}

/* Keeps the function on top of the stack. */
static void keep(lua_State *L, const char *name) {
  if (!CHECK(nknown < sizeof known / sizeof *known)) return;
  compiled *c = &known[nknown++];
  snprintf(c->name, sizeof c->name, "%s", name);
  lua_dump(L, append, c, 0);
}

/* In place of the searcher that reads files, its upvalue. */
static int search(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const compiled *c = find(name);
  supply_of(L)->is_ample = true;
  if (c) {
    CHECK(luaL_loadbuffer(L, c->code, c->nbytes, name) == LUA_OK);
  } else {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    keep(L, name);
  }
  supply_of(L)->is_ample = false;
  return 1;
}

/* ---- The script ---- */

static const char SCRIPT[] = "local cl = require 'clalloc' "
                             "local every_type = require 'every_type' "
                             "local dev = real and cl.device() or cl.simulate{capacity = 1 << 30} "
                             "local o = every_type.make(cl, dev) "
                             "every_type.use(cl, o) "
                             "o.guard:close() "
                             "o.host_view:close() o.host_buffer:close() o.host_cache:close() "
                             "assert(not dev.host:alloc(1 << 60)) "
                             "assert(not pcall(dev.host_cache, dev, {hooks = {free = 1}})) "
                             "assert(not dev:alloc(1 << 50)) "
                             "assert(not pcall(dev.alloc, dev, -1)) "
                             "pcall(dev.program, dev, 'kernel void broken(') "
                             "if not real then "
                             "  local p = dev:program('kernel void f() { free(malloc(4)); }', {heap = true}) "
                             "  p.f{size = 1, heap_oom = 'error', heap_need = 1}:wait() "
                             "  assert(#o.heap:leaks() == 0 and dev.heap:stats().reserved > 0) "
                             "  dev.heap.limit, o.heap = (dev.heap:reset() and 1000), nil "
                             "end "
                             "cl.devices() cl.debug.calls()";

static int protected_run(lua_State *L) {
  const bool is_real = lua_toboolean(L, 1);
  host_open(L);
  lua_getglobal(L, LUA_LOADLIBNAME);
  lua_getfield(L, -1, "searchers");
  lua_rawgeti(L, -1, 2);
  lua_pushcclosure(L, search, 1);
  lua_rawseti(L, -2, 2);
  lua_pushboolean(L, is_real);
  lua_setglobal(L, "real");
  CHECK(luaL_loadstring(L, SCRIPT) == LUA_OK);
  supply_of(L)->is_ample = false;
  lua_call(L, 0, 0);
  return 0;
}

/* Whether the script ran to its end. */
static bool run(long n, bool is_dry, bool is_real) {
  supply s = {.left = n, .is_dry = is_dry, .is_ample = true};
  lua_State *L = lua_newstate(allocate, &s);
  bool finished = false;
  if (L) {
    lua_pushcfunction(L, protected_run); /* light, as the boolean: neither takes memory */
    lua_pushboolean(L, is_real);
    finished = lua_pcall(L, 1, 0, 0) == LUA_OK;
    s.is_ample = true;
    const char *message = finished ? "" : lua_tostring(L, -1);
    if (!finished && !CHECK(message && strstr(message, "not enough memory")))
      fprintf(stderr, "call %ld: %s\n", n, message ? message : "no message");
    lua_close(L);
  }
  if (!CHECK(cla_debug_live(NULL) == 0)) {
    fprintf(stderr, "call %ld: %lld driver objects left\n", n, (long long)cla_debug_live(NULL));
    exit(check_done("lua_memory_errors"));
  }
  return finished;
}

/* Runs with ever later failures; gives the first n for which there was none. */
static long run_all(bool is_dry, bool is_real, long step, long most) {
  long n = 1;
  while (n < most) {
    const bool finished = run(n, is_dry, is_real);
    if (is_dry && finished) return n;
    n += step;
  }
  return n;
}

int main(int argc, char **argv) {
  const long step = argc > 1 ? atol(argv[1]) : 1;
  const long calls = run_all(true, false, step, 1000000);

  CHECK(calls > 1000 && calls < 1000000);
  run_all(true, true, 23 * step, 1000000);
  run_all(false, false, 7 * step, calls);
  return check_done("lua_memory_errors");
}
