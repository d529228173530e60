-- The default, as it stands in src/pool/policy.c: nothing is decided here.

local policy_table = require "clalloc.policy_table"

return function(params)
  return policy_table.builtin({ name = "caching" }, params)
end
