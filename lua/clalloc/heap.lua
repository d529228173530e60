--- What is written in Lua of `dev.heap`: reports of what is live, peaks of a run, the map.
--
--     heap (limit 8.0 MiB, 6.2 KiB in 100 blocks)
--       +...............................................................
--       ...............................................................#
--     # taken  + partly  . free; 64.0 KiB a character
--
-- @module clalloc.heap

local draw = require "clalloc.draw"
local trace = require "clalloc.trace"

local WIDTH, ROWS = 64, 16
local LEGEND = "# taken  + partly  . free; %s a character"

-- ---- Leaks ---------------------------------------------------------------------------------------------------

local function place_of(group)
  if group.kernel then return ("%s, line %d"):format(group.kernel, group.line or 0) end
  return group.line and ("line %d"):format(group.line) or ("of %s each"):format(trace.human(group.size))
end

local report = {}

function report.__tostring(groups)
  if #groups == 0 then return "nothing is live" end
  local lines = {}
  for i, group in ipairs(groups) do
    lines[i] = ("%10s in %6d block%s  %s, first reference %d"):format(
      trace.human(group.bytes), group.blocks, group.blocks == 1 and " " or "s", place_of(group), group.ref)
  end
  return table.concat(lines, "\n")
end

-- Blocks of one place; without sites, of one size.
local function group_of(groups, block)
  local has_site = block.kernel or block.line
  local key = has_site and ("%s:%s"):format(block.kernel, block.line) or block.size
  local group = groups[key]
  if not group then
    group = {
      blocks = 0, bytes = 0, ref = block.ref, kernel = block.kernel, line = block.line,
      size = not has_site and block.size or nil,
    }
    groups[key] = group
  end
  return group
end

-- The most bytes first; equal ones in the order of the heap.
local function before(a, b)
  if a.bytes ~= b.bytes then return a.bytes > b.bytes end
  return a.ref < b.ref
end

local function leaks(heap)
  local groups, list = {}, setmetatable({}, report)
  local blocks, message, code = heap:blocks()
  if not blocks then return nil, message, code end
  for _, block in ipairs(blocks) do
    local group = group_of(groups, block)
    group.blocks, group.bytes = group.blocks + 1, group.bytes + block.size
  end
  for _, group in pairs(groups) do list[#list + 1] = group end
  table.sort(list, before)
  return list
end

-- ---- Peaks ---------------------------------------------------------------------------------------------------

-- Runs in progress, by this Lua state: each a table with its heap, which nothing but the run holds on to. A coroutine
-- that is closed ends its run; one that is forgotten ends it when it is collected.
local measured = setmetatable({}, { __mode = "k" })

local run_type = {}

function run_type.__close(run)
  if measured[run] then pcall(run.heap.reset_peaks, run.heap) end
  measured[run] = nil
end

local function read_peaks(run)
  local heap = run.heap
  local stats, message, code = heap:stats()
  if not stats then return nil, message, code end
  local ok, why, kind = heap:reset_peaks()
  if not ok then return nil, why, kind end
  measured[run] = nil
  return stats.peak, stats.peak_live
end

local function measure(heap, f, ...)
  if type(f) ~= "function" then error(("measure: function expected, got %s"):format(type(f)), 2) end
  for run in pairs(measured) do
    if run.heap == heap then error("measure: the heap is being measured already", 2) end
  end
  local ok, message, code = heap:reset_peaks(true)
  if not ok then return nil, message, code end
  local run <close> = setmetatable({ heap = heap }, run_type)
  measured[run] = true
  f(...)
  return read_peaks(run)
end

-- ---- The map -------------------------------------------------------------------------------------------------

-- Live bytes in each cell of `step` bytes.
local function fill_cells(blocks, step)
  local cells = {}
  for _, block in ipairs(blocks) do
    local at, last = block.offset, block.offset + block.size
    while at < last do
      local cell = at // step
      local stop = math.min(last, (cell + 1) * step)
      cells[cell] = (cells[cell] or 0) + stop - at
      at = stop
    end
  end
  return cells
end

local function mark(live, step)
  if not live then return "." end
  return live == step and "#" or "+"
end

local function drawer(describe)
  return function(heap, width, rows)
    width, rows = draw.check_count("width", width, WIDTH), draw.check_count("rows", rows, ROWS)
    local lines, limit = { describe(heap) }, heap.limit
    if limit == 0 then return lines[1] end
    local stats, message, code = heap:stats()
    if not stats then return nil, message, code end
    if stats.reserved == 0 then return lines[1] end
    local blocks, why, kind = heap:blocks()
    if not blocks then return nil, why, kind end
    local step = math.max(512, ((limit - 1) // width + rows) // rows) -- limit / (width * rows), however large those are
    local cells, line = fill_cells(blocks, step), {}
    local last = (limit + step - 1) // step - 1
    for cell = 0, last do
      line[#line + 1] = mark(cells[cell], math.min(step, limit - cell * step))
      if #line == width or cell == last then
        lines[#lines + 1] = "  " .. table.concat(line)
        line = {}
      end
    end
    lines[#lines + 1] = LEGEND:format(trace.human(step))
    return table.concat(lines, "\n")
  end
end

--- Adds the methods to the type of heaps.
-- @tparam table heap what `cl.debug.types()` gives for it
local function install(heap)
  heap.names.leaks, heap.names.measure = leaks, measure
  heap.names.draw = drawer(heap.meta.__tostring)
end

return install
