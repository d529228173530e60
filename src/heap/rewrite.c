/* malloc in kernels: the new text.
 *
 * A function needs the heap when it calls malloc, calloc, realloc, aligned_alloc or free, or a function or macro that
 * does. The rewriting, where nothing else of the text changes, and no line moves:
 *
 *   malloc(n)                   cla_malloc(cla__heap, n), in macros too; likewise the other four
 *   a function that needs it    takes CLA_HEAP cla__heap as its first parameter, and gets it where it is called
 *   a kernel that needs it      takes it as its last, so that the host's argument numbers stay
 *   #define ALLOC malloc        #define ALLOC(cla__1) cla_malloc(cla__heap, cla__1), if ALLOC is called
 *   with CLA_HEAP_WITH_SITES         cla_malloc_at(cla__heap, n, cla__site + LINE), and a uint cla__site goes along with
 *                               every cla__heap
 *
 * Both sides of conditionals are rewritten, except in "#if 0". Names that the source itself defines as a function are
 * its own, and those of macros from their #define on; so are variables, members and labels of these names, and
 * prototypes stay as they are. A header is not looked into: what it calls malloc stays undeclared, and the compiler says
 * so.
 *
 * Refused, with the line: malloc without a call (its address, an argument of a macro that calls it), and likewise the
 * name of a function that allocates, as a macro's argument; a call outside of functions; a function that allocates and
 * has its head from a macro, by pasting or not, as nothing can be added to it. Braces or parentheses that do not match
 * are the compiler's to complain about: such a source may come back unchanged, but is never refused. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heap/tokens.h"
#include "runtime/runtime.h"

/* What a '(' gets behind it, and its ')' before it. */
enum {
  ROLE_NONE,
  ROLE_ALLOCATION,    /* a call of one of the five */
  ROLE_FREE,          /* of free: it has no site */
  ROLE_CALL,          /* of a function that needs the heap */
  ROLE_KERNEL_CALL,   /* of a kernel */
  ROLE_PARAMS,        /* of a function */
  ROLE_KERNEL_PARAMS, /* of a kernel */
  ROLE_MACRO_PARAMS   /* of a macro with the name of a function: its calls have the argument more */
};

typedef struct rewriter {
  cla_source *s;
  char *text;
  size_t nbytes, room;
  bool has_sites, has_memory;
  bool is_changed, needs_library;
  bool is_refused; /* with the message left */
  uint32_t macro;  /* whose #define is being written; 0: none */
} rewriter;

/* ---- What needs the heap -------------------------------------------------------------------------- */

/* What is called by another name is called. */
static void spread_calls(cla_source *s, uint32_t *queue) {
  uint32_t n = 0;
  for (uint32_t i = 1; i < s->nnames; i++)
    if (s->names[i].is_called) queue[n++] = i;
  while (n) {
    for (uint32_t m = s->names[queue[--n]].macro; m; m = s->macros[m].next) {
      const uint32_t target = s->macros[m].alias_of;
      if (!target || s->names[target].is_called) continue;
      s->names[target].is_called = true;
      queue[n++] = target; /* its own macros are still to come: n never passes their number */
    }
  }
}

static void spread_needs(cla_source *s, uint32_t *queue) {
  uint32_t n = 0;
  for (uint32_t i = WORD_malloc; i <= WORD_free; i++)
    if (!s->names[i].function && (!s->names[i].macro || s->names[i].is_heaps)) queue[n++] = i;
  while (n) {
    for (uint32_t m = s->names[queue[--n]].mentions; m; m = s->mentions[m].next) {
      cla_name *by = &s->names[s->mentions[m].by];
      if (by->needs) continue;
      by->needs = true;
      queue[n++] = s->mentions[m].by;
    }
  }
}

static cla_status find_needs(cla_source *s) {
  uint32_t *queue = malloc(s->nnames * sizeof *queue);
  if (!queue) return CLA_E_NOMEM;
  spread_calls(s, queue);
  spread_needs(s, queue);
  free(queue);
  return CLA_OK;
}

/* ---- Writing --------------------------------------------------------------------------------------- */

static void put(rewriter *w, const char *text, size_t nbytes) {
  if (!w->has_memory) return;
  if (w->nbytes + nbytes + 1 > w->room) {
    const size_t room = 2 * (w->nbytes + nbytes) + 64;
    char *grown = realloc(w->text, room);
    w->has_memory = grown != NULL;
    if (!grown) return;
    w->text = grown;
    w->room = room;
  }
  memcpy(w->text + w->nbytes, text, nbytes);
  w->nbytes += nbytes;
  w->text[w->nbytes] = '\0';
}

__attribute__((format(printf, 2, 3))) static void add(rewriter *w, const char *format, ...) {
  char text[128];
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  w->is_changed = true;
  put(w, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static void copy(rewriter *w, uint32_t token) {
  put(w, w->s->text + w->s->tokens[token].start, w->s->tokens[token].nbytes);
}

/* A token that something else stands for keeps the lines that it went over. */
static void drop(rewriter *w, uint32_t token) {
  const cla_token *t = &w->s->tokens[token];
  const char *text = w->s->text + t->start;
  w->is_changed = true;
  for (uint32_t i = 0; t->is_spliced && i < t->nbytes; i++) put(w, text + i, cla__line_splice(text + i));
}

__attribute__((format(printf, 3, 4))) static void refuse(rewriter *w, uint32_t token, const char *format, ...) {
  char text[512];
  va_list args;
  if (w->is_refused) return;
  w->is_refused = true;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  cla__error(CLA_E_INVALID, "line %u: %s; what works everywhere: a parameter CLA_HEAP heap, and cla_malloc(heap, n)",
             (unsigned)w->s->tokens[token].line, text);
}

/* ---- Names of functions that macros make -------------------------------------------------------------- */

typedef struct spelling {
  char text[96];
  size_t n;
} spelling;

static void spell(spelling *out, const char *text, uint32_t nbytes) {
  const size_t left = sizeof out->text - 1 - out->n, n = nbytes < left ? nbytes : left;
  memcpy(out->text + out->n, text, n);
  out->n += n;
  out->text[out->n] = '\0';
}

/* The place-th argument of the call whose '(' this is: its first token, when it is just one. */
static uint32_t argument(const cla_source *s, uint32_t open, uint32_t place) {
  uint32_t depth = 0, at = 1;
  for (uint32_t i = cla__token_after(s, open); i; i = cla__token_after(s, i)) {
    if (!depth && at == place) return i;
    if (!depth && cla__is_mark(s, i, ')')) return 0;
    depth += cla__is_mark(s, i, '(') - cla__is_mark(s, i, ')');
    at += !depth && cla__is_mark(s, i, ',');
  }
  return 0;
}

/* The token of a macro's body in front of the parameters of the function that it makes: of "T *make_##T(int n) {",
 * the second T. Without parameters in it, the body's last. */
static uint32_t name_in_body(const cla_source *s, const cla_macro *m) {
  for (uint32_t i = m->body + 1; i < m->end; i++)
    if (cla__is_mark(s, i, '(') && cla__is_name(s, i - 1)) return i - 1;
  return m->end - 1;
}

/* What a token of the macro's body becomes, in the call with this '(': itself, or the first token of an argument. */
static uint32_t expanded(const cla_source *s, uint32_t macro, uint32_t token, uint32_t open) {
  const cla_name *name = &s->names[s->tokens[token].name];
  const bool is_param = cla__is_name(s, token) && name->param_of == macro && cla__is_mark(s, open, '(');
  return is_param ? argument(s, open, name->place) : token;
}

static void spell_made_name(cla_source *s, uint32_t use, spelling *out) {
  const uint32_t macro = s->names[s->tokens[use].name].macro, open = cla__token_after(s, use);
  const cla_macro *m = &s->macros[macro];
  if (m->body >= m->end) return;
  cla__enter_macro(s, macro);
  uint32_t last = name_in_body(s, m);
  if (last > m->body && cla__is_mark(s, expanded(s, macro, last, open), '('))
    last--; /* parameters that are an argument */
  uint32_t i = last;
  while (i >= m->body + 2 && cla__is_mark(s, i - 1, MARK_PASTE)) i -= 2;
  for (; i <= last; i += 2) {
    const cla_token *t = &s->tokens[expanded(s, macro, i, open)];
    spell(out, s->text + t->start, t->nbytes);
  }
}

/* ---- Tokens ---------------------------------------------------------------------------------------- */

static const char *text_of(const rewriter *w, uint32_t token) { return w->s->names[w->s->tokens[token].name].text; }
static int length_of(const rewriter *w, uint32_t token) { return (int)w->s->names[w->s->tokens[token].name].nbytes; }

static const char *hidden_arguments(const rewriter *w) { return w->has_sites ? "cla__heap, cla__site" : "cla__heap"; }
static const char *hidden_params(const rewriter *w) {
  return w->has_sites ? "CLA_HEAP cla__heap, uint cla__site" : "CLA_HEAP cla__heap";
}

static void give_role(cla_source *s, uint32_t open, uint32_t role) { s->tokens[open].role = (uint8_t)role; }

/* "cla__site + 12u", the line where the call's name stands; of a macro's call, the line where the macro is used. */
static void add_site(rewriter *w, uint32_t open) {
  if (w->macro) add(w, "cla__site + (__LINE__ & %d)", CLA_HEAP_MAX_LINE);
  else add(w, "cla__site + %uu", (unsigned)w->s->tokens[cla__token_before(w->s, open)].line & CLA_HEAP_MAX_LINE);
}

static void write_open(rewriter *w, uint32_t i) {
  cla_source *s = w->s;
  const cla_name *declared = &s->names[s->tokens[i].declares];
  if (declared->needs && declared->function) give_role(s, i, declared->is_kernel ? ROLE_KERNEL_PARAMS : ROLE_PARAMS);
  const uint32_t role = s->tokens[i].role, after = cla__token_after(s, i);
  const bool is_only = cla__is_mark(s, after, ')');
  copy(w, i);
  if (role == ROLE_ALLOCATION || role == ROLE_FREE) add(w, "cla__heap");
  else if (role == ROLE_CALL || role == ROLE_MACRO_PARAMS) add(w, "%s", hidden_arguments(w));
  else if (role == ROLE_PARAMS) add(w, "%s", hidden_params(w));
  else return;
  const bool is_void = role == ROLE_PARAMS && cla__is_name(s, after) && s->tokens[after].name == WORD_void &&
                       cla__is_mark(s, cla__token_after(s, after), ')');
  if (!is_only && !is_void) add(w, ", ");
}

static void write_close(rewriter *w, uint32_t i, uint32_t last) {
  const cla_source *s = w->s;
  const uint32_t open = s->tokens[i].link, role = s->tokens[open].role;
  const bool is_call = role == ROLE_KERNEL_CALL;
  const bool is_void =
      last && cla__is_name(s, last) && s->tokens[last].name == WORD_void && cla__token_after(s, open) == last;
  if (open && role == ROLE_ALLOCATION && w->has_sites) {
    add(w, ", ");
    add_site(w, open);
  }
  if (open && (is_call || role == ROLE_KERNEL_PARAMS))
    add(w, "%s%s", last == open || (is_void && !is_call) ? "" : ", ", is_call ? hidden_arguments(w) : hidden_params(w));
  copy(w, i);
}

/* "(void)" of a head that gets a parameter */
static bool is_dropped_void(const cla_source *s, uint32_t i, uint32_t last) {
  const uint32_t role = s->tokens[last].role;
  return s->tokens[i].name == WORD_void && (role == ROLE_PARAMS || role == ROLE_KERNEL_PARAMS) &&
         cla__is_mark(s, cla__token_after(s, i), ')');
}

static void write_allocation(rewriter *w, uint32_t i, uint32_t after) {
  const bool is_free = w->s->tokens[i].name == WORD_free;
  drop(w, i);
  add(w, "cla_%.*s%s", length_of(w, i), text_of(w, i), w->has_sites && !is_free ? "_at" : "");
  give_role(w->s, after, is_free ? ROLE_FREE : ROLE_ALLOCATION);
}

static void refuse_address(rewriter *w, uint32_t i) {
  refuse(w, i, "%.*s is used without being called, and only calls can be given the heap", length_of(w, i),
         text_of(w, i));
}

/* The name of a function is the argument of a macro that calls it, or of one that hands it on. */
static bool is_passed(const rewriter *w, uint32_t i, uint32_t after) {
  enum { FAR = 1024 }; /* tokens: in longer macros it is not looked for, which keeps all linear */
  cla_source *s = w->s;
  const uint32_t open = cla__is_mark(s, after, ',') || cla__is_mark(s, after, ')') ? s->tokens[after].link : 0;
  const uint32_t by = open ? cla__token_before(s, open) : 0, before = cla__token_before(s, i);
  if (!cla__is_name(s, by) || !cla__is_call_of_macro(s, s->tokens[by].name, by)) return false;
  if (before != open && !cla__is_mark(s, before, ',')) return false;
  const uint32_t macro = s->names[s->tokens[by].name].macro;
  const cla_macro *m = &s->macros[macro];
  if (i - open > FAR || m->end - m->body > FAR) return false;
  uint32_t place = 1;
  for (uint32_t t = open + 1; t < i; t++) place += cla__is_mark(s, t, ',') && s->tokens[t].link == open;
  cla__enter_macro(s, macro);
  for (uint32_t t = m->body; t < m->end; t++) {
    const cla_name *name = &s->names[s->tokens[t].name];
    const bool is_it = cla__is_name(s, t) && name->param_of == macro && name->place == place;
    const bool is_plain = t == m->body || !(cla__is_mark(s, t - 1, '#') || cla__is_mark(s, t - 1, MARK_PASTE));
    if (is_it && is_plain && !cla__is_mark(s, cla__token_after(s, t), MARK_PASTE)) return true;
  }
  return false;
}

/* A name outside of directives, with the token before it. */
static void write_name(rewriter *w, uint32_t i, uint32_t last) {
  cla_source *s = w->s;
  const cla_token *t = &s->tokens[i];
  const cla_name *name = &s->names[t->name];
  const uint32_t after = cla__token_after(s, i);
  const bool is_call = cla__is_mark(s, after, '('), is_heaps = cla__is_heaps(s, i, 0);
  if (is_dropped_void(s, i, last)) {
    drop(w, i);
    return;
  }
  const bool is_member = cla__is_mark(s, last, '.') || cla__is_mark(s, last, MARK_ARROW);
  const bool declares = is_call && s->tokens[after].declares == t->name;
  if (!is_member && is_heaps && !declares) {
    if (!is_call && !name->is_variable) refuse_address(w, i);
    if (is_call && !t->function) refuse(w, i, "%.*s is called outside of any function", length_of(w, i), text_of(w, i));
    if (is_call) {
      write_allocation(w, i, after);
      return;
    }
  }
  copy(w, i);
  if (is_member || !name->needs) return;
  if (is_call && name->function) {
    if (!declares && !t->function && !name->macro)
      refuse(w, i, "%.*s, which allocates, is called outside of any function", length_of(w, i), text_of(w, i));
    if (!declares) give_role(s, after, name->is_kernel ? ROLE_KERNEL_CALL : ROLE_CALL);
  }
  if (!is_call && t->function && name->function && !name->is_variable && is_passed(w, i, after))
    refuse(w, i, "%.*s, which allocates, is given to a macro instead of being called", length_of(w, i), text_of(w, i));
  const bool is_macro = name->macro && s->macros[name->macro].token < i && cla__is_reached(s, i, is_call);
  if (t->function || declares || !is_macro || (!is_call && name->is_variable)) return;
  spelling made = {.n = 0};
  spell_made_name(s, i, &made);
  refuse(w, i, "the macro %.*s makes the function %s, which allocates, and the heap cannot be passed to it",
         length_of(w, i), text_of(w, i), made.text);
}

/* ---- Macros ---------------------------------------------------------------------------------------- */

/* How many arguments a call has, where a macro of the function's name comes first; SOME_FORMS when that depends on the
 * branch. */
enum { SOME_FORMS = -1 };
static int32_t find_params(const cla_source *s, const cla_name *name) {
  int32_t by_functions = (int32_t)s->functions[name->function].nparams, by_macros = SOME_FORMS;
  for (uint32_t f = name->function; f; f = s->functions[f].next)
    if ((int32_t)s->functions[f].nparams != by_functions) by_functions = SOME_FORMS;
  for (uint32_t m = name->macro; m; m = s->macros[m].next) {
    if (!s->macros[m].open) continue;
    const int32_t n = (int32_t)s->macros[m].nparams;
    if (by_macros != SOME_FORMS && by_macros != n) return SOME_FORMS;
    by_macros = n;
  }
  return by_macros == SOME_FORMS ? by_functions : by_macros;
}

static int32_t count_params(const cla_source *s, uint32_t target) {
  if (cla__is_allocating(target) && !cla__is_owned(s, target))
    return target == WORD_malloc || target == WORD_free ? 1 : 2;
  cla_name *name = &s->names[target];
  if (!name->has_nparams) name->nparams = find_params(s, name);
  name->has_nparams = true;
  return name->nparams;
}

/* "#define ALLOC malloc": true when it has to become a macro with parameters, so that its calls stay as they are, or, when
 * another branch has a function ALLOC, as the calls of that are. */
static bool is_calling_alias(const cla_source *s, const cla_macro *m) {
  const cla_name *own = &s->names[m->name], *target = &s->names[m->alias_of];
  if (!m->alias_of || !own->is_called || own->is_kernel) return false;
  if (cla__is_allocating(m->alias_of) && !cla__is_owned(s, m->alias_of)) return true;
  return !own->function && target->function && target->needs;
}

static void add_names(rewriter *w, int n) {
  for (int i = 1; i <= n; i++) add(w, "%scla__%d", i > 1 ? ", " : "", i);
}

static void write_alias_params(rewriter *w, const cla_macro *m) {
  const int n = count_params(w->s, m->alias_of);
  if (n == SOME_FORMS)
    refuse(w, m->token, "the macro %.*s stands for a function with different parameters in different branches",
           length_of(w, m->token), text_of(w, m->token));
  add(w, "(");
  if (w->s->names[m->name].function) add(w, "%s%s", hidden_arguments(w), n ? ", " : "");
  add_names(w, n);
  add(w, ")");
}

static void write_alias_body(rewriter *w, const cla_macro *m) {
  const bool is_own = cla__is_owned(w->s, m->alias_of), is_kernel = is_own && w->s->names[m->alias_of].is_kernel;
  const bool has_site = !is_own && w->has_sites && m->alias_of != WORD_free;
  const int n = count_params(w->s, m->alias_of);
  drop(w, m->body);
  add(w, "%s%.*s%s(", is_own ? "" : "cla_", length_of(w, m->body), text_of(w, m->body), has_site ? "_at" : "");
  if (!is_kernel) add(w, "%s%s", is_own ? hidden_arguments(w) : "cla__heap", n ? ", " : "");
  add_names(w, n);
  if (is_kernel) add(w, "%s%s", n ? ", " : "", hidden_arguments(w));
  if (has_site) add(w, ", ");
  if (has_site) add_site(w, m->body);
  add(w, ")");
}

/* A name inside a #define. */
static void write_macro_name(rewriter *w, uint32_t i) {
  cla_source *s = w->s;
  const cla_macro *m = &s->macros[w->macro];
  const cla_name *name = &s->names[s->tokens[i].name];
  const uint32_t after = cla__token_after(s, i);
  const bool is_call = cla__is_mark(s, after, '('), is_heaps = cla__is_heaps(s, i, w->macro);
  if (i == m->token) {
    copy(w, i);
    if (is_calling_alias(s, m)) write_alias_params(w, m);
    if (m->open && name->function && name->needs && !name->is_kernel) give_role(s, m->open, ROLE_MACRO_PARAMS);
    return;
  }
  if (i < m->body || !cla__is_free_in_macro(s, w->macro, i)) {
    copy(w, i);
    return;
  }
  if (is_calling_alias(s, m)) {
    write_alias_body(w, m);
  } else if (is_heaps && is_call) {
    write_allocation(w, i, after);
  } else {
    if (is_heaps && !m->alias_of && !name->is_variable) refuse_address(w, i);
    if (is_call && name->function && name->needs) give_role(s, after, name->is_kernel ? ROLE_KERNEL_CALL : ROLE_CALL);
    copy(w, i);
  }
}

/* ---- The whole ------------------------------------------------------------------------------------ */

static void write_token(rewriter *w, uint32_t i, uint32_t last) {
  const cla_token *t = &w->s->tokens[i];
  const bool is_code = !t->is_dead && (w->macro || !t->is_directive);
  if (is_code && t->kind == TOKEN_NAME && w->macro) write_macro_name(w, i);
  else if (is_code && t->kind == TOKEN_NAME) write_name(w, i, last);
  else if (is_code && cla__is_mark(w->s, i, '(')) write_open(w, i);
  else if (is_code && cla__is_mark(w->s, i, ')')) write_close(w, i, last);
  else copy(w, i);
}

static void write_all(rewriter *w) {
  cla_source *s = w->s;
  uint32_t macro = 1, end = 0;
  uint32_t last = 0, last_in_macro = 0; /* the token before, as the compiler sees it */
  for (uint32_t i = 1; i < s->ntokens; i++) {
    const cla_token *t = &s->tokens[i];
    put(w, s->text + end, t->start - end);
    end = t->start + t->nbytes;
    if (t->is_first || !t->is_directive) w->macro = last_in_macro = 0;
    if (macro < s->nmacros && s->macros[macro].token == i) {
      w->macro = macro++;
      cla__enter_macro(s, w->macro);
    }
    write_token(w, i, w->macro ? last_in_macro : last);
    if (w->macro) last_in_macro = i;
    else if (!t->is_directive && !t->is_dead) last = i;
  }
}

/* By itself, or in a header. */
static bool names_library(const cla_source *s) {
  for (uint32_t i = 1; i + 1 < s->ntokens; i++)
    if (s->tokens[i].is_first && !s->tokens[i].is_dead && s->tokens[i + 1].name == WORD_include) return true;
  for (uint32_t i = WORDS; i < s->nnames; i++) {
    const cla_name *name = &s->names[i];
    if (name->nbytes >= 4 && memcmp(name->text, "cla_", 4) == 0) return true;
    if (name->nbytes == 8 && memcmp(name->text, "CLA_HEAP", 8) == 0) return true;
  }
  return false;
}

static cla_status list_kernels(const cla_source *s, cla_heap_rewritten *out) {
  out->kernels = calloc(s->nfunctions, sizeof *out->kernels);
  if (!out->kernels) return CLA_E_NOMEM;
  for (uint32_t f = 1; f < s->nfunctions; f++) {
    cla_name *name = &s->names[s->functions[f].name];
    if (!name->is_kernel || !name->needs || name->function != f) continue;
    char *copy = calloc(name->nbytes + 1, 1);
    if (!copy) return CLA_E_NOMEM;
    memcpy(copy, name->text, name->nbytes);
    out->kernels[out->nkernels++] = copy;
  }
  return CLA_OK;
}

/* The new text, or the old one. */
static cla_status rewrite(cla_source *s, unsigned flags, cla_heap_rewritten *out) {
  rewriter w = {.s = s, .has_sites = (flags & CLA_HEAP_WITH_SITES) != 0, .has_memory = true};
  cla_error_memo memo;
  cla__error_keep(&memo);
  cla_status status = find_needs(s);
  if (status) return status;
  put(&w, "", 0);
  write_all(&w);
  out->text = w.text;
  if (!w.has_memory) return CLA_E_NOMEM;
  if (w.is_refused && !s->is_unbalanced) return CLA_E_INVALID;
  if (w.is_refused) {
    cla__error_restore(&memo);
    w.is_changed = false;
    w.nbytes = 0;
    put(&w, s->text, s->nbytes);
    out->text = w.text;
    if (!w.has_memory) return CLA_E_NOMEM;
  }
  out->nbytes = w.nbytes;
  out->is_changed = w.is_changed;
  out->needs_library = w.is_changed || names_library(s);
  return w.is_changed ? list_kernels(s, out) : CLA_OK;
}

cla_status cla_heap_rewrite(const char *source, unsigned flags, cla_heap_rewritten *out) {
  if (!source || !out) return cla__error(CLA_E_INVALID, "cla_heap_rewrite: %s is NULL", source ? "out" : "source");
  if (flags & ~(unsigned)CLA_HEAP_WITH_SITES)
    return cla__error(CLA_E_INVALID, "cla_heap_rewrite: unknown flags 0x%x", flags);
  cla_source s;
  cla_status status = cla__source_read(source, &s);
  if (status) return status;
  cla_heap_rewritten result = {0};
  status = rewrite(&s, flags, &result);
  if (status == CLA_E_NOMEM) cla__error(status, "no memory to rewrite a source of %u bytes", (unsigned)s.nbytes);
  cla__source_free(&s);
  if (status) cla_heap_rewritten_free(&result);
  else *out = result;
  return status;
}

void cla_heap_rewritten_free(cla_heap_rewritten *r) {
  if (!r) return;
  for (size_t i = 0; i < r->nkernels; i++) free(r->kernels[i]);
  free(r->kernels);
  free(r->text);
  *r = (cla_heap_rewritten){0};
}
