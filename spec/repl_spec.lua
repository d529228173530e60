-- At the Lua prompt: what objects show of themselves, what help says, and that nothing ends the session.

local cl = require "clalloc"
local help = require "clalloc.help"

-- Types the lines at a prompt that was started with -l cl=clalloc; returns what came, prompts taken off.
local function session(...)
  local input = os.tmpname()
  do
    local file <close> = assert(io.open(input, "w"))
    assert(file:write(table.concat({ ... }, "\n"), "\nprint 'still here'\n"))
  end
  local pipe <close> = assert(io.popen(("lua5.4 -i -l cl=clalloc <'%s' 2>&1"):format(input)))
  local output = pipe:read "a"
  local ok, how, code = pipe:close()
  os.remove(input)
  assert(ok, ("%s %d\n%s"):format(how, code, output))
  assert.matches("still here\n", output, 1, true)
  return (output:gsub("\n> ", "\n"))
end

local SIM = "sim = cl.simulate{ capacity = cl.GiB }"

describe("the Lua prompt", function()
  it("shows a device with its memory and limit", function()
    assert.matches("device %(.-, 1%.0 GiB, pool limit 896%.0 MiB%)", session(SIM, "sim"))
  end)

  it("shows a pool with a map of its segments", function()
    local shown = session(SIM, "a = sim:alloc(3 * cl.MiB)", "b = sim:alloc(cl.MiB // 2)", "sim:pool()")
    assert.matches("pool (caching, 1 segment, 3.5 MiB active of 4.0 MiB reserved, limit 896.0 MiB)\n    1    4.00 MiB  "
      .. ("#"):rep(56) .. ("."):rep(8) .. "\n# active", shown, 1, true)
  end)

  it("shows a heap with its map, or that it is not used yet", function()
    local shown = session(SIM, "sim.heap", "p = sim:program('kernel void f() { free(malloc(4)); }', { heap = true })",
      "p.f{ size = 1 }:wait()", "sim.heap", "sim.heap:close()", "p.f", "sim.heap:leaks()")
    assert.matches("heap (limit 8.0 MiB, not used yet)\n", shown, 1, true)
    assert.matches("heap (limit 8.0 MiB, 0 B in 0 blocks)\n  " .. ("."):rep(64) .. "\n", shown, 1, true)
    assert.matches("\n# taken  + partly  . free; 8.00 KiB a character", shown, 1, true)
    assert.matches("kernel f()", shown, 1, true)
    assert.matches("nothing is live", shown, 1, true)
  end)

  it("shows a stream with its counters and an event with its state", function()
    local shown = session(SIM, "a = sim:alloc(64)", "sim.default_stream:finish()",
      "e = a:fill(1, { async = true })", "e", "sim.default_stream")
    assert.matches("event %(command %d+ of stream %d+, complete%)", shown)
    assert.matches("stream %(%d+, .-, %d+ submitted, %d+ known complete%)", shown)
  end)

  it("shows a kernel with its signature", function()
    local shown = session(SIM, "p = sim:program 'kernel void f(global float *x, int n) {}'", "p.f")
    assert.matches("kernel f(global float *x, int n)", shown, 1, true)
  end)

  it("shows the module, a policy, a recorder", function()
    local shown = session("cl", "cl.policy.caching{ grain = 1 << 20 }", "cl.trace.recorder()")
    assert.matches("cl.help() lists what there is", shown, 1, true)
    assert.matches("policy (caching, grain 1048576)", shown, 1, true)
    assert.matches("recorder (0 allocations)", shown, 1, true)
  end)

  it("goes on after an error, a closed object, a failed build, a failed allocation", function()
    local shown = session(SIM, "error 'mine'", "a = sim:alloc(1)", "a:close()", "a:read()", "a",
      "sim:program 'kernel void f() { nonsense'", "sim:alloc(100 * cl.GiB)", "p = sim:pool()", "p:close()", "p",
      "p:draw()", "cl.help(nil)", "cl.help(a)", "cl.help 'nothing of the kind'")
    for _, part in ipairs {
      "mine", "attempt to use a closed buffer", "buffer (closed)", "does not build", "TOO_LARGE", "pool (closed)",
      "attempt to use a closed pool", "There is no help on nil", "There is no help on 'nothing of the kind'",
    } do
      assert.matches(part, shown, 1, true)
    end
  end)
end)

describe("in a script", function()
  it("a pool is one line", function()
    local dev <close> = assert(cl.simulate { capacity = cl.GiB })
    local buf <close> = assert(dev:alloc(1))
    assert.is_nil(tostring(dev:pool()):find "\n")
    assert.equal(1, #buf)
  end)
end)

describe("pool:draw", function()
  local dev, pool

  before_each(function()
    dev = assert(cl.simulate { capacity = cl.GiB, manual = true })
    pool = assert(dev:pool {})
  end)
  after_each(function()
    pool:close()
    dev:close()
  end)

  local function rows(...)
    local list = {}
    for line in pool:draw(...):gmatch "[^\n]+" do list[#list + 1] = line end
    return list
  end

  it("of an empty pool is its line", function()
    assert.equal(tostring(pool), pool:draw())
  end)

  it("tells active, held and free ranges", function()
    local other <close> = assert(dev:stream())
    local first = assert(pool:alloc(cl.MiB // 2))
    local second = assert(pool:alloc(cl.MiB // 2))
    second:record(other)
    second:fill(0, { stream = other, async = true }):close()
    second:close()
    assert.matches("^    1    2%.00 MiB  ####~~~~%.%.%.%.%.%.%.%.$", rows(16)[2])
    first:close()
    dev:complete(other)
    pool:trim()
    assert.equal(tostring(pool), pool:draw())
  end)

  it("marks a range that is active in part", function()
    local small <close> = assert(pool:alloc(100))
    assert.matches(" %+%.%.%.%.%.%.%.$", rows(8)[2])
    assert.equal(100, #small)
  end)

  it("shows the largest segments and sums up the others", function()
    local kept = {}
    for i = 1, 5 do kept[i] = assert(pool:alloc(i * 4 * cl.MiB)) end
    local segments = pool:stats().segments
    local drawn = rows(10, 2)
    assert.equal(1 + 2 + 1 + 1, #drawn)
    assert.matches(("and %d smaller segments, "):format(segments - 2), drawn[4], 1, true)
    for _, buffer in ipairs(kept) do buffer:close() end
  end)

  it("refuses widths and rows that are no counts", function()
    assert.is_string(pool:draw(math.maxinteger, math.maxinteger))
    assert.error_matches(function() pool:draw(0) end, "draw: width: expected an integer of at least 1, got 0")
    assert.error_matches(function() pool:draw(8, "x") end, "draw: rows: expected an integer of at least 1, got x")
  end)
end)

describe("cl.help", function()
  it("without an argument lists functions, tables and objects", function()
    local text = help.text()
    for _, part in ipairs { "cl.device([selector])", "cl.policy ", "\n  pool ", "\n  tensor ", "pool_stats" } do
      assert.matches(part, text, 1, true)
    end
  end)

  it("takes an object and says what it can do, beside what it is", function()
    local dev <close> = assert(cl.simulate { capacity = cl.GiB })
    local text = help.text(dev)
    assert.equal(tostring(dev), text:match "^[^\n]+")
    assert.matches("\n  :alloc%(nbytes %[, options%]%) +A buffer", text)
    assert.matches("\n  .global_mem +integer: bytes of memory", text)
  end)

  it("takes a function, a method, a table of the module", function()
    local dev <close> = assert(cl.simulate { capacity = cl.GiB })
    assert.matches("^cl.simulate%(options%)\n", help.text(cl.simulate))
    assert.matches("^device:alloc%(", help.text(dev.alloc))
    assert.matches("^cl.trace.human%(", help.text(cl.trace.human))
    assert.matches("cl.policy.direct(", help.text(cl.policy), 1, true)
    assert.equal(help.text(), help.text(cl))
  end)

  it("takes names, with or without what they belong to", function()
    for _, name in ipairs { "pool:alloc", "pool.alloc", "clalloc.pool.alloc", "pool:alloc(n)" } do
      assert.matches("^pool:alloc%(", help.text(name), nil, name)
    end
    assert.matches("^cl.device%(", help.text "cl.device")
    assert.matches("^cl.policy.caching%(", help.text "policy.caching")
    local alloc = help.text "alloc"
    assert(alloc:find "device:alloc" and alloc:find "pool:alloc" and alloc:find "recorder:alloc")
    assert.matches("^pool.limit  integer", help.text "pool.limit")
  end)

  it("lists the fields of an options table with the function that takes it", function()
    assert.matches("%.capacity%? +integer: bytes", help.text "cl.simulate")
  end)

  it("says so where there is nothing to say", function()
    for _, thing in ipairs { 1, "?", "", print, {}, true, io.stdout } do
      assert.matches("^There is no help on ", help.text(thing))
    end
    assert.matches("^There is no help on nil", help.text(nil))
  end)
end)
