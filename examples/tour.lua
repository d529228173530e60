-- A tour of clalloc: what the allocator does, shown on the device at hand in a few seconds.
--
--   make run                      the tour
--   make run ARGS="a.csv b.csv"   the tour, then a replay of these recordings
--
-- You will see: the devices; memory allocated through the pool, kernels run on it and checked against Lua; an
-- address inside an allocation resolving, a stale one refused; a limit reached and recovered from; two streams and a
-- gate; a recording made on the way and replayed under two policies; a network that learns; the pool's statistics.

local cl = require "clalloc"

local function section(title) print(("\n== %s"):format(title)) end
local function check(condition, what)
  print(("  %-60s %s"):format(what, condition and "ok" or "WRONG"))
  if not condition then os.exit(1) end
end

-- 1. Devices -----------------------------------------------------------------------------------------------------

section "devices"
for i, dev in ipairs(cl.devices()) do
  print(("  %d: %s (%s), %s, %s of memory, at most %s in one buffer"):format(
    i - 1, dev.name, dev.platform, dev.type, cl.trace.human(dev.global_mem), cl.trace.human(dev.max_alloc)))
end
local dev <close> = cl.device() -- CLALLOC_DEVICE=... chooses another
print("  the tour runs on " .. dev.name)

-- 2. A kernel on pooled memory -------------------------------------------------------------------------------------

section "kernels on pooled memory"
local n = 100000
local program = dev:program [[
  kernel void saxpy(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] = a * x[i] + y[i];
  }
]]
print("  " .. tostring(program.saxpy))

local function floats(from)
  local t = {}
  for i = 1, n do t[i] = string.pack("<f", from(i)) end
  return table.concat(t)
end

do
  local x <close> = assert(dev:alloc(4 * n))
  local y <close> = assert(dev:alloc(4 * n))
  x:write(floats(function(i) return i end))
  y:write(floats(function(i) return i / 2 end))
  local event = program.saxpy {2.0, x, y, size = n}
  local bytes = y:read() -- the same stream: it waits for the kernel
  local wrong = 0
  for i = 1, n do
    if string.unpack("<f", bytes, 4 * i - 3) ~= 2.0 * i + i / 2 then wrong = wrong + 1 end
  end
  check(wrong == 0, ("saxpy of %d floats agrees with Lua"):format(n))
  print(("  the kernel took %.3f ms on the device"):format(event:seconds() * 1e3))
end

-- 3. Addresses -----------------------------------------------------------------------------------------------------

section "addresses"
do
  local pool <close> = dev:pool {policy = "caching"}
  local a = assert(pool:alloc(1000))
  local b = assert(pool:alloc(1000))
  print("  " .. tostring(a))
  local found, offset = cl.resolve(a.address + 123)
  check(found.address == a.address and offset == 123, "address + 123 is 123 bytes into the same allocation")
  local _, message = cl.resolve(a.address + 1000)
  check(message, "address + 1000 is refused, although a neighbour is live")
  print("    " .. message)
  local stale = a.address
  a:close()
  check(not cl.owns(stale), "a freed address is not ours any more")
  check(not pcall(a.write, a, "x"), "a closed buffer refuses to be written")
  local again = assert(pool:alloc(1000))
  check(again.address == stale and pool:stats().driver_allocs == 1, "its memory is used again, without a driver call")
  again:close()
  b:close()
end

-- 4. A limit -------------------------------------------------------------------------------------------------------

section "a limit, reached and recovered from"
do
  local pool <close> = dev:pool {limit = 64 * cl.MiB}
  local kept = {}
  local message
  for i = 1, 100 do
    local buffer, why = pool:alloc(8 * cl.MiB)
    if not buffer then
      message = why
      break
    end
    kept[i] = buffer
  end
  check(#kept == 8, "eight blocks of 8 MiB fit below 64 MiB, the ninth does not")
  print("    " .. message)
  for _, buffer in ipairs(kept) do buffer:close() end
  local large <close> = assert(pool:alloc(60 * cl.MiB))
  check(#large == 60 * cl.MiB, "with everything closed, 60 MiB in one piece do: free segments went back")
  pool:check()
end

-- 5. Streams -------------------------------------------------------------------------------------------------------

section "streams"
do
  local pool <close> = dev:pool()
  local mine <close> = dev:stream()
  local other <close> = dev:stream()
  local gate <close> = dev:gate() -- holds a stream still until it is opened
  pool:trim()
  local a = assert(pool:alloc(cl.MiB, mine))
  local copy <close> = assert(pool:alloc(cl.MiB, other))
  a:fill(7)
  other:wait(gate)
  copy:copy(a, {stream = other, async = true}) -- queued behind the gate; the library notes that `other` uses a
  local address = a.address
  a:close()
  local b <close> = assert(pool:alloc(cl.MiB, mine))
  check(b.address ~= address, "memory that a queued copy still reads is not handed out")
  check(pool:stats().held_bytes == cl.MiB, "it is held")
  gate:open()
  other:finish()
  check(copy:read(0, 1) == "\7", "the copy read what was there")
  pool:trim()
  check(pool:stats().held_bytes == 0, "with the copy done, it is free")
end

-- 6. A recording ---------------------------------------------------------------------------------------------------

section "a recording, replayed"
local recorder = cl.trace.recorder()
do
  -- Something like training: weights stay, activations are made forward and freed backward, a little is kept at random.
  local pool <close> = dev:pool()
  local function alloc(nbytes)
    local buffer = assert(pool:alloc(nbytes))
    recorder:alloc(buffer, nbytes)
    return buffer
  end
  local function free(buffer)
    recorder:free(buffer)
    buffer:close()
  end
  local weights = {}
  for i = 1, 12 do weights[i] = alloc(i * 40000) end
  for step = 1, 20 do
    local activations = {}
    for i = 1, 12 do
      local scratch = alloc(30000 + 1000 * ((step * i) % 7))
      activations[i] = alloc(i * 25000 + 512 * (step % 3))
      free(scratch)
    end
    for i = 12, 1, -1 do
      local gradient = alloc(i * 40000)
      free(activations[i])
      free(gradient)
    end
  end
  for i = 1, 12 do free(weights[i]) end
end
local recording = recorder:finish "tour"
print(cl.replay(recording, {device = dev, policy = cl.policy.caching()}))
print(cl.replay(recording, {device = dev, policy = cl.policy.direct()}))

for _, path in ipairs(arg) do
  local trace = cl.trace.load(path)
  local gpu <close> = cl.simulate {capacity = 1024 * cl.GiB} -- sizes no machine at hand has: simulated
  print(cl.replay(trace, {device = gpu, policy = cl.policy.caching()}))
end

-- 7. A network -----------------------------------------------------------------------------------------------------

section "a two-layer network, trained with tensors"
do
  local folder = arg[0]:match "^(.*)[/\\]" or "."
  local network = dofile(folder .. "/network.lua")
  check(network.train(300), "its loss falls, its first steps are those of plain Lua")
end

-- 8. What the pool says --------------------------------------------------------------------------------------------

section "the default pool's statistics"
local stats = dev:pool():stats()
local names = {}
for name in pairs(stats) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do print(("  %-24s %15d"):format(name, stats[name])) end
dev:pool():check()
check(true, "and they agree with a recount of every block")
print(("  %s given back by trim"):format(cl.trace.human(dev:pool():trim())))
