-- Gives a recording what a format needs and it lacks: addresses, segments.
--
-- Never changes a recording: gives another one that shares what is the same.

local intervals = require "clalloc.trace.intervals"
local ledger = require "clalloc.trace.ledger"
local recording = require "clalloc.trace.recording"

local layout = {}

local FIRST_ADDRESS, ALIGNMENT = 0x10000000, 512

local function with(original, changes)
  local copy = {}
  for key, value in pairs(original) do
    copy[key] = value
  end
  for key, value in pairs(changes) do
    copy[key] = value
  end
  return copy
end

local function divide(nbytes, n)
  return nbytes // n + (nbytes % n > 0 and 1 or 0)
end

local function pick(column, picked)
  local values = {}
  for i, k in ipairs(picked) do
    values[i] = column[k]
  end
  return values
end

-- The picked events; `python` holds columns with holes.
local function pick_events(events, picked)
  local result = {}
  for name, column in pairs(events) do
    if name ~= "python" then
      result[name] = pick(column, picked)
    end
  end
  if events.python then
    result.python = {}
    for name, column in pairs(events.python) do
      result.python[name] = pick(column, picked)
    end
  end
  return result
end

local function is_of_segment(action)
  return recording.ACTIONS[action] == "segment"
end

local function without_segment_events(rec)
  local picked = {}
  for k, action in ipairs(rec.events.action) do
    if not is_of_segment(action) then
      picked[#picked + 1] = k
    end
  end
  return pick_events(rec.events, picked), picked
end

local function each_block(rec, pairing, f)
  for block, address in ipairs(rec.before.blocks.address) do
    f(block, address, 0)
  end
  for k, block in ipairs(pairing.effect) do
    if block > 0 then
      f(block, rec.events.address[k], k)
    end
  end
end

-- Bytes from the block's address on: what it takes up where that is known, else what was requested.
local function extents(rec, pairing)
  local taken, extent = rec.events.block, {}
  each_block(rec, pairing, function(block, _, k)
    extent[block] = math.max(pairing.bytes[block], k > 0 and taken and taken[k] or 0)
  end)
  return extent
end

--- The recording with the sizes of its blocks divided by n, rounded up. Addresses and segments would not fit them any
-- more: blocks are told apart by their numbers, and what happened to segments is left out.
function layout.scaled(rec, n)
  local pairing, picked = ledger.pair(rec), {}
  for k, action in ipairs(rec.events.action) do
    if pairing.owner[k] > 0 or action == "oom" then
      picked[#picked + 1] = k
    end
  end
  local from = rec.events
  local events = pick_events({
    action = from.action, stream = from.stream, time_us = from.time_us, thread = from.thread,
    address = pairing.owner, size = from.size,
  }, picked)
  for i, block in ipairs(events.address) do
    events.size[i] = divide(pairing.bytes[block] or events.size[i], n)
  end
  local blocks = with(rec.before.blocks, { address = {}, size = {} })
  for i, nbytes in ipairs(rec.before.blocks.size) do
    blocks.address[i], blocks.size[i] = i, divide(nbytes, n)
  end
  return {
    addressed = false, device = rec.device, events = events,
    before = { segments = { address = {}, size = {} }, blocks = blocks },
  }
end

-- Placing blocks at made-up addresses: each in the first hole that it fits into, else above all others.

local MAX_TRIES = 1000 -- holes looked at for one block

local function take_hole(holes, nbytes)
  local first, last = holes.first, holes.last
  for i = 1, math.min(#first, MAX_TRIES) do
    local address = first[i]
    if last[i] - address >= nbytes then
      first[i] = address + nbytes
      if first[i] == last[i] then
        table.remove(first, i)
        table.remove(last, i)
      end
      return address
    end
  end
  local n, address = #first, holes.top
  if n > 0 and last[n] == address then -- the topmost hole grows
    address, first[n], last[n] = first[n], nil, nil
  end
  holes.top = address + nbytes
  return address
end

local function give_hole(holes, from, to)
  local first, last = holes.first, holes.last
  local low, high = 1, #first + 1 -- the first hole above
  while low < high do
    local middle = (low + high) // 2
    if first[middle] < from then
      low = middle + 1
    else
      high = middle
    end
  end
  local touches_below, touches_above = last[low - 1] == from, first[low] == to
  if touches_below and touches_above then
    last[low - 1] = last[low]
    table.remove(first, low)
    table.remove(last, low)
  elseif touches_below then
    last[low - 1] = to
  elseif touches_above then
    first[low] = from
  else
    table.insert(first, low, from)
    table.insert(last, low, to)
  end
end

-- The addresses of blocks by number, or nil when they do not fit below the limit.
local function addresses_of_blocks(rec, pairing, limit)
  local extent, addresses = extents(rec, pairing), {}
  local holes = { first = {}, last = {}, top = FIRST_ADDRESS }
  local function taken(block)
    return (math.max(extent[block], 1) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
  end
  for block = 1, pairing.initial do
    addresses[block] = take_hole(holes, taken(block))
    if holes.top > limit then
      return nil
    end
  end
  for _, block in ipairs(pairing.effect) do
    if block > 0 then
      addresses[block] = take_hole(holes, taken(block))
    elseif block < 0 then
      give_hole(holes, addresses[-block], addresses[-block] + taken(-block))
    end
    if holes.top > limit then
      return nil
    end
  end
  return addresses
end

--- The recording with made-up addresses, at which no two blocks overlap. What happened to segments, which lay
-- elsewhere, is left out.
-- Nil and a message when blocks and addresses do not fit below the limit.
function layout.readdressed(rec, limit)
  local pairing = ledger.pair(rec)
  local addresses = addresses_of_blocks(rec, pairing, limit)
  if not addresses then
    return nil, ("the blocks do not fit addresses below 0x%x"):format(limit)
  end
  local events, picked = without_segment_events(rec)
  for i, k in ipairs(picked) do
    events.address[i] = addresses[pairing.owner[k]] or rec.addressed and rec.events.address[k] or 0
  end
  local blocks = with(rec.before.blocks, { address = table.move(addresses, 1, pairing.initial, 1, {}) })
  return with(rec, {
    addressed = true, events = events, segments = false,
    before = { segments = { address = {}, size = {} }, blocks = blocks },
  })
end

--- The recording if it has addresses, else with made-up ones.
function layout.addressed(rec)
  if rec.addressed then
    return rec
  end
  return layout.readdressed(rec, 1 << 62)
end

-- What a viewer that undoes the events one by one needs: addresses that a double holds exactly, blocks that do not
-- overlap, and at every moment a segment around every block.

local MAX_ADDRESS = 1 << 53

-- Whether no two blocks ever overlap.
local function are_disjoint(rec, pairing, extent)
  local live, address_of = intervals.new(), {}
  local function add(block, address)
    address_of[block] = address
    return extent[block] == 0 or live:add(address, address + extent[block])
  end
  for block, address in ipairs(rec.before.blocks.address) do
    if not add(block, address) then
      return false
    end
  end
  for k, effect in ipairs(pairing.effect) do
    local block = math.abs(effect)
    if effect > 0 and not add(block, rec.events.address[k]) then
      return false
    elseif effect < 0 and extent[block] > 0 then
      live:remove(address_of[block], address_of[block] + extent[block])
    end
  end
  return true
end

local function addresses_fit(rec, pairing, extent)
  local fit = true
  each_block(rec, pairing, function(block, address)
    fit = fit and address > 0 and address + extent[block] < MAX_ADDRESS
  end)
  for _, segment in ipairs(rec.segments or {}) do
    fit = fit and segment.address > 0 and segment.address + segment.size < MAX_ADDRESS
  end
  return fit
end

-- Segments over time.

local APPLY = { segment_alloc = "add", segment_free = "remove", segment_map = "join", segment_unmap = "cut" }
local UNDO = { segment_alloc = "remove", segment_free = "add", segment_map = "cut", segment_unmap = "join" }

local function range_of(address, size)
  return address, address + size
end

local function change(set, method, address, size)
  return size > 0 and address > 0 and address + size < MAX_ADDRESS and set[method](set, range_of(address, size))
end

-- The segments at the end, found by following the events; nil where they contradict each other.
local function follow_segments(rec)
  local set, events, before = intervals.new(), rec.events, rec.before.segments
  for i, address in ipairs(before.address) do
    if not change(set, "add", address, before.size[i]) then
      return nil
    end
  end
  for k, action in ipairs(events.action) do
    if APPLY[action] and not change(set, APPLY[action], events.address[k], events.size[k]) then
      return nil
    end
  end
  return set
end

local function listed_segments(rec)
  local set = intervals.new()
  for _, segment in ipairs(rec.segments) do
    if segment.size > 0 and not set:add(range_of(segment.address, segment.size)) then
      return nil
    end
  end
  return set
end

-- Whether every block is in a segment when it comes and when it goes, and segments come and go in turn. Undoes the
-- events on the set.
local function hold_blocks(rec, pairing, set)
  local events = rec.events
  for address in pairs(pairing.live) do
    if not set:find(address) then
      return false
    end
  end
  for k = #events.action, 1, -1 do
    local undo = UNDO[events.action[k]]
    if undo and not change(set, undo, events.address[k], events.size[k]) then
      return false
    elseif pairing.owner[k] > 0 and not set:find(events.address[k]) then
      return false
    end
  end
  return true
end

-- Segments around everything that ever was a block: ranges with less between them than a driver would leave.
local GAP, GRAIN = 1 << 20, 512

local function made_up_segments(rec, pairing, extent)
  local ranges, set = {}, intervals.new()
  each_block(rec, pairing, function(block, address)
    local last = address + math.max(extent[block], 1)
    ranges[#ranges + 1] = { address // GRAIN * GRAIN, (last + GRAIN - 1) // GRAIN * GRAIN }
  end)
  table.sort(ranges, function(a, b) return a[1] < b[1] end)
  local first, last
  for _, range in ipairs(ranges) do
    if first and range[1] - last <= GAP then
      last = math.max(last, range[2])
    else
      if first then
        set:add(first, last)
      end
      first, last = range[1], range[2]
    end
  end
  if first then
    set:add(first, last)
  end
  return set
end

-- The blocks of a segment: the live ones, and between them what is free.
local function fill(first, last, live)
  local blocks = { address = {}, size = {}, requested = {}, state = {} }
  local function add(address, size, requested, state)
    local n = #blocks.address + 1
    blocks.address[n], blocks.size[n], blocks.requested[n], blocks.state[n] = address, size, requested, state
  end
  local at = first
  for _, block in ipairs(live) do
    if block.address > at then
      add(at, block.address - at, 0, "inactive")
    end
    add(block.address, block.size, block.requested, block.state)
    at = block.address + block.size
  end
  if at < last then
    add(at, last - at, 0, "inactive")
  end
  return blocks
end

-- What is live after the last event, in order of address.
local function live_at_end(rec, pairing, extent)
  local live, stream = {}, {}
  local initial, later = rec.before.blocks.stream, rec.events.stream
  each_block(rec, pairing, function(block, _, k)
    stream[block] = k > 0 and later and later[k] or k == 0 and initial and initial[block] or 0
  end)
  for address, block in pairs(pairing.live) do
    live[#live + 1] = {
      address = address, size = extent[block], requested = pairing.bytes[block], stream = stream[block],
      state = pairing.pending[block] and "active_pending_free" or "active_allocated",
    }
  end
  table.sort(live, function(a, b) return a.address < b.address end)
  return live
end

-- The ranges of a set with the live blocks in them, or nil when one does not end where its range does.
local function segments_of(rec, set, pairing, extent)
  local live, next_live, segments, fits = live_at_end(rec, pairing, extent), 1, {}, true
  set:each(function(first, last)
    local inside, at = {}, first
    while live[next_live] and live[next_live].address < last do
      local block = live[next_live]
      fits = fits and block.address >= at and block.address + block.size <= last
      at = block.address + block.size
      inside[#inside + 1], next_live = block, next_live + 1
    end
    segments[#segments + 1] = {
      address = first, size = last - first, stream = inside[1] and inside[1].stream or 0,
      blocks = fill(first, last, inside),
    }
  end)
  return fits and next_live > #live and segments or nil
end

-- The segments as recorded, or nil where they do not hold the blocks.
local function recorded_segments(rec, pairing, extent)
  local set = rec.segments and listed_segments(rec) or not rec.segments and follow_segments(rec)
  if not set then
    return nil
  end
  local segments = rec.segments or segments_of(rec, set, pairing, extent)
  return hold_blocks(rec, pairing, set) and segments or nil
end

-- The addresses of the blocks that are active at the end, as far as segments are recorded.
local function active_addresses(rec)
  local active = {}
  for _, segment in ipairs(rec.segments or {}) do
    for i, state in ipairs(segment.blocks.state) do
      active[segment.blocks.address[i]] = active[segment.blocks.address[i]] or state ~= "inactive"
    end
  end
  return active
end

-- The events as a viewer expects them: two for each free, none about nothing. A free that was never seen complete is
-- completed at once, unless the recorded segments have its block.
local function with_whole_frees(rec)
  local pairing, active = ledger.pair(rec), active_addresses(rec)
  local picked, actions = {}, {}
  local function add(k, action)
    picked[#picked + 1], actions[#picked + 1] = k, action
  end
  for k, action in ipairs(rec.events.action) do
    local block = pairing.owner[k]
    if action == "free" and block > 0 then
      add(k, "free_requested")
      add(k, "free_completed")
    elseif block > 0 or recording.ACTIONS[action] ~= "block" then
      add(k, action)
      if pairing.cut_short[k] or pairing.pending[block] == k and not active[rec.events.address[k]] then
        add(k, "free_completed")
      end
    end
  end
  local events = pick_events(rec.events, picked)
  events.action = actions
  for i, k in ipairs(picked) do
    local block = pairing.owner[k]
    if block > 0 and block <= pairing.initial then -- what it was made with is known from its free alone
      events.size[i] = pairing.bytes[block]
    end
  end
  return with(rec, { events = events })
end

local function is_usable(rec, pairing, extent)
  return rec.addressed and addresses_fit(rec, pairing, extent) and are_disjoint(rec, pairing, extent)
end

local function as_recorded(rec)
  rec = with_whole_frees(rec)
  local pairing = ledger.pair(rec)
  local extent = extents(rec, pairing)
  local segments = is_usable(rec, pairing, extent) and recorded_segments(rec, pairing, extent)
  return segments and with(rec, { segments = segments })
end

-- At the recorded addresses if blocks do not overlap there, else at others.
local function made_up(rec)
  rec = with_whole_frees(with(rec, { segments = false }))
  local pairing = ledger.pair(rec)
  if not is_usable(rec, pairing, extents(rec, pairing)) then
    local elsewhere, message = layout.readdressed(rec, MAX_ADDRESS - 1)
    if not elsewhere then
      return nil, message
    end
    rec = elsewhere
  end
  rec = with(rec, { events = without_segment_events(rec) })
  pairing = ledger.pair(rec)
  local extent = extents(rec, pairing)
  return with(rec, { segments = segments_of(rec, made_up_segments(rec, pairing, extent), pairing, extent) })
end

--- The recording with addresses below 2^53, and with segments that hold every block at every moment: as recorded where
-- that is so, else made up. Nil and a message where the addresses do not suffice.
function layout.viewable(rec)
  local recorded = as_recorded(rec)
  if recorded then
    return recorded
  end
  return made_up(rec)
end

return layout
