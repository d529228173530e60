/* The least a C test needs: CHECK goes on after a failure, so that one run shows them all.
 * main ends with `return check_done("name");`. CHECK may be used by several threads at once. */
#ifndef CLA_CHECK_H
#define CLA_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

static atomic_int check_made, check_failed;

static inline bool check_that(bool is_true, const char *file, int line, const char *expression) {
  atomic_fetch_add(&check_made, 1);
  if (is_true) return true;
  atomic_fetch_add(&check_failed, 1);
  fprintf(stderr, "%s:%d: not true: %s\n", file, line, expression);
  return false;
}

#define CHECK(condition) check_that((condition), __FILE__, __LINE__, #condition)

static inline int check_done(const char *name) {
  const int made = atomic_load(&check_made), failed = atomic_load(&check_failed);
  printf("%s: %d checks, %d failed\n", name, made, failed);
  return failed == 0 && made > 0 ? 0 : 1;
}

#endif
