--- Scopes: every tensor made inside is closed at the end, except what is returned.
--
-- A scope belongs to the coroutine that opened it.
--
-- @module clalloc.tensor.scope

local fault = require "clalloc.tensor.fault"

local scope = { is_open = false }

local scopes = setmetatable({}, { __mode = "k" }) -- coroutine -> its innermost scope
local open = 0

-- A scope is a list, with holes where tensors were collected before its end.
local weak = { __mode = "v" }

local function change(n)
  open = open + n
  scope.is_open = open > 0
end

--- Notes a new tensor in the innermost scope of the running coroutine, if there is one.
function scope.add(tensor)
  local innermost = scopes[coroutine.running()]
  if innermost then
    innermost.n = innermost.n + 1
    innermost[innermost.n] = tensor
  end
end

-- Marks what is kept: tensors, and those in plain tables. They are computed, so that they need nothing that is about to
-- close.
local function keep(kept, value)
  if type(value) ~= "table" or kept[value] then return end
  local meta = getmetatable(value)
  if meta and meta.__name == "clalloc.tensor" then
    kept[value] = true
    if value.node then value:eval() end
  elseif meta == nil then
    kept[value] = true
    for _, inner in next, value do keep(kept, inner) end
  end
end

local function leave(mine, outer, thread, kept)
  scopes[thread] = outer
  change(-1)
  for i = 1, mine.n do
    local tensor = mine[i]
    if tensor and not kept[tensor] then
      tensor:close()
    elseif tensor and outer then
      scope.add(tensor)
    end
  end
end

--- Calls `body(...)`; then closes every tensor made in it, except those it returns, alone or in plain tables. After an
-- error all are closed.
--
-- It ends expressions too: one that nobody needs any more would have to be computed before what it reads is changed in
-- place. So compute a gradient in one scope, and change weights after it.
-- @tparam function body
-- @param ... its arguments
-- @return what body returns
function scope.run(body, ...)
  if type(body) ~= "function" then fault("scope: function expected, got %s", type(body)) end
  local thread = coroutine.running()
  local mine, outer, kept = setmetatable({ n = 0 }, weak), scopes[thread], {}
  scopes[thread] = mine
  change(1)
  local results = table.pack(pcall(function(...)
    local made = table.pack(body(...))
    for i = 1, made.n do keep(kept, made[i]) end
    return table.unpack(made, 1, made.n)
  end, ...))
  leave(mine, outer, thread, results[1] and kept or {})
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

return scope
