--- One pass of a trace through a pool.
--
-- The loop is the measurement: an allocation is one `pool:alloc`, a free is one `buf:close`, and nothing else is
-- called for an operation but `buf:fill(0)` where memory is to be touched.
--
-- @module clalloc.replay.pass

local pass = {}

local function note_failure(self, operation, nbytes, message)
  self.failed = self.failed + 1
  if not self.first_failure then
    self.first_failure = ("operation %d, %d bytes: %s"):format(operation, nbytes, message)
  end
end

--- Operations first to last. Slots of failed allocations hold false, and their frees are skipped.
function pass.run(self, first, last)
  local op, size, stream = self.trace.op, self.trace.size, self.trace.stream
  local pool, streams, blocks, touch = self.pool, self.streams, self.blocks, self.touch
  local alloc, close = pool.alloc, self.close_buffer
  for i = first, last do
    local slot = op[i]
    if slot > 0 then
      local buf, message = alloc(pool, size[i], streams[stream[i]])
      if buf then
        blocks[slot] = buf
        close = close or buf.close
        if touch and size[i] > 0 then
          buf:fill(0)
        end
      else
        blocks[slot] = false
        note_failure(self, i, size[i], message)
      end
    else
      local buf = blocks[-slot]
      if buf then
        close(buf)
      end
    end
  end
  self.close_buffer = close
end

--- Up to operation `last` or the first failure.
-- @treturn boolean whether none failed
function pass.completes(self, last)
  local CHUNK = 64
  for first = 1, last, CHUNK do
    pass.run(self, first, math.min(first + CHUNK - 1, last))
    if self.failed > 0 then return false end
  end
  return true
end

local function release(self)
  for slot = 1, #self.blocks do
    if self.blocks[slot] then
      self.blocks[slot]:close()
    end
  end
  for _, stream in ipairs(self.own_streams) do
    stream:close()
  end
  if self.own_pool then
    self.own_pool:close()
  end
end

-- Stream 0 is left out: the pool's default.
local function open_streams(self, device, given)
  for number = 1, self.trace.streams - 1 do
    local stream = given and given[number]
    if not stream then
      stream = assert(device:stream())
      table.insert(self.own_streams, stream)
    end
    self.streams[number] = stream
  end
end

local function new(t)
  local self = { trace = t, blocks = {}, streams = {}, own_streams = {}, failed = 0 }
  for slot = 1, t.slots do
    self.blocks[slot] = false
  end
  return setmetatable(self, { __close = release })
end

--- A pass about to begin, to be held in a `<close>` variable: it closes all that is left live, its streams and its
-- pool. A closed buffer may be closed again.
-- @tparam table t a trace
-- @tparam device device
-- @tparam table how `pool`, or `policy` and `limit` of one to be made; `streams`, `touch`
function pass.open(t, device, how)
  local self = new(t)
  local ok, err = pcall(function()
    self.touch = how.touch
    self.own_pool = not how.pool and assert(device:pool { policy = how.policy, limit = how.limit }) or nil
    self.pool = how.pool or self.own_pool
    open_streams(self, device, how.streams)
  end)
  if ok then return self end
  release(self)
  error(err, 0)
end

--- Waits until what was filled is filled: a read on the default stream comes after all its earlier commands.
function pass.drain(self)
  for _, stream in pairs(self.streams) do
    stream:finish()
  end
  local probe <close> = self.pool:alloc(1)
  if probe then
    probe:read()
  end
end

return pass
