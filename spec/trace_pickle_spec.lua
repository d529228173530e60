-- PyTorch memory snapshots: what is read of a pickle and what is refused, and that what is written is what was read,
-- by the word of Python's own reader. Needs no device.

local trace = require "clalloc.trace"
local files = require "spec.trace_files"

-- Pickles by hand.

local function text(s) return string.pack("<c1s1", "\x8c", s) end

local function int(n) return string.pack("<c2i8", "\x8a\x08", n) end

local function list(...) return "](" .. table.concat({ ... }) .. "e" end

-- Keys and values in turn; keys are Lua strings, values are pickled already.
local function dict(...)
  local parts = { ... }
  for i = 1, #parts, 2 do parts[i] = text(parts[i]) end
  return "}(" .. table.concat(parts) .. "u"
end

local function pickled(value) return "\x80\x04" .. value .. "." end

local function event(action, addr, size, ...)
  return dict("action", text(action), "addr", int(addr), "size", int(size), "stream", "K\0", "time_us", "K\5", ...)
end

local function block(size, state, requested, ...)
  return dict("size", int(size), "state", text(state), "requested_size", int(requested or size), "frames", "]", ...)
end

local function segment(address, size, blocks, ...)
  return dict("address", int(address), "total_size", int(size), "stream", "K\0", "blocks", blocks, "device", "K\0", ...)
end

local function snapshot(events, segments, ...)
  return pickled(dict("device_traces", list(events), "segments", segments or "]", ...))
end

local function load(content, opts) return trace.load(files.path(content, ".pickle"), opts) end

local function refuses(content, offset, reason, opts)
  local path = files.path(content, ".pickle")
  local ok, message = pcall(trace.load, path, opts)
  assert.is_false(ok)
  assert.equal(("%s: byte %d: %s"):format(path, offset, reason), message)
end

-- The offset of the last dict that begins before the given text.
local function dict_before(content, what)
  local at, found = assert(content:find(what, 1, true)), nil
  for position in content:gmatch "()}%(" do
    if position < at then found = position - 1 end
  end
  return found
end

local function refuses_at(content, what, reason)
  refuses(content, dict_before(content, what), reason)
end

describe("a PyTorch memory snapshot", function()
  after_each(files.remove_all)

  it("gives operations, with what was live before it found out from its end", function()
    local t = load(snapshot(list(
      event("free_requested", 0x1200, 100), event("free_completed", 0x1200, 100),
      event("alloc", 0x1400, 500), event("alloc", 0x1200, 30),
      event("free_requested", 0x1400, 500), event("free_completed", 0x1400, 500)
    ), list(segment(0x1000, 2048, list(
      block(512, "active_allocated", 7), block(512, "active_allocated", 30), block(1024, "inactive", 0))))))
    assert.equal("pickle", t.format)
    assert.same({ 1, 2, -2, 2, 3, -2 }, t.op)
    assert.same({ 7, 100, 100, 500, 30, 500 }, t.size)
    assert.equal(2, t.initial)
    assert.same({ 0x1000, 0x1200 }, t.recording.before.blocks.address)
    assert.same({ 5, 5, 5, 5, 5, 5 }, t.recording.events.time_us)
    local blocks = t.recording.segments[1].blocks
    assert.same({ 0x1000, 0x1200, 0x1400 }, blocks.address)
    assert.same({ 7, 30, 0 }, blocks.requested)
    assert.same({ "active_allocated", "active_allocated", "inactive" }, blocks.state)
  end)

  it("takes every opcode that makes a plain value, in protocols 2 to 4", function()
    local value = table.concat {
      "\x80\x02", "}q\0", "X\x08\0\0\0segments", "]r\1\1\0\0", "s", "(", "X\x0d\0\0\0device_traces", "]", "]", "a", "u",
      text "n1", "Ns", text "n2", "\x88s", text "n3", "\x89s", text "n4", "M\1\2s", text "n5", "J\xff\xff\xff\xffs",
      text "n6", "\x8a\0s", text "n7", "\x8a\1\xffs", text "n8", "G?\xf0\0\0\0\0\0\0s", text "n9", "(K\1lK\1as",
      text "n10", "(", text "k", "K\1ds", text "n11", ")s", text "n12", "(K\1K\2K\3K\4ts", text "n13", "K\1\x85s",
      text "n14", "K\1K\2\x86s", text "n15", "K\1K\2K\3\x87\x94s", text "n16", "h\0h\2\x86\0",
    }
    value = value:sub(1, -2):gsub("h\0h\2\x86", "j\1\1\0\0h\2\x86") .. "s."
    value = "\x80\x02\x95" .. string.pack("<I8", #value - 2) .. value:sub(3)
    local path, again = files.path(value, ".pickle"), files.path(nil, ".pickle")
    assert.is_true(trace.load(path):save(again, "pickle"))
    assert.same({}, files.python("same", path, again))
  end)

  it("keeps what it has no use for", function()
    local further = text "x"
    local path = files.path(snapshot(
      list(event("alloc", 0x1000, 8, "pool_id", "K\0K\1\x86", "compile_context", "N",
        "frames", list(dict("name", text "f", "filename", text "a.py", "line", "K\7", "fx", further)))),
      list(segment(0x1000, 512, list(block(512, "active_allocated", 8, "age", "G@\0\0\0\0\0\0\0")), "segment_type",
        text "small", "frames", "]")),
      "allocator_settings", dict("a", "\x88", "b", list("K\1", "N")), "odd", ")"), ".pickle")
    local again = files.path(nil, ".pickle")
    local t = trace.load(path)
    assert.equal("a.py", t.recording.stacks[t.recording.events.stack[1]][1].filename)
    assert.is_true(t:save(again, "pickle"))
    assert.is_true(#files.read(again) > 100)
    local reread = trace.load(again).recording
    assert.same({ "x" }, { reread.stacks[reread.events.stack[1]][1].further.fx })
    assert.equal(2.0, reread.segments[1].blocks.python.age[1])
    assert.equal("small", reread.segments[1].python.segment_type)
  end)

  it("counts failures; the free memory takes the place of an address", function()
    local t = load(snapshot(list(
      dict("action", text "oom", "device_free", "K\9", "size", int(1 << 40), "stream", "K\0"))))
    assert.equal(0, t.operations)
    assert.equal(1, t.failures)
    assert.same({ 9 }, t.recording.events.address)
    assert.is_nil(t.recording.events.time_us)
  end)

  it("of several devices gives the one that is asked for", function()
    local function on(device, address)
      return segment(address, 512, list(block(512, "active_allocated", 8)), "device", "K" .. string.char(device))
    end
    local two = pickled(dict("segments", list(on(0, 0x1000), on(2, 0x2000)), "device_traces", list("]", "]",
      list(event("alloc", 0x2000, 8)))))
    refuses(two, 2, "2 devices are recorded (0, 2): choose one with device = 0")
    refuses(two, 2, "nothing is recorded of device 1", { device = 1 })
    assert.equal(0, load(two, { device = 0 }).initial - load(two, { device = 0 }).operations)
    local t = load(two, { device = 2 })
    assert.same({ 0, 1 }, { t.initial, t.operations })
    local path = files.path(nil, ".pickle")
    assert.is_true(t:save(path))
    assert.equal(2, trace.load(path).recording.device)
  end)

  describe("is refused", function()
    it("when it names classes or functions, calls or builds", function()
      refuses("\x80\x02cos\nsystem\n(X\2\0\0\0lstR.", 2,
        "GLOBAL os.system is refused: only containers and plain values are read")
      refuses("\x80\x04" .. text "posix" .. text "system" .. "\x93.", 17,
        "STACK_GLOBAL posix.system is refused: only containers and plain values are read")
      refuses("\x80\x02(ios\nsystem\n.", 3, "INST os.system is refused: only containers and plain values are read")
      for code, name in pairs {
        R = "REDUCE", b = "BUILD", o = "OBJ", ["\x81"] = "NEWOBJ", ["\x92"] = "NEWOBJ_EX", P = "PERSID",
        Q = "BINPERSID",
        ["\x82"] = "EXT1", ["\x83"] = "EXT2", ["\x84"] = "EXT4", ["0"] = "POP", ["1"] = "POP_MARK", ["2"] = "DUP",
        I = "INT", L = "LONG", F = "FLOAT", S = "STRING", T = "BINSTRING", U = "SHORT_BINSTRING", V = "UNICODE",
        B = "BINBYTES", C = "SHORT_BINBYTES", ["\x8e"] = "BINBYTES8", ["\x8d"] = "BINUNICODE8", ["\x8b"] = "LONG4",
        ["\x8f"] = "EMPTY_SET", ["\x90"] = "ADDITEMS", ["\x91"] = "FROZENSET", g = "GET", p = "PUT",
        ["\x96"] = "BYTEARRAY8", ["\x97"] = "NEXT_BUFFER", ["\x98"] = "READONLY_BUFFER",
      } do
        refuses("\x80\x02}" .. code .. "\0\0\0\0.", 3,
          name .. " is refused: only containers and plain values are read")
      end
      refuses("\x80\x02\xf3.", 2, "unknown opcode 0xf3")
    end)

    it("in protocols but 2 to 4", function()
      refuses("\x80\x05}.", 0, "protocol 5; 2 to 4 are read")
      refuses("\x80\x01}.", 0, "protocol 1; 2 to 4 are read")
    end)

    it("when it is cut short, wherever that is", function()
      local whole = snapshot(list(event("alloc", 0x1000, 8)),
        list(segment(0x1000, 512, list(block(512, "active_allocated", 8)))))
      assert.equal(1, load(whole).operations)
      for length = 1, #whole - 1 do
        local path = files.path(whole:sub(1, length), ".pickle")
        local ok, message = pcall(trace.load, path)
        assert.is_false(ok)
        assert.truthy(message:find("^[^:]+: byte %d+: the file is cut short: "), message)
        os.remove(path)
      end
      refuses("\x80\x04\x95\xff\0\0\0\0\0\0\0}.", 2, "the file is cut short: a frame of 255 bytes, 2 are left")
      refuses("\x80\x04X\xff\xff\xff\xffab", 2, "the file is cut short: BINUNICODE needs 4294967295 bytes, 2 are left")
    end)

    it("when its stack does not work out", function()
      refuses("\x80\x04.", 2, "STOP with 0 values on the stack")
      refuses("\x80\x04}}.", 4, "STOP with 2 values on the stack")
      refuses("\x80\x04(}.", 4, "STOP with 1 values on the stack")
      refuses("\x80\x04}.}.", 4, "2 bytes follow the end of the pickle")
      refuses("\x80\x04K\1a.", 4, "APPEND finds no list under the values")
      refuses("\x80\x04a.", 2, "APPEND finds no value on the stack")
      refuses("\x80\x04K\1(K\1e.", 7, "APPENDS finds no list under the values")
      refuses("\x80\x04]e.", 3, "APPENDS finds no mark on the stack")
      refuses("\x80\x04](K\1((ee.", 8, "APPENDS finds no list under the values")
      refuses("\x80\x04]K\1K\2s.", 7, "SETITEM finds no dict under the values")
      refuses("\x80\x04}(K\1u.", 6, "a key without a value")
      refuses("\x80\x04}]K\1s.", 6, "a list as the key of a dict")
      refuses("\x80\x04K\1\x86.", 4, "TUPLE2 finds no value on the stack")
      refuses("\x80\x04(\x94.", 3, "MEMOIZE finds no value on the stack")
      refuses("\x80\x04h\7.", 2, "BINGET asks for memo 7, which was never stored")
      refuses("\x80\x04" .. text "\xff\xfe" .. ".", 2, "a string that is not UTF-8")
      refuses("\x80\x04\x8a\9\0\0\0\0\0\0\0\0\1.", 2, "an integer of 9 bytes; those of 64 bits are read")
    end)

    it("when it is a bomb", function()
      refuses("\x80\x04" .. ("("):rep(1000) .. ".", 258, "more than 256 unfinished containers inside each other")
      refuses("\x80\x04" .. ("]"):rep(100000) .. ".", 2 + 4096 + 12500,
        "too many containers for a file of this length")
      -- Lists of ten times the list before: 10^60 elements for who follows them all.
      local layers = { "]\x94" }
      for i = 1, 60 do
        layers[i + 1] = "](" .. ("j" .. string.pack("<I4", i - 1)):rep(10) .. "e\x94"
      end
      local bomb = "(" .. table.concat(layers) .. "l"
      local path, again = files.path(snapshot(list(event("alloc", 0x1000, 8)), "]", "odd", bomb), ".pickle"),
        files.path(nil, ".pickle")
      assert.is_true(trace.load(path):save(again))
      assert.is_true(#files.read(again) < 10000)
      local deep = ("]("):rep(70) .. ("e"):rep(70)
      refuses(snapshot(list(event("alloc", 0x1000, 8)), "]", "odd", deep), 2, "odd: containers more than 64 deep")
      -- Each event's value holds the one before.
      local events = {}
      for i = 1, 10 do
        events[i] = event("alloc", 0x1000 * i, 8, "odd",
          ("]("):rep(10) .. (i > 1 and "h" .. string.char(i - 2) or "") .. ("e"):rep(10) .. "q" .. string.char(i - 1))
      end
      local nested = snapshot(list(table.unpack(events)))
      local ok, message = pcall(load, nested)
      assert.is_false(ok)
      assert.matches("byte %d+: odd: containers more than 64 deep", message)
    end)

    -- What would be looked at a million times is named twice in the file.
    it("when it lists a thing twice", function()
      local alloc = event("alloc", 0x1000, 8)
      refuses(snapshot("](" .. alloc .. "\x94h\0e"), 2, "an event is listed twice")
      local one = segment(0x1000, 512, list(block(512, "inactive")))
      refuses(snapshot("]", "](" .. one .. "\x94h\0e"), 2, "a segment is listed twice")
      refuses_at(snapshot("]", list(segment(0x1000, 1024, "](" .. block(512, "inactive") .. "\x94h\0e"))), "blocks",
        "a block is listed twice")
      local shared = list(segment(0x1000, 512, list(block(512, "inactive")) .. "\x94"), segment(0x3000, 512, "h\0"))
      refuses_at(snapshot("]", shared), "h\0", "blocks is listed twice")
    end)

    it("when a container holds itself", function()
      refuses(snapshot("]", "]", "odd", "]\x94h\0a"), 2, "odd: a container that holds itself")
      refuses(snapshot("]", "]", "odd", "}\x94" .. text "k" .. "h\0s"), 2, "odd: a container that holds itself")
      refuses("\x80\x04}\x94(" .. text "segments" .. "]" .. text "device_traces" .. "]" .. text "all" .. "h\0u.", 2,
        "all: a container that holds itself")
      refuses("\x80\x04}\x94(" .. text "segments" .. "](h\0e" .. text "device_traces" .. "]" .. "u.", 2,
        "address: expected int, got nothing")
      refuses("\x80\x04}(" .. text "segments" .. "]\x94h\0a" .. text "device_traces" .. "]" .. "u.", 2,
        "a segment: expected dict, got list")
      local frames = "]\x94h\0a"
      refuses_at(snapshot(list(event("alloc", 0x1000, 8, "frames", frames))), "\x94h\0a",
        "a frame: expected dict, got list")
    end)

    it("when it is no snapshot", function()
      refuses(pickled "]", 0, "expected a dict of segments and device_traces, got list")
      refuses(pickled "K\1", 0, "expected a dict of segments and device_traces, got int")
      refuses(pickled "N", 0, "expected a dict of segments and device_traces, got None")
      refuses(pickled "}", 2, "segments: expected list, got nothing")
      refuses(pickled(dict("segments", "]")), 2, "device_traces: expected list, got nothing")
      refuses(pickled(dict("segments", "]", "device_traces", list "K\1")), 2,
        "a trace of device_traces: expected list, got int")
      refuses(snapshot(list "K\1"), 2, "an event: expected dict, got int")
    end)

    it("when an event is not as it should be", function()
      local function refuses_event(what, reason, ...)
        refuses_at(snapshot(list(event(...))), what, reason)
      end
      refuses_event("resize", "unknown action 'resize'", "resize", 0x1000, 8)
      refuses_event("alloc", "addr is negative: -4096", "alloc", -0x1000, 8)
      refuses_event("alloc", "size is negative: -8", "alloc", 0x1000, -8)
      refuses_event("alloc", "size 9007199254740993 is over 2^53", "alloc", 0x1000, (1 << 53) + 1)
      refuses_event("alloc", "size: expected int, got float", "alloc", 0x1000, 8, "size", "G?\xf0\0\0\0\0\0\0")
      refuses_event("alloc", "stream: expected int, got string", "alloc", 0x1000, 8, "stream", text "s")
      refuses_event("alloc", "time_us: expected int, got None", "alloc", 0x1000, 8, "time_us", "N")
      refuses_event("alloc", "frames: expected list, got int", "alloc", 0x1000, 8, "frames", "K\1")
      local bad_frame = list(dict("name", text "f", "line", "K\1"))
      refuses_at(snapshot(list(event("alloc", 0x1000, 8, "frames", bad_frame))), "name",
        "filename of a frame: expected string, got nothing")
      refuses_at(snapshot(list(dict("action", text "alloc", "size", "K\1", "stream", "K\0"))), "alloc",
        "an event without addr")
      refuses_at(snapshot(list(event("alloc", 0x1000, 8), dict("action", text "alloc", "addr", "K\2", "size", "K\1",
        "stream", "K\0", "mark", "K\1"))), "mark", "time_us is in some events and not in others")
    end)

    it("when a segment or a block is not as it should be", function()
      local function refuses_segment(what, reason, ...)
        refuses_at(snapshot("]", list(segment(...))), what, reason)
      end
      refuses_segment("state", "unknown state 'free'", 0x1000, 512, list(block(512, "free")))
      refuses_segment("address", "the blocks of the segment at 0x1000 sum up to 512 bytes, not to 1024", 0x1000, 1024,
        list(block(512, "inactive")))
      refuses_segment("address", "block 2 of the segment at 0x1000 begins at 0x1300, not at 0x1200", 0x1000, 1024,
        list(block(512, "inactive"), block(512, "inactive", 0, "address", int(0x1300))))
      refuses_segment("total_size", "blocks: expected list, got int", 0x1000, 512, "K\1")
      refuses_segment("total_size", "a block: expected dict, got int", 0x1000, 512, list "K\1")
      refuses_segment("total_size", "device 1024 is over 1023", 0x1000, 512, list(block(512, "inactive")), "device",
        "M\0\4")
      local one = segment(0x1000, 1024, list(block(1024, "inactive")))
      local other = segment(0x1200, 512, list(block(512, "inactive")))
      refuses_at(snapshot("]", list(one, other)), other:sub(3), "the segment at 0x1200 overlaps the one at 0x1000")
    end)

    it("when its events cannot have been", function()
      local function map(...)
        return list(segment(0x1000, 2048, list(...)))
      end
      local free_map = map(block(2048, "inactive"))
      local alloc, free = event("alloc", 0x1000, 8), event("free_completed", 0x1000, 8)
      local function later(pickle) return (pickle:gsub("K\5u$", "K\6u")) end
      local twice = snapshot(list(alloc, free, later(free)), free_map)
      refuses_at(twice, "K\6", "event 3: free of 0x1000, which is not live")
      refuses_at(snapshot(list(alloc, later(alloc), free), free_map), "K\5",
        "event 1: 0x1000 is allocated twice without a free, or live at the end and in no segment")
      refuses_at(snapshot(list(alloc), free_map), "K\5",
        "event 1: 0x1000 is allocated twice without a free, or live at the end and in no segment")
      refuses_at(snapshot(list(alloc, free), map(block(2048, "active_allocated"))), "free_completed",
        "event 2: free of 0x1000, which is not live")
      local asked = event("free_requested", 0x1000, 8)
      refuses_at(snapshot(list(alloc, asked, later(asked), free), free_map), "K\6",
        "event 3: the free of 0x1000 was requested before")
      refuses_at(snapshot(list(event("alloc", 0, 8))), "alloc", "event 1: allocation without an address")
    end)
  end)
end)

describe("a trace saved as a pickle", function()
  after_each(files.remove_all)

  -- What Python sees: events and segments of a recording, one a line.
  local function lines_of(rec)
    local lines = {}
    local function add(...) lines[#lines + 1] = table.concat({ ... }, " ") end
    local e = rec.events
    for k, action in ipairs(e.action) do
      local function event_line(name) add(name, e.address[k], e.size[k], e.stream[k], e.time_us[k]) end
      if action == "free" then
        event_line "free_requested"
        event_line "free_completed"
      else
        event_line(action)
      end
    end
    for _, s in ipairs(rec.segments) do
      add("segment", s.address, s.size, s.stream)
      for i, address in ipairs(s.blocks.address) do
        add("block", address, s.blocks.size[i], s.blocks.requested[i], s.blocks.state[i])
      end
    end
    return lines
  end

  it("opens in PyTorch's viewer and has every event and segment", function()
    for seed = 1, 4 do
      local path = files.path(nil, ".pickle")
      local t = trace.new(files.random_recording(seed, 1500, seed % 2 * 400))
      assert.is_true(t:save(path, "pickle"))
      assert.same(lines_of(t.recording), files.python("snapshot", path))
    end
  end)

  it("is read back with threads and sizes of blocks", function()
    local path = files.path(nil, ".pickle")
    local t = trace.new(files.random_recording(5, 800, 100))
    assert.is_true(t:save(path))
    local again = trace.load(path)
    local second = files.path(nil, ".pickle")
    assert.is_true(again:save(second))
    files.python("same", path, second)
    assert.same(t.size, again.size)
    assert.same(t.stream, again.stream)
  end)

  it("is the same whoever pickled it, in each protocol", function()
    local path = files.path(nil, ".pickle")
    assert.is_true(trace.new(files.random_recording(6, 1200, 50)):save(path))
    for protocol = 2, 4 do
      local theirs, ours = files.path(nil, ".pickle"), files.path(nil, ".pickle")
      files.python("repickle", path, theirs, protocol)
      assert.is_true(trace.load(theirs):save(ours))
      files.python("same", path, ours)
    end
  end)

  -- None of these has segments that hold its blocks.
  it("has segments around its blocks, wherever it comes from", function()
    local rec = trace.recorder()
    for i = 1, 300 do
      rec:alloc(i, i * 100 % 7000, i % 3)
      if i > 20 then rec:free(i - 20) end
    end
    local snapshot_rows = "seq,action,addr,size,stream,time_us\n"
    local traces = {
      recorder = rec:finish(),
      scaled = trace.new(files.random_recording(7, 500, 100)):scaled(3),
      rmm = trace.load(files.path [[
Thread,Time,Action,Pointer,Size,Stream
1,10:00:00.000001,allocate,0x7f0000000000,256,0
1,10:00:00.000002,allocate,(nil),0,0
2,10:00:00.000003,allocate,0x7f0040000000,0,7
1,10:00:00.000004,free,0x7f0000000000,256,0
1,10:00:00.000005,allocate failure,(nil),99999,0
]]),
      handles = trace.load(files.path(snapshot_rows .. [[
0,alloc,0xfffffffffffff000,100,0,0
1,alloc,0x1,100,0,0
]])),
      overlapping = trace.load(files.path(snapshot_rows .. "0,alloc,0x1000,4096,0,0\n1,alloc,0x1800,4096,0,0\n")),
      never_complete = trace.load(files.path(snapshot_rows .. [[
0,segment_alloc,0x1000,4096,0,0
1,alloc,0x1000,512,0,0
2,free_requested,0x1000,512,0,0
3,alloc,0x1000,100,0,0
4,free_requested,0x1000,100,0,0
]])),
      outside = trace.load(files.path(snapshot_rows .. [[
0,segment_alloc,0x1000,4096,0,0
1,alloc,0x9000,512,0,0
2,segment_free,0x77000,4096,0,0
]])),
      empty = trace.recorder():finish(),
    }
    local paths = {}
    for name, t in pairs(traces) do
      local path = files.path(nil, ".pickle")
      paths[#paths + 1] = path
      assert.is_true(t:save(path, "pickle"), name)
      local again = trace.load(path)
      assert.same(t.size, again.size, name)
      assert.same(t.op, again.op, name)
    end
    files.python("check", table.unpack(paths))
  end)

  it("keeps the segments of a CSV snapshot", function()
    local path = files.path("seq,action,addr,size,stream,time_us\n"
      .. "0,alloc,0x1200,100,0,1\n1,segment_alloc,0x9000,4096,0,2\n2,alloc,0x9000,4096,0,3\n")
    files.write(path:gsub("%.csv$", ".initial.csv"), "kind,addr,size\nsegment,0x1000,4096\nlive,0x1000,32\n")
    local pickle = files.path(nil, ".pickle")
    assert.is_true(trace.load(path):save(pickle))
    os.remove((path:gsub("%.csv$", ".initial.csv")))
    assert.same({
      "alloc 4608 100 0 1", "segment_alloc 36864 4096 0 2", "alloc 36864 4096 0 3",
      "segment 4096 4096 0", "block 4096 32 32 active_allocated", "block 4128 480 0 inactive",
      "block 4608 100 100 active_allocated", "block 4708 3484 0 inactive",
      "segment 36864 4096 0", "block 36864 4096 4096 active_allocated",
    }, files.python("snapshot", pickle))
  end)

  it("keeps segments that grow and shrink in place", function()
    local grown = {
      events = {
        action = { "segment_map", "alloc", "segment_map", "alloc", "free", "segment_unmap", "segment_map" },
        address = { 0x200000, 0x200000, 0x400000, 0x500000, 0x200000, 0x200000, 0x600000 },
        size = { 0x200000, 100, 0x200000, 200, 100, 0x200000, 0x200000 },
      },
      segments = { {
        address = 0x400000, size = 0x400000,
        blocks = {
          address = { 0x400000, 0x500000, 0x500200 }, size = { 0x100000, 512, 0x2ffe00 }, requested = { 0, 200, 0 },
          state = { "inactive", "active_allocated", "inactive" },
        },
      } },
    }
    local path = files.path(nil, ".pickle")
    assert.is_true(trace.new(grown):save(path))
    local lines = files.python("snapshot", path)
    assert.equal(8 + 4, #lines)
    assert.equal("segment_unmap 2097152 2097152 0 0", lines[7])
    -- The same without the segments at the end: they follow from the events.
    grown.segments = nil
    assert.is_true(trace.new(grown):save(path))
    assert.same(lines[9], files.python("snapshot", path)[9])
    -- Mapped twice: no segments that could be, so others are made up.
    grown.events.address[7] = 0x400000
    assert.is_true(trace.new(grown):save(path))
    assert.equal(5 + 1 + 3, #files.python("snapshot", path))
  end)

  it("splits long lists into batches that the viewer takes", function()
    local rec = trace.recorder()
    for i = 1, 2500 do rec:alloc(i, 8) end
    local path = files.path(nil, ".pickle")
    assert.is_true(rec:finish():save(path))
    assert.equal(2500 + 1 + 2 * 2500, #files.python("snapshot", path))
  end)

  it("says so when its blocks need more addresses than the viewer has", function()
    local rec = trace.recorder()
    rec:alloc(1, 1 << 53)
    local path = files.path(nil, ".pickle")
    local ok, message = rec:finish():save(path)
    assert.is_nil(ok)
    assert.equal("the blocks do not fit addresses below 0x1fffffffffffff", message)
    assert.is_nil(io.open(path, "rb"))
  end)
end)

local RECORDINGS = "../shared/traces/"

local function is_readable(path)
  local handle = io.open(path, "rb")
  return handle and handle:close()
end

if is_readable(RECORDINGS .. "README.md") then
  describe("a snapshot of a real program", function()
    after_each(files.remove_all)

    it("is written as it was read, all of it", function()
      local original, path = RECORDINGS .. "pytorch_snapshot/lm_128_infer.pickle", files.path(nil, ".pickle")
      local t = trace.load(original)
      assert.same({ 1280, 3840, 98, 223 }, {
        t.allocations - t.initial, #t.recording.events.action, #t.recording.segments, t.initial,
      })
      assert.is_true(t:save(path))
      files.python("same", original, path)
      assert.same(files.python("snapshot", original), files.python("snapshot", path))
    end)

    it("opens in the viewer from another format too", function()
      local paths = {}
      for i, name in ipairs { "pytorch_snapshot/lm_512_infer.csv", "pytorch_snapshot/lm_step_c.csv",
        "lifetimes/alexnet_train.log", "timeline/resnet50_v100_gpu_memory_deltas.csv" } do
        local t, path = trace.load(RECORDINGS .. name), files.path(nil, ".pickle")
        assert.is_true(t:save(path))
        local again = trace.load(path)
        assert.same(t.op, again.op)
        assert.same(t.size, again.size)
        paths[i] = path
      end
      files.python("check", table.unpack(paths))
    end)
  end)
end
