-- Linked lists that kernels build with malloc, as a CUDA program would.
--
-- Work-item n makes a list of the divisors of n, one node a divisor. A second kernel follows the pointers and adds up,
-- a third turns each list round, a fourth frees it. Lua counts the same divisors.
--
-- You will see how many lists and nodes there were, where they lay in the heap, and at the end "as many divisors as Lua
-- finds". The argument is the number of lists (4096).

local cl = require "clalloc"

local N = math.tointeger(arg[1] or 4096)

local SOURCE = [[
typedef struct node {
  global struct node *next;
  uint value;
} node;

static global node *cons(uint value, global node *next) {
  global node *n = malloc(sizeof(node));
  if (!n) return next; /* no room: the divisor is missing, and the heap counts the failure */
  n->next = next;
  n->value = value;
  return n;
}

kernel void build(global ulong *heads) {
  const uint number = get_global_id(0) + 1;
  global node *list = 0;
  for (uint d = 1; d * d <= number; d++) {
    if (number % d) continue;
    list = cons(d, list);
    if (d * d != number) list = cons(number / d, list);
  }
  heads[get_global_id(0)] = (ulong)list;
}

kernel void reverse(global ulong *heads) {
  global node *list = (global node *)heads[get_global_id(0)], *reversed = 0;
  while (list) {
    global node *next = list->next;
    list->next = reversed;
    reversed = list;
    list = next;
  }
  heads[get_global_id(0)] = (ulong)reversed;
}

/* first, how many, sum */
kernel void sum(global const ulong *heads, global uint *out) {
  const size_t i = get_global_id(0);
  global const node *list = (global const node *)heads[i];
  out[3 * i] = list ? list->value : 0;
  out[3 * i + 1] = out[3 * i + 2] = 0;
  for (; list; list = list->next) {
    out[3 * i + 1]++;
    out[3 * i + 2] += list->value;
  }
}

kernel void drop(global ulong *heads) {
  global node *list = (global node *)heads[get_global_id(0)];
  while (list) {
    global node *next = list->next;
    free(list);
    list = next;
  }
  heads[get_global_id(0)] = 0;
}
]]

local dev <close> = cl.device()
local program <close> = assert(dev:program(SOURCE, { heap = true }))
local heads <close> = assert(dev:alloc(8 * N))
local out <close> = assert(dev:alloc(12 * N))

-- How many divisors each number has, and their sum: a sieve, nothing like what the kernel does.
local count, total = {}, {}
for d = 1, N do
  for multiple = d, N, d do
    count[multiple] = (count[multiple] or 0) + 1
    total[multiple] = (total[multiple] or 0) + d
  end
end

-- Compares every list; first(n) is what it has to begin with.
local function check(first)
  assert(program.sum { heads, out, size = N })
  local data = out:read()
  for n = 1, N do
    local head, nodes, sum = string.unpack("<I4I4I4", data, 12 * n - 11)
    assert(head == first(n) and nodes == count[n] and sum == total[n], ("the list of %d"):format(n))
  end
end

-- The divisor that was pushed last: the one above the root of n, or the root itself.
local function middle(n)
  for d = math.floor(math.sqrt(n)), 1, -1 do
    if n % d == 0 then return n // d end
  end
end

assert(program.build { heads, size = N })
check(middle)
print(("%d lists: %s"):format(N, tostring(dev.heap)))
print(dev.heap:draw(64, 4))
assert(program.reverse { heads, size = N })
check(function() return 1 end)
assert(program.drop { heads, size = N })
local stats = dev.heap:stats()
assert(dev.heap:check() and stats.live_blocks == 0 and stats.failed == 0)
print(("%d nodes, as many divisors as Lua finds"):format(stats.frees))
