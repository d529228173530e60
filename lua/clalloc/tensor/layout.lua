--- Layouts: how a kernel walks several tensors at once.
--
-- The dimensions of all operands are merged as far as every one of them allows, so that most walks are one loop. What
-- is left are `rows` times `n` elements: the inner loop, and a row number from which outer indices are computed. Of
-- each operand's inner stride the kernel knows whether it is 1, 0 or given at the launch; rows are cut by sizes given
-- at the launch.
--
-- @module clalloc.tensor.layout

local shape = require "clalloc.tensor.shape"

local layout = {}

-- Below it, indices are 32-bit; the distance to 2^31 leaves room for the step past the end.
local FEW = 1 << 30

-- Appends dimension `d` of all operands to a list of merged ones.
local function append(merged, size, strides, d)
  local last = merged[#merged]
  if size == 1 then return end
  local fits = last ~= nil
  for k = 1, fits and #strides or 0 do
    if last[k] ~= strides[k][d] * size then fits = false end
  end
  if fits then
    last.size = last.size * size
    for k = 1, #strides do last[k] = strides[k][d] end
  else
    local dimension = { size = size }
    for k = 1, #strides do dimension[k] = strides[k][d] end
    merged[#merged + 1] = dimension
  end
end

local function merge(sizes, strides, first, final)
  local merged = {}
  for d = first, final do append(merged, sizes[d], strides, d) end
  return merged
end

-- Strides of every operand in the shape they meet in.
local function stretched(sizes, operands)
  local strides = {}
  for k, operand in ipairs(operands) do strides[k] = shape.stretch(operand.sizes, operand.strides, sizes) end
  return strides
end

local function extent(operand)
  local n = operand.start + 1
  for d, size in ipairs(operand.sizes) do n = n + math.max(size - 1, 0) * operand.strides[d] end
  return n
end

local function is_wide(operands, count)
  if count >= FEW then return true end
  for _, operand in ipairs(operands) do
    if (operand.is_dense and operand.start + operand.count or extent(operand)) >= FEW then return true end
  end
  return false
end

local function key_of(outer, classes, wide)
  return ("%d%s%s"):format(#outer, table.concat(classes), wide and "l" or "")
end

local CLASS = { [0] = "z", [1] = "u" }

-- With fewer elements a kernel that knows its strides is not worth compiling: all but the simplest walks share one.
local SMALL = 1 << 14

local function classes_of(outer, inner, n, count)
  local classes, is_simple = {}, #outer == 0
  for k = 1, n do
    classes[k] = CLASS[inner[k]] or "s"
    is_simple = is_simple and classes[k] == "u"
  end
  for k = 1, not is_simple and count < SMALL and n or 0 do classes[k] = "s" end
  return classes
end

local function finish(outer, inner, operands, count)
  local classes = classes_of(outer, inner, #operands, count)
  local rows = 1
  for _, dimension in ipairs(outer) do rows = rows * dimension.size end
  local wide = is_wide(operands, count)
  return {
    outer = outer,
    inner = inner,
    classes = classes,
    rows = rows,
    index = wide and "long" or "int",
    key = key_of(outer, classes, wide),
  }, inner.size
end

-- ---- All elements one after another --------------------------------------------------------------------------

-- The most frequent walks, prepared: n operands, all with a stride of 1.
local NONE = {}
local prepared = setmetatable({}, {
  __index = function(self, n)
    local classes, inner = {}, {}
    for k = 1, n do classes[k], inner[k] = "u", 1 end
    self[n] = {
      outer = NONE, inner = inner, classes = classes, rows = 1, index = "int", key = key_of(NONE, classes, false),
      is_plain = true,
    }
    return self[n]
  end,
})

local function is_flat(sizes, operands)
  for i = 1, #operands do
    local operand = operands[i]
    if not operand.is_dense then return false end
    if operand.count ~= 1 and operand.sizes ~= sizes and not shape.equal(operand.sizes, sizes) then return false end
  end
  return true
end

local function has_single(operands)
  for i = 1, #operands do
    if operands[i].count == 1 then return true end
  end
  return false
end

local function flat(operands, count)
  if not has_single(operands) and not is_wide(operands, count) then return prepared[#operands], count end
  local inner = { size = count }
  for k, operand in ipairs(operands) do inner[k] = operand.count == 1 and 0 or 1 end
  return finish(NONE, inner, operands, count)
end

-- Whether a view and leaves are one after another, of one shape, and near the beginning of their buffers.
local function is_plain(out, leaves)
  local sizes, count = out.sizes, out.count
  if not out.is_dense or count == 1 or out.start + count >= FEW then return false end
  for i = 1, #leaves do
    local leaf = leaves[i]
    if not leaf.is_dense or leaf.start + count >= FEW then return false end
    if leaf.sizes ~= sizes and not shape.equal(leaf.sizes, sizes) then return false end
  end
  return true
end

-- ---- The walks -----------------------------------------------------------------------------------------------

local function over(sizes, count, operands)
  if is_flat(sizes, operands) then return flat(operands, count) end
  local outer = merge(sizes, stretched(sizes, operands), 1, #sizes)
  local inner = table.remove(outer)
  if not inner then return flat(operands, 1) end
  return finish(outer, inner, operands, count)
end

--- The walk of elementwise work into a view, not empty, whose shape the leaves broadcast to. Operand 1 is the view.
-- @treturn table
-- @treturn integer the length of the inner loop
function layout.elementwise(out, leaves)
  if is_plain(out, leaves) then return prepared[#leaves + 1], out.count end
  return over(out.sizes, out.count, { out, table.unpack(leaves) })
end

--- The walk of a reduction over the dimension `d` of `sizes`: it is the inner loop, the others are rows.
-- Without `d`, the last of the merged dimensions is reduced. Operands are the leaves alone.
-- @treturn table
-- @treturn integer the length of the inner loop
function layout.reduction(sizes, count, leaves, d)
  if not d then return over(sizes, count, leaves) end
  local strides = stretched(sizes, leaves)
  local outer = merge(sizes, strides, 1, d - 1)
  for after = d + 1, #sizes do append(outer, sizes[after], strides, after) end
  local inner = { size = sizes[d] }
  for k = 1, #leaves do inner[k] = strides[k][d] end
  return finish(outer, inner, leaves, count)
end

return layout
