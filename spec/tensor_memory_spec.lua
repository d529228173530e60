-- Tensors and memory: what an expression takes, when it goes back, and in which order things happen.

local cl = require "clalloc"

local function collect()
  collectgarbage()
  collectgarbage()
  cl.current().default_stream:query() -- lets go of its markers
end

describe("a tensor's memory", function()
  local device, pool

  setup(function()
    device = cl.current()
    pool = device:pool()
  end)
  teardown(function()
    device, pool = nil, nil
    cl.forget_kernels()
    collect()
  end)

  local function stats() return pool:stats() end

  it("is taken by results alone: the parts of an expression take none", function()
    collect()
    local a, b, c = cl.rand(1000), cl.rand(1000), cl.rand(1000)
    local before = stats()
    local r = (a + b) * c - a / 2
    assert.equal(before.active_blocks, stats().active_blocks, "nothing is computed before it is needed")
    r:eval()
    assert.equal(before.active_blocks + 1, stats().active_blocks)
    assert.equal(before.allocs + 1, stats().allocs)
    local s = ((a - b) * (a + b)):sum()
    assert.equal(before.active_blocks + 2, stats().active_blocks)
    for _, t in ipairs { a, b, c, r, s } do t:close() end
    assert.equal(before.active_blocks - 3, stats().active_blocks, "and all of it goes back at once")
  end)

  it("is shared by views, and goes back with the last", function()
    collect()
    local before = stats().active_blocks
    local a = cl.arange(1, 6)
    local b = a:view(2, 3)
    local c = b:t()
    a:close()
    b:close()
    assert.equal(before + 1, stats().active_blocks)
    assert.same({ { 1.0, 4.0 }, { 2.0, 5.0 }, { 3.0, 6.0 } }, c:totable())
    c:close()
    assert.equal(before, stats().active_blocks)
    a = cl.arange(1, 6)
    a:view(2, 3)
    collect()
    a:close()
    assert.equal(before, stats().active_blocks, "a view that was collected counts no more")
  end)

  it("stays for an expression that still needs it", function()
    local a = cl.tensor { 1, 2, 3 }
    local b = a + 1
    a:close()
    assert.same({ 2.0, 3.0, 4.0 }, b:totable())
    local c = cl.tensor { 1, 2, 3 }
    local d = c + 1
    c:close()
    local e = d * 2
    assert.same({ 4.0, 6.0, 8.0 }, e:totable())
    assert.same({ 2.0, 3.0, 4.0 }, d:totable(), "d is kept: nothing else holds what it is made of")
  end)

  it("does not stay for a part that was taken into a result: then the part says so", function()
    collect()
    local before = stats().active_blocks
    local a = cl.tensor { 1, 2, 3 }
    local part = a + 1
    local whole = (part * 2):eval()
    a:close()
    assert.equal(before + 1, stats().active_blocks)
    local ok, message = pcall(part.totable, part)
    assert.is_false(ok)
    assert.truthy(message:find("what this is computed from was closed", 1, true), message)
    assert.truthy(tostring(part):find("cannot be read", 1, true))
    assert.same({ 4.0, 6.0, 8.0 }, whole:totable())
  end)

  it("stays for a part whose own parts were collected, not closed", function()
    local a = cl.ones(4, 4)
    local part = a:matmul(a) + 1
    local whole = (part * 2):eval()
    collect()
    cl.rand(4, 4):close()
    assert.equal(10.0, whole[{ 1, 1 }])
    assert.equal(5.0, part[{ 1, 1 }])
  end)

  it("goes back at the end of a scope, except what that returns", function()
    collect()
    local a = cl.rand(64, 64)
    local before = stats().active_blocks
    local kept, list = cl.scope(function(x)
      local b = x:matmul(x)
      local c = cl.scope(function() return b:matmul(x) + 1 end)
      cl.rand(10)
      return c:relu(), { sum = b:sum(), n = 3 }
    end, a)
    assert.equal(before + 2, stats().active_blocks)
    assert.equal(64, #kept)
    assert.equal(3, list.n)
    assert.truthy(list.sum:item() > 0)
    assert.is_false((pcall(cl.scope, function()
      local _ = cl.rand(10)
      error "no"
    end)))
    assert.equal(before + 2, stats().active_blocks)
    local other = coroutine.wrap(function()
      cl.scope(function() coroutine.yield(cl.rand(3)) end)
    end)
    local inside = other()
    local outside = cl.rand(3)
    other()
    assert.equal("tensor (closed)", tostring(inside))
    assert.truthy(outside:sum():item() > 0)
  end)

  it("makes no driver object for a hundred thousand temporaries, once warm", function()
    local a, b = cl.rand(4, 4), cl.rand(4)
    local function round(n)
      for i = 1, n do
        local c = (a + b) * i
        if i % 10 == 0 then c:sum(1):close() end
        if i % 100 == 0 then c:totable() end
      end
    end
    -- Warm is when the places that the collector's timing leaves free have all been used once.
    local subs
    repeat
      subs = cl.debug.calls "create_sub_buffer"
      round(10000)
    until cl.debug.calls "create_sub_buffer" == subs
    collect()
    local before, live = stats(), cl.debug.live()
    local buffers = cl.debug.calls "create_buffer"
    round(100000)
    assert.equal(buffers, cl.debug.calls "create_buffer")
    -- A collection at an unlucky moment may still make a block begin where none has before.
    assert(cl.debug.calls "create_sub_buffer" - subs <= 16)
    collect()
    assert.equal(before.active_blocks, stats().active_blocks)
    assert.equal(before.reserved_bytes, stats().reserved_bytes)
    assert.same({ live.buffer, live.kernel }, { cl.debug.live "buffer", cl.debug.live "kernel" })
  end)

  it("is collected when it presses, without a word from the script", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    do
      local guard <close> = cl.guard(sim) -- luacheck: ignore
      for i = 1, 400 do cl.full({ 4 << 20 }, i) end
      assert.truthy(sim:pool():stats().peak_active_bytes < cl.GiB)
    end
    cl.forget_kernels()
    collect()
  end)
end)

describe("order", function()
  teardown(function()
    cl.forget_kernels()
    collect()
  end)

  it("is what the script says: a change comes after what was to read the old values", function()
    local a, b = cl.tensor { 1, 2, 3 }, cl.tensor { 10, 20, 30 }
    local sum, part = a + b, a:narrow(1, 2, 2)
    local scaled = part * 2
    a:fill(0)
    b[1] = 5
    assert.same({ 11.0, 22.0, 33.0 }, sum:totable())
    assert.same({ 4.0, 6.0 }, scaled:totable())
    local c = cl.tensor { 1, 2 }
    local named = c + 1
    local product = named * named
    c:mul_(named)
    assert.same({ 2.0, 6.0 }, c:totable())
    assert.same({ 2.0, 3.0 }, named:totable())
    assert.same({ 4.0, 9.0 }, product:totable())
  end)

  it("holds for a part that is used again, and for large expressions", function()
    local x = cl.tensor { 1, 2, 3 }
    local part = x * 2
    local one, two = part + 1, part + 2
    assert.same({ 3.0, 5.0, 7.0 }, one:totable())
    assert.same({ 4.0, 6.0, 8.0 }, two:totable())
    local chain = x
    for i = 1, 100 do chain = chain + x * i end
    assert.same({ 5051.0, 10102.0, 15153.0 }, chain:totable())
    local square = x
    for _ = 1, 5 do square = square * square end
    assert.same({ 1.0, 2.0 ^ 32 }, { square[1], square[2] })
  end)

  it("holds across streams, without events", function()
    local device <close> = cl.current()
    local stream <close> = device:stream()
    local gate <close> = device:gate()
    local a = cl.ones(100000)
    do
      local guard <close> = cl.guard(stream) -- luacheck: ignore
      stream:wait(gate)
      a:mul_(3)
    end
    local b = (a + 1):eval()
    gate:open()
    assert.equal(4.0, b:min():item())
    do
      local guard <close> = cl.guard(stream) -- luacheck: ignore
      b:add_(a)
    end
    a:fill(0)
    assert.equal(700000.0, b:sum():item())
    assert.equal(0.0, a:max():item())
  end)
end)

describe("devices", function()
  teardown(function()
    cl.forget_kernels()
    collect()
  end)

  it("and streams are used on by tensors after their handles were closed", function()
    local sim = cl.simulate { capacity = cl.GiB }
    local there = cl.ones(3):to(sim)
    there:device():close()
    sim:close()
    local sum = (there + 1):eval()
    assert.equal("Simulated 1 GiB device", sum:device().name)
    assert.equal(there:device(), sum:device())
    local device <close> = cl.current()
    local stream, a = device:stream(), cl.ones(3)
    do
      local guard <close> = cl.guard(stream) -- luacheck: ignore
      a:add_(1)
    end
    stream:close()
    assert.same({ 4.0, 4.0, 4.0 }, (a * 2):totable())
  end)

  it("are named when they do not match, or lack a dtype", function()
    local sim <close> = cl.simulate { capacity = cl.GiB }
    local here = cl.ones(3)
    local there = here:to(sim)
    assert.equal(sim, there:device())
    local ok, message = pcall(function() return here + there end)
    assert.is_false(ok)
    assert.truthy(message:find("`to` copies between devices", 1, true), message)
    if not sim.has_fp64 then
      ok, message = pcall(here.to(sim).to, there, "f64")
      assert.is_false(ok)
      assert.truthy(message:find("f64 is not supported by", 1, true), message)
    end
    cl.forget_kernels()
    collect()
  end)
end)
