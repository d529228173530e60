-- Programs that do the same again and again: one round is recorded, its allocations are placed offline
-- (clalloc/plan.lua), and the rounds after it run from that plan, in one segment for each stream, without a search.
--
-- Streams: each has a segment of its own, which its own queue keeps in order, so a plan never makes one stream wait for
-- another. A block that other streams were recorded on is held when it is freed; if its place is wanted before they are
-- done, the place counts as occupied.
--
-- What does not go as planned is allocated as usual, in other segments, and counted: requests that are not in the
-- plan, and those whose place is not free; such a place is not tried again before the next plan. One is made, a few
-- times, when something has been seen to live longer than when it was recorded. Where a round has left something behind
-- for the first time, garbage is collected before the next.
--
-- Memory outside the plan is got in whole grains of the request, and nothing is cut before the first round: what lives
-- on beside the plan then wastes nothing, for what is free around it has gone back by the time there is a plan.

local policy_table = require "clalloc.policy_table"
local rounds = require "clalloc.plan.rounds"

-- The rounds of each pool; `steps` counts those that began before a pool was seen.
local function new_pools(params, align)
  local pools = setmetatable({}, { __mode = "k" })
  local self = { by_pool = pools, steps = 0 }
  function self.of(pool)
    local found = pools[pool]
    if found then return found end
    found = rounds.new(params, math.max(align, pool.device.align))
    pools[pool] = found
    for _ = 1, self.steps do rounds.step(found, pool) end
    return found
  end
  return self
end

local function decisions(of, grain)
  local place = {}

  local function fit(request, candidates)
    local self = of(request.pool)
    if self.phase == "before" then return candidates[1].size == request.size and candidates[1] or "grow" end
    if self.phase ~= "planned" then return "best" end
    local walk, i = rounds.expect(self, request.stream, request.nbytes)
    if not walk then return rounds.outside(self, candidates) end
    if not walk.segment then
      local block = candidates[1]
      if not (walk.is_growing and block.whole and block.segment_size >= walk.nbytes) then return "grow" end
      walk.segment, walk.is_growing, self.is_planned[block.segment] = block.segment, false, true
    end
    place.segment = walk.segment
    return place, walk.offset[i], "grow"
  end

  local function grow(request, _, refused)
    local self = of(request.pool)
    local walk = self.phase == "planned" and rounds.expect(self, request.stream, request.nbytes)
    if walk and (not walk.segment or rounds.is_gone(self, walk, request.pool)) then
      if not refused and walk.nbytes <= request.pool.device.max_alloc then
        walk.is_growing = true
        return walk.nbytes
      end
      walk.is_growing, walk.fault = false, ("no segment of %d bytes for the plan"):format(walk.nbytes)
    end
    return refused and request.size or (request.size + grain - 1) // grain * grain
  end

  return fit, grow, function(event) rounds.note(of(event.pool), event) end
end

return function(params)
  params = params or {}
  rounds.check(params)
  local fields = policy_table.builtin({ name = "planned", align = 512, grain = 512, keep = true, look = 1 }, params,
    { plan = true, warm_up = true, seconds = true })
  local pools = new_pools(params, fields.align)
  fields.fit, fields.grow, fields.note = decisions(pools.of, math.max(fields.grain, 1))
  local methods = {}

  function methods.step()
    pools.steps = math.min(pools.steps + 1, (params.warm_up or 1) + 1)
    for pool, self in pairs(pools.by_pool) do
      if pcall(pool.usage, pool) then rounds.step(self, pool) end -- else it is closed
    end
  end

  function methods.again()
    for _, self in pairs(pools.by_pool) do rounds.again(self) end
  end

  function methods.counts() return rounds.sum(pools.by_pool) end

  return policy_table.make(fields, methods)
end
