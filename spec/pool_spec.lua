-- Pools: what they count, keep, give back and refuse; what a script sees of them.

local cl = require "clalloc"
local failure = require "spec.failure"

local FIELDS = {
  "active_bytes", "requested_bytes", "reserved_bytes", "cached_bytes", "held_bytes", "active_blocks", "cached_blocks",
  "held_blocks", "segments", "allocs", "frees", "driver_allocs", "driver_frees", "retries", "ooms", "largest_free",
  "limit", "peak_active_bytes", "peak_requested_bytes", "peak_reserved_bytes", "peak_cached_bytes", "peak_held_bytes",
}

describe("a pool", function()
  local sim

  before_each(function() sim = cl.simulate{ capacity = 100 * cl.MiB } end)
  after_each(function() sim:close() end)

  it("is the device's own, or a new one", function()
    local default <close> = sim:pool()
    local again <close> = sim:pool()
    local own <close> = sim:pool{}
    assert.equal(default, again)
    assert.not_equal(default, own)
    assert.equal(sim, own.device)
    assert.equal("caching", own.policy)
    assert.equal(own, own:alloc(1).pool)
    local buf <close> = assert(sim:alloc(10, { pool = own }))
    assert.equal(own, buf.pool)
  end)

  it("counts everything", function()
    local pool <close> = sim:pool{ policy = cl.policy.caching() }
    local a, b <close> = assert(pool:alloc(1000)), assert(pool:alloc(2000))
    a:close()
    local stats = pool:stats()
    for _, name in ipairs(FIELDS) do assert.equal("integer", math.type(stats[name]), name) end
    for name in pairs(stats) do
      assert.is_true(table.concat(FIELDS, " "):find(name, 1, true) ~= nil, name)
    end
    assert.equal(2000, stats.requested_bytes)
    assert.equal(2048, stats.active_bytes)
    assert.equal(3000, stats.peak_requested_bytes)
    assert.equal(stats.reserved_bytes, stats.active_bytes + stats.cached_bytes + stats.held_bytes)
    assert.same({ 2, 1, 1, 1 }, { stats.allocs, stats.frees, stats.segments, stats.active_blocks })
    assert.equal(pool.limit, stats.limit)
    assert.equal(#b, 2000)
  end)

  it("forgets its peaks on request", function()
    local pool <close> = sim:pool{}
    assert(pool:alloc(cl.MiB)):close()
    assert.equal(cl.MiB, pool:stats().peak_active_bytes)
    assert.is_true(pool:reset_peaks())
    assert.equal(0, pool:stats().peak_active_bytes)
  end)

  it("shows its segments and blocks in address order", function()
    local pool <close> = sim:pool{}
    local s <close> = sim:stream()
    local a <close> = assert(pool:alloc(1000))
    local b = assert(pool:alloc(3000))
    local c <close> = assert(pool:alloc(100))
    local held = assert(pool:alloc(5000))
    local gate <close> = sim:gate()
    s:wait(gate)
    held:record(s)
    held:close()
    b:close()
    local segments = pool:snapshot()
    assert.equal(1, #segments)
    local segment, offset = segments[1], 0
    assert.equal(0, segment.id)
    assert.equal(pool:stats().reserved_bytes, segment.size)
    local found = {}
    for _, block in ipairs(segment.blocks) do
      assert.equal(offset, block.offset)
      offset = offset + block.size
      found[#found + 1] = block.state
    end
    assert.equal(segment.size, offset)
    assert.same({ "active", "free", "active", "held", "free" }, found)
    assert.equal(a.address, segment.blocks[1].address)
    assert.equal(1000, segment.blocks[1].requested)
    assert.equal(c.address, segment.blocks[3].address)
    assert.equal(sim.default_stream.id, segment.blocks[1].stream)
    gate:open()
  end)

  it("has an empty snapshot when it has no segment", function()
    local pool <close> = sim:pool{}
    assert.same({}, pool:snapshot())
  end)

  it("gives wholly free segments back, and says how many bytes", function()
    local pool <close> = sim:pool{}
    local a, b = assert(pool:alloc(10 * cl.MiB)), assert(pool:alloc(20 * cl.MiB))
    assert.equal(0, pool:trim())
    b:close()
    local reserved = pool:stats().reserved_bytes
    local freed = pool:trim()
    assert.is_true(freed >= 20 * cl.MiB)
    assert.equal(reserved - freed, pool:stats().reserved_bytes)
    a:close()
    pool:trim()
    assert.equal(0, pool:stats().reserved_bytes)
    assert.equal(pool:stats().driver_allocs, pool:stats().driver_frees)
  end)

  it("leaves a thousand empty allocations no memory after a trim (occa#712)", function()
    local pool <close> = sim:pool{}
    local buffers = {}
    for i = 1, 1000 do buffers[i] = assert(pool:alloc(0)) end
    for _, buf in ipairs(buffers) do buf:close() end
    pool:trim()
    assert.equal(0, pool:stats().segments)
  end)

  it("checks its books", function()
    local pool <close> = sim:pool{}
    local buf <close> = assert(pool:alloc(10))
    assert.is_true(pool:check())
    assert.equal(10, #buf)
  end)

  it("has a limit that can be read and set", function()
    local pool <close> = sim:pool{ limit = 10 * cl.MiB }
    assert.equal(10 * cl.MiB, pool.limit)
    pool.limit = 20 * cl.MiB
    assert.equal(20 * cl.MiB, pool.limit)
    assert.is_true(pool:set_limit(30 * cl.MiB))
    assert.equal(30 * cl.MiB, pool:stats().limit)
    pool.limit = 0
    assert.equal(sim.global_mem // 8 * 7, pool.limit)
    local buf <close> = assert(pool:alloc(8 * cl.MiB))
    assert.matches("below the %d+ bytes", failure(function() pool.limit = #buf // 2 end))
    assert.matches("below the %d+ bytes", failure(pool.set_limit, pool, #buf // 2))
    assert.matches("no field 'policy' to set", failure(function() pool.policy = "direct" end))
  end)

  it("refuses what goes over the limit, with all the figures, and loses nothing", function()
    local pool <close> = sim:pool{ limit = 10 * cl.MiB }
    local live <close> = assert(pool:alloc(4 * cl.MiB))
    local before = pool:stats()
    local buf, message, code = pool:alloc(8 * cl.MiB)
    assert.is_nil(buf)
    assert.equal("LIMIT", code)
    for _, part in ipairs{
      "8388608 bytes asked", "8388608 rounded", "active 4194304", "cached %d+", "held 0", "reserved %d+",
      "limit of 10485760", "largest free block %d+", "the limit is reached", "tried: .*collecting garbage",
      "giving segments back",
    } do
      assert.matches(part, message)
    end
    assert.matches("oom", failure(error, "oom: " .. message))
    local after = pool:stats()
    for _, name in ipairs{ "active_bytes", "requested_bytes", "held_bytes", "allocs", "frees" } do
      assert.equal(before[name], after[name], name)
    end
    assert.equal(before.ooms + 1, after.ooms)
    assert.is_true(pool:check())
    assert.equal(4 * cl.MiB, #live)
  end)

  it("refuses more than the device gives in one allocation", function()
    local small <close> = cl.simulate{ capacity = 100 * cl.MiB, max_alloc = 10 * cl.MiB, accepts_oversize = true }
    local buf, message, code = small:alloc(10 * cl.MiB + 1)
    assert.is_nil(buf)
    assert.equal("TOO_LARGE", code)
    assert.matches("10485761 bytes asked, but Simulated .* gives at most 10485760", message)
    local largest <close> = assert(small:alloc(10 * cl.MiB))
    assert.equal(10 * cl.MiB, #largest)
  end)

  it("names the driver's refusal when memory runs out", function()
    local pool <close> = sim:pool{ limit = 1000 * cl.MiB }
    local buf <close> = assert(pool:alloc(60 * cl.MiB))
    local none, message, code = pool:alloc(60 * cl.MiB)
    assert.is_nil(none)
    assert.equal("NOMEM", code)
    assert.matches("CL_MEM_OBJECT_ALLOCATION_FAILURE", message)
    assert.equal(60 * cl.MiB, #buf)
  end)

  it("gives its cache back before it fails (cupy#1256)", function()
    local pool <close> = sim:pool{}
    local a <close> = assert(pool:alloc(30 * cl.MiB))
    local b = assert(pool:alloc(30 * cl.MiB))
    b:close()
    local c <close> = assert(pool:alloc(50 * cl.MiB))
    assert.equal(30 * cl.MiB, #a)
    assert.equal(50 * cl.MiB, #c)
    assert.equal(0, pool:stats().ooms)
  end)

  it("waits for held blocks before it fails (pytorch#189504)", function()
    local manual <close> = cl.simulate{ capacity = 100 * cl.MiB, manual = true }
    local other <close> = manual:stream()
    local a = assert(manual:alloc(80 * cl.MiB))
    a:fill(0, { stream = other, async = true }):close()
    a:close()
    local b <close> = assert(manual:alloc(60 * cl.MiB))
    local pool <close> = manual:pool()
    assert.equal(1, pool:stats().segments)
    assert.equal(0, pool:stats().ooms)
    assert.equal(60 * cl.MiB, #b)
  end)

  it("heals a failed driver call without a trace but a counter (cub#47)", function()
    local pool <close> = sim:pool{}
    local cached = assert(pool:alloc(20 * cl.MiB))
    cached:close()
    cl.debug.fail("create_buffer", 1, -4)
    local buf <close> = assert(pool:alloc(30 * cl.MiB))
    assert.is_false(cl.debug.armed())
    assert.equal(1, pool:stats().retries)
    assert.equal(0, pool:stats().ooms)
    assert.is_true(buf:fill(0))
    assert.is_true(pool:check())
  end)

  it("describes itself", function()
    local pool = sim:pool{ limit = 64 * cl.MiB }
    local buf <close> = assert(pool:alloc(12 * cl.MiB))
    assert.matches("^pool %(caching, 1 segment, 12%.0 MiB active of %d+%.%d MiB reserved, limit 64%.0 MiB%)$",
      tostring(pool))
    pool:close()
    assert.equal("pool (closed)", tostring(pool))
    assert.is_true(buf.closed)
  end)

  it("that is closed frees its allocations; their buffers are stale", function()
    local live = cl.debug.live("buffer")
    local pool = sim:pool{}
    local buf = assert(pool:alloc(100))
    local address = buf.address
    pool:close()
    pool:close()
    assert.equal(live, cl.debug.live("buffer"))
    assert.equal("buffer (freed)", tostring(buf))
    assert.is_false(cl.owns(address))
    assert.matches("the pool of this allocation is closed", failure(buf.read, buf))
    assert.matches("attempt to use a closed pool", failure(pool.alloc, pool, 1))
    assert.matches("attempt to use a closed pool", failure(pool.stats, pool))
    assert.matches("attempt to use a closed pool", failure(function() return pool.limit end))
    assert.matches("pool: attempt to use a closed pool", failure(sim.alloc, sim, 1, { pool = pool }))
    buf:close()
  end)

  it("that is the device's own survives its handles", function()
    local pool = sim:pool()
    local buf <close> = assert(pool:alloc(100))
    pool:close()
    assert.is_true(buf:fill(0))
    assert.is_false(buf.closed)
  end)

  it("is kept by its buffers, and goes with the last", function()
    collectgarbage()
    collectgarbage()
    local live = cl.debug.live("buffer")
    do
      local buf = assert(sim:pool{}:alloc(100))
      collectgarbage()
      collectgarbage()
      assert.is_true(buf:fill(1))
      assert.equal("caching", buf.pool.policy)
    end
    collectgarbage()
    collectgarbage()
    assert.equal(live, cl.debug.live("buffer"))
  end)

  it("keeps a queue that is held by a gate from being waited for", function()
    local pool = sim:pool{}
    local s <close> = sim:stream()
    local gate <close> = sim:gate()
    local buf = assert(pool:alloc(100, s))
    s:wait(gate)
    buf:fill(0, { stream = s, async = true }):close()
    buf:close()
    assert.equal(0, pool:trim())
    pool:close()
    assert.is_true(cl.debug.live("buffer") > 0) -- the queued fill still needs it
    gate:open()
    s:finish()
  end)
end)

describe("a policy", function()
  it("is a table with a name and parameters, or just the name", function()
    assert.same({ name = "caching" }, cl.policy.caching())
    assert.same({ name = "direct" }, cl.policy.direct{})
    assert.same({ name = "caching", grain = cl.MiB }, cl.policy.caching{ grain = cl.MiB })
    local sim <close> = cl.simulate{ capacity = 10 * cl.MiB }
    local direct <close> = sim:pool{ policy = "direct" }
    assert.equal("direct", direct.policy)
  end)

  it("that is direct goes to the driver each time", function()
    local sim <close> = cl.simulate{ capacity = 10 * cl.MiB }
    local pool <close> = sim:pool{ policy = cl.policy.direct() }
    for _ = 1, 10 do assert(pool:alloc(1000)):close() end
    assert.equal(10, pool:stats().driver_allocs)
    assert.equal(10, pool:stats().driver_frees)
  end)

  it("that is caching calls it once for a loop", function()
    local sim <close> = cl.simulate{ capacity = 10 * cl.MiB }
    local pool <close> = sim:pool{}
    for _ = 1, 10 do assert(pool:alloc(1000)):close() end
    assert.equal(1, pool:stats().driver_allocs)
  end)

  it("has parameters: the alignment of blocks, the grain of segments", function()
    local sim <close> = cl.simulate{ capacity = 10 * cl.MiB }
    local pool <close> = sim:pool{ policy = cl.policy.caching{ align = 4096, grain = 64 * cl.KiB, growth_min = 0 } }
    local buf <close> = assert(pool:alloc(1))
    assert.equal(4096, buf.reserved)
    assert.equal(64 * cl.KiB, pool:stats().reserved_bytes)
  end)

  it("can keep large blocks whole (pytorch#35901)", function()
    local sim <close> = cl.simulate{ capacity = 1500 * cl.MiB }
    local pool <close> = sim:pool{ policy = cl.policy.caching{ max_split = 200 * cl.MiB }, limit = 1500 * cl.MiB }
    assert(pool:alloc(1000 * cl.MiB)):close()
    local small = {}
    for i = 1, 26 do small[i] = assert(pool:alloc(16 * cl.MiB)) end
    local large <close> = assert(pool:alloc(1000 * cl.MiB))
    assert.equal(1000 * cl.MiB, #large)
    for _, buf in ipairs(small) do buf:close() end
  end)

  it("is refused when it makes no sense", function()
    local sim <close> = cl.simulate{ capacity = 10 * cl.MiB }
    assert.matches("no parameter is named 'grian'", failure(cl.policy.caching, { grian = 1 }))
    assert.matches("grain: x is no size", failure(cl.policy.caching, { grain = "x" }))
    assert.matches("grain: %-1 is no size", failure(cl.policy.direct, { grain = -1 }))
    assert.matches("none is named 'nobody'", failure(sim.pool, sim, { policy = "nobody" }))
    assert.matches("name: a string expected, got 1", failure(sim.pool, sim, { policy = { name = 1 } }))
    assert.matches("no option is named 'grian'", failure(sim.pool, sim, { policy = { grian = 1 } }))
    assert.matches("a policy or its name expected, got number", failure(sim.pool, sim, { policy = 1 }))
    assert.matches("no option is named 'polcy'", failure(sim.pool, sim, { polcy = "direct" }))
    assert.matches("no power of two", failure(sim.pool, sim, { policy = { align = 1000 } }))
    assert.matches("shared virtual memory", failure(sim.pool, sim, { svm = true }))
  end)
end)

describe("the garbage collector", function()
  local mode

  before_each(function() mode = collectgarbage("incremental") end)
  after_each(function()
    collectgarbage("restart")
    collectgarbage(mode)
  end)

  -- Counts full collections while it runs `work`, by an object that every one of them finalizes.
  local function collections_of(work)
    local count, is_over = 0, false
    local function watch()
      setmetatable({}, { __gc = function()
        count = count + 1
        if not is_over then watch() end
      end })
    end
    watch()
    work()
    is_over = true
    return count
  end

  for _, kind in ipairs{ "incremental", "generational" } do
    it(("keeps a loop of temporaries within memory, %s (torch7#280)"):format(kind), function()
      collectgarbage(kind)
      local sim <close> = cl.simulate{ capacity = 100 * 1000 * 1000 }
      local pool <close> = sim:pool()
      local count = collections_of(function()
        for _ = 1, 1000 do
          local t = { assert(sim:alloc(10e6)) }
          t.cycle = function() return t end
        end
      end)
      assert.equal(0, pool:stats().ooms)
      assert.is_true(pool:stats().peak_active_bytes < 100e6)
      assert.is_true(count <= 200, count .. " collections")
    end)
  end

  it("is left alone by a program that closes what it opens", function()
    local sim <close> = cl.simulate{ capacity = cl.GiB }
    local count = collections_of(function()
      for _ = 1, 1000 do assert(sim:alloc(100 * cl.MiB)):close() end
    end)
    assert.is_true(count <= 2, count .. " collections")
  end)

  it("that is stopped stays stopped: running out of memory says so", function()
    local sim <close> = cl.simulate{ capacity = 100 * cl.MiB }
    collectgarbage("stop")
    local buf, message, code
    for _ = 1, 20 do
      buf, message, code = sim:alloc(10 * cl.MiB)
      if not buf then break end
    end
    assert.is_nil(buf)
    assert.equal("LIMIT", code)
    assert.matches("the garbage collector is stopped", message)
    assert.is_nil(message:find("collecting garbage", 1, true))
    assert.is_false(collectgarbage("isrunning"))
    collectgarbage("restart")
    local now <close> = assert(sim:alloc(10 * cl.MiB))
    assert.equal(10 * cl.MiB, #now)
  end)

  it("may run finalizers that use the pool", function()
    local sim <close> = cl.simulate{ capacity = 100 * cl.MiB }
    local pool <close> = sim:pool{ limit = 90 * cl.MiB }
    local allocated = 0
    for _ = 1, 100 do
      local garbage = { assert(pool:alloc(10 * cl.MiB)) }
      setmetatable(garbage, { __gc = function()
        local own = pool:alloc(1000)
        if own then
          allocated = allocated + 1
          own:fill(0)
          own:close()
        end
      end })
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(allocated > 50)
    assert.is_true(pool:check())
  end)

  it("may run a finalizer that closes the very pool", function()
    local sim <close> = cl.simulate{ capacity = 100 * cl.MiB }
    for _, size in ipairs{ 30, 80 } do
      local pool = sim:pool{ limit = 90 * cl.MiB }
      local held <close> = assert(pool:alloc(40 * cl.MiB))
      setmetatable({}, { __gc = function() pool:close() end })
      local ok, message = pcall(function()
        for _ = 1, 3 do
          local buf, text = pool:alloc(size * cl.MiB)
          if not buf then error(text, 0) end
        end
      end)
      assert.is_false(ok)
      assert.matches("closed", message)
      assert.is_true(held.closed)
    end
  end)
end)
