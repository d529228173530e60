--- A second look at a trace, with the pool's figures after every operation: what the peak was made of, and when.
--
-- Reading figures takes time, so none of this is timed; it leaves no trace in the pool, so the peak is that of the
-- timed pass.
--
-- @module clalloc.replay.detail

local pass = require "clalloc.replay.pass"

local detail = {}

local POINTS = 1000

-- A list of points for a plot, one for every `step` operations: the moment among them at which most was reserved or,
-- of equal ones, live.
local function add_point(points, step, operation, reserved, active, requested)
  local at = (operation - 1) // step + 1
  local point = points[at]
  local is_lower = point and (reserved < point.reserved or reserved == point.reserved and requested <= point.requested)
  if is_lower then return end
  points[at] = { operation = operation, reserved = reserved, active = active, requested = requested }
end

local function share(part, whole) return whole > 0 and part / whole or 0.0 end

--- Runs the trace once more. The peak is the first moment at which most was reserved and, of those, most was active.
-- @tparam table self an open pass over a new pool
-- @treturn table `points`, each `operation`, `reserved`, `active`, `requested` (bytes); and at the peak
--   `peak_operation`; `internal_waste`: the share of the active bytes that nobody asked for; `external_fragmentation`:
--   the share of the reserved bytes that lay free
function detail.measure(self)
  local total, pool = self.trace.operations, self.pool
  local step = math.max(1, (total + POINTS - 1) // POINTS)
  local result = { points = {}, peak_operation = 0, internal_waste = 0.0, external_fragmentation = 0.0 }
  local most_reserved, most_active = 0, 0
  for i = 1, total do
    pass.run(self, i, i)
    local reserved, active, requested, held = pool:usage()
    add_point(result.points, step, i, reserved, active, requested)
    if reserved > most_reserved or reserved == most_reserved and active > most_active then
      most_reserved, most_active, result.peak_operation = reserved, active, i
      result.internal_waste = share(active - requested, active)
      result.external_fragmentation = share(reserved - active - held, reserved)
    end
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
