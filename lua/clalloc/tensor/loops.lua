--- Kernels over layouts: their source, and their launch.
--
-- Every kernel here walks with LOOP. On a CPU an item of work takes a run of neighbours, which the compiler turns into
-- vector instructions; on other devices neighbours go to neighbouring items. Operands come as the whole buffer and the
-- place of their first element, so a view may begin anywhere.
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
-- Items in a group elsewhere, and at most so many items in a direction: more than a large device runs at once, and few
-- enough steps for each where steps are limited.
local GROUP, MOST_ITEMS = 256, 1 << 20

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
function loops.head(own, node, walk)
  local parts = {
    own.has_fp64 and "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" or "", HEAD,
    ("#define INDEX %s\n"):format(walk.index), own.takes_runs and RUNS or STEPS, expression.prelude(node.form),
  }
  return table.concat(parts), node.form.is_double and "" or "-cl-single-precision-constant"
end

--- Appends the parameters of an operand: data, place of the first element, strides where they are not known.
function loops.declare(params, name, kind, walk, k, is_const)
  params[#params + 1] = ("global %s%s *%s_data"):format(is_const and "const " or "", kind.c, name)
  params[#params + 1] = ("%s %s_start"):format(walk.index, name)
  if walk.classes[k] == "s" then params[#params + 1] = ("%s %s_stride"):format(walk.index, name) end
  for d = 1, #walk.outer do params[#params + 1] = ("%s %s_%d"):format(walk.index, name, d) end
end

--- Puts the arguments for `declare`'s parameters after the first `n`.
-- @treturn integer how many there are now
function loops.pass(args, n, view, walk, k)
  args[n + 1], args[n + 2] = view.storage.buffer, view.start
  n = n + 2
  if walk.classes[k] == "s" then
    n = n + 1
    args[n] = walk.inner[k]
  end
  local outer = walk.outer
  for d = 1, #outer do args[n + d] = outer[d][k] end
  return n + #outer
end

--- Parameters of numbers, sizes of outer dimensions but the first, rows and columns.
function loops.declare_rest(params, node, walk)
  for i, number in ipairs(node.numbers) do params[#params + 1] = ("%s c%d"):format(number.kind.c, i) end
  for d = 2, #walk.outer do params[#params + 1] = ("%s size_%d"):format(walk.index, d) end
  params[#params + 1] = ("%s rows, %s columns"):format(walk.index, walk.index)
end

function loops.pass_rest(args, n, node, walk, columns)
  local numbers, outer = node.numbers, walk.outer
  for i = 1, #numbers do args[n + i] = numbers[i].value end
  n = n + #numbers
  for d = 2, #outer do
    n = n + 1
    args[n] = outer[d].size
  end
  args[n + 1], args[n + 2] = walk.rows, columns
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

--- Statements that load every leaf at column `j` and compute the expression; then its name.
-- @tparam table node
-- @tparam table walk
-- @tparam integer shift leaves are operands `shift + 1` ... of the layout
function loops.compute(node, walk, shift)
  local lines = {}
  for i, view in ipairs(node.leaves) do
    lines[i] = ("const %s v%d = %s;"):format(view.kind.c, i, loops.element("v" .. i, walk, i + shift))
  end
  local text, root = expression.text(node.form)
  lines[#lines + 1] = text
  return table.concat(lines, "\n"), root
end

--- The leaves' names in the text.
function loops.names(node)
  local names = {}
  for i = 1, #node.leaves do names[i] = "v" .. i end
  return names
end

local function source(own, node, walk, kind)
  local params, names = {}, loops.names(node)
  loops.declare(params, "out", kind, walk, 1, false)
  for i, view in ipairs(node.leaves) do loops.declare(params, names[i], view.kind, walk, i + 1, true) end
  loops.declare_rest(params, node, walk)
  table.insert(names, 1, "out")
  local compute, root = loops.compute(node, walk, 1)
  local head, options = loops.head(own, node, walk)
  local has_rows = #walk.outer > 0
  return ("%s\nkernel void run(%s) {\n%s{\n%s\nLOOP(j, columns, 0) {\n%s\n%s = %s;\n}\n}\n}\n"):format(
    head, table.concat(params, ", "), has_rows and "LOOP(row, rows, 1) " or "", loops.rows(names, walk), compute,
    loops.element("out", walk, 1), dtype.convert(node.kind, kind, root)), options
end

-- ---- Launch --------------------------------------------------------------------------------------------------

local function ceil_div(n, by) return (n + by - 1) // by end

-- The least that is not below n, or the greatest within `most`.
local function power_of_two(n, most)
  local p = 1
  while p < n and p * 2 <= most do p = p * 2 end
  return p
end

-- Halves sides of a group, powers of two, until the kernel takes so many items: it may take fewer than the device.
local function fit(kernel, x, y)
  while x * y > kernel.most_group do
    if x > y then x = x // 2 else y = y // 2 end
  end
  return x, y
end

--- How many items of work, in columns and rows, and in what groups, before the kernel is known.
-- @treturn table size
-- @treturn table group
function loops.grid(own, columns, rows)
  if own.takes_runs then
    local want = math.min(own.units * SHARES, ceil_div(columns * rows, RUN))
    local y = math.min(rows, want)
    return { math.min(ceil_div(want, y), columns), y }, { 1, 1 }
  end
  local group = math.min(GROUP, own.max_group)
  local x = power_of_two(columns, group)
  local y = power_of_two(rows, group // x)
  local groups_x = math.min(ceil_div(columns, x), MOST_ITEMS // x)
  local groups_y = math.min(ceil_div(rows, y), MOST_ITEMS // y)
  return { x * groups_x, y * groups_y }, { x, y }
end

--- Makes a group of `grid`'s such as the kernel takes.
function loops.fit_group(kernel, group)
  group[1], group[2] = fit(kernel, group[1], group[2])
  return group
end

-- Sets size and group of a launch. One row: numbers, which a launch takes in less time.
local function set_grid(args, own, kernel, columns, rows)
  if rows > 1 then
    args.size, args.group = loops.grid(own, columns, rows)
    loops.fit_group(kernel, args.group)
  elseif own.takes_runs then
    args.size, args.group = columns <= RUN and 1 or math.min(own.units * SHARES, ceil_div(columns, RUN)), 1
  else
    local size, group = loops.grid(own, columns, 1)
    args.size, args.group = size[1], (fit(kernel, group[1], 1))
  end
end

--- The table to call a kernel with: the last launch's, unless that is still being filled, by whom a finalizer
-- interrupted.
function loops.take_args(kernel)
  local args = kernel.args or {}
  kernel.args = false
  return args
end

--- Launches a kernel on the current stream, after the last command on each storage.
-- @tparam table own the context
-- @tparam string what the operation, for messages
-- @tparam table kernel from `context.kernel`
-- @tparam table args from `take_args`
-- @tparam table out a view that is written
-- @tparam {table,...} leaves views that are read
function loops.launch(own, what, kernel, args, out, leaves)
  local stream, id = context.stream(own)
  storage.order(out.storage, stream, id)
  for i = 1, #leaves do
    local store = leaves[i].storage
    if store.stream_id ~= id then storage.order(store, stream, id) end
  end
  args.stream = stream
  local ok, why = kernel.launch(kernel.run, args)
  for i = 1, #args do args[i] = false end -- keeps nothing alive
  kernel.args = args
  if not ok then fault("%s: %s", what, why) end
end

-- Arguments where all elements follow one another: data and starts, numbers, rows and columns.
local function pass_plain(args, out, node, columns)
  local leaves, numbers = node.leaves, node.numbers
  args[1], args[2] = out.storage.buffer, out.start
  local n = 2
  for i = 1, #leaves do
    local leaf = leaves[i]
    args[n + 1], args[n + 2] = leaf.storage.buffer, leaf.start
    n = n + 2
  end
  for i = 1, #numbers do args[n + i] = numbers[i].value end
  n = n + #numbers
  args[n + 1], args[n + 2] = 1, columns
end

local function pass_all(args, out, node, walk, columns)
  local n = loops.pass(args, 0, out, walk, 1)
  for i, leaf in ipairs(node.leaves) do n = loops.pass(args, n, leaf, walk, i + 1) end
  loops.pass_rest(args, n, node, walk, columns)
end

--- Computes a node into a view of the shape that it broadcasts to, which is not empty.
-- @tparam string what the operation, for messages
-- @tparam table out the view
-- @tparam table node
-- @tparam table walk a layout of `out` and the node's leaves
-- @tparam integer columns
function loops.run(what, out, node, walk, columns)
  local own, leaves = out.storage.context, node.leaves
  local kernel = context.kernel(own, node.form, out.kind, walk.key, what, source, node, walk, out.kind)
  local args = loops.take_args(kernel)
  if walk.is_plain then pass_plain(args, out, node, columns) else pass_all(args, out, node, walk, columns) end
  set_grid(args, own, kernel, columns, walk.rows)
  loops.launch(own, what, kernel, args, out, leaves)
end

return loops
