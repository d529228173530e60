/* `core.plan`: offsets for lifetimes; clalloc/plan.lua makes a plan of them.
 *
 *   plan(lower, upper, nbytes, align, seconds, steps) -> offsets, height, floor, orders, steps
 *   plan(lower, upper, nbytes, align, offsets)        -> true, or nil, message, code
 *
 * All lists are sequences of integers, of one length. Everything is gathered into Lua memory first: an error leaves
 * nothing behind. */
#include "binding.h"

static uint64_t element(lua_State *L, int arg, lua_Integer i, const char *name) {
  int is_integer;
  lua_rawgeti(L, arg, i);
  lua_Integer value = lua_tointegerx(L, -1, &is_integer);
  if (!is_integer || value < 0)
    cla_lua_badarg(L, arg, "%s[%I]: expected an integer of at least 0, got %s", name, (LUAI_UACINT)i,
                   luaL_tolstring(L, -1, NULL));
  lua_pop(L, 1);
  return (uint64_t)value;
}

static size_t length(lua_State *L, int arg, const char *name) {
  luaL_checktype(L, arg, LUA_TTABLE);
  size_t n = lua_rawlen(L, arg), first = lua_rawlen(L, 1);
  if (n != first)
    cla_lua_badarg(L, arg, "%s: %I elements, where lower has %I", name, (LUAI_UACINT)n, (LUAI_UACINT)first);
  return n;
}

static cla_lifetime *gather(lua_State *L, size_t n) {
  cla_lifetime *blocks = lua_newuserdatauv(L, n * sizeof *blocks, 0);
  for (size_t i = 0; i < n; i++) {
    lua_Integer at = (lua_Integer)i + 1;
    blocks[i] = (cla_lifetime){element(L, 1, at, "lower"), element(L, 2, at, "upper"), element(L, 3, at, "nbytes")};
  }
  return blocks;
}

static int check_offsets(lua_State *L, const cla_lifetime *blocks, size_t n, size_t align) {
  length(L, 5, "offsets");
  uint64_t *offsets = lua_newuserdatauv(L, n * sizeof *offsets, 0);
  for (size_t i = 0; i < n; i++) offsets[i] = element(L, 5, (lua_Integer)i + 1, "offsets");
  cla_status status = cla_plan_check(blocks, n, align, offsets);
  if (status) return cla_lua_pushfail(L, status);
  lua_pushboolean(L, true);
  return 1;
}

int cla_lua_plan(lua_State *L) {
  size_t n = length(L, 1, "lower");
  length(L, 2, "upper");
  length(L, 3, "nbytes");
  size_t align = cla_lua_checksize(L, 4, "align");
  cla_lifetime *blocks = gather(L, n);
  if (lua_istable(L, 5)) return check_offsets(L, blocks, n, align);
  const cla_plan_options options = {
      .align = align, .seconds = luaL_optnumber(L, 5, 0), .steps = cla_lua_optsize(L, 6, "steps", 0)};
  uint64_t *offsets = lua_newuserdatauv(L, n * sizeof *offsets, 0);
  cla_plan_result result;
  cla_status status = cla_plan(blocks, n, &options, offsets, &result);
  if (status) return cla_lua_fail(L, status);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    lua_pushinteger(L, (lua_Integer)offsets[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_pushinteger(L, (lua_Integer)result.nbytes);
  lua_pushinteger(L, (lua_Integer)result.floor);
  lua_pushinteger(L, (lua_Integer)result.orders);
  lua_pushinteger(L, (lua_Integer)result.steps);
  return 5;
}
