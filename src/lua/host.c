/* Caches of pinned memory: `dev.host`, the device's own, and `dev:host_cache{...}`, the script's.
 *
 * Closing `dev.host`, or its device handle, lets go of the handle. Closing a cache of the script's gives its memory back as it becomes free;
 * allocations made from it stay valid until they are closed, but streams can use them no more. Collected, it is closed
 * when neither it nor any allocation from it can be reached. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "host/host.h"

static const char *const kinds[] = {"mapped", "registered", "svm", "plain", NULL};

static lua_cache *check_cache(lua_State *L) {
  const lua_host *object = cla_lua_check(L, 1, CLA_LUA_HOST);
  cla_lua_checkopen(L, 1, object->cache, "host cache");
  cla_lua_checkopen(L, 1, object->cache->host, "host cache");
  return object->cache;
}

static cla_host *check(lua_State *L) { return check_cache(L)->host; }

/* ---- Holders ----------------------------------------------------------------------------------- */

lua_cache *cla_lua_newcache(lua_State *L, lua_share *share) {
  lua_cache *cache = calloc(1, sizeof *cache);
  if (!cache) {
    luaL_error(L, "not enough memory for a cache");
    abort(); /* it does not return */
  }
  *cache = (lua_cache){.share = share, .count = 1};
  share->count++;
  return cache;
}

void cla_lua_uncache(lua_cache *cache) {
  if (!cache || --cache->count) return;
  if (cache->is_own) cla_host_close(cache->host);
  cla_lua_unhooks(cache->hooks);
  cla_lua_unshare(cache->share);
  free(cache);
}

/* ---- Making ------------------------------------------------------------------------------------ */

/* One handle a device object, made at first use: `dev.host:alloc(n)` in a loop makes no objects but the allocations. */
int cla_lua_device_host(lua_State *L) {
  lua_device *d = cla_lua_checkdevice(L, 1);
  lua_getiuservalue(L, 1, CLA_LUA_DEVICE_HOST);
  const lua_host *kept = cla_lua_test(L, -1, CLA_LUA_HOST);
  if (kept && kept->cache) return 1;
  lua_host *object = cla_lua_new(L, sizeof *object, CLA_LUA_HOST, 1);
  cla_host *host = NULL;
  cla_status status = cla_device_host(d->device, &host);
  if (status) return cla_lua_raise(L);
  object->cache = cla_lua_newcache(L, d->share);
  object->cache->host = host;
  lua_pushvalue(L, -1);
  lua_setiuservalue(L, 1, CLA_LUA_DEVICE_HOST);
  return 1;
}

void cla_lua_drophost(lua_State *L, int device) {
  lua_getiuservalue(L, device, CLA_LUA_DEVICE_HOST);
  lua_host *object = cla_lua_test(L, -1, CLA_LUA_HOST);
  lua_pop(L, 1);
  if (!object) return;
  lua_cache *cache = object->cache;
  object->cache = NULL;
  cla_lua_uncache(cache);
}

static int field_option(lua_State *L, int arg, const char *name, const char *const *names, int otherwise) {
  int choice = otherwise;
  if (cla_lua_field(L, arg, name) != LUA_TNIL) {
    const char *given = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : luaL_tolstring(L, -1, NULL);
    for (choice = 0; names[choice] && strcmp(given, names[choice]) != 0;) choice++;
    if (!names[choice])
      cla_lua_badarg(L, arg, "%s: none is named '%s'; there are mapped, registered, svm, plain", name, given);
  }
  lua_settop(L, arg);
  return choice;
}

static cla_host_options read_options(lua_State *L, int arg) {
  static const char *const known[] = {"kind",      "power_of_two_up_to", "steps_up_to", "max_cached",
                                      "max_block", "background",         "hooks",       NULL};
  cla_host_options o = cla_host_defaults();
  if (lua_isnoneornil(L, arg)) return o;
  cla_lua_checkfields(L, arg, known);
  o.kind = (cla_host_kind)field_option(L, arg, "kind", kinds, CLA_HOST_MAPPED);
  o.power_of_two_up_to = cla_lua_fieldsize(L, arg, "power_of_two_up_to", o.power_of_two_up_to);
  size_t steps = o.steps_up_to < o.power_of_two_up_to ? o.power_of_two_up_to : o.steps_up_to;
  o.steps_up_to = cla_lua_fieldsize(L, arg, "steps_up_to", steps);
  o.max_cached = cla_lua_fieldsize(L, arg, "max_cached", o.max_cached);
  o.max_block = cla_lua_fieldsize(L, arg, "max_block", o.max_cached);
  o.background = cla_lua_fieldbool(L, arg, "background", false);
  return o;
}

int cla_lua_device_host_cache(lua_State *L) {
  lua_device *d = cla_lua_checkdevice(L, 1);
  lua_settop(L, 2);
  cla_host_options options = read_options(L, 2);
  cla_host_hooks hooks;
  bool has_hooks = !lua_isnil(L, 2) && cla_lua_field(L, 2, "hooks") != LUA_TNIL;
  if (has_hooks && options.background)
    cla_lua_badarg(L, 2, "hooks: Lua functions cannot run on the background thread; leave out 'background'");
  lua_settop(L, 3);
  lua_host *object = cla_lua_new(L, sizeof *object, CLA_LUA_HOST, 1);
  lua_cache *cache = object->cache = cla_lua_newcache(L, d->share);
  if (has_hooks) {
    lua_pushvalue(L, 3);
    cache->hooks = cla_lua_newhooks(L, 2, d->device, options.kind, &hooks);
    lua_setiuservalue(L, 4, 1);
    options.hooks = &hooks;
  }
  cla_status status = cla_host_create(d->device, &options, &cache->host);
  if (status) return cla_lua_fail(L, status);
  cache->is_own = true;
  return 1;
}

/* ---- Closing ----------------------------------------------------------------------------------- */

static int let_go(lua_State *L, bool closes) {
  lua_host *object = cla_lua_check(L, 1, CLA_LUA_HOST);
  lua_cache *cache = object->cache;
  lua_entry e;
  if (!cache) return 0;
  cla_lua_enter(L, &e, cache->hooks, 1); /* may raise: then it is as open as before */
  object->cache = NULL;
  if (closes && cache->is_own && !cla__driver_forbidden()) {
    cla_host *host = cache->host;
    cache->host = NULL;
    cla_host_close(host);
  }
  cla_lua_uncache(cache);
  cla_lua_leave(L, &e);
  return 0;
}

static int host_close(lua_State *L) { return let_go(L, true); }
static int host_gc(lua_State *L) { return let_go(L, false); }

/* ---- Methods ----------------------------------------------------------------------------------- */

static int host_trim(lua_State *L) {
  const lua_cache *cache = check_cache(L);
  size_t freed = 0;
  lua_entry e;
  cla_lua_enter(L, &e, cache->hooks, 1);
  cla_status status = cla_host_trim(cache->host, &freed);
  cla_lua_leave(L, &e);
  if (status) return cla_lua_fail(L, status);
  lua_pushinteger(L, (lua_Integer)freed);
  return 1;
}

static int host_process_events(lua_State *L) {
  const lua_cache *cache = check_cache(L);
  bool has_size = !lua_isnoneornil(L, 2);
  size_t nbytes = cla_lua_optsize(L, 2, "nbytes", 0);
  lua_entry e;
  cla_lua_enter(L, &e, cache->hooks, 1);
  cla_status status =
      has_size ? cla_host_process_events_for_size(cache->host, nbytes) : cla_host_process_events(cache->host);
  cla_lua_leave(L, &e);
  return cla_lua_result(L, status);
}

static int host_reset_peaks(lua_State *L) { return cla_lua_result(L, cla_host_reset_peaks(check(L))); }
static int host_check(lua_State *L) { return cla_lua_result(L, cla_host_check(check(L))); }

static int host_set_limits(lua_State *L) {
  static const char *const known[] = {"max_cached", "max_block", NULL};
  const lua_cache *cache = check_cache(L);
  size_t max_cached, max_block;
  luaL_checktype(L, 2, LUA_TTABLE);
  cla_lua_checkfields(L, 2, known);
  cla__host_limits(cache->host, &max_cached, &max_block);
  max_cached = cla_lua_fieldsize(L, 2, "max_cached", max_cached);
  max_block = cla_lua_fieldsize(L, 2, "max_block", max_block);
  lua_entry e;
  cla_lua_enter(L, &e, cache->hooks, 1);
  cla_status status = cla_host_set_limits(cache->host, max_cached, max_block);
  cla_lua_leave(L, &e);
  return cla_lua_result(L, status);
}

/* classes: for each size that is a power of two, how many reserved blocks lie between it and its double. */
static void set_classes(lua_State *L, const cla_host_stats *stats) {
  lua_newtable(L);
  for (unsigned i = 0; i < 63; i++) {
    if (!stats->classes[i]) continue;
    lua_pushinteger(L, (lua_Integer)stats->classes[i]);
    lua_rawseti(L, -2, (lua_Integer)1 << i);
  }
  lua_setfield(L, -2, "classes");
}

static int host_stats(lua_State *L) {
  static const struct {
    const char *name;
    size_t offset;
  } fields[] = {
#define FIELD(name) {#name, offsetof(cla_host_stats, name)}
      FIELD(active_bytes),
      FIELD(requested_bytes),
      FIELD(cached_bytes),
      FIELD(pending_bytes),
      FIELD(reserved_bytes),
      FIELD(plain_bytes),
      FIELD(active_blocks),
      FIELD(cached_blocks),
      FIELD(pending_blocks),
      FIELD(reserved_blocks),
      FIELD(plain_blocks),
      FIELD(allocs),
      FIELD(frees),
      FIELD(hits),
      FIELD(driver_allocs),
      FIELD(driver_frees),
      FIELD(alloc_us),
      FIELD(free_us),
      FIELD(longest_alloc_us),
      FIELD(longest_free_us),
      FIELD(failed_pins),
      FIELD(peak_active_bytes),
      FIELD(peak_reserved_bytes),
      FIELD(peak_pending_bytes),
#undef FIELD
  };
  enum { COUNT = sizeof fields / sizeof *fields };
  const lua_cache *cache = check_cache(L);
  cla_host_stats stats;
  cla_status status = cla_host_get_stats(cache->host, &stats);
  if (status) return cla_lua_fail(L, status);
  lua_createtable(L, 0, COUNT + 2);
  for (size_t i = 0; i < COUNT; i++) {
    uint64_t value;
    memcpy(&value, (const char *)&stats + fields[i].offset, sizeof value);
    lua_pushinteger(L, (lua_Integer)value);
    lua_setfield(L, -2, fields[i].name);
  }
  set_classes(L, &stats);
  if (cache->hooks) {
    lua_pushinteger(L, (lua_Integer)cla_lua_missed(cache->hooks));
    lua_setfield(L, -2, "missed_hooks");
  }
  return 1;
}

/* ---- Properties and metamethods ---------------------------------------------------------------- */

static int get_device(lua_State *L) {
  cla_lua_pushshared(L, check_cache(L)->share);
  return 1;
}

static int get_kind(lua_State *L) {
  lua_pushstring(L, kinds[check(L)->options.kind]);
  return 1;
}

static int get_max_cached(lua_State *L) {
  size_t max_cached, max_block;
  cla__host_limits(check(L), &max_cached, &max_block);
  lua_pushinteger(L, (lua_Integer)max_cached);
  return 1;
}

static int get_max_block(lua_State *L) {
  size_t max_cached, max_block;
  cla__host_limits(check(L), &max_cached, &max_block);
  lua_pushinteger(L, (lua_Integer)max_block);
  return 1;
}

static int host_tostring(lua_State *L) {
  const lua_host *object = cla_lua_check(L, 1, CLA_LUA_HOST);
  cla_host_stats stats;
  if (!object->cache || !object->cache->host || cla_host_get_stats(object->cache->host, &stats))
    lua_pushliteral(L, "host cache (closed)");
  else
    lua_pushfstring(L, "host cache (%s, %I bytes active of %I reserved)", kinds[object->cache->host->options.kind],
                    (LUAI_UACINT)stats.active_bytes, (LUAI_UACINT)stats.reserved_bytes);
  return 1;
}

static int host_eq(lua_State *L) {
  const lua_host *a = cla_lua_test(L, 1, CLA_LUA_HOST), *b = cla_lua_test(L, 2, CLA_LUA_HOST);
  lua_pushboolean(L, a && b && a->cache && b->cache && a->cache->host && a->cache->host == b->cache->host);
  return 1;
}

static const luaL_Reg methods[] = {
    {"alloc", cla_lua_host_alloc},     {"trim", host_trim},   {"stats", host_stats},
    {"reset_peaks", host_reset_peaks}, {"check", host_check}, {"process_events", host_process_events},
    {"set_limits", host_set_limits},   {"close", host_close}, {NULL, NULL}};

static const luaL_Reg properties[] = {{"device", get_device},
                                      {"kind", get_kind},
                                      {"max_cached", get_max_cached},
                                      {"max_block", get_max_block},
                                      {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", host_gc}, {"__close", host_close}, {"__tostring", host_tostring}, {"__eq", host_eq}, {NULL, NULL}};

void cla_lua_open_host(lua_State *L) { cla_lua_newtype(L, CLA_LUA_HOST, methods, properties, metamethods); }
