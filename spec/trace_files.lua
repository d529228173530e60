-- What the specs of traces share: temporary files, recordings made up at random, an independent reader in Python.

local cl = require "clalloc"

local files = {}

local made = {}

--- The path of a file with the given content, or of none. Removed by `remove_all`.
function files.path(content, suffix)
  local base = os.tmpname()
  os.remove(base)
  local path = base .. (suffix or ".csv")
  made[#made + 1] = path
  if content then files.write(path, content) end
  return path
end

function files.write(path, content)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(content))
end

function files.read(path)
  local file <close> = assert(io.open(path, "rb"))
  return assert(file:read "a")
end

function files.remove_all()
  for _, path in ipairs(made) do os.remove(path) end
  made = {}
end

local READER = "python3 spec/python/exports.py "

--- Runs spec/python/exports.py: the lines it prints, or an error with what it says.
function files.python(...)
  local pipe <close> = assert(io.popen(READER .. table.concat({ ... }, " ") .. " 2>&1"))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  local ok = pipe:close()
  if not ok then error(table.concat(lines, "\n"), 2) end
  return lines
end

-- A small allocator that notes all it does: segments of 1 MiB on one of three streams, first fit, frees that complete
-- later, segments that are given back when they are empty.

local SEGMENT = 1 << 20

local function note(run, action, address, size, stream, block)
  local events, n = run.events, #run.events.action + 1
  run.now = run.now + math.random(0, 3)
  events.action[n], events.address[n], events.size[n] = action, address, size
  events.stream[n], events.time_us[n] = stream, run.now
  events.thread[n], events.block[n] = math.random(100, 102), block or 0
end

local function new_segment(run, stream)
  local segment = { address = run.next_address, stream = stream, blocks = {} }
  run.next_address = run.next_address + SEGMENT * math.random(1, 3)
  table.insert(run.segments, segment)
  note(run, "segment_alloc", segment.address, SEGMENT, stream)
  return segment
end

-- The offset of the first gap of so many bytes, and the index of the block after it.
local function gap(segment, nbytes)
  local offset = 0
  for i, block in ipairs(segment.blocks) do
    if block.offset - offset >= nbytes then return offset, i end
    offset = block.offset + block.taken
  end
  if SEGMENT - offset >= nbytes then return offset, #segment.blocks + 1 end
end

local function allocate(run)
  local stream, size = math.random(0, 2), math.random(0, 1 << math.random(4, 18))
  local taken = math.max(512, (size + 511) // 512 * 512)
  local chosen, offset, index
  for _, segment in ipairs(run.segments) do
    if segment.stream == stream and not offset then
      chosen = segment
      offset, index = gap(segment, taken)
    end
  end
  if not offset then
    chosen = new_segment(run, stream)
    offset, index = gap(chosen, taken)
  end
  local block = { segment = chosen, offset = offset, taken = taken, size = size }
  table.insert(chosen.blocks, index, block)
  table.insert(run.live, block)
  note(run, "alloc", chosen.address + offset, size, stream, taken)
end

local function note_free(run, action, block)
  note(run, action, block.segment.address + block.offset, block.size, block.segment.stream)
end

local function leave(block)
  for i, other in ipairs(block.segment.blocks) do
    if other == block then table.remove(block.segment.blocks, i) end
  end
end

local function request_free(run)
  local block = table.remove(run.live, math.random(#run.live))
  if math.random() < 0.3 then
    note_free(run, "free", block)
    leave(block)
  else
    note_free(run, "free_requested", block)
    table.insert(run.pending, block)
    block.is_pending = true
  end
end

local function complete_free(run)
  local block = table.remove(run.pending, 1)
  note_free(run, "free_completed", block)
  leave(block)
end

local function give_back(run)
  for i, segment in ipairs(run.segments) do
    if #segment.blocks == 0 then
      note(run, "segment_free", segment.address, SEGMENT, segment.stream)
      return table.remove(run.segments, i)
    end
  end
end

local function step(run)
  local dice = math.random()
  if dice < 0.42 then
    allocate(run)
  elseif dice < 0.7 and #run.live > 0 then
    request_free(run)
  elseif dice < 0.95 and #run.pending > 0 then
    complete_free(run)
  elseif dice < 0.97 then
    give_back(run)
  elseif dice < 0.98 then
    note(run, "oom", 12345, 1 << 40, 0)
  end
end

local function memory_map(run)
  local map = {}
  for i, segment in ipairs(run.segments) do
    local blocks, at = { address = {}, size = {}, requested = {}, state = {} }, 0
    local function add(size, requested, state)
      if size > 0 then
        local n = #blocks.address + 1
        blocks.address[n], blocks.size[n] = segment.address + at, size
        blocks.requested[n], blocks.state[n] = requested, state
        at = at + size
      end
    end
    for _, block in ipairs(segment.blocks) do
      add(block.offset - at, 0, "inactive")
      add(block.taken, block.size, block.is_pending and "active_pending_free" or "active_allocated")
    end
    add(SEGMENT - at, 0, "inactive")
    map[i] = { address = segment.address, size = SEGMENT, stream = segment.stream, blocks = blocks }
  end
  return map
end

--- A recording as `trace.new` takes it, the same for the same seed. Its first `forgotten` events are lost, as in a ring
-- that was full.
function files.random_recording(seed, steps, forgotten)
  math.randomseed(seed)
  local run = {
    segments = {}, live = {}, pending = {}, now = 1000, next_address = 0x7f0000000000,
    events = { action = {}, address = {}, size = {}, stream = {}, time_us = {}, thread = {}, block = {} },
  }
  for _ = 1, steps do step(run) end
  for _, column in pairs(run.events) do
    table.move(column, forgotten + 1, #column + forgotten, 1)
  end
  return { events = run.events, segments = memory_map(run), name = "random" }
end

--- Rounds of allocating and freeing the same sizes; every round leaves nothing live.
function files.rounds(count, sizes)
  local rec = cl.trace.recorder()
  for _ = 1, count do
    for i, size in ipairs(sizes) do rec:alloc(i, size) end
    for i in ipairs(sizes) do rec:free(i) end
  end
  return rec:finish "rounds"
end

files.MIXED = { 4096, 1, 700000, 0, 3 << 20, 4097, 512 } -- sizes for it: small, large, none

return files
