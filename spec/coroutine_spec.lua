-- Coroutines: what is current belongs to the coroutine that made it so; nothing is tied to one that is gone.

local cl = require "clalloc"
local every_type = dofile "spec/every_type.lua"

local function collect()
  collectgarbage()
  collectgarbage()
end

-- The id of the current stream.
local function current()
  local dev <close>, stream = cl.current()
  assert.equal(stream.device, dev)
  return stream.id
end

describe("a guard", function()
  local sim, a, b, outside

  before_each(function()
    sim = cl.simulate{ capacity = cl.GiB }
    a, b = sim:stream(), sim:stream()
    outside = current()
  end)
  after_each(function()
    assert.equal(outside, current())
    a:close()
    b:close()
    sim:close()
    a, b, sim = nil, nil, nil
    collect()
  end)

  it("holds in its coroutine, and nowhere else", function()
    local inside = {}
    local co = coroutine.create(function()
      local guard <close> = cl.guard(a)
      inside[1] = current()
      coroutine.yield()
      inside[2] = current()
      assert(guard)
    end)
    coroutine.resume(co)
    assert.equal(outside, current())
    coroutine.resume(co)
    assert.equal(outside, current())
    assert.same({ a.id, a.id }, inside)
  end)

  it("holds in the coroutines that its own resumes, until they have one themselves", function()
    local guard <close> = cl.guard(a)
    local co = coroutine.wrap(function()
      local first = current()
      local inner <close> = cl.guard(b)
      coroutine.yield(first, current())
      return inner
    end)
    local inherited, own = co()
    assert.equal(a.id, inherited)
    assert.equal(b.id, own)
    assert.equal(a.id, current())
    assert.equal(coroutine.wrap(current)(), a.id)
    co()
    assert(guard)
  end)

  it("nests through coroutines as deep as they go", function()
    local function descend(depth)
      if depth == 0 then return end
      local stream <close> = sim:stream()
      local guard <close> = cl.guard(stream)
      coroutine.wrap(function()
        assert.equal(stream.id, current())
        descend(depth - 1)
        assert.equal(stream.id, current())
      end)()
      assert.equal(stream.id, current())
      assert(guard)
    end
    descend(30)
  end)

  it("ends with an error in its coroutine", function()
    local guard
    local co = coroutine.create(function()
      local scoped <close> = cl.guard(a)
      guard = scoped
      error("on purpose")
    end)
    assert.is_false(coroutine.resume(co))
    assert.equal(outside, current())
    coroutine.close(co)
    assert.equal("guard (closed)", tostring(guard))
  end)

  it("ends with an error that is caught in its coroutine", function()
    local seen = coroutine.wrap(function()
      local outer <close> = cl.guard(a)
      pcall(function()
        local inner <close> = cl.guard(b)
        assert(outer and inner)
        error("on purpose")
      end)
      return current()
    end)()
    assert.equal(a.id, seen)
  end)

  it("ends when its suspended coroutine is closed", function()
    local guard
    local co = coroutine.create(function()
      local scoped <close> = cl.guard(a)
      guard = scoped
      coroutine.yield()
    end)
    coroutine.resume(co)
    assert.not_equal("guard (closed)", tostring(guard))
    assert.is_true(coroutine.close(co))
    assert.equal("guard (closed)", tostring(guard))
  end)

  -- luvit/luv#734, Lua-cURL/Lua-cURLv3#62: pointers to the Lua state of a coroutine that has died.
  it("of a coroutine that has finished, failed or been collected has no say", function()
    local before = cl.debug.live "queue"
    local kept = {}
    for i = 1, 50 do
      local co = coroutine.create(function()
        kept[i] = cl.guard(sim:stream())
        if i % 3 == 0 then coroutine.yield() end
        if i % 3 == 1 then error("on purpose") end
      end)
      coroutine.resume(co)
      assert.equal(outside, current())
      if i % 2 == 0 then kept[i] = false end
    end
    collect()
    assert.equal(outside, current())
    assert.equal(coroutine.wrap(current)(), outside)
    for i, guard in ipairs(kept) do
      if guard then
        assert.not_equal("guard (closed)", tostring(guard), i)
        guard:close()
      end
    end
    kept = {}
    collect()
    assert.equal(before, cl.debug.live "queue")
    assert.is_nil(next(kept))
  end)

  it("may be closed in another coroutine, in any order", function()
    local outer, inner
    local co = coroutine.wrap(function()
      outer, inner = cl.guard(a), cl.guard(b)
      coroutine.yield(current())
      coroutine.yield(current())
      return current()
    end)
    assert.equal(b.id, co())
    inner:close()
    assert.equal(a.id, co())
    outer:close()
    assert.equal(outside, co())
  end)

  it("stays apart from those of coroutines that take turns", function()
    local workers = {}
    for i = 1, 20 do
      workers[i] = coroutine.wrap(function()
        local stream <close> = sim:stream()
        local guard <close> = cl.guard(stream)
        for _ = 1, 10 do
          assert.equal(stream.id, current())
          local buf <close> = assert(sim:alloc(100))
          assert.equal(stream, buf.stream)
          coroutine.yield(guard)
        end
      end)
    end
    for _ = 1, 11 do
      for _, worker in ipairs(workers) do worker() end
      assert.equal(outside, current())
    end
  end)
end)

describe("coroutines", function()
  it("allocate from one pool, a hundred of them in turns", function()
    local sim <close> = cl.simulate{ capacity = cl.GiB }
    local pool <close> = sim:pool{}
    local workers, done = {}, 0
    for i = 1, 100 do
      workers[i] = coroutine.create(function()
        local kept = {}
        for j = 1, 20 do
          kept[j % 3] = assert(pool:alloc(i * j))
          coroutine.yield()
        end
        assert.equal(i * 20, kept[20 % 3].size)
        done = done + 1
      end)
    end
    for _ = 1, 21 do
      for _, worker in ipairs(workers) do assert(coroutine.resume(worker)) end
      assert.is_true(pool:check())
    end
    assert.equal(100, done)
    workers = nil -- luacheck: ignore
    collect()
    assert.equal(2000, pool:stats().allocs)
    assert.equal(0, pool:stats().active_blocks)
  end)

  it("may collect in the middle of an allocation, whichever of them runs", function()
    local sim <close> = cl.simulate{ capacity = 100 * 1000 * 1000 }
    for _ = 1, 100 do
      coroutine.wrap(function()
        for _ = 1, 3 do assert(sim:alloc(10 * 1000 * 1000)) end
      end)()
    end
    local pool <close> = sim:pool()
    assert.equal(0, pool:stats().ooms)
    collect()
  end)

  it("leave behind objects that go on working", function()
    for _, dev in ipairs{ cl.device(), cl.simulate{ capacity = cl.GiB } } do
      local o
      local co = coroutine.create(function()
        o = every_type.make(cl, dev)
        o.guard:close()
        error("on purpose")
      end)
      coroutine.resume(co)
      co = nil -- luacheck: ignore
      collect()
      local guard <close> = cl.guard(o.stream)
      every_type.use(cl, o)
      guard:close()
      for _, name in ipairs(every_type.NAMES) do o[name]:close() end
    end
    collect()
  end)

  it("that never finish leave their objects to the collector", function()
    local before = cl.debug.live()
    for i = 1, 30 do
      local sim = cl.simulate{ capacity = cl.GiB }
      local co = coroutine.create(function()
        local o = every_type.make(cl, sim)
        if i % 2 == 0 then
          local scoped <close> = o.buffer
          coroutine.yield(scoped)
        end
        coroutine.yield()
      end)
      assert(coroutine.resume(co))
    end
    collect()
    collect()
    assert.same(before, cl.debug.live())
  end)

  it("may yield between any two calls, and inside callbacks of Lua around them", function()
    local dev <close> = cl.device()
    local function step(f, ...)
      coroutine.yield()
      return f(...)
    end
    local co = coroutine.wrap(function()
      local stream <close> = step(dev.stream, dev)
      local buf <close> = assert(step(dev.alloc, dev, 64, { stream = stream }))
      step(buf.write, buf, ("x"):rep(64))
      local ok = pcall(function()
        local map <close> = step(buf.map, buf, "r")
        assert(step(map.read, map, 0, 3) == "xxx")
        coroutine.yield()
        error("on purpose")
      end)
      assert(not ok)
      local event <close> = step(buf.fill, buf, 7, { stream = stream, async = true })
      step(event.wait, event)
      return step(buf.read, buf, 0, 2)
    end)
    local result
    repeat result = co() until result
    assert.equal("\7\7", result)
  end)

  it("read options tables without their metamethods, which might yield", function()
    local sim <close> = cl.simulate{ capacity = cl.GiB }
    local options = setmetatable({}, { __index = function() return coroutine.yield() end })
    local buf = coroutine.wrap(function() return assert(sim:alloc(10, options)) end)()
    assert.equal(10, buf.size)
    buf:close()
    local pool <close> = sim:pool()
    assert.equal(0, pool:stats().active_blocks)
    assert.is_true(pool:check())
  end)

  it("share programs and kernels", function()
    local dev <close> = cl.device()
    local source = "kernel void shared(global int *x, int v) { x[get_global_id(0)] = v; }"
    local prog
    coroutine.wrap(function() prog = dev:program(source) end)()
    collect()
    local out <close> = assert(dev:alloc(16))
    for i = 1, 20 do
      coroutine.wrap(function()
        assert(dev:program(source) == prog)
        assert(prog.shared{ out, i, size = 4 }):close()
      end)()
    end
    assert.equal(20, (string.unpack("<i4", out:read())))
    prog:close()
  end)
end)
