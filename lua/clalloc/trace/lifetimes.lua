-- Lifetimes: a block is live in [lower, upper). One block a row, rows in any order: id,lower,upper,size as CSV, or
-- start_op end_op bytes as a log without a header.
--
-- Gives events in order of time without addresses: blocks are told apart by numbers.

local recording = require "clalloc.trace.recording"
local text = require "clalloc.trace.text"

local check = text.check
local MAX_SIZE = recording.MAX_SIZE

local HEADER = "id,lower,upper,size"
local MAX_COLUMNS = 100 -- Lua's patterns take 200 repetitions

-- Appends the events in order of time. At the same time frees come before allocations, each in row order.
-- A counting sort by the rank of the time: stable, and only the distinct times are compared.
local function append_lifetimes(events, lower, upper, bytes)
  local rank, times = {}, {}
  for _, list in ipairs { lower, upper } do
    for i = 1, #list do
      local time = list[i]
      if not rank[time] then
        rank[time] = 0
        times[#times + 1] = time
      end
    end
  end
  table.sort(times)
  local next_at = {} -- 2r: frees at the r-th time; 2r + 1: allocations then
  for r = 1, #times do
    rank[times[r]] = 2 * r
    next_at[2 * r], next_at[2 * r + 1] = 0, 0
  end
  for i = 1, #bytes do
    local dies, born = rank[upper[i]], rank[lower[i]] + 1
    next_at[dies], next_at[born] = next_at[dies] + 1, next_at[born] + 1
  end
  local position = 1
  for key = 2, 2 * #times + 1 do
    next_at[key], position = position, position + next_at[key]
  end
  local order = {} -- row: born; its negation: dies
  for i = 1, position - 1 do
    order[i] = 0
  end
  for i = 1, #bytes do
    local dies, born = rank[upper[i]], rank[lower[i]] + 1
    order[next_at[dies]], next_at[dies] = -i, next_at[dies] + 1
    order[next_at[born]], next_at[born] = i, next_at[born] + 1
  end
  for i = 1, #order do
    local row = order[i]
    if row > 0 then
      events.action[i], events.address[i], events.size[i], events.time_us[i] = "alloc", row, bytes[row], lower[row]
    else
      row = -row
      events.action[i], events.address[i], events.size[i], events.time_us[i] = "free", row, bytes[row], upper[row]
    end
  end
end

-- A block that dies when it is born is never live, and left out.
local function read_lifetimes(file, rec, layout)
  local lower, upper, bytes, lines = {}, {}, {}, {}
  local names = layout.names
  text.each_row(file, layout, function(from, to, size)
    local first, last, nbytes = tonumber(from), tonumber(to), tonumber(size)
    if first > MAX_SIZE or last > MAX_SIZE or nbytes > MAX_SIZE then
      return check.whole(names[1], from) or check.whole(names[2], to) or check.whole(names[3], size)
    elseif last < first then
      return ("%s %s is before %s %s"):format(names[2], to, names[1], from)
    elseif last > first then
      local n = #bytes + 1
      lower[n], upper[n], bytes[n], lines[n] = first, last, nbytes, file.line
    end
  end)
  rec.addressed, rec.events.time_us = false, {}
  append_lifetimes(rec.events, lower, upper, bytes)
  file.line_of = function(k) return lines[rec.events.address[k]] end
end

local function lifetime_layout(header)
  local columns = {
    { "id", check.any }, { "lower", check.whole }, { "upper", check.whole }, { "size", check.whole },
  }
  local extra = header:sub(#HEADER + 1)
  for name in extra:gmatch(",([^,]*)") do
    columns[#columns + 1] = { name, check.any, optional = true }
  end
  return {
    names = { "lower", "upper", "size" },
    row = "^[^,\r\n]+,(%d+),(%d+),(%d+)" .. (",[^,\r\n]*"):rep(#columns - 4) .. "\r?\n",
    columns = columns,
  }
end

local LOG_LAYOUT = {
  separator = " ",
  names = { "start_op", "end_op", "bytes" },
  row = "^(%d+)[ \t]+(%d+)[ \t]+(%d+)[ \t]*\r?\n",
  columns = { { "start_op", check.whole }, { "end_op", check.whole }, { "bytes", check.whole } },
}

local lifetimes = {}

--- The CSV; further columns are ignored.
lifetimes.csv = {
  name = "lifetimes",
  header = HEADER .. "[,...]",
  matches = function(line)
    return (line .. ","):find(HEADER .. ",", 1, true) == 1
  end,
  read = function(file, rec)
    local layout = lifetime_layout(text.first_line(file))
    if #layout.columns > MAX_COLUMNS then
      text.fail(file, ("%d columns; at most %d are read"):format(#layout.columns, MAX_COLUMNS))
    end
    text.skip_header(file)
    read_lifetimes(file, rec, layout)
  end,
}

--- The log.
lifetimes.log = {
  name = "lifetime_log",
  header = "rows of 'start_op end_op bytes'",
  matches = function(line)
    return line:find "^%-?[%d.]+[ \t]+%-?[%d.]+[ \t]" ~= nil
  end,
  read = function(file, rec)
    read_lifetimes(file, rec, LOG_LAYOUT)
  end,
}

return lifetimes
