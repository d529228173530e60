-- Arguments: every function that takes a size gets the values that have gone wrong elsewhere. Misuse raises an error
-- that names the function, the argument and the value; what the machine cannot give is nil, a message and a code.

local cl = require "clalloc"
local failure = require "spec.failure"

-- No sizes: value, what the message says of it.
local NO_SIZES = {
  { -1, "%-1 is negative" },
  { math.mininteger, "%-9223372036854775808 is negative" },
  { -1.0, "%-1%.0 is negative" },
  { 1.5, "1%.5 is no whole number" },
  { 0 / 0, "%-?nan is not finite" },
  { 1 / 0, "inf is not finite" },
  { -1 / 0, "%-inf is not finite" },
  { 2.0 ^ 63, "9%.2233720368548e%+18 is too large" },
  { 1e300, "1e%+300 is too large" },
  { "16", "the string '16' is no number" },
  { "x", "the string 'x' is no number" },
  { true, "boolean is no number" },
  { {}, "table is no number" },
  { print, "function is no number" },
}

-- Sizes that no machine has: whole numbers all the same.
local HUGE = { 2 ^ 53, 1 << 53, 1 << 62, math.maxinteger, math.maxinteger - 511, math.maxinteger // 8 * 8 }

describe("a function that takes a size", function()
  local sim, pool, buf, view, map

  setup(function()
    sim = cl.simulate{ capacity = 100 * cl.MiB }
    pool = sim:pool{}
    buf = assert(pool:alloc(1000))
    view = buf:view(100, 100)
    map = buf:map("rw", 0, 500)
  end)
  teardown(function()
    map:close()
    view:close()
    buf:close()
    pool:close()
    sim:close()
  end)

  -- name of the argument, a call with it; nil stands for a default there when `optional`
  local function each_function()
    return {
      { "nbytes", function(n) return sim:alloc(n) end },
      { "nbytes", function(n) return pool:alloc(n) end },
      { "offset", function(n) return buf:write("", n) end, true },
      { "offset", function(n) return buf:read(n) end, true },
      { "n", function(n) return buf:read(0, n) end, true },
      { "value", function(n) return buf:fill(n) end, false, true },
      { "offset", function(n) return buf:fill(0, { offset = n }) end, true },
      { "size", function(n) return buf:fill(0, { size = n }) end, true },
      { "offset", function(n) return buf:copy(view, { offset = n, size = 0 }) end, true },
      { "source_offset", function(n) return buf:copy(view, { source_offset = n, size = 0 }) end, true },
      { "size", function(n) return view:copy(view, { size = n, offset = 100 }) end, true },
      { "offset", function(n) return buf:view(n) end },
      { "n", function(n) return buf:view(0, n) end, true },
      { "offset", function(n) return buf:map("r", n) end, true },
      { "n", function(n) return buf:map("r", 0, n) end, true },
      { "offset", function(n) return map:read(n) end, true },
      { "n", function(n) return map:read(0, n) end, true },
      { "offset", function(n) return map:write("", n) end, true },
      { "limit", function(n) return pool:set_limit(n) end },
      { "limit", function(n) return sim:pool{ limit = n } end, true },
      { "grain", function(n) return sim:pool{ policy = { grain = n } } end, true },
      { "capacity", function(n) return cl.simulate{ capacity = n } end, true },
      { "max_alloc", function(n) return cl.simulate{ capacity = 1, max_alloc = n } end, true },
      { "refuse_above", function(n) return cl.simulate{ capacity = 1, refuse_above = n } end, true },
      { "n", function(n) return sim:complete(sim.default_stream, n) end, true },
      { "n", function(n) return cl.debug.fail("create_buffer", n) end },
    }
  end

  it("names the argument and the value that is no size (tarantool#5790)", function()
    for i, row in ipairs(each_function()) do
      local name, call, optional, is_pattern = table.unpack(row)
      for _, case in ipairs(NO_SIZES) do
        local value, text = table.unpack(case)
        if not (is_pattern and type(value) == "string") then
          assert.matches(name .. ": " .. text, failure(call, value), nil, ("row %d"):format(i))
        end
      end
      if not optional then assert.matches(name .. ": nil is no number", failure(call, nil)) end
    end
    assert.is_true(pool:check())
  end)

  it("names the function and the place", function()
    assert.matches("bad argument #1 to 'alloc' %(nbytes: %-1 is negative%)", failure(function() sim:alloc(-1) end))
    assert.matches("bad argument #2 to 'read' %(n: 1%.5 is no whole number%)", failure(function() buf:read(0, 1.5) end))
    assert.matches("bad argument #2 to 'fill' %(size: %-1 is negative%)", failure(function()
      buf:fill(0, { size = -1 })
    end))
    assert.matches("bad argument #1 to 'alloc' %(nbytes: nil is no number%)", failure(function() sim:alloc() end))
  end)

  it("takes a float that is whole", function()
    local a <close> = assert(sim:alloc(16.0))
    assert.equal("integer", math.type(a.size))
    assert.equal(16, a.size)
    assert.equal(10, #buf:read(0.0, 10.0))
  end)

  it("refuses what no device has without wrapping (cumo#170)", function()
    local before = pool:stats()
    for _, n in ipairs(HUGE) do
      local none, message, code = pool:alloc(n)
      assert.is_nil(none)
      assert.equal("TOO_LARGE", code)
      assert.matches(("%d bytes asked"):format(n), message)
      none, message, code = sim:alloc(n)
      assert.is_nil(none)
      assert.equal("string", type(message))
      assert.equal("TOO_LARGE", code)
    end
    for k = 0, 1024 do
      assert.equal("TOO_LARGE", (select(3, pool:alloc(math.maxinteger - k))))
    end
    local after = pool:stats()
    for _, name in ipairs{ "reserved_bytes", "active_bytes", "driver_allocs", "allocs" } do
      assert.equal(before[name], after[name])
    end
    local ok <close> = assert(pool:alloc(512))
    assert.equal(512, #ok)
    assert.is_true(pool:check())
  end)

  it("takes sizes between 31, 32 and 33 bits as they are", function()
    local large <close> = cl.simulate{ capacity = 1 << 40 }
    for _, n in ipairs{ 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 32) + 1, (1 << 33) + 4096 } do
      local one <close> = assert(large:alloc(n))
      assert.equal(n, one.size)
      assert.is_true(one.reserved >= n)
      assert.equal("", one:read(n))
    end
  end)

  it("keeps ranges inside, also when their sum would wrap", function()
    local outside = { { 1001, 0 }, { 0, 1001 }, { 1000, 1 }, { 999, 2 }, { 1, math.maxinteger }, { math.maxinteger, 1 },
      { math.maxinteger, math.maxinteger }, { 1 << 32, 0 } }
    for _, range in ipairs(outside) do
      local offset, n = range[1], range[2]
      local place = "reach outside a buffer of 1000 bytes"
      assert.matches(place, failure(buf.read, buf, offset, n))
      assert.matches(place, failure(buf.view, buf, offset, n))
      assert.matches(place, failure(buf.map, buf, "r", offset, n))
      assert.matches(place, failure(buf.fill, buf, 0, { offset = offset, size = n }))
      assert.matches("reach outside a %a+ of 1000 bytes", failure(buf.copy, buf, buf, { offset = offset, size = n }))
      assert.matches("reach outside a %a+ of 1000 bytes", failure(buf.copy, buf, buf,
        { source_offset = offset, size = n }))
    end
    assert.matches("100 bytes at offset 901 reach outside a source of 1000 bytes", failure(buf.copy, buf, buf,
      { source_offset = 901, size = 100 }))
    assert.matches("5 bytes at offset 996 reach outside a buffer of 1000 bytes", failure(buf.write, buf, "hello", 996))
    assert.matches("5 bytes at offset 996 reach outside a map of 500 bytes", failure(map.write, map, "hello", 996))
    assert.matches("5 bytes at offset 499 reach outside a map of 500 bytes", failure(map.read, map, 499, 5))
    assert.matches("10 bytes at offset 95 reach outside a buffer of 100 bytes", failure(view.read, view, 95, 10))
  end)
end)

describe("a function that takes an object", function()
  local sim, other, buf, foreign

  setup(function()
    sim = cl.simulate{ capacity = 10 * cl.MiB }
    other = cl.simulate{ capacity = 11 * cl.MiB }
    buf = assert(sim:alloc(100))
    foreign = assert(other:alloc(100))
  end)
  teardown(function()
    buf:close()
    foreign:close()
    sim:close()
    other:close()
  end)

  it("refuses another type, and says which it wants", function()
    assert.matches("clalloc%.buffer expected, got clalloc%.device", failure(function() buf:copy(sim) end))
    assert.matches("clalloc%.buffer expected, got no value", failure(function() buf:copy() end))
    assert.matches("clalloc%.stream expected, got string", failure(function() buf:record("x") end))
    assert.matches("clalloc%.device expected, got table", failure(sim.alloc, {}, 1))
    assert.matches("clalloc%.device expected, got clalloc%.buffer", failure(sim.alloc, buf, 1))
    assert.matches("clalloc%.pool expected, got FILE", failure(sim:pool().alloc, io.stdout, 1))
    assert.matches("string expected, got number", failure(function() buf:write(12) end))
    assert.matches("string expected, got no value", failure(function() buf:write() end))
    assert.matches("stream: a stream expected, got number", failure(sim.alloc, sim, 1, { stream = 1 }))
    assert.matches("stream: a stream expected, got string", failure(function() sim:pool():alloc(1, "x") end))
    assert.matches("pool: a pool expected, got boolean", failure(sim.alloc, sim, 1, { pool = true }))
    assert.matches("stream: a stream expected, got boolean", failure(buf.fill, buf, 0, { stream = true }))
    assert.matches("async: 1 is no boolean", failure(buf.fill, buf, 0, { async = 1 }))
  end)

  it("refuses objects of another device, and names both", function()
    local stream <close> = other:stream()
    local pool <close> = other:pool()
    local message = "belongs to Simulated 11 MiB device.* Simulated 10 MiB device"
    assert.matches(message, failure(sim.alloc, sim, 1, { stream = stream }))
    assert.matches(message, failure(sim.alloc, sim, 1, { pool = pool }))
    assert.matches(message, failure(buf.fill, buf, 0, { stream = stream }))
    assert.matches(message, failure(buf.record, buf, stream))
    assert.matches("belongs to another device", failure(sim.complete, sim, stream))
  end)

  it("refuses closed ones", function()
    local stream = sim:stream()
    local closed = assert(sim:alloc(1))
    stream:close()
    closed:close()
    assert.matches("stream: attempt to use a closed stream", failure(sim.alloc, sim, 1, { stream = stream }))
    assert.matches("stream: attempt to use a closed stream", failure(buf.fill, buf, 0, { stream = stream }))
    assert.matches("attempt to use a closed stream", failure(buf.record, buf, stream))
    assert.matches("attempt to use a closed buffer", failure(buf.copy, buf, closed))
  end)

  it("refuses options it does not know", function()
    assert.matches("no option is named 'strem'; there are stream, pool", failure(sim.alloc, sim, 1, { strem = 1 }))
    assert.matches("no option is named 'offset'; there are stream, wait, async",
      failure(buf.write, buf, "x", 0, { offset = 1 }))
    assert.matches("no option is named '1'", failure(buf.fill, buf, 0, { 1 }))
    assert.matches("no option is named 'lenght'", failure(buf.copy, buf, foreign, { lenght = 1 }))
    assert.matches("table expected, got number", failure(buf.fill, buf, 0, 16))
    assert.matches("table expected, got number", failure(sim.pool, sim, 16))
  end)

  it("is not fooled by a foreign userdata with the same methods", function()
    local close = getmetatable(buf).__gc
    assert.matches("clalloc%.buffer expected", failure(close, io.stdout))
    assert.matches("clalloc%.buffer expected", failure(close))
    assert.matches("clalloc%.buffer expected", failure(getmetatable(buf).__index, io.stdout, "size"))
    assert.matches("clalloc%.pool expected", failure(getmetatable(sim:pool()).__newindex, buf, "limit", 1))
  end)

  it("reads options of its table alone, not what that inherits", function()
    local raise = setmetatable({}, { __index = function() error "asked" end })
    local program <close> = assert(sim:program("kernel void f() {}", raise))
    assert(program.f)
    local hooks <close> = sim:host_cache { hooks = raise }
    assert(hooks:alloc(1)):close()
  end)
end)
