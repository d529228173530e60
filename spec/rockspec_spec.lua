-- The rockspec lists every source, and what LuaRocks builds from it, in a tree of its own and without a network, works.
local lfs = require "lfs"

local ROCKSPEC = "clalloc-scm-1.rockspec"
local here = lfs.currentdir()
local work = here .. "/build/rock"

-- Another package brings its own idea of where Lua finds things.
local CLEAN = "env -u LUA_PATH -u LUA_CPATH -u MAKEFLAGS -u MFLAGS -u MAKELEVEL "
-- Quick to compile; what a driver's package puts in one place is here in two.
local LUAROCKS = CLEAN .. "luarocks --lua-version 5.4 --tree '%s' %s CFLAGS='-O0 -fPIC' OPENCL_INCDIR='" .. work
  .. "/include' OPENCL_LIBDIR='" .. work .. "/lib'"

local function run(command)
  local pipe <close> = assert(io.popen("{ " .. command .. "; } 2>&1 </dev/null"))
  local output = pipe:read "a"
  local ok, how, code = pipe:close()
  assert(ok, ("%s: %s %d\n%s"):format(command, how, code, output))
  return output
end

local function read_rockspec()
  local rockspec = {}
  assert(loadfile(ROCKSPEC, "t", rockspec))()
  return rockspec
end

local function files(pattern)
  local list = {}
  for name in run(("find %s | sort"):format(pattern)):gmatch "[^\n]+" do list[#list + 1] = name end
  return list
end

local function lua_files(modules)
  local list = {}
  for _, source in pairs(modules) do
    if type(source) == "string" then list[#list + 1] = source end
  end
  table.sort(list)
  return list
end

describe("the rockspec", function()
  local rockspec = read_rockspec()
  local modules = rockspec.build.modules

  it("lists every C file", function()
    local listed = table.move(modules["clalloc.core"].sources, 1, #modules["clalloc.core"].sources, 1, {})
    table.sort(listed)
    assert.same(files "src -name '*.c'", listed)
  end)

  it("lists every Lua file, under the name that require takes", function()
    assert.same(files "lua -name '*.lua'", lua_files(modules))
    for name, path in pairs(modules) do
      local base = "lua/" .. name:gsub("%.", "/")
      if type(path) == "string" then assert(path == base .. ".lua" or path == base .. "/init.lua", name) end
    end
  end)

  it("is named after its package and version", function()
    assert.equal(ROCKSPEC, ("%s-%s.rockspec"):format(rockspec.package, rockspec.version))
  end)
end)

-- A tree with what the rockspec lists, and the headers; nothing that a build has left.
local function copy_tree(rockspec, to)
  local list = table.concat(rockspec.build.modules["clalloc.core"].sources, " ") .. " "
    .. table.concat(lua_files(rockspec.build.modules), " ") .. " "
    .. table.concat(files [[src -name '*.h' -o -name '*.cl']], " ")
  run(("mkdir -p '%s' && cp --parents %s %s LICENSE '%s'"):format(to, ROCKSPEC, list, to))
end

local function find_library()
  return run("gcc -print-file-name=libOpenCL.so"):gsub("%s+$", "")
end

-- Runs a script with nothing but the modules of a tree.
local function with_tree(tree, script)
  local path = work .. "/script.lua"
  do
    local file <close> = assert(io.open(path, "w"))
    assert(file:write(script))
  end
  return run(("cd / && LUA_PATH='%s/share/lua/5.4/?.lua;%s/share/lua/5.4/?/init.lua' LUA_CPATH='%s/lib/lua/5.4/?.so' "
    .. "lua5.4 -W '%s'"):format(tree, tree, tree, path))
end

local function check_tree(rockspec, tree)
  local lines = { "local names = {" }
  for name in pairs(rockspec.build.modules) do lines[#lines + 1] = ("%q,"):format(name) end
  lines[#lines + 1] = [[}
    for _, name in ipairs(names) do assert(require(name)) end
    local cl = require "clalloc"
    local dev <close> = assert(cl.simulate{ capacity = cl.GiB })
    local buf <close> = assert(dev:alloc(1000))
    assert(cl.resolve(buf.address + 3).size == 1000)
    assert(#cl.heap_source() > 1000)
    cl.help "pool:alloc"]]
  assert.matches("^pool:alloc%(nbytes", with_tree(tree, table.concat(lines, "\n")))
end

local has_luarocks = os.execute "command -v luarocks >/dev/null 2>&1"
local when = has_luarocks and describe or pending

when("luarocks", function()
  local rockspec = read_rockspec()

  setup(function()
    run(("rm -rf '%s' && mkdir -p '%s/include' '%s/lib'"):format(work, work, work))
    run(("ln -s /usr/include/CL '%s/include/CL' && ln -s '%s' '%s/lib/'"):format(work, find_library(), work))
    copy_tree(rockspec, work .. "/clalloc-scm-1")
  end)

  it("make builds a module that works, in a clean tree, with OpenCL's headers and library apart", function()
    local tree = work .. "/made"
    run(("cd '%s/clalloc-scm-1' && "):format(work) .. LUAROCKS:format(tree, "make"))
    check_tree(rockspec, tree)
    -- The core is inside and shows nothing that could meet a libclalloc.so in the same process.
    local symbols = run(("nm -D --defined-only '%s/lib/lua/5.4/clalloc/core.so'"):format(tree))
    assert.matches("luaopen_clalloc_core", symbols)
    assert.is_nil(symbols:find " cla_alloc\n")
  end)

  it("pack makes a rock that installs where nothing else is", function()
    local source, tree = work .. "/source", work .. "/packed"
    copy_tree(rockspec, source .. "/clalloc-scm-1")
    run(("cd '%s' && tar czf clalloc-scm-1.tar.gz clalloc-scm-1"):format(source))
    -- Where the source is: the rockspec itself stands for the checkout it lies in.
    run(([[sed 's|url = ".*"|url = "file://%s/clalloc-scm-1.tar.gz"|' %s >'%s/%s']]):format(
      source, ROCKSPEC, source, ROCKSPEC))
    run(("cd '%s' && %s luarocks --lua-version 5.4 pack %s"):format(source, CLEAN, ROCKSPEC))
    run(("rm -rf '%s/clalloc-scm-1' '%s/clalloc-scm-1.tar.gz'"):format(source, source))
    run("cd / && " .. LUAROCKS:format(tree, ("install '%s/clalloc-scm-1.src.rock'"):format(source)))
    check_tree(rockspec, tree)
  end)
end)

describe("another Lua", function()
  local others = {}
  for _, name in ipairs { "lua5.1", "lua5.2", "lua5.3", "luajit" } do
    if os.execute(("command -v %s >/dev/null 2>&1"):format(name)) then others[#others + 1] = name end
  end

  it("is told that 5.4 is needed", function()
    if #others == 0 then return pending "no other Lua is installed" end
    for _, name in ipairs(others) do
      local output = run(("! LUA_PATH='lua/?.lua;lua/?/init.lua' %s -e 'require \"clalloc\"'"):format(name))
      assert.matches("clalloc needs Lua 5.4; this is Lua 5%.%d", output, nil, name)
    end
  end)
end)
