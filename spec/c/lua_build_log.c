/* Line numbers in the log of a compiler that counts what the library put before a source. */
#include <string.h>

#include "check.h"
#include "lua/kernel.h"

static void gives(const char *log, size_t nlines_before, const char *wanted) {
  char text[400];
  const size_t nbytes = strlen(log) + 1;
  CHECK(nbytes <= sizeof text);
  memcpy(text, log, nbytes);
  cla_lua_renumber(text, nlines_before);
  if (!CHECK(strcmp(text, wanted) == 0)) fprintf(stderr, "%s\n", text);
}

int main(void) {
  gives("", 5, "");
  gives("<kernel>:1585:14: error: use of x\n  p = x;\n<kernel>:1590:1: note: here\n2 errors", 1580,
        "<kernel>:5:14: error: use of x\n  p = x;\n<kernel>:10:1: note: here\n2 errors");
  gives("<kernel>:1580:1: <kernel>:1581:1", 1580, "<kernel>:1580:1: <kernel>:1:1"); /* in the heap's own text */
  gives("<kernel>: <kernel>:x <kernel>:", 3, "<kernel>: <kernel>:x <kernel>:");
  gives("<kernel>:99999999999999999999: <kernel>:10", 3, "<kernel>:99999999999999999999: <kernel>:7");
  gives("other.cl:1585:14", 1580, "other.cl:1585:14");
  return check_done("lua_build_log");
}
