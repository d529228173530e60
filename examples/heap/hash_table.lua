-- A hash table with chains, which thousands of work-items fill at the same time without locks.
--
-- Each work-item counts one key. It looks for the key in its chain, and puts a new node in front when there is none, by
-- compare-and-swap of the chain's head; who loses the race looks only at what the winners have put in front. Heads and
-- links are 32-bit references (cla_ref, cla_at), as not every device swaps 64 bits. They need the heap by name: a
-- CLA_HEAP parameter, for which the launch passes dev.heap. cla_fence orders a node's contents and its reference for
-- all work-items, which mem_fence does not promise. A last kernel empties the table.
--
-- You will see how long the chains are, a part of one as the host reads it, and at the end "the table is Lua's". The
-- argument is the number of keys (20000).

local cl = require "clalloc"

local N = math.tointeger(arg[1] or 20000)
local CHAINS = 1024 -- a power of two

local SOURCE = [[
typedef struct node {
  volatile uint next; /* a reference; never changes once others see the node */
  volatile uint key;
  volatile uint count;
} node;

static uint chain_of(uint key) { return key * 2654435769u >> (32 - BITS); }

/* The node of a key in the part of a chain from `from` up to, without, `end`. */
static global node *find(CLA_HEAP heap, uint from, uint end, uint key) {
  global node *found = 0;
  while (from != end && !found) {
    global node *n = cla_at(heap, from);
    if (n->key == key) found = n;
    from = n->next;
  }
  return found;
}

kernel void count(CLA_HEAP heap, global const uint *keys, volatile global uint *heads) {
  const uint key = keys[get_global_id(0)];
  volatile global uint *head = &heads[chain_of(key)];
  global node *mine = 0;
  uint seen = 0;
  bool is_counted = false;
  while (!is_counted) { /* another round only when another item has put a node in front */
    const uint now = *head;
    cla_fence();
    global node *n = find(heap, now, seen, key);
    seen = now;
    if (n) {
      atomic_inc(&n->count);
      cla_free(heap, mine); /* made in vain, or null */
      is_counted = true;
    } else {
      if (!mine) mine = cla_malloc(heap, sizeof(node));
      if (mine) {
        mine->key = key;
        mine->count = 1;
        mine->next = now;
        cla_fence();
      }
      is_counted = !mine || atomic_cmpxchg(head, now, cla_ref(heap, mine)) == now; /* without: counted by the heap */
    }
  }
}

/* For each chain: its length, and key and count of its nodes from where `starts` says. */
kernel void lengths(CLA_HEAP heap, global const uint *heads, global uint *out) {
  uint n = 0;
  for (uint r = heads[get_global_id(0)]; r; r = ((global node *)cla_at(heap, r))->next) n++;
  out[get_global_id(0)] = n;
}
kernel void list(CLA_HEAP heap, global const uint *heads, global const uint *starts, global uint2 *out) {
  uint at = starts[get_global_id(0)];
  for (uint r = heads[get_global_id(0)]; r;) {
    global node *n = cla_at(heap, r);
    out[at++] = (uint2)(n->key, n->count);
    r = n->next;
  }
}

kernel void empty(CLA_HEAP heap, global uint *heads) {
  for (uint r = heads[get_global_id(0)]; r;) {
    global node *n = cla_at(heap, r);
    r = n->next;
    cla_free(heap, n);
  }
  heads[get_global_id(0)] = 0;
}
]]

local dev <close> = cl.device()
local heap = dev.heap
local program <close> = assert(dev:program(SOURCE, { heap = true, defines = { BITS = 10 } }))

-- Some keys come up often, most of them once.
math.randomseed(7)
local keys, wanted, different = {}, {}, 0
for i = 1, N do
  keys[i] = math.random(math.random() < 0.5 and 100 or 1 << 32) - 1
  if not wanted[keys[i]] then different = different + 1 end
  wanted[keys[i]] = (wanted[keys[i]] or 0) + 1
end

local function words(list)
  local packed = {}
  for i, word in ipairs(list) do packed[i] = string.pack("<I4", word) end
  return table.concat(packed)
end

local input <close> = assert(dev:alloc(4 * N))
local heads <close> = assert(dev:alloc(4 * CHAINS))
local numbers <close> = assert(dev:alloc(4 * CHAINS))
local entries <close> = assert(dev:alloc(8 * different))
input:write(words(keys))
heads:fill(0)

assert(program.count { heap, input, heads, size = N })
assert(program.lengths { heap, heads, numbers, size = CHAINS })
local starts, length, longest, longest_at = {}, 0, 0, 1
for i = 1, CHAINS do
  local n = string.unpack("<I4", numbers:read(4 * i - 4, 4))
  starts[i] = length
  length = length + n
  if n > longest then longest, longest_at = n, i end
end
assert(length == different, "each key once")
print(("%d keys, %d different, in %d chains of up to %d nodes"):format(N, different, CHAINS, longest))

-- The host can follow the references too.
local ref, chain = string.unpack("<I4", heads:read(4 * longest_at - 4, 4)), {}
while ref ~= 0 do
  local next_ref, key, count = string.unpack("<I4I4I4", assert(heap:read(ref, 12)))
  assert(wanted[key] == count)
  chain[#chain + 1] = ("%08x: %d"):format(key, count)
  ref = next_ref
end
print("the longest: " .. table.concat(chain, ", ", 1, math.min(3, #chain)) .. ", ...")

numbers:write(words(starts))
assert(program.list { heap, heads, numbers, entries, size = CHAINS })
local data = entries:read()
for i = 1, different do
  local key, count = string.unpack("<I4I4", data, 8 * i - 7)
  assert(wanted[key] == count, ("the count of %08x"):format(key))
  wanted[key] = nil
end
assert(not next(wanted))

assert(program.empty { heap, heads, size = CHAINS })
local stats = heap:stats()
assert(heap:check() and stats.live_blocks == 0 and stats.failed == 0 and stats.bad_frees == 0)
print "the table is Lua's"
