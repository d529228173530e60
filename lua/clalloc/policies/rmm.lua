-- The pool of RAPIDS' memory manager (rmm/mr/device/pool_memory_resource.hpp), for comparison.
--
-- It begins with `initial` bytes and doubles whenever nothing fits; with a limit, by half of what is left of it. What
-- is refused is tried at half the size. Blocks are cut exactly and merged, the best fit is taken, nothing goes back.

local policy_table = require "clalloc.policy_table"

local function grower(initial)
  return function(request, _, refused)
    if refused then return math.max(request.size, refused // 2) end
    local wanted = math.max(initial, request.reserved)
    local left = request.limit - request.reserved
    if wanted > left then wanted = left // 2 end
    return math.max(request.size, wanted)
  end
end

return function(params)
  local initial = policy_table.size("rmm", params, "initial", 256 << 20)
  return policy_table.builtin({
    name = "rmm", round = 256, grow = grower(initial), keep = true,
  }, params, { initial = true })
end
