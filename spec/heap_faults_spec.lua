-- Every driver call of a session with the heap fails in turn. Whatever fails, the script gets a clean error, the heap's
-- recount agrees, what was live before is live still, and nothing of the driver's is left when all is closed.

local cl = require "clalloc"
local fault_session = require "spec.fault_session"

local CODES <const> = { NOMEM = true, DRIVER = true }

local SOURCE <const> = [[
kernel void take(ulong nbytes, global uint *out) {
  global uchar *p = malloc(nbytes);
  if (p) p[0] = 7;
  out[get_global_id(0)] = p != 0;
}
kernel void churn(ulong nbytes) { free(malloc(nbytes)); }
]]

local Session = fault_session.new(CODES)

function Session:launch(kernel, launch)
  local event = self:try(kernel, launch)
  if not event then return end
  self:try(event.wait, event)
  event:close()
end

-- Blocks of the host's: what was written is read back, unless a call said that it failed.
function Session:host_blocks(heap)
  local ref = self:try(heap.alloc, heap, 1000)
  if not ref then return end
  local wrote = self:try(heap.write, heap, ref, "some bytes", 100)
  local back = self:try(heap.read, heap, ref, 10, 100)
  if wrote and back then assert(back == "some bytes", "wrong bytes") end
  -- A free whose answer was lost may have been done: then the second says so.
  if not self:try(heap.free, heap, ref) then pcall(heap.free, heap, ref) end
end

function Session:inspect(heap)
  self:try(heap.stats, heap)
  self:try(heap.check, heap)
  self:try(heap.blocks, heap)
  self:try(heap.leaks, heap)
  self:try(heap.reset_peaks, heap, true)
  self:try(heap.reset_peaks, heap)
  self:try(heap.draw, heap)
  assert(#tostring(heap) > 0)
end

function Session:run(dev)
  local heap = dev.heap
  local program = self:try(dev.program, dev, SOURCE, { heap = true })
  if not program then return end
  local stream, out = self:try(dev.stream, dev), self:try(dev.alloc, dev, 40)
  local take, churn = self:try(function() return program.take end), self:try(function() return program.churn end)
  if take and out then
    self:launch(take, { 64, out, size = 10 })
    self:launch(take, { 64, out, size = 10, stream = stream, heap_oom = "error" })
    self:launch(take, { 64, out, size = 10, heap_need = 1000 })
  end
  if churn then self:launch(churn, { 100, size = 10, stream = stream, heap_oom = "error" }) end
  if not dev.simulated then self:host_blocks(heap) end
  self:inspect(heap)
  self:try(heap.measure, heap, function() return churn and self:launch(churn, { 16, size = 1 }) end)
  program:close()
  if out then out:close() end
  if stream then
    self:try(stream.finish, stream)
    stream:close()
  end
end

-- Everything agrees, and the heap goes on.
function Session.settle(dev)
  assert(dev.default_stream:finish())
  assert(dev.heap:check())
  local program <close> = assert(dev:program(SOURCE, { heap = true }))
  local event <close> = assert(program.churn { 100, size = 3, heap_oom = "error" })
  assert(event:wait())
  assert(dev.heap:check())
  assert(dev.heap:reset())
  dev:pool():trim()
end

describe("a session with the heap in which a driver call fails", function()
  after_each(function() cl.debug.fail("any", 0) end)

  for name, options in pairs {
    ["a simulated device"] = {}, ["a simulated device that completes commands late"] = { manual = true },
    ["a simulated device that backs memory late"] = { lazy = true },
  } do
    it("ends clean on " .. name .. ", whichever call it is", function()
      options.capacity = 64 * cl.MiB
      local dev <close> = cl.simulate(options)
      Session:once("any", nil, dev)
      local calls, felt = Session:every_fault("any", {}, dev)
      assert(calls > 60, calls)
      assert(felt > 40, felt)
    end)
  end

  it("ends clean on a real device, at every fifth call", function() -- each session builds its programs anew
    local dev <close> = cl.device()
    Session:once("any", nil, dev)
    local calls, felt = Session:every_fault("any", { step = 5 }, dev)
    assert(calls > 80, calls)
    assert(felt > 12, felt)
  end)

  it("ends clean on a real device, at the first call of each kind", function()
    local dev <close> = cl.device()
    for _, call in ipairs(Session:kinds(dev)) do Session:every_fault(call, { most = 1 }, dev) end
  end)

  it("is made without memory at the first try, and with it at the second", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    local program <close> = assert(sim:program(SOURCE, { heap = true }))
    assert(program.take)
    for _, call in ipairs { "create_buffer", "enqueue_fill", "enqueue_write", "create_program", "build_program" } do
      local before = cl.debug.live "all"
      cl.debug.fail(call, 1)
      local event, message, code = program.take { 1, false, size = 1 }
      assert.is_nil(event, call)
      assert.matches("take: ", message, 1, true)
      assert.matches(call, message, 1, true)
      assert(CODES[code], code)
      assert.equal(before, cl.debug.live "all")
      assert.equal(0, sim.heap:stats().reserved)
      sim.heap.limit = cl.MiB -- it is not fixed
      assert(program.take { 1, false, size = 1 }):close()
      assert(sim.heap:reset())
    end
  end)

  it("tells a launch whose counts cannot be read", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    local program <close> = assert(sim:program(SOURCE, { heap = true }))
    assert(program.take { 1, false, size = 1 }):close()
    cl.debug.fail("enqueue_read", 2)
    local event <close> = assert(program.take { 1, false, size = 1, heap_oom = "error" })
    local ok, message = pcall(event.wait, event)
    assert.is_false(ok)
    assert.matches("take: whether allocations failed is unknown", message, 1, true)
    cl.debug.fail("enqueue_read", 1)
    local none, why, code = program.take { 1, false, size = 1, heap_oom = "error" }
    assert.is_nil(none)
    assert.equal("NOMEM", code)
    assert.matches("enqueue_read failed", why, 1, true)
  end)
end)
