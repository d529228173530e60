-- Installs into a folder of its own and uses what is there, as another project would.
local lfs = require "lfs"

local here = lfs.currentdir()
local prefix = here .. "/build/install"

-- Without the settings of a `make test` around it, nor what it told Lua about this checkout.
local CLEAN = "env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u LUA_PATH -u LUA_CPATH "

local function run(command)
  local pipe <close> = assert(io.popen("{ " .. command .. "; } 2>&1"))
  local output = pipe:read "a"
  local ok, how, code = pipe:close()
  assert(ok, ("%s: %s %d\n%s"):format(command, how, code, output))
  return output
end

local function make(arguments)
  return run(CLEAN .. "make -s " .. arguments)
end

local function files(folder)
  return run(("cd '%s' && find . -not -type d | sort"):format(folder))
end

describe("make install", function()
  setup(function()
    run(("rm -rf '%s'"):format(prefix))
    make(("install PREFIX='%s'"):format(prefix))
  end)

  it("puts a module in place that needs nothing from the checkout", function()
    local script = [[
      package.path, package.cpath = arg[1] .. "/share/lua/5.4/?.lua;" .. arg[1] .. "/share/lua/5.4/?/init.lua",
        arg[1] .. "/lib/lua/5.4/?.so"
      print(type(require "clalloc"))]]
    local file <close> = assert(io.open(prefix .. "/require.lua", "w"))
    assert(file:write(script)):flush()
    assert.equal("table\n", run(("cd / && %s lua5.4 '%s/require.lua' '%s'"):format(CLEAN, prefix, prefix)))
  end)

  it("installs every Lua file", function()
    local installed = files(prefix .. "/share/lua/5.4")
    for path in files(here .. "/lua"):gmatch "[^\n]+" do assert.matches(path .. "\n", installed, 1, true) end
  end)

  it("has a prompt that shows objects and gives help", function()
    local output = run(("cd / && printf 'cl.simulate{ capacity = cl.GiB }:pool()\\ncl.help \"pool:alloc\"\\n' | "
      .. "%s LUA_PATH='%s/share/lua/5.4/?.lua;%s/share/lua/5.4/?/init.lua' LUA_CPATH='%s/lib/lua/5.4/?.so' "
      .. "lua5.4 -i -l cl=clalloc"):format(CLEAN, prefix, prefix, prefix))
    assert.matches("pool (caching, 0 segments", output, 1, true)
    assert.matches("A buffer from this pool.", output, 1, true)
  end)

  it("puts the heap's OpenCL C into one file, the text that the library has", function()
    local file <close> = assert(io.open(prefix .. "/include/clalloc_heap.cl"))
    assert.equal(require "clalloc".heap_source(), file:read "a")
  end)

  it("lets a program include that file", function()
    local dev <close> = require "clalloc".device()
    local source = [[
      #include "clalloc_heap.cl"
      kernel void f(CLA_HEAP heap, global uint *out) { out[0] = cla_malloc(heap, 10) != 0; }]]
    for _, options in ipairs { { options = "-I " .. prefix .. "/include" },
      { options = "-I " .. prefix .. "/include", heap = true } } do
      local program <close> = assert(dev:program(source, options))
      local out <close> = assert(dev:alloc(4))
      assert(program.f { dev.heap, out, size = 1 }):close()
      assert.equal(1, (string.unpack("<I4", out:read())))
    end
  end)

  it("lets a C program build with pkg-config and run", function()
    run(("mkdir -p '%s/c'"):format(prefix))
    make(("-C examples/c OUT='%s/c' PKG_CONFIG_PATH='%s/lib/pkgconfig'"):format(prefix, prefix))
    for name in lfs.dir "examples/c" do
      local program = name:match "^(.*)%.c$"
      if program then run(("LD_LIBRARY_PATH='%s/lib' '%s/c/%s'"):format(prefix, prefix, program)) end
    end
  end)

  it("is undone by make uninstall, under DESTDIR too", function()
    local root = here .. "/build/staged"
    run(("rm -rf '%s'"):format(root))
    make(("install DESTDIR='%s' PREFIX=/opt/it"):format(root))
    assert.matches("./opt/it/include/clalloc.h", files(root), 1, true)
    assert.matches("./opt/it/include/clalloc_heap.cl", files(root), 1, true)
    make(("uninstall DESTDIR='%s' PREFIX=/opt/it"):format(root))
    assert.equal("", files(root))
  end)
end)
