--- What a call to get or give memory costs on a device, in seconds.
--
-- Measured through a pool that asks the driver for everything: a buffer is made, backed and released, which is two of
-- the calls that a replay counts. On a simulated device the figure is that of the simulation.
--
-- @module clalloc.replay.cost

local core = require "clalloc.core"

local NBYTES, ROUNDS, WARM_UP = 2 << 20, 31, 3

-- @tparam device device
-- @treturn number seconds a call: the median
local function cost(device)
  local pool <close> = assert(device:pool { policy = "direct" })
  local times = {}
  for i = 1 - WARM_UP, ROUNDS do
    local start = core.clock()
    assert(pool:alloc(NBYTES)):close()
    times[i] = (core.clock() - start) / 2
  end
  table.sort(times)
  return times[ROUNDS // 2 + 1]
end

return cost
