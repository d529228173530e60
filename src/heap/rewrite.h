/* The hidden heap argument: OpenCL C that calls malloc and free, rewritten so that OpenCL compilers take it.
 *
 * A source text goes in, a source text comes out; no device is needed. tokens.c cuts the text into tokens, rewrite.c
 * finds the functions that reach an allocation and writes the text anew. What the rewriting does to a source, and
 * which sources it refuses, stands on top of rewrite.c; users read it at cla_heap_rewrite in clalloc.h. */
#ifndef CLA_HEAP_REWRITE_H
#define CLA_HEAP_REWRITE_H

#include "clalloc.h"

/* The public part; its place is clalloc.h. */
#ifndef CLA_HEAP_SITES

enum {
  CLA_HEAP_SITES = 1 /* every allocation is told its site: see cla_heap_site */
};

/* What a rewritten source is. Everything belongs to the struct; cla_heap_rewritten_free gives it back. */
typedef struct cla_heap_rewritten {
  char *text;         /* to compile behind cla_heap_source() and a line "#line 1"; no line has moved */
  size_t nbytes;      /* of the text, without its final zero */
  char **kernels;     /* the kernels with hidden arguments, in the order of the source, each once */
  size_t nkernels;    /* 0: no kernel allocates */
  bool is_changed;    /* false: text equals the source byte by byte */
  bool needs_library; /* the text names CLA_HEAP or cla_... functions, by itself or through the rewriting */
} cla_heap_rewritten;

/* Kernels that reach malloc, free, calloc, realloc or aligned_alloc get hidden parameters behind their own: last a
 * `CLA_HEAP cla__heap`; with CLA_HEAP_SITES one more behind it, `uint cla__site`, the kernel's number shifted left by
 * CLA_HEAP_LINE_BITS, which the host chooses per launch. */
CLA_API cla_status cla_heap_rewrite(const char *source, unsigned flags, cla_heap_rewritten *out);
CLA_API void cla_heap_rewritten_free(cla_heap_rewritten *);

/* A site is a uint: the number that the launch passed above, the line (as __LINE__ has it, at most the greatest that
 * fits) in the low bits. */
enum { CLA_HEAP_LINE_BITS = 20, CLA_HEAP_MAX_LINE = (1 << CLA_HEAP_LINE_BITS) - 1 };

#endif

#endif
