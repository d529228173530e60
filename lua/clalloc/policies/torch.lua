-- The rules of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), for comparison.
--
-- Requests up to 1 MiB are served from segments of 2 MiB, larger ones from others: of 20 MiB below 10 MiB, else of the
-- request in whole 2 MiB. The two never mix; no segment of large blocks has 2 MiB, so a segment's size tells which it
-- is. Among those the smallest block that fits is taken, then the lowest, of the same stream only. It is cut when what
-- remains is worth it: 512 bytes of a small block, more than 1 MiB of a large one. Segments stay until memory runs
-- out.

local policy_table = require "clalloc.policy_table"

local KIB <const>, MIB <const> = 1024, 1024 * 1024
local SMALL_SIZE <const> = MIB          -- the largest small request
local SMALL_SEGMENT <const> = 2 * MIB
local LARGE_SEGMENT <const> = 20 * MIB  -- for large requests ...
local MIN_LARGE_ALLOC <const> = 10 * MIB -- ... below this; others get a segment of their own,
local ROUND_LARGE <const> = 2 * MIB     -- rounded up to this

local function fit(request, candidates)
  local is_small = request.size <= SMALL_SIZE
  for _, block in ipairs(candidates) do
    if block.stream == request.stream and (block.segment_size == SMALL_SEGMENT) == is_small then return block end
  end
  return "more"
end

local function split(request, block)
  local rest = block.size - request.size
  local is_small = block.segment_size == SMALL_SEGMENT
  if is_small and rest >= 512 or not is_small and rest > SMALL_SIZE then return request.size end
  return block.size
end

local function grow(request)
  local size = request.size
  if size <= SMALL_SIZE then return SMALL_SEGMENT end
  if size < MIN_LARGE_ALLOC then return LARGE_SEGMENT end
  return (size + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE
end

return function(params)
  return policy_table.builtin({
    name = "torch", align = 512, grain = 2 * KIB * KIB, fit = fit, split = split, grow = grow, keep = true,
  }, params)
end
