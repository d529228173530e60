-- Programs: OpenCL C from a string, built once, its kernels by name.

local cl = require "clalloc"
local failure = require "spec.failure"

local SOURCE = [[
kernel void scale(float a, global float *x) { x[get_global_id(0)] *= a; }
kernel void add(global const float *x, global float *y) { y[get_global_id(0)] += x[get_global_id(0)]; }
]]

-- What a one-item kernel of the program writes: an int.
local function answer(dev, prog)
  local out <close> = assert(dev:alloc(4))
  assert(prog.f { out, size = 1 })
  return (string.unpack("i4", out:read()))
end

local function returning(expression)
  return "kernel void f(global int *out) { *out = " .. expression .. "; }"
end

describe("a program", function()
  local dev

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)

  it("lists its kernels in alphabetical order", function()
    local prog <close> = dev:program(SOURCE)
    assert.same({ "add", "scale" }, prog:kernels())
  end)

  it("gives a kernel by its name, the same object each time", function()
    local prog <close> = dev:program(SOURCE)
    assert.equal("scale", prog.scale.name)
    assert.equal(prog.scale, prog.scale)
    assert.not_equal(prog.scale, prog.add)
  end)

  it("raises for a kernel it has not, and says which there are", function()
    local prog <close> = dev:program(SOURCE)
    assert.matches("the program has no kernel 'sacle'; it has add, scale",
      failure(function() return prog.sacle end))
    local empty <close> = dev:program "int unused(void) { return 1; }"
    assert.matches("no kernel 'f'; it has none", failure(function() return empty.f end))
  end)

  it("says what it is", function()
    local prog = dev:program(SOURCE)
    assert.equal("program (2 kernels: add, scale on " .. dev.name .. ")", tostring(prog))
    local one <close> = dev:program(returning "1")
    assert.equal("program (1 kernel: f on " .. dev.name .. ")", tostring(one))
    prog:close()
    assert.equal("program (closed)", tostring(prog))
  end)

  it("walks over its kernels with pairs", function()
    local prog <close> = dev:program(SOURCE)
    local seen = {}
    for name, kernel in pairs(prog) do
      seen[#seen + 1] = name
      assert.equal(prog[name], kernel)
    end
    assert.same({ "add", "scale" }, seen)
  end)

  it("prefers a kernel to a method of the same name", function()
    local prog <close> = dev:program "kernel void close(global int *out) { *out = 5; }"
    local out <close> = assert(dev:alloc(4))
    assert(prog.close { out, size = 1 })
    assert.equal(5, (string.unpack("i4", out:read())))
    assert.same({ "close" }, prog:kernels())
  end)

  describe("is built", function()
    it("with the options given", function()
      local prog <close> = dev:program(returning "N", { options = "-DN=4" })
      assert.equal(4, answer(dev, prog))
      local other <close> = dev:program(returning "N", "-DN=5")
      assert.equal(5, answer(dev, other))
    end)

    it("with defines: numbers, text, true for 1, false for nothing", function()
      local source = returning [[
        COUNT * 1000 + (int)(HALF * 2) * 100 + PLUS(2) * 10 + FLAG
        #ifdef ABSENT
        + 100000
        #endif
      ]]
      local prog <close> = dev:program(source,
        { defines = { COUNT = 4, HALF = 0.5, ["PLUS(x)"] = "(x + 1)", FLAG = true, ABSENT = false } })
      assert.equal(4131, answer(dev, prog))
    end)

    it("with defines that do not move the source's line numbers", function()
      local prog <close> = dev:program(returning "__LINE__", { defines = { A = 1, B = 2 } })
      assert.equal(1, answer(dev, prog))
    end)

    it("never with defines that are none", function()
      local function with(defines)
        return failure(dev.program, dev, SOURCE, { defines = defines })
      end
      assert.matches("defines: '4x' is no name of a macro", with { ["4x"] = 1 })
      assert.matches("defines: '1' is no name of a macro", with { 1 })
      assert.matches("defines.N: number, string or boolean expected, got table", with { N = {} })
      assert.matches("defines.N: a line break", with { N = "1\n2" })
      assert.matches("defines.N: inf cannot be written", with { N = math.huge })
      assert.matches("defines: table expected, got 4", with(4))
    end)

    it("from strings only", function()
      assert.matches("source: string expected, got boolean", failure(dev.program, dev, true))
      assert.matches("source: string expected, got nil", failure(dev.program, dev))
      assert.matches("source: a zero byte at position 2", failure(dev.program, dev, "a\0b"))
      assert.matches("options: string expected, got 1", failure(dev.program, dev, SOURCE, 1))
      assert.matches("'defnes'", failure(dev.program, dev, SOURCE, { defnes = {} }))
    end)
  end)

  describe("that does not build", function()
    it("raises with the compiler's log, without the source", function()
      local message = failure(dev.program, dev,
        "kernel void right(global int *out) {}\nkernel void f(global int *out) { *out = undeclared_name; }")
      assert.matches("the source does not build for " .. dev.name, message, 1, true)
      assert.matches("undeclared_name", message, 1, true)
      assert.is_nil(message:find("kernel void right", 1, true)) -- some compilers quote the line at fault
    end)

    it("raises for options that the compiler does not know", function()
      assert.has_error(function() return dev:program(SOURCE, "-cl-std=CL99.9") end)
    end)

    it("leaves nothing behind", function()
      local before = cl.debug.live "program"
      failure(dev.program, dev, "kernel void f( {")
      assert.equal(before, cl.debug.live "program")
    end)

    it("through no fault of the source returns nil, a message and a code", function()
      local before = cl.debug.live "program"
      cl.debug.fail("build_program", 1)
      local prog, message, code = dev:program(SOURCE)
      assert.is_nil(prog)
      assert.matches("build_program failed: CL_OUT_OF_RESOURCES", message)
      assert.equal("NOMEM", code)
      assert.equal(before, cl.debug.live "program")
    end)
  end)

  describe("asked for again", function()
    it("is the same object, for the same source and options", function()
      local prog <close> = dev:program(SOURCE, { options = "-DN=1", defines = { A = 1, B = 2 } })
      assert.equal(prog, dev:program(SOURCE, { options = "-DN=1", defines = { B = 2, A = 1 } }))
      local plain <close> = dev:program(SOURCE)
      assert.not_equal(prog, plain)
    end)

    it("is another one on another device", function()
      local sim <close> = cl.simulate { capacity = cl.MiB }
      local here <close> = dev:program(SOURCE)
      local there <close> = sim:program(SOURCE)
      assert.not_equal(here, there)
    end)

    it("is built again once it was closed or collected", function()
      local first = dev:program(SOURCE)
      first:close()
      local second = dev:program(SOURCE)
      assert.equal("scale", second.scale.name)
      assert.not_equal(first, second)
      second:close()
      local before = cl.debug.live "program"
      do local _ = dev:program(returning "7") end
      collectgarbage()
      collectgarbage()
      assert.equal(before, cl.debug.live "program")
    end)
  end)

  describe("that is closed", function()
    it("closes its kernels, and releases them before itself", function() -- inducer/pyopencl#300
      local kernels, programs = cl.debug.live "kernel", cl.debug.live "program"
      local prog = dev:program(SOURCE)
      local scale, add = prog.scale, prog.add
      assert.equal(kernels + 2, cl.debug.live "kernel")
      prog:close()
      prog:close()
      assert.equal(kernels, cl.debug.live "kernel")
      assert.equal(programs, cl.debug.live "program")
      assert.equal("kernel (closed)", tostring(scale))
      assert.matches("attempt to use a closed kernel", failure(add, { size = 1 }))
    end)

    it("raises on use", function()
      local prog = dev:program(SOURCE)
      prog:close()
      assert.matches("attempt to use a closed program", failure(prog.kernels, prog))
      assert.matches("attempt to use a closed program", failure(function() return prog.scale end))
      assert.matches("attempt to use a closed program", failure(pairs, prog))
    end)

    it("stays alive while only a kernel of it is reachable", function()
      local programs = cl.debug.live "program"
      local f = dev:program(returning "3").f
      collectgarbage()
      collectgarbage()
      local out <close> = assert(dev:alloc(4))
      assert(f { out, size = 1 })
      assert.equal(3, (string.unpack("i4", out:read())))
      f = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      assert.equal(programs, cl.debug.live "program")
    end)
  end)

  it("reports every failing driver call, and leaves nothing", function()
    local source = "typedef struct { int a; } own; kernel void f(own v, global int *out) { *out = v.a; }"
    local function must(value, message)
      if not value then error(message, 0) end
      return value
    end
    local function session(on)
      local prog <close> = must(on:program(source))
      local pool <close> = must(on:pool {})
      local out <close> = must(pool:alloc(4))
      local event <close> = must(prog.f { string.pack("i4", 9), out, size = 1 })
      must(event:wait())
    end
    local sim <close> = cl.simulate { capacity = cl.GiB }
    for _, on in ipairs { dev, sim } do
      session(on)
      assert(on.default_stream:finish())
      local before, n = cl.debug.live(), 0
      repeat
        n = n + 1
        cl.debug.fail("any", n)
        local ok, message = pcall(session, on)
        local finished = cl.debug.armed()
        cl.debug.fail("any", 0)
        if not ok then assert.matches("CL_", message) end
        assert(on.default_stream:finish()) -- the pool gives its memory back once the commands are done
        for _, kind in ipairs { "program", "kernel", "buffer", "sub_buffer" } do
          assert.equal(before[kind], cl.debug.live()[kind])
        end
      until finished or n == 500
      assert.is_true(n < 500)
      session(on)
      assert(on.default_stream:finish())
      assert.same(before, cl.debug.live())
    end
  end)
end)
