/* Simulated devices: `cl.simulate{...}` and `sim:complete(stream [, n])`. */
#include "binding.h"

static const char *const fields[] = {"capacity",         "align",        "max_alloc", "refuse_above", "lazy", "manual",
                                     "accepts_oversize", "ordered_subs", NULL};

int cla_lua_simulate(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  cla_lua_checkfields(L, 1, fields);
  size_t align = cla_lua_fieldsize(L, 1, "align", 0);
  luaL_argcheck(L, align <= UINT32_MAX / 8, 1, "align: too large"); /* drivers report it in bits */
  const cla_simulation sim = {.capacity = cla_lua_fieldsize(L, 1, "capacity", 0),
                              .max_alloc = cla_lua_fieldsize(L, 1, "max_alloc", 0),
                              .align_bytes = (uint32_t)align,
                              .lazy = cla_lua_fieldbool(L, 1, "lazy", false),
                              .manual = cla_lua_fieldbool(L, 1, "manual", false),
                              .accepts_oversize = cla_lua_fieldbool(L, 1, "accepts_oversize", false),
                              .refuse_above = cla_lua_fieldsize(L, 1, "refuse_above", 0),
                              .ordered_subs = cla_lua_fieldbool(L, 1, "ordered_subs", false)};
  lua_device *object = cla_lua_new(L, sizeof *object, CLA_LUA_DEVICE, CLA_LUA_DEVICE_VALUES);
  object->share = cla_lua_share(L, NULL);
  cla_status status = cla_simulate(&sim, &object->share->device);
  if (status) return cla_lua_fail(L, status);
  object->device = object->share->device;
  return 1;
}

int cla_lua_device_complete(lua_State *L) {
  lua_device *d = cla_lua_checkdevice(L, 1);
  cla_stream *s = cla_lua_checkstream(L, 2)->stream;
  luaL_argcheck(L, s->device == d->device, 2, "the stream belongs to another device");
  uint64_t n = UINT64_MAX, completed = 0;
  if (!lua_isnoneornil(L, 3)) n = cla_lua_checksize(L, 3, "n");
  cla_status status = cla_simulate_complete(s, n, &completed);
  if (status) return cla_lua_fail(L, status);
  lua_pushinteger(L, (lua_Integer)completed);
  return 1;
}
