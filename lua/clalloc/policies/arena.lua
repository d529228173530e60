-- An arena for each stream: addresses only ascend, from chunk to chunk, and what is freed is not used again before
-- everything is free. The cheapest order there is for a program that works in phases, and the worst for one that
-- does not.

local policy_table = require "clalloc.policy_table"

local MIB <const> = 1 << 20

-- Arenas by pool and stream: the chunks in order, which of them is being filled, up to where, and how many blocks live;
-- `tried` is the chunk whose place has been answered and not confirmed.
local function new_arenas()
  return setmetatable({}, { __mode = "k", __index = function(pools, pool)
    pools[pool] = setmetatable({ newest = -1 }, { __index = function(streams, stream)
      streams[stream] = { chunks = {}, at = 1, offset = 0, live = 0 }
      return streams[stream]
    end })
    return pools[pool]
  end })
end

-- A segment just made. It was because the place tried before was not free any more: that chunk has been given back.
local function add_chunk(arena, block)
  if arena.tried then table.remove(arena.chunks, arena.tried) end
  arena.chunks[#arena.chunks + 1] = { segment = block.segment, size = block.segment_size }
  arena.at, arena.offset = #arena.chunks, 0
end

local function place(arena, size)
  local chunk = arena.chunks[arena.at]
  while chunk and arena.offset + size > chunk.size do
    arena.at, arena.offset = arena.at + 1, 0
    chunk = arena.chunks[arena.at]
  end
  arena.tried = chunk and arena.at
  if not chunk then return "grow" end
  local offset = arena.offset
  arena.offset = offset + size
  return chunk, offset, "grow"
end

return function(params)
  local chunk, arenas = policy_table.size("arena", params, "chunk", 64 * MIB), new_arenas()

  local function fit(request, candidates)
    local streams, block = arenas[request.pool], candidates[1]
    local arena = streams[request.stream]
    if arena.live == 0 then arena.at, arena.offset = 1, 0 end
    if block.segment > streams.newest then
      add_chunk(arena, block)
      streams.newest = block.segment
    end
    return place(arena, request.size)
  end

  local function note(event)
    local arena = arenas[event.pool][event.stream]
    if event.what == "alloc" then arena.live, arena.tried = arena.live + 1, nil end
    if event.what == "free" then arena.live = arena.live - 1 end
  end

  return policy_table.builtin({
    name = "arena", fit = fit, note = note, grow = chunk, keep = true,
  }, params, { chunk = true })
end
