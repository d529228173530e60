--- Replays a trace through a pool and reports what it cost.
--
-- The loop is the measurement: an allocation is one `pool:alloc`, a free is one `buf:close`, and nothing else is
-- called for an operation but `buf:fill(0)` where memory is to be touched; the time then includes the fills' end.
--
-- @module clalloc.replay

local trace = require "clalloc.trace"

local PROGRESS_STEPS = 100

local Result = {}
Result.__index = Result
Result.__name = "clalloc.replay_result"

local function grouped(n)
  local digits = ("%d"):format(n)
  local head = (#digits - 1) % 3 + 1
  return digits:sub(1, head) .. digits:sub(head + 1):gsub("%d%d%d", ",%0")
end

local function byte_figure(nbytes)
  return ("%12s  (%s bytes)"):format(trace.human(nbytes), grouped(nbytes))
end

function Result:__tostring()
  local lines = { ("replay of %s on %s, policy %s"):format(self.name, self.device, self.policy) }
  local function row(label, figure)
    lines[#lines + 1] = ("  %-20s %s"):format(label, figure)
  end
  row("operations", ("%12s"):format(grouped(self.operations)))
  row("driver calls", ("%12s"):format(grouped(self.driver_calls)))
  row("peak live", byte_figure(self.peak_live))
  row("peak reserved", byte_figure(self.peak_reserved))
  row("reserved / live", ("%12.3f"):format(self.ratio))
  row("seconds", ("%12.3f"):format(self.seconds))
  row("ns per operation", ("%12.0f"):format(self.ns_per_op))
  if self.failed > 0 then
    row("failed allocations", ("%12s"):format(grouped(self.failed)))
    lines[#lines + 1] = "  first failure: " .. self.first_failure
  end
  return table.concat(lines, "\n")
end

-- Seconds from a clock that runs while the device works; without the C module, processor seconds.
local function clock()
  local core = package.loaded["clalloc.core"]
  return type(core) == "table" and core.clock or os.clock
end

local function note_failure(state, operation, nbytes, message)
  state.failed = state.failed + 1
  if not state.first_failure then
    state.first_failure = ("operation %d, %d bytes: %s"):format(operation, nbytes, message)
  end
end

-- Operations first to last. Slots of failed allocations hold false.
local function run(state, first, last)
  local op, size, stream = state.trace.op, state.trace.size, state.trace.stream
  local pool, streams, blocks, touch = state.pool, state.streams, state.blocks, state.touch
  local alloc, close = pool.alloc, state.close_buffer
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
        note_failure(state, i, size[i], message)
      end
    else
      local buf = blocks[-slot]
      if buf then
        close(buf)
      end
    end
  end
  state.close_buffer = close
end

local function run_all(state, progress)
  local total = state.trace.operations
  local step = progress and math.max(1, total // PROGRESS_STEPS) or math.max(1, total)
  for first = 1, total, step do
    local last = math.min(first + step - 1, total)
    run(state, first, last)
    if progress then
      progress(last, total)
    end
  end
end

local function release(state)
  for slot = 1, #state.blocks do
    if state.blocks[slot] then
      state.blocks[slot]:close()
    end
  end
  for _, stream in ipairs(state.own_streams) do
    stream:close()
  end
  if state.own_pool then
    state.own_pool:close()
  end
end

-- Everything a replay holds; closed with it. A closed buffer may be closed again.
local function new_state(t)
  local state = { trace = t, blocks = {}, streams = {}, own_streams = {}, failed = 0 }
  for slot = 1, t.slots do
    state.blocks[slot] = false
  end
  return setmetatable(state, { __close = release })
end

local function check_options(t, opts)
  if type(t) ~= "table" or not t.op then
    error(("replay: trace: expected a trace, got %s"):format(type(t)), 3)
  end
  if opts.pool and (opts.policy or opts.limit) then
    error("replay: pool: a pool brings its own policy and limit", 3)
  end
end

local function choose_device(opts)
  return opts.device or opts.pool and opts.pool.device or require "clalloc".device()
end

local function open_pool(state, device, opts)
  if opts.pool then
    state.pool = opts.pool
  else
    state.own_pool = assert(device:pool { policy = opts.policy, limit = opts.limit })
    state.pool = state.own_pool
  end
end

-- Stream 0 is left out: the pool's default.
local function open_streams(state, device, given)
  for number = 1, state.trace.streams - 1 do
    local stream = given and given[number]
    if not stream then
      stream = assert(device:stream())
      table.insert(state.own_streams, stream)
    end
    state.streams[number] = stream
  end
end

local function policy_name(opts)
  local policy = opts.policy
  if policy then
    return type(policy) == "table" and policy.name or tostring(policy)
  end
  return opts.pool and "of the pool" or "caching"
end

local function trace_name(t)
  return t.scale == 1 and t.name or ("%s (sizes / %d)"):format(t.name, t.scale)
end

-- Waits until what was filled is filled: a read on the default stream comes after all its earlier commands.
local function drain(state)
  for _, stream in pairs(state.streams) do
    stream:finish()
  end
  local probe <close> = state.pool:alloc(1)
  if probe then
    probe:read()
  end
end

local function driver_calls(stats)
  return stats.driver_allocs + stats.driver_frees
end

local function result_of(state, before, after, seconds)
  local t = state.trace
  local peak_live = state.failed == 0 and t.peak_live or after.peak_requested_bytes
  return {
    name = trace_name(t),
    operations = t.operations,
    driver_calls = driver_calls(after) - driver_calls(before),
    peak_live = peak_live,
    peak_reserved = after.peak_reserved_bytes,
    ratio = peak_live > 0 and after.peak_reserved_bytes / peak_live or 1.0,
    seconds = seconds,
    ns_per_op = t.operations > 0 and seconds * 1e9 / t.operations or 0.0,
    failed = state.failed,
    first_failure = state.first_failure,
  }
end

--- Replays a trace.
--
-- Options, all of them optional:
--
-- * `device`: a device object, simulated or real; else the default device.
-- * `policy`, `limit`: of the pool that is made for the replay and closed after it.
-- * `pool`: a pool to use instead. Its peaks count from its own beginning, so a fair figure wants a fresh one.
-- * `touch`: fill every allocation on the device. By default memory is touched on a real device, where drivers back
--   it at first use, and not on a simulated one.
-- * `streams`: stream objects for the trace's streams 1, 2, ...; missing ones are made. Stream 0 is the default one.
-- * `progress`: called as `progress(done, total)` about a hundred times.
--
-- Allocations that fail are counted, and their frees skipped. Blocks that the trace leaves live are closed at the end,
-- after the figures are taken.
-- @tparam table t a trace
-- @tparam[opt] table opts
-- @treturn table `operations`, `driver_calls` (allocations and frees asked of the driver), `peak_live` (requested
--   bytes; where allocations failed, of those that did not), `peak_reserved`, `ratio` (reserved / live), `seconds`,
--   `ns_per_op`, `failed`, `first_failure` (a message or nil), `name`, `policy`, `device`. `tostring` gives a table.
local function replay(t, opts)
  opts = opts or {}
  check_options(t, opts)
  local device = choose_device(opts)
  local state <close> = new_state(t)
  open_pool(state, device, opts)
  open_streams(state, device, opts.streams)
  state.touch = opts.touch
  if opts.touch == nil then
    state.touch = not device.simulated
  end
  local now, before = clock(), state.pool:stats()
  local start = now()
  run_all(state, opts.progress)
  local after = state.pool:stats()
  if state.touch then
    drain(state)
  end
  local result = result_of(state, before, after, now() - start)
  result.policy, result.device = policy_name(opts), device.name
  return setmetatable(result, Result)
end

return replay
