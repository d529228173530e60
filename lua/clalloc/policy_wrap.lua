-- Policies around policies: each of these copies the decisions of another and puts its own before or after them. What
-- they do for users stands in policy.lua.

local policy_table = require "clalloc.policy_table"
local policies = require "clalloc.policies"
local rmm_log = require "clalloc.policy_log"

local wrap = {}

-- The decisions of a policy, a table or a name, to be changed; and its methods.
local function decisions_of(where, inner)
  if type(inner) == "string" then
    local make = policies[inner] or error(("policy.%s: no policy is named '%s'"):format(where, inner), 3)
    inner = make()
  end
  if type(inner) ~= "table" then
    error(("policy.%s: a policy expected, got %s"):format(where, type(inner)), 3)
  end
  local fields = {}
  for key, value in pairs(inner) do fields[key] = value end
  local meta = getmetatable(inner)
  return fields, meta and type(meta.__index) == "table" and meta.__index or policy_table.methods
end

-- A policy of these fields with methods of its own beside those of the one inside.
local function made(fields, methods, inner_methods)
  local all = {}
  for _, from in ipairs { inner_methods, methods } do
    for name, method in pairs(from) do all[name] = method end
  end
  return policy_table.make(fields, all, 3)
end

-- Calls the one inside first.
local function after(inner, ours)
  if not inner then return ours end
  return function(event)
    inner(event)
    ours(event)
  end
end

-- Refused if either refuses.
local function both(inner, ours)
  if not inner then return ours end
  return function(request)
    local allowed, message, code = inner(request)
    if allowed == false then return false, message, code end
    return ours(request)
  end
end

function wrap.new(t)
  if type(t) ~= "table" then error(("policy.new: a table expected, got %s"):format(type(t)), 2) end
  local fields, methods = decisions_of("new", t)
  return made(fields, {}, methods)
end

local function check_count(where, name, value)
  if math.type(value) ~= "integer" or value < 0 then
    error(("policy.%s: %s: %s is no whole number of at least 0"):format(where, name, tostring(value)), 3)
  end
end

local function check_function(where, value)
  if type(value) ~= "function" then
    error(("policy.%s: a function expected, got %s"):format(where, type(value)), 3)
  end
end

-- ---- Refusing ------------------------------------------------------------------------------------

function wrap.limit(inner, nbytes)
  check_count("limit", "nbytes", nbytes)
  local fields, methods = decisions_of("limit", inner)
  fields.admit = both(fields.admit, function(request)
    if request.requested + request.nbytes <= nbytes then return true end
    return false, ("%d bytes asked, and %d live: more than %d"):format(request.nbytes, request.requested, nbytes)
  end)
  return made(fields, {}, methods)
end

function wrap.fail_after(inner, n)
  check_count("fail_after", "n", n)
  local fields, methods = decisions_of("fail_after", inner)
  local left = n
  fields.admit = both(fields.admit, function()
    return left > 0, ("fails after %d allocations"):format(n), "NOMEM"
  end)
  fields.note = after(fields.note, function(event)
    if event.what == "alloc" then left = left - 1 end
  end)
  return made(fields, {}, methods)
end

function wrap.fail_if(inner, fn)
  check_function("fail_if", fn)
  local fields, methods = decisions_of("fail_if", inner)
  fields.admit = both(fields.admit, function(request)
    return not fn(request), ("an allocation of %d bytes is made to fail"):format(request.nbytes), "NOMEM"
  end)
  return made(fields, {}, methods)
end

function wrap.on_oom(inner, fn)
  check_function("on_oom", fn)
  local fields, methods = decisions_of("on_oom", inner)
  local before = fields.oom
  fields.oom = function(request, times)
    return before and before(request, times) or not not fn(request, times)
  end
  return made(fields, {}, methods)
end

-- ---- Who holds what ------------------------------------------------------------------------------

-- The places of this library's own functions say nothing to a user.
local function traceback()
  local lines = {}
  for line in debug.traceback("", 3):gmatch "\n\t([^\n]+)" do
    local is_ours = #lines == 0 and (line:find("^%[C%]") or line:find "clalloc/policy_wrap")
    if not is_ours then lines[#lines + 1] = line end
  end
  return table.concat(lines, "\n")
end

-- The same tracebacks together, those that hold most first.
local function grouped(leaks)
  local groups, by_traceback, total = {}, {}, 0
  for _, leak in ipairs(leaks) do
    local group = by_traceback[leak.traceback]
    if not group then
      group = { traceback = leak.traceback, count = 0, nbytes = 0 }
      groups[#groups + 1], by_traceback[leak.traceback] = group, group
    end
    group.count, group.nbytes, total = group.count + 1, group.nbytes + leak.nbytes, total + leak.nbytes
  end
  table.sort(groups, function(a, b)
    if a.nbytes ~= b.nbytes then return a.nbytes > b.nbytes end
    return a.traceback < b.traceback
  end)
  return groups, total
end

local function report(leaks)
  local groups, total = grouped(leaks)
  local lines = { ("%d live allocation%s, %d bytes"):format(#leaks, #leaks == 1 and "" or "s", total) }
  for _, group in ipairs(groups) do
    lines[#lines + 1] = ("  %d bytes in %d, allocated at\n    %s"):format(group.nbytes, group.count,
      (group.traceback:gsub("\n", "\n    ")))
  end
  return table.concat(lines, "\n")
end

function wrap.track(inner)
  local fields, methods = decisions_of("track", inner)
  local live, count = {}, 0
  fields.note = after(fields.note, function(event)
    if event.what == "alloc" then
      count = count + 1
      live[event.address] = {
        address = event.address, nbytes = event.nbytes, size = event.size, stream = event.stream,
        number = count, traceback = traceback(),
      }
    elseif event.what == "free" then
      live[event.address] = nil
    end
  end)
  local function leaks()
    local list = {}
    for _, leak in pairs(live) do list[#list + 1] = leak end
    table.sort(list, function(a, b) return a.number < b.number end)
    return list
  end
  return made(fields, { leaks = leaks, report = function() return report(leaks()) end }, methods)
end

function wrap.log(inner, path)
  if type(path) ~= "string" then error(("policy.log: a path expected, got %s"):format(type(path)), 2) end
  local fields, methods = decisions_of("log", inner)
  local log, message, code = rmm_log.open(path)
  if not log then return nil, message, code end
  fields.note = after(fields.note, function(event) log:write(event) end)
  return made(fields, { flush = function() return log:flush() end }, methods)
end

-- ---- Counters ------------------------------------------------------------------------------------

local function new_counter() return { value = 0, peak = 0, total = 0 } end
local function new_counters() return { bytes = new_counter(), allocations = new_counter() } end

local function add(counter, n)
  counter.value = counter.value + n
  if n > 0 then counter.total = counter.total + n end
  if counter.value > counter.peak then counter.peak = counter.value end
end

-- What was counted above, seen from below.
local function take_over(below, above)
  below.peak = math.max(below.peak, below.value + above.peak)
  below.value, below.total = below.value + above.value, below.total + above.total
end

local function copy(counters)
  local made_copy = new_counters()
  for name, counter in pairs(counters) do
    for key, value in pairs(counter) do made_copy[name][key] = value end
  end
  return made_copy
end

function wrap.statistics(inner)
  local fields, methods = decisions_of("statistics", inner)
  local stack = { new_counters() }
  fields.note = after(fields.note, function(event)
    local top = stack[#stack]
    local sign = event.what == "alloc" and 1 or event.what == "free" and -1 or 0
    add(top.bytes, sign * event.nbytes)
    add(top.allocations, sign)
  end)
  local own = {}
  function own.counters() return copy(stack[#stack]) end
  function own.push()
    stack[#stack + 1] = new_counters()
    return copy(stack[#stack - 1])
  end
  function own.pop()
    if #stack == 1 then error("policy.statistics: pop without a push", 2) end
    local above = table.remove(stack)
    for name, counter in pairs(stack[#stack]) do take_over(counter, above[name]) end
    return above
  end
  return made(fields, own, methods)
end

-- All of these are methods of every policy.
for name, combinator in pairs(wrap) do
  if name ~= "new" then policy_table.methods[name] = combinator end
end

return wrap
