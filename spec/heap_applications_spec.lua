-- Programs that live on malloc in kernels: memory that goes from kernel to kernel, program to program and queue to
-- queue, ranges of three dimensions, many thousands of rounds, structs that hold pointers to structs. The larger ones
-- are in examples/heap, and run with the other examples.

local cl = require "clalloc"

-- Each item has a block of its own here: made by one program, written by another, read and freed by a third.
local MAKE = [[
kernel void make(global ulong *blocks) {
  const uint i = get_global_id(0);
  blocks[i] = (ulong)malloc((i % 100 + 1) * sizeof(uint));
}

/* One item allocates, all of a group write, whoever is last reads it all and frees. */
kernel void share(global uint *out) {
  local ulong block;
  local uint done;
  if (get_local_id(0) == 0) {
    block = (ulong)malloc(get_local_size(0) * sizeof(uint));
    done = 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  global uint *p = (global uint *)block;
  if (p) p[get_local_id(0)] = get_local_id(0) + 1;
  barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
  if (p && atomic_inc(&done) + 1 == get_local_size(0)) {
    uint sum = 0;
    for (uint k = 0; k < get_local_size(0); k++) sum += p[k];
    out[get_group_id(0)] = sum;
    free(p);
  }
}

/* chipStar's hipDeviceMalloc: each item of a 3-D range, over and over, a block that it fills and adds up. */
kernel void rounds(uint n, global uint *sums) {
  const uint i = get_global_id(0) + get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));
  uint sum = 0;
  for (uint round = 0; round < n; round++) {
    const uint words = (i + round) % 61 + 1;
    global uint *p = malloc(words * sizeof(uint));
    if (!p) break;
    for (uint k = 0; k < words; k++) p[k] = i + k;
    for (uint k = 0; k < words; k++) sum += p[k];
    free(p);
  }
  sums[i] = sum;
}

/* Structs in structs: a company of departments of people, each with a name of its own length. */
typedef struct person {
  global char *name;
  uint age;
} person;
typedef struct department {
  global person *people;
  uint npeople;
} department;
typedef struct company {
  global department *departments[4];
} company;

static bool fill_person(global person *p, uint seed) {
  const uint n = seed % 23 + 1;
  p->age = seed % 60;
  p->name = malloc(n + 1);
  if (!p->name) return false;
  for (uint i = 0; i < n; i++) p->name[i] = 'a' + (seed + i) % 26;
  p->name[n] = 0;
  return true;
}

static void drop_department(global department *d) {
  for (uint i = 0; i < d->npeople; i++) free(d->people[i].name);
  free(d->people);
  free(d);
}

static global department *new_department(uint seed) {
  global department *d = malloc(sizeof(department));
  if (!d) return 0;
  d->people = calloc(seed % 5 + 1, sizeof(person));
  for (d->npeople = 0; d->people && d->npeople < seed % 5 + 1; d->npeople++)
    if (!fill_person(&d->people[d->npeople], seed * 5 + d->npeople)) {
      drop_department(d);
      return 0;
    }
  return d;
}

kernel void found(global ulong *companies) {
  const uint i = get_global_id(0);
  global company *c = calloc(1, sizeof(company));
  for (uint d = 0; c && d < 4; d++) c->departments[d] = new_department(i * 4 + d);
  companies[i] = (ulong)c;
}

/* people, ages, letters */
kernel void describe(global const ulong *companies, global uint *out) {
  const uint i = get_global_id(0);
  global const company *c = (global const company *)companies[i];
  uint people = 0, ages = 0, letters = 0;
  for (uint d = 0; d < 4; d++) {
    for (uint k = 0; k < c->departments[d]->npeople; k++) {
      global const person *p = &c->departments[d]->people[k];
      people++;
      ages += p->age;
      for (uint l = 0; p->name[l]; l++) letters += p->name[l];
    }
  }
  out[3 * i] = people;
  out[3 * i + 1] = ages;
  out[3 * i + 2] = letters;
}

kernel void dissolve(global ulong *companies) {
  global company *c = (global company *)companies[get_global_id(0)];
  for (uint d = 0; d < 4; d++) drop_department(c->departments[d]);
  free(c);
}
]]

local WRITE = [[
kernel void write(global const ulong *blocks, uint salt) {
  const uint i = get_global_id(0);
  global uint *p = (global uint *)blocks[i];
  for (uint k = 0; k < i % 100 + 1; k++) p[k] = i * 1000 + k + salt;
}
]]

local TAKE = [[
kernel void take(global ulong *blocks, uint salt, global uint *wrong) {
  const uint i = get_global_id(0);
  global uint *p = (global uint *)blocks[i];
  wrong[i] = 0;
  for (uint k = 0; k < i % 100 + 1; k++) wrong[i] += p[k] != i * 1000 + k + salt;
  free(p);
  blocks[i] = 0;
}
]]

describe("kernels that allocate", function()
  local N = 1000
  local dev, make, write, take, blocks, out
  local is_llvmpipe -- inlines every call of malloc, and ends all loops of an item after 65,535 rounds in total

  setup(function()
    dev = cl.device()
    is_llvmpipe = dev.name:find "llvmpipe"
    assert(dev.heap:reset())
    make = assert(dev:program(MAKE, { heap = true }))
    write = assert(dev:program(WRITE, { heap = true }))
    take = assert(dev:program(TAKE, { heap = true }))
    blocks = assert(dev:alloc(8 * N))
    out = assert(dev:alloc(12 * N))
  end)
  after_each(function()
    local stats = dev.heap:stats()
    assert(dev.heap:check())
    assert.equal(0, stats.live_blocks)
    assert.equal(0, stats.failed + stats.bad_frees + stats.double_frees)
  end)
  teardown(function()
    assert(dev.heap:reset())
    for _, object in ipairs { make, write, take, blocks, out, dev } do object:close() end
  end)

  local function words(n)
    return { string.unpack("<" .. ("I4"):rep(n), out:read(0, 4 * n)) }
  end

  local function expect(wanted)
    local got = words(#wanted)
    for i, word in ipairs(wanted) do
      if got[i] ~= word then error(("item %d: %d, not %d"):format(i - 1, got[i], word)) end
    end
  end

  local function zeros(n)
    local list = {}
    for i = 1, n do list[i] = 0 end
    return list
  end

  it("hand blocks to the kernels of other programs", function()
    for salt = 1, 5 do
      assert(make.make { blocks, size = N })
      assert.equal(N, dev.heap:stats().live_blocks)
      assert(write.write { blocks, salt, size = N })
      assert(take.take { blocks, salt, out, size = N })
      expect(zeros(N))
    end
  end)

  it("hand blocks from queue to queue", function()
    local streams = { dev:stream(), dev:stream(), dev:stream() }
    for salt = 1, 5 do
      local first, second, third = streams[salt % 3 + 1], streams[(salt + 1) % 3 + 1], streams[(salt + 2) % 3 + 1]
      local made = assert(make.make { blocks, size = N, stream = first })
      local written = assert(write.write { blocks, salt, size = N, stream = second, wait = made })
      local taken = assert(take.take { blocks, salt, out, size = N, stream = third, wait = written })
      assert(taken:wait())
      expect(zeros(N))
    end
    for _, stream in ipairs(streams) do stream:close() end
  end)

  it("allocate on several queues at the same time", function()
    local streams, parts = {}, {}
    for i = 1, 4 do
      streams[i], parts[i] = dev:stream(), assert(dev:alloc(8 * N))
      assert(make.make { parts[i], size = N, stream = streams[i] })
    end
    for i = 1, 4 do assert(write.write { parts[i], i, size = N, stream = streams[i] }) end
    assert.equal(4 * N, dev.heap:stats().live_blocks)
    for i = 1, 4 do
      local wrong <close> = assert(dev:alloc(4 * N, { stream = streams[i] }))
      assert(take.take { parts[i], i, wrong, size = N, stream = streams[i] })
      streams[i]:finish()
      assert.equal(("\0"):rep(4 * N), wrong:read())
      parts[i]:close()
      streams[i]:close()
    end
  end)

  it("share a block within a group: one makes it, all write, the last frees", function()
    for _, most in ipairs { 64, 250 } do
      local group = math.min(most, make.share.max_group)
      local groups, wanted = N // group, {}
      for i = 1, groups do wanted[i] = group * (group + 1) // 2 end
      assert(make.share { out, size = groups * group, group = group })
      expect(wanted)
    end
  end)

  it("run in three dimensions, 10,000 rounds of malloc and free", function()
    local shape, rounds = { 4, 3, 5 }, is_llvmpipe and 200 or 10000
    local wanted = {}
    for i = 0, 4 * 3 * 5 - 1 do
      local sum = 0
      for round = 0, rounds - 1 do
        local n = (i + round) % 61 + 1
        sum = sum + n * i + n * (n - 1) // 2
      end
      wanted[i + 1] = sum & 0xffffffff
    end
    assert(make.rounds { rounds, out, size = shape, group = { 2, 3, 1 } })
    expect(wanted)
  end)

  it("build structs of structs of strings, which other kernels read and free", function()
    if is_llvmpipe then return pending "two minutes to compile" end
    local companies = 240
    local wanted = {}
    for i = 0, companies - 1 do
      local people, ages, letters = 0, 0, 0
      for seed = 4 * i, 4 * i + 3 do
        for k = 0, seed % 5 do
          local own = seed * 5 + k
          people, ages = people + 1, ages + own % 60
          for l = 0, own % 23 do letters = letters + string.byte "a" + (own + l) % 26 end
        end
      end
      table.move({ people, ages, letters }, 1, 3, 3 * i + 1, wanted)
    end
    assert(make.found { blocks, size = companies })
    assert(make.describe { blocks, out, size = companies })
    expect(wanted)
    assert(make.dissolve { blocks, size = companies })
  end)
end)
