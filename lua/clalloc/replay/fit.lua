--- The smallest limit at which a trace completes, by bisection.
--
-- Below the peak of live bytes nothing completes, and no policy should need more than it reserves when nothing limits
-- it. In between, more is not always enough: a policy may complete at one limit and fail at a larger one. What is
-- found completes, and 1/4096 of the live peak less does not.
--
-- @module clalloc.replay.fit

local PARTS = 4096

--- @tparam function completes given a limit in bytes, whether the trace completes
-- @tparam integer low bytes below which it cannot
-- @tparam integer high bytes at which it should
-- @treturn ?integer bytes; nil when it does not complete at four times `high` either
local function fit(completes, low, high)
  local resolution = math.max(512, low // PARTS)
  local most = 4 * high
  if low > 0 and completes(low) then return low end
  while not completes(high) do
    if high >= most then return nil end
    low, high = high, math.min(most, high + high // 8 + resolution)
  end
  while high - low > resolution do
    local middle = low + (high - low) // 2
    if completes(middle) then
      high = middle
    else
      low = middle
    end
  end
  return high
end

return fit
