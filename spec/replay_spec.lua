-- Replaying traces through a pool. replay_compare_spec.lua has several policies, details, limits and pictures.

local cl = require "clalloc"
local files = require "spec.trace_files"
local trace = cl.trace

local function simulated(capacity)
  return cl.simulate { capacity = capacity or cl.GiB, align = 512 }
end

-- A pool that notes the stream of every allocation and passes it on.
local function watched(pool, seen)
  return {
    alloc = function(_, nbytes, stream)
      seen[#seen + 1] = stream or "default"
      return pool:alloc(nbytes, stream)
    end,
    stats = function() return pool:stats() end,
  }
end

describe("replay", function()
  it("reports what a trace costs", function()
    local dev <close> = simulated()
    local t = files.rounds(10, files.MIXED)
    local r = cl.replay(t, { device = dev })
    assert.equal("rounds", r.name)
    assert.equal("caching", r.policy)
    assert.equal(dev.name, r.device)
    assert.equal(140, r.operations)
    assert.equal(t.peak_live, r.peak_live)
    assert.is_true(r.peak_reserved >= r.peak_live)
    assert.equal(r.peak_reserved / r.peak_live, r.ratio)
    assert.is_true(r.seconds >= 0)
    assert.equal(r.seconds * 1e9 / 140, r.ns_per_op)
    assert.equal(0, r.failed)
    assert.is_nil(r.first_failure)
  end)

  it("asks the driver nothing more for what comes again under the caching policy", function()
    local dev <close> = simulated()
    local few = cl.replay(files.rounds(10, files.MIXED), { device = dev, policy = cl.policy.caching() })
    local often = cl.replay(files.rounds(100, files.MIXED), { device = dev, policy = cl.policy.caching() })
    assert.equal(few.driver_calls, often.driver_calls)
  end)

  it("asks the driver for every operation under the direct policy", function()
    local dev <close> = simulated()
    local r = cl.replay(files.rounds(10, files.MIXED), { device = dev, policy = cl.policy.direct() })
    assert.equal(r.operations, r.driver_calls)
    assert.equal("direct", r.policy)
  end)

  it("counts allocations that fail, and goes on", function()
    local dev <close> = simulated()
    local r = cl.replay(files.rounds(3, { 1 << 20, 1 << 30, 1 << 20 }), { device = dev, limit = 8 << 20 })
    assert.equal(18, r.operations)
    assert.equal(3, r.failed)
    assert.matches("^operation 2, 1073741824 bytes: .", r.first_failure)
    assert.equal(2 << 20, r.peak_live)
    assert.is_true(r.peak_reserved <= 8 << 20)
  end)

  it("gives the same figures each time", function()
    local dev <close> = simulated()
    local t = files.rounds(20, files.MIXED)
    local first, second = cl.replay(t, { device = dev }), cl.replay(t, { device = dev })
    for _, field in ipairs { "operations", "driver_calls", "peak_live", "peak_reserved", "ratio", "failed" } do
      assert.equal(first[field], second[field], field)
    end
  end)

  it("uses a given pool, empties it and leaves it open", function()
    local dev <close> = simulated()
    local pool <close> = dev:pool()
    local rec = trace.recorder()
    rec:alloc(1, 4096)
    rec:alloc(2, 4096)
    rec:free(1)
    local r = cl.replay(rec:finish(), { device = dev, pool = pool })
    assert.equal(8192, r.peak_live)
    assert.equal(0, pool:stats().active_blocks)
    assert.equal(2, pool:stats().allocs)
    assert(pool:alloc(64)):close()
  end)

  it("touches memory when told to", function()
    local dev <close> = simulated()
    assert.equal(0, cl.replay(files.rounds(2, files.MIXED), { device = dev, touch = true }).failed)
  end)

  it("maps the trace's streams onto the device's", function()
    local dev <close> = simulated()
    local pool <close> = dev:pool()
    local mine <close> = dev:stream()
    local rec, seen = trace.recorder(), {}
    rec:alloc(1, 64, "compute")
    rec:alloc(2, 64)
    rec:alloc(3, 64, "copy")
    rec:alloc(4, 64, "compute")
    cl.replay(rec:finish(), { device = dev, pool = watched(pool, seen), streams = { mine } })
    assert.equal(4, #seen)
    assert.equal(mine, seen[1])
    assert.equal("default", seen[2])
    assert.not_equal(mine, seen[3])
    assert.not_equal("default", seen[3])
    assert.equal(mine, seen[4])
    mine:finish() -- still open: it was not made by the replay
  end)

  it("says about a hundred times how far it is", function()
    local dev <close> = simulated()
    local calls, last, of = 0, 0, 0
    local t = files.rounds(500, files.MIXED)
    cl.replay(t, { device = dev, progress = function(done, total)
      assert.is_true(done > last)
      calls, last, of = calls + 1, done, total
    end })
    assert.is_true(calls >= 100 and calls <= 101)
    assert.equal(t.operations, last)
    assert.equal(t.operations, of)
  end)

  it("closes everything when something raises", function()
    local dev <close> = simulated()
    local pool <close> = dev:pool()
    local rec = trace.recorder()
    for i = 1, 1000 do
      rec:alloc(i, 4096, i % 3)
    end
    assert.error_matches(function()
      cl.replay(rec:finish(), { device = dev, pool = pool, progress = function() error "enough" end })
    end, "enough")
    assert.equal(0, pool:stats().active_blocks)
    assert.equal(10, pool:stats().allocs)
  end)

  it("replays nothing at no cost", function()
    local dev <close> = simulated()
    local r = cl.replay(trace.recorder():finish(), { device = dev })
    assert.equal(0, r.operations)
    assert.equal(0, r.driver_calls)
    assert.equal(1.0, r.ratio)
    assert.equal(0.0, r.ns_per_op)
  end)

  it("prints its figures", function()
    local dev <close> = simulated(80 * cl.GiB)
    local text = tostring(cl.replay(files.rounds(1000, { 64 << 20 }):scaled(2), { device = dev }))
    assert.matches("^replay of rounds %(sizes / 2%) on .-, policy caching\n", text)
    assert.matches("\n  operations +2,000\n", text)
    assert.matches("\n  driver calls +[%d,]+\n", text)
    assert.matches("\n  peak live +32.00 MiB  %(33,554,432 bytes%)\n", text)
    assert.matches("\n  peak reserved +[%d.]+ %wiB  %([%d,]+ bytes%)\n", text)
    assert.matches("\n  reserved / live +%d%.%d%d%d\n", text)
    assert.matches("\n  seconds +%d+%.%d%d%d\n", text)
    assert.matches("\n  ns per operation +%d+$", text)
  end)

  it("refuses misuse", function()
    local dev <close> = simulated()
    local pool <close> = dev:pool()
    local t = files.rounds(1, files.MIXED)
    local function refuses(message, ...)
      local arguments = table.pack(...)
      assert.error_matches(function() cl.replay(table.unpack(arguments)) end, message)
    end
    refuses("replay: trace: expected a trace, got string", "x.csv", { device = dev })
    refuses("replay: options: expected a table, got string", t, "caching")
    refuses("replay: pool: a pool brings its own policy and limit", t, { pool = pool, limit = 1 })
    refuses("replay: pool: a pool brings its own policy and limit", t, { pool = pool, policies = { "direct" } })
    refuses("replay: pool: details and fit need fresh pools", t, { pool = pool, details = true })
    refuses("replay: pool: details and fit need fresh pools", t, { pool = pool, fit = true })
    refuses("replay: policies: give either policy or policies", t, { policy = "direct", policies = { "caching" } })
    refuses("replay: no option is named 'limits'; there are details, device,", t, { limits = 1 })
    for _, limit in ipairs { 0, -1, 1.5, 2 ^ 53, 0 / 0, "16" } do
      refuses("replay: limit: expected a number of bytes above 0, got ", t, { device = dev, limit = limit })
    end
    for _, streams in ipairs { 0, -1, 1.5, 1025, "2" } do
      refuses("replay: streams: expected a list of streams, or a number", t, { device = dev, streams = streams })
    end
    for _, cost in ipairs { -1, 0 / 0, math.huge, "1" } do
      refuses("replay: driver_cost: expected seconds, or a device", t, { device = dev, driver_cost = cost })
    end
    refuses("replay: policies: expected a list that is not empty", t, { device = dev, policies = {} })
    refuses("replay: details: expected true or false", t, { device = dev, details = 1 })
    refuses("replay: progress: expected a function", t, { device = dev, progress = true })
    refuses("replay: policy: there is no policy 'best'; there are: ", t, { device = dev, policy = "best" })
    refuses("replay: policy: expected a policy from the caller, got number", t, { device = dev, policy = 1 })
    refuses("replay: policy: expected a policy from the function, got nil", t, { device = dev, policy = print })
    assert.equal(0, pool:stats().allocs)
  end)
end)

-- Recordings of real programs, where they lie beside the checkout.

local RECORDINGS = "../shared/traces/pytorch_snapshot/"
local NAMES = {
  "lm_128_train", "lm_512_train", "lm_1024_train", "lm_512_infer", "lm_step_b", "lm_step_c", "lm_forward_fp32",
}

local function is_readable(path)
  local handle = io.open(path, "rb")
  return handle and handle:close()
end

if is_readable(RECORDINGS .. NAMES[1] .. ".csv") then
  describe("recordings of real training steps", function()
    for _, name in ipairs(NAMES) do
      it("replay without failure, close to their live peak: " .. name, function()
        local dev <close> = simulated(80 * cl.GiB)
        local r = cl.replay(trace.load(RECORDINGS .. name .. ".csv"), { device = dev })
        assert.equal(0, r.failed)
        assert.is_true(r.ratio >= 1 and r.ratio <= 1.05, ("reserved / live is %.4f"):format(r.ratio))
        assert.is_true(r.driver_calls * 10 < r.operations)
      end)
    end
  end)
end
