-- The policy benchmarks: what `caching` and its rivals reserve on recorded programs, the smallest limit with which
-- these still run, how often the driver is asked, and what decisions made in Lua cost.
--
-- The device is simulated, sizes are as recorded, one stream. The traces: seven training and inference steps of
-- language models, recorded by PyTorch, and five tables of lifetimes.

local cl = require "clalloc"
local figures = dofile "examples/bench/figures.lua"
local line, median = figures.line, figures.median

local policy = {}

local FILES <const> = {
  "pytorch_snapshot/lm_128_train.csv", "pytorch_snapshot/lm_512_train.csv", "pytorch_snapshot/lm_1024_train.csv",
  "pytorch_snapshot/lm_512_infer.csv", "pytorch_snapshot/lm_step_b.csv", "pytorch_snapshot/lm_step_c.csv",
  "pytorch_snapshot/lm_forward_fp32.csv", "lifetimes/mindspore_bert_base.csv", "lifetimes/mindspore_pangu_2.6B.csv",
  "lifetimes/mindspore_resnet50.csv", "lifetimes/mindspore_tiny_bert.csv", "lifetimes/alexnet_train.log",
}
local RUNS <const> = 9
local PRECISION <const> = 2000 -- the smallest limit is found to one part in this of the peak of live bytes

local function load_all(folder)
  local list = {}
  for i, name in ipairs(FILES) do
    local ok, trace = pcall(cl.trace.load, folder .. "/" .. name)
    if not ok then return nil end
    list[i] = trace
  end
  return list
end

local function geometric_mean(values)
  local sum = 0
  for _, value in ipairs(values) do sum = sum + math.log(value) end
  return math.exp(sum / #values)
end

local function mean(values)
  local sum = 0
  for _, value in ipairs(values) do sum = sum + value end
  return sum / #values
end

local function worst(values) return math.max(table.unpack(values)) end

-- What every trace needs with a policy, and how many driver calls.
local function peaks(sim, traces, which)
  local ratios, calls = {}, {}
  for i, trace in ipairs(traces) do
    local result = cl.replay(trace, {device = sim, policy = which})
    ratios[i], calls[i] = result.ratio, result.driver_calls
  end
  return ratios, calls
end

-- The smallest limit with which a trace completes, as a multiple of its live peak.
local function smallest(sim, trace, which)
  local step = trace.peak_live // PRECISION + 1
  local low, high = 0, PRECISION -- steps above the live peak: the first fails or is untried, the second completes
  local function completes(n)
    return cl.replay(trace, {device = sim, policy = which, limit = trace.peak_live + n * step}).failed == 0
  end
  if completes(0) then return 1.0 end
  while high - low > 1 do
    local middle = (low + high) // 2
    if completes(middle) then high = middle else low = middle end
  end
  return (trace.peak_live + high * step) / trace.peak_live
end

local function fits(sim, traces, which)
  local list = {}
  for i, trace in ipairs(traces) do list[i] = smallest(sim, trace, which) end
  return list
end

-- Driver calls of a second and third pass of the same trace over one pool.
local function repeated_calls(sim, trace)
  local pool <close> = sim:pool {policy = "caching"}
  cl.replay(trace, {device = sim, pool = pool})
  local second = cl.replay(trace, {device = sim, pool = pool}).driver_calls
  return (second + cl.replay(trace, {device = sim, pool = pool}).driver_calls) / 2
end

-- Nanoseconds an operation of several policies, measured in turn.
local function times(sim, trace, list)
  local runs = {}
  for i = 1, #list do runs[i] = {} end
  for run = 0, RUNS do
    for i, which in ipairs(list) do
      local ns = cl.replay(trace, {device = sim, policy = which}).ns_per_op
      if run > 0 then runs[i][run] = ns end
    end
  end
  for i = 1, #list do runs[i] = median(runs[i]) end
  return table.unpack(runs)
end

-- Each decision as the default takes it, but in Lua.
local function round(nbytes) return (nbytes + 511) // 512 * 512 end
local everything <const> = {
  name = "everything",
  round = round,
  fit = function(_, candidates) return candidates[1] end,
  split = function(request) return request.size end,
  grow = function(_, default) return default end,
  keep = function() return true end,
  oom = function() return false end,
}

function policy.run(folder)
  local traces = load_all(folder)
  if not traces then
    print("-- policy: left out, no recordings in " .. folder)
    return
  end
  local sim <close> = cl.simulate {capacity = 256 * cl.GiB, align = 512}
  local ours, calls = peaks(sim, traces, "caching")
  local torch, torch_calls = peaks(sim, traces, "torch")
  line("policy.caching.peak", geometric_mean(ours), "reserved/live", "torch", geometric_mean(torch))
  line("policy.caching.peak.worst", worst(ours), "reserved/live", "torch", worst(torch))
  local torch_fits = fits(sim, traces, "torch")
  line("policy.caching.fit", mean(fits(sim, traces, "caching")), "limit/live", "torch", mean(torch_fits))
  line("policy.caching.fit.exclusive", mean(fits(sim, traces, cl.policy.caching {exclusive = true})), "limit/live",
    "torch", mean(torch_fits))
  line("policy.caching.calls", mean(calls), "driver_calls/trace", "torch", mean(torch_calls))
  local again = {}
  for i, trace in ipairs(traces) do again[i] = repeated_calls(sim, trace) end
  line("policy.caching.calls.again", mean(again), "driver_calls/pass", "limit", 1)
  local plain, rounding, all = times(sim, traces[2], {"caching", {name = "rounding", round = round}, everything})
  line("policy.lua.cost", rounding, "ns/operation", "caching", plain)
  line("policy.lua.cost.everything", all, "ns/operation", "caching", plain)
end

return policy
