--- Errors of tensor operations: raised where the script called the library, not inside it.
--
-- Tensor operations raise for misuse and for a lack of memory alike: an expression has no place for `nil, message`.
--
-- @module clalloc.tensor.fault

-- The level of the first function outside the tensor files, as `error` counts it for the caller of `fault`.
local function level_of_caller()
  local level = 3
  while true do
    local info = debug.getinfo(level, "S")
    if not info then return 0 end
    if info.what ~= "C" and not info.source:find("clalloc[/\\]tensor[/\\.]") then return level - 1 end
    level = level + 1
  end
end

--- Raises a formatted message at the line of the script that called the library.
-- @tparam string format as for `string.format`
return function(format, ...)
  error(format:format(...), level_of_caller())
end
