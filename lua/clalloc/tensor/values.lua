--- Between Lua and the device: nested tables to tensors and back, single elements, kinds, devices.
--
-- Everything here waits for the device, but `to` of a kind. `totable` and `tensor` move all elements at once: for more
-- than a few, they are the fast way; `item` and `t[i]` wait once for each element.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local context = require "clalloc.tensor.context"
local dtype = require "clalloc.tensor.dtype"
local elementwise = require "clalloc.tensor.elementwise"
local fault = require "clalloc.tensor.fault"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"

local values = {}
local methods = Tensor.methods

-- Values in one call of string.pack or string.unpack: Lua's stack takes so many with ease.
local BATCH = 128

-- ---- From tables ---------------------------------------------------------------------------------------------

local function where(path)
  return #path == 0 and "the value" or ("element {%s}"):format(table.concat(path, ", "))
end

-- The sizes that the first elements show; the rest is checked against them.
local function sizes_of(list)
  local sizes = {}
  while type(list) == "table" do
    sizes[#sizes + 1] = #list
    list = list[1]
  end
  return sizes
end

local function collect(what, value, sizes, depth, path, out)
  if depth > #sizes then
    local kind = type(value)
    if kind ~= "number" and kind ~= "boolean" then fault("%s: %s: number expected, got %s", what, where(path), kind) end
    out[#out + 1] = value
    return
  end
  if type(value) ~= "table" then fault("%s: %s: table expected, got %s", what, where(path), type(value)) end
  if #value ~= sizes[depth] then
    fault("%s: %s has %d elements, the first of its kind has %d", what, where(path), #value, sizes[depth])
  end
  for i = 1, #value do
    path[depth] = i
    collect(what, value[i], sizes, depth + 1, path, out)
  end
  path[depth] = nil
end

-- f32; u8 when all are booleans; i64 when all are integers and f32 cannot hold one of them exactly.
local function infer(what, list)
  local booleans, integers, large = 0, 0, false
  for _, value in ipairs(list) do
    if type(value) == "boolean" then booleans = booleans + 1
    elseif math.type(value) == "integer" then
      integers = integers + 1
      large = large or value > 1 << 24 or value < -(1 << 24)
    end
  end
  if booleans == #list and booleans > 0 then return dtype.u8 end
  if booleans > 0 then fault("%s: numbers and booleans do not mix", what) end
  return large and integers == #list and dtype.i64 or dtype.f32
end

local function pack(what, kind, list)
  local parts, batch = {}, ("<" .. kind.pack:rep(BATCH))
  for i, value in ipairs(list) do
    if type(value) == "boolean" then value = value and 1 or 0 end
    list[i] = dtype.fit(what, kind, value)
  end
  local last = #list - #list % BATCH
  for i = 1, last, BATCH do parts[#parts + 1] = batch:pack(table.unpack(list, i, i + BATCH - 1)) end
  parts[#parts + 1] = ("<" .. kind.pack:rep(#list - last)):pack(table.unpack(list, last + 1))
  return table.concat(parts)
end

--- A tensor of bytes as they lie in memory.
function values.of_bytes(what, own, kind, sizes, count, bytes)
  local view = Tensor.room(what, own, kind, sizes, count)
  storage.write(view.storage, what, 0, bytes)
  return Tensor.over(what, view)
end

--- A tensor of a number, or of nested tables of numbers or booleans, all of the same sizes.
-- @tparam string what the operation
-- @tparam number|boolean|table source
-- @tparam ?table kind nil: inferred
-- @tparam table own the context
function values.from_table(what, source, kind, own)
  local list = {}
  local sizes = sizes_of(source)
  collect(what, source, sizes, 1, {}, list)
  kind = kind or infer(what, list)
  dtype.check(what, kind, own)
  return values.of_bytes(what, own, kind, sizes, #list, pack(what, kind, list))
end

elementwise.from_table = values.from_table

-- ---- To tables -----------------------------------------------------------------------------------------------

--- The bytes of a tensor in row-major order.
function values.bytes(what, tensor)
  local view = Tensor.need(what, tensor)
  if view.count == 0 then return "" end
  if view.is_dense then
    return storage.read(view.storage, what, view.start * view.kind.size, view.count * view.kind.size)
  end
  local copy <close> = tensor:contiguous()
  return values.bytes(what, copy)
end

local function unpack_all(kind, bytes, count)
  local list, at, size = {}, 1, kind.size
  local batch = "<" .. kind.pack:rep(BATCH)
  for i = 1, count - BATCH + 1, BATCH do
    table.move({ batch:unpack(bytes, at) }, 1, BATCH, i, list)
    at = at + BATCH * size
  end
  for i = #list + 1, count do
    list[i] = ("<" .. kind.pack):unpack(bytes, at)
    at = at + size
  end
  return list
end

--- All elements, row-major, in one list of numbers.
-- @treturn {number,...}
function methods:tolist()
  local bytes = values.bytes("tolist", self)
  return unpack_all(self.kind, bytes, self.count)
end

local function nest(list, sizes, depth, first, step)
  local out = {}
  step = step // math.max(sizes[depth], 1)
  for i = 1, sizes[depth] do
    local at = first + (i - 1) * step
    out[i] = depth == #sizes and list[at] or nest(list, sizes, depth + 1, at, step)
  end
  return out
end

--- All elements as nested tables of numbers; of a tensor without dimensions, the number.
-- @treturn table|number
function methods:totable()
  Tensor.check("totable", self)
  local list = unpack_all(self.kind, values.bytes("totable", self), self.count)
  if #self.sizes == 0 then return list[1] end
  return nest(list, self.sizes, 1, 1, self.count)
end

--- The only element, as a number; raises when there are more, or none.
-- @treturn number
function methods:item()
  local view = Tensor.need("item", self)
  if view.count ~= 1 then
    fault("item: a tensor of one element expected, this is %s, of %d", shape.text(view.sizes), view.count)
  end
  local kind = view.kind
  return (("<" .. kind.pack):unpack(storage.read(view.storage, "item", view.start * kind.size, kind.size)))
end

--- Sets one element of a view, given by its place in the storage.
function values.set(what, view, place, value)
  local kind = view.kind
  if type(value) == "boolean" then value = value and 1 or 0 end
  if type(value) ~= "number" then fault("%s: number expected, got %s", what, type(value)) end
  storage.before_write(view.storage)
  storage.write(view.storage, what, place * kind.size, ("<" .. kind.pack):pack(dtype.fit(what, kind, value)))
end

-- ---- Kinds and devices ---------------------------------------------------------------------------------------

-- Copies to another device, by way of host memory.
local function to_device(self, device)
  local own = context.of(device)
  dtype.check("to", self.kind, own)
  if own == Tensor.context(self) then return methods.alias(self) end
  return values.of_bytes("to", own, self.kind, self.sizes, self.count, values.bytes("to", self))
end

--- The same elements in another kind or on another device. Floats become integers by cutting the fraction, within the
-- range, and NaN becomes 0; integers that do not fit wrap. Of its own kind or device it shares storage.
-- @tparam string|device target "f32" and so on, or a device
-- @treturn tensor
function methods:to(target)
  Tensor.check("to", self)
  if context.is_device(target) then
    if not pcall(function() return target.name end) then fault("to: attempt to use a closed device") end
    return to_device(self, target)
  end
  if type(target) ~= "string" then fault("to: a dtype's name or a device expected, got %s", type(target)) end
  local kind = dtype.of("to", target)
  dtype.check("to", kind, Tensor.context(self))
  if kind == self.kind then return methods.alias(self) end
  return Tensor.later("to", elementwise.cast("to", self, kind), self.sizes, self.count, self)
end

return values
