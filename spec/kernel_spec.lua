-- Kernels: launched with a table, their arguments checked against the kernel's own signature.

local cl = require "clalloc"
local failure = require "spec.failure"

local SAXPY = [[
kernel void saxpy(float a, global const float *x, global float *y) {
  size_t i = get_global_id(0);
  y[i] += a * x[i];
}
]]

-- The values in a buffer, by a format letter of string.unpack.
local function values(buf, letter)
  local bytes, list = buf:read(), {}
  local width = string.packsize(letter)
  for i = 1, #bytes // width do
    list[i] = string.unpack(letter, bytes, (i - 1) * width + 1)
  end
  return list
end

local function filled(dev, letter, list)
  local parts = {}
  for i, v in ipairs(list) do parts[i] = string.pack(letter, v) end
  local bytes = table.concat(parts)
  local buf = assert(dev:alloc(#bytes))
  assert(buf:write(bytes))
  return buf
end

describe("a kernel", function()
  local dev, saxpy

  setup(function()
    dev = cl.device()
    saxpy = dev:program(SAXPY).saxpy
  end)
  teardown(function()
    saxpy:close()
    saxpy = nil
    collectgarbage()
    collectgarbage()
    dev:close()
  end)

  -- Runs a kernel of one item on one argument of a type; gives the bytes that arrived.
  local function echo(type, value, prelude)
    local source = ("%s\nkernel void echo(%s v, global %s *out) { *out = v; }"):format(prelude or "", type, type)
    local prog <close> = dev:program(source)
    local out <close> = assert(dev:alloc(128))
    assert(prog.echo { value, out, size = 1 })
    return out:read()
  end

  describe("describes itself", function()
    it("by its signature", function()
      assert.equal("kernel saxpy(float a, global const float *x, global float *y)", tostring(saxpy))
    end)

    it("by its arguments", function()
      assert.same({
        { name = "a", type = "float", qualifier = "private" },
        { name = "x", type = "float*", qualifier = "global const" },
        { name = "y", type = "float*", qualifier = "global" },
      }, saxpy.args)
    end)

    it("with type names as OpenCL spells them, whatever the source's spelling", function()
      local prog <close> = dev:program [[
        typedef struct { int a, b; } pair;
        kernel void f(unsigned int a, const unsigned char b, long int c, constant int *d,
                      local float4 *restrict e, pair g, global volatile struct other *h, unsigned long i) {}
      ]]
      assert.equal("kernel f(uint a, uchar b, long c, constant int *d, local float4 *restrict e, pair g, " ..
        "global volatile struct other *h, ulong i)", tostring(prog.f))
    end)

    it("by its limits on the device", function()
      assert.equal("saxpy", saxpy.name)
      assert.is_true(saxpy.max_group >= 1)
      assert.is_true(saxpy.preferred_multiple >= 1)
      assert.is_true(saxpy.local_mem >= 0)
      assert.is_nil(saxpy.unknown)
    end)

    it("as closed once it is", function()
      local prog <close> = dev:program(SAXPY, "-DCLOSED")
      local k <close> = prog.saxpy
      k:close()
      k:close()
      assert.equal("kernel (closed)", tostring(k))
      assert.matches("attempt to use a closed kernel", failure(function() return k.name end))
      assert.equal("saxpy", prog.saxpy.name)
    end)
  end)

  describe("launched", function()
    it("computes, and gives an event", function()
      local x <close> = filled(dev, "f", { 1, 2, 3, 4 })
      local y <close> = filled(dev, "f", { 10, 20, 30, 40 })
      local event <close> = assert(saxpy { 2.0, x, y, size = 4 })
      assert(event:wait())
      assert.same({ 12, 24, 36, 48 }, values(y, "f"))
    end)

    it("by `launch` computes the same, and makes no event", function()
      local x <close> = filled(dev, "f", { 1, 2, 3, 4 })
      local y <close> = filled(dev, "f", { 10, 20, 30, 40 })
      dev.default_stream:finish()
      local submitted, live = dev.default_stream:stats().submitted, cl.debug.live "event"
      assert.is_true(saxpy:launch { 2.0, x, y, size = 4 })
      assert.is_true(saxpy:launch { 2.0, x, y, size = 0 })
      assert.equal(live, cl.debug.live "event")
      assert.equal(submitted + 2, dev.default_stream:stats().submitted, "it counts as a command all the same")
      assert.same({ 12, 24, 36, 48 }, values(y, "f"))
      assert.error_matches(function() saxpy:launch { x, y, size = 4 } end, "saxpy: 3 arguments expected")
      assert.error_matches(function() saxpy:launch(4) end, "saxpy: a table of arguments expected")
      cl.debug.fail("enqueue_kernel", 1)
      local ok, message, code = saxpy:launch { 2.0, x, y, size = 4 }
      cl.debug.fail("any", 0)
      assert.is_nil(ok)
      assert.is_string(message)
      assert.equal("NOMEM", code)
    end)

    it("runs over one, two or three dimensions, from an offset, in groups", function()
      local prog <close> = dev:program [[
        kernel void where(global int *out) {
          size_t w = get_global_size(0), h = get_global_size(1);
          size_t x = get_global_id(0) - get_global_offset(0);
          size_t y = get_global_id(1) - get_global_offset(1);
          size_t z = get_global_id(2) - get_global_offset(2);
          out[(z * h + y) * w + x] = get_global_id(0) + 10 * get_global_id(1) + 100 * get_global_id(2)
            + 1000 * get_local_size(0) + 10000 * get_local_size(1);
        }
      ]]
      local function run(n, launch)
        local out <close> = assert(dev:alloc(4 * n))
        launch[1] = out
        assert(prog.where(launch))
        return values(out, "i4")
      end
      assert.same({ 11000, 11001, 11002 }, run(3, { size = 3, group = 1 }))
      assert.same({ 12005, 12006 }, run(2, { size = 2, group = { 2 }, offset = 5 }))
      assert.same({ 22013, 22014, 22023, 22024 }, run(4, { size = { 2, 2 }, group = { 2, 2 }, offset = { 3, 1 } }))
      assert.same({ 12000, 12001, 12100, 12101 }, run(4, { size = { 2, 1, 2 }, group = { 2, 1, 1 } }))
    end)

    it("with size 0 does nothing, and still gives an event", function()
      local x <close> = filled(dev, "f", { 1 })
      local y <close> = filled(dev, "f", { 10 })
      for _, size in ipairs { 0, { 0 }, { 4, 0 } } do
        local event <close> = assert(saxpy { 2, x, y, size = size })
        assert(event:wait())
      end
      assert.same({ 10 }, values(y, "f"))
    end)

    it("tells how long it ran", function()
      local x <close> = assert(dev:alloc(4096))
      local y <close> = assert(dev:alloc(4096))
      local event <close> = assert(saxpy { 2, x, y, size = 1024 })
      assert(event:wait())
      assert.is_true(event:seconds() > 0)
    end)

    it("waits for a gate on its stream", function()
      local s <close> = assert(dev:stream())
      local x <close> = filled(dev, "f", { 1 })
      local y <close> = filled(dev, "f", { 10 })
      local gate <close> = assert(dev:gate())
      s:wait(gate)
      local event <close> = assert(saxpy { 2, x, y, size = 1, stream = s })
      assert.is_false(event.done)
      gate:open()
      assert(event:wait())
      assert.same({ 12 }, values(y, "f"))
    end)

    it("waits for the events and gates it is given", function()
      local s <close> = assert(dev:stream())
      local x <close> = filled(dev, "f", { 1 })
      local y <close> = filled(dev, "f", { 10 })
      local gate <close> = assert(dev:gate())
      local first <close> = assert(saxpy { 2, x, y, size = 1, wait = gate })
      local second <close> = assert(saxpy { 3, x, y, size = 1, stream = s, wait = { first, gate } })
      local empty <close> = assert(saxpy { 3, x, y, size = 0, stream = s, wait = { second } })
      assert.is_false(empty.done)
      gate:open()
      assert(empty:wait())
      assert.is_true(first.done)
      assert.same({ 15 }, values(y, "f"))
    end)

    it("runs on the current stream", function()
      local s <close> = assert(dev:stream())
      local x <close> = filled(dev, "f", { 1 })
      local y <close> = filled(dev, "f", { 10 })
      local gate <close> = assert(dev:gate())
      s:wait(gate)
      local event
      do
        local _ <close> = cl.guard(s)
        event = assert(saxpy { 2, x, y, size = 1 })
      end
      assert.is_false(event.done)
      gate:open()
      assert(event:wait())
      event:close()
    end)

    it("keeps what it uses until it is done, whatever is closed meanwhile", function()
      local s <close> = assert(dev:stream())
      local pool <close> = assert(dev:pool {})
      local prog = dev:program(SAXPY, "-DKEPT")
      local x, y = assert(pool:alloc(4096)), filled(dev, "f", { 10 })
      assert(x:write(string.pack("f", 1)))
      local gate <close> = assert(dev:gate())
      s:wait(gate)
      local event <close> = assert(prog.saxpy { 2, x, y, size = 1, stream = s })
      x:close()
      prog:close()
      assert.equal(1, pool:stats().held_blocks)
      local other <close> = assert(pool:alloc(4096)) -- not the memory the kernel is about to read
      assert(other:write(string.pack("f", 100)))
      gate:open()
      assert(event:wait())
      assert.same({ 12 }, values(y, "f"))
      y:close()
      assert(pool:check())
    end)

    it("may be given the same memory twice", function()
      local y <close> = filled(dev, "f", { 1, 2 })
      assert(saxpy { 2, y, y, size = 2 })
      assert.same({ 3, 6 }, values(y, "f"))
    end)

    it("takes its arguments by their numbers, in whatever order the table has them", function()
      local y <close> = filled(dev, "f", { 1 })
      local launch = { size = 1 }
      launch[3], launch[2], launch[1] = y, y, 2
      assert(saxpy(launch))
      assert.same({ 3 }, values(y, "f"))
    end)

    it("is not disturbed by launches of itself from a finalizer or a metamethod", function()
      local x <close> = filled(dev, "f", { 1 })
      local y <close> = filled(dev, "f", { 0 })
      local other <close> = filled(dev, "f", { 0 })
      local function disturb() assert(saxpy { 100, other, other, size = 1 }):close() end
      local first <close> = assert(saxpy { 1, x, y, size = 1 })
      local list = setmetatable({}, {
        __len = function() return 1 end,
        __index = function()
          disturb()
          return first
        end,
      })
      assert(saxpy { 1, x, y, size = 1, wait = list })
      for _ = 1, 1000 do
        setmetatable({}, { __gc = disturb })
        assert(saxpy { 1, x, y, size = 1 })
      end
      assert.same({ 1002 }, values(y, "f"))
      collectgarbage()
    end)

    it("sends the arguments of each launch, also those that did not change", function()
      local x <close> = filled(dev, "f", { 1 })
      local y <close> = filled(dev, "f", { 0 })
      for _, a in ipairs { 1, 1, 10, 10, 1 } do assert(saxpy { a, x, y, size = 1 }) end
      assert.same({ 23 }, values(y, "f"))
    end)
  end)

  describe("takes scalars", function()
    local integers = {
      char = { "i1", -128, 127 }, uchar = { "I1", 0, 255 },
      short = { "i2", -32768, 32767 }, ushort = { "I2", 0, 65535 },
      int = { "i4", -2 ^ 31, 2 ^ 31 - 1 }, uint = { "I4", 0, 2 ^ 32 - 1 },
      long = { "i8", math.mininteger, math.maxinteger }, ulong = { "I8", 0, math.maxinteger },
    }

    for type, row in pairs(integers) do
      it("of type " .. type .. ", exactly its range", function()
        local letter, least, most = row[1], math.tointeger(row[2]), math.tointeger(row[3])
        for _, v in ipairs { least, most, 1, 3.0 } do
          local n = math.tointeger(v)
          assert.equal(n, (string.unpack(letter, echo(type, v))))
        end
        local function refused(v) return failure(echo, type, v) end
        if math.type(row[3]) == "float" or most < 2 ^ 31 then
          local expected = ("echo: argument 1 'v' (%s): %d to %d expected, got %d"):format(type, least, most, most + 1)
          assert.matches(expected, refused(most + 1), 1, true)
          assert.matches("got " .. least - 1, refused(least - 1), 1, true)
        end
        assert.matches(("argument 1 'v' (%s): integer expected, got 1.5"):format(type), refused(1.5), 1, true)
        assert.matches("integer expected, got inf", refused(math.huge))
        assert.matches("integer expected, got %-?nan", refused(0 / 0))
        assert.matches("number expected, got string", refused "16")
        assert.matches("number expected, got boolean", refused(true))
      end)
    end

    it("of type long and ulong up to their last value", function()
      assert.matches("-9223372036854775808 to 9223372036854775807 expected, got 9.2233720368548e+18",
        failure(echo, "long", 2.0 ^ 63), 1, true)
      assert.matches("0 to 2^64-1", failure(echo, "ulong", -1), 1, true)
      assert.matches("0 to 2^64-1", failure(echo, "ulong", 2.0 ^ 64), 1, true)
      assert.equal(1 << 63, (string.unpack("I8", echo("ulong", 2.0 ^ 63))))
      assert.equal(-1, (string.unpack("I8", echo("ulong", string.pack("I8", -1)))))
    end)

    it("of type float: any number", function()
      for _, v in ipairs { 0.5, -3, 2.0 ^ 100, math.huge, 1 << 40 } do
        assert.equal(v + 0.0, (string.unpack("f", echo("float", v))))
      end
      assert.equal(math.huge, (string.unpack("f", echo("float", 1e300))))
      local nan = string.unpack("f", echo("float", 0 / 0))
      assert.not_equal(nan, nan)
      assert.matches("echo: argument 1 'v' (float): number expected, got string", failure(echo, "float", "2"), 1, true)
    end)

    it("of type double", function()
      if not dev.has_fp64 then return pending "the device has no doubles" end
      for _, v in ipairs { 0.1, -3, 1e300 } do
        assert.equal(v, (string.unpack("d", echo("double", v))))
      end
    end)

    it("of a name of the source's own that is a built-in type", function()
      assert.equal(1.5, (string.unpack("f", echo("real", 1.5, "typedef float real;"))))
      assert.equal(7, (string.unpack("I4", echo("count_t", 7, "typedef unsigned int count_t;"))))
      assert.equal(1, (string.unpack("I4", echo("colour", 1, "typedef enum { RED, GREEN } colour;"))))
      assert.matches("argument 1 'v' (count_t): 0 to 4294967295 expected, got -1",
        failure(echo, "count_t", -1, "typedef unsigned int count_t;"), 1, true)
    end)
  end)

  describe("takes vectors", function()
    it("as lists of numbers", function()
      for _, lanes in ipairs { 2, 3, 4, 8, 16 } do
        local list = {}
        for i = 1, lanes do list[i] = i - 3 end
        for type, letter in pairs { char = "i1", short = "i2", int = "i4", long = "i8", float = "f" } do
          local format = letter:rep(lanes)
          local got = { string.unpack(format, echo(type .. lanes, list)) }
          got[lanes + 1] = nil
          assert.same(list, got, type .. lanes)
        end
      end
    end)

    it("as strings with their bytes, those of three lanes with or without the padding", function()
      local bytes = string.pack("ffff", 1, 2, 3, 4)
      assert.equal(bytes, echo("float4", bytes):sub(1, 16))
      assert.equal(bytes:sub(1, 12), echo("float3", bytes):sub(1, 12))
      assert.equal(bytes:sub(1, 12), echo("float3", bytes:sub(1, 12)):sub(1, 12))
    end)

    it("and nothing else", function()
      local function refused(type, v) return failure(echo, type, v) end
      assert.matches("argument 1 'v' (float4): 4 numbers expected, got 3", refused("float4", { 1, 2, 3 }), 1, true)
      assert.matches("argument 1 'v' (float4): list of 4 numbers expected, got 1", refused("float4", 1), 1, true)
      assert.matches("a string of 16 bytes expected, got 12", refused("float4", ("x"):rep(12)), 1, true)
      assert.matches("element 2: number expected, got string", refused("float2", { 1, "2" }), 1, true)
      assert.matches("element 3: -128 to 127 expected, got 128", refused("char4", { 1, 2, 128, 4 }), 1, true)
    end)
  end)

  describe("takes structs", function()
    local PAIR = "typedef struct { int a; float b; } pair;"

    it("as strings with their bytes", function()
      local bytes = string.pack("i4f", 7, 0.25)
      assert.equal(bytes, echo("pair", bytes, PAIR):sub(1, 8))
      assert.equal(bytes, echo("struct two", bytes, "struct two { int a; float b; };"):sub(1, 8))
    end)

    it("of exactly their size", function()
      assert.matches("argument 1 'v' (pair): a string of 8 bytes expected, got 4",
        failure(echo, "pair", "1234", PAIR), 1, true)
      assert.matches("argument 1 'v' (pair): a string with its bytes (string.pack) expected, got table",
        failure(echo, "pair", { 1, 2 }, PAIR), 1, true)
      assert.matches("expected, got string", failure(echo, "pair", "", PAIR), 1, true)
    end)
  end)

  describe("takes memory", function()
    it("in constant and local space", function()
      local prog <close> = dev:program [[
        kernel void reverse(constant int *from, local int *room, global int *to) {
          size_t i = get_local_id(0), n = get_local_size(0);
          room[i] = from[i];
          barrier(CLK_LOCAL_MEM_FENCE);
          to[i] = room[n - 1 - i];
        }
      ]]
      local from <close> = filled(dev, "i4", { 1, 2, 3, 4 })
      local to <close> = assert(dev:alloc(16))
      for _, n in ipairs { 16, 32, 16 } do
        assert(prog.reverse { from, cl.localmem(n), to, size = 4, group = 4 })
        assert.same({ 4, 3, 2, 1 }, values(to, "i4"))
      end
      assert.matches("reverse: argument 2 'room' (local int *): cl.localmem(nbytes) expected, got buffer",
        failure(prog.reverse, { from, to, to, size = 4 }), 1, true)
      assert.matches("bytes of local memory, the device has " .. dev.local_mem,
        failure(prog.reverse, { from, cl.localmem(1 << 40), to, size = 4 }), 1, true)
    end)

    it("by buffer, by view, or false for a null pointer", function()
      local prog <close> = dev:program [[
        kernel void f(global const int *maybe, global int *out) { *out = maybe ? *maybe : -1; }
      ]]
      local align = dev.align
      local big <close> = assert(dev:alloc(2 * align))
      local out <close> = assert(dev:alloc(4))
      assert(big:write(string.pack("i4", 11)))
      assert(big:write(string.pack("i4", 22), align))
      local function run(maybe)
        assert(prog.f { maybe, out, size = 1 })
        return (string.unpack("i4", out:read()))
      end
      assert.equal(11, run(big))
      assert.equal(22, run(big:view(align, 4)))
      assert.equal(11, run(big:view(0, 4)))
      assert.equal(-1, run(false))
      assert.matches("f: argument 1 'maybe' (global const int *): got nil (false is the null pointer)",
        failure(run, nil), 1, true)
    end)

    it("of no bytes", function()
      local prog <close> = dev:program "kernel void f(global int *none, global int *out) { *out = 1; }"
      local empty <close> = assert(dev:alloc(0))
      local out <close> = assert(dev:alloc(4))
      assert(prog.f { empty, out, size = 1 })
      local whole <close> = assert(dev:alloc(2 * dev.align))
      assert(prog.f { whole:view(2 * dev.align, 0), out, size = 1 })
      assert.same({ 1 }, values(out, "i4"))
    end)

    it("aligned as the device wants it", function()
      local buf <close> = assert(dev:alloc(4096))
      assert.matches("saxpy: argument 2 'x' (global const float *): offset 4 is no multiple of " .. dev.align,
        failure(saxpy, { 2, buf:view(4, 8), buf, size = 1 }), 1, true)
      assert(saxpy { 2, buf, buf, size = 1 })
    end)

    it("of its own device", function()
      local sim <close> = cl.simulate { capacity = cl.MiB }
      local theirs <close> = assert(sim:alloc(4))
      local ours <close> = assert(dev:alloc(4))
      assert.matches(("saxpy: argument 2 'x' (global const float *): the buffer belongs to %s, the kernel to %s")
        :format(sim.name, dev.name), failure(saxpy, { 2, theirs, ours, size = 1 }), 1, true)
    end)

    it("that is still allocated", function()
      local x = assert(dev:alloc(4))
      local y <close> = assert(dev:alloc(4))
      local view = x:view(0, 4)
      x:close()
      assert.matches("saxpy: argument 2 'x' .*attempt to use a closed buffer", failure(saxpy, { 2, x, y, size = 1 }))
      assert.matches("saxpy: argument 2 'x' .*freed", failure(saxpy, { 2, view, y, size = 1 }))
    end)

    it("and nothing else", function()
      local buf <close> = assert(dev:alloc(4))
      local expected = "saxpy: argument 3 'y' (global float *): buffer (or false for a null pointer) expected, got "
      for _, v in ipairs { 1, "x", {}, true, cl.localmem(4) } do
        assert.matches(expected, failure(saxpy, { 2, buf, v, size = 1 }), 1, true)
      end
    end)

    it("but no images and samplers", function()
      local built, prog = pcall(dev.program, dev, "kernel void f(read_only image2d_t picture, sampler_t s) {}")
      if not built then return pending "the compiler has no images" end
      assert.matches("f: argument 1 'picture' (image2d_t): images, samplers, pipes and queues are not supported",
        failure(prog.f, { 1, 2, size = 1 }), 1, true)
      prog:close()
    end)
  end)

  describe("refuses", function()
    local x, y

    before_each(function() x, y = assert(dev:alloc(64)), assert(dev:alloc(64)) end)
    after_each(function()
      x:close()
      y:close()
    end)

    it("another number of arguments", function()
      assert.matches("saxpy: 3 arguments expected (a, x, y), got 2", failure(saxpy, { 2, x, size = 1 }), 1, true)
      assert.matches("saxpy: 3 arguments expected (a, x, y), got 0", failure(saxpy, { size = 1 }), 1, true)
      assert.matches("saxpy: 3 arguments expected (a, x, y), got 4", failure(saxpy, { 2, x, y, y, size = 1 }), 1, true)
      assert.matches("saxpy: argument 1 'a' (float): got nil", failure(saxpy, { nil, x, y, size = 1 }), 1, true)
      local prog <close> = dev:program "kernel void one(int n) {}"
      assert.matches("one: 1 argument expected (n), got 2", failure(prog.one, { 1, 2, size = 1 }), 1, true)
    end)

    it("any argument, when it has no parameters", function()
      if dev.vendor:find "NVIDIA" then return pending "NVIDIA's compiler (580) fails on kernels without parameters" end
      local prog <close> = dev:program "kernel void none() {}"
      assert(prog.none { size = 1 })
      assert.matches("none: 0 arguments expected, got 1", failure(prog.none, { 1, size = 1 }), 1, true)
    end)

    it("a call without a table", function()
      assert.matches("saxpy: a table of arguments expected, as in {..., size = n}, got 2",
        failure(saxpy, 2, x, y), 1, true)
    end)

    it("a missing or impossible size", function()
      local function sized(size) return failure(saxpy, { 2, x, y, size = size }) end
      assert.matches("saxpy: size expected: the number of work-items", sized(nil), 1, true)
      assert.matches("saxpy: size: .*expected, got %-1", sized(-1))
      assert.matches("saxpy: size: .*expected, got 1.5", sized(1.5))
      assert.matches("saxpy: size: .*expected, got string", sized "16")
      assert.matches("saxpy: size: a list of 1 to 3 numbers expected, got 4", sized { 1, 2, 3, 4 })
      assert.matches("saxpy: size: a list of 1 to 3 numbers expected, got 0", sized {})
      assert.matches("saxpy: size: 4294967296 x 4294967296 work-items", sized { 1 << 32, 1 << 32 }, 1, true)
    end)

    it("groups that do not go with the size", function()
      local function grouped(size, group) return failure(saxpy, { 2, x, y, size = size, group = group }) end
      assert.matches("group has 1 dimensions, size has 2", grouped({ 2, 2 }, 2), 1, true)
      assert.matches("group: 0 work-items in dimension 2", grouped({ 2, 2 }, { 1, 0 }), 1, true)
      local most = saxpy.max_group
      assert.matches(("saxpy: group of %d work-items, at most %d fit on %s"):format(2 * most, most, dev.name),
        grouped(2 * most, 2 * most), 1, true)
      assert.matches(("saxpy: group of %d x 2 work-items"):format(most), grouped({ most, 2 }, { most, 2 }), 1, true)
      local sim <close> = cl.simulate { capacity = cl.MiB }
      local prog <close> = sim:program "kernel void f() {}"
      assert.matches("f: enqueue_kernel failed: CL_INVALID_WORK_GROUP_SIZE %(%-54%): size 10 x 1 x 1, group 4",
        failure(prog.f, { size = 10, group = 4 }))
      local fixed <close> = sim:program "kernel __attribute__((reqd_work_group_size(8, 1, 1))) void f() {}"
      assert.matches("its source asks for groups of 8 x 1 x 1", failure(fixed.f, { size = 8, group = 4 }), 1, true)
    end)

    it("offsets that do not go with the size", function()
      assert.matches("saxpy: offset has 2 dimensions, size has 1",
        failure(saxpy, { 2, x, y, size = 1, offset = { 1, 2 } }), 1, true)
    end)

    it("options it does not know", function()
      assert.matches("saxpy: unknown option 'gruop'; known are size, group, offset, stream, wait",
        failure(saxpy, { 2, x, y, size = 1, gruop = 1 }), 1, true)
      assert.matches("unknown option '0'", failure(saxpy, { [0] = 1, 2, x, y, size = 1 }), 1, true)
      assert.matches("always asynchronous", failure(saxpy, { 2, x, y, size = 1, async = false }), 1, true)
    end)

    it("streams and events of another device", function()
      local sim <close> = cl.simulate { capacity = cl.MiB }
      local s <close> = assert(sim:stream())
      assert.has_error(function() return saxpy { 2, x, y, size = 1, stream = s } end)
      assert.has_error(function() return saxpy { 2, x, y, size = 1, stream = 1 } end)
      assert.has_error(function() return saxpy { 2, x, y, size = 1, wait = 1 } end)
    end)

    it("and then has taken nothing", function()
      local before = cl.debug.live "event"
      local pool <close> = assert(dev:pool {})
      local mine = assert(pool:alloc(64))
      for _, launch in ipairs { { 2, mine, 1, size = 1 }, { 2, mine, y:view(4, 4), size = 1 }, { 2, mine, y } } do
        failure(saxpy, launch)
      end
      assert.equal(before, cl.debug.live "event")
      mine:close()
      assert.equal(0, pool:stats().held_blocks)
      assert(pool:check())
    end)
  end)

  describe("that the device cannot run now", function()
    it("returns nil, a message and a code", function()
      local x <close> = assert(dev:alloc(64))
      local y <close> = assert(dev:alloc(64))
      cl.debug.fail("enqueue_kernel", 1)
      local event, message, code = saxpy { 2, x, y, size = 1 }
      assert.is_nil(event)
      assert.equal("saxpy: enqueue_kernel failed: CL_OUT_OF_RESOURCES (-5)", message)
      assert.equal("NOMEM", code)
      cl.debug.fail("enqueue_kernel", 1, -4) -- CL_MEM_OBJECT_ALLOCATION_FAILURE
      event, message, code = saxpy { 2, x, y, size = 1 }
      assert.is_nil(event)
      assert.matches("saxpy: enqueue_kernel failed: CL_MEM_OBJECT_ALLOCATION_FAILURE .* 64 bytes", message)
      assert.equal("NOMEM", code)
      cl.debug.fail("set_kernel_arg", 1)
      event, message = saxpy { 2, x, y, size = 1 }
      assert.is_nil(event)
      assert.matches("saxpy: argument %d '%a' .*: set_kernel_arg failed", message)
      assert(saxpy { 2, x, y, size = 1 })
    end)
  end)
end)

describe("a kernel of a simulated device", function()
  it("is checked and launched as any other, and computes nothing", function()
    local sim <close> = cl.simulate { capacity = cl.GiB, manual = true }
    local prog <close> = sim:program(SAXPY)
    local x <close> = assert(sim:alloc(4096))
    local y <close> = assert(sim:alloc(4096))
    assert.equal("kernel saxpy(float a, global const float *x, global float *y)", tostring(prog.saxpy))
    local event <close> = assert(prog.saxpy { 2, x, y, size = 1024 })
    assert.is_false(event.done)
    assert(event:wait())
    assert.matches("saxpy: argument 1 'a' (float): number expected, got buffer",
      failure(prog.saxpy, { x, x, y, size = 1 }), 1, true)
  end)

  it("sends the driver a value again only when it changes", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    local prog <close> = sim:program(SAXPY)
    local x <close> = assert(sim:alloc(4096))
    local y <close> = assert(sim:alloc(4096))
    local saxpy = prog.saxpy
    local function launch() assert(saxpy { 2, x, y, size = 1024 }):close() end
    launch()
    local before = cl.debug.calls().set_kernel_arg
    for _ = 1, 10 do launch() end
    assert.equal(before + 20, cl.debug.calls().set_kernel_arg) -- x and y; the driver has kept 2
  end)
end)

describe("cl.localmem", function()
  it("stands for room in local memory", function()
    local m = cl.localmem(256)
    assert.equal(256, m.size)
    assert.equal("localmem (256 bytes)", tostring(m))
    for _, v in ipairs { 0, -1, 1.5, "16" } do
      assert.has_error(function() return cl.localmem(v) end)
    end
  end)
end)
