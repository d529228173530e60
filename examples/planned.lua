-- Rounds of a loop that run from a plan: one round is recorded, its allocations are placed offline, and the rounds
-- after it need no search and reserve no more than is live at their peak.
--
--   lua5.4 examples/planned.lua [TRACE...]
--
-- You will see: a network trained in a pool of its own, under `caching` and from a plan, with what each reserved; a
-- loop whose sizes change, and how many of its allocations the plan did not foresee; and a whole recording, planned at
-- once, next to what online policies make of it. Recordings given as arguments are used in place of a made-up one.

local cl = require "clalloc"

local folder = arg[0]:match "^(.*)[/\\]" or "."
local network = dofile(folder .. "/network.lua")

local POINTS, HIDDEN, STEPS = 256, 32, 20
local dev <close> = cl.device() -- CLALLOC_DEVICE=... chooses another

local function check(condition, what)
  print(("  %-64s %s"):format(what, condition and "ok" or "WRONG"))
  if not condition then os.exit(1) end
end

-- Calls body(pool) STEPS times; the last half is what counts. Returns the pool's figures for that half.
local function measure(policy, body)
  local pool <close> = assert(dev:pool { policy = policy })
  local guard <close> = cl.guard(pool) -- what tensors allocate comes from it
  local begin, before = policy.step or function() end, nil
  local run = body(pool)
  collectgarbage()
  collectgarbage "stop" -- what it finds dead goes at any time, and a plan wants to know when
  for step = 1, STEPS do
    if step == STEPS // 2 + 1 then
      pool:reset_peaks()
      before = pool:stats()
    end
    begin(policy)
    run(step)
  end
  collectgarbage "restart"
  local stats = pool:stats()
  print(("  %-8s reserved %9d bytes, %.4f of the live peak; %d driver calls in %d steps"):format(pool.policy,
    stats.peak_reserved_bytes, stats.peak_reserved_bytes / stats.peak_requested_bytes,
    stats.driver_allocs + stats.driver_frees - before.driver_allocs - before.driver_frees, STEPS - STEPS // 2))
  assert(guard)
  return stats, before
end

-- 1. A network -----------------------------------------------------------------------------------------------------

local function training()
  cl.seed(1)
  local points, values = network.data(POINTS)
  local net = network.new(HIDDEN)
  return function() network.step(net, points, values) end
end

print(("== training a network on %s"):format(dev.name))
measure(cl.policy.caching(), training)
local planned = cl.policy.planned { align = dev.align, grain = dev.align }
local stats, before = measure(planned, training)
local counts = planned:counts()
check(counts.deviations == 0, ("all %d allocations of %d rounds went where the plan has them"):format(counts.planned,
  counts.rounds))
check(stats.driver_allocs == before.driver_allocs, "the driver was asked nothing")

-- 2. A loop that is not quite the same each time -------------------------------------------------------------------

-- Activations are made forward and freed backward, as in the tour; every fifth step one is larger.
local function uneven(pool)
  return function(step)
    local live = {}
    for i = 1, 12 do
      local scratch <close> = assert(pool:alloc(30000 + 1000 * i))
      live[i] = assert(pool:alloc(i * 25000 + (step % 5 == 0 and i == 7 and 90000 or 0)))
      scratch:fill(0)
    end
    for i = 12, 1, -1 do
      local gradient <close> = assert(pool:alloc(i * 40000))
      gradient:fill(0)
      live[i]:close()
    end
  end
end

print "\n== a loop that is not the same in every step"
planned = cl.policy.planned()
measure(cl.policy.caching(), uneven)
measure(planned, uneven)
counts = planned:counts()
print(("  %d allocations as planned in %d rounds, %d not foreseen, %d whose place was taken, %d that never came")
  :format(counts.planned, counts.rounds, counts.unexpected, counts.occupied, counts.skipped))
check(counts.unexpected == STEPS // 5, "one a fifth step came from the pool, the others from the plan")

-- 3. A whole recording ---------------------------------------------------------------------------------------------

local function made_up()
  local recorder, live = cl.trace.recorder(), {}
  math.randomseed(1)
  for i = 1, 3000 do
    recorder:alloc(i, math.random(1 << math.random(10, 24)))
    table.insert(live, math.random(#live + 1), i)
    while #live > 0 and math.random() < 0.49 do recorder:free(table.remove(live)) end
  end
  return recorder:finish "made up"
end

print "\n== a recording, planned as a whole"
local traces = {}
for i, path in ipairs(arg) do traces[i] = cl.trace.load(path) end
if #traces == 0 then traces[1] = made_up() end
for _, trace in ipairs(traces) do
  local gpu <close> = cl.simulate { capacity = 1024 * cl.GiB, align = 512 } -- sizes no machine at hand has: simulated
  local start = cl.clock()
  local plan = assert(cl.plan(trace))
  print(("  %s, in %.3f s"):format(plan, cl.clock() - start))
  print(cl.replay(trace, { device = gpu, policies = { "caching", "torch", "planned" } }))
end
