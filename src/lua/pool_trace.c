/* What a pool records, as Lua sees it: `pool:trace()` is written in Lua on the three functions here.
 *
 * The core's copy must not be left by a Lua error: it is counted, then gathered into Lua memory that is there already,
 * then told. */
#include "binding.h"

/* start(pool [, nevents]) */
static int trace_start(lua_State *L) {
  cla_pool *p = cla_lua_checkpool(L, 1)->pool;
  const cla_status status = cla_pool_trace_start(p, cla_lua_optsize(L, 2, "events", 0));
  return status == CLA_E_NOMEM ? cla_lua_fail(L, status) : status ? cla_lua_raise(L) : (lua_pushboolean(L, true), 1);
}

static int trace_stop(lua_State *L) {
  const cla_status status = cla_pool_trace_stop(cla_lua_checkpool(L, 1)->pool);
  return status == CLA_E_NOMEM ? cla_lua_fail(L, status) : status ? cla_lua_raise(L) : (lua_pushboolean(L, true), 1);
}

/* ---- Columns ----------------------------------------------------------------------------------- */

static lua_Integer stream_number(const cla_pool *p, uint64_t id) {
  const cla_stream *first = cla_device_stream(cla_pool_device(p));
  return id == first->id ? 0 : (lua_Integer)id;
}

/* The columns that an event has, by number. */
enum column { ADDRESS, SIZE, BLOCK, STREAM, TIME, THREAD, COLUMNS };
static const char *const column_names[] = {"address", "size", "block", "stream", "time_us", "thread"};

static lua_Integer cell(const cla_pool *p, const cla_trace *t, const cla_trace_event *e, enum column column) {
  switch (column) {
  case ADDRESS: return (lua_Integer)e->address;
  case SIZE: return (lua_Integer)e->size;
  case BLOCK: return (lua_Integer)e->block_size;
  case STREAM: return stream_number(p, e->stream);
  case TIME: return (lua_Integer)(t->start_us + e->time_ns / 1000);
  default: return e->thread;
  }
}

static void push_events(lua_State *L, const cla_pool *p, const cla_trace *t) {
  static const char *const actions[] = {
      "alloc", "free_requested", "free_completed", "free", "segment_alloc", "segment_free", "oom"};
  lua_createtable(L, 0, COLUMNS + 1);
  lua_createtable(L, (int)t->nevents, 0);
  for (size_t i = 0; i < t->nevents; i++) {
    lua_pushstring(L, actions[t->events[i].action]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "action");
  for (int column = 0; column < COLUMNS; column++) {
    lua_createtable(L, (int)t->nevents, 0);
    for (size_t i = 0; i < t->nevents; i++) {
      lua_pushinteger(L, cell(p, t, &t->events[i], (enum column)column));
      lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_setfield(L, -2, column_names[column]);
  }
}

/* ---- The memory map ---------------------------------------------------------------------------- */

static void push_column(lua_State *L, const cla_block_info *b, size_t n, const char *name) {
  static const char *const states[] = {"active_allocated", "inactive", "active_pending_free"};
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    switch (name[0]) {
    case 'a': lua_pushinteger(L, (lua_Integer)((uintptr_t)b[i].segment_address + b[i].offset)); break;
    case 'r': lua_pushinteger(L, (lua_Integer)b[i].requested); break;
    case 's': /* size, state */
      if (name[1] == 'i') lua_pushinteger(L, (lua_Integer)b[i].size);
      else lua_pushstring(L, states[b[i].state]);
    }
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, name);
}

static void push_segments(lua_State *L, const cla_pool *p, const cla_trace *t) {
  lua_newtable(L);
  lua_Integer count = 0;
  for (size_t first = 0, n; first < t->nblocks; first += n) {
    const cla_block_info *b = &t->blocks[first];
    for (n = 1; first + n < t->nblocks && b[n].segment == b->segment;) n++;
    lua_createtable(L, 0, 4);
    lua_pushinteger(L, (lua_Integer)(uintptr_t)b->segment_address);
    lua_setfield(L, -2, "address");
    lua_pushinteger(L, (lua_Integer)b->segment_size);
    lua_setfield(L, -2, "size");
    lua_pushinteger(L, stream_number(p, b->stream));
    lua_setfield(L, -2, "stream");
    lua_createtable(L, 0, 4);
    push_column(L, b, n, "address");
    push_column(L, b, n, "size");
    push_column(L, b, n, "requested");
    push_column(L, b, n, "state");
    lua_setfield(L, -2, "blocks");
    lua_rawseti(L, -2, ++count);
  }
}

/* read(pool): the events as columns, the segments, how many events are lost */
static int trace_read(lua_State *L) {
  cla_pool *p = cla_lua_checkpool(L, 1)->pool;
  cla_trace t = {0};
  do { /* again when more has happened meanwhile */
    t.events_room = t.nevents;
    t.blocks_room = t.nblocks + t.nblocks / 8;
    lua_settop(L, 1);
    t.events = t.events_room ? lua_newuserdatauv(L, t.events_room * sizeof *t.events, 0) : NULL;
    t.blocks = t.blocks_room ? lua_newuserdatauv(L, t.blocks_room * sizeof *t.blocks, 0) : NULL;
    const cla_status status = cla_pool_trace_read(p, &t);
    if (status) return status == CLA_E_NOMEM ? cla_lua_fail(L, status) : cla_lua_raise(L);
  } while (t.nevents > t.events_room || t.nblocks > t.blocks_room);
  push_events(L, p, &t);
  push_segments(L, p, &t);
  lua_pushinteger(L, (lua_Integer)t.nlost);
  return 3;
}

int cla_lua_pool_trace_table(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"start", trace_start}, {"stop", trace_stop}, {"read", trace_read}, {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
