-- Replays recorded allocation traces through the pool, under one policy or several, and prints what each would have
-- cost.
--
--   lua5.4 examples/replay.lua snapshot.csv --simulate 80
--   lua5.4 examples/replay.lua snapshot.csv --simulate 80 --policy caching,direct,./mine.lua --fit --plot out.svg
--   lua5.4 examples/replay.lua snapshot.csv --scale 64 --policy direct
--
-- You will see, for every file: operations, driver calls, peak live bytes, peak reserved bytes and their ratio (1.0
-- would waste nothing), what the peak was made of, and nanoseconds per operation; for several policies a table with a
-- row each. Compare `direct`, where every allocation goes to the driver. A row of a file that is not as it should be
-- stops the run with file, line and reason. --help lists the options. Needs the Debian package lua-argparse.

local argparse = require "argparse"

local EXIT_FAILED, EXIT_USAGE = 1, 2

local function stop(code, ...)
  io.stderr:write("replay.lua: ", ...)
  io.stderr:write("\n")
  os.exit(code, true)
end

-- ---- Options -----------------------------------------------------------------------------------------------------

local parser = argparse("replay.lua", "Replays recorded allocation traces through the pool, and prints what it costs.")
parser:help_max_width(100)

local function stop_usage(...) stop(EXIT_USAGE, table.concat { ... }, "\n", parser:get_usage()) end
function parser.error(_, message) stop_usage(message) end

-- Converters: the value of a text, or nil and what is wrong with it.

local function policy_list(text)
  local list = {}
  for name in (text .. ","):gmatch "([^,]*)," do
    if name == "" then return nil, ("--policy wants names or files separated by commas, got '%s'"):format(text) end
    list[#list + 1] = name
  end
  return list
end

local function whole_number(name, least, most)
  return function(text)
    local n = math.tointeger(tonumber(text))
    if n and n >= least and n <= most then return n end
    return nil, ("--%s wants a whole number of at least %d%s, got '%s'"):format(name, least,
      most < math.maxinteger and (" and at most %d"):format(most) or "", text)
  end
end

local function number_above_0(name, of, most)
  return function(text)
    local n = tonumber(text)
    if n and n > 0 and n <= most then return n end
    return nil, ("--%s wants a number of %s above 0, got '%s'"):format(name, of, text)
  end
end

local function file_name(text)
  if text ~= "" then return text end
  return nil, "--plot wants the name of a file"
end

parser:argument("FILE", "PyTorch snapshots, RMM logs, lifetime CSVs (id,lower,upper,size) and logs of 'start_op end_op "
  .. "bytes'; the format is found out from the content, and NAME.initial.csv is loaded along."):args "+"
parser:option("--policy", "Names, and Lua files that return a policy, or a function that makes one of (trace, device), "
  .. "separated by commas. Names: caching, direct, torch, rmm, bins, arena, buddy, planned.", "caching", policy_list)
parser:option("--scale", "Divide every size by it, rounding up.", "1", whole_number("scale", 1, math.maxinteger))
parser:option("--streams", "Deal the allocations out to so many streams.", nil, whole_number("streams", 1, 1024))
parser:mutex(
  parser:option("--simulate", "A simulated device of so many GiB, which has no memory and needs no hardware.", nil,
    number_above_0("simulate", "GiB", 1 << 20)),
  parser:option("--device", "A device by index, type (cpu, gpu) or part of its name; memory is really touched."))
parser:option("--limit", "Most GiB that may be reserved: does it fit? The exit code is 1 when it does not.", nil,
  number_above_0("limit", "GiB", 1 << 20))
parser:flag("--fit", "The smallest limit at which each policy completes, by bisection.")
parser:option("--cost", "Microseconds of a driver call, for the estimate of the time spent in the driver; otherwise "
  .. "measured on the device, or on the default one for a simulated device.", nil,
  number_above_0("cost", "microseconds", 1e9))
parser:option("--plot", "Draw memory over time and the segments at the peak, as SVG; needs gnuplot, and one FILE.", nil,
  file_name)
parser:flag("--json", "Print figures as JSON, a list with an object for each file and policy.")

local options = parser:parse()
local files = options.FILE
if options.plot and #files > 1 then stop_usage("--plot draws one FILE, there are ", #files) end

local cl = require "clalloc"

-- ---- Policies ----------------------------------------------------------------------------------------------------

local function is_file(name) return name:find("/", 1, true) or name:find "%.lua$" end

-- A policy of a file; a function there makes one for each pass, as one with a state of its own needs it.
local function load_policy(path)
  local chunk, message = loadfile(path, "t")
  if not chunk then stop_usage(message) end
  local ok, made = pcall(chunk)
  if not ok then stop_usage(path, ": ", tostring(made)) end
  if type(made) == "function" then return made end
  if type(made) ~= "table" then
    stop_usage(path, ": it must return a policy, or a function that makes one, and returned ", type(made))
  end
  ok, made = pcall(cl.policy.new, made)
  if not ok then stop_usage(path, ": ", made) end
  return made
end

local function policy_named(name)
  if is_file(name) then return load_policy(name) end
  local builtin, names = require "clalloc.policies", {}
  if builtin[name] then return name end
  for known in pairs(builtin) do names[#names + 1] = known end
  table.sort(names)
  stop_usage(("unknown policy '%s'; there are: %s"):format(name, table.concat(names, ", ")))
end

local policies = {}
for i, name in ipairs(options.policy) do policies[i] = policy_named(name) end

-- ---- The device --------------------------------------------------------------------------------------------------

-- The value, or a clean exit: failures come as nil and a message, misuse as an error.
local function need(f, ...)
  local ok, value, message = pcall(f, ...)
  if ok and value then
    return value
  end
  stop(EXIT_FAILED, tostring(ok and message or value))
end

local function open_device()
  if options.simulate then
    return need(cl.simulate, { capacity = math.floor(options.simulate * cl.GiB), align = 512 })
  end
  return need(cl.device, options.device)
end

local device = open_device()

-- Seconds of a driver call, and where they are from; nil where there is no device to measure on.
local function driver_cost()
  if options.cost then return options.cost / 1e6, "as told" end
  local real = device
  if device.simulated then
    local ok, default = pcall(cl.device)
    if not ok then return nil end
    real = default
  end
  return need(require "clalloc.replay.cost", real), "as on " .. real.name
end

local function check_fits(t)
  local limit = device:pool():stats().limit
  if device.simulated or t.peak_live <= limit then
    return
  end
  local gib = t.peak_live * 1.25 // cl.GiB + 1
  stop(EXIT_FAILED, ("%s needs %s (%d bytes) at its peak, more than the %s (%d bytes) that may be used on %s.\n")
    :format(t.name, cl.trace.human(t.peak_live), t.peak_live, cl.trace.human(limit), limit, device.name),
    ("Try --scale %d, or --simulate %d."):format(math.ceil(t.peak_live * 2 / limit), gib))
end

-- A bar for runs that take longer than a moment, when somebody watches.
local QUIET_SECONDS, BAR_WIDTH = 0.5, 40

local function progress_bar()
  if options.json or not os.execute("test -t 1") then
    return nil
  end
  local start = os.clock()
  return function(done, total)
    if os.clock() - start < QUIET_SECONDS then
      return
    end
    local filled = BAR_WIDTH * done // total
    io.stdout:write(("\r[%s%s] %3d%%"):format(("#"):rep(filled), ("."):rep(BAR_WIDTH - filled), 100 * done // total))
    io.stdout:write(done == total and "\r\27[K" or ""):flush()
  end
end

-- ---- JSON --------------------------------------------------------------------------------------------------------

local json = {}

json["nil"] = function() return "null" end
json.boolean = tostring

function json.number(n) return math.type(n) == "integer" and ("%d"):format(n) or ("%.17g"):format(n) end

function json.string(text)
  return '"' .. text:gsub('[%c"\\\127]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

-- The figures of a result; what a plot is made of is left out.
function json.table(result)
  local names, fields = {}, {}
  for name, value in pairs(result) do
    if type(value) ~= "table" then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    fields[i] = json.string(name) .. ": " .. json[type(result[name])](result[name])
  end
  return "{" .. table.concat(fields, ", ") .. "}"
end

-- ---- Replaying ---------------------------------------------------------------------------------------------------

local cost, cost_source = driver_cost()

local function replay_file(path)
  local t = need(cl.trace.load, path)
  if options.scale > 1 then
    t = t:scaled(options.scale)
  end
  check_fits(t)
  return need(cl.replay, t, {
    device = device, policies = policies, progress = progress_bar(), streams = options.streams,
    limit = options.limit and math.floor(options.limit * cl.GiB) or nil, details = true, fit = options.fit,
    driver_cost = cost,
  })
end

-- One policy as a list, several as a table.
local function print_text(results, is_first)
  if not is_first then print() end
  print(#results == 1 and results[1] or results)
  if cost then print(("  driver time: %.3g us a call, %s"):format(cost * 1e6, cost_source)) end
end

local failed, objects = 0, {}
for i, path in ipairs(files) do
  local results = replay_file(path)
  for _, result in ipairs(results) do
    failed = failed + result.failed
    objects[#objects + 1] = json.table(result)
  end
  if not options.json then print_text(results, i == 1) end
  if options.plot then need(results.plot, results, options.plot) end
end
if options.json then print("[" .. table.concat(objects, ",\n ") .. "]") end
if failed > 0 then
  stop(EXIT_FAILED, ("%d allocations failed"):format(failed))
end
