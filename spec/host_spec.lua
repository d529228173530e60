-- The cache of pinned host memory: `dev.host`, caches of one's own, host buffers and their views, transfers that run
-- beside the script. This page reads as its manual; what goes wrong elsewhere is in host_faults_spec.lua.

local cl = require "clalloc"
local failure = require "spec.failure"

local MiB <const> = 1 << 20

local function check(cache)
  assert.is_true(cache:check())
  local s = cache:stats()
  assert.equal(s.reserved_bytes, s.active_bytes + s.cached_bytes + s.pending_bytes)
  return s
end

describe("dev.host", function()
  local dev, cache

  setup(function() dev = cl.device() end)
  teardown(function()
    collectgarbage()
    dev.default_stream:finish()
    dev.host:trim()
    dev:close()
  end)
  before_each(function() cache = dev:host_cache() end)
  after_each(function()
    check(cache)
    cache:close()
  end)

  it("is the device's own cache, the same one for every handle of the device", function()
    local again <close> = cl.device()
    assert.equal(dev.host, dev.host)
    assert.equal(dev.host, again.host)
    assert.is_true(rawequal(dev.host, dev.host))
    assert.equal(dev, dev.host.device)
    assert.equal("mapped", dev.host.kind)
    assert.not_equal(dev.host, cache)
  end)

  it("closed, is let go of: the next use makes another handle", function()
    local host = dev.host
    local h <close> = assert(host:alloc(10))
    host:close()
    host:close()
    assert.equal("host cache (closed)", tostring(host))
    assert.matches("closed host cache", failure(host.alloc, host, 10))
    assert.is_true(h:write("still here"))
    assert.equal("still here", h:string())
    local other <close> = assert(dev.host:alloc(10))
    assert.is_true(other.is_pinned)
  end)

  it("goes with the device's handle when that is closed, not when it is collected", function()
    local other = cl.device()
    local host = other.host
    other:close()
    assert.equal("host cache (closed)", tostring(host))
    host = cl.device().host
    collectgarbage()
    collectgarbage()
    assert(host:alloc(10)):close()
  end)

  it("gives memory that the script reads and writes at once", function()
    local h <close> = assert(cache:alloc(1000))
    assert.equal(1000, h.size)
    assert.equal(1000, #h)
    assert.equal(1024, h.reserved)
    assert.equal(0, h.offset)
    assert.is_true(h.is_pinned)
    assert.is_false(h.is_view)
    assert.is_false(h.closed)
    assert.equal(dev, h.device)
    assert.is_nil(h.nosuch)
    assert.is_true(h:fill(0))
    assert.is_true(h:write("hello", 3))
    assert.equal("\0hello\0", h:read(2, 7))
    assert.equal(("\0"):rep(992), h:read(8))
    assert.equal("\0\0\0hello" .. ("\0"):rep(992), h:string())
    assert.equal(h:string(), h:read())
    assert.is_true(h:fill(7, 998))
    assert.is_true(h:fill(9, 0, 1))
    assert.equal("\9\0", h:read(0, 2))
    assert.equal("\0\7\7", h:read(997))
    assert.equal("", h:read(1000))
    assert.equal(("host buffer (1000 bytes at 0x%x, pinned)"):format(h.address), tostring(h))
  end)

  it("gives freed memory out again at once, without a driver call", function()
    local h = assert(cache:alloc(1000))
    local address = h.address
    h:close()
    local calls = cl.debug.calls "create_buffer"
    for _ = 1, 100 do
      local again <close> = assert(cache:alloc(900))
      assert.equal(address, again.address)
    end
    assert.equal(calls, cl.debug.calls "create_buffer")
    local s = check(cache)
    assert.equal(1, s.driver_allocs)
    assert.equal(101, s.allocs)
    assert.equal(101, s.frees)
    assert.equal(100, s.hits)
    assert.equal(0, s.active_bytes)
  end)

  it("takes zero bytes: an allocation with an address of its own", function()
    local a <close> = assert(cache:alloc(0))
    local b <close> = assert(cache:alloc(0))
    assert.equal(0, a.size)
    assert.equal("", a:string())
    assert.not_equal(a.address, b.address)
    assert.is_true(cl.owns(a.address))
    assert.is_true(a:record(dev.default_stream))
    assert.is_true(a:write(""))
  end)

  it("closes once: the handle says so, and any other use of it raises", function()
    local h = assert(cache:alloc(10))
    h:close()
    h:close()
    assert.is_true(h.closed)
    assert.equal("host buffer (closed)", tostring(h))
    for _, name in ipairs { "read", "write", "string", "fill", "view", "record", "copy" } do
      assert.matches("closed host buffer", failure(h[name], h, 0, 0))
    end
    assert.matches("closed host buffer", failure(function() return h.size end))
    assert.equal(1, cache:stats().frees)
  end)

  it("closes by scope and by the collector", function()
    do
      local h <close> = assert(cache:alloc(10))
      assert.is_false(h.closed)
    end
    assert(cache:alloc(10))
    collectgarbage()
    collectgarbage()
    assert.equal(0, check(cache).active_blocks)
  end)

  it("counts pinned bytes as pressure on the collector", function()
    cache:set_limits { max_cached = 0, max_block = 0 }
    for _ = 1, 100 do assert(cache:alloc(8 * MiB)) end -- nobody closes them
    assert.is_true(check(cache).peak_reserved_bytes < 200 * MiB)
    collectgarbage()
    collectgarbage()
  end)

  describe("rounds", function()
    it("to powers of two up to a threshold, then in steps that waste an eighth at most, then to pages", function()
      local c <close> = dev:host_cache { power_of_two_up_to = 1000, steps_up_to = 100000 }
      local function reserved(n)
        local h <close> = assert(c:alloc(n))
        return h.reserved
      end
      assert.equal(64, reserved(1))
      assert.equal(64, reserved(64))
      assert.equal(128, reserved(65))
      assert.equal(1024, reserved(1000))
      assert.equal(1280, reserved(1153))
      for n = 1001, 100000, 997 do
        local size = reserved(n)
        assert.is_true(size >= n and size <= n + n // 8 + 64)
      end
      assert.equal(102400, reserved(100001))
      assert.equal(106496, reserved(102401))
    end)

    it("and reports bytes asked for and bytes set aside", function()
      local h <close> = assert(cache:alloc(1000))
      local s = check(cache)
      assert.equal(1000, s.requested_bytes)
      assert.equal(1024, s.active_bytes)
      assert.equal(h.reserved, s.reserved_bytes)
      assert.same({ [1024] = 1 }, s.classes)
    end)
  end)

  describe("limits", function()
    it("the bytes kept, and the largest block kept", function()
      local c <close> = dev:host_cache { max_cached = 1 * MiB, max_block = 512 * 1024 }
      assert.equal(MiB, c.max_cached)
      assert.equal(512 * 1024, c.max_block)
      local held = {}
      for i = 1, 8 do held[i] = assert(c:alloc(200000)) end
      for i = 1, 8 do held[i]:close() end
      local s = check(c)
      assert.is_true(s.cached_bytes <= MiB and s.cached_blocks > 0)
      assert(c:alloc(600000)):close()
      assert.is_nil(c:stats().classes[524288])
      assert.is_true(c:set_limits { max_cached = 0 })
      assert.equal(0, check(c).reserved_bytes)
      assert.equal(512 * 1024, c.max_block)
      assert(c:alloc(10)):close()
      assert.equal(0, check(c).reserved_bytes)
    end)

    it("max_block: what is above a new one goes back", function()
      assert(cache:alloc(MiB)):close()
      assert.equal(MiB, cache:stats().cached_bytes)
      cache:set_limits { max_block = 1000 }
      assert.equal(0, check(cache).cached_bytes)
    end)
  end)

  it("trim gives back what is free, and says how much", function()
    local h <close> = assert(cache:alloc(5000))
    for _, n in ipairs { 100, 5000, 3 * MiB } do assert(cache:alloc(n)):close() end
    assert.equal(128 + 8192 + 3 * MiB, cache:trim())
    assert.equal(0, cache:trim())
    assert.equal(h.reserved, check(cache).reserved_bytes)
  end)

  it("keeps peaks until they are reset, and times of driver calls", function()
    do
      local a <close> = assert(cache:alloc(MiB))
      local b <close> = assert(cache:alloc(2 * MiB))
      assert(a and b)
    end
    cache:trim()
    local s = cache:stats()
    assert.equal(3 * MiB, s.peak_active_bytes)
    assert.equal(3 * MiB, s.peak_reserved_bytes)
    assert.equal(2, s.driver_allocs)
    assert.equal(2, s.driver_frees)
    assert.is_true(s.longest_alloc_us <= s.alloc_us and s.longest_free_us <= s.free_us)
    assert.is_true(cache:reset_peaks())
    s = cache:stats()
    assert.equal(0, s.peak_active_bytes)
    assert.equal(0, s.peak_reserved_bytes)
    assert.equal(0, s.peak_pending_bytes)
  end)

  describe("makes memory of the kind", function()
    for _, kind in ipairs { "mapped", "registered", "svm", "plain" } do
      it(kind, function()
        if kind == "svm" and not dev.has_svm then return pending "no shared virtual memory" end
        local c <close> = dev:host_cache { kind = kind }
        assert.equal(kind, c.kind)
        local h <close> = assert(c:alloc(100000))
        local buf <close> = assert(dev:alloc(100000))
        assert.equal(kind ~= "plain", h.is_pinned)
        assert.equal(kind == "plain" and 1 or 0, c:stats().plain_blocks)
        h:write("there and back", 5000)
        assert.is_true(buf:copy(h))
        h:fill(0)
        assert.is_true(h:copy(buf))
        assert.equal("there and back", h:read(5000, 14))
        check(c)
      end)
    end
  end)

  it("of one's own, closed: its memory goes back as it is freed, and streams cannot use it any more", function()
    local c = dev:host_cache()
    local buffers = cl.debug.live "buffer"
    local h, other = assert(c:alloc(10)), assert(c:alloc(10))
    other:close()
    c:close()
    c:close()
    assert.equal(buffers + 1, cl.debug.live "buffer")
    h:write("mine still")
    assert.equal("mine still", h:string())
    assert.matches("closed", failure(h.record, h, dev.default_stream))
    assert.matches("closed host cache", failure(c.stats, c))
    h:close()
    assert.equal(buffers, cl.debug.live "buffer")
  end)

  it("of one's own lives while an allocation of it can be reached", function()
    local h = assert(dev:host_cache():alloc(10))
    collectgarbage()
    collectgarbage()
    assert.is_true(h:record(dev.default_stream))
    h:close()
  end)
end)

describe("a view of pinned memory", function()
  local dev
  setup(function() dev = cl.device() end)
  teardown(function()
    collectgarbage()
    dev.default_stream:finish()
    dev.host:trim()
    dev:close()
  end)

  it("is a part of it, and may have parts itself", function()
    local h <close> = assert(dev.host:alloc(100))
    h:write("0123456789")
    local v = h:view(2, 6)
    local w = v:view(3)
    assert.equal(6, #v)
    assert.equal(2, v.offset)
    assert.equal(h.address + 2, v.address)
    assert.is_true(v.is_view)
    assert.equal("234567", v:string())
    assert.equal(5, w.offset)
    assert.equal("567", w:string())
    w:write("x")
    assert.equal("01234x6789", h:read(0, 10))
    v:close()
    assert.is_false(h.closed)
    assert.equal("x67", w:string())
  end)

  it("is stale once the allocation is closed: an error, not bytes", function() -- mikeseven/node-opencl#43
    local h = assert(dev.host:alloc(100))
    local v = h:view(10)
    h:close()
    assert.is_true(v.closed)
    assert.equal("host buffer (freed)", tostring(v))
    local again <close> = assert(dev.host:alloc(100)) -- the same memory, another allocation
    assert.is_false(again.closed)
    assert.is_true(v.closed)
    for _, name in ipairs { "read", "write", "string", "fill", "view", "record", "copy" } do
      assert.matches("freed host buffer", failure(v[name], v, 0, 0))
    end
    local buf <close> = assert(dev:alloc(10))
    assert.matches("freed host buffer", failure(buf.write_async, buf, v))
    assert.matches("freed host buffer", failure(buf.copy, buf, v))
  end)

  it("keeps its allocation from the collector", function()
    local v = assert(dev.host:alloc(100)):view(10)
    collectgarbage()
    collectgarbage()
    assert.is_true(v:write("alive"))
  end)

  it("is what an address inside the memory stands for", function()
    local h <close> = assert(dev.host:alloc(100))
    h:write("0123456789")
    local v, offset = cl.resolve(h.address + 7)
    assert.equal(7, offset)
    assert.equal(100, #v)
    assert.equal(h.address, v.address)
    assert.is_true(v.is_view)
    assert.equal("0123456789", v:read(0, 10))
    assert.is_true(v:record(dev.default_stream))
    assert.is_true(cl.owns(h.address + 99))
    assert.is_false(cl.owns(h.address + 100))
    local none, message, code = cl.resolve(h.address + 100)
    assert.is_nil(none)
    assert.equal("BOUNDS", code)
    assert.matches("100 bytes", message)
    v:close()
    assert.is_false(h.closed)
    local address = h.address
    h:close()
    assert.is_false(cl.owns(address))
    assert.equal("FREED", select(3, cl.resolve(address)))
  end)
end)

describe("a copy between a buffer and pinned memory", function()
  local dev, buf, h
  setup(function() dev = cl.device() end)
  teardown(function()
    collectgarbage()
    dev.default_stream:finish()
    dev.host:trim()
    dev:close()
  end)
  before_each(function() buf, h = assert(dev:alloc(100)), assert(dev.host:alloc(50)) end)
  after_each(function()
    buf:close()
    h:close()
  end)

  it("goes either way, as much as both hold", function()
    h:write(("0123456789"):rep(5))
    buf:fill(46)
    assert.is_true(buf:copy(h))
    assert.equal(h:string() .. ("."):rep(50), buf:read())
    h:fill(0)
    assert.is_true(h:copy(buf))
    assert.equal(("0123456789"):rep(5), h:string())
  end)

  it("takes offsets, a size, a stream, events to wait for, and may be asynchronous", function()
    local s <close> = dev:stream()
    h:write(("0123456789"):rep(5))
    buf:fill(46)
    local e = assert(buf:copy(h, { offset = 95, source_offset = 3, size = 4, stream = s, async = true }))
    local f = assert(h:copy(buf, { offset = 1, source_offset = 94, size = 6, wait = e, async = true }))
    assert.is_true(f:wait())
    assert.equal("0.3456.789", h:read(0, 10))
    assert.matches("reach outside", failure(h.copy, h, buf, { size = 51 }))
    assert.matches("reach outside", failure(buf.copy, buf, h, { source_offset = 51 }))
  end)

  it("between two pieces of pinned memory is the script's own", function()
    local other <close> = assert(dev.host:alloc(20))
    other:write("abcdefghij")
    assert.is_true(h:copy(other, { offset = 1, size = 3 }))
    assert.equal("abc", h:read(1, 3))
    assert.is_true(h:copy(h:view(1, 3), { offset = 2 })) -- overlapping
    assert.equal("abc", h:read(2, 3))
    assert.matches("no stream copies", failure(h.copy, h, other, { async = true }))
  end)
end)

describe("an asynchronous transfer", function()
  local dev, s, buf, cache

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)
  before_each(function()
    cache = dev:host_cache()
    s = dev:stream()
    buf = assert(dev:alloc(1000))
    buf:fill(46)
  end)
  after_each(function()
    s:finish()
    check(cache)
    cache:close()
    buf:close()
    s:close()
  end)

  it("returns an event; the script goes on", function()
    local h <close> = assert(cache:alloc(1000))
    local back <close> = assert(cache:alloc(1000))
    local text = ("0123456789"):rep(100)
    h:write(text)
    local e <close> = assert(buf:write_async(h, 0, { stream = s }))
    local f <close> = assert(buf:read_async(back, 0, { wait = e }))
    assert.is_true(f:wait())
    assert.equal(text, back:string())
    assert.equal(s, e.stream)
    assert.is_number(f:seconds())
  end)

  it("moves as much as both ends hold, or `size`, at an offset of the buffer", function()
    local h <close> = assert(cache:alloc(10))
    h:write("0123456789")
    assert(buf:write_async(h, 995, { stream = s })):wait()
    assert.equal(("."):rep(5) .. "01234", buf:read(990))
    assert(buf:write_async(h:view(7), { size = 2, stream = s })):wait()
    assert.equal("78..", buf:read(0, 4))
    assert(buf:view(500, 3):write_async(h)):wait()
    assert.equal("012.", buf:read(500, 4))
    assert(buf:read_async(h:view(3, 3), 998)):wait()
    assert.equal("0123456789", h:read(0, 3) .. h:read(3, 7))
  end)

  it("keeps both ends, whatever the script closes meanwhile", function()
    local g <close> = dev:gate()
    s:wait(g)
    local x = assert(dev:alloc(1000))
    local h, back = assert(cache:alloc(1000)), assert(cache:alloc(1000))
    local text = ("abcdefghij"):rep(100)
    h:write(text)
    local address = h.address
    assert(x:write_async(h, { stream = s })):close()
    local f = assert(x:read_async(back, { stream = s }))
    h:close()
    x:close()
    collectgarbage()
    assert.equal(1, check(cache).pending_blocks)
    local other <close> = assert(cache:alloc(1000))
    assert.not_equal(address, other.address)
    other:fill(0)
    g:open()
    assert.is_true(f:wait())
    assert.equal(text, back:string())
    back:close()
    s:finish()
    assert.is_true(cache:process_events())
    assert.equal(0, check(cache).pending_blocks)
  end)

  it("waits for gates and events given", function()
    local g <close> = dev:gate()
    local h <close> = assert(cache:alloc(10))
    local e <close> = assert(buf:write_async(h, { stream = s, wait = { g } }))
    assert.is_false(e.done)
    assert.matches("gate", failure(e.wait, e))
    g:open()
    assert.is_true(e:wait())
  end)

  it("of nothing is an event too", function()
    local h <close> = assert(cache:alloc(0))
    assert.is_true(assert(buf:write_async(h, { stream = s })):wait())
    assert.is_true(assert(buf:read_async(h, 1000, { stream = s })):wait())
  end)

  it("on the current stream when none is named", function()
    local g <close> = cl.guard(s)
    local h <close> = assert(cache:alloc(10))
    assert.equal(s, assert(buf:write_async(h)).stream)
    assert(g)
  end)
end)

describe("memory that streams use", function()
  local dev, cache, s, gate

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)
  before_each(function()
    cache, s, gate = dev:host_cache(), dev:stream(), dev:gate()
    s:wait(gate)
  end)
  after_each(function()
    gate:open()
    s:finish()
    check(cache)
    cache:close()
    s:close()
    gate:close()
  end)

  local function freed(n, stream)
    local h = assert(cache:alloc(n))
    local address = h.address
    assert.is_true(h:record(stream))
    h:close()
    return address
  end

  it("is pending when freed, until every recorded stream has come so far", function()
    local address = freed(5000, s)
    local st = check(cache)
    assert.equal(1, st.pending_blocks)
    assert.equal(8192, st.pending_bytes)
    do
      local other <close> = assert(cache:alloc(5000))
      assert.not_equal(address, other.address)
    end
    cache:trim()
    assert.equal(8192, check(cache).reserved_bytes)
    gate:open()
    s:finish()
    local again <close> = assert(cache:alloc(5000)) -- nobody has to ask: a miss looks
    assert.equal(address, again.address)
    assert.equal(8192, cache:stats().peak_pending_bytes)
  end)

  it("waits for the stream that was recorded, not for others", function()
    local t <close> = dev:stream()
    for _ = 1, 50 do freed(5000, s) end
    local address = freed(5000, t)
    t:finish()
    local again <close> = assert(cache:alloc(5000))
    assert.equal(address, again.address)
    assert.equal(50, check(cache).pending_blocks)
  end)

  it("waits for all of several", function()
    local t, u = dev:stream(), dev:stream()
    local h = assert(cache:alloc(100))
    for _, stream in ipairs { t, s, u, s, t } do assert.is_true(h:record(stream)) end
    h:close()
    t:finish()
    u:finish()
    cache:process_events()
    assert.equal(1, check(cache).pending_blocks)
    gate:open()
    s:finish()
    cache:process_events()
    assert.equal(0, check(cache).pending_blocks)
    t:close()
    u:close()
  end)

  it("becomes free by process_events, of one size if asked", function()
    freed(100, s)
    freed(5000, s)
    gate:open()
    s:finish()
    assert.is_true(cache:process_events(5000))
    assert.is_true(check(cache).pending_blocks <= 1)
    assert.is_true(cache:process_events())
    assert.equal(0, check(cache).pending_blocks)
  end)

  it("outlives the stream's handle", function() -- pytorch#66941
    local t = dev:stream()
    t:wait(gate)
    freed(100, t)
    t:close()
    assert.equal(1, check(cache).pending_blocks)
    gate:open()
    local spins = 0
    repeat
      cache:process_events()
      spins = spins + 1
    until cache:stats().pending_blocks == 0 or spins > 1e7
    assert.equal(0, check(cache).pending_blocks)
  end)

  it("of a closed cache goes back when the stream is done", function()
    local c = dev:host_cache()
    local h = assert(c:alloc(100))
    h:record(s)
    h:close()
    local buffers = cl.debug.live "buffer"
    c:close()
    assert.equal(buffers, cl.debug.live "buffer")
    gate:open()
    s:finish()
    assert.equal(buffers - 1, cl.debug.live "buffer")
  end)
end)

describe("a background thread", function()
  it("completes pending blocks without being asked", function()
    local dev <close> = cl.device()
    local cache <close> = dev:host_cache { background = true }
    local s <close> = dev:stream()
    local gate <close> = dev:gate()
    s:wait(gate)
    local h = assert(cache:alloc(100))
    h:record(s)
    h:close()
    assert.equal(1, cache:stats().pending_blocks)
    gate:open()
    s:finish()
    local deadline = cl.clock() + 60
    while cache:stats().pending_blocks > 0 do assert(cl.clock() < deadline, "never completed") end
    check(cache)
  end)
end)

describe("hooks in Lua", function()
  local dev
  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)

  it("see every block made and given back, every record and every question", function()
    local log = {}
    local function say(name)
      return function(...) log[#log + 1] = table.concat({ name, ... }, " ") end
    end
    local c <close> = dev:host_cache { hooks = {
      allocate = say "allocate", free = say "free", record = say "record",
      query = function(_, _, done) log[#log + 1] = "query " .. tostring(done) end,
    } }
    local s <close> = dev:stream()
    local h = assert(c:alloc(100))
    assert.is_true(h.is_pinned)
    assert.is_true(h:record(s))
    h:close()
    c:process_events()
    c:trim()
    assert.same({ "allocate 128 mapped", ("record %d 0"):format(s.id), "free 128 mapped" }, log)
  end)

  it("choose the kind of memory", function()
    local c <close> = dev:host_cache { kind = "registered", hooks = {
      allocate = function(n, kind) return n > 1000 and "plain" or kind end,
    } }
    local small <close> = assert(c:alloc(10))
    local large <close> = assert(c:alloc(10000))
    assert.is_true(small.is_pinned)
    assert.is_false(large.is_pinned)
    assert.equal(0, check(c).failed_pins)
  end)

  it("refuse to pin: the block is plain memory, and counted", function()
    local c <close> = dev:host_cache { hooks = { allocate = function() return false end } }
    local h <close> = assert(c:alloc(10))
    assert.is_false(h.is_pinned)
    local s = check(c)
    assert.equal(1, s.failed_pins)
    assert.equal(1, s.plain_blocks)
    assert.equal(64, s.plain_bytes)
  end)

  it("refuse the allocation: nil, their message, LIMIT", function()
    local c <close> = dev:host_cache { hooks = {
      allocate = function(n) if n > 1000 then return nil, ("%d bytes are too many"):format(n) end end,
    } }
    local h, message, code = c:alloc(1001)
    assert.is_nil(h)
    assert.equal("1024 bytes are too many", message)
    assert.equal("LIMIT", code)
    assert.is_truthy(c:alloc(10))
  end)

  it("delay what is done, but do not hasten what is not", function()
    local answer = false
    local c <close> = dev:host_cache { hooks = { query = function() return answer end } }
    local s <close> = dev:stream()
    local gate <close> = dev:gate()
    s:wait(gate)
    local h = assert(c:alloc(100))
    h:record(s)
    h:close()
    answer = true
    c:process_events()
    assert.equal(1, check(c).pending_blocks)
    gate:open()
    s:finish()
    answer = false
    c:process_events()
    assert.equal(1, check(c).pending_blocks)
    answer = true
    c:process_events()
    assert.equal(0, check(c).pending_blocks)
  end)

  it("are those given at first: a table changed later changes nothing", function()
    local count = 0
    local hooks = { allocate = function() count = count + 1 end }
    local c <close> = dev:host_cache { hooks = hooks }
    hooks.allocate = error
    assert(c:alloc(10)):close()
    assert.equal(1, count)
  end)

  it("do not keep a cache alive that nothing else refers to", function()
    local gone = setmetatable({}, { __mode = "k" })
    do
      local c
      c = dev:host_cache { hooks = { allocate = function() assert(c) end } }
      gone[c] = true
      assert(c:alloc(10)):close()
    end
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(gone))
  end)
end)
