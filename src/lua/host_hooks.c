/* Hooks of a pinned-memory cache that are given from Lua: they choose, veto, delay and count; the memory itself always
 * comes from the library, so a hook can lose nothing and hand out nothing twice.
 *
 *   allocate(nbytes, kind)       a block is made. nil or true: of the cache's kind; "mapped", "registered", "svm",
 *                                "plain": of that kind; false: not pinned, plain memory takes its place; nil and a
 *                                message: the allocation fails with it, code LIMIT
 *   free(nbytes, kind)           a block goes back
 *   record(stream, ticket)       use by a stream (its id) has been recorded
 *   query(stream, ticket, done)  is a ticket done? false: not yet. It may delay what is done, not hasten what is not
 *
 * They run only inside a call of the state that made the cache, on its thread, in protected mode (see lua_entry). Memory
 * that goes back at another moment, a stream's end say, is freed without asking; that is counted. A hook that calls its
 * own cache gets an error where the cache would need a hook again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "host/host.h"

enum { KINDS = CLA_HOST_PLAIN + 1 };
static const char *const kind_names[KINDS] = {"mapped", "registered", "svm", "plain"};

typedef enum hook { HOOK_ALLOCATE, HOOK_FREE, HOOK_RECORD, HOOK_QUERY, HOOKS } hook;
static const char *const hook_names[HOOKS + 1] = {"allocate", "free", "record", "query", NULL};

typedef struct lua_hooks {
  atomic_int refs; /* the cache's holders together, and every block from hook_allocate */
  atomic_uint_fast64_t missed;
  uint64_t id;
  bool has[HOOKS];
  cla_host_kind kind;
  cla_host_hooks kinds[KINDS]; /* what does the work */
} lua_hooks;

/* A block's backing: which kind it is of, and that kind's own. */
typedef struct lua_backing {
  cla_host_kind kind;
  void *backing;
} lua_backing;

/* ---- Entries ----------------------------------------------------------------------------------- */

static _Thread_local lua_entry *entries;

static lua_entry *entry_of(const lua_hooks *h) {
  lua_entry *e = entries;
  while (e && e->hooks != h) e = e->outer;
  return e;
}

void cla_lua_enter(lua_State *L, lua_entry *e, lua_hooks *hooks, int object) {
  *e = (lua_entry){.hooks = hooks, .L = L};
  if (!hooks) return;
  luaL_checkstack(L, 16, NULL);
  const lua_entry *outer = entry_of(hooks);
  bool is_nested = outer && (outer->is_running || !outer->table);
  bool has_table = lua_getiuservalue(L, object, 1) == LUA_TTABLE;
  if (has_table && !is_nested) e->table = lua_gettop(L);
  e->outer = entries;
  entries = e;
}

static void tell_record(lua_entry *e);

void cla_lua_leave(lua_State *L, lua_entry *e) {
  if (!e->hooks) return;
  if (e->has_record) tell_record(e);
  entries = e->outer;
  lua_pop(L, 1);
  if (e->has_failed) luaL_error(L, "%s", e->fault);
}

/* ---- Calling ----------------------------------------------------------------------------------- */

typedef struct request {
  hook hook;
  size_t nbytes;
  cla_host_kind kind;
  uint64_t stream, ticket;
  bool done;
  bool is_vetoed, is_refused; /* false; nil and a message */
  char message[256];          /* of the refusal, or of the error */
} request;

/* Calls the function with the arguments above it on the stack. */
static void call(lua_State *L, int nargs, int nresults) {
  lua_call(L, nargs, nresults);
  if (lua_gettop(L) > LUA_MINSTACK - 4) luaL_error(L, "too many results");
}

_Noreturn static void bad_result(lua_State *L, int index) {
  luaL_error(L, "it returned a %s", luaL_typename(L, index));
  abort();
}

static void run_allocate(lua_State *L, request *r) {
  lua_pushinteger(L, (lua_Integer)r->nbytes);
  lua_pushstring(L, kind_names[r->kind]);
  call(L, 2, 2);
  if (lua_isnil(L, -2) && lua_type(L, -1) == LUA_TSTRING) {
    r->is_refused = true;
    snprintf(r->message, sizeof r->message, "%s", lua_tostring(L, -1));
  } else if (lua_isboolean(L, -2)) {
    r->is_vetoed = !lua_toboolean(L, -2);
  } else if (lua_type(L, -2) == LUA_TSTRING) {
    const char *name = lua_tostring(L, -2);
    for (int i = 0; i < KINDS; i++)
      if (strcmp(name, kind_names[i]) == 0) {
        r->kind = (cla_host_kind)i;
        return;
      }
    luaL_error(L, "it returned '%s'; the kinds are mapped, registered, svm, plain", name);
  } else if (!lua_isnil(L, -2)) {
    bad_result(L, -2);
  }
}

static void run_query(lua_State *L, request *r) {
  lua_pushinteger(L, (lua_Integer)r->stream);
  lua_pushinteger(L, (lua_Integer)r->ticket);
  lua_pushboolean(L, r->done);
  call(L, 3, 1);
  if (lua_isboolean(L, -1)) r->done = r->done && lua_toboolean(L, -1);
  else if (!lua_isnil(L, -1)) bad_result(L, -1);
}

/* free and record: told, not asked. */
static void run_notice(lua_State *L, const request *r) {
  if (r->hook == HOOK_FREE) {
    lua_pushinteger(L, (lua_Integer)r->nbytes);
    lua_pushstring(L, kind_names[r->kind]);
  } else {
    lua_pushinteger(L, (lua_Integer)r->stream);
    lua_pushinteger(L, (lua_Integer)r->ticket);
  }
  call(L, 2, 1);
  if (!lua_isnil(L, -1) && !lua_isboolean(L, -1)) bad_result(L, -1);
}

/* Protected: the table of functions, the request. */
static int run(lua_State *L) {
  request *r = lua_touserdata(L, 2);
  lua_getfield(L, 1, hook_names[r->hook]);
  switch (r->hook) {
  case HOOK_ALLOCATE: run_allocate(L, r); break;
  case HOOK_QUERY: run_query(L, r); break;
  default: run_notice(L, r);
  }
  return 0;
}

/* False: the hook failed, and r->message says how. Nothing here raises. */
static bool ask(lua_entry *e, request *r) {
  lua_State *L = e->L;
  lua_pushcfunction(L, run);
  lua_pushvalue(L, e->table);
  lua_pushlightuserdata(L, r);
  e->is_running = true;
  bool is_well = lua_pcall(L, 2, 0, 0) == LUA_OK;
  e->is_running = false;
  if (is_well) return true;
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error that is no message";
  snprintf(r->message, sizeof r->message, "the hook '%s': %s", hook_names[r->hook], text);
  lua_pop(L, 1);
  return false;
}

/* The hook's error cannot stop what goes on: it is raised when the call is over. */
static void fail_later(lua_entry *e, const request *r) {
  if (!e->has_failed) snprintf(e->fault, sizeof e->fault, "%s", r->message);
  e->has_failed = true;
}

static void tell_record(lua_entry *e) {
  request r = {.hook = HOOK_RECORD, .stream = e->stream, .ticket = e->ticket};
  if (!ask(e, &r)) fail_later(e, &r);
}

/* ---- The four hooks, as the core calls them ---------------------------------------------------- */

static cla_status ask_allocate(lua_hooks *h, request *r) {
  lua_entry *e = entry_of(h);
  if (!e) return cla__error(CLA_E_BUSY, "the hook 'allocate' is needed where its Lua state does not run");
  if (!e->table) return cla__error(CLA_E_BUSY, "a cache of pinned memory is used by one of its own hooks");
  if (!ask(e, r)) return cla__error(CLA_E_INVALID, "%s", r->message);
  if (r->is_refused) return cla__error(CLA_E_LIMIT, "%s", r->message);
  return r->is_vetoed ? cla__error(CLA_E_UNSUPPORTED, "the hook 'allocate' returned false") : CLA_OK;
}

static cla_status hook_allocate(void *arg, size_t nbytes, void **memory, void **backing, bool *is_pinned) {
  lua_hooks *h = arg;
  request r = {.hook = HOOK_ALLOCATE, .nbytes = nbytes, .kind = h->kind};
  cla_status status = h->has[HOOK_ALLOCATE] ? ask_allocate(h, &r) : CLA_OK;
  if (status) return status;
  lua_backing *b = malloc(sizeof *b);
  if (!b) return cla__error(CLA_E_NOMEM, "no host memory for a pinned block");
  *b = (lua_backing){.kind = r.kind};
  const cla_host_hooks *k = &h->kinds[r.kind];
  status = k->allocate(k->arg, nbytes, memory, &b->backing, is_pinned);
  if (status) {
    free(b);
    return status;
  }
  *backing = b;
  atomic_fetch_add(&h->refs, 1);
  return CLA_OK;
}

static void hook_free(void *arg, void *memory, void *backing, size_t nbytes) {
  lua_hooks *h = arg;
  lua_backing *b = backing;
  request r = {.hook = HOOK_FREE, .nbytes = nbytes, .kind = b->kind};
  h->kinds[b->kind].free(h->kinds[b->kind].arg, memory, b->backing, nbytes);
  free(b);
  lua_entry *e = h->has[HOOK_FREE] ? entry_of(h) : NULL;
  if (e && e->table) {
    if (!ask(e, &r)) fail_later(e, &r);
  } else if (h->has[HOOK_FREE]) {
    atomic_fetch_add(&h->missed, 1);
  }
  cla_lua_unhooks(h);
}

/* The function is told when the call is over: by then the use is noted, whatever it closes. */
static cla_status hook_record(void *arg, cla_stream *s, uint64_t *ticket) {
  lua_hooks *h = arg;
  const cla_host_hooks *k = &h->kinds[h->kind];
  cla_status status = k->record(k->arg, s, ticket);
  if (status || !h->has[HOOK_RECORD]) return status;
  lua_entry *e = entry_of(h);
  if (e && e->table && !e->has_record) {
    e->has_record = true;
    e->stream = s->id;
    e->ticket = *ticket;
  } else {
    atomic_fetch_add(&h->missed, 1);
  }
  return CLA_OK;
}

static bool hook_query(void *arg, cla_stream *s, uint64_t ticket) {
  lua_hooks *h = arg;
  const cla_host_hooks *k = &h->kinds[h->kind];
  request r = {.hook = HOOK_QUERY, .stream = s->id, .ticket = ticket, .done = k->query(k->arg, s, ticket)};
  if (!h->has[HOOK_QUERY] || !ticket) return r.done;
  lua_entry *e = entry_of(h);
  if (!e || !e->table) {
    atomic_fetch_add(&h->missed, 1);
    return false;
  }
  if (ask(e, &r)) return r.done;
  fail_later(e, &r);
  return false;
}

/* ---- Life -------------------------------------------------------------------------------------- */

static char tables_key; /* registry: id -> the functions, weak: objects of the cache keep them */

static void remember(lua_State *L, uint64_t id) {
  cla_lua_pushweak(L, &tables_key, "v");
  lua_pushvalue(L, -2);
  lua_rawseti(L, -2, (lua_Integer)id);
  lua_pop(L, 1);
}

lua_hooks *cla_lua_newhooks(lua_State *L, int arg, cla_device *d, cla_host_kind kind, cla_host_hooks *out) {
  static atomic_uint_fast64_t next_id = 1;
  bool has[HOOKS];
  luaL_argcheck(L, lua_istable(L, -1), arg, "hooks: a table expected");
  int given = lua_gettop(L);
  cla_lua_checkfields(L, given, hook_names);
  lua_createtable(L, 0, HOOKS); /* a copy: what the script does to its own table later changes nothing */
  for (int i = 0; i < HOOKS; i++) {
    int type = cla_lua_field(L, given, hook_names[i]);
    if (type != LUA_TNIL && type != LUA_TFUNCTION)
      cla_lua_badarg(L, arg, "hooks.%s: a function expected, got %s", hook_names[i], luaL_typename(L, -1));
    has[i] = type == LUA_TFUNCTION;
    lua_setfield(L, -2, hook_names[i]);
  }
  lua_replace(L, given);
  uint64_t id = atomic_fetch_add(&next_id, 1);
  remember(L, id);
  lua_hooks *h = calloc(1, sizeof *h);
  if (!h) luaL_error(L, "not enough memory for hooks");
  atomic_init(&h->refs, 1);
  h->id = id;
  h->kind = kind;
  for (int i = 0; i < HOOKS; i++) h->has[i] = has[i];
  for (int i = 0; i < KINDS; i++) h->kinds[i] = cla__host_hooks_for(d, (cla_host_kind)i);
  *out = (cla_host_hooks){
      .arg = h, .allocate = hook_allocate, .free = hook_free, .record = hook_record, .query = hook_query};
  return h;
}

void cla_lua_unhooks(lua_hooks *h) {
  if (h && atomic_fetch_sub(&h->refs, 1) == 1) free(h);
}

uint64_t cla_lua_missed(const lua_hooks *h) { return atomic_load(&h->missed); }

lua_hooks *cla_lua_pushhooks(lua_State *L, const cla_host *host) {
  lua_hooks *h = host->hooks.allocate == hook_allocate ? host->hooks.arg : NULL;
  if (!h || lua_rawgetp(L, LUA_REGISTRYINDEX, &tables_key) != LUA_TTABLE) {
    if (h) lua_pop(L, 1);
    lua_pushnil(L);
    return NULL;
  }
  lua_rawgeti(L, -1, (lua_Integer)h->id);
  lua_remove(L, -2);
  if (lua_isnil(L, -1)) return NULL;
  atomic_fetch_add(&h->refs, 1);
  return h;
}
