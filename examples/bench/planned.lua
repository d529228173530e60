-- Plans: how much memory they take, and what the rounds of a loop cost that run from one. Returns a function for
-- run.lua; it prints one line a figure.
--
-- policy.planned.peak          peak reserved / peak live of whole recordings, geometric mean; .worst, .segments
-- policy.planned.minimalloc    the same on minimalloc's instances, without alignment, after 3 s of search
-- policy.planned.replay        the same of rounds that run from the plan of one: a recorded step, a network
-- policy.planned.calls         driver calls in those rounds; .deviations, allocations that did not go as planned
-- plan.seconds                 to plan all recordings
-- policy.planned.time          an operation of such a round, against the default policy

local cl = require "clalloc"
local figures = dofile "examples/bench/figures.lua"
local line = figures.line

local traces = os.getenv "CLALLOC_TRACES" or "../shared/traces"

local RECORDINGS = {
  "pytorch_snapshot/lm_128_train.csv", "pytorch_snapshot/lm_512_train.csv", "pytorch_snapshot/lm_1024_train.csv",
  "pytorch_snapshot/lm_512_infer.csv", "pytorch_snapshot/lm_step_b.csv", "pytorch_snapshot/lm_step_c.csv",
  "pytorch_snapshot/lm_forward_fp32.csv", "lifetimes/mindspore_resnet50.csv", "lifetimes/mindspore_tiny_bert.csv",
  "lifetimes/mindspore_bert_base.csv", "lifetimes/mindspore_pangu_2.6B.csv", "lifetimes/alexnet_train.log",
}
local INSTANCES = { "A", "C", "E", "G", "I", "K" }
local SEARCH_SECONDS = 3
local STEPS, OPERATIONS_OF_A_STEP = 6, 1370 -- in the recording of resnet50

local function load(name) return cl.trace.load(traces .. "/" .. name) end

-- ---- Whole recordings --------------------------------------------------------------------------------------------

local function add(sum, ratio)
  sum.log, sum.n = (sum.log or 0) + math.log(ratio), (sum.n or 0) + 1
  sum.worst = math.max(sum.worst or 0, ratio)
end

local function mean(sum) return math.exp(sum.log / sum.n) end

-- The peak of a replay in which every allocation went as planned, over the live peak.
local function planned_ratio(t, plan, align)
  local gpu <close> = cl.simulate { capacity = 1024 * cl.GiB, align = align }
  local policy
  local result = cl.replay(t, { device = gpu, policy = function()
    policy = cl.policy.planned { plan = plan, align = align, grain = align }
    return policy
  end })
  local counts = policy:counts()
  assert(counts.deviations == 0 and counts.planned == t.allocations and result.failed == 0)
  return result.ratio, result.driver_calls
end

local function peaks()
  local sum, segments, seconds = {}, 0, 0
  for _, name in ipairs(RECORDINGS) do
    local t = load(name)
    local start = cl.clock()
    local plan = cl.plan(t)
    seconds = seconds + cl.clock() - start
    local ratio, calls = planned_ratio(t, plan, 512)
    add(sum, ratio)
    segments = math.max(segments, calls)
  end
  line("policy.planned.peak", mean(sum), "reserved/live", "limit", 1.005)
  line("policy.planned.peak.worst", sum.worst, "reserved/live", "limit", 1.02)
  line("policy.planned.peak.segments", segments, "segments", "limit", 1)
  line("plan.seconds", seconds, "s", "limit", 10)
end

local function minimalloc()
  local sum = {}
  for _, name in ipairs(INSTANCES) do
    local t = load(("minimalloc/%s.1048576.csv"):format(name))
    add(sum, (planned_ratio(t, cl.plan(t, { align = 1, seconds = SEARCH_SECONDS }), 1)))
  end
  line("policy.planned.minimalloc", mean(sum), "reserved/live", "limit", 1.15)
  line("policy.planned.minimalloc.worst", sum.worst, "reserved/live", "minimalloc", 1.0)
end

-- ---- Rounds of a loop --------------------------------------------------------------------------------------------

-- Runs `round` warmed up, recorded, and then from the plan: the figures of the planned ones.
local function rounds_of(name, pool, policy, round, count)
  for _ = 1, 3 do
    policy:step()
    round()
  end
  pool:reset_peaks()
  local before, start = pool:stats(), cl.clock()
  for _ = 1, count do
    policy:step()
    round()
  end
  local seconds = cl.clock() - start
  local stats, counts = pool:stats(), policy:counts()
  local calls = stats.driver_allocs + stats.driver_frees - before.driver_allocs - before.driver_frees
  line(("policy.planned.replay.%s"):format(name), stats.peak_reserved_bytes / stats.peak_requested_bytes,
    "reserved/live", "limit", 1.01)
  line(("policy.planned.calls.%s"):format(name), calls, "driver_calls", "limit", 0, calls)
  line(("policy.planned.deviations.%s"):format(name), counts.deviations, "allocations", "limit", 0, counts.deviations)
  return seconds
end

-- A function that does operations first to last of a trace in a pool.
local function player(t, first, last)
  local blocks = {}
  return function(pool)
    for i = first, last do
      local slot = t.op[i]
      if slot > 0 then blocks[slot] = assert(pool:alloc(t.size[i])) else blocks[-slot]:close() end
    end
  end
end

local function time_caching(gpu, play)
  local pool <close> = assert(gpu:pool())
  play(pool)
  local start = cl.clock()
  for _ = 1, STEPS do play(pool) end
  return cl.clock() - start
end

local function resnet50()
  local ok, t = pcall(load, "timeline/resnet50_v100_gpu_memory_deltas.csv")
  if not ok then
    print("-- policy.planned.replay.resnet50: left out: " .. t)
    return
  end
  assert(t.operations == STEPS * OPERATIONS_OF_A_STEP)
  local gpu <close> = cl.simulate { capacity = 64 * cl.GiB, align = 512 }
  local policy = cl.policy.planned()
  local pool <close> = assert(gpu:pool { policy = policy })
  local step = 0
  local function round() -- each the recording's own next step, again and again
    local first = step % STEPS * OPERATIONS_OF_A_STEP
    step = step + 1
    player(t, first + 1, first + OPERATIONS_OF_A_STEP)(pool)
  end
  local ours = rounds_of("resnet50", pool, policy, round, STEPS)
  local theirs = time_caching(gpu, player(t, 1, OPERATIONS_OF_A_STEP))
  local operations = STEPS * OPERATIONS_OF_A_STEP
  line("policy.planned.time", ours / operations * 1e9, "ns", "caching", theirs / operations * 1e9)
end

-- The tour's training loop.
local function training()
  local network = dofile "examples/network.lua"
  local dev <close> = cl.device()
  local policy = cl.policy.planned { align = dev.align, grain = dev.align }
  local pool <close> = assert(dev:pool { policy = policy })
  local guard <close> = cl.guard(pool)
  local points, values = network.data(256)
  local net = network.new(32)
  collectgarbage() -- what was left behind so far
  collectgarbage "stop" -- a round closes all that it makes, but a tensor found dead before that goes later
  rounds_of("network", pool, policy, function() network.step(net, points, values) end, 50)
  collectgarbage "restart"
  assert(guard)
end

return function()
  training()
  if not pcall(load, RECORDINGS[1]) then
    print("-- policy.planned: left out, no recordings in " .. traces)
    return
  end
  peaks()
  resnet50()
  minimalloc()
end
