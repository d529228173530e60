-- lua/clalloc/meta.lua against the module: what it names is there, and what is there it names. `cl.help` and the
-- reference are read from it, so they are complete when it is.

local cl = require "clalloc"
local help = require "clalloc.help"
local interface = require "clalloc.interface"

local all = interface.load()

local function sorted_keys(set)
  local list = {}
  for name in pairs(set) do list[#list + 1] = name end
  table.sort(list)
  return list
end

-- Names of a class in meta.lua: functions and fields.
local function declared(class)
  local set = {}
  for _, f in ipairs(class.functions) do set[f.name] = true end
  for _, field in ipairs(interface.fields(class)) do set[field.name] = true end
  return sorted_keys(set)
end

local function declared_functions(class)
  local set = {}
  for _, f in ipairs(class.functions) do set[f.name] = true end
  return sorted_keys(set)
end

local function functions_in(where)
  local set = {}
  for name, value in pairs(where) do
    if type(name) == "string" and not name:find "^_" and type(value) == "function" then set[name] = true end
  end
  return sorted_keys(set)
end

-- The names that an options table may have, from the error for one that it may not.
local function accepted(call)
  local message = select(2, pcall(call, { no_such_option = true }))
  local names = tostring(message):match " are ([%w_, ]+)"
  assert(names, message)
  local set = {}
  for name in names:gmatch "[%w_]+" do set[name] = true end
  return sorted_keys(set)
end

describe("meta.lua", function()
  local dev

  setup(function() dev = assert(cl.simulate { capacity = cl.GiB, manual = true }) end)
  teardown(function() dev:close() end)

  it("can be loaded, and does nothing", function()
    local made = assert(loadfile "lua/clalloc/meta.lua")()
    assert.is_table(made)
    assert.is_nil(made.version)
  end)

  it("names the module's functions, tables and constants", function()
    local expected = declared(all.by_name.clalloc)
    for _, class in ipairs(all.classes) do
      local name = (class.variable or ""):match "^cl%.([%w_]+)$"
      if name then expected[#expected + 1] = name end
    end
    table.sort(expected)
    assert.same(sorted_keys(cl), expected)
  end)

  for _, class in ipairs(all.classes) do
    local name = (class.variable or ""):match "^cl%.([%w_]+)$"
    if name then
      it(("names what cl.%s has"):format(name), function()
        assert.same(sorted_keys(cl[name]), declared(class))
      end)
    end
  end

  for name, type in pairs(cl.debug.types()) do
    it("names the methods and fields of a " .. name, function()
      local class = assert(all.by_name[name], "no class in meta.lua")
      assert.is_truthy(class.variable, "no variable after the class")
      assert.same(sorted_keys(type.names), declared(class))
      assert.same(functions_in(type.names), declared_functions(class))
    end)
  end

  it("names the methods of a tensor", function()
    assert.same(sorted_keys(require "clalloc.tensor".methods), declared(all.by_name.tensor))
  end)

  it("names the methods and fields of a trace and of a recorder", function()
    local recorder = cl.trace.recorder()
    local trace = recorder:finish()
    assert.same(functions_in(getmetatable(recorder).__index), declared(all.by_name.recorder))
    assert.same(functions_in(getmetatable(trace).__index), declared_functions(all.by_name.trace))
    for _, field in ipairs(all.by_name.trace.fields) do assert(trace[field.name] ~= nil, field.name) end
    for name in pairs(trace) do assert(help.text("trace." .. name):find "^trace%.", name) end
  end)

  it("names the methods and fields of plans and of what replays give", function()
    local recorder = cl.trace.recorder()
    recorder:alloc(1, 64)
    local trace = recorder:finish()
    local several = cl.replay(trace, {
      device = dev, policies = { "caching" }, details = true, fit = true, driver_cost = 1e-6,
    })
    local one, made = several[1], cl.plan(trace)
    one.first_failure = ""
    local function names_of(object)
      local set = functions_in(getmetatable(object).__index)
      for name in pairs(object) do set[#set + 1] = type(name) == "string" and name or nil end
      table.sort(set)
      return set
    end
    for name, object in pairs { replay_comparison = several, replay_result = one, plan = made } do
      assert.same(names_of(object), declared(all.by_name[name]), name)
    end
    assert.same(sorted_keys(one.points[1]), declared(all.by_name.replay_point))
    assert.same(sorted_keys(made.areas[0]), declared(all.by_name.plan_area))
  end)

  it("names what tables of results have", function()
    local pool <close> = assert(dev:pool {})
    local buffer <close> = assert(pool:alloc(10))
    local snapshot = pool:snapshot()
    local cache <close> = assert(dev:host_cache { hooks = { free = function() end } })
    local event <close> = assert(buffer:fill(0, { async = true }))
    dev:complete(dev.default_stream)
    local tables = {
      pool_stats = pool:stats(), segment = snapshot[1], block = snapshot[1].blocks[1],
      stream_stats = dev.default_stream:stats(), host_stats = cache:stats(),
      event_times = assert(event:profile()),
    }
    for name, result in pairs(tables) do
      assert.same(sorted_keys(result), declared(all.by_name[name]), name)
    end
    assert.equal(10, buffer.size)
  end)

  it("names what kernels say of their parameters", function()
    local program <close> = assert(dev:program "kernel void f(global int *x) {}")
    assert.same(sorted_keys(program.f.args[1]), declared(all.by_name.kernel_arg))
  end)

  it("names the options that functions take", function()
    local buffer <close> = assert(dev:alloc(16))
    local source <close> = assert(dev:alloc(16))
    local pool <close> = assert(dev:pool {})
    local cache <close> = assert(dev:host_cache {})
    local pinned <close> = assert(cache:alloc(16))
    local program <close> = assert(dev:program "kernel void f(global int *x) {}")
    local takes = {
      simulation = cl.simulate,
      alloc_options = function(t) dev:alloc(1, t) end,
      pool_options = function(t) dev:pool(t) end,
      program_options = function(t) dev:program("kernel void f() {}", t) end,
      pool_alloc_options = function(t) pool:alloc(1, t) end,
      command_options = function(t) buffer:write("", 0, t) end,
      fill_options = function(t) buffer:fill(0, t) end,
      copy_options = function(t) buffer:copy(source, t) end,
      transfer_options = function(t) buffer:write_async(pinned, 0, t) end,
      host_options = function(t) dev:host_cache(t) end,
      host_limits = function(t) cache:set_limits(t) end,
      plan_options = function(t) cl.plan(cl.trace.recorder():finish(), t) end,
      replay_options = function(t) cl.replay(cl.trace.recorder():finish(), t) end,
      launch = function(t)
        t[1], t.size = false, 1
        program.f(t)
      end,
      policy_table = function(t) dev:pool { policy = t } end,
    }
    for name, call in pairs(takes) do
      assert.same(accepted(call), declared(all.by_name[name]), name)
    end
  end)

  it("says something about everything, in one line first", function()
    for _, class in ipairs(all.classes) do
      assert(#(class.lines[1] or "") > 0, class.name)
      for _, f in ipairs(class.functions) do
        assert(#(f.lines[1] or "") > 0, class.name .. "." .. f.name)
        local text = help.text(class.variable .. f.sep .. f.name)
        assert(text:find(interface.signature(f), 1, true), f.name)
      end
    end
  end)

  it("describes exactly the parameters that its functions have", function()
    local file <close> = assert(io.open "lua/clalloc/meta.lua")
    local count = 0
    for variable, sep, name, parameters in file:read "a":gmatch "\nfunction ([%w_.]-)([.:])([%w_]+)%((.-)%)" do
      local class = all.by_variable[variable]
      for _, f in ipairs(class.functions) do
        if f.name == name and f.sep == sep then
          local names = {}
          for i, param in ipairs(f.params) do names[i] = param.name end
          assert.equal(parameters, table.concat(names, ", "), variable .. sep .. name)
          count = count + 1
        end
      end
    end
    assert(count > 100)
  end)

  it("knows the types that it mentions", function()
    local known = { self = true }
    for _, class in ipairs(all.classes) do known[class.name] = true end
    for _, alias in ipairs(all.aliases) do known[alias.name] = true end
    local file <close> = assert(io.open "lua/clalloc/meta.lua")
    for line in file:lines() do
      if line:find "^%-%-%-@" then
        for name in line:gmatch "clalloc%.([%l_]+)" do assert(known[name], line) end
      end
    end
  end)
end)

describe("the module, opened again in the same state", function()
  it("keeps its types and what Lua files have added to them", function()
    local dev <close> = cl.simulate { capacity = cl.MiB }
    local pool = dev:pool()
    local loaded = package.loaded["clalloc.core"]
    package.loaded["clalloc.core"] = nil
    require "clalloc.core"
    package.loaded["clalloc.core"] = loaded
    assert.is_string(pool:draw())
    assert.equal("buffer (closed)", (function()
      local buf = assert(pool:alloc(1))
      buf:close()
      return tostring(buf)
    end)())
  end)
end)
