/* Maps: a piece of a buffer in host memory, until closed.
 *
 * A map keeps its allocation in place, also when the buffer is closed meanwhile. Closing the pool takes the memory
 * away: then the map can only be closed. What may be read and written is fixed by the mode. */
#include "binding.h"

static lua_map *check(lua_State *L) {
  lua_map *m = cla_lua_check(L, 1, CLA_LUA_MAP);
  cla_lua_checkopen(L, 1, m->mapping, "map");
  if (cla__handle_check(&m->handle) == CLA_E_CLOSED) /* the mapping keeps the struct, if not the memory */
    luaL_error(L, "attempt to use a map of a closed pool");
  return m;
}

/* ---- Making ------------------------------------------------------------------------------------ */

int cla_lua_buffer_map(lua_State *L) {
  static const char *const modes[] = {"r", "w", "rw", "discard", NULL};
  static const unsigned flags[] = {CLA_MAP_READ, CLA_MAP_WRITE, CLA_MAP_READ | CLA_MAP_WRITE, CLA_MAP_DISCARD};
  const lua_buffer *b = cla_lua_checkbuffer(L, 1);
  int mode = luaL_checkoption(L, 2, NULL, modes);
  size_t nbytes, offset = cla_lua_optrange(L, 3, b->nbytes, "buffer", &nbytes);
  lua_map *m = cla_lua_new(L, sizeof *m, CLA_LUA_MAP, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  cla_status status =
      cla__map(&b->handle, b->offset + offset, nbytes, flags[mode], cla_lua_currentstream(L, b->device), &m->mapping);
  if (status) return cla_lua_fail(L, status);
  b->share->count++;
  m->share = b->share;
  m->handle = b->handle;
  m->host = m->mapping->host;
  m->nbytes = nbytes;
  m->readable = (flags[mode] & CLA_MAP_READ) != 0;
  m->writable = flags[mode] != CLA_MAP_READ;
  return 1;
}

static int map_close(lua_State *L) {
  lua_map *object = cla_lua_check(L, 1, CLA_LUA_MAP);
  lua_map m = *object;
  *object = (lua_map){0};
  if (!m.mapping || cla__driver_forbidden()) return 0;
  cla__unmap(&m.handle, m.mapping); /* of a closed pool: there is nothing to unmap any more */
  cla_lua_unshare(m.share);
  return 0;
}

/* ---- Use --------------------------------------------------------------------------------------- */

static const lua_map *check_readable(lua_State *L) {
  const lua_map *m = check(L);
  if (!m->readable) luaL_error(L, "attempt to read a map that was made for writing only");
  return m;
}

static int map_read(lua_State *L) {
  const lua_map *m = check_readable(L);
  return cla_lua_readbytes(L, m->host, m->nbytes, "map");
}

static int map_string(lua_State *L) {
  const lua_map *m = check_readable(L);
  lua_settop(L, 1);
  return cla_lua_readbytes(L, m->host, m->nbytes, "map");
}

static int map_write(lua_State *L) {
  const lua_map *m = check(L);
  if (!m->writable) luaL_error(L, "attempt to write to a map that was made for reading only");
  return cla_lua_writebytes(L, m->host, m->nbytes, "map");
}

static int map_len(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check(L)->nbytes);
  return 1;
}

static int map_tostring(lua_State *L) {
  const lua_map *m = cla_lua_check(L, 1, CLA_LUA_MAP);
  if (!m->mapping) lua_pushliteral(L, "map (closed)");
  else lua_pushfstring(L, "map (%I bytes, %s)", (LUAI_UACINT)m->nbytes, !m->writable ? "r" : m->readable ? "rw" : "w");
  return 1;
}

static const luaL_Reg methods[] = {
    {"read", map_read}, {"write", map_write}, {"string", map_string}, {"close", map_close}, {NULL, NULL}};

static const luaL_Reg properties[] = {{"size", map_len}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", map_close}, {"__close", map_close}, {"__tostring", map_tostring}, {"__len", map_len}, {NULL, NULL}};

void cla_lua_open_map(lua_State *L) { cla_lua_newtype(L, CLA_LUA_MAP, methods, properties, metamethods); }
