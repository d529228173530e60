-- Replaying traces through a pool, and the example that does it from the command line.

local cl = require "clalloc"
local trace = cl.trace

local function simulated(capacity)
  return cl.simulate { capacity = capacity or cl.GiB, align = 512 }
end

-- Rounds of allocating and freeing the same sizes; every round leaves nothing live.
local function rounds(count, sizes)
  local rec = trace.recorder()
  for _ = 1, count do
    for i, size in ipairs(sizes) do
      rec:alloc(i, size)
    end
    for i in ipairs(sizes) do
      rec:free(i)
    end
  end
  return rec:finish "rounds"
end

local MIXED = { 4096, 1, 700000, 0, 3 << 20, 4097, 512 }

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
    local t = rounds(10, MIXED)
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
    local few = cl.replay(rounds(10, MIXED), { device = dev, policy = cl.policy.caching() })
    local often = cl.replay(rounds(100, MIXED), { device = dev, policy = cl.policy.caching() })
    assert.equal(few.driver_calls, often.driver_calls)
  end)

  it("asks the driver for every operation under the direct policy", function()
    local dev <close> = simulated()
    local r = cl.replay(rounds(10, MIXED), { device = dev, policy = cl.policy.direct() })
    assert.equal(r.operations, r.driver_calls)
    assert.equal("direct", r.policy)
  end)

  it("counts allocations that fail, and goes on", function()
    local dev <close> = simulated()
    local r = cl.replay(rounds(3, { 1 << 20, 1 << 30, 1 << 20 }), { device = dev, limit = 8 << 20 })
    assert.equal(18, r.operations)
    assert.equal(3, r.failed)
    assert.matches("^operation 2, 1073741824 bytes: .", r.first_failure)
    assert.equal(2 << 20, r.peak_live)
    assert.is_true(r.peak_reserved <= 8 << 20)
  end)

  it("gives the same figures each time", function()
    local dev <close> = simulated()
    local t = rounds(20, MIXED)
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
    assert.equal(0, cl.replay(rounds(2, MIXED), { device = dev, touch = true }).failed)
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
    local t = rounds(500, MIXED)
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
    local text = tostring(cl.replay(rounds(1000, { 64 << 20 }):scaled(2), { device = dev }))
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
    assert.error_matches(function() cl.replay("x.csv", { device = dev }) end,
      "replay: trace: expected a trace, got string")
    local pool <close> = dev:pool()
    assert.error_matches(function() cl.replay(rounds(1, MIXED), { pool = pool, limit = 1 }) end,
      "replay: pool: a pool brings its own policy and limit")
  end)
end)

-- The example, as a user runs it.

local function quoted(text)
  return "'" .. text:gsub("'", [['\'']]) .. "'"
end

-- Exit code, standard output, standard error.
local function run_example(arguments)
  local out, err = os.tmpname(), os.tmpname()
  -- The environment's module, not this process's: that may be one with a sanitizer in it.
  local command = ("LUA_PATH=%s LUA_CPATH=%s lua5.4 examples/replay.lua %s >%s 2>%s"):format(
    quoted(os.getenv "LUA_PATH" or package.path), quoted(os.getenv "LUA_CPATH" or package.cpath), arguments, out, err)
  local _, _, code = os.execute(command)
  local texts = {}
  for i, path in ipairs { out, err } do
    local handle = assert(io.open(path, "rb"))
    texts[i] = handle:read("a")
    handle:close()
    os.remove(path)
  end
  return code, texts[1], texts[2]
end

describe("examples/replay.lua", function()
  local path

  before_each(function()
    path = os.tmpname()
    assert(rounds(10, MIXED):save(path, "pytorch_snapshot"))
  end)

  after_each(function()
    os.remove(path)
  end)

  local function append(text)
    local handle = assert(io.open(path, "ab"))
    handle:write(text)
    handle:close()
  end

  it("prints the figures of each file", function()
    local code, out, err = run_example(("%s %s --simulate 1"):format(path, path))
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal(2, select(2, out:gsub("operations +140\n", "")))
  end)

  it("takes a policy and a scale", function()
    local code, out = run_example(path .. " --simulate=0.5 --policy direct --scale 64")
    assert.equal(0, code)
    assert.matches("sizes / 64", out, 1, true)
    assert.matches("policy direct", out, 1, true)
    assert.matches("driver calls +140\n", out)
  end)

  it("stops at a malformed row with file, line and reason", function()
    append("0,alloc,0x1,-5,0,0\n")
    local code, out, err = run_example(path .. " --simulate 1")
    assert.equal(1, code)
    assert.equal("", out)
    assert.equal(("replay.lua: %s:212: size is negative: -5\n"):format(path), err)
  end)

  it("fails when allocations fail", function()
    append("0,alloc,0x1,4294967296,0,0\n")
    local code, out, err = run_example(path .. " --simulate 1")
    assert.equal(1, code)
    assert.matches("failed allocations +1\n", out)
    assert.equal("replay.lua: 1 allocations failed\n", err)
  end)

  it("names what is wrong with its arguments", function()
    local function refuses(arguments, message)
      local code, out, err = run_example(arguments)
      assert.equal(2, code)
      assert.equal("", out)
      assert.equal(1, err:find("replay.lua: " .. message .. "\nusage: ", 1, true), err)
    end
    refuses("", "no FILE: give it one or more recorded traces")
    refuses("x --policy best", "unknown policy 'best'; there are: caching, direct")
    refuses("x --scale 0", "--scale wants a whole number of at least 1, got '0'")
    refuses("x --scale", "--scale wants a value")
    refuses("x --simulate lots", "--simulate wants a number of GiB above 0, got 'lots'")
    refuses("x --simulate 1 --device 0", "--simulate and --device exclude each other")
    refuses("x --fast", "unknown option --fast")
    refuses("x -f", "unknown option -f")
  end)

  it("explains itself", function()
    local code, out = run_example "--help"
    assert.equal(0, code)
    assert.matches("usage: replay.lua FILE...", out, 1, true)
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
