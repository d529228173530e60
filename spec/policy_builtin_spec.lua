-- What every built-in policy must do, whatever it decides: the same tests for each of them. Then what each is known by.

local cl = require "clalloc"
local run_random = dofile "spec/random_world.lua"

local MiB <const> = cl.MiB

-- By name, and with segments so small that they run out.
local POLICIES <const> = {
  { "direct", cl.policy.direct },
  { "caching", cl.policy.caching },
  { "caching, exclusive", function() return cl.policy.caching { exclusive = true } end },
  { "torch", cl.policy.torch },
  { "rmm", cl.policy.rmm },
  { "rmm from 64 KiB", function() return cl.policy.rmm { initial = 65536 } end },
  { "bins", cl.policy.bins },
  { "arena", cl.policy.arena },
  { "arena of 1 MiB chunks", function() return cl.policy.arena { chunk = MiB } end },
  { "buddy", cl.policy.buddy },
  { "buddy of 1 MiB chunks", function() return cl.policy.buddy { chunk = MiB } end },
  { "everything in Lua", function()
    return {
      name = "everything",
      round = function(nbytes) return (nbytes + 511) // 512 * 512 end,
      fit = function(_, candidates) return candidates[#candidates] end,
      split = function(request) return request.size end,
      grow = function(_, default, refused) return refused and default or default end,
      keep = function(segment) return segment.segment % 2 == 0 end,
      oom = function() return false end,
      admit = function() return true end,
      note = function() end,
    }
  end },
}

local SIZES <const> = { 0, 1, 511, 512, 513, 4096, 100000, MiB - 1, MiB, MiB + 1, 3 * MiB, 11 * MiB, 33 * MiB }

local function close_all(list)
  for i = #list, 1, -1 do
    list[i]:close()
    list[i] = nil
  end
end

for _, row in ipairs(POLICIES) do
  local name, make = row[1], row[2]

  describe(("the policy %s"):format(name), function()
    local sim, pool

    before_each(function()
      sim = cl.simulate { capacity = 4 * cl.GiB, align = 512 }
      pool = assert(sim:pool { policy = make() })
    end)
    after_each(function()
      pool:close()
      sim:close()
    end)

    it("gives memory of every size, all of it the caller's", function()
      local live, ends = {}, {}
      for _ = 1, 3 do
        for _, size in ipairs(SIZES) do
          local buf = assert(pool:alloc(size))
          assert.equal(size, buf.size)
          assert(buf.reserved >= size)
          live[#live + 1], ends[#ends + 1] = buf, { buf.address, buf.address + math.max(size, 1) }
        end
      end
      table.sort(ends, function(a, b) return a[1] < b[1] end)
      for i = 2, #ends do assert(ends[i - 1][2] <= ends[i][1], "two allocations overlap") end
      assert(pool:check())
      close_all(live)
      assert(pool:check())
      assert.equal(0, pool:stats().active_bytes)
    end)

    it("has nothing left after a trim when nothing is live", function()
      local live = {}
      for i = 1, 200 do live[i] = assert(pool:alloc(i * 3001)) end
      for i = 1, 200, 2 do live[i]:close() end
      for i = 2, 200, 2 do live[i]:close() end
      pool:trim()
      assert(pool:check())
      local stats = pool:stats()
      assert.equal(0, stats.reserved_bytes)
      assert.equal(stats.driver_allocs, stats.driver_frees)
    end)

    it("does the same twice: no reserved memory grows over repeated rounds", function()
      local function round()
        local live = {}
        for i = 1, 300 do
          live[#live + 1] = assert(pool:alloc((i * 7919) % (2 * MiB)))
          if i % 3 == 0 then table.remove(live, i // 3):close() end
        end
        close_all(live)
        return pool:stats().peak_reserved_bytes
      end
      round()
      local second = round()
      round()
      assert(round() <= second * 1.3, "the pool keeps growing")
    end)

    it("fails at the limit with a message, recovers, and uses all that it reserved", function()
      local small <close> = assert(sim:pool { policy = make(), limit = 64 * MiB })
      local live = {}
      while true do
        local buf, message, code = small:alloc(3 * MiB)
        if not buf then
          assert.equal("LIMIT", code)
          assert.matches("out of memory", message)
          break
        end
        live[#live + 1] = buf
      end
      assert(#live >= 10, #live)
      assert(small:stats().reserved_bytes <= 64 * MiB)
      assert(small:check())
      close_all(live)
      assert(small:alloc(48 * MiB), "what was freed in small pieces is not had in one"):close()
      assert(small:check())
      local buf, _, code = small:alloc(65 * MiB)
      assert.is_nil(buf)
      assert.equal("LIMIT", code)
      assert.equal(2, small:stats().ooms)
    end)

    it("survives a driver that has no memory, and gets it when there is some", function()
      local tight <close> = cl.simulate { capacity = 40 * MiB, align = 512 }
      local other <close> = assert(tight:pool { policy = "direct", limit = cl.GiB })
      local mine <close> = assert(tight:pool { policy = make(), limit = cl.GiB })
      local taken = assert(other:alloc(36 * MiB))
      local buf, _, code = mine:alloc(8 * MiB)
      assert.is_nil(buf)
      assert.equal("NOMEM", code)
      assert(mine:check())
      taken:close()
      buf = assert(mine:alloc(8 * MiB))
      buf:close()
      assert(mine:check())
    end)

    it("keeps streams apart until their commands are done", function()
      local manual <close> = cl.simulate { capacity = cl.GiB, align = 512, manual = true }
      local mine <close> = assert(manual:pool { policy = make() })
      local a <close> = manual:stream()
      local b <close> = manual:stream()
      local buf = assert(mine:alloc(100000, a))
      assert(buf:fill(0, { stream = a, async = true })):close()
      local address = buf.address
      buf:close()
      local on_b = assert(mine:alloc(100000, b))
      assert.not_equal(address, on_b.address)
      manual:complete(a)
      on_b:close()
      assert(mine:check())
    end)

    it("gives memory back to the stream that was recorded only when that is done", function()
      local manual <close> = cl.simulate { capacity = cl.GiB, align = 512, manual = true }
      local mine <close> = assert(manual:pool { policy = make() })
      local a <close> = manual:stream()
      local b <close> = manual:stream()
      local buf = assert(mine:alloc(100000, a))
      assert(buf:fill(0, { stream = b, async = true })):close()
      buf:close()
      assert(mine:stats().held_bytes >= 100000)
      manual:complete(b)
      mine:trim()
      assert.equal(0, mine:stats().held_bytes)
      assert(mine:check())
    end)

    it("does random things right", function()
      local dev <close> = cl.device()
      run_random(dev, 7, 3000, make())
    end)
  end)
end

describe("direct", function()
  it("asks the driver for everything", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    local pool <close> = sim:pool { policy = "direct" }
    for _ = 1, 5 do assert(pool:alloc(1000)):close() end
    assert.equal(5, pool:stats().driver_allocs)
    assert.equal(5, pool:stats().driver_frees)
  end)
end)

describe("torch", function()
  local sim, pool

  before_each(function()
    sim = cl.simulate { capacity = 4 * cl.GiB, align = 512 }
    pool = sim:pool { policy = "torch" }
  end)
  after_each(function()
    pool:close()
    sim:close()
  end)

  -- Sizes of segments in the order they were made, in MiB.
  local function segments()
    local list = {}
    for i, segment in ipairs(pool:snapshot()) do list[i] = segment.size / MiB end
    return list
  end

  it("takes 2 MiB for small requests, 20 MiB for large ones, whole 2 MiB above 10 MiB", function()
    local live = {}
    for _, size in ipairs { 1, MiB, MiB + 1, 10 * MiB - 1, 10 * MiB, 21 * MiB + 1 } do
      live[#live + 1] = assert(pool:alloc(size))
    end
    assert.same({ 2, 20, 10, 22 }, segments())
    close_all(live)
  end)

  it("never serves a small request from a segment of large ones, nor the other way", function()
    assert(pool:alloc(5 * MiB)):close()
    local small <close> = assert(pool:alloc(1000))
    assert.same({ 20, 2 }, segments())
    local large <close> = assert(pool:alloc(2 * MiB))
    assert.same({ 20, 2 }, segments())
    assert(small.address ~= large.address)
  end)

  it("does not cut a large block for a rest of up to 1 MiB", function()
    local a <close> = assert(pool:alloc(19 * MiB)) -- of its own 20 MiB: 1 MiB would be left
    assert.equal(20 * MiB, a.reserved)
    local b <close> = assert(pool:alloc(9 * MiB))
    assert.equal(9 * MiB, b.reserved)
    local c <close> = assert(pool:alloc(1000))
    assert.equal(1024, c.reserved)
  end)
end)

describe("rmm", function()
  it("doubles, never gives back, and takes half of what is left near a limit", function()
    local sim <close> = cl.simulate { capacity = 16 * cl.GiB, align = 512 }
    local pool <close> = sim:pool { policy = cl.policy.rmm { initial = 16 * MiB }, limit = 100 * MiB }
    local live = {}
    local function reserved() return pool:stats().reserved_bytes / MiB end
    live[1] = assert(pool:alloc(10 * MiB))
    assert.equal(16, reserved())
    live[2] = assert(pool:alloc(10 * MiB))
    assert.equal(32, reserved())
    live[3] = assert(pool:alloc(20 * MiB))
    assert.equal(64, reserved())
    live[4] = assert(pool:alloc(20 * MiB)) -- 36 are left, half of it is 18: what is asked counts
    close_all(live)
    assert(reserved() >= 80)
  end)

  it("is refused, and tries half", function()
    local sim <close> = cl.simulate { capacity = cl.GiB, align = 512, refuse_above = 40 * MiB }
    local pool <close> = sim:pool { policy = cl.policy.rmm { initial = 64 * MiB }, limit = cl.GiB }
    local buf <close> = assert(pool:alloc(1000))
    assert.equal(32 * MiB, pool:stats().reserved_bytes)
    assert.equal(1000, buf.size)
  end)
end)

describe("bins", function()
  it("rounds up to the largest size of a bin, as PyOpenCL does", function()
    local round = cl.policy.bins().round
    assert.equal(1140850687, round(1 << 30))
    for exponent = 5, 40 do
      for step = 16, 31 do
        local first, last = step << (exponent - 4), (step + 1 << (exponent - 4)) - 1
        assert.equal(last, round(first))
        assert.equal(last, round(last))
        assert(round(last + 1) > last)
      end
    end
    for nbytes = 1, 31 do assert.equal(nbytes, round(nbytes)) end
  end)

  it("hands a freed block only to its bin, whole", function()
    local sim <close> = cl.simulate { capacity = cl.GiB, align = 512 }
    local pool <close> = sim:pool { policy = "bins" }
    assert(pool:alloc(MiB)):close()
    assert(pool:alloc(MiB + 5000)):close()
    assert.equal(1, pool:stats().driver_allocs)
    local smaller <close> = assert(pool:alloc(MiB - 1))
    assert.equal(2, pool:stats().driver_allocs)
    assert(smaller.reserved < 1.07 * MiB)
  end)
end)

describe("arena", function()
  local sim, pool

  before_each(function()
    sim = cl.simulate { capacity = cl.GiB, align = 512 }
    pool = sim:pool { policy = cl.policy.arena { chunk = MiB } }
  end)
  after_each(function()
    pool:close()
    sim:close()
  end)

  it("only ascends, and begins anew when all is free", function()
    local first <const> = assert(pool:alloc(1000))
    local base, live = first.address, { first }
    for i = 1, 20 do
      local buf = assert(pool:alloc(1000))
      assert.equal(base + 2 * i * 1024, buf.address) -- behind every block lies a gap of its size
      if i % 2 == 0 then buf:close() else live[#live + 1] = buf end
    end
    close_all(live)
    local again <close> = assert(pool:alloc(5000))
    assert.equal(base, again.address)
  end)

  it("goes through its chunks in order, and makes no new one in the second round", function()
    local function round()
      local live = {}
      for i = 1, 30 do live[i] = assert(pool:alloc(300000)) end
      close_all(live)
      return pool:stats().driver_allocs
    end
    local made = round()
    assert(made >= 9)
    assert.equal(made, round())
    pool:trim()
    round()
    assert.equal(2 * made, pool:stats().driver_allocs)
    assert(pool:check())
  end)
end)

describe("buddy", function()
  it("places powers of two at their multiples, and finds buddies again", function()
    local sim <close> = cl.simulate { capacity = cl.GiB, align = 512 }
    local pool <close> = sim:pool { policy = cl.policy.buddy { chunk = MiB } }
    local live = {}
    for i = 1, 400 do live[i] = assert(pool:alloc(1 + (i * 7919) % 60000)) end
    for _, segment in ipairs(pool:snapshot()) do
      for _, block in ipairs(segment.blocks) do
        if block.state == "active" then
          assert.equal(0, block.size & (block.size - 1))
          assert.equal(0, block.offset % block.size)
        end
      end
    end
    close_all(live)
    local before = pool:stats().driver_allocs
    assert(pool:alloc(MiB)):close()
    assert.equal(before, pool:stats().driver_allocs)
  end)
end)
