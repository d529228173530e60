-- One object of every type of the binding, all of them in use on one device: for specs about how objects end.

local every_type = {}

every_type.NAMES = {
  "device", "stream", "gate", "pool", "buffer", "view", "map", "program", "kernel", "event", "guard", "heap",
}

local SOURCE = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }"
-- As if heap.cl stood in front of it; only the name of the type counts.
local HEAP = [[
#ifndef CLA_HEAP
typedef uint cla_heap_word;
#define CLA_HEAP global cla_heap_word *
#endif
kernel void look(CLA_HEAP heap, global int *x) { x[1] = heap[0] != 0; }]]

--- Objects by name. `dev` becomes one of them. The kernel and a write wait behind the gate, which is shut.
function every_type.make(cl, dev)
  local o = { device = dev }
  o.stream = assert(dev:stream())
  o.gate = assert(dev:gate())
  o.pool = assert(dev:pool{ limit = 16 * cl.MiB })
  o.buffer = assert(o.pool:alloc(256, o.stream))
  assert(o.buffer:write(("\1"):rep(256)))
  o.view = o.buffer:view(128, 128)
  o.map = assert(o.view:map("r"))
  o.program = assert(dev:program(SOURCE))
  o.kernel = o.program.twice
  o.event = assert(o.kernel{ o.buffer, size = 32, stream = o.stream, wait = o.gate })
  assert(o.buffer:write("abcd", 0, { stream = o.stream, async = true })):close()
  o.guard = cl.guard(o.stream)
  o.heap = dev.heap
  return o
end

--- Uses each object once: writes, reads, launches and asks. The gate is opened.
function every_type.use(cl, o)
  assert(o.gate:open())
  assert(o.event:wait())
  assert(#o.map:string() == 128 and (o.device.simulated or o.map:read(0, 2) == "\1\1"))
  local heap = o.device:program(HEAP)
  assert(heap.look{ o.heap, o.buffer, size = 1, heap_oom = "error" }):close()
  heap:close()
  assert(o.heap.limit > 0) -- states may share it: what it says is another's too
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
  assert(o.program:kernels()[1] == "twice")
  assert(select(2, cl.current()) == o.stream)
  for _, object in pairs(o) do assert(#tostring(object) > 0) end
end

return every_type
