-- K-means: finds the centres of clouds of points that it has made itself.
--
--   lua5.4 examples/kmeans.lua [POINTS]      200000 points if not said otherwise
--
-- You will see: the mean squared distance of points to their centre, falling with every round until nothing moves; then
-- every centre found, beside the true centre of its cloud; and that the rounds needed no new memory.
--
-- The points never leave the device. In a round one kernel finds each point's nearest centre, another sums the points
-- of every centre in chunks, so that the sums do not depend on the order in which the device runs; Lua adds them up.

local cl = require "clalloc"

local N = math.tointeger(tonumber(arg[1] or 200000)) or error("POINTS: a whole number expected, got " .. arg[1], 0)
local K, CHUNKS, MOST_ROUNDS = 5, 64, 50
local CLOUDS = { { 0.2, 0.2 }, { 0.8, 0.25 }, { 0.5, 0.55 }, { 0.2, 0.8 }, { 0.8, 0.85 } }
local SPREAD = 0.06

local SOURCE = [[
  kernel void nearest(global const float2 *points, constant float2 *centres, global int *owner) {
    const size_t i = get_global_id(0);
    int best = 0;
    for (int k = 1; k < K; k++)
      if (distance(points[i], centres[k]) < distance(points[i], centres[best])) best = k;
    owner[i] = best;
  }

  /* For centre k and a chunk: x, y, squared distance, how many. */
  kernel void sum(global const float2 *points, global const int *owner, constant float2 *centres, uint n,
                  global float4 *sums) {
    const uint k = get_global_id(0), chunk = get_global_id(1), chunks = get_global_size(1);
    float4 s = 0;
    for (uint i = (ulong)n * chunk / chunks; i < (ulong)n * (chunk + 1) / chunks; i++)
      if (owner[i] == k) {
        const float2 d = points[i] - centres[k];
        s += (float4)(points[i], dot(d, d), 1);
      }
    sums[k * chunks + chunk] = s;
  }
]]

-- Points around the true centres, in turn; the seed makes every run the same.
local function make_points()
  math.randomseed(7)
  local parts = {}
  for i = 1, N do
    local cloud = CLOUDS[i % #CLOUDS + 1]
    local radius, angle = SPREAD * math.sqrt(-2 * math.log(1 - math.random())), 2 * math.pi * math.random()
    parts[i] = string.pack("<ff", cloud[1] + radius * math.cos(angle), cloud[2] + radius * math.sin(angle))
  end
  return table.concat(parts)
end

local function pack(centres)
  local parts = {}
  for k, centre in ipairs(centres) do parts[k] = string.pack("<ff", centre[1], centre[2]) end
  return table.concat(parts)
end

-- The mean of every centre's points, and the mean squared distance. A centre without points stays.
local function new_centres(bytes, centres)
  local found, total, position = {}, 0, 1
  for k = 1, K do
    local x, y, count = 0, 0, 0
    for _ = 1, CHUNKS do
      local sx, sy, squared, n
      sx, sy, squared, n, position = string.unpack("<ffff", bytes, position)
      x, y, count, total = x + sx, y + sy, count + n, total + squared
    end
    found[k] = count > 0 and { x / count, y / count } or centres[k]
  end
  return found, total / N
end

local function farthest_move(from, to)
  local most = 0
  for k = 1, K do most = math.max(most, (from[k][1] - to[k][1]) ^ 2 + (from[k][2] - to[k][2]) ^ 2) end
  return math.sqrt(most)
end

local dev <close> = cl.device()
local pool <close> = dev:pool {}
local points <close> = assert(pool:alloc(8 * N))
local centre_buffer <close> = assert(pool:alloc(8 * K))
points:write(make_points())
local prog = dev:program(SOURCE, { defines = { K = K } })

-- The first centres stand in a row, between the clouds.
local centres = {}
for k = 1, K do centres[k] = { (k - 0.5) / K, 0.5 } end

local driver_allocs
for round = 1, MOST_ROUNDS do
  centre_buffer:write(pack(centres))
  local owner <close> = assert(pool:alloc(4 * N)) -- freed at the end of the round, and there again in the next
  local sums <close> = assert(pool:alloc(16 * K * CHUNKS))
  prog.nearest { points, centre_buffer, owner, size = N }:close()
  prog.sum { points, owner, centre_buffer, N, sums, size = { K, CHUNKS } }:close()
  local found, inertia = new_centres(sums:read(), centres)
  local moved = farthest_move(centres, found)
  centres = found
  print(("round %2d: mean squared distance %.6f, moved %.6f"):format(round, inertia, moved))
  driver_allocs = driver_allocs or pool:stats().driver_allocs
  if moved < 1e-5 then break end
end

table.sort(centres, function(a, b) return a[2] * 10 + a[1] < b[2] * 10 + b[1] end)
table.sort(CLOUDS, function(a, b) return a[2] * 10 + a[1] < b[2] * 10 + b[1] end)
local worst = 0
for k = 1, K do
  local found, truth = centres[k], CLOUDS[k]
  print(("  centre %.4f %.4f   cloud %.2f %.2f"):format(found[1], found[2], truth[1], truth[2]))
  worst = math.max(worst, math.abs(found[1] - truth[1]), math.abs(found[2] - truth[2]))
end
print(("%d points on %s; farthest centre off by %.4f; %d driver allocations after the first round"):format(
  N, dev.name, worst, pool:stats().driver_allocs - driver_allocs))
