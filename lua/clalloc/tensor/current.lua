--- Whether any guard was ever made in this Lua state. As long as not, the current device and stream are always the
-- default ones, and tensors need not ask at each operation.
--
-- Loaded with the module, before there can be a guard; makes no OpenCL call.
--
-- @module clalloc.tensor.current

local core = require "clalloc.core"

local current = { is_guarded = false }

local guard = core.guard

function core.guard(...)
  current.is_guarded = true
  return guard(...)
end

return current
