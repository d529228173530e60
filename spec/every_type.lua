-- One object of every type of the binding, all of them in use on one device: for specs about how objects end.

local every_type = {}

every_type.NAMES = {
  "device", "stream", "gate", "pool", "buffer", "view", "map", "program", "kernel", "event", "guard", "decided_pool",
  "decided", "host", "host_cache", "host_buffer", "host_view", "heap",
}

local SOURCE = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }"
-- As if the heap's text stood in front of it; only the name of the type counts.
local HEAP = [[
#ifndef CLA_HEAP
typedef uint cla_heap_word;
#define CLA_HEAP global cla_heap_word *
#endif
kernel void look(CLA_HEAP heap, global int *x) { x[1] = heap[0] != 0; }]]

--- Hooks of a cache that are called and change nothing.
local function hooks()
  local function see() return nil end
  return { allocate = see, free = see, record = see, query = see }
end

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

--- Objects by name. `dev` becomes one of them. The kernel, a write and a transfer wait behind the gate, which is shut.
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
  o.host = dev.host
  o.host_cache = dev:host_cache{ hooks = hooks(), max_cached = 16 * cl.MiB }
  o.host_buffer = assert(o.host_cache:alloc(1000))
  assert(o.host_buffer:write(("\3"):rep(1000)))
  o.host_view = o.host_buffer:view(500, 100)
  assert(o.buffer:read_async(o.host_view, 0, { stream = o.stream })):close()
  assert(o.host:alloc(100)):close()
  o.guard = cl.guard(o.stream)
  o.heap = dev.heap
  return o
end

local function use_host(cl, o)
  local is_real = not o.device.simulated
  assert(not is_real or o.host_view:read(4, 2) == "\2\2")
  assert(o.host_buffer:read(0, 1) == "\3" and #o.host_buffer:string() == 1000)
  assert(o.host_buffer:fill(4) and o.host_view:write("abc", 1) and o.host_buffer:record(o.stream))
  assert(o.host_buffer:read(500, 4) == "\4abc")
  local pinned <close> = assert(o.host:alloc(100))
  assert(pinned:copy(o.host_view) and pinned:read(1, 3) == "abc")
  local copy <close> = assert(o.device:alloc(100))
  assert(copy:copy(pinned) and pinned:fill(0) and pinned:copy(copy))
  assert(not is_real or pinned:read(0, 4) == "\4abc")
  local again <close> = assert(copy:write_async(pinned, { size = 50, stream = o.stream }))
  assert(again:wait())
  local view, offset = cl.resolve(o.host_view.address)
  assert(offset == 500 and view.size == 1000)
  assert(o.host_cache:process_events() and o.host_cache:process_events(10) and o.host_cache:trim())
  assert(o.host_cache:set_limits{ max_block = 100000 } and o.host_cache:reset_peaks() and o.host_cache:check())
  assert(o.host_cache:stats().active_blocks == 1 and o.host:check() and o.host:stats())
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
  for i = 1, 3 do assert(o.decided_pool:alloc(i * 5000)):close() end
  assert(o.decided_pool:check())
  assert(o.program:kernels()[1] == "twice")
  assert(select(2, cl.current()) == o.stream)
  use_host(cl, o)
  for _, name in ipairs(every_type.NAMES) do assert(#tostring(o[name]) > 0) end
end

return every_type
