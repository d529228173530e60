-- Replays recorded allocation traces through the pool and prints what each would have cost.
--
--   lua5.4 examples/replay.lua snapshot.csv --simulate 80
--   lua5.4 examples/replay.lua snapshot.csv --scale 64 --policy direct
--
-- You will see, for every file: operations, driver calls, peak live bytes, peak reserved bytes and their ratio (1.0
-- would waste nothing), seconds, and nanoseconds per operation. Compare `--policy direct`, where every allocation
-- goes to the driver. A row that is not as it should be stops the run with file, line and reason.

local USAGE = "usage: replay.lua FILE... [--policy NAME] [--scale N] [--simulate GiB] [--device SEL]"

local HELP = USAGE .. [[


Files are PyTorch snapshot CSVs (NAME.initial.csv is loaded along), RMM logs, lifetime CSVs (id,lower,upper,size)
and logs of 'start_op end_op bytes'.

  --policy NAME    caching (default): the pool keeps and cuts what it got from the driver
                   direct: every allocation is a driver call
  --scale N        divide every size by N, rounding up
  --simulate GiB   a simulated device of that capacity, which has no memory and needs no hardware
  --device SEL     a device by index, type (cpu, gpu) or part of its name; memory is really touched
  --help           this text]]

local POLICIES = { "caching", "direct" }
local EXIT_FAILED, EXIT_USAGE = 1, 2

local function stop(code, ...)
  io.stderr:write("replay.lua: ", ...)
  io.stderr:write("\n")
  os.exit(code, true)
end

local function stop_usage(...)
  io.stderr:write("replay.lua: ", ...)
  io.stderr:write("\n", USAGE, "\n")
  os.exit(EXIT_USAGE, true)
end

-- Options: each turns its text into a value, or gives nil and what it wants.

local parse = {}

function parse.policy(text)
  for _, name in ipairs(POLICIES) do
    if text == name then
      return name
    end
  end
  return nil, ("unknown policy '%s'; there are: %s"):format(text, table.concat(POLICIES, ", "))
end

function parse.scale(text)
  local n = math.tointeger(tonumber(text))
  if n and n >= 1 then
    return n
  end
  return nil, ("--scale wants a whole number of at least 1, got '%s'"):format(text)
end

function parse.simulate(text)
  local gib = tonumber(text)
  if gib and gib > 0 and gib <= 1 << 20 then
    return gib
  end
  return nil, ("--simulate wants a number of GiB above 0, got '%s'"):format(text)
end

function parse.device(text)
  return text
end

local function parse_arguments(args)
  local files, options, i = {}, { policy = POLICIES[1], scale = 1 }, 1
  while i <= #args do
    local name, text = args[i]:match("^%-%-([^=]+)=?(.*)$")
    if args[i] == "-h" or name == "help" then
      print(HELP)
      os.exit(true, true)
    elseif not name and args[i]:find("^%-") then
      stop_usage("unknown option ", args[i])
    elseif not name then
      files[#files + 1] = args[i]
    elseif not parse[name] then
      stop_usage("unknown option --", name)
    else
      if not args[i]:find("=", 1, true) then
        i = i + 1
        text = args[i] or stop_usage("--", name, " wants a value")
      end
      local value, reason = parse[name](text)
      options[name] = value or stop_usage(reason)
    end
    i = i + 1
  end
  return files, options
end

local files, options = parse_arguments(arg)
if #files == 0 then
  stop_usage("no FILE: give it one or more recorded traces")
elseif options.simulate and options.device then
  stop_usage("--simulate and --device exclude each other")
end

local cl = require "clalloc"

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

local function check_fits(t, device)
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
  if not os.execute("test -t 1") then
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

local function replay_file(path, device)
  local t = need(cl.trace.load, path)
  if options.scale > 1 then
    t = t:scaled(options.scale)
  end
  check_fits(t, device)
  local result = need(cl.replay, t, {
    device = device, policy = cl.policy[options.policy](), progress = progress_bar(),
  })
  print(result)
  return result
end

local device = open_device()
local failed = 0
for i, path in ipairs(files) do
  if i > 1 then
    print()
  end
  failed = failed + replay_file(path, device).failed
end
if failed > 0 then
  stop(EXIT_FAILED, ("%d allocations failed"):format(failed))
end
