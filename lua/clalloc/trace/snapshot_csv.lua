-- PyTorch snapshots as CSV: seq,action,addr,size,stream,time_us, one row an event. What existed when the recording
-- began is in NAME.initial.csv beside NAME.csv: kind,addr,size.

local text = require "clalloc.trace.text"

local check, fail = text.check, text.fail

local snapshot_csv = {
  name = "pytorch_snapshot",
  header = "seq,action,addr,size,stream,time_us",
  initial_header = "kind,addr,size",
}

local ROW = {
  row = "^%d+,([%w_]+),0?[xX]?(%x+),(%d+),(%w+),(%d+)\r?\n",
  columns = {
    { "seq", check.whole }, { "action", check.word }, { "addr", check.address }, { "size", check.whole },
    { "stream", check.stream }, { "time_us", check.whole },
  },
}

-- PyTorch writes no plain `free`.
local ACTIONS = {
  alloc = true, free_requested = true, free_completed = true, oom = true, snapshot = true,
  segment_alloc = true, segment_free = true, segment_map = true, segment_unmap = true,
}

local INITIAL_ROW = {
  row = "^([%w_]+),0?[xX]?(%x+),(%d+)\r?\n",
  columns = { { "kind", check.word }, { "addr", check.address }, { "size", check.whole } },
}

function snapshot_csv.matches(line)
  return line == snapshot_csv.header
end

--- NAME.initial.csv for NAME.csv.
function snapshot_csv.initial_path(path)
  return (path:gsub("%.csv$", "") .. ".initial.csv")
end

--- Reads what existed before.
function snapshot_csv.read_initial(file, rec)
  if text.first_line(file) ~= snapshot_csv.initial_header then
    fail(file, ("unknown header %s, expected %s"):format(text.excerpt(text.first_line(file)),
      snapshot_csv.initial_header))
  end
  text.skip_header(file)
  local kinds = { live = rec.before.blocks, segment = rec.before.segments }
  file.initial_lines = {}
  text.each_row(file, INITIAL_ROW, function(kind, digits, size)
    local address, bad_address = text.address("addr", digits)
    local nbytes, bad_size = text.whole("size", size)
    local list = kinds[kind]
    if not (address and nbytes) then
      return bad_size or bad_address
    elseif not list then
      return "unknown kind " .. text.excerpt(kind)
    end
    local n = #list.address + 1
    list.address[n], list.size[n] = address, nbytes
    if kind == "live" then
      file.initial_lines[n] = file.line
    end
  end)
end

--- Reads the events.
function snapshot_csv.read(file, rec)
  text.skip_header(file)
  file.first_event = file.line
  local events, n = rec.events, 0
  events.stream, events.time_us = {}, {}
  local actions, addresses, sizes = events.action, events.address, events.size
  local streams, times = events.stream, events.time_us
  text.each_row(file, ROW, function(action, digits, size, stream_text, time_text)
    local address, bad_address = text.address("addr", digits)
    local nbytes, bad_size = text.whole("size", size)
    local stream, time = text.stream(stream_text), text.whole("time_us", time_text)
    if not (address and nbytes) then
      return bad_size or bad_address
    elseif not (stream and time) then
      return check.stream("stream", stream_text) or check.whole("time_us", time_text)
    elseif not ACTIONS[action] then
      return "unknown action " .. text.excerpt(action)
    end
    n = n + 1
    actions[n], addresses[n], sizes[n], streams[n], times[n] = action, address, nbytes, stream, time
  end)
end

-- Writing.

--- Appends the events to what put writes. A plain `free` becomes the two events that PyTorch knows.
function snapshot_csv.write(put, rec)
  local events, seq = rec.events, 0
  local streams, times = events.stream, events.time_us
  put(snapshot_csv.header .. "\n")
  local function row(action, k)
    put(("%d,%s,0x%x,%d,%d,%d\n"):format(seq, action, events.address[k], events.size[k], streams and streams[k] or 0,
      times and times[k] or 0))
    seq = seq + 1
  end
  for k, action in ipairs(events.action) do
    if action == "free" then
      row("free_requested", k)
      row("free_completed", k)
    else
      row(action, k)
    end
  end
end

--- Appends what existed before.
function snapshot_csv.write_initial(put, rec)
  put(snapshot_csv.initial_header .. "\n")
  local kinds = { { "segment", rec.before.segments }, { "live", rec.before.blocks } }
  for _, kind in ipairs(kinds) do
    for i, address in ipairs(kind[2].address) do
      put(("%s,0x%x,%d\n"):format(kind[1], address, kind[2].size[i]))
    end
  end
end

--- Whether there is anything to write in NAME.initial.csv.
function snapshot_csv.has_initial(rec)
  return #rec.before.segments.address + #rec.before.blocks.address > 0
end

return snapshot_csv
