/* What the files of the Lua binding share: one struct for each Lua type, checks, errors, options.
 *
 * Every object is a full userdata that gets its metatable while it is still closed (zeroed), so a failure half way
 * leaves nothing to finalize wrongly. `close`, `__close` and `__gc` are one idempotent function; a closed object says
 * so in tostring, and any other use of it raises. Lifetimes are counted in C, never left to the order of finalizers;
 * user values only keep Lua objects reachable. No OpenCL object is touched after the state is closed, nor in a forked
 * child. */
#ifndef CLA_LUA_BINDING_H
#define CLA_LUA_BINDING_H

#include <lauxlib.h>
#include <lua.h>

#include "pool/pool.h"

/* What a device object keeps of others, by user value. */
enum { CLA_LUA_DEVICE_HOST = 1, CLA_LUA_DEVICE_HEAP, CLA_LUA_DEVICE_VALUES = CLA_LUA_DEVICE_HEAP };

/* The names of the types. Each is also the address under which the registry has its metatable: found without hashing
 * the name. */
extern const char CLA_LUA_DEVICE[], CLA_LUA_STREAM[], CLA_LUA_EVENT[], CLA_LUA_GATE[], CLA_LUA_POOL[];
extern const char CLA_LUA_BUFFER[], CLA_LUA_MAP[], CLA_LUA_PROGRAM[], CLA_LUA_KERNEL[], CLA_LUA_GUARD[];
extern const char CLA_LUA_HOST[], CLA_LUA_HOST_BUFFER[], CLA_LUA_HEAP[];

/* ---- world.c: one per Lua state ---- */

typedef struct lua_guard lua_guard;

/* Kept in the registry of a Lua state; a light key, so lookups are one table access. */
typedef struct lua_world {
  cla_device *default_device; /* what NULL means outside guards: opened on first use, held until the state closes */
  lua_guard *guards;          /* innermost first; see guard.c */
  /* Pressure: Lua sees a few bytes where a gigabyte hangs. `grown` is how far live bytes have grown since the last full
   * collection: allocations count up, closes (explicit or by the collector) count down, never below 0. */
  size_t grown;
  bool is_collecting; /* inside a collection that we started: no second one */
  bool is_closed;     /* the state is closing: no default device is opened any more */
} lua_world;

lua_world *cla_lua_world(lua_State *L);
/* Before an allocation of `nbytes` from p: runs a full collection when growth passes the soft cap (a quarter of the
 * pool's limit, at least 64 MiB); not when the collector is stopped. An allocation that then fails is taken back with
 * cla_lua_shrank. */
void cla_lua_grew(lua_State *L, lua_world *w, const cla_pool *p, size_t nbytes);
void cla_lua_shrank(lua_world *w, size_t nbytes);
/* The same for memory that is limited by `limit` bytes in place of a pool's. */
void cla_lua_grew_within(lua_State *L, lua_world *w, size_t limit, size_t nbytes);
/* A full collection, unless one is running or the collector is stopped (then false): the reclaim step of an allocation
 * that found no memory. */
bool cla_lua_collect(lua_State *L, lua_world *w);

/* Notes the object on top, which was made in a finalizer: Lua may never finalize it. Raises once the world is gone. */
void cla_lua_stray(lua_State *L);

/* A device held by this state for several objects: a handle, the buffers and maps made through it. It is released when
 * the last of them is closed, so a buffer may use its device whatever the script has closed. Counted plainly: a state
 * runs on one thread at a time. */
typedef struct lua_share {
  lua_world *world;
  cla_device *device; /* retained */
  cla_pool *pool; /* the default pool once it was asked for, borrowed: it lives as long as the device; or a pool of the
                       * script's own, retained: then this is the share of that pool's objects and buffers alone */
  bool owns_pool;
  struct lua_policy *policy; /* of such a pool, when Lua functions decide for it: lives as long as the pool */
  size_t count;
} lua_share;
lua_share *cla_lua_share(lua_State *L, cla_device *d); /* a new one, count 1; retains; raises without host memory */
void cla_lua_unshare(lua_share *share);                /* NULL is ignored */

/* ---- check.c: arguments and results ---- */

/* Misuse raises "function: message"; failures of the environment push nil, message, code and return 3. Which is which:
 * NOMEM, LIMIT, TOO_LARGE, DRIVER, NO_DEVICE are the environment's. */
int cla_lua_fail(lua_State *L, cla_status status);
/* "bad argument #arg to 'function' (...)"; lua_pushfstring's formats. */
__attribute__((noreturn)) void cla_lua_badarg(lua_State *L, int arg, const char *format, ...);
int cla_lua_pushfail(lua_State *L, cla_status status); /* nil, message, code, whatever the status */
int cla_lua_raise(lua_State *L);                       /* raises the last error, whatever its status */
int cla_lua_result(lua_State *L, cla_status status);   /* true, or as cla_lua_fail */
/* A size, offset or count in bytes: an integer (or a float with an integral value) in 0 .. 2^63-1. Raises "bad
 * argument #i to 'f' (NAME: ... )" with the value for negatives, fractions, NaN, infinities, strings (also numeric
 * ones), nil and others. */
size_t cla_lua_checksize(lua_State *L, int arg, const char *name);
size_t cla_lua_optsize(lua_State *L, int arg, const char *name, size_t otherwise);
/* Pushes an option, raw: a metamethod could close what the call has checked, and inherited options are not known. */
int cla_lua_field(lua_State *L, int index, const char *name);
/* The same for field `name` of the table at `index` (nil: otherwise). */
size_t cla_lua_fieldsize(lua_State *L, int index, const char *name, size_t otherwise);
bool cla_lua_fieldbool(lua_State *L, int index, const char *name, bool otherwise);
/* Raises for keys of the options table at `index` that are not in the NULL-terminated list: a misspelt option is
 * misuse. */
void cla_lua_checkfields(lua_State *L, int index, const char *const *known);
/* The same for a table that may have fields of its own, whose names begin with an underscore. */
void cla_lua_checkpublic(lua_State *L, int index, const char *const *known);

/* Pushes a byte count for people: "1.5 MiB". */
void cla_lua_pushbytes(lua_State *L, uint64_t nbytes);

/* Raises unless [offset, offset + nbytes) lies in `size` bytes of `what`. */
void cla_lua_checkrange(lua_State *L, int arg, size_t offset, size_t nbytes, size_t size, const char *what);
/* Raises "attempt to use a closed WHAT" when the handle is NULL, and in a forked child. */
void cla_lua_checkopen(lua_State *L, int arg, const void *handle, const char *what);

/* Makes a metatable: `methods` for names, `properties` (may be NULL: each a C function that takes the object and
 * returns one value) for fields such as buf.size, `meta` for metamethods. __index is a C function; an unknown name
 * gives nil. Sets __name. Leaves the stack as it was. */
void cla_lua_newtype(lua_State *L, const char *name, const luaL_Reg *methods, const luaL_Reg *properties,
                     const luaL_Reg *meta);

/* Pushes zeroed memory whose `gc` gives back what it will hold, also when Lua raises meanwhile. */
void *cla_lua_newbox(lua_State *L, size_t size, lua_CFunction gc);
/* Pushes the weak table that the registry has under `key`, made when it has none; mode as in __mode. */
void cla_lua_pushweak(lua_State *L, const void *key, const char *mode);

/* The object at `arg` if it is of the type, open or closed; else NULL, or an error. */
void *cla_lua_test(lua_State *L, int arg, const char *type);
void *cla_lua_check(lua_State *L, int arg, const char *type);

/* A new userdata of the type, zeroed, with its metatable and `nuser` user values. */
void *cla_lua_new(lua_State *L, size_t size, const char *type, int nuser);
/* Gives the closed object at stack index `arg` a metatable that has everything but the finalizer, which costs the collector a
 * call for every object (getmetatable(x).__gc is still found). For types made by the thousand. */
void cla_lua_retire(lua_State *L, int arg, const char *type);
void cla_lua_newretired(lua_State *L, const char *type); /* once, after cla_lua_newtype */

/* ---- The objects ---- */

typedef struct lua_device {
  cla_device *device; /* share->device; NULL: closed */
  lua_share *share;
} lua_device;
typedef struct lua_stream {
  cla_stream *stream; /* retained; NULL: closed */
} lua_stream;
typedef struct lua_gate {
  cla_gate *gate; /* NULL: closed, which opened it */
} lua_gate;
typedef struct lua_pool {
  cla_pool *pool;   /* the share's own, or the device's default pool, retained; NULL: closed */
  lua_share *share; /* of the pool, or, for the default pool, of the device */
} lua_pool;         /* user value 1: the table of its policy, or nil */

typedef struct lua_event {
  cl_event event;               /* NULL: closed */
  cla_stream *stream;           /* cla__stream_hold: the device lives while the event does (also retain the device) */
  cla_device *device;           /* retained */
  uint64_t number;              /* of the command on the stream */
  struct cla_heap_watch *watch; /* of a launch that must not fail to allocate, or NULL */
  void *host; /* malloc'd destination of an asynchronous read, or NULL; freed only when it is complete */
  size_t nbytes;
  bool is_read; /* data() has something to give, if only an empty string */
} lua_event;

/* An allocation, or a view of one. Views share the handle and are stale when the allocation is freed. */
typedef struct lua_buffer {
  cla_handle handle; /* pool NULL: closed */
  void *address;     /* of the first byte of the view */
  size_t offset;     /* of the view in the allocation */
  size_t nbytes;     /* of the view */
  size_t size;       /* bytes set aside for the allocation */
  bool is_view; /* user value 1: the buffer it was made from, else the table of its pool's policy; closing a view frees
                 * nothing */
  lua_share *share; /* NULL exactly when closed; keeps a pool of the script's alive while buffers of it are reachable */
  cla_device *device; /* share->device */
} lua_buffer;

typedef struct lua_map {
  cla_mapping *mapping; /* NULL: closed */
  cla_handle handle;
  lua_share *share; /* the unmap goes to a stream of this device */
  void *host;
  size_t nbytes;
  bool readable, writable;
} lua_map; /* user value 1: the buffer */

/* A cache of pinned memory held by this state: by its objects and by what was allocated from it. */
typedef struct lua_cache {
  cla_host *host;          /* the device's own, borrowed, or the script's; NULL: closed */
  lua_share *share;        /* counted */
  struct lua_hooks *hooks; /* given from Lua, counted; or NULL */
  bool is_own;             /* the script's: it is closed with its last holder at the latest */
  size_t count;
} lua_cache;
typedef struct lua_host {
  lua_cache *cache; /* NULL: closed */
} lua_host;         /* user value 1: the hooks, or nil */

typedef struct lua_heap {
  cla_heap *heap;   /* the device's, borrowed; NULL: closed */
  lua_share *share; /* counted: it keeps the device, and so the heap */
} lua_heap;

/* A pinned allocation, or a view of one. Views are stale when the allocation is freed. */
typedef struct lua_host_buffer {
  lua_cache *cache; /* NULL: closed */
  void *context;    /* of the allocation */
  void *memory;     /* first byte of the view */
  size_t offset;    /* of the view in the allocation */
  size_t nbytes;    /* of the view */
  size_t size;      /* bytes set aside for the allocation */
  bool is_pinned;
  bool is_view;
} lua_host_buffer; /* user values: the hooks, or nil; the object a view was made from, or nil */

/* Checks: raise for another type and for a closed object ("attempt to use a closed buffer"). */
lua_device *cla_lua_checkdevice(lua_State *L, int arg);
lua_stream *cla_lua_checkstream(lua_State *L, int arg);
lua_event *cla_lua_checkevent(lua_State *L, int arg);
lua_gate *cla_lua_checkgate(lua_State *L, int arg);
lua_pool *cla_lua_checkpool(lua_State *L, int arg);
lua_buffer *cla_lua_checkbuffer(lua_State *L, int arg); /* the allocation may be freed: the core says so at use */

lua_host_buffer *cla_lua_checkhostbuffer(lua_State *L, int arg); /* and for memory that is freed */
lua_heap *cla_lua_checkheap(lua_State *L, int arg);

void cla_lua_pushdevice(lua_State *L, cla_device *d);               /* retains */
void cla_lua_pushshared(lua_State *L, lua_share *share);            /* another handle of the same share */
void cla_lua_pushstream(lua_State *L, cla_stream *s);               /* retains */
void cla_lua_pushpool(lua_State *L, lua_share *share, cla_pool *p); /* retains; p is of the share's device */
/* Takes over the event's reference; retains stream and device. If userdata creation throws, the event leaks nothing:
 * call cla_lua_newevent first (closed), then fill it in. */
lua_event *cla_lua_newevent(lua_State *L);
void cla_lua_fillevent(lua_event *e, cl_event event, cla_stream *s, uint64_t number);

/* ---- guard.c: what "current" means ---- */

/* The current device and stream of the running coroutine: its own innermost guard, or that of a coroutine that is
 * resuming it (directly or not), else the default device and its default stream. Raises when there is no device. */
void cla_lua_current(lua_State *L, cla_device **d, cla_stream **s);
/* The current stream if it is d's, else d's default stream. */
cla_stream *cla_lua_currentstream(lua_State *L, cla_device *d);
/* The same, when w->guards is not NULL. */
cla_stream *cla_lua_guardedstream(lua_State *L, const lua_world *w, cla_device *d);
/* The object of the pool that a guard has made current for this device, pushed; NULL, and nothing is pushed: the default
 * pool is. w->guards is not NULL. Raises when the pool is closed. */
lua_pool *cla_lua_pushguardedpool(lua_State *L, const lua_world *w, const cla_device *d);

/* ---- Options of commands: {stream =, wait =, async =} ---- */

typedef struct lua_command {
  cla_order order;
  cl_event wait[CLA_MOST_WAITS];
  cl_event out;
  bool async;
} lua_command;
/* Reads the options table at `index` (nil or none: defaults) for a command on device d; raises for closed or foreign
 * streams, events of another device, more than CLA_MOST_WAITS. `wait` may hold events and gates, or be a single one.
 * Gates and the streams of events are noted on the stream (cla__stream_note_gate, cla__stream_inherit_gates).
 * order.stream defaults to the current stream. order.blocking = !async; order.out = &c->out when async. order.wait
 * points into c: c must not move. */
void cla_lua_command(lua_State *L, int index, cla_device *d, lua_command *c);
/* The same for a command that is always asynchronous, and has no option `async`. */
void cla_lua_command_async(lua_State *L, int index, cla_device *d, lua_command *c);
/* The stream on top of the stack, given as an option at `index`: open, and of device d or (NULL: none) `other`. */
cla_stream *cla_lua_topstream(lua_State *L, int index, cla_device *d, cla_device *other);
/* The value of `wait` at index, for a command on c->order.stream, which is of device d. */
void cla_lua_waits(lua_State *L, int index, cla_device *d, cla_stream *s, lua_command *c);
/* The same for a copy: stream and events may be of either device. */
void cla_lua_command_between(lua_State *L, int index, cla_device *to, cla_device *from, lua_command *c);

/* ---- host.c, host_hooks.c: caches of pinned memory ---- */

void cla_lua_drophost(lua_State *L, int device); /* closes the handle dev.host of the device at this index */
void cla_lua_dropheap(lua_State *L, int device); /* heap.c: the same for dev.heap */

lua_cache *cla_lua_newcache(lua_State *L,
                            lua_share *share); /* count 1, without a cache yet; raises without host memory */
void cla_lua_uncache(lua_cache *cache);        /* NULL is ignored; the last holder closes it */

/* Around every call of the core that may run the cache's hooks. They are Lua functions of one state: they run only
 * between enter and leave, on that thread, in protected mode; so between the two nothing may raise. */
typedef struct lua_entry {
  struct lua_entry *outer;
  struct lua_hooks *hooks; /* NULL: the cache has none from Lua */
  lua_State *L;
  int table;       /* stack index of the hooks' functions; 0: not to be called */
  bool is_running; /* one of them is being called */
  bool has_record; /* the hook `record` is to be told of: */
  uint64_t stream, ticket;
  bool has_failed;
  char fault[256]; /* the first error of a hook that could not stop what it was called for */
} lua_entry;
/* `object`: stack index of the cache or buffer whose user value 1 has the hooks. */
void cla_lua_enter(lua_State *L, lua_entry *e, struct lua_hooks *hooks, int object);
void cla_lua_leave(lua_State *L, lua_entry *e); /* raises what has failed */
/* Reads the table of hooks on top of the stack and leaves its functions there in place of it. */
struct lua_hooks *cla_lua_newhooks(lua_State *L, int arg, cla_device *d, cla_host_kind kind, cla_host_hooks *out);
void cla_lua_unhooks(struct lua_hooks *hooks);
uint64_t cla_lua_missed(const struct lua_hooks *hooks); /* calls left out because Lua could not be called */
/* The hooks of a cache if they are of this state: their functions, or nil, are pushed. */
struct lua_hooks *cla_lua_pushhooks(lua_State *L, const cla_host *host);

/* host_bytes.c: the optional arguments `offset` and `n` at arg and arg + 1, by default all that follows; gives the offset. Then
 * the methods read([offset [, n]]) and write(string [, offset]) of something that has `size` bytes of host memory. */
size_t cla_lua_optrange(lua_State *L, int arg, size_t size, const char *what, size_t *nbytes);
int cla_lua_readbytes(lua_State *L, const void *memory, size_t size, const char *what);
int cla_lua_writebytes(lua_State *L, void *memory, size_t size, const char *what);

/* host_buffer.c: the view for cl.resolve and its offset; false: the address is in no pinned allocation. */
bool cla_lua_resolve_host(lua_State *L, const void *address, cla_status *status);
/* host_copy.c: buf:copy(h), h:copy(buf), h:copy(h) */
int cla_lua_host_copy(lua_State *L);
int cla_lua_buffer_write_async(lua_State *L);
int cla_lua_buffer_read_async(lua_State *L);

/* ---- policy.c: decisions made by Lua functions ---- */

typedef struct lua_policy lua_policy;

/* Around every call of the core that may want a decision: only between begin and end, on this thread, are a policy's
 * functions called. Nothing between the two may raise. */
typedef struct lua_turn {
  struct lua_turn *outer;
  lua_policy *policy;
  lua_State *L;
  int table;       /* stack index of the functions; 0: the defaults count */
  bool is_running; /* one of them is being called */
  bool has_failed;
  char fault[512]; /* the first error that could not stop what it was called for: to be raised after the end */
} lua_turn;
/* `object`: stack index of the pool or buffer whose user value 1 has the functions. An error, and no turn, where one of
 * them `allocates` from its own pool. Does not raise. */
cla_status cla_lua_begin(lua_State *L, lua_turn *t, lua_policy *p, int object, bool allocates);
void cla_lua_end(lua_turn *t); /* leaves the stack as it was */
/* Reads the policy on top of the stack, a table or a name. If it has functions, their table takes its place, and the
 * result is what d->arg is: freed with the pool, or by the caller if there will be none. Else NULL. */
lua_policy *cla_lua_readpolicy(lua_State *L, int arg, cla_policy *p, cla_decisions *d);
void cla_lua_keeppolicy(lua_State *L, int object); /* the table on top becomes the pool's user value */
uint64_t cla_lua_undecided(const lua_policy *p); /* decisions that were the default's because Lua could not be called */

/* ---- One open function a file, called by module.c ---- */

void cla_lua_open_world(lua_State *L);
void cla_lua_open_device(lua_State *L);
void cla_lua_open_stream(lua_State *L);
void cla_lua_open_event(lua_State *L);
void cla_lua_open_gate(lua_State *L);
void cla_lua_open_pool(lua_State *L);
void cla_lua_open_buffer(lua_State *L);
void cla_lua_open_map(lua_State *L);
void cla_lua_open_program(lua_State *L); /* registers CLA_LUA_PROGRAM */
void cla_lua_open_kernel(lua_State *L);  /* registers CLA_LUA_KERNEL */
void cla_lua_open_guard(lua_State *L);
void cla_lua_open_host(lua_State *L);
void cla_lua_open_host_buffer(lua_State *L);
void cla_lua_open_heap(lua_State *L);

/* Methods of the device object that other files define. */
int cla_lua_device_program(lua_State *L);    /* program.c: dev:program(src [, opts]) */
int cla_lua_device_pool(lua_State *L);       /* pool.c: dev:pool([opts]) */
int cla_lua_device_alloc(lua_State *L);      /* buffer.c: dev:alloc(nbytes [, opts]) */
int cla_lua_pool_alloc(lua_State *L);        /* buffer.c: pool:alloc(nbytes [, stream or opts]) */
int cla_lua_device_stream(lua_State *L);     /* stream.c */
int cla_lua_device_gate(lua_State *L);       /* gate.c */
int cla_lua_localmem(lua_State *L);          /* kernel.c: cl.localmem(nbytes) */
int cla_lua_buffer_map(lua_State *L);        /* map.c: buf:map(mode [, offset [, n]]) */
int cla_lua_device_host(lua_State *L);       /* host.c: dev.host, a property */
int cla_lua_device_host_cache(lua_State *L); /* host.c: dev:host_cache([opts]) */
int cla_lua_device_heap(lua_State *L);       /* heap.c: dev.heap, a property */
int cla_lua_host_alloc(lua_State *L);        /* host_buffer.c: host:alloc(nbytes) */
int cla_lua_device_complete(lua_State *L);   /* sim.c: dev:complete(stream [, n]) */
int cla_lua_debug_table(lua_State *L);       /* debug.c: pushes the table cl.debug */
int cla_lua_pool_trace_table(
    lua_State *L); /* pool_trace.c: pushes {start, stop, read}, for lua/clalloc/trace/pool.lua */

/* Functions of the module. */
int cla_lua_device(lua_State *L);      /* device.c: cl.device([selector]) */
int cla_lua_devices(lua_State *L);     /* device.c: cl.devices() */
int cla_lua_simulate(lua_State *L);    /* sim.c: cl.simulate(opts) */
int cla_lua_plan(lua_State *L);        /* plan.c: see there */
int cla_lua_guard(lua_State *L);       /* guard.c: cl.guard(device, stream or pool) */
int cla_lua_owns(lua_State *L);        /* buffer.c: cl.owns(address) */
int cla_lua_resolve(lua_State *L);     /* buffer.c: cl.resolve(address) */
int cla_lua_heap_source(lua_State *L); /* heap.c: cl.heap_source() */

#endif
