-- A policy of your own: copy this file, change it, and see what it does to a recorded program.
--
--   lua5.4 examples/replay.lua TRACE --simulate 80 --policy ./mine.lua
--   lua5.4 examples/policy.lua [TRACE]
--
-- The second form is this file run as a program. You will see what PyTorch's rules, the library's default and the
-- policy below reserve for the same program, how often each asks the driver, and what an operation costs when it is
-- decided in Lua. Without a TRACE the program is a made-up training loop.
--
-- The file returns a table of decisions. Every one of them may be left out: then the default of `cl.policy.caching`
-- decides, in C. A constant or a name is C, too; a function is called without any lock, and nil from it means the
-- default. It must not allocate from its own pool. What `request` has: cl.help "policy_request".

local MIB <const> = 1024 * 1024

-- round(nbytes): the size of a block. It is asked once for every size. This is what 512 alone would do, as a constant.
local function round(nbytes)
  return (nbytes + 511) // 512 * 512
end

-- grow(request, default, refused): nothing that is free is large enough. How many bytes should the driver give?
--
-- A segment that is a whole number of requests leaves no rest that nobody wants. So: as many of this size as live
-- already, and one; but not more than a small share of what is reserved, or a program that has grown to its full size
-- would hold on to a large segment that is almost empty. After a refusal (`refused` bytes, by the driver or the limit)
-- nil asks for what the request needs alone.
local function grow(request, _, refused)
  if refused then return nil end
  local most = math.max(16 * MIB, request.reserved // 64)
  local count = math.max(1, math.min(most // request.size, request.alike + 1))
  return (count * request.size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
end

-- fit(request, candidates): which free block. The candidates come smallest first, so this is the best fit; but a
-- segment that is wholly free is better left alone: it can go back to the driver. "more" asks for the next candidates,
-- "grow" for a new segment, nil for the default's choice, which is about this one; a number after the candidate is
-- an offset to place the block at.
local function fit(request, candidates)
  for _, block in ipairs(candidates) do
    if block.size == request.size or not block.whole then return block end
  end
  return candidates[1]
end

-- Others that you may add, and what they answer:
--   split(request, block)   bytes of the block that go to the request; the rest stays free
--   keep(segment)           false: the segment, which has just become free, goes back to the driver
--   oom(request, times)     true: something has been freed, or the limit raised: try again
--   admit(request)          false, message: this allocation fails
--   note(event)             nothing: it is told of every "alloc", "free" and "fail"
local mine = {
  name = "mine",
  round = round,
  grow = grow,
  fit = fit,
  keep = "peak", -- free segments stay, but go before the pool reserves more than ever before: try true
}

-- ---- Run as a program ------------------------------------------------------------------------------

-- Layers whose activations live from the forward to the backward pass, with scratch memory in between.
local function training_loop(cl)
  local recorder, id, live = cl.trace.recorder(), 0, {}
  local function alloc(nbytes)
    id = id + 1
    recorder:alloc(id, nbytes)
    return id
  end
  for layer = 1, 24 do alloc((4 + layer % 5) * MIB + 512 * layer) end
  for step = 1, 20 do
    local batch = 3 + step % 4
    for layer = 1, 24 do
      live[layer] = alloc(batch * (3 * MIB + 4096 * (layer % 7)))
      recorder:free(alloc(batch * 5 * MIB // (1 + layer % 3)))
    end
    for layer = 24, 1, -1 do
      local gradient = alloc((4 + layer % 5) * MIB + 512 * layer)
      recorder:free(live[layer])
      recorder:free(gradient)
    end
  end
  return recorder:finish "a made-up training loop"
end

if arg and arg[0] and arg[0]:find "policy%.lua$" then
  local cl = require "clalloc"
  local trace = arg[1] and cl.trace.load(arg[1]) or training_loop(cl)
  local device <close> = cl.simulate { capacity = 256 * cl.GiB, align = 512 }
  print(("%s: %s live at its peak"):format(trace.name, cl.trace.human(trace.peak_live)))
  for _, policy in ipairs { "torch", "caching", mine } do
    local result = cl.replay(trace, { device = device, policy = policy })
    print(("  %-8s reserves %s, %.3f of that, in %d driver calls, %.0f ns per operation"):format(result.policy,
      cl.trace.human(result.peak_reserved), result.ratio, result.driver_calls, result.ns_per_op))
  end
end

return mine
