--- Layouts: how a kernel walks several tensors at once.
--
-- The dimensions of all operands are merged as far as every one of them allows, so that most walks are one loop. What
-- is left are `rows` times `n` elements: the inner loop, and a row number from which outer indices are computed. Of each operand's inner
-- stride the kernel knows whether it is 1, 0 or given at the launch; rows are cut by sizes given at the launch.
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
    if extent(operand) >= FEW then return true end
  end
  return false
end

local CLASS = { [0] = "z", [1] = "u" }

local function finish(outer, inner, operands, count)
  local classes = {}
  for k = 1, #operands do classes[k] = CLASS[inner[k]] or "s" end
  local rows = 1
  for _, dimension in ipairs(outer) do rows = rows * dimension.size end
  local wide = is_wide(operands, count)
  return {
    outer = outer,
    inner = inner,
    classes = classes,
    rows = rows,
    n = inner.size,
    index = wide and "long" or "int",
    key = ("%d%s%s"):format(#outer, table.concat(classes), wide and "l" or ""),
  }
end

local function is_flat(sizes, operands)
  for _, operand in ipairs(operands) do
    if not operand.is_dense or not (operand.count == 1 or shape.equal(operand.sizes, sizes)) then return false end
  end
  return true
end

local function flat(operands, count)
  local inner = { size = count }
  for k, operand in ipairs(operands) do inner[k] = operand.count == 1 and 0 or 1 end
  return finish({}, inner, operands, count)
end

--- The walk of elementwise work over operands that broadcast to `sizes`, which are not empty.
function layout.elementwise(sizes, count, operands)
  if is_flat(sizes, operands) then return flat(operands, count) end
  local outer = merge(sizes, stretched(sizes, operands), 1, #sizes)
  local inner = table.remove(outer) or flat(operands, 1).inner
  return finish(outer, inner, operands, count)
end

--- The walk of a reduction over the dimension `d` of `sizes`: it is the inner loop, the others are rows.
-- Without `d`, the last of the merged dimensions is reduced.
-- @treturn table the layout; its operands are the views alone
function layout.reduction(sizes, count, operands, d)
  if not d then return layout.elementwise(sizes, count, operands) end
  local strides = stretched(sizes, operands)
  local outer = merge(sizes, strides, 1, d - 1)
  for after = d + 1, #sizes do append(outer, sizes[after], strides, after) end
  local inner = { size = sizes[d] }
  for k = 1, #operands do inner[k] = strides[k][d] end
  return finish(outer, inner, operands, count)
end

return layout
