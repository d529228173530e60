/* Host memory as Lua sees it: ranges of it, read into strings, written from strings. For pinned allocations and maps alike.
 *
 * The caller has checked that the memory is there; nothing here runs code of the script. */
#include <string.h>

#include "binding.h"

size_t cla_lua_optrange(lua_State *L, int arg, size_t size, const char *what, size_t *nbytes) {
  size_t offset = cla_lua_optsize(L, arg, "offset", 0);
  cla_lua_checkrange(L, arg, offset, 0, size, what);
  *nbytes = cla_lua_optsize(L, arg + 1, "n", size - offset);
  cla_lua_checkrange(L, arg + 1, offset, *nbytes, size, what);
  return offset;
}

int cla_lua_readbytes(lua_State *L, const void *memory, size_t size, const char *what) {
  size_t nbytes, offset = cla_lua_optrange(L, 2, size, what, &nbytes);
  lua_pushlstring(L, (const char *)memory + offset, nbytes); /* one copy, into the string itself */
  return 1;
}

int cla_lua_writebytes(lua_State *L, void *memory, size_t size, const char *what) {
  luaL_checktype(L, 2, LUA_TSTRING);
  size_t nbytes;
  const char *bytes = lua_tolstring(L, 2, &nbytes);
  size_t offset = cla_lua_optsize(L, 3, "offset", 0);
  cla_lua_checkrange(L, 3, offset, nbytes, size, what);
  memcpy((char *)memory + offset, bytes, nbytes);
  return cla_lua_result(L, CLA_OK);
}
