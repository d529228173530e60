--- Allocation traces: what a program asked of its allocator, ready to be replayed.
--
-- A trace is a list of operations in program order. Only the order, the sizes and the streams are kept: addresses
-- and times of the recording are used to pair frees with allocations, then dropped. Needs no device.
--
-- Fields of a trace (read only; arrays are 1-based and `operations` long):
--
-- * `op[i]`: `slot > 0` allocates into that slot, `-slot` frees what the slot holds. A slot is taken again after its
--   free, so slots run from 1 to `slots`, the largest number of blocks live at once.
-- * `size[i]`: requested bytes of the block that is allocated or freed.
-- * `stream[i]`: the block's stream; 0 is the default stream, others count from 1 in order of appearance.
-- * `operations`, `allocations`, `slots`; `streams`: one more than the highest stream number.
-- * `initial`: how many leading operations allocate what was live before the recording began.
-- * `peak_live`: the largest sum of requested bytes live at once, a lower bound for any allocator.
-- * `failures`: allocations that failed while recording; they are not part of the trace.
-- * `name`, `format`, `scale` (see `scaled`).
--
-- @module clalloc.trace

local formats = require "clalloc.trace_formats"
local ledger = require "clalloc.trace_ledger"

local trace = {}

local Trace = {}
Trace.__index = Trace
Trace.__name = "clalloc.trace"

--- A byte count for people: "11.57 GiB", "512 B".
-- @tparam integer nbytes
-- @treturn string
function trace.human(nbytes)
  if nbytes < 1024 then
    return ("%d B"):format(nbytes)
  end
  local units, value, i = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" }, nbytes / 1024, 1
  while value >= 1024 and i < #units do
    value, i = value / 1024, i + 1
  end
  return ("%.2f %s"):format(value, units[i])
end

local function base_name(path)
  local name = path:match("([^/\\]+)$") or path
  return name:match("^(.+)%.[^.]*$") or name
end

-- NAME.initial.csv for NAME.csv.
local function initial_path(path)
  return (path:gsub("%.csv$", "") .. ".initial.csv")
end

local function exists(path)
  local handle = io.open(path, "rb")
  if handle then
    handle:close()
  end
  return handle ~= nil
end

local function load_initial(path, events, wanted)
  if wanted == false then
    return
  end
  local companion = wanted or initial_path(path)
  if wanted or exists(companion) then
    formats.read_initial(formats.open(companion), events)
  end
end

--- Reads a trace. The format is recognised from the content:
--
-- * `pytorch_snapshot`: `seq,action,addr,size,stream,time_us`. What was live before, in `NAME.initial.csv`, is loaded
--   along. A block is freed at its `free_completed`, or at its `free_requested` where the recording has no
--   completion of it. Segment rows (the recording allocator's own driver calls) are ignored.
-- * `rmm`: `Thread,Time,Action,Pointer,Size,Stream`. Failed allocations are counted in `failures`.
-- * `lifetimes`: `id,lower,upper,size` and any further columns; live in `[lower, upper)`.
-- * `lifetime_log`: the same without a header, `start_op end_op bytes`.
--
-- Raises the string `FILE:LINE: reason` for the first row that is not as it should be.
-- @tparam string path
-- @tparam[opt] table opts `initial`: path of the file of initial blocks, or false for none; `name`
-- @treturn table the trace
function trace.load(path, opts)
  if type(path) ~= "string" then
    error(("trace.load: path: expected a string, got %s"):format(type(path)), 2)
  end
  opts = opts or {}
  local file, events = formats.open(path), ledger.new()
  local format = formats.recognise(file)
  if format.has_initial then
    load_initial(path, events, opts.initial)
  end
  format.read(file, events)
  local t = ledger.assemble(events, opts.name or base_name(path), format.name)
  if not t then
    error(path .. ": the live bytes do not fit 64 bits", 0)
  end
  return setmetatable(t, Trace)
end

-- Recording from Lua.

local Recorder = {}
Recorder.__index = Recorder
Recorder.__name = "clalloc.recorder"

local function check_size(where, nbytes)
  if math.type(nbytes) ~= "integer" or nbytes < 0 or nbytes > formats.MAX_SIZE then
    error(("%s: nbytes: expected an integer from 0 to 2^53, got %s"):format(where, tostring(nbytes)), 3)
  end
end

--- A recorder: tell it what is allocated and freed, and `finish` gives the trace.
-- Blocks are known by a key of yours: the buffer object, a number. Keys that are objects are held weakly.
-- @usage
-- local rec = cl.trace.recorder()
-- local buf = assert(dev:alloc(4096))
-- rec:alloc(buf, 4096)
-- rec:free(buf)
-- local t = rec:finish "two steps"
-- @treturn table
function trace.recorder()
  local events = ledger.new()
  setmetatable(events.live, { __mode = "k" })
  return setmetatable({ events = events }, Recorder)
end

--- Notes an allocation.
-- @param key any value but nil that is not live at the moment
-- @tparam integer nbytes
-- @param[opt] stream any value: equal ones are the same stream, nil and 0 the default one
function Recorder:alloc(key, nbytes, stream)
  if key == nil then
    error("recorder:alloc: key: expected a value, got nil", 2)
  end
  check_size("recorder:alloc", nbytes)
  if not ledger.allocate(self.events, key, nbytes, ledger.stream_number(self.events, stream)) then
    error(("recorder:alloc: %s is live already"):format(tostring(key)), 2)
  end
end

--- Notes a free.
-- @param key what `alloc` was given
function Recorder:free(key)
  if key == nil or not ledger.free(self.events, key) then
    error(("recorder:free: %s is not live"):format(tostring(key)), 2)
  end
end

--- The trace of everything noted so far. Recording may go on.
-- @tparam[opt="recorded"] string name
-- @treturn table the trace
function Recorder:finish(name)
  local t = ledger.assemble(self.events, name or "recorded", "recorded")
    or error("recorder:finish: the live bytes do not fit 64 bits", 2)
  return setmetatable(t, Trace)
end

function Recorder:__tostring()
  local allocations = #self.events.bytes
  return ("recorder (%d allocation%s)"):format(allocations, allocations == 1 and "" or "s")
end

-- Methods of traces.

local function copy_into(target, source)
  for key, value in pairs(source) do
    target[key] = value
  end
  return target
end

local function peak_of(op, size)
  local live, peak = 0, 0
  for i = 1, #op do
    if op[i] > 0 then
      live = live + size[i]
      peak = live > peak and live or peak
    else
      live = live - size[i]
    end
  end
  return peak
end

--- The same trace with every size divided by n, rounded up; 0 stays 0.
-- @tparam integer n at least 1
-- @treturn table a new trace; `scale` says by how much its sizes were divided in all
function Trace:scaled(n)
  if math.type(n) ~= "integer" or n < 1 then
    error(("trace:scaled: n: expected an integer of at least 1, got %s"):format(tostring(n)), 2)
  end
  local size = {}
  for i, nbytes in ipairs(self.size) do
    size[i] = nbytes // n + (nbytes % n > 0 and 1 or 0)
  end
  local scaled = copy_into({}, self)
  scaled.size = size
  scaled.peak_live = peak_of(self.op, size)
  scaled.scale = self.scale * n
  return setmetatable(scaled, Trace)
end

local ADDRESS_BASE, ADDRESS_ALIGN = 0x10000000, 512

-- Every slot gets a range of addresses as large as the largest block it ever holds, so no two blocks overlap.
local function slot_addresses(t)
  local largest = {}
  for slot = 1, t.slots do
    largest[slot] = 1
  end
  for i, slot in ipairs(t.op) do
    if slot > 0 and t.size[i] > largest[slot] then
      largest[slot] = t.size[i]
    end
  end
  local addresses, address = {}, ADDRESS_BASE
  for slot = 1, t.slots do
    addresses[slot] = ("0x%x"):format(address)
    address = address + (largest[slot] + ADDRESS_ALIGN - 1) // ADDRESS_ALIGN * ADDRESS_ALIGN
  end
  return addresses
end

local function initial_rows(t, addresses)
  local lines = { formats.INITIAL_HEADER }
  for i = 1, t.initial do
    lines[i + 1] = ("live,%s,%d"):format(addresses[t.op[i]], t.size[i])
  end
  return lines
end

local function snapshot_rows(t, addresses)
  local lines = { formats.SNAPSHOT_HEADER }
  local function add(action, i, slot)
    lines[#lines + 1] = ("%d,%s,%s,%d,%d,0"):format(#lines - 1, action, addresses[slot], t.size[i], t.stream[i])
  end
  for i = t.initial + 1, t.operations do
    local slot = t.op[i]
    if slot > 0 then
      add("alloc", i, slot)
    else
      add("free_requested", i, -slot)
      add("free_completed", i, -slot)
    end
  end
  return lines
end

local function write_lines(path, lines)
  local handle, message, code = io.open(path, "wb")
  if not handle then
    return nil, message, code
  end
  lines[#lines + 1] = ""
  local written, write_error, write_code = handle:write(table.concat(lines, "\n"))
  local closed, close_error, close_code = handle:close()
  if not written then
    return nil, write_error, write_code
  end
  return closed, close_error, close_code
end

--- Writes the trace in the `pytorch_snapshot` form, which `load` reads back identically.
-- Blocks that were live at the start go to `NAME.initial.csv` beside it; without any, such a file left there by
-- an earlier save is removed, since it would be loaded along. Addresses are made up, and times are 0.
-- @tparam string path
-- @treturn boolean true, or nil, message, code
function Trace:save(path)
  local addresses = slot_addresses(self)
  if self.initial > 0 then
    local ok, message, code = write_lines(initial_path(path), initial_rows(self, addresses))
    if not ok then
      return nil, message, code
    end
  elseif exists(initial_path(path)) then
    os.remove(initial_path(path))
  end
  return write_lines(path, snapshot_rows(self, addresses))
end

function Trace:__tostring()
  return ("trace %s: %d operations, %d stream%s, peak live %s%s"):format(self.name, self.operations, self.streams,
    self.streams == 1 and "" or "s", trace.human(self.peak_live),
    self.scale == 1 and "" or (" (sizes / %d)"):format(self.scale))
end

return trace
