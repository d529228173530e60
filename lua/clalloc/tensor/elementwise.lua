--- Elementwise operations: arithmetic, functions, comparisons, and their in-place forms.
--
-- Operands broadcast: shapes are aligned at the last dimension, and a size of 1 repeats. A number may stand on either
-- side of an operator. Kinds mix as `dtype.common` says; a Lua float among integers gives f32, so does division.
-- Functions such as `exp` give f32 for integers. Forms with a trailing underscore change the tensor they are called on,
-- keep its shape and kind, and return it.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local dtype = require "clalloc.tensor.dtype"
local expression = require "clalloc.tensor.expression"
local fault = require "clalloc.tensor.fault"
local ops = require "clalloc.tensor.ops"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"

local getmetatable = getmetatable
local elementwise = {}
local methods, meta = Tensor.methods, Tensor.meta

-- What is given the kind that operands have in common and returns that of the result, then that in which operands meet.
local function same(kind) return kind, kind end

-- ---- Operands ------------------------------------------------------------------------------------------------

local function number(what, kind, value)
  return { value = dtype.fit(what, kind, value), kind = kind }
end

-- Parts for a node over two tensors, at least one of them computed when both in one would be too large.
local function parts(what, a, b)
  local x = Tensor.part(what, a)
  if a == b then return x, x end
  local y = Tensor.part(what, b)
  if expression.too_large(x, y) then
    if x.op then x = a:eval().cells end
    if y.op then y = b:eval().cells end
  end
  return x, y
end

local function of_tensors(what, op, kind_of, a, b)
  Tensor.check_devices(what, a, b)
  local sizes = shape.broadcast(what, a.sizes, b.sizes)
  local kind, meet = kind_of(dtype.common(a.kind, b.kind))
  local x, y = parts(what, a, b)
  return expression.node(op, kind, meet, x, y), sizes
end

-- One of the two is a number.
local function with_number(what, op, kind_of, a, b)
  local tensor = type(a) == "number" and b or a
  local value = tensor == a and b or a
  local kind, meet = kind_of(dtype.with_number(tensor.kind, value))
  local x, y = Tensor.part(what, tensor), number(what, meet, value)
  if expression.too_large(x, y) and x.op then x = tensor:eval().cells end
  if tensor == b then x, y = y, x end
  return expression.node(op, kind, meet, x, y), tensor.sizes
end

local function binary_node(what, op, kind_of, a, b)
  if type(b) == "number" then
    Tensor.check(what, a)
    return with_number(what, op, kind_of, a, b)
  end
  if type(a) == "number" then
    Tensor.check(what, b)
    return with_number(what, op, kind_of, a, b)
  end
  Tensor.check(what, a)
  Tensor.check(what, b)
  return of_tensors(what, op, kind_of, a, b)
end

-- Two views of one kind, shape and device: nothing is to be found out.
local function are_alike(x, y)
  return x.kind == y.kind and x.storage.context == y.storage.context and shape.equal(x.sizes, y.sizes)
end

local function binary(what, op, kind_of)
  return function(a, b)
    if getmetatable(a) == meta and getmetatable(b) == meta then -- both over memory
      local x, y = a.cells, b.cells
      if x and y and are_alike(x, y) then
        local kind, meet = kind_of(x.kind)
        local node = expression.node_of_views(op, kind, meet, x, y)
        return Tensor.later(what, node, x.sizes, x.count)
      end
    end
    local node, sizes = binary_node(what, op, kind_of, a, b)
    local leaf = node.leaves[1]
    return Tensor.later(what, node, sizes, sizes == leaf.sizes and leaf.count or shape.count(what, sizes), a, b)
  end
end

local function unary_node(what, op, kind_of, a)
  Tensor.check(what, a)
  local kind = kind_of(a.kind)
  local x = Tensor.part(what, a)
  if x.op and x.weight >= expression.MOST_WEIGHT then x = a:eval().cells end
  return expression.node(op, kind, kind, x)
end

local function unary(what, op, kind_of)
  return function(a)
    local node = unary_node(what, op, kind_of, a)
    return Tensor.later(what, node, a.sizes, a.count, a)
  end
end

-- ---- In place ------------------------------------------------------------------------------------------------

-- Whether an expression reads elements of the storage other than the one it replaces.
local function overlaps(node, view)
  for _, leaf in ipairs(node.leaves) do
    if leaf.storage == view.storage and leaf ~= view and
      not (leaf.start == view.start and leaf.kind == view.kind and shape.equal(leaf.sizes, view.sizes) and
           shape.equal(leaf.strides, view.strides)) then
      return true
    end
  end
  return false
end

local function check_written(what, view)
  for d, size in ipairs(view.sizes) do
    if size > 1 and view.strides[d] == 0 then
      fault("%s: dimension %d is expanded: its elements are one and the same", what, d)
    end
  end
end

--- The view of a tensor that is about to change; what was to be computed from it is computed first.
function elementwise.target(what, tensor)
  local view = Tensor.need(what, tensor)
  check_written(what, view)
  storage.before_write(view.storage)
  return view
end

--- Computes a node into a view of the shape `out.sizes`.
function elementwise.store(what, out, node)
  if not overlaps(node, out) then
    Tensor.compute(what, out, node)
    return
  end
  local room = Tensor.room(what, out.storage.context, out.kind, out.sizes, out.count)
  local copied, why = pcall(function()
    Tensor.compute(what, room, node)
    Tensor.compute(what, out, expression.node(ops.cast, out.kind, nil, room))
  end)
  storage.close(room.storage)
  if not copied then error(why, 0) end
end

local function check_fits(what, sizes, into)
  if not shape.equal(shape.broadcast(what, sizes, into), into) then
    fault("%s: %s does not fit into %s", what, shape.text(sizes), shape.text(into))
  end
end

local function binary_in_place(what, op, kind_of)
  return function(a, b)
    local view = elementwise.target(what, a)
    local node, sizes = binary_node(what, op, kind_of, a, b)
    check_fits(what, sizes, view.sizes)
    elementwise.store(what, view, node)
    Tensor.taken(b)
    return a
  end
end

-- add_(b, factor): a + factor * b in one kernel.
local function scaled_in_place(what, op)
  local plain = binary_in_place(what, op, same)
  return function(a, b, factor)
    if factor == nil then return plain(a, b) end
    if type(factor) ~= "number" then fault("%s: factor: number expected, got %s", what, type(factor)) end
    Tensor.check(what, b)
    return plain(a, b * factor)
  end
end

local function unary_in_place(what, op, kind_of)
  return function(a)
    local view = elementwise.target(what, a)
    elementwise.store(what, view, unary_node(what, op, kind_of, a))
    return a
  end
end

-- ---- The operations ------------------------------------------------------------------------------------------

local function floating(kind)
  if not kind.is_float then kind = dtype.f32 end
  return kind, kind
end
local function truth(kind) return dtype.u8, kind end

local function define_binary(name, op, kind_of)
  methods[name] = binary(name, op, kind_of)
  methods[name .. "_"] = binary_in_place(name .. "_", op, kind_of)
end

define_binary("mul", ops.mul, same)
define_binary("div", ops.div, floating)
define_binary("pow", ops.pow, floating)
define_binary("maximum", ops.maximum, same)
define_binary("minimum", ops.minimum, same)
methods.add = binary("add", ops.add, same)
methods.sub = binary("sub", ops.sub, same)
methods.add_ = scaled_in_place("add_", ops.add)
methods.sub_ = scaled_in_place("sub_", ops.sub)

for _, name in ipairs { "eq", "ne", "lt", "le", "gt", "ge" } do methods[name] = binary(name, ops[name], truth) end

for _, name in ipairs { "exp", "log", "sqrt", "tanh", "sin", "cos", "floor", "ceil" } do
  methods[name] = unary(name, ops[name], floating)
  methods[name .. "_"] = unary_in_place(name .. "_", ops[name], floating)
end

for _, name in ipairs { "neg", "abs", "relu" } do
  methods[name] = unary(name, ops[name], same)
  methods[name .. "_"] = unary_in_place(name .. "_", ops[name], same)
end

meta.__add, meta.__sub, meta.__mul, meta.__div = methods.add, methods.sub, methods.mul, methods.div
meta.__pow = methods.pow
meta.__unm = function(a) return methods.neg(a) end

-- ---- Copies --------------------------------------------------------------------------------------------------

--- An expression that is the tensor itself, in another kind.
function elementwise.cast(what, tensor, kind)
  local x = Tensor.part(what, tensor)
  return expression.node(ops.cast, kind, nil, x)
end

local function filled(what, self, value)
  local view = elementwise.target(what, self)
  if type(value) ~= "number" then fault("%s: number expected, got %s", what, type(value)) end
  Tensor.compute(what, view, expression.node(ops.cast, view.kind, nil, number(what, view.kind, value)))
  return self
end

--- Sets every element to a number.
-- @tparam number value
-- @treturn tensor self
function methods:fill(value) return filled("fill", self, value) end

--- Sets every element to 0.
function methods:zero() return filled("zero", self, 0) end

--- Copies the elements of another tensor, or of nested tables, of a shape that broadcasts to this one's; converts their
-- kind. The source may be on another device.
-- @tparam tensor|table source
-- @treturn tensor self
function methods:copy(source)
  local view = elementwise.target("copy", self)
  if not Tensor.is(source) then
    if type(source) ~= "table" then fault("copy: tensor or table expected, got %s", type(source)) end
    local made <close> = elementwise.from_table("copy", source, self.kind, Tensor.context(self))
    return self:copy(made)
  end
  check_fits("copy", Tensor.check("copy", source).sizes, view.sizes)
  if Tensor.context(source) ~= Tensor.context(self) then
    local here <close> = source:to(Tensor.context(self).device)
    return self:copy(here)
  end
  elementwise.store("copy", view, elementwise.cast("copy", source, source.kind))
  Tensor.taken(source)
  return self
end

-- ---- Expressions as text -------------------------------------------------------------------------------------

local NAMES = { "x", "y", "z", "w", "u", "v" }

local function statement(what, text)
  if type(text) ~= "string" then fault("%s: an expression as a string expected, got %s", what, type(text)) end
  local assigned = text:find "^%s*x%s*[%+%-%*/%%&|^]?=[^=]" or text:find "^%s*x%s*<<=" or text:find "^%s*x%s*>>="
    or text:find ";"
  return assigned and text or ("x = (%s)"):format(text)
end

-- The operands as views: the text may use each any number of times.
local function code_node(what, self, others, text)
  local list, names = { Tensor.need(what, self) }, { "x" }
  for i, other in ipairs(others) do
    Tensor.check_devices(what, self, Tensor.check(what, other))
    check_fits(what, other.sizes, self.sizes)
    list[i + 1], names[i + 1] = Tensor.need(what, other), NAMES[i + 1]
  end
  return expression.node(ops.code(statement(what, text), names), self.kind, nil, table.unpack(list))
end

--- Replaces every element `x` by what a text in OpenCL C says: `t:apply "sqrt(x) + 3.5"`, or statements that assign it,
-- `t:apply "if (x < 0) x = 0;"`. `x` has the tensor's kind; the text is compiled once.
-- @tparam string text
-- @treturn tensor self
function methods:apply(text)
  local view = elementwise.target("apply", self)
  elementwise.store("apply", view, code_node("apply", self, {}, text))
  return self
end

--- The same with further tensors, which broadcast to this one: `t:map(other, "2 * x + y")`; the next are `z`, `w`, `u`,
-- `v`.
-- @tparam tensor ... up to five, then the text
-- @treturn tensor self
function methods:map(...)
  Tensor.check("map", self)
  local others = table.pack(...)
  local text = others[others.n]
  others[others.n] = nil
  if others.n < 2 or others.n > #NAMES then
    fault("map: 1 to %d tensors and an expression expected, got %d arguments", #NAMES - 1, others.n)
  end
  local view = elementwise.target("map", self)
  elementwise.store("map", view, code_node("map", self, others, text))
  return self
end

return elementwise
