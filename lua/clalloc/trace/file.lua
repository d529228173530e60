-- Writing files as a whole: under the name lies either what was there before or the new file, never a part of it.

local file = {}

-- A name beside the file, so that renaming does not move it to another file system. The address of a new table makes it
-- differ from what another process would take.
local function temporary_name(path)
  while true do
    local name = ("%s.%s.tmp"):format(path, tostring({}):match "0x(%x+)")
    local taken = io.open(name, "rb")
    if not taken then
      return name
    end
    taken:close()
  end
end

local PIECES = 4096 -- gathered before they are written

-- True, or nil, message, code: of the first write that fails, or of the close that finds the disk full.
local function write_all(name, write)
  local handle <close>, message, code = io.open(name, "wb")
  if not handle then
    return nil, message, code
  end
  local pieces, count, failure = {}, 0, nil
  local function flush()
    if not failure then
      local ok, reason, number = handle:write(table.concat(pieces, "", 1, count))
      failure = not ok and { reason, number } or nil
    end
    count = 0
  end
  write(function(text)
    count = count + 1
    pieces[count] = text
    if count == PIECES then
      flush()
    end
  end)
  flush()
  local closed, reason, number = handle:close() -- closed again by <close>, which does nothing then
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
