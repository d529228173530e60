-- The end of things: every order of closing leaves nothing behind, and a process ends as the script says,
-- whatever is still alive, queued or held by a gate.

local cl = require "clalloc"
local every_type = dofile "spec/every_type.lua"

local function collect()
  collectgarbage()
  collectgarbage()
end

-- Calls visit with every order of the list.
local function permutations(list, visit, n)
  n = n or #list
  if n <= 1 then return visit(list) end
  for i = 1, n do
    list[n], list[i] = list[i], list[n]
    permutations(list, visit, n - 1)
    list[n], list[i] = list[i], list[n]
  end
end

-- The same orders on every machine: math.random belongs to the runner.
local function shuffler(seed)
  local state = seed
  return function(list)
    for i = #list, 2, -1 do
      state = (state * 6364136223846793005 + 1442695040888963407)
      local j = (state >> 33) % i + 1
      list[i], list[j] = list[j], list[i]
    end
    return list
  end
end

local function checked(order, before, after)
  assert.same(before, after, "after closing in the order " .. table.concat(order, ", "))
end

describe("closing", function()
  -- On a simulated device of its own, so that nothing at all may be left.
  local function close_in(order, drop)
    local before = cl.debug.live()
    local o = every_type.make(cl, cl.simulate{ capacity = cl.GiB })
    for i, name in ipairs(order) do
      if drop and drop(i) then o[name] = nil else o[name]:close() end
    end
    -- What the order does not name ends last.
    for _, object in pairs(o) do object:close() end
    o = nil -- luacheck: ignore
    if drop then collect() end
    checked(order, before, cl.debug.live())
  end

  for _, handful in ipairs{
    { "pool", "stream", "buffer", "view", "map" },
    { "device", "pool", "buffer", "stream", "gate" },
    { "program", "kernel", "event", "device", "buffer" },
    { "gate", "stream", "event", "map", "guard" },
  } do
    it("works in every order of " .. table.concat(handful, ", "), function()
      collect()
      permutations(handful, close_in)
    end)
  end

  it("works in random orders of every type, closed or left to the collector", function()
    collect()
    for seed = 1, 200 do
      local shuffle = shuffler(seed)
      local order = shuffle{ table.unpack(every_type.NAMES) }
      local drop = seed % 2 == 0 and function(i) return (seed >> i) & 1 == 1 end
      local ok, message = pcall(close_in, order, drop)
      assert(ok, ("seed %d: %s"):format(seed, tostring(message)))
    end
  end)

  it("works in random orders on a real device", function()
    local dev <close> = cl.device()
    local function settle()
      collect()
      dev.default_stream:finish()
      dev:pool():trim()
      collect()
      return cl.debug.live()
    end
    every_type.make(cl, cl.device()).gate:close() -- what the device makes once
    local before = settle()
    for seed = 1, 40 do
      local order = shuffler(seed){ table.unpack(every_type.NAMES) }
      local o = every_type.make(cl, cl.device())
      local event = o.event
      for i, name in ipairs(order) do
        if seed % 2 == 1 or (seed + i) % 3 > 0 then o[name]:close() end
      end
      o = nil -- luacheck: ignore
      event:close()
      checked(order, before, settle())
    end
  end)

  it("works on what commands are still using, in every order", function()
    collect()
    permutations({ "target", "source", "pool", "stream", "gate" }, function(order)
      local before = cl.debug.live()
      local sim = cl.simulate{ capacity = cl.GiB, manual = true }
      local o = { gate = sim:gate(), stream = sim:stream(), pool = sim:pool{} }
      o.source, o.target = assert(o.pool:alloc(1000)), assert(o.pool:alloc(1000, o.stream))
      o.stream:wait(o.gate)
      local options = { stream = o.stream, async = true }
      o.target:copy(o.source, options)
      o.target:write("abc", 0, options)
      o.target:read(0, 1000, options)
      o.source:fill(1, options):close()
      for _, name in ipairs(order) do o[name]:close() end
      sim:close()
      sim, o, options = nil, nil, nil
      collect()
      checked(order, before, cl.debug.live())
      assert.is_nil(sim or o or options)
    end)
  end)

  it("twice, by hand and by scope, is the same as once", function()
    collect()
    local before = cl.debug.live()
    local o = every_type.make(cl, cl.simulate{ capacity = cl.GiB })
    for _ = 1, 3 do
      for _, name in ipairs(every_type.NAMES) do
        local scoped <close> = o[name]
        scoped:close()
      end
    end
    assert.same(before, cl.debug.live())
  end)
end)

describe("a process", function()
  local SECONDS = 60 -- one that takes longer hangs

  local PRELUDE = [[
    local cl = require "clalloc"
    local every_type = dofile "spec/every_type.lua"
  ]]

  -- What it holds when it ends.
  local HOLDINGS = {
    ["nothing but the module"] = "",
    ["a device"] = "dev = cl.device()",
    ["live buffers, views and maps"] = [[
      dev = cl.device()
      x, s = dev:alloc(10000), dev:stream()
      y = dev:pool{}:alloc(5000, s)
      v, m = x:view(128, 100), y:map("rw")
    ]],
    ["queued work"] = [[
      dev = cl.device()
      x = dev:alloc(1 << 20)
      for i = 1, 50 do e = x:fill(i, {async = true}) end
    ]],
    ["a gate that is shut, and work behind it"] = [[
      o = every_type.make(cl, cl.device())
      s = o.device:stream()
      s:wait(o.event)
      e = o.buffer:fill(0, {stream = s, async = true})
    ]],
    ["asynchronous transfers under way"] = [[
      dev = cl.device()
      x, s, g = dev:alloc(1 << 20), dev:stream(), dev:gate()
      w = x:write(("z"):rep(1 << 20), 0, {stream = s, async = true})
      r = x:read(0, 1 << 20, {stream = s, async = true})
      s:wait(g)
      w2 = x:write(("y"):rep(1 << 20), 0, {stream = s, async = true})
      r2 = x:read(0, 1 << 20, {stream = s, async = true})
    ]],
    ["asynchronous transfers that it has dropped"] = [[
      local x, g = cl.device():alloc(1 << 20), cl.device():gate()
      local s = cl.device():stream()
      s:wait(g)
      x:write(("y"):rep(1 << 20), 0, {stream = s, async = true})
      x:read(0, 1 << 20, {stream = s, async = true})
      gate = g
      x, s = nil, nil
      collectgarbage()
    ]],
    ["everything, used"] = "o = every_type.make(cl, cl.device()) every_type.use(cl, o)",
    ["everything, in open scopes and coroutines"] = [[
      c = coroutine.wrap(function()
        local dev <close> = cl.device()
        local g <close> = cl.guard(dev:stream())
        local b <close> = dev:alloc(100)
        local m <close> = b:map("r")
        coroutine.yield()
      end)
      c()
      o = every_type.make(cl, cl.device())
    ]],
    ["a simulated device at work"] = [[
      sim = cl.simulate{capacity = 1 << 30, manual = true}
      o = every_type.make(cl, cl.simulate{capacity = 1 << 30})
      x = sim:alloc(4096)
      for i = 1, 50 do e = x:fill(0, {async = true}) end
    ]],
    ["finalizers that allocate"] = [[
      dev = cl.device()
      for i = 1, 10 do
        setmetatable({}, {__gc = function()
          pcall(function() leaked = dev:alloc(1000) leaked:fill(0) stream = dev:stream() end)
          pcall(function() other = cl.device():pool{}:alloc(10) end)
          pcall(function() every = every_type.make(cl, cl.simulate{capacity = 1 << 30}) end)
        end})
      end
      x = dev:alloc(10)
    ]],
  }

  local ENDINGS = {
    { title = "falls off the end", code = 0, script = "" },
    { title = "exits and closes the state", code = 0, script = "os.exit(0, true)" },
    { title = "exits without closing it", code = 0, script = "os.exit(0, false)" },
    { title = "exits with a code of its own", code = 7, script = "os.exit(7, true)" },
    { title = "fails at top level", code = 1, script = "error 'on purpose'" },
  }

  local env = ""
  if not os.getenv "LUA_CPATH" then
    env = ("LUA_PATH='%s' LUA_CPATH='%s' "):format(package.path, package.cpath)
  end

  local function run(script)
    local path <const> = os.tmpname()
    local file <close> = assert(io.open(path, "w"))
    file:write(script)
    file:close()
    local pipe = assert(io.popen(("%stimeout %d lua5.4 -W %s 2>&1"):format(env, SECONDS, path)))
    local output = pipe:read "a"
    local _, how, code = pipe:close()
    os.remove(path)
    return how, code, output
  end

  -- kpet/clvk#531, viennacl/viennacl-dev#154, ml-explore/mlx#2424: calls into a driver that is gone.
  for holding, script in pairs(HOLDINGS) do
    for _, ending in ipairs(ENDINGS) do
      it(("that holds %s %s"):format(holding, ending.title), function()
        local how, code, output = run(PRELUDE .. script .. "\n" .. ending.script)
        assert.equal("exit", how, output)
        assert.equal(ending.code, code, output)
        assert.is_nil(output:find("warning", 1, true), output)
        if ending.code ~= 1 then assert.equal("", output) end
      end)
    end
  end
end)
