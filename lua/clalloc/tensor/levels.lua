--- What is found by several keys: tables in tables, a level for each key.
--
-- @module clalloc.tensor.levels

--- The table under a key, made when it is new.
-- @tparam table level
-- @param key
-- @treturn table the next level
return function(level, key)
  local next_level = level[key]
  if not next_level then
    next_level = {}
    level[key] = next_level
  end
  return next_level
end
