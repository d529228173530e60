-- Writing files as a whole: under the name lies either what was there before or the new file, never a part of it.

local file = {}

-- A name beside the file, so that renaming does not move it to another file system.
local function temporary_name(path)
  local n = 0
  while true do
    local name = ("%s.%d.tmp"):format(path, n)
    local taken = io.open(name, "rb")
    if not taken then
      return name
    end
    taken:close()
    n = n + 1
  end
end

-- True, or nil, message, code: of the first write that fails, or of the close that finds the disk full.
local function write_all(name, write)
  local handle, message, code = io.open(name, "wb")
  if not handle then
    return nil, message, code
  end
  local guard <close> = handle -- closed twice is fine; a writer that raises leaves no open file
  handle:setvbuf("full", 1 << 16)
  local failure
  write(function(text)
    if not failure then
      local ok, reason, number = handle:write(text)
      failure = not ok and { reason, number } or nil
    end
  end)
  local closed, reason, number = guard:close()
  if failure then
    return nil, failure[1], failure[2]
  end
  return closed, reason, number
end

-- The message about the temporary file, as one about the file that was asked for.
local function about(path, name, message)
  local from, to = message:find(name, 1, true)
  if from then
    return message:sub(1, from - 1) .. path .. message:sub(to + 1)
  end
  return ("%s: %s"):format(path, message)
end

--- Calls write(put), where put(text) appends, and puts the result in the place of what was at path. Devices are
-- written to, not replaced.
-- True, or nil, message, code; then nothing has changed. What `write` raises is raised.
function file.replace(path, write)
  local is_device = path:find "^/dev/"
  local name = is_device and path or temporary_name(path)
  local called, ok, message, code = pcall(write_all, name, write)
  if called and ok and not is_device then
    ok, message, code = os.rename(name, path)
  end
  if not (called and ok) and not is_device then
    os.remove(name)
  end
  if not called then
    error(ok, 0)
  elseif not ok then
    return nil, about(path, name, message), code
  end
  return true
end

return file
