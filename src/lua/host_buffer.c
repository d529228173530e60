/* Pinned allocations and views of them: host memory that Lua reads and writes at once, and streams by themselves.
 *
 * Nothing here waits: what a transfer that is still running has written so far is what a read finds. A view is stale
 * when its allocation is closed. A closed allocation lives on in the cache while recorded streams use it. */
#include <string.h>

#include "binding.h"
#include "host/host.h"

static const char WHAT[] = "host buffer";

static cla_host_block *block_of(const lua_host_buffer *h) {
  bool was_issued;
  uint64_t life;
  return cla__host_block_of(h->context, &life, &was_issued);
}

lua_host_buffer *cla_lua_checkhostbuffer(lua_State *L, int arg) {
  lua_host_buffer *h = cla_lua_check(L, arg, CLA_LUA_HOST_BUFFER);
  cla_lua_checkopen(L, arg, h->cache, "host buffer");
  if (!block_of(h)) cla_lua_badarg(L, arg, "attempt to use a view of a freed host buffer");
  return h;
}

static lua_host_buffer *check(lua_State *L) { return cla_lua_checkhostbuffer(L, 1); }

/* ---- Allocating -------------------------------------------------------------------------------- */

static void attach(lua_host_buffer *h, lua_cache *cache) {
  cache->count++;
  h->cache = cache;
}

static cla_status take(cla_host *c, size_t nbytes, lua_host_buffer *h) {
  if (!c) return cla__error(CLA_E_CLOSED, "the cache of pinned memory is closed"); /* by a finalizer */
  return cla_host_alloc(c, nbytes, &h->memory, &h->context);
}

/* Once more after a collection when there was no memory. */
static cla_status allocate(lua_State *L, const lua_cache *cache, lua_host_buffer *h, size_t nbytes) {
  lua_world *w = cache->share->world;
  size_t max_cached, max_block;
  cla__host_limits(cache->host, &max_cached, &max_block);
  cla_lua_grew_within(L, w, max_cached, nbytes);
  cla_status status = take(cache->host, nbytes, h);
  if (status == CLA_E_NOMEM && cla_lua_collect(L, w)) status = take(cache->host, nbytes, h);
  if (status) cla_lua_shrank(w, nbytes);
  return status;
}

int cla_lua_host_alloc(lua_State *L) {
  const lua_host *object = cla_lua_check(L, 1, CLA_LUA_HOST);
  cla_lua_checkopen(L, 1, object->cache, "host cache");
  cla_lua_checkopen(L, 1, object->cache->host, "host cache");
  lua_cache *cache = object->cache;
  size_t nbytes = cla_lua_checksize(L, 2, "nbytes");
  lua_settop(L, 2);
  lua_host_buffer *h = cla_lua_new(L, sizeof *h, CLA_LUA_HOST_BUFFER, cache->hooks ? 1 : 0);
  attach(h, cache);
  lua_entry e;
  if (cache->hooks) {
    lua_getiuservalue(L, 1, 1);
    lua_setiuservalue(L, 3, 1);
  }
  cla_lua_enter(L, &e, cache->hooks, 3);
  cla_status status = allocate(L, cache, h, nbytes);
  if (!status) {
    const cla_host_block *b = block_of(h);
    h->nbytes = nbytes;
    h->size = b->size;
    h->is_pinned = b->is_pinned;
  } else {
    h->cache = NULL;
    cla_lua_uncache(cache);
  }
  cla_lua_leave(L, &e);
  return status ? cla_lua_fail(L, status) : 1;
}

static int host_buffer_close(lua_State *L) {
  lua_host_buffer *h = cla_lua_check(L, 1, CLA_LUA_HOST_BUFFER);
  lua_cache *cache = h->cache;
  if (!cache) return 0;
  void *context = h->is_view ? NULL : h->context;
  size_t nbytes = h->nbytes;
  lua_entry e;
  cla_lua_enter(L, &e, cache->hooks, 1); /* may raise: then it is as open as before */
  *h = (lua_host_buffer){0};
  if (context) {
    cla_lua_shrank(cache->share->world, nbytes);
    cla_host_free(context); /* stale when the device has ended: nothing to do */
  }
  cla_lua_uncache(cache);
  if (!e.has_failed) cla_lua_retire(L, 1, CLA_LUA_HOST_BUFFER);
  cla_lua_leave(L, &e);
  return 0;
}

/* ---- Views ------------------------------------------------------------------------------------- */

static int host_buffer_view(lua_State *L) {
  lua_host_buffer *h = check(L);
  cla_lua_checksize(L, 2, "offset");
  size_t nbytes, offset = cla_lua_optrange(L, 2, h->nbytes, WHAT, &nbytes);
  lua_host_buffer *view = cla_lua_new(L, sizeof *view, CLA_LUA_HOST_BUFFER, 2);
  if (lua_getiuservalue(L, 1, 1) == LUA_TTABLE) lua_setiuservalue(L, -2, 1);
  else lua_pop(L, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 2);
  cla_lua_checkopen(L, 1, h->cache, "host buffer"); /* a finalizer may have closed it just now */
  *view = *h;
  view->cache->count++;
  view->memory = (char *)h->memory + offset;
  view->offset = h->offset + offset;
  view->nbytes = nbytes;
  view->is_view = true;
  return 1;
}

/* A view of the whole allocation, made by another object, or by another state or C. */
bool cla_lua_resolve_host(lua_State *L, const void *address, cla_status *status) {
  if (!cla__host_block_at(address)) return false;
  cla_host_info info;
  lua_host_buffer *view = cla_lua_new(L, sizeof *view, CLA_LUA_HOST_BUFFER, 2);
  lua_share *share = cla_lua_share(L, NULL);
  lua_cache *cache = view->cache = cla_lua_newcache(L, share);
  cla_lua_unshare(share); /* the cache's now */
  view->is_view = true;
  void *context;
  cla_host *host;
  *status = cla__host_look(address, &info, &context, &host);
  if (*status) return true;
  share->device = host->device;
  cache->host = host;
  cache->hooks = cla_lua_pushhooks(L, host);
  lua_setiuservalue(L, -2, 1);
  view->context = context;
  view->memory = info.memory;
  view->nbytes = info.requested;
  view->size = info.size;
  view->is_pinned = info.is_pinned;
  lua_pushinteger(L, (lua_Integer)((uintptr_t)address - (uintptr_t)info.memory));
  return true;
}

/* ---- Reading and writing ----------------------------------------------------------------------- */

static int host_buffer_read(lua_State *L) {
  const lua_host_buffer *h = check(L);
  return cla_lua_readbytes(L, h->memory, h->nbytes, WHAT);
}

static int host_buffer_string(lua_State *L) {
  const lua_host_buffer *h = check(L);
  lua_settop(L, 1);
  return cla_lua_readbytes(L, h->memory, h->nbytes, WHAT);
}

static int host_buffer_write(lua_State *L) {
  const lua_host_buffer *h = check(L);
  return cla_lua_writebytes(L, h->memory, h->nbytes, WHAT);
}

/* fill(byte [, offset [, n]]) */
static int host_buffer_fill(lua_State *L) {
  const lua_host_buffer *h = check(L);
  size_t byte = cla_lua_checksize(L, 2, "byte");
  if (byte > 255) cla_lua_badarg(L, 2, "byte: %I is no byte", (LUAI_UACINT)byte);
  size_t nbytes, offset = cla_lua_optrange(L, 3, h->nbytes, WHAT, &nbytes);
  memset((char *)h->memory + offset, (int)byte, nbytes);
  return cla_lua_result(L, CLA_OK);
}

static int host_buffer_record(lua_State *L) {
  const lua_host_buffer *h = check(L);
  cla_stream *s = cla_lua_checkstream(L, 2)->stream;
  lua_entry e;
  cla_lua_enter(L, &e, h->cache->hooks, 1);
  cla_status status = cla_host_record(NULL, h->context, s);
  cla_lua_leave(L, &e);
  return cla_lua_result(L, status);
}

/* ---- Properties and metamethods ---------------------------------------------------------------- */

static const lua_host_buffer *check_open(lua_State *L) {
  const lua_host_buffer *h = cla_lua_check(L, 1, CLA_LUA_HOST_BUFFER);
  cla_lua_checkopen(L, 1, h->cache, "host buffer");
  return h;
}

static int push_size(lua_State *L, size_t n) {
  lua_pushinteger(L, (lua_Integer)n);
  return 1;
}

static int push_truth(lua_State *L, bool truth) {
  lua_pushboolean(L, truth);
  return 1;
}

static int get_size(lua_State *L) { return push_size(L, check_open(L)->nbytes); }
static int get_reserved(lua_State *L) { return push_size(L, check_open(L)->size); }
static int get_offset(lua_State *L) { return push_size(L, check_open(L)->offset); }
static int get_address(lua_State *L) { return push_size(L, (uintptr_t)check_open(L)->memory); }
static int get_is_pinned(lua_State *L) { return push_truth(L, check_open(L)->is_pinned); }
static int get_is_view(lua_State *L) { return push_truth(L, check_open(L)->is_view); }

static bool is_usable(const lua_host_buffer *h) { return h->cache && block_of(h); }

static int get_closed(lua_State *L) { return push_truth(L, !is_usable(cla_lua_check(L, 1, CLA_LUA_HOST_BUFFER))); }

static int get_device(lua_State *L) {
  cla_lua_pushshared(L, check_open(L)->cache->share);
  return 1;
}

static int host_buffer_tostring(lua_State *L) {
  const lua_host_buffer *h = cla_lua_check(L, 1, CLA_LUA_HOST_BUFFER);
  if (!h->cache) lua_pushliteral(L, "host buffer (closed)");
  else if (!is_usable(h)) lua_pushliteral(L, "host buffer (freed)");
  else
    lua_pushfstring(L, "host buffer (%I bytes at %p, %s)", (LUAI_UACINT)h->nbytes, h->memory,
                    h->is_pinned ? "pinned" : "plain");
  return 1;
}

static const luaL_Reg methods[] = {
    {"read", host_buffer_read},     {"write", host_buffer_write}, {"string", host_buffer_string},
    {"fill", host_buffer_fill},     {"copy", cla_lua_host_copy},  {"view", host_buffer_view},
    {"record", host_buffer_record}, {"close", host_buffer_close}, {NULL, NULL}};

static const luaL_Reg properties[] = {{"size", get_size},     {"address", get_address},     {"reserved", get_reserved},
                                      {"offset", get_offset}, {"is_pinned", get_is_pinned}, {"is_view", get_is_view},
                                      {"device", get_device}, {"closed", get_closed},       {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__gc", host_buffer_close},
                                       {"__close", host_buffer_close},
                                       {"__tostring", host_buffer_tostring},
                                       {"__len", get_size},
                                       {NULL, NULL}};

void cla_lua_open_host_buffer(lua_State *L) {
  cla_lua_newtype(L, CLA_LUA_HOST_BUFFER, methods, properties, metamethods);
  cla_lua_newretired(L, CLA_LUA_HOST_BUFFER);
}
