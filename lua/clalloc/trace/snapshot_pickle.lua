-- Writes PyTorch memory snapshots that PyTorch's memory_viz page opens and Python reads: what was loaded from one comes
-- out again, key by key; what a recording of another kind lacks is filled in.
--
-- Assumes a recording that `layout.viewable` gives.

local pickler = require "clalloc.trace.pickler"

local snapshot_pickle = {}

local SMALL = 2 << 20 -- PyTorch's segments for small blocks have this size
local NO_STACK = {} -- key of the empty list of frames

local function sorted_names(columns)
  local names = {}
  for name in pairs(columns or {}) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

local function write_frame(p, frame)
  p:shared(frame, function()
    p:begin_dict()
    p:string "name"
    p:string(frame.name)
    p:string "filename"
    p:string(frame.filename)
    p:string "line"
    p:int(frame.line)
    for _, name in ipairs(sorted_names(frame.further)) do
      p:string(name)
      p:value(frame.further[name])
    end
    p:end_dict()
  end)
end

local function write_stack(p, rec, number)
  local stack = rec.stacks and rec.stacks[number or 0]
  p:string "frames"
  p:shared(stack or NO_STACK, function()
    p:list(stack and #stack or 0, function(i) write_frame(p, stack[i]) end)
  end)
end

local function write_int(p, name, value)
  p:string(name)
  p:int(value)
end

local function write_further(p, columns, names, i)
  for _, name in ipairs(names) do
    local value = columns[name][i]
    if value ~= nil then
      p:string(name)
      p:value(value)
    end
  end
end

-- Segments.

local function write_blocks(p, rec, segment)
  local blocks = segment.blocks
  local names = sorted_names(blocks.python)
  p:string "blocks"
  p:list(#blocks.address, function(i)
    p:begin_dict()
    write_int(p, "address", blocks.address[i])
    write_int(p, "size", blocks.size[i])
    write_int(p, "requested_size", blocks.requested[i])
    p:string "state"
    p:string(blocks.state[i])
    write_further(p, blocks.python, names, i)
    write_stack(p, rec, blocks.stack and blocks.stack[i])
    p:end_dict()
  end)
end

-- What PyTorch says of a segment as a whole: allocated, active and requested bytes.
local function sums_of(blocks)
  local allocated, active, requested = 0, 0, 0
  for i, state in ipairs(blocks.state) do
    if state ~= "inactive" then
      active, requested = active + blocks.size[i], requested + blocks.requested[i]
      allocated = allocated + (state == "active_allocated" and blocks.size[i] or 0)
    end
  end
  return allocated, active, requested
end

local function write_made_up(p, segment)
  local allocated, active, requested = sums_of(segment.blocks)
  write_int(p, "allocated_size", allocated)
  write_int(p, "active_size", active)
  write_int(p, "requested_size", requested)
  p:string "segment_type"
  p:string(segment.size <= SMALL and "small" or "large")
  p:string "segment_pool_id"
  p.put "K\0K\0\x86"
  p:string "is_expandable"
  p.put "\x89"
end

local function write_segment(p, rec, segment)
  p:begin_dict()
  write_int(p, "device", rec.device or 0)
  write_int(p, "address", segment.address)
  write_int(p, "total_size", segment.size)
  write_int(p, "stream", segment.stream)
  if segment.python then
    for _, name in ipairs(sorted_names(segment.python)) do
      p:string(name)
      p:value(segment.python[name])
    end
  else
    write_made_up(p, segment)
  end
  write_stack(p, rec, segment.stack)
  write_blocks(p, rec, segment)
  p:end_dict()
end

-- Events.

local function write_event(p, rec, names, k)
  local events = rec.events
  local action = events.action[k]
  p:begin_dict()
  p:string "action"
  p:string(action)
  write_int(p, action == "oom" and "device_free" or "addr", events.address[k])
  write_int(p, "size", events.size[k])
  write_int(p, "stream", events.stream and events.stream[k] or 0)
  write_int(p, "time_us", events.time_us and events.time_us[k] or 0)
  for _, name in ipairs { "thread", "block" } do
    if events[name] then
      write_int(p, name, events[name][k])
    end
  end
  write_further(p, events.python, names, k)
  if events.stack and events.stack[k] > 0 then
    write_stack(p, rec, events.stack[k])
  end
  p:end_dict()
end

local function write_traces(p, rec)
  local device, events = rec.device or 0, rec.events
  local names = sorted_names(events.python)
  p:list(math.max(rec.python and rec.python.devices or 1, device + 1), function(i)
    p:list(i == device + 1 and #events.action or 0, function(k) write_event(p, rec, names, k) end)
  end)
end

local function write_top(p, rec)
  if rec.python then
    for _, further in ipairs(rec.python.top) do
      p:value(further.key)
      p:value(further.value)
    end
  else
    p:string "allocator_settings"
    p.put "}"
    p:string "external_annotations"
    p.put "]"
  end
end

--- Appends the recording to what put writes.
function snapshot_pickle.write(put, rec)
  local p = pickler.new(put)
  p:begin_dict()
  p:string "segments"
  p:list(#rec.segments, function(i) write_segment(p, rec, rec.segments[i]) end)
  p:string "device_traces"
  write_traces(p, rec)
  write_top(p, rec)
  p:end_dict()
  p:finish()
end

return snapshot_pickle
