--- A walk along the allocations that a plan has for one stream, a round of a loop at a time.
--
-- Requests are known by their sizes. As long as they come in the planned order each is the next one: one comparison. A
-- request that is not next is looked for near by, so what was left out, put in or swapped costs no more than itself.
-- Whether the place is free is not the walk's business.
--
-- @module clalloc.plan.walk

local trace = require "clalloc.trace"

local walk = {}

local NEAR = 32 -- how far from the next one a request is looked for

-- Lifetimes count allocations of the stream: block i lives from its own, i, until just before number `upper[i]` comes.
-- A block that one round leaves to the next is `always` there.

-- Turns ends that count operations into ends that count allocations: how many begin before, and one.
local function count_allocations(self, lower)
  for i = 1, self.count do
    local low, high, upper = i, self.count + 1, self.upper[i]
    while low < high do
      local middle = (low + high) // 2
      if lower[middle] < upper then low = middle + 1 else high = middle end
    end
    self.upper[i] = low
  end
end

--- The walk of a stream's part of a plan.
-- @tparam table made the plan
-- @tparam integer number of the stream
function walk.new(made, number)
  local self = {
    number = number, nbytes = made.areas[number].nbytes,
    size = {}, offset = {}, upper = {}, always = {}, count = 0,
    next = 1,       -- the first that has not come this round, unless it was left out
    round = 1,
    came = {},      -- index -> the last round in which it came
    taken = 0,      -- how many came this round
    unplanned = {}, -- index -> true: its place was not free when it was wanted, so it is not wanted any more
    was_occupied = false, -- some place, since the plan was made
    segment = nil,  -- number of the segment that the offsets are in, once there is one
    live = 0,       -- blocks in their places
  }
  local lower = {}
  for k = 1, made.blocks do
    if made.stream[k] == number then
      local n = self.count + 1
      self.count, lower[n] = n, made.lower[k]
      self.size[n], self.offset[n] = made.size[k], made.offset[k] - made.areas[number].offset
      self.upper[n], self.always[n] = made.upper[k], made.always[k]
    end
  end
  count_allocations(self, lower)
  return self
end

--- The next round begins.
-- @treturn integer how many of the last round never came
function walk.restart(self)
  local skipped = self.count - self.taken
  self.next, self.round, self.taken = 1, self.round + 1, 0
  return skipped
end

local function is_it(self, i, nbytes)
  return self.size[i] == nbytes and self.came[i] ~= self.round
end

--- Which of the allocations a request is, or nil. Changes nothing.
function walk.find(self, nbytes)
  local next = self.next
  if is_it(self, next, nbytes) then return next end
  for i = next + 1, math.min(next + NEAR, self.count) do
    if is_it(self, i, nbytes) then return i end
  end
  for i = math.min(next - 1, self.count), math.max(next - NEAR, 1), -1 do
    if is_it(self, i, nbytes) then return i end
  end
  return nil
end

--- The allocation has come.
function walk.take(self, i)
  self.came[i], self.taken = self.round, self.taken + 1
  if i >= self.next then self.next = i + 1 end
end

--- It was freed; `round` is the one in which it came. What has ever lived longer than planned is remembered.
function walk.give(self, i, round)
  if round ~= self.round then
    self.always[i] = true
  elseif self.next > self.upper[i] then
    self.upper[i] = self.next
  end
end

--- A trace of one round with every block living as long as it was ever seen to live.
function walk.trace(self)
  local recorder, ending = trace.recorder(), {}
  for i = 1, self.count do
    for _, k in ipairs(ending[i] or {}) do recorder:free(k) end
    recorder:alloc(i, self.size[i])
    local upper = not self.always[i] and math.max(self.upper[i], i + 1)
    if upper then
      ending[upper] = ending[upper] or {}
      table.insert(ending[upper], i)
    end
  end
  for _, k in ipairs(ending[self.count + 1] or {}) do recorder:free(k) end
  return recorder:finish "a round"
end

--- Takes the offsets of a plan of that trace; its segment is yet to come.
function walk.replan(self, made)
  self.nbytes, self.offset, self.unplanned, self.was_occupied, self.segment = made.nbytes, made.offset, {}, false, nil
end

return walk
