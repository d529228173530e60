/* Policies from Lua: a table of parameters, names and functions, read when a pool is made with it.
 *
 *   round(nbytes)                       the size of the block
 *   fit(request, candidates)            a candidate, or a place in one
 *   split(request, block)               how much of it is cut off
 *   grow(request, default, refused)     the size of a new segment
 *   keep(request)                       false: the segment that has become free goes back
 *   oom(request, times)                 true: try again
 *   admit(request)                      false, message: the allocation fails
 *   note(event)                         something has been allocated or freed
 *
 * nil decides nothing: the default counts. The functions run only inside `alloc` and `close` of a pool or buffer of the state that
 * made the pool (a coroutine of it, too), on that thread, in protected mode, without any lock. Where the core wants a
 * decision elsewhere, the default counts; that is counted. The tables that a function is given are used again for the next
 * call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"

typedef enum decision { ROUND, FIT, SPLIT, GROW, KEEP, OOM, ADMIT, NOTE, DECISIONS } decision;
static const char *const decision_names[DECISIONS] = {"round", "fit", "split", "grow", "keep", "oom", "admit", "note"};

/* The table that pool and buffers of a policy keep: functions by decision from 1, then these. */
enum { REQUEST = DECISIONS + 1, CANDIDATES, EVENT, POOL, BLOCK };

struct lua_policy {
  bool has[DECISIONS];
  char name[64];
  atomic_uint_fast64_t missed;
};

/* ---- Turns ------------------------------------------------------------------------------------- */

static _Thread_local lua_turn *turns;

static lua_turn *turn_of(const lua_policy *p) {
  lua_turn *t = turns;
  while (t && t->policy != p) t = t->outer;
  return t;
}

cla_status cla_lua_begin(lua_State *L, lua_turn *t, lua_policy *p, int object, bool allocates) {
  const lua_turn *outer = turn_of(p);
  *t = (lua_turn){.policy = p, .L = L};
  if (allocates && outer && outer->is_running)
    return cla__error(CLA_E_BUSY, "alloc: a decision of the policy '%s' allocates from its own pool", p->name);
  if (lua_checkstack(L, LUA_MINSTACK)) {
    if (lua_getiuservalue(L, object, 1) == LUA_TTABLE) t->table = lua_gettop(L);
    else lua_pop(L, 1);
  }
  t->outer = turns;
  turns = t;
  return CLA_OK;
}

void cla_lua_end(lua_turn *t) {
  turns = t->outer;
  if (t->table) lua_settop(t->L, t->table - 1);
}

/* ---- Calling ----------------------------------------------------------------------------------- */

typedef struct question {
  const lua_policy *policy;
  decision what;
  bool is_nested; /* the tables are in use by a call further out */
  size_t nbytes, size, refused;
  const cla_request *request;
  const cla_candidate *candidates;
  size_t ncandidates;
  const cla_note *note;
  unsigned times;
  bool yes; /* the answer to keep, oom, admit */
  cla_fit fit;
  cla_status status;
  char message[512];
} question;

static void set_integer(lua_State *L, const char *name, uint64_t value) {
  lua_pushinteger(L, (lua_Integer)value);
  lua_setfield(L, -2, name);
}

/* The table kept at `index` of the policy's, or a new one where that is in use. */
static void push_table(lua_State *L, const question *q, int index) {
  if (!q->is_nested && lua_rawgeti(L, 1, index) == LUA_TTABLE) return;
  if (!q->is_nested) lua_pop(L, 1);
  lua_createtable(L, 0, 12);
  if (q->is_nested) return;
  lua_pushvalue(L, -1);
  lua_rawseti(L, 1, index);
}

static void push_request(lua_State *L, const question *q) {
  const cla_request *r = q->request;
  bool is_new = lua_rawgeti(L, 1, REQUEST) != LUA_TTABLE;
  lua_pop(L, 1);
  push_table(L, q, REQUEST);
  set_integer(L, "nbytes", r->nbytes);
  set_integer(L, "size", r->size);
  set_integer(L, "stream", r->stream);
  set_integer(L, "active", r->active);
  set_integer(L, "requested", r->requested);
  set_integer(L, "cached", r->cached);
  set_integer(L, "held", r->held);
  set_integer(L, "reserved", r->reserved);
  set_integer(L, "peak_reserved", r->peak_reserved);
  set_integer(L, "limit", r->limit);
  set_integer(L, "alike", r->alike);
  if (q->what == KEEP) set_integer(L, "segment", r->segment);
  if (!is_new && !q->is_nested) return;
  lua_rawgeti(L, 1, POOL);
  lua_setfield(L, -2, "pool");
}

static void fill_candidate(lua_State *L, const cla_candidate *c) {
  set_integer(L, "segment", c->segment);
  set_integer(L, "segment_size", c->segment_size);
  set_integer(L, "offset", c->offset);
  set_integer(L, "size", c->size);
  set_integer(L, "stream", c->stream);
  set_integer(L, "age", c->age);
  lua_pushboolean(L, c->size == c->segment_size);
  lua_setfield(L, -2, "whole");
}

static void push_candidates(lua_State *L, const question *q) {
  push_table(L, q, CANDIDATES);
  lua_Integer had = (lua_Integer)lua_rawlen(L, -1), n = (lua_Integer)q->ncandidates;
  for (lua_Integer i = 1; i <= n; i++) {
    if (lua_rawgeti(L, -1, i) != LUA_TTABLE || i > had) {
      lua_pop(L, 1);
      lua_createtable(L, 0, 7);
      lua_pushvalue(L, -1);
      lua_rawseti(L, -3, i);
    }
    fill_candidate(L, &q->candidates[i - 1]);
    lua_pop(L, 1);
  }
  for (lua_Integer i = had; i > n; i--) {
    lua_pushnil(L);
    lua_rawseti(L, -2, i);
  }
}

/* "it returned -1": raises with the value at `index`. */
_Noreturn static void bad_answer(lua_State *L, int index, const char *wanted) {
  int type = lua_type(L, index);
  bool shows = type == LUA_TNUMBER || type == LUA_TBOOLEAN || type == LUA_TNIL;
  const char *text = shows ? luaL_tolstring(L, index, NULL) : luaL_typename(L, index);
  if (type == LUA_TSTRING) text = lua_pushfstring(L, "'%s'", lua_tostring(L, index));
  luaL_error(L, "it returned %s; %s expected", text, wanted);
  abort();
}

/* Bytes at `index`: a whole number from 0 to 2^53. */
static size_t bytes_at(lua_State *L, int index, const char *wanted) {
  int is_integer = 0;
  lua_Integer n = lua_type(L, index) == LUA_TNUMBER ? lua_tointegerx(L, index, &is_integer) : 0;
  if (!is_integer || n < 0 || n > (lua_Integer)1 << 53) bad_answer(L, index, wanted);
  return (size_t)n;
}

static cla_choice choice_named(lua_State *L, int index) {
  static const char *const names[] = {"best", "more", "grow"};
  static const cla_choice choices[] = {CLA_CHOOSE_DEFAULT, CLA_CHOOSE_MORE, CLA_CHOOSE_GROW};
  const char *name = lua_tostring(L, index);
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
    if (strcmp(name, names[i]) == 0) return choices[i];
  bad_answer(L, index, "a candidate, a place, nil, 'best', 'more' or 'grow'");
}

/* The results from `first` on: place, offset, otherwise. */
static void read_place(lua_State *L, int first, question *q) {
  lua_getfield(L, first, "segment");
  q->fit.segment = bytes_at(L, -1, "a place with the number of a segment");
  q->fit.choice = lua_isnil(L, first + 1) ? CLA_CHOOSE_BLOCK : CLA_CHOOSE_PLACE;
  if (q->fit.choice == CLA_CHOOSE_BLOCK) lua_getfield(L, first, "offset");
  else lua_pushvalue(L, first + 1);
  q->fit.offset = bytes_at(L, -1, "an offset in bytes");
  if (lua_isnil(L, first + 2)) return;
  q->fit.may_miss = true;
  q->fit.otherwise = lua_type(L, first + 2) == LUA_TSTRING ? choice_named(L, first + 2) : CLA_CHOOSE_MORE;
  if (q->fit.otherwise == CLA_CHOOSE_MORE) bad_answer(L, first + 2, "'best' or 'grow', should the place not be free,");
}

static void run_fit(lua_State *L, question *q) {
  push_request(L, q);
  push_candidates(L, q);
  lua_call(L, 2, 3);
  int first = lua_gettop(L) - 2;
  switch (lua_type(L, first)) {
  case LUA_TNIL: break;
  case LUA_TSTRING: q->fit.choice = choice_named(L, first); break;
  case LUA_TTABLE: read_place(L, first, q); break;
  default: bad_answer(L, first, "a candidate, a place, nil, 'best', 'more' or 'grow'");
  }
}

static void run_round(lua_State *L, question *q) {
  lua_pushinteger(L, (lua_Integer)q->nbytes);
  lua_call(L, 1, 1);
  if (!lua_isnil(L, -1)) q->size = bytes_at(L, -1, "bytes");
}

static void run_split(lua_State *L, question *q) {
  push_request(L, q);
  push_table(L, q, BLOCK);
  fill_candidate(L, q->candidates);
  lua_call(L, 2, 1);
  if (!lua_isnil(L, -1)) q->size = bytes_at(L, -1, "bytes");
}

static void run_grow(lua_State *L, question *q) {
  push_request(L, q);
  lua_pushinteger(L, (lua_Integer)q->size);
  if (q->refused) lua_pushinteger(L, (lua_Integer)q->refused);
  else lua_pushnil(L);
  lua_call(L, 3, 1);
  if (!lua_isnil(L, -1)) q->size = bytes_at(L, -1, "bytes");
}

static void read_yes(lua_State *L, int index, question *q) {
  if (lua_isboolean(L, index)) q->yes = lua_toboolean(L, index);
  else if (!lua_isnil(L, index)) bad_answer(L, index, "true, false or nil");
}

static void run_oom(lua_State *L, question *q) {
  push_request(L, q);
  lua_pushinteger(L, (lua_Integer)q->times + 1);
  lua_call(L, 2, 1);
  read_yes(L, -1, q);
}

static void run_keep(lua_State *L, question *q) {
  push_request(L, q);
  lua_call(L, 1, 1);
  read_yes(L, -1, q);
}

/* false, message, code */
static void run_admit(lua_State *L, question *q) {
  push_request(L, q);
  lua_call(L, 1, 3);
  read_yes(L, -3, q);
  if (q->yes) return;
  q->status = CLA_E_LIMIT;
  if (!lua_isnil(L, -1)) {
    const char *code = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (strcmp(code, "NOMEM") == 0) q->status = CLA_E_NOMEM;
    else if (strcmp(code, "LIMIT") != 0) bad_answer(L, -1, "the code 'NOMEM' or 'LIMIT'");
  }
  const char *text = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "the allocation is refused";
  snprintf(q->message, sizeof q->message, "policy '%s': %s", q->policy->name, text);
}

static void run_note(lua_State *L, question *q) {
  static const char *const happenings[] = {"alloc", "free", "fail"};
  const cla_note *n = q->note;
  push_table(L, q, EVENT);
  lua_rawgeti(L, 1, POOL);
  lua_setfield(L, -2, "pool");
  lua_pushstring(L, happenings[n->what]);
  lua_setfield(L, -2, "what");
  set_integer(L, "address", (uintptr_t)n->address);
  set_integer(L, "nbytes", n->nbytes);
  set_integer(L, "size", n->size);
  set_integer(L, "segment", n->segment);
  set_integer(L, "offset", n->offset);
  set_integer(L, "stream", n->stream);
  lua_call(L, 1, 0);
}

/* Protected: the policy's table, the question. */
static int run(lua_State *L) {
  static void (*const runs[DECISIONS])(lua_State *, question *) = {run_round, run_fit, run_split, run_grow,
                                                                   run_keep,  run_oom, run_admit, run_note};
  question *q = lua_touserdata(L, 2);
  lua_rawgeti(L, 1, (int)q->what + 1);
  runs[q->what](L, q);
  return 0;
}

/* Whether the function was called; q->status says whether it did well. Nothing here raises. */
static bool ask(lua_policy *p, question *q) {
  lua_turn *t = turn_of(p);
  q->policy = p;
  if (!t || !t->table) {
    atomic_fetch_add(&p->missed, 1);
    return false;
  }
  lua_State *L = t->L;
  bool was_running = t->is_running;
  if (!lua_checkstack(L, 8)) {
    q->status = cla__error(CLA_E_NOMEM, "policy '%s': %s: no room on Lua's stack", p->name, decision_names[q->what]);
    return true;
  }
  q->is_nested = was_running;
  lua_pushcfunction(L, run);
  lua_pushvalue(L, t->table);
  lua_pushlightuserdata(L, q);
  t->is_running = true;
  bool is_well = lua_pcall(L, 2, 0, 0) == LUA_OK;
  t->is_running = was_running;
  if (is_well) {
    if (q->status) cla_decision_error(q->status, q->message);
    return true;
  }
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error that is no message";
  q->status = cla__error(CLA_E_INVALID, "policy '%s': %s: %s", p->name, decision_names[q->what], text);
  lua_pop(L, 1);
  return true;
}

/* What nobody can be given a status for is raised when the call is over. */
static void fail_later(lua_policy *p, const question *q) {
  lua_turn *t = turn_of(p);
  if (!t || !q->status) return;
  if (!t->has_failed) snprintf(t->fault, sizeof t->fault, "%s", cla_last_error());
  t->has_failed = true;
}

/* ---- The decisions, as the core asks for them -------------------------------------------------- */

static cla_status decide_round(void *arg, size_t nbytes, size_t *size, bool *is_fixed) {
  question q = {.what = ROUND, .nbytes = nbytes, .size = *size};
  if (!ask(arg, &q)) return CLA_OK;
  *size = q.size;
  *is_fixed = true;
  return q.status;
}

static cla_status decide_fit(void *arg, const cla_request *r, const cla_candidate *candidates, size_t n, cla_fit *out) {
  question q = {.what = FIT, .request = r, .candidates = candidates, .ncandidates = n, .fit = *out};
  if (ask(arg, &q)) *out = q.fit;
  return q.status;
}

static cla_status decide_split(void *arg, const cla_request *r, const cla_candidate *block, size_t *size) {
  question q = {.what = SPLIT, .request = r, .candidates = block, .size = *size};
  if (ask(arg, &q)) *size = q.size;
  return q.status;
}

static cla_status decide_grow(void *arg, const cla_request *r, size_t refused, size_t *nbytes) {
  question q = {.what = GROW, .request = r, .refused = refused, .size = *nbytes};
  if (ask(arg, &q)) *nbytes = q.size;
  return q.status;
}

static bool decide_keep(void *arg, const cla_request *r) {
  question q = {.what = KEEP, .request = r, .yes = true};
  if (ask(arg, &q)) fail_later(arg, &q);
  return q.yes;
}

static cla_status decide_oom(void *arg, const cla_request *r, unsigned times, bool *again) {
  question q = {.what = OOM, .request = r, .times = times};
  if (ask(arg, &q)) *again = q.yes;
  return q.status;
}

static cla_status decide_admit(void *arg, const cla_request *r) {
  question q = {.what = ADMIT, .request = r, .yes = true};
  ask(arg, &q);
  return q.status;
}

static cla_status decide_note(void *arg, const cla_note *note) {
  question q = {.what = NOTE, .note = note};
  ask(arg, &q);
  if (note->what != CLA_NOTE_ALLOC) fail_later(arg, &q);
  return q.status;
}

static void release(void *arg) { free(arg); }

/* ---- Reading a policy -------------------------------------------------------------------------- */

uint64_t cla_lua_undecided(const lua_policy *p) { return atomic_load(&p->missed); }

_Noreturn static void bad_field(lua_State *L, int arg, const char *name, const char *wanted) {
  const char *text = lua_type(L, -1) == LUA_TNUMBER || lua_type(L, -1) == LUA_TBOOLEAN ? luaL_tolstring(L, -1, NULL)
                     : lua_type(L, -1) == LUA_TSTRING ? lua_pushfstring(L, "'%s'", lua_tostring(L, -1))
                                                      : luaL_typename(L, -1);
  cla_lua_badarg(L, arg, "policy: %s: %s expected, got %s", name, wanted, text);
}

static bool says(lua_State *L, const char *name) {
  return lua_type(L, -1) == LUA_TSTRING && strcmp(lua_tostring(L, -1), name) == 0;
}

/* Constants and names, of the value on top: each says what it takes. */

static void read_round(lua_State *L, int arg, cla_policy *p, cla_decisions *d) {
  if (says(L, "power_of_two")) d->round = cla_round_power_of_two;
  else if (lua_isinteger(L, -1) && lua_tointeger(L, -1) > 0) p->round_to = (size_t)lua_tointeger(L, -1);
  else if (!says(L, "align")) bad_field(L, arg, "round", "bytes above 0, 'align', 'power_of_two' or a function");
}

static void read_fit(lua_State *L, int arg, cla_policy *p) {
  p->exact = says(L, "exact");
  if (!p->exact && !says(L, "best")) bad_field(L, arg, "fit", "'best', 'exact' or a function");
}

static void read_split(lua_State *L, int arg, cla_policy *p) {
  if (lua_isboolean(L, -1)) p->splits = lua_toboolean(L, -1);
  else if (lua_isinteger(L, -1) && lua_tointeger(L, -1) > 0) p->max_split = (size_t)lua_tointeger(L, -1);
  else bad_field(L, arg, "split", "true, false, the bytes of the largest block that is split, or a function");
}

static void read_grow(lua_State *L, int arg, cla_policy *p) {
  if (says(L, "request")) p->grow_by = 1;
  else if (lua_isinteger(L, -1) && lua_tointeger(L, -1) > 0) p->grow_by = (size_t)lua_tointeger(L, -1);
  else if (!says(L, "share")) bad_field(L, arg, "grow", "bytes above 0, 'share', 'request' or a function");
}

static void read_keep(lua_State *L, int arg, cla_policy *p) {
  if (lua_isboolean(L, -1)) p->keep = lua_toboolean(L, -1) ? CLA_KEEP_ALWAYS : CLA_KEEP_NEVER;
  else if (says(L, "peak")) p->keep = CLA_KEEP_PEAK;
  else bad_field(L, arg, "keep", "true, false, 'peak' or a function");
}

static void read_constant(lua_State *L, int arg, decision which, cla_policy *p, cla_decisions *d) {
  switch (which) {
  case ROUND: read_round(L, arg, p, d); break;
  case FIT: read_fit(L, arg, p); break;
  case SPLIT: read_split(L, arg, p); break;
  case GROW: read_grow(L, arg, p); break;
  case KEEP: read_keep(L, arg, p); break;
  case OOM:
    if (!lua_isboolean(L, -1) || lua_toboolean(L, -1)) bad_field(L, arg, "oom", "false or a function");
    break;
  default: bad_field(L, arg, decision_names[which], "a function");
  }
}

static void set_function(cla_decisions *d, decision which) {
  switch (which) {
  case ROUND: d->round = decide_round; break;
  case FIT: d->fit = decide_fit; break;
  case SPLIT: d->split = decide_split; break;
  case GROW: d->grow = decide_grow; break;
  case KEEP: d->keep = decide_keep; break;
  case OOM: d->oom = decide_oom; break;
  case ADMIT: d->admit = decide_admit; break;
  case NOTE: d->note = decide_note; break;
  case DECISIONS: break;
  }
}

static const char *const known[] = {"name",       "align",     "grain",     "growth_min", "growth_max", "growth_share",
                                    "growth_cap", "max_split", "exclusive", "round",      "fit",        "split",
                                    "grow",       "keep",      "oom",       "admit",      "note",       NULL};

static void read_parameters(lua_State *L, int index, cla_policy *p) {
  p->align = cla_lua_fieldsize(L, index, "align", p->align);
  p->grain = cla_lua_fieldsize(L, index, "grain", p->grain);
  p->growth_min = cla_lua_fieldsize(L, index, "growth_min", p->growth_min);
  p->growth_max = cla_lua_fieldsize(L, index, "growth_max", p->growth_max);
  p->growth_share = cla_lua_fieldsize(L, index, "growth_share", p->growth_share);
  p->growth_cap = cla_lua_fieldsize(L, index, "growth_cap", p->growth_cap);
  p->max_split = cla_lua_fieldsize(L, index, "max_split", p->max_split);
  p->exclusive = cla_lua_fieldbool(L, index, "exclusive", p->exclusive);
}

/* A table of parameters is that of `direct` if it has that name, else of `caching`. */
static bool read_name(lua_State *L, int arg, int index, cla_policy *p) {
  if (lua_getfield(L, index, "name") != LUA_TNIL) {
    if (lua_type(L, -1) != LUA_TSTRING) bad_field(L, arg, "name", "a string");
    if (strcmp(lua_tostring(L, -1), "direct") == 0) *p = cla_policy_direct();
    p->name = lua_tostring(L, -1); /* the table holds it */
  }
  bool is_there = !lua_isnil(L, -1);
  lua_pop(L, 1);
  return is_there;
}

/* For the name on top, what the function of that name in clalloc.policies makes. */
static void push_builtin(lua_State *L, int arg) {
  const char *name = lua_tostring(L, -1);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  bool is_ours = strcmp(name, "caching") == 0 || strcmp(name, "direct") == 0;
  if (!is_ours && lua_getfield(L, -1, "clalloc.policies") == LUA_TTABLE && lua_getfield(L, -1, name) == LUA_TFUNCTION) {
    lua_call(L, 0, 1);
    return;
  }
  if (!is_ours)
    cla_lua_badarg(L, arg, "policy: none is named '%s'; there are %s", name,
                   "caching, direct, torch, rmm, bins, arena, buddy, planned");
  lua_createtable(L, 0, 1);
  lua_pushstring(L, name);
  lua_setfield(L, -2, "name");
}

lua_policy *cla_lua_readpolicy(lua_State *L, int arg, cla_policy *p, cla_decisions *d) {
  int top = lua_gettop(L);
  *p = cla_policy_caching();
  *d = (cla_decisions){0};
  if (lua_type(L, -1) == LUA_TSTRING) push_builtin(L, arg);
  if (!lua_istable(L, -1))
    cla_lua_badarg(L, arg, "policy: a policy or its name expected, got %s", luaL_typename(L, -1));
  int index = lua_gettop(L);
  bool has[DECISIONS], has_any = false;
  cla_lua_checkpublic(L, index, known);
  bool is_named = read_name(L, arg, index, p);
  read_parameters(L, index, p);
  lua_createtable(L, BLOCK, 0);
  for (int i = 0; i < DECISIONS; i++) {
    int type = lua_getfield(L, index, decision_names[i]);
    has[i] = type == LUA_TFUNCTION;
    has_any = has_any || has[i];
    if (has[i]) set_function(d, (decision)i);
    else if (type != LUA_TNIL) read_constant(L, arg, (decision)i, p, d);
    lua_settop(L, index + 2);
    if (!has[i]) {
      lua_pop(L, 1);
      lua_pushboolean(L, false);
    }
    lua_rawseti(L, index + 1, i + 1);
  }
  lua_copy(L, has_any ? index + 1 : index, top);
  lua_settop(L, top);
  if (!has_any) return NULL;
  lua_policy *made = calloc(1, sizeof *made);
  if (!made) luaL_error(L, "not enough memory for a policy");
  memcpy(made->has, has, sizeof has);
  snprintf(made->name, sizeof made->name, "%s", is_named ? p->name : "custom");
  p->name = made->name;
  atomic_init(&made->missed, 0);
  d->arg = made;
  d->release = release;
  return made;
}

void cla_lua_keeppolicy(lua_State *L, int object) {
  lua_pushvalue(L, object);
  lua_rawseti(L, -2, POOL);
  lua_setiuservalue(L, object, 1);
}
