/* Guards: the current device and stream until a scope ends.
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

/* ---- The object -------------------------------------------------------------------------------- */

int cla_lua_guard(lua_State *L) {
  const lua_device *d = cla_lua_test(L, 1, CLA_LUA_DEVICE);
  const lua_stream *s = cla_lua_test(L, 1, CLA_LUA_STREAM);
  if (d) cla_lua_checkdevice(L, 1);
  else if (s) cla_lua_checkstream(L, 1);
  else return luaL_typeerror(L, 1, "device or stream");
  lua_guard *g = cla_lua_new(L, sizeof *g, CLA_LUA_GUARD, 1);
  lua_pushthread(L);
  lua_setiuservalue(L, -2, 1);
  g->thread = L;
  g->device = d ? d->device : s->stream->device;
  g->stream = s ? s->stream : NULL;
  cla_device_retain(g->device);
  cla_stream_retain(g->stream);
  g->world = cla_lua_world(L);
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
