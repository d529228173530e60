/* A source text as the rewriter sees it: tokens, names, macros, functions, and who mentions whom.
 *
 *   tokens.c    text -> tokens and names; knows comments, literals, line splices, preprocessor directives
 *   outline.c   tokens -> macros, functions, calls; knows braces, conditionals, heads of functions
 *   rewrite.c   what needs the heap, and the new text
 *
 * Indices instead of pointers throughout, 0 for none: token 0, name 0, macro 0, function 0 and mention 0 exist and
 * stand for nothing. All of it is linear in the size of the text, for any text. */
#ifndef CLA_HEAP_TOKENS_H
#define CLA_HEAP_TOKENS_H

#include "clalloc.h"

/* Words that mean something here, in any source; WORD_x is also the name's index. The allocating five come first. */
#define CLA_WORDS(WORD) \
  WORD(malloc)          \
  WORD(calloc)          \
  WORD(realloc)         \
  WORD(aligned_alloc)   \
  WORD(free)            \
  WORD(kernel)          \
  WORD(__kernel)        \
  WORD(void)            \
  WORD(static)          \
  WORD(inline)          \
  WORD(extern)          \
  WORD(return )         \
  WORD(else)            \
  WORD(case)            \
  WORD(goto)            \
  WORD(do)              \
  WORD(sizeof)          \
  WORD(struct)          \
  WORD(union)           \
  WORD(enum)            \
  WORD(__attribute__)   \
  WORD(__attribute)     \
  WORD(__declspec)      \
  WORD(_Alignas)        \
  WORD(_Static_assert)  \
  WORD(__asm__)         \
  WORD(asm)             \
  WORD(typeof)          \
  WORD(__typeof__)      \
  WORD(define)          \
  WORD(undef)           \
  WORD(include)         \
  WORD(if)              \
  WORD(ifdef)           \
  WORD(ifndef)          \
  WORD(elif)            \
  WORD(endif)           \
  WORD(error)           \
  WORD(line)
enum {
  WORD_none,
#define WORD(name) WORD_##name,
  CLA_WORDS(WORD)
#undef WORD
      WORDS
};

typedef enum cla_token_kind {
  TOKEN_END,    /* token 0, and the one behind the last */
  TOKEN_NAME,   /* identifiers and keywords */
  TOKEN_NUMBER, /* as the preprocessor sees numbers */
  TOKEN_TEXT,   /* a string, a character constant, the <name> of an #include */
  TOKEN_MARK    /* punctuation: one character, "->" or "##" */
} cla_token_kind;

enum { MARK_ARROW = 1, MARK_PASTE = 2 }; /* marks of two characters */

typedef struct cla_token {
  uint32_t start, nbytes; /* in the text, splices inside included */
  uint32_t line;          /* as #line directives have it */
  uint32_t name;          /* TOKEN_NAME: whose */
  uint32_t link;          /* ')' and ',': the '(' around them; '(': the '(' around that */
  uint32_t before;        /* outside functions: the token before, on its own path through the conditionals */
  uint32_t function;      /* the function whose body it is in */
  uint32_t declares;      /* '(' of a declarator's parameters: the name declared */
  uint8_t kind;           /* cla_token_kind */
  uint8_t mark;           /* TOKEN_MARK: the character, or MARK_... */
  uint8_t role;           /* '(': rewrite.c's */
  bool is_directive;      /* from '#' to the end of its line */
  bool is_first;          /* the '#' of a directive */
  bool is_spaced;         /* something invisible stands before it */
  bool is_spliced;        /* a line splice stands inside */
  bool is_dead;           /* inside "#if 0" */
} cla_token;

typedef struct cla_name {
  const char *text;
  uint32_t nbytes, hash;
  uint32_t macro;    /* its first #define */
  uint32_t undef;    /* the name in its last #undef, if no #define follows */
  uint32_t function; /* its first definition as a function */
  uint32_t mentions; /* the latest mention of it */
  uint32_t param_of; /* the macro being read, if this is a parameter of it */
  uint32_t place;    /* which parameter, from 1 */
  int32_t nparams;   /* rewrite.c's: of a call of it */
  int32_t opens;     /* macros: '{' less '}' in what they stand for */
  bool is_kernel;    /* a function that is one, a macro that stands for the keyword among others */
  bool is_called;    /* NAME( occurs, through other names too */
  bool is_variable;  /* declared as something that is no function */
  bool has_nparams;  /* they have been counted */
  bool is_heaps;     /* is called as the heap's, for one of the five */
  bool needs;        /* reaches an allocation: functions and macros */
} cla_name;

typedef struct cla_macro {
  uint32_t name, token; /* the NAME in its #define */
  uint32_t open, close; /* parentheses of the parameters; 0: none */
  uint32_t body, end;   /* tokens [body, end) */
  uint32_t next;        /* of the same name */
  uint32_t alias_of;    /* the body is just this name */
  uint32_t nparams;
  uint32_t tail; /* the body ends with this parameter, from 1 */
} cla_macro;

typedef struct cla_function {
  uint32_t name;
  uint32_t open, close; /* parentheses of the parameters */
  uint32_t nparams;
  uint32_t next; /* of the same name */
} cla_function;

typedef struct cla_mention {
  uint32_t by, next; /* the name of the function or macro that mentions */
} cla_mention;

typedef struct cla_source {
  const char *text;
  uint32_t nbytes;
  cla_token *tokens;
  uint32_t ntokens; /* with tokens 0 and the end */
  cla_name *names;
  uint32_t nnames;
  char *letters; /* of the names */
  uint32_t *slots, nslots;
  cla_macro *macros;
  uint32_t nmacros, macros_room;
  cla_function *functions;
  uint32_t nfunctions, functions_room;
  cla_mention *mentions;
  uint32_t nmentions, mentions_room;
  bool is_unbalanced; /* braces or parentheses do not match: the compiler will say so */
} cla_source;

/* ---- tokens.c ---- */

cla_status cla__source_read(const char *text, cla_source *out); /* fails with nothing to free */
void cla__source_free(cla_source *);
/* Room for one more; false: no memory. */
bool cla__source_grow(void **array, uint32_t n, uint32_t *room, size_t nbytes_each);
uint32_t cla__line_splice(const char *at); /* bytes of a backslash and line break there; 0: none */

static inline bool cla__is_mark(const cla_source *s, uint32_t token, char mark) {
  return s->tokens[token].kind == TOKEN_MARK && s->tokens[token].mark == (uint8_t)mark;
}
static inline bool cla__is_name(const cla_source *s, uint32_t token) { return s->tokens[token].kind == TOKEN_NAME; }
static inline bool cla__is_allocating(uint32_t name) { return name >= WORD_malloc && name <= WORD_free; }

/* ---- outline.c ---- */

cla_status cla__outline(cla_source *);

/* The token after this one that the compiler sees after it: of the same directive, or outside of all. 0: none. */
uint32_t cla__token_after(const cla_source *, uint32_t token);
/* The same backwards, outside of directives; not for token 0. */
uint32_t cla__token_before(const cla_source *, uint32_t token);
/* Is a macro of that name defined above the token, with parameters? */
bool cla__is_call_of_macro(const cla_source *, uint32_t name, uint32_t token);
/* "#define" whose parameters and body follow: makes its parameters known by param_of. */
void cla__enter_macro(cla_source *, uint32_t macro);
/* Not the macro's own: a parameter, part of a pasted name, or a member. */
bool cla__is_free_in_macro(const cla_source *, uint32_t macro, uint32_t token);
/* Whoever mentions the token's name reaches what it stands for: the mere name of a macro will do, unless it only
 * stands for another name. */
bool cla__is_reached(const cla_source *, uint32_t token, bool is_call);
/* The source owns this name: it defines a function or macro of its own by it. */
static inline bool cla__is_owned(const cla_source *s, uint32_t name) {
  return s->names[name].function || s->names[name].macro;
}
/* Here it is one of the five and the heap's: not a function's of the source, and no macro's. Those have it from the first
 * #define to an #undef that ends them, and wherever another macro says it, but not in their own bodies: 0 for `macro` or the
 * one whose body this is. So a macro malloc may stand for a function that calls malloc. */
bool cla__is_heaps(const cla_source *, uint32_t token, uint32_t macro);

#endif
