/* Reads OpenCL C source as far as the simulated device needs: which kernels, which parameters.
 *
 * Assumes kernels written out as text: macros are not expanded, includes not followed, types that
 * are not built in not looked up. Of a conditional the first branch is read, but the second of
 * `#if 0`. A source fails to build if it has an #error outside all conditionals, an unterminated
 * comment or conditional, or brackets that do not match: the log says `<source>:LINE: error: ...`.
 */
#include "driver/sim.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONDITIONALS = 64, MAX_WORDS = 16 };

typedef struct scan {
  char *text; /* the source with all that is no code blanked out; line breaks stay */
  size_t n;
  char **log;
  cl_int err;
} scan;

static size_t line_at(const scan *s, size_t at) {
  size_t line = 1;
  for (size_t i = 0; i < at && i < s->n; i++) line += s->text[i] == '\n';
  return line;
}

/* The first error stands. */
static __attribute__((format(printf, 3, 4))) void fail_at(scan *s, size_t at, const char *format, ...) {
  if (s->err != CL_SUCCESS) return;
  char message[200];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  const size_t size = strlen(message) + 64;
  *s->log = malloc(size);
  s->err = *s->log != NULL ? CL_BUILD_PROGRAM_FAILURE : CL_OUT_OF_HOST_MEMORY;
  if (*s->log != NULL) snprintf(*s->log, size, "<source>:%zu: error: %s\n", line_at(s, at), message);
}

/* ---- Blanking what is no code ---- */

typedef struct conditionals {
  unsigned depth;
  uint64_t skipped; /* bit d: the branch of level d is not read */
  uint64_t done;    /* bit d: a branch of level d has been read */
} conditionals;

static void blank(scan *s, size_t from, size_t to) {
  for (size_t i = from; i < to; i++)
    if (s->text[i] != '\n') s->text[i] = ' ';
}

static bool starts(const scan *s, size_t at, const char *what) {
  return strncmp(s->text + at, what, strlen(what)) == 0;
}

static size_t end_of_comment(scan *s, size_t at) {
  if (starts(s, at, "/*")) {
    const char *end = strstr(s->text + at + 2, "*/");
    if (end != NULL) return (size_t)(end - s->text) + 2;
    fail_at(s, at, "unterminated comment");
    return s->n;
  }
  while (at < s->n && s->text[at] != '\n') at += starts(s, at, "\\\n") ? 2 : 1;
  return at;
}

static size_t end_of_quote(const scan *s, size_t at) {
  const char quote = s->text[at++];
  while (at < s->n && s->text[at] != quote && s->text[at] != '\n') at += s->text[at] == '\\' && at + 1 < s->n ? 2 : 1;
  return at < s->n ? at + 1 : s->n;
}

static size_t end_of_directive(scan *s, size_t at) {
  while (at < s->n && s->text[at] != '\n') {
    if (starts(s, at, "/*") || starts(s, at, "//")) at = end_of_comment(s, at);
    else at += starts(s, at, "\\\n") ? 2 : 1;
  }
  return at;
}

/* The text after a directive's '#': is its first word this one? */
static bool is_word(const char *text, const char *word) {
  const size_t n = strlen(word);
  return strncmp(text, word, n) == 0 && !isalnum((unsigned char)text[n]) && text[n] != '_';
}

static void open_conditional(scan *s, conditionals *c, size_t at, bool is_zero) {
  if (c->depth == MAX_CONDITIONALS) {
    fail_at(s, at, "conditionals nested too deep");
    return;
  }
  const uint64_t bit = UINT64_C(1) << c->depth++;
  c->skipped = is_zero ? c->skipped | bit : c->skipped & ~bit;
  c->done = is_zero ? c->done & ~bit : c->done | bit;
}

static void next_branch(conditionals *c) {
  const uint64_t bit = UINT64_C(1) << (c->depth - 1);
  c->skipped = (c->done & bit) != 0 ? c->skipped | bit : c->skipped & ~bit;
  c->done |= bit;
}

static void obey_directive(scan *s, conditionals *c, size_t at, size_t end) {
  const char *word = s->text + at + 1;
  while (*word == ' ' || *word == '\t') word++;
  if (is_word(word, "if") || is_word(word, "ifdef") || is_word(word, "ifndef")) {
    const char *rest = word + 2;
    while (*rest == ' ' || *rest == '\t') rest++;
    open_conditional(s, c, at, is_word(word, "if") && is_word(rest, "0"));
  } else if (is_word(word, "else") || is_word(word, "elif") || is_word(word, "endif")) {
    if (c->depth == 0) fail_at(s, at, "#%.*s without #if", *word == 'e' && word[1] == 'n' ? 5 : 4, word);
    else if (!is_word(word, "endif")) next_branch(c);
    else c->skipped &= ~(UINT64_C(1) << --c->depth);
  } else if (is_word(word, "error") && c->depth == 0) {
    fail_at(s, at, "%.*s", (int)(end - at < 160 ? end - at : 160), s->text + at);
  }
}

static void blank_all(scan *s) {
  conditionals c = {0};
  bool at_line_start = true;
  for (size_t i = 0; i < s->n && s->err == CL_SUCCESS;) {
    const char ch = s->text[i];
    size_t end = i + 1;
    if (starts(s, i, "/*") || starts(s, i, "//")) end = end_of_comment(s, i);
    else if (ch == '"' || ch == '\'') end = end_of_quote(s, i);
    else if (ch == '#' && at_line_start) {
      end = end_of_directive(s, i);
      obey_directive(s, &c, i, end);
    } else {
      if (ch == '\n') at_line_start = true;
      else if (!isspace((unsigned char)ch)) at_line_start = false;
      if (c.skipped == 0) {
        i = end;
        continue;
      }
    }
    blank(s, i, end);
    i = end;
  }
  if (c.depth > 0) fail_at(s, s->n, "unterminated conditional");
}

/* ---- Brackets ---- */

static char closer(char open) { return open == '(' ? ')' : open == '[' ? ']' : '}'; }

static void check_brackets(scan *s) {
  size_t *open = malloc((s->n + 1) * sizeof *open), depth = 0;
  if (open == NULL) {
    s->err = CL_OUT_OF_HOST_MEMORY;
    return;
  }
  for (size_t i = 0; i < s->n && s->err == CL_SUCCESS; i++) {
    const char ch = s->text[i];
    if (ch == '(' || ch == '[' || ch == '{') open[depth++] = i;
    else if (ch == ')' || ch == ']' || ch == '}') {
      if (depth == 0) fail_at(s, i, "'%c' without opening", ch);
      else if (closer(s->text[open[depth - 1]]) != ch)
        fail_at(s, i, "expected '%c', not '%c'", closer(s->text[open[depth - 1]]), ch);
      else depth--;
    }
  }
  if (depth > 0 && s->err == CL_SUCCESS) fail_at(s, open[depth - 1], "'%c' is never closed", s->text[open[depth - 1]]);
  free(open);
}

/* ---- Words ---- */

typedef struct token {
  const char *at;
  size_t n; /* 0: the end */
} token;

static token next_token(const char **p) {
  while (isspace((unsigned char)**p)) ++*p;
  token t = {*p, 0};
  if (**p == '\0') return t;
  do t.n++;
  while ((isalnum((unsigned char)*t.at) || *t.at == '_') && (isalnum((unsigned char)t.at[t.n]) || t.at[t.n] == '_'));
  *p += t.n;
  return t;
}

static bool is(token t, const char *what) { return t.n == strlen(what) && memcmp(t.at, what, t.n) == 0; }

static bool is_name(token t) { return t.n > 0 && (isalpha((unsigned char)*t.at) || *t.at == '_'); }

/* "global" and "__global" are the same word. */
static bool is_keyword(token t, const char *what) {
  if (t.n > 2 && t.at[0] == '_' && t.at[1] == '_') t = (token){t.at + 2, t.n - 2};
  return is(t, what);
}

/* *p stands behind an opening bracket: moves it behind the one that closes it. */
static void skip_brackets(const char **p) {
  for (size_t depth = 1; depth > 0;) {
    const token t = next_token(p);
    if (t.n == 0) return;
    if (is(t, "(") || is(t, "[") || is(t, "{")) depth++;
    else if (is(t, ")") || is(t, "]") || is(t, "}")) depth--;
  }
}

/* ---- Parameters ---- */

static const struct {
  const char *name;
  size_t nbytes;
  bool has_vectors;
} value_types[] = {
    {"char", 1, true}, {"uchar", 1, true},   {"short", 2, true},      {"ushort", 2, true},    {"int", 4, true},
    {"uint", 4, true}, {"long", 8, true},    {"ulong", 8, true},      {"float", 4, true},     {"double", 8, true},
    {"half", 2, true}, {"size_t", 8, false}, {"ptrdiff_t", 8, false}, {"intptr_t", 8, false}, {"uintptr_t", 8, false},
};

/* Of "float4" and the like; 0 for a type that is not built in. */
static size_t value_nbytes(const char *type) {
  for (size_t i = 0; i < sizeof value_types / sizeof *value_types; i++) {
    const size_t n = strlen(value_types[i].name);
    if (strncmp(type, value_types[i].name, n) != 0) continue;
    if (type[n] == '\0') return value_types[i].nbytes;
    const unsigned lanes = (unsigned)strtoul(type + n, NULL, 10);
    if (value_types[i].has_vectors && isdigit((unsigned char)type[n]))
      return value_types[i].nbytes * (lanes == 3 ? 4 : lanes);
  }
  return 0;
}

typedef struct parameter {
  token words[MAX_WORDS]; /* of the type, then the name */
  size_t nwords;
  size_t stars;
  sim_arg arg;
} parameter;

static const struct {
  const char *word;
  cl_kernel_arg_address_qualifier address;
  cl_kernel_arg_access_qualifier access;
} qualifier_words[] = {
    {"global", CL_KERNEL_ARG_ADDRESS_GLOBAL, 0},        {"constant", CL_KERNEL_ARG_ADDRESS_CONSTANT, 0},
    {"local", CL_KERNEL_ARG_ADDRESS_LOCAL, 0},          {"private", CL_KERNEL_ARG_ADDRESS_PRIVATE, 0},
    {"read_only", 0, CL_KERNEL_ARG_ACCESS_READ_ONLY},   {"write_only", 0, CL_KERNEL_ARG_ACCESS_WRITE_ONLY},
    {"read_write", 0, CL_KERNEL_ARG_ACCESS_READ_WRITE},
};

static bool take_qualifier(parameter *d, token t) {
  for (size_t i = 0; i < sizeof qualifier_words / sizeof *qualifier_words; i++) {
    if (!is_keyword(t, qualifier_words[i].word)) continue;
    if (qualifier_words[i].address != 0) d->arg.address = qualifier_words[i].address;
    if (qualifier_words[i].access != 0) d->arg.access = qualifier_words[i].access;
    return true;
  }
  /* const and volatile speak of what is pointed to, restrict of the pointer */
  if (is_keyword(t, "const")) {
    if (d->stars == 0) d->arg.qualifiers |= CL_KERNEL_ARG_TYPE_CONST;
  } else if (is_keyword(t, "volatile")) {
    if (d->stars == 0) d->arg.qualifiers |= CL_KERNEL_ARG_TYPE_VOLATILE;
  } else if (is_keyword(t, "restrict") || is(t, "__restrict__")) {
    d->arg.qualifiers |= CL_KERNEL_ARG_TYPE_RESTRICT;
  } else if (is(t, "pipe")) {
    d->arg.qualifiers |= CL_KERNEL_ARG_TYPE_PIPE;
  } else return false;
  return true;
}

static bool is_type_word(token t) {
  static const char *const words[] = {"unsigned", "signed", "char", "short", "int", "long", "float", "double", "half"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (is(t, words[i])) return true;
  return false;
}

/* The type as OpenCL names it: "unsigned int" is "uint"; "*" for each level of pointer. */
static char *type_name(const token *words, size_t n, size_t stars) {
  size_t size = stars + n + 8;
  bool is_unsigned = false, is_builtin = false;
  token base = {"int", 3};
  for (size_t i = 0; i < n; i++) {
    size += words[i].n;
    if (is(words[i], "unsigned")) is_unsigned = true;
    is_builtin = is_builtin || is_type_word(words[i]);
    const bool is_sign = is(words[i], "unsigned") || is(words[i], "signed");
    if (!is_sign && !(is(words[i], "int") && base.n != 3)) base = words[i];
  }
  char *name = malloc(size), *end = name;
  if (name == NULL) return NULL;
  if (is_builtin) end += sprintf(end, "%s%.*s", is_unsigned ? "u" : "", (int)base.n, base.at);
  else
    for (size_t i = 0; i < n; i++) end += sprintf(end, "%s%.*s", i > 0 ? " " : "", (int)words[i].n, words[i].at);
  memset(end, '*', stars);
  end[stars] = '\0';
  return name;
}

static cl_int finish_parameter(parameter *d, sim_arg *out) {
  const bool is_named = d->nwords > 1 && !is_type_word(d->words[d->nwords - 1]);
  const token name = is_named ? d->words[d->nwords - 1] : (token){"", 0};
  sim_arg *arg = &d->arg;
  arg->is_pointer = d->stars > 0;
  arg->name = strndup(name.at, name.n);
  arg->type = type_name(d->words, d->nwords - is_named, d->stars);
  if (arg->name == NULL || arg->type == NULL) {
    free(arg->name);
    free(arg->type);
    return CL_OUT_OF_HOST_MEMORY;
  }
  if (!arg->is_pointer) {
    arg->nbytes = value_nbytes(arg->type);
    arg->qualifiers &= CL_KERNEL_ARG_TYPE_PIPE;
  } else if (arg->address == CL_KERNEL_ARG_ADDRESS_PRIVATE) {
    arg->address = CL_KERNEL_ARG_ADDRESS_GLOBAL; /* a macro hides the word: no other is legal */
  } else if (arg->address == CL_KERNEL_ARG_ADDRESS_CONSTANT) {
    arg->qualifiers |= CL_KERNEL_ARG_TYPE_CONST;
  }
  *out = *arg;
  return CL_SUCCESS;
}

/* Reads up to and with the ',' or ')' behind a parameter; false: there was none. */
static bool read_parameter(const char **p, parameter *d, bool *is_last) {
  *d = (parameter){.arg = {.address = CL_KERNEL_ARG_ADDRESS_PRIVATE, .access = CL_KERNEL_ARG_ACCESS_NONE}};
  for (;;) {
    const token t = next_token(p);
    *is_last = t.n == 0 || is(t, ")");
    if (*is_last || is(t, ",")) break;
    if (is(t, "*")) d->stars++;
    else if (is(t, "[")) {
      d->stars++;
      skip_brackets(p);
    } else if (is(t, "(")) skip_brackets(p); /* of an attribute */
    else if (!is_keyword(t, "attribute__") && !take_qualifier(d, t) && is_name(t) && d->nwords < MAX_WORDS)
      d->words[d->nwords++] = t;
  }
  const bool is_void = d->nwords == 1 && d->stars == 0 && is(d->words[0], "void");
  return d->nwords > 0 && !is_void;
}

static void function_free(sim_function *f) {
  for (size_t i = 0; i < f->nargs; i++) {
    free(f->args[i].name);
    free(f->args[i].type);
  }
  free(f->args);
  free(f->name);
}

void cla__sim_functions_free(sim_function *functions, size_t n) {
  for (size_t i = 0; i < n; i++) function_free(&functions[i]);
  free(functions);
}

static cl_int read_parameters(const char **p, sim_function *f) {
  parameter d;
  for (bool is_last = false; !is_last;) {
    if (!read_parameter(p, &d, &is_last)) continue;
    sim_arg *args = realloc(f->args, (f->nargs + 1) * sizeof *args);
    if (args == NULL) return CL_OUT_OF_HOST_MEMORY;
    f->args = args;
    const cl_int err = finish_parameter(&d, &args[f->nargs]);
    if (err != CL_SUCCESS) return err;
    f->nargs++;
  }
  return CL_SUCCESS;
}

/* ---- Kernels ---- */

/* *p stands behind `__attribute__`: looks for reqd_work_group_size(x, y, z). */
static void read_attribute(const char **p, size_t group[3]) {
  const char *from = *p;
  if (!is(next_token(p), "(")) {
    *p = from;
    return;
  }
  from = *p;
  skip_brackets(p);
  while (from < *p) {
    if (!is_keyword(next_token(&from), "reqd_work_group_size")) continue;
    for (size_t i = 0; i < 3; i++) {
      next_token(&from); /* '(' or ',' */
      group[i] = strtoul(next_token(&from).at, NULL, 10);
    }
    return;
  }
}

/* *p stands behind the word `kernel`. Takes a definition into *f; f->name stays NULL otherwise. */
static cl_int read_kernel(const char **p, sim_function *f) {
  token name = {"", 0}, t;
  *f = (sim_function){0};
  while (!is(t = next_token(p), "(")) {
    if (t.n == 0 || is(t, ";") || is(t, "{") || is(t, "}")) return CL_SUCCESS;
    if (is_keyword(t, "attribute__")) read_attribute(p, f->group);
    else name = t;
  }
  cl_int err = read_parameters(p, f);
  const char *behind = *p;
  while (err == CL_SUCCESS && is_keyword(t = next_token(&behind), "attribute__")) {
    read_attribute(&behind, f->group);
    *p = behind;
  }
  if (err == CL_SUCCESS && is(t, "{") && is_name(name)) {
    f->name = strndup(name.at, name.n);
    if (f->name == NULL) err = CL_OUT_OF_HOST_MEMORY;
  }
  if (f->name == NULL) function_free(f);
  return err;
}

static void find_kernels(scan *s, sim_function **functions, size_t *n) {
  const char *p = s->text;
  for (token t = next_token(&p); t.n > 0 && s->err == CL_SUCCESS; t = next_token(&p)) {
    if (is(t, "{")) skip_brackets(&p);
    if (!is_keyword(t, "kernel")) continue;
    sim_function f;
    s->err = read_kernel(&p, &f);
    if (s->err != CL_SUCCESS || f.name == NULL) continue;
    sim_function *more = realloc(*functions, (*n + 1) * sizeof *more);
    if (more == NULL) {
      function_free(&f);
      s->err = CL_OUT_OF_HOST_MEMORY;
      continue;
    }
    *functions = more;
    more[(*n)++] = f;
  }
}

cl_int cla__sim_scan(const char *source, sim_function **functions, size_t *n, char **log) {
  scan s = {.text = strdup(source), .n = strlen(source), .log = log, .err = CL_SUCCESS};
  *functions = NULL;
  *n = 0;
  *log = NULL;
  if (s.text == NULL) return CL_OUT_OF_HOST_MEMORY;
  blank_all(&s);
  if (s.err == CL_SUCCESS) check_brackets(&s);
  if (s.err == CL_SUCCESS) find_kernels(&s, functions, n);
  if (s.err != CL_SUCCESS) {
    cla__sim_functions_free(*functions, *n);
    *functions = NULL;
    *n = 0;
  }
  free(s.text);
  return s.err;
}
