/* How a command is to be run: {stream =, wait =, async =}.
 *
 * Gates are noted on the stream only for a command that is about to be enqueued asynchronously; one that would block
 * behind a shut gate of this thread's raises first, and leaves no note. So read the options last, just before the
 * command. */
#include "binding.h"

/* The devices a command may involve: `other` is NULL but for copies. */
typedef struct parties {
  cla_device *own, *other;
} parties;

static bool is_party(const parties *p, const cla_device *d) { return d == p->own || (p->other && d == p->other); }

/* ---- wait -------------------------------------------------------------------------------------- */

static int raise_shut(lua_State *L) {
  return luaL_error(L, "the command waits for a gate that this thread has not opened: "
                       "open it first, or use async = true");
}

/* The stream that will wait for what is of device d: the command's, or the default one on the other side of a copy. */
static cla_stream *waiting_stream(const lua_command *c, cla_device *d) {
  return c->order.stream->device == d ? c->order.stream : cla_device_stream(d);
}

static void add_wait(lua_State *L, int index, const parties *p, lua_command *c, cla_device *d, cl_event event,
                     const char *what) {
  if (!is_party(p, d) || (c->order.nwait && c->order.wait_device != d))
    cla_lua_badarg(L, index, "wait: the %s belongs to %s, not to %s", what, d->info.name, p->own->info.name);
  if (c->order.nwait == CLA_MOST_WAITS) cla_lua_badarg(L, index, "wait: more than %d", CLA_MOST_WAITS);
  c->order.wait_device = d;
  c->order.wait = c->wait; /* with no event there must be no list either */
  c->wait[c->order.nwait++] = event;
}

static void add_event(lua_State *L, int index, const parties *p, lua_command *c, const lua_event *e) {
  if (!e->event) cla_lua_badarg(L, index, "wait: attempt to use a closed event");
  add_wait(L, index, p, c, e->device, e->event, "event");
  if (!c->async && cla__stream_would_hang(e->stream, e->number)) raise_shut(L);
  if (c->async) cla__stream_inherit_gates(waiting_stream(c, e->device), e->stream, e->number);
}

static void add_gate(lua_State *L, int index, const parties *p, lua_command *c, const lua_gate *g) {
  if (!g->gate) cla_lua_badarg(L, index, "wait: attempt to use a closed gate");
  add_wait(L, index, p, c, g->gate->device, g->gate->event, "gate");
  if (atomic_load(&g->gate->is_open)) return;
  if (!c->async) raise_shut(L);
  cla__stream_note_gate(waiting_stream(c, g->gate->device), g->gate);
}

/* The event or gate on top of the stack. */
static void add_top(lua_State *L, int index, const parties *p, lua_command *c) {
  const void *it = cla_lua_test(L, -1, CLA_LUA_EVENT);
  if (it) {
    add_event(L, index, p, c, it);
  } else if ((it = cla_lua_test(L, -1, CLA_LUA_GATE)) != NULL) {
    add_gate(L, index, p, c, it);
  } else {
    cla_lua_badarg(L, index, "wait: an event, a gate or a list of them expected, got %s", luaL_typename(L, -1));
  }
}

/* `wait` is on top of the stack. */
static void read_waits(lua_State *L, int index, const parties *p, lua_command *c) {
  if (lua_isnil(L, -1)) return;
  if (!lua_istable(L, -1)) {
    add_top(L, index, p, c);
    return;
  }
  /* Raw: what a metamethod makes up would be garbage before the command is enqueued. */
  lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, -1, i);
    add_top(L, index, p, c);
    lua_pop(L, 1);
  }
}

void cla_lua_waits(lua_State *L, int index, cla_device *d, cla_stream *s, lua_command *c) {
  const parties p = {.own = d};
  c->order.stream = s;
  lua_pushvalue(L, index);
  read_waits(L, index, &p, c);
  lua_pop(L, 1);
}

/* ---- stream, async ----------------------------------------------------------------------------- */

cla_stream *cla_lua_topstream(lua_State *L, int index, cla_device *d, cla_device *other) {
  const parties p = {.own = d, .other = other};
  const lua_stream *object = cla_lua_test(L, -1, CLA_LUA_STREAM);
  if (!object) cla_lua_badarg(L, index, "stream: a stream expected, got %s", luaL_typename(L, -1));
  cla_stream *s = object->stream;
  if (!s) cla_lua_badarg(L, index, "stream: attempt to use a closed stream");
  if (!is_party(&p, s->device))
    cla_lua_badarg(L, index, "stream: it belongs to %s, the memory to %s", s->device->info.name, d->info.name);
  return s;
}

static cla_stream *read_stream(lua_State *L, int index, const parties *p) {
  cla_stream *s = NULL;
  if (cla_lua_field(L, index, "stream") != LUA_TNIL) s = cla_lua_topstream(L, index, p->own, p->other);
  lua_pop(L, 1);
  return s;
}

/* A guard's stream if it is of either device. */
static cla_stream *current_stream(lua_State *L, const parties *p) {
  cla_stream *s = cla_lua_currentstream(L, p->own);
  if (!p->other || s != cla_device_stream(p->own)) return s;
  cla_stream *source = cla_lua_currentstream(L, p->other);
  return source != cla_device_stream(p->other) ? source : s;
}

static void read_command(lua_State *L, int index, const parties *p, bool async, lua_command *c) {
  cla_stream *s = NULL;
  c->async = async;
  c->out = NULL;
  c->order = (cla_order){0};
  bool has_options = !lua_isnoneornil(L, index);
  if (has_options) {
    luaL_checktype(L, index, LUA_TTABLE);
    s = read_stream(L, index, p);
    if (!async) c->async = cla_lua_fieldbool(L, index, "async", false);
  }
  c->order.stream = s ? s : current_stream(L, p);
  c->order.blocking = !c->async;
  if (c->async) c->order.out = &c->out;
  if (!has_options) return;
  cla_lua_field(L, index, "wait");
  read_waits(L, index, p, c);
  lua_pop(L, 1);
}

void cla_lua_command(lua_State *L, int index, cla_device *d, lua_command *c) {
  const parties p = {.own = d};
  read_command(L, index, &p, false, c);
}

void cla_lua_command_async(lua_State *L, int index, cla_device *d, lua_command *c) {
  const parties p = {.own = d};
  read_command(L, index, &p, true, c);
}

void cla_lua_command_between(lua_State *L, int index, cla_device *to, cla_device *from, lua_command *c) {
  const parties p = {.own = to, .other = from};
  read_command(L, index, &p, false, c);
}
