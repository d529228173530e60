--- What a replay gives: figures that print as a list, and several of them side by side as a table.
--
-- @module clalloc.replay.result

local plot = require "clalloc.replay.plot"
local trace = require "clalloc.trace"

local result = {}

local function grouped(n)
  local digits = ("%d"):format(n)
  local head = (#digits - 1) % 3 + 1
  return digits:sub(1, head) .. digits:sub(head + 1):gsub("%d%d%d", ",%0")
end

local function percent(share) return ("%.1f %%"):format(100 * share) end

local function duration(seconds)
  if seconds < 1e-3 then return ("%.1f us"):format(seconds * 1e6) end
  if seconds < 1 then return ("%.1f ms"):format(seconds * 1e3) end
  return ("%.2f s"):format(seconds)
end

-- ---- One -------------------------------------------------------------------------------------------------------

local Result = {}
Result.__index = Result
Result.__name = "clalloc.replay_result"

local function byte_figure(nbytes)
  return ("%12s  (%s bytes)"):format(trace.human(nbytes), grouped(nbytes))
end

local function limit_figure(self)
  if not self.smallest_limit then return ("%12s"):format("none found") end
  return ("%s, %.4f of the live peak"):format(byte_figure(self.smallest_limit), self.smallest_limit / self.peak_live)
end

function Result:__tostring()
  local lines = { ("replay of %s on %s, policy %s"):format(self.name, self.device, self.policy) }
  local function row(label, figure)
    lines[#lines + 1] = ("  %-22s %s"):format(label, figure)
  end
  row("operations", ("%12s"):format(grouped(self.operations)))
  row("driver calls", ("%12s"):format(grouped(self.driver_calls)))
  if self.driver_seconds then row("estimated for them", ("%12s"):format(duration(self.driver_seconds))) end
  row("peak live", byte_figure(self.peak_live))
  row("peak reserved", byte_figure(self.peak_reserved))
  row("reserved / live", ("%12.3f"):format(self.ratio))
  if self.internal_waste then
    row("internal waste", ("%12s"):format(percent(self.internal_waste)))
    row("external fragmentation", ("%12s"):format(percent(self.external_fragmentation)))
  end
  if self.smallest_limit ~= nil then row("smallest limit", limit_figure(self)) end
  row("seconds", ("%12.3f"):format(self.seconds))
  row("ns per operation", ("%12.0f"):format(self.ns_per_op))
  if self.failed > 0 then
    row("failed allocations", ("%12s"):format(grouped(self.failed)))
    lines[#lines + 1] = "  first failure: " .. self.first_failure
  end
  return table.concat(lines, "\n")
end

--- Draws reserved, active and requested bytes over time, and the segments at the peak, as an SVG picture. Needs
-- gnuplot, and a replay with `details`.
-- @tparam string path
-- @treturn boolean true, or nil, message, code
function Result:plot(path) return plot.save({ self }, path) end

-- ---- Several ---------------------------------------------------------------------------------------------------

local Comparison = {}
Comparison.__index = Comparison
Comparison.__name = "clalloc.replay_comparison"

-- Columns: a heading, and a text for a result or nil where there is none.
local COLUMNS = {
  { "policy", function(r) return r.policy end },
  { "driver calls", function(r) return grouped(r.driver_calls) end },
  { "driver time", function(r) return r.driver_seconds and duration(r.driver_seconds) end },
  { "peak live", function(r) return trace.human(r.peak_live) end },
  { "peak reserved", function(r) return trace.human(r.peak_reserved) end },
  { "ratio", function(r) return ("%.4f"):format(r.ratio) end },
  { "internal", function(r) return r.internal_waste and percent(r.internal_waste) end },
  { "external", function(r) return r.external_fragmentation and percent(r.external_fragmentation) end },
  { "smallest limit", function(r)
    if r.smallest_limit == false then return "none found" end
    return r.smallest_limit and trace.human(r.smallest_limit)
  end },
  { "/ live", function(r) return r.smallest_limit and ("%.4f"):format(r.smallest_limit / r.peak_live) end },
  { "ns/op", function(r) return ("%.0f"):format(r.ns_per_op) end },
  { "failed", function(r) return r.failed > 0 and grouped(r.failed) or nil end },
}

local function texts(results, column)
  local list, width, any = {}, utf8.len(column[1]), false
  for i, r in ipairs(results) do
    local text = column[2](r) or nil
    any = any or text ~= nil
    list[i] = text or "-"
    width = math.max(width, #list[i])
  end
  return any and { list = list, width = width, heading = column[1] } or nil
end

local function table_row(columns, of)
  local cells = {}
  for i, column in ipairs(columns) do
    local text = of(column)
    local pad = (" "):rep(column.width - #text)
    cells[i] = i == 1 and text .. pad or pad .. text
  end
  return "  " .. table.concat(cells, "  ")
end

function Comparison:__tostring()
  local first, columns = self[1], {}
  for _, column in ipairs(COLUMNS) do columns[#columns + 1] = texts(self, column) end
  local lines = { ("replay of %s on %s: %s operations"):format(first.name, first.device, grouped(first.operations)) }
  lines[2] = table_row(columns, function(column) return column.heading end)
  for i = 1, #self do
    lines[i + 2] = table_row(columns, function(column) return column.list[i] end)
  end
  for _, r in ipairs(self) do
    if r.failed > 0 then lines[#lines + 1] = ("  %s fails first at %s"):format(r.policy, r.first_failure) end
  end
  return table.concat(lines, "\n")
end

--- The same picture for every policy, side by side.
-- @tparam string path
-- @treturn boolean true, or nil, message, code
function Comparison:plot(path) return plot.save(self, path) end

--- Makes a result of its figures.
function result.one(figures) return setmetatable(figures, Result) end

--- Makes a comparison of a list of results.
function result.several(list) return setmetatable(list, Comparison) end

return result
