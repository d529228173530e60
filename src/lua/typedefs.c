/* The type names of a source's own, by value: how large they are, and which of them are built-in types.
 *
 * OpenCL tells a parameter's type by name only, and drivers take a struct of any size. So the compiler is asked, once a kernel
 * that has such parameters: behind the source, a kernel a type whose required group size is (sizeof the type, number of the
 * built-in type it is the same as, 1), which a query reads back; nothing is run. They have a parameter, because NVIDIA's
 * compiler (580) fails on kernels without any. A compiler that refuses leaves the sizes unknown: then any string goes. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "lua/kernel.h"

static const char *const scalars[] = {"char", "uchar", "short", "ushort", "int",
                                      "uint", "long",  "ulong", "float",  "double"};
static const char *const lanes[] = {"", "2", "3", "4", "8", "16"};
enum { SCALARS = sizeof scalars / sizeof *scalars, LANES = sizeof lanes / sizeof *lanes };

static bool can_ask(const cla_arg *a) {
  if (a->kind != CLA_ARG_BYTES || !*a->type) return false;
  const char *c = a->type;
  while (isalnum((unsigned char)*c) || *c == '_' || *c == ' ') c++;
  return *c == '\0';
}

/* The value at index i of the program's user values, at the end of the buffer. */
static void add_user_value(lua_State *L, luaL_Buffer *b, int program, int i) {
  lua_getiuservalue(L, program, i);
  luaL_addvalue(b);
}

/* Numbers begin at 2: 1 is any other type, since 0 is no group size. */
static void add_comparisons(lua_State *L, luaL_Buffer *b) {
  for (int s = 0; s < SCALARS; s++) {
    const bool is_double = strcmp(scalars[s], "double") == 0;
    if (is_double) luaL_addstring(b, "#ifdef cl_khr_fp64\n");
    lua_pushfstring(L, "#define cla_is_%s(T)", scalars[s]);
    luaL_addvalue(b);
    for (int n = 0; n < LANES; n++) {
      lua_pushfstring(L, " __builtin_types_compatible_p(T, %s%s) ? %d :", scalars[s], lanes[n], 2 + s * LANES + n);
      luaL_addvalue(b);
    }
    luaL_addchar(b, '\n');
    if (is_double) luaL_addstring(b, "#else\n#define cla_is_double(T)\n#endif\n");
  }
}

/* Pushes the source with the questions behind it. */
static void push_questions(lua_State *L, const lua_kernel *k, int program) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  add_user_value(L, &b, program, 3);
  luaL_addchar(&b, '\n');
  add_comparisons(L, &b);
  for (unsigned i = 0; i < k->nargs; i++) {
    if (!can_ask(&k->args[i])) continue;
    luaL_addstring(&b, "kernel __attribute__((reqd_work_group_size(sizeof(");
    luaL_addstring(&b, k->args[i].type);
    luaL_addstring(&b, "),");
    for (int s = 0; s < SCALARS; s++) {
      lua_pushfstring(L, " cla_is_%s(%s)", scalars[s], k->args[i].type);
      luaL_addvalue(&b);
    }
    lua_pushfstring(L, " 1, 1))) void cla_type_%d(global int *unused) {}\n", (int)i);
    luaL_addvalue(&b);
  }
  luaL_pushresult(&b);
}

static void take_answer(const lua_kernel *k, cl_program program, unsigned i, const char *name) {
  const cla_device *d = k->program->device;
  cla_arg *a = &k->args[i];
  size_t answer[3] = {0};
  cl_int err = CL_SUCCESS;
  cl_kernel question = cla__create_kernel(d->driver, program, name, &err);
  if (!question) return;
  err = cla__get_kernel_group_info(d->driver, question, d->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof answer, answer,
                                   NULL);
  cla__release_kernel(d->driver, question);
  if (err || !answer[0]) return;
  if (answer[1] >= 2 && answer[1] < 2 + SCALARS * LANES) {
    const size_t which = answer[1] - 2;
    char type[16];
    snprintf(type, sizeof type, "%s%s", scalars[which / LANES], lanes[which % LANES]);
    cla_lua_findtype(type, a);
  }
  a->nbytes = answer[0];
}

void cla_lua_typedefs(lua_State *L, lua_kernel *k, int program) {
  const cla_device *d = k->program->device;
  unsigned questions = 0;
  for (unsigned i = 0; i < k->nargs; i++) questions += can_ask(&k->args[i]);
  if (!questions || d->info.simulated) return;
  const int top = lua_gettop(L);
  push_questions(L, k, program);
  lua_getiuservalue(L, program, 4);
  const char *source = lua_tostring(L, -2), *options = lua_tostring(L, -1);
  cl_int err = CL_SUCCESS;
  cl_program p = cla__create_program(d->driver, d->context, source, strlen(source), &err);
  if (p && !cla__build_program(d->driver, p, d->id, options))
    for (unsigned i = 0; i < k->nargs; i++) {
      char name[32];
      snprintf(name, sizeof name, "cla_type_%u", i);
      if (can_ask(&k->args[i])) take_answer(k, p, i, name);
    }
  if (p) cla__release_program(d->driver, p);
  lua_settop(L, top);
}
