--- Making tensors. On the current device, through its current pool and stream; f32 where no dtype is given.
--
-- Sizes are numbers or one list, and a dtype may follow: `zeros(2, 3)`, `zeros({2, 3}, "f64")`.
--
-- @module clalloc.tensor.create

local Tensor = require "clalloc.tensor.type"
local context = require "clalloc.tensor.context"
local dtype = require "clalloc.tensor.dtype"
local expression = require "clalloc.tensor.expression"
local fault = require "clalloc.tensor.fault"
local ops = require "clalloc.tensor.ops"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"
local values = require "clalloc.tensor.values"

local create = {}

--- New memory of a shape, with what is in it.
-- @tparam string what the operation
-- @tparam table list sizes, unchecked
-- @tparam ?string name of the dtype
function create.room(what, list, name)
  local sizes, count = shape.check(what, list)
  local kind, own = dtype.of(what, name), context.current()
  dtype.check(what, kind, own)
  return Tensor.over(what, Tensor.room(what, own, kind, sizes, count))
end

--- A tensor of nested tables of numbers or booleans, or of one number. Without a dtype: f32; u8 when all are booleans;
-- i64 when all are integers and f32 cannot hold one of them.
-- @tparam table|number|boolean source
-- @tparam[opt] string name of the dtype
-- @treturn tensor
function create.tensor(source, name)
  if Tensor.is(source) then
    Tensor.check("tensor", source)
    if name then return source:to(name):clone() end
    return source:clone()
  end
  return values.from_table("tensor", source, name and dtype.of("tensor", name), context.current())
end

local function constant(what, value)
  return function(...)
    return create.room(what, shape.arguments(what, ...)):fill(value)
  end
end

--- Zeros of a shape.
-- @function zeros
create.zeros = constant("zeros", 0)

--- Ones of a shape.
-- @function ones
create.ones = constant("ones", 1)

--- A shape filled with a number: `full({2, 3}, 7, "i32")`.
-- @tparam {integer,...} sizes
-- @tparam number value
-- @tparam[opt="f32"] string name of the dtype
function create.full(sizes, value, name)
  if type(sizes) ~= "table" or Tensor.is(sizes) then
    fault("full: a list of sizes expected, got %s", Tensor.is(sizes) and "a tensor" or type(sizes))
  end
  return create.room("full", sizes, name):fill(value)
end

local function check_number(name, value)
  if type(value) ~= "number" then fault("arange: %s: number expected, got %s", name, type(value)) end
  if value ~= value or value - value ~= 0 then fault("arange: %s: %s is no place to be", name, tostring(value)) end
end

local function steps(first, last, step)
  local n = (last - first) / step
  return n < 0 and 0 or math.floor(n + 1e-9) + 1
end

--- The numbers from `first` to `last`, both included, as in Lua's `for`: `arange(0, 9)` has ten.
-- @tparam number first
-- @tparam number last
-- @tparam[opt=1] number step
-- @tparam[opt="f32"] string name of the dtype
function create.arange(first, last, step, name)
  if type(step) == "string" then step, name = 1, step end
  step = step or 1
  check_number("first", first)
  check_number("last", last)
  check_number("step", step)
  if step == 0 then fault("arange: step: 0") end
  local out = create.room("arange", { steps(first, last, step) }, name)
  local kind = out.kind
  local function number(value) return { value = dtype.fit("arange", kind, value), kind = kind } end
  local position = expression.node(ops.position, dtype.i64, nil)
  local product = expression.node(ops.mul, kind, nil, position, number(step))
  Tensor.compute("arange", out.cells, expression.node(ops.add, kind, nil, product, number(first)))
  return out
end

--- A tensor over a buffer: no copy. Writes to either are seen in the other, so expressions over it are computed at
-- once. Closing it does not close the buffer; closing the buffer makes it unusable. Tables are taken as by `tensor`.
-- @tparam buffer buffer or a view of one, beginning at a multiple of the element's size
-- @tparam[opt] {integer,...} list of sizes; otherwise one dimension, as many as there are
-- @tparam[opt="f32"] string name of the dtype
function create.from(buffer, list, name)
  if type(buffer) == "table" then return create.tensor(buffer, list or name) end
  if not storage.is_buffer(buffer) then fault("from: a buffer or a table expected, got %s", type(buffer)) end
  if buffer.closed then fault("from: attempt to use a closed buffer") end
  if type(list) == "string" then list, name = nil, list end
  local kind = dtype.of("from", name)
  local sizes, count = shape.check("from", list or { buffer.size // kind.size })
  if count > buffer.size // kind.size then
    fault("from: %s of %s takes %d bytes, the buffer has %d", shape.text(sizes), kind.name, count * kind.size,
      buffer.size)
  end
  local store, offset = storage.from("from", buffer)
  dtype.check("from", kind, store.context)
  if offset % kind.size ~= 0 then
    fault("from: the buffer begins %d bytes into its allocation, no multiple of %s's %d", offset, kind.name, kind.size)
  end
  return Tensor.over("from",
    Tensor.view_of(store, kind, offset // kind.size, sizes, shape.strides(sizes), count))
end

return create
