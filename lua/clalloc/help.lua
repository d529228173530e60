--- `cl.help`: what there is and what a thing can do, one line each. All of it is read from clalloc/meta.lua.
--
-- @module clalloc.help

local interface = require "clalloc.interface"

local help = {}

local WIDEST = 44 -- a left column; longer ones stand alone

-- ---- Lists ---------------------------------------------------------------------------------------------------

-- Rows of {left, right}, as lines with the right parts below each other.
local function add_rows(lines, rows)
  local width = 0
  for _, row in ipairs(rows) do
    if #row[1] <= WIDEST and #row[1] > width then width = #row[1] end
  end
  for _, row in ipairs(rows) do
    lines[#lines + 1] = ("  %s  %s"):format(row[1] .. (" "):rep(width - #row[1]), row[2]):gsub("%s+$", "")
  end
end

local function summary(item) return item.lines[1] or "" end

-- "integer: bytes of memory"; the type alone where nothing else is said.
local function field_text(field)
  return field.text == "" and field.type or ("%s: %s"):format(field.type, field.text)
end

local function field_rows(fields, prefix)
  local rows = {}
  for _, field in ipairs(fields) do
    rows[#rows + 1] = { prefix .. field.name .. (field.is_optional and "?" or ""), field_text(field) }
  end
  return rows
end

local function function_rows(class, prefix)
  local rows = {}
  for _, f in ipairs(class.functions) do
    rows[#rows + 1] = { prefix .. (f.sep == ":" and ":" or ".") .. interface.signature(f), summary(f) }
  end
  return rows
end

-- ---- Pages ---------------------------------------------------------------------------------------------------

local function is_object(class) return class.variable and not class.variable:find "^cl" end
local function is_table(class) return class.variable and class.variable:find "^cl%." end

local function overview()
  local all, cl = interface.load(), require "clalloc"
  local lines = { ("clalloc %s: %s"):format(cl.version, summary(all.by_name.clalloc)), "" }
  local tables, objects, records = {}, {}, {}
  for _, class in ipairs(all.classes) do
    if is_object(class) then objects[#objects + 1] = { class.name, summary(class) }
    elseif is_table(class) then tables[#tables + 1] = { class.variable, summary(class) }
    elseif not class.variable then records[#records + 1] = class.name end
  end
  add_rows(lines, function_rows(all.by_name.clalloc, "cl"))
  lines[#lines + 1] = ""
  add_rows(lines, tables)
  add_rows(lines, field_rows(all.by_name.clalloc.fields, "cl."))
  lines[#lines + 1] = "\nObjects:"
  add_rows(lines, objects)
  lines[#lines + 1] = "\nTables of options and results: " .. table.concat(records, ", ")
  lines[#lines + 1] = '\ncl.help(x) says what x can do: an object, a function, or a name: "pool", "pool:alloc".'
  return lines
end

local function class_page(class)
  local lines = table.move(class.lines, 1, #class.lines, 1, {})
  local prefix = is_table(class) and class.variable or ""
  local fields = interface.fields(class)
  if #fields > 0 then
    lines[#lines + 1] = ""
    add_rows(lines, field_rows(fields, class.variable and prefix .. "." or ""))
  end
  if #class.functions > 0 then
    lines[#lines + 1] = ""
    add_rows(lines, function_rows(class, prefix))
  end
  return lines
end

-- The record that a type names: {field, ...} of its options; nil for other types.
local function record_of(type_name)
  for name in type_name:gmatch "[%w_]+" do
    local class = interface.load().by_name[name]
    if class and not class.variable then return class end
  end
end

local function add_values(lines, title, values)
  local rows, records = {}, {}
  for _, value in ipairs(values) do
    local name = value.name and value.name .. (value.is_optional and "?" or "")
    rows[#rows + 1] = name and { name, field_text(value) } or { value.type, value.text }
    local record = record_of(value.type)
    if record and not records[record] then
      records[record] = true
      for _, row in ipairs(field_rows(interface.fields(record), "  .")) do rows[#rows + 1] = row end
    end
  end
  if #rows == 0 then return end
  lines[#lines + 1] = "\n" .. title
  add_rows(lines, rows)
end

local function full_name(f)
  return f.class.variable .. f.sep .. interface.signature(f)
end

local function function_page(f)
  local lines = { full_name(f), "" }
  table.move(f.lines, 1, #f.lines, #lines + 1, lines)
  add_values(lines, "Takes:", f.params)
  add_values(lines, "Returns:", f.returns)
  return lines
end

local function field_page(class, field)
  return { ("%s.%s  %s"):format(class.variable or class.name, field.name, field_text(field)) }
end

-- ---- What a value is -----------------------------------------------------------------------------------------

-- The value that a table of the module stands for: "cl.policy".
local function module_table(class)
  local cl = require "clalloc"
  if class.variable == "cl" then return cl end
  return is_table(class) and cl[class.variable:match "^cl%.([%w_]+)$"] or nil
end

-- Where the functions of a class are.
local function functions_of(class)
  local types = require "clalloc".debug.types()
  if class.name == "tensor" then return require "clalloc.tensor".methods end
  return module_table(class) or types[class.name] and types[class.name].names or {}
end

local function page_of_function(value)
  for _, class in ipairs(interface.load().classes) do
    local there = #class.functions > 0 and functions_of(class) or {}
    for _, f in ipairs(class.functions) do
      if rawequal(rawget(there, f.name), value) then return function_page(f) end
    end
  end
end

local function page_of_object(value)
  local meta = debug.getmetatable(value)
  local name = type(meta) == "table" and rawget(meta, "__name")
  local class = type(name) == "string" and interface.load().by_name[interface.short(name)]
  if not class then return nil end
  local lines = class_page(class)
  table.insert(lines, 1, tostring(value))
  return lines
end

local function page_of_table(value)
  if type(value) ~= "table" then return nil end
  local all = interface.load()
  for _, class in ipairs(all.classes) do
    if rawequal(module_table(class), value) then
      return class == all.by_name.clalloc and overview() or class_page(class)
    end
  end
end

-- "pool", "cl.policy"; "pool:alloc", "cl.device", "policy.caching".
local function page_of_name(text)
  local all = interface.load()
  text = text:gsub("%(.*$", ""):gsub("^clalloc%.", "")
  local class = all.by_name[text] or all.by_variable[text] or all.by_variable["cl." .. text]
  if class then return class == all.by_name.clalloc and overview() or class_page(class) end
  local owner, name = text:match "^(.-)[.:]([%w_]+)$"
  class = owner and (all.by_name[owner] or all.by_variable[owner] or all.by_variable["cl." .. owner])
    or all.by_name.clalloc
  for _, f in ipairs(class.functions) do
    if f.name == (name or text) then return function_page(f) end
  end
  for _, field in ipairs(interface.fields(class)) do
    if field.name == (name or text) then return field_page(class, field) end
  end
end

-- Every function and field of a name, for one that is said alone: "alloc".
local function pages_of_member(text)
  local lines = {}
  for _, class in ipairs(interface.load().classes) do
    for _, f in ipairs(class.functions) do
      if f.name == text then lines[#lines + 1] = ("%s  %s"):format(full_name(f), summary(f)) end
    end
    for _, field in ipairs(class.fields) do
      if field.name == text then lines[#lines + 1] = field_page(class, field)[1] end
    end
  end
  return #lines > 0 and lines or nil
end

-- ---- For everybody -------------------------------------------------------------------------------------------

--- The help for a thing, or the overview without one, as text. Never raises for a thing it does not know.
-- @tparam[opt] any thing
-- @treturn string
function help.text(...)
  if select("#", ...) == 0 then return table.concat(overview(), "\n") end
  local thing = ...
  local lines
  if type(thing) == "string" then lines = page_of_name(thing) or pages_of_member(thing)
  elseif type(thing) == "function" then lines = page_of_function(thing)
  else lines = page_of_object(thing) or page_of_table(thing) end
  lines = lines or { ("There is no help on %s; cl.help() lists what there is."):format(
    type(thing) == "string" and ("'%s'"):format(thing) or tostring(thing)) }
  return table.concat(lines, "\n")
end

--- Prints it.
function help.show(...) print(help.text(...)) end

return help
