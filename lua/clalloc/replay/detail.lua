--- A second look at a trace, with the pool's figures after every operation: what the peak was made of, and when.
--
-- Reading figures takes longer than allocating, so none of this is timed.
--
-- @module clalloc.replay.detail

local pass = require "clalloc.replay.pass"

local detail = {}

local POINTS = 1000

-- A list of points for a plot, one for every `step` operations: the moment among them at which most was reserved or,
-- of equal ones, live.
local function add_point(points, step, operation, stats)
  local at = (operation - 1) // step + 1
  local point = points[at]
  if point and (point.reserved > stats.reserved_bytes
      or point.reserved == stats.reserved_bytes and point.requested >= stats.requested_bytes) then
    return
  end
  points[at] = {
    operation = operation, reserved = stats.reserved_bytes, active = stats.active_bytes,
    requested = stats.requested_bytes,
  }
end

-- How much of what was reserved lay free when the pool grew to its peak: nothing of it could serve the request.
local function external(before)
  return before.reserved_bytes > 0 and before.cached_bytes / before.reserved_bytes or 0.0
end

local function internal(after)
  return after.active_bytes > 0 and 1 - after.requested_bytes / after.active_bytes or 0.0
end

--- Runs the trace once more.
-- @tparam table self an open pass over a new pool
-- @treturn table `points`, each `operation`, `reserved`, `active`, `requested` (bytes); `peak_operation`: the first
--   after which most was reserved; `internal_waste`: 1 - requested / active there; `external_fragmentation`: the share
--   of the reserved bytes that was free just before it
function detail.measure(self)
  local total, pool = self.trace.operations, self.pool
  local step = math.max(1, (total + POINTS - 1) // POINTS)
  local result = { points = {}, peak_operation = 0, internal_waste = 0.0, external_fragmentation = 0.0 }
  local before, peak = pool:stats(), 0
  for i = 1, total do
    pass.run(self, i, i)
    local after = pool:stats()
    add_point(result.points, step, i, after)
    if after.reserved_bytes > peak then
      peak, result.peak_operation = after.reserved_bytes, i
      result.internal_waste, result.external_fragmentation = internal(after), external(before)
    end
    before = after
  end
  return result
end

--- The pool's segments right after an operation.
-- @treturn table as `pool:snapshot()`
function detail.snapshot(self, operation)
  pass.run(self, 1, operation)
  return self.pool:snapshot()
end

return detail
