-- PyOpenCL's memory pool (src/mempool.hpp), for comparison.
--
-- A size belongs to one of sixteen bins between two powers of two, and is rounded up to the largest size of its bin: 1
-- GiB takes 1,140,850,687 bytes. A block is a buffer of its own and stays whole; freed, it waits for a request of its
-- bin. When memory runs out the largest free ones go back first.

local policy_table = require "clalloc.policy_table"

local MANTISSA_BITS <const> = 4

local function round(nbytes)
  local exponent = 0
  while nbytes >> exponent > (2 << MANTISSA_BITS) - 1 do exponent = exponent + 1 end
  return ((nbytes >> exponent) + 1 << exponent) - 1
end

return function(params)
  return policy_table.builtin({
    name = "bins", round = round, fit = "exact", split = false, grow = "request", grain = 512, keep = true,
  }, params)
end
