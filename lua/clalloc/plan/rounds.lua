--- What a pool under the policy `planned` knows of its program: the rounds that it records, and the plan that it
-- makes of one.
--
-- @module clalloc.plan.rounds

local plan = require "clalloc.plan"
local trace = require "clalloc.trace"
local walk = require "clalloc.plan.walk"

local rounds = {}

local MOST_REPLANS = 8 -- of one recording: a program that never settles is not worth more

local function new_counters()
  return { plans = 0, rounds = 0, planned = 0, unexpected = 0, occupied = 0, skipped = 0 }
end

local function fault(name, wanted, value)
  error(("policy.planned: %s: expected %s, got %s"):format(name, wanted, tostring(value)), 5)
end

--- Checks what a user has given: `plan`, `warm_up`, `seconds`, each of them optional.
function rounds.check(params)
  local made, warm_up, seconds = params.plan, params.warm_up, params.seconds
  local meta = getmetatable(made)
  local is_plan = type(meta) == "table" and meta.__name == "clalloc.plan"
  if made ~= nil and not is_plan then fault("plan", "a plan", made) end
  if made then made:check() end
  if warm_up ~= nil and not (math.type(warm_up) == "integer" and warm_up >= 0) then
    fault("warm_up", "a number of rounds", warm_up)
  end
  if seconds ~= nil and not (type(seconds) == "number" and seconds >= 0 and seconds < math.huge) then
    fault("seconds", "a number of at least 0", seconds)
  end
end

--- @tparam table params `plan`: to run from the beginning; `warm_up`: rounds before the one that is recorded, 1;
--   `seconds`: of search for the plan, 0
-- @tparam integer align of blocks in the pool
function rounds.new(params, align)
  local self = {
    phase = "before", -- the first round; then "warm up", "recording", "planned"
    warm_up = params.warm_up or 1, seconds = params.seconds, align = align,
    counters = new_counters(),
    is_live = {},    -- address -> where it belongs in a walk, or true while it is recorded
    is_planned = {}, -- number of a segment -> true: it is a plan's
  }
  if params.plan then
    if params.plan.align % align ~= 0 then
      error(("the plan has multiples of %d bytes, the pool multiples of %d"):format(params.plan.align, align), 0)
    end
    rounds.run(self, params.plan)
  end
  return self
end

-- ---- Planned rounds ----------------------------------------------------------------------------------------------

-- A walk for each stream, in the order in which they come.
local function walks_of(made)
  local walks, is_there = {}, {}
  for k = 1, made.blocks do
    local number = made.stream[k]
    if not is_there[number] then
      is_there[number], walks[#walks + 1] = true, walk.new(made, number)
    end
  end
  return walks
end

--- Runs from a plan. `ids` are the streams' ids in the order in which the plan has them; without, the first stream to
-- allocate is the plan's first, and so on.
function rounds.run(self, made, ids)
  self.phase, self.recorder, self.has_begun = "planned", nil, false
  self.counters.plans = self.counters.plans + 1
  self.walks = walks_of(made)
  self.by_stream, self.unassigned = {}, table.move(self.walks, 1, #self.walks, 1, {})
  self.is_live, self.is_planned, self.replans_left = {}, {}, MOST_REPLANS
  for _, id in ipairs(ids or {}) do self.by_stream[id] = table.remove(self.unassigned, 1) end
end

local function walk_on(self, stream)
  local found = self.by_stream[stream]
  if found == nil then
    found = table.remove(self.unassigned, 1) or false
    self.by_stream[stream] = found
  end
  return found
end

--- The walk of a stream and the allocation that this request is, if it is one that has a place.
-- @treturn ?table
-- @treturn ?integer
function rounds.expect(self, stream, nbytes)
  local found = walk_on(self, stream)
  local i = found and not found.fault and walk.find(found, nbytes)
  if i and not found.unplanned[i] then return found, i end
end

local function planned_alloc(self, event)
  local counters, found = self.counters, walk_on(self, event.stream)
  if not self.has_begun then counters.rounds, self.has_begun = counters.rounds + 1, true end
  local i = found and walk.find(found, event.nbytes)
  if not i then
    counters.unexpected = counters.unexpected + 1
    return
  end
  walk.take(found, i)
  local is_in_place = event.segment == found.segment and event.offset == found.offset[i]
  self.is_live[event.address] = { walk = found, index = i, round = found.round, is_in_place = is_in_place }
  if is_in_place then
    counters.planned, found.live = counters.planned + 1, found.live + 1
  else
    counters.occupied = counters.occupied + 1
    found.unplanned[i] = not found.fault or nil
    found.was_occupied = not found.fault
  end
end

local function planned_free(live)
  local found = live.walk
  walk.give(found, live.index, live.round)
  if live.is_in_place then found.live = found.live - 1 end
end

-- Something lived longer than in the round that was recorded, as what the collector frees may: now that is known.
local function replan(self, found)
  self.replans_left = self.replans_left - 1
  local made = assert(plan(walk.trace(found), { align = self.align, repeats = true, seconds = self.seconds }))
  if found.segment then self.is_planned[found.segment] = nil end
  walk.replan(found, made)
  self.counters.plans = self.counters.plans + 1
end

-- ---- Recorded rounds ---------------------------------------------------------------------------------------------

local function record(self)
  self.phase, self.recorder, self.ids, self.known = "recording", trace.recorder(), {}, {}
end

local function recorded_alloc(self, event)
  if not self.known[event.stream] then
    self.ids[#self.ids + 1], self.known[event.stream] = event.stream, true
  end
  self.recorder:alloc(event.address, event.nbytes, event.stream)
  self.is_live[event.address] = true
end

-- Whatever lies free goes back to the driver: the plan's segments take its place.
local function end_recording(self, pool)
  local t = self.recorder:finish "a round"
  if t.allocations == 0 then return end -- nothing to plan: the next round is recorded
  rounds.run(self, assert(plan(t, { align = self.align, repeats = true, seconds = self.seconds })), self.ids)
  pool:trim()
end

-- ---- Both --------------------------------------------------------------------------------------------------------

-- A stream that had no room for its segment tries again, and one whose places were occupied is planned anew when
-- nothing is left in them; all that lies free goes back first.
local function restart(self, pool)
  local needs_room = false
  for _, found in ipairs(self.walks) do
    self.counters.skipped = self.counters.skipped + walk.restart(found)
    needs_room, found.fault = needs_room or found.fault, nil
    if found.was_occupied and found.live == 0 and self.replans_left > 0 then
      replan(self, found)
      needs_room = true
    end
  end
  self.has_begun = false
  if needs_room then pool:trim() end
end

-- Whether anything lives that a round should have freed by its end.
local function has_leftovers(self)
  for _, live in pairs(self.is_live) do
    if live == true or not live.walk.always[live.index] then return true end
  end
  return false
end

-- What lives on may be garbage, such as a tensor that nobody closed: a collection tells. What is still there then does
-- live on.
local function settle(self)
  for _ = 1, 2 do -- objects first, then what they held
    if not (has_leftovers(self) and collectgarbage "isrunning") then return end
    collectgarbage()
  end
  for _, live in pairs(self.is_live) do
    if live ~= true then live.walk.always[live.index] = true end
  end
end

--- A round begins. Nothing changes when nothing was allocated since the last began from a plan.
function rounds.step(self, pool)
  settle(self)
  if self.phase == "recording" then
    end_recording(self, pool)
  elseif self.phase == "planned" then
    if self.has_begun then restart(self, pool) end
  elseif self.warm_up > 0 then
    self.phase, self.warm_up = "warm up", self.warm_up - 1
  else
    record(self)
  end
end

--- The next round is recorded, and the one after it runs from a new plan.
function rounds.again(self)
  self.phase, self.warm_up, self.recorder = "warm up", 0, nil
  self.walks, self.by_stream, self.unassigned, self.is_live, self.is_planned = nil, nil, nil, {}, {}
end

--- Something was allocated, or freed.
function rounds.note(self, event)
  if event.what == "alloc" then
    if self.phase == "recording" then recorded_alloc(self, event) end
    if self.phase == "planned" then planned_alloc(self, event) end
  elseif event.what == "free" and self.is_live[event.address] then
    local found = self.is_live[event.address] -- true: it was recorded
    self.is_live[event.address] = nil
    if found == true then self.recorder:free(event.address) else planned_free(found) end
  end
end

--- Counters of all of these together.
function rounds.sum(all)
  local sum = new_counters()
  sum.phase, sum.nbytes = "before", 0
  for _, self in pairs(all) do
    for name, value in pairs(self.counters) do sum[name] = sum[name] + value end
    sum.phase = self.phase
    for _, found in ipairs(self.walks or {}) do
      sum.nbytes, sum.fault = sum.nbytes + found.nbytes, sum.fault or found.fault
    end
  end
  sum.deviations = sum.unexpected + sum.occupied
  return sum
end

--- The first free block that lies in no plan's segment; "more" where none does.
function rounds.outside(self, candidates)
  for _, block in ipairs(candidates) do
    if not self.is_planned[block.segment] then return block end
  end
  return "more"
end

--- Whether the segment of a walk has gone back to the driver, by a trim or when memory ran out; then it is forgotten.
function rounds.is_gone(self, found, pool)
  if found.live > 0 then return false end
  for _, segment in ipairs(pool:snapshot()) do
    if segment.id == found.segment then return false end
  end
  self.is_planned[found.segment], found.segment = nil, nil
  return true
end

return rounds
