/* The debugging part of the public interface: calls, live objects, faults. */
#include <string.h>

#include "runtime/runtime.h"

uint64_t cla_debug_calls(const char *name) {
  if (!name || !*name) return cla__call_total();
  int call = cla__call_find(name);
  return call < 0 ? 0 : cla__call_count((cla_call)call);
}

int64_t cla_debug_live(const char *kind) {
  int64_t sum = 0;
  for (int i = 0; i < CLA_LIVE_COUNT; i++)
    if (!kind || strcmp(kind, cla__live_name((cla_live)i)) == 0) sum += cla__live_count((cla_live)i);
  return sum;
}

cla_status cla_debug_fail(const char *name, uint64_t n, int code) {
  int call = -1;
  if (name && strcmp(name, "any") != 0 && (call = cla__call_find(name)) < 0)
    return cla__error(CLA_E_INVALID, "debug_fail: no driver call is named '%.40s'", name);
  cla__fail(call, n, code);
  return CLA_OK;
}

bool cla_debug_armed(void) { return cla__fail_armed(); }
