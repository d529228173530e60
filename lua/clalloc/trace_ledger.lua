-- The events of a trace while it is read or recorded, before slots are given out.
--
-- Assumes that events come in program order. Blocks are numbered in order of allocation and found by a key: an
-- address, an object. Functions give false for what cannot be and change nothing then.

local ledger = {}

local function is_default_stream(recorded)
  return recorded == nil or recorded == 0 or recorded == "(nil)"
    or type(recorded) == "string" and recorded:find("^0?[xX]?0+$") ~= nil
end

function ledger.new()
  return {
    events = {}, -- block number: allocated here; its negation: freed here; 0: nothing
    bytes = {}, -- by block number
    streams = {}, -- by block number
    live = {}, -- key (address, object) -> block number
    requested = {}, -- block number -> the event at which its free was asked for but not yet seen complete
    stream_numbers = {}, -- stream as recorded -> number
    stream_count = 1, -- the default stream always exists
    initial = 0,
    failures = 0,
  }
end

-- The number of a stream: 0 for the default one, others from 1 in order of appearance.
function ledger.stream_number(self, recorded)
  local number = self.stream_numbers[recorded]
  if number then
    return number
  end
  if is_default_stream(recorded) then
    return 0
  end
  number = self.stream_count
  self.stream_numbers[recorded] = number
  self.stream_count = number + 1
  return number
end

-- An allocation without a key; returns the block's number.
function ledger.append_block(self, nbytes, stream)
  local block = #self.bytes + 1
  self.bytes[block] = nbytes
  self.streams[block] = stream
  self.events[#self.events + 1] = block
  return block
end

-- False when the key is live already. A free that was only asked for has happened by the time its address
-- is given out again.
function ledger.allocate(self, key, nbytes, stream)
  local live, requested = self.live, self.requested
  local previous = live[key]
  if previous then
    local asked_at = requested[previous]
    if not asked_at then
      return false
    end
    self.events[asked_at] = -previous
    requested[previous] = nil
  end
  live[key] = ledger.append_block(self, nbytes, stream)
  return true
end

-- The free of a block made by append_block.
function ledger.append_free(self, block)
  self.events[#self.events + 1] = -block
end

-- False when nothing is live under the key.
function ledger.free(self, key)
  local block = self.live[key]
  if not block then
    return false
  end
  self.live[key] = nil
  self.requested[block] = nil
  self.events[#self.events + 1] = -block
  return true
end

-- Marks where the free will be, should its completion never come. False when nothing is live under the key, or
-- its free was asked for before.
function ledger.request_free(self, key)
  local block = self.live[key]
  if not block or self.requested[block] then
    return false
  end
  local at = #self.events + 1
  self.events[at] = 0
  self.requested[block] = at
  return true
end

local function settle_requested_frees(self)
  for block, at in pairs(self.requested) do
    self.events[at] = -block
  end
end

-- The fields of a trace, or nil when the live bytes do not fit 64 bits. The slot freed last is taken first, so the
-- same events always give the same slots.
function ledger.assemble(self, name, format)
  settle_requested_frees(self)
  local events, bytes, streams = self.events, self.bytes, self.streams
  local op, size, stream = {}, {}, {}
  local slot_of, spare, spares, slots = {}, {}, 0, 0
  local n, live, peak = 0, 0, 0
  for i = 1, #events do
    local block = events[i]
    if block > 0 then
      local slot
      if spares > 0 then
        slot, spares = spare[spares], spares - 1
      else
        slots = slots + 1
        slot = slots
      end
      slot_of[block] = slot
      n = n + 1
      op[n], size[n], stream[n] = slot, bytes[block], streams[block]
      live = live + bytes[block]
      if live > peak then
        peak = live
      elseif live < 0 then
        return nil
      end
    elseif block < 0 then
      block = -block
      spares = spares + 1
      spare[spares] = slot_of[block]
      n = n + 1
      op[n], size[n], stream[n] = -slot_of[block], bytes[block], streams[block]
      live = live - bytes[block]
    end
  end
  return {
    name = name, format = format, scale = 1,
    op = op, size = size, stream = stream,
    operations = n, allocations = #bytes, slots = slots, streams = self.stream_count,
    initial = self.initial, failures = self.failures, peak_live = peak,
  }
end

return ledger
