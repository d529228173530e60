-- The built-in policies by name: a constructor each, whose file is loaded at its first use.

local policies = {}

for _, name in ipairs { "caching", "direct", "torch", "rmm", "bins", "arena", "buddy" } do
  policies[name] = function(params)
    return require("clalloc.policies." .. name)(params)
  end
end

return policies
