/* Events: the end of one command.
 *
 * An event object owns one reference to the driver's event, and holds the stream and the device it came from. The host
 * memory of an asynchronous read is its own too, as are the counts of a launch that watches the heap; an event that goes before the command is complete leaves the memory
 * to the stream, which frees it then. */
#include <stdlib.h>

#include "binding.h"
#include "heap/heap.h"

lua_event *cla_lua_checkevent(lua_State *L, int arg) {
  lua_event *e = cla_lua_check(L, arg, CLA_LUA_EVENT);
  cla_lua_checkopen(L, arg, e->event, "event");
  return e;
}

lua_event *cla_lua_newevent(lua_State *L) { return cla_lua_new(L, sizeof(lua_event), CLA_LUA_EVENT, 0); }

void cla_lua_fillevent(lua_event *e, cl_event event, cla_stream *s, uint64_t number) {
  cla__stream_hold(s);
  cla_device_retain(s->device);
  e->event = event;
  e->stream = s;
  e->device = s->device;
  e->number = number;
}

/* ---- State ------------------------------------------------------------------------------------- */

static cla_status execution_status(const lua_event *e, cl_int *out) {
  cl_int err =
      cla__get_event_info(e->device->driver, e->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof *out, out, NULL);
  return err ? cla__driver_error(CLA_CALL_get_event_info, err) : CLA_OK;
}

static cla_status ended_with(cl_int code) {
  return cla__error(CLA_E_DRIVER, "the command ended with an error: %s (%d)", cla__cl_name(code), (int)code);
}

/* CLA_OK when the command has ended well. */
static cla_status wait_for(const lua_event *e) {
  cl_int state = CL_QUEUED;
  cla_status status = execution_status(e, &state);
  if (status) return status;
  if (state > CL_COMPLETE && cla__stream_would_hang(e->stream, e->number)) return cla__stream_busy(e->stream);
  cl_int err = cla__wait_events(e->device->driver, 1, &e->event);
  if (err && err != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) return cla__driver_error(CLA_CALL_wait_events, err);
  status = execution_status(e, &state);
  return status || state >= CL_COMPLETE ? status : ended_with(state);
}

/* A kernel in which allocations failed has done something else than what was asked for: that raises. */
static int event_wait(lua_State *L) {
  const lua_event *e = cla_lua_checkevent(L, 1);
  cla_status status = wait_for(e);
  if (!status && e->watch) {
    status = cla__stream_wait(e->stream, e->watch->number);
    if (!status && cla__heap_watch_result(e->watch)) return luaL_error(L, "%s", cla_last_error());
  }
  return cla_lua_result(L, status);
}

static const char *state_name(cl_int state) {
  switch (state) {
  case CL_QUEUED: return "queued";
  case CL_SUBMITTED: return "submitted";
  case CL_RUNNING: return "running";
  case CL_COMPLETE: return "complete";
  default: return "error";
  }
}

static int event_status(lua_State *L) {
  cl_int state = CL_QUEUED;
  cla_status status = execution_status(cla_lua_checkevent(L, 1), &state);
  if (status) return cla_lua_fail(L, status);
  lua_pushstring(L, state_name(state));
  return 1;
}

static int get_done(lua_State *L) {
  cl_int state = CL_QUEUED;
  cla_status status = execution_status(cla_lua_checkevent(L, 1), &state);
  if (status) return cla_lua_raise(L);
  lua_pushboolean(L, state <= CL_COMPLETE);
  return 1;
}

/* ---- Times ------------------------------------------------------------------------------------- */

/* Some drivers (rusticl) give numbers for a command that has not ended, so it is asked first. */
static cla_status profile(const lua_event *e, cl_profiling_info what, cl_ulong *ns) {
  cl_int state = CL_QUEUED;
  cla_status status = execution_status(e, &state);
  if (status) return status;
  cl_int err = CL_PROFILING_INFO_NOT_AVAILABLE;
  if (state <= CL_COMPLETE) err = cla__get_event_profile(e->device->driver, e->event, what, sizeof *ns, ns, NULL);
  if (err == CL_PROFILING_INFO_NOT_AVAILABLE)
    return cla__error(CLA_E_UNSUPPORTED, "the command has no times: it is not complete, or its "
                                         "queue was made without profiling");
  return err ? cla__driver_error(CLA_CALL_get_event_profile, err) : CLA_OK;
}

static int event_seconds(lua_State *L) {
  const lua_event *e = cla_lua_checkevent(L, 1);
  cl_ulong start = 0, end = 0;
  cla_status status = profile(e, CL_PROFILING_COMMAND_START, &start);
  if (!status) status = profile(e, CL_PROFILING_COMMAND_END, &end);
  if (status) return cla_lua_pushfail(L, status);
  lua_pushnumber(L, end > start ? (lua_Number)(end - start) * 1e-9 : 0);
  return 1;
}

static int event_profile(lua_State *L) {
  static const struct {
    const char *name;
    cl_profiling_info what;
  } times[] = {{"queued", CL_PROFILING_COMMAND_QUEUED},
               {"submit", CL_PROFILING_COMMAND_SUBMIT},
               {"start", CL_PROFILING_COMMAND_START},
               {"finish", CL_PROFILING_COMMAND_END}};
  const lua_event *e = cla_lua_checkevent(L, 1);
  lua_createtable(L, 0, 4);
  for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
    cl_ulong ns = 0;
    cla_status status = profile(e, times[i].what, &ns);
    if (status) return cla_lua_pushfail(L, status);
    lua_pushinteger(L, (lua_Integer)ns);
    lua_setfield(L, -2, times[i].name);
  }
  return 1;
}

/* ---- Data -------------------------------------------------------------------------------------- */

static int event_data(lua_State *L) {
  const lua_event *e = cla_lua_checkevent(L, 1);
  if (!e->is_read) {
    luaL_pushfail(L);
    return 1;
  }
  cla_status status = wait_for(e);
  if (status) return cla_lua_fail(L, status);
  lua_pushlstring(L, e->host, e->nbytes);
  return 1;
}

/* The driver may still be writing there. Without host memory for the note it is waited for, and behind a shut gate,
 * where no wait would end, it is never freed. */
static void free_when_complete(const lua_event *e) {
  cl_int state = CL_QUEUED;
  bool is_complete = !execution_status(e, &state) && state <= CL_COMPLETE;
  if (!is_complete) {
    if (!cla__stream_defer(e->stream, e->number, free, e->host)) return;
    is_complete = !cla__stream_wait(e->stream, e->number);
  }
  if (is_complete) free(e->host);
}

static int event_close(lua_State *L) {
  lua_event *object = cla_lua_check(L, 1, CLA_LUA_EVENT);
  lua_event e = *object;
  *object = (lua_event){0};
  if (!e.event || cla__driver_forbidden()) return 0;
  if (e.host) free_when_complete(&e);
  cla__heap_watch_free(e.watch, e.stream);
  cla__release_event(e.device->driver, e.event);
  cla__stream_unhold(e.stream);
  cla_device_release(e.device);
  return 0;
}

/* ---- The rest ---------------------------------------------------------------------------------- */

/* nil when the stream has been closed meanwhile. */
static int get_stream(lua_State *L) {
  const lua_event *e = cla_lua_checkevent(L, 1);
  if (cla__stream_closed(e->stream)) return 0;
  cla_lua_pushstream(L, e->stream);
  return 1;
}

static int event_tostring(lua_State *L) {
  const lua_event *e = cla_lua_check(L, 1, CLA_LUA_EVENT);
  cl_int state = CL_QUEUED;
  if (!e->event) {
    lua_pushliteral(L, "event (closed)");
    return 1;
  }
  bool is_known = !cla__driver_forbidden() && !execution_status(e, &state);
  lua_pushfstring(L, "event (command %I of stream %I%s%s)", (LUAI_UACINT)e->number, (LUAI_UACINT)e->stream->id,
                  is_known ? ", " : "", is_known ? state_name(state) : "");
  return 1;
}

static const luaL_Reg methods[] = {{"wait", event_wait},
                                   {"status", event_status},
                                   {"seconds", event_seconds},
                                   {"profile", event_profile},
                                   {"data", event_data},
                                   {"close", event_close},
                                   {NULL, NULL}};

static const luaL_Reg properties[] = {{"done", get_done}, {"stream", get_stream}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", event_close}, {"__close", event_close}, {"__tostring", event_tostring}, {NULL, NULL}};

void cla_lua_open_event(lua_State *L) { cla_lua_newtype(L, CLA_LUA_EVENT, methods, properties, metamethods); }
