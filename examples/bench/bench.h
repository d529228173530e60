/* What the C benchmarks share: a clock, medians, and the one line a figure. */
#ifndef BENCH_H
#define BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BENCH_RUNS = 11 };

static inline double bench_now(void) { /* ns */
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline int bench_order(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static inline double bench_median(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, bench_order);
  return values[n / 2];
}

static inline void bench_line(const char *name, double ours, const char *unit, const char *peer, double theirs) {
  printf("bench %s ours=%.4g %s peer=%s:%.4g ratio=%.3f\n", name, ours, unit, peer, theirs, ours / theirs);
  fflush(stdout);
}

/* ns of one call of `pair`, over `n` calls. */
static inline double bench_time(void (*pair)(void), int n) {
  double start = bench_now();
  for (int i = 0; i < n; i++) pair();
  return (bench_now() - start) / n;
}

/* Two things side by side, run by run in turn, so that a change of the machine's speed meets both; medians. */
static inline void bench_side_by_side(const char *name, void (*ours)(void), int n, const char *peer,
                                      void (*theirs)(void), int m) {
  double a[BENCH_RUNS], b[BENCH_RUNS];
  bench_time(ours, n / 10 + 1);
  bench_time(theirs, m / 10 + 1);
  for (int i = 0; i < BENCH_RUNS; i++) {
    a[i] = bench_time(ours, n);
    b[i] = bench_time(theirs, m);
  }
  bench_line(name, bench_median(a, BENCH_RUNS), "ns", peer, bench_median(b, BENCH_RUNS));
}

#endif
