-- The decisions of a policy: what each function is given, what its answers mean, what constants and names stand for;
-- and what happens when a function does what it must not.

local cl = require "clalloc"
local failure = require "spec.failure"

local KiB <const>, MiB <const> = cl.KiB, cl.MiB

local sim, pools

local function open(policy, limit)
  local pool = assert(sim:pool { policy = policy, limit = limit })
  pools[#pools + 1] = pool
  return pool
end

local function segment_sizes(pool)
  local list = {}
  for i, segment in ipairs(pool:snapshot()) do list[i] = segment.size end
  return list
end

-- Offset and size of the live blocks of the first segment.
local function live_blocks(pool)
  local list = {}
  for _, block in ipairs(pool:snapshot()[1].blocks) do
    if block.state == "active" then list[#list + 1] = { block.offset, block.size } end
  end
  return list
end

local function copy(t)
  local made = {}
  for key, value in pairs(t) do made[key] = value end
  return made
end

local function describe_policy(name, body)
  describe(name, function()
    before_each(function()
      sim, pools = cl.simulate { capacity = cl.GiB, align = 512 }, {}
    end)
    after_each(function()
      for _, pool in ipairs(pools) do pool:close() end
      sim:close()
    end)
    body()
  end)
end

describe_policy("round", function()
  it("takes bytes, names, and a function that is asked once a size", function()
    assert.equal(1536, assert(open({ round = 768 }):alloc(1000)).reserved)
    assert.equal(1024, assert(open({ round = "align" }):alloc(1000)).reserved)
    local power = open { round = "power_of_two" }
    for nbytes, size in pairs { [0] = 512, [1] = 512, [513] = 1024, [4096] = 4096, [4097] = 8192 } do
      assert.equal(size, assert(power:alloc(nbytes)).reserved)
    end
    local asked = {}
    local pool = open { round = function(nbytes)
      asked[#asked + 1] = nbytes
      return nbytes * 2
    end }
    for _ = 1, 100 do
      for _, nbytes in ipairs { 0, 1000, 5000 } do
        local buf <close> = assert(pool:alloc(nbytes))
        assert.equal(math.max(512, nbytes * 2 + 511 & ~511), buf.reserved)
        assert.equal(nbytes, buf.size)
      end
    end
    assert.same({ 0, 1000, 5000 }, asked)
  end)

  it("never makes a legal request an illegal one", function()
    local small <close> = cl.simulate { capacity = cl.GiB, max_alloc = 3 * MiB, align = 512 }
    for _, round in ipairs { "power_of_two", 2 * MiB, function(n) return n + MiB end } do
      local pool <close> = small:pool { policy = { round = round } }
      assert.equal(3 * MiB, assert(pool:alloc(3 * MiB)).reserved)
      assert.equal(2 * MiB, pool:alloc(MiB + 1).reserved & ~(MiB - 1))
      assert.equal("TOO_LARGE", select(3, pool:alloc(3 * MiB + 1)))
      assert(pool:check())
    end
  end)

  it("decides nothing with nil", function()
    assert.equal(1024, assert(open({ round = function() end }):alloc(1000)).reserved)
  end)
end)

describe_policy("fit", function()
  it("sees the free blocks that are large enough, smallest and lowest first", function()
    local seen
    local pool = open { grow = MiB, fit = function(request, candidates)
      seen = { request = copy(request) }
      for i, candidate in ipairs(candidates) do seen[i] = copy(candidate) end
    end }
    local sizes, live = { 8, 1, 4, 1, 2, 1, 4, 1 }, {}
    for i, n in ipairs(sizes) do live[i] = assert(pool:alloc(n * KiB)) end
    for i, n in ipairs(sizes) do
      if n > 1 then live[i]:close() end
    end
    local reserved = pool:stats().reserved_bytes
    local buf <close> = assert(pool:alloc(3000))
    local r = seen.request
    assert.same({ 3000, 3072, 4 * KiB, reserved, reserved },
      { r.nbytes, r.size, r.active, r.reserved, r.peak_reserved })
    assert.equal(sim.default_stream.id or r.stream, r.stream)
    assert.equal(pool, r.pool)
    assert.equal(pool.limit, r.limit)
    assert.equal(reserved - r.active, r.cached)
    local found = {}
    for i, c in ipairs(seen) do
      found[i] = { c.offset // KiB, c.size // KiB }
      assert.same({ 0, MiB, false, r.stream }, { c.segment, c.segment_size, c.whole, c.stream })
      assert.is_true(c.age >= 0)
    end
    assert.same({ { 9, 4 }, { 17, 4 }, { 0, 8 }, { 22, 1002 } }, found)
    assert(buf)
  end)

  it("answers a candidate, which is cut", function()
    local pool = open { fit = function(_, candidates) return candidates[#candidates] end, grow = MiB }
    local a = assert(pool:alloc(8 * KiB))
    local b <close> = assert(pool:alloc(KiB))
    a:close()
    local c <close> = assert(pool:alloc(KiB)) -- the default would take from the hole of a
    assert.same({ { 8 * KiB, KiB }, { 9 * KiB, KiB } }, live_blocks(pool))
    assert(b and c)
  end)

  it("answers a place inside a candidate, and around it all stays free", function()
    local place = { segment = 0 }
    local offsets = { 100 * KiB, 512, 0, 1024 * KiB - 512, 64 * KiB }
    local i = 0
    local pool = open { grow = MiB, fit = function()
      i = i + 1
      return place, offsets[i]
    end }
    local live = {}
    for k = 1, #offsets do live[k] = assert(pool:alloc(512)) end
    assert.same({ { 0, 512 }, { 512, 512 }, { 64 * KiB, 512 }, { 100 * KiB, 512 }, { MiB - 512, 512 } },
      live_blocks(pool))
    assert(pool:check())
    for k = 1, #live do live[k]:close() end
    assert.equal(MiB, pool:stats().largest_free)
    assert(pool:check())
  end)

  it("is told of a place that is not free, or takes what it named for that", function()
    local otherwise
    local pool = open { grow = MiB, fit = function() return { segment = 0, offset = 0 }, 0, otherwise end }
    local first <close> = assert(pool:alloc(KiB))
    assert.matches("policy 'custom': fit: 1024 bytes at offset 0 of segment 0 are not free",
      failure(pool.alloc, pool, KiB))
    assert(pool:check())
    otherwise = "best"
    local second <close> = assert(pool:alloc(KiB))
    assert.same({ { 0, KiB }, { KiB, KiB } }, live_blocks(pool))
    otherwise = "grow"
    local third <close> = assert(pool:alloc(KiB))
    assert.same({ MiB, MiB }, segment_sizes(pool))
    assert(first and second and third)
  end)

  it("is shown more when it asks, to the last, and then memory is got", function()
    local batches, total
    local pool = open { grow = MiB, keep = true, fit = function(_, candidates)
      batches, total = (batches or 0) + 1, (total or 0) + #candidates
      assert(#candidates <= 8)
      return "more"
    end }
    local live = {}
    for i = 1, 100 do live[i] = assert(pool:alloc(KiB * (1 + i % 3))) end
    local segments = #segment_sizes(pool)
    for i = 1, 100, 2 do live[i]:close() end
    batches, total = 0, 0
    local free = 0
    for _, segment in ipairs(pool:snapshot()) do
      for _, block in ipairs(segment.blocks) do
        if block.state == "free" and block.size >= 2 * KiB then free = free + 1 end
      end
    end
    local buf <close> = assert(pool:alloc(2 * KiB))
    assert.equal(free + 1, total) -- all of them, and the new segment
    assert(batches > free // 8)
    assert.equal(segments + 1, #segment_sizes(pool))
    assert(buf)
  end)

  it("chooses a new segment, and is shown it alone", function()
    local shown = {}
    local pool = open { grow = MiB, fit = function(_, candidates)
      shown[#shown + 1] = { #candidates, candidates[1].whole }
      return "grow"
    end }
    for _ = 1, 3 do assert(pool:alloc(KiB)) end -- collected when the pool is closed
    assert.same({ MiB, MiB, MiB }, segment_sizes(pool))
    assert.same({ { 1, true }, { 1, false }, { 1, true }, { 2, false }, { 1, true } }, shown)
  end)

  it("takes the names best and exact", function()
    local pool = open { fit = "exact", grow = "request", grain = 512, split = false, keep = true }
    local a <close> = assert(pool:alloc(4096))
    local b = assert(pool:alloc(8192))
    b:close()
    local c <close> = assert(pool:alloc(4096))
    assert.equal(3, pool:stats().driver_allocs)
    local d <close> = assert(pool:alloc(8192))
    assert.equal(3, pool:stats().driver_allocs)
    assert.equal(4096, assert(open({ fit = "best" }):alloc(4096)).reserved)
    assert(a and c and d)
  end)

  it("sees another stream's blocks only once that is done with them", function()
    local manual <close> = cl.simulate { capacity = cl.GiB, align = 512, manual = true }
    local owners
    local pool <close> = manual:pool { policy = { grow = MiB, keep = true, fit = function(request, candidates)
      owners = {}
      for i, c in ipairs(candidates) do owners[i] = c.stream == request.stream end
      return candidates[1]
    end } }
    local a <close> = manual:stream()
    local b <close> = manual:stream()
    local buf = assert(pool:alloc(MiB, a))
    assert(buf:fill(0, { stream = a, async = true })):close()
    buf:close()
    owners = nil
    assert(pool:alloc(MiB, b)):close() -- nothing to be shown but its own new segment
    assert.same({ true }, owners)
    local kept <close> = assert(pool:alloc(MiB, b))
    manual:complete(a)
    local adopted <close> = assert(pool:alloc(MiB, b))
    assert.same({ false }, owners)
    assert.equal(2, pool:stats().driver_allocs)
    assert(pool:check())
    assert(kept and adopted)
  end)
end)

describe_policy("split", function()
  it("says how much of a block goes to the request", function()
    local seen
    local pool = open { grow = MiB, split = function(request, block)
      seen = copy(block)
      return math.min(block.size, request.size * 3)
    end }
    local a <close> = assert(pool:alloc(KiB))
    assert.equal(3 * KiB, a.reserved)
    assert.equal(KiB, a.size)
    assert.same({ 0, MiB, 0, MiB, true }, { seen.segment, seen.segment_size, seen.offset, seen.size, seen.whole })
    local b <close> = assert(pool:alloc(MiB - 4 * KiB))
    assert.same({ { 0, 3 * KiB }, { 3 * KiB, MiB - 3 * KiB } }, live_blocks(pool))
    assert(b)
  end)

  it("takes false, true, a largest size, and nil", function()
    assert.equal(MiB, assert(open({ grow = MiB, split = false }):alloc(KiB)).reserved)
    assert.equal(KiB, assert(open({ grow = MiB, split = true }):alloc(KiB)).reserved)
    assert.equal(KiB, assert(open({ grow = MiB, split = function() end }):alloc(KiB)).reserved)
    local pool = open { grow = MiB, split = 512 * KiB }
    assert.equal(MiB, assert(pool:alloc(600 * KiB)).reserved)
  end)
end)

describe_policy("grow", function()
  it("says how large a segment is", function()
    local seen = {}
    local pool = open { grow = function(request, default, refused)
      seen[#seen + 1] = { request.size, default, refused, request.alike }
      return 3 * MiB
    end }
    local a <close> = assert(pool:alloc(KiB))
    local b <close> = assert(pool:alloc(3 * MiB))
    assert.same({ 3 * MiB, 3 * MiB }, segment_sizes(pool))
    assert.equal(KiB, seen[1][1])
    assert.equal(2 * MiB, seen[1][2])
    assert.is_nil(seen[1][3])
    assert(a and b)
  end)

  it("is asked for less while it is refused", function()
    local wanted = {}
    local pool = open({ grow = function(request, _, refused)
      local n = refused and refused - MiB or 8 * MiB
      wanted[#wanted + 1] = n // MiB
      return math.max(n, request.size)
    end }, 5 * MiB)
    local buf <close> = assert(pool:alloc(KiB))
    assert.same({ 8, 7, 6, 5 }, wanted)
    assert.same({ 5 * MiB }, segment_sizes(pool))
    assert(buf)
  end)

  it("falls back to what is needed when it answers nil to a refusal", function()
    local pool = open({ grow = function(_, _, refused) return not refused and 64 * MiB or nil end }, 3 * MiB)
    local a <close> = assert(pool:alloc(KiB))
    assert.same({ 2 * MiB }, segment_sizes(pool))
    assert(a)
  end)

  it("fails as out of memory when it insists, and the pool goes on", function()
    local asked = 0
    local pool = open({ grow = function()
      asked = asked + 1
      return 64 * MiB
    end }, 3 * MiB)
    assert.equal("LIMIT", select(3, pool:alloc(KiB)))
    assert(asked < 20, asked)
    assert(pool:check())
  end)

  it("takes bytes, request and share, and what the device cannot give means its most", function()
    local pool = open { grow = 5 * MiB }
    local a <close> = assert(pool:alloc(KiB))
    local b <close> = assert(pool:alloc(7 * MiB))
    assert.same({ 5 * MiB, 8 * MiB }, segment_sizes(pool))
    local exact = open { grow = "request" }
    local c <close> = assert(exact:alloc(3 * MiB))
    assert.same({ 4 * MiB }, segment_sizes(exact))
    assert.equal(2 * MiB, (function()
      local share = open { grow = "share" }
      return assert(share:alloc(1)) and segment_sizes(share)[1]
    end)())
    local small <close> = cl.simulate { capacity = cl.GiB, max_alloc = 8 * MiB, align = 512 }
    local most <close> = small:pool { policy = { grow = function() return 100 * MiB end } }
    local d <close> = assert(most:alloc(1))
    assert.equal(8 * MiB, most:stats().reserved_bytes)
    assert(a and b and c and d)
  end)
end)

describe_policy("keep", function()
  it("is asked about each segment that becomes free, and false gives it back at once", function()
    local asked = {}
    local pool = open { grow = MiB, keep = function(segment)
      asked[#asked + 1] = { segment.segment, segment.size }
      return segment.segment == 0
    end }
    local a, b, c = assert(pool:alloc(MiB)), assert(pool:alloc(512 * KiB)), assert(pool:alloc(512 * KiB))
    b:close()
    assert.same({}, asked)
    c:close()
    assert.same({ { 1, MiB } }, asked)
    assert.same({ MiB }, segment_sizes(pool))
    a:close()
    assert.same({ { 1, MiB }, { 0, MiB } }, asked)
    assert.same({ MiB }, segment_sizes(pool))
    assert(pool:alloc(KiB)):close()
    assert.same({ 0, MiB }, asked[3])
    assert(pool:check())
  end)

  it("waits with giving back until the stream is done", function()
    local manual <close> = cl.simulate { capacity = cl.GiB, align = 512, manual = true }
    local pool <close> = manual:pool { policy = { keep = function() return false end } }
    local buf = assert(pool:alloc(KiB))
    assert(buf:fill(0, { async = true })):close()
    buf:close()
    assert.equal(1, pool:stats().segments)
    local other <close> = manual:stream()
    for _ = 1, 2 do -- the first looks, and leaves a marker behind to be told
      manual:complete(manual.default_stream)
      assert(pool:alloc(4 * MiB, other)):close()
    end
    assert.equal(0, pool:stats().segments)
    assert(pool:check())
  end)

  it("uses a segment again that was to go, when it is needed first", function()
    local manual <close> = cl.simulate { capacity = cl.GiB, align = 512, manual = true }
    local pool <close> = manual:pool { policy = { keep = function() return false end } }
    local buf = assert(pool:alloc(KiB))
    assert(buf:fill(0, { async = true })):close()
    buf:close()
    local again <close> = assert(pool:alloc(KiB)) -- the same stream may have it
    assert.equal(1, pool:stats().driver_allocs)
    local other <close> = manual:stream()
    for _ = 1, 2 do
      manual:complete(manual.default_stream)
      assert(pool:alloc(3 * MiB, other)):close()
    end
    assert.equal(1, again.pool:stats().active_blocks)
    assert.equal(1, pool:stats().segments)
    assert(pool:check())
  end)

  it("takes true, false and peak", function()
    local function left(keep)
      local pool = open { keep = keep }
      assert(pool:alloc(4 * MiB)):close()
      assert(pool:alloc(9 * MiB)):close()
      return #segment_sizes(pool)
    end
    assert.equal(2, left(true))
    assert.equal(0, left(false))
    assert.equal(1, left "peak")
    assert.equal(1, left(nil))
  end)
end)

describe_policy("oom", function()
  it("is asked last, may free, and asks for another try", function()
    local hoard, seen = {}, {}
    local pool = open({ oom = function(request, times)
      seen[#seen + 1] = { request.nbytes, times, #hoard }
      local buf = table.remove(hoard)
      if not buf then return false end
      buf:close()
      return true
    end }, 8 * MiB)
    for i = 1, 4 do hoard[i] = assert(pool:alloc(2 * MiB)) end
    local buf = assert(pool:alloc(4 * MiB))
    assert.same({ { 4 * MiB, 1, 4 }, { 4 * MiB, 2, 3 } }, seen)
    assert.equal(1, pool:stats().retries)
    buf:close()
    local none, message, code = pool:alloc(9 * MiB)
    assert.is_nil(none)
    assert.equal("LIMIT", code)
    assert.matches("the oom function", message)
    assert.equal(0, #hoard)
    assert(pool:check())
  end)

  it("may raise the limit", function()
    local pool = open({ oom = function(request)
      request.pool.limit = 64 * MiB
      return true
    end }, 2 * MiB)
    local buf <close> = assert(pool:alloc(32 * MiB))
    assert.equal(64 * MiB, pool.limit)
    assert(buf)
  end)

  it("is not asked for ever, and leaves the reason as it was", function()
    local asked = 0
    local pool = open({ oom = function()
      asked = asked + 1
      assert.is_nil((sim:alloc(1 << 50)))
      return asked < 8
    end }, 2 * MiB)
    local _, message, code = pool:alloc(4 * MiB)
    assert.equal("LIMIT", code)
    assert.matches("largest free block 0; the limit is reached; tried: the oom function", message)
    assert.equal(8, asked)
    asked = -100
    assert.equal("LIMIT", select(3, pool:alloc(4 * MiB)))
    assert.equal(-92, asked)
  end)
end)

describe_policy("admit and note", function()
  it("refuse before anything is tried, and tell what happened", function()
    local events = {}
    local pool = open { name = "strict",
      admit = function(request)
        if request.nbytes == 13 then return false, "thirteen" end
        if request.nbytes == 14 then return false, "fourteen", "NOMEM" end
      end,
      note = function(event)
        events[#events + 1] = { event.what, event.nbytes, event.size, event.offset }
      end }
    local none, message, code = pool:alloc(13)
    assert.same({ "policy 'strict': thirteen", "LIMIT" }, { message, code })
    assert.is_nil(none)
    assert.equal("NOMEM", select(3, pool:alloc(14)))
    assert(pool:alloc(15)):close()
    assert.same({ { "fail", 13, 0, 0 }, { "fail", 14, 0, 0 }, { "alloc", 15, 512, 0 }, { "free", 15, 512, 0 } }, events)
    assert.equal(2, pool:stats().ooms)
  end)

  it("undo an allocation that cannot be noted", function()
    local pool = open { note = function(event)
      if event.what == "alloc" then error "full" end
    end }
    assert.matches("policy 'custom': note: .*full", failure(pool.alloc, pool, 100))
    assert.equal(0, pool:stats().active_blocks)
    assert(pool:check())
  end)

  it("raise what was noted badly when the free is done", function()
    local pool = open { note = function(event)
      if event.what == "free" then error "full" end
    end }
    local buf = assert(pool:alloc(100))
    assert.matches("policy 'custom': note: .*full", failure(buf.close, buf))
    assert.is_true(buf.closed)
    assert.equal(0, pool:stats().active_blocks)
    buf:close()
  end)
end)

-- ---- What a function must not do -------------------------------------------------------------------

local DECISIONS <const> = { "round", "fit", "split", "grow", "keep", "oom", "admit", "note" }

-- What the decisions return, and which of these make no sense for them.
local JUNK <const> = {
  NaN = { 0 / 0, "round fit split grow keep oom admit" },
  ["1.5"] = { 1.5, "round fit split grow keep oom admit" },
  ["-1"] = { -1, "round fit split grow keep oom admit" },
  ["-1.0"] = { -1.0, "round fit split grow keep oom admit" },
  mininteger = { math.mininteger, "round fit split grow keep oom admit" },
  maxinteger = { math.maxinteger, "round fit split grow keep oom admit" },
  ["2^63"] = { 2.0 ^ 63, "round fit split grow keep oom admit" },
  ["too small"] = { 100, "round fit split grow keep oom admit" },
  ["a numeral"] = { "4096", "round fit split grow keep oom admit" },
  ["a word"] = { "nonsense", "round fit split grow keep oom admit" },
  ["an empty table"] = { {}, "round fit split grow keep oom admit" },
  ["true"] = { true, "round fit split grow" },
  ["no segment"] = { { segment = 99, offset = 0 }, "round fit split grow keep oom admit" },
  ["a negative offset"] = { { segment = 0, offset = -512 }, "round fit split grow keep oom admit" },
  ["an odd offset"] = { { segment = 0, offset = 100 }, "round fit split grow keep oom admit" },
  ["an offset behind the end"] = { { segment = 0, offset = 1 << 40 }, "round fit split grow keep oom admit" },
  ["a place too short"] = { { segment = 0, offset = 2 * MiB - 512 }, "round fit split grow keep oom admit" },
}

-- Makes the pool ask everything: allocations that miss, hit, free whole segments, and run out of memory.
local function exercise(pool)
  local errors, live = {}, {}
  local function try(f, ...)
    local ok, result = pcall(f, ...)
    if not ok then errors[#errors + 1] = result end
    return ok and result or nil
  end
  for _, nbytes in ipairs { 1000, 3 * MiB, 1000, 64 * MiB } do live[#live + 1] = try(pool.alloc, pool, nbytes) end
  for _, buf in ipairs(live) do try(buf.close, buf) end
  return errors
end

-- A pool of such a policy is intact: everything can be counted, and allocates once the function behaves.
local function check_intact(pool)
  assert(pool:check())
  local stats = pool:stats()
  assert.equal(0, stats.active_blocks)
  assert.equal(0, stats.requested_bytes)
  assert(stats.reserved_bytes <= 8 * MiB)
  pool:trim()
  assert.equal(0, pool:stats().reserved_bytes)
end

describe_policy("a decision that misbehaves", function()
  for _, which in ipairs(DECISIONS) do
    -- Behaves well until told otherwise.
    local function hostile(body)
      local is_hostile = true
      local policy = { name = "bad" }
      policy[which] = function(...)
        if is_hostile then return body(...) end
      end
      return open(policy, 8 * MiB), function() is_hostile = false end
    end

    local function expect(body, pattern)
      local pool, reform = hostile(body)
      local errors = exercise(pool)
      assert(#errors > 0, "no error")
      for _, message in ipairs(errors) do
        assert.matches("policy 'bad': " .. which .. ": ", message, 1, true)
        assert.matches(pattern, message)
      end
      check_intact(pool)
      reform()
      assert.equal(1, #exercise(pool) + 1)
      check_intact(pool)
    end

    it(which .. ": an error", function()
      expect(function() error "boom" end, "spec/policy_decisions_spec.lua:%d+: boom")
      expect(function() error {} end, "an error that is no message")
      expect(function() error(nil) end, "an error that is no message")
      expect(function() return ("x").y.z end, "attempt to index a nil value")
    end)

    it(which .. ": a yield", function()
      expect(coroutine.yield, "attempt to yield")
      local pool = hostile(coroutine.yield)
      local errors
      local co = coroutine.wrap(function() errors = exercise(pool) end)
      co()
      assert(#errors > 0)
      for _, message in ipairs(errors) do assert.matches("attempt to yield across a C%-call boundary", message) end
      check_intact(pool)
    end)

    it(which .. ": a call of itself", function()
      local function itself() return itself() + 1 end
      expect(itself, "stack overflow")
    end)

    it(which .. ": an allocation from its own pool", function()
      local pool
      pool = hostile(function() return pool:alloc(512) and nil end)
      local errors = exercise(pool)
      assert(#errors > 0)
      for _, message in ipairs(errors) do
        assert.matches("alloc: a decision of the policy 'bad' allocates from its own pool", message, 1, true)
      end
      check_intact(pool)
    end)

    it(which .. ": frees in its own pool", function()
      local victims, freed = {}, 0
      local policy = { name = "bad", [which] = function()
        local buf = table.remove(victims)
        if buf then
          freed = freed + 1
          buf:close()
        end
      end }
      local pool = open(policy, 8 * MiB)
      for i = 1, 60 do
        local buf = assert(pool:alloc(i * 700))
        victims[#victims + 1] = buf
      end
      assert(pool:check())
      exercise(pool)
      assert(freed > 0 or which == "grow")
      while #victims > 0 do table.remove(victims):close() end
      check_intact(pool)
    end)

    it(which .. ": a trim, a statistics, a check of its pool", function()
      local pool
      pool = hostile(function()
        pool:trim()
        assert(pool:stats().segments)
        assert(pool:check())
        pool:snapshot()
      end)
      local buf = assert(pool:alloc(4 * MiB)) -- a trim does not take away what has just been got for it
      buf:close()
      assert.same({}, exercise(pool))
      check_intact(pool)
    end)

    it(which .. ": closes its pool", function()
      local pool
      pool = hostile(function() pool:close() end)
      local errors = exercise(pool)
      assert(#errors > 0 or which == "keep") -- that one is asked when nothing can fail any more
      for _, message in ipairs(errors) do assert.matches("closed", message) end
      assert.matches("attempt to use a closed pool", failure(pool.check, pool))
    end)

    for name, row in pairs(JUNK) do
      if row[2]:find(which, 1, true) then
        it(("%s: %s for an answer"):format(which, name), function()
          expect(function() return row[1] end, "")
        end)
      end
    end
  end

  it("collects garbage of its own pool without harm", function()
    local pool = open({ name = "busy", fit = function(_, candidates)
      collectgarbage()
      return candidates[1]
    end, keep = function() collectgarbage() end, note = function() collectgarbage "step" end }, 64 * MiB)
    for i = 1, 300 do assert(pool:alloc(i * 100)) end
    collectgarbage()
    collectgarbage()
    check_intact(pool)
  end)
end)

-- A policy that answers at random: sense, nonsense, errors; it frees, trims, collects garbage and moves the limit.
local function random_policy(victims)
  local function sometimes(n, f)
    if math.random(n) == 1 then return f() end
  end
  local function mischief(request)
    sometimes(40, function() error "mischief" end)
    sometimes(30, function() if #victims > 0 then table.remove(victims, math.random(#victims)):close() end end)
    sometimes(60, function() request.pool:trim() end)
    sometimes(80, collectgarbage)
    sometimes(40, function() assert(request.pool:check()) end)
    sometimes(60, function() return (pcall(request.pool.alloc, request.pool, 5)) and error "allocated" end)
  end
  local function number(least, most)
    return sometimes(25, function() return ({ 0, -1, 1.5, 0 / 0, 2.0 ^ 63, "x" })[math.random(6)] end)
      or math.random(least, math.max(least, most))
  end
  return {
    name = "random", grain = 64 * KiB,
    round = function(nbytes) return nbytes + math.random(0, 700) end,
    fit = function(request, candidates)
      mischief(request)
      local block = candidates[math.random(#candidates)]
      local kind = math.random(8)
      if kind <= 3 then return block end
      if kind == 4 then return "more" end
      if kind == 5 then return sometimes(3, function() return "grow" end) end
      local offset = math.random(0, block.segment_size) // 512 * 512
      local segment = sometimes(9, function() return 999 end) or block.segment
      return { segment = segment }, offset, ({ "best", "grow" })[kind - 5]
    end,
    split = function(request, block)
      mischief(request)
      return number(request.size, block.size)
    end,
    grow = function(request, default, refused)
      mischief(request)
      return refused and number(request.size, refused) or number(request.size, 2 * default)
    end,
    keep = function(request)
      mischief(request)
      return math.random(2) == 1
    end,
    oom = function(request)
      mischief(request)
      return math.random(3) == 1
    end,
    admit = function(request)
      mischief(request)
      return math.random(30) > 1, "not now"
    end,
    note = function() sometimes(100, error) end,
  }
end

describe_policy("a policy that answers at random", function()
  for seed = 1, 6 do
    it(("loses nothing: seed %d"):format(seed), function()
      math.randomseed(seed)
      local victims, failed = {}, 0
      local function close_one()
        local buf = table.remove(victims, math.random(#victims))
        pcall(buf.close, buf) -- `note` may raise
      end
      local pool = open(random_policy(victims), 3 * MiB)
      local streams = { sim.default_stream, sim:stream(), sim:stream() }
      for i = 1, 1500 do
        local ok, buf = pcall(pool.alloc, pool, math.random(0, 1 << math.random(0, 20)), streams[math.random(3)])
        if not ok then
          failed = failed + 1
          assert.matches("^policy 'random': %l+: ", buf)
        elseif buf then
          victims[#victims + 1] = buf
        end
        while #victims > math.random(0, 40) do close_one() end
        if i % 10 == 0 then
          assert(pool:check())
          assert.equal(#victims, pool:stats().active_blocks)
        end
      end
      assert(failed > 20 and pool:stats().allocs > 500, failed)
      while #victims > 0 do close_one() end
      check_intact(pool)
      for i = 2, 3 do streams[i]:close() end
    end)
  end
end)

describe_policy("a table of decisions", function()
  it("is checked when the pool is made", function()
    local wrong = {
      { { round = 0 }, "policy: round: bytes above 0, 'align', 'power_of_two' or a function expected, got 0" },
      { { round = 1.5 }, "round: .* got 1.5" }, { { round = "up" }, "round: .* got 'up'" },
      { { round = {} }, "round: .* got table" }, { { round = -1 }, "round: .* got %-1" },
      { { fit = "first" }, "fit: 'best', 'exact' or a function expected, got 'first'" },
      { { fit = 1 }, "fit: .* got 1" },
      { { split = "no" }, "split: .* got 'no'" }, { { split = 0 }, "split: .* got 0" },
      { { grow = true }, "grow: .* got true" }, { { grow = 0 }, "grow: .* got 0" },
      { { keep = "ever" }, "keep: .* got 'ever'" }, { { keep = 1 }, "keep: .* got 1" },
      { { oom = true }, "oom: false or a function expected, got true" },
      { { admit = true }, "admit: a function expected, got true" }, { { note = "x" }, "note: a function .* got 'x'" },
      { { exclusive = 1 }, "exclusive: 1 is no boolean" },
      { { fits = "best" }, "no option is named 'fits'; there are name, align, .*, round, fit, split, grow, keep, oom" },
      { { 1 }, "no option is named '1'" },
    }
    for _, row in ipairs(wrong) do
      assert.matches(row[2], failure(sim.pool, sim, { policy = row[1] }))
    end
  end)

  it("may have fields of its own, whose names begin with an underscore", function()
    local policy = { name = "mine", _count = 0 }
    function policy.round(nbytes)
      policy._count = policy._count + 1
      return nbytes
    end
    local pool = open(policy)
    assert(pool:alloc(5)):close()
    assert.equal(1, policy._count)
    assert.equal("mine", pool.policy)
    assert.equal("policy (mine, round function)", tostring(cl.policy.new(policy)))
  end)

  it("is read raw, and made by name even when that closes the device's handle", function()
    local inherits = setmetatable({}, { __index = function(_, key) error("asked for " .. tostring(key)) end })
    assert(open(inherits):alloc(1)):close()
    local policies = require "clalloc.policies"
    local rmm, handle = policies.rmm, cl.simulate { capacity = cl.GiB }
    policies.rmm = function()
      handle:close()
      return rmm()
    end
    local ok, pool = pcall(handle.pool, handle, { policy = "rmm" })
    policies.rmm = rmm
    assert(ok, pool)
    assert(pool:alloc(1000)):close()
    pool:close()
  end)

  it("is copied: what happens to it later changes nothing", function()
    local policy = { round = function(nbytes) return nbytes end }
    local pool = open(policy)
    policy.round = error
    assert(pool:alloc(5)):close()
  end)

  it("serves several pools at once", function()
    local pools_seen = {}
    local policy = { note = function(event) pools_seen[event.pool] = (pools_seen[event.pool] or 0) + 1 end }
    local a, b = open(policy), open(policy)
    assert(a:alloc(1)):close()
    assert(b:alloc(1))
    local counts = {}
    for pool, count in pairs(pools_seen) do counts[pool == a and "a" or "b"] = count end
    assert.same({ a = 2, b = 1 }, counts)
  end)

  it("decides for allocations from coroutines, through views' pools and dev:alloc", function()
    local asked = 0
    local pool = open { fit = function() asked = asked + 1 end }
    coroutine.wrap(function() assert(pool:alloc(10)):close() end)()
    local buf <close> = assert(sim:alloc(10, { pool = pool }))
    local view <close> = buf:view(2, 3)
    local handle <close> = view.pool
    assert(handle:alloc(10)):close()
    assert.equal(3, asked)
    assert.equal(0, pool:stats().missed_decisions)
  end)

  it("is let go of with the pool and its buffers", function()
    local weak = setmetatable({}, { __mode = "k" })
    do
      local fit = function() end
      weak[fit] = true
      local pool = assert(sim:pool { policy = { fit = fit } })
      assert(pool:alloc(10))
    end
    for _ = 1, 4 do collectgarbage() end
    assert.is_nil(next(weak))
  end)

  it("keeps deciding while only buffers are left of the pool", function()
    local freed = 0
    local buf
    do
      local pool = assert(sim:pool { policy = { note = function(event)
        if event.what == "free" then freed = freed + 1 end
      end } })
      buf = assert(pool:alloc(10))
    end
    collectgarbage()
    collectgarbage()
    buf:close()
    assert.equal(1, freed)
  end)
end)
