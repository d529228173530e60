--- Kernels over layouts: their source, and their launch.
--
-- Every kernel here walks with LOOP. On a CPU an item of work takes a run of neighbours, which the compiler turns into
-- vector instructions; on other devices neighbours go to neighbouring items. Operands come as the whole buffer and the place of their first element, so
-- a view may begin anywhere.
--
-- @module clalloc.tensor.loops

local context = require "clalloc.tensor.context"
local dtype = require "clalloc.tensor.dtype"
local expression = require "clalloc.tensor.expression"
local fault = require "clalloc.tensor.fault"
local storage = require "clalloc.tensor.storage"

local loops = {}

-- Elements that are worth an item of work of its own on a CPU, where starting one takes about a microsecond.
local RUN = 8192
-- Items of work for each unit of a CPU: more than one evens out what else the machine does.
local SHARES = 4
-- Items in a group elsewhere, and at most so many items in a direction.
local GROUP, MOST_ITEMS = 256, 1 << 16

-- Contraction would make an expression's value depend on what it was fused with.
local HEAD = [[
#pragma OPENCL FP_CONTRACT OFF
]]

local RUNS = [[
#define LOOP(i, n, d) \
  for (INDEX i##_run = ((n) + (INDEX)get_global_size(d) - 1) / (INDEX)get_global_size(d), \
       i = (INDEX)get_global_id(d) * i##_run, i##_end = min(i + i##_run, (INDEX)(n)); i < i##_end; i++)
]]

local STEPS = [[
#define LOOP(i, n, d) \
  for (INDEX i = (INDEX)get_global_id(d); i < (INDEX)(n); i += (INDEX)get_global_size(d))
]]

-- ---- Source --------------------------------------------------------------------------------------------------

--- What comes before the kernel.
-- @treturn string source
-- @treturn string options for the compiler
function loops.head(own, flat, walk)
  local has_double = own.has_fp64
  local parts = {
    has_double and "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" or "", HEAD,
    ("#define INDEX %s\n"):format(walk.index), own.is_cpu and RUNS or STEPS, expression.prelude(flat),
  }
  local options = expression.uses(flat, dtype.f64) and "" or "-cl-single-precision-constant"
  return table.concat(parts), options
end

--- Appends the parameters of an operand: data, place of the first element, strides where they are not known.
function loops.declare(params, name, kind, walk, k, is_const)
  params[#params + 1] = ("global %s%s *%s_data"):format(is_const and "const " or "", kind.c, name)
  params[#params + 1] = ("INDEX %s_start"):format(name)
  if walk.classes[k] == "s" then params[#params + 1] = ("INDEX %s_stride"):format(name) end
  for d = 1, #walk.outer do params[#params + 1] = ("INDEX %s_%d"):format(name, d) end
end

--- Appends the arguments for `declare`'s parameters.
function loops.pass(args, view, walk, k)
  local n = #args
  args[n + 1], args[n + 2] = view.storage.buffer, view.start
  if walk.classes[k] == "s" then args[n + 3] = walk.inner[k] end
  for _, dimension in ipairs(walk.outer) do args[#args + 1] = dimension[k] end
end

--- Parameters of numbers, sizes of outer dimensions but the first, rows and columns.
function loops.declare_rest(params, flat, walk)
  for i, number in ipairs(flat.numbers) do params[#params + 1] = ("%s c%d"):format(number.kind.c, i) end
  for d = 2, #walk.outer do params[#params + 1] = ("INDEX size_%d"):format(d) end
  params[#params + 1] = "INDEX rows, INDEX columns"
end

function loops.pass_rest(args, flat, walk)
  for _, number in ipairs(flat.numbers) do args[#args + 1] = number.value end
  for d = 2, #walk.outer do args[#args + 1] = walk.outer[d].size end
  args[#args + 1] = walk.rows
  args[#args + 1] = walk.n
end

--- Statements that find indices of outer dimensions from `row`, then where each operand's row begins: NAME_at.
function loops.rows(names, walk)
  local lines = {}
  if #walk.outer > 0 then lines[1] = "INDEX rest = row;" end
  for d = #walk.outer, 2, -1 do
    lines[#lines + 1] = ("const INDEX i_%d = rest %% size_%d; rest /= size_%d;"):format(d, d, d)
  end
  if #walk.outer > 0 then lines[#lines + 1] = "const INDEX i_1 = rest;" end
  for _, name in ipairs(names) do
    local terms = { name .. "_start" }
    for d = 1, #walk.outer do terms[#terms + 1] = ("i_%d * %s_%d"):format(d, name, d) end
    lines[#lines + 1] = ("const INDEX %s_at = %s;"):format(name, table.concat(terms, " + "))
  end
  return table.concat(lines, "\n")
end

local ELEMENT = { u = "%s_data[%s_at + j]", z = "%s_data[%s_at]", s = "%s_data[%s_at + j * %s_stride]" }

--- The element of an operand at column `j`.
function loops.element(name, walk, k)
  return (ELEMENT[walk.classes[k]]:gsub("%%s", name))
end

--- Statements that load every view at column `j` and compute the expression; then its name.
-- @tparam table flat
-- @tparam table walk
-- @tparam integer shift the views are operands `shift + 1` ... of the layout
function loops.compute(flat, walk, shift)
  local lines = {}
  for i, view in ipairs(flat.views) do
    lines[i] = ("const %s v%d = %s;"):format(view.kind.c, i, loops.element("v" .. i, walk, i + shift))
  end
  local text, root = expression.text(flat)
  lines[#lines + 1] = text
  return table.concat(lines, "\n"), root
end

local function view_names(flat)
  local names = {}
  for i = 1, #flat.views do names[i] = "v" .. i end
  return names
end

loops.view_names = view_names

local function source(own, flat, walk, kind)
  local params, names = {}, view_names(flat)
  loops.declare(params, "out", kind, walk, 1, false)
  for i, view in ipairs(flat.views) do loops.declare(params, names[i], view.kind, walk, i + 1, true) end
  loops.declare_rest(params, flat, walk)
  table.insert(names, 1, "out")
  local compute, root = loops.compute(flat, walk, 1)
  local head, options = loops.head(own, flat, walk)
  local text = ("%s\nkernel void run(%s) {\n%s%s\nLOOP(j, columns, 0) {\n%s\n%s = %s;\n}}\n"):format(
    head, table.concat(params, ", "), #walk.outer > 0 and "LOOP(row, rows, 1) {\n" or "{\n", loops.rows(names, walk),
    compute, loops.element("out", walk, 1), dtype.convert(flat.root.kind, kind, root))
  return text .. (#walk.outer > 0 and "}\n" or "}\n"), options
end

-- ---- Launch --------------------------------------------------------------------------------------------------

local function ceil_div(n, by) return (n + by - 1) // by end

local function power_of_two(n, most)
  local p = 1
  while p < n and p < most do p = p * 2 end
  return p
end

--- How many items of work, in columns and rows, and in what groups.
-- @treturn table size
-- @treturn table group
function loops.grid(own, columns, rows)
  if own.is_cpu then
    local want = math.min(own.units * SHARES, ceil_div(columns * rows, RUN))
    local y = math.min(rows, want)
    return { math.min(ceil_div(want, y), columns), y }, { 1, 1 }
  end
  local group = math.min(GROUP, own.max_group)
  local x = power_of_two(columns, group)
  local y = power_of_two(rows, group // x)
  return { x * math.min(ceil_div(columns, x), MOST_ITEMS // x), y * math.min(ceil_div(rows, y), MOST_ITEMS // y) }, { x, y }
end

--- Launches a kernel after the last command on each storage.
function loops.launch(own, what, kernel, args, storages)
  local stream = context.stream(own)
  local id = stream.id
  for i = 1, #storages do storage.order(storages[i], stream, id) end
  args.stream = stream
  local event, why = kernel(args)
  if not event then fault("%s: %s", what, why) end
end

function loops.storages(flat, first)
  local list = { first }
  for _, view in ipairs(flat.views) do list[#list + 1] = view.storage end
  return list
end

--- Computes an expression into a view of the shape `sizes`, not empty.
-- @tparam string what the operation, for messages
-- @tparam table out the view
-- @tparam table flat the expression
-- @tparam table walk a layout of `out` and the expression's views
function loops.run(what, out, flat, walk)
  local own = out.storage.context
  local key = ("%s > %s @ %s"):format(flat.key, out.kind.name, walk.key)
  local kernel = own.kernels[key] or
    context.kernel(own, key, what, function() return source(own, flat, walk, out.kind) end)
  local args = {}
  loops.pass(args, out, walk, 1)
  for i, view in ipairs(flat.views) do loops.pass(args, view, walk, i + 1) end
  loops.pass_rest(args, flat, walk)
  args.size, args.group = loops.grid(own, walk.n, walk.rows)
  loops.launch(own, what, kernel, args, loops.storages(flat, out.storage))
end

return loops
