-- Buffers: device memory as an object. Reads, writes, fills and copies are real transfers; views share the allocation;
-- maps show it to the host; an address stands for it.

local cl = require "clalloc"
local failure = require "spec.failure"

local function bytes(n, seed)
  local list = {}
  for i = 1, n do list[i] = string.char((i * 7 + (seed or 0)) % 256) end
  return table.concat(list)
end

describe("a buffer", function()
  local dev

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)

  it("knows its size, what is set aside for it, its device, pool and stream", function()
    local buf <close> = assert(dev:alloc(1000))
    assert.equal(1000, buf.size)
    assert.equal(1000, #buf)
    assert.is_true(buf.reserved >= 1000 and buf.reserved % dev.align == 0)
    assert.equal(0, buf.offset)
    assert.is_false(buf.is_view)
    assert.is_false(buf.closed)
    assert.equal(dev, buf.device)
    local pool <close> = dev:pool()
    assert.equal(pool, buf.pool)
    assert.equal(dev.default_stream, buf.stream)
    assert.equal(("buffer (1000 bytes at 0x%x, %s)"):format(buf.address, dev.name), tostring(buf))
    assert.is_nil(buf.nosuch)
  end)

  it("gives back what was written", function()
    local buf <close> = assert(dev:alloc(1000))
    local text = bytes(1000)
    assert.is_true(buf:write(text))
    assert.equal(text, buf:read())
    assert.equal(text:sub(101), buf:read(100))
    assert.equal(text:sub(101, 150), buf:read(100, 50))
    assert.is_true(buf:write("hello", 995))
    assert.equal("hello", buf:read(995))
    assert.equal(text:sub(1, 995), buf:read(0, 995))
    assert.equal("", buf:read(1000))
    assert.is_true(buf:write("", 1000))
  end)

  it("is filled with a byte or a pattern", function()
    local buf <close> = assert(dev:alloc(64))
    assert.is_true(buf:fill(0x5A))
    assert.equal(("\x5A"):rep(64), buf:read())
    for _, size in ipairs{ 1, 2, 4, 8, 16 } do
      local pattern = bytes(size, size)
      assert.is_true(buf:fill(pattern))
      assert.equal(pattern:rep(64 // size), buf:read())
    end
    buf:fill(0)
    assert.is_true(buf:fill("ab", { offset = 2, size = 4 }))
    assert.equal("\0\0abab\0\0", buf:read(0, 8))
  end)

  it("refuses fills that do not come out even", function()
    local buf <close> = assert(dev:alloc(64))
    assert.matches("a pattern of 3 bytes", failure(buf.fill, buf, "abc"))
    assert.matches("a pattern of 0 bytes", failure(buf.fill, buf, ""))
    assert.matches("value: 256 is no byte", failure(buf.fill, buf, 256))
    assert.matches("no multiples of the pattern's 4 bytes", failure(buf.fill, buf, "abcd", { offset = 2, size = 8 }))
    assert.matches("no multiples of the pattern's 4 bytes", failure(buf.fill, buf, "abcd", { size = 6 }))
  end)

  it("copies the bytes of another, not its handle", function()
    local a <close> = assert(dev:alloc(100))
    local b <close> = assert(dev:alloc(50))
    a:write(bytes(100))
    assert.is_true(b:copy(a))
    a:fill(0)
    assert.equal(bytes(100):sub(1, 50), b:read())
    assert.is_true(a:copy(b, { offset = 10, source_offset = 40 }))
    assert.equal(("\0"):rep(10) .. bytes(100):sub(41, 50) .. ("\0"):rep(80), a:read())
    assert.is_true(a:copy(b, { offset = 98, size = 2 }))
    assert.equal(bytes(2), a:read(98))
  end)

  it("copies within itself where the ranges do not overlap", function()
    local buf <close> = assert(dev:alloc(100))
    buf:write(bytes(100))
    assert.is_true(buf:copy(buf, { offset = 50, size = 50 }))
    assert.equal(bytes(50):rep(2), buf:read())
    assert.matches("overlap", failure(buf.copy, buf, buf, { offset = 10, size = 50 }))
  end)

  it("copies between devices, now and later", function()
    local other <close> = cl.simulate{ capacity = cl.MiB }
    local there <close> = assert(other:alloc(100))
    local here <close> = assert(dev:alloc(100))
    here:fill(1)
    assert.is_true(there:copy(here))
    assert.is_true(here:copy(there)) -- a simulated device has no memory: zeros come back
    assert.equal(("\0"):rep(100), here:read())
    local gate <close> = dev:gate()
    local s <close> = dev:stream()
    local filled <close> = here:fill(1, { stream = s, wait = gate, async = true })
    local copied <close> = there:copy(here, { wait = filled, async = true })
    gate:open()
    assert.is_true(copied:wait())
    local back <close> = here:copy(there, { stream = s, async = true })
    assert.is_true(back:wait())
    assert.equal(("\0"):rep(100), here:read(0, 100, { stream = s }))
  end)

  it("does everything asynchronously on request, and gives an event", function()
    local s <close> = dev:stream()
    local gate <close> = dev:gate()
    local a <close> = assert(dev:alloc(8, { stream = s }))
    local b <close> = assert(dev:alloc(8, { stream = s }))
    s:wait(gate)
    local options = { stream = s, async = true }
    local events = { a:fill(0, options) }
    events[2] = a:write(("ab"):rep(2), 2, options) -- the string is dropped at once
    events[3] = b:copy(a, options)
    events[4] = b:read(0, 8, options)
    collectgarbage()
    for _, event in ipairs(events) do assert.is_false(event.done) end
    gate:open()
    assert.equal("\0\0abab\0\0", events[4]:data())
    for _, event in ipairs(events) do
      assert.is_true(event.done)
      event:close()
    end
  end)

  it("stays until the commands that use it are done, closed or not (pyopencl#447)", function()
    local pool <close> = dev:pool{ limit = 64 * cl.MiB }
    local other <close> = dev:stream()
    local gate <close> = dev:gate()
    local source, target <close> = assert(pool:alloc(4096)), assert(pool:alloc(4096))
    source:fill(1)
    other:wait(gate)
    target:copy(source, { stream = other, async = true }):close()
    local address = source.address
    source:close()
    local again <close> = assert(pool:alloc(4096))
    assert.not_equal(address, again.address)
    again:fill(0xEE)
    gate:open()
    other:finish()
    assert.equal(("\1"):rep(4096), target:read())
    assert.is_true(pool:check())
  end)

  it("is reused at once on its own stream", function()
    local pool <close> = dev:pool{ limit = 64 * cl.MiB }
    local buf = assert(pool:alloc(4096))
    local address = buf.address
    buf:close()
    local again <close> = assert(pool:alloc(4096))
    assert.equal(address, again.address)
  end)

  it("may be recorded on a stream that uses it unseen", function()
    local pool <close> = dev:pool{ limit = 64 * cl.MiB }
    local other <close> = dev:stream()
    local gate <close> = dev:gate()
    local buf = assert(pool:alloc(4096))
    other:wait(gate)
    assert.is_true(buf:record(other))
    local address = buf.address
    buf:close()
    assert.equal(1, pool:stats().held_blocks)
    local again <close> = assert(pool:alloc(4096))
    assert.not_equal(address, again.address)
    gate:open()
    other:finish()
    assert.is_true(pool:check())
  end)

  it("of zero bytes is a buffer like any other (occa#712)", function()
    local a <close> = assert(dev:alloc(0))
    local b <close> = assert(dev:alloc(0))
    assert.equal(0, #a)
    assert.not_equal(a.address, b.address)
    assert.is_true(a:write(""))
    assert.equal("", a:read())
    assert.is_true(a:fill(0))
    assert.is_true(a:copy(b))
    local view <close> = a:view(0, 0)
    assert.equal("", view:read())
    local map <close> = a:map("rw")
    assert.equal("", map:string())
    local event <close> = a:read(0, 0, { async = true })
    assert.equal("", event:data())
    for _ = 1, 1000 do assert(dev:alloc(0)):close() end
  end)

  it("is freed once, whichever way: close, scope, collector, by hand", function()
    local pool <close> = dev:pool{ limit = 64 * cl.MiB }
    local buf = assert(pool:alloc(10))
    local meta = getmetatable(buf)
    buf:close()
    buf:close()
    meta.__gc(buf)
    meta.__close(buf)
    assert.equal("buffer (closed)", tostring(buf))
    assert.is_true(buf.closed)
    do local _ <close> = assert(pool:alloc(10)) end
    assert(pool:alloc(10))
    collectgarbage()
    collectgarbage()
    assert.equal(3, pool:stats().frees)
    assert.equal(0, pool:stats().active_blocks)
  end)

  it("that is closed raises on every use but close, closed and tostring", function()
    local buf = assert(dev:alloc(10))
    local live <close> = assert(dev:alloc(10))
    buf:close()
    for _, name in ipairs{ "write", "read", "fill", "copy", "view", "map", "record" } do
      assert.matches("attempt to use a closed buffer", failure(function() return buf[name](buf, "") end))
    end
    for _, name in ipairs{ "size", "address", "reserved", "offset", "device", "pool", "stream", "is_view" } do
      assert.matches("attempt to use a closed buffer", failure(function() return buf[name] end))
    end
    assert.matches("attempt to use a closed buffer", failure(function() return #buf end))
    assert.matches("bad argument #1 to 'copy' %(attempt to use a closed buffer%)", failure(function()
      live:copy(buf)
    end))
  end)

  it("survives a finalizer that resurrects it, closed (rlua#19)", function()
    local kept
    do
      local holder = setmetatable({ buf = assert(dev:alloc(10)) }, { __gc = function(o) kept = o.buf end })
      assert.equal(10, #holder.buf)
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(kept.closed)
    assert.matches("closed buffer", failure(kept.read, kept))
  end)

  it("works from a hundred coroutines", function()
    local threads = {}
    for i = 1, 100 do
      threads[i] = coroutine.wrap(function()
        local buf <close> = assert(dev:alloc(64))
        buf:fill(i)
        coroutine.yield()
        return buf:read(0, 1):byte()
      end)
      threads[i]()
    end
    for i = 1, 100 do assert.equal(i, threads[i]()) end
  end)
end)

describe("a view", function()
  local dev, buf

  before_each(function()
    dev = cl.device()
    buf = assert(dev:alloc(100))
    buf:write(bytes(100))
  end)
  after_each(function()
    buf:close()
    dev:close()
  end)

  it("is a part of a buffer with an address inside it", function()
    local view <close> = buf:view(10, 20)
    assert.is_true(view.is_view)
    assert.equal(20, #view)
    assert.equal(10, view.offset)
    assert.equal(buf.address + 10, view.address)
    assert.equal(bytes(100):sub(11, 30), view:read())
    assert.is_true(view:write("xyz", 1))
    assert.equal("xyz", buf:read(11, 3))
    assert.is_true(view:fill(0, { offset = 18 }))
    assert.equal("\0\0" .. bytes(100):sub(31), buf:read(28))
    assert.equal(buf.pool, view.pool)
    assert.equal(buf.stream, view.stream)
  end)

  it("reaches to the end when no length is given", function()
    local view <close> = buf:view(90)
    assert.equal(10, #view)
    local empty <close> = buf:view(100)
    assert.equal(0, #empty)
    assert.equal("", empty:read())
  end)

  it("of a view adds its offset", function()
    local outer <close> = buf:view(10, 50)
    local inner <close> = outer:view(5, 10)
    assert.equal(15, inner.offset)
    assert.equal(bytes(100):sub(16, 25), inner:read())
    assert.matches("reach outside", failure(outer.view, outer, 45, 6))
  end)

  it("frees nothing when closed", function()
    buf:view(0, 10):close()
    assert.equal(bytes(100), buf:read())
  end)

  it("is stale for ever when the allocation is freed, also when the address lives again", function()
    local view <close> = buf:view(0, 10)
    local address = buf.address
    buf:close()
    assert.equal("buffer (freed)", tostring(view))
    assert.is_true(view.closed)
    buf = assert(dev:alloc(100))
    assert.equal(address, buf.address)
    for _, call in ipairs{
      function() view:read() end,
      function() view:write("x") end,
      function() view:fill(0) end,
      function() view:copy(buf) end,
      function() buf:copy(view) end,
      function() view:view(0) end,
      function() view:map("r") end,
      function() view:record(dev.default_stream) end,
      function() return view.stream end,
    } do
      assert.matches("the allocation has been freed", failure(call))
    end
    assert.equal(10, view.size)
  end)

  it("keeps its buffer from being collected", function()
    local view <close> = assert(dev:alloc(100)):view(0, 10)
    view:fill(3)
    collectgarbage()
    collectgarbage()
    assert.equal(("\3"):rep(10), view:read())
  end)
end)

describe("an address", function()
  local dev, buf

  setup(function()
    dev = cl.device()
    buf = assert(dev:alloc(1024))
  end)
  teardown(function()
    buf:close()
    dev:close()
  end)

  it("stands for its allocation from the first byte to the last (pytorch#182924)", function()
    for _, offset in ipairs{ 0, 1, 4, 64, 1020, 1023 } do
      local found <close>, at = cl.resolve(buf.address + offset)
      assert.equal(offset, at)
      assert.equal(buf.address, found.address)
      assert.equal(1024, found.size)
      assert.is_true(found.is_view)
      assert.is_true(cl.owns(buf.address + offset))
    end
  end)

  it("outside of any allocation is nobody's, also beside a live one", function()
    local neighbour <close> = assert(dev:alloc(1024))
    for _, address in ipairs{ buf.address + 1024, buf.address - 1, neighbour.address + 1024 } do
      assert.is_false(cl.owns(address))
      assert.is_nil((cl.resolve(address)))
    end
  end)

  it("is told from foreign, freed and out-of-range ones by the code", function()
    local function code_of(address)
      local found, message, code = cl.resolve(address)
      assert.is_nil(found)
      assert.equal("string", type(message))
      return code
    end
    local freed = assert(dev:alloc(4096 * 5))
    local address = freed.address
    freed:close()
    assert.equal("FREED", code_of(address))
    assert.equal("BOUNDS", code_of(buf.address + 1024))
    assert.equal("FOREIGN", code_of(0))
    assert.equal("FOREIGN", code_of(1))
    assert.equal("FOREIGN", code_of(-1))
    assert.equal("FOREIGN", code_of(math.mininteger))
    assert.equal("FOREIGN", code_of(tonumber(("%p"):format({}):sub(3), 16)))
  end)

  it("is an integer", function()
    assert.matches("an address expected", failure(cl.owns, 1.5))
    assert.matches("an address expected", failure(cl.owns, "16"))
    assert.matches("an address expected", failure(cl.resolve, buf))
    assert.matches("an address expected", failure(cl.resolve))
  end)

  it("gives a buffer that may be used and closed without freeing anything", function()
    local found = cl.resolve(buf.address + 10)
    assert.is_true(found:write("hello", 10))
    assert.equal("hello", buf:read(10, 5))
    found:close()
    assert.equal("hello", buf:read(10, 5))
  end)
end)

describe("a map", function()
  local dev, buf

  before_each(function()
    dev = cl.device()
    buf = assert(dev:alloc(100))
    buf:write(bytes(100))
  end)
  after_each(function()
    buf:close()
    dev:close()
  end)

  it("shows a buffer's bytes to the host", function()
    local map <close> = buf:map("r")
    assert.equal(100, #map)
    assert.equal(bytes(100), map:string())
    assert.equal(bytes(100):sub(11), map:read(10))
    assert.equal(bytes(100):sub(11, 15), map:read(10, 5))
    assert.equal("map (100 bytes, r)", tostring(map))
  end)

  it("of a part shows the part", function()
    local map <close> = buf:map("r", 10, 20)
    assert.equal(bytes(100):sub(11, 30), map:string())
    local view <close> = buf:view(50)
    local viewed <close> = view:map("r", 5, 5)
    assert.equal(bytes(100):sub(56, 60), viewed:string())
  end)

  it("takes what is written to the buffer", function()
    for _, mode in ipairs{ "w", "rw", "discard" } do
      do
        local map <close> = buf:map(mode, 10, 5)
        assert.is_true(map:write("hello"))
        assert.is_true(map:write(mode:sub(1, 1), 4))
      end
      assert.equal("hell" .. mode:sub(1, 1), buf:read(10, 5))
    end
    assert.equal(bytes(10), buf:read(0, 10))
  end)

  it("keeps to its mode", function()
    local r <close> = buf:map("r", 0, 10)
    assert.matches("made for reading only", failure(r.write, r, "x"))
    r:close()
    local w <close> = buf:map("w", 0, 10)
    assert.matches("made for writing only", failure(w.read, w))
    assert.matches("made for writing only", failure(w.string, w))
    assert.matches("invalid option 'x'", failure(buf.map, buf, "x"))
    assert.matches("string expected", failure(buf.map, buf))
  end)

  it("keeps the memory while it is open, freed or not", function()
    local pool <close> = dev:pool{ limit = 64 * cl.MiB }
    local mapped = assert(pool:alloc(4096))
    mapped:fill(7)
    local address, map = mapped.address, mapped:map("r")
    mapped:close()
    assert.equal(1, pool:stats().held_blocks)
    local again <close> = assert(pool:alloc(4096))
    assert.not_equal(address, again.address)
    again:fill(0)
    assert.equal(("\7"):rep(4096), map:string())
    map:close()
    assert.equal(0, pool:stats().held_blocks)
    assert.is_true(pool:check())
  end)

  it("ends with its pool", function()
    local pool = dev:pool{ limit = 64 * cl.MiB }
    local mapped = assert(pool:alloc(4096))
    local map = mapped:map("rw")
    pool:close()
    assert.matches("a map of a closed pool", failure(map.string, map))
    assert.matches("a map of a closed pool", failure(map.write, map, "x"))
    map:close()
    mapped:close()
  end)

  it("is closed like everything else", function()
    local map = buf:map("rw")
    map:close()
    map:close()
    assert.equal("map (closed)", tostring(map))
    assert.matches("attempt to use a closed map", failure(map.read, map))
    assert.matches("attempt to use a closed map", failure(function() return #map end))
  end)
end)

describe("a buffer of shared virtual memory", function()
  it("works like any other", function()
    local dev <close> = cl.device()
    if not dev.has_svm then return end
    local pool <close> = dev:pool{ svm = true, limit = 64 * cl.MiB }
    local buf <close> = assert(pool:alloc(1000))
    local other <close> = assert(pool:alloc(1000))
    buf:write(bytes(1000))
    assert.is_true(other:copy(buf))
    assert.equal(bytes(1000), other:read())
    local found <close>, offset = cl.resolve(buf.address + 999)
    assert.equal(999, offset)
    assert.equal(buf.address, found.address)
    do
      local map <close> = buf:map("rw", 0, 5)
      map:write("hello")
    end
    assert.equal("hello", buf:read(0, 5))
    assert.is_true(pool:check())
  end)
end)

describe("a buffer that the driver cannot back (arrayfire#2650)", function()
  it("gives nil and names the allocation at first use, and the pool works on", function()
    local sim <close> = cl.simulate{ capacity = 10 * cl.MiB, lazy = true }
    local pool <close> = sim:pool{ commit = false, limit = 100 * cl.MiB }
    local a <close> = assert(pool:alloc(8 * cl.MiB))
    assert.is_true(a:fill(0))
    local b = assert(pool:alloc(8 * cl.MiB))
    local ok, message, code = b:fill(0)
    assert.is_nil(ok)
    assert.matches("cannot back the allocation of 8388608 bytes", message)
    assert.equal("NOMEM", code)
    b:close()
    assert.is_true(pool:check())
    assert.is_true(a:fill(1))
    assert.equal(0, pool:stats().cached_bytes)
  end)
end)

describe("closing", function()
  local NAMES = { "device", "stream", "pool", "buffer", "view", "event", "map" }

  local function everything(dev)
    local o = { device = dev }
    o.stream = dev:stream()
    o.pool = dev:pool{ limit = 64 * cl.MiB }
    o.buffer = assert(o.pool:alloc(1000, o.stream))
    o.view = o.buffer:view(100, 100)
    o.event = o.view:read(0, 10, { async = true, stream = o.stream })
    o.map = o.buffer:map("rw")
    return o
  end

  local function each_order(names, n, visit)
    if n == 0 then return visit(names) end
    for i = 1, n do
      names[i], names[n] = names[n], names[i]
      each_order(names, n - 1, visit)
      names[i], names[n] = names[n], names[i]
    end
  end

  it("works in every order", function()
    local before = cl.debug.live("all")
    local count = 0
    each_order(NAMES, #NAMES, function(names)
      count = count + 1
      local o = everything(cl.simulate{ capacity = 64 * cl.MiB, manual = count % 2 == 0 })
      for _, name in ipairs(names) do o[name]:close() end
      for _, name in ipairs(names) do assert(tostring(o[name]):find("(closed)", 1, true)) end
    end)
    assert.equal(5040, count)
    assert.equal(before, cl.debug.live("all"))
  end)

  local function live_without_garbage()
    collectgarbage()
    collectgarbage()
    local dev <close> = cl.device()
    local pool <close> = dev:pool()
    pool:trim()
    return cl.debug.live("all")
  end

  it("works in whatever order the collector takes", function()
    local before = live_without_garbage()
    for i = 1, 50 do
      everything(i % 2 == 0 and cl.device() or cl.simulate{ capacity = 64 * cl.MiB, manual = true })
    end
    assert.is_true(live_without_garbage() <= before) -- less by markers that were still out
  end)
end)
