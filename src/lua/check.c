/* Arguments, results, and how a type is made.
 *
 * A size that comes from Lua is checked as a Lua number before it becomes a size_t: no value is cut, wrapped or
 * rounded. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"

/* ---- Results ----------------------------------------------------------------------------------- */

static bool is_environment(cla_status status) {
  return status == CLA_E_NOMEM || status == CLA_E_LIMIT || status == CLA_E_TOO_LARGE || status == CLA_E_DRIVER ||
         status == CLA_E_NO_DEVICE;
}

int cla_lua_fail(lua_State *L, cla_status status) {
  if (is_environment(status)) return cla_lua_pushfail(L, status);
  return cla_lua_raise(L);
}

int cla_lua_pushfail(lua_State *L, cla_status status) {
  luaL_pushfail(L);
  lua_pushstring(L, cla_last_error());
  lua_pushstring(L, cla_status_name(status));
  return 3;
}

int cla_lua_raise(lua_State *L) {
  lua_Debug ar = {0};
  const char *message = cla_last_error();
  const char *name = NULL;
  if (lua_getstack(L, 0, &ar) && lua_getinfo(L, "n", &ar)) name = ar.name;
  size_t n = name ? strlen(name) : 0;
  if (n && !(strncmp(message, name, n) == 0 && message[n] == ':')) return luaL_error(L, "%s: %s", name, message);
  return luaL_error(L, "%s", message);
}

int cla_lua_result(lua_State *L, cla_status status) {
  if (status) return cla_lua_fail(L, status);
  lua_pushboolean(L, true);
  return 1;
}

__attribute__((noreturn)) void cla_lua_badarg(lua_State *L, int arg, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const char *message = lua_pushvfstring(L, format, args);
  va_end(args);
  luaL_argerror(L, arg, message);
  abort(); /* it does not return */
}

/* ---- Sizes ------------------------------------------------------------------------------------- */

/* What is wrong with the value on top as a size, or NULL when nothing is. */
static const char *size_fault(lua_State *L, lua_Integer *out) {
  if (lua_isinteger(L, -1)) {
    *out = lua_tointeger(L, -1);
    return *out < 0 ? "is negative" : NULL;
  }
  if (lua_type(L, -1) != LUA_TNUMBER) return "is no number";
  lua_Number n = lua_tonumber(L, -1);
  if (n != n || isinf(n)) return "is not finite";
  if (n < 0) return "is negative";
  if (n != floor(n)) return "is no whole number";
  return lua_numbertointeger(n, out) ? NULL : "is too large";
}

/* "nbytes: -1 is negative": the value as Lua shows it, strings in quotes, other things by their type. */
static const char *describe(lua_State *L, const char *name, const char *fault) {
  switch (lua_type(L, -1)) {
  case LUA_TNUMBER: lua_pushfstring(L, "%s", luaL_tolstring(L, -1, NULL)); break;
  case LUA_TSTRING: lua_pushfstring(L, "the string '%s'", lua_tostring(L, -1)); break;
  default: lua_pushstring(L, luaL_typename(L, -1));
  }
  return lua_pushfstring(L, "%s: %s %s", name, lua_tostring(L, -1), fault);
}

static size_t top_size(lua_State *L, int arg, const char *name) {
  lua_Integer value = 0;
  const char *fault = size_fault(L, &value);
  if (fault) cla_lua_badarg(L, arg, "%s", describe(L, name, fault));
  return (size_t)value;
}

size_t cla_lua_checksize(lua_State *L, int arg, const char *name) {
  if (lua_isinteger(L, arg)) {
    lua_Integer value = lua_tointeger(L, arg);
    if (value >= 0) return (size_t)value;
  }
  if (lua_isnone(L, arg)) lua_pushnil(L);
  else lua_pushvalue(L, arg);
  size_t value = top_size(L, arg, name);
  lua_pop(L, 1);
  return value;
}

size_t cla_lua_optsize(lua_State *L, int arg, const char *name, size_t otherwise) {
  return lua_isnoneornil(L, arg) ? otherwise : cla_lua_checksize(L, arg, name);
}

int cla_lua_field(lua_State *L, int index, const char *name) {
  index = lua_absindex(L, index);
  lua_pushstring(L, name);
  return lua_rawget(L, index);
}

size_t cla_lua_fieldsize(lua_State *L, int index, const char *name, size_t otherwise) {
  size_t value = otherwise;
  if (cla_lua_field(L, index, name) != LUA_TNIL) value = top_size(L, index, name);
  lua_pop(L, 1);
  return value;
}

bool cla_lua_fieldbool(lua_State *L, int index, const char *name, bool otherwise) {
  bool value = otherwise;
  int type = cla_lua_field(L, index, name);
  if (type == LUA_TBOOLEAN) value = lua_toboolean(L, -1);
  else if (type != LUA_TNIL) cla_lua_badarg(L, index, "%s", describe(L, name, "is no boolean"));
  lua_pop(L, 1);
  return value;
}

void cla_lua_pushbytes(lua_State *L, uint64_t nbytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)nbytes;
  size_t i = 0;
  char text[32];
  for (; value >= 1024; i++) value /= 1024;
  snprintf(text, sizeof text, i ? "%.1f %s" : "%.0f %s", value, units[i]);
  lua_pushstring(L, text);
}

/* ---- Ranges ------------------------------------------------------------------------------------ */

void cla_lua_checkrange(lua_State *L, int arg, size_t offset, size_t nbytes, size_t size, const char *what) {
  if (offset <= size && nbytes <= size - offset) return;
  cla_lua_badarg(L, arg, "%I bytes at offset %I reach outside a %s of %I bytes", (LUAI_UACINT)nbytes,
                 (LUAI_UACINT)offset, what, (LUAI_UACINT)size);
}

/* ---- Options tables ---------------------------------------------------------------------------- */

static bool is_known(const char *name, const char *const *known) {
  while (*known && strcmp(*known, name) != 0) known++;
  return *known != NULL;
}

/* "stream, wait, async" */
static void push_names(lua_State *L, const char *const *known) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (size_t i = 0; known[i]; i++) {
    if (i) luaL_addstring(&b, ", ");
    luaL_addstring(&b, known[i]);
  }
  luaL_pushresult(&b);
}

static void check_fields(lua_State *L, int index, const char *const *known, bool takes_private) {
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : NULL;
    if (name && (is_known(name, known) || (takes_private && name[0] == '_'))) continue;
    luaL_tolstring(L, -2, NULL);
    push_names(L, known);
    cla_lua_badarg(L, index, "no option is named '%s'; there are %s", lua_tostring(L, -2), lua_tostring(L, -1));
  }
}

void cla_lua_checkfields(lua_State *L, int index, const char *const *known) {
  if (lua_isnoneornil(L, index)) return;
  luaL_checktype(L, index, LUA_TTABLE);
  check_fields(L, index, known, false);
}

void cla_lua_checkpublic(lua_State *L, int index, const char *const *known) { check_fields(L, index, known, true); }

/* ---- Types ------------------------------------------------------------------------------------- */

/* Upvalue: name -> method, or the luaL_Reg of a property, whose function runs in place on the object as its only
 * argument. */
static int index_object(lua_State *L) {
  lua_settop(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TLIGHTUSERDATA) return 1;
  const luaL_Reg *property = lua_touserdata(L, 2);
  lua_settop(L, 1);
  return property->func(L);
}

static void push_names_of(lua_State *L, const luaL_Reg *methods, const luaL_Reg *properties) {
  lua_newtable(L);
  if (methods) luaL_setfuncs(L, methods, 0);
  for (; properties && properties->name; properties++) {
    lua_pushlightuserdata(L, (void *)properties);
    lua_setfield(L, -2, properties->name);
  }
}

const char CLA_LUA_DEVICE[] = "clalloc.device";
const char CLA_LUA_STREAM[] = "clalloc.stream";
const char CLA_LUA_EVENT[] = "clalloc.event";
const char CLA_LUA_GATE[] = "clalloc.gate";
const char CLA_LUA_POOL[] = "clalloc.pool";
const char CLA_LUA_BUFFER[] = "clalloc.buffer";
const char CLA_LUA_MAP[] = "clalloc.map";
const char CLA_LUA_PROGRAM[] = "clalloc.program";
const char CLA_LUA_KERNEL[] = "clalloc.kernel";
const char CLA_LUA_GUARD[] = "clalloc.guard";
const char CLA_LUA_HOST[] = "clalloc.host";
const char CLA_LUA_HOST_BUFFER[] = "clalloc.host_buffer";
const char CLA_LUA_HEAP[] = "clalloc.heap";

void cla_lua_newtype(lua_State *L, const char *name, const luaL_Reg *methods, const luaL_Reg *properties,
                     const luaL_Reg *meta) {
  /* The module may be opened again in a state, by package.loaded or by name: its types, and what Lua files have added to
   * them, stay. The last step below says that a type is complete. */
  bool is_there = lua_rawgetp(L, LUA_REGISTRYINDEX, name) != LUA_TNIL;
  lua_pop(L, 1);
  if (is_there) return;
  luaL_newmetatable(L, name);
  luaL_setfuncs(L, meta, 0);
  push_names_of(L, methods, properties);
  lua_pushcclosure(L, index_object, 1);
  lua_setfield(L, -2, "__index");
  lua_rawsetp(L, LUA_REGISTRYINDEX, name);
}

/* The metatable of retired objects of a type hangs in the registry beside the type's own. */
static const void *retired_key(const char *type) { return type + 1; }

void cla_lua_newretired(lua_State *L, const char *type) {
  bool is_there = lua_rawgetp(L, LUA_REGISTRYINDEX, retired_key(type)) != LUA_TNIL;
  lua_pop(L, 1);
  if (is_there) return;
  lua_newtable(L);
  lua_rawgetp(L, LUA_REGISTRYINDEX, type);
  for (lua_pushnil(L); lua_next(L, -2);) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -5);
  }
  lua_pop(L, 1);
  lua_createtable(L, 0, 1); /* the retired metatable's own: finds __gc, which the collector does not look for there */
  lua_createtable(L, 0, 1);
  lua_getfield(L, -3, "__gc");
  lua_setfield(L, -2, "__gc");
  lua_setfield(L, -2, "__index");
  lua_pushnil(L);
  lua_setfield(L, -3, "__gc");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, retired_key(type));
}

void cla_lua_retire(lua_State *L, int arg, const char *type) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, retired_key(type));
  lua_setmetatable(L, arg);
}

void *cla_lua_new(lua_State *L, size_t size, const char *type, int nuser) {
  void *object = lua_newuserdatauv(L, size, nuser);
  memset(object, 0, size);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, type) == LUA_TNIL) luaL_getmetatable(L, type);
  lua_setmetatable(L, -2);
  if (lua_gc(L, LUA_GCISRUNNING) < 0) cla_lua_stray(L); /* in a finalizer */
  return object;
}

void *cla_lua_test(lua_State *L, int arg, const char *type) {
  void *object = lua_touserdata(L, arg);
  if (!object || !lua_getmetatable(L, arg)) return NULL;
  lua_rawgetp(L, LUA_REGISTRYINDEX, type);
  if (!lua_rawequal(L, -1, -2)) {
    bool is_retired = lua_rawgetp(L, LUA_REGISTRYINDEX, retired_key(type)) == LUA_TTABLE && lua_rawequal(L, -1, -3);
    lua_pop(L, 1);
    if (!is_retired) object = NULL;
  }
  lua_pop(L, 2);
  return object;
}

void *cla_lua_check(lua_State *L, int arg, const char *type) {
  void *object = cla_lua_test(L, arg, type);
  if (!object) luaL_typeerror(L, arg, type);
  return object;
}

/* ---- Helpers to objects ------------------------------------------------------------------------ */

void *cla_lua_newbox(lua_State *L, size_t size, lua_CFunction gc) {
  void *box = lua_newuserdatauv(L, size, 0);
  memset(box, 0, size);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  return box;
}

void cla_lua_pushweak(lua_State *L, const void *key, const char *mode) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, key) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, mode);
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

void cla_lua_checkopen(lua_State *L, int arg, const void *handle, const char *what) {
  if (!handle) cla_lua_badarg(L, arg, "attempt to use a closed %s", what);
  if (cla__driver_forbidden() && cla__alive()) cla_lua_raise(L);
}
