/* Pools: the caching allocator of a device as an object.
 *
 * `dev:pool()` is a handle to the device's default pool, and closing it lets go of the handle. Any other pool is the
 * script's own: closing it frees its allocations, and their buffers are stale; collected, it goes when nothing refers
 * to it or to a buffer of it. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"

lua_pool *cla_lua_checkpool(lua_State *L, int arg) {
  lua_pool *p = cla_lua_check(L, arg, CLA_LUA_POOL);
  cla_lua_checkopen(L, arg, p->pool, "pool");
  return p;
}

static cla_pool *check(lua_State *L) { return cla_lua_checkpool(L, 1)->pool; }

/* ---- Making ------------------------------------------------------------------------------------ */

static lua_pool *push_closed(lua_State *L, lua_share *share) {
  lua_pool *object = cla_lua_new(L, sizeof *object, CLA_LUA_POOL, share->policy ? 1 : 0);
  share->count++;
  object->share = share;
  return object;
}

void cla_lua_pushpool(lua_State *L, lua_share *share, cla_pool *p) {
  lua_pool *object = push_closed(L, share);
  if (!share->owns_pool) cla_pool_retain(p);
  object->pool = p;
}

/* All but the policy, whose value stays on top of the stack. */
static cla_pool_options read_options(lua_State *L, int arg) {
  static const char *const known[] = {"policy", "limit", "svm", "commit", NULL};
  cla_lua_checkfields(L, arg, known);
  cla_pool_options options = {.policy = cla_policy_caching()};
  options.limit = cla_lua_fieldsize(L, arg, "limit", 0);
  if (cla_lua_fieldbool(L, arg, "svm", false)) options.flags |= CLA_POOL_SVM;
  if (!cla_lua_fieldbool(L, arg, "commit", true)) options.flags |= CLA_POOL_NO_COMMIT;
  cla_lua_field(L, arg, "policy");
  return options;
}

static int push_default(lua_State *L, lua_share *share) {
  lua_pool *object = push_closed(L, share);
  cla_pool *p = NULL;
  cla_status status = cla_device_pool(share->device, &p);
  if (status) return cla_lua_fail(L, status);
  cla_pool_retain(p);
  object->pool = p;
  return 1;
}

int cla_lua_device_pool(lua_State *L) {
  lua_device *d = cla_lua_checkdevice(L, 1);
  if (lua_isnoneornil(L, 2)) return push_default(L, d->share);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  lua_pool *object = cla_lua_new(L, sizeof *object, CLA_LUA_POOL, 1);
  lua_share *share = object->share = cla_lua_share(L, d->device);
  cla_pool_options options = read_options(L, 2);
  cla_decisions decisions = {0};
  lua_policy *policy = lua_isnil(L, -1) ? NULL : cla_lua_readpolicy(L, 2, &options.policy, &decisions);
  options.decisions = &decisions;
  cla_status status = cla_pool_create_with(d->device, &options, &share->pool);
  if (status) {
    free(policy);
    return cla_lua_fail(L, status);
  }
  share->owns_pool = true;
  share->policy = policy;
  object->pool = share->pool;
  if (policy) cla_lua_keeppolicy(L, 3);
  lua_settop(L, 3);
  return 1;
}

/* ---- Closing ----------------------------------------------------------------------------------- */

static int let_go(lua_State *L, bool closes) {
  lua_pool *object = cla_lua_check(L, 1, CLA_LUA_POOL);
  cla_pool *p = object->pool;
  lua_share *share = object->share;
  object->pool = NULL;
  object->share = NULL;
  if (p && p->is_default) cla_pool_release(p);
  else if (p && closes) cla_pool_close(p);
  cla_lua_unshare(share);
  return 0;
}

static int pool_close(lua_State *L) { return let_go(L, true); }
static int pool_gc(lua_State *L) { return let_go(L, false); }

/* ---- Methods ----------------------------------------------------------------------------------- */

static int pool_trim(lua_State *L) {
  size_t freed = 0;
  cla_status status = cla_pool_trim(check(L), &freed);
  if (status) return cla_lua_fail(L, status);
  lua_pushinteger(L, (lua_Integer)freed);
  return 1;
}

static int pool_reset_peaks(lua_State *L) { return cla_lua_result(L, cla_pool_reset_peaks(check(L))); }

/* A contradiction in the pool's books is nothing a script can handle. */
static int pool_check(lua_State *L) { return cla_lua_result(L, cla_pool_check(check(L))); }

static int pool_set_limit(lua_State *L) {
  cla_pool *p = check(L);
  return cla_lua_result(L, cla_pool_set_limit(p, cla_lua_checksize(L, 2, "limit")));
}

static int pool_stats(lua_State *L) {
  static const struct {
    const char *name;
    size_t offset;
  } fields[] = {
#define FIELD(name) {#name, offsetof(cla_stats, name)}
      FIELD(active_bytes),
      FIELD(requested_bytes),
      FIELD(reserved_bytes),
      FIELD(cached_bytes),
      FIELD(held_bytes),
      FIELD(active_blocks),
      FIELD(cached_blocks),
      FIELD(held_blocks),
      FIELD(segments),
      FIELD(allocs),
      FIELD(frees),
      FIELD(driver_allocs),
      FIELD(driver_frees),
      FIELD(retries),
      FIELD(ooms),
      FIELD(largest_free),
      FIELD(limit),
      FIELD(peak_active_bytes),
      FIELD(peak_cached_bytes),
      FIELD(peak_requested_bytes),
      FIELD(peak_reserved_bytes),
      FIELD(peak_held_bytes),
#undef FIELD
  };
  enum { COUNT = sizeof fields / sizeof *fields };
  cla_stats stats;
  cla_status status = cla_pool_stats(check(L), &stats);
  if (status) return cla_lua_fail(L, status);
  lua_createtable(L, 0, COUNT);
  for (size_t i = 0; i < COUNT; i++) {
    uint64_t value;
    memcpy(&value, (const char *)&stats + fields[i].offset, sizeof value);
    lua_pushinteger(L, (lua_Integer)value);
    lua_setfield(L, -2, fields[i].name);
  }
  const lua_policy *policy = cla_lua_checkpool(L, 1)->share->policy;
  if (policy) {
    lua_pushinteger(L, (lua_Integer)cla_lua_undecided(policy));
    lua_setfield(L, -2, "missed_decisions");
  }
  return 1;
}

/* ---- Snapshot ---------------------------------------------------------------------------------- */

/* The core's copy of the pool must not be left by a Lua error: blocks are counted, then gathered into Lua memory that
 * is there already, then told. */
typedef struct gathering {
  cla_block_info *blocks;
  size_t count, capacity;
} gathering;

static bool gather(const cla_block_info *block, void *arg) {
  gathering *g = arg;
  if (g->count < g->capacity) g->blocks[g->count] = *block;
  g->count++;
  return true;
}

static void push_block(lua_State *L, const cla_block_info *b) {
  static const char *const states[] = {"active", "free", "held"};
  lua_createtable(L, 0, 6);
  lua_pushinteger(L, (lua_Integer)(uintptr_t)b->address);
  lua_setfield(L, -2, "address");
  lua_pushinteger(L, (lua_Integer)b->offset);
  lua_setfield(L, -2, "offset");
  lua_pushinteger(L, (lua_Integer)b->size);
  lua_setfield(L, -2, "size");
  lua_pushinteger(L, (lua_Integer)b->requested);
  lua_setfield(L, -2, "requested");
  lua_pushinteger(L, (lua_Integer)b->stream);
  lua_setfield(L, -2, "stream");
  lua_pushstring(L, states[b->state]);
  lua_setfield(L, -2, "state");
}

/* One segment's table from the blocks at `first`; returns the index after its last block. */
static size_t push_segment(lua_State *L, const gathering *g, size_t first) {
  const cla_block_info *b = &g->blocks[first];
  lua_createtable(L, 0, 3);
  lua_pushinteger(L, (lua_Integer)b->segment);
  lua_setfield(L, -2, "id");
  lua_pushinteger(L, (lua_Integer)b->segment_size);
  lua_setfield(L, -2, "size");
  lua_newtable(L);
  size_t i = first;
  for (; i < g->count && g->blocks[i].segment == b->segment; i++) {
    push_block(L, &g->blocks[i]);
    lua_rawseti(L, -2, (lua_Integer)(i - first) + 1);
  }
  lua_setfield(L, -2, "blocks");
  return i;
}

static int pool_snapshot(lua_State *L) {
  cla_pool *p = check(L);
  gathering g = {0};
  cla_status status;
  do { /* again when other threads have cut more blocks meanwhile */
    g.capacity = g.count + g.count / 8;
    g.blocks = g.capacity ? lua_newuserdatauv(L, g.capacity * sizeof *g.blocks, 0) : NULL;
    g.count = 0;
    status = cla_pool_snapshot(p, gather, &g);
    if (status) return cla_lua_fail(L, status);
  } while (g.count > g.capacity);
  lua_newtable(L);
  lua_Integer n = 0;
  for (size_t i = 0; i < g.count;) {
    i = push_segment(L, &g, i);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

/* ---- Properties and metamethods ---------------------------------------------------------------- */

static int get_device(lua_State *L) {
  cla_lua_pushshared(L, cla_lua_checkpool(L, 1)->share);
  return 1;
}

static int get_policy(lua_State *L) {
  lua_pushstring(L, cla_pool_policy(check(L))->name);
  return 1;
}

static int get_limit(lua_State *L) {
  cla_stats stats;
  if (cla_pool_stats(check(L), &stats)) return cla_lua_raise(L);
  lua_pushinteger(L, (lua_Integer)stats.limit);
  return 1;
}

static int pool_newindex(lua_State *L) {
  cla_pool *p = check(L);
  const char *name = lua_tostring(L, 2);
  if (!name || strcmp(name, "limit") != 0)
    return luaL_error(L, "a pool has no field '%s' to set; there is limit", luaL_tolstring(L, 2, NULL));
  if (cla_pool_set_limit(p, cla_lua_checksize(L, 3, "limit"))) return cla_lua_raise(L);
  return 0;
}

static int pool_tostring(lua_State *L) {
  const lua_pool *object = cla_lua_check(L, 1, CLA_LUA_POOL);
  cla_stats stats;
  if (!object->pool || cla_pool_stats(object->pool, &stats)) {
    lua_pushliteral(L, "pool (closed)");
    return 1;
  }
  cla_lua_pushbytes(L, stats.active_bytes);
  cla_lua_pushbytes(L, stats.reserved_bytes);
  cla_lua_pushbytes(L, stats.limit);
  lua_pushfstring(L, "pool (%s, %I segment%s, %s active of %s reserved, limit %s)", cla_pool_policy(object->pool)->name,
                  (LUAI_UACINT)stats.segments, stats.segments == 1 ? "" : "s", lua_tostring(L, -3), lua_tostring(L, -2),
                  lua_tostring(L, -1));
  return 1;
}

static int pool_eq(lua_State *L) {
  const lua_pool *a = cla_lua_test(L, 1, CLA_LUA_POOL), *b = cla_lua_test(L, 2, CLA_LUA_POOL);
  lua_pushboolean(L, a && b && a->pool && a->pool == b->pool);
  return 1;
}

static const luaL_Reg methods[] = {
    {"alloc", cla_lua_pool_alloc},     {"trim", pool_trim},         {"stats", pool_stats},
    {"reset_peaks", pool_reset_peaks}, {"snapshot", pool_snapshot}, {"check", pool_check},
    {"set_limit", pool_set_limit},     {"close", pool_close},       {NULL, NULL}};

static const luaL_Reg properties[] = {
    {"device", get_device}, {"limit", get_limit}, {"policy", get_policy}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__gc", pool_gc},
                                       {"__close", pool_close},
                                       {"__tostring", pool_tostring},
                                       {"__newindex", pool_newindex},
                                       {"__eq", pool_eq},
                                       {NULL, NULL}};

void cla_lua_open_pool(lua_State *L) { cla_lua_newtype(L, CLA_LUA_POOL, methods, properties, metamethods); }
