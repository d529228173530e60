-- Run by busted before the specs. Each spec file must leave no live driver object behind: after its last test garbage
-- is collected, the current device's pool is trimmed, and what the driver still holds is compared with what it held
-- before the file.

local busted = require "busted"
local cl = require "clalloc"

local has_device = pcall(cl.current) -- opened here, it is part of every count

local function live_objects()
  collectgarbage()
  collectgarbage()
  if has_device then
    local device = cl.current()
    device.default_stream:finish()
    device:pool():trim()
    -- Pinned blocks may still wait for streams that a spec has closed: their work ends by itself, soon.
    local host, tries = device.host, 0
    repeat
      host:process_events()
      tries = tries + 1
    until host:stats().pending_blocks == 0 or tries == 1000000
    host:trim()
    device.heap:reset()
    device:close()
    collectgarbage()
  end
  return cl.debug.live()
end

local function difference(before, after)
  local kinds = {}
  for kind, n in pairs(after) do
    local more = n - (before[kind] or 0)
    if more > 0 then kinds[#kinds + 1] = ("%d %s"):format(more, kind) end
  end
  table.sort(kinds)
  return #kinds > 0 and table.concat(kinds, ", ") or nil
end

local before

busted.subscribe({ "file", "start" }, function()
  before = live_objects()
  return nil, true
end)

busted.subscribe({ "file", "end" }, function(file)
  cl.debug.fail("any", 0)
  local left = difference(before, live_objects())
  if left then
    local message = ("%s leaves live driver objects: %s"):format(file.name, left)
    busted.publish({ "failure", "file" }, file, busted.parent(file), message, debug.getinfo(1, "Sl"))
  end
  return nil, true
end)
