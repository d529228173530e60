/* Guards: the current device, stream and pool until a scope ends.
 *
 * Guards belong to the coroutine that made them. The list in the world links all that are open, newest first, without
 * keeping any of them alive; a guard keeps its coroutine alive (user value 1), so the pointer may be compared and
 * asked. What counts is the newest guard of the running coroutine, else the newest of one that is waiting for a
 * coroutine it resumed; suspended, failed and finished coroutines have no say. So a coroutine that dies with a guard
 * open changes nothing for others. */
#include "binding.h"

struct lua_guard {
  lua_guard *next;
  lua_world *world; /* NULL: closed */
  lua_State *thread;
  cla_device *device; /* retained */
  cla_stream *stream; /* retained; NULL: the device's default stream */
  int pool;           /* reference of the pool's object in the registry; LUA_NOREF: the device's default pool */
};

/* ---- What is current --------------------------------------------------------------------------- */

/* Waiting for a coroutine that it has resumed, directly or not. */
static bool is_resuming(lua_State *thread) {
  lua_Debug ar;
  return lua_status(thread) == LUA_OK && lua_getstack(thread, 0, &ar);
}

static const lua_guard *current_guard(lua_State *L, const lua_world *w) {
  const lua_guard *outer = NULL;
  for (const lua_guard *g = w->guards; g; g = g->next) {
    if (g->thread == L) return g;
    if (!outer && is_resuming(g->thread)) outer = g;
  }
  return outer;
}

static cla_device *default_device(lua_State *L, lua_world *w) {
  if (w->is_closed) luaL_error(L, "the Lua state is closing: there is no current device");
  if (!w->default_device && cla_device_open(NULL, &w->default_device)) cla_lua_raise(L);
  return w->default_device;
}

void cla_lua_current(lua_State *L, cla_device **d, cla_stream **s) {
  lua_world *w = cla_lua_world(L);
  const lua_guard *g = w->guards ? current_guard(L, w) : NULL;
  *d = g ? g->device : default_device(L, w);
  *s = g && g->stream ? g->stream : cla_device_stream(*d);
}

cla_stream *cla_lua_guardedstream(lua_State *L, const lua_world *w, cla_device *d) {
  const lua_guard *g = current_guard(L, w);
  return g && g->stream && g->device == d ? g->stream : cla_device_stream(d);
}

cla_stream *cla_lua_currentstream(lua_State *L, cla_device *d) {
  const lua_world *w = cla_lua_world(L);
  return w->guards ? cla_lua_guardedstream(L, w, d) : cla_device_stream(d);
}

lua_pool *cla_lua_pushguardedpool(lua_State *L, const lua_world *w, const cla_device *d) {
  const lua_guard *g = current_guard(L, w);
  if (!g || g->device != d || g->pool == LUA_NOREF) return NULL;
  lua_rawgeti(L, LUA_REGISTRYINDEX, g->pool);
  lua_pool *p = cla_lua_test(L, -1, CLA_LUA_POOL);
  if (!p || !p->pool) luaL_error(L, "alloc: the pool of the guard is closed");
  return p;
}

/* ---- The object -------------------------------------------------------------------------------- */

/* Which device, stream and pool a guard of the object at 1 makes current: a stream leaves the pool that is current on its
 * device, and a pool leaves the stream. Returns the device; a pool's object is pushed, or nil. */
static cla_device *chosen(lua_State *L, const lua_world *w, cla_stream **stream) {
  const lua_device *d = cla_lua_test(L, 1, CLA_LUA_DEVICE);
  const lua_stream *s = cla_lua_test(L, 1, CLA_LUA_STREAM);
  const lua_guard *outer = w->guards ? current_guard(L, w) : NULL;
  if (d) {
    cla_lua_checkdevice(L, 1);
    lua_pushnil(L);
    return d->device;
  }
  if (s) {
    *stream = cla_lua_checkstream(L, 1)->stream;
    if (!outer || outer->device != (*stream)->device || outer->pool == LUA_NOREF) lua_pushnil(L);
    else lua_rawgeti(L, LUA_REGISTRYINDEX, outer->pool);
    return (*stream)->device;
  }
  if (!cla_lua_test(L, 1, CLA_LUA_POOL)) luaL_typeerror(L, 1, "device, stream or pool");
  cla_device *own = cla_lua_checkpool(L, 1)->share->device;
  if (outer && outer->device == own) *stream = outer->stream;
  lua_pushvalue(L, 1);
  return own;
}

int cla_lua_guard(lua_State *L) {
  lua_world *w = cla_lua_world(L);
  cla_stream *stream = NULL;
  cla_device *device = chosen(L, w, &stream);
  lua_guard *g = cla_lua_new(L, sizeof *g, CLA_LUA_GUARD, 1);
  lua_pushthread(L);
  lua_setiuservalue(L, -2, 1);
  lua_insert(L, -2);
  g->pool = lua_isnil(L, -1) ? (lua_pop(L, 1), LUA_NOREF) : luaL_ref(L, LUA_REGISTRYINDEX);
  g->thread = L;
  g->device = device;
  g->stream = stream;
  cla_device_retain(g->device);
  cla_stream_retain(g->stream);
  g->world = w;
  g->next = g->world->guards;
  g->world->guards = g;
  return 1;
}

static void unlink_guard(const lua_guard *g) {
  lua_guard **link = &g->world->guards;
  while (*link != g) link = &(*link)->next;
  *link = g->next;
}

static int guard_close(lua_State *L) {
  lua_guard *g = cla_lua_check(L, 1, CLA_LUA_GUARD);
  if (!g->world) return 0;
  unlink_guard(g);
  g->world = NULL;
  luaL_unref(L, LUA_REGISTRYINDEX, g->pool);
  cla_stream_release(g->stream);
  cla_device_release(g->device);
  return 0;
}

static int guard_tostring(lua_State *L) {
  const lua_guard *g = cla_lua_check(L, 1, CLA_LUA_GUARD);
  if (!g->world) lua_pushliteral(L, "guard (closed)");
  else if (g->stream) lua_pushfstring(L, "guard (%s, stream %I)", g->device->info.name, (LUAI_UACINT)g->stream->id);
  else lua_pushfstring(L, "guard (%s)", g->device->info.name);
  return 1;
}

static const luaL_Reg methods[] = {{"close", guard_close}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", guard_close}, {"__close", guard_close}, {"__tostring", guard_tostring}, {NULL, NULL}};

void cla_lua_open_guard(lua_State *L) { cla_lua_newtype(L, CLA_LUA_GUARD, methods, NULL, metamethods); }
