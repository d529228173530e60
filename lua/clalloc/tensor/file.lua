--- Tensors in files: a header, then the elements as they lie in memory, little-endian and row-major.
--
-- The header: the line "clalloc tensor 1"; the dtype's name as a line; the number of dimensions and each size, 8 bytes
-- each, little-endian.
--
-- What the file system refuses, and a file that is no tensor, gives `nil, message`.
--
-- @module clalloc.tensor.file

local Tensor = require "clalloc.tensor.type"
local context = require "clalloc.tensor.context"
local dtype = require "clalloc.tensor.dtype"
local fault = require "clalloc.tensor.fault"
local shape = require "clalloc.tensor.shape"
local values = require "clalloc.tensor.values"

local file = {}

local MAGIC = "clalloc tensor 1\n"
local MOST_DIMENSIONS = 64

local function check_path(what, path)
  if type(path) ~= "string" then fault("%s: path: string expected, got %s", what, type(path)) end
end

--- Writes the tensor to a file.
-- @tparam string path
-- @return true, or nil and a message
function Tensor.methods:save(path)
  Tensor.check("save", self)
  check_path("save", path)
  local bytes = values.bytes("save", self)
  local header = ("%s%s\n%s"):format(MAGIC, self.kind.name,
    ("<i8" .. ("i8"):rep(#self.sizes)):pack(#self.sizes, table.unpack(self.sizes)))
  local out, why = io.open(path, "wb")
  if not out then return nil, why end
  local ok, failed = out:write(header, bytes)
  local closed, late = out:close()
  if ok and closed then return true end
  return nil, ("%s: %s"):format(path, failed or late)
end

-- The kind and the sizes that a file begins with; nil if it does not.
local function read_header(input)
  if input:read(#MAGIC) ~= MAGIC then return nil end
  local name = input:read "l"
  local head = input:read(8)
  if not name or not name:find "^[fiu]%d+$" or not head or #head < 8 then return nil end
  local rank = ("<i8"):unpack(head)
  if rank < 0 or rank > MOST_DIMENSIONS then return nil end
  local sizes = {}
  for d = 1, rank do
    local size = input:read(8)
    if not size or #size < 8 then return nil end
    sizes[d] = ("<i8"):unpack(size)
  end
  local ok, kind = pcall(dtype.of, "load_tensor", name)
  local fits, checked, count = pcall(shape.check, "load_tensor", sizes)
  if not ok or not fits then return nil end
  return kind, checked, count
end

--- Reads a tensor from a file, to the current device.
-- @tparam string path
-- @return the tensor, or nil and a message
function file.load(path)
  check_path("load_tensor", path)
  local input, why = io.open(path, "rb")
  if not input then return nil, why end
  local open <close> = input
  local kind, sizes, count = read_header(open)
  if not kind then return nil, path .. ": not a tensor" end
  local bytes = open:read "a"
  if #bytes ~= count * kind.size then
    return nil, ("%s: %s of %s takes %d bytes, the file has %d"):format(path, shape.text(sizes), kind.name,
      count * kind.size, #bytes)
  end
  local own = context.current()
  dtype.check("load_tensor", kind, own)
  return values.of_bytes("load_tensor", own, kind, sizes, count, bytes)
end

return file
