--- What is different at the Lua prompt: a pool is shown with the map of its segments, a heap with that of its blocks.
-- In scripts and logs their `tostring` stays one line.
--
-- @module clalloc.repl

local repl = {}

-- The options of the interpreter: they stand before the script, or, without one, after the interpreter's name.
local function options()
  local arguments = rawget(_G, "arg")
  if type(arguments) ~= "table" then return nil end
  local first = 0
  while arguments[first - 1] ~= nil do first = first - 1 end
  if first < 0 then return table.move(arguments, first + 1, -1, 1, {}), true end
  return table.move(arguments, 1, #arguments, 1, {}), false
end

--- Whether somebody types at the standalone interpreter: it was started with -i, or with neither script nor -e.
-- @treturn boolean
function repl.is_interactive()
  local list, has_script = options()
  if not list then return false end
  for _, option in ipairs(list) do
    if option == "-i" then return true end
    if option:find "^%-[ev]" or option == "-" then has_script = true end
  end
  return not has_script
end

-- A heap that kernels use cannot be looked at without waiting; a closed one not at all.
local function is_idle(text) return not text:find "%(closed%)$" and not text:find ", in use%)$" end

--- Makes pools and heaps print with their map.
-- @tparam table types what `cl.debug.types()` gives
function repl.install(types)
  for _, name in ipairs { "pool", "heap" } do
    local meta, draw = types[name].meta, types[name].names.draw
    local describe = meta.__tostring
    meta.__tostring = function(object)
      local line = describe(object)
      local is_drawn, text = pcall(is_idle(line) and draw or error, object)
      return is_drawn and text or line
    end
  end
end

return repl
