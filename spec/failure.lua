-- The message of a call that must raise.
return function(f, ...)
  local ok, message = pcall(f, ...)
  assert(not ok, "it did not raise")
  return tostring(message)
end
