--- Reductions: `sum`, `mean`, `max`, `min`, `argmax`, `argmin` over all elements or one dimension.
--
-- An expression is reduced as it is computed: it never takes memory. Long rows are cut, so that every unit of the
-- device has a share, and the parts reduced again. `sum` of f32 adds in f64 where the device has it; sums of integers
-- are i64, and wrap. The greatest and the least of what contains a NaN are NaN.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local context = require "clalloc.tensor.context"
local dtype = require "clalloc.tensor.dtype"
local expression = require "clalloc.tensor.expression"
local fault = require "clalloc.tensor.fault"
local layout = require "clalloc.tensor.layout"
local loops = require "clalloc.tensor.loops"
local ops = require "clalloc.tensor.ops"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"

local methods = Tensor.methods

-- Partial results in a run of one item: enough for the compiler to use vector instructions without changing the order
-- of additions.
local LANES = 32
-- Elements of a row worth an item of its own.
local CUT = 16384
local MOST_PARTS = 1024

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

-- ---- One pass ------------------------------------------------------------------------------------------------

-- On a CPU: runs of LANES elements, each lane for itself, then the rest.
local function body(own, how, kind, compute, root)
  local function step(a, x) return how.step(kind, a, x) end
  local one = ("{\n%s\nconst ACC x = (ACC)(%s);\n%%s\n}\n"):format(compute, root)
  local rest = one:format(("acc = %s;"):format(step("acc", "x")))
  if not own.takes_runs then return ("LOOP(j, columns, 0) %s"):format(rest) end
  return ([[
const INDEX run = (columns + (INDEX)get_global_size(0) - 1) / (INDEX)get_global_size(0);
INDEX at = (INDEX)get_global_id(0) * run;
const INDEX end = min(at + run, columns);
if (end - at >= %d) {
  ACC lanes[%d];
  for (int l = 0; l < %d; l++) lanes[l] = %s;
  for (; at + %d <= end; at += %d)
    for (int l = 0; l < %d; l++) { const INDEX j = at + l; %s }
  for (int l = 0; l < %d; l++) { const ACC x = lanes[l]; acc = %s; }
}
for (; at < end; at++) { const INDEX j = at; %s }
]]):format(LANES, LANES, LANES, how.first(kind), LANES, LANES, LANES,
    one:format(("lanes[l] = %s;"):format(step("lanes[l]", "x"))), LANES, step("acc", "x"), rest)
end

local function source(own, how, partial, node, walk, out)
  local params = { ("global %s *out_data"):format(out.c) }
  local names = loops.names(node)
  for i, view in ipairs(node.leaves) do loops.declare(params, names[i], view.kind, walk, i, true) end
  loops.declare_rest(params, node, walk)
  local compute, root = loops.compute(node, walk, 0)
  local head, options = loops.head(own, node, walk)
  if partial == dtype.f64 then options = "" end
  return ([[
%s
#define ACC %s
kernel void run(%s) {
LOOP(row, rows, 1) {
%s
ACC acc = %s;
%s
out_data[(size_t)row * get_global_size(0) + get_global_id(0)] = %s;
}}
]]):format(head, partial.c, table.concat(params, ", "), loops.rows(names, walk), how.first(partial),
    body(own, how, partial, compute, root), dtype.convert(partial, out, "acc")), options
end

-- Items of work along a row, and rows, with their groups.
local function grid(own, walk, columns)
  local want = own.takes_runs and own.units * 4 or MOST_PARTS
  local parts = math.max(1, math.min(columns // CUT, want // math.min(walk.rows, want), MOST_PARTS))
  if own.takes_runs then
    return { parts, math.min(walk.rows, math.max(1, math.min(want, walk.rows * columns // 4096))) }, { 1, 1 }
  end
  local size, group = loops.grid(own, 1, walk.rows)
  local rows_each = (walk.rows + size[2] - 1) // size[2]
  local needed = columns // (own.most_steps // rows_each - 1) + 1
  return { math.max(parts, needed), size[2] }, { 1, group[2] }
end

-- Reduces the inner loop of a walk; gives a view of rows x parts.
local function pass(what, how, node, own, partial, result, walk, columns)
  local size, group = grid(own, walk, columns)
  local parts = size[1]
  local kind = parts > 1 and partial or result
  local out = Tensor.room(what, own, kind, { walk.rows, parts }, walk.rows * parts)
  local key = ("%s %s %s %s"):format(how.name, partial.name, kind.name, walk.key)
  local kernel = context.kernel(own, node.form, how, key, what, source, how, partial, node, walk, kind)
  local args, n = loops.take_args(kernel), 1
  args[1] = out.storage.buffer
  for i, view in ipairs(node.leaves) do n = loops.pass(args, n, view, walk, i) end
  loops.pass_rest(args, n, node, walk, columns)
  args.size, args.group = size, loops.fit_group(kernel, group)
  loops.launch(own, what, kernel, args, out, node.leaves)
  return out
end

-- ---- All passes ----------------------------------------------------------------------------------------------

local function as_node(x)
  return x.op and x or expression.node(ops.cast, x.kind, nil, x)
end

-- Reduces a view of rows x parts until one part is left.
local function finish(what, how, view, own, partial, result)
  while view.sizes[2] > 1 do
    local next_view = pass(what, how, as_node(view), own, partial, result,
      layout.reduction(view.sizes, view.count, { view }, 2))
    storage.close(view.storage)
    view = next_view
  end
  return view
end

-- Over everything: dimension by dimension, as far as they do not merge.
local function over_all(what, how, node, sizes, count, own, partial, result)
  local walk, columns = layout.reduction(sizes, count, node.leaves)
  local view = pass(what, how, node, own, partial, walk.rows > 1 and partial or result, walk, columns)
  if walk.rows > 1 then view.sizes, view.strides = { 1, view.count }, { view.count, 1 } end
  return finish(what, how, view, own, partial, result)
end

local function over_one(what, how, node, sizes, count, d, own, partial, result)
  local view = pass(what, how, node, own, partial, result, layout.reduction(sizes, count, node.leaves, d))
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
