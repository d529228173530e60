--- Expressions: what is still to be computed, as a tree of operations over views and numbers, and its text in OpenCL C.
--
-- A node is a record: `op`; `kind` of its result; `leaves`, the views below it, and `numbers`, the numbers below it,
-- both in the order of the text; `weight`, how many operations it is; `form`. Nodes and views are never changed once
-- made.
--
-- A form is what nodes of the same text share: `op`; `kind`; `operand`, the kind in which operands meet; operands in
-- its list part: a form, a LEAF or NUMBER of a kind, or SAME, the first one again. Equal forms are one and the same
-- table, so that a kernel is found by its form without writing down its text.
--
-- @module clalloc.tensor.expression

local dtype = require "clalloc.tensor.dtype"
local step = require "clalloc.tensor.levels"

local expression = {}

-- A larger expression is computed in parts: compilers take long over large kernels, and kernels have few parameters.
expression.MOST_LEAVES = 8
expression.MOST_WEIGHT = 16

-- ---- Forms ---------------------------------------------------------------------------------------------------

-- kind -> what stands for any view, or any number, of it
local function markers(field)
  return setmetatable({}, {
    __index = function(self, kind)
      self[kind] = { kind = kind, is_double = kind == dtype.f64, [field] = true }
      return self[kind]
    end,
  })
end

local LEAF, NUMBER = markers "is_leaf", markers "is_number"
local SAME = { is_double = false }

local forms = {} -- op -> kind -> operand -> first -> second ... -> form

local function form_of(op, kind, operand, list)
  local level = step(step(step(forms, op), kind), operand)
  for i = 1, #list do level = step(level, list[i]) end
  local form = level.form
  if form then return form end
  form = { op = op, kind = kind, operand = operand, is_double = kind == dtype.f64 or operand == dtype.f64 }
  for i = 1, #list do
    form[i] = list[i]
    form.is_double = form.is_double or list[i].is_double
  end
  level.form = form
  return form
end

-- ---- Nodes ---------------------------------------------------------------------------------------------------

local NONE = {}

local function append(list, more)
  if #more == 0 then return list end
  if list == NONE then list = {} end
  return table.move(more, 1, #more, #list + 1, list)
end

-- Adds what is below an operand; gives what stands for it in the form.
local function take(node, x)
  if x.storage then
    node.leaves[#node.leaves + 1] = x
    return LEAF[x.kind]
  elseif x.op then
    append(node.leaves, x.leaves)
    node.numbers = append(node.numbers, x.numbers)
    node.weight = node.weight + x.weight
    return x.form
  end
  node.numbers = append(node.numbers, { x })
  return NUMBER[x.kind]
end

--- A node.
-- @tparam table op
-- @tparam table kind of the result
-- @tparam ?table operand the kind in which operands meet, if not that
-- @tparam table ... operands: nodes, views, or numbers `{value =, kind =}`
function expression.node(op, kind, operand, ...)
  local node = { op = op, kind = kind, leaves = {}, numbers = NONE, weight = 1, form = false }
  local list, first = { ... }, ...
  for i = 1, #list do
    local x = list[i]
    list[i] = i > 1 and x == first and SAME or take(node, x)
  end
  node.form = form_of(op, kind, operand or kind, list)
  return node
end

-- The form that is there already, without a call for each step.
local function known_form(op, kind, operand, a, b)
  local level = forms[op]
  level = level and level[kind]
  level = level and level[operand]
  level = level and level[a]
  level = level and level[b]
  return level and level.form
end

--- A node over two views: the same as `node`, in less time.
function expression.node_of_views(op, kind, operand, x, y)
  local a, b = LEAF[x.kind], x == y and SAME or LEAF[y.kind]
  return {
    op = op, kind = kind, leaves = x == y and { x } or { x, y }, numbers = NONE, weight = 1,
    form = known_form(op, kind, operand, a, b) or form_of(op, kind, operand, { a, b }),
  }
end

--- Whether a node over these two would be too large.
function expression.too_large(a, b)
  if not a.op and not b.op then return false end
  local leaves = (a.op and #a.leaves or 1) + (b.op and #b.leaves or 1)
  local weight = (a.op and a.weight or 0) + (b.op and b.weight or 0)
  return leaves > expression.MOST_LEAVES or weight >= expression.MOST_WEIGHT
end

-- ---- Text ----------------------------------------------------------------------------------------------------

-- The statements of the user's see operands as variables, the first of the node's own kind.
local function code(form, name, args)
  local op = form.op
  local lines = {
    ("%s %s = %s;"):format(form.kind.c, name, args[1]),
    ("{ %s %s = %s;"):format(form.kind.c, op.names[1], name),
  }
  for i = 2, #op.names do
    local kind = form[i] == SAME and form.kind or form[i].kind
    lines[#lines + 1] = ("const %s %s = %s;"):format(kind.c, op.names[i], args[i])
  end
  lines[#lines + 1] = ("%s; %s = %s; }"):format(op.text, name, op.names[1])
  return table.concat(lines, "\n")
end

local function count(state, what)
  state[what] = state[what] + 1
  return what .. state[what]
end

local function visit(state, form)
  if form.is_leaf then return count(state, "v") end
  if form.is_number then return count(state, "c") end
  local args = {}
  for i = 1, #form do
    if form[i] == SAME then
      args[i] = args[1]
    else
      args[i] = visit(state, form[i])
      if not (form.op.text and i > 1) then args[i] = dtype.convert(form[i].kind, form.operand, args[i]) end
    end
  end
  local name = count(state, "n")
  local lines = state.lines
  if form.op.text then
    lines[#lines + 1] = code(form, name, args)
  else
    local value = form.op.emit(form.kind, args[1], args[2], form.operand)
    lines[#lines + 1] = ("const %s %s = %s;"):format(form.kind.c, name, value)
  end
  return name
end

--- Statements that compute a form, given `v1` ... for its leaves and `c1` ... for its numbers; then the result's name.
function expression.text(form)
  local state = { v = 0, c = 0, n = 0, lines = {} }
  local name = visit(state, form)
  return table.concat(state.lines, "\n"), name
end

local function add_preludes(form, seen, text)
  local prelude = form.op and form.op.prelude
  if prelude and not seen[prelude] then
    seen[prelude] = true
    text[#text + 1] = prelude
  end
  for i = 1, #form do add_preludes(form[i], seen, text) end
end

--- Functions that the operations need, each once.
function expression.prelude(form)
  local text = {}
  add_preludes(form, {}, text)
  return table.concat(text)
end

return expression
