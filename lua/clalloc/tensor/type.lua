--- The tensor: a shape and a kind over either a view of storage or an expression yet to be computed.
--
-- Elementwise operations compute nothing: they make a tensor that holds the expression. It is computed, in one kernel, when it
-- is first needed: read, printed, viewed, multiplied, or about to be overtaken by a change of what it reads. So the parts of an expression never
-- take memory. A part used a second time is computed for itself: then something refers to it.
--
-- Fields are private to the tensor files: `kind`, `sizes`, `count`; `cells`, a view, or `node`, the other is false; `uses`, how
-- many expressions took in the node; `what`, the operation that made it. Both false: closed.
--
-- A view is a record that never changes: `storage`, `start` (element number in its buffer), `sizes`, `strides`, `kind`,
-- `count`, `is_dense`.
--
-- @classmod tensor

local expression = require "clalloc.tensor.expression"
local fault = require "clalloc.tensor.fault"
local layout = require "clalloc.tensor.layout"
local loops = require "clalloc.tensor.loops"
local scope = require "clalloc.tensor.scope"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"

local Tensor = { methods = {}, meta = {} }
local methods, meta = Tensor.methods, Tensor.meta

meta.__name = "clalloc.tensor"

-- ---- Making --------------------------------------------------------------------------------------------------

local function new(what, kind, sizes, count, view, node)
  local self = setmetatable({
    kind = kind, sizes = sizes, count = count, cells = view, node = node, uses = 0, what = what,
  }, meta)
  if scope.is_open then scope.add(self) end
  return self
end

--- A record of a view.
function Tensor.view_of(store, kind, start, sizes, strides, count)
  return {
    storage = store, kind = kind, start = start, sizes = sizes, strides = strides, count = count,
    is_dense = shape.is_contiguous(sizes, strides),
  }
end

--- A tensor over a view; it holds the storage.
function Tensor.over(what, view)
  storage.retain(view.storage)
  return new(what, view.kind, view.sizes, view.count, view, false)
end

--- The view of new memory of a shape, with what is in it; nobody holds it yet.
function Tensor.room(what, own, kind, sizes, count)
  local store = storage.new(what, own, count * kind.size)
  return {
    storage = store, kind = kind, start = 0, sizes = sizes, strides = shape.strides(sizes), count = count,
    is_dense = true,
  }
end

--- A tensor that is to be computed. Of memory that others may write to, it is computed at once.
function Tensor.later(what, node, sizes, count)
  local self = new(what, node.kind, sizes, count, false, node)
  local at_once = false
  for _, leaf in ipairs(node.leaves) do
    storage.retain(leaf.storage)
    storage.expect(leaf.storage, self)
    at_once = at_once or leaf.storage.is_shared
  end
  return at_once and self:eval() or self
end

-- ---- Computing -----------------------------------------------------------------------------------------------

local function let_go(self)
  local node = self.node
  self.node = false
  for _, leaf in ipairs(node.leaves) do
    storage.settle(leaf.storage, self)
    storage.release(leaf.storage)
  end
end

--- Computes an expression into a view, whose shape is what the expression broadcasts to.
function Tensor.compute(what, out, node)
  if out.count == 0 then return end
  local flat = expression.flatten(node)
  local operands = { out }
  for i, view in ipairs(flat.views) do operands[i + 1] = view end
  loops.run(what, out, flat, layout.elementwise(out.sizes, out.count, operands))
end

--- Computes the tensor now, if it has not been; does not wait for the device.
-- @treturn tensor self
function methods:eval()
  local node = self.node
  if not node then
    Tensor.check("eval", self)
    return self
  end
  local view = Tensor.room(self.what, node.leaves[1].storage.context, self.kind, self.sizes, self.count)
  local ok, why = pcall(Tensor.compute, self.what, view, node)
  if not ok then
    view.storage.buffer:close()
    error(why, 0)
  end
  storage.retain(view.storage)
  self.cells = view
  let_go(self)
  return self
end

-- ---- Use -----------------------------------------------------------------------------------------------------

function Tensor.is(value)
  return getmetatable(value) == meta
end

--- Raises unless the value is an open tensor.
function Tensor.check(what, value)
  if getmetatable(value) ~= meta then fault("%s: tensor expected, got %s", what, type(value)) end
  if not value.cells and not value.node then fault("%s: attempt to use a closed tensor", what) end
  return value
end

--- The view of an open tensor, computed if need be.
function Tensor.need(what, value)
  Tensor.check(what, value)
  return value.cells or value:eval().cells
end

--- The view or node of an open tensor, to be taken into an expression.
function Tensor.part(what, value)
  Tensor.check(what, value)
  local node = value.node
  if not node then return value.cells end
  value.uses = value.uses + 1
  return value.uses > 1 and value:eval().cells or node
end

--- The context of an open tensor's device.
function Tensor.context(value)
  return (value.cells or value.node.leaves[1]).storage.context
end

-- ---- Closing -------------------------------------------------------------------------------------------------

--- Lets go of the memory; it goes back when no other tensor shares it. Closing again does nothing.
function methods:close()
  local view = self.cells
  if self.node then let_go(self) end
  self.cells = false
  if view then storage.release(view.storage) end
end

meta.__close = methods.close
meta.__gc = methods.close

return Tensor
