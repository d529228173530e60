--- Views: other shapes of the same storage. Nothing here copies, except `contiguous`, `clone` and `cat`, which say so.
--
-- Dimensions and indices count from 1. A view keeps the storage; closing one closes no other.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local dtype = require "clalloc.tensor.dtype"
local elementwise = require "clalloc.tensor.elementwise"
local fault = require "clalloc.tensor.fault"
local shape = require "clalloc.tensor.shape"

local view = {}
local methods = Tensor.methods

local function derived(what, of, start, sizes, strides, count)
  return Tensor.over(what, Tensor.view_of(of.storage, of.kind, start, sizes, strides, count or of.count))
end

--- A tensor of its own over the same elements.
function methods:alias()
  return Tensor.over("alias", Tensor.need("alias", self))
end

-- ---- Shapes --------------------------------------------------------------------------------------------------

-- Replaces a size of -1 by what is left.
local function infer(what, list, count)
  local rest, known, out = nil, 1, {}
  for i, size in ipairs(list) do
    out[i] = size
    if size == -1 then
      if rest then fault("%s: more than one size is -1", what) end
      rest = i
    else
      known = known * shape.integer(what, "size " .. i, size, 0, math.maxinteger)
    end
  end
  if not rest then return out end
  if known < 1 or count % known ~= 0 then
    fault("%s: %d elements cannot be divided by the other sizes of %s", what, count, shape.text(list))
  end
  out[rest] = count // known
  return out
end

-- Strides for new sizes over old ones, none of them 1, or nil: each new dimension has to lie within a run of old ones
-- that follow each other without gaps.
local function restride(old, strides, sizes)
  local out, n, o = {}, #sizes, #old
  while o >= 1 do
    local run, stride = old[o], strides[o]
    while o > 1 and strides[o - 1] == strides[o] * old[o] do
      o = o - 1
      run = run * old[o]
    end
    while n >= 1 and (run > 1 or sizes[n] == 1) do
      if run % sizes[n] ~= 0 then return nil end
      out[n] = stride
      run, stride, n = run // sizes[n], stride * sizes[n], n - 1
    end
    if run > 1 then return nil end
    o = o - 1
  end
  for i = n, 1, -1 do out[i] = 1 end
  return out
end

-- Sizes and strides with dimension `d` left out.
local function without(sizes, strides, d)
  local s, t = { table.unpack(sizes) }, { table.unpack(strides) }
  table.remove(s, d)
  table.remove(t, d)
  return s, t
end

local function view_strides(of, sizes)
  if of.is_dense then return shape.strides(sizes) end
  local old, strides = {}, {}
  for d, size in ipairs(of.sizes) do
    if size ~= 1 then old[#old + 1], strides[#strides + 1] = size, of.strides[d] end
  end
  return restride(old, strides, sizes)
end

local function reshaped(what, self, ...)
  local of = Tensor.need(what, self)
  local list = shape.arguments(what, ...)
  local sizes, count = shape.check(what, infer(what, list, of.count))
  if count ~= of.count then
    fault("%s: %s has %d elements, %s has %d", what, shape.text(of.sizes), of.count, shape.text(sizes), count)
  end
  return of, sizes, view_strides(of, sizes)
end

--- The same elements in another shape; a size of -1 is found from the others. Raises when strides forbid it:
-- `contiguous` first, or `reshape`.
-- @tparam integer|{integer,...} ... sizes
-- @treturn tensor
function methods:view(...)
  local of, sizes, strides = reshaped("view", self, ...)
  if not strides then
    fault("view: %s with strides %s cannot be seen as %s; `contiguous` or `reshape` copies", shape.text(of.sizes),
      table.concat(of.strides, ","), shape.text(sizes))
  end
  return derived("view", of, of.start, sizes, strides)
end

--- A view where that is possible, else a copy of that shape.
function methods:reshape(...)
  local of, sizes, strides = reshaped("reshape", self, ...)
  if strides then return derived("reshape", of, of.start, sizes, strides) end
  local copy <close> = self:contiguous()
  return copy:view(sizes)
end

--- All elements in one dimension: a view where possible, else a copy.
function methods:flatten()
  Tensor.check("flatten", self)
  return methods.reshape(self, self.count)
end

--- Elements `first` to `first + length - 1` of a dimension.
-- @tparam integer d
-- @tparam integer first from 1
-- @tparam integer length may be 0
function methods:narrow(d, first, length)
  local of = Tensor.need("narrow", self)
  d = shape.dimension("narrow", of.sizes, d)
  first = shape.integer("narrow", "first", first, 1, of.sizes[d] + 1)
  length = shape.integer("narrow", "length", length, 0, of.sizes[d] - first + 1)
  local sizes = { table.unpack(of.sizes) }
  sizes[d] = length
  return derived("narrow", of, of.start + (first - 1) * of.strides[d], sizes, of.strides,
    shape.count("narrow", sizes))
end

--- Element `i` of dimension `d`: a tensor of one dimension less.
function methods:select(d, i)
  local of = Tensor.need("select", self)
  d = shape.dimension("select", of.sizes, d)
  i = shape.integer("select", "index", i, 1, of.sizes[d])
  local sizes, strides = without(of.sizes, of.strides, d)
  return derived("select", of, of.start + (i - 1) * of.strides[d], sizes, strides, shape.count("select", sizes))
end

--- Two dimensions exchanged.
function methods:transpose(a, b)
  local of = Tensor.need("transpose", self)
  a = shape.dimension("transpose", of.sizes, a)
  b = shape.dimension("transpose", of.sizes, b)
  local sizes, strides = { table.unpack(of.sizes) }, { table.unpack(of.strides) }
  sizes[a], sizes[b] = sizes[b], sizes[a]
  strides[a], strides[b] = strides[b], strides[a]
  return derived("transpose", of, of.start, sizes, strides)
end

--- The transpose of a matrix.
function methods:t()
  Tensor.check("t", self)
  if #self.sizes ~= 2 then fault("t: a matrix expected, this is %s", shape.text(self.sizes)) end
  return self:transpose(1, 2)
end

--- Repeats dimensions of size 1, and adds dimensions in front, without memory: strides of 0. -1 keeps a size.
-- @tparam integer|{integer,...} ... sizes
function methods:expand(...)
  local of = Tensor.need("expand", self)
  local list = { table.unpack((shape.arguments("expand", ...))) }
  local shift = #list - #of.sizes
  if shift < 0 then fault("expand: %s has more dimensions than %s", shape.text(of.sizes), shape.text(list)) end
  for d = 1, #of.sizes do
    if list[d + shift] == -1 then list[d + shift] = of.sizes[d] end
  end
  local sizes, count = shape.check("expand", list)
  for d, size in ipairs(of.sizes) do
    if size ~= 1 and size ~= sizes[d + shift] then
      fault("expand: %s cannot become %s (%d ~= %d)", shape.text(of.sizes), shape.text(sizes), size, sizes[d + shift])
    end
  end
  return derived("expand", of, of.start, sizes, shape.stretch(of.sizes, of.strides, sizes), count)
end

--- Without dimension `d`, which must have size 1; without an argument, without any of size 1.
function methods:squeeze(d)
  local of = Tensor.need("squeeze", self)
  if d ~= nil then
    d = shape.dimension("squeeze", of.sizes, d)
    if of.sizes[d] ~= 1 then fault("squeeze: dimension %d of %s is not 1", d, shape.text(of.sizes)) end
  end
  local sizes, strides = {}, {}
  for i, size in ipairs(of.sizes) do
    if size ~= 1 or (d and i ~= d) then sizes[#sizes + 1], strides[#strides + 1] = size, of.strides[i] end
  end
  return derived("squeeze", of, of.start, sizes, strides)
end

--- With a new dimension of size 1 at place `d`, 1 to one more than there are.
function methods:unsqueeze(d)
  local of = Tensor.need("unsqueeze", self)
  d = shape.integer("unsqueeze", "dimension", d, 1, #of.sizes + 1)
  local sizes, strides = { table.unpack(of.sizes) }, { table.unpack(of.strides) }
  table.insert(sizes, d, 1)
  table.insert(strides, d, 1)
  return derived("unsqueeze", of, of.start, sizes, strides)
end

-- ---- Copies --------------------------------------------------------------------------------------------------

local function copied(what, self)
  local of = Tensor.need(what, self)
  local room = Tensor.room(what, of.storage.context, of.kind, of.sizes, of.count)
  local copy = Tensor.over(what, room)
  elementwise.store(what, room, elementwise.cast(what, self, of.kind))
  return copy
end

--- A copy in memory of its own.
function methods:clone()
  return copied("clone", self)
end

--- The same elements one after another: a tensor over the same storage when they are, else a copy.
function methods:contiguous()
  local of = Tensor.need("contiguous", self)
  return of.is_dense and self:alias() or copied("contiguous", self)
end

local function joined_sizes(list, d)
  local first = list[1].sizes
  local sizes, kind = { table.unpack(first) }, list[1].kind
  for i = 2, #list do
    local other = list[i].sizes
    for k = 1, math.max(#first, #other) do
      if k ~= d and first[k] ~= other[k] then
        fault("cat: %s and %s differ in dimension %d", shape.text(first), shape.text(other), k)
      end
    end
    sizes[d] = sizes[d] + other[d]
    kind = dtype.common(kind, list[i].kind)
  end
  return sizes, kind
end

--- One tensor after another along a dimension; their other sizes are equal, their kinds mix as in arithmetic. Copies.
-- @tparam {tensor,...} list
-- @tparam[opt=1] integer d
-- @treturn tensor
function view.cat(list, d)
  if type(list) ~= "table" or Tensor.is(list) or #list == 0 then fault("cat: a list of tensors expected") end
  for _, tensor in ipairs(list) do Tensor.check("cat", tensor) end
  d = shape.dimension("cat", list[1].sizes, d or 1)
  local own = Tensor.context(list[1])
  local sizes, kind = joined_sizes(list, d)
  local out = Tensor.over("cat", Tensor.room("cat", own, kind, sizes, shape.count("cat", sizes)))
  local first = 1
  for _, tensor in ipairs(list) do
    local part <close> = out:narrow(d, first, tensor.sizes[d])
    part:copy(tensor)
    first = first + tensor.sizes[d]
  end
  return out
end

return view
