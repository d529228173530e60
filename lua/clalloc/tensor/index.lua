--- Queries and indexing: `t:size()`, `#t`, `t[i]`, `t[{i, j}]`.
--
-- Indices count from 1. An index that names one element gives or sets a number, and waits for the device each time: for
-- many elements, `totable` and `copy` are the fast way. Any other index gives a view, or sets its elements from a
-- number, a table or a tensor.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local fault = require "clalloc.tensor.fault"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"
local values = require "clalloc.tensor.values"

local methods, meta = Tensor.methods, Tensor.meta

-- ---- Queries -------------------------------------------------------------------------------------------------

local function one_or_all(what, list, d)
  if d == nil then return { table.unpack(list) } end
  return list[shape.dimension(what, list, d)]
end

--- The sizes as a list, or the size of a dimension.
function methods:size(d) return one_or_all("size", Tensor.check("size", self).sizes, d) end

--- The strides in elements as a list, or that of a dimension.
function methods:stride(d) return one_or_all("stride", Tensor.need("stride", self).strides, d) end

--- The number of dimensions.
function methods:dim() return #Tensor.check("dim", self).sizes end

--- The number of elements.
function methods:numel() return Tensor.check("numel", self).count end

--- "f32", "f64", "i32", "u32", "i64" or "u8".
function methods:dtype() return Tensor.check("dtype", self).kind.name end

--- Where the first element is in the storage's buffer, in elements.
function methods:offset() return Tensor.need("offset", self).start end

--- The bytes of the elements, without what lies between them.
function methods:nbytes() return Tensor.check("nbytes", self).count * self.kind.size end

--- Whether elements lie one after another, the last dimension fastest.
function methods:is_contiguous()
  Tensor.check("is_contiguous", self)
  return not self.cells or self.cells.is_dense
end

--- The device the elements are on, as a handle of the caller's own.
function methods:device() return Tensor.context(Tensor.check("device", self)).default_stream.device end

--- The buffer that holds the elements, for kernels of one's own, and where the first one is in it, in bytes. Once given
-- out, expressions over this memory are computed at once, since others may write to it.
-- @treturn buffer
-- @treturn integer
function methods:buffer()
  local view = Tensor.need("buffer", self)
  storage.before_write(view.storage)
  view.storage.is_shared = true
  return view.storage.buffer, view.start * view.kind.size
end

--- Whether two tensors have the same shape and equal elements; NaN equals nothing.
-- @treturn boolean
function methods:equal(other)
  Tensor.check("equal", self)
  Tensor.check("equal", other)
  Tensor.check_devices("equal", self, other)
  if not shape.equal(self.sizes, other.sizes) then return false end
  if self.count == 0 then return true end
  local same <close> = self:eq(other)
  local least <close> = same:min()
  return least:item() == 1
end

-- ---- Indexing ------------------------------------------------------------------------------------------------

local function range(what, of, d, pair)
  local first, last = pair[1], pair[2]
  if first == nil then return 1, of.sizes[d] end
  if last == nil then last = first end
  first = shape.integer(what, "first index of dimension " .. d, first, 1, of.sizes[d] + 1)
  last = shape.integer(what, "last index of dimension " .. d, last, first - 1, of.sizes[d])
  return first, last - first + 1
end

-- What an index list leaves of a view: start, sizes, strides.
local function locate(what, of, list)
  if #list > #of.sizes then fault("%s: %d indices for %s", what, #list, shape.text(of.sizes)) end
  local start, sizes, strides = of.start, {}, {}
  for d, size in ipairs(of.sizes) do
    local index = list[d]
    local first, length = 1, size
    if type(index) == "table" then
      first, length = range(what, of, d, index)
    elseif index ~= nil then
      first, length = shape.integer(what, "index of dimension " .. d, index, 1, size), nil
    end
    start = start + (first - 1) * of.strides[d]
    if length then sizes[#sizes + 1], strides[#strides + 1] = length, of.strides[d] end
  end
  return start, sizes, strides
end

local function read(of, start)
  local size = of.kind.size
  return (("<" .. of.kind.pack):unpack(storage.read(of.storage, "index", start * size, size)))
end

local function sub(of, start, sizes, strides)
  return Tensor.over("index", Tensor.view_of(of.storage, of.kind, start, sizes, strides, shape.count("index", sizes)))
end

local function index_list(self, key)
  if type(key) == "table" and getmetatable(key) == nil then return key end
  if type(key) ~= "number" then fault("index: an integer or a list expected, got %s", type(key)) end
  if #self.sizes == 0 then fault("index: a tensor without dimensions has no element %s: use item()", key) end
  return { key }
end

--- `t[i]`, `t[{i, j}]`, `t[{{first, last}, {}, i}]`: a number where every dimension is given one, else a view. `{}`
-- stands for all of a dimension. Strings are methods.
function meta.__index(self, key)
  if type(key) == "string" then return methods[key] end
  local of = Tensor.need("index", self)
  local start, sizes, strides = locate("index", of, index_list(self, key))
  if #sizes == 0 then return read(of, start) end
  return sub(of, start, sizes, strides)
end

--- `t[i] = value`: a number for all elements there, or a table or tensor that broadcasts to them.
function meta.__newindex(self, key, value)
  if type(key) == "string" then fault("a tensor has no field '%s'", key) end
  local of = Tensor.need("index", self)
  local start, sizes, strides = locate("index", of, index_list(self, key))
  if #sizes == 0 and not Tensor.is(value) then return values.set("index", of, start, value) end
  local part <close> = sub(of, start, sizes, strides)
  if type(value) == "number" then part:fill(value) else part:copy(value) end
end

--- The size of the first dimension; 0 without dimensions.
function meta.__len(self) return Tensor.check("#", self).sizes[1] or 0 end
