-- A buddy allocator: sizes are powers of two, and a block lies at a multiple of its size. So two blocks of one size
-- that were cut from one of twice the size come together again whatever lies around them. The core merges more than
-- buddies, which does no harm: a place is looked for at the right multiples inside any free block.

local policy_table = require "clalloc.policy_table"

local MIB <const> = 1 << 20

local function power_of_two(nbytes)
  local size = 1
  while size < nbytes do size = size << 1 end
  return size
end

local function fit(request, candidates)
  local size = request.size
  for _, block in ipairs(candidates) do
    local start = (block.offset + size - 1) // size * size
    if start + size <= block.offset + block.size then return block, start end
  end
  return "more"
end

return function(params)
  local chunk = policy_table.size("buddy", params, "chunk", 64 * MIB)
  return policy_table.builtin({
    name = "buddy", round = power_of_two, fit = fit, grow = power_of_two(chunk), grain = 512, keep = true,
  }, params, { chunk = true })
end
