/* Kernels: the fields that describe them, and the launch.
 *
 *   prog.saxpy{2.0, x, y, size = n}          -> event
 *   prog.saxpy:launch{2.0, x, y, size = n}   -> true: the same without an event, which takes less time
 *
 * The list part holds the arguments, exactly as many as the kernel has; what each parameter takes:
 *   integers, floats, bool   a number in the type's range (a float with an integral value too), a boolean
 *   vectors                  a list of numbers, or a string with the bytes; three lanes take the room of four
 *   global, constant         a buffer or a view of the kernel's device, or false for a null pointer: nil is
 *                            refused, it is more often a misspelt name than meant
 *   local                    cl.localmem(nbytes)
 *   CLA_HEAP                 the device's heap, or false; a hidden one is none of the arguments: the launch binds it
 *   structs, own type names  a string with the bytes (string.pack)
 * Options: size (the number of work-items, or a list of 1 to 3), group and offset (shaped like size), stream,
 * wait; for kernels with the heap heap_need (bytes that must be free) and heap_oom (what failed allocations do). A size of 0 does nothing, but the event comes all the same, after its waits. A launch does
 * not wait, and keeps what it uses until it is done, whatever is closed meanwhile.
 *
 * The order of a launch: everything that may raise, then pins, then driver calls, in which Lua has no part; so
 * nothing is held when an error leaves. */
#include <stdio.h>
#include <string.h>

#include "lua/kernel.h"

const char CLA_LUA_LOCALMEM[] = "clalloc.localmem";

static lua_kernel *check_kernel(lua_State *L, int arg) {
  lua_kernel *k = cla_lua_check(L, arg, CLA_LUA_KERNEL);
  cla_lua_checkopen(L, arg, k->kernel, "kernel");
  return k;
}

static const cla_driver *driver_of(const lua_kernel *k) { return k->program->device->driver; }

/* ---- Create and close ------------------------------------------------------------------------ */

void cla_lua_closekernel(lua_kernel *k) {
  if (!k->kernel) return;
  lua_kernel **link = &k->program->kernels;
  while (*link != k) link = &(*link)->next;
  *link = k->next;
  cla__release_kernel(driver_of(k), k->kernel);
  k->kernel = NULL;
}

static const void *type_of(lua_State *L, const char *name) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, name);
  const void *type = lua_topointer(L, -1);
  lua_pop(L, 1);
  return type;
}

/* The parameters that cla_heap_rewrite puts behind a kernel's own, by their names. */
static unsigned count_hidden(const lua_kernel *k) {
  const unsigned n = k->nargs;
  if (n && strcmp(k->args[n - 1].name, "cla__heap") == 0) return 1;
  if (n > 1 && strcmp(k->args[n - 1].name, "cla__site") == 0 && strcmp(k->args[n - 2].name, "cla__heap") == 0) return 2;
  return 0;
}

/* After the signature: hidden parameters are none of the arguments. */
static cla_status find_heap(lua_kernel *k) {
  bool takes_heap = false;
  for (unsigned i = 0; i < k->nargs; i++) takes_heap = takes_heap || k->args[i].kind == CLA_ARG_HEAP;
  k->nhidden = count_hidden(k);
  k->nargs -= k->nhidden;
  if (!takes_heap && !k->nhidden) return CLA_OK;
  uint32_t number = 0;
  cla_status status = cla_device_heap(k->program->device, &k->heap);
  if (!status && k->nhidden > 1) status = cla_heap_kernel_number(k->heap, k->name, &number);
  k->site = number << CLA_HEAP_LINE_BITS;
  return status;
}

void cla_lua_newkernel(lua_State *L, int program, const char *name) {
  lua_program *p = lua_touserdata(L, program);
  program = lua_absindex(L, program);
  lua_kernel *k = cla_lua_new(L, sizeof *k, CLA_LUA_KERNEL, 3);
  lua_pushvalue(L, program);
  lua_setiuservalue(L, -2, 1);
  k->name = lua_pushstring(L, name);
  lua_setiuservalue(L, -2, 3);
  k->buffer_type = type_of(L, CLA_LUA_BUFFER);
  k->localmem_type = type_of(L, CLA_LUA_LOCALMEM);
  cl_int err = CL_SUCCESS;
  k->kernel = cla__create_kernel(p->device->driver, p->program, k->name, &err);
  if (!k->kernel) {
    cla__driver_error(CLA_CALL_create_kernel, err);
    luaL_error(L, "kernel %s: %s", name, cla_last_error());
  }
  k->program = p;
  k->next = p->kernels;
  p->kernels = k;
  cla_status status = cla_lua_signature(L, k);
  if (!status) {
    err = cla__get_kernel_group_info(driver_of(k), k->kernel, p->device->id, CL_KERNEL_WORK_GROUP_SIZE,
                                     sizeof k->max_group, &k->max_group, NULL);
    if (err) status = cla__driver_error(CLA_CALL_get_kernel_group_info, err);
  }
  if (!status) status = find_heap(k);
  if (!status) {
    cla_lua_typedefs(L, k, program);
    return;
  }
  cla_lua_closekernel(k);
  luaL_error(L, "kernel %s: %s", name, cla_last_error());
}

/* ---- The range ---------------------------------------------------------------------------------- */

typedef struct launch {
  cl_uint dims, group_dims, offset_dims; /* 0: not given */
  size_t size[3], group[3], offset[3];
  cla_stream *stream;
  lua_Integer nargs; /* seen */
  bool has_wait;
  bool has_need, watches; /* heap_need; heap_oom = "error" */
  size_t need;
  bool is_empty; /* a size of 0 */
} launch;

static size_t range_number(lua_State *L, const lua_kernel *k, const char *option) {
  int is_integer = 0;
  const lua_Integer n = lua_type(L, -1) == LUA_TNUMBER ? lua_tointegerx(L, -1, &is_integer) : 0;
  if (!is_integer || n < 0)
    luaL_error(L, "%s: %s: a number of work-items or a list of 1 to 3 expected, got %s", k->name, option,
               cla_lua_pushgiven(L, -1));
  return (size_t)n;
}

/* The value at the top: 7, {7}, {7, 8}, {7, 8, 9}. */
static cl_uint read_range(lua_State *L, const lua_kernel *k, const char *option, size_t out[3]) {
  if (lua_type(L, -1) != LUA_TTABLE) {
    out[0] = range_number(L, k, option);
    return 1;
  }
  const size_t n = lua_rawlen(L, -1);
  if (n < 1 || n > 3)
    luaL_error(L, "%s: %s: a list of 1 to 3 numbers expected, got %I", k->name, option, (lua_Integer)n);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    out[i] = range_number(L, k, option);
    lua_pop(L, 1);
  }
  return (cl_uint)n;
}

/* The product, or SIZE_MAX when it is more than `most`. */
static size_t product(const size_t *n, cl_uint dims, size_t most) {
  size_t total = 1;
  for (cl_uint i = 0; i < dims; i++) {
    if (n[i] && total > most / n[i]) return SIZE_MAX;
    total *= n[i];
  }
  return total;
}

/* Pushes "8 x 4". */
static const char *push_range(lua_State *L, const size_t *n, cl_uint dims) {
  const char *text = lua_pushfstring(L, "%I", (lua_Integer)n[0]);
  for (cl_uint i = 1; i < dims; i++) text = lua_pushfstring(L, "%s x %I", text, (lua_Integer)n[i]);
  return text;
}

static void check_group(lua_State *L, const lua_kernel *k, const launch *w) {
  for (cl_uint i = 0; i < w->dims; i++)
    if (!w->group[i]) luaL_error(L, "%s: group: 0 work-items in dimension %d", k->name, (int)i + 1);
  if (product(w->group, w->dims, k->max_group) == SIZE_MAX)
    luaL_error(L, "%s: group of %s work-items, at most %I fit on %s", k->name, push_range(L, w->group, w->dims),
               (lua_Integer)k->max_group, k->program->device->info.name);
}

static void check_range(lua_State *L, const lua_kernel *k, launch *w) {
  if (!w->dims) luaL_error(L, "%s: size expected: the number of work-items, as in {..., size = n}", k->name);
  if (w->group_dims && w->group_dims != w->dims)
    luaL_error(L, "%s: group has %d dimensions, size has %d", k->name, (int)w->group_dims, (int)w->dims);
  if (w->offset_dims && w->offset_dims != w->dims)
    luaL_error(L, "%s: offset has %d dimensions, size has %d", k->name, (int)w->offset_dims, (int)w->dims);
  if (w->group_dims) check_group(L, k, w);
  for (cl_uint i = 0; i < w->dims; i++) w->is_empty = w->is_empty || w->size[i] == 0;
  if (!w->is_empty && product(w->size, w->dims, LUA_MAXINTEGER) == SIZE_MAX)
    luaL_error(L, "%s: size: %s work-items", k->name, push_range(L, w->size, w->dims));
}

/* ---- Arguments and options ------------------------------------------------------------------------ */

static int count_error(lua_State *L, const lua_kernel *k, lua_Integer given) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (unsigned i = 0; i < k->nargs; i++) {
    luaL_addstring(&b, i ? ", " : " (");
    luaL_addstring(&b, k->args[i].name);
  }
  if (k->nargs) luaL_addchar(&b, ')');
  luaL_pushresult(&b);
  return luaL_error(L, "%s: %d argument%s expected%s, got %I", k->name, (int)k->nargs, k->nargs == 1 ? "" : "s",
                    lua_tostring(L, -1), given);
}

/* The list part is not 1 to nargs: says whether arguments are missing, too many, or nil in the middle. */
static int list_error(lua_State *L, const lua_kernel *k) {
  lua_Integer last = 0;
  for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1))
    if (lua_isinteger(L, -2) && lua_tointeger(L, -2) > last) last = lua_tointeger(L, -2);
  for (lua_Integer i = 1; i <= last && i <= k->nargs; i++)
    if (lua_rawgeti(L, 2, i) == LUA_TNIL)
      return cla_lua_argerror(L, k, (unsigned)i - 1, "got nil%s",
                              k->args[i - 1].kind == CLA_ARG_BUFFER ? " (false is the null pointer)" : "");
    else lua_pop(L, 1);
  return count_error(L, k, last);
}

static cla_stream *read_stream(lua_State *L, const lua_kernel *k) {
  const lua_stream *s = cla_lua_test(L, -1, CLA_LUA_STREAM);
  if (!s) luaL_error(L, "%s: stream: a stream expected, got %s", k->name, cla_lua_pushgiven(L, -1));
  else if (!s->stream) luaL_error(L, "%s: stream: attempt to use a closed stream", k->name);
  else if (s->stream->device != k->program->device)
    luaL_error(L, "%s: stream: it belongs to %s, the kernel to %s", k->name, s->stream->device->info.name,
               k->program->device->info.name);
  else return s->stream;
  return NULL;
}

static bool is_key(const char *key, size_t n, const char *name) {
  return strlen(name) == n && memcmp(key, name, n) == 0;
}

static void read_oom(lua_State *L, const lua_kernel *k, launch *w) {
  size_t n = 0;
  const char *choice = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : "";
  w->watches = is_key(choice, n, "error");
  if (!w->watches && !is_key(choice, n, "count"))
    luaL_error(L, "%s: heap_oom: \"error\" or \"count\" expected, got %s", k->name,
               *choice ? choice : cla_lua_pushgiven(L, -1));
}

static void read_need(lua_State *L, const lua_kernel *k, launch *w) {
  int is_integer = 0;
  const lua_Integer n = lua_type(L, -1) == LUA_TNUMBER ? lua_tointegerx(L, -1, &is_integer) : 0;
  if (!is_integer || n < 0)
    luaL_error(L, "%s: heap_need: a number of bytes expected, got %s", k->name, cla_lua_pushgiven(L, -1));
  w->has_need = true;
  w->need = (size_t)n;
}

static void check_heap(lua_State *L, const lua_kernel *k, const char *option) {
  if (!k->heap) luaL_error(L, "%s: %s: the kernel does not use the heap", k->name, option);
}

/* Key and value are at the top. */
static void read_option(lua_State *L, const lua_kernel *k, launch *w) {
  size_t n = 0;
  const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tolstring(L, -2, &n) : "";
  if (is_key(key, n, "size")) w->dims = read_range(L, k, "size", w->size);
  else if (is_key(key, n, "group")) w->group_dims = read_range(L, k, "group", w->group);
  else if (is_key(key, n, "offset")) w->offset_dims = read_range(L, k, "offset", w->offset);
  else if (is_key(key, n, "stream")) w->stream = read_stream(L, k);
  else if (is_key(key, n, "wait")) w->has_wait = true;
  else if (is_key(key, n, "heap_need")) check_heap(L, k, "heap_need"), read_need(L, k, w);
  else if (is_key(key, n, "heap_oom")) check_heap(L, k, "heap_oom"), read_oom(L, k, w);
  else if (!is_key(key, n, "async"))
    luaL_error(L, "%s: unknown option '%s'; known are size, group, offset, stream, wait, heap_need, heap_oom", k->name,
               luaL_tolstring(L, -2, NULL));
  else if (!lua_isboolean(L, -1) || !lua_toboolean(L, -1))
    luaL_error(L, "%s: a launch is always asynchronous: wait for its event", k->name);
}

/* The table at 2, in one pass: raw access, so that no Lua code runs between two arguments. */
static void read_table(lua_State *L, lua_kernel *k, launch *w) {
  *w = (launch){0};
  k->readings++;
  if (lua_rawlen(L, 2) != k->nargs) list_error(L, k);
  for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
    const lua_Integer i = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
    if (i < 1) read_option(L, k, w);
    else if (i > k->nargs) list_error(L, k);
    else {
      cla_lua_argument(L, k, (unsigned)i - 1);
      w->nargs++;
    }
  }
  if (w->nargs != k->nargs) list_error(L, k);
  check_range(L, k, w);
}

/* ---- Pins and the driver's arguments ---------------------------------------------------------------- */

static void unpin(lua_kernel *k, unsigned npins, cla_stream *s, uint64_t number) {
  while (npins) cla__unpin(&k->pins[--npins], s, number);
}

/* Puts the kernel and the argument before the message of what just failed. */
static cla_status blame(const lua_kernel *k, unsigned i, cla_status status) {
  return cla__error(status, "%s: argument %u '%s' (%s): %s", k->name, i + 1, k->args[i].name, k->args[i].declared,
                    cla_last_error());
}

static cla_status pin_all(lua_kernel *k, unsigned *npins) {
  *npins = 0;
  for (unsigned i = 0; i < k->nargs; i++) {
    const cla_arg *a = &k->args[i];
    if (a->kind != CLA_ARG_BUFFER || !a->view) continue;
    /* An empty view has no byte to begin at: the allocation stands in for it. */
    const size_t offset = a->view->nbytes ? a->view->offset : 0;
    const cla_status status = cla__pin(&a->view->handle, offset, a->view->nbytes, true, &k->pins[*npins]);
    if (status) return blame(k, i, status);
    (*npins)++;
  }
  return CLA_OK;
}

static cla_status set_error(const lua_kernel *k, unsigned i, cl_int code) {
  const cla_arg *a = &k->args[i];
  if (a->kind == CLA_ARG_BYTES && code == CL_INVALID_ARG_SIZE) {
    cla__error(CLA_E_INVALID, "the kernel's type has another size than %zu bytes", a->bytes_size);
    return blame(k, i, CLA_E_INVALID);
  }
  return blame(k, i, cla__driver_error(CLA_CALL_set_kernel_arg, code));
}

/* The parameters that the launch binds itself. */
static cla_status set_hidden(const lua_kernel *k, cl_mem heap) {
  cl_int err = CL_SUCCESS;
  if (k->nhidden > 0) err = cla__set_kernel_arg(driver_of(k), k->kernel, k->nargs, sizeof heap, &heap);
  if (k->nhidden > 1 && !err)
    err = cla__set_kernel_arg(driver_of(k), k->kernel, k->nargs + 1, sizeof k->site, &k->site);
  if (!err) return CLA_OK;
  const cla_status status = cla__driver_error(CLA_CALL_set_kernel_arg, err);
  return cla__error(status, "%s: the heap: %s", k->name, cla_last_error());
}

/* Memory is set each time: a handle equal to the last one's may belong to another object by now. */
static cla_status set_all(lua_kernel *k, cl_mem heap) {
  unsigned pin = 0;
  for (unsigned i = 0; i < k->nargs; i++) {
    cla_arg *a = &k->args[i];
    if (a->is_set) continue;
    size_t size = a->nbytes;
    const void *value = a->value;
    cl_mem none = NULL;
    if (a->kind == CLA_ARG_BUFFER) size = sizeof(cl_mem), value = a->view ? &k->pins[pin++].mem : &none;
    else if (a->kind == CLA_ARG_HEAP) size = sizeof(cl_mem), value = a->is_given ? &heap : &none;
    else if (a->kind == CLA_ARG_LOCAL) size = a->local_nbytes, value = NULL;
    else if (a->kind == CLA_ARG_BYTES) size = a->bytes_size, value = a->bytes;
    const cl_int err = cla__set_kernel_arg(driver_of(k), k->kernel, i, size, value);
    if (err) return set_error(k, i, err);
    a->is_set = a->kind != CLA_ARG_BUFFER && a->kind != CLA_ARG_HEAP && a->kind != CLA_ARG_BYTES;
  }
  return set_hidden(k, heap);
}

/* ---- The launch --------------------------------------------------------------------------------------- */

/* What a range or an argument that the kernel cannot take looks like from outside. */
static bool is_misuse(cl_int code) {
  return code == CL_INVALID_WORK_GROUP_SIZE || code == CL_INVALID_WORK_ITEM_SIZE ||
         code == CL_INVALID_GLOBAL_WORK_SIZE || code == CL_INVALID_GLOBAL_OFFSET || code == CL_INVALID_KERNEL_ARGS ||
         code == CL_INVALID_ARG_SIZE;
}

static const cla_pin *largest(const lua_kernel *k, unsigned npins) {
  const cla_pin *most = &k->pins[0];
  for (unsigned i = 1; i < npins; i++)
    if (k->pins[i].handle.block->requested > most->handle.block->requested) most = &k->pins[i];
  return most;
}

static cla_status launch_error(const lua_kernel *k, const launch *w, unsigned npins, cl_int code) {
  if (w->is_empty) return cla__driver_error(CLA_CALL_enqueue_marker, code);
  const cla_status status = npins ? cla__enqueue_failed(largest(k, npins), CLA_CALL_enqueue_kernel, code)
                                  : cla__driver_error(CLA_CALL_enqueue_kernel, code);
  if (!is_misuse(code)) return cla__error(status, "%s: %s", k->name, cla_last_error());
  size_t wanted[3] = {0}; /* by an attribute of the kernel's */
  char must[96] = "";
  cla__get_kernel_group_info(driver_of(k), k->kernel, k->program->device->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                             sizeof wanted, wanted, NULL);
  if (wanted[0])
    snprintf(must, sizeof must, "; its source asks for groups of %zu x %zu x %zu", wanted[0], wanted[1], wanted[2]);
  return cla__error(CLA_E_INVALID,
                    "%s: %s: size %zu x %zu x %zu, group %zu x %zu x %zu (0: the driver's choice), at most %zu "
                    "work-items in a group%s",
                    k->name, cla_last_error(), w->size[0], w->dims > 1 ? w->size[1] : 1, w->dims > 2 ? w->size[2] : 1,
                    w->group[0], w->group[1], w->group[2], k->max_group, must);
}

/* Pins are taken, arguments set: on to the stream. `event` may be NULL: none is wanted. */
static cla_status enqueue(lua_kernel *k, const launch *w, const cla_order *o, unsigned npins, cl_event *event) {
  const cla_driver *driver = driver_of(k);
  cl_command_queue queue = o->stream->queue;
  const cl_event *wait = o->nwait ? o->wait : NULL;
  cla__stream_before(o->stream);
  const cl_int err = w->is_empty
                         ? cla__enqueue_marker(driver, queue, o->nwait, wait, event)
                         : cla__enqueue_kernel(driver, queue, k->kernel, w->dims, w->offset_dims ? w->offset : NULL,
                                               w->size, w->group_dims ? w->group : NULL, o->nwait, wait, event);
  return err ? launch_error(k, w, npins, err) : CLA_OK;
}

/* The kernel is on its way, whatever becomes of the watch: that is said when somebody waits. Gives the last number. */
static uint64_t submitted(lua_kernel *k, const cla_order *o, cl_event event, lua_event *out) {
  uint64_t number = cla__stream_after(o->stream);
  if (!out) return number;
  cla_lua_fillevent(out, event, o->stream, number);
  if (!out->watch) return number;
  out->watch->is_lost = cla__heap_watch_after(k->heap, o->stream, out->watch) != CLA_OK;
  return out->watch->number > number ? out->watch->number : number;
}

/* Inside the heap, if it is used. */
static cla_status run_inside(lua_kernel *k, const launch *w, const cla_order *o, unsigned npins, cl_mem heap,
                             lua_event *out, uint64_t *number) {
  cl_event event = NULL;
  cla_status status = set_all(k, heap);
  if (!status && out && out->watch) status = cla__heap_watch_before(k->heap, o->stream, out->watch);
  if (!status) status = enqueue(k, w, o, npins, out ? &event : NULL);
  if (!status) *number = submitted(k, o, event, out);
  return status;
}

static bool uses_heap(const lua_kernel *k, const launch *w) {
  if (!k->heap || w->is_empty) return false;
  bool is_used = k->nhidden > 0;
  for (unsigned i = 0; i < k->nargs && !is_used; i++) is_used = k->args[i].kind == CLA_ARG_HEAP && k->args[i].is_given;
  return is_used;
}

/* `out` NULL: no event is made. */
static cla_status run(lua_kernel *k, const launch *w, const cla_order *o, lua_event *out) {
  unsigned npins = 0;
  uint64_t number = 0;
  cl_mem heap = NULL;
  const bool has_heap = uses_heap(k, w), alone = out && out->watch;
  cla_status status = pin_all(k, &npins);
  if (!status && has_heap) {
    status = cla__heap_enter(k->heap, o->stream, alone, &heap);
    if (status) cla__error(status, "%s: %s", k->name, cla_last_error());
  }
  if (!status) status = run_inside(k, w, o, npins, heap, out, &number);
  if (heap) cla__heap_leave(k->heap, o->stream, alone, number);
  unpin(k, npins, o->stream, number);
  if (!status) cla__flush(driver_of(k), o->stream->queue);
  return status;
}

/* The event is closed, and stays so if the launch fails. */
static void add_watch(lua_State *L, const lua_kernel *k, const launch *w, lua_event *event) {
  if (!w->watches) return;
  if (!event) luaL_error(L, "%s: heap_oom: \"error\" is what the event raises, and launch makes none", k->name);
  if (!event || !uses_heap(k, w)) return;
  event->watch = cla__heap_watch_new(k->name);
  if (!event->watch) luaL_error(L, "%s: not enough memory", k->name);
}

static int failed_launch(lua_State *L, cla_status status) {
  const bool is_environment =
      status == CLA_E_NOMEM || status == CLA_E_DRIVER || status == CLA_E_LIMIT || status == CLA_E_TOO_LARGE;
  if (is_environment) return cla_lua_pushfail(L, status);
  return luaL_error(L, "%s", cla_last_error()); /* it begins with the kernel's name */
}

static cla_status check_need(const lua_kernel *k, const launch *w) {
  if (!w->has_need) return CLA_OK;
  const cla_status status = cla__heap_need(k->heap, w->need);
  return status ? cla__error(status, "%s: %s", k->name, cla_last_error()) : CLA_OK;
}

/* Lists of events may have metamethods, and those may launch this kernel: then its arguments are read again. */
static void read_wait(lua_State *L, lua_kernel *k, launch *w, lua_command *c) {
  const uint64_t reading = k->readings;
  lua_pushvalue(L, 1);
  lua_pushliteral(L, "wait");
  lua_rawget(L, 2);
  lua_replace(L, 1); /* where messages say it is */
  cla_lua_waits(L, 1, k->program->device, c->order.stream, c);
  cla_lua_checkopen(L, 1, k->kernel, "kernel");
  if (k->readings != reading) read_table(L, k, w);
}

/* Pushes the event, or true. */
static int launch_kernel(lua_State *L, bool wants_event) {
  lua_kernel *k = check_kernel(L, 1);
  if (lua_type(L, 2) != LUA_TTABLE)
    return luaL_error(L, "%s: a table of arguments expected, as in {..., size = n}, got %s", k->name,
                      cla_lua_pushgiven(L, 2));
  lua_settop(L, 2);
  lua_event *event = NULL;
  if (wants_event) event = cla_lua_newevent(L); /* may collect garbage: before all else */
  else lua_pushboolean(L, 1);
  cla_lua_checkopen(L, 1, k->kernel, "kernel");
  launch w;
  lua_command c;
  read_table(L, k, &w);
  c.async = true;
  c.order = (cla_order){.stream = w.stream};
  if (!w.stream) c.order.stream = cla_lua_currentstream(L, k->program->device);
  if (w.has_wait) read_wait(L, k, &w, &c);
  cla_status status = check_need(k, &w);
  if (status) return failed_launch(L, status);
  add_watch(L, k, &w, event);
  status = run(k, &w, &c.order, event);
  if (status && event) {
    cla__heap_watch_free(event->watch, c.order.stream);
    event->watch = NULL;
  }
  if (status) return failed_launch(L, status);
  lua_settop(L, 3);
  return 1;
}

static int kernel_call(lua_State *L) { return launch_kernel(L, true); }

static int kernel_launch(lua_State *L) { return launch_kernel(L, false); }

/* ---- Fields --------------------------------------------------------------------------------------------- */

static int kernel_name(lua_State *L) {
  lua_pushstring(L, check_kernel(L, 1)->name);
  return 1;
}

static int kernel_args(lua_State *L) {
  cla_lua_pushargs(L, check_kernel(L, 1));
  return 1;
}

static int kernel_max_group(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check_kernel(L, 1)->max_group);
  return 1;
}

static int push_group_info(lua_State *L, cl_kernel_work_group_info what) {
  const lua_kernel *k = check_kernel(L, 1);
  uint64_t n = 0; /* size_t or cl_ulong: the same here */
  const cl_int err =
      cla__get_kernel_group_info(driver_of(k), k->kernel, k->program->device->id, what, sizeof n, &n, NULL);
  if (err) {
    cla__driver_error(CLA_CALL_get_kernel_group_info, err);
    return luaL_error(L, "kernel %s: %s", k->name, cla_last_error());
  }
  lua_pushinteger(L, (lua_Integer)n);
  return 1;
}

static int kernel_preferred_multiple(lua_State *L) {
  return push_group_info(L, CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE);
}

static int kernel_local_mem(lua_State *L) { return push_group_info(L, CL_KERNEL_LOCAL_MEM_SIZE); }

static int kernel_close(lua_State *L) {
  cla_lua_closekernel(cla_lua_check(L, 1, CLA_LUA_KERNEL));
  return 0;
}

static int kernel_tostring(lua_State *L) {
  const lua_kernel *k = cla_lua_check(L, 1, CLA_LUA_KERNEL);
  if (k->kernel) cla_lua_pushsignature(L, k);
  else lua_pushliteral(L, "kernel (closed)");
  return 1;
}

/* ---- Local memory ----------------------------------------------------------------------------------------- */

int cla_lua_localmem(lua_State *L) {
  const size_t nbytes = cla_lua_checksize(L, 1, "nbytes");
  luaL_argcheck(L, nbytes > 0, 1, "nbytes: 0; OpenCL has no empty local memory");
  lua_localmem *m = cla_lua_new(L, sizeof *m, CLA_LUA_LOCALMEM, 0);
  m->nbytes = nbytes;
  return 1;
}

static int localmem_size(lua_State *L) {
  const lua_localmem *m = cla_lua_check(L, 1, CLA_LUA_LOCALMEM);
  lua_pushinteger(L, (lua_Integer)m->nbytes);
  return 1;
}

static int localmem_tostring(lua_State *L) {
  const lua_localmem *m = cla_lua_check(L, 1, CLA_LUA_LOCALMEM);
  lua_pushfstring(L, "localmem (%I bytes)", (lua_Integer)m->nbytes);
  return 1;
}

static const luaL_Reg methods[] = {{"launch", kernel_launch}, {"close", kernel_close}, {NULL, NULL}};

static const luaL_Reg properties[] = {
    {"name", kernel_name},           {"args", kernel_args},
    {"max_group", kernel_max_group}, {"preferred_multiple", kernel_preferred_multiple},
    {"local_mem", kernel_local_mem}, {NULL, NULL}};

static const luaL_Reg meta[] = {{"__call", kernel_call},
                                {"__close", kernel_close},
                                {"__gc", kernel_close},
                                {"__tostring", kernel_tostring},
                                {NULL, NULL}};

static const luaL_Reg localmem_methods[] = {{NULL, NULL}};
static const luaL_Reg localmem_properties[] = {{"size", localmem_size}, {NULL, NULL}};
static const luaL_Reg localmem_meta[] = {{"__tostring", localmem_tostring}, {NULL, NULL}};

void cla_lua_open_kernel(lua_State *L) {
  cla_lua_newtype(L, CLA_LUA_KERNEL, methods, properties, meta);
  cla_lua_newtype(L, CLA_LUA_LOCALMEM, localmem_methods, localmem_properties, localmem_meta);
}
