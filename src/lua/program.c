/* Programs: source to kernels, built once.
 *
 *   dev:program(source [, {options = "...", defines = {N = 4}, heap = true}])
 *
 * A state keeps a weak table of its programs: the same source and options on the same device give the object that is
 * there already, so closing it closes it for all who asked for it. A program is always built with
 * -cl-kernel-arg-info, which kernels check their arguments by. Defines become lines before the source, so values may
 * hold blanks and quotes, and line numbers in the log stay those of the source.
 *
 * With `heap` the defines and the source are rewritten together (cla_heap_rewrite), and the heap's text comes in front;
 * `#line` keeps the numbers. Kernels know hidden parameters by their names.
 *
 * prog.NAME is the kernel of that name, made on first use and kept while the program is open. Kernels come before methods: a
 * kernel called `close` or `kernels` hides the method; <close> works all the same.
 *
 * A source that does not build is misuse and raises with the log; a driver without memory is not: nil, message, code. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "lua/kernel.h"

static char cache_key; /* in the registry: key of a build -> program, values weak */

/* ---- Close ----------------------------------------------------------------------------------- */

static void close_program(lua_program *p) {
  if (!p->device) return;
  cla_device *d = p->device;
  while (p->kernels) cla_lua_closekernel(p->kernels);
  if (p->program) cla__release_program(d->driver, p->program);
  p->program = NULL;
  p->device = NULL;
  cla_device_release(d);
}

static int program_close(lua_State *L) {
  close_program(cla_lua_check(L, 1, CLA_LUA_PROGRAM));
  return 0;
}

static lua_program *check_program(lua_State *L, int arg) {
  lua_program *p = cla_lua_check(L, arg, CLA_LUA_PROGRAM);
  cla_lua_checkopen(L, arg, p->program, "program");
  return p;
}

/* ---- Building: what the compiler gets -------------------------------------------------------- */

/* Sorts the list of strings at the top, by bytes as far as the locale lets Lua do so. */
static void sort_strings(lua_State *L) {
  const lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  for (lua_Integer i = 2; i <= n; i++) {
    lua_rawgeti(L, -1, i);
    lua_Integer at = i;
    for (; at > 1; at--) {
      lua_rawgeti(L, -2, at - 1);
      if (!lua_compare(L, -2, -1, LUA_OPLT)) {
        lua_pop(L, 1);
        break;
      }
      lua_rawseti(L, -3, at);
    }
    lua_rawseti(L, -2, at);
  }
}

static const char *check_text(lua_State *L, int index, const char *what) {
  size_t n = 0;
  if (lua_type(L, index) != LUA_TSTRING)
    luaL_error(L, "program: %s: string expected, got %s", what, cla_lua_pushgiven(L, index));
  const char *text = lua_tolstring(L, index, &n);
  if (strlen(text) != n) luaL_error(L, "program: %s: a zero byte at position %d", what, (int)strlen(text) + 1);
  return text;
}

/* NAME or NAME(parameters) */
static bool is_macro(const char *name) {
  if (!isalpha((unsigned char)*name) && *name != '_') return false;
  while (isalnum((unsigned char)*name) || *name == '_') name++;
  const size_t n = strlen(name);
  return n == 0 || (name[0] == '(' && name[n - 1] == ')' && !strpbrk(name, "\r\n"));
}

/* Pushes what name stands for; the value is at the top. NULL: nothing, it is false. */
static const char *push_definition(lua_State *L, const char *name) {
  switch (lua_type(L, -1)) {
  case LUA_TBOOLEAN: return lua_toboolean(L, -1) ? lua_pushliteral(L, "1") : NULL;
  case LUA_TNUMBER: {
    char text[64];
    const double v = lua_tonumber(L, -1);
    if (lua_isinteger(L, -1)) return luaL_tolstring(L, -1, NULL);
    if (v - v != 0) luaL_error(L, "program: defines.%s: %f cannot be written in OpenCL C", name, v);
    snprintf(text, sizeof text, "%.17g", v);
    return lua_pushfstring(L, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
  }
  case LUA_TSTRING: {
    const int value = lua_gettop(L);
    const char *text = check_text(L, value, lua_pushfstring(L, "defines.%s", name));
    if (strpbrk(text, "\r\n")) luaL_error(L, "program: defines.%s: a line break", name);
    return text;
  }
  default:
    luaL_error(L, "program: defines.%s: number, string or boolean expected, got %s", name, cla_lua_pushgiven(L, -1));
    return NULL;
  }
}

/* Pushes the lines for the table of defines at `index`, by name, so that equal tables give equal text. */
static void push_defines(lua_State *L, int index) {
  lua_newtable(L);
  const int names = lua_gettop(L);
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING || !is_macro(check_text(L, -2, "defines")))
      luaL_error(L, "program: defines: '%s' is no name of a macro", luaL_tolstring(L, -2, NULL));
    lua_pushvalue(L, -2);
    lua_rawseti(L, names, (lua_Integer)lua_rawlen(L, names) + 1);
  }
  sort_strings(L);
  lua_pushliteral(L, "");
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, names); i++) {
    const int lines = lua_gettop(L);
    lua_rawgeti(L, names, i);
    const char *name = lua_tostring(L, -1);
    lua_pushvalue(L, -1);
    lua_rawget(L, index);
    const char *definition = push_definition(L, name);
    if (definition) lua_pushfstring(L, "%s#define %s %s\n", lua_tostring(L, lines), name, definition);
    else lua_pushvalue(L, lines);
    lua_replace(L, lines);
    lua_settop(L, lines);
  }
  lua_remove(L, names);
}

/* Some editors begin a file with a byte order mark, which compilers take at the beginning only. */
static const char *skip_mark(const char *source) {
  return strncmp(source, "\xef\xbb\xbf", 3) == 0 ? source + 3 : source;
}

static size_t count_lines(const char *text) {
  size_t n = 0;
  for (; *text; text++) n += *text == '\n';
  return n;
}

/* Puts source and options for the compiler in the place of arguments 2 and 3. How many lines it put before the source. */
static size_t read_input(lua_State *L) {
  static const char *const known[] = {"options", "defines", "heap", NULL};
  lua_settop(L, 3);
  const char *options = "", *source = skip_mark(check_text(L, 2, "source"));
  lua_pushliteral(L, "");
  if (lua_type(L, 3) == LUA_TTABLE) {
    cla_lua_checkfields(L, 3, known);
    if (cla_lua_field(L, 3, "defines") == LUA_TTABLE) {
      push_defines(L, lua_gettop(L));
      if (lua_rawlen(L, -1)) lua_pushfstring(L, "%s#line 1\n", lua_tostring(L, -1));
      lua_replace(L, 4);
    } else if (!lua_isnil(L, -1)) {
      luaL_error(L, "program: defines: table expected, got %s", cla_lua_pushgiven(L, -1));
    }
    lua_settop(L, 4);
    if (cla_lua_field(L, 3, "options") != LUA_TNIL) options = check_text(L, -1, "options");
    lua_remove(L, 3); /* keeps options on the stack */
  } else {
    if (!lua_isnil(L, 3)) options = check_text(L, 3, "options");
    lua_insert(L, 3);
  }
  /* device, source, defines, options */
  const size_t nlines_before = count_lines(lua_tostring(L, 3));
  lua_pushfstring(L, "%s%s", lua_tostring(L, 3), source);
  lua_pushfstring(L, "%s%s-cl-kernel-arg-info", options, *options ? " " : "");
  lua_replace(L, 4);
  lua_replace(L, 3);
  lua_remove(L, 2);
  return nlines_before;
}

/* ---- malloc in kernels ------------------------------------------------------------------------ */

typedef enum heap_mode { HEAP_NONE, HEAP, HEAP_SITES } heap_mode;

/* Option `heap`. Whether sites are passed follows the heap's setting at this time. */
static heap_mode read_heap(lua_State *L, cla_device *d) {
  if (lua_type(L, 3) != LUA_TTABLE || !cla_lua_fieldbool(L, 3, "heap", false)) return HEAP_NONE;
  cla_heap *h = NULL;
  if (cla_device_heap(d, &h)) cla_lua_raise(L);
  return cla_heap_sites(h) ? HEAP_SITES : HEAP;
}

static int rewritten_gc(lua_State *L) {
  cla_heap_rewritten *r = lua_touserdata(L, 1);
  cla_heap_rewritten_free(r);
  *r = (cla_heap_rewritten){0};
  return 0;
}

/* Stack: device, source, options, ... The source with the heap in it takes the place of the source. */
static void rewrite(lua_State *L, const cla_device *d, heap_mode mode, cla_lua_input *input) {
  cla_heap_rewritten *r = cla_lua_newbox(L, sizeof(cla_heap_rewritten), rewritten_gc);
  const int box = lua_gettop(L);
  if (cla_heap_rewrite(lua_tostring(L, 2), mode == HEAP_SITES ? CLA_HEAP_WITH_SITES : 0, r))
    luaL_error(L, "program: %s", cla_last_error());
  if (r->needs_library) {
    lua_pushfstring(L, "%s\n#line 1\n%s", cla_heap_source(), r->text);
    input->nlines_before += count_lines(cla_heap_source()) + 2;
    lua_replace(L, 2);
    const char *options = lua_tostring(L, 3);
    const bool limits_registers = strstr(options, "-cl-nv-maxrregcount") != NULL; /* the script knows better */
    lua_pushfstring(L, "%s%s", options, limits_registers ? "" : cla_heap_build_options(d));
    lua_replace(L, 3);
  }
  input->is_rewritten = r->is_changed;
  lua_pushcfunction(L, rewritten_gc);
  lua_insert(L, box);
  lua_call(L, 1, 0);
}

/* ---- Building -------------------------------------------------------------------------------- */

static bool is_fault_of_source(cl_int code) {
  return code == CL_BUILD_PROGRAM_FAILURE || code == CL_INVALID_BUILD_OPTIONS || code == CL_COMPILE_PROGRAM_FAILURE ||
         code == CL_LINK_PROGRAM_FAILURE;
}

static int build_failed(lua_State *L, lua_program *p, const char *options, cla_lua_input input, cl_int code) {
  if (!is_fault_of_source(code) || cla__driver_forbidden()) {
    const cla_status status = cla__driver_error(CLA_CALL_build_program, code);
    close_program(p);
    return cla_lua_fail(L, status);
  }
  cla_lua_pushlog(L, p, &input);
  if (lua_rawlen(L, -1) == 0) lua_pushfstring(L, "%s (%d)", cla__cl_name(code), (int)code);
  const char *device = lua_pushstring(L, p->device->info.name);
  close_program(p);
  if (code == CL_INVALID_BUILD_OPTIONS)
    return luaL_error(L, "program: %s refuses the options '%s':\n%s", device, options, lua_tostring(L, -2));
  return luaL_error(L, "program: the source does not build for %s:\n%s", device, lua_tostring(L, -2));
}

/* Pushes "a;b;c". Asked for the names of a program without kernels, NVIDIA's driver (580) crashes. */
static cl_int push_kernel_names(lua_State *L, const lua_program *p) {
  const cla_driver *driver = p->device->driver;
  size_t n = 0, nkernels = 0;
  luaL_Buffer b;
  cl_int err = cla__get_program_info(driver, p->program, CL_PROGRAM_NUM_KERNELS, sizeof nkernels, &nkernels, NULL);
  if (!err && nkernels) err = cla__get_program_info(driver, p->program, CL_PROGRAM_KERNEL_NAMES, 0, NULL, &n);
  char *names = luaL_buffinitsize(L, &b, n + 1);
  memset(names, 0, n + 1);
  if (!err && n) err = cla__get_program_info(driver, p->program, CL_PROGRAM_KERNEL_NAMES, n, names, NULL);
  luaL_pushresultsize(&b, strlen(names));
  return err;
}

/* The user values of the program at the top: drivers differ in the order of names, so they are sorted. */
static cla_status list_kernels(lua_State *L, const lua_program *p) {
  const int program = lua_gettop(L);
  const cl_int err = push_kernel_names(L, p);
  lua_newtable(L);
  lua_newtable(L);
  for (const char *name = lua_tostring(L, program + 1); *name;) {
    const size_t n = strcspn(name, ";");
    if (n) {
      lua_pushlstring(L, name, n);
      lua_pushvalue(L, -1);
      lua_rawseti(L, -3, (lua_Integer)lua_rawlen(L, -3) + 1);
      lua_pushboolean(L, false);
      lua_rawset(L, program + 2);
    }
    name += n + (name[n] != '\0');
  }
  sort_strings(L);
  lua_setiuservalue(L, program, 2);
  lua_setiuservalue(L, program, 1);
  lua_settop(L, program);
  return err ? cla__driver_error(CLA_CALL_get_program_info, err) : CLA_OK;
}

/* Stack: device, source, options, ... Pushes the new program, or raises, or pushes nil, message, code; returns how many. */
static int build(lua_State *L, cla_device *d, cla_lua_input input) {
  const char *source = lua_tostring(L, 2), *options = lua_tostring(L, 3);
  lua_program *p = cla_lua_new(L, sizeof *p, CLA_LUA_PROGRAM, 4);
  cl_int err = CL_SUCCESS;
  cl_program program = cla__create_program(d->driver, d->context, source, strlen(source), &err);
  if (!program) return cla_lua_fail(L, cla__driver_error(CLA_CALL_create_program, err));
  cla_device_retain(d);
  p->device = d;
  p->program = program;
  err = cla__build_program(d->driver, program, d->id, options);
  if (err) return build_failed(L, p, options, input, err);
  const cla_status status = list_kernels(L, p);
  if (!status) return 1;
  close_program(p);
  return cla_lua_fail(L, status);
}

/* Stack: device, source, options. Pushes the cache and the key, on top the open program there is, or nil. */
static void look_up(lua_State *L, const cla_device *d, heap_mode mode) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &cache_key) != LUA_TTABLE) luaL_error(L, "program: the state is closed");
  lua_pushfstring(L, "%p\n%d\n%s\n%s", (const void *)d, (int)mode, lua_tostring(L, 3), lua_tostring(L, 2));
  lua_pushvalue(L, -1);
  lua_rawget(L, -3);
  const lua_program *p = lua_touserdata(L, -1);
  if (p && p->program) return;
  lua_pop(L, 1);
  lua_pushnil(L);
}

int cla_lua_device_program(lua_State *L) {
  cla_device *d = cla_lua_checkdevice(L, 1)->device;
  const heap_mode mode = read_heap(L, d);
  const size_t nlines_before = read_input(L);
  look_up(L, d, mode);
  if (!lua_isnil(L, -1)) return 1;
  lua_pop(L, 1);
  cla_lua_input input = {.has_heap = mode != HEAP_NONE, .nlines_before = nlines_before};
  if (mode) rewrite(L, d, mode, &input);
  const int n = build(L, d, input);
  if (n != 1) return n;
  for (int i = 0; i < 2; i++) {
    lua_pushvalue(L, 2 + i);
    lua_setiuservalue(L, -2, 3 + i);
  }
  lua_pushvalue(L, 5);
  lua_pushvalue(L, -2);
  lua_rawset(L, 4);
  return 1;
}

/* ---- Use ------------------------------------------------------------------------------------- */

/* Pushes "a, b, c"; the program is at 1. */
static void push_names(lua_State *L) {
  lua_getiuservalue(L, 1, 2);
  const int names = lua_gettop(L);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, names); i++) {
    if (i > 1) luaL_addstring(&b, ", ");
    lua_rawgeti(L, names, i);
    luaL_addvalue(&b);
  }
  luaL_pushresult(&b);
  lua_remove(L, names);
}

/* The kernel of the name at 2, made when there is none open. The table of kernels is at 3, what it has at 4. */
static int push_kernel(lua_State *L) {
  const lua_kernel *k = lua_touserdata(L, 4);
  if (k && k->kernel) return 1;
  check_program(L, 1);
  cla_lua_newkernel(L, 1, lua_tostring(L, 2));
  lua_pushvalue(L, 2);
  lua_pushvalue(L, -2);
  lua_rawset(L, 3);
  return 1;
}

/* Upvalue 1: the methods. */
static int program_index(lua_State *L) {
  cla_lua_check(L, 1, CLA_LUA_PROGRAM);
  lua_settop(L, 2);
  if (lua_getiuservalue(L, 1, 1) == LUA_TTABLE) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, 3) != LUA_TNIL) return push_kernel(L);
  }
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
  check_program(L, 1);
  push_names(L);
  const char *names = lua_tostring(L, -1);
  return luaL_error(L, "the program has no kernel '%s'; it has %s", luaL_tolstring(L, 2, NULL),
                    *names ? names : "none");
}

static int program_kernels(lua_State *L) {
  check_program(L, 1);
  lua_getiuservalue(L, 1, 2);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  lua_createtable(L, (int)n, 0);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, -2, i);
    lua_rawseti(L, -2, i);
  }
  return 1;
}

/* Upvalues: the program, the place in its names. */
static int next_kernel(lua_State *L) {
  const lua_Integer i = lua_tointeger(L, lua_upvalueindex(2)) + 1;
  lua_pushinteger(L, i);
  lua_replace(L, lua_upvalueindex(2));
  check_program(L, lua_upvalueindex(1));
  lua_getiuservalue(L, lua_upvalueindex(1), 2);
  if (lua_rawgeti(L, -1, i) == LUA_TNIL) return 1;
  lua_pushvalue(L, -1);
  lua_gettable(L, lua_upvalueindex(1));
  return 2;
}

static int program_pairs(lua_State *L) {
  check_program(L, 1);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_kernel, 2);
  return 1;
}

static int program_tostring(lua_State *L) {
  const lua_program *p = cla_lua_check(L, 1, CLA_LUA_PROGRAM);
  if (!p->program) {
    lua_pushliteral(L, "program (closed)");
    return 1;
  }
  lua_getiuservalue(L, 1, 2);
  const int n = (int)lua_rawlen(L, -1);
  push_names(L);
  lua_pushfstring(L, "program (%d kernel%s%s%s on %s)", n, n == 1 ? "" : "s", n ? ": " : "", lua_tostring(L, -1),
                  p->device->info.name);
  return 1;
}

static const luaL_Reg methods[] = {{"kernels", program_kernels}, {"close", program_close}, {NULL, NULL}};

static const luaL_Reg meta[] = {{"__close", program_close},
                                {"__gc", program_close},
                                {"__pairs", program_pairs},
                                {"__tostring", program_tostring},
                                {NULL, NULL}};

void cla_lua_open_program(lua_State *L) {
  cla_lua_newtype(L, CLA_LUA_PROGRAM, NULL, NULL, meta);
  lua_rawgetp(L, LUA_REGISTRYINDEX, CLA_LUA_PROGRAM);
  luaL_newlib(L, methods);
  lua_pushcclosure(L, program_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &cache_key) == LUA_TNIL) {
    lua_newtable(L);
    lua_createtable(L, 0, 1);
    lua_pushliteral(L, "v");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &cache_key);
  }
  lua_pop(L, 1);
}
