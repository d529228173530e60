-- pool:trace(): what a pool did, event by event.
local cl = require "clalloc"
local failure = require "spec.failure"

describe("pool:trace", function()
  local dev, pool
  local function open(device, options)
    dev = device
    pool = assert(dev:pool(options or { limit = 64 * cl.MiB }))
  end
  before_each(function() open(cl.simulate { capacity = cl.GiB, manual = true }) end)
  after_each(function()
    pool:close()
    dev:close()
    collectgarbage()
  end)

  local function actions(t)
    return table.concat(t.recording.events.action, " ")
  end

  it("notes allocations, frees and segments with all that is known of them", function()
    local before_us = os.time() * 1000000 - 1000000
    assert.is_true(pool:trace(true))
    local buf = assert(pool:alloc(1000))
    local view <close> = buf:view(100, 10)
    buf:close()
    pool:trim()
    local t = pool:trace()
    assert.equal("segment_alloc alloc free segment_free", actions(t))
    local e = t.recording.events
    assert.same({ 2 * cl.MiB, 1000, 1000, 2 * cl.MiB }, e.size)
    assert.same({ 0, 1024, 1024, 0 }, e.block)
    assert.same({ 0, 0, 0, 0 }, e.stream)
    for i = 1, 4 do
      assert.equal(e.address[1], e.address[i])
      assert.equal(e.thread[1], e.thread[i])
      assert.is_true(e.thread[i] > 0 and e.time_us[i] >= before_us and e.time_us[i] >= (e.time_us[i - 1] or 0))
    end
    assert.same({}, t.recording.segments)
    assert.equal(0, t.lost)
    assert.equal(1000, t.peak_live)
    assert.same({ 1, -1 }, t.op)
    assert(view)
  end)

  it("tells a block that is held from one that is free", function()
    local s <close> = assert(dev:stream())
    local other <close> = assert(dev:stream())
    pool:trace(true)
    local buf = assert(pool:alloc(4096, s))
    buf:fill(1, { stream = other, async = true }):close()
    buf:close()
    assert.equal("segment_alloc alloc free_requested", actions(pool:trace()))
    assert.equal("active_pending_free", pool:trace().recording.segments[1].blocks.state[1])
    dev:complete(other)
    pool:trim()
    assert.equal("segment_alloc alloc free_requested free_completed segment_free", actions(pool:trace()))
    local e = pool:trace().recording.events
    assert.equal(e.stream[2], e.stream[4])
    assert.is_true(e.stream[2] > 0)
  end)

  it("notes what failed, and how much was left", function()
    pool.limit = 4 * cl.MiB
    pool:trace(true)
    local keep <close> = assert(pool:alloc(3 * cl.MiB))
    assert.is_nil(pool:alloc(2 * cl.MiB))
    local t = pool:trace()
    assert.equal("segment_alloc alloc oom", actions(t))
    assert.equal(2 * cl.MiB, t.recording.events.size[3])
    assert.equal(0, t.recording.events.address[3])
    assert.equal(1, t.failures)
    assert(keep)
  end)

  it("starts in the middle of things, and finds out what was there", function()
    local a, b = assert(pool:alloc(5000)), assert(pool:alloc(70000))
    pool:trace(true)
    a:close()
    local c <close> = assert(pool:alloc(100))
    local t = pool:trace()
    assert.equal(2, t.initial)
    assert.equal(75000, t.peak_live)
    assert.equal("free alloc", actions(t))
    local before = t.recording.before
    table.sort(before.blocks.size)
    assert.same({ 5000, 70000 }, before.blocks.size)
    b:close()
    assert(c)
  end)

  it("keeps the newest events when there are more than fit, and says how many are lost", function()
    pool:trace(true, { events = 16 })
    local live = {}
    for i = 1, 100 do
      live[i] = assert(pool:alloc(i * 100))
      if i > 10 then live[i - 10]:close() end
    end
    local t = pool:trace()
    assert.equal(16, #t.recording.events.action)
    assert.equal(1 + 100 + 90 - 16, t.lost)
    assert.equal(10, t.initial) -- the ten live before the sixteen events
    local live_bytes = 0
    for i = 91, 100 do live_bytes = live_bytes + i * 100 end
    local sum = 0
    for i = 1, t.operations do sum = sum + (t.op[i] > 0 and t.size[i] or -t.size[i]) end
    assert.equal(live_bytes, sum)
    for i = 91, 100 do live[i]:close() end
  end)

  it("stops when told to, and begins anew", function()
    pool:trace(true)
    local a <close> = assert(pool:alloc(100))
    assert.is_true(pool:trace(false))
    assert.is_true(pool:trace(false))
    local b <close> = assert(pool:alloc(200))
    local t = pool:trace()
    assert.equal("segment_alloc alloc", actions(t))
    local blocks = t.recording.segments[1].blocks
    assert.same({ 100, 0 }, { blocks.requested[1], blocks.requested[2] })
    assert.same({ "active_allocated", "inactive" }, blocks.state)
    pool:trace(true)
    assert.equal("", actions(pool:trace()))
    assert.equal(2, pool:trace().initial)
    assert(a and b)
  end)

  it("shows blocks that tile their segments, and agrees with the snapshot", function()
    open(cl.simulate { capacity = cl.GiB })
    local random, live = 99, {}
    local function draw(n)
      random = (random * 1103515245 + 12345) & 0x7fffffff
      return (random >> 8) % n + 1
    end
    local s <close> = assert(dev:stream())
    pool:trace(true)
    for _ = 1, 3000 do
      local k = draw(60)
      if live[k] then
        live[k]:close()
        live[k] = nil
      else
        live[k] = assert(pool:alloc(draw(200000), draw(2) == 1 and s or nil))
      end
      if draw(500) == 1 then pool:trim() end
    end
    local t, snapshot = pool:trace(), pool:snapshot()
    assert.equal(#snapshot, #t.recording.segments)
    local requested = 0
    for i, segment in ipairs(t.recording.segments) do
      local at, seen = segment.address, snapshot[i].blocks
      assert.equal(snapshot[i].size, segment.size)
      for j = 1, #segment.blocks.address do
        assert.equal(at, segment.blocks.address[j])
        assert.equal(seen[j].size, segment.blocks.size[j])
        at = at + seen[j].size
        if segment.blocks.state[j] == "active_allocated" then requested = requested + segment.blocks.requested[j] end
      end
      assert.equal(segment.address + segment.size, at)
    end
    assert.equal(pool:stats().requested_bytes, requested)
    assert.equal(pool:stats().allocs, t.allocations)
    assert.equal(pool:stats().peak_requested_bytes, t.peak_live)
    local path = os.tmpname()
    for _, format in ipairs { "csv", "pickle", "chrome", "rmm" } do
      local ok, message = t:save(path, format)
      assert(ok, message)
      if format ~= "chrome" then
        assert.equal(t.peak_live, cl.trace.load(path).peak_live)
        assert.equal(t.allocations, cl.trace.load(path).allocations)
      end
    end
    os.remove(path)
    for _, buf in pairs(live) do buf:close() end
  end)

  it("replays what it recorded", function()
    pool:trace(true)
    local list = {}
    for i = 1, 50 do list[i] = assert(pool:alloc(i * 1000)) end
    for i = 1, 50, 2 do list[i]:close() end
    local t = pool:trace()
    local result = cl.replay(t, { device = dev })
    assert.equal(75, result.operations)
    assert.equal(pool:stats().peak_requested_bytes, result.peak_live)
    for i = 2, 50, 2 do list[i]:close() end
  end)

  it("refuses other arguments, and reading what was never recorded", function()
    assert.matches("records nothing; start it with pool:trace(true)", failure(pool.trace, pool), 1, true)
    assert.matches("records nothing", failure(pool.trace, pool, false), 1, true)
    for _, value in ipairs { 0, 1, "true", {} } do
      assert.matches("trace: true, false or nothing expected", failure(pool.trace, pool, value), 1, true)
    end
    for _, value in ipairs { 0, -1, 1.5, "16", 0 / 0, math.mininteger } do
      local message = failure(pool.trace, pool, true, { events = value })
      assert.matches("events: an integer of at least 1 expected", message, 1, true)
    end
    assert.matches("at most 268435456", failure(pool.trace, pool, true, { events = 1 << 53 }), 1, true)
    assert.matches("no option is named 'event'", failure(pool.trace, pool, true, { event = 1 }), 1, true)
    assert.matches("options: table expected, got number", failure(pool.trace, pool, true, 7), 1, true)
    pool:close()
    assert.matches("closed", failure(pool.trace, pool, true))
    assert.matches("closed", failure(pool.trace, pool))
  end)
end)
