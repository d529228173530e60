-- No pool at all: every allocation is a segment of its own, given back when freed. The core knows it by its name.

local policy_table = require "clalloc.policy_table"

return function(params)
  return policy_table.builtin({ name = "direct" }, params)
end
