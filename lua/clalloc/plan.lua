--- Plans: where every allocation of a trace goes, decided beforehand.
--
-- Who knows all lifetimes needs no search at run time, and hardly more memory than is live at the peak: the planner in
-- C (src/pool/plan.c) places blocks by first fit in ten orders, and searches on when it is given time.
--
-- Blocks of different streams never share memory, whatever their lifetimes: a free is in order for its own stream
-- alone, and when another has come that far nobody knows beforehand. So each stream has an area of its own in the
-- plan, one after the other.
--
-- @module clalloc.plan

local core = require "clalloc.core"
local trace = require "clalloc.trace"

local plan_offsets = core.plan
local DEFAULT_ALIGN = 512

local Plan = {}
Plan.__index = Plan
Plan.__name = "clalloc.plan"

local OPTIONS = { align = true, seconds = true, steps = true, repeats = true }

local function check_options(opts)
  for name in pairs(opts) do
    if not OPTIONS[name] then
      error(("plan: no option is named '%s'; there are align, repeats, seconds, steps"):format(tostring(name)), 3)
    end
  end
  local align = opts.align or DEFAULT_ALIGN
  if math.type(align) ~= "integer" or align < 1 or align & (align - 1) ~= 0 then
    error(("plan: align: expected a power of two, got %s"):format(tostring(align)), 3)
  end
  local seconds = opts.seconds or 0
  if type(seconds) ~= "number" or not (seconds >= 0 and seconds < math.huge) then
    error(("plan: seconds: expected a number of at least 0, got %s"):format(tostring(seconds)), 3)
  end
  local steps = opts.steps or 0
  if math.type(steps) ~= "integer" or steps < 0 then
    error(("plan: steps: expected an integer of at least 0, got %s"):format(tostring(steps)), 3)
  end
  return align, seconds, steps
end

-- The lifetimes in a trace, in the order of its allocations, counted in operations. What is never freed lives to the
-- end; with `repeats` such a block lives all the time, since its free comes somewhere in the next round.
local function lifetimes(t, repeats)
  local lower, upper, size, stream, always, open = {}, {}, {}, {}, {}, {}
  local op, n = t.op, 0
  for i = 1, t.operations do
    local slot = op[i]
    if slot > 0 then
      n = n + 1
      lower[n], size[n], stream[n] = i, t.size[i], t.stream[i]
      open[slot] = n
    else
      upper[open[-slot]] = i
    end
  end
  for k = 1, n do
    if not upper[k] then
      upper[k], always[k] = t.operations + 1, repeats or nil
    end
  end
  return { lower = lower, upper = upper, size = size, stream = stream, always = always, blocks = n }
end

-- The blocks of each stream that has any, by number of the stream.
local function by_stream(blocks, streams)
  local groups = {}
  for number = 0, streams - 1 do
    groups[number] = { lower = {}, upper = {}, size = {}, index = {} }
  end
  for k = 1, blocks.blocks do
    local group = groups[blocks.stream[k]]
    local n = #group.index + 1
    group.index[n], group.lower[n], group.upper[n] = k, blocks.always[k] and 0 or blocks.lower[k], blocks.upper[k]
    group.size[n] = blocks.size[k]
  end
  return groups
end

-- Plans one stream's area from `bottom` on; returns its height, or nil, message, code.
local function plan_area(plan, group, bottom, seconds, steps)
  local offsets, height, floor, orders, tried = plan_offsets(group.lower, group.upper, group.size, plan.align, seconds,
    steps)
  if not offsets then return nil, height, floor end
  for n, k in ipairs(group.index) do plan.offset[k] = bottom + offsets[n] end
  plan.floor, plan.orders, plan.steps = plan.floor + floor, plan.orders + orders, plan.steps + tried
  return height
end

--- Plans the allocations of a trace.
--
-- Options, all of them optional:
--
-- * `align`: offsets are multiples of it, and sizes rounded up to it; 512. It must be one of the pool's that runs the
--   plan.
-- * `seconds`: processor time to search for a lower plan after the usual orders; it ends early at the floor, below
--   which there is none. For each stream.
-- * `steps`: at most so many steps of search, for a result that does not depend on time.
-- * `repeats`: the trace is one round of a loop: blocks that are not freed in it live all the time.
-- @tparam table t a trace
-- @tparam[opt] table opts
-- @treturn table the plan; or nil, message, code without host memory
local function plan(t, opts)
  if type(t) ~= "table" or not t.op then
    error(("plan: trace: expected a trace, got %s"):format(type(t)), 2)
  end
  opts = opts or {}
  if type(opts) ~= "table" then error(("plan: options: expected a table, got %s"):format(type(opts)), 2) end
  local align, seconds, steps = check_options(opts)
  local self = lifetimes(t, opts.repeats)
  self.name, self.align, self.peak_live, self.streams = t.name, align, t.peak_live, t.streams
  self.offset, self.areas, self.nbytes, self.floor, self.orders, self.steps = {}, {}, 0, 0, 0, 0
  local groups = by_stream(self, t.streams)
  for number = 0, t.streams - 1 do
    local group = groups[number]
    local height, message, code = 0, nil, nil
    if #group.index > 0 then height, message, code = plan_area(self, group, self.nbytes, seconds, steps) end
    if not height then return nil, message, code end
    self.areas[number] = { offset = self.nbytes, nbytes = height }
    self.nbytes = self.nbytes + height
  end
  self.ratio = self.peak_live > 0 and self.nbytes / self.peak_live or 1.0
  return setmetatable(self, Plan)
end

--- Checks every block against every other that lives at the same time, on any stream.
-- Plans were checked when they were made; this is for those that were changed or stored since.
-- @treturn boolean true; raises naming two blocks that overlap, or one that is misplaced
function Plan:check()
  for k = 1, self.blocks do
    local area = self.areas[self.stream[k]]
    local offset, nbytes = self.offset[k], math.max(self.size[k], 1)
    if math.type(offset) ~= "integer" then error(("plan: block %d at %s"):format(k, tostring(offset)), 2) end
    if not (offset >= area.offset and offset + nbytes <= area.offset + area.nbytes) then
      error(("plan: block %d at %d of %d bytes: not inside its stream's area, %d bytes at %d"):format(k, offset, nbytes,
        area.nbytes, area.offset), 2)
    end
  end
  if self.blocks == 0 then return true end
  local lower = {}
  for k = 1, self.blocks do lower[k] = self.always[k] and 0 or self.lower[k] end
  local ok, message = plan_offsets(lower, self.upper, self.size, self.align, self.offset)
  if ok then return true end
  message = message:gsub("block (%d+)", function(n) return ("block %d"):format(n + 1) end) -- C counts from 0
  error(message, 2)
end

function Plan:__tostring()
  return ("plan of %s: %d blocks in %s, peak live %s, %.4f times it"):format(self.name, self.blocks,
    trace.human(self.nbytes), trace.human(self.peak_live), self.ratio)
end

return plan
