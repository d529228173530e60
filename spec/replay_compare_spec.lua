-- Several policies in one replay, what their peaks were made of, the smallest limit, streams dealt out, pictures.

local cl = require "clalloc"
local trace = cl.trace

local dev

-- Blocks {key, size}: the first appearance of a key allocates, the second frees.
local function recorded(list)
  local rec, live = trace.recorder(), {}
  for _, item in ipairs(list) do
    local key, size = table.unpack(item)
    if live[key] then rec:free(key) else rec:alloc(key, size) end
    live[key] = not live[key]
  end
  return rec:finish "by hand"
end

local function random_trace(seed, operations)
  math.randomseed(seed)
  local rec, live, key = trace.recorder(), {}, 0
  for _ = 1, operations do
    if #live > 0 and math.random(100) <= 45 then
      rec:free(table.remove(live, math.random(#live)))
    else
      key = key + 1
      live[#live + 1] = key
      rec:alloc(key, math.random(1, 1 << math.random(0, 23)))
    end
  end
  return rec:finish("seed " .. seed)
end

setup(function() dev = assert(cl.simulate { capacity = 64 * cl.GiB, align = 512 }) end)
teardown(function() dev:close() end)

describe("a replay of several policies", function()
  it("gives what each gives alone", function()
    local t = random_trace(1, 2000)
    local both = cl.replay(t, { device = dev, policies = { "caching", cl.policy.direct() } })
    assert.equal(2, #both)
    for i, policy in ipairs { "caching", "direct" } do
      local alone = cl.replay(t, { device = dev, policy = policy })
      for _, field in ipairs { "policy", "driver_calls", "peak_live", "peak_reserved", "ratio", "failed" } do
        assert.equal(alone[field], both[i][field], field)
      end
    end
    assert.equal(1.0, both[2].ratio // 0.01 / 100)
    assert.is_true(both[1].driver_calls < both[2].driver_calls / 10)
  end)

  it("takes functions that make a policy of the trace and the device, one for each pass", function()
    local t, made = random_trace(2, 100), {}
    local function make(given, device)
      assert.equal(t, given)
      assert.equal(dev, device)
      made[#made + 1] = cl.policy.caching { grain = 4096 }
      return made[#made]
    end
    local r = cl.replay(t, { device = dev, policies = { make }, details = true })[1]
    assert.equal("caching", r.policy)
    assert.equal(3, #made)
    assert.equal(0, r.peak_reserved % 4096)
  end)

  it("prints a table, whose columns are those that there is something for", function()
    local t = recorded { { 1, 1 << 20 }, { 2, 1 << 30 }, { 1 } }
    local plain = tostring(cl.replay(t, { device = dev, policies = { "caching", "direct" } }))
    assert.matches("^replay of by hand on .-: 3 operations\n"
      .. "  policy +driver calls +peak live +peak reserved +ratio +ns/op\n", plain)
    assert.matches("\n  direct +3 +1%.00 GiB +1%.00 GiB +1%.0000 +%d+$", plain)
    local failing = tostring(cl.replay(t, { device = dev, policies = { "caching" }, limit = 1 << 24, fit = true }))
    assert.matches("smallest limit +/ live +ns/op +failed\n", failing)
    assert.matches("\n  caching fails first at operation 2, 1073741824 bytes: out of memory", failing)
  end)
end)

describe("details of a replay", function()
  it("say what the peak was made of", function()
    -- Segments of 2 MiB: what is free of the first is of no use for the 2 MiB that are asked for last.
    local policy = cl.policy.caching { growth_min = 0, growth_max = 0, growth_cap = 0 }
    local t = recorded { { 1, 100 }, { 2, 1 << 20 }, { 2 }, { 3, (2 << 20) - 100 }, { 3 } }
    local r = cl.replay(t, { device = dev, policy = policy, details = true })
    assert.equal(4, r.peak_operation)
    assert.equal(4 << 20, r.peak_reserved)
    assert.equal(512 / ((2 << 20) + 512), r.internal_waste)
    assert.equal(((2 << 20) - 512) / (4 << 20), r.external_fragmentation)
    assert.equal(2, #r.segments)
    assert.equal(2 << 20, r.segments[1].size)
  end)

  it("are nothing of nothing", function()
    local r = cl.replay(trace.recorder():finish(), { device = dev, details = true })
    assert.equal(0, r.peak_operation)
    assert.equal(0, r.internal_waste)
    assert.equal(0, r.external_fragmentation)
    assert.same({}, r.segments)
    assert.same({}, r.points)
  end)

  it("have at most a thousand points, among them the peaks", function()
    local t = random_trace(3, 25001)
    local r = cl.replay(t, { device = dev, details = true })
    assert.is_true(#r.points <= 1000 and #r.points > 900)
    local last, reserved, requested = 0, 0, 0
    for _, point in ipairs(r.points) do
      assert.is_true(point.operation > last and point.operation <= t.operations)
      assert.is_true(point.requested <= point.active and point.active <= point.reserved)
      last, reserved = point.operation, math.max(reserved, point.reserved)
      requested = math.max(requested, point.requested)
    end
    assert.equal(r.peak_reserved, reserved)
    assert.is_true(requested <= t.peak_live and requested > 0.95 * t.peak_live)
  end)

  it("leave the timed figures as they are without them", function()
    local t = random_trace(4, 3000)
    local without, with = cl.replay(t, { device = dev }), cl.replay(t, { device = dev, details = true, fit = true })
    for _, field in ipairs { "driver_calls", "peak_live", "peak_reserved", "failed" } do
      assert.equal(without[field], with[field], field)
    end
  end)

  it("come from figures whose reading changes nothing", function()
    local t, live = random_trace(11, 4000), { {}, {} }
    local watched <close> = assert(dev:pool {})
    local alone <close> = assert(dev:pool {})
    for i, slot in ipairs(t.op) do
      for k, pool in ipairs { watched, alone } do
        if slot > 0 then live[k][slot] = assert(pool:alloc(t.size[i])) else live[k][-slot]:close() end
      end
      local reserved, active, requested, held = watched:usage()
      assert(requested <= active and active + held <= reserved)
    end
    local function places(pool)
      local list = {}
      for _, segment in ipairs(pool:snapshot()) do
        for _, block in ipairs(segment.blocks) do
          list[#list + 1] = ("%d+%d %d %s"):format(segment.id, block.offset, block.size, block.state)
        end
      end
      return list
    end
    assert.same(places(alone), places(watched))
    local stats = watched:stats()
    assert.same({ stats.reserved_bytes, stats.active_bytes, stats.requested_bytes, stats.held_bytes },
      { watched:usage() })
    watched:close()
    assert.error_matches(function() watched:usage() end, "closed pool")
  end)

  it("estimate the time in the driver from a cost a call", function()
    local t = recorded { { 1, 64 }, { 1 }, { 1, 64 }, { 1 } }
    local r = cl.replay(t, { device = dev, policy = "direct", driver_cost = 0.25 })
    assert.equal(1.0, r.driver_seconds)
    assert.matches("\n  estimated for them +1%.00 s\n", tostring(r))
    assert.is_nil(cl.replay(t, { device = dev, details = true }).driver_seconds)
    local measured = cl.replay(t, { device = dev, policy = "direct", driver_cost = dev }).driver_seconds
    assert.is_true(measured > 0)
  end)
end)

describe("the smallest limit", function()
  it("completes, and 1/4096 of the live peak less does not", function()
    for seed = 5, 8 do
      local t = random_trace(seed, 1500)
      local limit = cl.replay(t, { device = dev, fit = true }).smallest_limit
      local less = limit - math.max(512, t.peak_live // 4096) - 1
      assert.equal(0, cl.replay(t, { device = dev, limit = limit }).failed)
      if less >= t.peak_live then assert.is_true(cl.replay(t, { device = dev, limit = less }).failed > 0) end
      assert.is_true(limit >= t.peak_live and limit <= 1.3 * t.peak_live)
    end
  end)

  it("is what is live where every block has a buffer of its own", function()
    local t = recorded { { 1, 1 << 20 }, { 2, 3 << 20 }, { 1 }, { 2 } }
    assert.equal(4 << 20, cl.replay(t, { device = dev, policy = "direct", fit = true }).smallest_limit)
  end)

  it("is not found where the device says no", function()
    local small <close> = cl.simulate { capacity = 1 << 20, align = 512 }
    local r = cl.replay(recorded { { 1, 2 << 20 } }, { device = small, fit = true })
    assert.is_false(r.smallest_limit)
    assert.matches("smallest limit +none found\n", tostring(r))
  end)
end)

describe("streams dealt out", function()
  it("take the allocations in turn, whatever stream they were on", function()
    local rec = trace.recorder()
    for i = 1, 7 do rec:alloc(i, 512, "s" .. i % 2) end
    for i = 1, 7 do rec:free(i) end
    local t, of_stream, streams = rec:finish(), {}, 0
    local r = cl.replay(t, { device = dev, policy = "direct", streams = 3, details = true })
    for _, segment in ipairs(r.segments) do
      local id = segment.blocks[1].stream
      if not of_stream[id] then streams = streams + 1 end
      of_stream[id] = (of_stream[id] or 0) + 1
    end
    assert.equal(0, r.failed)
    assert.equal(3, streams)
    for _, count in pairs(of_stream) do assert.is_true(count == 2 or count == 3) end -- seven in all
    assert.equal(3, t.streams) -- the trace itself is as it was
    assert.same({ 1, 2, 1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 2, 1 }, t.stream)
  end)

  it("need no less memory than one", function()
    local t = random_trace(9, 3000)
    local one, four = cl.replay(t, { device = dev, streams = 1 }), cl.replay(t, { device = dev, streams = 4 })
    assert.equal(one.peak_live, four.peak_live)
    assert.is_true(four.peak_reserved >= one.peak_live)
    assert.equal(one.peak_reserved, cl.replay(t, { device = dev }).peak_reserved)
  end)
end)

-- Pictures: gnuplot draws them, and what it writes is read as XML as far as needed to say that it is well formed.

-- The names of elements in order; raises where one is not closed, or text has a bare < or &.
local function elements(xml)
  local open, names, at = {}, {}, 1
  xml = xml:gsub("<%?.-%?>", ""):gsub("<!%-%-.-%-%->", ""):gsub("<!%[CDATA%[.-%]%]>", ""):gsub("<!DOCTYPE.->", "")
  for text, close, name, attributes, single in xml:gmatch "([^<]*)<(/?)([%w:_-]+)([^<>]-)(/?)>()" do
    assert(not text:gsub("&[#%w]+;", ""):find("&", 1, true), text)
    local rest = attributes:gsub('%s+[%w:_-]+%s*=%s*"[^"]*"', ""):gsub("%s+[%w:_-]+%s*=%s*'[^']*'", "")
    assert(rest:match "^%s*$", attributes)
    if close == "/" then
      assert.equal(name, table.remove(open))
    else
      names[#names + 1] = name
      if single ~= "/" then open[#open + 1] = name end
    end
  end
  assert.equal(0, #open)
  return names, at
end

describe("a picture", function()
  local path

  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  local function drawn(result)
    local ok, message, code = result:plot(path)
    if code == "UNSUPPORTED" then return nil, message end
    assert(ok, message)
    local file <close> = assert(io.open(path))
    return file:read "a"
  end

  it("is well-formed SVG, with a part for every policy", function()
    local t = random_trace(10, 2000)
    local svg, why = drawn(cl.replay(t, { device = dev, policies = { "caching", "direct" }, details = true }))
    if not svg then return pending(why) end
    assert.equal("svg", elements(svg)[1])
    local text = svg:gsub("<[^>]*>", "")
    for _, label in ipairs { "reserved", "requested", "operations", "segments at the peak", "caching", "direct" } do
      assert.matches(label, text, 1, true)
    end
  end)

  it("can be of names with anything in them, of one operation and of none", function()
    local nasty = "a_b^c {d} <e> & \"f\" 'g' \\h @i ~j $k `l`\n%m"
    local rec = trace.recorder()
    local results = { cl.replay(rec:finish(nasty), { device = dev, details = true }) }
    rec:alloc(1, 0)
    results[2] = cl.replay(rec:finish(nasty), { device = dev, details = true })
    for _, result in ipairs(results) do
      local svg, why = drawn(result)
      if not svg then return pending(why) end
      elements(svg)
      assert.matches("a_b^c", svg:gsub("<[^>]*>", ""), 1, true)
    end
  end)

  it("shows held blocks", function()
    local t = recorded { { 1, 1 << 20 } }
    local r = cl.replay(t, { device = dev, details = true })
    r.segments[1].blocks[1].state = "held"
    local svg, why = drawn(r)
    if not svg then return pending(why) end
    assert.matches("held", svg, 1, true)
  end)

  it("needs details, a path, and a place to be written to", function()
    local t = recorded { { 1, 1 } }
    local plain, with = cl.replay(t, { device = dev }), cl.replay(t, { device = dev, details = true })
    assert.error_matches(function() plain:plot(path) end, "plot: there is nothing to draw: replay with details = true")
    for _, bad in ipairs { 7, "", "a\nb", false } do
      assert.error_matches(function() with:plot(bad) end, "plot: path: expected the path of a file, got ")
    end
    local ok, message, code = with:plot "/no/such/folder/x.svg"
    assert.is_nil(ok)
    if code ~= "UNSUPPORTED" then
      assert.equal("plot: /no/such/folder/x.svg: No such file or directory", message)
      assert.equal("IO", code)
    end
  end)

  it("is not drawn without gnuplot", function()
    local script = 'local cl = require "clalloc"; local dev = cl.simulate { capacity = cl.GiB }; '
      .. "local r = cl.replay(cl.trace.recorder():finish(), { device = dev, details = true }); print(r:plot(arg[1]))"
    local command = ("PATH=/nowhere LUA_PATH='%s' LUA_CPATH='%s' /usr/bin/lua5.4 - %s 2>&1 <<'END'\n%s\nEND"):format(
      os.getenv "LUA_PATH" or package.path, os.getenv "LUA_CPATH" or package.cpath, path, script)
    local pipe <close> = assert(io.popen(command))
    assert.equal("nil\tplot: gnuplot is not installed\tUNSUPPORTED\n", pipe:read "a")
  end)
end)
