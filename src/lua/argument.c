/* Lua values as kernel arguments: checked against the parameter, then converted, never cast blindly.
 *
 * Converts into the parameter's own room and calls no driver, so an error in the middle of a launch's arguments leaves nothing
 * to undo. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "lua/kernel.h"

/* ---- Errors ---------------------------------------------------------------------------------- */

int cla_lua_argerror(lua_State *L, const lua_kernel *k, unsigned i, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const char *message = lua_pushvfstring(L, format, args);
  va_end(args);
  const cla_arg *a = &k->args[i];
  return luaL_error(L, "%s: argument %d '%s' (%s): %s", k->name, (int)i + 1, a->name, a->declared, message);
}

const char *cla_lua_pushgiven(lua_State *L, int index) {
  index = lua_absindex(L, index);
  if (lua_type(L, index) == LUA_TNUMBER) return luaL_tolstring(L, index, NULL);
  if (luaL_getmetafield(L, index, "__name") == LUA_TSTRING) {
    const char *name = lua_tostring(L, -1);
    return strncmp(name, "clalloc.", 8) == 0 ? lua_pushstring(L, name + 8) : name;
  }
  return lua_pushstring(L, luaL_typename(L, index));
}

/* "argument 1 'v' (float4): element 2: number expected, got string"; element 0: of a scalar. */
static int refuse(lua_State *L, const lua_kernel *k, unsigned i, unsigned element, int index, const char *expected) {
  const char *given = cla_lua_pushgiven(L, index);
  if (!element) return cla_lua_argerror(L, k, i, "%s expected, got %s", expected, given);
  return cla_lua_argerror(L, k, i, "element %d: %s expected, got %s", (int)element, expected, given);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

/* To the nearest, ties to even; too large ones to infinity. */
static uint16_t half_of(double v) {
  const uint16_t sign = signbit(v) ? 0x8000 : 0;
  const double a = fabs(v);
  if (isnan(a)) return sign | 0x7e00;
  if (a >= 65520) return sign | 0x7c00;
  int exponent = 0;
  frexp(a, &exponent);
  const int e = exponent - 1 < -14 ? -14 : exponent - 1; /* the smallest normal one is 2^-14 */
  return (uint16_t)(sign | ((unsigned)lrint(ldexp(a, 10 - e)) + ((unsigned)(e + 14) << 10)));
}

static void put_float(size_t width, double v, unsigned char *out) {
  const float f = (float)v;
  const uint16_t h = width == 2 ? half_of(v) : 0;
  memcpy(out, width == 2 ? (const void *)&h : width == 4 ? (const void *)&f : (const void *)&v, width);
}

static int out_of_range(lua_State *L, const lua_kernel *k, unsigned i, unsigned element) {
  const cla_arg *a = &k->args[i];
  const int index = lua_gettop(L);
  const bool is_signed = a->kind == CLA_ARG_INT;
  if (a->element == 8 && !is_signed)
    return refuse(L, k, i, element, index, "0 to 2^64-1 (from 2^63 on as a float, or as string.pack('I8', v))");
  const unsigned bits = 8 * (unsigned)a->element - is_signed;
  const lua_Integer most = bits == 63 ? LUA_MAXINTEGER : ((lua_Integer)1 << bits) - 1;
  const char *range = lua_pushfstring(L, "%I to %I", is_signed ? -most - 1 : 0, most);
  return refuse(L, k, i, element, index, range);
}

static bool fits(lua_Integer v, bool is_signed, size_t width) {
  const unsigned bits = 8 * (unsigned)width - is_signed; /* of the magnitude */
  if (bits >= 63) return is_signed || v >= 0;
  return v >= (is_signed ? -((lua_Integer)1 << bits) : 0) && v < (lua_Integer)1 << bits;
}

/* The integer at the top. */
static void put_integer(lua_State *L, const lua_kernel *k, unsigned i, unsigned element, unsigned char *out) {
  const size_t width = k->args[i].element;
  const bool is_signed = k->args[i].kind == CLA_ARG_INT;
  int is_integer = 0;
  const lua_Integer v = lua_tointegerx(L, -1, &is_integer);
  uint64_t bits = (uint64_t)v;
  if (!is_integer) { /* a float: with a fraction, or beyond Lua's integers */
    const double f = lua_tonumber(L, -1);
    if (!isfinite(f) || f != floor(f)) refuse(L, k, i, element, -1, "integer");
    if (is_signed || width != 8 || f < 0 || f >= 0x1p64) out_of_range(L, k, i, element);
    bits = (uint64_t)f;
  } else if (!fits(v, is_signed, width)) out_of_range(L, k, i, element);
  switch (width) {
  case 1: *out = (unsigned char)bits; break;
  case 2: memcpy(out, &(uint16_t){(uint16_t)bits}, 2); break;
  case 4: memcpy(out, &(uint32_t){(uint32_t)bits}, 4); break;
  default: memcpy(out, &bits, 8); break;
  }
}

/* The number at the top. */
static void put_number(lua_State *L, const lua_kernel *k, unsigned i, unsigned element, unsigned char *out) {
  if (lua_type(L, -1) != LUA_TNUMBER) refuse(L, k, i, element, -1, "number");
  if (k->args[i].kind == CLA_ARG_FLOAT) put_float(k->args[i].element, lua_tonumber(L, -1), out);
  else put_integer(L, k, i, element, out);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* The driver keeps values: one it has already need not be sent again. */
static void take_value(cla_arg *a, const unsigned char *value) {
  if (a->is_set && memcmp(a->value, value, a->nbytes) == 0) return;
  memcpy(a->value, value, a->nbytes);
  a->is_set = false;
}

/* The bytes as they lie in memory: string.pack's work. A vector of three may come with its padding or without. */
static void take_bytes(lua_State *L, lua_kernel *k, unsigned i, unsigned char *value) {
  cla_arg *a = &k->args[i];
  size_t n = 0;
  const char *bytes = lua_tolstring(L, -1, &n);
  if (n != a->nbytes && n != a->lanes * a->element)
    cla_lua_argerror(L, k, i, "a string of %d bytes expected, got %I", (int)a->nbytes, (lua_Integer)n);
  memcpy(value, bytes, n);
  take_value(a, value);
}

static void take_scalar(lua_State *L, lua_kernel *k, unsigned i) {
  cla_arg *a = &k->args[i];
  unsigned char value[8] = {0};
  if (a->kind == CLA_ARG_UINT && a->element == 8 && lua_type(L, -1) == LUA_TSTRING && lua_rawlen(L, -1) == 8) {
    take_bytes(L, k, i, value);
    return;
  }
  if (a->kind == CLA_ARG_BOOL) {
    if (!lua_isboolean(L, -1)) refuse(L, k, i, 0, -1, "boolean");
    value[0] = (unsigned char)lua_toboolean(L, -1);
  } else put_number(L, k, i, 0, value);
  take_value(a, value);
}

static void take_vector(lua_State *L, lua_kernel *k, unsigned i) {
  cla_arg *a = &k->args[i];
  unsigned char value[CLA_ARG_MOST] = {0};
  const int type = lua_type(L, -1);
  if (type == LUA_TSTRING) {
    take_bytes(L, k, i, value);
    return;
  }
  if (type != LUA_TTABLE) {
    const int index = lua_gettop(L);
    refuse(L, k, i, 0, index, lua_pushfstring(L, "list of %d numbers", (int)a->lanes));
  }
  if (lua_rawlen(L, -1) != a->lanes)
    cla_lua_argerror(L, k, i, "%d numbers expected, got %I", (int)a->lanes, (lua_Integer)lua_rawlen(L, -1));
  for (unsigned n = 0; n < a->lanes; n++) {
    lua_rawgeti(L, -1, (lua_Integer)n + 1);
    put_number(L, k, i, n + 1, value + n * a->element);
    lua_pop(L, 1);
  }
  take_value(a, value);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* The userdata at the top if its metatable is the one given, else NULL. */
static void *userdata_of(lua_State *L, const void *type) {
  void *u = lua_touserdata(L, -1);
  if (!u || !lua_getmetatable(L, -1)) return NULL;
  const bool is_same = lua_topointer(L, -1) == type;
  lua_pop(L, 1);
  return is_same ? u : NULL;
}

static const char *push_owner(lua_State *L, const cla_device *d, bool shows_index) {
  if (!shows_index || d->info.index == SIZE_MAX) return lua_pushstring(L, d->info.name);
  return lua_pushfstring(L, "%s (device %d)", d->info.name, (int)d->info.index);
}

static void check_device(lua_State *L, lua_kernel *k, unsigned i, const cla_device *of, const char *what) {
  const cla_device *own = k->program->device;
  if (of == own) return;
  const bool is_same_name = strcmp(of->info.name, own->info.name) == 0;
  const char *theirs = push_owner(L, of, is_same_name), *ours = push_owner(L, own, is_same_name);
  cla_lua_argerror(L, k, i, "the %s belongs to %s, the kernel to %s", what, theirs, ours);
}

static void take_buffer(lua_State *L, lua_kernel *k, unsigned i) {
  cla_arg *a = &k->args[i];
  a->view = NULL;
  if (lua_isboolean(L, -1) && !lua_toboolean(L, -1)) return;
  const lua_buffer *b = userdata_of(L, k->buffer_type);
  if (!b) b = cla_lua_test(L, -1, CLA_LUA_BUFFER); /* a closed one has another metatable */
  if (!b) refuse(L, k, i, 0, -1, "buffer (or false for a null pointer)");
  else if (!b->share) cla_lua_argerror(L, k, i, "attempt to use a closed buffer");
  else check_device(L, k, i, b->device, "buffer");
  a->view = b;
}

static void take_heap(lua_State *L, lua_kernel *k, unsigned i) {
  cla_arg *a = &k->args[i];
  const lua_heap *h = cla_lua_test(L, -1, CLA_LUA_HEAP);
  const bool is_null = lua_isboolean(L, -1) && !lua_toboolean(L, -1);
  if (!h && !is_null) refuse(L, k, i, 0, -1, "the device's heap, dev.heap (or false for a null pointer)");
  else if (h && !h->heap) cla_lua_argerror(L, k, i, "attempt to use a closed heap");
  else if (h) check_device(L, k, i, h->share->device, "heap");
  a->is_given = h != NULL;
}

static void take_local(lua_State *L, lua_kernel *k, unsigned i) {
  cla_arg *a = &k->args[i];
  const lua_localmem *m = userdata_of(L, k->localmem_type);
  if (!m) {
    refuse(L, k, i, 0, -1, "cl.localmem(nbytes)");
  } else if (m->nbytes > k->program->device->info.local_mem) {
    cla_lua_argerror(L, k, i, "%I bytes of local memory, the device has %I", (lua_Integer)m->nbytes,
                     (lua_Integer)k->program->device->info.local_mem);
  } else {
    a->is_set = a->is_set && m->nbytes == a->local_nbytes;
    a->local_nbytes = m->nbytes;
  }
}

void cla_lua_argument(lua_State *L, lua_kernel *k, unsigned i) {
  cla_arg *a = &k->args[i];
  switch (a->kind) {
  case CLA_ARG_BUFFER: take_buffer(L, k, i); break;
  case CLA_ARG_LOCAL: take_local(L, k, i); break;
  case CLA_ARG_HEAP: take_heap(L, k, i); break;
  case CLA_ARG_BYTES:
    if (lua_type(L, -1) != LUA_TSTRING || lua_rawlen(L, -1) == 0)
      refuse(L, k, i, 0, -1, "a string with its bytes (string.pack)");
    a->bytes = lua_tolstring(L, -1, &a->bytes_size);
    if (a->nbytes && a->bytes_size != a->nbytes)
      cla_lua_argerror(L, k, i, "a string of %d bytes expected, got %I", (int)a->nbytes, (lua_Integer)a->bytes_size);
    break;
  case CLA_ARG_UNSUPPORTED: cla_lua_argerror(L, k, i, "images, samplers, pipes and queues are not supported"); break;
  default:
    if (a->lanes > 1) take_vector(L, k, i);
    else take_scalar(L, k, i);
  }
}
