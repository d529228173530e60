-- Writing pickles of protocol 4, with no opcode but those that PyTorch's viewer knows.
--
-- Strings are written once and recalled from the memo, and so is what `shared` is told to. Lists are appended to in
-- batches: the viewer takes a batch as arguments of one call.

local unpickle = require "clalloc.trace.unpickle"

local pack = string.pack

local BATCH = 1000

local Pickler = {}
Pickler.__index = Pickler

local pickler = {}

--- A pickler that appends to what put writes.
function pickler.new(put)
  put "\x80\x04"
  return setmetatable({ put = put, memo = {}, count = 0 }, Pickler)
end

-- Remembers the value that was just written, under a key.
local function memoize(self, key)
  local index = self.count
  self.put "\x94"
  self.count = index + 1
  self.memo[key] = index < 256 and pack("<c1B", "h", index) or pack("<c1I4", "j", index)
end

function Pickler:string(value)
  local recall = self.memo[value]
  if recall then
    return self.put(recall)
  end
  self.put(#value < 256 and pack("<c1s1", "\x8c", value) or pack("<c1s4", "X", value))
  memoize(self, value)
end

function Pickler:int(value)
  if value >= 0 and value < 1 << 8 then
    self.put(pack("<c1B", "K", value))
  elseif value >= 0 and value < 1 << 16 then
    self.put(pack("<c1I2", "M", value))
  elseif value >= -(1 << 31) and value < 1 << 31 then
    self.put(pack("<c1i4", "J", value))
  else
    self.put(pack("<c2i8", "\x8a\x08", value))
  end
end

--- What is known by a key: written by write() the first time, recalled from then on.
function Pickler:shared(key, write)
  local recall = self.memo[key]
  if recall then
    return self.put(recall)
  end
  write()
  memoize(self, key)
end

--- A list of n elements, each written by write(i).
function Pickler:list(n, write)
  self.put "]"
  for first = 1, n, BATCH do
    self.put "("
    for i = first, math.min(first + BATCH - 1, n) do
      write(i)
    end
    self.put "e"
  end
end

--- A dict: between the two, each key is written and then its value.
function Pickler:begin_dict()
  self.put "}("
end

function Pickler:end_dict()
  self.put "u"
end

local WRITE = {}

--- Any value that `unpickle` gives.
function Pickler:value(value)
  WRITE[unpickle.kind(value)](self, value)
end

function WRITE.None(self)
  self.put "N"
end

function WRITE.boolean(self, value)
  self.put(value and "\x88" or "\x89")
end

function WRITE.float(self, value)
  self.put(pack(">c1d", "G", value))
end

WRITE.int, WRITE.string = Pickler.int, Pickler.string

function WRITE.list(self, value)
  self:shared(value, function()
    self:list(#value, function(i) self:value(value[i]) end)
  end)
end

function WRITE.tuple(self, value)
  self:shared(value, function()
    self.put "("
    for i = 1, #value do
      self:value(value[i])
    end
    self.put "t"
  end)
end

-- The byte offset at index 1 is left out.
function WRITE.dict(self, value)
  self:shared(value, function()
    self:begin_dict()
    for i = 2, #value do
      self:value(value[i])
    end
    self:end_dict()
  end)
end

function Pickler:finish()
  self.put "."
end

return pickler
