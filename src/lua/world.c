/* The world: what the binding keeps once for each Lua state, and the pressure that device memory puts on its
 * collector.
 *
 * The world is a userdata in the registry: its memory outlives every finalizer of the state, so functions may keep
 * pointers to it. Its own finalizer lets go of the default device; whatever runs later gets no default device any
 * more.
 *
 * Pressure: a full collection when live bytes have grown by a quarter of the pool's limit since the last one. Steps do
 * not do: in generational mode aged handles are never looked at again. At most four collections find nothing between
 * an empty and a full pool, and a program that closes its buffers never gets one. */
#include <stdlib.h>

#include "binding.h"

enum { LEAST_GROWTH = 64 << 20 /* below it a collection costs more than the memory is worth */ };

static char world_key;

lua_world *cla_lua_world(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &world_key);
  lua_world *w = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return w;
}

/* ---- Devices held by this state ---------------------------------------------------------------- */

lua_share *cla_lua_share(lua_State *L, cla_device *d) {
  lua_share *share = malloc(sizeof *share);
  if (!share) luaL_error(L, "not enough memory for a device");
  else *share = (lua_share){.world = cla_lua_world(L), .device = d, .count = 1};
  cla_device_retain(d);
  return share;
}

void cla_lua_unshare(lua_share *share) {
  if (!share || --share->count) return;
  if (share->owns_pool) cla_pool_release(share->pool);
  cla_device_release(share->device);
  free(share);
}

/* ---- Pressure ---------------------------------------------------------------------------------- */

bool cla_lua_collect(lua_State *L, lua_world *w) {
  if (w->is_collecting || lua_gc(L, LUA_GCISRUNNING) != 1) return false; /* -1: in a finalizer */
  w->is_collecting = true;
  int result = lua_gc(L, LUA_GCCOLLECT);
  w->is_collecting = false;
  w->grown = 0;
  return result == 0;
}

static __attribute__((noinline)) void press(lua_State *L, lua_world *w, size_t limit, size_t nbytes) {
  size_t cap = limit / 4;
  if (cap < LEAST_GROWTH) cap = LEAST_GROWTH;
  if (w->grown > cap && cla_lua_collect(L, w)) w->grown = nbytes;
}

void cla_lua_grew(lua_State *L, lua_world *w, const cla_pool *p, size_t nbytes) {
  w->grown = nbytes > SIZE_MAX - w->grown ? SIZE_MAX : w->grown + nbytes;
  if (w->grown > LEAST_GROWTH) press(L, w, p->limit, nbytes);
}

void cla_lua_grew_within(lua_State *L, lua_world *w, size_t limit, size_t nbytes) {
  w->grown = nbytes > SIZE_MAX - w->grown ? SIZE_MAX : w->grown + nbytes;
  if (w->grown > LEAST_GROWTH) press(L, w, limit, nbytes);
}

void cla_lua_shrank(lua_world *w, size_t nbytes) { w->grown = nbytes < w->grown ? w->grown - nbytes : 0; }

/* ---- Life -------------------------------------------------------------------------------------- */

/* Lua never finalizes what is made while it closes a state, and does not say that it does so: objects made in any
 * finalizer are remembered (weakly), and closed by the world's own, which runs after those of all other objects. */
static char strays_key;

void cla_lua_stray(lua_State *L) {
  if (cla_lua_world(L)->is_closed) luaL_error(L, "the Lua state is closing");
  cla_lua_pushweak(L, &strays_key, "k");
  lua_pushvalue(L, -2);
  lua_pushboolean(L, true);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

static void close_strays(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &strays_key) != LUA_TTABLE) return;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
    if (luaL_getmetafield(L, -2, "__gc") == LUA_TNIL) continue; /* closed, and retired since: cla_lua_retire */
    lua_pushvalue(L, -3);
    if (lua_pcall(L, 1, 0, 0)) lua_pop(L, 1);
  }
}

static int world_gc(lua_State *L) {
  lua_world *w = lua_touserdata(L, 1);
  cla_device *d = w->default_device;
  w->default_device = NULL;
  w->is_closed = true;
  cla_device_release(d);
  close_strays(L);
  return 0;
}

void cla_lua_open_world(lua_State *L) {
  if (cla_lua_world(L)) return;
  lua_world *w = lua_newuserdatauv(L, sizeof *w, 0);
  *w = (lua_world){0};
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, world_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &world_key);
}
