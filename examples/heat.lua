-- The heat equation on a plate, drawn in the terminal as it goes.
--
--   lua5.4 examples/heat.lua [FRAMES]      200 frames if not said otherwise
--
-- You will see: a cold plate with a hot edge on the left and a hot disc; the disc fades and spreads while warmth creeps
-- in from the edge. Every frame is 40 steps on the device, two buffers taking turns; the plate comes to the host only
-- to be drawn. The last lines say how warm the plate is on average, how fast it went, and that nothing was allocated on
-- the way. Where the output is no terminal, only the first and the last frame are drawn.

local cl = require "clalloc"

local FRAMES = math.tointeger(tonumber(arg[1] or 200)) or error("FRAMES: a whole number expected, got " .. arg[1], 0)
local WIDTH, HEIGHT, STEPS = 144, 96, 40
local COLUMNS, ROWS = 72, 24 -- characters: 2 x 4 cells each
local SHADES = " .:-=+*#%@"

local SOURCE = [[
  /* One step of an explicit scheme: each cell moves towards the mean of its neighbours. Edges keep what they have. */
  kernel void advance(global const float *from, global float *to) {
    const int x = get_global_id(0), y = get_global_id(1), i = y * W + x;
    const float here = from[i];
    if (x == 0 || y == 0 || x == W - 1 || y == H - 1) to[i] = here;
    else to[i] = here + 0.24f * (from[i - 1] + from[i + 1] + from[i - W] + from[i + W] - 4 * here);
  }

  kernel void begin(global float *plate) {
    const int x = get_global_id(0), y = get_global_id(1);
    const float dx = x - 0.65f * W, dy = y - 0.5f * H;
    plate[y * W + x] = x == 0 || dx * dx + dy * dy < 0.04f * H * H ? 1 : 0;
  }
]]

local function numbers(plate)
  local bytes, list = plate:read(), {}
  for i = 1, WIDTH * HEIGHT do list[i] = string.unpack("<f", bytes, 4 * i - 3) end
  return list
end

local function mean(list)
  local sum = 0
  for i = 1, #list do sum = sum + list[i] end
  return sum / #list
end

-- The mean of the cells behind a character, as a shade.
local function shade(list, column, row)
  local sum, wide, high = 0, WIDTH // COLUMNS, HEIGHT // ROWS
  for y = row * high, row * high + high - 1 do
    for x = column * wide + 1, column * wide + wide do sum = sum + list[y * WIDTH + x] end
  end
  local i = math.min(#SHADES, 1 + math.floor((sum / (wide * high)) ^ 0.5 * #SHADES))
  return SHADES:sub(i, i)
end

local function draw(list)
  local lines = {}
  for row = 0, ROWS - 1 do
    local line = {}
    for column = 0, COLUMNS - 1 do line[column + 1] = shade(list, column, row) end
    lines[row + 1] = table.concat(line)
  end
  return table.concat(lines, "\n")
end

local dev <close> = cl.device()
local pool <close> = dev:pool {}
local prog = dev:program(SOURCE, { defines = { W = WIDTH, H = HEIGHT } })
local plate <close> = assert(pool:alloc(4 * WIDTH * HEIGHT))
local other <close> = assert(pool:alloc(4 * WIDTH * HEIGHT))
local size = { WIDTH, HEIGHT }
prog.begin { plate, size = size }:close()

local is_terminal = os.execute "test -t 1"
local allocations, start = pool:stats().driver_allocs, cl.clock()
if is_terminal then io.write "\27[2J" end
for frame = 1, FRAMES do
  for _ = 1, STEPS // 2 do
    prog.advance { plate, other, size = size }:close()
    prog.advance { other, plate, size = size }:close()
  end
  if is_terminal then
    io.write("\27[H", draw(numbers(plate)), "\n"):flush()
  elseif frame == 1 or frame == FRAMES then
    print(draw(numbers(plate)))
  end
end
dev.default_stream:finish()
local seconds = cl.clock() - start

print(("%d steps on %s, mean temperature %.3f"):format(FRAMES * STEPS, dev.name, mean(numbers(plate))))
print(("%.0f steps a second, %d driver allocations on the way"):format(
  FRAMES * STEPS / seconds, pool:stats().driver_allocs - allocations))
