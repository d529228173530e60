-- The table that a policy is: its fields checked, its methods, its text. What they mean stands in policy.lua.

local policy_table = {}

local SIZES <const> = {
  align = true, grain = true, growth_min = true, growth_max = true, growth_share = true, growth_cap = true,
  max_split = true,
}

-- What a decision may be besides a function: names, and true for a number of bytes or a boolean.
local DECISIONS <const> = {
  round = { "align", "power_of_two", integer = true },
  fit = { "best", "exact" },
  split = { boolean = true, integer = true },
  grow = { "share", "request", integer = true },
  keep = { "peak", boolean = true },
  oom = { boolean = true },
  admit = {},
  note = {},
}

local methods = {}
policy_table.methods = methods

local function describe(key, value)
  if type(value) == "function" then return key .. " function" end
  return key .. " " .. tostring(value)
end

-- "policy (caching, grain 2097152)"
local function to_string(self)
  local parts = {}
  for key, value in pairs(self) do
    if key ~= "name" and key:sub(1, 1) ~= "_" then parts[#parts + 1] = ", " .. describe(key, value) end
  end
  table.sort(parts)
  return ("policy (%s%s)"):format(self.name or "custom", table.concat(parts))
end

local function is_decision(kinds, value)
  if type(value) == "function" then return true end
  for _, name in ipairs(kinds) do
    if value == name then return true end
  end
  return kinds.boolean and type(value) == "boolean" or kinds.integer and math.type(value) == "integer" and value > 0
end

-- What is wrong with a field, or nil.
local function fault(key, value)
  if type(key) ~= "string" then return ("no parameter is named '%s'"):format(tostring(key)) end
  if key:sub(1, 1) == "_" then return nil end
  if key == "name" then return type(value) ~= "string" and ("name: %s is no string"):format(tostring(value)) or nil end
  if key == "exclusive" then
    return type(value) ~= "boolean" and ("exclusive: %s is no boolean"):format(tostring(value)) or nil
  end
  if SIZES[key] then
    local is_size = math.type(value) == "integer" and value >= 0
    return not is_size and ("%s: %s is no size"):format(key, tostring(value)) or nil
  end
  if not DECISIONS[key] then return ("no parameter is named '%s'"):format(key) end
  if is_decision(DECISIONS[key], value) then return nil end
  return ("%s: %s is no such decision"):format(key, tostring(value))
end

local default = { __name = "clalloc.policy_table", __index = methods, __tostring = to_string }

-- A policy of these fields. `more` are methods beside those that all have; `level` is of the error.
function policy_table.make(fields, more, level)
  local made = {}
  for key, value in pairs(fields) do
    local reason = fault(key, value)
    if reason then error(("policy.%s: %s"):format(tostring(fields.name or "new"), reason), (level or 1) + 1) end
    made[key] = value
  end
  if not more then return setmetatable(made, default) end
  return setmetatable(made, {
    __name = default.__name, __tostring = to_string, __index = setmetatable(more, { __index = methods }),
  })
end

-- A built-in policy: `own` fields, and the user's over them. `extra` names the parameters that the file itself takes.
function policy_table.builtin(own, params, extra)
  local fields = {}
  for key, value in pairs(own) do fields[key] = value end
  for key, value in pairs(params or {}) do
    if key == "name" then error(("policy.%s: no parameter is named 'name'"):format(own.name), 4) end
    if not (extra and extra[key]) then fields[key] = value end
  end
  return policy_table.make(fields, nil, 4)
end

-- A size among the parameters of a built-in policy.
function policy_table.size(name, params, key, otherwise)
  local value = params and params[key]
  if value == nil then return otherwise end
  if math.type(value) ~= "integer" or value < 1 then
    error(("policy.%s: %s: %s is no size above 0"):format(name, key, tostring(value)), 4)
  end
  return value
end

return policy_table
