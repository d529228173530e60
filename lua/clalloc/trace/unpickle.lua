-- Python pickles, protocols 2 to 4, as far as they hold plain values. Nothing is executed: opcodes that name a class or
-- a function, call one or build an object of one are refused by name.
--
-- Values: strings, integers of 64 bits, floats and booleans as in Lua; `unpickle.NONE`; containers, told apart by
-- `unpickle.kind`: a list or tuple holds its elements from index 1; a dict holds at index 1 the byte offset at which it
-- begins, then key, value, key, value, ... in order, a repeated key at the end.
--
-- The work and the memory are bounded by the length of the input: containers are limited to a share of it, nothing is
-- copied by reference, and a value that holds itself is refused where it is looked at, by `check_plain`.

local unpickle = {}

local byte, unpack_string, sub = string.byte, string.unpack, string.sub
local move = table.move

local MAX_MARKS = 256 -- unfinished containers inside each other
local MAX_DEPTH = 64 -- containers inside each other in a plain value
-- No snapshot has a container in so few bytes; a file of nothing but empty lists would take 70 times its length.
local BYTES_PER_CONTAINER, FREE_CONTAINERS = 8, 4096

local List, Tuple, Dict = {}, {}, {}
local KINDS = { [List] = "list", [Tuple] = "tuple", [Dict] = "dict" }

unpickle.NONE = setmetatable({}, { __name = "None", __tostring = function() return "None" end })

--- "list", "tuple", "dict", "None", or the type of a plain value; integers are "int", other numbers "float".
function unpickle.kind(value)
  if type(value) == "table" then
    return KINDS[getmetatable(value)] or "None"
  elseif type(value) == "number" then
    return math.type(value) == "integer" and "int" or "float"
  end
  return type(value)
end

-- The machine: a stack, marks in it, and a memo.

local function fail(p, reason, at)
  error({ offset = at or p.at, reason = reason }, 0)
end

-- The position of n bytes of an argument, which are passed over.
local function take(p, n)
  local pos = p.pos
  if pos + n - 1 > p.length then
    fail(p, ("the file is cut short: %s needs %d bytes, %d are left"):format(p.opcode, n, p.length - pos + 1))
  end
  p.pos = pos + n
  return pos
end

local function push(p, value)
  local top = p.top + 1
  p.stack[top], p.top = value, top
end

local function container(p, value, metatable)
  p.containers = p.containers - 1
  if p.containers < 0 then
    fail(p, "too many containers for a file of this length")
  end
  return setmetatable(value, metatable)
end

-- The topmost n values, which lie above the last mark; the index below them.
local function need(p, n)
  local base = p.top - n
  if base < (p.marks[#p.marks] or 0) then
    fail(p, ("%s finds no value on the stack"):format(p.opcode))
  end
  return base
end

local function pop_mark(p)
  local n = #p.marks
  local mark = p.marks[n]
  if not mark then
    fail(p, ("%s finds no mark on the stack"):format(p.opcode))
  end
  p.marks[n] = nil
  return mark
end

-- The container under the values that go into it.
local function target(p, index, metatable)
  local value = p.stack[index]
  if index <= (p.marks[#p.marks] or 0) or getmetatable(value) ~= metatable then
    fail(p, ("%s finds no %s under the values"):format(p.opcode, KINDS[metatable]))
  end
  return value
end

local KEY_KINDS = { string = true, int = true, float = true, boolean = true }

local function check_keys(p, first, last)
  local stack = p.stack
  if (last - first + 1) % 2 ~= 0 then
    fail(p, "a key without a value")
  end
  for i = first, last, 2 do
    if type(stack[i]) ~= "string" and not KEY_KINDS[unpickle.kind(stack[i])] then
      fail(p, ("a %s as the key of a dict"):format(unpickle.kind(stack[i])))
    end
  end
end

local function add_items(p, dict, first)
  check_keys(p, first, p.top)
  move(p.stack, first, p.top, #dict + 1, dict)
end

local function remember(p, index)
  need(p, 1)
  if p.memo[index] == nil then
    p.remembered = p.remembered + 1
  end
  p.memo[index] = p.stack[p.top]
end

local function recall(p, index)
  local value = p.memo[index]
  if value == nil then
    fail(p, ("%s asks for memo %d, which was never stored"):format(p.opcode, index))
  end
  push(p, value)
end

local function read_string(p, nbytes)
  local pos = take(p, nbytes)
  local value = sub(p.text, pos, pos + nbytes - 1)
  if not utf8.len(value, 1, -1, true) then
    fail(p, "a string that is not UTF-8")
  end
  push(p, value)
end

local function new_tuple(p, base)
  local tuple = container(p, move(p.stack, base + 1, p.top, 1, {}), Tuple)
  p.top = base
  push(p, tuple)
end

-- Opcodes: name, byte, what to do.
local OPCODES = {}

local function opcode(code, name, run)
  OPCODES[byte(code)] = { name = name, run = run }
end

opcode("\x80", "PROTO", function(p)
  local protocol = byte(p.text, take(p, 1))
  if protocol < 2 or protocol > 4 then
    fail(p, ("protocol %d; 2 to 4 are read"):format(protocol))
  end
end)
opcode("\x95", "FRAME", function(p)
  local nbytes = unpack_string("<i8", p.text, take(p, 8))
  if nbytes < 0 or nbytes > p.length - p.pos + 1 then
    fail(p, ("the file is cut short: a frame of %u bytes, %d are left"):format(nbytes, p.length - p.pos + 1))
  end
end)
opcode("(", "MARK", function(p)
  local n = #p.marks + 1
  if n > MAX_MARKS then
    fail(p, ("more than %d unfinished containers inside each other"):format(MAX_MARKS))
  end
  p.marks[n] = p.top
end)

opcode("N", "NONE", function(p) push(p, unpickle.NONE) end)
opcode("\x88", "NEWTRUE", function(p) push(p, true) end)
opcode("\x89", "NEWFALSE", function(p) push(p, false) end)
opcode("K", "BININT1", function(p) push(p, byte(p.text, take(p, 1))) end)
opcode("M", "BININT2", function(p) push(p, (unpack_string("<I2", p.text, take(p, 2)))) end)
opcode("J", "BININT", function(p) push(p, (unpack_string("<i4", p.text, take(p, 4)))) end)
opcode("G", "BINFLOAT", function(p) push(p, (unpack_string(">d", p.text, take(p, 8)))) end)
opcode("\x8a", "LONG1", function(p)
  local nbytes = byte(p.text, take(p, 1))
  if nbytes > 8 then
    fail(p, ("an integer of %d bytes; those of 64 bits are read"):format(nbytes))
  end
  local pos = take(p, nbytes)
  push(p, nbytes == 0 and 0 or (unpack_string("<i" .. nbytes, p.text, pos)))
end)
opcode("\x8c", "SHORT_BINUNICODE", function(p) read_string(p, byte(p.text, take(p, 1))) end)
opcode("X", "BINUNICODE", function(p) read_string(p, (unpack_string("<I4", p.text, take(p, 4)))) end)

opcode("]", "EMPTY_LIST", function(p) push(p, container(p, {}, List)) end)
opcode(")", "EMPTY_TUPLE", function(p) push(p, container(p, {}, Tuple)) end)
opcode("}", "EMPTY_DICT", function(p) push(p, container(p, { p.at }, Dict)) end)
opcode("l", "LIST", function(p)
  local mark = pop_mark(p)
  local list = container(p, move(p.stack, mark + 1, p.top, 1, {}), List)
  p.top = mark
  push(p, list)
end)
opcode("d", "DICT", function(p)
  local mark = pop_mark(p)
  local dict = container(p, { p.at }, Dict)
  add_items(p, dict, mark + 1)
  p.top = mark
  push(p, dict)
end)
opcode("t", "TUPLE", function(p) new_tuple(p, pop_mark(p)) end)
opcode("\x85", "TUPLE1", function(p) new_tuple(p, need(p, 1)) end)
opcode("\x86", "TUPLE2", function(p) new_tuple(p, need(p, 2)) end)
opcode("\x87", "TUPLE3", function(p) new_tuple(p, need(p, 3)) end)

opcode("a", "APPEND", function(p)
  local base = need(p, 1)
  local list = target(p, base, List)
  list[#list + 1] = p.stack[p.top]
  p.top = base
end)
opcode("e", "APPENDS", function(p)
  local mark = pop_mark(p)
  local list = target(p, mark, List)
  move(p.stack, mark + 1, p.top, #list + 1, list)
  p.top = mark
end)
opcode("s", "SETITEM", function(p)
  local base = need(p, 2)
  add_items(p, target(p, base, Dict), base + 1)
  p.top = base
end)
opcode("u", "SETITEMS", function(p)
  local mark = pop_mark(p)
  add_items(p, target(p, mark, Dict), mark + 1)
  p.top = mark
end)

opcode("\x94", "MEMOIZE", function(p) remember(p, p.remembered) end)
opcode("q", "BINPUT", function(p) remember(p, byte(p.text, take(p, 1))) end)
opcode("r", "LONG_BINPUT", function(p) remember(p, (unpack_string("<I4", p.text, take(p, 4)))) end)
opcode("h", "BINGET", function(p) recall(p, byte(p.text, take(p, 1))) end)
opcode("j", "LONG_BINGET", function(p) recall(p, (unpack_string("<I4", p.text, take(p, 4)))) end)

-- What is refused, by the name that Python's pickletools gives it.
local REFUSED = {
  ["c"] = "GLOBAL", ["\x93"] = "STACK_GLOBAL", ["i"] = "INST", ["o"] = "OBJ", ["R"] = "REDUCE", ["b"] = "BUILD",
  ["\x81"] = "NEWOBJ", ["\x92"] = "NEWOBJ_EX", ["P"] = "PERSID", ["Q"] = "BINPERSID", ["\x82"] = "EXT1",
  ["\x83"] = "EXT2", ["\x84"] = "EXT4", ["0"] = "POP", ["1"] = "POP_MARK", ["2"] = "DUP", ["I"] = "INT", ["L"] = "LONG",
  ["\x8b"] = "LONG4", ["F"] = "FLOAT", ["S"] = "STRING", ["T"] = "BINSTRING", ["U"] = "SHORT_BINSTRING",
  ["V"] = "UNICODE", ["\x8d"] = "BINUNICODE8", ["B"] = "BINBYTES", ["C"] = "SHORT_BINBYTES", ["\x8e"] = "BINBYTES8",
  ["\x96"] = "BYTEARRAY8", ["\x97"] = "NEXT_BUFFER", ["\x98"] = "READONLY_BUFFER", ["g"] = "GET", ["p"] = "PUT",
  ["\x8f"] = "EMPTY_SET", ["\x90"] = "ADDITEMS", ["\x91"] = "FROZENSET",
}

-- The class or function that an opcode names, if it does.
local function named(p, name)
  local stack, top = p.stack, p.top
  if name == "GLOBAL" or name == "INST" then
    local module, attribute = p.text:match("^([^\n]*)\n([^\n]*)\n", p.pos)
    return module and module .. "." .. attribute
  elseif name == "STACK_GLOBAL" and top >= 2 and type(stack[top]) == "string" and type(stack[top - 1]) == "string" then
    return stack[top - 1] .. "." .. stack[top]
  end
end

local function refuse(p, code)
  local name = REFUSED[string.char(code)]
  if not name then
    fail(p, ("unknown opcode 0x%02x"):format(code))
  end
  local object = named(p, name)
  fail(p, ("%s%s is refused: only containers and plain values are read"):format(name,
    object and " " .. object:sub(1, 100):gsub("[^\32-\126]", "?") or ""))
end

local STOP = byte "."

local function run(p)
  local text, length = p.text, p.length
  while true do
    local pos = p.pos
    local code = byte(text, pos)
    if not code then
      fail(p, "the file is cut short: there is no STOP", length)
    end
    p.at, p.pos = pos - 1, pos + 1
    local op = OPCODES[code]
    if op then
      p.opcode = op.name
      op.run(p)
    elseif code == STOP then
      return
    else
      refuse(p, code)
    end
  end
end

--- The value that a pickle holds.
-- Raises { offset, reason }: bytes count from 0.
function unpickle.load(content)
  local p = {
    text = content, length = #content, pos = 1, at = 0, opcode = "",
    stack = {}, top = 0, marks = {}, memo = {}, remembered = 0,
    containers = FREE_CONTAINERS + #content // BYTES_PER_CONTAINER,
  }
  run(p)
  if p.top ~= 1 or #p.marks > 0 then
    fail(p, ("STOP with %d values on the stack"):format(p.top))
  elseif p.pos <= p.length then
    fail(p, ("%d bytes follow the end of the pickle"):format(p.length - p.pos + 1), p.pos - 1)
  end
  return p.stack[1]
end

-- Values that are kept as they are.

-- How many containers deep a value is, or nil and the reason why it cannot be kept.
local function height_of(value, heights, depth)
  if type(value) ~= "table" or value == unpickle.NONE then
    return 0
  elseif heights[value] == false then
    return nil, "a container that holds itself"
  end
  local height = heights[value]
  if not height and depth <= MAX_DEPTH then
    heights[value], height = false, 1
    for i = 1, #value do
      local below, reason = height_of(value[i], heights, depth + 1)
      if not below then
        return nil, reason
      end
      height = below >= height and below + 1 or height
    end
    heights[value] = height
  end
  if not height or depth + height - 1 > MAX_DEPTH then
    return nil, ("containers more than %d deep"):format(MAX_DEPTH)
  end
  return height
end

--- Why a value cannot be kept as it is, or nil: it holds itself, or is too deep. `heights` is a table that remembers
-- over many calls what was looked at, so that what is shared is looked at once.
function unpickle.check_plain(value, heights)
  local _, reason = height_of(value, heights, 1)
  return reason
end

return unpickle
