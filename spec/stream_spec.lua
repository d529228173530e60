-- Streams, the events of their commands, the gates that hold them still, and the guards that make one current.

local cl = require "clalloc"

local function failure(...)
  local ok, message = pcall(...)
  assert.is_false(ok)
  return tostring(message)
end

describe("a stream", function()
  local dev

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)

  it("runs its commands in order", function()
    local s <close> = dev:stream()
    local buf <close> = assert(dev:alloc(4, { stream = s }))
    for i = 1, 100 do
      buf:fill(i, { stream = s, async = true }):close()
    end
    assert.is_true(s:finish())
    assert.equal(("\100"):rep(4), buf:read())
  end)

  it("knows whether it is idle", function()
    local s <close> = dev:stream()
    local gate <close> = dev:gate()
    assert.is_true(s:query())
    s:wait(gate)
    assert.is_false(s:query())
    gate:open()
    assert.is_true(s:finish())
    assert.is_true(s:query())
  end)

  it("has an id of its own, a device and equality", function()
    local a <close> = dev:stream()
    local b <close> = dev:stream()
    assert.not_equal(a.id, b.id)
    assert.not_equal(a, b)
    assert.equal(dev, a.device)
    assert.equal(dev.default_stream.id, dev.default_stream.id)
    assert.equal(("stream (%d, %s, 0 submitted, 0 known complete)"):format(a.id, dev.name), tostring(a))
  end)

  it("counts what was submitted and what is known complete", function()
    local s <close> = dev:stream()
    local buf <close> = assert(dev:alloc(4))
    buf:fill(0, { stream = s, async = true }):close()
    local stats = s:stats()
    assert.equal(1, stats.submitted)
    assert.is_true(stats.completed <= stats.submitted)
    s:finish()
    assert.equal(s:stats().submitted, s:stats().completed)
  end)

  it("waits for an event of another stream", function()
    local a <close> = dev:stream()
    local b <close> = dev:stream()
    local gate <close> = dev:gate()
    local buf <close> = assert(dev:alloc(4))
    buf:fill(0)
    a:wait(gate)
    local filled <close> = buf:fill(7, { stream = a, async = true })
    b:wait(filled)
    local read <close> = buf:read(0, 4, { stream = b, async = true })
    assert.is_false(read.done)
    gate:open()
    assert.equal(("\7"):rep(4), read:data())
  end)

  it("waits for what another stream has submitted so far", function()
    local a <close> = dev:stream()
    local b <close> = dev:stream()
    local gate <close> = dev:gate()
    local buf <close> = assert(dev:alloc(4))
    buf:fill(0)
    a:wait(gate)
    buf:fill(9, { stream = a, async = true }):close()
    b:wait(a)
    local read <close> = buf:read(0, 4, { stream = b, async = true })
    gate:open()
    assert.equal(("\9"):rep(4), read:data())
  end)

  it("waits for a list of them", function()
    local a <close> = dev:stream()
    local b <close> = dev:stream()
    local first <close> = dev:gate()
    local second <close> = dev:gate()
    local buf <close> = assert(dev:alloc(4))
    local event <close> = buf:fill(1, { stream = b, async = true })
    a:wait{ first, second, event, b }
    first:open()
    assert.is_false(a:query())
    second:open()
    assert.is_true(a:finish())
  end)

  it("refuses to wait for anything else, and for things of another device", function()
    local s <close> = dev:stream()
    local sim <close> = cl.simulate{ capacity = cl.MiB }
    local foreign <close> = sim:stream()
    local gate <close> = sim:gate()
    assert.matches("an event, a gate, a stream or a list of them expected, got number", failure(s.wait, s, 1))
    assert.matches("an event, a gate, a stream or a list of them expected, got nil", failure(s.wait, s))
    assert.matches("belongs to Simulated", failure(s.wait, s, foreign))
    assert.matches("belongs to Simulated", failure(s.wait, s, gate))
    assert.is_true(s:finish())
  end)

  it("raises instead of waiting for ever behind a gate of the same script", function()
    local s <close> = dev:stream()
    local gate <close> = dev:gate()
    local buf <close> = assert(dev:alloc(4, { stream = s }))
    s:wait(gate)
    local event <close> = buf:fill(1, { stream = s, async = true })
    assert.matches("gate that this thread has not opened", failure(s.finish, s))
    assert.matches("gate that this thread has not opened", failure(event.wait, event))
    assert.matches("gate that this thread has not opened", failure(buf.read, buf, 0, 4, { stream = s }))
    assert.matches("gate that this thread has not opened", failure(buf.fill, buf, 0, { stream = s }))
    gate:open()
    assert.equal("\1\1\1\1", buf:read(0, 4, { stream = s }))
  end)

  it("inherits the gates of what it waits for", function()
    local a <close> = dev:stream()
    local b <close> = dev:stream()
    local gate <close> = dev:gate()
    a:wait(gate)
    b:wait(a)
    assert.matches("gate", failure(b.finish, b))
    gate:open()
    assert.is_true(b:finish())
  end)

  it("may be closed while its commands are under way", function()
    local s = dev:stream()
    local gate <close> = dev:gate()
    local buf <close> = assert(dev:alloc(4, { stream = s }))
    s:wait(gate)
    local event <close> = buf:write("abcd", 0, { stream = s, async = true })
    s:close()
    s:close()
    assert.equal("stream (closed)", tostring(s))
    assert.is_nil(event.stream)
    gate:open()
    assert.is_true(event:wait())
    assert.equal("abcd", buf:read())
    assert.matches("attempt to use a closed stream", failure(s.finish, s))
    assert.matches("attempt to use a closed stream", failure(function() return s.id end))
  end)

  it("that is closed leaves its memory to others (pytorch#66941)", function()
    local s = dev:stream()
    local pool <close> = dev:pool{ limit = 64 * cl.MiB }
    local buf = assert(pool:alloc(4096, s))
    buf:record(dev.default_stream)
    s:close()
    buf:close()
    local _ <close> = assert(pool:alloc(4096))
    assert.is_true(pool:check())
    assert.equal(1, pool:stats().segments)
  end)

  it("keeps no more driver events than it has work under way (pyopencl#56)", function()
    local s <close> = dev:stream()
    local other <close> = dev:stream()
    local before = cl.debug.live("event")
    for _ = 1, 2000 do
      local buf <close> = assert(dev:alloc(4096, { stream = s }))
      buf:fill(0, { stream = s, async = true }):close()
      buf:record(other)
    end
    assert.is_true(cl.debug.live("event") - before <= 200)
    s:finish()
  end)
end)

describe("an event", function()
  local dev, buf

  setup(function()
    dev = cl.device()
    buf = assert(dev:alloc(64))
  end)
  teardown(function()
    buf:close()
    dev:close()
  end)

  it("says how far its command is", function()
    local gate <close> = dev:gate()
    local s <close> = dev:stream()
    local event <close> = buf:fill(0, { stream = s, wait = gate, async = true })
    assert.is_false(event.done)
    assert.not_equal("complete", event:status())
    gate:open()
    assert.is_true(event:wait())
    assert.is_true(event.done)
    assert.equal("complete", event:status())
    assert.equal(s, event.stream)
  end)

  it("has times once it is complete", function()
    local event <close> = buf:fill(0, { async = true })
    assert.is_true(event:wait())
    assert.is_true(event:seconds() >= 0)
    local times = event:profile()
    assert.is_true(times.queued <= times.submit)
    assert.is_true(times.submit <= times.start)
    assert.is_true(times.start <= times.finish)
    assert.equal((times.finish - times.start) * 1e-9, event:seconds())
  end)

  it("has no times before", function()
    local gate <close> = dev:gate()
    local event <close> = buf:fill(0, { wait = gate, async = true })
    local seconds, message, code = event:seconds()
    assert.is_nil(seconds)
    assert.matches("not complete", message)
    assert.equal("UNSUPPORTED", code)
    assert.is_nil(event:profile())
    gate:open()
    dev.default_stream:finish()
  end)

  it("gives the bytes of an asynchronous read, as often as asked", function()
    buf:fill("abcd")
    local event <close> = buf:read(2, 6, { async = true })
    assert.equal("cdabcd", event:data())
    assert.equal("cdabcd", event:data())
    local empty <close> = buf:read(3, 0, { async = true })
    assert.equal("", empty:data())
    local fill <close> = buf:fill(0, { async = true })
    assert.is_nil(fill:data())
  end)

  it("that cannot be waited for gives nil, a message and a code", function()
    local event <close> = buf:fill(0, { async = true })
    cl.debug.fail("wait_events", 1, -5)
    local ok, message, code = event:wait()
    assert.is_nil(ok)
    assert.equal("wait_events failed: CL_OUT_OF_RESOURCES (-5)", message)
    assert.equal("NOMEM", code)
  end)

  it("may be dropped before its command has run", function()
    local gate <close> = dev:gate()
    local s <close> = dev:stream()
    s:wait(gate)
    for i = 1, 50 do
      local bytes = ("%d"):format(i):rep(10):sub(1, 10)
      buf:write(bytes, 0, { stream = s, async = true }):close()
      buf:read(0, 64, { stream = s, async = true })
      if i % 10 == 0 then collectgarbage() end
    end
    gate:open()
    s:finish()
    assert.equal("5050505050", buf:read(0, 10))
  end)

  it("is closed like everything else", function()
    local event = buf:fill(0, { async = true })
    dev.default_stream:finish()
    assert.matches("^event %(command %d+ of stream %d+, complete%)$", tostring(event))
    event:close()
    event:close()
    assert.equal("event (closed)", tostring(event))
    assert.matches("attempt to use a closed event", failure(event.wait, event))
    assert.matches("attempt to use a closed event", failure(function() return event.done end))
  end)
end)

describe("the wait option", function()
  local dev, buf

  setup(function()
    dev = cl.device()
    buf = assert(dev:alloc(64))
  end)
  teardown(function()
    buf:close()
    dev:close()
  end)

  it("orders a command after events and gates", function()
    local a <close> = dev:stream()
    local b <close> = dev:stream()
    local gate <close> = dev:gate()
    local first <close> = buf:fill(1, { stream = a, wait = gate, async = true })
    local second <close> = buf:fill(2, { stream = b, wait = { first }, async = true })
    assert.is_false(second.done)
    gate:open()
    assert.is_true(second:wait())
    assert.equal("\2", buf:read(0, 1))
  end)

  it("raises for a command that would block behind a gate, and leaves the stream as it was", function()
    local gate <close> = dev:gate()
    local s <close> = dev:stream()
    assert.matches("not opened", failure(buf.fill, buf, 0, { stream = s, wait = gate }))
    assert.matches("not opened", failure(buf.read, buf, 0, 1, { stream = s, wait = { gate } }))
    local held <close> = buf:fill(1, { wait = gate, stream = s, async = true })
    assert.matches("not opened", failure(buf.fill, buf, 0, { wait = held }))
    local other <close> = dev:stream()
    assert.is_true(buf:fill(0, { stream = other }))
    assert.is_true(other:finish())
    gate:open()
  end)

  it("takes at most 64", function()
    local events = {}
    for i = 1, 65 do events[i] = buf:fill(0, { async = true }) end
    assert.matches("more than 64", failure(buf.fill, buf, 0, { wait = events }))
    table.remove(events):close()
    assert.is_true(buf:fill(0, { wait = events }))
    for _, event in ipairs(events) do event:close() end
  end)

  it("refuses what is no event, closed, or of another device", function()
    local sim <close> = cl.simulate{ capacity = cl.MiB }
    local foreign <close> = sim:gate()
    local closed = buf:fill(0, { async = true })
    closed:close()
    assert.matches("an event, a gate or a list of them expected, got number", failure(buf.fill, buf, 0, { wait = 1 }))
    assert.matches("got string", failure(buf.fill, buf, 0, { wait = { "x" } }))
    assert.matches("attempt to use a closed event", failure(buf.fill, buf, 0, { wait = closed }))
    assert.matches("the gate belongs to Simulated", failure(buf.fill, buf, 0, { wait = foreign }))
  end)
end)

describe("a gate", function()
  local dev

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)

  it("is opened once, by open or close", function()
    local gate = dev:gate()
    assert.is_false(gate.is_open)
    assert.equal("gate (shut)", tostring(gate))
    assert.is_true(gate:open())
    assert.is_true(gate:open())
    assert.is_true(gate.is_open)
    assert.equal("gate (open)", tostring(gate))
    assert.equal(dev, gate.device)
    gate:close()
    gate:close()
    assert.is_true(gate.is_open)
    assert.equal("gate (closed)", tostring(gate))
    assert.matches("attempt to use a closed gate", failure(gate.open, gate))
  end)

  it("that is dropped opens", function()
    local s <close> = dev:stream()
    s:wait(dev:gate())
    collectgarbage()
    collectgarbage()
    assert.is_true(s:finish())
  end)
end)

describe("a process", function()
  -- How a Lua program of its own ends: its exit code, and whether a signal ended it.
  local function ending_of(program, last)
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(program, last)
    file:close()
    local _, how, code = os.execute(("timeout 20 lua5.4 %s 2>/dev/null"):format(path))
    os.remove(path)
    return how, code
  end

  local PROGRAM = [[
    local cl = require "clalloc"
    local dev = cl.device()
    local s, gate = dev:stream(), dev:gate()
    local buf = assert(dev:alloc(1 << 20, { stream = s }))
    s:wait(gate)
    Kept = { buf:write("x", 0, { stream = s, async = true }), buf:read(0, 9, { stream = s, async = true }),
             dev:alloc(100):map("rw"), cl.guard(s), dev:pool{}, buf:view(1) }
  ]]

  it("ends cleanly with a shut gate, commands behind it and a map, whichever way", function()
    for _, last in ipairs{ "", "os.exit(0, true)", "os.exit(0, false)" } do
      assert.same({ "exit", 0 }, { ending_of(PROGRAM, last) })
    end
    assert.same({ "exit", 3 }, { ending_of(PROGRAM, "os.exit(3, true)") })
    assert.same({ "exit", 1 }, { ending_of(PROGRAM, "error('x')") })
  end)

  it("ends cleanly when finalizers use the module while the state closes", function()
    assert.same({ "exit", 0 }, { ending_of(PROGRAM, [[
      setmetatable(Kept, { __gc = function()
        local again = dev:alloc(10)
        again:fill(0, { async = true })
        Kept = { cl.current():stream(), dev:gate(), dev:pool{}:alloc(1) }
        s:wait(Kept[2])
      end })]]) })
  end)
end)

describe("a guard", function()
  local dev, sim, s

  setup(function()
    dev = cl.device()
    sim = cl.simulate{ capacity = cl.MiB }
    s = sim:stream()
  end)
  teardown(function()
    s:close()
    sim:close()
    dev:close()
  end)

  local function current()
    local d <close>, stream = cl.current()
    local id = stream.id
    stream:close()
    return d.simulated, id
  end

  it("makes a device or a stream current until its scope ends", function()
    local before, before_id = current()
    do
      local _ <close> = cl.guard(sim)
      assert.same({ true, sim.default_stream.id }, { current() })
      do
        local _ <close> = cl.guard(s)
        assert.same({ true, s.id }, { current() })
      end
      assert.same({ true, sim.default_stream.id }, { current() })
    end
    assert.same({ before, before_id }, { current() })
  end)

  it("decides the stream of allocations and commands on its own device", function()
    local _ <close> = cl.guard(s)
    local buf <close> = assert(sim:alloc(10))
    assert.equal(s, buf.stream)
    local event <close> = buf:fill(0, { async = true })
    assert.equal(s, event.stream)
    local other <close> = assert(dev:alloc(10))
    assert.equal(dev.default_stream, other.stream)
  end)

  it("is undone by an error", function()
    local before = { current() }
    assert.is_false(pcall(function()
      local _ <close> = cl.guard(s)
      error("x")
    end))
    assert.same(before, { current() })
  end)

  it("belongs to its coroutine, and to those that this one resumes", function()
    local before = { current() }
    local inner
    local co = coroutine.wrap(function()
      local _ <close> = cl.guard(s)
      inner = { coroutine.wrap(function() return current() end)() }
      coroutine.yield()
      inner = { current() }
    end)
    co()
    assert.same({ true, s.id }, inner)
    assert.same(before, { current() })
    do
      local _ <close> = cl.guard(sim)
      co()
      assert.same({ true, s.id }, inner)
    end
    assert.same(before, { current() })
  end)

  it("means nothing once its coroutine is dead", function()
    local before = { current() }
    local failed = coroutine.create(function()
      local _ <close> = cl.guard(s)
      error("x")
    end)
    assert.is_false(coroutine.resume(failed))
    assert.same(before, { current() })
    do
      local abandoned = coroutine.wrap(function()
        local _ <close> = cl.guard(s)
        coroutine.yield()
      end)
      abandoned()
    end
    assert.same(before, { current() })
    collectgarbage()
    collectgarbage()
    assert.same(before, { current() })
  end)

  it("may be closed in any order", function()
    local before = { current() }
    local a, b, c = cl.guard(sim), cl.guard(s), cl.guard(sim)
    b:close()
    assert.is_true((current()))
    c:close()
    a:close()
    a:close()
    assert.equal("guard (closed)", tostring(a))
    assert.same(before, { current() })
  end)

  it("keeps its device and stream", function()
    local before = { current() }
    local other = cl.simulate{ capacity = cl.MiB }
    local stream = other:stream()
    local guard = cl.guard(stream)
    local id = stream.id
    stream:close()
    other:close()
    assert.same({ true, id }, { current() })
    guard:close()
    assert.same(before, { current() })
  end)

  it("takes a device, a stream or a pool", function()
    assert.matches("device, stream or pool expected, got nil", failure(cl.guard, nil))
    local closed = sim:stream()
    closed:close()
    assert.matches("attempt to use a closed stream", failure(cl.guard, closed))
  end)
end)
