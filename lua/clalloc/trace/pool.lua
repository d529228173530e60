--- `pool:trace()`: what happened to a pool's blocks and segments, as a trace.
--
-- @module clalloc.trace.pool

local trace = require "clalloc.trace"

local FIELDS = { events = true }

local function check_options(options)
  if options ~= nil and type(options) ~= "table" then
    error(("trace: options: table expected, got %s"):format(type(options)), 3)
  end
  for key in pairs(options or {}) do
    if not FIELDS[key] then
      error(("trace: no option is named '%s'; there is events"):format(tostring(key)), 3)
    end
  end
  return options or {}
end

--- Makes the method from the functions of the C module.
-- @tparam table ring `start`, `stop` and `read`
-- @treturn function `trace(pool [, on [, options]])`
local function tracer(ring)
  return function(pool, on, options)
    if on == true then
      local events = check_options(options).events
      if events ~= nil and (math.type(events) ~= "integer" or events < 1) then
        error(("trace: events: an integer of at least 1 expected, got %s"):format(tostring(events)), 2)
      end
      return ring.start(pool, events)
    elseif on == false then
      return ring.stop(pool)
    elseif on ~= nil then
      error(("trace: true, false or nothing expected, got %s"):format(tostring(on)), 2)
    end
    local events, segments, lost = ring.read(pool)
    if not events then return nil, segments, lost end
    local t = trace.new { events = events, segments = segments, name = "pool" }
    t.lost = lost
    return t
  end
end

return tracer
