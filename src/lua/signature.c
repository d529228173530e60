/* The parameters of a kernel, as the driver tells them.
 *
 * Assumes a program built with -cl-kernel-arg-info. Drivers give a type's name as the source spells it, bar
 * the built-in ones, which most of them shorten: "uint" and "unsigned int" are the same here, qualifiers that
 * slipped into the name are dropped, and a name that is not built in stands for its bytes. */
#include <ctype.h>
#include <string.h>

#include "lua/kernel.h"

/* ---- Type names ------------------------------------------------------------------------------ */

static const struct {
  const char *name;
  size_t nbytes;
  cla_arg_kind kind;
  bool has_vectors;
} builtin[] = {
    {"char", 1, CLA_ARG_INT, true},
    {"uchar", 1, CLA_ARG_UINT, true},
    {"short", 2, CLA_ARG_INT, true},
    {"ushort", 2, CLA_ARG_UINT, true},
    {"int", 4, CLA_ARG_INT, true},
    {"uint", 4, CLA_ARG_UINT, true},
    {"long", 8, CLA_ARG_INT, true},
    {"ulong", 8, CLA_ARG_UINT, true},
    {"half", 2, CLA_ARG_FLOAT, true},
    {"float", 4, CLA_ARG_FLOAT, true},
    {"double", 8, CLA_ARG_FLOAT, true},
    {"bool", 1, CLA_ARG_BOOL, false},
    {"_Bool", 1, CLA_ARG_BOOL, false},
    /* OpenCL forbids these four as parameters; drivers that take them anyway have 64-bit devices */
    {"size_t", 8, CLA_ARG_UINT, false},
    {"uintptr_t", 8, CLA_ARG_UINT, false},
    {"ptrdiff_t", 8, CLA_ARG_INT, false},
    {"intptr_t", 8, CLA_ARG_INT, false},
};

static bool is_among(const char *word, const char *const *list) {
  while (*list && strcmp(word, *list) != 0) list++;
  return *list != NULL;
}

enum { MOST_WORDS = 8, LONGEST_TYPE = 256 };

typedef struct type_words {
  char text[LONGEST_TYPE];
  const char *word[MOST_WORDS]; /* without qualifiers */
  size_t nwords, stars;
} type_words;

/* Into an empty t. */
static void split_type(const char *name, type_words *t) {
  static const char *const dropped[] = {"const",     "volatile",   "restrict",   "__restrict", "global",  "__global",
                                        "constant",  "__constant", "local",      "__local",    "private", "__private",
                                        "read_only", "write_only", "read_write", NULL};
  char *to = t->text, *end = t->text + sizeof t->text - 1;
  while (*name) {
    if (*name == '*') t->stars++;
    if (*name == '*' || isspace((unsigned char)*name)) {
      name++;
      continue;
    }
    char *word = to;
    while (*name && *name != '*' && !isspace((unsigned char)*name) && to < end) *to++ = *name++;
    if (to == end) break; /* cut short: it is only shown */
    *to++ = '\0';
    if (t->nwords < MOST_WORDS && !is_among(word, dropped)) t->word[t->nwords++] = word;
  }
  *to = '\0';
}

/* "unsigned long int" -> "ulong"; NULL for words that are no integer type, and for long long. */
static const char *integer_name(const type_words *t) {
  static const char *const names[][2] = {{"int", "uint"}, {"char", "uchar"}, {"short", "ushort"}, {"long", "ulong"}};
  bool is_unsigned = false, is_int = false;
  size_t base = 0;
  for (size_t i = 0; i < t->nwords; i++) {
    const char *w = t->word[i];
    if (strcmp(w, "unsigned") == 0) is_unsigned = true;
    else if (strcmp(w, "int") == 0 || strcmp(w, "signed") == 0) is_int = true;
    else {
      size_t which = 1;
      while (which < 4 && strcmp(w, names[which][0]) != 0) which++;
      if (which == 4 || base) return NULL;
      base = which;
    }
  }
  return is_unsigned || is_int || base ? names[base][is_unsigned] : NULL;
}

void cla_lua_findtype(const char *name, cla_arg *a) {
  const size_t letters = strcspn(name, "0123456789");
  unsigned lanes = 1;
  if (name[letters]) {
    static const char *const digits[] = {"2", "3", "4", "8", "16"};
    static const unsigned numbers[] = {2, 3, 4, 8, 16};
    size_t i = 0;
    while (i < 5 && strcmp(name + letters, digits[i]) != 0) i++;
    if (i == 5) return;
    lanes = numbers[i];
  }
  for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) {
    if (strncmp(builtin[i].name, name, letters) != 0 || builtin[i].name[letters]) continue;
    if (lanes > 1 && !builtin[i].has_vectors) return;
    a->kind = builtin[i].kind;
    a->lanes = lanes;
    a->element = builtin[i].nbytes;
    a->nbytes = builtin[i].nbytes * (lanes == 3 ? 4 : lanes);
    return;
  }
}

static bool is_opaque(const type_words *t) {
  static const char *const names[] = {"sampler_t", "queue_t", "event_t", "clk_event_t", "pipe", "reserve_id_t", NULL};
  if (!t->nwords) return false;
  return strncmp(t->word[0], "image", 5) == 0 ? strstr(t->word[0], "_t") != NULL : is_among(t->word[0], names);
}

/* CLA_HEAP as kernels/begin.cl has it; the simulated device does not expand macros. */
static bool is_heap(const type_words *t) {
  for (size_t i = 0; i < t->nwords; i++)
    if (strcmp(t->word[i], "cla_heap_word") == 0 || strcmp(t->word[i], "CLA_HEAP") == 0) return true;
  return false;
}

/* ---- From the driver ---------------------------------------------------------------------------- */

typedef struct raw_arg {
  cl_kernel_arg_address_qualifier address;
  cl_kernel_arg_type_qualifier qualifiers;
} raw_arg;

/* Decides what the parameter takes, and pushes type, qualifier and declared. */
static void describe(lua_State *L, const raw_arg *raw, const char *type_name, cla_arg *a) {
  type_words t = {.nwords = 0};
  split_type(type_name, &t);
  const char *integer = integer_name(&t);
  const bool is_local = raw->address == CL_KERNEL_ARG_ADDRESS_LOCAL;
  const bool is_constant = raw->address == CL_KERNEL_ARG_ADDRESS_CONSTANT;
  const bool is_pointer = t.stars || raw->address != CL_KERNEL_ARG_ADDRESS_PRIVATE;
  a->kind = CLA_ARG_BYTES;
  a->lanes = 1;
  if ((raw->qualifiers & CL_KERNEL_ARG_TYPE_PIPE) || is_opaque(&t)) a->kind = CLA_ARG_UNSUPPORTED;
  else if (is_heap(&t)) a->kind = CLA_ARG_HEAP;
  else if (is_pointer) a->kind = is_local ? CLA_ARG_LOCAL : CLA_ARG_BUFFER;
  else if (integer) cla_lua_findtype(integer, a);
  else if (t.nwords == 1) cla_lua_findtype(t.word[0], a);

  luaL_Buffer b;
  luaL_buffinit(L, &b);
  if (integer) luaL_addstring(&b, integer);
  for (size_t i = 0; i < t.nwords && !integer; i++) {
    if (i) luaL_addchar(&b, ' ');
    luaL_addstring(&b, t.word[i]);
  }
  luaL_pushresult(&b);
  const char *base = lua_tostring(L, -1);
  const bool shows_pointer = a->kind == CLA_ARG_BUFFER || a->kind == CLA_ARG_LOCAL || a->kind == CLA_ARG_HEAP;
  a->type = shows_pointer ? lua_pushfstring(L, "%s*", base) : lua_pushfstring(L, "%s", base);
  a->qualifier =
      lua_pushfstring(L, "%s%s%s%s",
                      !shows_pointer ? "private"
                      : is_local     ? "local"
                      : is_constant  ? "constant"
                                     : "global",
                      shows_pointer && !is_constant && (raw->qualifiers & CL_KERNEL_ARG_TYPE_CONST) ? " const" : "",
                      shows_pointer && (raw->qualifiers & CL_KERNEL_ARG_TYPE_VOLATILE) ? " volatile" : "",
                      shows_pointer && (raw->qualifiers & CL_KERNEL_ARG_TYPE_RESTRICT) ? " restrict" : "");
  if (shows_pointer) {
    /* restrict speaks of the pointer: it stands behind the star */
    const char *restricts = strstr(a->qualifier, " restrict");
    lua_pushlstring(L, a->qualifier, restricts ? (size_t)(restricts - a->qualifier) : strlen(a->qualifier));
    a->declared = lua_pushfstring(L, "%s %s *%s", lua_tostring(L, -1), base, restricts ? "restrict" : "");
    lua_remove(L, -2);
  } else {
    a->declared = lua_pushfstring(L, "%s", base);
  }
  lua_remove(L, -4);
}

static cl_int push_text(lua_State *L, lua_kernel *k, unsigned i, cl_kernel_arg_info what) {
  const cla_driver *driver = k->program->device->driver;
  luaL_Buffer b;
  size_t n = 0;
  cl_int err = cla__get_kernel_arg_info(driver, k->kernel, i, what, 0, NULL, &n);
  char *text = luaL_buffinitsize(L, &b, n + 1);
  memset(text, 0, n + 1);
  if (!err && n) err = cla__get_kernel_arg_info(driver, k->kernel, i, what, n, text, NULL);
  luaL_pushresultsize(&b, strlen(text));
  return err;
}

/* Stack: ... strings. Anchors the value at the top there. */
static const char *anchor(lua_State *L, int strings) {
  const char *text = lua_tostring(L, -1);
  lua_rawseti(L, strings, (lua_Integer)lua_rawlen(L, strings) + 1);
  return text;
}

static cl_int read_arg(lua_State *L, lua_kernel *k, unsigned i, int strings) {
  const cla_driver *driver = k->program->device->driver;
  cla_arg *a = &k->args[i];
  raw_arg raw = {0};
  cl_int err = cla__get_kernel_arg_info(driver, k->kernel, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof raw.address,
                                        &raw.address, NULL);
  if (!err)
    err = cla__get_kernel_arg_info(driver, k->kernel, i, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof raw.qualifiers,
                                   &raw.qualifiers, NULL);
  if (!err) {
    err = push_text(L, k, i, CL_KERNEL_ARG_NAME);
    a->name = anchor(L, strings);
  }
  if (!err) {
    err = push_text(L, k, i, CL_KERNEL_ARG_TYPE_NAME);
    describe(L, &raw, lua_tostring(L, -1), a);
    for (int n = 0; n < 4; n++) anchor(L, strings);
  }
  return err;
}

cla_status cla_lua_signature(lua_State *L, lua_kernel *k) {
  const cla_driver *driver = k->program->device->driver;
  cl_uint n = 0;
  cl_int err = cla__get_kernel_info(driver, k->kernel, CL_KERNEL_NUM_ARGS, sizeof n, &n, NULL);
  if (err) return cla__driver_error(CLA_CALL_get_kernel_info, err);
  const size_t nbytes = n * (sizeof(cla_arg) + sizeof(cla_pin));
  void *memory = lua_newuserdatauv(L, nbytes ? nbytes : 1, 1);
  memset(memory, 0, nbytes);
  lua_createtable(L, 5 * (int)n, 0);
  const int strings = lua_gettop(L);
  k->args = memory;
  k->pins = (cla_pin *)(k->args + n);
  for (unsigned i = 0; i < n && !err; i++) err = read_arg(L, k, i, strings);
  lua_settop(L, strings);
  lua_setiuservalue(L, -2, 1);
  lua_setiuservalue(L, -2, 2);
  if (err) return cla__driver_error(CLA_CALL_get_kernel_arg_info, err);
  k->nargs = n;
  return CLA_OK;
}

/* ---- For Lua ----------------------------------------------------------------------------------------- */

void cla_lua_pushsignature(lua_State *L, const lua_kernel *k) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  lua_pushfstring(L, "kernel %s(", k->name);
  luaL_addvalue(&b);
  for (unsigned i = 0; i < k->nargs; i++) {
    const cla_arg *a = &k->args[i];
    const size_t n = strlen(a->declared);
    const bool joins = n && a->declared[n - 1] == '*';
    lua_pushfstring(L, "%s%s%s%s", i ? ", " : "", a->declared, joins || !*a->name ? "" : " ", a->name);
    luaL_addvalue(&b);
  }
  luaL_addchar(&b, ')');
  luaL_pushresult(&b);
}

void cla_lua_pushargs(lua_State *L, const lua_kernel *k) {
  lua_createtable(L, (int)k->nargs, 0);
  for (unsigned i = 0; i < k->nargs; i++) {
    lua_createtable(L, 0, 3);
    lua_pushstring(L, k->args[i].name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, k->args[i].type);
    lua_setfield(L, -2, "type");
    lua_pushstring(L, k->args[i].qualifier);
    lua_setfield(L, -2, "qualifier");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}
