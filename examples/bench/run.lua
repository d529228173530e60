-- All benchmarks, one line a figure:  bench NAME ours=VALUE unit peer=NAME:VALUE ratio=R
--
--   make bench                        all of them
--   make bench ARGS="pair replay"     those whose group is named: they stand in ORDER below
--
-- Everything is measured side by side in this run; medians of several runs. The replays need the recordings of
-- ../shared/traces (or of the folder in $CLALLOC_TRACES); without them they are left out, and say so.

local cl = require "clalloc"
local figures = dofile "examples/bench/figures.lua"
local line, median, output_of = figures.line, figures.median, figures.output_of

local build = os.getenv "CLALLOC_BUILD" or "build"
local traces = os.getenv "CLALLOC_TRACES" or "../shared/traces"
local RUNS = 11

--- Median nanoseconds of one call of `body`, which is called with a count.
local function time(count, body)
  local runs = {}
  body(count // 10)
  for i = 1, RUNS do
    local start = cl.clock()
    body(count)
    runs[i] = (cl.clock() - start) / count * 1e9
  end
  return median(runs)
end

local groups = {}

--- The C benchmarks: allocate and free against the driver and malloc.
function groups.pair() io.write(output_of(build .. "/bench/pair")) end

local function pair_ns(dev)
  local pool <close> = dev:pool {policy = "caching"}
  local alloc = pool.alloc
  return time(200000, function(count)
    for _ = 1, count do alloc(pool, 4096):close() end
  end)
end

--- Allocate and close from Lua against PyOpenCL's pool; a launch against allocate and close.
function groups.lua()
  local dev <close> = cl.device()
  local theirs = tonumber(output_of "/usr/bin/python3 examples/bench/pyopencl_pair.py 4096")
  line("device.pair.lua.pyopencl", pair_ns(dev), "ns", "pyopencl.MemoryPool", theirs)

  local sim <close> = cl.simulate {capacity = cl.GiB}
  local program = sim:program [[
    kernel void saxpy(float a, global const float *x, global float *y) {}
  ]]
  local saxpy = program.saxpy
  local x <close> = assert(sim:alloc(4096))
  local y <close> = assert(sim:alloc(4096))
  local launch = time(100000, function(count)
    for _ = 1, count do saxpy {2.0, x, y, size = 1024} end
  end)
  line("kernel.launch.lua", launch, "ns", "alloc+close", pair_ns(sim))
end

--- What it costs a pool to record its events.
function groups.trace() io.write(output_of(build .. "/bench/trace")) end

local SNAPSHOTS = {
  "lm_128_train", "lm_512_train", "lm_1024_train", "lm_512_infer", "lm_step_b", "lm_step_c", "lm_forward_fp32",
}

--- Recorded training steps through the pool, on a simulated device, sizes as recorded.
function groups.replay()
  local function load(name) return cl.trace.load(("%s/pytorch_snapshot/%s.csv"):format(traces, name)) end
  if not pcall(load, SNAPSHOTS[1]) then
    print("-- replay: left out, no recordings in " .. traces)
    return
  end
  local sim <close> = cl.simulate {capacity = 256 * cl.GiB, align = 512}
  local one, rates = load "lm_512_train", {}
  for i = 1, RUNS do
    local result = cl.replay(one, {device = sim, policy = cl.policy.caching()})
    rates[i] = result.operations / result.seconds
  end
  line("replay.rate", median(rates), "operations/s", "limit", 1e6)
  local product, worst, calls = 1, 0, 0
  for _, name in ipairs(SNAPSHOTS) do
    local result = cl.replay(load(name), {device = sim, policy = cl.policy.caching()})
    product, worst = product * result.ratio, math.max(worst, result.ratio)
    calls = calls + result.driver_calls
  end
  line("replay.ratio", product ^ (1 / #SNAPSHOTS), "reserved/live", "limit", 1.03)
  line("replay.ratio.worst", worst, "reserved/live", "limit", 1.05)
  line("replay.calls", calls / #SNAPSHOTS, "driver_calls/recording", "limit", 225)
end

--- Pinned memory: the C program, and the rounding of the recordings' sizes.
function groups.host()
  local files = {}
  for _, name in ipairs {"lm_512_train", table.unpack(SNAPSHOTS)} do
    local path = ("%s/pytorch_snapshot/%s.csv"):format(traces, name)
    local file = io.open(path)
    if not file then
      print("-- host.rounding: left out, no recordings in " .. traces)
      files = {}
      break
    end
    file:close()
    if not (name == "lm_512_train" and #files > 0) then files[#files + 1] = "'" .. path .. "'" end
  end
  io.write(output_of(("%s/bench/host %s"):format(build, table.concat(files, " "))))
end

--- Plans and loops that run from them: see planned.lua.
function groups.planned() dofile("examples/bench/planned.lua")() end

--- malloc and free in kernels against libc's, on a CPU; see heap_gpu.lua for GPUs.
function groups.heap() io.write(output_of(build .. "/bench/heap")) end

--- Tensors: see tensor.lua.
function groups.tensor() dofile("examples/bench/tensor.lua").run() end

--- Policies: see policy.lua.
function groups.policy() dofile("examples/bench/policy.lua").run(traces) end

local ORDER = {"pair", "host", "lua", "replay", "policy", "planned", "trace", "heap", "tensor"}
for _, name in ipairs(#arg > 0 and arg or ORDER) do
  if not groups[name] then
    io.stderr:write(("no group '%s'; there are %s\n"):format(name, table.concat(ORDER, ", ")))
    os.exit(2)
  end
  groups[name]()
end
