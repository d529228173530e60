--- The interface as clalloc/meta.lua states it, read into tables: for `cl.help`, the reference and the specs.
--
-- Reads the annotations that meta.lua uses, no more: `@class`, `@field`, `@alias`, `@param`, `@return`. A class is
--
-- * `name` ("pool"), `parent`, `lines` of its description, `fields`, `functions`;
-- * `variable`: "pool" of an object, "cl.policy" of a table of the module, "cl" of the module, nil of a record, which
--   is a plain table with such fields.
--
-- A field is `name`, `type`, `text`, `is_optional`. A function is `name`, `sep` ("." or ":"), `lines`, `params` and
-- `returns` (both as fields), `class`.
--
-- @module clalloc.interface

local interface = {}

local OPENING, CLOSING = "[%(%[{<]", "[%)%]}>]"

-- A type ends at the first blank outside brackets that no colon, comma or bar comes before.
local function take_type(text)
  local depth, is_quoted = 0, false
  for i = 1, #text do
    local c = text:sub(i, i)
    if c == '"' then
      is_quoted = not is_quoted
    elseif not is_quoted and c:find(OPENING) then
      depth = depth + 1
    elseif not is_quoted and c:find(CLOSING) then
      depth = depth - 1
    elseif c == " " and depth == 0 and not is_quoted and not text:sub(1, i - 1):find "[:,|]$" then
      return text:sub(1, i - 1), text:sub(i + 1)
    end
  end
  return text, ""
end

--- "clalloc.buffer?" -> "buffer?".
function interface.short(type_name)
  return (type_name:gsub("clalloc%.", ""))
end

local function named(text)
  local name, rest = text:match "^(%S+)%s*(.*)$"
  local type_name, description = take_type(rest)
  return {
    name = (name:gsub("%?$", "")), is_optional = name:find "%?$" ~= nil, type = interface.short(type_name),
    text = description,
  }
end

local function returned(text)
  local type_name, rest = take_type(text)
  local name, description = rest:match "^(%S+)%s*(.*)$"
  return { name = name, type = interface.short(type_name), text = description or "" }
end

-- "self, a: integer, b?: number" -> two fields.
local function parameters(text)
  local params = {}
  for part in text:gmatch "[^,]+" do
    local name, mark, type_name = part:match "^%s*([%w_]+)(%??):%s*(.-)%s*$"
    if name then params[#params + 1] = { name = name, is_optional = mark == "?", type = type_name, text = "" } end
  end
  return params
end

-- A field of type fun(self, ...) is a method.
local function as_method(field, class)
  local params, result = field.type:match "^fun%(self,?%s*(.-)%):%s*(.*)$"
  if not params then return nil end
  return {
    name = field.name, sep = ":", class = class, lines = { field.text }, params = parameters(params),
    returns = { { type = result, text = "" } },
  }
end

local function new_class(text, lines)
  local name, parent = text:match "^([%w_.]+):?%s*([%w_.]*)$"
  return {
    name = interface.short(name), parent = parent ~= "" and interface.short(parent) or nil, lines = lines,
    fields = {}, functions = {},
  }
end

local tags = {}

function tags.class(block, text)
  block.class = new_class(text, block.lines)
end

function tags.field(block, text)
  if text:find "^%[" then return end -- keys of a kind: described in words
  local field = named(text)
  local method = as_method(field, block.class)
  table.insert(method and block.class.functions or block.class.fields, method or field)
end

function tags.alias(block, text)
  local alias = named(text)
  alias.name, alias.lines = interface.short(alias.name), block.lines
  block.alias = alias
end

function tags.param(block, text) table.insert(block.params, named(text)) end
tags["return"] = function(block, text) table.insert(block.returns, returned(text)) end
function tags.meta() end
function tags.operator() end
function tags.overload() end

local function new_block() return { lines = {}, params = {}, returns = {} } end

local function read_comment(block, line)
  local tag, text = line:match "^@(%a+)%s*(.*)$"
  if not tag then
    table.insert(block.lines, line)
  else
    assert(tags[tag], tag)(block, text)
  end
end

-- The line after a comment: a function, a variable of the class, or nothing.
local function read_code(self, block, line)
  local class = block.class
  if class then
    class.variable = line:match "^local ([%w_]+) = {}" or line:match "^(cl%.[%w_]+) = {}"
    table.insert(self.classes, class)
    self.by_name[class.name] = class
    if class.variable then self.by_variable[class.variable] = class end
  elseif block.alias then
    table.insert(self.aliases, block.alias)
  else
    local variable, sep, name = line:match "^function ([%w_.]-)([.:])([%w_]+)%("
    if not variable then return end
    local owner = assert(self.by_variable[variable], variable)
    table.insert(owner.functions, {
      name = name, sep = sep, class = owner, lines = block.lines, params = block.params, returns = block.returns,
    })
  end
end

local function parse(lines)
  local self = { classes = {}, aliases = {}, by_name = {}, by_variable = {} }
  local block = new_block()
  for line in lines do
    local comment = line:match "^%-%-%-%s?(.*)$"
    if comment and not line:find "^%-%-%-%-" then
      read_comment(block, comment)
    else
      read_code(self, block, line)
      block = new_block()
    end
  end
  return self
end

local loaded
local _, here = ...

local function find_file()
  local beside = type(here) == "string" and here:match "^(.*)interface%.lua$"
  local file = beside and io.open(beside .. "meta.lua")
  return file or assert(io.open(assert(package.searchpath("clalloc.meta", package.path))))
end

--- The interface: `classes` and `aliases` in the file's order, `by_name`. Read at the first call.
function interface.load()
  if not loaded then
    local file <close> = find_file()
    loaded = parse(file:lines())
  end
  return loaded
end

--- "alloc(nbytes [, options])". What is optional comes last.
function interface.signature(f)
  local text, open = "", 0
  for i, param in ipairs(f.params) do
    local comma = i > 1 and ", " or ""
    if param.is_optional then
      comma = (i > 1 and " [" or "[") .. comma
      open = open + 1
    end
    text = text .. comma .. param.name
  end
  return ("%s(%s%s)"):format(f.name, text, ("]"):rep(open))
end

--- All fields of a class, those of its parent too.
function interface.fields(class)
  local fields = {}
  local parent = class.parent and interface.load().by_name[class.parent]
  for _, field in ipairs(parent and interface.fields(parent) or {}) do fields[#fields + 1] = field end
  return table.move(class.fields, 1, #class.fields, #fields + 1, fields)
end

return interface
