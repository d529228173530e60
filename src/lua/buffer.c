/* Buffers: allocations and views of them.
 *
 * A buffer is a handle with a generation: when the allocation is freed, by any holder or with its pool, every buffer
 * of it is stale for ever and says so. A buffer keeps its
 * device, and a pool of the script's own, through the share.
 *
 * `alloc` and `close` are the fast path: one userdata, no tables, no driver call on a hit. */
#include <stdlib.h>
#include <string.h>

#include "binding.h"

lua_buffer *cla_lua_checkbuffer(lua_State *L, int arg) {
  lua_buffer *b = cla_lua_check(L, arg, CLA_LUA_BUFFER);
  cla_lua_checkopen(L, arg, b->share, "buffer");
  return b;
}

/* ---- Allocating -------------------------------------------------------------------------------- */

static lua_buffer *push_closed(lua_State *L, int nuser) {
  return cla_lua_new(L, sizeof(lua_buffer), CLA_LUA_BUFFER, nuser);
}

static void attach(lua_buffer *b, lua_share *share) {
  share->count++;
  b->share = share;
  b->device = share->device;
}

static void detach(lua_buffer *b) {
  lua_share *share = b->share;
  *b = (lua_buffer){0};
  cla_lua_unshare(share);
}

/* What the core asks for when memory is short: garbage buffers are closed by their finalizers. */
static bool reclaim(void *arg, cla_stage stage, size_t nbytes) {
  (void)nbytes;
  lua_State *L = arg;
  return stage == CLA_STAGE_COLLECT && cla_lua_collect(L, cla_lua_world(L));
}

static int alloc_failed(lua_State *L, cla_status status) {
  bool is_short = status == CLA_E_NOMEM || status == CLA_E_LIMIT;
  if (!is_short || lua_gc(L, LUA_GCISRUNNING) != 0) return cla_lua_fail(L, status);
  luaL_pushfail(L);
  lua_pushfstring(L, "%s; the garbage collector is stopped, so buffers that nothing refers to are not freed",
                  cla_last_error());
  lua_pushstring(L, cla_status_name(status));
  return 3;
}

/* The default stream lives as long as the share. */
static void hold(cla_stream *s) {
  if (!s->is_own) cla__stream_hold(s);
}
static void unhold(cla_stream *s) {
  if (!s->is_own) cla__stream_unhold(s);
}

/* The core's part, in the turn of a policy with Lua functions: their table is a user value of the buffer on top. */
static cla_status alloc_deciding(lua_State *L, lua_buffer *b, cla_pool *p, size_t nbytes, cla_stream *s) {
  lua_turn turn;
  cla_status status = cla_lua_begin(L, &turn, b->share->policy, lua_gettop(L), true);
  if (status) return status;
  status = cla__pool_alloc(p, nbytes, s, reclaim, L, &b->handle, &b->address);
  cla_lua_end(&turn);
  return status;
}

/* A closed buffer is on top; its share is set. Nothing here raises, whatever finalizers do meanwhile. */
static cla_status fill_buffer(lua_State *L, lua_buffer *b, cla_pool *p, size_t nbytes, cla_stream *s) {
  lua_world *w = b->share->world;
  hold(s); /* a finalizer might close it */
  cla_lua_grew(L, w, p, nbytes);
  cla_status status = b->share->policy ? alloc_deciding(L, b, p, nbytes, s)
                                       : cla__pool_alloc(p, nbytes, s, reclaim, L, &b->handle, &b->address);
  unhold(s);
  if (status) {
    cla_lua_shrank(w, nbytes);
    return status;
  }
  b->nbytes = nbytes;
  b->size = b->handle.block->size;
  return CLA_OK;
}

static cla_status default_pool(lua_share *share) {
  return share->pool ? CLA_OK : cla_device_pool(share->device, &share->pool);
}

static int finish_alloc(lua_State *L, lua_buffer *b, cla_status status) {
  if (!status) return 1;
  detach(b);
  return alloc_failed(L, status);
}

static cla_stream *current(lua_State *L, const lua_share *share) {
  if (share->world->guards) return cla_lua_guardedstream(L, share->world, share->device);
  return cla_device_stream(share->device);
}

/* From the pool of the share: its own, whose object is at this stack index, or the device's default pool. */
static int alloc_on(lua_State *L, lua_share *share, int object, size_t nbytes, cla_stream *s) {
  lua_buffer *b = push_closed(L, share->policy ? 1 : 0);
  attach(b, share);
  if (share->policy) {
    lua_getiuservalue(L, object, 1);
    lua_setiuservalue(L, -2, 1);
  }
  cla_status status = default_pool(share);
  if (!status) status = fill_buffer(L, b, share->pool, nbytes, s);
  return finish_alloc(L, b, status);
}

/* Leaves the value on the stack. NULL: not given. */
static cla_stream *stream_field(lua_State *L, int index, cla_device *d) {
  return cla_lua_field(L, index, "stream") == LUA_TNIL ? NULL : cla_lua_topstream(L, index, d, NULL);
}

/* Leaves the value on the stack. NULL: not given. */
static lua_pool *pool_field(lua_State *L, int index, cla_device *d) {
  if (cla_lua_field(L, index, "pool") == LUA_TNIL) return NULL;
  lua_pool *p = cla_lua_test(L, -1, CLA_LUA_POOL);
  if (!p) cla_lua_badarg(L, index, "pool: a pool expected, got %s", luaL_typename(L, -1));
  if (!p->pool) cla_lua_badarg(L, index, "pool: attempt to use a closed pool");
  if (p->share->device != d)
    cla_lua_badarg(L, index, "pool: it belongs to %s, not to %s", p->share->device->info.name, d->info.name);
  return p;
}

int cla_lua_device_alloc(lua_State *L) {
  static const char *const known[] = {"stream", "pool", NULL};
  lua_device *d = cla_lua_checkdevice(L, 1);
  size_t nbytes = cla_lua_checksize(L, 2, "nbytes");
  if (lua_isnoneornil(L, 3)) return alloc_on(L, d->share, 0, nbytes, current(L, d->share));
  cla_lua_checkfields(L, 3, known);
  cla_stream *s = stream_field(L, 3, d->device);
  if (!s) s = current(L, d->share);
  lua_pool *p = pool_field(L, 3, d->device);
  return alloc_on(L, p ? p->share : d->share, lua_gettop(L), nbytes, s);
}

int cla_lua_pool_alloc(lua_State *L) {
  static const char *const known[] = {"stream", NULL};
  lua_pool *p = cla_lua_checkpool(L, 1);
  size_t nbytes = cla_lua_checksize(L, 2, "nbytes");
  cla_device *d = p->share->device;
  cla_stream *s = NULL;
  lua_settop(L, 3);
  if (lua_istable(L, 3)) {
    cla_lua_checkfields(L, 3, known);
    s = stream_field(L, 3, d);
  } else if (!lua_isnil(L, 3)) {
    s = cla_lua_topstream(L, 3, d, NULL);
  }
  return alloc_on(L, p->share, 1, nbytes, s ? s : current(L, p->share));
}

/* Frees in the turn of the policy, and raises what one of its functions has raised, when all is done. */
static int close_deciding(lua_State *L, lua_buffer *b) {
  lua_turn turn;
  cla_lua_begin(L, &turn, b->share->policy, 1, false);
  cla__pool_free(&b->handle);
  detach(b); /* the policy may end with it: the turn's functions run no more */
  cla_lua_end(&turn);
  cla_lua_retire(L, 1, CLA_LUA_BUFFER);
  return turn.has_failed ? luaL_error(L, "%s", turn.fault) : 0;
}

static int buffer_close(lua_State *L) {
  lua_buffer *b = cla_lua_check(L, 1, CLA_LUA_BUFFER);
  if (!b->share) return 0;
  if (!b->is_view) {
    cla_lua_shrank(b->share->world, b->nbytes);
    if (b->share->policy) return close_deciding(L, b);
    cla__pool_free(&b->handle); /* stale when the pool or somebody else has freed it: nothing to do */
  }
  detach(b);
  cla_lua_retire(L, 1, CLA_LUA_BUFFER);
  return 0;
}

/* ---- Views ------------------------------------------------------------------------------------- */

/* The buffer at index 1 that is being viewed, [offset, offset + nbytes) of it. */
static int push_view(lua_State *L, const lua_buffer *of, size_t offset, size_t nbytes) {
  lua_buffer *view = push_closed(L, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  attach(view, of->share);
  view->handle = of->handle;
  view->address = (char *)of->address + offset;
  view->offset = of->offset + offset;
  view->nbytes = nbytes;
  view->size = of->size;
  view->is_view = true;
  return 1;
}

/* Raises when the allocation is gone: a closed pool, a free by address. */
static lua_buffer *check_live(lua_State *L, int arg) {
  lua_buffer *b = cla_lua_checkbuffer(L, arg);
  if (cla__handle_check(&b->handle)) cla_lua_raise(L);
  return b;
}

/* Optional offset and length at `arg` and `arg + 1`. */
static void range_args(lua_State *L, int arg, const lua_buffer *b, size_t *offset, size_t *nbytes) {
  *offset = cla_lua_optsize(L, arg, "offset", 0);
  cla_lua_checkrange(L, arg, *offset, 0, b->nbytes, "buffer");
  *nbytes = cla_lua_optsize(L, arg + 1, "n", b->nbytes - *offset);
  cla_lua_checkrange(L, arg + 1, *offset, *nbytes, b->nbytes, "buffer");
}

static int buffer_view(lua_State *L) {
  const lua_buffer *b = check_live(L, 1);
  size_t offset, nbytes;
  cla_lua_checksize(L, 2, "offset");
  range_args(L, 2, b, &offset, &nbytes);
  return push_view(L, b, offset, nbytes);
}

/* ---- Commands ---------------------------------------------------------------------------------- */

static const char *const command_fields[] = {"stream", "wait", "async", NULL};

/* The result of a command: true, the event on top of the stack, or a failure. */
static int command_done(lua_State *L, cla_status status, const lua_command *c, lua_event *e) {
  if (status) return cla_lua_fail(L, status);
  if (!c->async) return cla_lua_result(L, CLA_OK);
  cla_lua_fillevent(e, c->out, c->order.stream, cla__stream_submitted(c->order.stream));
  return 1;
}

/* The event object of an asynchronous command, made before the command, as it may raise. */
static lua_event *event_for(lua_State *L, const lua_command *c) { return c->async ? cla_lua_newevent(L) : NULL; }

/* The script may drop the string before the command has read it. */
static cla_status write_copy(const lua_buffer *b, size_t offset, const char *bytes, size_t nbytes,
                             const lua_command *c) {
  void *copy = malloc(nbytes ? nbytes : 1);
  if (!copy) return cla__error(CLA_E_NOMEM, "no host memory to keep %zu bytes", nbytes);
  memcpy(copy, bytes, nbytes);
  cla_status status = cla__write(&b->handle, b->offset + offset, copy, nbytes, &c->order);
  if (status) {
    free(copy);
    return status;
  }
  cla_stream *s = c->order.stream;
  uint64_t number = cla__stream_submitted(s);
  if (cla__stream_defer(s, number, free, copy) && !cla__stream_wait(s, number)) free(copy);
  return CLA_OK;
}

static int buffer_write(lua_State *L) {
  const lua_buffer *b = check_live(L, 1);
  luaL_checktype(L, 2, LUA_TSTRING);
  size_t nbytes;
  const char *bytes = lua_tolstring(L, 2, &nbytes);
  size_t offset = cla_lua_optsize(L, 3, "offset", 0);
  cla_lua_checkrange(L, 3, offset, nbytes, b->nbytes, "buffer");
  cla_lua_checkfields(L, 4, command_fields);
  lua_command c;
  cla_lua_command(L, 4, b->device, &c);
  lua_event *e = event_for(L, &c);
  cla_status status = c.async ? write_copy(b, offset, bytes, nbytes, &c)
                              : cla__write(&b->handle, b->offset + offset, bytes, nbytes, &c.order);
  return command_done(L, status, &c, e);
}

static int read_now(lua_State *L, const lua_buffer *b, size_t offset, size_t nbytes, const lua_command *c) {
  luaL_Buffer bytes;
  char *to = luaL_buffinitsize(L, &bytes, nbytes);
  cla_status status = cla__read(&b->handle, b->offset + offset, to, nbytes, &c->order);
  if (status) return cla_lua_fail(L, status);
  luaL_pushresultsize(&bytes, nbytes);
  return 1;
}

static int read_later(lua_State *L, const lua_buffer *b, size_t offset, size_t nbytes, const lua_command *c) {
  lua_event *e = cla_lua_newevent(L);
  void *host = malloc(nbytes ? nbytes : 1);
  cla_status status = host ? CLA_OK : cla__error(CLA_E_NOMEM, "no host memory to read %zu bytes", nbytes);
  if (!status) status = cla__read(&b->handle, b->offset + offset, host, nbytes, &c->order);
  if (status) {
    free(host);
    return cla_lua_fail(L, status);
  }
  e->host = host;
  e->nbytes = nbytes;
  e->is_read = true;
  return command_done(L, CLA_OK, c, e);
}

static int buffer_read(lua_State *L) {
  const lua_buffer *b = check_live(L, 1);
  size_t offset, nbytes;
  range_args(L, 2, b, &offset, &nbytes);
  cla_lua_checkfields(L, 4, command_fields);
  lua_command c;
  cla_lua_command(L, 4, b->device, &c);
  return c.async ? read_later(L, b, offset, nbytes, &c) : read_now(L, b, offset, nbytes, &c);
}

/* A byte 0 .. 255 or a pattern string; the string stays on the stack. */
static const char *check_pattern(lua_State *L, int arg, char *byte, size_t *nbytes) {
  if (lua_type(L, arg) == LUA_TSTRING) {
    const char *pattern = lua_tolstring(L, arg, nbytes);
    if (*nbytes == 0 || *nbytes > 16 || (*nbytes & (*nbytes - 1)))
      cla_lua_badarg(L, arg, "a pattern of %I bytes; it must have 1, 2, 4, 8 or 16", (LUAI_UACINT)*nbytes);
    return pattern;
  }
  size_t value = cla_lua_checksize(L, arg, "value");
  if (value > 255) cla_lua_badarg(L, arg, "value: %I is no byte", (LUAI_UACINT)value);
  *byte = (char)value;
  *nbytes = 1;
  return byte;
}

static int buffer_fill(lua_State *L) {
  static const char *const known[] = {"offset", "size", "stream", "wait", "async", NULL};
  const lua_buffer *b = check_live(L, 1);
  char byte;
  size_t pattern_size, offset = 0, nbytes = b->nbytes;
  const char *pattern = check_pattern(L, 2, &byte, &pattern_size);
  cla_lua_checkfields(L, 3, known);
  if (lua_istable(L, 3)) {
    offset = cla_lua_fieldsize(L, 3, "offset", 0);
    cla_lua_checkrange(L, 3, offset, 0, b->nbytes, "buffer");
    nbytes = cla_lua_fieldsize(L, 3, "size", b->nbytes - offset);
    cla_lua_checkrange(L, 3, offset, nbytes, b->nbytes, "buffer");
  }
  lua_command c;
  cla_lua_command(L, 3, b->device, &c);
  lua_event *e = event_for(L, &c);
  cla_status status = cla__fill(&b->handle, b->offset + offset, pattern, pattern_size, nbytes, &c.order);
  return command_done(L, status, &c, e);
}

static size_t rest(size_t offset, size_t size) { return offset < size ? size - offset : 0; }

static int buffer_copy(lua_State *L) {
  static const char *const known[] = {"offset", "source_offset", "size", "stream", "wait", "async", NULL};
  if (cla_lua_test(L, 2, CLA_LUA_HOST_BUFFER)) return cla_lua_host_copy(L);
  const lua_buffer *to = check_live(L, 1), *from = check_live(L, 2);
  size_t offset = 0, source_offset = 0;
  cla_lua_checkfields(L, 3, known);
  bool has_options = lua_istable(L, 3);
  if (has_options) {
    offset = cla_lua_fieldsize(L, 3, "offset", 0);
    source_offset = cla_lua_fieldsize(L, 3, "source_offset", 0);
  }
  size_t nbytes = rest(offset, to->nbytes), available = rest(source_offset, from->nbytes);
  if (available < nbytes) nbytes = available;
  if (has_options) nbytes = cla_lua_fieldsize(L, 3, "size", nbytes);
  cla_lua_checkrange(L, 3, offset, nbytes, to->nbytes, "buffer");
  cla_lua_checkrange(L, 3, source_offset, nbytes, from->nbytes, "source");
  lua_command c;
  cla_lua_command_between(L, 3, to->device, from->device, &c);
  lua_event *e = event_for(L, &c);
  cla_status status =
      cla__copy(&to->handle, to->offset + offset, &from->handle, from->offset + source_offset, nbytes, &c.order);
  /* Between devices the event is the receiving side's, whichever side the stream is of. */
  if (c.order.stream->device != to->device) c.order.stream = cla_device_stream(to->device);
  return command_done(L, status, &c, e);
}

static int buffer_record(lua_State *L) {
  const lua_buffer *b = check_live(L, 1);
  return cla_lua_result(L, cla__handle_record(&b->handle, cla_lua_checkstream(L, 2)->stream));
}

/* ---- Addresses --------------------------------------------------------------------------------- */

static const void *check_address(lua_State *L, int arg) {
  if (lua_islightuserdata(L, arg)) return lua_touserdata(L, arg);
  if (!lua_isinteger(L, arg))
    cla_lua_badarg(L, arg, "an address expected: an integer or a light userdata, got %s", luaL_typename(L, arg));
  return (const void *)(uintptr_t)lua_tointeger(L, arg);
}

int cla_lua_owns(lua_State *L) {
  const void *address = check_address(L, 1);
  cla_host_info info;
  lua_pushboolean(L, cla_owns(address) || !cla_host_resolve(address, &info));
  return 1;
}

int cla_lua_resolve(lua_State *L) {
  const void *address = check_address(L, 1);
  cla_status status = cla__alive();
  if (!status && cla_lua_resolve_host(L, address, &status)) return status ? cla_lua_pushfail(L, status) : 2;
  lua_buffer *b = push_closed(L, 0);
  lua_share *share = cla_lua_share(L, NULL);
  b->share = share;
  cla_buffer found;
  size_t offset;
  if (!status) status = cla__handle_of(address, &b->handle, &offset);
  if (!status) status = cla_resolve(address, &found);
  if (!status) status = cla__handle_check(&b->handle);
  if (status) {
    detach(b);
    return status == CLA_E_FORKED ? cla_lua_raise(L) : cla_lua_pushfail(L, status);
  }
  cla_device_retain(found.device);
  share->device = b->device = found.device;
  b->address = found.address;
  b->nbytes = found.requested;
  b->size = found.size;
  b->is_view = true;
  lua_pushinteger(L, (lua_Integer)offset);
  return 2;
}

/* ---- Properties -------------------------------------------------------------------------------- */

static int push_size(lua_State *L, size_t n) {
  lua_pushinteger(L, (lua_Integer)n);
  return 1;
}

static int get_size(lua_State *L) { return push_size(L, cla_lua_checkbuffer(L, 1)->nbytes); }
static int get_reserved(lua_State *L) { return push_size(L, cla_lua_checkbuffer(L, 1)->size); }
static int get_offset(lua_State *L) { return push_size(L, cla_lua_checkbuffer(L, 1)->offset); }
static int get_address(lua_State *L) { return push_size(L, (uintptr_t)cla_lua_checkbuffer(L, 1)->address); }

static int get_is_view(lua_State *L) {
  lua_pushboolean(L, cla_lua_checkbuffer(L, 1)->is_view);
  return 1;
}

static bool is_usable(const lua_buffer *b) { return b->share && !cla__handle_check(&b->handle); }

static int get_closed(lua_State *L) {
  lua_pushboolean(L, !is_usable(cla_lua_check(L, 1, CLA_LUA_BUFFER)));
  return 1;
}

static int get_device(lua_State *L) {
  cla_lua_pushshared(L, cla_lua_checkbuffer(L, 1)->share);
  return 1;
}

/* A handle to the allocation's pool; of a resolved address, nil unless it is the default pool. */
static int get_pool(lua_State *L) {
  lua_buffer *b = check_live(L, 1);
  if (default_pool(b->share) || b->share->pool != b->handle.pool) return 0;
  cla_lua_pushpool(L, b->share, b->share->pool);
  if (!b->share->policy) return 1;
  lua_pushvalue(L, 1); /* its table is the allocation's, below any views */
  while (lua_type(L, -1) == LUA_TUSERDATA) {
    lua_getiuservalue(L, -1, 1);
    lua_remove(L, -2);
  }
  lua_setiuservalue(L, -2, 1);
  return 1;
}

/* nil when the owner has been closed. */
static int get_stream(lua_State *L) {
  const lua_buffer *b = check_live(L, 1);
  cla_buffer found;
  cla_status status = cla_resolve((char *)b->address - b->offset, &found);
  if (status) return cla_lua_raise(L);
  if (!found.stream || cla__stream_closed(found.stream)) return 0;
  cla_lua_pushstream(L, found.stream);
  return 1;
}

/* ---- Metamethods ------------------------------------------------------------------------------- */

static int buffer_tostring(lua_State *L) {
  const lua_buffer *b = cla_lua_check(L, 1, CLA_LUA_BUFFER);
  if (!b->share) lua_pushliteral(L, "buffer (closed)");
  else if (!is_usable(b)) lua_pushliteral(L, "buffer (freed)");
  else lua_pushfstring(L, "buffer (%I bytes at %p, %s)", (LUAI_UACINT)b->nbytes, b->address, b->device->info.name);
  return 1;
}

static const luaL_Reg methods[] = {{"write", buffer_write},
                                   {"read", buffer_read},
                                   {"fill", buffer_fill},
                                   {"copy", buffer_copy},
                                   {"write_async", cla_lua_buffer_write_async},
                                   {"read_async", cla_lua_buffer_read_async},
                                   {"view", buffer_view},
                                   {"map", cla_lua_buffer_map},
                                   {"record", buffer_record},
                                   {"close", buffer_close},
                                   {NULL, NULL}};

static const luaL_Reg properties[] = {{"size", get_size},         {"address", get_address},
                                      {"reserved", get_reserved}, {"offset", get_offset},
                                      {"device", get_device},     {"pool", get_pool},
                                      {"stream", get_stream},     {"closed", get_closed},
                                      {"is_view", get_is_view},   {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__gc", buffer_close},
                                       {"__close", buffer_close},
                                       {"__tostring", buffer_tostring},
                                       {"__len", get_size},
                                       {NULL, NULL}};

void cla_lua_open_buffer(lua_State *L) {
  cla_lua_newtype(L, CLA_LUA_BUFFER, methods, properties, metamethods);
  cla_lua_newretired(L, CLA_LUA_BUFFER);
}
