/* Gates: hold streams still until opened, for tests without sleeps.
 *
 * A gate of a script can only be opened by the script, so it is exclusive: a wait behind it on the same thread raises.
 * A gate that is closed or collected is opened first. */
#include "binding.h"

lua_gate *cla_lua_checkgate(lua_State *L, int arg) {
  lua_gate *g = cla_lua_check(L, arg, CLA_LUA_GATE);
  cla_lua_checkopen(L, arg, g->gate, "gate");
  return g;
}

int cla_lua_device_gate(lua_State *L) {
  lua_device *d = cla_lua_checkdevice(L, 1);
  lua_gate *object = cla_lua_new(L, sizeof *object, CLA_LUA_GATE, 0);
  cla_status status = cla_gate_create(d->device, &object->gate);
  if (status) return cla_lua_fail(L, status);
  cla_gate_set_exclusive(object->gate, true);
  return 1;
}

static int gate_open(lua_State *L) { return cla_lua_result(L, cla_gate_open(cla_lua_checkgate(L, 1)->gate)); }

static int gate_close(lua_State *L) {
  lua_gate *object = cla_lua_check(L, 1, CLA_LUA_GATE);
  cla_gate *g = object->gate;
  object->gate = NULL;
  cla_gate_release(g);
  return 0;
}

/* A closed gate has been opened. */
static int get_is_open(lua_State *L) {
  const lua_gate *object = cla_lua_check(L, 1, CLA_LUA_GATE);
  lua_pushboolean(L, !object->gate || atomic_load(&object->gate->is_open));
  return 1;
}

static int get_device(lua_State *L) {
  cla_lua_pushdevice(L, cla_lua_checkgate(L, 1)->gate->device);
  return 1;
}

static int gate_tostring(lua_State *L) {
  const lua_gate *object = cla_lua_check(L, 1, CLA_LUA_GATE);
  if (!object->gate) lua_pushliteral(L, "gate (closed)");
  else lua_pushstring(L, atomic_load(&object->gate->is_open) ? "gate (open)" : "gate (shut)");
  return 1;
}

static const luaL_Reg methods[] = {{"open", gate_open}, {"close", gate_close}, {NULL, NULL}};

static const luaL_Reg properties[] = {{"is_open", get_is_open}, {"device", get_device}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", gate_close}, {"__close", gate_close}, {"__tostring", gate_tostring}, {NULL, NULL}};

void cla_lua_open_gate(lua_State *L) { cla_lua_newtype(L, CLA_LUA_GATE, methods, properties, metamethods); }
