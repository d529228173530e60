-- PyTorch memory snapshots: what a pickle of one means.
--
-- Strict about what a recording needs: actions, addresses, sizes, states. Everything else that is in the file
-- (settings, annotations, stacks, further keys of events, segments and blocks) is kept as it is, to be written again.
-- These are then part of a recording:
--
-- * `python`: `devices` (how many the file lists) and `top` (further keys of the whole: a list of { key, value });
--   `events.python`, `segment.python`, `blocks.python`: by the name of a further key its values, at their indices;
-- * `stacks`: lists of frames { name, filename, line, further }; `events.stack`, `segment.stack`, `blocks.stack`: the
--   numbers of stacks, 0 where there is none.

local ledger = require "clalloc.trace.ledger"
local recording = require "clalloc.trace.recording"
local unpickle = require "clalloc.trace.unpickle"

local kind = unpickle.kind
local MAX_SIZE = recording.MAX_SIZE

local snapshot = { name = "pickle" }

-- A fault at the place where a dict begins.
local function fail(dict, reason, ...)
  error({ offset = dict[1], reason = reason:format(...) }, 0)
end

local function expect(dict, name, value, wanted)
  if kind(value) ~= wanted then
    fail(dict, "%s: expected %s, got %s", name, wanted, value == nil and "nothing" or kind(value))
  end
  return value
end

-- The values of a dict by key, and the order of its keys.
local function fields_of(dict)
  local fields = {}
  for i = 2, #dict, 2 do
    fields[dict[i]] = dict[i + 1]
  end
  return fields
end

local function integer(dict, name, value, largest)
  expect(dict, name, value, "int")
  if value < 0 then
    fail(dict, "%s is negative: %d", name, value)
  elseif largest and value > largest then
    fail(dict, "%s %d is over 2^53", name, value)
  end
  return value
end

local function check_key(dict, key)
  if type(key) ~= "string" then
    fail(dict, "a key that is no string: %s", tostring(key))
  end
  return key
end

local function plain(reader, dict, name, value)
  local reason = unpickle.check_plain(value, reader.heights)
  if reason then
    fail(dict, "%s: %s", name, reason)
  end
  return value
end

-- Every event, segment and block is a dict of its own: a small file could say the same large one a million times.
local function expect_new(reader, owner, name, value, wanted)
  expect(owner, name, value, wanted)
  if reader.seen[value] then
    fail(owner, "%s is listed twice", name)
  end
  reader.seen[value] = true
  return value
end

-- Stacks. The same frames come in many lists, and the same lists many times: each is kept once.

local function read_frame(reader, owner, dict)
  expect(owner, "a frame", dict, "dict")
  local frame = reader.frames[dict]
  if frame then
    return frame
  end
  local fields = fields_of(dict)
  local name = expect(dict, "name of a frame", fields.name, "string")
  local filename = expect(dict, "filename of a frame", fields.filename, "string")
  local line = expect(dict, "line of a frame", fields.line, "int")
  local further
  for i = 2, #dict, 2 do
    local key = dict[i]
    if key ~= "name" and key ~= "filename" and key ~= "line" then
      further = further or {}
      further[check_key(dict, key)] = plain(reader, dict, key, dict[i + 1])
    end
  end
  local key = not further and ("%s\0%s\0%d"):format(name, filename, line)
  frame = key and reader.frames[key]
  if not frame then
    reader.frame_count = reader.frame_count + 1
    frame = { name = name, filename = filename, line = line, further = further, number = reader.frame_count }
    reader.frames[key or dict] = frame
  end
  reader.frames[dict] = frame
  return frame
end

local function read_stack(reader, owner, list)
  expect(owner, "frames", list, "list")
  local number = reader.stack_numbers[list]
  if number then
    return number
  end
  local stack, numbers = {}, {}
  for i, dict in ipairs(list) do
    stack[i] = read_frame(reader, owner, dict)
    numbers[i] = stack[i].number
  end
  local key = table.concat(numbers, ",")
  number = reader.stack_numbers[key]
  if not number then
    number = #reader.stacks + 1
    reader.stacks[number], reader.stack_numbers[key] = stack, number
  end
  reader.stack_numbers[list] = number
  return number
end

-- Keys that the recording has no column for. A key that is missing here and there has holes.
local function keep(reader, columns, n, dict, key, value)
  local column = columns[check_key(dict, key)]
  if not column then
    column = {}
    columns[key] = column
  end
  column[n] = plain(reader, dict, key, value)
end

-- Segments and their blocks.

local function read_block(reader, segment, blocks, dict, address)
  expect_new(reader, segment, "a block", dict, "dict")
  local fields, n = fields_of(dict), #blocks.address + 1
  local state = expect(dict, "state", fields.state, "string")
  if not recording.STATES[state] then
    fail(dict, "unknown state '%s'", state)
  end
  blocks.state[n] = state
  blocks.size[n] = integer(dict, "size", fields.size, MAX_SIZE)
  blocks.address[n] = fields.address == nil and address or integer(dict, "address", fields.address)
  blocks.requested[n] = fields.requested_size == nil and blocks.size[n]
    or integer(dict, "requested_size", fields.requested_size, MAX_SIZE)
  blocks.stack[n] = fields.frames == nil and 0 or read_stack(reader, dict, fields.frames)
  for key, value in pairs(fields) do
    if not (key == "state" or key == "size" or key == "address" or key == "requested_size" or key == "frames") then
      keep(reader, blocks.python, n, dict, key, value)
    end
  end
end

local SEGMENT_KEYS = { address = true, total_size = true, stream = true, blocks = true, frames = true, device = true }

local function read_segment(reader, dict)
  local fields = fields_of(dict)
  local segment = {
    address = integer(dict, "address", fields.address),
    size = integer(dict, "total_size", fields.total_size, MAX_SIZE),
    stream = integer(dict, "stream", fields.stream, MAX_SIZE),
    stack = fields.frames == nil and 0 or read_stack(reader, dict, fields.frames),
    python = {},
    blocks = { address = {}, size = {}, requested = {}, state = {}, stack = {}, python = {} },
  }
  for key, value in pairs(fields) do
    if not SEGMENT_KEYS[key] then
      segment.python[check_key(dict, key)] = plain(reader, dict, key, value)
    end
  end
  local address = segment.address
  for i, block in ipairs(expect_new(reader, dict, "blocks", fields.blocks, "list")) do
    read_block(reader, dict, segment.blocks, block, address)
    address = address + segment.blocks.size[i]
  end
  local reason = recording.misfit(segment)
  if reason then
    fail(dict, "%s", reason)
  end
  reader.segment_dicts[segment] = dict
  return segment
end

local function refuse_overlap(reader, segments)
  local sorted = table.move(segments, 1, #segments, 1, {})
  table.sort(sorted, function(a, b) return a.address < b.address end)
  for i = 2, #sorted do
    local below, segment = sorted[i - 1], sorted[i]
    if below.size > 0 and segment.address - below.address < below.size then
      fail(reader.segment_dicts[segment], "the segment at 0x%x overlaps the one at 0x%x", segment.address,
        below.address)
    end
  end
end

local function device_of(dict)
  local fields = fields_of(dict)
  local device = fields.device == nil and 0 or integer(dict, "device", fields.device)
  if device > recording.MAX_DEVICE then
    fail(dict, "device %d is over %d", device, recording.MAX_DEVICE)
  end
  return device
end

local function read_segments(reader, list, device)
  local segments = {}
  for _, dict in ipairs(list) do
    if device_of(dict) == device then
      segments[#segments + 1] = read_segment(reader, dict)
    end
  end
  refuse_overlap(reader, segments)
  return segments
end

-- Events.

local function action(dict, _, value)
  expect(dict, "action", value, "string")
  if not recording.ACTIONS[value] then
    fail(dict, "unknown action '%s'", value)
  end
  return value
end

local function size(dict, name, value)
  return integer(dict, name, value, MAX_SIZE)
end

-- Key -> column and check. An `oom` event has the free memory of the device in place of an address.
local EVENT_KEYS = {
  action = { "action", action }, addr = { "address", integer }, device_free = { "address", integer },
  size = { "size", size }, stream = { "stream", size }, time_us = { "time_us", size },
}
local EVENT_COLUMNS = { { "action", "action" }, { "address", "addr" }, { "size", "size" }, { "stream", "stream" } }

local function read_event(reader, events, n, dict)
  events.stack[n] = 0
  for i = 2, #dict, 2 do
    local key, value = dict[i], dict[i + 1]
    local known = EVENT_KEYS[key]
    if known then
      events[known[1]][n] = known[2](dict, key, value)
    elseif key == "frames" then
      events.stack[n] = read_stack(reader, dict, value)
    else
      keep(reader, events.python, n, dict, key, value)
    end
  end
  for _, column in ipairs(EVENT_COLUMNS) do
    if events[column[1]][n] == nil then
      fail(dict, "an event without %s", column[2])
    end
  end
end

-- What we write for our own columns is a column again, where all events have it.
local OWN_COLUMNS = { "thread", "block" }

local function take_own_columns(events)
  for _, name in ipairs(OWN_COLUMNS) do
    local column, is_whole = events.python[name], true
    for n = 1, column and #events.action or 0 do
      local value = column[n]
      is_whole = is_whole and math.type(value) == "integer" and value >= 0 and value <= MAX_SIZE
    end
    if column and is_whole then
      events[name], events.python[name] = column, nil
    end
  end
end

local function read_events(reader, top, list)
  local events = {
    action = {}, address = {}, size = {}, stream = {}, time_us = {}, stack = {}, python = {},
  }
  for n, dict in ipairs(list) do
    read_event(reader, events, n, expect_new(reader, top, "an event", dict, "dict"))
    if (events.time_us[n] == nil) ~= (events.time_us[1] == nil) then
      fail(dict, "time_us is in some events and not in others")
    end
    reader.event_dicts[n] = dict
  end
  if events.time_us[1] == nil then
    events.time_us = nil
  end
  take_own_columns(events)
  return events
end

-- Which device's recording to take: the one that has any.

local function devices_with_anything(reader, top, traces, segments)
  local found = {}
  for i, events in ipairs(traces) do
    if #expect(top, "a trace of device_traces", events, "list") > 0 then
      found[i - 1] = true
    end
  end
  for _, dict in ipairs(segments) do
    found[device_of(expect_new(reader, top, "a segment", dict, "dict"))] = true
  end
  return found
end

local function choose_device(top, found, wanted)
  local numbers = {}
  for number in pairs(found) do
    numbers[#numbers + 1] = number
  end
  table.sort(numbers)
  if wanted and not found[wanted] then
    fail(top, "nothing is recorded of device %s", tostring(wanted))
  elseif not wanted and #numbers > 1 then
    fail(top, "%d devices are recorded (%s): choose one with device = %d", #numbers, table.concat(numbers, ", "),
      numbers[1])
  end
  return wanted or numbers[1] or 0
end

local function further_of_top(reader, top)
  local further = {}
  for i = 2, #top, 2 do
    local key = top[i]
    if key ~= "segments" and key ~= "device_traces" then
      further[#further + 1] = { key = key, value = plain(reader, top, tostring(key), top[i + 1]) }
    end
  end
  return further
end

local function read_snapshot(reader, top, wanted)
  if kind(top) ~= "dict" then
    error({ offset = 0, reason = ("expected a dict of segments and device_traces, got %s"):format(kind(top)) }, 0)
  end
  local fields = fields_of(top)
  local segments = expect(top, "segments", fields.segments, "list")
  local traces = expect(top, "device_traces", fields.device_traces, "list")
  local device = choose_device(top, devices_with_anything(reader, top, traces, segments), wanted)
  local rec = {
    addressed = true, device = device,
    segments = read_segments(reader, segments, device),
    events = read_events(reader, top, traces[device + 1] or {}),
    stacks = reader.stacks,
    python = { devices = #traces, top = further_of_top(reader, top) },
  }
  -- A file that lists no segments does not say what is live at the end.
  rec.segments = #segments > 0 and rec.segments or nil
  rec.before = {
    segments = { address = {}, size = {} },
    blocks = ledger.live_before(rec, function(k, reason) fail(reader.event_dicts[k], "event %d: %s", k, reason) end),
  }
  return rec, ledger.pair(rec, function(k, reason)
    fail(reader.event_dicts[k] or top, "%s %d: %s", k > 0 and "event" or "initial block", math.abs(k), reason)
  end)
end

--- Whether a file may be a pickle of protocol 2 or later.
function snapshot.matches(content)
  return content:byte(1) == 0x80
end

--- Reads a pickle: the recording, and the pairing of its events. Events are counted from 1.
-- Raises FILE: byte OFFSET: reason.
function snapshot.load(path, content, opts)
  local reader = {
    frames = {}, frame_count = 0, stacks = {}, stack_numbers = {},
    heights = {}, seen = {}, event_dicts = {}, segment_dicts = {},
  }
  local ok, rec, pairing = pcall(function()
    return read_snapshot(reader, unpickle.load(content), opts.device)
  end)
  if not ok then
    local fault = rec
    error(type(fault) == "table" and ("%s: byte %d: %s"):format(path, fault.offset, fault.reason) or fault, 0)
  end
  return rec, pairing
end

return snapshot
