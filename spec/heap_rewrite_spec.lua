-- malloc and free in kernels as CUDA and HIP programs write them: what compilers make of the rewritten sources. The
-- rewriting itself is tested to the letter by spec/c/heap_rewrite.c. A program with the heap takes a second or two to
-- build, so each of these has many things in it.

local cl = require "clalloc"
local failure = require "spec.failure"

-- Calls in the kernel, in functions declared before and after, in a kernel that a kernel calls; all five functions.
local CALLS = [[
typedef struct node { global struct node *next; int free; } node;
static global node *push(global node *head, int value);
static int sum_and_free(global node *head);
static int all_five(void) {
  global int *zero = calloc(100, sizeof(int)), *more;
  global char *aligned = aligned_alloc(256, 300);
  int sum = 0;
  for (int i = 0; i < 100; i++) sum += zero[i];
  zero[99] = 7;
  more = realloc(zero, 4000);
  sum += !more || more[99] != 7 || more[0] != 0 || ((ulong)aligned & 255) != 0;
  free(more);
  free(aligned);
  return sum;
}
kernel void inner(global int *out) {
  const int i = get_global_id(0);
  global node *list = 0;
  for (int k = 1; k <= 5; k++) list = push(list, k * i);
  out[i] = sum_and_free(list) + all_five();
}
__attribute__((reqd_work_group_size(1, 1, 1))) kernel __attribute__((vec_type_hint(int))) void f(
  global int *out // what each item found
) {
  inner(out);
}
static inline __attribute__((always_inline)) global node *push(global node *head, int value) {
  global node *n = (global node *)malloc(sizeof(node));
  n->next = head;
  n->free = value;
  return n;
}
static int (sum_and_free)(global node *head) __attribute__((noinline)) {
  int free_sum = 0, free = 0;
  while (head) {
    global node *next = head->next;
    free_sum += head->free + free;
    {
      void drop(global void *);
      drop(head);
    }
    head = next;
  }
  return free_sum;
}
void drop(global void *p) { free(p); }
]]

-- Macros: bodies, other names, functions behind macros, heads.
local MACROS = [[
#define NEW(T) ((global T *)malloc(sizeof(T)))
#define ALLOC malloc
#define RELEASE(p) \
  do {             \
    free(p);       \
    (p) = 0;       \
  } while (0)
#define DROP free
#define KERNEL(name) kernel void name
#define EACH(i, n) for (int i = 0; i < (n); i++) {
static global int *boxed(int value, int more) {
  global int *p = NEW(int);
  *p = value + more;
  return p;
}
#define boxed(value) boxed(value, 2)
#define BOX boxed
static void nothing(void) { free(0); }
#define NOTHING nothing
KERNEL(f)(global int *out) {
  const int i = get_global_id(0);
  global int *p = BOX(i), *q = ALLOC(4), *r = FROM_OUTSIDE(N);
  NOTHING();
  *q = 0;
  EACH(k, 40) *q += 1; }
  *r = *p + *q;
  out[i] = *r;
  RELEASE(p);
  DROP(q);
  RELEASE_TOO(r);
  if (p) out[i] = -1;
}]]

-- A head in each branch, a function in one where another has a macro.
local BRANCHES = [[
#ifdef DEBUGGING
static global int *get(int n) {
  global int *p = calloc(n + 1, sizeof(int));
  if (p) *p = n + 1;
  return p;
}
#else
static global int *fill(global int *p, int n) { *p = n; return p; }
#define get(n) fill(malloc((n) * sizeof(int)), n)
#endif
#if STYLE == 1
kernel void f(global int *out) {
  const int more = 10;
#elif STYLE == 2
#define more 20
kernel void f(global int *out
#ifdef NEVER
  , int another
#endif
) {
#else
#error no style
#endif
  global int *p = get(more);
  out[0] = *p;
  free(p);
}]]

describe("a program with heap = true", function()
  local dev

  setup(function() dev = cl.device() end)

  -- llvmpipe inlines every call of malloc, and takes minutes for a program with several.
  local function is_slow()
    return dev.name:find "llvmpipe" and pending "minutes to compile"
  end

  after_each(function()
    assert(dev.heap:reset())
    dev.heap.sites = false
  end)
  teardown(function() dev:close() end)

  -- What kernel f of the source writes to its only buffer, n ints, run by n groups of one; nothing may stay allocated.
  local function expect(wanted, source, options)
    options = options or {}
    options.heap = true
    local n = #wanted
    local prog <close> = assert(dev:program(source, options))
    local out <close> = assert(dev:alloc(4 * n))
    assert(out:fill(0))
    assert(assert(prog.f { out, size = n, group = 1 }):wait())
    local got = { string.unpack("<" .. ("i4"):rep(n), out:read()) }
    got[n + 1] = nil
    assert.same(wanted, got)
    assert(dev.heap:check())
    local stats = dev.heap:stats()
    assert.equal(0, stats.live_blocks)
    assert.equal(0, stats.failed)
  end

  for _, has_sites in ipairs { false, true } do
    describe(has_sites and "and sites" or "and no sites", function()
      before_each(function() dev.heap.sites = has_sites end)

      it("calls all five functions, from functions and kernels", function()
        if is_slow() then return end
        -- NVIDIA's compiler finds the types of `int f(int);` and `int (f)(int x) {...}` in conflict.
        local is_nvidia = dev.platform:find "NVIDIA" ~= nil
        expect({ 0, 15, 30 }, is_nvidia and (CALLS:gsub("%(sum_and_free%)", "sum_and_free")) or CALLS)
      end)

      it("calls them through macros, defines too", function()
        if is_slow() then return end
        expect({ 42, 43, 44 }, MACROS,
          { defines = { ["FROM_OUTSIDE(n)"] = "malloc(n)", RELEASE_TOO = "free", N = 9 } })
      end)
    end)
  end

  it("has every branch of its conditionals rewritten", function()
    expect({ 11 }, BRANCHES, { defines = { STYLE = 1, DEBUGGING = true } })
    expect({ 20 }, BRANCHES, { defines = { STYLE = 2 } })
  end)

  it("may have macros of its own around the five, and around types and attributes", function()
    expect({ 105, 106 }, [[
static global void *counted(size_t n, global int *out) {
  if (out) *out += 100;
  return malloc(n);
}
#define malloc(n) counted(n, out)
#define free(p) (void)free((p))
#define SOME(T) static inline T
#define ATTRIBUTE(x) __attribute__((x))
SOME(global int *) ATTRIBUTE(noinline) boxed(int value, global int *out) {
  int take(int), give(int);
  global int *p = malloc(sizeof(int));
  if (p) *p = give(take(value));
  return p;
}
int take(int n) { free(calloc(1, 1)); return n; }
int give(int n) { free(calloc(1, 1)); return n; }
ATTRIBUTE(reqd_work_group_size(1, 1, 1)) kernel void f(global int *out) {
  global int *own = out + get_global_id(0);
  global int *p = boxed(5 + get_global_id(0), own);
  *own += *p;
  free(p);
}
#undef malloc
kernel void other(global int *out) { free(malloc(3)); }]])
  end)

  it("may have names of its own for anything", function()
    expect({ 12345 }, [[
      struct s { int malloc, free; };
      static int malloc(int free) { return free + 1; }
      kernel void f(global int *out) {
        struct s s = { .malloc = malloc(9999), .free = 2345 };
        int free = s.free;
        if (free) goto calloc;
        *out = -1;
      calloc:
        *out = s.malloc + free;
      }]])
  end)

  it("is what it is without the option, where nothing allocates", function()
    local source = "kernel void f(global int *out) { int free = 3; /* malloc(1) */ *out = free; }"
    expect({ 3 }, source)
    local prog <close> = dev:program(source, { heap = true })
    assert.equal(1, #prog.f.args)
  end)

  it("may come from a file with a byte order mark, and from any system", function()
    local source = "\xef\xbb\xbfkernel void f(global int *out) {\r\n  global int *p = malloc(4);\r\n  *p = N;\r\n"
    expect({ 7 }, source .. "  *out = *p;\r\n  free(p);\r\n}", { defines = { N = 7 } })
    expect({ 7 }, source:gsub("\r\n", "\r") .. "*out = *p; free(p); }", { defines = { N = 7 } })
    assert.matches("[:(]4[:,][^\n]*nonsense", failure(dev.program, dev, source .. "  nonsense; }", { heap = true }))
  end)

  it("shows kernels with the arguments that their source has", function()
    local prog <close> = dev:program("kernel void f(global int *x, uint n) { free(malloc(n)); }", { heap = true })
    assert.equal(2, #prog.f.args)
    assert.matches("f: 2 arguments expected %(x, n%), got 1", failure(prog.f, { 1, size = 1 }))
  end)

  for _, standard in ipairs { "CL2.0", "CL3.0" } do
    it("builds as " .. standard .. ", where the device does", function()
      local option = { options = "-cl-std=" .. standard }
      local source = "kernel void f(global int *out) { global int *p = malloc(4); *p = 5; *out = *p; free(p); }"
      local is_known, plain = pcall(dev.program, dev, "kernel void f(global int *out) { *out = 1; }", option)
      if not is_known then
        option.heap = true
        return assert.is_false((pcall(dev.program, dev, source, option)))
      end
      plain:close()
      expect({ 5 }, source, option)
    end)
  end

  describe("that does not build", function()
    local function message_of(source, options)
      options = options or {}
      options.heap = true
      return failure(dev.program, dev, source, options)
    end

    local LINES = [[
#define NEW(n) \
  malloc(n)
/* a comment
   of lines */
static global int *g(
  int n) { return NEW(n); }
kernel void f(global int *out) { mal\
loc(3);
  free(g(3));
  %s
#line 70
  %s
}]]

    it("has the compiler name the lines of the source", function()
      local source = LINES:format("g(*out = undeclared_name);", "malloc(another_name);")
      local message = message_of(source, { defines = { A = 1, B = 2 } })
      local seventy = dev.platform:find "NVIDIA" and 12 or 70 -- its compiler takes no notice of #line
      assert.matches("[:(]10[:,][^\n]*undeclared_name", message)
      assert.matches(("[:(]%d[:,][^\n]*another_name"):format(seventy), message)
      assert.matches("[:(]10[:,]", message_of(LINES:format("malloc(1, 2);", "")))
      assert.matches(("[:(]%d[:,]"):format(seventy), message_of(LINES:format("", "*out = 1")))
    end)

    it("leaves unbalanced sources to the compiler", function()
      assert.matches("does not build", message_of "kernel void f(global int *out) { malloc(3); {")
      assert.matches("does not build", message_of "kernel void f(global int *out) { malloc(3); } } int x = malloc(1);")
      assert.matches("does not build", message_of "kernel void f(global int *out) { malloc(\"3); }")
    end)

    it("is refused by line and name for what has no place for the heap", function()
      local made = "\n#define LIST(T) global T *new_##T() { return malloc(sizeof(T)); }\nLIST(int)\nkernel void f() {}"
      assert.matches("line 3: the macro LIST makes the function new_int, which allocates.*CLA_HEAP", message_of(made))
      assert.matches("line 3: the macro LIST makes", message_of(made, { defines = { A = 1, B = 2 } }))
      assert.matches("line 2: malloc is used without being called.*CLA_HEAP",
        message_of "kernel void f(global int *out) {\n  *out = (int)(ulong)&malloc; }")
      assert.matches("line 1: malloc is called outside of any function", message_of "int x = malloc(3);")
    end)

    it("says what the argument is that a call pasted together lacks", function()
      local message = message_of [[
#define CALL(name, x) do_##name(x)
static void do_drop(global int *p) { free(p); }
kernel void f(global int *out) {
  CALL(drop, out);
}]]
      assert.matches("[:(]4[:,]", message)
      assert.matches("\ncla__heap: the heap, which functions .* CLA_HEAP heap, and cla_malloc%(heap, n%)$", message)
      assert.not_matches("CLA_HEAP", message_of "kernel void f(global int *out) { *out = nonsense; }")
    end)

    it("through a header that calls malloc says that malloc is not declared", function()
      local folder = os.tmpname()
      assert(os.remove(folder))
      assert(os.execute(("mkdir '%s'"):format(folder)))
      local header <close> = assert(io.open(folder .. "/helpers.h", "w"))
      assert(header:write "global int *box(void) { return malloc(4); }\n")
      assert(header:flush())
      local source = '#include "helpers.h"\nkernel void f(global int *out) { free(box()); }'
      local message = message_of(source, { options = "-I" .. folder })
      assert(os.execute(("rm -r '%s'"):format(folder)))
      assert.matches("malloc", message)
      assert.matches("seen in the source and in defines; not in a header", message, 1, true)
    end)

    it("says where malloc is not seen", function()
      local hint = "\nmalloc and its like are seen in the source and in defines; .* and cla_malloc%(heap, n%)$"
      assert.matches(hint, message_of("kernel void f(global int *out) { NEW(3); }", { options = "-DNEW(n)=malloc(n)" }))
      assert.matches(hint, message_of [[
#ifdef DEBUGGING
#define malloc(n) logged(n, __LINE__)
#endif
kernel void f(global int *out) { free(malloc(3)); }]])
      assert.not_matches("seen in", failure(dev.program, dev, "kernel void f(global int *out) { malloc(3); }"))
    end)
  end)

  it("knows kernel and line of what stays allocated", function()
    if is_slow() then return end
    dev.heap.sites = true
    local prog <close> = dev:program([[
#define NEW(n) malloc(n)
static global void *box(int n) {
  return malloc(
    n);
}
kernel void first(int n) {
  for (int i = 0; i < n; i++) box(16);
  NEW(64);
}
kernel void second(void) { calloc(3, 100); box(16);
  realloc(aligned_alloc(32, 20), 5000);
}]], { heap = true })
    assert(prog.first { 5, size = 2 })
    assert(prog.second { size = 1 })
    local seen = {}
    for _, leak in ipairs(dev.heap:leaks()) do
      seen[#seen + 1] = ("%s:%d %d"):format(leak.kernel, leak.line, leak.blocks)
    end
    table.sort(seen)
    assert.same({ "first:3 10", "first:8 2", "second:10 1", "second:11 1", "second:3 1" }, seen)
  end)
end)
