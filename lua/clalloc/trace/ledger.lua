-- Pairs the frees of a recording with its allocations, and gives out the slots of a trace.
--
-- Assumes columns that are checked (see recording.lua) and events in program order. Blocks are numbered in order of
-- allocation, the initial ones first, and found by their address or key.

local ledger = {}

local function describe(recording, key)
  return (recording.addressed and "0x%x" or "#%d"):format(key)
end

local function not_live(recording, key)
  return ("free of %s, which is not live"):format(describe(recording, key))
end

local function already_live(recording, key)
  return ("allocation at %s, which is live already"):format(describe(recording, key))
end

-- The default stream is 0; others count from 1 in order of appearance.
local function number_stream(pairing, recorded)
  if recorded == 0 then
    return 0
  end
  local number = pairing.stream_numbers[recorded]
  if not number then
    number = pairing.streams
    pairing.stream_numbers[recorded], pairing.streams = number, number + 1
  end
  return number
end

local OVERFLOW = "the live bytes do not fit 64 bits"

-- The number of a new block, or nil when the live bytes would not fit an integer.
local function add_block(pairing, nbytes, stream)
  local block = #pairing.bytes + 1
  pairing.live_bytes = pairing.live_bytes + nbytes
  if pairing.live_bytes < 0 then
    return nil
  end
  pairing.bytes[block] = nbytes
  pairing.stream[block] = number_stream(pairing, stream)
  return block
end

local function add_initial_blocks(recording, pairing, live, refuse)
  local blocks = recording.before.blocks
  local stream = blocks.stream
  for i, key in ipairs(blocks.address) do
    if live[key] then
      refuse(-i, already_live(recording, key))
    end
    live[key] = add_block(pairing, blocks.size[i], stream and stream[i] or 0) or refuse(-i, OVERFLOW)
  end
  pairing.initial = #blocks.address
end

--- Follows a recording from its first event to its last.
--
-- refuse(k, reason) is called for event k, or initial block -k, where it cannot be so; it raises. It may be left out
-- for a recording that was followed before.
--
-- The result: effect[k] is the block that event k allocates, its negation where it is freed, else 0; owner[k] the
-- block that the event is about, or 0; bytes and stream by block; pending: blocks whose free was asked for and never
-- seen complete, with the event that asked; cut_short[k]: such an event whose address was given out again. A free is
-- effective when it completes, or where it was asked for when no completion follows.
function ledger.pair(recording, refuse)
  refuse = refuse or function() end
  local events = recording.events
  local actions, addresses, sizes, streams = events.action, events.address, events.size, events.stream
  local effect, owner, live, pending, cut_short = {}, {}, {}, {}, {}
  local pairing = {
    effect = effect, owner = owner, pending = pending, cut_short = cut_short, live = live,
    bytes = {}, stream = {}, stream_numbers = {}, streams = 1, initial = 0, failures = 0,
    live_bytes = 0,
  }
  add_initial_blocks(recording, pairing, live, refuse)

  local function allocate(k, key)
    local previous = live[key]
    local asked_at = previous and pending[previous]
    if previous and not asked_at then
      return refuse(k, already_live(recording, key))
    elseif asked_at then -- it was free by the time its address was given out again
      effect[asked_at], cut_short[asked_at], pending[previous] = -previous, true, nil
      pairing.live_bytes = pairing.live_bytes - pairing.bytes[previous]
    end
    local block = add_block(pairing, sizes[k], streams and streams[k] or 0)
    if not block then
      return refuse(k, OVERFLOW)
    end
    live[key], effect[k], owner[k] = block, block, block
  end

  local function request(k, key)
    local block = live[key]
    if not block then
      return refuse(k, not_live(recording, key))
    elseif pending[block] then
      return refuse(k, ("the free of %s was requested before"):format(describe(recording, key)))
    end
    pending[block], owner[k] = k, block
  end

  local function free(k, key)
    local block = live[key]
    if not block then
      return refuse(k, not_live(recording, key))
    end
    live[key], pending[block] = nil, nil
    pairing.live_bytes = pairing.live_bytes - pairing.bytes[block]
    effect[k], owner[k] = -block, block
  end

  local handle = { alloc = allocate, free_requested = request, free_completed = free, free = free }
  for k = 1, #actions do
    effect[k], owner[k] = 0, 0
    local action = actions[k]
    local of_block = handle[action]
    if of_block then
      local key = addresses[k]
      if key ~= 0 then
        of_block(k, key)
      elseif action == "alloc" and sizes[k] > 0 then -- nothing allocated has no address
        refuse(k, "allocation without an address")
      end
    elseif action == "oom" then
      pairing.failures = pairing.failures + 1
    end
  end
  for block, asked_at in pairs(pending) do
    effect[asked_at] = -block
  end
  return pairing
end

--- The fields of a trace that a replay needs. The slot freed last is taken first, so the same events always give the
-- same slots. Also returns the slot of each block.
function ledger.assemble(pairing)
  local effect, bytes, streams = pairing.effect, pairing.bytes, pairing.stream
  local op, size, stream = {}, {}, {}
  local slot_of, spare, spares, slots = {}, {}, 0, 0
  local n, live, peak = 0, 0, 0
  local function allocate(block)
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
    peak = live > peak and live or peak
  end
  for block = 1, pairing.initial do
    allocate(block)
  end
  for k = 1, #effect do
    local block = effect[k]
    if block > 0 then
      allocate(block)
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
    op = op, size = size, stream = stream, operations = n, allocations = #bytes, slots = slots,
    streams = pairing.streams, initial = pairing.initial, failures = pairing.failures, peak_live = peak,
  }, slot_of
end

-- What the last snapshot says is live: address -> index into `found`.
local function live_at_end(recording)
  local found = { address = {}, size = {}, stream = {} }
  local index = {}
  for _, segment in ipairs(recording.segments or {}) do
    local blocks = segment.blocks
    for i, state in ipairs(blocks.state) do
      if state ~= "inactive" then
        local n = #found.address + 1
        found.address[n], found.size[n], found.stream[n] = blocks.address[i], blocks.requested[i], segment.stream
        index[blocks.address[i]] = n
      end
    end
  end
  return found, index
end

local function sorted_by_address(found, index)
  local blocks, order = { address = {}, size = {}, stream = {} }, {}
  for address in pairs(index) do
    order[#order + 1] = address
  end
  table.sort(order, math.ult)
  for i, address in ipairs(order) do
    local n = index[address]
    blocks.address[i], blocks.size[i], blocks.stream[i] = address, found.size[n], found.stream[n]
  end
  blocks.stream = #order > 0 and blocks.stream or nil
  return blocks
end

--- What was live before the first event, found by undoing the events from the last to the first: a recording that
-- kept only its last events, as PyTorch's does, does not say it. Blocks come in order of address.
-- refuse is called for an allocation that is neither freed nor live at the end, where the recording says what is.
function ledger.live_before(recording, refuse)
  local events = recording.events
  local actions, addresses, sizes, streams = events.action, events.address, events.size, events.stream
  local found, index = live_at_end(recording)
  local freed_at = {} -- index into `found` -> the event that frees it
  local function add(k)
    local n = #found.address + 1
    found.address[n], found.size[n], found.stream[n] = addresses[k], sizes[k], streams and streams[k] or 0
    index[addresses[k]], freed_at[n] = n, k
  end
  for k = #actions, 1, -1 do
    local action, key = actions[k], addresses[k]
    if action == "alloc" and key ~= 0 then
      if not index[key] and recording.segments then
        refuse(k, ("%s is allocated twice without a free, or live at the end and in no segment")
          :format(describe(recording, key)))
      end
      index[key] = nil
    elseif (action == "free_completed" or action == "free") and key ~= 0 then
      if index[key] then
        refuse(freed_at[index[key]] or k, not_live(recording, key))
      end
      add(k)
    elseif action == "free_requested" and key ~= 0 and not index[key] then
      add(k) -- its completion was not seen
    end
  end
  return sorted_by_address(found, index)
end

return ledger
