-- A graph that changes while it lives on the device: edges come and go in batches, and each vertex keeps its neighbours
-- in an array of its own that grows and shrinks by realloc.
--
-- A batch is sorted by vertex; one work-item applies what concerns its vertex. After every round Lua, which keeps the
-- same graph in tables, compares the degrees and a sum over all neighbours, and at the end every single edge.
--
-- You will see edges and heap after each round, and at the end "every edge is where Lua has it". The argument is the
-- number of vertices (1000).

local cl = require "clalloc"

local N = math.tointeger(arg[1] or 1000)
local ROUNDS, CHANGES = 8, 8 * N

local SOURCE = [[
typedef struct vertex {
  global uint *neighbours;
  uint degree, room;
} vertex;

/* An array of a size that is right for so many neighbours; its content stays. */
static bool resize(global vertex *v, uint room) {
  global uint *moved = realloc(v->neighbours, room * sizeof(uint));
  if (!moved && room) return false;
  v->neighbours = moved;
  v->room = room;
  return true;
}

static void insert(global vertex *v, uint to) {
  for (uint i = 0; i < v->degree; i++)
    if (v->neighbours[i] == to) return;
  if (v->degree == v->room && !resize(v, v->room ? 2 * v->room : 4)) return;
  v->neighbours[v->degree++] = to;
}

static void erase(global vertex *v, uint to) {
  for (uint i = 0; i < v->degree; i++) {
    if (v->neighbours[i] != to) continue;
    v->neighbours[i] = v->neighbours[--v->degree];
    if (v->degree == 0) resize(v, 0); /* frees it */
    else if (v->room > 4 && 4 * v->degree <= v->room) resize(v, v->room / 2);
    return;
  }
}

/* Changes [starts[i], starts[i + 1]) concern vertex i: an insertion, or with the highest bit a deletion. */
kernel void update(global vertex *vertices, global const uint *starts, global const uint *changes) {
  const size_t i = get_global_id(0);
  global vertex *v = &vertices[i];
  for (uint k = starts[i]; k < starts[i + 1]; k++) {
    if (changes[k] >> 31) erase(v, changes[k] & 0x7fffffff);
    else insert(v, changes[k]);
  }
}

kernel void describe(global const vertex *vertices, global uint *degrees, global uint *sums) {
  const size_t i = get_global_id(0);
  degrees[i] = vertices[i].degree;
  sums[i] = 0;
  for (uint k = 0; k < vertices[i].degree; k++) sums[i] += vertices[i].neighbours[k];
}

kernel void list(global const vertex *vertices, global const uint *starts, global uint *out) {
  const size_t i = get_global_id(0);
  for (uint k = 0; k < vertices[i].degree; k++) out[starts[i] + k] = vertices[i].neighbours[k];
}

kernel void clear(global vertex *vertices) {
  free(vertices[get_global_id(0)].neighbours);
  vertices[get_global_id(0)] = (vertex){0, 0, 0};
}
]]

local dev <close> = cl.device()
local program <close> = assert(dev:program(SOURCE, { heap = true }))
local vertices <close> = assert(dev:alloc(16 * N)) -- a pointer and two words each; zeros are no neighbours
local starts <close> = assert(dev:alloc(4 * (N + 1)))
local changes <close> = assert(dev:alloc(4 * CHANGES))
local degrees <close> = assert(dev:alloc(4 * N))
local sums <close> = assert(dev:alloc(4 * N))
vertices:fill(0)

local function words(list)
  local packed = {}
  for i, word in ipairs(list) do packed[i] = string.pack("<I4", word) end
  return table.concat(packed)
end

local function word_at(data, i) return (string.unpack("<I4", data, 4 * i - 3)) end

-- Lua's graph: a set of neighbours for each vertex, which has the number of its place less one.
local graph, nedges = {}, 0
for i = 1, N do graph[i] = {} end

-- Changes of one round, by vertex, in the order in which they happen; Lua makes the same ones.
math.randomseed(11)
local function next_batch(share_of_deletions)
  local batch = {}
  for i = 1, N do batch[i] = {} end
  for _ = 1, CHANGES do
    local from, to = math.random(N), math.random(0, N - 1)
    local has = graph[from][to]
    if math.random() < share_of_deletions then
      to = has and to or next(graph[from]) or to -- mostly an edge that is there
      if graph[from][to] then nedges = nedges - 1 end
      graph[from][to] = nil
      table.insert(batch[from], to | 1 << 31)
    else
      if not has then nedges = nedges + 1 end
      graph[from][to] = true
      table.insert(batch[from], to)
    end
  end
  return batch
end

local function apply(batch)
  local list, first = {}, {}
  for i = 1, N do
    first[i] = #list
    table.move(batch[i], 1, #batch[i], #list + 1, list)
  end
  first[N + 1] = #list
  starts:write(words(first))
  changes:write(words(list))
  assert(program.update { vertices, starts, changes, size = N })
end

local function compare()
  assert(program.describe { vertices, degrees, sums, size = N })
  local degree_data, sum_data = degrees:read(), sums:read()
  for i = 1, N do
    local degree, sum = 0, 0
    for to in pairs(graph[i]) do degree, sum = degree + 1, sum + to end
    assert(word_at(degree_data, i) == degree and word_at(sum_data, i) == sum & 0xffffffff, ("vertex %d"):format(i - 1))
  end
end

for round = 1, ROUNDS do
  apply(next_batch(round <= ROUNDS // 2 and 0.2 or 0.8))
  compare()
  print(("round %d: %6d edges, %s"):format(round, nedges, tostring(dev.heap)))
end

-- Every edge: where each vertex's part of the list starts, as the degrees say.
local first, total = {}, 0
local degree_data = degrees:read()
for i = 1, N do
  first[i] = total
  total = total + word_at(degree_data, i)
end
assert(total == nedges)
local edges <close> = assert(dev:alloc(4 * math.max(total, 1)))
starts:write(words(first))
assert(program.list { vertices, starts, edges, size = N })
local data = edges:read()
for i = 1, N do
  for k = first[i] + 1, first[i] + word_at(degree_data, i) do
    local to = word_at(data, k)
    assert(graph[i][to], "an edge that is not Lua's, or twice")
    graph[i][to] = nil
  end
  assert(not next(graph[i]))
end

assert(program.clear { vertices, size = N })
local stats = dev.heap:stats()
assert(dev.heap:check() and stats.live_blocks == 0 and stats.failed == 0 and stats.bad_frees == 0)
print "every edge is where Lua has it"
