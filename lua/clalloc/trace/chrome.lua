-- Chrome trace JSON, for Perfetto and chrome://tracing: how much is reserved, active and requested over time, a slice
-- for each allocation and each segment, a mark for each allocation that failed.
--
-- Assumes a recording that `layout.viewable` gives. Slices of one row (a "thread") must not overlap: a row is taken
-- again when its slice has ended, and times never go back, whatever the recording says. Without times an event takes
-- 1 us.

local ledger = require "clalloc.trace.ledger"

local chrome = {}

-- Rows in two groups ("processes").
local BLOCKS, SEGMENTS = 1, 2
local FIRST_ROW = 10 -- rows numbered like their group would be taken for its main thread

local UNITS = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" }

local function human(nbytes)
  local value, unit = nbytes, 1
  while value >= 1024 and unit < #UNITS do
    value, unit = value / 1024, unit + 1
  end
  return (unit == 1 and "%d %s" or "%.2f %s"):format(value, UNITS[unit])
end

-- Microseconds of each event, never going back; one more for the end.
local function monotonic_times(events)
  local recorded, n = events.time_us, #events.action
  local times, now = {}, 0
  if recorded and n > 0 and math.max(recorded[1], recorded[n]) > 0 then
    for k = 1, n do
      now = math.max(now, recorded[k])
      times[k] = now
    end
  else
    for k = 1, n do
      times[k] = k
    end
  end
  times[n + 1] = (times[n] or 0) + 1
  return times
end

local function new_writer(put)
  local separator = "\n"
  return function(shape, ...)
    put(separator)
    put(shape:format(...))
    separator = ",\n"
  end
end

local function at(column, k)
  return column and column[k] or 0
end

-- Rows of one group: the one that became free last is taken first.

local function take_row(rows)
  local row = table.remove(rows.spare)
  if not row then
    rows.count = rows.count + 1
    row = rows.count
  end
  return FIRST_ROW + row
end

local function give_row(rows, row)
  table.insert(rows.spare, row - FIRST_ROW)
end

local function new_rows()
  return { count = 0, spare = {} }
end

-- Slices of blocks.

local function write_block(write, state, block, ended)
  local made = state.made[block]
  local began = made > 0 and state.times[made] or state.times[1]
  local events, before = state.rec.events, state.rec.before.blocks
  local stream = made > 0 and at(events.stream, made) or made == 0 and at(before.stream, block)
  local asked = state.asked[block]
  write([[{"ph":"X","pid":%d,"tid":%d,"ts":%d,"dur":%d,"name":"%s","cat":"block",]]
    .. [["args":{"address":"0x%x","size":%d,"stream":%d,"thread":%d%s%s}}]],
    BLOCKS, state.row_of[block], began, ended - began, human(state.pairing.bytes[block]),
    made > 0 and events.address[made] or before.address[block], state.pairing.bytes[block], stream,
    made > 0 and at(events.thread, made) or 0,
    asked and (',"free_requested_us":%d'):format(state.times[asked]) or "",
    made == 0 and ',"initial":true' or "")
end

-- Slices of segments.

local function open_segment(state, address, size, began)
  state.open[address] = { size = size, began = began, row = take_row(state.segment_rows) }
end

local function close_segment(write, state, address, ended)
  local segment = state.open[address]
  if segment then
    state.open[address] = nil
    give_row(state.segment_rows, segment.row)
    write([[{"ph":"X","pid":%d,"tid":%d,"ts":%d,"dur":%d,"name":"%s","cat":"segment",]]
      .. [["args":{"address":"0x%x","size":%d}}]],
      SEGMENTS, segment.row, segment.began, ended - segment.began, human(segment.size), address,
      segment.size)
  end
end

local function sorted_keys(map)
  local keys = {}
  for key in pairs(map) do
    keys[#keys + 1] = key
  end
  table.sort(keys)
  return keys
end

-- What there was before the first event: the segments at the end, and the events undone. Address -> size.
local function segments_before(rec)
  local sizes, events = {}, rec.events
  for _, segment in ipairs(rec.segments) do
    sizes[segment.address] = segment.size
  end
  for k = #events.action, 1, -1 do
    local action, address = events.action[k], events.address[k]
    if action == "segment_alloc" then
      sizes[address] = nil
    elseif action == "segment_free" then
      sizes[address] = events.size[k]
    end
  end
  return sizes
end

local RESERVES = { segment_alloc = 1, segment_map = 1, segment_free = -1, segment_unmap = -1 }

local function reserved_before(rec)
  local reserved = 0
  for _, segment in ipairs(rec.segments) do
    reserved = reserved + segment.size
  end
  for k, action in ipairs(rec.events.action) do
    reserved = reserved - (RESERVES[action] or 0) * rec.events.size[k]
  end
  return reserved
end

-- Events in order. A block counts as requested until its free is asked for, as active until that is complete.

local function block_bytes(state, block)
  local made, taken = state.made[block], state.rec.events.block
  return made > 0 and taken and math.max(taken[made], state.pairing.bytes[block]) or state.pairing.bytes[block]
end

local function begin_block(state, block, k)
  state.made[block], state.row_of[block] = k, take_row(state.block_rows)
  state.active = state.active + block_bytes(state, block)
  state.requested = state.requested + state.pairing.bytes[block]
end

local HANDLE = {}

function HANDLE.alloc(_, state, block, k)
  begin_block(state, block, k)
end

function HANDLE.free_requested(_, state, block, k)
  state.asked[block] = k
  state.requested = state.requested - state.pairing.bytes[block]
end

function HANDLE.free_completed(write, state, block, k)
  if not state.asked[block] then
    state.requested = state.requested - state.pairing.bytes[block]
  end
  state.active = state.active - block_bytes(state, block)
  write_block(write, state, block, state.times[k])
  give_row(state.block_rows, state.row_of[block])
  state.made[block], state.row_of[block] = nil, nil
end

local function handle_event(write, state, k)
  local events = state.rec.events
  local action, address, size = events.action[k], events.address[k], events.size[k]
  local block, handle = state.pairing.owner[k], HANDLE[action]
  if handle and block > 0 then
    handle(write, state, block, k)
  elseif action == "segment_alloc" then
    open_segment(state, address, size, state.times[k])
  elseif action == "segment_free" then
    close_segment(write, state, address, state.times[k])
  elseif action == "oom" then
    write([[{"ph":"i","s":"g","pid":%d,"tid":%d,"ts":%d,"name":"out of memory","args":{"size":%d,"free":%d}}]],
      BLOCKS, FIRST_ROW, state.times[k], size, address)
  end
  state.reserved = state.reserved + (RESERVES[action] or 0) * size
end

local function write_counters(write, state, time_us)
  write([[{"ph":"C","pid":%d,"ts":%d,"name":"memory","args":{"reserved":%d,"active":%d,"requested":%d}}]], BLOCKS,
    time_us, state.reserved, state.active, state.requested)
end

local function begin(rec)
  local pairing = ledger.pair(rec)
  local state = {
    rec = rec, pairing = pairing, times = monotonic_times(rec.events),
    made = {}, -- block -> the event that made it, 0 for one that was there before; nil when it is gone
    asked = {}, -- block -> the event that asked for its free
    open = {}, -- address of a segment -> where and when its slice began
    row_of = {}, block_rows = new_rows(), segment_rows = new_rows(),
    reserved = reserved_before(rec), active = 0, requested = 0,
  }
  for block = 1, pairing.initial do
    begin_block(state, block, 0)
  end
  local before = segments_before(rec)
  for _, address in ipairs(sorted_keys(before)) do
    open_segment(state, address, before[address], state.times[1])
  end
  return state
end

local function finish(write, state)
  local last = state.times[#state.times]
  for _, block in ipairs(sorted_keys(state.made)) do
    write_block(write, state, block, last)
  end
  for _, address in ipairs(sorted_keys(state.open)) do
    close_segment(write, state, address, last)
  end
end

--- Appends the recording to what put writes.
function chrome.write(put, rec)
  local write, state = new_writer(put), begin(rec)
  put [[{"displayTimeUnit":"ms","traceEvents":[]]
  for pid, name in ipairs { "blocks", "segments" } do
    write([[{"ph":"M","pid":%d,"name":"process_name","args":{"name":"device %d: %s"}}]], pid, rec.device or 0, name)
  end
  write_counters(write, state, state.times[1])
  for k = 1, #rec.events.action do
    handle_event(write, state, k)
    if state.times[k + 1] > state.times[k] then
      write_counters(write, state, state.times[k])
    end
  end
  finish(write, state)
  put "\n]}\n"
end

return chrome
