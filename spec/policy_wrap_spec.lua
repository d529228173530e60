-- Policies around policies: limits, failures on purpose, who holds what, logs, counters, a last resort.

local cl = require "clalloc"
local failure = require "spec.failure"
local policy = cl.policy

local MiB <const> = cl.MiB

local function holder(pool) return assert(pool:alloc(1000)) end

describe("a policy around another", function()
  local sim, pools

  before_each(function()
    sim, pools = cl.simulate { capacity = cl.GiB, align = 512 }, {}
  end)
  after_each(function()
    for _, pool in ipairs(pools) do pool:close() end
    sim:close()
  end)

  local function open(p, limit)
    local pool = assert(sim:pool { policy = p, limit = limit })
    pools[#pools + 1] = pool
    return pool
  end

  for _, name in ipairs { "caching", "direct", "torch", "rmm", "bins", "arena", "buddy", "planned" } do
    it(("takes %s by name, as an object and as a table, and leaves it as it was"):format(name), function()
      local inner = policy[name]()
      local fields = {}
      for key, value in pairs(inner) do fields[key] = value end
      local plain = {}
      for key, value in pairs(inner) do plain[key] = value end
      for _, given in ipairs { name, inner, plain } do
        local made = policy.limit(given, 4000)
        assert.equal(name, made.name)
        local pool = open(made)
        assert.equal(name, pool.policy)
        local buf <close> = assert(pool:alloc(3000))
        assert.is_nil(pool:alloc(1001))
        assert(pool:check())
        assert(buf)
      end
      for key, value in pairs(inner) do assert.equal(fields[key], value) end
    end)
  end

  it("chains: all of them apply, and all their methods are there", function()
    local all = policy.torch():limit(10 * MiB):track():statistics():fail_after(3)
    local pool = open(all)
    local a = holder(pool)
    local b <close> = holder(pool)
    a:close()
    assert.equal("LIMIT", select(3, pool:alloc(11 * MiB)))
    local c <close> = holder(pool)
    assert.equal("NOMEM", select(3, pool:alloc(1)))
    assert.equal(2, #all.leaks())
    assert.equal(2000, all.counters().bytes.value)
    assert.equal(3, all.counters().allocations.total)
    assert.matches("^policy %(torch, .*admit function, .*fit function", tostring(all))
    assert(b and c)
  end)

  describe("limit", function()
    it("counts the bytes that are live, not those that are reserved", function()
      local pool = open(policy.caching():limit(1000))
      local a = assert(pool:alloc(600))
      local none, message, code = pool:alloc(401)
      assert.is_nil(none)
      assert.same({ "policy 'caching': 401 bytes asked, and 600 live: more than 1000", "LIMIT" }, { message, code })
      local b <close> = assert(pool:alloc(400))
      a:close()
      local c <close> = assert(pool:alloc(600))
      assert.is_nil(pool:alloc(1))
      assert.equal("TOO_LARGE", select(3, open(policy.limit("caching", math.maxinteger)):alloc(2 * cl.GiB)))
      assert(b and c)
    end)

    it("collects garbage before it refuses", function()
      local pool = open(policy.caching():limit(1000))
      assert(pool:alloc(900))
      assert(pool:alloc(900)):close()
    end)

    it("asks on_oom before it refuses", function()
      local held
      local pool = open(policy.caching():limit(1000):on_oom(function(request, times)
        assert.same({ 900, 1 }, { request.nbytes, times })
        if not held then return false end
        held:close()
        held = nil
        return true
      end))
      held = assert(pool:alloc(900))
      assert(pool:alloc(900)):close()
      assert.is_nil(held)
    end)

    it("does not ask for ever, and says what was wrong", function()
      local asked = 0
      local pool = open(policy.caching():limit(10):on_oom(function(request)
        asked = asked + 1
        assert.is_nil((sim:alloc(1 << 50))) -- leaves a message of its own
        return request.nbytes < 1000
      end))
      assert.matches("11 bytes asked, and 0 live", select(2, pool:alloc(11)))
      assert.equal(8, asked)
      assert.matches("1000 bytes asked, and 0 live", select(2, pool:alloc(1000)))
      assert.equal(9, asked)
    end)
  end)

  describe("fail_after and fail_if", function()
    it("fail like a lack of memory", function()
      local pool = open(policy.caching():fail_after(2))
      local a, b = holder(pool), holder(pool)
      local none, message, code = pool:alloc(10)
      assert.is_nil(none)
      assert.same({ "policy 'caching': fails after 2 allocations", "NOMEM" }, { message, code })
      a:close()
      assert.is_nil((pool:alloc(10)))
      b:close()
      assert.equal(2, pool:stats().ooms)
      assert.is_nil((open(policy.fail_after("direct", 0)):alloc(0)))
    end)

    it("see the request", function()
      local pool = open(policy.torch():fail_if(function(request) return request.nbytes % 2 == 1 end))
      assert(pool:alloc(10)):close()
      assert.same({ "policy 'torch': an allocation of 11 bytes is made to fail", "NOMEM" },
        { select(2, pool:alloc(11)) })
    end)
  end)

  describe("track", function()
    it("knows who holds what", function()
      local tracked = policy.caching():track()
      local pool = open(tracked)
      local a <close> = assert(pool:alloc(10))
      local list = { holder(pool), holder(pool) }
      assert(pool:alloc(77)):close()
      local leaks = tracked:leaks()
      assert.equal(3, #leaks)
      assert.same({ 10, a.address, 512 }, { leaks[1].nbytes, leaks[1].address, leaks[1].size })
      assert.matches("^spec/policy_wrap_spec.lua:%d+: in function", leaks[1].traceback)
      assert.matches("in upvalue 'holder'", leaks[2].traceback)
      local report = tracked:report()
      assert.matches("^3 live allocations, 2010 bytes\n  2000 bytes in 2, allocated at\n    spec/", report)
      assert.matches("\n  10 bytes in 1, allocated at\n", report)
      for _, buf in ipairs(list) do buf:close() end
      assert.equal(1, #tracked:leaks())
    end)

    it("sees what the collector frees, and says what was live when a pool was closed", function()
      local tracked = policy.caching():track()
      local pool = open(tracked)
      for _ = 1, 10 do holder(pool) end
      collectgarbage()
      collectgarbage()
      assert.same({}, tracked:leaks())
      assert.equal("0 live allocations, 0 bytes", tracked:report())
      local kept = holder(pool)
      pool:close()
      assert.equal(1, #tracked:leaks())
      kept:close()
    end)
  end)

  describe("log", function()
    local path

    before_each(function() path = os.tmpname() end)
    after_each(function() os.remove(path) end)

    local function rows()
      local list = {}
      for row in io.lines(path) do list[#list + 1] = row end
      return list
    end

    it("is what RMM writes", function()
      local logged = assert(policy.caching():log(path))
      local pool = open(logged, 4 * MiB)
      local stream <close> = sim:stream()
      local a = assert(pool:alloc(1000))
      local b = assert(pool:alloc(7, stream))
      assert.is_nil(pool:alloc(5 * MiB))
      local addresses = { a.address, b.address }
      a:close()
      b:close()
      assert.is_true(logged:flush())
      local list = rows()
      assert.equal(6, #list)
      assert.equal("Thread,Time,Action,Pointer,Size,Stream", list[1])
      local expected = { { "allocate", 1, 1000, 0 }, { "allocate", 2, 7, 1 }, { "allocate failure", nil, 5 * MiB, 0 },
        { "free", 1, 1000, 0 }, { "free", 2, 7, 1 } }
      for i, row in ipairs(expected) do
        local thread, time, action, pointer, size, number = list[i + 1]:match(
          "^(%d+),(%d%d:%d%d:%d%d%.%d%d%d%d%d%d),([%l ]+),([^,]+),(%d+),(%d+)$")
        assert(thread and time, list[i + 1])
        local wanted = row[2] and ("0x%x"):format(addresses[row[2]]) or "(nil)"
        assert.same({ row[1], wanted, tostring(row[3]), tostring(row[4]) }, { action, pointer, size, number })
      end
    end)

    it("can be loaded as a trace, and replayed", function()
      local logged = assert(policy.torch():log(path))
      local pool = open(logged)
      local live = {}
      for i = 1, 600 do
        live[i] = assert(pool:alloc(i * 10))
        if i % 2 == 0 then live[i // 2]:close() end
      end
      logged:flush()
      local trace = cl.trace.load(path)
      assert.equal("rmm", trace.format)
      assert.equal(900, trace.operations)
      assert.equal(0, cl.replay(trace, { device = sim }).failed)
      for _, buf in ipairs(live) do buf:close() end
    end)

    it("cannot be where there is no folder", function()
      local none, message, code = policy.caching():log "/nowhere/at all/x.csv"
      assert.is_nil(none)
      assert.matches("No such file", message)
      assert.equal(2, code)
    end)
  end)

  describe("statistics", function()
    it("counts, and nests", function()
      local counted = policy.caching():statistics()
      local pool = open(counted)
      local a = assert(pool:alloc(100))
      assert.same({ bytes = { value = 100, peak = 100, total = 100 },
        allocations = { value = 1, peak = 1, total = 1 } }, counted:counters())
      counted:push()
      local b = assert(pool:alloc(50))
      a:close()
      assert(pool:alloc(20)):close()
      assert.is_nil(pool:alloc(2 * cl.GiB))
      assert.same({ bytes = { value = -50, peak = 50, total = 70 },
        allocations = { value = 0, peak = 1, total = 2 } }, counted:counters())
      local top = counted:pop()
      assert.equal(-50, top.bytes.value)
      assert.same({ bytes = { value = 50, peak = 150, total = 170 },
        allocations = { value = 1, peak = 2, total = 3 } }, counted:counters())
      b:close()
      assert.equal(0, counted:counters().bytes.value)
      assert.matches("pop without a push", failure(counted.pop))
    end)
  end)

  describe("on_oom", function()
    it("frees and is asked again, after what the policy inside does", function()
      local calls, hoard = {}, {}
      local inner = policy.new { oom = function(_, times)
        calls[#calls + 1] = "inner " .. times
        return false
      end }
      local pool = open(inner:on_oom(function(request, times)
        calls[#calls + 1] = ("outer %d of %d"):format(times, request.nbytes)
        if #hoard > 0 then table.remove(hoard):close() end
        return #hoard > 0
      end), 8 * MiB)
      for i = 1, 4 do hoard[i] = assert(pool:alloc(2 * MiB)) end
      local buf <close> = assert(pool:alloc(4 * MiB))
      assert.same({ "inner 1", "outer 1 of 4194304", "inner 2", "outer 2 of 4194304" }, calls)
      for _, held in ipairs(hoard) do held:close() end
      assert(pool:check())
      assert(buf)
    end)
  end)

  it("refuses misuse", function()
    assert.matches("policy.limit: no policy is named 'nobody'", failure(policy.limit, "nobody", 1))
    assert.matches("policy.limit: a policy expected, got nil", failure(policy.limit, nil, 1))
    for _, wrong in ipairs { -1, 1.5, "1", 0 / 0 } do
      assert.matches("policy.limit: nbytes: ", failure(policy.limit, "caching", wrong))
      assert.matches("policy.fail_after: n: ", failure(policy.fail_after, "caching", wrong))
    end
    assert.matches("policy.fail_if: a function expected, got nil", failure(policy.fail_if, "caching"))
    assert.matches("policy.on_oom: a function expected, got number", failure(policy.on_oom, "caching", 1))
    assert.matches("policy.log: a path expected, got nil", failure(policy.log, "caching"))
    assert.matches("policy.new: a table expected, got string", failure(policy.new, "caching"))
    assert.matches("policy.mine: no parameter is named 'rond'", failure(policy.new, { name = "mine", rond = 1 }))
    assert.matches("policy.new: round: up is no such decision", failure(policy.new, { round = "up" }))
    assert.matches("policy.torch: no parameter is named 'x'", failure(policy.torch, { x = 1 }))
    assert.matches("policy.rmm: initial: 0 is no size above 0", failure(policy.rmm, { initial = 0 }))
    assert.matches("policy.arena: chunk: 1.5 is no size above 0", failure(policy.arena, { chunk = 1.5 }))
    assert.matches("policy.caching: exclusive: 1 is no boolean", failure(policy.caching, { exclusive = 1 }))
  end)
end)
