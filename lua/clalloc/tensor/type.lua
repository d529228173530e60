--- The tensor: a shape and a kind over either a view of storage or an expression yet to be computed.
--
-- Elementwise operations compute nothing: they make a tensor that holds the expression. It is computed, in one kernel,
-- when it is first needed: read, printed, viewed, multiplied, or about to be overtaken by a change of what it reads. So
-- the parts of an expression never take memory. A part used a second time is computed for itself: then something refers
-- to it.
--
-- An expression holds the storage it reads until another takes it in. From then on it is most likely garbage that
-- nobody has collected yet, and must not keep memory whose owner closes it. It is computed after all if it is needed
-- again; if its storage is closed by then, that is an error. Where no tensor is over its storage any more, it is
-- computed rather than taken in.
--
-- Fields are private to the tensor files: `kind`, `sizes`, `count`; `cells`, a view, or `node`, the other is false;
-- `held`, whether it holds the node's storage; `uses`, how many expressions took in the node; `what`, the operation
-- that made it. Both false: closed.
--
-- A view is a record that never changes: `storage`, `start` (element number in its buffer), `sizes`, `strides`, `kind`,
-- `count`, `is_dense`.
--
-- @classmod tensor

local fault = require "clalloc.tensor.fault"
local layout = require "clalloc.tensor.layout"
local loops = require "clalloc.tensor.loops"
local scope = require "clalloc.tensor.scope"
local shape = require "clalloc.tensor.shape"
local storage = require "clalloc.tensor.storage"

local getmetatable, setmetatable = getmetatable, setmetatable
local Tensor = { methods = {}, meta = {} }
local methods, meta = Tensor.methods, Tensor.meta

meta.__name = "clalloc.tensor"

-- The metatable of tensors that hold no memory: the same, but nothing is done when they are collected. A tensor to be
-- computed that is collected still counts as a holder; the storage is collected in turn.
local idle = {}

--- Once all methods and metamethods are there.
function Tensor.complete()
  for name, value in pairs(meta) do
    if name ~= "__gc" then idle[name] = value end
  end
end

-- ---- Making --------------------------------------------------------------------------------------------------

local function new(what, kind, sizes, count, view, node)
  local self = setmetatable({
    kind = kind, sizes = sizes, count = count, cells = view, node = node, held = node ~= false, uses = 0, what = what,
  }, view and meta or idle)
  if scope.is_open then scope.add(self) end
  return self
end

--- A record of a view. Strides of dense views follow from the sizes, also where no step is ever made.
function Tensor.view_of(store, kind, start, sizes, strides, count)
  local is_dense = shape.is_contiguous(sizes, strides)
  return {
    storage = store, kind = kind, start = start, sizes = sizes, count = count,
    strides = is_dense and shape.strides(sizes) or strides, is_dense = is_dense,
  }
end

--- A tensor over a view; it holds the storage.
function Tensor.over(what, view)
  storage.add_tensor(view.storage)
  return new(what, view.kind, view.sizes, view.count, view, false)
end

--- The view of new memory of a shape, with what is in it; nobody holds it yet.
-- @param ... `what`, context, kind, sizes, count
-- @tparam[opt] table like a view: where it has these very sizes and is dense, its strides are taken
function Tensor.room(what, own, kind, sizes, count, like)
  local store = storage.new(what, own, count * kind.size)
  local strides = like and like.sizes == sizes and like.is_dense and like.strides or shape.strides(sizes)
  return {
    storage = store, kind = kind, start = 0, sizes = sizes, strides = strides, count = count, is_dense = true,
  }
end

--- A tensor that is to be computed. Of memory that others may write to, it is computed at once.
-- @tparam string what the operation
-- @tparam table node
-- @tparam table sizes
-- @tparam integer count of elements
-- @tparam[opt] any a what `node` was made of
-- @tparam[opt] any b
function Tensor.later(what, node, sizes, count, a, b)
  local self = new(what, node.kind, sizes, count, false, node)
  local at_once, leaves = false, node.leaves
  for i = 1, #leaves do
    local store = leaves[i].storage
    local pending = store.pending or storage.pending_of(store)
    store.count, pending[self] = store.count + 1, true
    at_once = at_once or store.is_shared
  end
  if a then Tensor.taken(a) end
  if b then Tensor.taken(b) end
  return at_once and self:eval() or self
end

-- ---- Computing -----------------------------------------------------------------------------------------------

local function release_leaves(self)
  local leaves = self.node.leaves
  if not self.held then return end
  self.held = false
  for i = 1, #leaves do storage.release(leaves[i].storage) end
end

local function forget_node(self)
  local leaves, held = self.node.leaves, self.held
  self.node, self.held = false, false
  for i = 1, #leaves do
    local store = leaves[i].storage
    store.pending[self] = nil
    if held then storage.release(store) end
  end
end

-- Whether what it is computed from is there no more.
local function is_lost(node)
  local leaves = node.leaves
  for i = 1, #leaves do
    local store = leaves[i].storage
    if (store.is_shared or not store.buffer) and storage.is_gone(store) then return true end
  end
  return false
end

local function check_leaves(self)
  if is_lost(self.node) then
    fault("%s: what this is computed from was closed; `eval` in time keeps a result", self.what)
  end
end

-- Whether a storage is kept by expressions alone.
local function has_orphan(self)
  local leaves = self.node.leaves
  for i = 1, #leaves do
    if leaves[i].storage.tensors == 0 then return true end
  end
  return false
end

--- Computes a node into a view, whose shape is what it broadcasts to.
function Tensor.compute(what, out, node)
  if out.count > 0 then loops.run(what, out, node, layout.elementwise(out, node.leaves)) end
end

--- Computes the tensor now, if it has not been; does not wait for the device.
-- @treturn tensor self
function methods:eval()
  local node = getmetatable(self) == idle and self.node
  if not node then return Tensor.check("eval", self) end
  check_leaves(self)
  local what, count, leaves = self.what, self.count, node.leaves
  local view = Tensor.room(what, leaves[1].storage.context, self.kind, self.sizes, count, leaves[1])
  if count > 0 then loops.run(what, view, node, layout.elementwise(view, leaves)) end
  storage.add_tensor(view.storage)
  self.cells = view
  forget_node(self)
  return setmetatable(self, meta)
end

--- Before what it reads changes: computes the tensor if that is still possible.
function Tensor.overtake(self)
  if self.node and not is_lost(self.node) then self:eval() end
end

storage.overtake = Tensor.overtake

-- ---- Use -----------------------------------------------------------------------------------------------------

function Tensor.is(value)
  local its = getmetatable(value)
  return its == meta or its == idle
end

--- Raises unless the value is an open tensor.
function Tensor.check(what, value)
  local its = getmetatable(value)
  if its ~= meta and its ~= idle then fault("%s: tensor expected, got %s", what, type(value)) end
  if not value.cells and not value.node then fault("%s: attempt to use a closed tensor", what) end
  return value
end

--- The view of an open tensor, computed if need be.
function Tensor.need(what, value)
  Tensor.check(what, value)
  return value.cells or value:eval().cells
end

--- The view or node of an open tensor, to be taken into an expression; `Tensor.taken` when that is computed, or holds
-- what it reads.
function Tensor.part(what, value)
  Tensor.check(what, value)
  if not value.node then return value.cells end
  value.uses = value.uses + 1
  if value.uses > 1 or has_orphan(value) then return value:eval().cells end
  check_leaves(value)
  return value.node
end

--- After `Tensor.part`: the tensor need not hold what it reads any more. Anything else than such a tensor is ignored.
function Tensor.taken(value)
  if type(value) == "table" and value.node and value.uses > 0 then release_leaves(value) end
end

--- The context of an open tensor's device.
function Tensor.context(value)
  return (value.cells or value.node.leaves[1]).storage.context
end

--- Raises unless two open tensors are on one device.
function Tensor.check_devices(what, a, b)
  local one, other = Tensor.context(a), Tensor.context(b)
  if one == other then return end
  local first, second = one.device.name, other.device.name
  local where = first == second and ("two devices named %s"):format(first) or ("%s and %s"):format(first, second)
  fault("%s: the tensors are on %s; `to` copies between devices", what, where)
end

-- ---- Closing -------------------------------------------------------------------------------------------------

--- Lets go of the memory; it goes back when no other tensor shares it. Closing again does nothing.
function methods:close()
  local its = getmetatable(self)
  if its ~= meta and its ~= idle then fault("close: tensor expected, got %s", type(self)) end
  local view = self.cells
  if self.node then forget_node(self) end
  self.cells = false
  if view then
    setmetatable(self, idle)
    storage.remove_tensor(view.storage)
  end
end

meta.__close = methods.close

-- The buffer is left to the collector: it goes too, unless an expression still needs it.
function meta.__gc(self)
  local view = self.cells
  self.cells = false
  if view then storage.lose_tensor(view.storage) end
end

return Tensor
