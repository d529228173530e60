-- The log of RAPIDS' memory manager, written as things happen: `Thread,Time,Action,Pointer,Size,Stream`. Its replay
-- reads the pointer with base 16 and the stream with base 10, and refuses any but the default stream, 0; so do these
-- rows: streams are numbered from 0 in the order in which they appear.

local core = require "clalloc.core"

local policy_log = {}

local Log = {}
Log.__index = Log

local ACTIONS <const> = { alloc = "allocate", free = "free", fail = "allocate failure" }
local FLUSHED_EVERY <const> = 256 -- rows

-- Time of day with microseconds: the clock that has them counts from any moment.
local function time_of_day(self)
  local passed = core.clock() - self.start
  local seconds = math.floor(passed)
  return ("%s.%06d"):format(os.date("%H:%M:%S", self.began + seconds), math.floor((passed - seconds) * 1e6))
end

local function stream_number(self, id)
  if not self.streams[id] then
    self.streams[id] = self.nstreams
    self.nstreams = self.nstreams + 1
  end
  return self.streams[id]
end

function policy_log.open(path)
  local file, message, code = io.open(path, "w")
  if not file then return nil, message, code end
  file:write "Thread,Time,Action,Pointer,Size,Stream\n"
  return setmetatable({
    file = file, start = core.clock(), began = os.time(), streams = {}, nstreams = 0, rows = 0,
  }, Log)
end

function Log:write(event)
  local pointer = event.what == "fail" and "(nil)" or ("0x%x"):format(event.address)
  self.file:write(("1,%s,%s,%s,%d,%d\n"):format(time_of_day(self), ACTIONS[event.what], pointer, event.nbytes,
    stream_number(self, event.stream)))
  self.rows = self.rows + 1
  if self.rows % FLUSHED_EVERY == 0 then self.file:flush() end
end

function Log:flush()
  return self.file:flush() and true
end

return policy_log
