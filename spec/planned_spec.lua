-- The policy `planned`: one round of a loop is recorded, and the rounds after it run from a plan, whatever happens.

local cl = require "clalloc"
local walk = require "clalloc.plan.walk"

local dev

setup(function() dev = assert(cl.simulate { capacity = 4 * cl.GiB, align = 512 }) end)
teardown(function() dev:close() end)

-- A round: blocks of these sizes are allocated in order; each is freed before the one that comes `life` later, or at
-- the end. `change` may give another size, false for none, or a list of sizes for the i-th.
local function round(pool, sizes, life, change, streams)
  local live = {}
  local function allocate(i, size)
    live[#live + 1] = assert(pool:alloc(size, streams and streams[i % #streams + 1]))
    if #live > life then table.remove(live, 1):close() end
  end
  for i, size in ipairs(sizes) do
    local what = change and change(i, size)
    if what == nil then what = size end
    for _, one in ipairs(type(what) == "table" and what or { what or nil }) do allocate(i, one) end
  end
  for _, buffer in ipairs(live) do buffer:close() end
end

local function random_sizes(seed, count)
  math.randomseed(seed)
  local sizes = {}
  for i = 1, count do sizes[i] = math.random(1 << math.random(4, 20)) end
  return sizes
end

local SIZES = random_sizes(1, 60)
local LIFE = 7

-- A pool whose plan has been made: `planned` rounds come next.
local function prepared(sizes, streams, params, options)
  local policy = cl.policy.planned(params)
  local pool = assert(dev:pool { policy = policy, limit = options and options.limit })
  for _ = 1, 2 do
    policy:step()
    round(pool, sizes or SIZES, LIFE, nil, streams)
  end
  policy:step()
  assert.equal("planned", policy:counts().phase)
  return policy, pool
end

-- What every planned round must leave: books that agree, and nothing live.
local function assert_sound(pool)
  assert.is_true(pool:check())
  assert.equal(0, pool:stats().active_blocks)
end

describe("planned", function()
  it("warms up for a round, records one, and runs the next from the plan", function()
    local policy = cl.policy.planned()
    local pool <close> = assert(dev:pool { policy = policy })
    local phases = { policy:counts().phase }
    for i = 1, 4 do
      policy:step()
      round(pool, SIZES, LIFE)
      phases[i + 1] = policy:counts().phase
    end
    assert.same({ "before", "warm up", "recording", "planned", "planned" }, phases)
    local counts = policy:counts()
    assert.equal(2, counts.rounds)
    assert.equal(2 * #SIZES, counts.planned)
    assert.equal(0, counts.deviations)
    assert.equal(0, counts.skipped)
    assert.equal("planned", pool.policy)
    assert_sound(pool)
  end)

  it("reserves the plan's bytes, in one segment, and asks the driver nothing more", function()
    local policy, pool <close> = prepared()
    round(pool, SIZES, LIFE)
    pool:reset_peaks()
    local before = pool:stats()
    assert.equal(policy:counts().nbytes, before.reserved_bytes)
    assert.equal(1, before.segments)
    for _ = 1, 50 do
      policy:step()
      round(pool, SIZES, LIFE)
    end
    local after = pool:stats()
    assert.equal(before.reserved_bytes, after.peak_reserved_bytes)
    assert.equal(before.driver_allocs, after.driver_allocs)
    assert.equal(before.driver_frees, after.driver_frees)
    assert.equal(51 * #SIZES, policy:counts().planned)
    assert.is_true(after.reserved_bytes <= 1.05 * after.peak_active_bytes)
  end)

  it("gives the same allocation the same address in every round", function()
    local policy, pool <close> = prepared({ 1000, 2000, 3000 })
    local addresses = {}
    for i = 1, 3 do
      for k, size in ipairs { 1000, 2000, 3000 } do
        local buffer <close> = assert(pool:alloc(size))
        addresses[k] = addresses[k] or buffer.address
        assert.equal(addresses[k], buffer.address, i)
      end
      policy:step()
    end
  end)

  it("leaves alone what lives on beside it", function()
    local policy = cl.policy.planned()
    local pool <close> = assert(dev:pool { policy = policy })
    local weights = {}
    for i = 1, 10 do weights[i] = assert(pool:alloc(i * 10000)) end
    for _ = 1, 5 do
      policy:step()
      round(pool, SIZES, LIFE)
    end
    local stats = pool:stats()
    assert.equal(0, policy:counts().deviations)
    assert.equal(stats.active_bytes + policy:counts().nbytes, stats.reserved_bytes) -- the weights waste nothing
    for _, weight in ipairs(weights) do weight:close() end
    assert_sound(pool)
  end)

  it("keeps a place all the time for what one round leaves to the next", function()
    local policy = cl.policy.planned()
    local pool <close> = assert(dev:pool { policy = policy })
    local carried
    for _ = 1, 6 do
      policy:step()
      round(pool, SIZES, LIFE)
      if carried then carried:close() end
      carried = assert(pool:alloc(12345))
      round(pool, SIZES, LIFE)
    end
    assert.equal(0, policy:counts().deviations)
    assert.equal(4 * (2 * #SIZES + 1), policy:counts().planned)
    carried:close()
    assert_sound(pool)
  end)

  it("records the first round where there is nothing to warm up", function()
    local policy = cl.policy.planned { warm_up = 0 }
    local pool <close> = assert(dev:pool { policy = policy })
    policy:step() -- before the pool has been seen
    round(pool, SIZES, LIFE)
    policy:step()
    round(pool, SIZES, LIFE)
    assert.equal(#SIZES, policy:counts().planned)
  end)

  it("waits for a round in which there is something to plan", function()
    local policy = cl.policy.planned { warm_up = 0 }
    local pool <close> = assert(dev:pool { policy = policy })
    round(pool, { 1 }, 1)
    for _ = 1, 3 do policy:step() end
    assert.equal("recording", policy:counts().phase)
    round(pool, SIZES, LIFE)
    policy:step()
    policy:step()
    round(pool, SIZES, LIFE)
    assert.equal(1, policy:counts().rounds)
    assert.equal(#SIZES, policy:counts().planned)
  end)

  it("passes over pools that were closed, in whatever phase they were", function()
    local policy = cl.policy.planned { warm_up = 0 }
    for rounds_done = 0, 3 do
      local pool = assert(dev:pool { policy = policy })
      for _ = 1, rounds_done do
        round(pool, SIZES, LIFE)
        policy:step()
      end
      round(pool, SIZES, LIFE)
      pool:close()
      policy:step()
    end
    local pool <close> = assert(dev:pool { policy = policy })
    round(pool, SIZES, LIFE)
    policy:step()
    round(pool, SIZES, LIFE)
    assert_sound(pool)
    assert.is_true(policy:counts().planned >= #SIZES)
  end)

  it("records again when told to", function()
    local policy, pool <close> = prepared()
    local others = random_sizes(2, 40)
    round(pool, others, LIFE)
    assert.is_true(policy:counts().deviations > 20)
    policy:again()
    policy:step()
    round(pool, others, LIFE)
    policy:step()
    local before = policy:counts()
    round(pool, others, LIFE)
    local after = policy:counts()
    assert.equal(#others, after.planned - before.planned)
    assert.equal(before.deviations, after.deviations)
    assert_sound(pool)
  end)

  it("runs a plan of a trace, from the first allocation on", function()
    local rec = cl.trace.recorder()
    for i, size in ipairs(SIZES) do
      rec:alloc(i, size)
      if i > LIFE then rec:free(i - LIFE) end
    end
    local t = rec:finish()
    local plan = cl.plan(t)
    local policy = cl.policy.planned { plan = plan }
    local r = cl.replay(t, { device = dev, policy = policy })
    assert.equal(#SIZES, policy:counts().planned)
    assert.equal(1, r.driver_calls)
    assert.equal(plan.nbytes, r.peak_reserved)
    local named = cl.replay(t, { device = dev, policy = "planned", details = true, fit = true })
    assert.equal("planned", named.policy)
    assert.equal(plan.nbytes, named.peak_reserved)
    assert.equal(1, named.driver_calls)
    assert.is_true(named.smallest_limit <= plan.nbytes)
  end)

  it("goes with what wraps it", function()
    local policy = cl.policy.planned():statistics()
    local pool <close> = assert(dev:pool { policy = policy })
    for _ = 1, 4 do
      policy:step()
      round(pool, SIZES, LIFE)
    end
    assert.equal(2 * #SIZES, policy:counts().planned)
    assert.equal(4 * #SIZES, policy:counters().allocations.total)
  end)
end)

-- A deviation costs the allocations that deviate, and a few more at most where the program and the plan differ in what
-- lives when; never anything else.
describe("a deviation", function()
  local function planned_after(change)
    local policy, pool <close> = prepared()
    round(pool, SIZES, LIFE, change)
    assert_sound(pool)
    local counts = policy:counts()
    policy:step()
    round(pool, SIZES, LIFE)
    assert_sound(pool)
    local after = policy:counts()
    return counts, after.deviations - counts.deviations, counts.nbytes, pool:stats()
  end

  it("in any one position, of size, is one deviation", function()
    for position = 1, #SIZES do
      local counts, later = planned_after(function(i, size) return i == position and size + (3 << 20) or nil end)
      assert.equal(1, counts.unexpected, position)
      assert.equal(0, counts.occupied, position)
      assert.equal(#SIZES - 1, counts.planned, position)
      assert.equal(0, later, position)
    end
  end)

  it("in any one position, an allocation more, leaves all others in their places", function()
    for position = 1, #SIZES do
      local counts, later = planned_after(function(i, size) return i == position and { 4 << 20, size } or nil end)
      assert.equal(1, counts.unexpected, position)
      -- What is freed one allocation earlier than planned is no trouble; there is nothing else.
      assert.equal(#SIZES, counts.planned + counts.occupied, position)
      assert.equal(0, counts.occupied, position)
      assert.equal(0, later, position)
    end
  end)

  it("in any one position, an allocation less, is skipped", function()
    for position = 1, #SIZES do
      local counts = planned_after(function(i) if i == position then return false end end)
      assert.equal(0, counts.unexpected, position)
      assert.equal(#SIZES - 1, counts.planned + counts.occupied, position)
      assert.is_true(counts.occupied <= LIFE, position) -- others live longer than planned now
    end
  end)

  it("of neighbours that change places is none", function()
    local policy, pool <close> = prepared()
    local swapped = table.move(SIZES, 1, #SIZES, 1, {})
    for i = 10, 50, 4 do swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i] end
    round(pool, swapped, #SIZES) -- nothing is freed before the end, so no place can be occupied
    local counts = policy:counts()
    assert.equal(0, counts.unexpected)
    assert.equal(#SIZES, counts.planned + counts.occupied)
    assert_sound(pool)
  end)

  it("everywhere falls back to the pool, and wastes no more than it did before", function()
    local policy, pool <close> = prepared()
    local others = random_sizes(99, 80)
    local reserved
    for i = 1, 10 do
      round(pool, others, LIFE)
      policy:step()
      if i == 3 then reserved = pool:stats().reserved_bytes end
    end
    assert.is_true(pool:stats().reserved_bytes <= reserved)
    assert.is_true(policy:counts().deviations > 500)
    assert_sound(pool)
    round(pool, SIZES, LIFE) -- and the plan is still there
    assert.is_true(policy:counts().planned >= #SIZES)
  end)

  it("that lives on occupies its place, which is not asked for again", function()
    local policy, pool <close> = prepared({ 1000, 1000, 1000 })
    local kept = assert(pool:alloc(1000))
    policy:step()
    round(pool, { 1000, 1000, 1000 }, LIFE)
    assert.equal(1, policy:counts().occupied)
    local reserved = pool:stats().reserved_bytes
    for _ = 1, 10 do
      policy:step()
      round(pool, { 1000, 1000, 1000 }, LIFE)
    end
    assert.equal(11, policy:counts().occupied)
    assert.equal(1, policy:counts().plans) -- not while it lives in the plan's segment
    assert.equal(reserved, pool:stats().reserved_bytes)
    kept:close()
    policy:step()
    round(pool, { 1000, 1000, 1000 }, LIFE)
    policy:step()
    round(pool, { 1000, 1000, 1000 }, LIFE)
    assert.equal(2, policy:counts().plans)
    assert.is_true(policy:counts().occupied <= 12)
    assert_sound(pool)
  end)

  it("in how long something lives is learnt: the round is planned anew", function()
    local policy, pool <close> = prepared(SIZES)
    local function longer() -- one block lives on to the end, as what waits for the garbage collector does
      local kept, live = nil, {}
      for i, size in ipairs(SIZES) do
        local buffer = assert(pool:alloc(size))
        if i == 20 then kept = buffer else live[#live + 1] = buffer end
        if #live > LIFE then table.remove(live, 1):close() end
      end
      live[#live + 1] = kept
      for _, buffer in ipairs(live) do buffer:close() end
    end
    longer()
    local before = policy:counts()
    assert.is_true(before.occupied > 0)
    for _ = 1, 10 do
      policy:step()
      longer()
    end
    local after = policy:counts()
    assert.equal(before.occupied, after.occupied)
    assert.equal(before.planned + 10 * #SIZES, after.planned)
    assert.equal(2, after.plans)
    assert.equal(after.nbytes, pool:stats().reserved_bytes)
    assert_sound(pool)
  end)

  it("by garbage is none: it is collected before the next round", function()
    local policy = cl.policy.planned()
    local pool <close> = assert(dev:pool { policy = policy })
    for number = 1, 20 do
      policy:step()
      local live = {}
      for i, size in ipairs(SIZES) do
        local buffer = assert(pool:alloc(size))
        if not (i % 7 == 0 and number % 3 == 0) then live[#live + 1] = buffer end -- else nobody closes it
        if #live > LIFE then table.remove(live, 1):close() end
      end
      for _, buffer in ipairs(live) do buffer:close() end
    end
    policy:step()
    assert_sound(pool)
    local counts = policy:counts()
    assert.is_true(counts.planned >= 17 * #SIZES)
    assert.equal(counts.nbytes, pool:stats().reserved_bytes)
  end)

  it("that never settles ends the planning", function()
    local policy, pool <close> = prepared(SIZES)
    math.randomseed(3)
    for _ = 1, 60 do
      local live = {}
      for _, size in ipairs(SIZES) do
        live[#live + 1] = assert(pool:alloc(size))
        if #live > 20 then table.remove(live, math.random(20)):close() end
      end
      for _, buffer in ipairs(live) do buffer:close() end
      assert_sound(pool)
      policy:step()
    end
    assert.is_true(policy:counts().plans <= 9)
    local last = policy:counts()
    for _ = 1, 5 do
      round(pool, SIZES, LIFE)
      policy:step()
    end
    assert.is_true(policy:counts().planned - last.planned > 4 * #SIZES)
  end)

  it("at random, in every round, never breaks anything", function()
    for seed = 1, 8 do
      math.randomseed(seed)
      local policy, pool <close> = prepared()
      for _ = 1, 20 do
        local life = math.random(1, 12)
        round(pool, SIZES, life, function()
          local kind = math.random(12)
          if kind == 1 then return false end
          if kind == 2 then return math.random(0, 1 << 20) end
          if kind == 3 then return { SIZES[math.random(#SIZES)], SIZES[math.random(#SIZES)] } end
        end)
        assert_sound(pool)
        policy:step()
      end
      local counts = policy:counts()
      assert.equal(pool:stats().allocs, counts.planned + counts.deviations + 2 * #SIZES)
      assert.is_true(counts.planned > 300, seed)
    end
  end)

  it("keeps contents apart", function()
    local real <close> = cl.device()
    local policy = cl.policy.planned { warm_up = 0 }
    local pool <close> = assert(real:pool { policy = policy })
    math.randomseed(5)
    for number = 1, 8 do
      policy:step()
      local live = {}
      for i = 1, 40 do
        local size = number % 3 == 0 and math.random(5) == 1 and 5000 or 64 * i
        local buffer = assert(pool:alloc(size))
        buffer:fill(i)
        live[#live + 1] = { buffer = buffer, value = string.char(i):rep(size) }
        if #live > LIFE then
          local first = table.remove(live, math.random(3))
          assert.equal(first.value, first.buffer:read())
          first.buffer:close()
        end
      end
      for _, each in ipairs(live) do
        assert.equal(each.value, each.buffer:read())
        each.buffer:close()
      end
    end
    assert.is_true(policy:counts().planned > 100)
    assert_sound(pool)
  end)
end)

describe("planned, on several streams", function()
  it("gives each stream a segment of its own", function()
    local a <close> = dev:stream()
    local b <close> = dev:stream()
    local policy, pool <close> = prepared(SIZES, { a, b, dev.default_stream })
    for _ = 1, 5 do
      round(pool, SIZES, LIFE, nil, { a, b, dev.default_stream })
      policy:step()
    end
    assert.equal(0, policy:counts().deviations)
    assert.equal(5 * #SIZES, policy:counts().planned)
    local segments = pool:snapshot()
    assert.equal(3, #segments)
    for _, segment in ipairs(segments) do
      for _, block in ipairs(segment.blocks) do assert.equal(segment.blocks[1].stream, block.stream) end
    end
    assert.equal(policy:counts().nbytes, pool:stats().reserved_bytes)
  end)

  it("does not let a stream that stands still disturb another", function()
    local manual <close> = assert(cl.simulate { capacity = cl.GiB, align = 512, manual = true })
    local busy <close> = manual:stream()
    local other <close> = manual:stream()
    local policy = cl.policy.planned { warm_up = 0 }
    local pool <close> = assert(manual:pool { policy = policy, commit = false })
    for _ = 1, 4 do
      policy:step()
      for i, size in ipairs(SIZES) do
        local buffer <close> = assert(pool:alloc(size, i % 2 == 0 and busy or other))
        buffer:fill(0, { stream = i % 2 == 0 and busy or other, async = true })
      end
    end
    assert.equal(0, policy:counts().deviations) -- in order on its own queue: reused without waiting
    assert.equal(3 * #SIZES, policy:counts().planned)
    manual:complete(busy)
    manual:complete(other)
  end)

  it("counts a place as occupied while another stream still uses it", function()
    local manual <close> = assert(cl.simulate { capacity = cl.GiB, align = 512, manual = true })
    local reader <close> = manual:stream()
    local policy = cl.policy.planned { warm_up = 0 }
    local pool <close> = assert(manual:pool { policy = policy, commit = false })
    local function once()
      local buffer <close> = assert(pool:alloc(5000))
      return buffer.address
    end
    policy:step()
    once()
    policy:step()
    local address = once()
    policy:step()
    do
      local buffer <close> = assert(pool:alloc(5000))
      assert.equal(address, buffer.address)
      buffer:fill(0, { stream = reader, async = true })
    end
    policy:step()
    do
      local buffer <close> = assert(pool:alloc(5000))
      assert.not_equal(address, buffer.address)
    end
    assert.equal(1, policy:counts().occupied)
    assert.is_true(pool:check())
    manual:complete(reader)
  end)

  it("serves streams that the plan does not know from the pool", function()
    local policy, pool <close> = prepared()
    local stranger <close> = dev:stream()
    round(pool, SIZES, LIFE, nil, { stranger })
    assert.equal(#SIZES, policy:counts().unexpected)
    assert_sound(pool)
  end)
end)

describe("planned, where memory is short", function()
  it("runs without its plan when there is no room for a segment, and says so", function()
    local policy = cl.policy.planned { warm_up = 0 }
    local pool <close> = assert(dev:pool { policy = policy, limit = 1 << 20 })
    local function two()
      local first <close> = assert(pool:alloc(300000))
      local second <close> = assert(pool:alloc(400000))
      return first, second
    end
    policy:step()
    two()
    local kept <close> = assert(pool:alloc(200000)) -- part of the round, so planned for; it stays
    policy:step()
    two()
    local counts = policy:counts()
    assert.equal(0, counts.planned)
    assert.equal(2, counts.deviations)
    assert.equal(("no segment of %d bytes for the plan"):format(counts.nbytes), counts.fault)
    assert.is_true(kept.size == 200000 and pool:check())
    kept:close()
    policy:step() -- now there is room
    two()
    assert.equal(2, policy:counts().planned)
    assert.is_nil(policy:counts().fault)
  end)

  it("runs without its plan on a device that gives no piece so large", function()
    local narrow <close> = assert(cl.simulate { capacity = cl.GiB, align = 512, max_alloc = 1 << 20 })
    local policy = cl.policy.planned { warm_up = 0 }
    local pool <close> = assert(narrow:pool { policy = policy })
    for _ = 1, 3 do
      policy:step()
      round(pool, { 900000, 900000, 900000 }, LIFE)
    end
    assert.equal(6, policy:counts().deviations)
    assert.matches("no segment of %d+ bytes", policy:counts().fault)
    assert_sound(pool)
  end)

  it("gets its segment again after a trim", function()
    local policy, pool <close> = prepared()
    round(pool, SIZES, LIFE)
    pool:trim()
    assert.equal(0, pool:stats().reserved_bytes)
    policy:step()
    round(pool, SIZES, LIFE)
    assert.equal(2 * #SIZES, policy:counts().planned)
    assert.equal(policy:counts().nbytes, pool:stats().reserved_bytes)
  end)

  it("loses nothing when the driver fails anywhere in a planned round", function()
    for n = 1, 3 do
      local policy, pool <close> = prepared()
      cl.debug.fail("create_buffer", n)
      round(pool, SIZES, LIFE)
      cl.debug.fail("create_buffer", 0)
      assert_sound(pool)
      policy:step()
      round(pool, SIZES, LIFE)
      assert.is_true(policy:counts().planned >= #SIZES, n)
      assert_sound(pool)
    end
  end)
end)

describe("a plan", function()
  local function trace_of(sizes)
    local rec = cl.trace.recorder()
    for i, size in ipairs(sizes) do rec:alloc(i, size) end
    for i in ipairs(sizes) do rec:free(i) end
    return rec:finish()
  end

  it("used by two pools at once runs in each", function()
    local plan = cl.plan(trace_of { 1000, 2000, 3000 })
    local policy = cl.policy.planned { plan = plan }
    local one <close> = assert(dev:pool { policy = policy })
    local two <close> = assert(dev:pool { policy = policy })
    local other <close> = assert(dev:pool { policy = cl.policy.planned { plan = plan } })
    local live = {}
    for _, size in ipairs { 1000, 2000, 3000 } do
      for _, pool in ipairs { one, two, other } do live[#live + 1] = assert(pool:alloc(size)) end
    end
    local counts = policy:counts()
    assert.equal(6, counts.planned)
    assert.equal(2, counts.rounds)
    assert.equal(2 * plan.nbytes, counts.nbytes)
    assert.equal(plan.nbytes, one:stats().reserved_bytes)
    assert.equal(plan.nbytes, two:stats().reserved_bytes)
    for _, buffer in ipairs(live) do buffer:close() end
    two:close()
    policy:step() -- closed pools are passed over
    round(one, { 1000, 2000, 3000 }, LIFE)
    assert.equal(0, policy:counts().deviations)
  end)

  it("run through to its end leaves the rest to the pool", function()
    local policy = cl.policy.planned { plan = cl.plan(trace_of { 1000 }) }
    local pool <close> = assert(dev:pool { policy = policy })
    local first <close> = assert(pool:alloc(1000))
    local second <close> = assert(pool:alloc(1000))
    assert.equal(1, policy:counts().planned)
    assert.equal(1, policy:counts().unexpected)
    assert.not_equal(first.address, second.address)
  end)

  it("of nothing leaves everything to the pool", function()
    local policy = cl.policy.planned { plan = cl.plan(trace_of {}) }
    local pool <close> = assert(dev:pool { policy = policy })
    round(pool, SIZES, LIFE)
    assert.equal(#SIZES, policy:counts().unexpected)
    assert_sound(pool)
  end)

  it("made for a finer alignment than the device's is refused, and nothing is lost", function()
    local coarse <close> = assert(cl.simulate { capacity = cl.GiB, align = 4096 })
    local pool <close> = assert(coarse:pool { policy = cl.policy.planned { plan = cl.plan(trace_of { 1000 }) } })
    assert.error_matches(function() pool:alloc(1000) end,
      "policy 'planned': grow: the plan has multiples of 512 bytes, the pool multiples of 4096")
    assert.equal(0, pool:stats().reserved_bytes)
    assert.is_true(pool:check())
  end)

  it("made for a coarser alignment runs", function()
    local policy = cl.policy.planned { plan = cl.plan(trace_of { 1000, 1, 70000 }, { align = 65536 }) }
    local pool <close> = assert(dev:pool { policy = policy })
    round(pool, { 1000, 1, 70000 }, LIFE)
    assert.equal(3, policy:counts().planned)
    assert_sound(pool)
  end)

  it("changed to overlap is refused where it is given", function()
    local plan = cl.plan(trace_of { 1000, 2000 })
    plan.offset[1] = plan.offset[2]
    assert.error_matches(function() cl.policy.planned { plan = plan } end,
      "plan: block 1 at %d+ and block 2 at %d+ overlap")
  end)

  it("changed after that does no harm", function()
    local plan = cl.plan(trace_of { 1000, 2000, 3000 })
    local policy = cl.policy.planned { plan = plan }
    plan.offset[2], plan.offset[3] = 0, -512
    local pool <close> = assert(dev:pool { policy = policy })
    local ok, message = pcall(round, pool, { 1000, 2000, 3000 }, LIFE)
    assert(ok or message:find "policy 'planned': fit: ", message)
    collectgarbage()
    assert.is_true(pool:check())
  end)
end)

-- What `planned` asks of the core: a plan needs no candidates, so it is shown one.
describe("look", function()
  -- How many candidates were shown in each batch to an allocation for which there are twelve free blocks.
  local function batches(look)
    local shown, seen, is_asked = {}, {}, false
    local policy = {
      look = look, keep = true, grow = "request", grain = 512,
      fit = function(_, candidates)
        if not is_asked then return "grow" end
        shown[#shown + 1] = #candidates
        for _, block in ipairs(candidates) do seen[block.segment] = true end
        return "more"
      end,
    }
    local pool <close> = assert(dev:pool { policy = policy })
    local live = {}
    for i = 1, 12 do live[i] = assert(pool:alloc(512 * i)) end
    for _, buffer in ipairs(live) do buffer:close() end
    is_asked = true
    assert(pool:alloc(1)):close()
    local count = 0
    for _ in pairs(seen) do count = count + 1 end
    assert.equal(13, count) -- each of them once, and the fresh one
    assert.equal(1, table.remove(shown))
    return shown
  end

  it("is how many candidates a fit function is shown at a time", function()
    assert.same({ 8, 4 }, batches())
    assert.same({ 8, 4 }, batches(8))
    assert.same({ 8, 4 }, batches(0))
    assert.same({ 8, 4 }, batches(100))
    assert.same({ 8, 4 }, batches(1 << 40))
    assert.same({ 7, 5 }, batches(7))
    assert.same({ 3, 3, 3, 3 }, batches(3))
    assert.same({ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, batches(1))
  end)

  it("is a number", function()
    for _, look in ipairs { -1, 1.5, "1", 0 / 0, math.mininteger } do
      assert.error_matches(function() cl.policy.caching { look = look } end, "policy.caching: look: .* is no size")
      assert.error_matches(function() dev:pool { policy = { look = look } } end, "look")
    end
  end)
end)

describe("the policy's parameters", function()
  it("are checked", function()
    local function refuses(message, params)
      assert.error_matches(function() cl.policy.planned(params) end, message)
    end
    refuses("policy.planned: no parameter is named 'warmup'", { warmup = 1 })
    for _, warm_up in ipairs { -1, 1.5, "1", 0 / 0, 2 ^ 53 } do
      refuses("policy.planned: warm_up: expected a number of rounds, got ", { warm_up = warm_up })
    end
    for _, seconds in ipairs { -1, "1", 0 / 0, math.huge } do
      refuses("policy.planned: seconds: expected a number of at least 0, got ", { seconds = seconds })
    end
    for _, plan in ipairs { {}, "x", 1, true } do
      refuses("policy.planned: plan: expected a plan, got ", { plan = plan })
    end
    assert.matches("^policy %(planned, align 512, ", tostring(cl.policy.planned()))
  end)
end)

describe("a walk", function()
  local function made_for(sizes)
    local rec = cl.trace.recorder()
    for i, size in ipairs(sizes) do rec:alloc(i, size) end
    return walk.new(cl.plan(rec:finish()), 0)
  end

  local function steps(sizes, requests)
    local self = made_for(sizes)
    local found = {}
    for n, request in ipairs(requests) do
      local i = walk.find(self, request)
      found[n] = i or false
      if i then walk.take(self, i) end
    end
    return found, self
  end

  it("goes along in order", function()
    assert.same({ 1, 2, 3, false }, (steps({ 5, 5, 6 }, { 5, 5, 6, 6 })))
  end)

  it("finds what was left out, put in or swapped", function()
    assert.same({ 1, 3, 4 }, (steps({ 1, 2, 3, 4 }, { 1, 3, 4 })))
    assert.same({ 1, false, 2, 3 }, (steps({ 1, 2, 3 }, { 1, 9, 2, 3 })))
    assert.same({ 2, 1, 3 }, (steps({ 1, 2, 3 }, { 2, 1, 3 })))
  end)

  it("gives each out once a round, and looks no further than near by", function()
    local sizes = {}
    for i = 1, 100 do sizes[i] = i end
    assert.same({ 1, false, 33, 2, false, 3 }, (steps(sizes, { 1, 40, 33, 2, 2, 3 })))
    local _, self = steps({ 1, 2, 3 }, { 1, 3 })
    assert.equal(1, walk.restart(self))
    assert.equal(1, walk.find(self, 1))
  end)

  it("knows how long each has lived at most, counted in allocations", function()
    local rec = cl.trace.recorder()
    for _, key in ipairs { 1, 2, -1, 3, -3, -2, 4 } do
      if key > 0 then rec:alloc(key, 512 * key) else rec:free(-key) end
    end
    local self = walk.new(cl.plan(rec:finish(), { repeats = true }), 0)
    assert.same({ 3, 4, 4, 5 }, self.upper)
    assert.same({ [4] = true }, self.always)
    for i = 1, 3 do walk.take(self, i) end
    walk.give(self, 1, 1) -- later than planned
    assert.same({ 4, 4, 4, 5 }, self.upper)
    local t = walk.trace(self)
    assert.same({ 512, 1024, 1536, 512, 1024, 1536, 2048 }, { t.size[1], t.size[2], t.size[3],
      table.unpack((function()
        local freed = {}
        for i = 4, 6 do freed[#freed + 1] = t.size[i] end
        table.sort(freed)
        freed[#freed + 1] = t.size[7]
        return freed
      end)()) })
    assert.equal(4, t.allocations)
    walk.restart(self)
    walk.give(self, 2, 1) -- in another round
    assert.is_true(self.always[2])
    assert.equal(6, walk.trace(self).operations)
  end)
end)
