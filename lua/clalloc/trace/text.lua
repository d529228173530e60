-- Rows of text files: reading them fast, and saying what is wrong with the first one that is not as it should be.
--
-- A layout has a pattern that matches a whole correct row and captures what the format needs, and the list of its
-- columns. The columns are only looked at to say what is wrong. Faults are raised as the string `FILE:LINE: reason`.

local recording = require "clalloc.trace.recording"

local find, match = string.find, string.match

local MAX_SIZE = recording.MAX_SIZE
local ADDRESS_DIGITS = 16 -- hexadecimal digits of a 64-bit address

local text = {}

--- A file to read from: its whole content, and a position. A missing last newline is added, a byte order mark skipped.
function text.file(path, content)
  local file = { path = path, text = content, pos = 1, line = 1, unterminated = content:sub(-1) ~= "\n" }
  function file.line_of(k) -- of event k, where each row from first_event on is one
    return file.first_event + k - 1
  end
  if content:sub(1, 3) == "\xEF\xBB\xBF" then
    file.pos = 4
  end
  if not find(content, "%S", file.pos) then
    text.fail(file, "the file is empty")
  end
  if file.unterminated then
    file.text = content .. "\n"
  end
  return file
end

--- Raises FILE:LINE: reason, for the row at the file's position or the given line.
function text.fail(file, reason, line)
  error(("%s:%d: %s"):format(file.path, line or file.line, reason), 0)
end

--- A text as it can be shown in a message.
function text.excerpt(value)
  local short = #value > 60 and value:sub(1, 57) .. "..." or value
  return "'" .. short:gsub("[^\32-\126]", "?") .. "'"
end

local excerpt = text.excerpt

-- Checks of one value: nil, or what is wrong with it.

local function over_limit(name, value)
  return ("%s %s is over 2^53"):format(name, value)
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

-- A count of bytes that came or went.
local function check_delta(name, value)
  local digits = match(value, "^%-(%d+)$")
  return check_whole(name, digits or value)
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

local function check_any()
  return nil
end

local function check_stream(name, value)
  if not text.stream(value) then
    return ("%s is not a stream: %s"):format(name, excerpt(value))
  end
end

text.check = {
  whole = check_whole, delta = check_delta, address = check_address, word = check_word, any = check_any,
  stream = check_stream,
}

--- The number that a stream is written as, up to 2^53: decimal, or hexadecimal after 0x; nil for anything else.
function text.stream(value)
  if value == "(nil)" then
    return 0
  end
  local digits = match(value, "^0[xX](%x+)$")
  local number = digits and #digits <= ADDRESS_DIGITS and tonumber(digits, 16)
    or not digits and find(value, "^%d+$") and tonumber(value)
  return number and number >= 0 and number <= MAX_SIZE and number or nil
end

--- The address that a match of %x+ stands for, or nil and the reason.
function text.address(name, digits)
  if #digits > ADDRESS_DIGITS then
    return nil, check_address(name, digits)
  end
  return tonumber(digits, 16)
end

--- The count that a match of %d+ stands for, or nil and the reason.
function text.whole(name, digits)
  local value = tonumber(digits)
  if value > MAX_SIZE then
    return nil, over_limit(name, digits)
  end
  return value
end

-- Reading rows.

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

--- Calls handle with the captures of each row; a string that it returns is the reason to stop.
function text.each_row(file, layout, handle)
  local content, pattern, length = file.text, layout.row, #file.text
  while file.pos <= length do
    local from, to, a, b, c, d, e, f, g, h = find(content, pattern, file.pos)
    if not from then
      text.fail(file, diagnose(file, layout))
    end
    local reason = handle(a, b, c, d, e, f, g, h)
    if reason then
      text.fail(file, reason)
    end
    file.pos, file.line = to + 1, file.line + 1
  end
end

--- Goes on to the second row.
function text.skip_header(file)
  file.pos, file.line = find(file.text, "\n", file.pos, true) + 1, file.line + 1
end

--- The row at the position, without its end.
function text.first_line(file)
  return match(file.text, "^[^\r\n]*", file.pos)
end

return text
