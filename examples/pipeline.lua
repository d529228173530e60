-- Streams more data through a device than it is given memory for: chunk by chunk, on two streams in turn, so that the
-- transfers of one chunk run while the other stream computes.
--
--   lua5.4 examples/pipeline.lua [--chunks N] [--mib N] [--plot FILE.svg]
--
-- You will see a timeline with a row a stream, from the times that the device measured: > a chunk going in, # the
-- kernel, < the result coming out; where both rows are drawn at once, work overlaps. Below it: how long each kind took,
-- the time from first to last, and how much of it both streams worked at once. A device that computes and copies on
-- the same processor (PoCL) shows the pattern, but gains less by it. The results are compared with what Lua computes.
-- With --plot and gnuplot installed, the timeline becomes a picture too.

local cl = require "clalloc"

local options = { chunks = 16, mib = 1, plot = nil }
do
  local i = 1
  while arg[i] do
    local name = arg[i]:match "^%-%-(%a+)$"
    local value = arg[i + 1]
    if name == "plot" then options.plot = value
    elseif name == "chunks" or name == "mib" then options[name] = math.tointeger(tonumber(value))
    else value = nil end
    if not value or not (options.chunks and options.mib) or options.chunks < 1 or options.mib < 1 then
      io.stderr:write "usage: pipeline.lua [--chunks N] [--mib N] [--plot FILE.svg]\n"
      os.exit(2)
    end
    i = i + 2
  end
end

local SOURCE <const> = [[
kernel void scramble(global uint *x, uint rounds) {
  size_t i = get_global_id(0);
  uint v = x[i];
  for (uint r = 0; r < rounds; r++) v = v * 1664525u + 1013904223u;
  x[i] = v;
}
]]
local rounds = 16

-- The same in Lua, in 32 bits.
local function expected(v)
  for _ = 1, rounds do v = (v * 1664525 + 1013904223) & 0xffffffff end
  return v
end

local dev <close> = cl.device()
local prog = dev:program(SOURCE)
local nbytes = options.mib * cl.MiB
local count = nbytes // 4

-- Chunk k is the numbers k, k + 7, k + 14, ...: enough to tell every chunk and every place in it apart.
local function input(k)
  local words = {}
  local piece = {}
  for i = 0, count - 1 do
    piece[#piece + 1] = k + 7 * i
    if #piece == 64 or i == count - 1 then
      words[#words + 1] = string.pack("<" .. ("I4"):rep(#piece), table.unpack(piece))
      piece = {}
    end
  end
  return table.concat(words)
end

---- The pipeline -------------------------------------------------------------------------------------------------

-- Each stream has a piece of device memory, and pinned memory for both directions twice: while one chunk is on its way,
-- the script fills the memory of the next.
local STREAMS <const>, BUFFERS <const> = 2, 2
local lanes, slots = {}, {}
for i = 1, STREAMS do
  local stream = dev:stream()
  lanes[i] = { index = i, stream = stream, buf = assert(dev:alloc(nbytes, { stream = stream })) }
end
for i = 1, STREAMS * BUFFERS do
  slots[i] = {
    lane = lanes[(i - 1) % STREAMS + 1],
    into = assert(dev.host:alloc(nbytes)),
    out = assert(dev.host:alloc(nbytes)),
  }
end

local steps = {} -- {lane =, kind =, chunk =, event =}
local results = {}

local function note(slot, kind, event)
  steps[#steps + 1] = { lane = slot.lane.index, kind = kind, chunk = slot.chunk, event = assert(event) }
  return event
end

-- Takes what a slot's chunk gave. The wait is for that chunk alone: everything else works on.
local function collect(slot)
  if not slot.chunk then return end
  assert(slot.done:wait())
  local checked = {}
  for _, i in ipairs { 0, 1, count // 3, count - 1 } do
    checked[#checked + 1] = { i, (string.unpack("<I4", slot.out:read(4 * i, 4))) }
  end
  results[slot.chunk] = checked
  slot.chunk = nil
end

local function start(slot, chunk, data)
  collect(slot)
  slot.chunk = chunk
  slot.into:write(data)
  local lane = slot.lane
  note(slot, "in", lane.buf:write_async(slot.into, { stream = lane.stream }))
  note(slot, "kernel", prog.scramble { lane.buf, rounds, size = count, stream = lane.stream })
  slot.done = note(slot, "out", lane.buf:read_async(slot.out, { stream = lane.stream }))
end

local data = {}
for chunk = 1, options.chunks do data[chunk] = input(chunk) end -- made beforehand: Lua is not what is measured

-- On a fast device the kernel gets more to do, so that it takes about as long as filling and moving a chunk does: where
-- one of them takes all the time there is little to overlap.
local function balance()
  local slot = slots[1]
  local lane, move = slot.lane, math.huge
  for _ = 1, 5 do -- what is built or backed late is out of the way after the first time
    local began = cl.clock()
    slot.into:write(data[1])
    assert(lane.buf:write_async(slot.into, { stream = lane.stream }))
    assert(lane.buf:read_async(slot.out, { stream = lane.stream })):wait()
    move = math.min(move, cl.clock() - began)
    local kernel = assert(prog.scramble { lane.buf, rounds, size = count, stream = lane.stream })
    assert(kernel:wait())
    local compute = math.max(assert(kernel:seconds()), 1e-6)
    rounds = math.min(math.max(rounds, math.ceil(rounds * move / compute)), 50000)
  end
end
balance()
local began = cl.clock()
for chunk = 1, options.chunks do start(slots[(chunk - 1) % #slots + 1], chunk, data[chunk]) end
for _, slot in ipairs(slots) do collect(slot) end
local took = cl.clock() - began

for chunk, checked in ipairs(results) do
  for _, place in ipairs(checked) do
    local i, got = table.unpack(place)
    local want = expected((chunk + 7 * i) & 0xffffffff)
    assert(got == want, ("chunk %d, number %d: %d, expected %d"):format(chunk, i, got, want))
  end
end

---- The timeline -------------------------------------------------------------------------------------------------

local first, last = math.huge, 0
for _, s in ipairs(steps) do
  local times = assert(s.event:profile())
  s.from, s.to = times.start, times.finish
  first, last = math.min(first, s.from), math.max(last, s.to)
end
local span = math.max(last - first, 1)

local WIDTH <const> = 100
local MARK <const> = { ["in"] = ">", kernel = "#", out = "<" }

-- Transfers are drawn over kernels: they may be shorter than a character.
local function row(index)
  local cells = {}
  for i = 1, WIDTH do cells[i] = "." end
  local function draw(is_kernel)
    for _, s in ipairs(steps) do
      if s.lane == index and (s.kind == "kernel") == is_kernel then
        local from, to = (s.from - first) * WIDTH // span, (s.to - first) * WIDTH // span
        for i = from, math.min(math.max(to - 1, from), WIDTH - 1) do cells[i + 1] = MARK[s.kind] end
      end
    end
  end
  draw(true)
  draw(false)
  return table.concat(cells)
end

-- Nanoseconds in which at least `n` streams had something running.
local function busy(n)
  local edges = {}
  for _, s in ipairs(steps) do
    edges[#edges + 1] = { s.from, 1, s.lane }
    edges[#edges + 1] = { s.to, -1, s.lane }
  end
  table.sort(edges, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  local running, total, since = {}, 0, 0
  local function working()
    local k = 0
    for i = 1, #lanes do if (running[i] or 0) > 0 then k = k + 1 end end
    return k
  end
  for _, edge in ipairs(edges) do
    if working() >= n then total = total + edge[1] - since end
    running[edge[3]] = (running[edge[3]] or 0) + edge[2]
    since = edge[1]
  end
  return total
end

local function ms(ns) return ("%.2f ms"):format(ns * 1e-6) end

print(("%d chunks of %d MiB on %s, double buffered on %d streams"):format(options.chunks, options.mib, dev.name,
  #lanes))
for index = 1, #lanes do print(("stream %d  %s"):format(index, row(index))) end
local sums = { ["in"] = 0, kernel = 0, out = 0 }
for _, s in ipairs(steps) do sums[s.kind] = sums[s.kind] + s.to - s.from end
print(("          > in %s   # kernels %s   < out %s"):format(ms(sums["in"]), ms(sums.kernel), ms(sums.out)))
local both = busy(2)
print(("first to last %s, both streams at work %s of it (%.0f %%)"):format(ms(span), ms(both), 100 * both / span))
print(("seen from Lua %s, %.2f GB/s through the device; %d results agree with Lua"):format(ms(took * 1e9),
  2 * options.chunks * nbytes / took * 1e-9, 4 * #results))
local stats = dev.host:stats()
print(("pinned memory: %d bytes reserved in %d blocks, %d driver calls for it"):format(stats.reserved_bytes,
  stats.reserved_blocks, stats.driver_allocs))

---- The picture --------------------------------------------------------------------------------------------------

local COLOUR <const> = { ["in"] = "#4477aa", kernel = "#ee8866", out = "#228833" }

local function gnuplot_script(path)
  local lines = {
    ("set terminal svg size 1000,260 font 'sans,12' background 'white'\nset output %q"):format(path),
    ("set title %q"):format(("%d chunks of %d MiB on two streams"):format(options.chunks, options.mib)),
    "set xlabel 'ms'\nset ytics ('stream 1' 2, 'stream 2' 1)\nset yrange [0.4:2.6]\nset key outside right",
    ("set xrange [0:%g]\nset style fill solid border lc rgb 'white'"):format(span * 1e-6),
  }
  for i, s in ipairs(steps) do
    local y = 3 - s.lane
    lines[#lines + 1] = ("set object %d rectangle from %g,%g to %g,%g fc rgb '%s'"):format(i, (s.from - first) * 1e-6,
      y - 0.35, (s.to - first) * 1e-6, y + 0.35, COLOUR[s.kind])
  end
  lines[#lines + 1] = ("plot NaN with boxes fc rgb '%s' title 'in', NaN with boxes fc rgb '%s' title 'kernel', "
    .. "NaN with boxes fc rgb '%s' title 'out'\n"):format(COLOUR["in"], COLOUR.kernel, COLOUR.out)
  return table.concat(lines, "\n")
end

if options.plot then
  local has_gnuplot = os.execute "command -v gnuplot >/dev/null 2>&1"
  if has_gnuplot then
    local pipe <close> = assert(io.popen("gnuplot", "w"))
    pipe:write(gnuplot_script(options.plot))
    assert(pipe:close(), "gnuplot failed")
    print("picture: " .. options.plot)
  else
    print "no picture: gnuplot is not installed (apt-get install gnuplot-nox)"
  end
end
