-- One object of every type of the binding, all of them in use on one device: for specs about how objects end.

local every_type = {}

every_type.NAMES = {
  "device", "stream", "gate", "pool", "buffer", "view", "map", "program", "kernel", "event", "guard", "decided_pool",
  "decided",
}

local SOURCE = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }"

-- Every decision of a policy in Lua.
local DECISIONS <const> = {
  name = "decisions",
  round = function(nbytes) return nbytes end,
  fit = function(request, candidates) return request.nbytes > 0 and candidates[1] or nil end,
  split = function(request) return request.size end,
  grow = function(_, default) return default end,
  keep = function() return false end,
  oom = function() return false end,
  admit = function() return true end,
  note = function(event) assert(event.pool) end,
}

--- Objects by name. `dev` becomes one of them. The kernel and a write wait behind the gate, which is shut.
function every_type.make(cl, dev)
  local o = { device = dev }
  o.stream = assert(dev:stream())
  o.gate = assert(dev:gate())
  o.pool = assert(dev:pool{ limit = 16 * cl.MiB })
  o.buffer = assert(o.pool:alloc(256, o.stream))
  assert(o.buffer:write(("\1"):rep(256)))
  o.view = o.buffer:view(128, 128)
  o.decided_pool = assert(dev:pool{ policy = DECISIONS })
  o.decided = assert(o.decided_pool:alloc(1000))
  o.map = assert(o.view:map("r"))
  o.program = assert(dev:program(SOURCE))
  o.kernel = o.program.twice
  o.event = assert(o.kernel{ o.buffer, size = 32, stream = o.stream, wait = o.gate })
  assert(o.buffer:write("abcd", 0, { stream = o.stream, async = true })):close()
  o.guard = cl.guard(o.stream)
  return o
end

--- Uses each object once: writes, reads, launches and asks. The gate is opened.
function every_type.use(cl, o)
  assert(o.gate:open())
  assert(o.event:wait())
  assert(#o.map:string() == 128 and (o.device.simulated or o.map:read(0, 2) == "\1\1"))
  assert(o.buffer:fill(1))
  assert(o.kernel{ o.buffer, size = 32 }):close()
  assert(o.stream:finish())
  assert(o.device.simulated or o.buffer:read(0, 4) == "\2\2\2\2")
  local copy <close> = assert(o.device:alloc(128))
  assert(copy:copy(o.view))
  local later <close> = assert(copy:read(0, 8, { async = true }))
  assert(#later:data() == 8)
  assert(cl.resolve(o.buffer.address + 3))
  assert(o.pool:check() and o.pool:stats().active_blocks >= 1 and #o.pool:snapshot() >= 1)
  for i = 1, 3 do assert(o.decided_pool:alloc(i * 5000)):close() end
  assert(o.decided_pool:check())
  assert(o.program:kernels()[1] == "twice")
  assert(select(2, cl.current()) == o.stream)
  for _, object in pairs(o) do assert(#tostring(object) > 0) end
end

return every_type
