/* Planning offsets: what plan.c (placing), plan_search.c (orders to place in) and their callers share.
 *
 * Blocks are numbered by the beginning of their lifetimes, which turns times into numbers of blocks: block j still lives
 * when block i > j begins exactly if i < until[j]. So i and j overlap if and only if the larger number is below the
 * `until` of the smaller. No driver, no lock, no pool: a plan is arithmetic. */
#ifndef CLA_PLAN_H
#define CLA_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "clalloc.h"

enum {
  CLA_PLAN_FAN_LOG2 = 4,
  CLA_PLAN_FAN = 1 << CLA_PLAN_FAN_LOG2, /* children of a node: 16 times 4 bytes are one cache line */
  CLA_PLAN_LEVELS = 8,                   /* 16^8: more blocks than 32 bits number */
  CLA_PLAN_CHUNK = 64                    /* blocks of a chunk: a mark for each fits a word */
};

/* Placed blocks in ascending order of their offsets; marked ones overlap the block that is being placed. */
typedef struct cla_plan_chunk {
  uint64_t marked;
  uint32_t count; /* 1 .. CLA_PLAN_CHUNK */
  uint32_t item[CLA_PLAN_CHUNK];
} cla_plan_chunk;

typedef struct cla_planner {
  uint32_t n;
  uint32_t *caller;                 /* number -> the caller's index */
  uint32_t *until;                  /* number -> how many blocks begin before its end; until[i] > i */
  uint64_t *size, *offset;          /* bytes, multiples of the alignment; offset only of placed blocks */
  uint64_t floor;                   /* the most bytes live at once: no plan is lower */
  uint32_t *level[CLA_PLAN_LEVELS]; /* [0]: until of placed blocks, else 0; above it the largest of 16 below */
  unsigned nlevels;
  cla_plan_chunk *chunks;
  uint32_t *sequence, nchunks; /* chunks in ascending order of their offsets */
  uint32_t *chunk_of;          /* number -> index in chunks, of placed blocks */
  uint8_t *place_of;           /* number -> index in its chunk */
} cla_planner;

/* The blocks have been checked: n >= 1, lower < upper, a sum of bytes that fits 63 bits. */
cla_status cla__planner_open(cla_planner *p, const cla_lifetime *blocks, size_t n, uint64_t align);
void cla__planner_close(cla_planner *p); /* also of one that failed to open */
/* Places blocks in the order given, each at the lowest offset where it overlaps none placed before; the first `kept` of
 * the order stay at the offsets that they have. Returns the height of the plan; UINT64_MAX once a block ends above
 * `most`. */
uint64_t cla__planner_place(cla_planner *p, const uint32_t *order, uint32_t kept, uint64_t most);

/* Tries orders, then searches as long as the options allow. `best`: room for n offsets, by number. */
cla_status cla__plan_search(cla_planner *p, const cla_plan_options *options, uint64_t *best, cla_plan_result *result);

#endif
