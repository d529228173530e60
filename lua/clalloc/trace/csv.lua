-- Our own CSV: action,addr,size,stream,time_us,thread,block,state. One file holds a whole recording, in this order:
--
-- * `initial_segment` and `initial_block` rows: what existed before the first event;
-- * events: the actions of PyTorch's snapshots, and `free` for a free that is requested and complete at once;
-- * `final_segment` rows, each followed by the `final_block` rows that fill it: the memory at the end.
--
-- `size` is the requested size of a block and the whole size of a segment; `block` the bytes a block takes up, where
-- they are known; `state` that of a final block. A number that was not recorded is left out. Blocks without an address
-- are told apart by #1, #2, ... in its place.

local recording = require "clalloc.trace.recording"
local text = require "clalloc.trace.text"

local check = text.check

local csv = { name = "csv", header = "action,addr,size,stream,time_us,thread,block,state" }

-- Reading.

local function check_key(name, value)
  local key = value:match "^#(.*)$"
  if key then
    return check.whole(name, key)
  end
  return check.address(name, value)
end

local function check_optional(name, value)
  return value ~= "" and check.whole(name, value) or nil
end

local ROW = {
  row = "^([%w_]+),(#?[%w]+),(%d+),(%d*),(%d*),(%d*),(%d*),([%w_]*)\r?\n",
  columns = {
    { "action", check.word }, { "addr", check_key }, { "size", check.whole },
    { "stream", check_optional, optional = true }, { "time_us", check_optional, optional = true },
    { "thread", check_optional, optional = true }, { "block", check_optional, optional = true },
    { "state", check.word, optional = true },
  },
}

function csv.matches(line)
  return line == csv.header
end

local function read_address(value)
  local key = value:match "^#(%d+)$"
  if key then
    return text.whole("addr", key)
  end
  local digits = value:match "^0?[xX]?(%x+)$"
  if not digits then
    return nil, check_key("addr", value)
  end
  return text.address("addr", digits)
end

-- An optional column has a value in every row of its kind, or in none.
local function append(columns, n, name, value)
  local column = columns[name]
  if value == "" then
    return column and name .. " is missing, unlike in the rows before" or nil
  elseif not column then
    if n > 1 then
      return name .. " is given, unlike in the rows before"
    end
    column = {}
    columns[name] = column
  end
  local number, reason = text.whole(name, value)
  column[n] = number
  return reason
end

local function finish_segment(reader)
  local segment = reader.segment
  local reason = segment and recording.misfit(segment)
  if reason then
    text.fail(reader.file, reason, reader.segment_line)
  end
end

-- What existed before, and what is there at the end. Each returns the reason why it cannot be.
local STATIC = {}

function STATIC.initial_segment(reader, address, nbytes, stream)
  local list = reader.rec.before.segments
  local n = #list.address + 1
  list.address[n], list.size[n] = address, nbytes
  return append(list, n, "stream", stream)
end

function STATIC.initial_block(reader, address, nbytes, stream)
  local list = reader.rec.before.blocks
  local n = #list.address + 1
  list.address[n], list.size[n], reader.file.initial_lines[n] = address, nbytes, reader.file.line
  return append(list, n, "stream", stream)
end

function STATIC.final_segment(reader, address, nbytes, stream)
  finish_segment(reader)
  local number, reason = 0, nil
  if stream ~= "" then
    number, reason = text.whole("stream", stream)
  end
  reader.segment_line = reader.file.line
  reader.segment = {
    address = address, size = nbytes, stream = number,
    blocks = { address = {}, size = {}, requested = {}, state = {} },
  }
  table.insert(reader.rec.segments, reader.segment)
  return reason
end

function STATIC.final_block(reader, address, nbytes, _, block, state)
  if not reader.segment then
    return "a final_block without a final_segment before it"
  elseif not recording.STATES[state] then
    return state == "" and "state is missing" or "unknown state " .. text.excerpt(state)
  elseif block == "" then
    return "block is missing"
  end
  local blocks = reader.segment.blocks
  local n = #blocks.address + 1
  local taken, reason = text.whole("block", block)
  blocks.address[n], blocks.size[n], blocks.requested[n], blocks.state[n] = address, taken, nbytes, state
  return reason
end

local function read_static(reader, action, address, nbytes, stream, block, state)
  local stage = action:find "^initial" and 1 or 3
  if stage < reader.stage then
    return ("%s comes too late: initial rows come first, final rows last"):format(action)
  elseif state ~= "" and action ~= "final_block" then
    return "state is for a final_block only"
  end
  reader.stage = stage
  return STATIC[action](reader, address, nbytes, stream, block, state)
end

-- Whether rows name blocks by keys is found out from the first of them, and must not change.
local function check_kind(reader, value)
  local addressed = value:sub(1, 1) ~= "#"
  if reader.addressed == nil then
    reader.addressed = addressed
  end
  return reader.addressed ~= addressed and "addresses and keys are mixed" or nil
end

local function read_event(reader, action, address, nbytes, stream, time_us, thread, block)
  local events = reader.rec.events
  local n = #events.action + 1
  if reader.stage > 2 then
    return "an event comes too late: final rows come last"
  elseif n == 1 then
    reader.stage, reader.file.first_event = 2, reader.file.line
  end
  local reason = append(events, n, "stream", stream) or append(events, n, "time_us", time_us)
    or append(events, n, "thread", thread) or append(events, n, "block", block)
  if not reason then
    events.action[n], events.address[n], events.size[n] = action, address, nbytes
  end
  return reason
end

--- Reads the whole recording.
function csv.read(file, rec)
  text.skip_header(file)
  rec.segments = {}
  file.initial_lines = {}
  local reader = { file = file, rec = rec, stage = 1 }
  text.each_row(file, ROW, function(action, addr, size, stream, time_us, thread, block, state)
    local address, bad_address = read_address(addr)
    local nbytes, bad_size = text.whole("size", size)
    local reason = not (address and nbytes) and (bad_size or bad_address) or check_kind(reader, addr)
    if reason then
      return reason
    elseif STATIC[action] then
      return read_static(reader, action, address, nbytes, stream, block, state)
    elseif not recording.ACTIONS[action] then
      return "unknown action " .. text.excerpt(action)
    elseif state ~= "" then
      return "state is for a final_block only"
    end
    return read_event(reader, action, address, nbytes, stream, time_us, thread, block)
  end)
  finish_segment(reader)
  rec.segments = #rec.segments > 0 and rec.segments or nil
  rec.addressed = reader.addressed ~= false
end

-- Writing.

local function write_before(put, before, address)
  for _, kind in ipairs { "segment", "block" } do
    local list = before[kind .. "s"]
    for i, at in ipairs(list.address) do
      put(("initial_%s,%s,%d,%s,,,,\n"):format(kind, address(at), list.size[i], list.stream and list.stream[i] or ""))
    end
  end
end

local function write_events(put, events, address)
  local function value(name, k)
    local column = events[name]
    return column and column[k] or ""
  end
  for k, action in ipairs(events.action) do
    put(("%s,%s,%d,%s,%s,%s,%s,\n"):format(action, address(events.address[k]), events.size[k], value("stream", k),
      value("time_us", k), value("thread", k), value("block", k)))
  end
end

local function write_segments(put, segments, address)
  for _, segment in ipairs(segments) do
    local blocks = segment.blocks
    put(("final_segment,%s,%d,%d,,,,\n"):format(address(segment.address), segment.size, segment.stream))
    for i, at in ipairs(blocks.address) do
      put(("final_block,%s,%d,,,,%d,%s\n"):format(address(at), blocks.requested[i], blocks.size[i], blocks.state[i]))
    end
  end
end

--- Appends the recording to what put writes.
function csv.write(put, rec)
  local shape = rec.addressed and "0x%x" or "#%d"
  local function address(at)
    return shape:format(at)
  end
  put(csv.header .. "\n")
  write_before(put, rec.before, address)
  write_events(put, rec.events, address)
  write_segments(put, rec.segments or {}, address)
end

return csv
