--- What the option `policy` of a replay may be: a name, a policy, or a function that makes one for a trace.
--
-- A replay with details, or one that looks for the smallest limit, runs the trace several times, each in a pool of its
-- own. A policy with a state of its own would carry it over, so names and functions give a new one each time.
--
-- @module clalloc.replay.policies

local builtin = require "clalloc.policies"
local plan = require "clalloc.plan"

local policies = {}

local function names()
  local list = {}
  for name in pairs(builtin) do list[#list + 1] = name end
  table.sort(list)
  return table.concat(list, ", ")
end

-- Policies that need to know the trace. A plan of the whole trace, made once.
local special = {}

function special.planned(t, device)
  local made = assert(plan(t, { align = math.max(device.align, 512) }))
  return function() return builtin.planned { plan = made } end
end

local function named(name, t, device)
  local make = builtin[name]
  if not make then error(("replay: policy: there is no policy '%s'; there are: %s"):format(name, names()), 0) end
  return special[name] and special[name](t, device) or make
end

local function checked(made, from)
  if type(made) ~= "table" and type(made) ~= "string" then
    error(("replay: policy: expected a policy from %s, got %s"):format(from, type(made)), 0)
  end
  return made
end

--- What makes the policy of each pass.
-- @param given the option; nil is "caching"
-- @tparam table t the trace
-- @tparam device device
-- @treturn string a name for tables
-- @treturn function without arguments
function policies.maker(given, t, device)
  if given == nil then given = "caching" end
  if type(given) == "string" then return given, named(given, t, device) end
  if type(given) == "function" then
    local first = checked(given(t, device), "the function")
    local name = type(first) == "table" and first.name or first
    return tostring(name or "custom"), function()
      local made = first or checked(given(t, device), "the function")
      first = nil
      return made
    end
  end
  checked(given, "the caller")
  return tostring(given.name or "caching"), function() return given end
end

return policies
