/* Devices: `cl.device`, `cl.devices` and the device object.
 *
 * A device object is one handle to the device that all holders in the process share; closing it lets go of this handle
 * only. Buffers and maps made through it share its hold, so they work on after it is closed. */
#include "binding.h"

lua_device *cla_lua_checkdevice(lua_State *L, int arg) {
  lua_device *d = cla_lua_check(L, arg, CLA_LUA_DEVICE);
  cla_lua_checkopen(L, arg, d->device, "device");
  return d;
}

/* ---- Making ------------------------------------------------------------------------------------ */

void cla_lua_pushdevice(lua_State *L, cla_device *d) {
  lua_device *object = cla_lua_new(L, sizeof *object, CLA_LUA_DEVICE, CLA_LUA_DEVICE_VALUES);
  object->share = cla_lua_share(L, d);
  object->device = d;
}

void cla_lua_pushshared(lua_State *L, lua_share *share) {
  lua_device *object = cla_lua_new(L, sizeof *object, CLA_LUA_DEVICE, CLA_LUA_DEVICE_VALUES);
  share->count++;
  object->share = share;
  object->device = share->device;
}

/* Opens by index or selector into the closed object on top of the stack. */
static cla_status open_into(lua_State *L, const char *selector, const size_t *index) {
  lua_device *object = lua_touserdata(L, -1);
  cla_device *d = NULL;
  lua_share *share = cla_lua_share(L, NULL); /* what may raise comes first */
  object->share = share;
  cla_status status = index ? cla_device_open_index(*index, &d) : cla_device_open(selector, &d);
  if (!status) share->device = object->device = d;
  return status;
}

int cla_lua_device(lua_State *L) {
  const char *selector = NULL;
  size_t index = 0;
  bool is_index = lua_type(L, 1) == LUA_TNUMBER;
  if (is_index) index = cla_lua_checksize(L, 1, "index");
  else selector = luaL_optstring(L, 1, NULL);
  cla_lua_new(L, sizeof(lua_device), CLA_LUA_DEVICE, CLA_LUA_DEVICE_VALUES);
  cla_status status = open_into(L, selector, is_index ? &index : NULL);
  if (status == CLA_E_NO_DEVICE) return cla_lua_raise(L);
  return status ? cla_lua_fail(L, status) : 1;
}

int cla_lua_devices(lua_State *L) {
  size_t count = 0;
  cla_status status = cla_device_count(&count);
  if (status) return cla_lua_fail(L, status);
  lua_createtable(L, (int)count, 0);
  for (size_t i = 0; i < count; i++) {
    cla_lua_new(L, sizeof(lua_device), CLA_LUA_DEVICE, CLA_LUA_DEVICE_VALUES);
    status = open_into(L, NULL, &i);
    if (status) return cla_lua_fail(L, status);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* ---- Properties -------------------------------------------------------------------------------- */

static const cla_device_info *info(lua_State *L) { return cla_device_get_info(cla_lua_checkdevice(L, 1)->device); }

static int push_text(lua_State *L, const char *text) {
  lua_pushstring(L, text);
  return 1;
}

static int push_number(lua_State *L, uint64_t n) {
  lua_pushinteger(L, n > LUA_MAXINTEGER ? LUA_MAXINTEGER : (lua_Integer)n);
  return 1;
}

static int push_truth(lua_State *L, bool truth) {
  lua_pushboolean(L, truth);
  return 1;
}

static int get_name(lua_State *L) { return push_text(L, info(L)->name); }
static int get_platform(lua_State *L) { return push_text(L, info(L)->platform); }
static int get_vendor(lua_State *L) { return push_text(L, info(L)->vendor); }
static int get_version(lua_State *L) { return push_text(L, info(L)->version); }
static int get_driver_version(lua_State *L) { return push_text(L, info(L)->driver_version); }
static int get_global_mem(lua_State *L) { return push_number(L, info(L)->global_mem); }
static int get_max_alloc(lua_State *L) { return push_number(L, info(L)->max_alloc); }
static int get_align(lua_State *L) { return push_number(L, info(L)->align_bytes); }
static int get_max_group(lua_State *L) { return push_number(L, info(L)->max_group); }
static int get_local_mem(lua_State *L) { return push_number(L, info(L)->local_mem); }
static int get_compute_units(lua_State *L) { return push_number(L, info(L)->compute_units); }
static int get_has_fp64(lua_State *L) { return push_truth(L, info(L)->has_fp64); }
static int get_has_rounded_divide(lua_State *L) { return push_truth(L, info(L)->has_rounded_divide); }
static int get_has_svm(lua_State *L) { return push_truth(L, info(L)->has_svm); }
static int get_simulated(lua_State *L) { return push_truth(L, info(L)->simulated); }

static int get_type(lua_State *L) {
  cl_device_type type = info(L)->type;
  if (type & CL_DEVICE_TYPE_GPU) return push_text(L, "gpu");
  if (type & CL_DEVICE_TYPE_CPU) return push_text(L, "cpu");
  return push_text(L, type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator" : "custom");
}

/* A simulated device stands in no list: nil. */
static int get_index(lua_State *L) {
  size_t index = info(L)->index;
  return index == SIZE_MAX ? 0 : push_number(L, index);
}

static int get_default_stream(lua_State *L) {
  cla_lua_pushstream(L, cla_device_stream(cla_lua_checkdevice(L, 1)->device));
  return 1;
}

/* ---- Metamethods ------------------------------------------------------------------------------- */

static int device_gc(lua_State *L) {
  lua_device *d = cla_lua_check(L, 1, CLA_LUA_DEVICE);
  lua_share *share = d->share;
  *d = (lua_device){0};
  cla_lua_unshare(share);
  return 0;
}

/* The limit is the default pool's. */
/* The handles that are `dev.host` and `dev.heap` go too, or the device would live until they are collected. Collected, a device leaves
 * it to the script. */
static int device_close(lua_State *L) {
  cla_lua_check(L, 1, CLA_LUA_DEVICE);
  cla_lua_drophost(L, 1);
  cla_lua_dropheap(L, 1);
  return device_gc(L);
}

static int device_tostring(lua_State *L) {
  const lua_device *d = cla_lua_check(L, 1, CLA_LUA_DEVICE);
  cla_pool *p = NULL;
  cla_stats stats;
  if (!d->device) {
    lua_pushliteral(L, "device (closed)");
    return 1;
  }
  const cla_device_info *i = cla_device_get_info(d->device);
  cla_lua_pushbytes(L, i->global_mem);
  if (cla_device_pool(d->device, &p) || cla_pool_stats(p, &stats)) {
    lua_pushfstring(L, "device (%s, %s)", i->name, lua_tostring(L, -1));
    return 1;
  }
  cla_lua_pushbytes(L, stats.limit);
  lua_pushfstring(L, "device (%s, %s, pool limit %s)", i->name, lua_tostring(L, -2), lua_tostring(L, -1));
  return 1;
}

static int device_eq(lua_State *L) {
  const lua_device *a = cla_lua_test(L, 1, CLA_LUA_DEVICE);
  const lua_device *b = cla_lua_test(L, 2, CLA_LUA_DEVICE);
  return push_truth(L, a && b && a->device && a->device == b->device);
}

static const luaL_Reg methods[] = {{"alloc", cla_lua_device_alloc},
                                   {"pool", cla_lua_device_pool},
                                   {"stream", cla_lua_device_stream},
                                   {"gate", cla_lua_device_gate},
                                   {"program", cla_lua_device_program},
                                   {"complete", cla_lua_device_complete},
                                   {"host_cache", cla_lua_device_host_cache},
                                   {"close", device_close},
                                   {NULL, NULL}};

static const luaL_Reg properties[] = {{"name", get_name},
                                      {"platform", get_platform},
                                      {"vendor", get_vendor},
                                      {"version", get_version},
                                      {"driver_version", get_driver_version},
                                      {"type", get_type},
                                      {"global_mem", get_global_mem},
                                      {"max_alloc", get_max_alloc},
                                      {"align", get_align},
                                      {"max_group", get_max_group},
                                      {"local_mem", get_local_mem},
                                      {"compute_units", get_compute_units},
                                      {"has_fp64", get_has_fp64},
                                      {"has_rounded_divide", get_has_rounded_divide},
                                      {"has_svm", get_has_svm},
                                      {"simulated", get_simulated},
                                      {"index", get_index},
                                      {"default_stream", get_default_stream},
                                      {"host", cla_lua_device_host},
                                      {"heap", cla_lua_device_heap},
                                      {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", device_gc}, {"__close", device_close}, {"__tostring", device_tostring}, {"__eq", device_eq}, {NULL, NULL}};

void cla_lua_open_device(lua_State *L) { cla_lua_newtype(L, CLA_LUA_DEVICE, methods, properties, metamethods); }
