--- `pool:draw()`: the segments of a pool as text, one character for each range of bytes.
--
--     pool (caching, 2 segments, 2.4 MiB active of 6.0 MiB reserved, limit 3.7 GiB)
--       1  4.0 MiB  ################+....~~~~~~~~...................................
--       2  2.0 MiB  #######.........................
--     # active  + partly  ~ held  . free; 64.0 KiB a character
--
-- @module clalloc.draw

local trace = require "clalloc.trace"

local WIDTH, ROWS = 64, 16
local LEGEND = "# active  + partly  ~ held  . free; %s a character"
local MARKS = { active = "#", held = "~", free = "." }
-- What a range shows that holds parts of both.
local MIXED = { ["#~"] = "+", ["~#"] = "+", ["#."] = "+", [".#"] = "+", [".~"] = "~", ["~."] = "~" }

local draw = {}

--- The optional width or number of rows of a map. Raises at the caller of the method that draws.
-- @tparam string name
-- @param value
-- @tparam integer otherwise
-- @treturn integer
function draw.check_count(name, value, otherwise)
  if value == nil then return otherwise end
  local n = math.type(value) and math.tointeger(value)
  if not n or n < 1 then
    error(("draw: %s: expected an integer of at least 1, got %s"):format(name, tostring(value)), 3)
  end
  return n
end

-- Characters for the blocks of a segment, `step` bytes each; the last may stand for less.
local function bar(segment, step)
  local marks = {}
  for _, block in ipairs(segment.blocks) do
    local mark = MARKS[block.state]
    for i = block.offset // step + 1, (block.offset + block.size - 1) // step + 1 do
      local there = marks[i] or mark
      marks[i] = there == mark and mark or MIXED[there .. mark] or "+"
    end
  end
  return table.concat(marks)
end

-- The largest `rows` segments in their order, and how many bytes the others have.
local function choose(segments, rows)
  local by_size = table.move(segments, 1, #segments, 1, {})
  table.sort(by_size, function(a, b)
    if a.size ~= b.size then return a.size > b.size end
    return a.id < b.id
  end)
  local is_shown, left_out = {}, 0
  for i, segment in ipairs(by_size) do
    is_shown[segment] = i <= rows
    if i > rows then left_out = left_out + segment.size end
  end
  return is_shown, left_out, by_size[1].size
end

--- Makes the method from two that pools have: `tostring` as one line, and `snapshot`.
-- @tparam function describe
-- @tparam function snapshot
-- @treturn function `draw(pool [, width [, rows]])`
function draw.drawer(describe, snapshot)
  return function(pool, width, rows)
    width, rows = draw.check_count("width", width, WIDTH), draw.check_count("rows", rows, ROWS)
    local segments = snapshot(pool)
    local lines = { describe(pool) }
    if #segments == 0 then return lines[1] end
    local is_shown, left_out, largest = choose(segments, rows)
    local step = (largest - 1) // width + 1
    for i, segment in ipairs(segments) do
      if is_shown[segment] then
        lines[#lines + 1] = ("  %3d  %10s  %s"):format(i, trace.human(segment.size), bar(segment, step))
      end
    end
    if left_out > 0 then
      lines[#lines + 1] = ("  and %d smaller segments, %s"):format(#segments - rows, trace.human(left_out))
    end
    lines[#lines + 1] = LEGEND:format(trace.human(step))
    return table.concat(lines, "\n")
  end
end

return draw
