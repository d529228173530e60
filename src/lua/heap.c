/* `dev.heap`: what kernels of a device allocate from.
 *
 * One heap a device, shared by all that use the device in the process; the object is a handle to it, and closing it lets go of
 * the handle. Fields are settings: assigning one that is fixed by now, or a value that the device cannot give, raises. */
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "heap/heap.h"

lua_heap *cla_lua_checkheap(lua_State *L, int arg) {
  lua_heap *h = cla_lua_check(L, arg, CLA_LUA_HEAP);
  cla_lua_checkopen(L, arg, h->heap, "heap");
  return h;
}

static cla_heap *check(lua_State *L) { return cla_lua_checkheap(L, 1)->heap; }

/* ---- Making and closing ------------------------------------------------------------------------ */

int cla_lua_device_heap(lua_State *L) {
  lua_device *d = cla_lua_checkdevice(L, 1);
  lua_getiuservalue(L, 1, CLA_LUA_DEVICE_HEAP);
  const lua_heap *kept = cla_lua_test(L, -1, CLA_LUA_HEAP);
  if (kept && kept->heap) return 1;
  lua_heap *object = cla_lua_new(L, sizeof *object, CLA_LUA_HEAP, 0);
  cla_heap *h = NULL;
  const cla_status status = cla_device_heap(d->device, &h);
  if (status) return cla_lua_raise(L);
  d->share->count++;
  object->share = d->share;
  object->heap = h;
  lua_pushvalue(L, -1);
  lua_setiuservalue(L, 1, CLA_LUA_DEVICE_HEAP);
  return 1;
}

static void let_go(lua_heap *object) {
  lua_share *share = object->share;
  *object = (lua_heap){0};
  cla_lua_unshare(share);
}

static int heap_close(lua_State *L) {
  let_go(cla_lua_check(L, 1, CLA_LUA_HEAP));
  return 0;
}

void cla_lua_dropheap(lua_State *L, int device) {
  lua_getiuservalue(L, device, CLA_LUA_DEVICE_HEAP);
  lua_heap *object = cla_lua_test(L, -1, CLA_LUA_HEAP);
  lua_pop(L, 1);
  if (object) let_go(object);
}

int cla_lua_heap_source(lua_State *L) {
  lua_pushstring(L, cla_heap_source());
  return 1;
}

/* ---- Settings ---------------------------------------------------------------------------------- */

static int get_limit(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)cla_heap_limit(check(L)));
  return 1;
}

static int get_counting(lua_State *L) {
  lua_pushboolean(L, cla_heap_counting(check(L)));
  return 1;
}

static int get_sites(lua_State *L) {
  lua_pushboolean(L, cla_heap_sites(check(L)));
  return 1;
}

static int get_device(lua_State *L) {
  cla_lua_pushshared(L, cla_lua_checkheap(L, 1)->share);
  return 1;
}

static bool check_flag(lua_State *L, const char *name) {
  if (!lua_isboolean(L, 3)) cla_lua_badarg(L, 3, "%s: boolean expected, got %s", name, luaL_typename(L, 3));
  return lua_toboolean(L, 3);
}

/* heap.limit = n and its like: there is no result to hand a failure back with. */
static int heap_newindex(lua_State *L) {
  cla_heap *h = check(L);
  const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
  cla_status status;
  if (strcmp(name, "limit") == 0) status = cla_heap_set_limit(h, cla_lua_checksize(L, 3, "limit"));
  else if (strcmp(name, "counting") == 0) status = cla_heap_set_counting(h, check_flag(L, "counting"));
  else if (strcmp(name, "sites") == 0) status = cla_heap_set_sites(h, check_flag(L, "sites"));
  else return luaL_error(L, "heap: '%s' cannot be set; limit, counting, sites can", luaL_tolstring(L, 2, NULL));
  return status ? luaL_error(L, "%s", cla_last_error()) : 0;
}

static int heap_reset(lua_State *L) { return cla_lua_result(L, cla_heap_reset(check(L))); }

/* ---- Blocks from Lua --------------------------------------------------------------------------- */

static uint32_t check_ref(lua_State *L, int arg) {
  const size_t ref = cla_lua_checksize(L, arg, "ref");
  if (ref > UINT32_MAX) cla_lua_badarg(L, arg, "ref: %I is no reference: they have 32 bits", (LUAI_UACINT)ref);
  return (uint32_t)ref;
}

static int heap_alloc(lua_State *L) {
  cla_heap *h = check(L);
  uint32_t ref = 0;
  const cla_status status = cla_heap_alloc(h, cla_lua_checksize(L, 2, "nbytes"), &ref);
  if (status) return cla_lua_fail(L, status);
  lua_pushinteger(L, ref);
  return 1;
}

static int heap_free(lua_State *L) {
  cla_heap *h = check(L);
  return cla_lua_result(L, cla_heap_free(h, check_ref(L, 2)));
}

static int heap_read(lua_State *L) {
  cla_heap *h = check(L);
  const uint32_t ref = check_ref(L, 2);
  const size_t nbytes = cla_lua_checksize(L, 3, "nbytes"), offset = cla_lua_optsize(L, 4, "offset", 0);
  if (nbytes > cla_heap_limit(h)) /* before room for it is asked for */
    cla_lua_badarg(L, 3, "nbytes: %I bytes are more than the heap has", (LUAI_UACINT)nbytes);
  luaL_Buffer b;
  char *to = luaL_buffinitsize(L, &b, nbytes);
  const cla_status status = cla_heap_read(h, ref, offset, to, nbytes);
  if (status) return cla_lua_fail(L, status);
  luaL_pushresultsize(&b, nbytes);
  return 1;
}

static int heap_write(lua_State *L) {
  cla_heap *h = check(L);
  const uint32_t ref = check_ref(L, 2);
  size_t nbytes = 0;
  if (lua_type(L, 3) != LUA_TSTRING) cla_lua_badarg(L, 3, "data: string expected, got %s", luaL_typename(L, 3));
  const char *data = lua_tolstring(L, 3, &nbytes);
  return cla_lua_result(L, cla_heap_write(h, ref, cla_lua_optsize(L, 4, "offset", 0), data, nbytes));
}

/* ---- What there is ----------------------------------------------------------------------------- */

static void set_integer(lua_State *L, const char *name, uint64_t value) {
  lua_pushinteger(L, (lua_Integer)value);
  lua_setfield(L, -2, name);
}

static void set_faults(lua_State *L, const cla_heap_stats *stats) {
  static const char *const kinds[] = {"", "double", "foreign", "misaligned", "interior"};
  lua_createtable(L, (int)stats->nfaults, 0);
  for (unsigned i = 0; i < stats->nfaults; i++) {
    const cla_heap_fault *f = &stats->faults[i];
    lua_createtable(L, 0, 4);
    lua_pushstring(L, kinds[f->kind]);
    lua_setfield(L, -2, "kind");
    set_integer(L, "pointer", f->pointer);
    if (f->offset != UINT64_MAX) set_integer(L, "offset", f->offset);
    set_integer(L, "item", f->item);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "faults");
}

static int heap_stats(lua_State *L) {
  static const struct {
    const char *name;
    size_t offset;
  } fields[] = {
#define FIELD(name) {#name, offsetof(cla_heap_stats, name)}
      FIELD(limit),        FIELD(reserved),  FIELD(used),   FIELD(live_blocks),
      FIELD(largest_free), FIELD(waste),     FIELD(peak),   FIELD(peak_live),
      FIELD(mallocs),      FIELD(frees),     FIELD(failed), FIELD(largest_refused),
      FIELD(double_frees), FIELD(bad_frees),
#undef FIELD
  };
  enum { COUNT = sizeof fields / sizeof *fields };
  cla_heap_stats stats;
  const cla_status status = cla_heap_get_stats(check(L), &stats);
  if (status) return cla_lua_fail(L, status);
  lua_createtable(L, 0, COUNT + 1);
  for (size_t i = 0; i < COUNT; i++) {
    uint64_t value;
    memcpy(&value, (const char *)&stats + fields[i].offset, sizeof value);
    set_integer(L, fields[i].name, value);
  }
  set_faults(L, &stats);
  return 1;
}

static int heap_reset_peaks(lua_State *L) {
  cla_heap *h = check(L);
  if (!lua_isnoneornil(L, 2)) luaL_checktype(L, 2, LUA_TBOOLEAN);
  return cla_lua_result(L, cla_heap_reset_peaks(h, lua_toboolean(L, 2)));
}

static int heap_check(lua_State *L) { return cla_lua_result(L, cla_heap_check(check(L))); }

/* The walk's copy is the core's: what the visitor makes it makes without raising, and Lua gets it afterwards. */
typedef struct block_list {
  cla_heap_block *blocks;
  size_t n, capacity;
  bool is_full; /* no host memory for more */
} block_list;

static bool add_block(const cla_heap_block *b, void *arg) {
  block_list *list = arg;
  if (list->n == list->capacity) {
    const size_t capacity = list->capacity ? 2 * list->capacity : 256;
    cla_heap_block *grown = realloc(list->blocks, capacity * sizeof *grown);
    if (!grown) return list->is_full = true, false;
    list->blocks = grown;
    list->capacity = capacity;
  }
  list->blocks[list->n++] = *b;
  return true;
}

/* A malloc'd array that an error in Lua does not lose. */
static int box_gc(lua_State *L) {
  block_list *list = lua_touserdata(L, 1);
  free(list->blocks);
  *list = (block_list){0};
  return 0;
}

static int heap_blocks(lua_State *L) {
  cla_heap *h = check(L);
  block_list *list = cla_lua_newbox(L, sizeof(block_list), box_gc);
  const cla_status status = cla_heap_blocks(h, add_block, list);
  if (status) return cla_lua_fail(L, status);
  if (list->is_full) return luaL_error(L, "blocks: not enough memory");
  lua_createtable(L, list->n < INT_MAX ? (int)list->n : 0, 0);
  for (size_t i = 0; i < list->n; i++) {
    const cla_heap_block *b = &list->blocks[i];
    lua_createtable(L, 0, 6);
    set_integer(L, "ref", b->ref);
    set_integer(L, "offset", b->offset);
    set_integer(L, "size", b->size);
    if (b->kernel) {
      lua_pushstring(L, b->kernel);
      lua_setfield(L, -2, "kernel");
    }
    if (b->line) set_integer(L, "line", b->line);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* ---- Metamethods ------------------------------------------------------------------------------- */

/* Waits for nobody: while kernels use the heap it says that. */
static int heap_tostring(lua_State *L) {
  const lua_heap *object = cla_lua_check(L, 1, CLA_LUA_HEAP);
  cla_heap_stats stats;
  if (!object->heap) {
    lua_pushliteral(L, "heap (closed)");
    return 1;
  }
  cla_lua_pushbytes(L, cla_heap_limit(object->heap));
  const char *limit = lua_tostring(L, -1);
  if (cla__driver_forbidden() || !cla__heap_is_idle(object->heap) || cla_heap_get_stats(object->heap, &stats)) {
    lua_pushfstring(L, "heap (limit %s, in use)", limit);
  } else if (!stats.reserved) {
    lua_pushfstring(L, "heap (limit %s, not used yet)", limit);
  } else {
    cla_lua_pushbytes(L, stats.used);
    lua_pushfstring(L, "heap (limit %s, %s in %I block%s%s)", limit, lua_tostring(L, -1),
                    (LUAI_UACINT)stats.live_blocks, stats.live_blocks == 1 ? "" : "s",
                    stats.failed ? ", allocations failed" : "");
  }
  return 1;
}

static int heap_eq(lua_State *L) {
  const lua_heap *a = cla_lua_test(L, 1, CLA_LUA_HEAP), *b = cla_lua_test(L, 2, CLA_LUA_HEAP);
  lua_pushboolean(L, a && b && a->heap && a->heap == b->heap);
  return 1;
}

static const luaL_Reg methods[] = {{"stats", heap_stats},
                                   {"check", heap_check},
                                   {"blocks", heap_blocks},
                                   {"alloc", heap_alloc},
                                   {"free", heap_free},
                                   {"read", heap_read},
                                   {"write", heap_write},
                                   {"reset", heap_reset},
                                   {"close", heap_close},
                                   {"reset_peaks", heap_reset_peaks},
                                   {NULL, NULL}};

static const luaL_Reg properties[] = {
    {"limit", get_limit}, {"counting", get_counting}, {"sites", get_sites}, {"device", get_device}, {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", heap_close},          {"__close", heap_close}, {"__newindex", heap_newindex},
    {"__tostring", heap_tostring}, {"__eq", heap_eq},       {NULL, NULL}};

void cla_lua_open_heap(lua_State *L) { cla_lua_newtype(L, CLA_LUA_HEAP, methods, properties, metamethods); }
