/* Streams: an in-order queue of a device, and what waits for what.
 *
 * A stream object holds the stream; pools and events keep what they need of it after it is closed. A wait that only
 * this thread could end, because a gate of its own is shut, raises instead of hanging. */
#include "binding.h"

lua_stream *cla_lua_checkstream(lua_State *L, int arg) {
  lua_stream *s = cla_lua_check(L, arg, CLA_LUA_STREAM);
  cla_lua_checkopen(L, arg, s->stream, "stream");
  return s;
}

static cla_stream *check(lua_State *L) { return cla_lua_checkstream(L, 1)->stream; }

void cla_lua_pushstream(lua_State *L, cla_stream *s) {
  lua_stream *object = cla_lua_new(L, sizeof *object, CLA_LUA_STREAM, 0);
  cla_stream_retain(s);
  object->stream = s;
}

int cla_lua_device_stream(lua_State *L) {
  lua_device *d = cla_lua_checkdevice(L, 1);
  lua_stream *object = cla_lua_new(L, sizeof *object, CLA_LUA_STREAM, 0);
  cla_status status = cla_stream_create(d->device, &object->stream);
  return status ? cla_lua_fail(L, status) : 1;
}

/* ---- Methods ----------------------------------------------------------------------------------- */

static int stream_finish(lua_State *L) { return cla_lua_result(L, cla_stream_finish(check(L))); }

static int stream_query(lua_State *L) {
  bool idle = false;
  cla_status status = cla_stream_query(check(L), &idle);
  if (status) return cla_lua_fail(L, status);
  lua_pushboolean(L, idle);
  return 1;
}

static cla_status wait_event(lua_State *L, cla_stream *s, const lua_event *e) {
  cla_lua_checkopen(L, 2, e->event, "event");
  if (e->device != s->device)
    return cla__error(CLA_E_INVALID, "wait: the event belongs to %s, the stream to %s", e->device->info.name,
                      s->device->info.name);
  cla__stream_inherit_gates(s, e->stream, e->number);
  return cla_stream_wait_event(s, e->event);
}

static cla_status wait_stream(lua_State *L, cla_stream *s, const lua_stream *other) {
  cla_lua_checkopen(L, 2, other->stream, "stream");
  if (other->stream->device != s->device)
    return cla__error(CLA_E_INVALID, "wait: the stream waited for belongs to %s, the other to %s",
                      other->stream->device->info.name, s->device->info.name);
  return cla__stream_order_after(s, other->stream, cla__stream_submitted(other->stream));
}

/* The thing on top of the stack: an event, a gate or a stream. */
static cla_status wait_for_top(lua_State *L, cla_stream *s) {
  const void *it = cla_lua_test(L, -1, CLA_LUA_EVENT);
  if (it) return wait_event(L, s, it);
  if ((it = cla_lua_test(L, -1, CLA_LUA_STREAM)) != NULL) return wait_stream(L, s, it);
  if ((it = cla_lua_test(L, -1, CLA_LUA_GATE)) != NULL) {
    cla_gate *gate = ((const lua_gate *)it)->gate;
    cla_lua_checkopen(L, 2, gate, "gate");
    return cla_stream_wait_gate(s, gate);
  }
  cla_lua_badarg(L, 2, "an event, a gate, a stream or a list of them expected, got %s", luaL_typename(L, -1));
}

static int stream_wait(lua_State *L) {
  cla_stream *s = check(L);
  lua_settop(L, 2);
  if (!lua_istable(L, 2)) return cla_lua_result(L, wait_for_top(L, s));
  lua_Integer n = luaL_len(L, 2);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_geti(L, 2, i);
    cla_status status = wait_for_top(L, s);
    if (status) return cla_lua_fail(L, status);
    lua_pop(L, 1);
  }
  return cla_lua_result(L, CLA_OK);
}

static int stream_stats(lua_State *L) {
  cla_stream_stats stats;
  cla_stream_get_stats(check(L), &stats);
  lua_createtable(L, 0, 3);
  lua_pushinteger(L, (lua_Integer)stats.submitted);
  lua_setfield(L, -2, "submitted");
  lua_pushinteger(L, (lua_Integer)stats.completed);
  lua_setfield(L, -2, "completed");
  lua_pushinteger(L, (lua_Integer)stats.markers);
  lua_setfield(L, -2, "markers");
  return 1;
}

static int stream_close(lua_State *L) {
  lua_stream *object = cla_lua_check(L, 1, CLA_LUA_STREAM);
  cla_stream *s = object->stream;
  object->stream = NULL;
  cla_stream_release(s);
  return 0;
}

/* ---- Properties and metamethods ---------------------------------------------------------------- */

static int get_id(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check(L)->id);
  return 1;
}

static int get_device(lua_State *L) {
  cla_lua_pushdevice(L, check(L)->device);
  return 1;
}

static int stream_tostring(lua_State *L) {
  const lua_stream *s = cla_lua_check(L, 1, CLA_LUA_STREAM);
  if (!s->stream) {
    lua_pushliteral(L, "stream (closed)");
    return 1;
  }
  cla_stream_stats stats;
  cla_stream_get_stats(s->stream, &stats);
  lua_pushfstring(L, "stream (%I, %s, %I submitted, %I known complete)", (LUAI_UACINT)s->stream->id,
                  s->stream->device->info.name, (LUAI_UACINT)stats.submitted, (LUAI_UACINT)stats.completed);
  return 1;
}

static int stream_eq(lua_State *L) {
  const lua_stream *a = cla_lua_test(L, 1, CLA_LUA_STREAM);
  const lua_stream *b = cla_lua_test(L, 2, CLA_LUA_STREAM);
  lua_pushboolean(L, a && b && a->stream && a->stream == b->stream);
  return 1;
}

static const luaL_Reg methods[] = {{"finish", stream_finish}, {"query", stream_query}, {"wait", stream_wait},
                                   {"stats", stream_stats},   {"close", stream_close}, {NULL, NULL}};

static const luaL_Reg properties[] = {{"id", get_id}, {"device", get_device}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__gc", stream_close},
                                       {"__close", stream_close},
                                       {"__tostring", stream_tostring},
                                       {"__eq", stream_eq},
                                       {NULL, NULL}};

void cla_lua_open_stream(lua_State *L) { cla_lua_newtype(L, CLA_LUA_STREAM, methods, properties, metamethods); }
