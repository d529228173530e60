-- What public reports about malloc in kernels complain of, each as what is right instead. The numbers are those of the
-- reports. One program does for all of them, with groups of one size, as building takes most of the time; `count` is
-- how many work-items take part.

local cl = require "clalloc"

local SOURCE = [[
static ulong size_of(uint i, ulong base, ulong step, uint variety) {
  return base + (variety ? i * 2654435769u % variety : 0) * step;
}

/* A block for each item, stamped from end to end; what it got as a reference. */
kernel void take(CLA_HEAP heap, uint count, ulong base, ulong step, uint variety, global uint *refs) {
  const uint i = get_global_id(0);
  if (i >= count) return;
  const ulong n = size_of(i, base, step, variety);
  global uchar *p = cla_malloc(heap, n);
  refs[i] = cla_ref(heap, p);
  if (!p) return;
  for (ulong k = 0; k < n / 4; k++) ((global uint *)p)[k] = i;
  for (ulong k = n / 4 * 4; k < n; k++) p[k] = (uchar)i;
}

/* Counts what is wrong: stamps that changed, pointers out of line. */
kernel void check(CLA_HEAP heap, uint count, ulong base, ulong step, uint variety, global const uint *refs,
                  volatile global uint *wrong) {
  const uint i = get_global_id(0);
  if (i >= count || !refs[i]) return;
  const ulong n = size_of(i, base, step, variety);
  global const uchar *p = cla_at(heap, refs[i]);
  uint bad = ((ulong)p & 15) != 0 || cla_usable_size(heap, (global void *)p) < n;
  for (ulong k = 0; k < n / 4; k++) bad += ((global const uint *)p)[k] != i;
  for (ulong k = n / 4 * 4; k < n; k++) bad += p[k] != (uchar)i;
  if (bad) atomic_add(wrong, bad);
}

kernel void drop(CLA_HEAP heap, uint count, global uint *refs) {
  const uint i = get_global_id(0);
  if (i >= count) return;
  cla_free(heap, cla_at(heap, refs[i]));
  refs[i] = 0;
}
]]

-- A script of its own, so that a hang is a failure and not the end of all tests.
local WATCHED = [==[
local cl = require "clalloc"
local dev <close> = cl.device()
local program <close> = assert(dev:program([[
/* The same size everywhere, in one branch of two, in a loop with barriers; malloc and free by turns. */
kernel void everywhere(CLA_HEAP heap, uint rounds, global uint *out) {
  const uint i = get_global_id(0);
  local uint total;
  uint failed = 0;
  for (uint round = 0; round < rounds; round++) {
    global uint *p = 0;
    if (get_local_id(0) == 0) total = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((get_local_id(0) + round) % 3 != 0) {
      p = cla_malloc(heap, 48);
      if (p) p[0] = p[11] = i;
    } else if (round % 2) {
      p = cla_calloc(heap, 2, 100);
      if (p && p[49] == 0) p[0] = p[11] = i;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (p) failed += p[0] != i || p[11] != i;
    atomic_inc(&total);
    barrier(CLK_LOCAL_MEM_FENCE);
    failed += total != get_local_size(0);
    cla_free(heap, p);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  out[i] = failed;
}
]], { heap = true }))
local out <close> = assert(dev:alloc(4 * 1024))
local whole = math.min(program.everywhere.max_group, 1024)
for _, most in ipairs { 1, 2, 64, 256, whole } do
  local group = math.min(most, whole)
  local n = group > 256 and group or 512 // group * group
  out:fill(255)
  assert(program.everywhere { dev.heap, 20, out, size = n, group = group })
  assert(out:read(0, 4 * n) == ("\0"):rep(4 * n))
  local stats = dev.heap:stats()
  assert(stats.failed + stats.live_blocks + stats.bad_frees + stats.double_frees == 0)
end
assert(dev.heap:check())
print "done"
]==]

describe("the heap of a device", function()
  local dev, heap, program, refs, wrong, group
  local MOST = 1 << 16

  setup(function()
    dev = cl.device()
    heap = dev.heap
    program = assert(dev:program(SOURCE, { heap = true }))
    group = math.min(64, program.take.max_group)
    refs = assert(dev:alloc(4 * MOST))
    wrong = assert(dev:alloc(4))
  end)
  before_each(function() assert(heap:reset()) end)
  after_each(function()
    assert(heap:check())
    assert(heap:reset())
    heap.limit = 8 * cl.MiB
  end)
  teardown(function()
    for _, object in ipairs { refs, wrong, program, dev } do object:close() end
  end)

  local function size(count) return (count + group - 1) // group * group end

  -- Blocks of `base` bytes for `count` items, or of base + (0 to variety - 1) * step.
  local function take(count, base, step, variety)
    assert(program.take { heap, count, base, step or 0, variety or 0, refs, size = size(count), group = group })
  end
  local function check(count, base, step, variety)
    wrong:write(string.pack("<I4", 0))
    assert(program.check { heap, count, base, step or 0, variety or 0, refs, wrong, size = size(count), group = group })
    assert.equal(0, (string.unpack("<I4", wrong:read())))
  end
  local function drop(count)
    assert(program.drop { heap, count, refs, size = size(count), group = group })
  end

  -- How many of the items got something, and the list of references.
  local function granted(count)
    local data, list = refs:read(0, 4 * count), {}
    for i = 1, count do
      local ref = string.unpack("<I4", data, 4 * i - 3)
      if ref ~= 0 then list[#list + 1] = ref end
    end
    return #list, list
  end

  it("is there without being asked for, 8 MiB (chipStar#175, #1402; ROCm-Device-Libs#76)", function()
    take(1000, 100)
    assert.equal(1000, (granted(1000)))
    check(1000, 100)
    assert.equal(8 * cl.MiB, heap.limit)
    assert.has_error(function() heap.limit = 16 * cl.MiB end)
  end)

  it("that is not there is null to every item, and no fault (chipStar#1402, #1072)", function()
    assert(program.take { false, 100, 64, 0, 0, refs, size = 128, group = group })
    assert.equal(0, (granted(100)))
    assert(program.drop { false, 100, refs, size = 128, group = group })
  end)

  it("is null to every item also when nobody has filled in its memory (chipStar#1402)", function()
    local raw <close> = assert(dev:program(cl.heap_source() .. [[
      kernel void f(global uint *memory, global uint *out) {
        global uint *p = cla_malloc((CLA_HEAP)memory, 64);
        cla_free((CLA_HEAP)memory, p);
        out[get_global_id(0)] = p != 0;
      }]]))
    local memory <close> = assert(dev:alloc(1 << 16))
    memory:fill(0)
    refs:fill(255)
    assert(raw.f { memory, refs, size = 100 })
    assert.equal(0, (granted(100)))
  end)

  it("is one for all programs, made once (chipStar#1045, #1072)", function()
    take(10, 16)
    local before = cl.debug.live "buffer"
    local other <close> = assert(dev:program([[
      kernel void f(global ulong *out) { out[get_global_id(0)] = (ulong)malloc(16); }
    ]], { heap = true }))
    local out <close> = assert(dev:alloc(8 * 10))
    local more = cl.debug.live "buffer" - before -- the pool's, for `out`
    assert(other.f { out, size = 10 })
    assert.equal(20, heap:stats().live_blocks)
    assert.equal(before + more, cl.debug.live "buffer")
  end)

  it("is given back whole, a hundred times (chipStar#1072)", function()
    take(1, 16)
    assert(heap:reset())
    collectgarbage()
    local before = cl.debug.live()
    for _ = 1, 100 do
      take(1, 16)
      assert(heap:reset())
    end
    collectgarbage()
    assert.same(before, cl.debug.live())
  end)

  it("costs no memory while nobody allocates (hip#2009)", function()
    local before = cl.debug.live "buffer"
    local plain <close> = assert(dev:program("kernel void f(global uint *out) { *out = 1; }", { heap = true }))
    assert(plain.f { refs, size = 1 })
    assert.equal(0, heap:stats().reserved)
    assert.equal(before, cl.debug.live "buffer")
  end)

  it("keeps live blocks apart and intact, whatever their sizes (hip#2350, #1907)", function()
    local COUNT, ROUNDS = MOST, 100
    heap.limit = 64 * cl.MiB
    for round = 1, ROUNDS do
      take(COUNT, 8, 1, 505)
      check(COUNT, 8, 1, 505)
      if round == 1 or round == ROUNDS then
        local blocks = heap:blocks()
        assert.equal(COUNT, #blocks)
        for i = 2, COUNT do
          if blocks[i - 1].offset + blocks[i - 1].size > blocks[i].offset then error "two blocks overlap" end
        end
        local n, list = granted(COUNT)
        assert.equal(COUNT, n)
        table.sort(list)
        for i, block in ipairs(blocks) do
          if list[i] ~= block.ref then error "a block that no item has" end
        end
      end
      drop(COUNT)
    end
    local stats = heap:stats()
    assert.equal(0, stats.used)
    assert.equal(0, stats.failed + stats.bad_frees + stats.double_frees)
  end)

  it("gives out exactly its capacity, and nothing beyond, again and again (mallocMC#69, picongpu#4220)", function()
    heap.limit = 1000001 -- no whole number of pages
    local limit = heap.limit
    local SIZE, ASKED = 1024, 2048
    take(ASKED, SIZE)
    local capacity = granted(ASKED)
    assert.is_true(capacity * SIZE <= limit and capacity * SIZE >= 0.95 * limit)
    drop(ASKED)
    for _ = 1, 50 do
      take(capacity + 100, SIZE)
      assert.equal(capacity, (granted(capacity + 100)))
      check(capacity + 100, SIZE)
      drop(capacity + 100)
    end
    take(capacity, SIZE)
    for _, block in ipairs(heap:blocks()) do assert.is_true(block.offset + block.size <= limit) end
    assert.equal(capacity, (granted(capacity)))
  end)

  it("aligns blocks of every size (mallocMC#227)", function()
    for first = 1, 300, 100 do
      take(2000, first, 1, 100)
      assert.equal(2000, (granted(2000)))
      check(2000, first, 1, 100)
      drop(2000)
    end
  end)

  it("rounds no size down, at any boundary (llvm#184368)", function()
    for exponent = 4, 16 do
      take(24, (1 << exponent) - 1, 1, 3)
      check(24, (1 << exponent) - 1, 1, 3)
      take(24, (3 << exponent - 1) - 1, 1, 3)
      check(24, (3 << exponent - 1) - 1, 1, 3)
      assert(heap:check())
    end
  end)

  it("is as large as its limit says, and 0 gives null (hip#3429)", function()
    heap.limit = 0
    take(10, 1)
    assert.equal(0, (granted(10)))
    drop(10)
    assert.equal(10, heap:stats().failed)
    assert(heap:reset())
    heap.limit = 3 * cl.MiB
    take(8, cl.MiB)
    assert.equal(3, (granted(8)))
  end)

  it("can be made as large as a program needs, which it can be asked (llvm#71747, celeritas#554)", function()
    take(100, 550 * 1024)
    assert.is_true(granted(100) < 16)
    assert(heap:reset())
    heap.limit = 64 * cl.MiB
    local peak = heap:measure(take, 100, 550 * 1024)
    assert.equal(100, (granted(100)))
    assert.is_true(peak >= 100 * 550 * 1024 and peak <= 64 * cl.MiB)
  end)

  it("shows a leak of 64 KiB a launch, until it is empty (numba#247, owl#151, Umpire#341)", function()
    for launch = 1, 10 do
      take(64, 1024)
      local stats = heap:stats()
      assert.equal(64 * 1024 * launch, stats.used)
      assert.equal(0, stats.failed)
    end
    assert.matches("640.00 KiB in +640 blocks", tostring(heap:leaks()))
    repeat take(64, 1024) until heap:stats().failed > 0
    assert(heap:reset())
    assert.equal(0, heap:stats().used)
  end)

  it("bears launches that never free: null at last, and the device goes on (CUDA.jl#38, pocl#2113)", function()
    heap.limit = cl.MiB
    for _ = 1, 200 do take(100, 1000) end
    local stats = heap:stats()
    assert.equal(20000, stats.mallocs + stats.failed)
    assert.is_true(stats.failed > 18000)
    take(1000, 1 << 20) -- what gets null still runs to its end
    assert.equal(0, (granted(1000)))
  end)

  it("says how often it was too small, and for how much (picongpu#753, brian2cuda#82)", function()
    take(100, 10 * cl.MiB, cl.MiB, 3)
    local stats = heap:stats()
    assert.equal(100, stats.failed)
    assert.equal(12 * cl.MiB, stats.largest_refused)
    local launch = { heap, 1, 9 * cl.MiB, 0, 0, refs, size = group, group = group, heap_oom = "error" }
    local event = assert(program.take(launch))
    assert.has_error(function() assert(event:wait()) end)
    launch.heap_oom, launch.heap_need = nil, 9 * cl.MiB
    local refused, message = program.take(launch)
    assert.is_nil(refused)
    assert.matches("9437184", message)
  end)

  it("never makes an item wait for another, at any group size (pocl#1990, #1711, #1509, #1167)", function()
    local path = os.tmpname()
    local file <close> = assert(io.open(path, "w"))
    assert(file:write(WATCHED))
    assert(file:flush())
    local pipe <close> = assert(io.popen(("timeout 120 lua5.4 -W '%s' 2>&1"):format(path)))
    local output = pipe:read "a"
    os.remove(path)
    assert.matches("done\n$", output)
  end)
end)
