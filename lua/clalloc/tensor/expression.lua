--- Expressions: what is still to be computed, as a tree of operations over views and numbers, and its text in OpenCL C.
--
-- A node is a record: `op`; `kind` of its result; operands in its list part, each a node, a view, or a number
-- `{value =, kind =}`; `leaves`, the views below it; `weight`, the number of operations below it; `operand`, the kind
-- in which operands meet where that is not its own. Nodes and views are never changed once made.
--
-- @module clalloc.tensor.expression

local dtype = require "clalloc.tensor.dtype"

local expression = {}

-- A larger expression is computed in parts: compilers take long over large kernels, and kernels have few parameters.
expression.MOST_LEAVES = 8
expression.MOST_WEIGHT = 16

local function add_leaves(leaves, x)
  if x.storage then
    leaves[#leaves + 1] = x
  elseif x.op then
    for _, leaf in ipairs(x.leaves) do leaves[#leaves + 1] = leaf end
  end
end

--- A node; operands as in the module's head.
function expression.node(op, kind, operand, ...)
  local node = { op = op, kind = kind, operand = operand or kind, leaves = {}, weight = 1, ... }
  for i = 1, #node do
    local x = node[i]
    add_leaves(node.leaves, x)
    if x.op then node.weight = node.weight + x.weight end
  end
  return node
end

--- Whether a node over these two would be too large.
function expression.too_large(a, b)
  local leaves = (a.op and #a.leaves or 1) + (b.op and #b.leaves or 1)
  local weight = (a.op and a.weight or 0) + (b.op and b.weight or 0)
  return leaves > expression.MOST_LEAVES or weight >= expression.MOST_WEIGHT
end

-- ---- Flattening ----------------------------------------------------------------------------------------------

local function visit(flat, x)
  local name = flat.names[x]
  if name then return name end
  if x.storage then
    flat.views[#flat.views + 1] = x
    name = "v" .. #flat.views
    flat.key[#flat.key + 1] = x.kind.name
  elseif x.op then
    local args = {}
    for i = 1, #x do args[i] = visit(flat, x[i]) end
    flat.nodes[#flat.nodes + 1] = x
    name = "n" .. #flat.nodes
    flat.key[#flat.key + 1] = ("%s:%s:%s(%s)"):format(x.op.name, x.kind.name, x.operand.name, table.concat(args, ","))
  else
    flat.numbers[#flat.numbers + 1] = x
    name = "c" .. #flat.numbers
    flat.key[#flat.key + 1] = "c" .. x.kind.name
  end
  flat.names[x] = name
  return name
end

--- The parts of an expression, each once: `views`, `numbers`, `nodes` (operands first), `names`, `root`, and `key`, equal for
-- expressions that have the same text.
function expression.flatten(root)
  local flat = { views = {}, numbers = {}, nodes = {}, names = {}, key = {} }
  flat.root = root
  visit(flat, root)
  flat.key = table.concat(flat.key, " ")
  return flat
end

-- ---- Text ----------------------------------------------------------------------------------------------------

local function operand(flat, node, i)
  return dtype.convert(node[i].kind, node.operand, flat.names[node[i]])
end

-- The statements of the user's see operands as variables, the first of the node's own kind.
local function code(flat, node, name)
  local op = node.op
  local lines = {
    ("%s %s = %s;"):format(node.kind.c, name, operand(flat, node, 1)),
    ("{ %s %s = %s;"):format(node.kind.c, op.names[1], name),
  }
  for i = 2, #op.names do
    lines[#lines + 1] = ("const %s %s = %s;"):format(node[i].kind.c, op.names[i], flat.names[node[i]])
  end
  lines[#lines + 1] = ("%s; %s = %s; }"):format(op.text, name, op.names[1])
  return table.concat(lines, "\n")
end

local function statement(flat, node)
  local name = flat.names[node]
  if node.op.text then return code(flat, node, name) end
  local a = node[1] and operand(flat, node, 1)
  local b = node[2] and operand(flat, node, 2)
  return ("const %s %s = %s;"):format(node.kind.c, name, node.op.emit(node.kind, a, b, node.operand))
end

--- Statements that compute the expression, given `v1` ... and `c1` ...; then its name.
function expression.text(flat)
  local lines = {}
  for i, node in ipairs(flat.nodes) do lines[i] = statement(flat, node) end
  return table.concat(lines, "\n"), flat.names[flat.root]
end

--- Functions that the operations need, each once.
function expression.prelude(flat)
  local seen, text = {}, {}
  for _, node in ipairs(flat.nodes) do
    local prelude = node.op.prelude
    if prelude and not seen[prelude] then
      seen[prelude] = true
      text[#text + 1] = prelude
    end
  end
  return table.concat(text)
end

--- Whether any part is of the kind f64.
function expression.uses(flat, kind)
  for x in pairs(flat.names) do
    if x.kind == kind or x.operand == kind then return true end
  end
  return false
end

return expression
