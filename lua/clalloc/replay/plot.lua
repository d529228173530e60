--- Pictures of replays, drawn by gnuplot: bytes over time above, the segments at the peak below, a column a policy.
--
-- @module clalloc.replay.plot

local plot = {}

local COLUMN_WIDTH, HEIGHT = 760, 760
local COLOURS = { active = "#4878a8", held = "#c8883c", free = "#e8e8e8" }
local UNITS = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" }

-- A name as gnuplot text: without what it would take for markup or the end of the string. It leaves & to the reader of
-- the SVG.
local function quoted(text)
  return '"' .. text:gsub('[%c"\\]', " "):gsub("[_^{}@&~]", "\\\\%0"):gsub("&", "&amp;") .. '"'
end

-- The unit in which so many bytes have one to four digits: its name, its bytes, the figure in it.
local function unit_for(nbytes)
  local i, divisor = 1, 1
  while nbytes / divisor >= 1024 and i < #UNITS do i, divisor = i + 1, divisor * 1024 end
  return { name = UNITS[i], bytes = divisor, most = nbytes / divisor }
end

-- The same scale of bytes over time for all.
local function scale_of(results)
  local most = 1
  for _, r in ipairs(results) do most = math.max(most, r.peak_reserved) end
  return unit_for(most)
end

local function add_points(lines, name, points, divisor)
  lines[#lines + 1] = ("$%s << EOD"):format(name)
  for _, p in ipairs(points) do
    lines[#lines + 1] = ("%d %.9g %.9g %.9g"):format(p.operation, p.reserved / divisor, p.active / divisor,
      p.requested / divisor)
  end
  lines[#lines + 1] = "EOD"
end

-- One row a segment, the largest first; beside one another they would be too thin to see.
local MOST_ROWS = 40

local function rows_of(segments)
  local rows = table.move(segments, 1, #segments, 1, {})
  table.sort(rows, function(a, b)
    if a.size ~= b.size then return a.size > b.size end
    return a.id < b.id
  end)
  for i = #rows, MOST_ROWS + 1, -1 do rows[i] = nil end
  return rows
end

-- Neighbours of one state that are too narrow to tell apart are one box.
local function boxes_of(segment, least)
  local boxes = {}
  for _, block in ipairs(segment.blocks) do
    local last = boxes[#boxes]
    if last and last.state == block.state and (block.size < least or last.size < least) then
      last.size = last.size + block.size
    else
      boxes[#boxes + 1] = { state = block.state, offset = block.offset, size = block.size }
    end
  end
  return boxes
end

-- Blocks as gnuplot boxes "x y xlow xhigh ylow yhigh", one data block for each state.
local function add_map(lines, name, rows, divisor)
  local by_state = { active = {}, held = {}, free = {} }
  local least = (rows[1] and rows[1].size or 0) / COLUMN_WIDTH
  for row, segment in ipairs(rows) do
    for _, box in ipairs(boxes_of(segment, least)) do
      local low, high = box.offset / divisor, (box.offset + box.size) / divisor
      table.insert(by_state[box.state], ("%.9g %d %.9g %.9g %.9g %.9g"):format(
        low, row, low, high, row - 0.4, row + 0.4))
    end
  end
  for state, list in pairs(by_state) do
    if #list == 0 then list[1] = "NaN NaN NaN NaN NaN NaN" end
    lines[#lines + 1] = ("$%s_%s << EOD\n%s\nEOD"):format(name, state, table.concat(list, "\n"))
  end
end

local function draw_time(lines, i, r, scale)
  local function add(format, ...) lines[#lines + 1] = format:format(...) end
  add("set title %s", quoted(("%s, %s: %.4f of the live peak, %d driver calls"):format(r.name, r.policy, r.ratio,
    r.driver_calls)))
  add("set key inside top right horizontal noopaque\nset xlabel 'operations'\nset ylabel '%s'", scale.name)
  add("set xrange [0:%d]\nset yrange [0:%.9g]\nset ytics auto", math.max(1, r.operations), scale.most * 1.2)
  add("set arrow 1 from %d, graph 0 to %d, graph 0.86 nohead dashtype 3 linecolor rgb '#888888'", r.peak_operation,
    r.peak_operation)
  add("plot $time%d using 1:2 with steps linewidth 2 linecolor rgb '#a03030' title 'reserved', \\", i)
  add("  '' using 1:3 with steps linewidth 1 linecolor rgb '%s' title 'active', \\", COLOURS.active)
  add("  '' using 1:4 with steps linewidth 1 linecolor rgb '#202020' dashtype 2 title 'requested'")
  add("unset arrow 1")
end

local BOXES = "$map%d_%s using 1:2:3:4:5:6 with boxxyerror fillcolor rgb '%s' linewidth 0.2 title '%s'"

local function draw_map(lines, i, r, rows, scale)
  local function add(format, ...) lines[#lines + 1] = format:format(...) end
  local shown = #rows < #r.segments and (", the largest %d of %d"):format(#rows, #r.segments) or ""
  add("set title %s", quoted(("segments at the peak, after operation %d%s"):format(r.peak_operation, shown)))
  add("set xlabel 'offset, %s'\nset ylabel 'segment'\nset ytics 1, %d", scale.name, math.max(1, #rows // 8))
  add("set xrange [0:%.9g]\nset yrange [%g:0]\nset key inside bottom right horizontal", scale.most,
    1 + #rows * 1.1 + 0.2)
  local parts = {}
  for n, state in ipairs { "free", "active", "held" } do
    parts[n] = BOXES:format(i, state, COLOURS[state], state)
  end
  add("plot %s", table.concat(parts, ", "))
end

--- What gnuplot is told.
function plot.script(results, path)
  local over_time = scale_of(results)
  local lines = {
    ("set terminal svg size %d,%d dynamic enhanced background rgb 'white' font 'sans,12'"):format(
      COLUMN_WIDTH * #results, HEIGHT),
    "set output '" .. path:gsub("'", "''") .. "'",
    ("set multiplot layout 2,%d columnsfirst"):format(#results),
    "set style fill solid border rgb '#ffffff'", "set grid", "set border 3", "set tics nomirror out",
  }
  for i, r in ipairs(results) do
    local rows = rows_of(r.segments)
    local of_segments = unit_for(rows[1] and rows[1].size or 1)
    add_points(lines, "time" .. i, r.points, over_time.bytes)
    add_map(lines, "map" .. i, rows, of_segments.bytes)
    draw_time(lines, i, r, over_time)
    draw_map(lines, i, r, rows, of_segments)
  end
  lines[#lines + 1] = "unset multiplot"
  lines[#lines + 1] = "set output"
  return table.concat(lines, "\n") .. "\n"
end

local function has_gnuplot() return os.execute "command -v gnuplot >/dev/null 2>&1" == true end

local function check(results, path)
  if type(path) ~= "string" or path == "" or path:find "[%c]" then
    error(("plot: path: expected the path of a file, got %s"):format(tostring(path)), 4)
  end
  for _, r in ipairs(results) do
    if not r.points then error("plot: there is nothing to draw: replay with details = true", 4) end
  end
end

local function run(script)
  local name = os.tmpname()
  local file = assert(io.open(name, "wb"))
  file:write(script)
  file:close()
  local pipe = assert(io.popen("gnuplot " .. name .. " 2>&1"))
  local said = pipe:read "a"
  local ok = pipe:close()
  os.remove(name)
  return ok, said
end

--- Writes the picture.
-- @tparam table results
-- @tparam string path
-- @treturn boolean true, or nil, message, code
function plot.save(results, path)
  check(results, path)
  if not has_gnuplot() then return nil, "plot: gnuplot is not installed", "UNSUPPORTED" end
  local file, why = io.open(path, "wb") -- gnuplot's own message would not name the reason
  if not file then return nil, "plot: " .. why, "IO" end
  file:close()
  local ok, said = run(plot.script(results, path))
  if not ok then return nil, "plot: gnuplot: " .. said:gsub("%s+$", ""), "IO" end
  return true
end

return plot
