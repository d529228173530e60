-- Tensors: construction, views, expressions, reductions, products, printing, files, memory.

local cl = require "clalloc"
local failure = require "spec.failure"

local function fails(text, ...)
  local message = failure(...)
  assert.truthy(message:find(text, 1, true), message)
end

local function active()
  collectgarbage()
  collectgarbage()
  return cl.current():pool():stats().active_bytes
end

-- Whether the current device has f64; where it has not, what asks for it has to say so.
local function has_fp64()
  local device <close> = cl.current()
  return device.has_fp64
end

local function lacks_f64(what, ...)
  local device <close> = cl.current()
  fails(("%s: f64 is not supported by %s"):format(what, device.name), ...)
end

describe("a tensor", function()
  teardown(function()
    cl.forget_kernels()
    collectgarbage()
    collectgarbage()
    cl.current().default_stream:query() -- lets go of its markers
  end)

  describe("is made", function()
    it("from nested tables, f32 if nothing else is said", function()
      local t = cl.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
      assert.same({ 2, 3 }, t:size())
      assert.equal("f32", t:dtype())
      assert.same({ { 1.0, 2.0, 3.0 }, { 4.0, 5.0, 6.0 } }, t:totable())
      assert.same({ { 1, 2 }, { 3, 4 } }, cl.tensor({ { 1, 2 }, { 3, 4 } }, "i32"):totable())
    end)

    it("with the dtype that values need: u8 for booleans, i64 for integers that f32 cannot hold", function()
      assert.equal("u8", cl.tensor({ true, false }):dtype())
      assert.same({ 1, 0 }, cl.tensor({ true, false }):totable())
      assert.equal("i64", cl.tensor({ 1, 1 << 40 }):dtype())
      assert.same({ 1, 1 << 40 }, cl.tensor({ 1, 1 << 40 }):totable())
      fails("do not mix", cl.tensor, { 1, true })
    end)

    it("from sizes as numbers or as a list, with a dtype after them", function()
      assert.same({ { 0.0, 0.0, 0.0 }, { 0.0, 0.0, 0.0 } }, cl.zeros(2, 3):totable())
      assert.equal("i64", cl.zeros({ 2, 3 }, "i64"):dtype())
      assert.equal("u8", cl.ones(2, 3, "u8"):dtype())
      assert.same({ { 7, 7 } }, cl.full({ 1, 2 }, 7, "i32"):totable())
    end)

    it("as a range that includes both ends, as Lua's for", function()
      assert.same({ 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0 }, cl.arange(0, 9):totable())
      assert.same({ 5, 3, 1 }, cl.arange(5, 0, -2, "i32"):totable())
      assert.same({}, cl.arange(1, 0):totable())
    end)

    it("over a buffer, without a copy", function()
      local device <close> = cl.current()
      local buffer <close> = assert(device:alloc(24))
      buffer:write(("<ffffff"):pack(1, 2, 3, 4, 5, 6))
      local t = cl.from(buffer, { 2, 3 })
      local later = t * 2
      buffer:write(("<f"):pack(10))
      assert.same({ { 10.0, 2.0, 3.0 }, { 4.0, 5.0, 6.0 } }, t:totable())
      assert.equal(2.0, later[{ 1, 1 }], "what others may overwrite is computed at once")
      t:fill(1)
      assert.equal(("<ffffff"):pack(1, 1, 1, 1, 1, 1), buffer:read())
      assert.same({ 1.0, 1.0 }, cl.from(buffer:view(4, 8)):totable(), "wherever a view begins")
      fails("no multiple of f32's 4", cl.from, buffer:view(2))
      fails("takes 28 bytes, the buffer has 24", cl.from, buffer, { 7 })
    end)

    it("without dimensions from a number", function()
      local t = cl.tensor(5)
      assert.equal(0, t:dim())
      assert.equal(1, t:numel())
      assert.equal(5.0, t:item())
      assert.equal(5.0, t:totable())
      assert.equal(0, #t)
    end)

    it("only of sizes that make sense", function()
      fails("zeros: size 1: integer expected, got the string '16'", cl.zeros, "16")
      fails("zeros: size 2: integer expected, got 1.5", cl.zeros, 2, 1.5)
      fails("size 1: -1 is less than 0", cl.zeros, -1)
      fails("integer expected", cl.zeros, 0 / 0)
      fails("integer expected", cl.zeros, 1 / 0)
      fails("integer expected", cl.zeros, { {} })
      fails("more elements than can be addressed", cl.zeros, 1 << 62, 4)
      fails("more elements than can be addressed", cl.zeros, math.maxinteger, math.maxinteger)
      fails("no dtype is named 'f16'", cl.zeros, { 2 }, "f16")
      fails("300 does not fit u8", cl.full, { 2 }, 300, "u8")
      fails("element {2}", cl.tensor, { { 1, 2 }, 3 })
      fails("has 1 elements", cl.tensor, { { 1, 2 }, { 3 } })
      fails("element {1, 2}: number expected, got string", cl.tensor, { { 1, "2" } })
      assert.same({ 2, 0, 3 }, cl.zeros(2, 0, 3):size())
      assert.same({ 2 }, cl.zeros(2.0):size())
    end)

    it("of a size beyond memory: an error that says so, and nothing is lost", function()
      local before = active()
      fails("zeros: ", cl.zeros, 1 << 40)
      assert.equal(before, active())
    end)
  end)

  describe("made at random", function()
    -- Threefry-2x32 with 20 rounds, as published.
    local function cipher(k0, k1, counter)
      local mask, turns = 0xffffffff, { 13, 15, 26, 6, 17, 29, 16, 24 }
      local key = { [0] = k0, k1, 0x1BD11BDA ~ k0 ~ k1 }
      local x, y = ((counter & mask) + k0) & mask, ((counter >> 32) + k1) & mask
      for round = 0, 19 do
        x = (x + y) & mask
        local turn = turns[round % 8 + 1]
        y = (((y << turn) | (y >> (32 - turn))) & mask) ~ x
        if round % 4 == 3 then
          local n = round // 4 + 1
          x, y = (x + key[n % 3]) & mask, (y + key[(n + 1) % 3] + n) & mask
        end
      end
      return x, y
    end

    it("has the published cipher's numbers, for a seed always the same", function()
      assert.same({ 0x6b200159, 0x99ba4efe }, { cipher(0, 0, 0) }, "the authors' own example")
      local seed = 0x123456789abcdef0
      cl.seed(seed)
      local first = cl.rand(3):totable()
      for i = 1, 3 do
        local x = cipher(seed & 0xffffffff, seed >> 32, i - 1)
        assert.equal((x >> 8) * 2.0 ^ -24, first[i])
      end
      if has_fp64() then
        for i, number in ipairs(cl.rand({ 2 }, "f64"):totable()) do
          local x, y = cipher(seed & 0xffffffff, seed >> 32, 4 + i - 1)
          assert.equal(((y << 32 | x) >> 11) * 2.0 ^ -53, number)
        end
      else
        lacks_f64("rand", cl.rand, { 2 }, "f64")
        local x = cipher(seed & 0xffffffff, seed >> 32, 4)
        assert.equal((x >> 8) * 2.0 ^ -24, cl.rand(1):item(), "what was refused has used up no number")
      end
      cl.seed(seed)
      assert.same(first, cl.rand(3):totable())
    end)

    it("is normal by randn: mean, deviation, tails", function()
      cl.seed(7)
      local t = cl.randn(100, 1000)
      assert.near(0, t:mean():item(), 0.01)
      assert.near(1, (t * t):mean():item(), 0.02)
      assert.near(0.6827, t:abs():lt(1):mean():item(), 0.01)
      assert.near(0.9545, t:abs():lt(2):mean():item(), 0.005)
      assert.near(0, (t:narrow(1, 1, 50) * t:narrow(1, 51, 50)):mean():item(), 0.02)
      assert.truthy(t:abs():max():item() > 3.5)
      fails("randn: f32 or f64 expected, not i32", cl.randn, { 2 }, "i32")
    end)
  end)

  describe("is viewed", function()
    local t
    before_each(function() t = cl.arange(1, 24):view(2, 3, 4) end)
    after_each(function() t = nil end)

    it("in another shape, one size found from the others", function()
      assert.same({ 6, 4 }, t:view(-1, 4):size())
      assert.same({ 12, 4, 1 }, t:stride())
      assert.same({ 24 }, t:view { 24 }:size())
      fails("cannot be divided", t.view, t, 5, -1)
      fails("2x3x4 has 24 elements, 5x5 has 25", t.view, t, 5, 5)
      fails("more than one size is -1", t.view, t, -1, -1)
    end)

    it("in part, transposed, selected, expanded; nothing is copied", function()
      local before = active()
      assert.same({ { 5.0, 6.0, 7.0, 8.0 }, { 17.0, 18.0, 19.0, 20.0 } }, t:select(2, 2):totable())
      local u = t:narrow(3, 2, 2):transpose(1, 3)
      assert.same({ 2, 3, 2 }, u:size())
      assert.same({
        { { 2.0, 14.0 }, { 6.0, 18.0 }, { 10.0, 22.0 } },
        { { 3.0, 15.0 }, { 7.0, 19.0 }, { 11.0, 23.0 } },
      }, u:totable())
      assert.is_false(u:is_contiguous())
      local row = cl.arange(1, 3)
      assert.same({ { 1.0, 2.0, 3.0 }, { 1.0, 2.0, 3.0 } }, row:expand(2, 3):totable())
      assert.same({ 0, 1 }, row:expand(2, -1):stride())
      u:fill(0)
      assert.equal(0.0, t[{ 2, 1, 2 }])
      row:close()
      assert.equal(before, active())
      fails("cannot be seen as 12", u.view, u, 12)
      assert.same({ 12 }, u:reshape(12):size())
      assert.same({ 2, 3, 2 }, u:contiguous():size())
      fails("narrow: length: 3 is not in 0 to 2", t.narrow, t, 1, 1, 3)
      fails("expand: 3 cannot become 2x4 (3 ~= 4)", function() cl.zeros(3):expand(2, 4) end)
      fails("dimension 1 is expanded", function() cl.zeros(1, 3):expand(2, 3):add_(1) end)
    end)

    it("with a run of strides where that is possible", function()
      local u = t:transpose(1, 3)
      assert.same({ 4, 3, 2 }, u:size())
      assert.same({ 4, 3, 2, 1 }, u:view(4, 3, 2, 1):size())
      assert.same({ 2, 2, 3, 1, 2 }, u:view(2, 2, 3, 1, 2):size())
      assert.same(u:contiguous():view(2, 2, 3, 2):totable(), u:view(2, 2, 3, 2):totable())
    end)

    it("by index: numbers, ranges, lists; sets too", function()
      assert.equal(24.0, t[{ 2, 3, 4 }])
      assert.same({ 3, 4 }, t[1]:size())
      assert.same({ { 9.0, 10.0 } }, t[{ 1, { 3, 3 }, { 1, 2 } }]:totable())
      assert.same({ { 2.0, 6.0, 10.0 }, { 14.0, 18.0, 22.0 } }, t[{ {}, {}, 2 }]:totable())
      t[{ 1, 1, 1 }] = 100
      t[2] = 5
      t[{ 1, 2 }] = { 1, 2, 3, 4 }
      t[{ 1, 3 }] = cl.ones(4)
      assert.same({ { { 100.0, 2.0, 3.0, 4.0 }, { 1.0, 2.0, 3.0, 4.0 }, { 1.0, 1.0, 1.0, 1.0 } },
        { { 5.0, 5.0, 5.0, 5.0 }, { 5.0, 5.0, 5.0, 5.0 }, { 5.0, 5.0, 5.0, 5.0 } } }, t:totable())
      assert.equal(3.0, cl.arange(1, 5)[3])
      fails("index of dimension 1: 3 is not in 1 to 2", function() return t[3] end)
      fails("index of dimension 1: 0 is not in 1 to 2", function() return t[0] end)
      fails("4 indices for 2x3x4", function() return t[{ 1, 1, 1, 1 }] end)
      fails("has no field 'x'", function() t.x = 1 end)
    end)

    it("joined by cat", function()
      local a, b, two = cl.arange(1, 4):view(2, 2), cl.tensor({ { 5, 6 } }, "i32"), cl.ones(2)
      local joined = cl.cat({ a, b }, 1)
      assert.equal("f32", joined:dtype())
      assert.same({ { 1.0, 2.0 }, { 3.0, 4.0 }, { 5.0, 6.0 } }, joined:totable())
      assert.same({ { 1.0, 2.0, 1.0, 3.0 }, { 3.0, 4.0, 2.0, 4.0 } }, cl.cat({ a, a:t() }, 2):totable())
      fails("cat: 2x2 and 1x2 differ in dimension 1", cl.cat, { a, b }, 2)
      assert.same({ 0 }, cl.cat({ cl.zeros(0), cl.zeros(0) }):size())
      assert.same({ 2, 0 }, cl.cat({ cl.zeros(2, 0), cl.zeros(2, 0) }, 2):size())
      assert.same({ 1.0, 1.0, 1.0, 1.0 }, cl.cat({ two, two }):totable())
      fails("a tensor without dimensions has no dimension 1", cl.cat, { cl.tensor(1), cl.tensor(2) })
    end)
  end)

  describe("computes", function()
    it("with tensors from before kernels were forgotten", function()
      local a = cl.ones(3)
      cl.forget_kernels()
      assert.same({ 2.0, 2.0, 2.0 }, (a + cl.ones(3)):totable())
      cl.forget_kernels()
      assert.equal(3.0, a:sum():item())
    end)

    it("elementwise, broadcasting over any dimensions, numbers on either side", function()
      local a, b = cl.tensor { { 1, 2, 3 }, { 4, 5, 6 } }, cl.tensor { 10, 20, 30 }
      assert.same({ { 11.0, 22.0, 33.0 }, { 14.0, 25.0, 36.0 } }, (a + b):totable())
      local column, row = cl.tensor { { 1 }, { 2 } }, cl.tensor { { -1, 1 } }
      assert.same({ { 2.0, 0.0 }, { 3.0, 1.0 } }, (column - row):totable())
      assert.same({ { 0.0, -1.0, -2.0 }, { -3.0, -4.0, -5.0 } }, (1 - a):totable())
      assert.same({ 2.0, 1.0 }, (2 / cl.tensor { 1, 2 }):totable())
      assert.same({ -10.0, -20.0, -30.0 }, (-b):totable())
      assert.same({ 100.0, 400.0, 900.0 }, (b ^ 2):totable())
      fails("add: 2x3 and 4x5 do not match", function() return a + cl.zeros(4, 5) end)
      fails("add: tensor expected, got table", function() return a + {} end)
      fails("mul: tensor expected, got string", function() return "x" * a end)
    end)

    it("in the dtype that holds both: i64 for i32 and u32, f32 where a float meets integers, or a division", function()
      local i, u, l, b = cl.ones({ 1 }, "i32"), cl.ones({ 1 }, "u32"), cl.ones({ 1 }, "i64"), cl.ones({ 1 }, "u8")
      assert.equal("i64", (i + u):dtype())
      assert.equal("i64", (b + l):dtype())
      assert.equal("i32", (b + i):dtype())
      assert.equal("f32", (l + cl.ones(1)):dtype())
      assert.equal("f32", (i * 1.5):dtype())
      assert.equal("i32", (i * 2):dtype())
      assert.equal("f32", (i / i):dtype())
      assert.equal("f32", i:exp():dtype())
      assert.equal(0.5, (i / 2):item())
      fails("add: 5000000000 does not fit i32", function() return i + 5000000000 end)
    end)

    it("integers that wrap", function()
      assert.equal(-(1 << 31), (cl.full({ 1 }, (1 << 31) - 1, "i32") + 1):item())
      assert.equal(0, (cl.full({ 1 }, 255, "u8") + 1):item())
      assert.equal(math.mininteger, (cl.full({ 1 }, math.maxinteger, "i64") + 1):item())
      assert.equal((1 << 32) - 1, (cl.zeros({ 1 }, "u32") - 1):item())
    end)

    it("functions", function()
      local x = cl.tensor { -1, 0.25, 4 }
      local function check(name, f)
        for i, v in ipairs(x[name](x):totable()) do
          local want = f(x[i])
          assert.truthy(v == want or (v ~= v and want ~= want) or math.abs(v - want) <= 1e-5 * math.abs(want), name)
        end
      end
      check("exp", math.exp)
      check("log", math.log)
      check("sqrt", math.sqrt)
      check("tanh", function(v) return 1 - 2 / (math.exp(2 * v) + 1) end)
      check("relu", function(v) return math.max(v, 0) end)
      check("abs", math.abs)
      check("neg", function(v) return -v end)
    end)

    -- OpenCL C leaves quotients 2.5 units in the last place and roots 3.
    it("quotients and roots of f32, the nearest number where the device can round so", function()
      local device <close> = cl.current()
      local few = device.has_rounded_divide and 0.5 or 2.5
      local x, y = cl.rand(5000):mul_(100):add_(0.01), cl.rand(5000):add_(0.01)
      local a, b = x:totable(), y:totable()
      local function check(name, list, most, exact)
        for i, v in ipairs(list) do
          local want = exact(a[i], b[i])
          local unit = 2.0 ^ (math.floor(math.log(want, 2)) - 23)
          assert(math.abs(v - want) <= most * unit, ("%s: of %a and %a is %a"):format(name, a[i], b[i], v))
        end
      end
      check("div", (x / y):totable(), few, function(u, v) return u / v end)
      check("by a number", (x / 3):totable(), few, function(u) return u / 3 end)
      check("of a number", (1 / y):totable(), few, function(_, v) return 1 / v end)
      check("map", x:clone():map(y, "x / y"):totable(), few, function(u, v) return u / v end)
      check("sqrt", x:sqrt():totable(), few == 0.5 and 0.5 or 3, function(u) return math.sqrt(u) end)
    end)

    it("with the compiler told to round quotients, where it can", function()
      local device <close> = cl.current()
      local names, told = cl.debug.types().device.names, {}
      local program = names.program
      names.program = function(self, source, options)
        told[#told + 1] = type(options) == "table" and options.options or options
        return program(self, source, options)
      end
      cl.forget_kernels()
      local ok, why = pcall(function()
        local a = cl.ones(2, 2)
        a:matmul(a / 2):sum():close()
      end)
      names.program = program
      assert(ok, why)
      assert.truthy(#told >= 4)
      for _, options in ipairs(told) do
        local found = options:find("-cl-fp32-correctly-rounded-divide-sqrt", 1, true)
        assert.equal(device.has_rounded_divide, found ~= nil)
      end
    end)

    it("small whole powers as products, other powers as OpenCL C has them", function()
      local list = { -3, -1, 0, 1, 10, 100 }
      for _, kind in ipairs { "f32", "i32", has_fp64() and "f64" or nil } do
        local t = cl.tensor(list, kind)
        for power = 2, 4 do
          local got, other = (t ^ power):totable(), t:pow(power + 0.0):totable()
          for i, v in ipairs(list) do
            assert.equal(v ^ power, got[i])
            assert.equal(v ^ power, other[i])
          end
        end
        assert.equal(kind == "i32" and "f32" or kind, (t ^ 2):dtype())
      end
      local t = cl.tensor { 10, 2, 0 / 0 }
      assert.same({ 100.0, 4.0 }, t:clone():pow_(2):narrow(1, 1, 2):totable())
      assert.truthy((t ^ 3)[3] ~= (t ^ 3)[3])
      assert.near(1024.0, (2 ^ t)[1], 1e-3)
      assert.near(0.1, (t ^ -1)[1], 1e-6)
      assert.near(10 ^ 5, (t ^ 5)[1], 0.2)
      assert.near(100.0, (t ^ cl.tensor { 2, 2, 2 })[1], 2e-4)
      assert.equal(1.0, (t ^ 0)[3])
      assert.truthy((t ^ (0 / 0))[1] ~= (t ^ (0 / 0))[1])
    end)

    it("comparisons, as methods, to u8", function()
      local a, b = cl.tensor { 1, 2, 3 }, cl.tensor { 3, 2, 1 }
      assert.same({ 0, 1, 0 }, a:eq(b):totable())
      assert.same({ 1, 0, 1 }, a:ne(b):totable())
      assert.same({ 1, 0, 0 }, a:lt(b):totable())
      assert.same({ 1, 1, 0 }, a:le(b):totable())
      assert.same({ 0, 0, 1 }, a:gt(b):totable())
      assert.same({ 0, 1, 1 }, a:ge(2):totable())
      assert.equal("u8", a:gt(b):dtype())
      assert.is_true(a:equal(a:clone()))
      assert.is_false(a:equal(b))
    end)

    it("in place, by names with an underscore", function()
      local a = cl.tensor { 1, 2, 3 }
      assert.equal(a, a:add_(1):mul_(2):sub_(1):div_(cl.tensor { 1, 5, 7 }))
      assert.same({ 3.0, 1.0, 1.0 }, a:totable())
      a:add_(cl.tensor { 1, 2, 3 }, 0.5)
      assert.same({ 3.5, 2.0, 2.5 }, a:totable())
      a:narrow(1, 2, 2):add_(a:narrow(1, 1, 2))
      assert.same({ 3.5, 5.5, 4.5 }, a:totable(), "what it reads is what was there before")
      local m = cl.arange(1, 9):view(3, 3)
      assert.same({ { 2.0, 6.0, 10.0 }, { 6.0, 10.0, 14.0 }, { 10.0, 14.0, 18.0 } }, m:clone():add_(m:t()):totable())
      m:copy(m:t())
      assert.same({ { 1.0, 4.0, 7.0 }, { 2.0, 5.0, 8.0 }, { 3.0, 6.0, 9.0 } }, m:totable())
      m:add_(m:t())
      assert.is_true(m:equal(m:t()), "symmetric")
      assert.same({ 1, 2 }, cl.tensor({ 2, 4 }, "i32"):mul_(0.5):totable())
      fails("2x3 does not fit into 3", function() a:add_(cl.zeros(2, 3)) end)
    end)

    it("texts in OpenCL C", function()
      local a = cl.tensor { 1, 4, 9 }
      assert.same({ 4.5, 5.5, 6.5 }, a:clone():apply "sqrt(x) + 3.5":totable())
      assert.same({ 1.0, 0.0, 0.0 }, a:clone():apply "if (x > 2) x = 0;":totable())
      assert.same({ 12.0, 18.0, 28.0 }, a:clone():map(cl.tensor { 10 }, "2 * x + y"):totable())
      assert.same({ 3.0, 24.0, 81.0 }, a:clone():map(cl.tensor { 1, 2, 3 }, 3 * cl.ones(3), "x = x * y * z"):totable())
      fails("apply", a.apply, a, "x +")
      fails("a string expected", a.apply, a, 3)
    end)

    it("conversions: floats are cut and kept within the range, NaN is 0, integers wrap", function()
      local inf = 1 / 0
      local list = { -1.5, 2.75, 300, 0 / 0, inf, -inf, -0.0, -0.5, 255.5, 256, 3e9, 5e9, 1e30, -1e30, 2.0 ^ -149,
        2.0 ^ 31, -2.0 ^ 31, 2.0 ^ 32, 2.0 ^ 63, -2.0 ^ 63 }
      local range = { i32 = { -(1 << 31), (1 << 31) - 1 }, u32 = { 0, (1 << 32) - 1 }, u8 = { 0, 255 },
        i64 = { math.mininteger, math.maxinteger } }
      for _, from in ipairs { "f32", has_fp64() and "f64" or nil } do
        local t = cl.tensor(list, from)
        for to, ends in pairs(range) do
          local got = t:to(to):totable()
          for i, v in ipairs(t:totable()) do
            local want = v ~= v and 0 or v <= ends[1] and ends[1] or v >= ends[2] and ends[2] or
              math.tointeger(v < 0 and math.ceil(v) or math.floor(v))
            assert.equal(want, got[i], ("%s to %s of %s"):format(from, to, v))
          end
        end
      end
      assert.same({ 44 }, cl.tensor({ 300 }, "i32"):to("u8"):totable())
      assert.same({ 1.0, 2.0 }, cl.tensor({ 1, 2 }, "i64"):to("f32"):totable())
      local i = cl.tensor({ 7, 7 }, "i32")
      i:copy(cl.tensor { 0 / 0, 1e10 })
      assert.same({ 0, (1 << 31) - 1 }, i:totable(), "copy converts the same way")
      if not has_fp64() then lacks_f64("to", i.to, i, "f64") end
    end)

    it("with NaN, infinities and denormals as IEEE says", function()
      local nan, inf, small = 0 / 0, 1 / 0, 2.0 ^ -149
      local t = cl.tensor { nan, inf, -inf, small, -0.0 }
      local list = (t + 0):totable()
      assert.truthy(list[1] ~= list[1])
      assert.same({ inf, -inf, small }, { list[2], list[3], list[4] })
      assert.equal(2 * small, (t * 2)[4])
      assert.truthy((t - t)[2] ~= (t - t)[2])
      assert.truthy(t:max():item() ~= t:max():item(), "NaN is the greatest")
      assert.truthy(t:min():item() ~= t:min():item(), "and the least")
      assert.equal(1, t:argmax():item())
      assert.same({ 0, 1, 1, 1, 1 }, t:eq(t):totable())
      assert.equal(-inf, (1 / t)[5])
      assert.equal(inf, t:narrow(1, 2, 1):sum():item())
      assert.truthy(t:relu()[1] ~= t:relu()[1])
    end)

    it("extremes where there are ties, NaN, or nothing but the least", function()
      local nan, inf = 0 / 0, 1 / 0
      local function found(list, kind)
        local t = cl.tensor(list, kind)
        local line = t:view(1, #list)
        assert.equal(t:argmax():item(), line:argmax(2):item())
        assert.equal(t:argmin():item(), line:argmin(2):item())
        return { t:argmax():item(), t:argmin():item() }
      end
      for _, kind in ipairs { "f32", has_fp64() and "f64" or nil } do
        assert.same({ 2, 2 }, found({ 1, nan, 3, nan }, kind), "the first NaN")
        assert.same({ 1, 1 }, found({ nan, nan }, kind))
        assert.same({ 1, 1 }, found({ -inf, -inf }, kind))
        assert.same({ 1, 1 }, found({ inf, inf }, kind))
        assert.same({ 1, 3 }, found({ 2, 2, 1, 1 }, kind))
        assert.equal(-inf, cl.tensor({ -inf, -inf }, kind):max():item())
        for _, v in ipairs(cl.tensor({ 1, nan, nan }, kind):maximum(cl.tensor({ nan, 1, nan }, kind)):totable()) do
          assert.truthy(v ~= v)
        end
      end
      for kind, ends in pairs { i64 = { math.mininteger, math.maxinteger }, u8 = { 0, 255 },
        i32 = { -(1 << 31), (1 << 31) - 1 }, u32 = { 0, (1 << 32) - 1 } } do
        local low, high = table.unpack(ends)
        assert.same({ 2, 1 }, found({ low, high, high, low }, kind))
        assert.same({ 1, 1 }, found({ low, low }, kind))
        assert.same({ 1, 1 }, found({ high, high }, kind))
        assert.equal(low, cl.tensor({ low, low }, kind):max():item())
        assert.equal(high, cl.tensor({ high, high }, kind):min():item())
        assert.equal(low + low, cl.tensor({ low, low }, kind):sum():item())
      end
    end)

    it("over memory that an expansion seems to take", function()
      local one = cl.full({ 1 }, 3)
      local huge = one:expand(1 << 40)
      assert.equal(3.0, huge[1 << 39])
      assert.equal(6.0, huge:narrow(1, 1 << 39, 2):sum():item())
      assert.truthy(tostring(huge):find("size 1099511627776", 1, true))
      assert.same({ 1 << 20, 1 << 20 }, huge:view(1 << 20, -1):size())
      -- Past 2^30 elements indices have 64 bits; llvmpipe would take half a minute.
      local device <close> = cl.current()
      local many = device.name:find "^llvmpipe" and 1 << 20 or (1 << 30) + 5
      assert.equal(3 * many, cl.tensor({ 3 }, "u8"):expand(many):sum():item())
      fails("clone: ", huge.clone, huge)
      fails("add: ", function() return (huge + 1):eval() end)
      fails("more elements than can be addressed", one.expand, one, 1 << 62)
      fails("more elements than can be addressed", function() return one:expand(1 << 31, 1 << 31) end)
    end)

    it("reductions over all or one dimension", function()
      local t = cl.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
      assert.equal(21.0, t:sum():item())
      assert.same({ 5.0, 7.0, 9.0 }, t:sum(1):totable())
      assert.same({ { 9.0 }, { 12.0 } }, t:sum(2, true):totable())
      assert.same({ 3.0, 4.0 }, t:mean(2):totable())
      assert.equal(6.0, t:max():item())
      assert.same({ 1.0, 2.0, 3.0 }, t:min(1):totable())
      assert.same({ 2, 1, 2 }, t:argmax(1):totable())
      assert.same({ 2, 3 }, t:argmax(2):totable())
      assert.equal(6, t:argmax():item())
      assert.equal(1, t:argmin():item())
      assert.equal(2, t:t():argmax(1)[1])
      local i = cl.full({ 3 }, (1 << 31) - 1, "i32"):sum()
      assert.equal("i64", i:dtype())
      assert.equal(3 * ((1 << 31) - 1), i:item())
      assert.equal(2.5, (t:narrow(2, 1, 1)):mean():item())
      fails("sum: dimension: 3 is not in 1 to 2", t.sum, t, 3)
    end)

    it("long sums exactly enough, in parts", function()
      local n = 1000003
      assert.equal(n, cl.ones(n):sum():item())
      if has_fp64() then
        assert.near(n * (n + 1) // 2, cl.arange(1, n, 1, "f64"):sum():item(), 0)
      else
        lacks_f64("arange", cl.arange, 1, n, 1, "f64")
      end
      assert.equal(n * (n + 1) // 2, cl.arange(1, n, 1, "i32"):sum():item())
      assert.equal(n, cl.arange(1, n):argmax():item())
      assert.equal(777778, (cl.arange(1, n, 1, "i32") - 777778):abs():argmin():item())
      local m = cl.ones(1000, 1003):t()
      assert.equal(1003000.0, m:sum():item())
      assert.equal(1000.0, m:sum(2):max():item())
    end)

    -- Mesa's llvmpipe ends loops of an item after 65535 iterations, without a word.
    it("whatever is long: rows, columns, elements, depth", function()
      local n = 200000
      local wide = cl.ones({ 100, 1 }, "u8"):expand(100, n)
      assert.equal(100 * n, wide:sum():item(), "many long rows")
      assert.equal(n, wide:sum(2):min():item())
      assert.equal(100, wide:sum(1):min():item())
      local all = cl.zeros({ 12000000 }, "u8")
      assert.equal(1, (all + 1):eval():min():item(), "every element of many")
      local k = 70000
      local a, b = cl.arange(1, k, 1, "i64"), cl.ones({ k }, "i64")
      assert.equal(k * (k + 1) // 2, a:matmul(b):item(), "deep products")
      assert.same({ { k * 1.0 }, { k * 1.0 } }, cl.ones(2, k):matmul(cl.ones(k, 1)):totable())
    end)

    it("products of matrices and vectors, of any strides", function()
      local a, b = cl.tensor { { 1, 2, 3 }, { 4, 5, 6 } }, cl.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }
      assert.same({ { 22.0, 28.0 }, { 49.0, 64.0 } }, a:matmul(b):totable())
      assert.same({ { 22.0, 49.0 }, { 28.0, 64.0 } }, b:t():matmul(a:t()):totable())
      assert.same({ 14.0, 32.0 }, a:matmul(cl.tensor { 1, 2, 3 }):totable())
      assert.same({ 9.0, 12.0, 15.0 }, cl.tensor({ 1, 2 }):matmul(a):totable())
      assert.equal(14.0, cl.tensor({ 1, 2, 3 }):matmul(cl.tensor { 1, 2, 3 }):item())
      assert.same({ { 7, 10 }, { 15, 22 } }, cl.tensor({ { 1, 2 }, { 3, 4 } }, "i64")
        :matmul(cl.tensor({ { 1, 2 }, { 3, 4 } }, "i32")):totable())
      assert.same({ { 0.0, 0.0 } }, cl.zeros(1, 0):matmul(cl.zeros(0, 2)):totable())
      fails("matmul: 2x3 and 4x5 do not match (3 ~= 4)", function() a:matmul(cl.zeros(4, 5)) end)
      fails("matrices or vectors expected", function() a:matmul(cl.zeros(3, 1, 1)) end)
    end)

    it("products larger than a tile, against sums", function()
      local m, k, n = 65, 70, 131
      local a, b = cl.rand(m, k), cl.rand(k, n)
      local want = (a:view(m, k, 1) * b:view(1, k, n)):sum(2)
      assert.truthy((a:matmul(b) - want):abs():max():item() < 1e-4)
      local c = cl.arange(1, 40000, 1, "i32"):view(200, 200)
      assert.is_true(c:matmul(c):equal((c:view(200, 200, 1) * c:view(1, 200, 200)):to("i32"):sum(2):to("i32")))
    end)

    it("nothing of nothing", function()
      local e = cl.zeros(0, 3)
      assert.same({}, (e + 1):totable())
      assert.equal(0.0, e:sum():item())
      assert.same({ 0.0, 0.0, 0.0 }, e:sum(1):totable())
      assert.truthy(e:mean():item() ~= e:mean():item())
      assert.same({ 0, 3 }, e:clone():size())
      assert.same({ 3, 0 }, e:t():contiguous():size())
      assert.same({ 2, 3 }, cl.cat({ e, cl.ones(2, 3) }, 1):size())
      assert.equal("[f32 tensor of size 0x3]", tostring(e))
      assert.is_true(e:equal(cl.zeros(0, 3)))
      fails("max: 0x3 has no elements", e.max, e)
      fails("argmax: 0 has no elements", e.argmax, e)
    end)
  end)

  describe("prints", function()
    it("in Torch's layout", function()
      assert.equal(" 1  2\n 3  4\n[f32 tensor of size 2x2]", tostring(cl.tensor { { 1, 2 }, { 3, 4 } }))
      assert.equal("  1.5000  -2.0000\n[f32 tensor of size 1x2]", tostring(cl.tensor { { 1.5, -2 } }))
      assert.equal(" 10\n  9\n[i32 tensor of size 2]", tostring(cl.tensor({ 10, 9 }, "i32")))
      assert.equal(" nan\n inf\n   1\n[f32 tensor of size 3]", tostring(cl.tensor { 0 / 0, 1 / 0, 1 }))
      assert.equal("(1,.,.) =\n 1\n\n(2,.,.) =\n 2\n\n[f32 tensor of size 2x1x1]",
        tostring(cl.tensor { { { 1 } }, { { 2 } } }))
      assert.equal(" 5\n[f32 scalar]", tostring(cl.tensor(5)))
      assert.truthy(tostring(cl.zeros(2, 100)):find("Columns 1 to 27", 1, true))
    end)

    it("corners only, beyond a thousand elements", function()
      local text = tostring(cl.arange(1, 10000):view(100, 100))
      assert.truthy(text:find("   101    102    103    ...    198    199    200", 1, true), text)
      assert.truthy(text:find("  9901   9902   9903    ...   9998   9999  10000", 1, true), text)
      assert.truthy(select(2, text:gsub("\n", "")) == 7)
      assert.truthy(tostring(cl.zeros(20, 20, 20)):find("(20,.,.)", 1, true))
      assert.truthy(#tostring(cl.zeros(5000000)) < 100)
    end)

    it("whatever state it is in", function()
      local t = cl.ones(3)
      t:close()
      t:close()
      assert.equal("tensor (closed)", tostring(t))
      fails("add: attempt to use a closed tensor", function() return t + 1 end)
      fails("totable: attempt to use a closed tensor", t.totable, t)
      fails("index: attempt to use a closed tensor", function() return t[1] end)
      local device <close> = cl.current()
      local buffer = assert(device:alloc(16))
      local over = cl.from(buffer)
      buffer:close()
      assert.truthy(tostring(over):find("cannot be read", 1, true))
    end)
  end)

  describe("refuses what is none", function()
    local names, values = {}, { "x", {}, io.stdout, true }

    setup(function()
      for name in pairs(require "clalloc.tensor".methods) do names[#names + 1] = name end
      table.sort(names)
    end)

    it("by the method's name, whatever it is called on", function()
      for _, name in ipairs(names) do
        local method = cl.ones(1)[name]
        for _, value in ipairs(values) do
          fails(("%s: tensor expected, got %s"):format(name, type(value)), method, value)
        end
        fails(("%s: tensor expected, got nil"):format(name), method)
      end
    end)

    it("after it was closed, all but close", function()
      local closed, other = cl.ones(2, 2), cl.ones(2, 2)
      closed:close()
      for _, name in ipairs(names) do
        if name ~= "close" then fails("attempt to use a closed tensor", closed[name], closed, other, 1) end
      end
      fails("tensor: attempt to use a closed tensor", cl.tensor, closed)
    end)

    -- Each raises at the line of the caller or succeeds; none fails inside.
    it("as an argument, at the line that called it", function()
      local t, here = cl.ones(2, 2), "tensor_spec.lua:"
      local odd = {
        {}, { 1, 2 }, { -1 }, { 1.5 }, { 0 }, { 2 ^ 31 }, { 1 << 53 }, { math.mininteger }, { 0 / 0 }, { "16" },
        { print }, { true }, { 1, "x" }, { 1, 1, -1 }, { 1, 1, 2 ^ 53 }, { 1, 0 / 0 }, { {} }, { { "a" } }, { { -1 } },
        { { 0 / 0 } }, { { 1 << 62, 4 } }, { { 1, 2 }, { 3 } },
        { t, t, "x" }, { 1, math.maxinteger, 1 }, { 1, 2, math.maxinteger },
        { math.maxinteger, math.maxinteger, math.maxinteger }, { nil, nil, 3 }, { math.huge }, { io.stdout },
      }
      local function check(what, f, ...)
        local ok, message = pcall(function(...)
          local result = f(...)
          return result
        end, ...)
        if not ok then assert(tostring(message):find(here, 1, true), ("%s: %s"):format(what, message)) end
      end
      for _, list in ipairs(odd) do
        for _, name in ipairs(names) do
          if name ~= "save" then
            local one <close> = cl.ones(2, 2)
            check(name, one[name], one, table.unpack(list, 1, 3))
          end
        end
        for _, name in ipairs { "tensor", "zeros", "ones", "full", "arange", "rand", "randn", "seed", "from", "cat" } do
          check(name, cl[name], table.unpack(list, 1, 3))
        end
      end
      for _, value in ipairs { 3, {}, print, t } do
        fails("save: path: string expected, got ", t.save, t, value)
        fails("load_tensor: path: string expected, got ", cl.load_tensor, value)
      end
      fails("scope: function expected, got nil", cl.scope)
      local device = cl.current()
      local buffer = assert(device:alloc(8))
      buffer:close()
      device:close()
      fails("from: attempt to use a closed buffer", cl.from, buffer)
      fails("from: a buffer or a table expected, got userdata", cl.from, io.stdout)
      fails("to: attempt to use a closed device", t.to, t, device)
      fails("to: a dtype's name or a device expected, got userdata", t.to, t, io.stdout)
      fails("full: a list of sizes expected, got a tensor", cl.full, t, 1)
      fails("cat: a list of tensors expected", cl.cat, t)
      fails("zero: dimension 1 is expanded", function() cl.ones(1, 2):expand(2, 2):zero() end)
    end)
  end)

  describe("is saved and loaded", function()
    it("with shape and dtype, whatever its strides", function()
      local path = os.tmpname()
      for _, t in ipairs { cl.arange(1, 6):view(2, 3):t(), cl.tensor(5), cl.zeros(0, 2), cl.tensor({ 1, -1 }, "i64"),
        cl.ones(3) + 1 } do
        assert.is_true(t:save(path))
        local back = assert(cl.load_tensor(path))
        assert.equal(t:dtype(), back:dtype())
        assert.same(t:size(), back:size())
        assert.same(t:totable(), back:totable())
      end
      os.remove(path)
    end)

    it("or says what is wrong with the file", function()
      local path = os.tmpname()
      local function with(bytes)
        local file = assert(io.open(path, "wb"))
        file:write(bytes)
        file:close()
        local t, message = cl.load_tensor(path)
        assert.is_nil(t)
        return message
      end
      assert.equal(path .. ": not a tensor", with "")
      assert.equal(path .. ": not a tensor", with "clalloc tensor 1\nf32\n")
      assert.equal(path .. ": not a tensor", with("clalloc tensor 1\nf32\n" .. ("<i8i8"):pack(1, -1)))
      assert.equal(path .. ": not a tensor", with("clalloc tensor 1\nf99\n" .. ("<i8i8"):pack(1, 1)))
      assert.equal(path .. ": not a tensor", with("clalloc tensor 1\nf32\n" .. ("<i8i8i8"):pack(2, 1 << 62, 4)))
      assert.equal(path .. ": 2 of f32 takes 8 bytes, the file has 3",
        with("clalloc tensor 1\nf32\n" .. ("<i8i8"):pack(1, 2) .. "abc"))
      local whole = "clalloc tensor 1\nf32\n" .. ("<i8i8i8"):pack(2, 2, 3) .. ("\0"):rep(24)
      for n = 0, #whole - 1 do assert.is_string(with(whole:sub(1, n))) end
      assert.is_string(with(whole .. "\0"))
      for i = 1, #whole - 24 do
        local file <close> = assert(io.open(path, "wb"))
        file:write(whole:sub(1, i - 1), "\xff", whole:sub(i + 1))
        file:close()
        local t, message = cl.load_tensor(path)
        assert(t == nil and message:find(path, 1, true), i)
      end
      os.remove(path)
      local t, message = cl.load_tensor(path)
      assert.is_nil(t)
      assert.truthy(message:find(path, 1, true))
      assert.is_nil((cl.ones(1):save("/nowhere/at/all")))
      if io.open "/dev/full" then
        for _, n in ipairs { 1, 100000 } do
          local saved, why = cl.ones(n):save "/dev/full"
          assert.is_nil(saved)
          assert.truthy(why:find("/dev/full: ", 1, true), why)
        end
      end
    end)
  end)
end)
