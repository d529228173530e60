-- The world of random operations: two pools and four streams, compared with a model in Lua: what every live buffer
-- contains, that none overlaps another, and that the pools' own recount agrees.
--
-- Each buffer holds a pattern of four bytes of its own, repeated. The model orders what it does to one
-- buffer on several streams by stream:wait, as a program must; what the memory was before is the
-- library's business. Now and then a gate holds a stream still, so that much is freed and allocated while
-- commands are pending.

local cl = require "clalloc"

local STREAMS <const>, POOLS <const> = 4, 2
local CHECKED_EVERY <const> = 500
local LIMIT <const> = 8 * cl.MiB -- of each pool: reached now and then
local MOST_LIVE <const> = 400

local World = {}
World.__index = World

local function new_world(dev, policy)
  local w = { dev = dev, streams = {}, pools = {}, live = {}, patterns = 0, refused = 0 }
  setmetatable(w, World)
  for i = 1, STREAMS do w.streams[i] = dev:stream() end
  for i = 1, POOLS do w.pools[i] = assert(dev:pool { limit = LIMIT, policy = policy }) end
  return w
end

local function pick(list) return list[math.random(#list)] end

local function random_size()
  local kind = math.random(10)
  if kind == 1 then return 0 end
  if kind <= 3 then return math.random(0, 8) end
  if kind <= 7 then return 4 * math.random(4096) end
  if kind <= 9 then return math.random(100000) end
  return math.random(1000000)
end

-- The stream of the next command on these buffers, made to wait for what was done to them on others. No
-- stream is made to wait for the one that is held still: the others go on meanwhile.
function World:stream_for(...)
  local s = pick(self.streams)
  for _, it in ipairs { ... } do
    if it.last == self.held then s = self.held end
  end
  for _, it in ipairs { ... } do
    if it.last ~= s then
      assert(s:wait(it.last))
      it.last = s
    end
  end
  return s
end

local function content(it, n)
  return it.pattern:rep(n // 4 + 1):sub(1, n)
end

local function fill(w, it, s)
  w.patterns = w.patterns + 1
  it.pattern = string.pack("<I4", w.patterns * 2654435761 & 0xffffffff)
  local whole = it.size // 4 * 4
  assert(it.buf:fill(it.pattern, { size = whole, stream = s, async = true })):close()
  if whole < it.size then
    assert(it.buf:write(it.pattern:sub(1, it.size - whole), whole, { stream = s, async = true })):close()
  end
end

function World:allocate(size, pool, stream)
  size = size or random_size()
  pool = pool or pick(self.pools)
  stream = stream or pick(self.streams)
  if #self.live >= MOST_LIVE then return end
  local buf, message, code = pool:alloc(size, stream)
  if not buf then
    assert(code == "LIMIT", message)
    self.refused = self.refused + 1
    return
  end
  local it = { buf = buf, size = size, pool = pool, last = stream }
  fill(self, it, stream)
  self.live[#self.live + 1] = it
end

function World:take_out()
  local i = math.random(#self.live)
  local it = self.live[i]
  self.live[i] = self.live[#self.live]
  self.live[#self.live] = nil
  return it
end

function World:hold()
  if self.gate then return end
  self.gate, self.held = self.dev:gate(), pick(self.streams)
  assert(self.held:wait(self.gate))
end

function World:let_go()
  if not self.gate then return end
  self.gate:open()
  self.gate:close()
  assert(self.held:finish())
  self.gate, self.held = nil, nil
end

-- Some of it, or all; nothing may be held still.
function World:verify(it)
  local s = self:stream_for(it)
  local n = math.random(4) == 1 and it.size or math.min(it.size, 64)
  local offset = math.random(0, (it.size - n) // 4) * 4
  local found = assert(it.buf:read(offset, n, { stream = s }))
  assert(found == content(it, n),
    ("%d bytes at %d of %d are not those written last"):format(n, offset, it.size))
end

function World:free()
  if #self.live == 0 then return end
  local it = self:take_out()
  if not self.gate and math.random(2) == 1 then self:verify(it) end
  it.buf:close()
  assert(it.buf.closed)
end

-- The same size on another stream, which may have to wait for the first.
function World:adopt()
  if #self.live == 0 then return end
  local it = self:take_out()
  it.buf:close()
  self:allocate(it.size, it.pool)
end

function World:overwrite()
  if #self.live == 0 then return end
  local it = pick(self.live)
  fill(self, it, self:stream_for(it))
end

function World:copy()
  if #self.live < 2 then return end
  local to, from = pick(self.live), pick(self.live)
  if to == from then return end
  if to.size > from.size then to, from = from, to end
  local s = self:stream_for(to, from)
  assert(to.buf:copy(from.buf, { size = to.size, stream = s, async = true })):close()
  to.pattern = from.pattern
end

function World:record()
  if #self.live == 0 then return end
  assert(pick(self.live).buf:record(pick(self.streams)))
end

function World:look()
  local n = self.gate and 20 or 1 -- what came late may have hit anything
  self:let_go()
  for _ = 1, math.min(n, #self.live) do self:verify(pick(self.live)) end
end

function World:fail()
  local pool = pick(self.pools)
  local before = pool:stats()
  local buf, _, code = pool:alloc(LIMIT + math.random(1000000), pick(self.streams))
  assert(not buf and code == "LIMIT")
  local after = pool:stats()
  assert(after.ooms == before.ooms + 1 and after.active_bytes == before.active_bytes)
end

function World:trim()
  local pool = pick(self.pools)
  local before = pool:stats().reserved_bytes
  assert(before - pool:trim() == pool:stats().reserved_bytes)
end

-- How often, of 1000.
local OPERATIONS_BY_WEIGHT <const> = {
  { "allocate", 350 }, { "free", 200 }, { "adopt", 80 }, { "overwrite", 90 }, { "copy", 110 },
  { "record", 80 }, { "hold", 40 }, { "look", 42 }, { "fail", 5 }, { "trim", 3 },
}

local function random_operation()
  local n = math.random(1000)
  for _, row in ipairs(OPERATIONS_BY_WEIGHT) do
    n = n - row[2]
    if n <= 0 then return row[1] end
  end
end

function World:check()
  for _, pool in ipairs(self.pools) do assert(pool:check()) end
  local list, active, requested = {}, {}, {}
  for _, pool in ipairs(self.pools) do active[pool], requested[pool] = 0, 0 end
  for i, it in ipairs(self.live) do
    list[i] = { from = it.buf.address, to = it.buf.address + math.max(it.size, 1) }
    active[it.pool] = active[it.pool] + 1
    requested[it.pool] = requested[it.pool] + it.size
  end
  table.sort(list, function(a, b) return a.from < b.from end)
  for i = 2, #list do assert(list[i - 1].to <= list[i].from, "two live buffers overlap") end
  for _, pool in ipairs(self.pools) do
    local stats = pool:stats()
    assert(stats.active_blocks == active[pool] and stats.requested_bytes == requested[pool])
    assert(stats.reserved_bytes <= LIMIT)
  end
end

function World:finish()
  self:check()
  self:let_go()
  while #self.live > 0 do
    local it = self:take_out()
    self:verify(it)
    it.buf:close()
  end
  for _, s in ipairs(self.streams) do assert(s:finish()) end
  for _, pool in ipairs(self.pools) do
    pool:trim()
    assert(pool:check())
    local stats = pool:stats()
    assert(stats.reserved_bytes == 0 and stats.held_blocks == 0 and stats.segments == 0)
    assert(stats.allocs == stats.frees and stats.driver_allocs == stats.driver_frees)
  end
end

function World:close()
  self:let_go()
  for _, it in ipairs(self.live) do it.buf:close() end
  for _, pool in ipairs(self.pools) do pool:close() end
  for _, s in ipairs(self.streams) do s:close() end
end

-- So many random operations from a seed, on pools of a policy; raises the first contradiction. Returns how many
-- allocations the limit refused.
return function(dev, seed, operations, policy)
  math.randomseed(seed)
  local w = new_world(dev, policy)
  local i, name = 0, "start"
  local ok, message = xpcall(function()
    for n = 1, operations do
      i, name = n, random_operation()
      w[name](w)
      if n % CHECKED_EVERY == 0 then w:check() end
    end
    name = "finish"
    w:finish()
  end, debug.traceback)
  local refused = w.refused
  w:close()
  if not ok then error(("seed %d, operation %d, %s: %s"):format(seed, i, name, message), 0) end
  return refused
end
