--- Policies: how a pool cuts, keeps and gets its memory.
--
-- A policy is a table with a name and the parameters that differ from the named policy's own; `dev:pool{policy = p}`
-- takes it. The parameters, in bytes unless said otherwise:
--
-- * `align`: block sizes and offsets are multiples of it, and of the device's own alignment.
-- * `grain`: segments are multiples of it.
-- * `growth_min`, `growth_max`: a new segment is half of what is reserved, within these bounds.
-- * `growth_share`, `growth_cap`: or one part in `growth_share` (a number) of what is reserved, when that is more, up
--   to `growth_cap`.
-- * `max_split`: larger blocks are neither split nor handed to smaller requests; 0: no limit.
--
-- @module clalloc.policy

local policy = {}

local PARAMETERS = {
  align = true,
  grain = true,
  growth_min = true,
  growth_max = true,
  growth_share = true,
  growth_cap = true,
  max_split = true,
}

local Policy = { __name = "clalloc.policy_table" }

-- "policy (caching, grain 2097152)"
function Policy:__tostring()
  local parts = {}
  for key, value in pairs(self) do
    if key ~= "name" then parts[#parts + 1] = (", %s %s"):format(key, tostring(value)) end
  end
  table.sort(parts)
  return ("policy (%s%s)"):format(self.name, table.concat(parts))
end

local function make(name, params)
  local made = setmetatable({ name = name }, Policy)
  for key, value in pairs(params or {}) do
    if not PARAMETERS[key] then
      error(("policy.%s: no parameter is named '%s'"):format(name, tostring(key)), 3)
    end
    if math.type(value) ~= "integer" or value < 0 then
      error(("policy.%s: %s: %s is no size"):format(name, key, tostring(value)), 3)
    end
    made[key] = value
  end
  return made
end

--- Blocks are split, merged and kept for reuse; segments go back before more is reserved than ever before.
-- @tparam[opt] table params those that differ
-- @treturn table the policy
function policy.caching(params)
  return make("caching", params)
end

--- Every allocation goes to the driver, and every free too.
-- @tparam[opt] table params those that differ
-- @treturn table the policy
function policy.direct(params)
  return make("direct", params)
end

return policy
