/* Tokens to macros, functions and mentions: the outline of a source.
 *
 * Assumes OpenCL C: functions are defined at file scope with their parameters in the head, and are only ever called.
 * There is no preprocessing. Each branch of a conditional is read, each from where the conditional began, so that
 * heads and braces may differ between branches; "#if 0" and branches with an #error lead nowhere. A macro's
 * braces count where it is used. Where all this does not lead to the outline that the compiler will see, a function
 * is missed, and what it calls seems to stand outside of functions: rewrite.c refuses that, it never guesses. */
#include <stdlib.h>
#include <string.h>

#include "heap/tokens.h"

enum {
  LONGEST_HEAD = 1024, /* tokens outside parentheses: what has more is no function; keeps all linear */
  MOST_NAMES = 3       /* that one name stands for, and how many stand for another in turn */
};

#define NAME_OF(s, token) (&(s)->names[(s)->tokens[token].name])

static bool is_word(const cla_source *s, uint32_t token, uint32_t word) {
  return cla__is_name(s, token) && s->tokens[token].name == word;
}

static bool is_among(uint32_t name, const uint8_t *words, size_t n) {
  return name < WORDS && memchr(words, (int)name, n);
}

uint32_t cla__token_after(const cla_source *s, uint32_t token) {
  const bool in_directive = s->tokens[token].is_directive;
  uint32_t next = token + 1;
  if (in_directive) return s->tokens[next].is_directive && !s->tokens[next].is_first ? next : 0;
  while (s->tokens[next].is_directive || s->tokens[next].is_dead) next++;
  return s->tokens[next].kind == TOKEN_END ? 0 : next;
}

uint32_t cla__token_before(const cla_source *s, uint32_t token) {
  do token--;
  while (s->tokens[token].is_directive || s->tokens[token].is_dead);
  return token;
}

static bool mention(cla_source *s, uint32_t by, uint32_t name) {
  if (!cla__source_grow((void **)&s->mentions, s->nmentions, &s->mentions_room, sizeof *s->mentions)) return false;
  s->mentions[s->nmentions] = (cla_mention){.by = by, .next = s->names[name].mentions};
  s->names[name].mentions = s->nmentions++;
  return true;
}

/* ---- Directives ------------------------------------------------------------------------------------ */

/* The name of the directive whose '#' this is; the next is behind the directive's last token. */
static uint32_t directive_at(const cla_source *s, uint32_t hash, uint32_t *next) {
  uint32_t i = hash + 1;
  while (s->tokens[i].is_directive && !s->tokens[i].is_first) i++;
  *next = i;
  return hash + 1 < i && cla__is_name(s, hash + 1) ? s->tokens[hash + 1].name : WORD_none;
}

static bool is_condition(uint32_t word) { return word == WORD_if || word == WORD_ifdef || word == WORD_ifndef; }

static bool is_zero(const cla_source *s, uint32_t token, uint32_t end) {
  return token + 1 == end && s->tokens[token].nbytes == 1 && s->text[s->tokens[token].start] == '0';
}

/* The places where the name of the #define stands: parameters, body. */
static bool read_define(cla_source *s, uint32_t token, uint32_t end) {
  if (token >= end || !cla__is_name(s, token)) return true;
  if (!cla__source_grow((void **)&s->macros, s->nmacros, &s->macros_room, sizeof *s->macros)) return false;
  cla_macro m = {.name = s->tokens[token].name, .token = token, .body = token + 1, .end = end};
  if (token + 1 < end && cla__is_mark(s, token + 1, '(') && !s->tokens[token + 1].is_spaced) {
    m.open = m.close = token + 1;
    while (m.close < end && !cla__is_mark(s, m.close, ')')) m.close++;
    m.body = m.close < end ? m.close + 1 : end;
  }
  if (!m.open && m.body + 1 == end && cla__is_name(s, m.body)) m.alias_of = s->tokens[m.body].name;
  s->macros[s->nmacros++] = m;
  s->names[m.name].undef = 0;
  return true;
}

/* "#line 7" and "# 7": the line after it is the seventh. */
static uint32_t shift_lines(const cla_source *s, uint32_t hash, uint32_t end, uint32_t shift) {
  const uint32_t number = is_word(s, hash + 1, WORD_line) ? hash + 2 : hash + 1;
  if (number >= end || s->tokens[number].kind != TOKEN_NUMBER) return shift;
  const cla_token *last = &s->tokens[end - 1];
  return (uint32_t)strtoul(s->text + s->tokens[number].start, NULL, 10) - (last->line - shift) - 1;
}

/* Macros, the lines that #line makes, and what is dead. */
static bool read_directives(cla_source *s) {
  uint32_t shift = 0, nested_dead = 0; /* conditionals inside the dead branch, itself included */
  for (uint32_t i = 1, next; i < s->ntokens; i = next) {
    const uint32_t first = i;
    uint32_t word = WORD_none;
    next = i + 1;
    if (s->tokens[i].is_first) word = directive_at(s, i, &next);
    for (uint32_t t = first; t < next; t++) s->tokens[t].line += shift;
    if (!s->tokens[i].is_first) {
      s->tokens[i].is_dead = nested_dead && s->tokens[i].kind != TOKEN_END;
      continue;
    }
    if (nested_dead) {
      if (is_condition(word)) nested_dead++;
      else if (word == WORD_endif) nested_dead--;
      else if (nested_dead == 1 && (word == WORD_else || word == WORD_elif)) nested_dead = 0;
      for (uint32_t t = first; t < next && nested_dead; t++) s->tokens[t].is_dead = true;
      continue;
    }
    if (word == WORD_if && is_zero(s, i + 2, next)) nested_dead = 1;
    else if (word == WORD_define && !read_define(s, i + 2, next)) return false;
    else if (word == WORD_undef && i + 2 < next) NAME_OF(s, i + 2)->undef = i + 2;
    else shift = shift_lines(s, i, next, shift);
  }
  return true;
}

/* ---- Macros ---------------------------------------------------------------------------------------- */

void cla__enter_macro(cla_source *s, uint32_t macro) {
  const cla_macro *m = &s->macros[macro];
  uint32_t place = 0;
  for (uint32_t i = m->open + 1; m->open && i < m->close; i++) {
    if (!cla__is_name(s, i)) continue;
    NAME_OF(s, i)->param_of = macro;
    NAME_OF(s, i)->place = ++place;
  }
}

static bool is_member(const cla_source *s, uint32_t before) {
  return cla__is_mark(s, before, '.') || cla__is_mark(s, before, MARK_ARROW);
}

bool cla__is_free_in_macro(const cla_source *s, uint32_t macro, uint32_t token) {
  const cla_macro *m = &s->macros[macro];
  if (!cla__is_name(s, token) || NAME_OF(s, token)->param_of == macro) return false;
  if (token > m->body && (cla__is_mark(s, token - 1, MARK_PASTE) || is_member(s, token - 1))) return false;
  return token + 1 >= m->end || !cla__is_mark(s, token + 1, MARK_PASTE);
}

bool cla__is_call_of_macro(const cla_source *s, uint32_t name, uint32_t token) {
  const uint32_t m = s->names[name].macro;
  return m && s->macros[m].open && s->macros[m].token < token;
}

static bool is_macro_above(const cla_source *s, uint32_t token) {
  const uint32_t m = NAME_OF(s, token)->macro;
  return m && s->macros[m].token < token;
}

bool cla__is_heaps(const cla_source *s, uint32_t token, uint32_t macro) {
  const uint32_t name = s->tokens[token].name;
  const cla_name *n = &s->names[name];
  if (!cla__is_allocating(name) || n->function) return false;
  if (macro) return !n->macro || s->macros[macro].name == name;
  return !n->macro || token < s->macros[n->macro].token || (n->undef && token > n->undef);
}

bool cla__is_reached(const cla_source *s, uint32_t token, bool is_call) {
  const cla_macro *m = &s->macros[NAME_OF(s, token)->macro];
  return is_call || (m->name && (!m->alias_of || m->next));
}

/* The parameter that the body ends with: in front of parentheses, it names a function. */
static uint32_t read_tail(const cla_source *s, uint32_t macro) {
  const cla_macro *m = &s->macros[macro];
  const uint32_t last = m->end - 1;
  if (m->body >= m->end || !cla__is_name(s, last) || NAME_OF(s, last)->param_of != macro) return 0;
  return last > m->body && cla__is_mark(s, last - 1, MARK_PASTE) ? 0 : NAME_OF(s, last)->place;
}

static bool read_macro(cla_source *s, uint32_t macro) {
  cla_macro *m = &s->macros[macro];
  cla_name *own = &s->names[m->name];
  cla__enter_macro(s, macro);
  for (uint32_t i = m->open + 1; m->open && i < m->close; i++) /* the last one is no name where it is "..." */
    m->nparams += i == m->open + 1 || cla__is_mark(s, i, ',');
  m->tail = read_tail(s, macro);
  if (m->alias_of && !mention(s, m->name, m->alias_of)) return false;
  int32_t opens = 0;
  for (uint32_t i = m->body, open = 0; i < m->end; i++) {
    cla_token *t = &s->tokens[i];
    const bool is_call = cla__is_mark(s, cla__token_after(s, i), '(');
    if (cla__is_mark(s, i, '(')) {
      t->link = open;
      open = i;
    } else if (cla__is_mark(s, i, ')') && open) {
      t->link = open;
      open = s->tokens[open].link;
    }
    opens += cla__is_mark(s, i, '{') - cla__is_mark(s, i, '}');
    if (!cla__is_free_in_macro(s, macro, i)) continue;
    cla_name *name = NAME_OF(s, i);
    if (is_macro_above(s, i)) opens += name->opens;
    if (t->name == WORD_kernel || t->name == WORD___kernel || (name->macro && name->is_kernel)) own->is_kernel = true;
    if (is_call && cla__is_heaps(s, i, macro)) name->is_heaps = true;
    if (is_call) name->is_called = true;
    else if (i > m->body && (cla__is_name(s, i - 1) || cla__is_mark(s, i - 1, '*'))) name->is_variable = true;
    if (cla__is_reached(s, i, is_call) && t->name != m->name && !mention(s, m->name, t->name)) return false;
  }
  if (!own->opens) own->opens = opens;
  return true;
}

static bool read_macros(cla_source *s) {
  for (uint32_t i = s->nmacros; i-- > 1;) { /* backwards, so that lists run forwards */
    s->macros[i].next = s->names[s->macros[i].name].macro;
    s->names[s->macros[i].name].macro = i;
  }
  for (uint32_t i = 1; i < s->nmacros; i++)
    if (!read_macro(s, i)) return false;
  return true;
}

/* ---- Heads ----------------------------------------------------------------------------------------- */

/* A name and the parentheses behind it, in a head. */
typedef struct declarator {
  uint32_t first; /* its first token: the name, or "(" of "(name)", or the macro of "MACRO(name)" */
  uint32_t name;  /* the token that names it */
  uint32_t open, close;
  bool is_macro; /* the name is a macro's: what it stands for has the function's name, and maybe the parameters */
} declarator;

/* The name that a macro call in front of parameters stands for: an argument, when the macro's body ends with it;
 * else the macro itself, which rewrite.c refuses if it matters. */
static uint32_t named_by_macro(const cla_source *s, uint32_t macro_name, uint32_t open, uint32_t close) {
  const uint32_t macro = NAME_OF(s, macro_name)->macro;
  uint32_t place = 1, i = open + 1;
  if (!s->macros[macro].tail) return macro_name;
  for (; i < close && place < s->macros[macro].tail; i++) place += cla__is_mark(s, i, ',') && s->tokens[i].link == open;
  const bool is_alone = cla__is_name(s, i) && (cla__is_mark(s, i + 1, ',') || i + 1 == close);
  return is_alone ? i : macro_name;
}

static bool names_no_function(const cla_source *s, uint32_t name_token) {
  static const uint8_t words[] = {WORD___attribute__,  WORD___attribute, WORD___declspec, WORD__Alignas,
                                  WORD__Static_assert, WORD___asm__,     WORD_asm,        WORD_typeof,
                                  WORD___typeof__,     WORD_sizeof};
  const uint32_t before = s->tokens[name_token].before;
  return is_among(s->tokens[name_token].name, words, sizeof words) || is_word(s, before, WORD_struct) ||
         is_word(s, before, WORD_union) || is_word(s, before, WORD_enum);
}

/* A type stands before the name. Of a macro that stands there it is not known what it stands for. */
static bool has_type(const cla_source *s, uint32_t name_token, bool by_macro) {
  static const uint8_t words[] = {WORD_static, WORD_inline, WORD_extern, WORD_kernel, WORD___kernel};
  const uint32_t before = s->tokens[name_token].before;
  if (!cla__is_name(s, before)) return cla__is_mark(s, before, '*') || cla__is_mark(s, before, '}');
  return !is_among(s->tokens[before].name, words, sizeof words) && (by_macro || !is_macro_above(s, before));
}

/* "static MAKE(f) {" against "static void *f(int x) {", where a macro f stands in another branch: a type before, or
 * parameters that no macro would be given as its first argument. */
static bool is_made_by_macro(const cla_source *s, uint32_t name_token, uint32_t open, uint32_t close) {
  if (!cla__is_call_of_macro(s, s->tokens[name_token].name, name_token) || has_type(s, name_token, false)) return false;
  if (open + 2 == close) return !is_word(s, open + 1, WORD_void);
  return open + 1 < close && cla__is_mark(s, open + 2, ',');
}

/* What ends with this ')'; first is set either way, to where the search goes on. */
static bool read_declarator(cla_source *s, uint32_t close, declarator *d) {
  const uint32_t open = s->tokens[close].link, before = s->tokens[open].before;
  *d = (declarator){.first = open ? open : close, .open = open, .close = close};
  if (!open) return false;
  if (cla__is_name(s, before)) {
    d->first = d->name = before;
    d->is_macro = is_made_by_macro(s, before, open, close);
    return !names_no_function(s, before);
  }
  const uint32_t inner = cla__is_mark(s, before, ')') ? s->tokens[before].link : 0;
  const uint32_t outer = s->tokens[inner].before;
  if (!inner) return false;
  if (cla__is_name(s, outer) && cla__is_call_of_macro(s, s->tokens[outer].name, outer)) {
    d->first = outer;
    d->name = named_by_macro(s, outer, inner, before);
    d->is_macro = d->name == outer;
    return true;
  }
  d->first = inner;
  d->name = s->tokens[before].before;
  return cla__is_name(s, d->name) && s->tokens[d->name].before == inner;
}

/* Nothing, void, or several tokens that end with a name: no number, no type alone. */
static bool has_params(const cla_source *s, const declarator *d) {
  const uint32_t first = d->open + 1, last = d->close - 1;
  if (last <= first) return last < first || is_word(s, first, WORD_void);
  return cla__is_name(s, first) && (cla__is_name(s, last) || cla__is_mark(s, last, ']') || cla__is_mark(s, last, ')'));
}

/* Of two that follow each other, "A(int *) f(int x)" against "f(int x) B(2)": the second is the function. */
static bool is_in_front(const cla_source *s, const declarator *d, const declarator *behind) {
  if (d->is_macro) return true;
  const bool is_one = has_params(s, d), is_other = has_params(s, behind);
  if (is_one != is_other) return is_other;
  return cla__is_call_of_macro(s, s->tokens[d->name].name, d->name) || !has_type(s, d->first, true);
}

/* The function that a head declares, read from its end, as attributes may stand behind the parameters, and anything
 * before: of "A(1) int f(int x) B(2)", f. */
static bool find_function(cla_source *s, uint32_t last, declarator *best) {
  bool found = false;
  for (uint32_t t = last, n = 0; t && n < LONGEST_HEAD && !cla__is_mark(s, t, '}'); n++) {
    declarator d;
    if (!cla__is_mark(s, t, ')')) {
      t = s->tokens[t].before;
      continue;
    }
    if (read_declarator(s, t, &d)) {
      const bool is_behind = found && d.close == s->tokens[best->first].before;
      if (!found || (best->is_macro && !d.is_macro) || (is_behind && !is_in_front(s, &d, best))) *best = d;
      else if (!is_behind) return true;
      found = true;
    }
    t = s->tokens[d.first].before;
  }
  return found;
}

static bool is_kernel_head(const cla_source *s, const declarator *d) {
  for (uint32_t t = d->first, n = 0; t && n < LONGEST_HEAD && !cla__is_mark(s, t, '}'); n++) {
    const cla_token *token = &s->tokens[t];
    if (cla__is_name(s, t)) {
      if (token->name == WORD_kernel || token->name == WORD___kernel) return true;
      if (is_macro_above(s, t) && NAME_OF(s, t)->is_kernel) return true;
    }
    t = cla__is_mark(s, t, ')') && token->link ? s->tokens[token->link].before : token->before;
  }
  return false;
}

static uint32_t count_params(const cla_source *s, uint32_t open, uint32_t close) {
  if (close == open + 1 || (close == open + 2 && is_word(s, open + 1, WORD_void))) return 0;
  uint32_t n = 1;
  for (uint32_t i = open + 1; i < close; i++) n += cla__is_mark(s, i, ',') && s->tokens[i].link == open;
  return n;
}

static uint32_t add_function(cla_source *s, uint32_t name, const declarator *d, bool is_kernel) {
  if (!cla__source_grow((void **)&s->functions, s->nfunctions, &s->functions_room, sizeof *s->functions)) return 0;
  s->functions[s->nfunctions] = (cla_function){.name = name,
                                               .open = d->open,
                                               .close = d->close,
                                               .nparams = count_params(s, d->open, d->close),
                                               .next = s->names[name].function};
  s->names[name].is_kernel |= is_kernel;
  s->names[name].function = s->nfunctions;
  return s->nfunctions++;
}

/* "#define NAME f" above "void NAME(int x) {": a function f too, and both are given the heap when one has to be. So it is
 * for a few names, and a few that they stand for in turn. */
static bool add_renamed(cla_source *s, uint32_t name, const declarator *d, bool is_kernel, int depth) {
  uint32_t m = s->names[name].macro;
  for (int n = 0; n < MOST_NAMES && depth < MOST_NAMES && m; n++, m = s->macros[m].next) {
    const uint32_t other = s->macros[m].alias_of;
    if (!other || s->macros[m].token > d->name || cla__is_allocating(other)) continue;
    if (!mention(s, other, name) || !add_function(s, other, d, is_kernel)) return false;
    if (!add_renamed(s, other, d, is_kernel, depth + 1)) return false;
  }
  return true;
}

/* A definition, if a function can be made out in the head that ends here, or a macro opens its body (0: none does).
 * Its index; 0: none, or no memory. */
static uint32_t define_function(cla_source *s, uint32_t last, uint32_t opener, bool *has_memory) {
  declarator d = {.first = opener, .name = opener, .is_macro = true};
  if (!find_function(s, last, &d) && !opener) return 0;
  const uint32_t name = s->tokens[d.name].name;
  const bool is_kernel = is_kernel_head(s, &d);
  const uint32_t function = add_function(s, name, &d, is_kernel);
  *has_memory = function && (d.is_macro || add_renamed(s, name, &d, is_kernel, 0));
  if (!d.is_macro) s->tokens[d.open].declares = name;
  return function;
}

/* Prototypes: all declarators of a declaration that ends here. */
static void declare_functions(cla_source *s, uint32_t last) {
  for (uint32_t t = last, n = 0; t && n < LONGEST_HEAD && !cla__is_mark(s, t, '}'); n++) {
    declarator d;
    if (!cla__is_mark(s, t, ')')) {
      t = s->tokens[t].before;
      continue;
    }
    if (read_declarator(s, t, &d) && !d.is_macro) s->tokens[d.open].declares = s->tokens[d.name].name;
    t = s->tokens[d.first].before;
  }
}

/* ---- Structure --------------------------------------------------------------------------------------- */

typedef struct place {
  uint32_t braces;
  uint32_t paren;     /* the innermost '(' that is open */
  uint32_t function;  /* whose body this is */
  uint32_t last;      /* at file scope: the latest token of the declaration */
  bool is_value;      /* behind its '=' */
  bool is_unbalanced; /* more has been closed than opened */
} place;

typedef struct branch {
  place start, end; /* of the conditional; of the latest branch that leads on */
  uint32_t nends;   /* branches that lead on */
  bool is_whole;    /* has an #else */
  bool is_lost;     /* the branch being read has an #error */
} branch;

typedef struct walk {
  cla_source *s;
  place at;
  branch *branches;
  uint32_t nbranches, branches_room;
  bool has_memory;
} walk;

/* macro: the token of the one that opens it, 0: none does */
static void open_brace(walk *w, uint32_t macro) {
  place *at = &w->at;
  if (at->braces++) return;
  at->function = at->is_value || at->paren ? 0 : define_function(w->s, at->last, macro, &w->has_memory);
}

static void close_brace(walk *w, uint32_t token) {
  place *at = &w->at;
  const bool was_function = at->function != 0;
  if (at->braces == 0) at->is_unbalanced = true;
  else if (--at->braces) return;
  if (was_function || at->is_unbalanced) *at = (place){.is_unbalanced = at->is_unbalanced};
  else at->last = token; /* of a struct: its declarators follow */
}

static void end_branch(walk *w) {
  branch *b = &w->branches[w->nbranches - 1];
  if (!b->is_lost) {
    const uint32_t one = b->end.function, other = w->at.function;
    if (b->nends && one && other && one != other) { /* two heads, one body */
      w->has_memory = w->has_memory && mention(w->s, w->s->functions[one].name, w->s->functions[other].name) &&
                      mention(w->s, w->s->functions[other].name, w->s->functions[one].name);
    }
    b->end = w->at;
    b->nends++;
  }
  b->is_lost = false;
  w->at = b->start;
}

/* Where the text behind #endif goes on. Without an #else it is where the conditional began, as the branch may not be
 * there, but for one that opens or closes a function as a whole. */
static const place *place_after(const branch *b) {
  if (b->nends && b->is_whole) return &b->end;
  const bool is_border = b->nends && !b->start.function != !b->end.function && b->start.braces != b->end.braces;
  return is_border ? &b->end : &b->start;
}

static void read_condition(walk *w, uint32_t word) {
  if (is_condition(word)) {
    if (!cla__source_grow((void **)&w->branches, w->nbranches, &w->branches_room, sizeof *w->branches)) {
      w->has_memory = false;
      return;
    }
    w->branches[w->nbranches++] = (branch){.start = w->at};
  } else if (w->nbranches && (word == WORD_else || word == WORD_elif)) {
    end_branch(w);
    w->branches[w->nbranches - 1].is_whole |= word == WORD_else;
  } else if (w->nbranches && word == WORD_endif) {
    end_branch(w);
    w->at = *place_after(&w->branches[--w->nbranches]);
  } else if (w->nbranches && word == WORD_error) {
    w->branches[w->nbranches - 1].is_lost = true;
  }
}

static void read_mark(walk *w, uint32_t i) {
  cla_token *t = &w->s->tokens[i];
  place *at = &w->at;
  switch (t->mark) {
  case '(':
    t->link = at->paren;
    at->paren = i;
    return;
  case ')':
    t->link = at->paren;
    if (at->paren) at->paren = w->s->tokens[at->paren].link;
    else at->is_unbalanced = true;
    return;
  case ',': t->link = at->paren; return;
  case '=': at->is_value |= !at->braces && !at->paren; return;
  case ';':
    if (at->braces || at->paren) return;
    if (!at->is_value) declare_functions(w->s, t->before);
    at->last = 0;
    at->is_value = false;
    return;
  default: return;
  }
}

static void read_code(walk *w, uint32_t i) {
  cla_source *s = w->s;
  cla_token *t = &s->tokens[i];
  int32_t opens = cla__is_mark(s, i, '{') - cla__is_mark(s, i, '}');
  if (cla__is_name(s, i) && is_macro_above(s, i)) opens += NAME_OF(s, i)->opens;
  t->function = w->at.function;
  for (; opens > 0; opens--) open_brace(w, cla__is_name(s, i) ? i : 0);
  if (opens < 0) {
    for (; opens < 0; opens++) close_brace(w, i);
    return;
  }
  if (!w->at.braces) {
    t->before = w->at.last;
    w->at.last = i;
  }
  if (t->kind == TOKEN_MARK) read_mark(w, i);
}

static bool read_structure(cla_source *s) {
  walk w = {.s = s, .has_memory = true};
  for (uint32_t i = 1, next; i < s->ntokens && w.has_memory; i = next) {
    next = i + 1;
    if (s->tokens[i].is_first) {
      const uint32_t word = directive_at(s, i, &next);
      if (!s->tokens[i].is_dead) read_condition(&w, word);
    } else if (!s->tokens[i].is_dead && s->tokens[i].kind != TOKEN_END) {
      read_code(&w, i);
    }
  }
  free(w.branches);
  s->is_unbalanced = w.at.is_unbalanced || w.at.braces || w.at.paren || w.nbranches;
  return w.has_memory;
}

/* ---- Mentions ---------------------------------------------------------------------------------------- */

/* Words that no type ends with. */
static bool is_statement(uint32_t name) {
  static const uint8_t words[] = {WORD_return, WORD_else, WORD_case, WORD_do, WORD_sizeof};
  return is_among(name, words, sizeof words);
}

/* The ',' behind a prototype's parameters. */
static bool goes_on_declaring(const cla_source *s, uint32_t comma) {
  const uint32_t before = cla__token_before(s, comma);
  return !s->tokens[comma].link && cla__is_mark(s, before, ')') && s->tokens[s->tokens[before].link].declares;
}

/* "void g(int);" inside a function, or "MACRO(void g(int));" outside: only a type, and stars, from the start to g; or
 * what follows such a one, as in "int g(int), *h(int);". */
static bool is_prototype(const cla_source *s, uint32_t token) {
  enum { LONGEST_TYPE = 16 };
  bool has_type = false;
  uint32_t t = cla__token_before(s, token);
  for (uint32_t n = 0; n < LONGEST_TYPE && t; n++, t = cla__token_before(s, t)) {
    if (cla__is_name(s, t)) {
      if (is_statement(s->tokens[t].name) || s->tokens[t].name == WORD_goto || is_macro_above(s, t)) return false;
      if (n == 0) return true;
      has_type = true;
    } else if (cla__is_mark(s, t, ',')) {
      return !has_type && goes_on_declaring(s, t);
    } else if (!cla__is_mark(s, t, '*')) {
      const bool is_start = cla__is_mark(s, t, ';') || cla__is_mark(s, t, '{') || cla__is_mark(s, t, '}');
      return has_type && (is_start || (!s->tokens[token].function && cla__is_mark(s, t, '(')));
    }
  }
  return false;
}

/* "int x", "int *x", "int a, x", "x:", "goto x": what is no function, although it has its name. */
static bool declares_variable(const cla_source *s, uint32_t before, uint32_t token, uint32_t after) {
  const bool is_first = cla__is_mark(s, before, ';') || cla__is_mark(s, before, '{') || cla__is_mark(s, before, '}');
  if (cla__is_name(s, before)) return !is_statement(s->tokens[before].name);
  if (cla__is_mark(s, before, '*')) return true;
  if (is_first && cla__is_mark(s, after, ':')) return true;
  if (cla__is_mark(s, before, ',')) return !s->tokens[before].link;
  return cla__is_mark(s, before, '{') && !s->tokens[token].function; /* an enum's */
}

static bool read_mentions(cla_source *s) {
  for (uint32_t i = 1, before = 0; i < s->ntokens; i++) {
    const cla_token *t = &s->tokens[i];
    if (t->is_directive || t->is_dead) continue;
    const uint32_t last = before;
    before = i;
    if (t->kind != TOKEN_NAME || is_member(s, last)) continue;
    const uint32_t after = cla__token_after(s, i), by = s->functions[t->function].name;
    const bool is_call = cla__is_mark(s, after, '(');
    if (!is_call && declares_variable(s, last, i, after)) NAME_OF(s, i)->is_variable = true;
    if (is_call) NAME_OF(s, i)->is_called = true;
    if (is_call && cla__is_heaps(s, i, 0)) NAME_OF(s, i)->is_heaps = true;
    const bool may_declare = is_call && !s->tokens[after].declares && (by || !is_macro_above(s, i));
    if (may_declare && is_prototype(s, i)) s->tokens[after].declares = t->name;
    else if (by && cla__is_reached(s, i, is_call) && by != t->name && !mention(s, by, t->name)) return false;
  }
  return true;
}

/* ---- The whole ------------------------------------------------------------------------------------ */

static bool begin(cla_source *s) {
  if (!cla__source_grow((void **)&s->macros, 0, &s->macros_room, sizeof *s->macros)) return false;
  if (!cla__source_grow((void **)&s->functions, 0, &s->functions_room, sizeof *s->functions)) return false;
  if (!cla__source_grow((void **)&s->mentions, 0, &s->mentions_room, sizeof *s->mentions)) return false;
  s->macros[0] = (cla_macro){0};
  s->functions[0] = (cla_function){0};
  s->mentions[0] = (cla_mention){0};
  s->nmacros = s->nfunctions = s->nmentions = 1;
  return true;
}

cla_status cla__outline(cla_source *s) {
  const bool is_read = begin(s) && read_directives(s) && read_macros(s) && read_structure(s) && read_mentions(s);
  return is_read ? CLA_OK : CLA_E_NOMEM;
}
