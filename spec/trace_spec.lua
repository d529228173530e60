-- Traces: reading recordings of other allocators, recording from Lua, saving, scaling. Needs no device.

local trace = require "clalloc.trace"

local written = {}

-- A temporary file with the given text; removed after the test.
local function file(text, suffix)
  local base = os.tmpname()
  os.remove(base)
  local path = base .. (suffix or ".csv")
  local handle = assert(io.open(path, "wb"))
  handle:write(text)
  handle:close()
  written[#written + 1] = path
  return path
end

local function companion(path, text)
  local initial = path:gsub("%.csv$", ".initial.csv")
  local handle = assert(io.open(initial, "wb"))
  handle:write(text)
  handle:close()
  written[#written + 1] = initial
end

local function read_text(path)
  local handle = assert(io.open(path, "rb"))
  local text = handle:read("a")
  handle:close()
  return text
end

local function remove_written()
  for _, path in ipairs(written) do
    os.remove(path)
  end
  written = {}
end

local function load(text, suffix)
  return trace.load(file(text, suffix))
end

-- The whole message: the assertions of busted drop its FILE:LINE.
local function assert_load_fails(message, ...)
  local ok, actual = pcall(trace.load, ...)
  assert.is_false(ok)
  assert.equal(message, actual)
end

local function refuses(text, line, reason)
  local path = file(text)
  assert_load_fails(("%s:%d: %s"):format(path, line, reason), path)
end

local SNAPSHOT = "seq,action,addr,size,stream,time_us\n"
local RMM = "Thread,Time,Action,Pointer,Size,Stream\n"

describe("trace.load", function()
  after_each(remove_written)

  describe("of a PyTorch snapshot CSV", function()
    it("gives operations in slots, with sizes and streams", function()
      local t = load(SNAPSHOT .. [[
0,alloc,0x1000,512,0,0
1,alloc,0x2000,100,0,5
2,free_requested,0x1000,512,0,9
3,free_completed,0x1000,512,0,9
4,alloc,0x3000,7,0,12
]])
      assert.same({ 1, 2, -1, 1 }, t.op)
      assert.same({ 512, 100, 512, 7 }, t.size)
      assert.same({ 0, 0, 0, 0 }, t.stream)
      assert.equal("pytorch_snapshot", t.format)
      assert.equal(4, t.operations)
      assert.equal(3, t.allocations)
      assert.equal(2, t.slots)
      assert.equal(1, t.streams)
      assert.equal(0, t.initial)
      assert.equal(612, t.peak_live)
    end)

    it("frees a block when the free is complete, not when it was asked for", function()
      local t = load(SNAPSHOT .. [[
0,alloc,0x1000,512,0,0
1,free_requested,0x1000,512,0,1
2,alloc,0x2000,512,0,2
3,free_completed,0x1000,512,0,3
]])
      assert.same({ 1, 2, -1 }, t.op)
      assert.equal(1024, t.peak_live)
    end)

    it("frees a block when it was asked for, where the recording has no completion", function()
      local t = load(SNAPSHOT .. [[
0,alloc,0x1000,512,0,0
1,free_requested,0x1000,512,0,1
2,alloc,0x2000,512,0,2
3,alloc,0x1000,512,0,3
]])
      assert.same({ 1, -1, 1, 2 }, t.op)
      assert.equal(1024, t.peak_live)
    end)

    it("leaves out what the recording allocator asked of its driver, and counts failures", function()
      local t = load(SNAPSHOT .. [[
0,segment_alloc,0x1000,2097152,0,0
1,alloc,0x1000,512,0,0
2,segment_map,0x1000,2097152,0,0
3,snapshot,0x0,0,0,0
4,oom,0x1000,99999,0,0
5,segment_unmap,0x1000,2097152,0,0
6,segment_free,0x1000,2097152,0,0
]])
      assert.same({ 1 }, t.op)
      assert.equal(1, t.failures)
    end)

    it("loads what was live before from NAME.initial.csv, first", function()
      local path = file(SNAPSHOT .. "0,free_completed,0x2000,64,0,0\n")
      companion(path, "kind,addr,size\nsegment,0x1000,4096\nlive,0x1000,32\nlive,0x2000,64\n")
      local t = trace.load(path)
      assert.same({ 1, 2, -2 }, t.op)
      assert.equal(2, t.initial)
      assert.equal(96, t.peak_live)
      assert_load_fails(path .. ":2: free of 0x2000, which is not live", path, { initial = false })
    end)

    it("names the companion when the fault is there", function()
      local path = file(SNAPSHOT)
      companion(path, "kind,addr,size\nlive,0x1000,32\ndead,0x2000,64\n")
      assert_load_fails(path:gsub("%.csv$", ".initial.csv") .. ":3: unknown kind 'dead'", path)
    end)

    it("numbers streams in order of appearance; 0 is the default one", function()
      local t = load(SNAPSHOT .. [[
0,alloc,0x1000,1,0x7f00,0
1,alloc,0x2000,1,0,0
2,alloc,0x3000,1,0x5500,0
3,alloc,0x4000,1,0x7f00,0
4,alloc,0x5000,1,0x0,0
]])
      assert.same({ 1, 0, 2, 1, 0 }, t.stream)
      assert.equal(3, t.streams)
    end)

    it("follows an address through reuse", function()
      local t = load(SNAPSHOT .. ("0,alloc,0x10,8,0,0\n1,free_completed,0x10,8,0,0\n"):rep(3))
      assert.same({ 1, -1, 1, -1, 1, -1 }, t.op)
      assert.equal(8, t.peak_live)
    end)

    it("keeps the whole recording behind the operations", function()
      local path = file(SNAPSHOT
        .. "0,segment_alloc,0x9000,4096,7,5\n1,alloc,0x9000,8,7,6\n2,free_completed,0x2000,64,0,9\n")
      companion(path, "kind,addr,size\nsegment,0x1000,8192\nlive,0x2000,64\n")
      local rec = trace.load(path).recording
      assert.is_true(rec.addressed)
      assert.same({
        action = { "segment_alloc", "alloc", "free_completed" }, address = { 0x9000, 0x9000, 0x2000 },
        size = { 4096, 8, 64 }, stream = { 7, 7, 0 }, time_us = { 5, 6, 9 },
      }, rec.events)
      assert.same({
        segments = { address = { 0x1000 }, size = { 8192 } }, blocks = { address = { 0x2000 }, size = { 64 } },
      }, rec.before)
    end)

    it("takes sizes from 0 to 2^53", function()
      local t = load(SNAPSHOT .. "0,alloc,0x1,0,0,0\n1,alloc,0x2,1099511627776,0,0\n2,alloc,0x3,9007199254740992,0,0\n")
      assert.same({ 0, 1 << 40, 1 << 53 }, t.size)
      assert.equal((1 << 40) + (1 << 53), t.peak_live)
    end)

    it("takes CRLF, a missing last newline and a byte order mark", function()
      local rows = SNAPSHOT .. "0,alloc,0x1,8,0,0\n1,free_completed,0x1,8,0,4"
      assert.same({ 1, -1 }, load(rows).op)
      assert.same({ 1, -1 }, load((rows:gsub("\n", "\r\n"))).op)
      assert.same({ 1, -1 }, load("\xEF\xBB\xBF" .. rows).op)
    end)

    it("takes a recording without rows", function()
      assert.equal(0, load(SNAPSHOT).operations)
      assert.equal(0, load(SNAPSHOT:sub(1, -2)).operations)
    end)
  end)

  -- rapidsai/rmm#431, #1939, #2553, #562
  describe("of an RMM log", function()
    it("pairs frees by address, whatever thread they come from", function()
      local t = load(RMM .. [[
11,10:00:00.000001,allocate,0x7f0000000000,256,0
12,10:00:00.000002,allocate,7f0000000100,1024,0
12,10:00:00.000003,free,0x7f0000000000,256,0
11,10:00:00.000004,free,0x7f0000000100,1024,0
]])
      assert.equal("rmm", t.format)
      assert.same({ 1, 2, -1, -2 }, t.op)
      assert.same({ 256, 1024, 256, 1024 }, t.size)
    end)

    it("counts failed allocations and leaves them out", function()
      local t = load(RMM .. [[
11,10:00:00.000001,allocate,0x10,256,0
11,10:00:00.000002,allocate failure,(nil),1099511627776,0
11,10:00:00.000003,allocate failure,0x0,1,0
]])
      assert.same({ 1 }, t.op)
      assert.equal(2, t.failures)
    end)

    it("leaves out empty allocations without an address, and keeps those with one", function()
      local t = load(RMM .. [[
1,10:00:00.000001,allocate,(nil),0,0
1,10:00:00.000002,allocate,(nil),0,0
1,10:00:00.000003,free,(nil),0,0
1,10:00:00.000004,allocate,0x20,0,0
]])
      assert.same({ 1 }, t.op)
      assert.same({ 0 }, t.size)
    end)

    it("keeps the stream column", function()
      local t = load(RMM .. [[
1,10:00:00.000001,allocate,0x10,1,0x55aa
1,10:00:00.000002,allocate,0x20,1,0
1,10:00:00.000003,allocate,0x30,1,(nil)
]])
      assert.same({ 1, 0, 0 }, t.stream)
    end)

    it("stops at faults", function()
      local row = "1,10:00:00.000001,allocate,0x10,256,0\n"
      refuses(RMM .. "1,10:00:00.000001,resize,0x10,256,0\n", 2, "unknown Action 'resize'")
      refuses(RMM .. "1,10:00:00.000001,free,0x10,256,0\n", 2, "free of 0x10, which is not live")
      refuses(RMM .. row .. row, 3, "allocation at 0x10, which is live already")
      refuses(RMM .. row .. row:gsub("allocate", "free"):rep(2), 4, "free of 0x10, which is not live")
      refuses(RMM .. "1,10:00:00.000001,allocate,(nil),256,0\n", 2, "allocation without an address")
      refuses(RMM .. "1,10:00:00.000001,allocate,zz,256,0\n", 2, "Pointer is not a hexadecimal address: 'zz'")
      refuses(RMM .. "1,10:00:00.000001,allocate,,256,0\n", 2, "Pointer is missing")
      refuses(RMM .. "1,10:00:00.000001,allocate,0x10,-256,0\n", 2, "Size is negative: -256")
    end)
  end)

  describe("of lifetimes", function()
    it("sorts by time; at the same time frees come before allocations, each in row order", function()
      local t = load("id,lower,upper,size\nc,5,9,30\na,0,5,10\nb,0,5,20\nd,5,6,40\n")
      assert.equal("lifetimes", t.format)
      assert.same({ 10, 20, 10, 20, 30, 40, 40, 30 }, t.size)
      assert.same({ 1, 2, -1, -2, 2, 1, -1, -2 }, t.op)
      assert.equal(70, t.peak_live)
    end)

    it("ignores further columns, empty ones too", function()
      local t = load("id,lower,upper,size,offset,note\r\n0,0,4,49152,0,\r\n1,2,3,1,49152,x")
      assert.same({ 49152, 1, 1, 49152 }, t.size)
    end)

    it("leaves out a block that dies when it is born", function()
      assert.equal(0, load("id,lower,upper,size\n0,3,3,8\n").operations)
    end)

    it("takes a log of 'start_op end_op bytes'", function()
      local t = load("0 4 92928\n1 3 256\n2 2 9\n", ".log")
      assert.equal("lifetime_log", t.format)
      assert.same({ 92928, 256, 256, 92928 }, t.size)
    end)

    it("stops at faults", function()
      local header = "id,lower,upper,size\n"
      refuses(header .. "0,5,4,1\n", 2, "upper 4 is before lower 5")
      local columns = "expected 4 columns (id,lower,upper,size), found "
      refuses(header .. "0,0,4,1\n1,0,4\n", 3, columns .. 3)
      refuses(header .. "0,0,4,1\n1,0,4", 3, "the last row is cut short: " .. columns .. 3)
      refuses(header .. "0,0,4,1,2\n", 2, columns .. 5)
      refuses(header .. ",0,4,1\n", 2, "id is missing")
      refuses("id,lower,upper,size" .. (",x"):rep(100) .. "\n", 1, "104 columns; at most 100 are read")
      refuses(header .. "0,-1,4,1\n", 2, "lower is negative: -1")
      refuses(header .. "0,0,4,many\n", 2, "size is not a number: 'many'")
      refuses(header .. "0,0,9007199254740993,1\n", 2, "upper 9007199254740993 is over 2^53")
      refuses("0 4 92928\n1 3\n", 2, "expected 3 columns (start_op,end_op,bytes), found 2")
      refuses("0 4 92928\n1 3 2.5\n", 2, "bytes is not a whole decimal number: '2.5'")
      refuses("0 4 -92928\n", 1, "bytes is negative: -92928")
    end)
  end)

  describe("stops with FILE:LINE: reason at", function()
    local ok = "0,alloc,0x10,8,0,0\n"
    local columns = "expected 6 columns (seq,action,addr,size,stream,time_us), found "

    it("an unknown action", function()
      refuses(SNAPSHOT .. ok .. "1,realloc,0x20,8,0,0\n", 3, "unknown action 'realloc'")
      refuses(SNAPSHOT .. ok .. "1,a-b,0x20,8,0,0\n", 3, "unknown action 'a-b'")
    end)

    it("a wrong number of columns", function()
      refuses(SNAPSHOT .. "0,alloc,0x10,8,0\n" .. ok, 2, columns .. 5)
      refuses(SNAPSHOT .. "0,alloc,0x10,8,0,0,0\n", 2, columns .. 7)
      refuses(SNAPSHOT .. ok .. "\n" .. ok, 3, columns .. 0)
    end)

    it("a last row that is cut short", function()
      refuses(SNAPSHOT .. ok .. "1,alloc,0x2", 3, "the last row is cut short: " .. columns .. 3)
      refuses(SNAPSHOT .. ok .. "1", 3, "the last row is cut short: " .. columns .. 1)
      refuses(SNAPSHOT .. ok .. "1,alloc,0x20,8,0,", 3, "time_us is missing")
    end)

    it("a size that is no count of bytes", function()
      local function size(text)
        return SNAPSHOT .. ok .. "1,alloc,0x20," .. text .. ",0,0\n"
      end
      refuses(size "", 3, "size is missing")
      refuses(size "big", 3, "size is not a number: 'big'")
      refuses(size "8 ", 3, "size is not a whole decimal number: '8 '")
      refuses(size "0x10", 3, "size is not a whole decimal number: '0x10'")
      refuses(size "-8", 3, "size is negative: -8")
      refuses(size "1.5", 3, "size is not a whole decimal number: '1.5'")
      refuses(size "1e3", 3, "size is not a whole decimal number: '1e3'")
      refuses(size "9007199254740993", 3, "size 9007199254740993 is over 2^53")
      refuses(size "18446744073709551615", 3, "size 18446744073709551615 is over 2^53")
      local endless = ("9"):rep(400)
      refuses(size(endless), 3, "size " .. endless .. " is over 2^53")
    end)

    it("an address that is none", function()
      refuses(SNAPSHOT .. "0,alloc,-10,8,0,0\n", 2, "addr is not a hexadecimal address: '-10'")
      refuses(SNAPSHOT .. "0,alloc,0x,8,0,0\n", 2, "addr is not a hexadecimal address: '0x'")
      refuses(SNAPSHOT .. "0,alloc,0x11112222333344445,8,0,0\n", 2,
        "addr is not a hexadecimal address: '11112222333344445'")
    end)

    it("the free of a block that is not live", function()
      refuses(SNAPSHOT .. "0,free_completed,0xabc,8,0,0\n", 2, "free of 0xabc, which is not live")
      refuses(SNAPSHOT .. "0,free_requested,0xabc,8,0,0\n", 2, "free of 0xabc, which is not live")
      refuses(SNAPSHOT .. ok .. ("1,free_completed,0x10,8,0,0\n"):rep(2), 4, "free of 0x10, which is not live")
      refuses(SNAPSHOT .. ok .. ("1,free_requested,0x10,8,0,0\n"):rep(2), 4,
        "the free of 0x10 was requested before")
    end)

    it("an allocation where a block is live", function()
      refuses(SNAPSHOT .. ok .. ok, 3, "allocation at 0x10, which is live already")
    end)

    it("an empty file", function()
      refuses("", 1, "the file is empty")
      refuses("\n", 1, "the file is empty")
    end)

    it("a header it does not know", function()
      local known = "; known are seq,action,addr,size,stream,time_us; Thread,Time,Action,Pointer,Size,Stream; "
        .. "id,lower,upper,size[,...]; rows of 'start_op end_op bytes'; seq,thread,bytes_delta,time_us; "
        .. "action,addr,size,stream,time_us,thread,block,state"
      refuses("when,what\n0,1\n", 1, "unknown header 'when,what'" .. known)
      refuses("PK\3\4\n", 1, "unknown header 'PK??'" .. known)
      refuses("kind,addr,size\nlive,0x1,1\n", 1,
        "this lists what was live before a recording: load the recording, NAME.csv, instead")
    end)
  end)

  it("raises for a file that it cannot read, and for what is no path", function()
    assert_load_fails("/nonexistent/trace.csv: No such file or directory", "/nonexistent/trace.csv")
    assert.error_matches(function() trace.load(nil) end, "trace.load: path: expected a string, got nil")
    assert.error_matches(function() trace.load("x", 7) end, "trace.load: opts: expected a table, got number")
    assert_load_fails("/: Is a directory", "/")
  end)

  it("refuses live bytes that do not fit 64 bits", function()
    local rows = { "id,lower,upper,size" }
    for i = 1, 1025 do
      rows[i + 1] = i .. ",0,1,9007199254740992"
    end
    local path = file(table.concat(rows, "\n"))
    assert_load_fails(path .. ":1025: the live bytes do not fit 64 bits", path)
  end)

  it("takes its name from the file, or from the caller", function()
    local path = file(SNAPSHOT)
    assert.equal(path:match("([^/]+)%.csv$"), trace.load(path).name)
    assert.equal("step", trace.load(path, { name = "step" }).name)
  end)
end)

describe("trace.recorder", function()
  it("turns calls into a trace", function()
    local rec = trace.recorder()
    local buf, other, side = {}, {}, {}
    rec:alloc(buf, 4096)
    rec:alloc(other, 100, side)
    rec:alloc(7, 0, 0)
    rec:free(buf)
    local t = rec:finish "steps"
    assert.equal("steps", t.name)
    assert.equal("recorded", t.format)
    assert.same({ 1, 2, 3, -1 }, t.op)
    assert.same({ 4096, 100, 0, 4096 }, t.size)
    assert.same({ 0, 1, 0, 0 }, t.stream)
    assert.equal(4196, t.peak_live)
  end)

  it("goes on after finish", function()
    local rec = trace.recorder()
    rec:alloc(1, 8)
    local first = rec:finish()
    rec:free(1)
    assert.same({ 1 }, first.op)
    assert.same({ 1, -1 }, rec:finish().op)
  end)

  it("does not keep forgotten objects alive", function()
    local rec, seen = trace.recorder(), setmetatable({}, { __mode = "k" })
    do
      local buf = {}
      seen[buf] = true
      rec:alloc(buf, 8)
    end
    collectgarbage()
    assert.is_nil(next(seen))
    assert.same({ 1 }, rec:finish().op)
  end)

  it("refuses misuse", function()
    local rec = trace.recorder()
    rec:alloc("a", 8)
    assert.error_matches(function() rec:alloc("a", 8) end, "recorder:alloc: a is live already")
    assert.error_matches(function() rec:free "b" end, "recorder:free: b is not live")
    assert.error_matches(function() rec:free(nil) end, "recorder:free: nil is not live")
    assert.error_matches(function() rec:alloc(nil, 8) end, "recorder:alloc: key: expected a value, got nil")
    for _, size in ipairs { -1, 1.5, (1 << 53) + 1, "8", 8.0 } do
      assert.error_matches(function() rec:alloc("c", size) end,
        "recorder:alloc: nbytes: expected an integer from 0 to 2^53, got " .. tostring(size), 1, true)
    end
    assert.equal(1, rec:finish().operations)
  end)
end)

describe("a trace", function()
  after_each(remove_written)

  local function random_trace(seed)
    math.randomseed(seed)
    local rec, live = trace.recorder(), {}
    for i = 1, 500 do
      if #live > 0 and math.random() < 0.45 then
        rec:free(table.remove(live, math.random(#live)))
      else
        rec:alloc(i, math.random(0, 1 << math.random(0, 40)), math.random(0, 2))
        live[#live + 1] = i
      end
    end
    return rec:finish()
  end

  local function assert_same_operations(expected, actual)
    for _, field in ipairs { "op", "size", "stream", "operations", "allocations", "slots", "streams", "initial",
      "peak_live" } do
      assert.same(expected[field], actual[field], field)
    end
  end

  it("is read back as it was saved", function()
    for seed = 1, 5 do
      local t, path = random_trace(seed), file("")
      assert.is_true(t:save(path))
      assert_same_operations(t, trace.load(path))
    end
  end)

  it("is saved with the blocks that were live before", function()
    local path, saved = file(SNAPSHOT .. "0,free_completed,0x2000,64,0,0\n1,alloc,0x9,5,0,0\n"), file("")
    companion(path, "kind,addr,size\nlive,0x1000,32\nlive,0x2000,64\n")
    companion(saved, "")
    local t = trace.load(path)
    assert.is_true(t:save(saved))
    assert_same_operations(t, trace.load(saved))
    assert.equal(2, trace.load(saved).initial)
  end)

  it("is saved without the initial blocks of an earlier save", function()
    local path = file("")
    companion(path, "kind,addr,size\nlive,0x1000,32\n")
    local rec = trace.recorder()
    rec:alloc(1, 8)
    assert.is_true(rec:finish():save(path))
    assert.equal(0, trace.load(path).initial)
  end)

  it("is saved in the form that other tools read", function()
    local rec, path = trace.recorder(), file("")
    rec:alloc(1, 1000)
    rec:alloc(2, 0, "side")
    rec:free(1)
    rec:finish():save(path, "pytorch_snapshot")
    assert.equal(SNAPSHOT .. [[
0,alloc,0x10000000,1000,0,0
1,alloc,0x10000400,0,1,0
2,free_requested,0x10000000,1000,0,0
3,free_completed,0x10000000,1000,0,0
]], read_text(path))
  end)

  it("says why it cannot be saved", function()
    local ok, message, code = trace.recorder():finish():save "/nonexistent/x.csv"
    assert.is_nil(ok)
    assert.equal("/nonexistent/x.csv: No such file or directory", message)
    assert.equal(2, code)
  end)

  it("is scaled down, rounding up", function()
    local rec = trace.recorder()
    for i, size in ipairs { 0, 1, 64, 65, 1 << 53 } do
      rec:alloc(i, size)
    end
    local t = rec:finish "t"
    local small = t:scaled(64)
    assert.same({ 0, 1, 1, 2, 1 << 47 }, small.size)
    assert.equal((1 << 47) + 4, small.peak_live)
    assert.equal(64, small.scale)
    assert.equal(128, small:scaled(2).scale)
    assert.same({ 0, 1, 64, 65, 1 << 53 }, t.size)
    assert.same(t.size, t:scaled(1).size)
    for _, n in ipairs { 0, -1, 1.5, "2" } do
      assert.error_matches(function() t:scaled(n) end, "trace:scaled: n: expected an integer of at least 1")
    end
  end)

  it("prints what it is", function()
    local rec = trace.recorder()
    rec:alloc(1, 3 << 20)
    local t = rec:finish "step"
    assert.equal("trace step: 1 operations, 1 stream, peak live 3.00 MiB", tostring(t))
    assert.equal("trace step: 1 operations, 1 stream, peak live 1.50 MiB (sizes / 2)", tostring(t:scaled(2)))
  end)
end)

describe("trace.human", function()
  it("gives three figures and a binary unit", function()
    assert.equal("0 B", trace.human(0))
    assert.equal("1023 B", trace.human(1023))
    assert.equal("1.00 KiB", trace.human(1024))
    assert.equal("11.57 GiB", trace.human(12426629128))
    assert.equal("8.00 EiB", trace.human(math.maxinteger))
  end)
end)

-- Recordings of real programs, where they lie beside the checkout.

local RECORDINGS = "../shared/traces/"

-- file, allocations without the initial ones, peak live bytes
local KNOWN = {
  { "pytorch_snapshot/lm_128_train.csv", 6526, 7013335044 },
  { "pytorch_snapshot/lm_512_train.csv", 7591, 12426629128 },
  { "pytorch_snapshot/lm_1024_train.csv", 7591, 24207167496 },
  { "pytorch_snapshot/lm_512_infer.csv", 1666, 1949343744 },
  { "pytorch_snapshot/lm_step_b.csv", 6488, 22827925508 },
  { "pytorch_snapshot/lm_step_c.csv", 1721, 13923997700 },
  { "pytorch_snapshot/lm_forward_fp32.csv", 3368, 44087612420 },
  { "minimalloc/A.1048576.csv", 154, 1048576 },
  { "minimalloc/C.1048576.csv", 203, 1039360 },
  { "minimalloc/E.1048576.csv", 215, 1048576 },
  { "minimalloc/G.1048576.csv", 308, 1048576 },
  { "minimalloc/I.1048576.csv", 374, 1048576 },
  { "minimalloc/K.1048576.csv", 454, 1048576 },
  { "minimalloc/input.12.csv", 5, 12 },
  { "lifetimes/mindspore_resnet50.csv", 1042, 1515472556 },
  { "lifetimes/mindspore_tiny_bert.csv", 1821, 758936113 },
  { "lifetimes/mindspore_bert_base.csv", 5620, 15734934689 },
  { "lifetimes/mindspore_pangu_2.6B.csv", 18692, 5530099775 },
  { "lifetimes/iree_mobilebert.csv", 316, 1674240 },
  { "lifetimes/alexnet_train.log", 193, 1443669632 },
  { "timeline/resnet50_v100_gpu_memory_deltas.csv", 4110, 2791636480 },
}

local function is_readable(path)
  local handle = io.open(path, "rb")
  return handle and handle:close()
end

if is_readable(RECORDINGS .. KNOWN[1][1]) then
  describe("recordings of real programs", function()
    for _, known in ipairs(KNOWN) do
      it("load: " .. known[1], function()
        local t = trace.load(RECORDINGS .. known[1])
        assert.equal(known[2], t.allocations - t.initial)
        assert.equal(known[3], t.peak_live)
        assert.equal(1, t.streams)
      end)
    end
  end)
end
