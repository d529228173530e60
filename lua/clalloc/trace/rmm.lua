-- Logs of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream.
--
-- A block may be freed by another thread than the one that made it, so pairs are made by address alone, in file order
-- (rapidsai/rmm#431). Nothing allocated has no address: such a row asks nothing of an allocator.

local ledger = require "clalloc.trace.ledger"
local text = require "clalloc.trace.text"

local check = text.check
local match = string.match

local rmm = { name = "rmm", header = "Thread,Time,Action,Pointer,Size,Stream" }

local TIME = "^(%d%d):(%d%d):(%d%d)[.:](%d%d%d%d%d%d)$"
local DAY_US = 86400 * 1000000

-- Microseconds since midnight, or nil.
local function read_time(value)
  local hours, minutes, seconds, fraction = match(value, TIME)
  if hours and hours < "24" and minutes < "60" and seconds < "60" then
    return ((hours * 60 + minutes) * 60 + seconds) * 1000000 + fraction
  end
end

local function check_time(name, value)
  if not read_time(value) then
    return ("%s is not HH:MM:SS.uuuuuu: %s"):format(name, text.excerpt(value))
  end
end

local ROW = {
  row = "^(%d+),(%d%d:%d%d:%d%d[.:]%d%d%d%d%d%d),([%w_ ]+),([%w()]+),(%d+),([%w()]+)\r?\n",
  columns = {
    { "Thread", check.whole }, { "Time", check_time }, { "Action", check.word }, { "Pointer", check.address },
    { "Size", check.whole }, { "Stream", check.stream },
  },
}

local ACTIONS = { allocate = "alloc", free = "free", ["allocate failure"] = "oom" }

function rmm.matches(line)
  return line == rmm.header
end

local function read_pointer(pointer)
  if pointer == "(nil)" then
    return 0
  end
  local digits = match(pointer, "^0?[xX]?(%x+)$")
  if not digits then
    return nil, check.address("Pointer", pointer)
  end
  return text.address("Pointer", digits)
end

--- Reads the events. A failed allocation is an `oom` event.
function rmm.read(file, rec)
  text.skip_header(file)
  file.first_event = file.line
  local events, n = rec.events, 0
  events.stream, events.time_us, events.thread = {}, {}, {}
  text.each_row(file, ROW, function(thread_text, time_text, action_text, pointer, size, stream_text)
    local thread, bad_thread = text.whole("Thread", thread_text)
    local action, stream, time_us = ACTIONS[action_text], text.stream(stream_text), read_time(time_text)
    local address, bad_address = read_pointer(pointer)
    local nbytes, bad_size = text.whole("Size", size)
    if not (thread and address and nbytes) then
      return bad_thread or bad_size or bad_address
    elseif not (time_us and stream) then
      return check_time("Time", time_text) or check.stream("Stream", stream_text)
    elseif not action then
      return "unknown Action " .. text.excerpt(action_text)
    end
    n = n + 1
    events.thread[n], events.time_us[n], events.action[n] = thread, time_us, action
    events.address[n], events.size[n], events.stream[n] = address, nbytes, stream
  end)
end

-- Writing.

local function write_time(time_us)
  time_us = time_us % DAY_US
  local seconds = time_us // 1000000
  return ("%02d:%02d:%02d.%06d"):format(seconds // 3600, seconds // 60 % 60, seconds % 60, time_us % 1000000)
end

local function at(column, k)
  return column and column[k] or 0
end

-- One row per block that came or went. RMM reads pointers with base 16, and streams as decimal numbers of which its
-- replay takes the default one only.
local function write_rows(put, rec, streams)
  local events, pairing = rec.events, ledger.pair(rec)
  local function row(thread, time_us, action, address, nbytes, stream)
    put(("%d,%s,%s,%s,%d,%u\n"):format(thread, write_time(time_us), action,
      address == 0 and "(nil)" or ("0x%x"):format(address), nbytes, streams and stream or 0))
  end
  local blocks = rec.before.blocks
  for i, address in ipairs(blocks.address) do
    row(at(events.thread, 1), at(events.time_us, 1), "allocate", address, blocks.size[i], at(blocks.stream, i))
  end
  for k, action in ipairs(events.action) do
    local thread, time_us, effect = at(events.thread, k), at(events.time_us, k), pairing.effect[k]
    local stream, address, nbytes = at(events.stream, k), events.address[k], events.size[k]
    if action == "oom" then
      row(thread, time_us, "allocate failure", 0, nbytes, stream)
    elseif effect ~= 0 then
      row(thread, time_us, effect > 0 and "allocate" or "free", address, nbytes, stream)
    elseif address == 0 and (action == "alloc" or action == "free") then
      row(thread, time_us, action == "alloc" and "allocate" or "free", 0, nbytes, stream)
    end
  end
end

--- Appends the recording, which has addresses, to what put writes. `streams = false` calls every stream the default
-- one.
function rmm.write(put, rec, opts)
  put(rmm.header .. "\n")
  write_rows(put, rec, opts.streams ~= false)
end

return rmm
