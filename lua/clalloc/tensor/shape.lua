--- Shapes: lists of sizes, checked once and never changed after.
--
-- @module clalloc.tensor.shape

local fault = require "clalloc.tensor.fault"

local shape = {}

--- "2x3"; a tensor without dimensions is a "scalar".
function shape.text(sizes)
  return #sizes == 0 and "scalar" or table.concat(sizes, "x")
end

local function given(value)
  return type(value) == "string" and ("the string '%s'"):format(value) or tostring(value)
end

--- A size, an index or a dimension: an integer within bounds. A float with an integral value is one.
-- @tparam string what the operation
-- @tparam string name of the argument, for the message
function shape.integer(what, name, value, lowest, highest)
  local n = type(value) == "number" and math.tointeger(value)
  if not n then fault("%s: %s: integer expected, got %s", what, name, given(value)) end
  if n < lowest or n > highest then
    if highest == math.maxinteger then fault("%s: %s: %d is less than %d", what, name, n, lowest) end
    fault("%s: %s: %d is not in %d to %d", what, name, n, lowest, highest)
  end
  return n
end

--- A dimension of a shape, 1-based.
function shape.dimension(what, sizes, d)
  if #sizes == 0 then fault("%s: a tensor without dimensions has no dimension %s", what, given(d)) end
  return shape.integer(what, "dimension", d, 1, #sizes)
end

--- The number of elements; raises when it, or the bytes at 8 each, passes 2^63.
function shape.count(what, sizes)
  local n, is_empty = 1, false
  for _, size in ipairs(sizes) do
    if size == 0 then is_empty = true end
  end
  if is_empty then return 0 end
  for _, size in ipairs(sizes) do
    if n > (math.maxinteger >> 3) // size then
      fault("%s: a shape of %s has more elements than can be addressed", what, shape.text(sizes))
    end
    n = n * size
  end
  return n
end

--- Checks a list of sizes and copies it.
-- @treturn table the sizes
-- @treturn integer the number of elements
function shape.check(what, list)
  local sizes = {}
  for i = 1, #list do
    sizes[i] = shape.integer(what, "size " .. i, list[i], 0, math.maxinteger)
  end
  return sizes, shape.count(what, sizes)
end

--- Sizes as numbers or as one list, then perhaps a dtype: `2, 3`; `2, 3, "f64"`; `{2, 3}, "f64"`.
-- @treturn table the list as it came, unchecked
-- @treturn ?string the dtype's name
function shape.arguments(what, first, ...)
  if type(first) == "table" and getmetatable(first) == nil then return first, (...) end
  local list = table.pack(first, ...)
  local name
  if type(list[list.n]) == "string" and list.n > 1 then
    name = list[list.n]
    list.n = list.n - 1
  end
  local sizes = {}
  for i = 1, list.n do
    if list[i] == nil then fault("%s: size %d: integer expected, got nil", what, i) end
    sizes[i] = list[i]
  end
  return sizes, name
end

--- Strides, in elements, of a tensor whose elements lie one after another, the last dimension fastest.
function shape.strides(sizes)
  local strides, n = {}, 1
  for d = #sizes, 1, -1 do
    strides[d] = n
    n = n * math.max(sizes[d], 1)
  end
  return strides
end

--- Whether elements lie one after another; strides of dimensions of one element do not matter.
function shape.is_contiguous(sizes, strides)
  local n, fits = 1, true
  for d = #sizes, 1, -1 do
    if sizes[d] == 0 then return true end
    fits = fits and (sizes[d] == 1 or strides[d] == n)
    n = n * sizes[d]
  end
  return fits
end

function shape.equal(a, b)
  if a == b then return true end
  if #a ~= #b then return false end
  for d = 1, #a do
    if a[d] ~= b[d] then return false end
  end
  return true
end

--- The shape that two broadcast to: aligned at the last dimension, sizes equal or one of them 1.
function shape.broadcast(what, a, b)
  if shape.equal(a, b) then return a end
  local rank = math.max(#a, #b)
  local sizes = {}
  for d = 1, rank do
    local m, n = a[d - rank + #a] or 1, b[d - rank + #b] or 1
    if m ~= n and m ~= 1 and n ~= 1 then
      fault("%s: %s and %s do not match (%d ~= %d)", what, shape.text(a), shape.text(b), m, n)
    end
    sizes[d] = m == 1 and n or m
  end
  shape.count(what, sizes)
  return sizes
end

--- Strides of something of shape `from` seen in the shape `to` that it broadcasts to: 0 where it repeats.
function shape.stretch(from, strides, to)
  local out, shift = {}, #from - #to
  for d = 1, #to do
    local size = from[d + shift]
    out[d] = size and size ~= 1 and strides[d + shift] or 0
  end
  return out
end

return shape
