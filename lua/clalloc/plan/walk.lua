--- A walk along the allocations that a plan has for one stream, a round of a loop at a time.
--
-- Requests are known by their sizes. As long as they come in the planned order each is the next one: one comparison. A
-- request that is not next is looked for near by, so what was left out, put in or swapped costs no more than itself.
-- Whether the place is free is not the walk's business.
--
-- @module clalloc.plan.walk

local walk = {}

local NEAR = 32 -- how far from the next one a request is looked for

--- @tparam table size requested bytes of each allocation, in order
-- @tparam table offset where each goes
-- @tparam integer nbytes of all of it
function walk.new(size, offset, nbytes)
  return {
    size = size, offset = offset, count = #size, nbytes = nbytes,
    next = 1,      -- the first that has not come this round, unless it was left out
    round = 1,
    came = {},     -- index -> the last round in which it came
    taken = 0,     -- how many came this round
    unplanned = {}, -- index -> true: its place was not free when it was wanted, so it is not wanted any more
    segment = nil, -- number of the segment that the offsets are in, once there is one
    live = 0,      -- blocks in their places
  }
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

return walk
