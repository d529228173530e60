-- Several devices in one process, none at all, and the environment's choice among them.
--
-- PoCL makes two devices when POCL_DEVICES says so before it is loaded: the specs of two devices run in a
-- process of their own, which is this file again.

local cl = require "clalloc"
local failure = require "spec.failure"

local TWO <const> = "pthread pthread"

-- Where the module is found, for a child; nothing when the environment says it already.
local MODULE <const> = os.getenv "LUA_CPATH" and "" or
  ("LUA_PATH='%s' LUA_CPATH='%s'"):format(package.path, package.cpath)

local function run(environment, command)
  local pipe <close> = assert(io.popen(("%s %s timeout 120 %s 2>&1"):format(MODULE, environment, command)))
  local output = pipe:read "a"
  local ok, how, code = pipe:close()
  return output, ok, how, code
end

-- What a Lua program writes, errors included.
local function output_of(program, environment)
  local name = os.tmpname()
  local file <close> = assert(io.open(name, "w"))
  file:write('local cl = require "clalloc"\n', program)
  file:close()
  local output = run(environment, "lua5.4 " .. name)
  os.remove(name)
  return output
end

-- Copies between two devices, of which `real` ones keep what is written.
local function copies(get)
  local a, b, x, y

  before_each(function()
    a, b = get()
    x, y = assert(a:alloc(1000)), assert(b:alloc(1000))
  end)
  after_each(function()
    x:close()
    y:close()
  end)

  local function expect(bytes, buf)
    if not buf.device.simulated then assert.equal(bytes, buf:read()) end
  end

  -- Reads of a simulated device find zeros.
  local function seen(bytes, from)
    return from.device.simulated and ("\0"):rep(#bytes) or bytes
  end

  it("copies bytes from either to the other", function()
    local text = ("0123456789"):rep(100)
    x:write(text)
    y:fill(1)
    assert.is_true(y:copy(x))
    expect(seen(text, x), y)
    x:fill(2)
    assert.is_true(x:copy(y))
    expect(y.device.simulated and ("\0"):rep(1000) or seen(text, x), x)
  end)

  it("copies a part to any place", function()
    x:write(("0123456789"):rep(100))
    y:fill(".")
    assert.is_true(y:copy(x, { source_offset = 13, offset = 501, size = 7 }))
    expect(("."):rep(501) .. seen("3456789", x) .. ("."):rep(492), y)
  end)

  it("copies more than one piece of what lies between", function()
    local nbytes = 9 * cl.MiB + 13
    local big <close> = assert(a:alloc(nbytes))
    local other <close> = assert(b:alloc(nbytes))
    big:fill("abcdefgh", { size = nbytes // 8 * 8 })
    big:fill("!", { offset = nbytes // 8 * 8 })
    assert.is_true(other:copy(big))
    if not b.simulated and not a.simulated then
      local text = ("abcdefgh"):rep(nbytes // 8) .. "!!!!!"
      assert.is_true(other:read() == text)
    end
  end)

  for _, side in ipairs { "the sending", "the receiving" } do
    it("copies without waiting on a stream of " .. side .. " side", function()
      local s <close> = side == "the sending" and a:stream() or b:stream()
      local text = ("async "):rep(166) .. "...."
      x:write(text)
      y:fill(0)
      local event <close> = assert(y:copy(x, { stream = s, async = true }))
      assert.is_true(event:wait())
      assert.equal("complete", event:status())
      expect(seen(text, x), y)
    end)

    it("copies behind a gate on " .. side .. " side, whatever is closed meanwhile", function()
      local dev = side == "the sending" and a or b
      local s <close> = dev:stream()
      local gate <close> = dev:gate()
      local source = assert(a:alloc(500))
      source:fill("s")
      y:fill(0)
      s:wait(gate)
      local event <close> = assert(y:copy(source, { stream = s, async = true, size = 500 }))
      source:close()
      assert.not_equal("complete", event:status())
      gate:open()
      assert.is_true(event:wait())
      expect(seen(("s"):rep(500), x) .. ("\0"):rep(500), y)
      assert.is_true(a:pool():check())
      assert.is_true(b:pool():check())
    end)

    it("copies after an event of " .. side .. " side", function()
      local dev, buf = a, x
      if side == "the receiving" then dev, buf = b, y end
      local s <close> = dev:stream()
      local gate <close> = dev:gate()
      x:fill("a")
      s:wait(gate)
      local before <close> = assert(buf:fill("b", { stream = s, async = true, size = 10 }))
      local copied <close> = assert(y:copy(x, { async = true, size = 5, wait = before }))
      assert.not_equal("complete", copied:status())
      gate:open()
      assert.is_true(copied:wait())
      if not a.simulated and not b.simulated then
        assert.equal(side == "the sending" and "bbbbb" or "aaaaa", y:read(0, 5))
      end
    end)
  end

  it("gives an event of the receiving side", function()
    local event <close> = assert(y:copy(x, { async = true }))
    local to <close> = b:stream()
    local from <close> = a:stream()
    assert.is_true(to:wait(event))
    assert.matches("belongs to", failure(from.wait, from, event))
    assert.is_true(event:wait())
    assert.is_true(to:finish())
  end)

  it("leaves a hundred copies in order and nothing behind", function()
    local before = cl.debug.live()
    for i = 1, 100 do
      assert(x:fill(i, { async = true })):close()
      assert(y:copy(x, { async = true })):close()
      assert(x:copy(y, { async = true })):close()
    end
    assert.is_true(a.default_stream:finish())
    assert.is_true(b.default_stream:finish())
    expect(seen(("d"):rep(1000), x), y)
    for _ = 1, 40 do
      x:fill(0)
      y:fill(0)
    end
    a.default_stream:query()
    b.default_stream:query()
    for kind, n in pairs(cl.debug.live()) do
      if kind ~= "sub_buffer" then assert(n <= (before[kind] or 0), ("%d of %s"):format(n, kind)) end
    end
  end)

  it("copies no bytes, too", function()
    assert.is_true(y:copy(x, { size = 0 }))
    local event <close> = assert(y:copy(x, { size = 0, async = true }))
    assert.is_true(event:wait())
  end)

  it("does not copy to or from what is freed", function()
    local gone = assert(b:alloc(10))
    gone:close()
    assert.matches("closed", failure(x.copy, x, gone))
    assert.matches("closed", failure(gone.copy, gone, x))
  end)
end

-- Everything of `a` refuses what is of `b`.
local function strangers(get)
  local a, b, x, s, gate, event

  before_each(function()
    a, b = get()
    x = assert(a:alloc(64))
    s, gate = b:stream(), b:gate()
    local y <close> = assert(b:alloc(64))
    event = assert(y:fill(0, { async = true }))
  end)
  after_each(function()
    for _, it in ipairs { event, gate, s, x } do it:close() end
  end)

  it("refuses the stream of another device in every command", function()
    local own <close> = assert(a:alloc(64))
    local stats = a:pool():stats()
    local calls = {
      alloc = function() return a:alloc(16, { stream = s }) end,
      ["pool:alloc"] = function() return a:pool():alloc(16, s) end,
      write = function() return x:write("x", 0, { stream = s }) end,
      read = function() return x:read(0, 1, { stream = s }) end,
      fill = function() return x:fill(0, { stream = s }) end,
      copy = function() return own:copy(x, { stream = s }) end,
      record = function() return x:record(s) end,
      wait = function() return s:wait(a.default_stream) end,
    }
    for name, call in pairs(calls) do
      assert.matches("belong", failure(call), nil, nil, name)
    end
    assert.same(stats, a:pool():stats())
    assert.is_true(a:pool():check())
  end)

  it("refuses its pools, events and gates", function()
    local pool <close> = assert(b:pool {})
    assert.matches("belong", failure(a.alloc, a, 16, { pool = pool }))
    assert.matches("belong", failure(x.fill, x, 0, { wait = event }))
    assert.matches("belong", failure(x.fill, x, 0, { wait = { gate }, async = true }))
    local own <close> = a:stream()
    assert.matches("belong", failure(own.wait, own, event))
    assert.matches("belong", failure(own.wait, own, gate))
    assert.matches("belong", failure(own.wait, own, s))
  end)

  it("refuses its buffers and streams in a kernel", function()
    local prog <close> = a:program "kernel void one(global int *x) { x[0] = 1; }"
    local one <close> = prog.one
    local y <close> = assert(b:alloc(64))
    assert.matches(b.name, failure(one, { y, size = 1 }), 1, true)
    assert.matches("belong", failure(one, { x, size = 1, stream = s }))
    assert.matches("belong", failure(one, { x, size = 1, wait = event }))
    local done <close> = assert(one { x, size = 1 })
    assert.is_true(done:wait())
  end)

  it("refuses its heap in a kernel, and has one of its own", function()
    local prog <close> = assert(a:program [[
      typedef uint cla_heap_word; /* as in src/heap/kernels/begin.cl */
      #ifndef CLA_HEAP
      #define CLA_HEAP global cla_heap_word *
      #endif
      kernel void look(CLA_HEAP heap, global int *x) { x[0] = heap[0] != 0; }]])
    assert.matches("the heap belongs to " .. b.name, failure(prog.look, { b.heap, x, size = 1 }), 1, true)
    local done <close> = assert(prog.look { a.heap, x, size = 1 })
    assert.is_true(done:wait())
    assert.matches("fixed", failure(function() a.heap.limit = cl.MiB end))
    b.heap.limit = cl.MiB
    assert.is_true(a.heap:reset())
    assert.equal(8 * cl.MiB, a.heap.limit)
    assert.equal(cl.MiB, b.heap.limit)
    b.heap.limit = 8 * cl.MiB
  end)

  it("is a device apart: pools, streams and limits are its own", function()
    local own, other = a:pool():stats(), b:pool():stats()
    assert.not_equal(a, b)
    assert.not_equal(a:pool(), b:pool())
    assert.not_equal(a.default_stream, b.default_stream)
    local buf <close> = assert(a:alloc(3 * cl.MiB))
    assert.equal(own.allocs + 1, a:pool():stats().allocs)
    assert.same(other, b:pool():stats())
    assert.equal(a, buf.device)
    local found = cl.resolve(buf.address)
    assert.equal(a, found.device)
    b:pool():trim()
    assert.is_true(buf:fill(1))
  end)

  it("is current where a guard says so", function()
    local function current() return (cl.current()) end
    local outer <close> = cl.guard(a)
    assert.equal(a, current())
    do
      local inner <close> = cl.guard(b)
      assert.equal(b, current())
      do
        local innermost <close> = cl.guard(a)
        assert.equal(a, current())
        assert(innermost)
      end
      assert.equal(b, current())
      assert(inner)
    end
    assert.equal(a, current())
    do
      local stream <close> = cl.guard(s)
      local dev, now = cl.current()
      assert.equal(b, dev)
      assert.equal(s, now)
      local mine <close> = assert(b:alloc(16))
      assert.equal(s, mine.stream)
      local theirs <close> = assert(a:alloc(16)) -- the guard is another device's
      assert.equal(a.default_stream, theirs.stream)
      assert(stream)
    end
    assert(outer)
  end)
end

if os.getenv "POCL_DEVICES" == TWO then
  describe("two devices of one platform", function()
    local list

    local function get() return list[1], list[2] end
    local function get_reversed() return list[2], list[1] end

    setup(function()
      list = {}
      for _, dev in ipairs(cl.devices()) do
        if dev.platform == "Portable Computing Language" then list[#list + 1] = dev else dev:close() end
      end
    end)
    teardown(function()
      for _, dev in ipairs(list) do dev:close() end
    end)

    it("are two", function()
      assert.equal(2, #list)
      assert.not_equal(list[1], list[2])
      assert.not_equal(list[1].index, list[2].index)
      local again <close> = cl.device(list[2].index)
      assert.equal(list[2], again)
      again:close()
      local by_text <close> = cl.device(tostring(list[2].index))
      assert.equal(list[2], by_text)
    end)

    it("work on when the other is closed", function()
      local other = cl.device(list[2].index)
      local buf <close> = assert(other:alloc(16))
      other:close()
      assert.is_true(buf:fill(7))
      assert.equal(("\7"):rep(16), buf:read())
    end)

    describe("from the first to the second", function() copies(get) end)
    describe("from the second to the first", function() copies(get_reversed) end)
    describe("of which the first", function() strangers(get) end)
    describe("of which the second", function() strangers(get_reversed) end)
  end)
  return
end

it("two devices of one platform (in a process of their own)", function()
  local has_pocl = false
  for _, dev in ipairs(cl.devices()) do
    has_pocl = has_pocl or dev.platform == "Portable Computing Language"
    dev:close()
  end
  if not has_pocl then return pending "PoCL makes two devices; it is not here" end
  local busted = ("lua5.4 -W '%s' --output=plainTerminal --helper=spec/helper.lua '%s'"):format(arg[0],
    debug.getinfo(1, "S").source:sub(2))
  local output, ok = run(("POCL_DEVICES='%s'"):format(TWO), busted)
  assert(ok, output)
end)

describe("a real and a simulated device", function()
  local real, sim

  local function get() return real, sim end
  local function get_reversed() return sim, real end

  setup(function() real, sim = cl.device(), cl.simulate { capacity = 64 * cl.MiB } end)
  teardown(function()
    real:close()
    sim:close()
  end)

  describe("from the real to the simulated", function() copies(get) end)
  describe("from the simulated to the real", function() copies(get_reversed) end)
  describe("of which the real", function() strangers(get) end)
  describe("of which the simulated", function() strangers(get_reversed) end)
end)

describe("two simulated devices", function()
  it("copy when the receiving one has done its part: the sending one is waited for", function()
    local a <close> = cl.simulate { capacity = cl.MiB, manual = true }
    local b <close> = cl.simulate { capacity = cl.MiB, manual = true }
    local x <close> = assert(a:alloc(100))
    local y <close> = assert(b:alloc(100))
    local to <close> = b:stream()
    local event <close> = assert(y:copy(x, { stream = to, async = true }))
    assert.equal(0, a:complete(a.default_stream)) -- done already
    assert.not_equal("complete", event:status())
    assert.is_true(b:complete(to) > 0)
    assert.equal("complete", event:status())
  end)

  it("refuse a copy from behind a gate that would have to be waited for", function()
    local a <close> = cl.simulate { capacity = cl.MiB, manual = true }
    local b <close> = cl.simulate { capacity = cl.MiB }
    local x <close> = assert(a:alloc(100))
    local y <close> = assert(b:alloc(100))
    local gate <close> = a:gate()
    a.default_stream:wait(gate)
    local ok, message = pcall(y.copy, y, x, { async = true })
    assert.is_false(ok)
    assert.matches("gate", message)
    gate:open()
    assert(y:copy(x, { async = true })):close()
  end)
end)

describe("without any device", function()
  local NONE <const> = "OCL_ICD_VENDORS=/nonexistent"

  it("cl.device() raises an error that says what to install", function()
    local text = output_of([[
      print(pcall(cl.device))
      print(pcall(cl.device, 0))
      print(pcall(cl.current))
    ]], NONE)
    local n = 0
    for line in text:gmatch "[^\n]+" do
      assert.matches("^false", line)
      assert.matches("no OpenCL device", line, 1, true)
      assert.matches("apt-get install", line, 1, true)
      n = n + 1
    end
    assert.equal(3, n)
  end)

  it("cl.devices() is empty", function()
    assert.equal("0\n", output_of([[print(#cl.devices())]], NONE))
  end)

  it("cl.simulate works, with all that hangs on it", function()
    assert.equal("100\ttrue\ttrue\n", output_of([[
      local dev <close> = cl.simulate { capacity = cl.GiB }
      local buf <close> = assert(dev:alloc(100))
      local prog <close> = dev:program "kernel void one(global int *x) { x[0] = 1; }"
      local event <close> = assert(prog.one { buf, size = 1 })
      local g <close> = cl.guard(dev)
      print(buf.size, event:wait(), cl.current() == dev)
    ]], NONE))
  end)
end)

describe("the environment", function()
  local PROGRAM <const> = [[local dev = cl.device() io.write(dev.index, " ", dev.type, " ", dev.name)]]
  local list

  setup(function()
    list = {}
    for i, dev in ipairs(cl.devices()) do
      list[i] = { index = dev.index, type = dev.type, name = dev.name, platform = dev.platform }
      dev:close()
    end
  end)

  local function chosen(selector)
    return output_of(PROGRAM, ("CLALLOC_DEVICE='%s'"):format(selector))
  end

  local function line(dev) return ("%d %s %s"):format(dev.index, dev.type, dev.name) end

  it("chooses by index", function()
    for _, dev in ipairs(list) do assert.equal(line(dev), chosen(dev.index)) end
  end)

  it("chooses by type, whatever the case", function()
    assert.equal(list[1].type, chosen(list[1].type):match "^%d+ (%a+)")
    assert.equal(list[1].type, chosen(list[1].type:upper()):match "^%d+ (%a+)")
  end)

  it("chooses by a part of the name or of the platform's name, whatever the case", function()
    local last = list[#list]
    assert.equal(last.name, chosen(last.name:sub(2, -2):upper()):match "^%d+ %a+ (.*)")
    assert.is_truthy(chosen(last.platform:sub(1, -2):lower()):find(" ", 1, true))
  end)

  it("chooses nothing when it is empty", function()
    assert.equal(output_of(PROGRAM, "CLALLOC_DEVICE="), output_of(PROGRAM, "env -u CLALLOC_DEVICE"))
  end)

  it("that names no device gets an error with those that are", function()
    for _, selector in ipairs { "no such thing", "99", "accelerator", "18446744073709551616" } do
      local text = chosen(selector)
      assert.matches(("no device '%s'"):format(selector), text, 1, true)
      for _, dev in ipairs(list) do
        assert.matches(("%d: %s (%s)"):format(dev.index, dev.name, dev.platform), text, 1, true)
      end
    end
  end)
end)
