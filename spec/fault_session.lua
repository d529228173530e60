-- A session of calls of which any may fail: run once a fault, with the first driver call failing, then the second, and
-- so on until the session makes fewer calls than that. Whatever fails, every failure must be a clean one, and nothing
-- of the driver's may be left.
--
-- A kind of session is `fault_session.new(codes)`, a class to which the spec adds methods; codes: those that failures
-- may have, as keys. What the functions below get behind their own arguments is handed on to:
--   Session:run(...)     the calls
--   Session.settle(...)  optional: nothing is armed any more; checks, and lets go of caches

local cl = require "clalloc"

local MOST_CALLS <const> = 3000 -- more than any session makes

local Session = {}
Session.__index = Session

local function new(codes)
  local kind = setmetatable({ codes = codes }, Session)
  kind.__index = kind
  return kind
end

-- Calls a function: its first result, or nil and a clean error noted.
function Session:try(f, ...)
  local ok, result, message, code = pcall(f, ...)
  if ok and result ~= nil then return result end
  if not ok then
    assert(type(result) == "string" and #result > 0, "an error that is no message")
    assert(not result:find "attempt to" and not result:find "bad argument", result) -- of nil, that a call gave instead
    message = result
  else
    assert(type(message) == "string" and #message > 0, "a failure without a message")
    assert(self.codes[code], ("a failure with the code %s: %s"):format(code, message))
  end
  self.errors[#self.errors + 1] = message
  return nil
end

-- The same for what makes an object, which is closed at the end.
function Session:open(f, ...)
  local object = self:try(f, ...)
  if object then self.opened[#self.opened + 1] = object end
  return object
end

-- One session with a fault armed (n nil: without). Did the fault fire, how many errors were there, and which?
function Session:once(call, n, ...)
  local session = setmetatable({ opened = {}, errors = {} }, self)
  cl.debug.fail(call, n or 0)
  local ok, message = xpcall(session.run, debug.traceback, session, ...)
  for i = #session.opened, 1, -1 do session.opened[i]:close() end
  local fired = n and not cl.debug.armed()
  cl.debug.fail("any", 0)
  assert(ok, ("fault %s in %s: %s"):format(n, call, message))
  if self.settle then self.settle(...) end
  return fired, #session.errors, table.concat(session.errors, "\n")
end

-- What is live when nothing is left but what the current device keeps for itself.
local function settled()
  collectgarbage()
  collectgarbage()
  local dev <close> = cl.current()
  dev.default_stream:finish()
  dev:pool():trim()
  return cl.debug.live()
end

-- Fails the first, second, ... call of a kind: how many there are, and how many faults were felt.
-- limits.most: faults at the most; limits.step: from one fault to the next.
function Session:every_fault(call, limits, ...)
  local before, felt = settled(), 0
  for n = 1, limits.most or MOST_CALLS, limits.step or 1 do
    local fired, errors, messages = self:once(call, n, ...)
    for kind, count in pairs(settled()) do
      assert(count <= (before[kind] or 0),
        ("after fault %d in %s: %d of %s are live, %d before"):format(n, call, count, kind, before[kind] or 0))
    end
    if not fired then
      assert(errors == 0, messages)
      return n - 1, felt
    end
    if errors > 0 then felt = felt + 1 end
  end
  assert(limits.most, "a session without end")
  return limits.most, felt
end

-- The kinds of calls a session makes.
function Session:kinds(...)
  cl.debug.calls_reset()
  local _, errors, messages = self:once("any", nil, ...)
  assert(errors == 0, messages)
  local list = {}
  for name in pairs(cl.debug.calls()) do
    if name ~= "total" then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

return { new = new }
