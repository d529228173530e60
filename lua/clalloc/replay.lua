--- Replays a trace through a pool and reports what it cost.
--
-- What is timed is one pass (replay/pass.lua) in which nothing is done but what the trace says. Details, plots and the
-- smallest limit come from further passes, each in a pool of its own.
--
-- @module clalloc.replay

local cost = require "clalloc.replay.cost"
local detail = require "clalloc.replay.detail"
local fit = require "clalloc.replay.fit"
local pass = require "clalloc.replay.pass"
local policies = require "clalloc.replay.policies"
local result = require "clalloc.replay.result"

local PROGRESS_STEPS = 100

-- ---- Options ---------------------------------------------------------------------------------------------------

local OPTIONS = {
  device = "a device", policy = "a policy", policies = "table", limit = "integer", pool = "a pool",
  touch = "boolean", streams = "streams", progress = "function", details = "boolean", fit = "boolean",
  driver_cost = "cost",
}

local function is_count(value) return math.type(value) == "integer" and value >= 1 end

-- What a value must be, by what OPTIONS says; other kinds are checked where they are used.
local checks = {
  table = function(v) return type(v) == "table" and #v > 0, "a list that is not empty" end,
  integer = function(v) return is_count(v), "a number of bytes above 0" end,
  boolean = function(v) return type(v) == "boolean", "true or false" end,
  ["function"] = function(v) return type(v) == "function", "a function" end,
  streams = function(v)
    return is_count(v) and v <= 1024 or type(v) == "table", "a list of streams, or a number of them from 1 to 1024"
  end,
  cost = function(v)
    return type(v) == "userdata" or type(v) == "number" and v >= 0 and v < math.huge, "seconds, or a device"
  end,
}

local function check_names(opts)
  for name, value in pairs(opts) do
    local kind = OPTIONS[name]
    if not kind then
      local names = {}
      for known in pairs(OPTIONS) do names[#names + 1] = known end
      table.sort(names)
      error(("replay: no option is named '%s'; there are %s"):format(tostring(name), table.concat(names, ", ")), 4)
    end
    local ok, wanted = true, nil
    if checks[kind] then ok, wanted = checks[kind](value) end
    if not ok then error(("replay: %s: expected %s, got %s"):format(name, wanted, tostring(value)), 4) end
  end
end

local function check_options(t, opts)
  if type(t) ~= "table" or not t.op then
    error(("replay: trace: expected a trace, got %s"):format(type(t)), 3)
  end
  if type(opts) ~= "table" then
    error(("replay: options: expected a table, got %s"):format(type(opts)), 3)
  end
  check_names(opts)
  if opts.pool and (opts.policy or opts.policies or opts.limit) then
    error("replay: pool: a pool brings its own policy and limit", 3)
  end
  if opts.pool and (opts.details or opts.fit) then
    error("replay: pool: details and fit need fresh pools, not one that was given", 3)
  end
  if opts.policy and opts.policies then
    error("replay: policies: give either policy or policies", 3)
  end
end

-- The trace with its allocations dealt out to so many streams in turn, whatever they were on.
local function dealt(t, count)
  local of_slot, stream, n = {}, {}, 0
  for i, slot in ipairs(t.op) do
    if slot > 0 then
      of_slot[slot] = n % count
      n = n + 1
    end
    stream[i] = of_slot[math.abs(slot)]
  end
  local copy = {}
  for name, value in pairs(t) do copy[name] = value end
  copy.stream, copy.streams = stream, count
  return setmetatable(copy, getmetatable(t))
end

local function trace_name(t)
  return t.scale == 1 and t.name or ("%s (sizes / %d)"):format(t.name, t.scale)
end

-- Everything that the passes of one replay share.
local function plan_of(t, opts)
  local device = opts.device or opts.pool and opts.pool.device or require "clalloc".device()
  local touch = opts.touch
  if touch == nil then touch = not device.simulated end
  if math.type(opts.streams) == "integer" then t = dealt(t, opts.streams) end
  return {
    trace = t, device = device, touch = touch, pool = opts.pool, limit = opts.limit, progress = opts.progress,
    streams = type(opts.streams) == "table" and opts.streams or nil,
    details = opts.details, fit = opts.fit, driver_cost = opts.driver_cost,
  }
end

-- ---- Passes ----------------------------------------------------------------------------------------------------

-- Only the timed pass touches memory: the others are about figures that do not depend on it.
local function open(job, make, limit, touch)
  return pass.open(job.trace, job.device, {
    pool = job.pool, policy = make and make(), limit = limit, streams = job.streams, touch = touch,
  })
end

local function run_all(self, progress)
  local total = self.trace.operations
  local step = progress and math.max(1, total // PROGRESS_STEPS) or math.max(1, total)
  for first = 1, total, step do
    local last = math.min(first + step - 1, total)
    pass.run(self, first, last)
    if progress then progress(last, total) end
  end
end

local function driver_calls(stats) return stats.driver_allocs + stats.driver_frees end

local function timed(job, make)
  local self <close> = open(job, make, job.limit, job.touch)
  local now = require "clalloc.core".clock
  local before, start = self.pool:stats(), now()
  run_all(self, job.progress)
  local after = self.pool:stats()
  if self.touch then pass.drain(self) end
  local seconds, t = now() - start, job.trace
  local peak_live = self.failed == 0 and t.peak_live or after.peak_requested_bytes
  return {
    name = trace_name(t),
    device = job.device.name,
    operations = t.operations,
    driver_calls = driver_calls(after) - driver_calls(before),
    peak_live = peak_live,
    peak_reserved = after.peak_reserved_bytes,
    ratio = peak_live > 0 and after.peak_reserved_bytes / peak_live or 1.0,
    seconds = seconds,
    ns_per_op = t.operations > 0 and seconds * 1e9 / t.operations or 0.0,
    failed = self.failed,
    first_failure = self.first_failure,
  }
end

local function add_details(job, make, figures)
  local measured
  do
    local self <close> = open(job, make, job.limit)
    measured = detail.measure(self)
  end
  local self <close> = open(job, make, job.limit)
  figures.points, figures.peak_operation = measured.points, measured.peak_operation
  figures.internal_waste, figures.external_fragmentation =
    measured.internal_waste, measured.external_fragmentation
  figures.segments = detail.snapshot(self, measured.peak_operation)
end

-- False stands for: none found.
local function add_smallest_limit(job, make, figures)
  figures.smallest_limit = fit(function(limit)
    local self <close> = open(job, make, limit)
    return pass.completes(self, job.trace.operations)
  end, job.trace.peak_live, math.max(figures.peak_reserved, job.trace.peak_live, 1)) or false
end

local function driver_cost(job)
  local given = job.driver_cost
  if type(given) == "userdata" then return cost(given) end
  return given or job.details and not job.device.simulated and cost(job.device) or nil
end

local function replay_one(job, given, seconds_per_call)
  local name, make = "of the pool", nil
  if not job.pool then name, make = policies.maker(given, job.trace, job.device) end
  local figures = timed(job, make)
  figures.policy = name
  if seconds_per_call then figures.driver_seconds = figures.driver_calls * seconds_per_call end
  if job.details then add_details(job, make, figures) end
  if job.fit then add_smallest_limit(job, make, figures) end
  return result.one(figures)
end

--- Replays a trace.
--
-- Options, all of them optional:
--
-- * `device`: a device object, simulated or real; else the default device.
-- * `policy`, `limit`: of the pool that is made for the replay and closed after it. The policy is a name, a policy
--   ("planned" plans the whole trace), or a function that makes one, called for every pass with trace and device.
-- * `policies`: a list of such policies, to be replayed one after the other and compared.
-- * `pool`: a pool to use instead. Its peaks count from its own beginning, so a fair figure wants a fresh one.
-- * `touch`: fill every allocation on the device. By default memory is touched on a real device, where drivers back
--   it at first use, and not on a simulated one.
-- * `streams`: stream objects for the trace's streams 1, 2, ...; missing ones are made. Stream 0 is the default one.
--   A number instead deals the allocations out to so many streams in turn.
-- * `details`: further passes, for what the peak was made of and for `result:plot`.
-- * `fit`: further passes, to find the smallest limit at which all allocations succeed.
-- * `driver_cost`: seconds of one driver call, or a device to measure it on; else, with `details`, it is measured on
--   the replay's own device if that is real.
-- * `progress`: called as `progress(done, total)` about a hundred times during the timed pass.
--
-- Allocations that fail are counted, and their frees skipped. Blocks that the trace leaves live are closed at the end,
-- after the figures are taken.
-- @tparam table t a trace
-- @tparam[opt] table opts
-- @treturn table `operations`, `driver_calls` (allocations and frees asked of the driver), `peak_live` (requested
--   bytes; where allocations failed, of those that did not), `peak_reserved`, `ratio` (reserved / live), `seconds`,
--   `ns_per_op`, `failed`, `first_failure` (a message or nil), `name`, `policy`, `device`; with `driver_cost`
--   `driver_seconds`; with `details` `internal_waste`, `external_fragmentation`, `peak_operation`, `points`,
--   `segments`; with `fit` `smallest_limit` (false: none found). `tostring` gives a list. With `policies`, a list of
--   such tables, whose `tostring` is a table.
local function replay(t, opts)
  opts = opts or {}
  check_options(t, opts)
  local job = plan_of(t, opts)
  local seconds_per_call = driver_cost(job)
  if not opts.policies then return replay_one(job, opts.policy, seconds_per_call) end
  local results = {}
  for i, given in ipairs(opts.policies) do results[i] = replay_one(job, given, seconds_per_call) end
  return result.several(results)
end

return replay
