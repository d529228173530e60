-- Running out of memory: what a pool tries, in which order, what it says when nothing helps, and what it
-- never does.
--
-- The devices are simulated, so the figures are exact. A `manual` one completes commands when told to, or
-- when somebody waits for them.

local cl = require "clalloc"
local failure = require "spec.failure"

local MB <const> = 1000 * 1000
local MiB <const> = cl.MiB

-- A field of the out-of-memory message: "active 512" and the like.
local function figure(message, name)
  return math.tointeger(message:match(name .. " (%d+)"))
end

local function assert_same_but(before, after, ...)
  local ignored = {}
  for _, name in ipairs { ... } do ignored[name] = true end
  for name, value in pairs(before) do
    if not ignored[name] then
      assert(value == after[name], ("%s: %d before, %d after"):format(name, value, after[name]))
    end
  end
end

-- Every block's place, size and state.
local function layout_of(pool)
  local lines = {}
  for _, segment in ipairs(pool:snapshot()) do
    for _, b in ipairs(segment.blocks) do
      lines[#lines + 1] = ("%d: %s %d+%d (%d)"):format(segment.id, b.state, b.offset, b.size, b.requested)
    end
  end
  return table.concat(lines, "\n")
end

describe("a pool that runs out of memory", function()
  local sim, pool
  local opened = {} -- closed after the test, newest first

  local function note(it)
    opened[#opened + 1] = it
    return it
  end

  local function open(simulation, options)
    sim = note(cl.simulate(simulation))
    pool = note(assert(sim:pool(options or {})))
  end

  local function alloc(nbytes, stream)
    return note(assert(pool:alloc(nbytes, stream)))
  end

  local function stream() return note(sim:stream()) end

  -- The message and the code of an allocation that must fail for want of memory.
  local function refused(nbytes, on)
    local buf, message, code = pool:alloc(nbytes, on)
    assert.is_nil(buf)
    assert.matches("^out of memory on Simulated", message)
    return message, code
  end

  -- Work on a stream that the device has not done yet.
  local function busy(s, buf)
    buf:fill(0, { stream = s, size = 64, async = true }):close()
  end

  -- Lets the pool reserve up to `nbytes` without giving anything back first, like one that was fuller
  -- before.
  local function set_high_water(nbytes)
    alloc(nbytes):close()
    pool:trim()
    assert.equal(0, pool:stats().reserved_bytes)
    assert.is_true(pool:stats().peak_reserved_bytes >= nbytes)
  end

  after_each(function()
    cl.debug.fail("any", 0)
    if pool then assert.is_true(pool:check()) end
    for i = #opened, 1, -1 do opened[i]:close() end
    sim, pool, opened = nil, nil, {}
  end)

  -- Sizes stay below 64 MiB in all, so that no collection comes before memory is short.
  describe("tries in turn", function()
    local function sentinel()
      local state = { is_collected = false }
      setmetatable({}, { __gc = function() state.is_collected = true end }) -- garbage
      return state
    end

    it("its own free blocks, which asks nobody", function()
      open { capacity = 100 * MB, manual = true }
      local q1 = stream()
      local h = alloc(10 * MB, q1)
      busy(q1, h)
      h:close()
      cl.debug.calls_reset()
      alloc(9 * MB, q1)
      assert.equal(0, cl.debug.calls().total)
      assert.equal(0, pool:stats().retries)
    end)

    it("what other streams have completed, though nobody asked yet, which makes nobody wait", function()
      open({ capacity = 100 * MB }, { limit = 15 * MB })
      local q1, q2, gate = stream(), stream(), note(sim:gate())
      local h = alloc(10 * MB, q1)
      alloc(512, q2)
      q1:wait(gate)
      busy(q1, h)
      h:close()
      gate:open()
      cl.debug.calls_reset()
      local g = alloc(10 * MB, q2)
      assert.equal(0, cl.debug.calls "enqueue_barrier")
      assert.equal(0, cl.debug.calls "create_buffer")
      assert.equal(0, pool:stats().retries)
      assert.equal(q2, g.stream)
    end)

    it("what other streams have not completed, behind a wait, before it collects garbage", function()
      open({ capacity = 100 * MB, manual = true }, { limit = 15 * MB })
      local q1, q2 = stream(), stream()
      local h = alloc(10 * MB, q1)
      busy(q1, h)
      h:close()
      cl.debug.calls_reset()
      local garbage = sentinel()
      alloc(10 * MB, q2)
      assert.equal(1, cl.debug.calls "enqueue_barrier")
      assert.equal(0, cl.debug.calls "wait_events")
      assert.is_false(garbage.is_collected)
      assert.equal(1, pool:stats().retries)
      assert.equal(0, pool:stats().driver_frees)
    end)

    it("a garbage collection, before it gives memory back", function()
      open({ capacity = 100 * MB }, { limit = 40 * MB })
      set_high_water(30 * MB)
      pool.limit = 16 * MB
      local small = alloc(5 * MB)
      assert(pool:alloc(9 * MB)) -- dropped
      small:close()
      local before, garbage = pool:stats(), sentinel()
      alloc(9 * MB)
      assert.is_true(garbage.is_collected)
      assert.equal(before.driver_frees, pool:stats().driver_frees)
      assert.equal(before.driver_allocs, pool:stats().driver_allocs)
      assert.equal(1, pool:stats().retries)
    end)

    it("giving free segments back, before it waits for streams", function()
      open({ capacity = 100 * MB, manual = true }, { limit = 40 * MB })
      set_high_water(30 * MB)
      pool.limit = 16 * MB
      local q1, q2 = stream(), stream()
      local held, free = alloc(5 * MB, q1), alloc(5 * MB, q1)
      busy(q2, held)
      held:close()
      free:close()
      local garbage = sentinel()
      alloc(9 * MB, q1)
      assert.is_true(garbage.is_collected)
      assert.equal(1, pool:stats().held_blocks)
      assert.equal(0, q2:stats().completed)
    end)

    -- pytorch/pytorch#189504, #19222
    it("waiting for held blocks, and then looks in the pool again", function()
      open({ capacity = 100 * MB, manual = true }, { limit = 100 * MB })
      local q1, q2 = stream(), stream()
      local h = alloc(80 * MB, q1)
      local address = h.address
      busy(q2, h)
      h:record(q2)
      h:close()
      assert.equal(1, pool:stats().held_blocks)
      local g = alloc(60 * MB, q1)
      assert.equal(address, g.address)
      local stats = pool:stats()
      assert.equal(1, stats.segments)
      assert.equal(1, stats.driver_allocs)
      assert.equal(0, stats.ooms)
      assert.equal(1, stats.retries)
      assert.is_true(stats.largest_free >= 20 * MB)
    end)

    it("waiting, and then giving back what was waited for", function()
      open({ capacity = 100 * MB, manual = true }, { limit = 100 * MB })
      local q1, q2 = stream(), stream()
      for _ = 1, 3 do
        local h = alloc(30 * MB, q1)
        busy(q2, h)
        h:close()
      end
      assert.equal(3, pool:stats().held_blocks)
      alloc(95 * MB, q1)
      assert.equal(1, pool:stats().segments)
      assert.equal(0, pool:stats().ooms)
    end)
  end)

  it("does not wait behind a gate that only its own thread can open", function()
    open({ capacity = 100 * MB }, { limit = 100 * MB })
    local q1, q2, gate = stream(), stream(), note(sim:gate())
    local h = alloc(80 * MB, q1)
    q2:wait(gate)
    busy(q2, h)
    h:close()
    local message, code = refused(60 * MB, q1)
    assert.equal("LIMIT", code)
    assert.equal(80 * MB, figure(message, "held"))
    assert.matches("tried: .*waiting for streams", message)
    assert.equal(1, pool:stats().ooms)
    gate:open()
    alloc(60 * MB, q1)
    assert.equal(1, pool:stats().segments)
  end)

  it("gives its cache back before it refuses", function() -- cupy/cupy#1256
    open({ capacity = 100 * MB }, { limit = 100 * MB })
    alloc(30 * MB)
    local b = alloc(30 * MB)
    b:close()
    alloc(60 * MB)
    assert.equal(0, pool:stats().ooms)
    assert.equal(2, pool:stats().segments)
  end)

  it("gives back each of 180 cached blocks if only that helps", function() -- arrayfire/arrayfire#3402, #3112
    local sizes, total = {}, 0
    for i = 1, 180 do
      sizes[i] = (36 - i % 36) * MiB
      total = total + sizes[i]
    end
    open({ capacity = 2 * total }, { limit = 2 * total })
    local list = {}
    for i, n in ipairs(sizes) do list[i] = alloc(n) end
    for _, buf in ipairs(list) do buf:close() end
    assert.is_true(pool:stats().cached_bytes >= total)
    alloc(2 * total)
    local stats = pool:stats()
    assert.equal(1, stats.segments)
    assert.equal(2 * total, stats.reserved_bytes)
    assert.equal(0, stats.ooms)
  end)

  -- NVIDIA/cub#47, pytorch/pytorch#13751
  it("counts a failure that healed, and keeps nothing else of it", function()
    open { capacity = 100 * MB }
    local prog <close> = sim:program "kernel void touch(global int *x) { x[0] = 1; }"
    local touch <close> = prog.touch
    cl.debug.fail("create_buffer", 1)
    local h, message, code = pool:alloc(40 * MiB)
    note(h)
    assert.is_nil(message)
    assert.is_nil(code)
    assert.is_false(cl.debug.armed())
    local event <close> = assert(touch { h, size = 1 })
    assert.is_true(event:wait())
    assert.is_true(h:fill(1))
    local stats = pool:stats()
    assert.equal(1, stats.retries)
    assert.equal(0, stats.ooms)
  end)

  it("tries the size that is needed when the driver refuses the larger segment it wanted", function()
    open { capacity = 200 * MiB, refuse_above = 8 * MiB + 1 }
    for _ = 1, 40 do alloc(2 * MiB) end -- by now a new segment would be half of what is reserved
    assert.equal(0, pool:stats().ooms)
    for _, segment in ipairs(pool:snapshot()) do assert.is_true(segment.size <= 8 * MiB) end
  end)

  describe("when nothing helps", function()
    it("returns nil, a message with every figure, and the code", function()
      open({ capacity = 100 * MB, manual = true }, { limit = 64 * MiB })
      local q1, q2, gate = stream(), stream(), note(sim:gate())
      alloc(20 * MiB, q1)
      local cached, held = alloc(5 * MiB, q1), alloc(3 * MiB, q1)
      alloc(1000, q1)
      q2:wait(gate)
      busy(q2, held)
      held:close()
      cached:close()
      local stats = pool:stats()
      assert.is_true(stats.cached_bytes > 0 and stats.held_bytes == 3 * MiB)
      local message, code = refused(60 * MiB + 1, q1)
      stats = pool:stats()
      assert.equal("LIMIT", code)
      assert.matches(sim.name, message, 1, true)
      assert.matches(("%d bytes asked"):format(60 * MiB + 1), message, 1, true)
      assert.matches(("(%d rounded)"):format(60 * MiB + 512), message, 1, true)
      assert.equal(stats.active_bytes, figure(message, "active"))
      assert.equal(stats.cached_bytes, figure(message, "cached"))
      assert.equal(stats.held_bytes, figure(message, "held"))
      assert.equal(stats.reserved_bytes, figure(message, "reserved"))
      assert.equal(64 * MiB, figure(message, "of a limit of"))
      assert.equal(stats.largest_free, figure(message, "largest free block"))
      for _, step in ipairs { "adopting with a wait", "collecting garbage", "giving segments back",
                              "waiting for streams" } do
        assert.matches(step, message:match "tried: (.*)", 1, true)
      end
    end)

    it("names the driver's reason when it is the device that has no more", function()
      open({ capacity = 100 * MB }, { limit = 1000 * MB })
      alloc(80 * MB)
      local message, code = refused(30 * MB)
      assert.equal("NOMEM", code)
      assert.matches("create_buffer", message, 1, true)
      assert.matches("CL_MEM_OBJECT_ALLOCATION_FAILURE", message, 1, true)
    end)

    -- ROCm/rocm-systems#11643
    it("leaves every statistic as it was but the count of such failures", function()
      open({ capacity = 100 * MB, manual = true }, { limit = 64 * MiB })
      local q1, q2, gate = stream(), stream(), note(sim:gate())
      local held = alloc(3 * MiB, q1)
      alloc(6 * MiB, q1)
      alloc(20 * MiB, q1)
      q2:wait(gate)
      busy(q2, held)
      held:close()
      pool:trim()
      local part = alloc(1000, q1)
      part:close()
      alloc(2000, q1)
      local before, layout = pool:stats(), layout_of(pool)
      for i = 1, 20 do
        refused(60 * MiB + i, q1)
        refused(60 * MiB + i, q2)
        refused(60 * MiB + i)
      end
      local after = pool:stats()
      assert_same_but(before, after, "ooms")
      assert.equal(before.ooms + 60, after.ooms)
      assert.equal(layout, layout_of(pool))
    end)

    it("leaves live memory alone when it has given its cache back in vain", function()
      open({ capacity = 100 * MB }, { limit = 64 * MiB })
      alloc(20 * MiB)
      alloc(20 * MiB):close()
      local before = pool:stats()
      refused(50 * MiB)
      local after = pool:stats()
      assert.equal(20 * MiB, after.reserved_bytes)
      assert.equal(0, after.cached_bytes)
      assert_same_but(before, after, "ooms", "driver_frees", "reserved_bytes", "cached_bytes",
        "cached_blocks", "segments", "largest_free")
    end)

    it("goes on with what fits", function()
      open({ capacity = 100 * MB }, { limit = 64 * MiB })
      alloc(40 * MiB)
      for _ = 1, 5 do refused(30 * MiB) end
      alloc(24 * MiB)
      assert.equal(64 * MiB, pool:stats().reserved_bytes)
      assert.equal(5, pool:stats().ooms)
    end)

    it("reports a driver's fault that is no want of memory, and changes nothing at all", function()
      open { capacity = 100 * MB }
      alloc(5000)
      local before = pool:stats()
      for _, call in ipairs { "create_buffer", "enqueue_migrate" } do
        cl.debug.fail(call, 1, -36) -- CL_INVALID_COMMAND_QUEUE
        local buf, message, code = pool:alloc(40 * MB)
        assert.is_nil(buf)
        assert.equal("DRIVER", code)
        assert.matches(call, message, 1, true)
        assert.same(before, pool:stats())
      end
      alloc(40 * MB)
    end)
  end)

  describe("with a split limit", function() -- pytorch/pytorch#35901, #44742
    local split_limit = cl.policy.caching { max_split = 200 * MB }

    -- One huge block was used and freed; then small ones come, half of which stay.
    local function small_users_after_a_huge_one()
      alloc(1000 * MB):close()
      for i = 1, 50 do
        local small = alloc(16 * MB)
        if i % 2 == 0 then small:close() end
      end
    end

    it("has a huge block again after small users came and stayed", function()
      open({ capacity = 2000 * MB }, { policy = split_limit, limit = 1500 * MB })
      small_users_after_a_huge_one()
      alloc(1000 * MB)
      assert.equal(0, pool:stats().ooms)
    end)

    it("keeps it whole meanwhile, where there is room for both", function()
      open({ capacity = 2000 * MB }, { policy = split_limit, limit = 1500 * MB })
      set_high_water(1480 * MB)
      small_users_after_a_huge_one()
      local made = pool:stats().driver_allocs
      alloc(1000 * MB)
      assert.equal(made, pool:stats().driver_allocs)
    end)

    it("gives it back when somebody needs the room", function()
      open({ capacity = 2000 * MB }, { policy = split_limit, limit = 1500 * MB })
      small_users_after_a_huge_one()
      for _ = 1, 20 do alloc(40 * MB) end
      assert.equal(0, pool:stats().ooms)
      assert.is_true(pool:stats().driver_frees > 0)
    end)

    it("hands a huge block to a request that nearly fills it, not to a smaller one", function()
      open({ capacity = 4000 * MB }, { policy = split_limit })
      set_high_water(3000 * MB)
      local huge = alloc(1000 * MB)
      local address = huge.address
      huge:close()
      assert.not_equal(address, alloc(900 * MB).address)
      assert.equal(address, alloc(990 * MB).address)
    end)

    it("that is off, cuts the huge block, and the message tells why 1000 MB are refused", function()
      open({ capacity = 2000 * MB }, { limit = 1500 * MB })
      set_high_water(1480 * MB)
      small_users_after_a_huge_one()
      local message, code = refused(1000 * MB)
      local stats = pool:stats()
      assert.equal("LIMIT", code)
      assert.equal(stats.reserved_bytes, figure(message, "reserved"))
      assert.equal(stats.active_bytes, figure(message, "active"))
      assert.equal(stats.largest_free, figure(message, "largest free block"))
      assert.is_true(stats.largest_free < 1000 * MB)
      assert.is_true(stats.active_bytes >= 25 * 16 * MB)
    end)
  end)

  describe("on a device whose figures cannot be trusted", function()
    -- KhronosGroup/OpenCL-Docs#584
    it("refuses more than max_alloc itself, though the driver would accept it", function()
      open { capacity = 100 * MB, max_alloc = 20 * MB, accepts_oversize = true }
      local before = pool:stats()
      cl.debug.calls_reset()
      for _, nbytes in ipairs { 20 * MB + 1, 30 * MB, 1 << 40, math.maxinteger } do
        local buf, message, code = pool:alloc(nbytes)
        assert.is_nil(buf)
        assert.equal("TOO_LARGE", code)
        assert.matches(("%d bytes asked"):format(nbytes), message, 1, true)
        assert.matches(("%d in one allocation"):format(20 * MB), message, 1, true)
      end
      assert.equal(0, cl.debug.calls().total)
      assert.same(before, pool:stats())
      alloc(20 * MB)
    end)

    it("gives everything back and tries again when the driver refuses less than max_alloc", function()
      open { capacity = 100 * MB, refuse_above = 20 * MB } -- pocl/pocl#1720, pocl/pocl#2005
      alloc(10 * MB):close()
      alloc(5 * MB)
      cl.debug.calls_reset()
      local message, code = refused(20 * MB)
      assert.equal("NOMEM", code)
      assert.matches("giving segments back", message, 1, true)
      assert.is_true(cl.debug.calls "create_buffer" >= 2)
      assert.equal(1, pool:stats().segments)
      assert.equal(1, pool:stats().ooms)
      alloc(19 * MB)
    end)

    it("hands out exactly max_alloc, also when that is no multiple of the block size", function()
      open { capacity = 100 * MB, max_alloc = 10 * MB + 1 }
      local buf = alloc(10 * MB + 1)
      assert.equal(10 * MB + 1, buf.size)
      assert.is_true(buf:fill(0))
    end)
  end)

  -- arrayfire/arrayfire#2650, pocl/pocl#1155
  describe("on a device that promises memory it lacks", function()
    it("finds out while allocating, and runs its steps", function()
      open({ capacity = 100 * MiB, lazy = true }, { limit = 1000 * MB })
      alloc(60 * MiB)
      alloc(30 * MiB):close()
      alloc(40 * MiB) -- the cached segment had to go
      assert.equal(0, pool:stats().ooms)
      local message, code = refused(40 * MiB)
      assert.equal("NOMEM", code)
      assert.matches("CL_MEM_OBJECT_ALLOCATION_FAILURE", message, 1, true)
      assert.matches("tried: .*giving segments back", message)
      local stats = pool:stats()
      assert.equal(2, stats.segments)
      assert.equal(stats.segments, cl.debug.live "buffer")
    end)

    it("without commit, reports it at the first command with the size, and drops the segment", function()
      open({ capacity = 100 * MB, lazy = true }, { limit = 1000 * MB, commit = false })
      local good = alloc(60 * MB)
      assert.is_true(good:fill(0))
      local bad = alloc(50 * MB)
      local done, message, code = bad:fill(0) -- darktable-org/darktable#21707
      assert.is_nil(done)
      assert.equal("NOMEM", code)
      assert.matches("enqueue_fill", message, 1, true)
      assert.matches(tostring(50 * MB), message, 1, true)
      assert.is_true(pool:check())
      bad:close()
      assert.equal(1, pool:stats().segments)
      assert.equal(0, pool:stats().held_bytes)
      assert.equal(1, cl.debug.live "buffer")
      -- Everything else works on, and the size can be had where there is memory.
      assert.is_true(good:fill(1))
      good:close()
      pool:trim()
      local again = alloc(50 * MB)
      assert.is_true(again:fill(0))
    end)

    it("gives a broken segment back only when the last of its blocks goes", function()
      open({ capacity = 3 * MiB, lazy = true }, { limit = 1000 * MB, commit = false })
      local a, b, c = alloc(100), alloc(200), alloc(300)
      local blocker = alloc(2 * MiB)
      assert.is_true(blocker:fill(0))
      assert.is_nil((a:fill(0)))
      assert.equal(2, pool:stats().segments)
      a:close()
      local d = alloc(100) -- is not cut from there
      assert.is_true(pool:check())
      assert.equal(3, pool:stats().segments)
      b:close()
      c:close()
      assert.equal(2, pool:stats().segments)
      d:close()
      blocker:close()
    end)

    it("says so in every command", function()
      open({ capacity = 8 * MiB, lazy = true }, { limit = 1000 * MB, commit = false })
      local good = alloc(6 * MiB)
      assert.is_true(good:fill(0))
      local commands = {
        write = function(buf) return buf:write "x" end,
        read = function(buf) return buf:read(0, 1) end,
        fill = function(buf) return buf:fill(0) end,
        copy = function(buf) return buf:copy(good) end,
        ["copy from it"] = function(buf) return good:copy(buf) end,
        map = function(buf) return buf:map "r" end,
      }
      for name, command in pairs(commands) do
        local buf = alloc(4 * MiB)
        local done, message, code = command(buf)
        assert.is_nil(done, name)
        assert.equal("NOMEM", code)
        assert.matches("enqueue_" .. name:match "%a+", message, 1, true)
        buf:close()
        assert.is_true(pool:check())
        assert.equal(1, pool:stats().segments, name)
      end
    end)
  end)

  describe("grows to what is needed", function()
    it("and no further than its limit", function() -- rapidsai/rmm#1957, #496
      open({ capacity = 100 * MB }, { limit = MiB })
      alloc(MiB)
      assert.equal(MiB, pool:stats().reserved_bytes)
    end)

    it("also when the limit is no multiple of anything", function() -- rapidsai/rmm#534
      open({ capacity = 100 * MB }, { limit = 1000003 })
      alloc(1000003 // 512 * 512)
      assert.is_true(pool:stats().reserved_bytes <= 1000003)
      local message = refused(1)
      assert.equal(1000003, figure(message, "of a limit of"))
    end)

    it("so that eight blocks of 8 MiB fit in 64 MiB", function() -- rapidsai/rmm#1664
      open({ capacity = 100 * MB }, { limit = 64 * MiB })
      for _ = 1, 8 do alloc(8 * MiB) end
      assert.equal(64 * MiB, pool:stats().reserved_bytes)
      refused(1)
    end)

    it("so that blocks of any one size fill the limit", function()
      for _, size in ipairs { 512, 4096, 64 * 1024, MiB, 4 * MiB } do
        open({ capacity = 100 * MB }, { limit = 24 * MiB })
        for _ = 1, 24 * MiB // size do alloc(size) end
        assert.is_true(pool:stats().active_bytes > 24 * MiB - size)
        refused(size)
        for i = #opened, 1, -1 do opened[i]:close() end
        opened = {}
      end
      pool = nil
    end)

    it("and uses again what it has grown", function() -- rapidsai/rmm#35
      open({ capacity = 100 * MB }, { limit = 64 * MiB })
      local first = alloc(MiB)
      for _ = 1, 100 do alloc(MiB * 6 // 5):close() end
      first:close()
      assert.is_true(pool:stats().peak_reserved_bytes <= MiB * 22 // 10 // (2 * MiB) * 2 * MiB + 2 * MiB)
      assert.is_true(pool:stats().driver_allocs <= 2)
    end)

    it("and never holds much more than the largest request when one after the other grows", function()
      open({ capacity = 1000 * MB }, { limit = 500 * MB })
      for n = 1, 100 do alloc(n * MiB):close() end
      assert.is_true(pool:stats().peak_reserved_bytes <= 102 * MiB)
    end)
  end)

  describe("has a limit", function()
    it("of seven eighths of the device's memory unless told otherwise", function()
      open { capacity = 80 * cl.GiB }
      assert.equal(70 * cl.GiB, pool.limit)
      assert.equal(70 * cl.GiB, pool:stats().limit)
      pool.limit = MiB
      pool.limit = 0
      assert.equal(70 * cl.GiB, pool.limit)
    end)

    it("that may be raised after it was reached", function()
      open({ capacity = 100 * MB }, { limit = 10 * MiB })
      alloc(10 * MiB)
      refused(10 * MiB)
      pool.limit = 20 * MiB
      alloc(10 * MiB)
      assert.equal(20 * MiB, pool:stats().reserved_bytes)
    end)

    it("that gives cached memory back when it is lowered", function()
      open { capacity = 100 * MB }
      alloc(4 * MiB)
      alloc(20 * MiB):close()
      alloc(20 * MiB):close()
      pool.limit = 4 * MiB
      assert.equal(4 * MiB, pool:stats().reserved_bytes)
      assert.equal(4 * MiB, pool.limit)
      refused(512)
    end)

    it("that cannot be lowered below what live allocations keep", function()
      open { capacity = 100 * MB }
      alloc(4 * MiB)
      alloc(20 * MiB):close()
      local was = pool.limit
      local message = failure(function() pool.limit = 4 * MiB - 1 end)
      assert.matches(tostring(4 * MiB - 1), message, 1, true)
      assert.matches(tostring(4 * MiB), message, 1, true)
      assert.equal(was, pool.limit)
      alloc(20 * MiB)
    end)

    it("of its own: another pool's memory does not count", function()
      open({ capacity = 100 * MB }, { limit = 8 * MiB })
      local other = note(sim:pool { limit = 8 * MiB })
      note(assert(other:alloc(8 * MiB)))
      alloc(8 * MiB)
      refused(1)
      assert.equal(0, other:stats().ooms)
    end)
  end)

  describe("trims", function()
    it("and says how many bytes went back", function()
      open { capacity = 100 * MB }
      alloc(3 * MiB)
      alloc(10 * MiB):close()
      alloc(20 * MiB):close()
      local before = pool:stats()
      local freed = pool:trim()
      assert.equal(before.reserved_bytes - pool:stats().reserved_bytes, freed)
      assert.is_true(freed >= 20 * MiB)
      assert.equal(0, pool:trim())
    end)

    it("only segments that are wholly free", function()
      open { capacity = 100 * MB }
      local a, b = alloc(1000), alloc(1000)
      a:close()
      assert.equal(0, pool:trim())
      b:close()
      assert.equal(2 * MiB, pool:trim())
      assert.equal(0, pool:stats().reserved_bytes)
      assert.equal(0, cl.debug.live "buffer")
    end)

    it("after waiting for the commands that still use the memory", function()
      open { capacity = 100 * MB, manual = true }
      local q1, q2 = stream(), stream()
      local h = alloc(10 * MiB, q1)
      busy(q1, h)
      busy(q2, h)
      h:close()
      assert.equal(1, pool:stats().held_blocks)
      assert.is_true(pool:trim() >= 10 * MiB)
      assert.equal(0, pool:stats().reserved_bytes)
      assert.is_true(q1:query())
      assert.is_true(q2:query())
    end)

    it("but leaves what is behind a shut gate", function()
      open { capacity = 100 * MB }
      local q1, gate = stream(), note(sim:gate())
      local h = alloc(10 * MiB, q1)
      q1:wait(gate)
      busy(q1, h)
      h:close()
      assert.equal(0, pool:trim())
      gate:open()
      assert.equal(10 * MiB, pool:trim())
    end)

    it("what several streams left in one segment", function()
      open { capacity = 100 * MB, manual = true }
      local streams, bufs = {}, {}
      for i = 1, 4 do streams[i] = stream() end
      for i = 1, 4 do bufs[i] = alloc(300 * 1024, streams[1]) end
      for i = 1, 4 do bufs[i]:close() end
      sim:complete(streams[1])
      for i = 1, 4 do bufs[i] = alloc(300 * 1024, streams[i]) end
      assert.equal(1, pool:stats().segments)
      for i = 1, 4 do bufs[i]:close() end
      assert.equal(2 * MiB, pool:trim())
    end)
  end)

  it("never has it happen that a size wraps around", function() -- sonots/cumo#170, scylladb/seastar#3467
    open { capacity = 1 << 62 }
    local before = pool:stats()
    for k = 0, 1024 do
      local buf, _, code = pool:alloc(math.maxinteger - k)
      assert.is_nil(buf)
      assert.equal("TOO_LARGE", code)
    end
    assert.same(before, pool:stats())
    local buf = alloc(512)
    assert.equal(512, buf.size)
  end)
end)
