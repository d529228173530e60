/* Transfers between buffers and pinned memory: copies, and those that run beside the script.
 *
 * An asynchronous transfer holds both ends in the core: the buffer's block through its pool, the pinned one because the
 * stream is recorded on it. Room for that record is made before the command is enqueued, so it cannot fail afterwards. */
#include <string.h>

#include "binding.h"
#include "host/host.h"

typedef struct transfer {
  lua_buffer *buffer;
  lua_host_buffer *host;
  int host_arg, buffer_arg; /* stack indices */
  size_t buffer_offset, host_offset, nbytes;
  bool is_write; /* to the device */
} transfer;

static lua_buffer *check_buffer(lua_State *L, int arg) {
  lua_buffer *b = cla_lua_checkbuffer(L, arg);
  if (cla__handle_check(&b->handle)) cla_lua_raise(L);
  return b;
}

/* After the options have been read: that may collect garbage, and a finalizer may have closed either end. */
static void check_ends(lua_State *L, const transfer *t) {
  cla_lua_checkhostbuffer(L, t->host_arg);
  check_buffer(L, t->buffer_arg);
}

static cla_status enqueue(const transfer *t, const cla_order *o) {
  const lua_buffer *b = t->buffer;
  char *memory = (char *)t->host->memory + t->host_offset;
  return t->is_write ? cla__write(&b->handle, b->offset + t->buffer_offset, memory, t->nbytes, o)
                     : cla__read(&b->handle, b->offset + t->buffer_offset, memory, t->nbytes, o);
}

/* Should a record fail all the same, nobody may have the memory before the transfer is over. */
static cla_status record(const transfer *t, cla_stream *s, uint64_t number) {
  cla_status status = cla_host_record(NULL, t->host->context, s);
  if (status) cla__stream_wait(s, number);
  return status;
}

/* The event object is on top of the stack, closed; both ends have been checked after it was made. */
static int run_async(lua_State *L, const transfer *t, lua_command *c, lua_event *e) {
  cla_stream *s = c->order.stream;
  cla_status status = cla__host_expect(t->host->context, s);
  if (status) return cla_lua_fail(L, status);
  lua_entry entry;
  cla_lua_enter(L, &entry, t->host->cache->hooks, t->host_arg);
  status = enqueue(t, &c->order);
  if (!status) {
    uint64_t number = cla__stream_submitted(s);
    cla_lua_fillevent(e, c->out, s, number);
    status = record(t, s, number);
  }
  cla_lua_leave(L, &entry);
  return status ? cla_lua_fail(L, status) : 1;
}

/* ---- write_async, read_async ------------------------------------------------------------------- */

/* buf:write_async(h [, offset] [, options]) */
static int async(lua_State *L, bool is_write) {
  static const char *const known[] = {"size", "stream", "wait", NULL};
  cla_lua_checkbuffer(L, 1);
  cla_lua_checkhostbuffer(L, 2);
  if (lua_istable(L, 3)) {
    lua_settop(L, 3);
    lua_pushnil(L);
    lua_insert(L, 3);
  }
  lua_settop(L, 4);
  size_t offset = cla_lua_optsize(L, 3, "offset", 0);
  cla_lua_checkfields(L, 4, known);
  lua_event *e = cla_lua_newevent(L);
  transfer t = {.buffer = check_buffer(L, 1),
                .host = cla_lua_checkhostbuffer(L, 2),
                .host_arg = 2,
                .buffer_arg = 1,
                .buffer_offset = offset,
                .is_write = is_write};
  cla_lua_checkrange(L, 3, offset, 0, t.buffer->nbytes, "buffer");
  size_t rest = t.buffer->nbytes - offset;
  t.nbytes = rest < t.host->nbytes ? rest : t.host->nbytes;
  if (lua_istable(L, 4)) t.nbytes = cla_lua_fieldsize(L, 4, "size", t.nbytes);
  cla_lua_checkrange(L, 4, offset, t.nbytes, t.buffer->nbytes, "buffer");
  cla_lua_checkrange(L, 4, 0, t.nbytes, t.host->nbytes, "host buffer");
  lua_command c;
  check_ends(L, &t);
  cla_lua_command_async(L, 4, t.buffer->device, &c);
  check_ends(L, &t);
  return run_async(L, &t, &c, e);
}

int cla_lua_buffer_write_async(lua_State *L) { return async(L, true); }
int cla_lua_buffer_read_async(lua_State *L) { return async(L, false); }

/* ---- Copies ------------------------------------------------------------------------------------ */

static size_t rest(size_t offset, size_t size) { return offset < size ? size - offset : 0; }

/* The options of a copy that are about ranges: offset and source_offset, and size in place of the smaller rest. */
static size_t read_ranges(lua_State *L, size_t to, size_t from, size_t *offset, size_t *source_offset) {
  static const char *const known[] = {"offset", "source_offset", "size", "stream", "wait", "async", NULL};
  cla_lua_checkfields(L, 3, known);
  bool has_options = lua_istable(L, 3);
  *offset = has_options ? cla_lua_fieldsize(L, 3, "offset", 0) : 0;
  *source_offset = has_options ? cla_lua_fieldsize(L, 3, "source_offset", 0) : 0;
  size_t nbytes = rest(*offset, to), available = rest(*source_offset, from);
  if (available < nbytes) nbytes = available;
  if (has_options) nbytes = cla_lua_fieldsize(L, 3, "size", nbytes);
  cla_lua_checkrange(L, 3, *offset, nbytes, to, "destination");
  cla_lua_checkrange(L, 3, *source_offset, nbytes, from, "source");
  return nbytes;
}

static int copy_on_host(lua_State *L) {
  const lua_host_buffer *to = cla_lua_checkhostbuffer(L, 1), *from = cla_lua_checkhostbuffer(L, 2);
  size_t offset, source_offset, nbytes = read_ranges(L, to->nbytes, from->nbytes, &offset, &source_offset);
  if (lua_istable(L, 3) && cla_lua_fieldbool(L, 3, "async", false))
    cla_lua_badarg(L, 3, "async: no stream copies between two pieces of host memory");
  cla_lua_checkhostbuffer(L, 1); /* see check_ends */
  cla_lua_checkhostbuffer(L, 2);
  memmove((char *)to->memory + offset, (const char *)from->memory + source_offset, nbytes);
  return cla_lua_result(L, CLA_OK);
}

/* One of the two is a host buffer, or both are. */
int cla_lua_host_copy(lua_State *L) {
  bool is_write = !cla_lua_test(L, 1, CLA_LUA_HOST_BUFFER);
  lua_settop(L, 3);
  if (!is_write && cla_lua_test(L, 2, CLA_LUA_HOST_BUFFER)) return copy_on_host(L);
  int host_arg = is_write ? 2 : 1, buffer_arg = is_write ? 1 : 2;
  cla_lua_checkhostbuffer(L, host_arg);
  cla_lua_checkbuffer(L, buffer_arg);
  lua_event *e = cla_lua_newevent(L);
  transfer t = {.is_write = is_write, .host_arg = host_arg, .buffer_arg = buffer_arg};
  t.buffer = check_buffer(L, buffer_arg);
  t.host = cla_lua_checkhostbuffer(L, host_arg);
  size_t to = is_write ? t.buffer->nbytes : t.host->nbytes, from = is_write ? t.host->nbytes : t.buffer->nbytes;
  t.nbytes = read_ranges(L, to, from, is_write ? &t.buffer_offset : &t.host_offset,
                         is_write ? &t.host_offset : &t.buffer_offset);
  lua_command c;
  check_ends(L, &t);
  cla_lua_command(L, 3, t.buffer->device, &c);
  check_ends(L, &t);
  if (c.async) return run_async(L, &t, &c, e);
  return cla_lua_result(L, enqueue(&t, &c.order));
}
