-- Tensors against plain Lua: random shapes, views, dtypes and broadcasts. The seed is printed when a case fails; set
-- CLALLOC_SEED to run it again, CLALLOC_CASES for more.

local cl = require "clalloc"

local SEED = math.tointeger(tonumber(os.getenv "CLALLOC_SEED" or "")) or os.time()
local CASES = math.tointeger(tonumber(os.getenv "CLALLOC_CASES" or "")) or 1000
-- How many different programs may be built: compiling takes a CPU driver longer than all the rest.
local MOST_KINDS = 2

-- A reference: `sizes`, and `list`, the elements in row-major order.

local function count_of(sizes)
  local n = 1
  for _, size in ipairs(sizes) do n = n * size end
  return n
end

-- Calls body(index list) for every element of a shape, in order.
local function each(sizes, body)
  local index = {}
  local function walk(d)
    if d > #sizes then return body(index) end
    for i = 1, sizes[d] do
      index[d] = i
      walk(d + 1)
    end
  end
  walk(1)
end

local function place(sizes, index)
  local at = 0
  for d, size in ipairs(sizes) do at = at * size + index[d] - 1 end
  return at + 1
end

-- A reference of new sizes whose element at an index is that of the old one at from(index).
local function derive(ref, sizes, from)
  local list = {}
  each(sizes, function(index) list[#list + 1] = ref.list[place(ref.sizes, from(index))] end)
  return { sizes = sizes, list = list, kind = ref.kind }
end

local function copy(list) return { table.unpack(list) } end

-- ---- Random tensors, with their references -------------------------------------------------------------------

local KINDS = { "f32", "i32", "f32", "u8", "i64", "f64", "u32" }
local RANGE = { f32 = 50, f64 = 50, i32 = 1000, i64 = 1 << 40, u8 = 255, u32 = 1 << 20 }

local function random_sizes()
  local sizes = {}
  for d = 1, math.random(0, 4) do
    local dice = math.random(12)
    sizes[d] = dice == 1 and 0 or dice <= 4 and 1 or math.random(1, 5)
  end
  return sizes
end

local function random_value(kind)
  local most = RANGE[kind]
  if kind == "f32" or kind == "f64" then return math.random(-most * 4, most * 4) / 4 end
  local least = (kind == "u8" or kind == "u32") and 0 or -most
  return math.random(least, most)
end

local function made(sizes, kind)
  local list = {}
  for i = 1, count_of(sizes) do list[i] = random_value(kind) end
  local flat = cl.tensor(list, kind)
  return flat:view(sizes), { sizes = sizes, list = list, kind = kind }
end

local views = {}

function views.narrow(t, ref)
  if #ref.sizes == 0 then return t, ref end
  local d = math.random(#ref.sizes)
  local first = math.random(1, ref.sizes[d] + 1)
  local length = math.random(0, ref.sizes[d] - first + 1)
  local sizes = copy(ref.sizes)
  sizes[d] = length
  return t:narrow(d, first, length), derive(ref, sizes, function(index)
    local from = copy(index)
    from[d] = from[d] + first - 1
    return from
  end)
end

function views.transpose(t, ref)
  if #ref.sizes < 2 then return t, ref end
  local a, b = math.random(#ref.sizes), math.random(#ref.sizes)
  local function swap(list)
    list = copy(list)
    list[a], list[b] = list[b], list[a]
    return list
  end
  return t:transpose(a, b), derive(ref, swap(ref.sizes), swap)
end

function views.select(t, ref)
  if #ref.sizes == 0 then return t, ref end
  local d = math.random(#ref.sizes)
  if ref.sizes[d] == 0 then return t, ref end
  local i = math.random(ref.sizes[d])
  local sizes = copy(ref.sizes)
  table.remove(sizes, d)
  return t:select(d, i), derive(ref, sizes, function(index)
    local from = copy(index)
    table.insert(from, d, i)
    return from
  end)
end

function views.expand(t, ref)
  local sizes = copy(ref.sizes)
  for d, size in ipairs(sizes) do
    if size == 1 then sizes[d] = math.random(1, 4) end
  end
  if math.random(3) == 1 then table.insert(sizes, 1, math.random(1, 3)) end
  local shift = #sizes - #ref.sizes
  return t:expand(sizes), derive(ref, sizes, function(index)
    local from = {}
    for d, size in ipairs(ref.sizes) do from[d] = size == 1 and 1 or index[d + shift] end
    return from
  end)
end

function views.reshape(t, ref)
  local sizes = { count_of(ref.sizes) }
  return t:reshape(sizes), { sizes = sizes, list = ref.list, kind = ref.kind }
end

function views.index(t, ref)
  if #ref.sizes == 0 or ref.sizes[1] == 0 then return t, ref end
  local first = math.random(1, ref.sizes[1])
  local last = math.random(first, ref.sizes[1])
  local sizes = copy(ref.sizes)
  sizes[1] = last - first + 1
  return t[{ { first, last } }], derive(ref, sizes, function(index)
    local from = copy(index)
    from[1] = from[1] + first - 1
    return from
  end)
end

local VIEWS = { "narrow", "transpose", "select", "expand", "reshape", "index", "transpose" }

local function random_tensor(kind, sizes)
  local t, ref = made(sizes or random_sizes(), kind)
  for _ = 1, math.random(0, 3) do t, ref = views[VIEWS[math.random(#VIEWS)]](t, ref) end
  return t, ref
end

-- ---- Arithmetic in plain Lua -----------------------------------------------------------------------------------

local ORDER = { u8 = 1, i32 = 2, u32 = 2, i64 = 3, f32 = 4, f64 = 5 }

local function common(a, b)
  if a == b then return a end
  if ORDER[a] == ORDER[b] then return "i64" end
  return ORDER[a] > ORDER[b] and a or b
end

local function is_float(kind) return kind == "f32" or kind == "f64" end

local function round(v) return (("<f"):unpack(("<f"):pack(v))) end

-- The value as the kind holds it: f32 rounded, integers wrapped.
local function fit(kind, v)
  if kind == "f32" then return round(v) end
  if kind == "f64" then return v + 0.0 end
  v = math.tointeger(v)
  if kind == "u8" then return v & 0xff end
  if kind == "u32" then return v & 0xffffffff end
  if kind == "i32" then return ((v + (1 << 31)) & 0xffffffff) - (1 << 31) end
  return v
end

local OPS = {
  add = function(a, b) return a + b end,
  sub = function(a, b) return a - b end,
  mul = function(a, b) return a * b end,
  lt = function(a, b) return a < b and 1 or 0 end,
  eq = function(a, b) return a == b and 1 or 0 end,
  ge = function(a, b) return a >= b and 1 or 0 end,
}
local NAMES = { "add", "sub", "mul", "add", "lt", "eq", "ge" }

local function broadcast(a, b)
  local rank, sizes = math.max(#a, #b), {}
  for d = 1, rank do
    local m, n = a[d - rank + #a] or 1, b[d - rank + #b] or 1
    sizes[d] = m == 1 and n or m
  end
  return sizes
end

local function at(ref, sizes, index)
  local shift, from = #sizes - #ref.sizes, {}
  for d, size in ipairs(ref.sizes) do from[d] = size == 1 and 1 or index[d + shift] end
  return ref.list[place(ref.sizes, from)]
end

local function combine(name, x, y)
  local sizes, meet = broadcast(x.sizes, y.sizes), common(x.kind, y.kind)
  local kind = (name == "lt" or name == "eq" or name == "ge") and "u8" or meet
  local list = {}
  each(sizes, function(index)
    local a, b = fit(meet, at(x, sizes, index)), fit(meet, at(y, sizes, index))
    list[#list + 1] = fit(kind, OPS[name](a, b))
  end)
  return { sizes = sizes, list = list, kind = kind }
end

local function same(t, ref, what)
  assert.same(ref.sizes, t:size(), what)
  assert.equal(ref.kind, t:dtype(), what)
  local list = t:tolist()
  assert.equal(#ref.list, #list, what)
  for i, want in ipairs(ref.list) do
    if list[i] ~= want then error(("%s: element %d is %s, not %s"):format(what, i, list[i], want), 0) end
  end
end

-- ---- The cases ---------------------------------------------------------------------------------------------------

-- Sizes that broadcast with others: some become 1, some in front go away.
local function matching(sizes)
  local out = {}
  for d, size in ipairs(sizes) do out[d] = math.random(3) == 1 and 1 or size end
  for _ = 1, math.random(0, #out) do
    if math.random(3) == 1 then table.remove(out, 1) end
  end
  return out
end

local function kinds(pool)
  return pool[math.random(#pool)], pool[math.random(#pool)]
end

local cases = {}

function cases.views(pool)
  local t, ref = random_tensor((kinds(pool)))
  same(t, ref, "view")
  same(t:contiguous(), ref, "contiguous")
  same(t:clone(), ref, "clone")
end

function cases.operators(pool)
  local k, l = kinds(pool)
  local a, x = random_tensor(k)
  local b, y = made(matching(x.sizes), l)
  local name = NAMES[math.random(#NAMES)]
  if math.random(2) == 1 then a, x, b, y = b, y, a, x end
  same(a[name](a, b), combine(name, x, y), name)
end

function cases.chains()
  local a, x = random_tensor "f32"
  local b, y = made(matching(x.sizes), "f32")
  local c, z = made(matching(x.sizes), "f32")
  same((a + b) * c, combine("mul", combine("add", x, y), z), "(a + b) * c")
  local two = { sizes = {}, list = { 2.0 }, kind = "f32" }
  same(a - 2, combine("sub", x, two), "a - 2")
  same(2 - a, combine("sub", two, x), "2 - a")
end

function cases.in_place(pool)
  local kind = kinds(pool)
  local whole, ref = made({ math.random(1, 4), math.random(1, 4), math.random(1, 4) }, kind)
  local part, x = views.narrow(whole, ref)
  local sum = whole + whole
  local b, y = made(matching(x.sizes), kind)
  part:add_(b)
  same(part, combine("add", x, y), "add_")
  same(sum, combine("add", ref, ref), "what was to be computed before")
end

function cases.reductions(pool)
  local kind = kinds(pool)
  local t, ref = random_tensor(kind)
  if #ref.sizes == 0 then return end
  local d = math.random(#ref.sizes)
  local sizes = copy(ref.sizes)
  table.remove(sizes, d)
  local sum = { sizes = sizes, list = {}, kind = is_float(kind) and kind or "i64" }
  local max = { sizes = sizes, list = {}, kind = kind }
  local where = { sizes = sizes, list = {}, kind = "i64" }
  each(sizes, function(index)
    local total, most, first = 0, nil, nil
    for i = 1, ref.sizes[d] do
      local from = copy(index)
      table.insert(from, d, i)
      local v = ref.list[place(ref.sizes, from)]
      total = total + v
      if not most or v > most then most, first = v, i end
    end
    local n = #sum.list + 1
    sum.list[n], max.list[n], where.list[n] = fit(sum.kind, total), most, first
  end)
  same(t:sum(d), sum, "sum")
  if ref.sizes[d] == 0 then return end
  same(t:max(d), max, "max")
  same(t:argmax(d), where, "argmax")
  local total = 0
  for _, v in ipairs(ref.list) do total = total + v end
  assert.equal(fit(sum.kind, total), t:sum():item())
end

function cases.products(pool)
  local kind = kinds(pool)
  local m, k, n = math.random(1, 6), math.random(0, 6), math.random(1, 6)
  local a, x = made({ m, k }, kind)
  local b, y = made({ n, k }, kind)
  local out = { sizes = { m, n }, list = {}, kind = kind }
  each(out.sizes, function(index)
    local total = fit(kind, 0)
    for i = 1, k do
      total = fit(kind, total + x.list[place(x.sizes, { index[1], i })] * y.list[place(y.sizes, { index[2], i })])
    end
    out.list[#out.list + 1] = total
  end)
  same(a:matmul(b:t()), out, "matmul")
end

function cases.conversions(pool)
  local k, l = kinds(pool)
  local t, ref = random_tensor(k)
  local list = {}
  for i, v in ipairs(ref.list) do
    if is_float(k) and not is_float(l) then
      v = v < 0 and math.ceil(v) or math.floor(v)
      if l == "u8" then v = math.max(0, math.min(255, v)) elseif l == "u32" then v = math.max(0, v) end
    end
    list[i] = fit(l, v)
  end
  same(t:to(l), { sizes = ref.sizes, list = list, kind = l }, k .. " to " .. l)
end

local SHARES = { "views", "operators", "operators", "chains", "in_place", "reductions", "products", "conversions" }

describe("tensors and plain Lua agree", function()
  teardown(function()
    cl.forget_kernels()
    collectgarbage()
    collectgarbage()
    cl.current().default_stream:query() -- lets go of its markers
  end)

  it(("in %d random cases"):format(CASES), function()
    math.randomseed(SEED)
    local device <close> = cl.current()
    local pool = {}
    while #pool < MOST_KINDS do
      local kind = KINDS[math.random(#KINDS)]
      if kind ~= "f64" or device.has_fp64 then pool[#pool + 1] = kind end
    end
    for i = 1, CASES do
      local name = SHARES[math.random(#SHARES)]
      local ok, why = pcall(cl.scope, cases[name], pool)
      if not ok then error(("case %d, %s, CLALLOC_SEED=%d: %s"):format(i, name, SEED, tostring(why)), 0) end
    end
    device:pool():check()
  end)
end)
