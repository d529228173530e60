--- Allocation traces: what a program asked of its allocator, ready to be replayed, and to be written for other tools.
--
-- A trace is a list of operations in program order; a replay needs nothing else. Behind it stands the recording, with
-- everything that was recorded: addresses, times, threads, segments. Needs no device.
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
-- * `lost`: events of a pool's recording that were older than those there was room for, see `pool:trace`.
-- * `name`, `format`, `scale` (see `scaled`).
-- * `recording`: as `new` takes it, `before` always there; `addressed` is false where `address` holds numbers that
--   only tell blocks apart. The sizes in it are never scaled.
--
-- @module clalloc.trace

local formats = require "clalloc.trace.formats"
local layout = require "clalloc.trace.layout"
local ledger = require "clalloc.trace.ledger"
local recording = require "clalloc.trace.recording"

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

local function assemble(rec, pairing, name, format)
  local t = ledger.assemble(pairing)
  t.name, t.format, t.scale, t.recording, t.lost = name, format, 1, rec, 0
  return setmetatable(t, Trace)
end

--- Reads a trace. The format is recognised from the content:
--
-- * `pickle`: a memory snapshot as PyTorch writes it, protocols 2 to 4. Nothing in it is executed: anything but
--   containers, strings, numbers, booleans and None is refused by name. What was live before the recording is found
--   out from its end.
-- * `pytorch_snapshot`: the same as CSV, `seq,action,addr,size,stream,time_us`. What was live before, in
--   `NAME.initial.csv`, is loaded along.
-- * `rmm`: `Thread,Time,Action,Pointer,Size,Stream`. Failed allocations are counted in `failures`.
-- * `lifetimes`: `id,lower,upper,size` and any further columns; live in `[lower, upper)`.
-- * `lifetime_log`: the same without a header, `start_op end_op bytes`.
-- * `timeline`: `seq,thread,bytes_delta,time_us`; a free goes to the newest live block of its size.
-- * `csv`: what `save` writes, `action,addr,size,stream,time_us,thread,block,state`.
--
-- A block is freed at its `free_completed`, or at its `free_requested` where the recording has no completion of it.
-- What the recording allocator asked of its driver is kept in the recording and no operation of the trace.
--
-- Raises the string `FILE:LINE: reason`, or for pickles `FILE: byte OFFSET: reason`, for the first thing that is not as
-- it should be.
-- @tparam string path
-- @tparam[opt] table opts `initial`: path of the file of initial blocks, or false for none; `name`; `device`: which
--   one's allocations to take where a snapshot has those of several, from 0
-- @treturn table the trace
function trace.load(path, opts)
  if type(path) ~= "string" then
    error(("trace.load: path: expected a string, got %s"):format(type(path)), 2)
  end
  opts = opts == nil and {} or opts
  if type(opts) ~= "table" then
    error(("trace.load: opts: expected a table, got %s"):format(type(opts)), 2)
  end
  local rec, pairing, format = formats.load(path, opts)
  return assemble(rec, pairing, opts.name or base_name(path), format)
end

--- A trace of a recording that is there already, as columns: lists of one length, an event or block at each index.
--
-- * `events`: `action`, `address`, `size` (requested bytes; of a segment, all of it), and where they are known
--   `stream`, `time_us`, `thread`, `block` (bytes that the block takes up, 0 where it is no allocation). An action is
--   `alloc`; `free_requested` and `free_completed`, or `free` for both at once; `segment_alloc`, `segment_free`,
--   `segment_map`, `segment_unmap`; `oom` (the address is then the free memory); `snapshot`.
-- * `before`: what existed before the first event: `segments` and `blocks`, each with `address`, `size` (requested
--   bytes), and where it is known `stream`. Left out, it is found out by undoing the events from the end, so a ring
--   that lost its oldest events needs no more than `segments`.
-- * `segments`: a list of what is there after the last event, each with `address`, `size`, `stream` and `blocks`:
--   columns `address`, `size`, `requested`, `state` (`active_allocated`, `active_pending_free` or `inactive`). Blocks
--   fill their segment from its first byte to its last.
-- * `name`, `device` (its number, for formats that have one).
--
-- Addresses are integers; sizes, times, threads and streams go from 0 to 2^53; stream 0 is the default one. The columns
-- are kept, not copied: leave them alone afterwards.
--
-- Raises the first thing that is not as it should be.
-- @usage
-- local t = cl.trace.new {
--   events = {
--     action = { "segment_alloc", "alloc", "free" },
--     address = { 0x1000, 0x1000, 0x1000 },
--     size = { 4096, 100, 100 },
--     time_us = { 0, 1, 5 },
--   },
--   segments = { {
--     address = 0x1000, size = 4096,
--     blocks = { address = { 0x1000 }, size = { 4096 }, state = { "inactive" } },
--   } },
-- }
-- t:save("run.pickle", "pickle")
-- @tparam table given
-- @treturn table the trace
function trace.new(given)
  if type(given) ~= "table" then
    error(("trace.new: expected a table, got %s"):format(type(given)), 2)
  end
  local ok, rec, pairing = pcall(recording.check, given)
  if not ok then
    error("trace.new: " .. tostring(rec), 2)
  end
  return assemble(rec, pairing, given.name or "recorded", "recorded")
end

-- Recording from Lua.

local Recorder = {}
Recorder.__index = Recorder
Recorder.__name = "clalloc.recorder"

local function check_size(where, nbytes)
  if math.type(nbytes) ~= "integer" or nbytes < 0 or nbytes > recording.MAX_SIZE then
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
  return setmetatable({
    live = setmetatable({}, { __mode = "k" }), -- key -> number of its block
    blocks = 0,
    sizes = {}, -- by block
    stream_of = {}, -- stream as given -> number
    streams = 0,
    events = { action = {}, address = {}, size = {}, stream = {} },
  }, Recorder)
end

local function number_of_stream(self, stream)
  if stream == nil or stream == 0 then
    return 0
  end
  local number = self.stream_of[stream]
  if not number then
    number = self.streams + 1
    self.stream_of[stream], self.streams = number, number
  end
  return number
end

local function note(self, action, block, nbytes, stream)
  local events = self.events
  local n = #events.action + 1
  events.action[n], events.address[n], events.size[n], events.stream[n] = action, block, nbytes, stream
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
  if self.live[key] then
    error(("recorder:alloc: %s is live already"):format(tostring(key)), 2)
  end
  local block, number = self.blocks + 1, number_of_stream(self, stream)
  self.blocks, self.live[key], self.sizes[block] = block, block, nbytes
  note(self, "alloc", block, nbytes, number)
end

--- Notes a free.
-- @param key what `alloc` was given
function Recorder:free(key)
  local block = key ~= nil and self.live[key]
  if not block then
    error(("recorder:free: %s is not live"):format(tostring(key)), 2)
  end
  self.live[key] = nil
  note(self, "free", block, self.sizes[block], 0)
end

--- The trace of everything noted so far. Recording may go on.
-- @tparam[opt="recorded"] string name
-- @treturn table the trace
function Recorder:finish(name)
  local rec = recording.new(false)
  for column, values in pairs(self.events) do
    rec.events[column] = table.move(values, 1, #values, 1, {})
  end
  local pairing = ledger.pair(rec, function(_, reason) error("recorder:finish: " .. reason, 4) end)
  return assemble(rec, pairing, name or "recorded", "recorded")
end

function Recorder:__tostring()
  return ("recorder (%d allocation%s)"):format(self.blocks, self.blocks == 1 and "" or "s")
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

-- Writing.

-- Used where a name of a file says nothing of a format.
local DEFAULT_FORMAT = "csv"
local FORMAT_OF_SUFFIX = { pickle = "pickle", pkl = "pickle", json = "chrome" }

local function check_save(path, format, opts)
  if type(path) ~= "string" then
    error(("trace:save: path: expected a string, got %s"):format(type(path)), 3)
  end
  format = format or FORMAT_OF_SUFFIX[path:match "%.(%w+)$"] or DEFAULT_FORMAT
  if not formats.writers[format] then
    error(("trace:save: format: expected one of %s; got %s"):format(formats.written, tostring(format)), 3)
  elseif opts ~= nil and type(opts) ~= "table" then
    error(("trace:save: opts: expected a table, got %s"):format(type(opts)), 3)
  end
  return formats.writers[format]
end

--- Writes the trace, its whole recording with it, in a format that others read:
--
-- * `csv`: our own, in which nothing is lost but what only PyTorch's snapshots have. `load` reads it back.
-- * `pickle`: a PyTorch memory snapshot, for PyTorch's memory_viz page and Python.
-- * `chrome`: Chrome trace JSON, for Perfetto: a slice for each allocation, and how much is reserved, active and
--   requested over time.
-- * `rmm`: an RMM log, for RMM's replay. That takes the default stream only: `streams = false` calls every stream so.
-- * `pytorch_snapshot`: PyTorch's events as CSV. What was live before goes to `NAME.initial.csv` beside it; without
--   any, such a file left there by an earlier save is removed, since it would be loaded along.
--
-- A trace without addresses or segments gets some that do not overlap. The file is there as a whole or not at all.
-- @tparam string path
-- @tparam[opt] string format else by the suffix of path: `pickle` for `.pickle` and `.pkl`, `chrome` for `.json`, `csv`
-- @tparam[opt] table opts `streams`, see `rmm`
-- @treturn boolean true, or nil, message, code
function Trace:save(path, format, opts)
  local write = check_save(path, format, opts)
  local rec = self.scale == 1 and self.recording or layout.scaled(self.recording, self.scale)
  return write(path, rec, opts or {})
end

function Trace:__tostring()
  return ("trace %s: %d operations, %d stream%s, peak live %s%s"):format(self.name, self.operations, self.streams,
    self.streams == 1 and "" or "s", trace.human(self.peak_live),
    self.scale == 1 and "" or (" (sizes / %d)"):format(self.scale))
end

return trace
