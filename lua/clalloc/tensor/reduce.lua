--- Reductions: `sum`, `mean`, `max`, `min`, `argmax`, `argmin` over all elements or one dimension.
--
-- An expression is reduced as it is computed: it never takes memory. Long rows are cut, so that every unit of the
-- device has a share, and the parts reduced again. `sum` of f32 adds in f64 where the device has it; sums of integers
-- are i64, and wrap. The greatest and the least of what contains a NaN are NaN.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local dtype = require "clalloc.tensor.dtype"
local expression = require "clalloc.tensor.expression"
local fault = require "clalloc.tensor.fault"
local fold = require "clalloc.tensor.fold"
local layout = require "clalloc.tensor.layout"
local ops = require "clalloc.tensor.ops"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"

local methods = Tensor.methods

-- ---- What is reduced -----------------------------------------------------------------------------------------

-- Each: name; the kinds of the partial results and of the result; where it begins; one step.
local function keep(kind) return kind end

local sum = {
  name = "sum",
  partial = function(own, kind)
    if not kind.is_float then return dtype.i64 end
    return own.has_fp64 and dtype.f64 or kind
  end,
  result = function(kind) return kind.is_float and kind or dtype.i64 end,
  first = function() return "0" end,
  step = function(kind, a, x)
    return kind.is_float and ("%s + %s"):format(a, x) or ("(long)((ulong)%s + (ulong)%s)"):format(a, x)
  end,
}

local EXTREMES = {
  i32 = { "INT_MIN", "INT_MAX" }, u32 = { "0", "UINT_MAX" }, i64 = { "LONG_MIN", "LONG_MAX" }, u8 = { "0", "255" },
  f32 = { "-INFINITY", "INFINITY" }, f64 = { "-INFINITY", "INFINITY" },
}

local function extreme(name, sign, which)
  return {
    name = name,
    partial = function(_, kind) return kind end,
    result = keep,
    first = function(kind) return EXTREMES[kind.name][which] end,
    step = function(kind, a, x)
      local nan = kind.is_float and ("|| %s != %s"):format(x, x) or ""
      return ("(%s %s %s %s) ? %s : %s"):format(x, sign, a, nan, x, a)
    end,
    needs_elements = true,
  }
end

local greatest, least = extreme("max", ">", 1), extreme("min", "<", 2)

-- ---- All passes ----------------------------------------------------------------------------------------------

local function as_node(x)
  return x.op and x or expression.node(ops.cast, x.kind, nil, x)
end

-- Reduces a view of rows x parts until one part is left.
local function finish(what, how, view, own, partial, result)
  while view.sizes[2] > 1 do
    local next_view = fold.pass(what, how, as_node(view), own, partial, result,
      layout.reduction(view.sizes, view.count, { view }, 2))
    storage.close(view.storage)
    view = next_view
  end
  return view
end

-- Over everything: dimension by dimension, as far as they do not merge.
local function over_all(what, how, node, sizes, count, own, partial, result)
  local walk, columns = layout.reduction(sizes, count, node.leaves)
  local view = fold.pass(what, how, node, own, partial, walk.rows > 1 and partial or result, walk, columns)
  if walk.rows > 1 then view.sizes, view.strides = { 1, view.count }, { view.count, 1 } end
  return finish(what, how, view, own, partial, result)
end

local function over_one(what, how, node, sizes, count, d, own, partial, result)
  local view = fold.pass(what, how, node, own, partial, result, layout.reduction(sizes, count, node.leaves, d))
  return finish(what, how, view, own, partial, result)
end

local function reduced_sizes(sizes, d, is_kept)
  local out = {}
  for i, size in ipairs(sizes) do
    if i ~= d then out[#out + 1] = size elseif is_kept then out[#out + 1] = 1 end
  end
  return out
end

-- The result for no elements: 0 for sums of nothing, in the shape that is left.
local function empty(what, own, kind, sizes)
  local view = Tensor.room(what, own, kind, sizes, shape.count(what, sizes))
  return Tensor.over(what, view):fill(0)
end

-- @param node a view or node of shape `sizes`
local function reduce(what, how, own, node, sizes, d, is_kept)
  local kind = node.kind
  local count = shape.count(what, sizes)
  local out_sizes = d and reduced_sizes(sizes, d, is_kept) or {}
  local result = how.result(kind)
  if count == 0 then
    if how.needs_elements and shape.count(what, out_sizes) > 0 then
      fault("%s: %s has no elements", what, shape.text(sizes))
    end
    return empty(what, own, result, out_sizes)
  end
  local partial = how.partial(own, kind)
  node = as_node(node)
  local view
  if d then view = over_one(what, how, node, sizes, count, d, own, partial, result)
  else view = over_all(what, how, node, sizes, count, own, partial, result) end
  view.sizes, view.strides = out_sizes, shape.strides(out_sizes)
  view.count = shape.count(what, out_sizes)
  return Tensor.over(what, view)
end

local function reduction(what, how)
  return function(self, d, is_kept)
    Tensor.check(what, self)
    if d ~= nil then d = shape.dimension(what, self.sizes, d) end
    local own = Tensor.context(self)
    local result = reduce(what, how, own, Tensor.part(what, self), self.sizes, d, is_kept)
    Tensor.taken(self)
    return result
  end
end

--- The sum of all elements, without dimensions; or over dimension `d`, which goes away, or stays with size 1.
-- The sum of no elements is 0.
-- @function sum
-- @tparam[opt] integer d
-- @tparam[opt=false] boolean is_kept
-- @treturn tensor of the same kind; i64 for integers
methods.sum = reduction("sum", sum)

--- The greatest element; raises when there is none. Arguments as for `sum`.
-- @function max
methods.max = reduction("max", greatest)

--- The least element; raises when there is none. Arguments as for `sum`.
-- @function min
methods.min = reduction("min", least)

--- The mean, f32 for integers; NaN of no elements. Arguments as for `sum`.
function methods:mean(d, is_kept)
  Tensor.check("mean", self)
  local n = d == nil and self.count or self.sizes[shape.dimension("mean", self.sizes, d)]
  local total <close> = self:sum(d, is_kept)
  return total:div(n):eval()
end

-- ---- Where it is ---------------------------------------------------------------------------------------------

-- The least position, from 1, of what equals the extreme.
local function position_of(what, how)
  return function(self, d, is_kept)
    Tensor.check(what, self)
    if d == nil then
      local line <close> = self:flatten()
      return methods[what](line, 1)
    end
    d = shape.dimension(what, self.sizes, d)
    local own = Tensor.context(self)
    local wanted <close> = reduce(what, how, own, Tensor.need(what, self), self.sizes, d, true)
    local node = expression.node(ops.found, dtype.i64, self.kind, self.cells, wanted.cells)
    return reduce(what, least, own, node, self.sizes, d, is_kept)
  end
end

--- Where the greatest element is, the first if there are several or NaN: its place along dimension `d`, or among all
-- elements in row-major order; from 1. Arguments as for `sum`.
-- @function argmax
-- @treturn tensor i64
methods.argmax = position_of("argmax", greatest)

--- Where the least element is. As `argmax`.
-- @function argmin
methods.argmin = position_of("argmin", least)
