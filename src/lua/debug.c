/* `cl.debug`: driver calls counted, live driver objects, faults on request. Process-wide, not one Lua state's. */
#include <string.h>

#include "binding.h"

/* A name of the driver table; raises for others. */
static const char *check_call(lua_State *L, int arg) {
  const char *name = luaL_checkstring(L, arg);
  if (cla__call_find(name) < 0) cla_lua_badarg(L, arg, "no driver call is named '%s'", name);
  return name;
}

static int debug_fail(lua_State *L) {
  const char *name = luaL_optstring(L, 1, "any");
  size_t n = cla_lua_checksize(L, 2, "n");
  lua_Integer code = luaL_optinteger(L, 3, 0);
  luaL_argcheck(L, code <= 0 && code >= INT32_MIN, 3, "an OpenCL error code is negative");
  if (strcmp(name, "any") != 0) check_call(L, 1);
  return cla_lua_result(L, cla_debug_fail(name, n, (int)code));
}

static int debug_armed(lua_State *L) {
  lua_pushboolean(L, cla_debug_armed());
  return 1;
}

static void set_count(lua_State *L, const char *name, lua_Integer n) {
  if (n == 0) return;
  lua_pushinteger(L, n);
  lua_setfield(L, -2, name);
}

static int debug_calls(lua_State *L) {
  if (!lua_isnoneornil(L, 1)) {
    lua_pushinteger(L, (lua_Integer)cla_debug_calls(check_call(L, 1)));
    return 1;
  }
  lua_createtable(L, 0, 16);
  for (int i = 0; i < CLA_CALL_COUNT; i++)
    set_count(L, cla__call_name((cla_call)i), (lua_Integer)cla__call_count((cla_call)i));
  lua_pushinteger(L, (lua_Integer)cla__call_total());
  lua_setfield(L, -2, "total");
  return 1;
}

static int debug_calls_reset(lua_State *L) {
  (void)L;
  cla__calls_reset();
  return 0;
}

static bool is_kind(const char *name) {
  for (int i = 0; i < CLA_LIVE_COUNT; i++)
    if (strcmp(name, cla__live_name((cla_live)i)) == 0) return true;
  return false;
}

static int debug_live(lua_State *L) {
  if (!lua_isnoneornil(L, 1)) {
    const char *name = luaL_checkstring(L, 1);
    bool is_all = strcmp(name, "all") == 0;
    if (!is_all && !is_kind(name)) cla_lua_badarg(L, 1, "no kind of driver object is named '%s'", name);
    lua_pushinteger(L, cla_debug_live(is_all ? NULL : name));
    return 1;
  }
  lua_createtable(L, 0, CLA_LIVE_COUNT);
  for (int i = 0; i < CLA_LIVE_COUNT; i++) set_count(L, cla__live_name((cla_live)i), cla__live_count((cla_live)i));
  return 1;
}

/* luaL_newmetatable has left every metatable in the registry, under the type's name: "clalloc.pool". */
static int debug_types(lua_State *L) {
  static const char prefix[] = "clalloc.";
  const size_t n = sizeof prefix - 1;
  lua_settop(L, 0);
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, LUA_REGISTRYINDEX); lua_pop(L, 1)) {
    const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    if (strncmp(name, prefix, n) != 0 || !lua_istable(L, -1)) continue;
    if (lua_getfield(L, -1, "__index") != LUA_TFUNCTION || !lua_getupvalue(L, -1, 1)) lua_newtable(L);
    lua_createtable(L, 0, 2);
    lua_pushvalue(L, -4);
    lua_setfield(L, -2, "meta");
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, "names");
    lua_setfield(L, 1, name + n);
    lua_settop(L, 3);
  }
  return 1;
}

static const luaL_Reg functions[] = {{"fail", debug_fail},
                                     {"armed", debug_armed},
                                     {"calls", debug_calls},
                                     {"calls_reset", debug_calls_reset},
                                     {"live", debug_live},
                                     {"types", debug_types},
                                     {NULL, NULL}};

int cla_lua_debug_table(lua_State *L) {
  luaL_newlib(L, functions);
  return 1;
}
