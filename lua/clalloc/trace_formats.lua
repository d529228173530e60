-- Formats of traces: each turns the rows of a file into events of a ledger.
--
-- Faults of a file are raised as the string `FILE:LINE: reason`, for the first row that is not as it should be.

local ledger = require "clalloc.trace_ledger"

local find, match = string.find, string.match
local allocate, free, request_free = ledger.allocate, ledger.free, ledger.request_free
local stream_number = ledger.stream_number

local MAX_SIZE = 1 << 53 -- larger numbers do not survive tools that store them as doubles
local ADDRESS_DIGITS = 16 -- hexadecimal digits of a 64-bit address

local formats = { MAX_SIZE = MAX_SIZE }

-- Reading rows. A layout has a pattern that matches a whole correct row and captures what the format needs, and the
-- list of its columns. The pattern makes reading fast; the columns are only looked at to say what is wrong.

local function fail(file, reason)
  error(("%s:%d: %s"):format(file.path, file.line, reason), 0)
end

local function excerpt(text)
  local short = #text > 60 and text:sub(1, 57) .. "..." or text
  return "'" .. short:gsub("[^\32-\126]", "?") .. "'"
end

local function over_limit(name, text)
  return ("%s %s is over 2^53"):format(name, text)
end

local function check_whole(name, value)
  if find(value, "^%d+$") then
    return tonumber(value) > MAX_SIZE and over_limit(name, value) or nil
  elseif not tonumber(value) then
    return ("%s is not a number: %s"):format(name, excerpt(value))
  elseif find(value, "^%-") then
    return ("%s is negative: %s"):format(name, value)
  end
  return ("%s is not a whole decimal number: %s"):format(name, excerpt(value))
end

local function check_address(name, value)
  local digits = match(value, "^0?[xX]?(%x+)$")
  if value ~= "(nil)" and not (digits and #digits <= ADDRESS_DIGITS) then
    return ("%s is not a hexadecimal address: %s"):format(name, excerpt(value))
  end
end

local function check_word(name, value)
  if find(value, "[^%w_ ]") then
    return ("unknown %s %s"):format(name, excerpt(value))
  end
end

local function check_text()
  return nil
end

local function check_stream(name, value)
  if not find(value, "^%w+$") and value ~= "(nil)" then
    return ("%s is not a stream: %s"):format(name, excerpt(value))
  end
end

local function column_names(columns)
  local names = {}
  for i, column in ipairs(columns) do
    names[i] = column[1]
  end
  return table.concat(names, ",")
end

local function split(row, separator)
  local fields = {}
  for field in row:gmatch(separator == "," and "([^,]*)" or "[^ \t]+") do
    fields[#fields + 1] = field
  end
  return fields
end

-- The reason why the row at the file's position does not match its layout.
local function diagnose(file, layout)
  local row = match(file.text, "^[^\r\n]*", file.pos)
  local columns, fields = layout.columns, split(row, layout.separator or ",")
  if #fields ~= #columns then
    local is_cut = file.unterminated and #fields < #columns and file.pos + #row >= #file.text
    return ("%sexpected %d columns (%s), found %d"):format(is_cut and "the last row is cut short: " or "",
      #columns, column_names(columns), row == "" and 0 or #fields)
  end
  for i, column in ipairs(columns) do
    local name, check = column[1], column[2]
    if fields[i] == "" and not column.optional then
      return name .. " is missing"
    end
    local reason = check(name, fields[i])
    if reason then
      return reason
    end
  end
  return "malformed row " .. excerpt(row)
end

-- Calls handle with the captures of each row; a string that it returns is the reason to stop.
local function each_row(file, layout, handle)
  local text, pattern, length = file.text, layout.row, #file.text
  while file.pos <= length do
    local from, to, a, b, c, d = find(text, pattern, file.pos)
    if not from then
      fail(file, diagnose(file, layout))
    end
    local reason = handle(a, b, c, d)
    if reason then
      fail(file, reason)
    end
    file.pos, file.line = to + 1, file.line + 1
  end
end

local function skip_header(file)
  file.pos, file.line = find(file.text, "\n", file.pos, true) + 1, file.line + 1
end

local function first_line(file)
  return match(file.text, "^[^\r\n]*", file.pos)
end

-- A file without a last newline gets one; a leading byte order mark is skipped.
function formats.open(path)
  local handle, message = io.open(path, "rb")
  if not handle then
    error(message, 0)
  end
  local text, read_error = handle:read("a")
  handle:close()
  if not text then
    error(("%s: %s"):format(path, read_error), 0)
  end
  local file = { path = path, text = text, pos = 1, line = 1, unterminated = text:sub(-1) ~= "\n" }
  if text:sub(1, 3) == "\xEF\xBB\xBF" then
    file.pos = 4
  end
  if not find(text, "%S", file.pos) then
    fail(file, "the file is empty")
  end
  if file.unterminated then
    file.text = text .. "\n"
  end
  return file
end

local function not_live(address)
  return ("free of 0x%x, which is not live"):format(address)
end

local function already_live(address)
  return ("allocation at 0x%x, which is live already"):format(address)
end

-- PyTorch snapshot as CSV: seq,action,addr,size,stream,time_us.

local SNAPSHOT = {
  header = "seq,action,addr,size,stream,time_us",
  row = "^%d+,([%w_]+),0?[xX]?(%x+),(%d+),(%w+),%d+\r?\n",
  columns = {
    { "seq", check_whole }, { "action", check_word }, { "addr", check_address }, { "size", check_whole },
    { "stream", check_stream }, { "time_us", check_whole },
  },
}

-- What the recording allocator asked of its driver: another policy asks something else.
local SNAPSHOT_IGNORED = {
  segment_alloc = true, segment_free = true, segment_map = true, segment_unmap = true, snapshot = true,
}

local function snapshot_free_requested(events, address)
  if request_free(events, address) then
    return nil
  end
  return events.live[address] and ("the free of 0x%x was requested before"):format(address) or not_live(address)
end

local function read_snapshot(file, events)
  skip_header(file)
  each_row(file, SNAPSHOT, function(action, digits, size, stream)
    local address, nbytes = tonumber(digits, 16), tonumber(size)
    if nbytes > MAX_SIZE then
      return over_limit("size", size)
    elseif #digits > ADDRESS_DIGITS then
      return check_address("addr", digits)
    elseif action == "alloc" then
      return not allocate(events, address, nbytes, stream_number(events, stream)) and already_live(address) or nil
    elseif action == "free_completed" then
      return not free(events, address) and not_live(address) or nil
    elseif action == "free_requested" then
      return snapshot_free_requested(events, address)
    elseif action == "oom" then
      events.failures = events.failures + 1
    elseif not SNAPSHOT_IGNORED[action] then
      return "unknown action " .. excerpt(action)
    end
  end)
end

-- What existed when a snapshot recording began: kind,addr,size.

local INITIAL = {
  header = "kind,addr,size",
  row = "^([%w_]+),0?[xX]?(%x+),(%d+)\r?\n",
  columns = { { "kind", check_word }, { "addr", check_address }, { "size", check_whole } },
}

function formats.read_initial(file, events)
  if first_line(file) ~= INITIAL.header then
    fail(file, ("unknown header %s, expected %s"):format(excerpt(first_line(file)), INITIAL.header))
  end
  skip_header(file)
  each_row(file, INITIAL, function(kind, digits, size)
    local address, nbytes = tonumber(digits, 16), tonumber(size)
    if nbytes > MAX_SIZE then
      return over_limit("size", size)
    elseif #digits > ADDRESS_DIGITS then
      return check_address("addr", digits)
    elseif kind == "live" then
      return not allocate(events, address, nbytes, 0) and already_live(address) or nil
    elseif kind ~= "segment" then
      return "unknown kind " .. excerpt(kind)
    end
  end)
  events.initial = #events.bytes
end

-- RMM log: Thread,Time,Action,Pointer,Size,Stream. A block may be freed by another thread than the one that made it,
-- so pairs are made by address alone, in file order (rapidsai/rmm#431).

local RMM = {
  header = "Thread,Time,Action,Pointer,Size,Stream",
  row = "^[^,\r\n]+,[^,\r\n]+,([%w_ ]+),([%w()]+),(%d+),([%w()]+)\r?\n",
  columns = {
    { "Thread", check_text }, { "Time", check_text }, { "Action", check_word }, { "Pointer", check_address },
    { "Size", check_whole }, { "Stream", check_stream },
  },
}

-- Nothing allocated has no address: such a row asks nothing of an allocator.
local function rmm_null(action, nbytes)
  return action == "allocate" and nbytes > 0 and "allocation without an address" or nil
end

local function read_rmm(file, events)
  skip_header(file)
  each_row(file, RMM, function(action, pointer, size, stream)
    local digits = match(pointer, "^0?[xX]?(%x+)$")
    local address, nbytes = digits and tonumber(digits, 16) or 0, tonumber(size)
    if nbytes > MAX_SIZE then
      return over_limit("Size", size)
    elseif not digits and pointer ~= "(nil)" or digits and #digits > ADDRESS_DIGITS then
      return check_address("Pointer", pointer)
    elseif action == "allocate failure" then
      events.failures = events.failures + 1
    elseif action ~= "allocate" and action ~= "free" then
      return "unknown Action " .. excerpt(action)
    elseif address == 0 then
      return rmm_null(action, nbytes)
    elseif action == "allocate" then
      return not allocate(events, address, nbytes, stream_number(events, stream)) and already_live(address) or nil
    else
      return not free(events, address) and not_live(address) or nil
    end
  end)
end

-- Lifetimes: a block is live in [lower, upper). One block a row; rows in any order.

-- Appends the events in order of time. At the same time frees come before allocations, each in row order.
-- A counting sort by the rank of the time: stable, and only the distinct times are compared.
local function append_lifetimes(events, lower, upper, bytes)
  local rank, times = {}, {}
  for _, list in ipairs { lower, upper } do
    for i = 1, #list do
      local time = list[i]
      if not rank[time] then
        rank[time] = 0
        times[#times + 1] = time
      end
    end
  end
  table.sort(times)
  local next_at = {} -- 2r: frees at the r-th time; 2r + 1: allocations then
  for r = 1, #times do
    rank[times[r]] = 2 * r
    next_at[2 * r], next_at[2 * r + 1] = 0, 0
  end
  for i = 1, #bytes do
    local dies, born = rank[upper[i]], rank[lower[i]] + 1
    next_at[dies], next_at[born] = next_at[dies] + 1, next_at[born] + 1
  end
  local position = 1
  for key = 2, 2 * #times + 1 do
    next_at[key], position = position, position + next_at[key]
  end
  local order = {} -- row: born; its negation: dies
  for i = 1, position - 1 do
    order[i] = 0
  end
  for i = 1, #bytes do
    local dies, born = rank[upper[i]], rank[lower[i]] + 1
    order[next_at[dies]], next_at[dies] = -i, next_at[dies] + 1
    order[next_at[born]], next_at[born] = i, next_at[born] + 1
  end
  local block_of = {}
  for i = 1, #order do
    local row = order[i]
    if row > 0 then
      block_of[row] = ledger.append_block(events, bytes[row], 0)
    else
      ledger.append_free(events, block_of[-row])
    end
  end
end

-- A block that dies when it is born is never live, and left out.
local function read_lifetimes(file, events, layout)
  local lower, upper, bytes = {}, {}, {}
  local names = layout.names
  each_row(file, layout, function(from, to, size)
    local first, last, nbytes = tonumber(from), tonumber(to), tonumber(size)
    if first > MAX_SIZE or last > MAX_SIZE or nbytes > MAX_SIZE then
      return check_whole(names[1], from) or check_whole(names[2], to) or check_whole(names[3], size)
    elseif last < first then
      return ("%s %s is before %s %s"):format(names[2], to, names[1], from)
    elseif last > first then
      local n = #bytes + 1
      lower[n], upper[n], bytes[n] = first, last, nbytes
    end
  end)
  append_lifetimes(events, lower, upper, bytes)
end

local LIFETIME_HEADER = "id,lower,upper,size"

local function lifetime_layout(header)
  local columns = {
    { "id", check_text }, { "lower", check_whole }, { "upper", check_whole }, { "size", check_whole },
  }
  local extra = header:sub(#LIFETIME_HEADER + 1)
  for name in extra:gmatch(",([^,]*)") do
    columns[#columns + 1] = { name, check_text, optional = true }
  end
  return {
    names = { "lower", "upper", "size" },
    row = "^[^,\r\n]+,(%d+),(%d+),(%d+)" .. (",[^,\r\n]*"):rep(#columns - 4) .. "\r?\n",
    columns = columns,
  }
end

local function read_lifetime_csv(file, events)
  local layout = lifetime_layout(first_line(file))
  skip_header(file)
  read_lifetimes(file, events, layout)
end

local LIFETIME_LOG = {
  separator = " ",
  names = { "start_op", "end_op", "bytes" },
  row = "^(%d+)[ \t]+(%d+)[ \t]+(%d+)[ \t]*\r?\n",
  columns = { { "start_op", check_whole }, { "end_op", check_whole }, { "bytes", check_whole } },
}

local function read_lifetime_log(file, events)
  read_lifetimes(file, events, LIFETIME_LOG)
end

-- Formats, told apart by the first line.

formats.SNAPSHOT_HEADER, formats.INITIAL_HEADER = SNAPSHOT.header, INITIAL.header

local function has_header(header)
  return function(line)
    return line == header
  end
end

local FORMATS = {
  {
    name = "pytorch_snapshot", shape = SNAPSHOT.header, read = read_snapshot, matches = has_header(SNAPSHOT.header),
    has_initial = true, -- NAME.initial.csv comes along
  },
  { name = "rmm", shape = RMM.header, read = read_rmm, matches = has_header(RMM.header) },
  {
    name = "lifetimes", shape = LIFETIME_HEADER .. "[,...]", read = read_lifetime_csv,
    matches = function(line)
      return find(line .. ",", LIFETIME_HEADER .. ",", 1, true) == 1
    end,
  },
  {
    name = "lifetime_log", shape = "rows of 'start_op end_op bytes'", read = read_lifetime_log,
    matches = function(line)
      return find(line, "^%-?[%d.]+[ \t]+%-?[%d.]+[ \t]") ~= nil
    end,
  },
}

-- The format of an open file: its name, and read(file, events).
function formats.recognise(file)
  local line, shapes = first_line(file), {}
  if line == INITIAL.header then
    fail(file, "this lists what was live before a recording: load the recording, NAME.csv, instead")
  end
  for i, format in ipairs(FORMATS) do
    if format.matches(line) then
      return format
    end
    shapes[i] = format.shape
  end
  fail(file, ("unknown header %s; known are %s"):format(excerpt(line), table.concat(shapes, "; ")))
end

return formats
