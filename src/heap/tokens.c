/* Text to tokens, as a C preprocessor cuts it.
 *
 * Assumes a text that ends with a zero byte, of whatever content. Guarantees that the tokens and what lies between
 * them are the whole text, in order, and that lines are counted as compilers count them. Nothing is an error here:
 * a literal that is not closed ends with its line, a comment with the text, and the compiler says so. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "heap/tokens.h"
#include "runtime/runtime.h"

enum { LARGEST_SOURCE = 1 << 28 }; /* bytes: tokens take forty times as much */

/* ---- Characters ---------------------------------------------------------------------------------- */

static uint32_t line_break(const char *at) {
  if (at[0] == '\r') return at[1] == '\n' ? 2 : 1;
  return at[0] == '\n';
}

uint32_t cla__line_splice(const char *at) {
  if (*at != '\\') return 0;
  uint32_t n = 1; /* compilers take blanks at the end of the line along */
  while (at[n] == ' ' || at[n] == '\t') n++;
  const uint32_t end = line_break(at + n);
  return end ? n + end : 0;
}

static bool begins_name(char c) {
  return isalpha((unsigned char)c) || c == '_' || c == '$' || (unsigned char)c >= 0x80;
}
static bool goes_on_name(char c) { return begins_name(c) || isdigit((unsigned char)c); }

typedef struct reader {
  const char *at;
  uint32_t line;
  bool is_spliced, is_spaced, begins_line;
  enum { OUTSIDE, AFTER_HASH, AFTER_INCLUDE, INSIDE } directive;
} reader;

static void skip_splices(reader *r) {
  for (uint32_t n = cla__line_splice(r->at); n; n = cla__line_splice(r->at)) {
    r->at += n;
    r->line++;
    r->is_spliced = true;
  }
}

static void step(reader *r) {
  r->at++;
  skip_splices(r);
}

static char peek(const reader *r) {
  reader ahead = *r;
  step(&ahead);
  return *ahead.at;
}

static void end_line(reader *r) {
  r->at += line_break(r->at);
  r->line++;
  skip_splices(r);
}

/* ---- Between tokens ------------------------------------------------------------------------------ */

static void skip_block_comment(reader *r) {
  step(r);
  step(r);
  while (*r->at && !(*r->at == '*' && peek(r) == '/')) {
    if (line_break(r->at)) end_line(r);
    else step(r);
  }
  for (int i = 0; i < 2 && *r->at; i++) step(r);
}

static void skip_invisible(reader *r) {
  skip_splices(r);
  for (;; r->is_spaced = true) {
    if (line_break(r->at)) {
      end_line(r);
      r->begins_line = true;
      r->directive = OUTSIDE;
    } else if (isspace((unsigned char)*r->at)) {
      step(r);
    } else if (*r->at == '/' && peek(r) == '*') {
      skip_block_comment(r);
    } else if (*r->at == '/' && peek(r) == '/') {
      while (*r->at && !line_break(r->at)) step(r);
    } else {
      return;
    }
  }
}

/* ---- Tokens -------------------------------------------------------------------------------------- */

/* A quote, or the '<' of an #include, to its end or that of the line. */
static void read_text(reader *r, char end) {
  const bool has_escapes = end != '>';
  step(r);
  while (*r->at && *r->at != end && !line_break(r->at)) {
    const bool is_escape = has_escapes && *r->at == '\\';
    step(r);
    if (is_escape && *r->at && !line_break(r->at)) step(r);
  }
  if (*r->at == end) step(r);
}

static void read_number(reader *r) {
  for (;;) {
    const char c = *r->at;
    if (!goes_on_name(c) && c != '.') return;
    step(r);
    if (strchr("eEpP", c) && (*r->at == '+' || *r->at == '-')) step(r);
  }
}

static uint8_t read_mark(reader *r) {
  static const struct {
    char text[3];
    uint8_t mark;
  } pairs[] = {{"->", MARK_ARROW}, {"##", MARK_PASTE}, {"<%", '{'}, {"%>", '}'}, {"<:", '['}, {":>", ']'}, {"%:", '#'}};
  const char first = *r->at;
  step(r);
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    if (first != pairs[i].text[0] || *r->at != pairs[i].text[1]) continue;
    step(r);
    return pairs[i].mark;
  }
  return (uint8_t)first;
}

static void read_token(reader *r, cla_token *t) {
  const char c = *r->at;
  r->is_spliced = false;
  if (begins_name(c)) {
    t->kind = TOKEN_NAME;
    while (goes_on_name(*r->at)) step(r);
  } else if (isdigit((unsigned char)c) || (c == '.' && isdigit((unsigned char)peek(r)))) {
    t->kind = TOKEN_NUMBER;
    read_number(r);
  } else if (c == '"' || c == '\'' || (c == '<' && r->directive == AFTER_INCLUDE)) {
    t->kind = TOKEN_TEXT;
    read_text(r, c == '<' ? '>' : c);
  } else {
    t->kind = TOKEN_MARK;
    t->mark = read_mark(r);
  }
  t->is_spliced = r->is_spliced;
}

/* false at the end of the text */
static bool next_token(reader *r, const char *text, cla_token *t) {
  *t = (cla_token){0};
  r->is_spaced = false;
  skip_invisible(r);
  t->start = (uint32_t)(r->at - text);
  t->line = r->line;
  if (!*r->at) return false;
  t->is_spaced = r->is_spaced;
  read_token(r, t);
  t->nbytes = (uint32_t)(r->at - text) - t->start;
  t->is_first = t->kind == TOKEN_MARK && t->mark == '#' && r->begins_line && r->directive == OUTSIDE;
  if (t->is_first) r->directive = AFTER_HASH;
  else if (r->directive == AFTER_HASH && t->nbytes == 7 && memcmp(text + t->start, "include", 7) == 0)
    r->directive = AFTER_INCLUDE;
  else if (r->directive != OUTSIDE) r->directive = INSIDE;
  t->is_directive = r->directive != OUTSIDE;
  r->begins_line = false;
  return true;
}

static cla_status read_tokens(cla_source *s) {
  reader r = {.at = s->text, .line = 1, .begins_line = true};
  uint32_t room = 0;
  bool goes_on = true;
  for (s->ntokens = 0; goes_on; s->ntokens++) {
    if (!cla__source_grow((void **)&s->tokens, s->ntokens, &room, sizeof *s->tokens)) return CLA_E_NOMEM;
    cla_token *t = &s->tokens[s->ntokens];
    if (s->ntokens) goes_on = next_token(&r, s->text, t);
    else *t = (cla_token){0};
  }
  return CLA_OK;
}

/* ---- Names ---------------------------------------------------------------------------------------- */

/* Letters of the name that ends the arena so far; a name seen before gives them back. */
static uint32_t intern(cla_source *s, char *letters, uint32_t nbytes) {
  uint32_t hash = 2166136261u;
  for (uint32_t i = 0; i < nbytes; i++) hash = (hash ^ (unsigned char)letters[i]) * 16777619u;
  uint32_t slot = hash & (s->nslots - 1);
  for (; s->slots[slot]; slot = (slot + 1) & (s->nslots - 1)) {
    const cla_name *name = &s->names[s->slots[slot]];
    if (name->hash == hash && name->nbytes == nbytes && memcmp(name->text, letters, nbytes) == 0) return s->slots[slot];
  }
  s->names[s->nnames] = (cla_name){.text = letters, .nbytes = nbytes, .hash = hash};
  return s->slots[slot] = s->nnames++;
}

/* Copies a token's text without splices. */
static uint32_t spell(const char *from, uint32_t nbytes, char *to) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < nbytes;) {
    const uint32_t splice = cla__line_splice(from + i);
    if (!splice) to[n++] = from[i];
    i += splice ? splice : 1;
  }
  return n;
}

static cla_status read_names(cla_source *s) {
  static const char *const words[] = {
#define WORD(name) #name,
      CLA_WORDS(WORD)
#undef WORD
  };
  uint32_t most = WORDS;
  for (uint32_t i = 0; i < s->ntokens; i++) most += s->tokens[i].kind == TOKEN_NAME;
  for (s->nslots = 64; s->nslots < 2 * most;) s->nslots *= 2;
  s->names = calloc(most, sizeof *s->names);
  s->slots = calloc(s->nslots, sizeof *s->slots);
  s->letters = malloc(s->nbytes + sizeof words * 16);
  if (!s->names || !s->slots || !s->letters) return CLA_E_NOMEM;

  char *letters = s->letters;
  s->nnames = 1;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    const size_t n = strlen(words[i]);
    memcpy(letters, words[i], n);
    intern(s, letters, (uint32_t)n);
    letters += n;
  }
  for (uint32_t i = 0; i < s->ntokens; i++) {
    cla_token *t = &s->tokens[i];
    if (t->kind != TOKEN_NAME) continue;
    const uint32_t n = spell(s->text + t->start, t->nbytes, letters), known = s->nnames;
    t->name = intern(s, letters, n);
    if (s->nnames > known) letters += n;
  }
  return CLA_OK;
}

/* ---- The whole ------------------------------------------------------------------------------------ */

bool cla__source_grow(void **array, uint32_t n, uint32_t *room, size_t nbytes_each) {
  if (n < *room) return true;
  const uint32_t more = *room ? 2 * *room : 256;
  void *grown = realloc(*array, more * nbytes_each);
  if (!grown) return false;
  *array = grown;
  *room = more;
  return true;
}

cla_status cla__source_read(const char *text, cla_source *out) {
  const size_t nbytes = strlen(text);
  if (nbytes > LARGEST_SOURCE)
    return cla__error(CLA_E_INVALID, "the source has %zu bytes, at most %d can be rewritten", nbytes, LARGEST_SOURCE);
  cla_source s = {.text = text, .nbytes = (uint32_t)nbytes};
  cla_status status = read_tokens(&s);
  if (!status) status = read_names(&s);
  if (!status) status = cla__outline(&s);
  if (!status) {
    *out = s;
    return CLA_OK;
  }
  cla__source_free(&s);
  return cla__error(CLA_E_NOMEM, "no memory to read a source of %zu bytes", nbytes);
}

void cla__source_free(cla_source *s) {
  free(s->tokens);
  free(s->names);
  free(s->letters);
  free(s->slots);
  free(s->macros);
  free(s->functions);
  free(s->mentions);
  *s = (cla_source){0};
}
