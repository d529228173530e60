-- Recordings: everything that was recorded of an allocator, as columns. `trace.new` documents the fields.
--
-- Guarantees that a recording which was checked has columns of one length with values in range, blocks that fill
-- their segments, and frees that have allocations.

local ledger = require "clalloc.trace.ledger"

local recording = {
  MAX_SIZE = 1 << 53, -- larger numbers do not survive tools that store them as doubles
  MAX_DEVICE = 1023, -- a snapshot lists all devices up to the highest
}

-- What an event may be, and whether it is about a block or a segment.
recording.ACTIONS = {
  alloc = "block", free = "block", free_requested = "block", free_completed = "block",
  segment_alloc = "segment", segment_free = "segment", segment_map = "segment", segment_unmap = "segment",
  oom = "other", snapshot = "other",
}

recording.STATES = { active_allocated = true, active_pending_free = true, inactive = true }

--- An empty recording. `addressed` is false where `address` holds keys that only tell blocks apart.
function recording.new(addressed)
  return {
    addressed = addressed ~= false,
    events = { action = {}, address = {}, size = {} },
    before = { segments = { address = {}, size = {} }, blocks = { address = {}, size = {} } },
  }
end

-- Checking what a caller gave.

local function is_size(value)
  return math.type(value) == "integer" and value >= 0 and value <= recording.MAX_SIZE
end

local function is_integer(value)
  return math.type(value) == "integer"
end

local INTEGER = { is_integer, "an integer" }
local SIZE = { is_size, "an integer from 0 to 2^53" }
local ACTION = { function(value) return recording.ACTIONS[value] ~= nil end, "an action" }
local STATE = { function(value) return recording.STATES[value] ~= nil end, "a state" }

local RANGES = {
  segments = { required = { address = INTEGER, size = SIZE }, optional = { stream = SIZE } },
  blocks = { required = { address = INTEGER, size = SIZE }, optional = { stream = SIZE } },
  events = {
    required = { action = ACTION, address = INTEGER, size = SIZE },
    optional = { stream = SIZE, time_us = SIZE, thread = SIZE, block = SIZE },
  },
  segment_blocks = {
    required = { address = INTEGER, size = SIZE, state = STATE }, optional = { requested = SIZE },
  },
}

local function shown(value)
  return type(value) == "string" and ("%q"):format(value) or tostring(value)
end

local function check_column(where, column, check, length)
  if type(column) ~= "table" then
    error(("%s: expected a list, got %s"):format(where, type(column)), 0)
  elseif #column ~= length then
    error(("%s: expected %d values, got %d"):format(where, length, #column), 0)
  end
  local is_right = check[1]
  for i = 1, length do
    if not is_right(column[i]) then
      error(("%s[%d]: expected %s, got %s"):format(where, i, check[2], shown(column[i])), 0)
    end
  end
end

-- Columns that are all as long as `address`, and nothing else.
local function check_columns(where, columns, layout)
  if type(columns) ~= "table" then
    error(("%s: expected a table of columns, got %s"):format(where, type(columns)), 0)
  elseif type(columns.address) ~= "table" then
    error(("%s.address: expected a list, got %s"):format(where, type(columns.address)), 0)
  end
  local length = #columns.address
  for name, check in pairs(layout.required) do
    check_column(("%s.%s"):format(where, name), columns[name], check, length)
  end
  for name, column in pairs(columns) do
    if layout.optional[name] then
      check_column(("%s.%s"):format(where, name), column, layout.optional[name], length)
    elseif not layout.required[name] then
      error(("%s: unknown column %s"):format(where, shown(name)), 0)
    end
  end
end

--- Why a segment's blocks do not fill it from its first byte to its last, or nil.
function recording.misfit(segment)
  local blocks, address = segment.blocks, segment.address
  for i, at in ipairs(blocks.address) do
    if at ~= address then
      return ("block %d of the segment at 0x%x begins at 0x%x, not at 0x%x"):format(i, segment.address, at, address)
    end
    address = address + blocks.size[i]
  end
  if address - segment.address ~= segment.size then
    return ("the blocks of the segment at 0x%x sum up to %d bytes, not to %d"):format(segment.address,
      address - segment.address, segment.size)
  end
end

local function check_segment(where, segment)
  if type(segment) ~= "table" then
    error(("%s: expected a table, got %s"):format(where, type(segment)), 0)
  end
  for name, check in pairs { address = INTEGER, size = SIZE, stream = SIZE } do
    local value = segment[name]
    if not check[1](value) and not (name == "stream" and value == nil) then
      error(("%s.%s: expected %s, got %s"):format(where, name, check[2], shown(value)), 0)
    end
  end
  check_columns(where .. ".blocks", segment.blocks, RANGES.segment_blocks)
  local reason = recording.misfit(segment)
  if reason then
    error(("%s: %s"):format(where, reason), 0)
  end
end

local function complete_segment(segment)
  local blocks = segment.blocks
  return {
    address = segment.address, size = segment.size, stream = segment.stream or 0,
    blocks = {
      address = blocks.address, size = blocks.size, state = blocks.state, requested = blocks.requested or blocks.size,
    },
  }
end

local function check_segments(segments)
  if type(segments) ~= "table" then
    error(("segments: expected a list, got %s"):format(type(segments)), 0)
  end
  local list = {}
  for i, segment in ipairs(segments) do
    check_segment(("segments[%d]"):format(i), segment)
    list[i] = complete_segment(segment)
  end
  return list
end

local function check_before(before)
  if type(before) ~= "table" then
    error(("before: expected a table, got %s"):format(type(before)), 0)
  end
  local none = { address = {}, size = {} }
  local checked = { segments = before.segments or none, blocks = before.blocks or none }
  check_columns("before.segments", checked.segments, RANGES.segments)
  check_columns("before.blocks", checked.blocks, RANGES.blocks)
  return checked
end

--- Why the segments at the end do not agree with what the events leave live, or nil. A block whose free was asked for
-- may be there or not.
function recording.disagreement(self, pairing)
  local active = {}
  for _, segment in ipairs(self.segments or {}) do
    local blocks = segment.blocks
    for i, state in ipairs(blocks.state) do
      local address = blocks.address[i]
      local block = pairing.live[address]
      if state ~= "inactive" and not block then
        return ("the block at 0x%x is active in a segment and not live after the events"):format(address)
      elseif state ~= "inactive" and block <= pairing.initial and pairing.bytes[block] ~= blocks.requested[i] then
        return ("the block at 0x%x has %d requested bytes in its segment and %d before the events"):format(address,
          blocks.requested[i], pairing.bytes[block])
      end
      active[address] = active[address] or state ~= "inactive"
    end
  end
  for address, block in pairs(self.segments and pairing.live or {}) do
    if not active[address] and not pairing.pending[block] then
      return ("the block at 0x%x is live after the events and in no segment"):format(address)
    end
  end
end

local FIELDS = { events = true, before = true, segments = true, name = true, device = true }

--- The recording that a table given to `trace.new` describes, and its pairing. It keeps the columns.
-- Raises a string that names the first value that is wrong.
function recording.check(given)
  for field in pairs(given) do
    if not FIELDS[field] then
      error(("unknown field %s"):format(shown(field)), 0)
    end
  end
  check_columns("events", given.events, RANGES.events)
  local device = given.device or 0
  if not (is_size(device) and device <= recording.MAX_DEVICE) then
    error(("device: expected an integer from 0 to %d, got %s"):format(recording.MAX_DEVICE, shown(device)), 0)
  end
  local checked = {
    addressed = true, device = device, events = given.events,
    segments = given.segments and check_segments(given.segments),
    before = given.before and check_before(given.before),
  }
  local pairing = recording.complete(checked, function(k, reason)
    error(("%s %d: %s"):format(k > 0 and "event" or "initial block", math.abs(k), reason), 0)
  end)
  local disagreement = recording.disagreement(checked, pairing)
  if disagreement then
    error(disagreement, 0)
  end
  return checked, pairing
end

--- Finds out what was live before the first event, where the recording does not say it, and pairs its events.
function recording.complete(self, refuse)
  self.before = self.before or {
    segments = { address = {}, size = {} }, blocks = ledger.live_before(self, refuse),
  }
  return ledger.pair(self, refuse)
end

return recording
