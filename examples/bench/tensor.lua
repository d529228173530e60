-- Tensors against what they could be at best: a plain copy kernel, NumPy, a launch from C. Returns the functions for
-- run.lua; each prints one line a figure. Everything is measured side by side in one run; medians.
--
-- tensor.add       a + b of 10^7 f32, GB/s of three streams of data, against a copy kernel's of two
-- tensor.sum       the sum of 10^7 f32, milliseconds, against copying them
-- tensor.matmul    1024 x 1024, milliseconds, against NumPy's
-- tensor.small     a + b of 16 elements, to the end, nanoseconds, against a launch from C

local cl = require "clalloc"
local figures = dofile "examples/bench/figures.lua"
local line, median, output_of = figures.line, figures.median, figures.output_of

local N, SIDE, RUNS, TURNS = 10 ^ 7 // 1 | 0, 1024, 15, 7

local bench = {}

local function seconds(stream, body)
  local start = cl.clock()
  body()
  stream:finish()
  return cl.clock() - start
end

-- Seconds of two things, run in turn, so that a change of the machine's speed meets both.
local function side_by_side(stream, ours, theirs)
  local a, b = {}, {}
  for _ = 1, 3 do
    ours()
    theirs()
  end
  for i = 1, RUNS do
    a[i] = seconds(stream, ours)
    b[i] = seconds(stream, theirs)
  end
  return median(a), median(b)
end

local COPY = "kernel void copy(global float *y, global const float *x) { size_t i = get_global_id(0); y[i] = x[i]; }"

-- Calls `body(x, y, copy, stream)`: two tensors of N elements, and what copies so many by a plain kernel.
local function with_large(body)
  local device <close>, stream = cl.current()
  local from <close> = assert(device:alloc(4 * N))
  local to <close> = assert(device:alloc(4 * N))
  local kernel = device:program(COPY).copy
  local x <close> = cl.rand(N)
  local y <close> = cl.rand(N)
  from:fill(0)
  body(x, y, function() kernel { to, from, size = N } end, stream)
end

function bench.add()
  with_large(function(x, y, copy, stream)
    local ours, theirs = side_by_side(stream, function() (x + y):eval():close() end, copy)
    local rate, copied = 3 * 4 * N / ours / 1e9, 2 * 4 * N / theirs / 1e9
    line("tensor.add", rate, "GB/s", "copy_kernel", copied, ours / theirs)
  end)
end

function bench.sum()
  with_large(function(x, _, copy, stream)
    local ours, theirs = side_by_side(stream, function() x:sum():close() end, copy)
    line("tensor.sum", ours * 1e3, "ms", "copy_kernel", theirs * 1e3, ours / theirs)
  end)
end

local NUMPY = [[
import numpy, time
a, b = (numpy.random.rand(%d, %d).astype("f") for _ in range(2))
times = []
for _ in range(4):
    start = time.perf_counter()
    a @ b
    times.append(time.perf_counter() - start)
print(sorted(times)[1])
]]

function bench.matmul()
  local _, stream = cl.current()
  local a <close> = cl.rand(SIDE, SIDE)
  local b <close> = cl.rand(SIDE, SIDE)
  local runs = {}
  for i = 0, 5 do
    runs[i] = seconds(stream, function() a:matmul(b):close() end)
  end
  local ours = median(runs)
  local theirs = tonumber(output_of("/usr/bin/python3 -c '" .. NUMPY:format(SIDE, SIDE) .. "'"))
  line("tensor.matmul", ours * 1e3, "ms", "numpy", theirs * 1e3, ours / theirs)
end

function bench.small()
  local _, stream = cl.current()
  local a <close> = cl.rand(16)
  local b <close> = cl.rand(16)
  local function run(n)
    for _ = 1, n do
      local c = (a + b):eval()
      stream:finish()
      c:close()
    end
  end
  local count, ours, theirs = 2000, {}, {}
  run(count)
  for i = 1, TURNS do -- another process takes its turn as a whole
    local runs = {}
    for k = 1, RUNS do runs[k] = seconds(stream, function() run(count) end) / count * 1e9 end
    ours[i] = median(runs)
    theirs[i] = tonumber(output_of((os.getenv "CLALLOC_BUILD" or "build") .. "/bench/launch"))
  end
  line("tensor.small", median(ours), "ns", "launch_from_c", median(theirs))
end

--- All of them.
function bench.run()
  for _, name in ipairs { "add", "sum", "matmul", "small" } do bench[name]() end
end

return bench
