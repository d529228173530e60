-- `dev.heap` as an object: its settings, when it takes memory and gives it back, handles and what keeps them alive. On
-- simulated devices, whose kernels do nothing; heap_spec.lua has kernels that allocate.

local cl = require "clalloc"
local failure = require "spec.failure"

local MiB <const> = cl.MiB
local DEFAULT <const> = 8 * MiB

local function set(heap, name, value) heap[name] = value end

-- What earlier tests left to the collector does not count.
local function live(kind)
  collectgarbage()
  collectgarbage()
  return cl.debug.live(kind)
end

local SOURCE <const> = [[
kernel void take(ulong nbytes, global uint *out) {
  global uchar *p = malloc(nbytes);
  if (p) p[0] = p[nbytes - 1] = 7;
  out[get_global_id(0)] = p != 0;
}
]]

describe("a heap that nobody has used", function()
  local sim

  before_each(function() sim = cl.simulate { capacity = 80 * cl.GiB } end)
  after_each(function() sim:close() end)

  it("takes no memory, and makes no driver call", function()
    cl.debug.calls_reset()
    local heap = sim.heap
    assert.equal(DEFAULT, heap.limit)
    assert.is_true(heap.counting)
    assert.is_false(heap.sites)
    heap.limit = 16 * MiB
    local stats = heap:stats()
    assert.equal(0, stats.reserved)
    assert.equal(16 * MiB, stats.limit)
    assert.equal(16 * MiB, stats.largest_free)
    assert.is_true(heap:check())
    assert.same({}, heap:blocks())
    assert.equal("nothing is live", tostring(heap:leaks()))
    assert.is_true(heap:reset())
    assert.equal("heap (limit 16.0 MiB, not used yet)", tostring(heap))
    assert.equal(tostring(heap), heap:draw())
    assert.equal(0, cl.debug.calls().total)
  end)

  it("is one heap, whatever handle of the device it is asked of", function()
    local again <close> = sim.heap.device
    assert.equal(sim.heap, again.heap)
    assert.equal(sim, again)
    sim.heap.limit = MiB
    assert.equal(MiB, again.heap.limit)
    local other <close> = cl.simulate { capacity = cl.GiB }
    assert.not_equal(sim.heap, other.heap)
    assert.equal(DEFAULT, other.heap.limit)
  end)

  it("takes limits of whole numbers of bytes, and nothing else", function()
    local cases = {
      { -1, "limit: -1 is negative" }, { 1.5, "limit: 1.5 is no whole number" }, { 0 / 0, "is not finite" },
      { 1 / 0, "is not finite" }, { math.mininteger, "is negative" }, { "16", "limit: the string '16' is no number" },
      { 2 ^ 63, "is too large" }, { {}, "limit: table is no number" },
    }
    for _, case in ipairs(cases) do
      assert.matches(case[2], failure(set, sim.heap, "limit", case[1]), 1, true)
      assert.equal(DEFAULT, sim.heap.limit)
    end
    assert.matches("limit: nil is no number", failure(set, sim.heap, "limit", nil), 1, true)
    for _, huge in ipairs { 2 ^ 53, math.maxinteger, 1 << 41 } do
      assert.matches("heap: a limit of %d+ bytes", failure(set, sim.heap, "limit", huge))
    end
    sim.heap.limit = 2.0 ^ 31
    assert.equal(1 << 31, sim.heap.limit)
    sim.heap.limit = 1 << 32
    assert.equal(1 << 32, sim.heap.limit)
  end)

  it("has limits from 0 to tens of GiB, in whole pages", function()
    for _, limit in ipairs { 0, 1, 511, 512, 513, MiB - 1, MiB, MiB + 1, DEFAULT + 1, cl.GiB + 12345, 40 * cl.GiB } do
      sim.heap.limit = limit
      local effective = sim.heap.limit
      assert(effective >= limit and effective - limit < 1 << 20, limit)
      assert.equal(0, effective % 512)
      sim.heap.limit = effective
      assert.equal(effective, sim.heap.limit)
    end
    sim.heap.limit = 0
    assert.equal(0, sim.heap.limit)
  end)

  it("refuses a limit that the device cannot give, with the figures", function()
    local small <close> = cl.simulate { capacity = 64 * MiB, max_alloc = 16 * MiB }
    local message = failure(set, small.heap, "limit", 16 * MiB)
    assert.matches("a limit of 16777216 bytes, with %d+ more for notes", message)
    assert.matches("gives at most, in one buffer, 16777216", message, 1, true)
    local whole <close> = cl.simulate { capacity = 16 * MiB, max_alloc = 64 * MiB }
    assert.matches("has at most 16777216", failure(set, whole.heap, "limit", 16 * MiB), 1, true)
    assert.equal(DEFAULT, small.heap.limit)
    small.heap.limit = 14 * MiB
    assert.matches("a limit of 14680064 bytes", failure(set, small.heap, "sites", true)) -- a word for 16 bytes more
    assert.is_false(small.heap.sites)
  end)

  it("has no other fields to set, and flags that are booleans", function()
    assert.matches("heap: 'limits' cannot be set; limit, counting, sites can", failure(set, sim.heap, "limits", 1), 1,
      true)
    assert.matches("'device' cannot be set", failure(set, sim.heap, "device", sim), 1, true)
    assert.matches("'1' cannot be set", failure(set, sim.heap, 1, 1), 1, true)
    assert.matches("counting: boolean expected, got number", failure(set, sim.heap, "counting", 1), 1, true)
    assert.matches("sites: boolean expected, got nil", failure(set, sim.heap, "sites", nil), 1, true)
    assert.is_nil(sim.heap.limits)
  end)
end)

describe("a heap on a simulated device", function()
  local sim

  before_each(function() sim = cl.simulate { capacity = 80 * cl.GiB } end)
  after_each(function() sim:close() end)

  local function launch(options)
    local program <close> = assert(sim:program(SOURCE, { heap = true }))
    local arguments = { 100, false, size = 10 }
    for name, value in pairs(options or {}) do arguments[name] = value end
    return program.take(arguments)
  end

  it("is made for the first kernel, as large as the limit and its notes", function()
    sim.heap.limit = 32 * cl.GiB
    assert(launch()):close()
    local stats = sim.heap:stats()
    assert(stats.reserved > 32 * cl.GiB and stats.reserved < 33 * cl.GiB, stats.reserved)
    assert.equal(32 * cl.GiB, stats.limit)
    assert.equal(32 * cl.GiB, stats.largest_free)
    assert.equal(0, stats.used)
    assert.equal(1, live "buffer")
    assert.matches("heap_set_limit: fixed since the heap is in use", failure(set, sim.heap, "limit", cl.GiB), 1, true)
    assert.is_true(sim.heap:reset())
    assert.equal(0, sim.heap:stats().reserved)
  end)

  it("checks and walks what it was made with", function()
    assert(launch()):close()
    assert.is_true(sim.heap:check())
    assert.same({}, sim.heap:blocks())
    assert.equal("heap (limit 8.0 MiB, 0 B in 0 blocks)", tostring(sim.heap))
  end)

  it("runs no kernels of the host's", function()
    for _, call in ipairs { sim.heap.alloc, sim.heap.free } do
      assert.matches("runs no kernels", failure(call, sim.heap, 10), 1, true)
    end
    assert.matches("10 is no reference into the heap", failure(sim.heap.read, sim.heap, 10, 1), 1, true)
  end)

  it("says so when the device has no memory left, and can be tried again", function()
    local small <close> = cl.simulate { capacity = 16 * MiB }
    local buffer = assert(small:alloc(12 * MiB))
    local program <close> = assert(small:program(SOURCE, { heap = true }))
    local event, message, code = program.take { 100, false, size = 1 }
    assert.is_nil(event)
    assert.equal("NOMEM", code)
    assert.matches("take: heap: Simulated.* cannot give %d+ bytes, 8388608 of them for kernels", message)
    buffer:close()
    small.heap.limit = 4 * MiB -- nothing is fixed by a kernel that did not run
    assert(program.take { 100, false, size = 1 }):close()
  end)

  it("takes the memory that the device's pool only keeps", function()
    for _, oom in ipairs { "count", "error" } do
      local small <close> = cl.simulate { capacity = 16 * MiB }
      local program <close> = assert(small:program(SOURCE, { heap = true }))
      local kept <close> = assert(small:alloc(MiB))
      assert(small:alloc(12 * MiB)):close()
      local before = small:pool():stats().reserved_bytes
      local event <close> = assert(program.take { 100, false, size = 1, heap_oom = oom })
      assert.is_true(event:wait())
      assert.equal(before - 12 * MiB, small:pool():stats().reserved_bytes)
      assert.equal(kept.size, small:pool():stats().active_bytes)
    end
  end)

  it("is not made by a launch of nothing", function()
    assert(launch { size = 0 }):close()
    assert.equal(0, sim.heap:stats().reserved)
  end)

  it("keeps its memory until the kernels that use it are done", function()
    local late <close> = cl.simulate { capacity = cl.GiB, manual = true }
    local stream <close> = late:stream()
    local program <close> = assert(late:program(SOURCE, { heap = true }))
    local before = live "buffer"
    assert(program.take { 1, false, size = 1, stream = stream }):close()
    assert.equal("heap (limit 8.0 MiB, in use)", tostring(late.heap))
    assert.equal(0, stream:stats().completed)
    assert.equal(before + 1, live "buffer")
    assert.is_true(late.heap:reset()) -- waits
    assert.equal(1, stream:stats().completed)
    assert.equal(before, live "buffer")
  end)

  it("outlives its last handle only as long as kernels run", function()
    local late = cl.simulate { capacity = cl.GiB, manual = true }
    local program = assert(late:program(SOURCE, { heap = true }))
    local before = live "buffer"
    assert(program.take { 1, false, size = 1 }):close()
    program:close()
    assert.equal(before + 1, live "buffer")
    late:close()
    assert.equal(before, live "buffer")
  end)

  it("orders only launches that want the heap to themselves", function()
    local late <close> = cl.simulate { capacity = cl.GiB, manual = true }
    local a <close> = late:stream()
    local b <close> = late:stream()
    local program <close> = assert(late:program(SOURCE, { heap = true }))
    local function take(stream, oom)
      return assert(program.take { 1, false, size = 1, stream = stream, heap_oom = oom })
    end
    take(a):close()
    take(b):close()
    assert.equal(1, late:complete(b)) -- a has not begun
    local watched <close> = take(b, "error")
    assert.equal(0, late:complete(b)) -- behind a's first
    local after <close> = take(a)
    late:complete(a) -- its second waits for b's
    assert.is_false(after.done)
    for _ = 1, 10 do
      if not watched.done then late:complete(b, 1) end
    end
    assert.is_true(watched.done)
    late:complete(a)
    assert.is_false(after.done) -- the counts after the watched kernel are still to be read
    late:complete(b)
    late:complete(a)
    assert.is_true(after.done)
    assert.is_true(watched:wait())
    local waited <close> = take(a, "error")
    assert.is_true(waited:wait())
    assert.equal(0, late:complete(a)) -- for the counts too
  end)
end)

describe("a handle to a heap", function()
  it("is closed with the device it was asked of, and says so", function()
    local sim = cl.simulate { capacity = cl.GiB }
    local heap = sim.heap
    sim:close()
    assert.equal("heap (closed)", tostring(heap))
    for _, name in ipairs { "stats", "check", "blocks", "leaks", "alloc", "free", "read", "write", "reset", "draw" } do
      assert.matches("attempt to use a closed heap", failure(heap[name], heap, 1, 1), 1, true)
    end
    assert.matches("attempt to use a closed heap", failure(function() return heap.limit end), 1, true)
    assert.matches("attempt to use a closed heap", failure(set, heap, "limit", 1), 1, true)
    heap:close()
    assert.matches("closed heap", failure(heap.measure, heap, print), 1, true)
  end)

  it("closed by itself is made anew when asked for", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    sim.heap.limit = MiB
    local heap = sim.heap
    heap:close()
    heap:close()
    assert.not_equal(heap, sim.heap)
    assert.equal(MiB, sim.heap.limit)
  end)

  it("keeps the device while it can be reached", function()
    collectgarbage()
    collectgarbage()
    local before = live "context"
    local heap
    do
      local sim = cl.simulate { capacity = cl.GiB }
      heap = sim.heap
    end
    collectgarbage()
    collectgarbage()
    heap.limit = MiB
    assert.equal(before + 1, live "context")
    heap = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(before, live "context")
  end)

  it("finalized twice is closed once", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    local heap = sim.heap
    local gc = getmetatable(heap).__gc
    gc(heap)
    gc(heap)
    assert.equal("heap (closed)", tostring(heap))
    assert.equal(DEFAULT, sim.heap.limit)
  end)

  it("is refused as anything else", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    assert.matches("heap expected, got", failure(sim.heap.stats, sim))
    assert.matches("heap expected, got", failure(sim.heap.stats, 1))
    assert.matches("device expected, got", failure(sim.alloc, sim.heap, 1))
  end)
end)

describe("heaps of two devices", function()
  it("are apart", function()
    local a <close> = cl.simulate { capacity = cl.GiB }
    local b <close> = cl.simulate { capacity = cl.GiB }
    local p <close> = assert(a:program(SOURCE, { heap = true }))
    assert(p.take { 1, false, size = 1 }):close()
    b.heap.limit = MiB -- not fixed by a's kernel
    assert.matches("fixed", failure(set, a.heap, "limit", MiB), 1, true)
    a.heap:reset()
    assert.equal(MiB, b.heap.limit)
  end)
end)
