/* A Lua state that finds the module: the C half is linked into the program, the Lua half is read from lua/. Programs
 * that include it run from the root of the tree. */
#ifndef CLA_SPEC_LUA_HOST_H
#define CLA_SPEC_LUA_HOST_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>

int luaopen_clalloc_core(lua_State *L);

/* Raises without memory; so call it protected where memory may run out. */
static inline void host_open(lua_State *L) {
  luaL_openlibs(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_clalloc_core);
  lua_setfield(L, -2, "clalloc.core");
  lua_getglobal(L, LUA_LOADLIBNAME);
  lua_pushliteral(L, "lua/?.lua;lua/?/init.lua;spec/?.lua");
  lua_setfield(L, -2, "path");
  lua_pop(L, 2);
}

/* Runs a piece of Lua; a failure goes to stderr. */
static inline bool host_run(lua_State *L, const char *script) {
  if (luaL_dostring(L, script) == LUA_OK) {
    lua_settop(L, 0);
    return true;
  }
  fprintf(stderr, "%s\n", luaL_tolstring(L, -1, NULL));
  lua_settop(L, 0);
  return false;
}

#endif
