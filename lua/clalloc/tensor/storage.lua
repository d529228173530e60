--- Storage: the device memory that views share, with a count of them.
--
-- Three promises. The memory goes back when the last holder lets go, at once. A command on another stream than the last
-- one comes after it, so a tensor's data is in order on any number of streams. What is still to be computed from the
-- memory is computed before it changes.
--
-- @module clalloc.tensor.storage

local core = require "clalloc.core"
local context = require "clalloc.tensor.context"
local fault = require "clalloc.tensor.fault"

local storage = {}

local function new(own, buffer)
  return {
    context = own,
    buffer = buffer,    -- false: closed from here
    count = 0,          -- holders: tensors, expressions not yet computed, and the owner of a buffer that is not ours
    tensors = 0,        -- of them, tensors
    is_shared = false,  -- others may write to the buffer, or close it: nothing is left for later
    stream = false,     -- of the last command; false: none yet
    stream_id = false,
    pending = false,    -- set of tensors yet to be computed from this, weak
  }
end

-- Memory of somebody else, who holds it for ever: it is never closed here.
local function new_foreign(own, buffer)
  local self = new(own, buffer)
  self.count, self.is_shared = 1, true
  return self
end

-- Found once, not at each call.
local alloc = core.debug.types().device.names.alloc

--- New memory on the current stream, without a holder; raises when there is none to be had.
function storage.new(what, own, nbytes)
  local buffer, why = alloc(own.device, nbytes)
  if not buffer then fault("%s: %s", what, why) end
  return new(own, buffer)
end

--- Whether a value is a buffer, open or closed.
function storage.is_buffer(value)
  local meta = type(value) == "userdata" and getmetatable(value)
  return type(meta) == "table" and meta.__name == "clalloc.buffer"
end

--- The memory of a buffer that others may use too. A view of an allocation is found in the whole of it: where it begins
-- need not be aligned as a kernel's argument must be.
-- @treturn table the storage
-- @treturn integer where the buffer begins in it, in bytes
function storage.from(what, buffer)
  local own = context.of(buffer.device)
  if buffer.offset == 0 then return new_foreign(own, buffer), 0 end
  local whole, offset = core.resolve(buffer.address)
  if not whole then fault("%s: %s", what, offset) end
  local self = new_foreign(own, whole)
  self.original = buffer
  return self, offset
end

--- A tensor over it is there, or there no longer.
function storage.add_tensor(self)
  self.count, self.tensors = self.count + 1, self.tensors + 1
end

function storage.remove_tensor(self)
  self.tensors = self.tensors - 1
  storage.release(self)
end

--- A tensor over it was collected.
function storage.lose_tensor(self)
  self.count, self.tensors = self.count - 1, self.tensors - 1
end

--- Gives memory back that no tensor holds.
function storage.close(self)
  self.buffer:close()
  self.buffer = false
end

function storage.release(self)
  self.count = self.count - 1
  if self.count == 0 then storage.close(self) end
end

--- Whether the memory is gone.
function storage.is_gone(self)
  return not self.buffer or self.is_shared and self.buffer.closed
end

--- Puts the command that comes next, on `stream`, after the last one that used the memory.
function storage.order(self, stream, id)
  if self.stream_id == id then return end
  if self.stream then
    local ok, why = stream:wait(self.stream)
    if not ok then fault("the stream cannot wait: %s", why) end
  end
  self.stream, self.stream_id = stream, id
end

local weak = { __mode = "k" }

--- The set of tensors to be computed from this memory, each a holder.
function storage.pending_of(self)
  if not self.pending then self.pending = setmetatable({}, weak) end
  return self.pending
end

--- Before the memory changes: whatever is to be computed from it is computed, by `storage.overtake`, set by the type.
function storage.before_write(self)
  if not self.pending or not next(self.pending) then return end
  local list = {}
  for tensor in pairs(self.pending) do list[#list + 1] = tensor end
  for _, tensor in ipairs(list) do storage.overtake(tensor) end
end

local function on_stream(self)
  storage.order(self, context.stream(self.context))
end

--- Bytes of the memory, read now.
function storage.read(self, what, offset, nbytes)
  on_stream(self)
  local bytes, why = self.buffer:read(offset, nbytes)
  if not bytes then fault("%s: %s", what, why) end
  return bytes
end

--- Writes bytes now.
function storage.write(self, what, offset, bytes)
  on_stream(self)
  local ok, why = self.buffer:write(bytes, offset)
  if not ok then fault("%s: %s", what, why) end
end

return storage
