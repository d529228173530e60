/* The rewriter of kernels that call malloc, as text to text: what it changes, to the letter; what it leaves alone; what
 * it refuses, with the line; and that no text, however broken or large, makes it crash or take long (a quadratic step
 * would take hours here). That compilers take what it writes is shown by spec/heap_rewrite_spec.lua. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "check.h"
#include "clalloc.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- To the letter ------------------------------------------------------------------------------------ */

typedef struct text_pair {
  const char *source, *wanted;
} text_pair;

static void expect(unsigned flags, const char *source, const char *wanted) {
  cla_heap_rewritten r = {0};
  if (!CHECK(cla_heap_rewrite(source, flags, &r) == CLA_OK)) {
    fprintf(stderr, "  %s\n  of: %s\n", cla_last_error(), source);
    return;
  }
  if (!CHECK(strcmp(r.text, wanted) == 0)) fprintf(stderr, "  got:    %s\n  wanted: %s\n", r.text, wanted);
  CHECK(r.nbytes == strlen(r.text));
  CHECK(r.is_changed == (strcmp(source, r.text) != 0));
  CHECK(r.needs_library || !r.is_changed);
  CHECK(r.is_changed || r.nkernels == 0);
  cla_heap_rewritten_free(&r);
}

static void expect_all(unsigned flags, const text_pair *pairs, size_t n) {
  for (size_t i = 0; i < n; i++) expect(flags, pairs[i].source, pairs[i].wanted);
}

static void calls_are_rewritten(void) {
  static const text_pair pairs[] = {
      {"kernel void f(global int *x) { free(malloc(4)); }",
       "kernel void f(global int *x, CLA_HEAP cla__heap) { cla_free(cla__heap, cla_malloc(cla__heap, 4)); }"},
      {"__kernel void f() { calloc(2, 8); realloc(0, 9); aligned_alloc(64, 128); }",
       "__kernel void f(CLA_HEAP cla__heap) { cla_calloc(cla__heap, 2, 8); cla_realloc(cla__heap, 0, 9); "
       "cla_aligned_alloc(cla__heap, 64, 128); }"},
      {"kernel void f(void) { malloc\t( /* none */ ); }",
       "kernel void f(CLA_HEAP cla__heap) { cla_malloc\t(cla__heap /* none */ ); }"},
      /* comments, literals, splices, the ends of lines */
      {"// malloc(1)\n/* free(2)\n */ kernel void f(global int *x // )\n) { \"malloc(3)\"; '('; malloc(4); } // "
       "malloc(5)",
       "// malloc(1)\n/* free(2)\n */ kernel void f(global int *x // )\n, CLA_HEAP cla__heap) { \"malloc(3)\"; '('; "
       "cla_malloc(cla__heap, 4); } // malloc(5)"},
      {"kernel void f(vo\\\nid) { mal\\\n\\  \nloc(1); \"\\\"\"; malloc(2); }\r\n// \\\r\nmalloc(3)\r\n",
       "kernel void f(\\\nCLA_HEAP cla__heap) { \\\n\\  \ncla_malloc(cla__heap, 1); \"\\\"\"; cla_malloc(cla__heap, "
       "2); "
       "}\r\n// \\\r\nmalloc(3)\r\n"},
      {"kernel void f() <% malloc(1); %>", "kernel void f(CLA_HEAP cla__heap) <% cla_malloc(cla__heap, 1); %>"},
      /* functions between the kernel and the call, kernels that call kernels */
      {"int h(int); void g() { h(1); } int h(int x) { malloc(x); return 1; } kernel void f(int x) { g(); }",
       "int h(CLA_HEAP cla__heap, int); void g(CLA_HEAP cla__heap) { h(cla__heap, 1); } "
       "int h(CLA_HEAP cla__heap, int x) { cla_malloc(cla__heap, x); return 1; } "
       "kernel void f(int x, CLA_HEAP cla__heap) { g(cla__heap); }"},
      {"kernel void f(int x) { free(0); } kernel void g() { f((1)); } kernel void e() { g(); }",
       "kernel void f(int x, CLA_HEAP cla__heap) { cla_free(cla__heap, 0); } "
       "kernel void g(CLA_HEAP cla__heap) { f((1), cla__heap); } kernel void e(CLA_HEAP cla__heap) { g(cla__heap); }"},
      {"void g(void); void f() { void g(void); global int *g2(int); g(); x = a * g2(3); } void g() { free(0); } "
       "global int *g2(int n) { return malloc(n); }",
       "void g(CLA_HEAP cla__heap); void f(CLA_HEAP cla__heap) { void g(CLA_HEAP cla__heap); global int *g2(CLA_HEAP "
       "cla__heap, int); g(cla__heap); x = a * g2(cla__heap, 3); } void g(CLA_HEAP cla__heap) { cla_free(cla__heap, "
       "0); } "
       "global int *g2(CLA_HEAP cla__heap, int n) { return cla_malloc(cla__heap, n); }"},
      {"int one() { return 1; } void g() { free(0); } kernel void f() { g(); one(); } kernel void other() { one(); }",
       "int one() { return 1; } void g(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); } "
       "kernel void f(CLA_HEAP cla__heap) { g(cla__heap); one(); } kernel void other() { one(); }"},
      /* heads: attributes before, inside and behind, macros, parentheses, pointers to arrays */
      {"__attribute__((reqd_work_group_size(8, 1, 1))) kernel __attribute__((vec_type_hint(int))) void f(global int "
       "*x, "
       "int b __attribute__((unused))) __attribute__((noinline)) { malloc(1); }",
       "__attribute__((reqd_work_group_size(8, 1, 1))) kernel __attribute__((vec_type_hint(int))) void f(global int "
       "*x, "
       "int b __attribute__((unused)), CLA_HEAP cla__heap) __attribute__((noinline)) { cla_malloc(cla__heap, 1); }"},
      {"static inline void (f)(int x) { free(0); } void g() { f(1); }",
       "static inline void (f)(CLA_HEAP cla__heap, int x) { cla_free(cla__heap, 0); } "
       "void g(CLA_HEAP cla__heap) { f(cla__heap, 1); }"},
      {"UNKNOWN(void f(int x)); UNKNOWN(global int *g(int)); void f(int x) { free(0); } global int *g(int x) { f(x); }",
       "UNKNOWN(void f(CLA_HEAP cla__heap, int x)); UNKNOWN(global int *g(CLA_HEAP cla__heap, int)); "
       "void f(CLA_HEAP cla__heap, int x) { cla_free(cla__heap, 0); } "
       "global int *g(CLA_HEAP cla__heap, int x) { f(cla__heap, x); }"},
      {"UNKNOWN(3) void f(int x) { free(0); } void g(int x) UNKNOWN(4) { f(0); }",
       "UNKNOWN(3) void f(CLA_HEAP cla__heap, int x) { cla_free(cla__heap, 0); } "
       "void g(CLA_HEAP cla__heap, int x) UNKNOWN(4) { f(cla__heap, 0); }"},
      {"struct s { int a; } f(int (*x)[3]) { free(0); } struct __attribute__((packed)) t { int f; } u = { 1 };",
       "struct s { int a; } f(CLA_HEAP cla__heap, int (*x)[3]) { cla_free(cla__heap, 0); } "
       "struct __attribute__((packed)) t { int f; } u = { 1 };"},
      {"#define KERNEL(name) kernel void name\nKERNEL(f)(int x) { free(0); }",
       "#define KERNEL(name) kernel void name\nKERNEL(f)(int x, CLA_HEAP cla__heap) { cla_free(cla__heap, 0); }"},
      {"#define FN(attribute, name) name\nvoid FN(A(1, 2), g)(int n) { free(0); }",
       "#define FN(attribute, name) name\nvoid FN(A(1, 2), g)(CLA_HEAP cla__heap, int n) { cla_free(cla__heap, 0); }"},
      {"#define K __kernel\nK void f(int x) { free(0); }",
       "#define K __kernel\nK void f(int x, CLA_HEAP cla__heap) { cla_free(cla__heap, 0); }"},
      {"#define T(x) static x\n#define A(x)\nT(global int *) g(int n) { return malloc(n); } T(int) A(2) h(int n) A(3) "
       "{ "
       "free(0); }\nkernel A(1) void A(2) f(int n) A(3) { g(h(n)); }",
       "#define T(x) static x\n#define A(x)\nT(global int *) g(CLA_HEAP cla__heap, int n) { return "
       "cla_malloc(cla__heap, n); "
       "} T(int) A(2) h(CLA_HEAP cla__heap, int n) A(3) { cla_free(cla__heap, 0); }\n"
       "kernel A(1) void A(2) f(int n, CLA_HEAP cla__heap) A(3) { g(cla__heap, h(cla__heap, n)); }"},
      {"void UNKNOWN(1, b) g(int n) { free(0); } void f() { g(1); }",
       "void UNKNOWN(1, b) g(CLA_HEAP cla__heap, int n) { cla_free(cla__heap, 0); } void f(CLA_HEAP cla__heap) { "
       "g(cla__heap, 1); }"},
      {"TYPE(global int *) g(int n) UNKNOWN(1) { return malloc(n); } static TYPE(void) UNKNOWN(2) h(int n) { g(n); }",
       "TYPE(global int *) g(CLA_HEAP cla__heap, int n) UNKNOWN(1) { return cla_malloc(cla__heap, n); } "
       "static TYPE(void) UNKNOWN(2) h(CLA_HEAP cla__heap, int n) { g(cla__heap, n); }"},
      {"void g(int n) { free(0); } void h(int n) { g(n); } void f() { void g(int), h(int n), *k(int); int a = 1, *b; "
       "g(1), "
       "h(2); }",
       "void g(CLA_HEAP cla__heap, int n) { cla_free(cla__heap, 0); } void h(CLA_HEAP cla__heap, int n) { g(cla__heap, "
       "n); "
       "} void f(CLA_HEAP cla__heap) { void g(CLA_HEAP cla__heap, int), h(CLA_HEAP cla__heap, int n), *k(int); int a = "
       "1, "
       "*b; g(cla__heap, 1), h(cla__heap, 2); }"},
      /* blocks see what is around them */
      {"kernel void f() { enqueue_kernel(q, 0, r, ^{ free(0); }); }",
       "kernel void f(CLA_HEAP cla__heap) { enqueue_kernel(q, 0, r, ^{ cla_free(cla__heap, 0); }); }"},
  };
  expect_all(0, pairs, LENGTH(pairs));
}

static void macros_are_rewritten(void) {
  static const text_pair pairs[] = {
      {"#define NEW(T) ((global T *)malloc(sizeof(T)))\nkernel void f() { NEW(int); }",
       "#define NEW(T) ((global T *)cla_malloc(cla__heap, sizeof(T)))\nkernel void f(CLA_HEAP cla__heap) { NEW(int); "
       "}"},
      {"#define ONE malloc(1)\n#define TWO (ONE, ONE)\nkernel void f() { TWO; }",
       "#define ONE cla_malloc(cla__heap, 1)\n#define TWO (ONE, ONE)\nkernel void f(CLA_HEAP cla__heap) { TWO; }"},
      {"#define DROP(p) \\\n  do { \\\n    free(p); \\\n  } while (0)\nvoid f() { DROP(0); }",
       "#define DROP(p) \\\n  do { \\\n    cla_free(cla__heap, p); \\\n  } while (0)\nvoid f(CLA_HEAP cla__heap) { "
       "DROP(0); }"},
      {"#define ALLOC malloc // all of it\nvoid f() { ALLOC(4); }",
       "#define ALLOC(cla__1) cla_malloc(cla__heap, cla__1) // all of it\nvoid f(CLA_HEAP cla__heap) { ALLOC(4); }"},
      {"#define A B\n#define B calloc\n#define C A\nvoid f() { C(4, 4); }",
       "#define A B\n#define B(cla__1, cla__2) cla_calloc(cla__heap, cla__1, cla__2)\n#define C A\n"
       "void f(CLA_HEAP cla__heap) { C(4, 4); }"},
      {"void g() { free(0); } kernel void k(int x) { g(); }\n#define G g\n#define K k\nvoid f() { G(); K(1); }",
       "void g(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); } kernel void k(int x, CLA_HEAP cla__heap) { "
       "g(cla__heap); }\n"
       "#define G() g(cla__heap)\n#define K(cla__1) k(cla__1, cla__heap)\nvoid f(CLA_HEAP cla__heap) { G(); K(1); }"},
      {"static int g(int a, int b) { free(0); return a; }\n#define g(a) g(a, 0)\nkernel void f() { g(1); }",
       "static int g(CLA_HEAP cla__heap, int a, int b) { cla_free(cla__heap, 0); return a; }\n"
       "#define g(cla__heap, a) g(cla__heap, a, 0)\nkernel void f(CLA_HEAP cla__heap) { g(cla__heap, 1); }"},
      {"static int g(int a, int b) { free(0); return a; }\n#define g(a) g(a, 0)\n#define G g\nkernel void f() { G(1); "
       "}",
       "static int g(CLA_HEAP cla__heap, int a, int b) { cla_free(cla__heap, 0); return a; }\n"
       "#define g(cla__heap, a) g(cla__heap, a, 0)\n#define G(cla__1) g(cla__heap, cla__1)\n"
       "kernel void f(CLA_HEAP cla__heap) { G(1); }"},
      /* parameters and parts of pasted names are the macro's own */
      {"#define M(free) free(3)\n#define N(x) malloc##x(3)\n#define P(x) x##free(3)\nvoid f() { M(a); N(y); P(z); "
       "malloc(1); }",
       "#define M(free) free(3)\n#define N(x) malloc##x(3)\n#define P(x) x##free(3)\n"
       "void f(CLA_HEAP cla__heap) { M(a); N(y); P(z); cla_malloc(cla__heap, 1); }"},
      /* functions whose names are macros */
      {"#define NAME real\n#define REAL NAME\nkernel void REAL(int x) { free(0); }\nkernel void f() { real(1); "
       "NAME(2); }",
       "#define NAME real\n#define REAL NAME\nkernel void REAL(int x, CLA_HEAP cla__heap) { cla_free(cla__heap, 0); }\n"
       "kernel void f(CLA_HEAP cla__heap) { real(1, cla__heap); NAME(2, cla__heap); }"},
      {"#ifndef D\n#define x malloc\n#else\nvoid *x(int n) { return malloc(n); }\n#endif\nvoid f() { x(3); }",
       "#ifndef D\n#define x(cla__heap, cla__1) cla_malloc(cla__heap, cla__1)\n#else\n"
       "void *x(CLA_HEAP cla__heap, int n) { return cla_malloc(cla__heap, n); }\n#endif\n"
       "void f(CLA_HEAP cla__heap) { x(cla__heap, 3); }"},
      {"#ifdef D\n#define y z\n#else\nvoid y(int n) { free(0); }\n#endif\nvoid z(int n) { }\nvoid f() { y(3); }",
       "#ifdef D\n#define y z\n#else\nvoid y(CLA_HEAP cla__heap, int n) { cla_free(cla__heap, 0); }\n#endif\n"
       "void z(CLA_HEAP cla__heap, int n) { }\nvoid f(CLA_HEAP cla__heap) { y(cla__heap, 3); }"},
      /* macros with the names of the five, and what they stand for */
      {"void *own(int n) { return malloc(n); }\n#define malloc(n) own(n)\n#define NEW malloc(9)\nvoid f() { malloc(3); "
       "NEW; "
       "}\n#undef malloc\nvoid g() { malloc(4); }",
       "void *own(CLA_HEAP cla__heap, int n) { return cla_malloc(cla__heap, n); }\n#define malloc(n) own(cla__heap, "
       "n)\n"
       "#define NEW malloc(9)\nvoid f(CLA_HEAP cla__heap) { malloc(3); NEW; }\n#undef malloc\n"
       "void g(CLA_HEAP cla__heap) { cla_malloc(cla__heap, 4); }"},
      {"#define free(p) do { if (p) free(p); } while (0)\nvoid f() { free(3); }",
       "#define free(p) do { if (p) cla_free(cla__heap, p); } while (0)\nvoid f(CLA_HEAP cla__heap) { free(3); }"},
      {"#define malloc(n) calloc(1, n)\nstruct s { int free, malloc; };\nvoid f() { malloc(3); }",
       "#define malloc(n) cla_calloc(cla__heap, 1, n)\nstruct s { int free, malloc; };\n"
       "void f(CLA_HEAP cla__heap) { malloc(3); }"},
      {"#undef malloc\n#define malloc(n) 1\n#undef malloc\n#define malloc(n) 2\nvoid f() { malloc(3); free(0); }",
       "#undef malloc\n#define malloc(n) 1\n#undef malloc\n#define malloc(n) 2\nvoid f(CLA_HEAP cla__heap) { "
       "malloc(3); "
       "cla_free(cla__heap, 0); }"},
      {"#define SAVED(x) int free = x; int *malloc = &free\nvoid f() { SAVED(3); calloc(1, 1); }",
       "#define SAVED(x) int free = x; int *malloc = &free\nvoid f(CLA_HEAP cla__heap) { SAVED(3); "
       "cla_calloc(cla__heap, 1, "
       "1); }"},
      {"void g(void) { free(0); }\n#define G g\nvoid f() { G(); }",
       "void g(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); }\n#define G() g(cla__heap)\nvoid f(CLA_HEAP cla__heap) { "
       "G(); }"},
      /* names of functions that are no more than letters to a macro, or a variable's there */
      {"#define N(x) #x\n#define P(x) x##_p(3)\nvoid g() { free(0); } void f() { N(g); P(g); h(g); }",
       "#define N(x) #x\n#define P(x) x##_p(3)\nvoid g(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); } "
       "void f() { N(g); P(g); h(g); }"},
      {"#define N(x) x + 1\nvoid g() { free(0); } void f() { int g = 3; N(g); }",
       "#define N(x) x + 1\nvoid g(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); } void f() { int g = 3; N(g); }"},
      /* braces in macros */
      {"#define EACH(i, n) for (int i = 0; i < n; i++) {\nvoid f() { EACH(i, 3) free(0); } free(0); } void g() { f(); "
       "}",
       "#define EACH(i, n) for (int i = 0; i < n; i++) {\nvoid f(CLA_HEAP cla__heap) { EACH(i, 3) cla_free(cla__heap, "
       "0); } "
       "cla_free(cla__heap, 0); } void g(CLA_HEAP cla__heap) { f(cla__heap); }"},
      {"#define BEGIN {\n#define END }\nvoid f() BEGIN free(0); END",
       "#define BEGIN {\n#define END }\nvoid f(CLA_HEAP cla__heap) BEGIN cla_free(cla__heap, 0); END"},
  };
  expect_all(0, pairs, LENGTH(pairs));
}

static void branches_are_all_rewritten(void) {
  static const text_pair pairs[] = {
      {"#if A\nkernel void f(int a, int b) {\n#else\nkernel void f(int a\n#ifdef B\n, int c\n#endif\n) "
       "{\n#endif\nfree(0); }",
       "#if A\nkernel void f(int a, int b, CLA_HEAP cla__heap) {\n#else\nkernel void f(int a\n#ifdef B\n, int "
       "c\n#endif\n"
       ", CLA_HEAP cla__heap) {\n#endif\ncla_free(cla__heap, 0); }"},
      {"void\n#if A\nf() {\n#elif B\ng() {\n#else\n#error neither\n#endif\nfree(0); } void h() { f(); g(); }",
       "void\n#if A\nf(CLA_HEAP cla__heap) {\n#elif B\ng(CLA_HEAP cla__heap) {\n#else\n#error neither\n#endif\n"
       "cla_free(cla__heap, 0); } void h(CLA_HEAP cla__heap) { f(cla__heap); g(cla__heap); }"},
      {"#ifdef D\n#define g(x) malloc(x)\n#else\nvoid *g(int x) { return 0; }\n#endif\nvoid f() { g(3); }",
       "#ifdef D\n#define g(cla__heap, x) cla_malloc(cla__heap, x)\n#else\nvoid *g(CLA_HEAP cla__heap, int x) { return "
       "0; }\n"
       "#endif\nvoid f(CLA_HEAP cla__heap) { g(cla__heap, 3); }"},
      {"#ifdef D\nvoid *x(int n) { return malloc(n); }\n#else\n#define x malloc\n#endif\nvoid f() { x(3); }",
       "#ifdef D\nvoid *x(CLA_HEAP cla__heap, int n) { return cla_malloc(cla__heap, n); }\n#else\n"
       "#define x(cla__heap, cla__1) cla_malloc(cla__heap, cla__1)\n#endif\nvoid f(CLA_HEAP cla__heap) { x(cla__heap, "
       "3); }"},
      {"#ifdef D\nint y(int n) { free(0); return n; }\n#else\n#define y z\nint z(int n) { free(0); return n; "
       "}\n#endif\n"
       "void f() { y(3); }",
       "#ifdef D\nint y(CLA_HEAP cla__heap, int n) { cla_free(cla__heap, 0); return n; }\n#else\n#define y z\n"
       "int z(CLA_HEAP cla__heap, int n) { cla_free(cla__heap, 0); return n; }\n#endif\n"
       "void f(CLA_HEAP cla__heap) { y(cla__heap, 3); }"},
      {"#define PARAMS int n\n#ifdef D\n#define f(n) malloc(n)\n#else\nint f(PARAMS) { free(0); return n; }\n#endif\n"
       "void g() { f(1); }",
       "#define PARAMS int n\n#ifdef D\n#define f(cla__heap, n) cla_malloc(cla__heap, n)\n#else\n"
       "int f(CLA_HEAP cla__heap, PARAMS) { cla_free(cla__heap, 0); return n; }\n#endif\n"
       "void g(CLA_HEAP cla__heap) { f(cla__heap, 1); }"},
      {"#if 0\ndon't malloc \"\n#if 1\nmalloc(3\n#endif\n#else\nvoid f() { free(0); }\n#endif\nvoid g() { f(); }",
       "#if 0\ndon't malloc \"\n#if 1\nmalloc(3\n#endif\n#else\nvoid f(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); "
       "}\n"
       "#endif\nvoid g(CLA_HEAP cla__heap) { f(cla__heap); }"},
      {"#ifdef __cplusplus\nextern \"C\" {\n#endif\nvoid f() { free(0); }\n#ifdef __cplusplus\n}\n#endif\n",
       "#ifdef __cplusplus\nextern \"C\" {\n#endif\nvoid f(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); }\n"
       "#ifdef __cplusplus\n}\n#endif\n"},
      {"void f(int x) {\n#ifdef A\nif (x) {\n#endif\nfree(0);\n#ifdef A\n}\n#endif\n} void g() { f(1); }",
       "void f(CLA_HEAP cla__heap, int x) {\n#ifdef A\nif (x) {\n#endif\ncla_free(cla__heap, 0);\n#ifdef "
       "A\n}\n#endif\n} "
       "void g(CLA_HEAP cla__heap) { f(cla__heap, 1); }"},
      {"void f(int x) {\n#if A\nif (x) {\n#else\nwhile (x) {\n#endif\nfree(0); } } void g() { f(1); }",
       "void f(CLA_HEAP cla__heap, int x) {\n#if A\nif (x) {\n#else\nwhile (x) {\n#endif\ncla_free(cla__heap, 0); } } "
       "void g(CLA_HEAP cla__heap) { f(cla__heap, 1); }"},
      {"void f(int x) {\n#if A\nif (x) {\n#elif B\nwhile (x) {\n#endif\nfree(0);\n#if A || B\n}\n#endif\n} void g() { "
       "f(1); }",
       "void f(CLA_HEAP cla__heap, int x) {\n#if A\nif (x) {\n#elif B\nwhile (x) {\n#endif\ncla_free(cla__heap, "
       "0);\n#if A || B\n}\n#endif\n} void g(CLA_HEAP cla__heap) { f(cla__heap, 1); }"},
      /* where another configuration closes more than is open */
      {"#if NEVER\n}} )\n#endif\nvoid f() { free(0); }\n#if NEVER\n}\n#else\nvoid g() { f(); }\n#endif",
       "#if NEVER\n}} )\n#endif\nvoid f(CLA_HEAP cla__heap) { cla_free(cla__heap, 0); }\n#if NEVER\n}\n#else\n"
       "void g(CLA_HEAP cla__heap) { f(cla__heap); }\n#endif"},
      {"#ifdef A\nkernel void f(int x) {\n#endif\n#ifdef A\nfree(0);\n}\n#endif\nvoid g() { f(1); }",
       "#ifdef A\nkernel void f(int x, CLA_HEAP cla__heap) {\n#endif\n#ifdef A\ncla_free(cla__heap, 0);\n}\n#endif\n"
       "void g(CLA_HEAP cla__heap) { f(1, cla__heap); }"},
  };
  expect_all(0, pairs, LENGTH(pairs));
}

/* Sites: the line where the text says malloc, for a macro the line where it is used, as #line has it. */
static void sites_go_along(void) {
  static const text_pair pairs[] = {
      {"void g(int x) { free(0); }\nkernel void f(int x) { malloc(\n1); g(1); }\nkernel void e() { f(2); }",
       "void g(CLA_HEAP cla__heap, uint cla__site, int x) { cla_free(cla__heap, 0); }\n"
       "kernel void f(int x, CLA_HEAP cla__heap, uint cla__site) { cla_malloc_at(cla__heap, \n1, cla__site + 2u); "
       "g(cla__heap, cla__site, 1); }\n"
       "kernel void e(CLA_HEAP cla__heap, uint cla__site) { f(2, cla__heap, cla__site); }"},
      {"#line 70\nvoid f() { calloc(1, 2); realloc(0, 2);\n# 9 \"x.h\"\naligned_alloc(2, 2); }",
       "#line 70\nvoid f(CLA_HEAP cla__heap, uint cla__site) { cla_calloc_at(cla__heap, 1, 2, cla__site + 70u); "
       "cla_realloc_at(cla__heap, 0, 2, cla__site + 70u);\n# 9 \"x.h\"\n"
       "cla_aligned_alloc_at(cla__heap, 2, 2, cla__site + 9u); }"},
      {"#line 1048577\nvoid f() { malloc(1); }",
       "#line 1048577\nvoid f(CLA_HEAP cla__heap, uint cla__site) { cla_malloc_at(cla__heap, 1, cla__site + 1u); }"},
      {"#define NEW malloc(8)\n#define ALLOC malloc\n#define DROP free\nvoid f() { NEW; ALLOC(9); DROP(0); }",
       "#define NEW cla_malloc_at(cla__heap, 8, cla__site + (__LINE__ & 1048575))\n"
       "#define ALLOC(cla__1) cla_malloc_at(cla__heap, cla__1, cla__site + (__LINE__ & 1048575))\n"
       "#define DROP(cla__1) cla_free(cla__heap, cla__1)\n"
       "void f(CLA_HEAP cla__heap, uint cla__site) { NEW; ALLOC(9); DROP(0); }"},
  };
  expect_all(CLA_HEAP_WITH_SITES, pairs, LENGTH(pairs));
}

/* ---- Left alone ----------------------------------------------------------------------------------------- */

static void nothing_to_do_changes_nothing(void) {
  static const char *const sources[] = {
      "",
      "\n",
      "kernel void f(global int *x) { x[get_global_id(0)] = 1; }",
      "/* a * malloc(3) / b **/ void f() { int a = 4 / 2 * 3; /**/ }",
      "/* malloc(3) */ constant char s[] = \"free(x)\"; // calloc(1, 1)",
      "kernel void f() { int free = 3, malloc = 4; free += malloc; }",
      "kernel void f(int free, global int *malloc) { malloc[free] = 1; }",
      "struct s { int free; int *malloc; }; void f(struct s *x) { x->free = 1; (*x).malloc = 0; x.free(1); }",
      "void f(struct s *x) { x -> malloc(3); }",
      "void f() { goto free; free: ; }",
      "enum { malloc, free }; int f() { return malloc + free; }",
      "#define FIELD free\nstruct s { int FIELD; }; int f(struct s *x) { return x->FIELD; }",
      "void *malloc(int n) { return 0; } void free(void *p) { } void f() { free(malloc(3)); }",
      "#define malloc(n) my_malloc(n)\n#define free my_free\nvoid f() { free(malloc(3)); }",
      "global void *malloc(size_t n); void free(global void *p);",
      "#pragma malloc(3)\n#if defined(malloc) || free(3)\n#endif\n#undef calloc\n#error malloc(3)\n",
      "#if 0\nkernel void f() { malloc(3); }\n#endif\n",
      "int my_malloc(int n) { return n; } int freedom(int free_) { return my_malloc(free_); }",
  };
  for (size_t i = 0; i < LENGTH(sources); i++)
    for (unsigned flags = 0; flags <= CLA_HEAP_WITH_SITES; flags++) expect(flags, sources[i], sources[i]);
}

static void names_of_ones_own_are_ones_own(void) {
  static const text_pair pairs[] = {
      {"void *malloc(int n) { return 0; } kernel void f() { malloc(3); free(0); }",
       "void *malloc(int n) { return 0; } kernel void f(CLA_HEAP cla__heap) { malloc(3); cla_free(cla__heap, 0); }"},
      {"void *malloc(int n) { return calloc(n, 1); } kernel void f() { malloc(3); }",
       "void *malloc(CLA_HEAP cla__heap, int n) { return cla_calloc(cla__heap, n, 1); } "
       "kernel void f(CLA_HEAP cla__heap) { malloc(cla__heap, 3); }"},
      {"global void *malloc(size_t n);\nvoid f() { global void *malloc(size_t n); malloc(3); }",
       "global void *malloc(size_t n);\nvoid f(CLA_HEAP cla__heap) { global void *malloc(size_t n); "
       "cla_malloc(cla__heap, 3); }"},
      {"kernel void f() { { int free = 3; free++; } free(0); x.free = 1; }",
       "kernel void f(CLA_HEAP cla__heap) { { int free = 3; free++; } cla_free(cla__heap, 0); x.free = 1; }"},
      {"kernel void f(CLA_HEAP heap) { cla_malloc(heap, 3); } kernel void g() { malloc(1); }",
       "kernel void f(CLA_HEAP heap) { cla_malloc(heap, 3); } kernel void g(CLA_HEAP cla__heap) { "
       "cla_malloc(cla__heap, 1); }"},
  };
  expect_all(0, pairs, LENGTH(pairs));
}

/* The compiler's own complaint, on the right line, is the best one about these. */
static void broken_sources_are_left_to_the_compiler(void) {
  static const char *const sources[] = {
      "kernel void f() { malloc(3); } } void g() { &malloc; }",
      "int x = malloc(3); void f( {",
      "&malloc; {",
      "#if A\n&malloc;",
      ") malloc(",
  };
  for (size_t i = 0; i < LENGTH(sources); i++) expect(0, sources[i], sources[i]);
  expect(0, "kernel void f() { malloc(3); /* } malloc(4)",
         "kernel void f(CLA_HEAP cla__heap) { cla_malloc(cla__heap, 3); /* } malloc(4)");
  expect(0, "kernel void f() { malloc(3); \"abc\n; free(0); }",
         "kernel void f(CLA_HEAP cla__heap) { cla_malloc(cla__heap, 3); \"abc\n; cla_free(cla__heap, 0); }");
}

/* ---- Refused -------------------------------------------------------------------------------------------- */

static void refuse(const char *source, const char *wanted) {
  cla_heap_rewritten r = {.nbytes = 77};
  CHECK(cla_heap_rewrite(source, 0, &r) == CLA_E_INVALID && r.nbytes == 77);
  if (!CHECK(strncmp(cla_last_error(), wanted, strlen(wanted)) == 0))
    fprintf(stderr, "  got:    %s\n  wanted: %s\n", cla_last_error(), wanted);
  CHECK(strstr(cla_last_error(), "CLA_HEAP heap, and cla_malloc(heap, n)") != NULL);
}

static void what_cannot_be_rewritten_is_refused(void) {
  static const char made[] =
      "#define LIST(T) global T *make_##T(T v) { global T *p = malloc(sizeof(T)); return p; }\n\n";
  char source[256];
  snprintf(source, sizeof source, "%sLIST(int)\nLIST(float)\nkernel void f() { make_int(3); }", made);
  refuse(source, "line 3: the macro LIST makes the function make_int, which allocates");
  refuse("#define FN(name, T) static T name(global int *x)\nFN(foo, void) { free(x); }",
         "line 2: the macro FN makes the function foo, which allocates");
  refuse("#define FN(name) void name(global int *x)\nstatic FN(foo) { free(x); }",
         "line 2: the macro FN makes the function foo, which allocates");
  refuse("#define KERNEL(name) kernel void k_##name\nKERNEL(foo)(global int *x) { free(x); }",
         "line 2: the macro KERNEL makes the function k_foo, which allocates");
  refuse("#define OPEN(name) kernel void name(global int *x) {\nOPEN(f) malloc(3); }",
         "line 2: the macro OPEN makes the function f, which allocates");
  refuse("#define FN(T, name, params) static T name params\nFN(void, foo, (int x)) { free(x); }",
         "line 2: the macro FN makes the function foo, which allocates");
  refuse("#define CALL(f, x) f(x)\nvoid g(int x) { free(0); }\nvoid f() { CALL(g, 3); }",
         "line 3: g, which allocates, is given to a macro instead of being called");
  refuse("#define CALL(x, f) f(x)\n#define ALSO(...) CALL(__VA_ARGS__)\nvoid g(int x) { free(0); }\nvoid f() {\n"
         "CALL(max(1, 2), g); }",
         "line 5: g, which allocates, is given to a macro instead of being called");
  /* although a configuration that is none closes what is not open */
  refuse("#ifdef __cplusplus\nextern \"C\" {\n#endif\nvoid f() {\n  &malloc; }\n#ifdef __cplusplus\n}\n#endif\n",
         "line 5: malloc is used without being called");
  refuse("void f() {\n  void *p = &malloc;\n}", "line 2: malloc is used without being called");
  refuse("void f() { g(1, free); }", "line 1: free is used without being called");
  refuse("void f() { (calloc)(1, 1); }", "line 1: calloc is used without being called");
  refuse("#define APPLY(f, x) f(x)\nvoid f() { APPLY(malloc, 3); }", "line 2: malloc is used without being called");
  refuse("#line 10\n#define M(x) g(x, realloc)\n", "line 10: realloc is used without being called");
  refuse("int x = malloc(3);", "line 1: malloc is called outside of any function");
  refuse("void g() { free(0); }\nint x = g();", "line 2: g, which allocates, is called outside of any function");
  refuse("#if A\nvoid g(int a) { free(0); }\n#else\nvoid g(int a, int b) { free(0); }\n#endif\n#define G g\nvoid f() { "
         "G(1); }",
         "line 6: the macro G stands for a function with different parameters");
}

static void arguments_are_checked(void) {
  cla_heap_rewritten r;
  CHECK(cla_heap_rewrite(NULL, 0, &r) == CLA_E_INVALID && strstr(cla_last_error(), "source is NULL") != NULL);
  CHECK(cla_heap_rewrite("", 0, NULL) == CLA_E_INVALID && strstr(cla_last_error(), "out is NULL") != NULL);
  CHECK(cla_heap_rewrite("", 2, &r) == CLA_E_INVALID && strstr(cla_last_error(), "0x2") != NULL);
  cla_heap_rewritten_free(NULL);
}

static void kernels_are_listed(void) {
  static const char renamed[] =
      "#if A\n#define NAME a\n#else\n#define NAME b\n#endif\nkernel void NAME(int x) { free(0); }";
  static const char source[] =
      "kernel void b(int); kernel void b(int x) { free(0); } kernel void none(int x) { }\n"
      "#if A\nkernel void a() { b(1); }\n#else\nkernel void a() { }\n#endif\nvoid g() { b(1); }";
  cla_heap_rewritten r;
  CHECK(cla_heap_rewrite(source, 0, &r) == CLA_OK && r.nkernels == 2 && r.is_changed && r.needs_library);
  CHECK(strcmp(r.kernels[0], "b") == 0 && strcmp(r.kernels[1], "a") == 0);
  cla_heap_rewritten_free(&r);
  CHECK(r.text == NULL && r.nkernels == 0);
  CHECK(cla_heap_rewrite(renamed, 0, &r) == CLA_OK && r.nkernels == 3);
  CHECK(strcmp(r.kernels[0], "NAME") == 0 && strcmp(r.kernels[1], "a") == 0 && strcmp(r.kernels[2], "b") == 0);
  cla_heap_rewritten_free(&r);
  CHECK(cla_heap_rewrite("void f(CLA_HEAP heap) { }", 0, &r) == CLA_OK && !r.is_changed && r.needs_library);
  cla_heap_rewritten_free(&r);
  CHECK(cla_heap_rewrite("#include \"x.h\"\n", 0, &r) == CLA_OK && !r.is_changed && r.needs_library);
  cla_heap_rewritten_free(&r);
  CHECK(cla_heap_rewrite("void f(int CLA_HEAPS) { }", 0, &r) == CLA_OK && !r.needs_library);
  cla_heap_rewritten_free(&r);
}

/* ---- Anything at all ------------------------------------------------------------------------------------- */

static const char corpus[] =
    "#define ALLOC malloc\n#define NEW(T) ((global T *)malloc(sizeof(T)))\n"
    "#define RELEASE(p) do { free(p); \\\n (p) = 0; } while (0)\n#define KERNEL(name) kernel void name\n"
    "#define OPEN(name) void name(int x) {\n#define CLOSE }\n#define LIST(T) T *make_##T(T v) { return "
    "malloc(sizeof(T)); }\n"
    "typedef struct node { global struct node *next; int free; } node;\nstatic global node *push(global node *head, "
    "int v);\n"
    "void g(void); /* malloc(3) */\n__attribute__((reqd_work_group_size(8, 1, 1))) kernel void f(global int *out) {\n"
    "  int free = 3; // malloc(3)\n  global node *n = push(0, \"malloc(3)\"[0]);\n  n->free = free; (void)'('; "
    "ALLOC(4);\n"
    "  void g(void);\n  g(); goto end;\nend: out[0] = 1; }\nstatic global node *push(global node *head, int v) {\n"
    "  global node *n = NEW(node);\n mal\\\nloc(4); calloc(1, 2); realloc(n, 3); aligned_alloc(16, 16);\n  return n; "
    "}\n"
    "#line 7\n#if 0\ndon't\n#elif A\nvoid g(void) { free(0); }\n#else\nvoid g(void) { RELEASE(n); }\n#endif\n"
    "int plain(int x) { return x; }\nKERNEL(h)(void) { plain(3); f(0); }\n#define plain(x) plain(x, 1)\n#include "
    "<a.h>\n"
    "struct s { int a; } u = { 1 }, w(int x); enum { P, Q } (v)(int y) { malloc(y); return P; }\n#error x\n";

static uint64_t seed = 1;
static size_t below(size_t n) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (size_t)(seed % n);
}

static size_t count_lines(const char *text) {
  size_t n = 0;
  for (const char *at = strchr(text, '\n'); at; at = strchr(at + 1, '\n')) n++;
  return n;
}

/* Copies, drops or swaps pieces of the corpus, or puts a character somewhere. */
static void mutate(char *text, size_t room) {
  static const char letters[] = "(){}[];,#\\\n\r\"'/*<>%:.- \tam_019&=^\x80";
  const size_t n = strlen(text), at = below(n + 1), length = below(40) < 35 ? below(12) : below(n - at + 1);
  const size_t end = at + length < n ? at + length : n;
  switch (below(4)) {
  case 0: memmove(text + at, text + end, n - end + 1); return;
  case 1:
    if (n + 2 > room) return;
    memmove(text + at + 1, text + at, n - at + 1);
    text[at] = letters[below(sizeof letters - 1)];
    return;
  case 2:
    if (at < n) text[at] = letters[below(sizeof letters - 1)];
    return;
  default: {
    const size_t from = below(sizeof corpus - 1), piece = below(60);
    const size_t copied = from + piece < sizeof corpus - 1 ? piece : sizeof corpus - 1 - from;
    if (n + copied + 1 > room) return;
    memmove(text + at + copied, text + at, n - at + 1);
    memcpy(text + at, corpus + from, copied);
  }
  }
}

/* No line moves, and what was rewritten needs no more rewriting. */
static void check_result(const char *source, unsigned flags) {
  cla_heap_rewritten r, again;
  const cla_status status = cla_heap_rewrite(source, flags, &r);
  if (status) {
    CHECK(status == CLA_E_INVALID && strncmp(cla_last_error(), "line ", 5) == 0);
    return;
  }
  bool is_good = CHECK(count_lines(source) == count_lines(r.text)) && CHECK(r.nbytes == strlen(r.text));
  if (r.is_changed) {
    is_good &= CHECK(cla_heap_rewrite(r.text, flags, &again) == CLA_OK);
    if (is_good) {
      is_good = CHECK(strcmp(again.text, r.text) == 0);
      cla_heap_rewritten_free(&again);
    }
  } else {
    is_good &= CHECK(strcmp(source, r.text) == 0);
  }
  if (!is_good) fprintf(stderr, "---- of\n%s\n---- came\n%s\n----\n", source, r.text);
  cla_heap_rewritten_free(&r);
}

static void no_text_is_too_strange(void) {
  enum { ROUNDS = 4000, MUTATIONS = 12, ROOM = 8192 };
  static char text[ROOM];
  for (int round = 0; round < ROUNDS; round++) {
    memcpy(text, corpus, sizeof corpus);
    for (size_t n = below(MUTATIONS); n > 0; n--) mutate(text, ROOM);
    check_result(text, round & 1);
  }
  for (int round = 0; round < ROUNDS; round++) { /* noise of the same alphabet */
    text[0] = '\0';
    for (size_t n = below(60); n > 0; n--) mutate(text, ROOM);
    check_result(text, round & 1);
  }
}

static char *repeated(const char *unit, size_t nbytes) {
  const size_t length = strlen(unit), times = nbytes / length + 1;
  char *text = malloc(times * length + 1);
  if (!text) abort();
  for (size_t i = 0; i < times; i++) memcpy(text + i * length, unit, length);
  text[times * length] = '\0';
  return text;
}

static void no_text_takes_long(void) {
  static const char *const units[] = {
      corpus,
      "(",
      ")",
      "f(",
      "{",
      "}",
      "#if 0\n{\n#else\n",
      "#if X\n{\n#else\n",
      "#ifdef A\n",
      "a ",
      "\\\n",
      "\\ ",
      "/",
      "/*",
      "\"",
      "#define a b\n",
      "#define a malloc\n",
      "a(malloc(3))",
      "*x ",
      "void f(int),",
      "#pragma x\ng(",
      "a(b)(c) ",
      "#define a(x) x\n#undef a\n",
      "void f(){free(0);}\n#define M(a, b) #a b##b\nvoid g(){M(f,f,",
      "f,",
      "int g(int), h(int), ",
      "int f(int x) ",
      "#define M(a) a\nM(x)(y) {",
      "f\n#if 0\n(\n#endif\n",
  };
  for (size_t i = 0; i < LENGTH(units); i++) {
    char *text = repeated(units[i], 1 << 20);
    cla_heap_rewritten r;
    if (cla_heap_rewrite(text, 0, &r) == CLA_OK) cla_heap_rewritten_free(&r);
    free(text);
    CHECK(true);
  }
}

/* Lists of one name's macros and functions, gone through for each use. */
static void no_name_is_used_too_often(void) {
  enum { TIMES = 20000, LINE = 64 };
  char *text = malloc((size_t)TIMES * LINE), *at = text;
  if (!text) abort();
  for (int i = 0; i < TIMES; i++) at += sprintf(at, "void f() { free(0); A(); }\n#define A f\n#define f g\n");
  cla_heap_rewritten r;
  if (CHECK(cla_heap_rewrite(text, 0, &r) == CLA_OK)) cla_heap_rewritten_free(&r);
  free(text);
}

/* Chains of names that each stand for the next: a round over all of them per link would be quadratic. */
static void no_chain_is_too_long(void) {
  enum { LINKS = 40000, LINE = 48 };
  char *text = malloc((size_t)2 * LINKS * LINE + 200), *at = text;
  if (!text) abort();
  for (int i = LINKS; i > 0; i--) at += sprintf(at, "#define a%d a%d\nvoid f%d() { f%d(); }\n", i, i - 1, i, i - 1);
  sprintf(at, "#define a0 malloc\nvoid f0() { a%d(3); }\nkernel void f() { f%d(); }", LINKS, LINKS);
  cla_heap_rewritten r;
  if (CHECK(cla_heap_rewrite(text, 0, &r) == CLA_OK)) {
    CHECK(r.nkernels == 1 && strcmp(r.kernels[0], "f") == 0 &&
          strstr(r.text, "void f40000(CLA_HEAP cla__heap)") != NULL);
    cla_heap_rewritten_free(&r);
  }
  free(text);
}

/* However much memory there is, it is enough or the call says so. */
static void memory_runs_out_cleanly(void) {
#ifndef __SANITIZE_ADDRESS__
  char *text = repeated(corpus, 3 << 20);
  struct rlimit before, tight;
  size_t failed = 0, succeeded = 0;
  unsigned long pages = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  if (!text || !statm || fscanf(statm, "%lu", &pages) != 1) abort();
  fclose(statm);
  getrlimit(RLIMIT_AS, &before);
  for (size_t more = 0; more < (size_t)400 << 20; more += (size_t)16 << 20) {
    cla_heap_rewritten r;
    tight = before;
    tight.rlim_cur = pages * 4096 + more;
    if (setrlimit(RLIMIT_AS, &tight)) abort();
    const cla_status status = cla_heap_rewrite(text, 0, &r);
    setrlimit(RLIMIT_AS, &before);
    if (status == CLA_E_NOMEM) failed++;
    else if (CHECK(status == CLA_OK)) succeeded++;
    if (!status) cla_heap_rewritten_free(&r);
  }
  CHECK(failed > 0 && succeeded > 0);
  free(text);
#endif
}

int main(void) {
  calls_are_rewritten();
  macros_are_rewritten();
  branches_are_all_rewritten();
  sites_go_along();
  nothing_to_do_changes_nothing();
  names_of_ones_own_are_ones_own();
  broken_sources_are_left_to_the_compiler();
  what_cannot_be_rewritten_is_refused();
  arguments_are_checked();
  kernels_are_listed();
  no_text_is_too_strange();
  no_text_takes_long();
  no_name_is_used_too_often();
  no_chain_is_too_long();
  memory_runs_out_cleanly();
  return check_done("heap_rewrite");
}
