--- One pass of a reduction: rows of a walk become one element each, or as many as a row is cut into parts.
--
-- Two layouts. In runs, as on a CPU, an item of work takes a part of a row for itself; the compiler makes vectors of
-- it. In groups, as on a GPU, a group shares some rows: several items, the lanes, take the elements of a row in turn
-- and fold what they have in local memory, by halves. Which element meets which follows from sizes, strides and device
-- alone, so results are the same each time.
--
-- What is folded is a record of reduce.lua's: `name`; `first(kind)`, where it begins; `step(kind, a, x)`, one step.
--
-- @module clalloc.tensor.fold

local Tensor = require "clalloc.tensor.type"
local context = require "clalloc.tensor.context"
local dtype = require "clalloc.tensor.dtype"
local loops = require "clalloc.tensor.loops"

local fold = {}

local function ceil_div(n, by) return (n + by - 1) // by end

-- ---- Source: both layouts ------------------------------------------------------------------------------------

-- The statements for column `j` of the row: computes `x`, then folds it into a variable.
local function taking(how, partial, node, walk, into)
  local compute, root = loops.compute(node, walk, 0)
  return ("%s\nconst ACC x = (ACC)(%s);\n%s = %s;"):format(compute, root, into, how.step(partial, into, "x"))
end

local function source(own, how, partial, node, walk, out, body, ...)
  local params = { ("global %s *out_data"):format(out.c) }
  local names = loops.names(node)
  for i, view in ipairs(node.leaves) do loops.declare(params, names[i], view.kind, walk, i, true) end
  loops.declare_rest(params, node, walk)
  local head, options = loops.head(own, node, walk)
  if partial == dtype.f64 then options = "" end
  local one = ("{ %s }"):format(taking(how, partial, node, walk, "acc"))
  local several = ("{ %s }"):format(taking(how, partial, node, walk, "several[k]"))
  local text = body:gsub("@(%u+)", {
    ROWS = loops.rows(names, walk), FIRST = how.first(partial), ONE = one, SEVERAL = several,
    FOLD = ("acc = %s;"):format(how.step(partial, "acc", "x")), RESULT = dtype.convert(partial, out, "acc"),
  })
  return ("%s\n#define ACC %s\n%skernel void run(%s) {\n%s}\n"):format(
    head, partial.c, table.concat { ... }, table.concat(params, ", "), text), options
end

-- ---- In runs -------------------------------------------------------------------------------------------------

-- Partial results in a run of one item: enough for the compiler to use vector instructions without changing the order
-- of additions.
local LANES = 32
-- Elements of a row worth an item of its own; elements of several rows that are.
local CUT, FEW = 16384, 4096
local MOST_PARTS = 1024
-- Items for each unit of the device: more than one evens out what else the machine does.
local SHARES = 4

-- Runs of LANES elements, each lane for itself, then the rest.
local RUNS = [[
LOOP(row, rows, 1) {
  @ROWS
  ACC acc = @FIRST;
  const INDEX run = (columns + (INDEX)get_global_size(0) - 1) / (INDEX)get_global_size(0);
  INDEX at = (INDEX)get_global_id(0) * run;
  const INDEX end = min(at + run, columns);
  if (end - at >= LANES) {
    ACC several[LANES];
    for (int k = 0; k < LANES; k++) several[k] = @FIRST;
    for (; at + LANES <= end; at += LANES)
      for (int k = 0; k < LANES; k++) { const INDEX j = at + k; @SEVERAL }
    for (int k = 0; k < LANES; k++) { const ACC x = several[k]; @FOLD }
  }
  for (; at < end; at++) { const INDEX j = at; @ONE }
  out_data[(size_t)row * get_global_size(0) + get_global_id(0)] = @RESULT;
}
]]

local function runs_source(own, how, partial, node, walk, out)
  return source(own, how, partial, node, walk, out, RUNS, ("#define LANES %d\n"):format(LANES))
end

-- A grid: `name` of the layout; `make`, the kernel's source; `direction` of lanes, 0 if one is alone; `parts` of a row;
-- `counts` of groups and `group`, each in both directions.
local function runs(own, walk, columns)
  local want = own.units * SHARES
  local parts = math.max(1, math.min(columns // CUT, want // math.min(walk.rows, want), MOST_PARTS))
  local items = math.min(walk.rows, math.max(1, math.min(want, walk.rows * columns // FEW)))
  return {
    name = "runs", make = runs_source, direction = 1, parts = parts, counts = { parts, items }, group = { 1, 1 },
  }
end

-- ---- In groups -----------------------------------------------------------------------------------------------

-- Items in a group. Neighbours that memory serves together.
local GROUP, NEIGHBOURS = 256, 32
-- Elements that an item loads before it needs the first of them.
local AHEAD = 4
-- Elements of a row worth a lane, where more lanes than NEIGHBOURS are possible; elements for each lane of a part of a
-- row that are worth another pass.
local LANE, PART = 8, 16
-- Groups that a unit has at a time; how often it gets new ones, where there are rows enough; groups in one direction at
-- most, for CUDA.
local GROUPS, TURNS, MOST_GROUPS = 8, 8, 65535

-- Lanes go along direction A, rows along B; with a lane alone there is nothing to wait for. At each halving those write
-- that are read: nobody else uses their places, so one barrier does; the last is for the next rows.
local GROUPS_BODY = [[
const int lane = get_local_id(A);
#if HAS_LANES
local ACC shared[GROUP];
const int lanes = get_local_size(A), apart = A ? get_local_size(0) : 1;
const int item = get_local_id(1) * get_local_size(0) + get_local_id(0);
#endif
const INDEX step = get_global_size(A);
const INDEX height = get_local_size(B);
for (INDEX base = (INDEX)get_group_id(B) * height; base < rows; base += (INDEX)get_num_groups(B) * height) {
  const INDEX row = base + (INDEX)get_local_id(B);
  ACC acc = @FIRST;
  if (row < rows) {
    @ROWS
    INDEX at = get_global_id(A);
    if (columns - at > (AHEAD - 1) * step) {
      ACC several[AHEAD];
      for (int k = 0; k < AHEAD; k++) several[k] = @FIRST;
      for (; columns - at > (AHEAD - 1) * step; at += AHEAD * step)
        for (int k = 0; k < AHEAD; k++) { const INDEX j = at + k * step; @SEVERAL }
      for (int k = 0; k < AHEAD; k++) { const ACC x = several[k]; @FOLD }
    }
    for (; at < columns; at += step) { const INDEX j = at; @ONE }
  }
#if HAS_LANES
  for (int span = lanes / 2; span > 0; span /= 2) {
    if (lane >= span && lane < 2 * span) shared[item] = acc;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < span) { const ACC x = shared[item + span * apart]; @FOLD }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  if (lane == 0 && row < rows) out_data[(size_t)row * get_num_groups(A) + get_group_id(A)] = @RESULT;
}
]]

local function groups_source(own, how, partial, node, walk, out, direction)
  local a = direction == 1 and 0 or 1
  return source(own, how, partial, node, walk, out, GROUPS_BODY,
    ("#define A %d\n#define B %d\n#define HAS_LANES %d\n"):format(a, 1 - a, direction == 0 and 0 or 1),
    ("#define GROUP %d\n#define AHEAD %d\n"):format(GROUP, AHEAD))
end

-- The direction of lanes, 1 or 2: neighbouring items take what is side by side in memory, elements of a row or of
-- neighbouring rows.
local function direction_of(walk, nleaves)
  local last = walk.outer[#walk.outer]
  local are_rows_side_by_side = false
  for k = 1, last and nleaves or 0 do
    if walk.inner[k] == 1 then return 1 end
    are_rows_side_by_side = are_rows_side_by_side or last[k] == 1
  end
  return are_rows_side_by_side and 2 or 1
end

-- Lanes and rows of a group, powers of two.
local function sides(own, walk, columns, direction)
  local power, most = loops.power_of_two, math.min(GROUP, own.max_group)
  local lanes
  if columns <= AHEAD then lanes = 1 -- what an item loads at once is not worth dividing
  elseif direction == 2 then lanes = power(columns, most // power(walk.rows, math.min(NEIGHBOURS, most)))
  else lanes = math.max(power(columns, math.min(NEIGHBOURS, most)), power(columns // LANE, most)) end
  return lanes, power(walk.rows, most // lanes)
end

-- The least iterations that limited steps leave for each group of rows; how many of them are no step along a row.
local LEAST_STEPS, OTHER_STEPS = 64, 24

-- Parts of a row, and groups along all rows.
local function shares(own, walk, columns, lanes, height)
  local all, want = ceil_div(walk.rows, height), own.units * GROUPS
  local along_rows = math.max(math.min(all, want * TURNS, MOST_GROUPS), all * LEAST_STEPS // own.most_steps + 1)
  local parts = math.min(want // math.min(all, want), columns // (lanes * PART))
  local steps = (own.most_steps // ceil_div(all, along_rows) - OTHER_STEPS) // 2
  return math.max(1, parts, ceil_div(ceil_div(columns, lanes), steps)), along_rows
end

local function groups(own, walk, columns, nleaves)
  local direction = direction_of(walk, nleaves)
  local lanes, height = sides(own, walk, columns, direction)
  local parts, along_rows = shares(own, walk, columns, lanes, height)
  if lanes == 1 then direction = 0 end
  local is_first = direction == 1
  return {
    name = "groups", make = groups_source, direction = direction, parts = parts,
    counts = is_first and { parts, along_rows } or { along_rows, parts },
    group = is_first and { lanes, height } or { height, lanes },
  }
end

-- ---- The pass ------------------------------------------------------------------------------------------------

--- Folds the inner loop of a walk.
-- @tparam string what the operation, for messages
-- @tparam table how what is folded
-- @tparam table node
-- @tparam table own the context
-- @tparam table partial the kind in which elements are folded, and of parts
-- @tparam table result the kind of the result, if rows are not cut
-- @tparam table walk from `layout.reduction`
-- @tparam integer columns
-- @treturn table a view of rows x parts, held by nobody
function fold.pass(what, how, node, own, partial, result, walk, columns)
  local leaves = node.leaves
  local grid = own.takes_runs and runs(own, walk, columns) or groups(own, walk, columns, #leaves)
  local kind = grid.parts > 1 and partial or result
  local out = Tensor.room(what, own, kind, { walk.rows, grid.parts }, walk.rows * grid.parts)
  local key = ("%s%d %s %s %s"):format(grid.name, grid.direction, partial.name, kind.name, walk.key)
  local kernel = context.kernel(own, node.form, how, key, what, grid.make, how, partial, node, walk, kind,
    grid.direction)
  local args, n = loops.take_args(kernel), 1
  args[1] = out.storage.buffer
  for i, view in ipairs(leaves) do n = loops.pass(args, n, view, walk, i) end
  loops.pass_rest(args, n, node, walk, columns)
  local group, counts = loops.fit_group(kernel, grid.group), grid.counts
  args.size, args.group = { counts[1] * group[1], counts[2] * group[2] }, group
  loops.launch(own, what, kernel, args, out, leaves)
  return out
end

return fold
