/* What a compiler says about a source, as a message shows it: shortened, with the source's own line numbers, and with a hint
 * where it speaks of what the library has put there. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "lua/kernel.h"

enum {
  LONGEST_LOG = 8000 /* bytes of a build log in a message: beyond it, repetitions */
};

/* NVIDIA's compiler (driver 580) counts the lines of the text it got, whatever #line says, and calls it <kernel>. */
void cla_lua_renumber(char *log, size_t nlines_before) {
  static const char name[] = "<kernel>:";
  char *to = log;
  for (const char *from = log; *from;) {
    if (strncmp(from, name, sizeof name - 1) != 0) {
      *to++ = *from++;
      continue;
    }
    memmove(to, from, sizeof name - 1);
    to += sizeof name - 1, from += sizeof name - 1;
    const size_t ndigits = strspn(from, "0123456789");
    size_t line = 0;
    for (size_t i = 0; i < ndigits && i < 9; i++) line = 10 * line + (size_t)(from[i] - '0');
    if (ndigits && ndigits <= 9 && line > nlines_before) { /* the new number is no longer than the old one */
      char digits[24];
      const int n = snprintf(digits, sizeof digits, "%zu", line - nlines_before);
      memcpy(to, digits, (size_t)n);
      to += n, from += ndigits;
    }
  }
  *to = '\0';
}

static const char *explanation(const char *log, const cla_lua_input *input) {
  static const char *const names[] = {"'malloc'", "'calloc'", "'realloc'", "'aligned_alloc'", "'free'"};
  if (!input->has_heap) return "";
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strstr(log, names[i]))
      return "\nmalloc and its like are seen in the source and in defines; not in a header or in the options, nor "
             "behind a #define malloc that this configuration leaves out; what works everywhere: a parameter CLA_HEAP "
             "heap, and cla_malloc(heap, n)";
  if (input->is_rewritten && (strstr(log, "cla__heap") || strstr(log, "too few arguments")))
    return "\ncla__heap: the heap, which functions that reach malloc take as an argument. A name of one that a macro "
           "pastes together is not seen; what works everywhere: a parameter CLA_HEAP heap, and cla_malloc(heap, n)";
  return "";
}

void cla_lua_pushlog(lua_State *L, const lua_program *p, const cla_lua_input *input) {
  const cla_driver *driver = p->device->driver;
  size_t n = 0;
  cl_int err = cla__get_build_info(driver, p->program, p->device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &n);
  luaL_Buffer b;
  char *log = luaL_buffinitsize(L, &b, n + 1);
  memset(log, 0, n + 1);
  if (!err && n) cla__get_build_info(driver, p->program, p->device->id, CL_PROGRAM_BUILD_LOG, n, log, NULL);
  if (input->nlines_before) cla_lua_renumber(log, input->nlines_before);
  size_t first = 0, end = strlen(log);
  while (isspace((unsigned char)log[first])) first++;
  while (end > first && isspace((unsigned char)log[end - 1])) end--;
  const size_t length = end - first, shown = length < LONGEST_LOG ? length : LONGEST_LOG;
  memmove(log, log + first, shown);
  luaL_pushresultsize(&b, shown);
  if (!shown) return;
  const char *hint = explanation(lua_tostring(L, -1), input);
  if (shown < length)
    lua_pushfstring(L, "%s\n... and %I bytes more%s", lua_tostring(L, -1), (lua_Integer)(length - shown), hint);
  else lua_pushfstring(L, "%s%s", lua_tostring(L, -1), hint);
  lua_remove(L, -2);
}
