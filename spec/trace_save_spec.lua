-- Recordings: made from columns, kept behind a trace, saved for others, read back. Needs no device.

local trace = require "clalloc.trace"
local files = require "spec.trace_files"

local HEADER = "action,addr,size,stream,time_us,thread,block,state\n"

local function exists(path)
  local handle = io.open(path, "rb")
  return handle ~= nil and handle:close()
end

-- What remains of an earlier attempt beside a path.
local function leftovers(path)
  local pipe <close> = assert(io.popen(("ls '%s'.* 2>/dev/null"):format(path)))
  return pipe:read "a"
end

local function small()
  return {
    events = {
      action = { "segment_alloc", "alloc", "alloc", "free" }, address = { 0x1000, 0x1000, 0x1200, 0x1000 },
      size = { 4096, 100, 7, 100 },
    },
    segments = { {
      address = 0x1000, size = 4096, stream = 3,
      blocks = {
        address = { 0x1000, 0x1200, 0x1400 }, size = { 512, 512, 3072 }, requested = { 0, 7, 0 },
        state = { "inactive", "active_allocated", "inactive" },
      },
    } },
  }
end

describe("trace.new", function()
  after_each(files.remove_all)

  it("makes a trace of columns", function()
    local t = trace.new(small())
    assert.same({ 1, 2, -1 }, t.op)
    assert.same({ 100, 7, 100 }, t.size)
    assert.same({ "recorded", "recorded", 1, 0 }, { t.name, t.format, t.scale, t.failures })
    assert.same({}, t.recording.before.blocks.address)
    assert.equal("step", trace.new({ name = "step", events = { action = {}, address = {}, size = {} } }).name)
  end)

  it("finds out what was live before, when the oldest events are lost", function()
    for seed = 1, 5 do
      local whole, cut = files.random_recording(seed, 1000, 0), files.random_recording(seed, 1000, 300)
      local rest = trace.new(cut)
      assert.equal(0, trace.new(whole).initial)
      -- The blocks that the lost events leave live are those that the rest begins with.
      local live, lost = {}, #whole.events.action - #cut.events.action
      for k = 1, lost do
        local action, address = whole.events.action[k], whole.events.address[k]
        if action == "alloc" then live[address] = whole.events.size[k] end
        if action == "free" or action == "free_completed" then live[address] = nil end
      end
      local found = {}
      for i, address in ipairs(rest.recording.before.blocks.address) do
        found[address] = rest.recording.before.blocks.size[i]
      end
      assert.same(live, found)
    end
  end)

  it("takes what was live before, when that is known", function()
    local given = small()
    given.before = { blocks = { address = { 0x1400 }, size = { 9 }, stream = { 2 } } }
    given.segments = nil
    table.insert(given.events.action, "free_completed")
    table.insert(given.events.address, 0x1400)
    table.insert(given.events.size, 9)
    local t = trace.new(given)
    assert.same({ 1, 2, 3, -2, -1 }, t.op)
    assert.same({ 1, 0, 0, 0, 1 }, t.stream)
    given.before = {}
    assert.error_matches(function() trace.new(given) end, "trace.new: event 5: free of 0x1400, which is not live",
      1, true)
  end)

  describe("refuses", function()
    local function refuses(reason, change)
      local given = small()
      change(given)
      local ok, message = pcall(trace.new, given)
      assert.is_false(ok)
      assert.truthy(message:find("trace.new: " .. reason, 1, true), message)
    end

    it("what is no recording", function()
      assert.error_matches(function() trace.new(nil) end, "trace.new: expected a table, got nil", 1, true)
      refuses("events: expected a table of columns, got nil", function(g) g.events = nil end)
      refuses("events.address: expected a list, got string", function(g) g.events.address = "0x10" end)
      refuses("events.size: expected a list, got nil", function(g) g.events.size = nil end)
      refuses("events.size: expected 4 values, got 3", function(g) g.events.size[4] = nil end)
      refuses("events.time_us: expected 4 values, got 0", function(g) g.events.time_us = {} end)
      refuses('events: unknown column "time"', function(g) g.events.time = {} end)
      refuses('unknown field "segment"', function(g) g.segment = {} end)
      refuses("before: expected a table, got boolean", function(g) g.before = true end)
      refuses("segments: expected a list, got string", function(g) g.segments = "all" end)
    end)

    it("values out of range, naming them", function()
      local column = "events.size[2]: expected an integer from 0 to 2^53, got "
      for _, value in ipairs { -1, 1.5, (1 << 53) + 1, math.mininteger, 0 / 0, "16", 100.0 } do
        refuses(column .. (value == "16" and '"16"' or tostring(value)), function(g) g.events.size[2] = value end)
      end
      refuses('events.action[1]: expected an action, got "resize"', function(g) g.events.action[1] = "resize" end)
      refuses("events.address[1]: expected an integer, got 1.0", function(g) g.events.address[1] = 1.0 end)
      refuses("events.stream[1]: expected an integer from 0 to 2^53, got -1", function(g)
        g.events.stream = { -1, 0, 0, 0 }
      end)
      refuses("device: expected an integer from 0 to 1023, got 1024", function(g) g.device = 1024 end)
      refuses('segments[1].blocks.state[1]: expected a state, got "free"', function(g)
        g.segments[1].blocks.state[1] = "free"
      end)
      refuses("segments[1].size: expected an integer from 0 to 2^53, got -1", function(g) g.segments[1].size = -1 end)
      refuses("segments[1]: expected a table, got number", function(g) g.segments[1] = 7 end)
    end)

    it("what contradicts itself", function()
      refuses("event 3: allocation at 0x1000, which is live already", function(g)
        g.events.address[3], g.before = 0x1000, {}
      end)
      refuses("segments[1]: block 2 of the segment at 0x1000 begins at 0x1300, not at 0x1200", function(g)
        g.segments[1].blocks.address[2] = 0x1300
      end)
      refuses("segments[1]: the blocks of the segment at 0x1000 sum up to 4096 bytes, not to 8192", function(g)
        g.segments[1].size = 8192
      end)
      refuses("the block at 0x1200 is active in a segment and not live after the events", function(g)
        g.before, g.events.address[3] = {}, 0x1400
      end)
      refuses("the block at 0x1400 has 0 requested bytes in its segment and 9 before the events", function(g)
        g.before = { blocks = { address = { 0x1400 }, size = { 9 } } }
        g.segments[1].blocks.state[3] = "active_allocated"
      end)
      refuses("the block at 0x1200 is live after the events and in no segment", function(g)
        g.before, g.segments[1].blocks.state[2] = {}, "inactive"
      end)
      refuses("event 2: the live bytes do not fit 64 bits", function(g)
        local blocks = { address = {}, size = {} }
        for i = 1, 1023 do blocks.address[i], blocks.size[i] = i << 20, 1 << 53 end
        g.before, g.segments, g.events.size[2] = { blocks = blocks }, nil, 1 << 53
      end)
    end)
  end)
end)

describe("trace:save", function()
  after_each(files.remove_all)

  it("chooses the format by the name of the file, or as told", function()
    local t = trace.new(small())
    for suffix, start in pairs {
      [".pickle"] = "\x80\x04", [".pkl"] = "\x80\x04", [".json"] = '{"displayTimeUnit"', [".csv"] = HEADER,
      [".x"] = HEADER,
    } do
      local path = files.path(nil, suffix)
      assert.is_true(t:save(path))
      assert.is_true(files.read(path):sub(1, #start) == start, suffix)
    end
    local path = files.path(nil, ".json")
    assert.is_true(t:save(path, "rmm"))
    assert.equal("rmm", trace.load(path).format)
  end)

  it("refuses misuse", function()
    local t = trace.new(small())
    assert.error_matches(function() t:save() end, "trace:save: path: expected a string, got nil", 1, true)
    assert.error_matches(function() t:save("x", "xml") end,
      "trace:save: format: expected one of chrome, csv, pickle, pytorch_snapshot, rmm; got xml", 1, true)
    assert.error_matches(function() t:save("x", 7) end, "; got 7", 1, true)
    assert.error_matches(function() t:save("x", "rmm", 7) end, "trace:save: opts: expected a table, got number",
      1, true)
    assert.is_false(exists "x")
  end)

  it("gives what the file system says, and leaves what was there", function()
    local t, folder = trace.new(small()), files.path(nil, ".folder")
    assert(os.execute(("mkdir '%s'"):format(folder)))
    for _, format in ipairs { "csv", "pickle", "chrome", "rmm", "pytorch_snapshot" } do
      local ok, message, code = t:save("/nonexistent/x", format)
      assert.is_nil(ok)
      assert.equal("/nonexistent/x: No such file or directory", message)
      assert.equal(2, code)
      ok, message = t:save(folder, format)
      assert.is_nil(ok)
      assert.equal(folder .. ": Is a directory", message)
      assert.equal("", leftovers(folder))
    end
  end)

  it("writes a whole file or none", function()
    local t = trace.new(files.random_recording(1, 2000, 0))
    for _, format in ipairs { "csv", "pickle", "chrome", "rmm" } do
      local ok, message = t:save("/dev/full", format)
      assert.is_nil(ok)
      assert.equal("/dev/full: No space left on device", message)
    end
    local path = files.path "before"
    assert.is_true(trace.new(small()):save(path))
    assert.equal("csv", trace.load(path).format)
    assert.equal("", leftovers(path))
    -- A limit on the size of files is a full disk: what was there stays.
    files.write(path, "before")
    local program = ([[
      local t = require "clalloc.trace"
      local rec = t.recorder()
      for i = 1, 100000 do rec:alloc(i, 8) end
      print(rec:finish():save %q)]]):format(path)
    local script = files.path(program, ".lua")
    local pipe <close> = assert(io.popen(("trap '' XFSZ; ulimit -f 100; LUA_PATH='%s' lua5.4 '%s' 2>&1"):format(
      package.path, script)))
    assert.equal(("nil\t%s: File too large\t27\n"):format(path), pipe:read "a")
    assert.equal("before", files.read(path))
    assert.equal("", leftovers(path))
  end)
end)

describe("our own CSV", function()
  after_each(files.remove_all)

  local function refuses(content, line, reason)
    local path = files.path(content)
    local ok, message = pcall(trace.load, path)
    assert.is_false(ok)
    assert.equal(("%s:%d: %s"):format(path, line, reason), message)
  end

  it("loses nothing", function()
    for seed = 1, 6 do
      local given, path = files.random_recording(seed, 800, seed % 2 * 200), files.path()
      local t = trace.new(given)
      assert.is_true(t:save(path, "csv"))
      local again = trace.load(path)
      assert.same(t.recording.events, again.recording.events)
      assert.same(t.recording.segments, again.recording.segments)
      assert.same(t.recording.before, again.recording.before)
      for _, field in ipairs { "op", "size", "stream", "initial", "slots", "peak_live", "failures" } do
        assert.same(t[field], again[field], field)
      end
      local second = files.path()
      assert.is_true(again:save(second))
      assert.equal(files.read(path), files.read(second))
    end
  end)

  it("is a table that people can read", function()
    local given, path = small(), files.path()
    given.before = {
      segments = { address = { 0x9000 }, size = { 512 } },
      blocks = { address = { 0x9000 }, size = { 5 }, stream = { 3 } },
    }
    given.events.thread, given.events.time_us = { 1, 1, 2, 1 }, { 0, 5, 6, 9007199254740992 }
    table.insert(given.segments, {
      address = 0x9000, size = 512,
      blocks = { address = { 0x9000 }, size = { 512 }, requested = { 5 }, state = { "active_allocated" } },
    })
    assert.is_true(trace.new(given):save(path))
    assert.equal(HEADER .. [[
initial_segment,0x9000,512,,,,,
initial_block,0x9000,5,3,,,,
segment_alloc,0x1000,4096,,0,1,,
alloc,0x1000,100,,5,1,,
alloc,0x1200,7,,6,2,,
free,0x1000,100,,9007199254740992,1,,
final_segment,0x1000,4096,3,,,,
final_block,0x1000,0,,,,512,inactive
final_block,0x1200,7,,,,512,active_allocated
final_block,0x1400,0,,,,3072,inactive
final_segment,0x9000,512,0,,,,
final_block,0x9000,5,,,,512,active_allocated
]], files.read(path))
  end)

  it("tells blocks without an address apart by numbers", function()
    local path = files.path("0 4 100\n1 3 200\n", ".log")
    local saved = files.path()
    assert.is_true(trace.load(path):save(saved))
    assert.equal(HEADER .. "alloc,#1,100,,0,,,\nalloc,#2,200,,1,,,\nfree,#2,200,,3,,,\nfree,#1,100,,4,,,\n",
      files.read(saved))
    assert.is_false(trace.load(saved).recording.addressed)
    assert.same({ 1, 2, -2, -1 }, trace.load(saved).op)
  end)

  it("is saved scaled, without the addresses that do not fit any more", function()
    local t, path = trace.new(files.random_recording(3, 500, 100)):scaled(64), files.path()
    assert.is_true(t:save(path))
    local again = trace.load(path)
    assert.same(t.size, again.size)
    assert.same(t.op, again.op)
    assert.same(t.stream, again.stream)
    assert.equal(t.initial, again.initial)
    assert.equal(t.peak_live, again.peak_live)
    assert.equal(1, again.scale)
    assert.is_nil(again.recording.segments)
  end)

  it("takes CRLF and a missing last newline", function()
    local rows = HEADER .. "alloc,0x10,8,,,,,\nfree,0x10,8,,,,,"
    assert.same({ 1, -1 }, trace.load(files.path(rows)).op)
    assert.same({ 1, -1 }, trace.load(files.path((rows:gsub("\n", "\r\n")))).op)
    assert.equal(0, trace.load(files.path(HEADER)).operations)
  end)

  it("stops at the first row that is not as it should be", function()
    local alloc, columns = "alloc,0x10,8,,,,,\n", "expected 8 columns (" .. HEADER:sub(1, -2) .. "), found "
    refuses(HEADER .. "resize,0x10,8,,,,,\n", 2, "unknown action 'resize'")
    refuses(HEADER .. alloc .. "free,0x20,8,,,,,\nresize,0x10,8,,,,,\n", 3, "free of 0x20, which is not live")
    refuses(HEADER .. alloc .. alloc, 3, "allocation at 0x10, which is live already")
    refuses(HEADER .. alloc .. "free,0x10", 3, "the last row is cut short: " .. columns .. 2)
    refuses(HEADER .. alloc .. "\n" .. alloc, 3, columns .. 0)
    refuses(HEADER .. "alloc,0x10,,,,,,\n", 2, "size is missing")
    refuses(HEADER .. "alloc,,8,,,,,\n", 2, "addr is missing")
    refuses(HEADER .. "alloc,x,8,,,,,\n", 2, "addr is not a hexadecimal address: 'x'")
    refuses(HEADER .. "alloc,#x,8,,,,,\n", 2, "addr is not a number: 'x'")
    refuses(HEADER .. "alloc,0x10,-8,,,,,\n", 2, "size is negative: -8")
    refuses(HEADER .. "alloc,0x10,9007199254740993,,,,,\n", 2, "size 9007199254740993 is over 2^53")
    refuses(HEADER .. "alloc,0x10,8,s,,,,\n", 2, "stream is not a number: 's'")
    refuses(HEADER .. "alloc,0x10,8,,9007199254740993,,,\n", 2, "time_us 9007199254740993 is over 2^53")
    refuses(HEADER .. "alloc,0x10,8,,1.5,,,\n", 2, "time_us is not a whole decimal number: '1.5'")
    refuses(HEADER .. alloc .. "alloc,0x20,8,,,7,,\n", 3, "thread is given, unlike in the rows before")
    refuses(HEADER .. "alloc,0x10,8,,,7,,\nalloc,0x20,8,,,,,\n", 3, "thread is missing, unlike in the rows before")
    refuses(HEADER .. alloc .. "alloc,#2,8,,,,,\n", 3, "addresses and keys are mixed")
    refuses(HEADER .. "alloc,0x10,8,,,,,inactive\n", 2, "state is for a final_block only")
    refuses(HEADER .. alloc .. "initial_block,0x20,8,,,,,\n", 3,
      "initial_block comes too late: initial rows come first, final rows last")
    refuses(HEADER .. "initial_block,0x10,8,,,,,\n" .. alloc, 3, "allocation at 0x10, which is live already")
    refuses(HEADER .. ("initial_block,0x10,8,,,,,\n"):rep(2), 3, "allocation at 0x10, which is live already")
    refuses(HEADER .. "final_block,0x10,8,,,,8,inactive\n", 2, "a final_block without a final_segment before it")
    local segment = "final_segment,0x1000,512,0,,,,\n"
    refuses(HEADER .. segment .. alloc, 3, "an event comes too late: final rows come last")
    refuses(HEADER .. segment, 2, "the blocks of the segment at 0x1000 sum up to 0 bytes, not to 512")
    refuses(HEADER .. segment .. "final_block,0x1000,8,,,,512,free\n", 3, "unknown state 'free'")
    refuses(HEADER .. segment .. "final_block,0x1000,8,,,,512,\n", 3, "state is missing")
    refuses(HEADER .. segment .. "final_block,0x1000,8,,,,,inactive\n", 3, "block is missing")
    refuses(HEADER .. segment .. "final_block,0x1200,0,,,,512,inactive\n", 2,
      "block 1 of the segment at 0x1000 begins at 0x1200, not at 0x1000")
    refuses(HEADER .. segment .. "final_block,0x1000,8,,,,512,active_allocated\n", 3,
      "the block at 0x1000 is active in a segment and not live after the events")
  end)
end)

describe("an RMM log", function()
  after_each(files.remove_all)

  local RMM = "Thread,Time,Action,Pointer,Size,Stream\n"

  it("comes out as it went in, streams and pointers as RMM's replay reads them", function()
    local path, saved = files.path(RMM .. [[
11,23:59:59.999999,allocate,0x7f0000000000,256,0
12,10:00:00.000002,allocate,7f0000000100,1024,0x55aa
12,10:00:00:000003,free,0x7f0000000000,256,(nil)
11,10:00:00.000004,allocate failure,(nil),1099511627776,3
11,10:00:00.000005,allocate,(nil),0,0
11,10:00:00.000006,free,(nil),0,0
11,10:00:00.000007,allocate,0x7f0000000000,9007199254740992,1
]]), files.path()
    assert.is_true(trace.load(path):save(saved, "rmm"))
    assert.equal(RMM .. [[
11,23:59:59.999999,allocate,0x7f0000000000,256,0
12,10:00:00.000002,allocate,0x7f0000000100,1024,21930
12,10:00:00.000003,free,0x7f0000000000,256,0
11,10:00:00.000004,allocate failure,(nil),1099511627776,3
11,10:00:00.000005,allocate,(nil),0,0
11,10:00:00.000006,free,(nil),0,0
11,10:00:00.000007,allocate,0x7f0000000000,9007199254740992,1
]], files.read(saved))
    assert.same({
      "11 23:59:59.999999 allocate 139637976727552 256 0", "12 10:00:00.000002 allocate 139637976727808 1024 21930",
      "12 10:00:00.000003 free 139637976727552 256 0", "11 10:00:00.000004 allocate failure 0 1099511627776 3",
      "11 10:00:00.000005 allocate 0 0 0", "11 10:00:00.000006 free 0 0 0",
      "11 10:00:00.000007 allocate 139637976727552 9007199254740992 1",
    }, files.python("rmm", saved))
    assert.is_true(trace.load(path):save(saved, "rmm", { streams = false }))
    assert.is_nil(files.read(saved):find ",21930\n")
    local again = files.path()
    assert.is_true(trace.load(saved):save(again, "rmm"))
    assert.equal(files.read(saved), files.read(again))
  end)

  it("holds the operations of any trace", function()
    local rec = trace.recorder()
    for i = 1, 50 do
      rec:alloc(i, i * 1000, i % 2)
      if i > 5 then rec:free(i - 5) end
    end
    local path = files.path()
    for _, t in ipairs { trace.new(files.random_recording(2, 900, 150)), rec:finish() } do
      assert.is_true(t:save(path, "rmm"))
      local again = trace.load(path)
      assert.same(t.op, again.op)
      assert.same(t.size, again.size)
      assert.same(t.stream, again.stream)
      assert.equal(t.failures, again.failures)
      files.python("rmm", path)
    end
  end)

  it("stops at times, threads and streams that are none", function()
    local function refuses(row, reason)
      local path = files.path(RMM .. row)
      local ok, message = pcall(trace.load, path)
      assert.is_false(ok)
      assert.equal(path .. ":2: " .. reason, message)
    end
    refuses("x,10:00:00.000001,free,0x10,8,0\n", "Thread is not a number: 'x'")
    refuses("9007199254740993,10:00:00.000001,free,0x10,8,0\n", "Thread 9007199254740993 is over 2^53")
    refuses("1,now,free,0x10,8,0\n", "Time is not HH:MM:SS.uuuuuu: 'now'")
    refuses("1,25:00:00.000001,free,0x10,8,0\n", "Time is not HH:MM:SS.uuuuuu: '25:00:00.000001'")
    refuses("1,10:00:00.000001,free,0x10,8,s\n", "Stream is not a stream: 's'")
    refuses("1,10:00:00.000001,free,0x10,8,0xffffffffffffffff\n", "Stream is not a stream: '0xffffffffffffffff'")
  end)
end)

describe("a timeline of bytes", function()
  after_each(files.remove_all)

  local TIMELINE = "seq,thread,bytes_delta,time_us\n"

  local function refuses(rows, line, reason)
    local path = files.path(TIMELINE .. rows)
    local ok, message = pcall(trace.load, path)
    assert.is_false(ok)
    assert.equal(("%s:%d: %s"):format(path, line, reason), message)
  end

  it("frees the newest live block of the size, whatever thread it comes from", function()
    local t = trace.load(files.path(TIMELINE .. [[
0,0,512,0
1,1,512,3
2,0,4096,3
3,1,-512,4
4,0,-4096,5
5,0,-512,9]]))
    assert.equal("timeline", t.format)
    assert.same({ 1, 2, 3, -2, -3, -1 }, t.op)
    assert.same({ 512, 512, 4096, 512, 4096, 512 }, t.size)
    assert.same({ 0, 1, 0, 1, 0, 0 }, t.recording.events.thread)
    assert.same({ 0, 3, 3, 4, 5, 9 }, t.recording.events.time_us)
    assert.equal(5120, t.peak_live)
  end)

  it("stops at faults", function()
    refuses("0,0,512,0\n1,0,-256,1\n", 3, "free of 256 bytes, and no block of that size is live")
    refuses("0,0,512,0\n1,0,-512,1\n2,1,-512,1\n", 4, "free of 512 bytes, and no block of that size is live")
    refuses("0,0,0,0\n", 2, "bytes_delta is 0: neither an allocation nor a free")
    refuses("0,0,--5,0\n", 2, "bytes_delta is not a number: '--5'")
    refuses("0,0,1.5,0\n", 2, "bytes_delta is not a whole decimal number: '1.5'")
    refuses("0,0,-9007199254740993,0\n", 2, "bytes_delta 9007199254740993 is over 2^53")
    refuses("0,-1,8,0\n", 2, "thread is negative: -1")
    refuses("0,0,8\n", 2, "expected 4 columns (seq,thread,bytes_delta,time_us), found 3")
    refuses("0,0,8", 2, "the last row is cut short: expected 4 columns (seq,thread,bytes_delta,time_us), found 3")
    refuses(("0,0,9007199254740992,0\n"):rep(1024), 1025, "the live bytes do not fit 64 bits")
  end)
end)

describe("a Chrome trace", function()
  after_each(files.remove_all)

  it("has a slice for each allocation and segment, and counts bytes over time", function()
    local given, path = small(), files.path(nil, ".json")
    given.events = {
      action = { "alloc", "oom", "free_requested", "alloc", "free_completed" },
      address = { 0x1000, 77, 0x1000, 0x1200, 0x1000 }, size = { 100, 1 << 40, 100, 7, 100 },
      time_us = { 10, 11, 20, 30, 30 }, block = { 512, 0, 0, 512, 0 },
    }
    assert.is_true(trace.new(given):save(path))
    assert.same({
      "block 4096 100 10 30", "block 4608 7 30 31", "segment 4096 4096 10 31",
      "counter 10 4096 0 0", "counter 10 4096 512 100", "counter 11 4096 512 100", "counter 20 4096 512 0",
      "counter 30 4096 512 7",
    }, files.python("chrome", path))
  end)

  it("has everything that was recorded, and rows without overlaps", function()
    for seed = 1, 3 do
      local t, path = trace.new(files.random_recording(seed, 1200, seed % 2 * 300)), files.path(nil, ".json")
      assert.is_true(t:save(path))
      local blocks, segments, peak = 0, 0, 0
      for _, line in ipairs(files.python("chrome", path)) do
        local kind, rest = line:match "^(%a+) (.*)$"
        blocks, segments = blocks + (kind == "block" and 1 or 0), segments + (kind == "segment" and 1 or 0)
        peak = kind == "counter" and math.max(peak, math.tointeger(rest:match "(%d+)$")) or peak
      end
      local made = 0
      for _, action in ipairs(t.recording.events.action) do
        made = made + (action == "segment_alloc" and 1 or 0)
      end
      assert.equal(t.allocations, blocks)
      assert.is_true(segments >= made and segments >= #t.recording.segments)
      assert.is_true(peak <= t.peak_live)
    end
  end)

  it("gives each event a microsecond where there are no times, and never goes back", function()
    local rec, path = trace.recorder(), files.path(nil, ".json")
    rec:alloc(1, 1000)
    rec:alloc(2, 5)
    rec:free(1)
    assert.is_true(rec:finish():save(path))
    assert.same({
      "block 268435456 1000 1 4", "block 268436480 5 2 5", "segment 268435456 1536 1 5",
    }, table.move(files.python("chrome", path), 1, 3, 1, {}))
    local back = files.path "seq,thread,bytes_delta,time_us\n0,0,8,500\n1,1,16,100\n2,0,-8,50\n3,0,8,600\n"
    assert.is_true(trace.load(back):save(path))
    assert.equal("block 268435456 8 500 500", files.python("chrome", path)[1])
  end)

  it("is well-formed for an empty trace", function()
    local path = files.path(nil, ".json")
    assert.is_true(trace.recorder():finish():save(path))
    assert.same({ "counter 1 0 0 0" }, files.python("chrome", path))
  end)
end)
