-- Reductions in both layouts, runs as on CPUs and groups as on GPUs, on whatever device there is: against plain Lua
-- over random shapes and views, and at the edges. The seed is printed when a case fails; set CLALLOC_SEED to run it
-- again, CLALLOC_CASES for more.

local cl = require "clalloc"
local context = require "clalloc.tensor.context"

local SEED = math.tointeger(tonumber(os.getenv "CLALLOC_SEED" or "")) or os.time()
local CASES = math.tointeger(tonumber(os.getenv "CLALLOC_CASES" or "")) or 60

-- What a context is made to believe. Many units cut short rows too, few items in a group make many passes; limited
-- steps need more parts than the device would have. A CPU driver compiles for each shape of groups, so random shapes
-- meet small ones.
local RUNS, GROUPS = { takes_runs = true }, { takes_runs = false }
local SMALL = { takes_runs = false, max_group = 5, units = 500 }
local LIMITED = { takes_runs = false, max_group = 2, units = 1, most_steps = 1 << 10 }
local LAYOUTS = { { "in runs", RUNS }, { "in small groups", SMALL }, { "in few steps", LIMITED } }

-- Calls `body` where the current device's context has other fields.
local function with(fields, body)
  local device <close> = cl.current()
  local own, was = context.of(device), {}
  for name, v in pairs(fields) do
    was[name], own[name] = own[name], v
  end
  own.kernels = {}
  local ok, why = pcall(cl.scope, body, device)
  own.kernels = {}
  for name, v in pairs(was) do own[name] = v end
  if not ok then error(why, 0) end
end

local function kinds(device)
  local list = { "f32", "i32", "u32", "i64", "u8" }
  if device.has_fp64 then list[#list + 1] = "f64" end
  return list
end

-- ---- Reductions in plain Lua -----------------------------------------------------------------------------------

-- Of a list: sum, greatest, least, and where the last two are.
local function reduced(list)
  local sum, most, least, where_most, where_least = 0, nil, nil, nil, nil
  for i, v in ipairs(list) do
    sum = sum + v
    if where_most == nil or (v ~= v or v > most) and most == most then most, where_most = v, i end
    if where_least == nil or (v ~= v or v < least) and least == least then least, where_least = v, i end
  end
  return { sum = sum, max = most, min = least, argmax = where_most, argmin = where_least }
end

local OPERATIONS = { "sum", "max", "min", "argmax", "argmin" }

local function same(want, got) return want == got or (want ~= want and got ~= got) end

local function check(what, want, got)
  if not same(want, got) then error(("%s: %s, not %s"):format(what, got, want), 0) end
end

-- ---- Random tensors of two dimensions, and what is in them -------------------------------------------------------

local RANGE = { f32 = 1 << 10, f64 = 1 << 20, i32 = 1 << 28, u32 = 1 << 31, i64 = 1 << 50, u8 = 255 }

-- Numbers that repeat, so that there are ties, and whose sums are exact in every order.
local function value(kind)
  local most = RANGE[kind]
  local v = math.random(0, 3) == 0 and math.random(0, most) or math.random(0, math.min(most, 9))
  if kind == "f32" or kind == "f64" then
    if math.random(500) == 1 then return 0 / 0 end
    return (v - most // 2) / 4
  end
  return kind ~= "u8" and kind ~= "u32" and math.random(2) == 1 and -v or v
end

-- Many short rows, few long ones, or something between; one element at times.
local function size(most)
  return math.random(1, math.random(1, math.random(1, most)))
end

-- A tensor as rows of columns, a view of another at times, and the lists of its rows.
local function made(kind)
  local m, n = size(60), size(400)
  if math.random(2) == 1 then m, n = n, m end
  local list = {}
  for i = 1, m * n do list[i] = value(kind) end
  local t = cl.tensor(list, kind):view(m, n)
  local rows = {}
  for i = 1, m do rows[i] = table.move(list, (i - 1) * n + 1, i * n, 1, {}) end
  local dice = math.random(4)
  if dice == 1 and n > 2 then
    local first = math.random(2, n)
    t = t:narrow(2, first, n - first + 1)
    for i, row in ipairs(rows) do rows[i] = table.move(row, first, n, 1, {}) end
  elseif dice == 2 then
    local columns = {}
    for j = 1, n do
      columns[j] = {}
      for i = 1, m do columns[j][i] = rows[i][j] end
    end
    return t:t(), columns
  end
  return t, rows
end

local function columns_of(rows)
  local columns = {}
  for j = 1, #rows[1] do
    columns[j] = {}
    for i, row in ipairs(rows) do columns[j][i] = row[j] end
  end
  return columns
end

local function compare(name, t, rows, d)
  local got, lists = t[name](t, d):totable(), d == 2 and rows or columns_of(rows)
  assert.equal(#lists, #got)
  for i, list in ipairs(lists) do
    check(("%s over %d, %dx%d, %d"):format(name, d, #rows, #rows[1], i), reduced(list)[name], got[i])
  end
end

local function compare_all(name, t, rows)
  local all = {}
  for _, row in ipairs(rows) do table.move(row, 1, #row, #all + 1, all) end
  check(("%s of %dx%d"):format(name, #rows, #rows[1]), reduced(all)[name], t[name](t):item())
end

local function random_case(kind)
  local t, rows = made(kind)
  local name, dice = OPERATIONS[math.random(#OPERATIONS)], math.random(3)
  if dice == 3 then compare_all(name, t, rows) else compare(name, t, rows, dice) end
end

describe("reductions", function()
  teardown(function()
    cl.forget_kernels()
    collectgarbage()
    collectgarbage()
    cl.current().default_stream:query() -- lets go of its markers
  end)

  for _, layout in ipairs(LAYOUTS) do
    local name, fields = table.unpack(layout)
    it(("%s are what plain Lua finds, in %d random cases"):format(name, CASES), function()
      with(fields, function(device)
        math.randomseed(SEED)
        local list = kinds(device)
        local kind = list[math.random(#list)]
        for i = 1, CASES do
          local ok, why = pcall(cl.scope, random_case, kind)
          if not ok then error(("case %d, %s, CLALLOC_SEED=%d: %s"):format(i, kind, SEED, tostring(why)), 0) end
        end
        device:pool():check()
      end)
    end)
  end

  it("in groups hold for every dtype, in one pass and in several", function()
    local numbers = {}
    for i = 1, 3000 do numbers[i] = (i * 7919) % 251 end
    local wanted = reduced(numbers)
    with(SMALL, function(device)
      for _, kind in ipairs(kinds(device)) do
        local t = cl.tensor(numbers, kind)
        for _, name in ipairs(OPERATIONS) do check(kind .. " " .. name, wanted[name], t[name](t):item()) end
        assert.near(wanted.sum / 3000, t:mean():item(), 1e-5 * wanted.sum / 3000)
      end
    end)
  end)

  it("in groups have the same rules for NaN, ties, infinities, one element and none", function()
    local nan, inf = 0 / 0, 1 / 0
    with(GROUPS, function()
      local t = cl.arange(1, 5000)
      t[4321], t[1234] = nan, nan
      check("max", nan, t:max():item())
      check("min", nan, t:min():item())
      check("sum", nan, t:sum():item())
      assert.same({ 1234, 1234 }, { t:argmax():item(), t:argmin():item() })
      local low = cl.full({ 700 }, -inf)
      assert.same({ -inf, 1, 1 }, { low:max():item(), low:argmax():item(), low:argmin():item() })
      local square = cl.zeros(70, 70)
      assert.same({ 1, 1 }, { square:argmax(1):max():item(), square:argmax(2):max():item() })
      local one = cl.tensor { 5 }
      for _, name in ipairs(OPERATIONS) do assert.equal(name:find "arg" and 1 or 5.0, one[name](one):item()) end
      assert.equal(5.0, cl.tensor(5):sum():item())
      assert.equal(0.0, cl.zeros(0, 3):sum():item())
      assert.same({ 0.0, 0.0, 0.0 }, cl.zeros(0, 3):sum(1):totable())
      assert.same({ 0 }, cl.zeros(0, 3):max(2):size())
      assert.is_false((pcall(t.max, cl.zeros(0, 3))))
      assert.is_false((pcall(t.argmin, cl.zeros(0, 3), 1)))
    end)
  end)

  it("in groups read expressions, and what is expanded or far apart", function()
    with(GROUPS, function()
      local a, b = cl.arange(1, 600):view(20, 30), cl.arange(1, 30)
      local rows, columns = ((a + b) * 2):sum(2):totable(), ((a + b) * 2):sum(1):totable()
      for i = 1, 20 do assert.equal(2 * (30 * (30 * (i - 1)) + 2 * 465), rows[i]) end
      for j = 1, 30 do assert.equal(2 * (20 * (2 * j) + 30 * 190), columns[j]) end
      local wide = cl.arange(1, 100, 1, "i32"):view(100, 1):expand(100, 3000)
      assert.equal(3000 * 5050, wide:sum():item())
      assert.equal(5050, wide:sum(1):min():item())
      assert.same({ 100 * 3000, 100 }, { wide:sum(2):max():item(), wide:t():argmax(2)[3000] })
      local middle = cl.arange(1, 24 * 24 * 24, 1, "i32"):view(24, 24, 24):sum(2):totable()
      for i = 1, 24 do
        for k = 1, 24 do assert.equal(24 * (576 * (i - 1) + k) + 24 * 276, middle[i][k]) end
      end
    end)
  end)

  it("in groups give the same bits each time", function()
    with(GROUPS, function()
      local t = cl.rand(200, 300)
      local copy = t:clone()
      for d = 1, 2 do assert.same(t:sum(d):totable(), copy:sum(d):totable()) end
      assert.equal(t:sum():item(), copy:sum():item())
    end)
  end)
end)
