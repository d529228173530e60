-- Writes LDoc sources of the reference from lua/clalloc/meta.lua: a module, an object or a table a file.
--
--   lua5.4 docs/reference.lua FOLDER

local interface = require "clalloc.interface"

local FOLDER = assert(arg[1], "usage: reference.lua FOLDER")

-- ---- Types, as LDoc writes them ------------------------------------------------------------------------------

local function one_type(name)
  name = name:gsub("^%((.*)%)$", "%1")
  if name:find '^"' then return "string" end
  if name:find "^fun" then return "function" end
  if name:find "^table<" then return "table" end
  local element = name:match "^(.*)%[%]$"
  return element and ("{%s,...}"):format(one_type(element):gsub("|", " or ")) or name
end

-- The alternatives of a type, those outside brackets.
local function alternatives(name)
  local list, depth, current = {}, 0, ""
  for c in (name .. "|"):gmatch "." do
    if c:find "[%(%[{<]" then depth = depth + 1 elseif c:find "[%)%]}>]" then depth = depth - 1 end
    if c == "|" and depth == 0 then
      list[#list + 1], current = current, ""
    else
      current = current .. c
    end
  end
  return list
end

-- "?buffer" for what may be nil; each alternative once.
local function ldoc_type(name)
  local seen, list, may_be_nil = {}, {}, false
  name = name:gsub("%?$", function() may_be_nil = true return "" end)
  for _, alternative in ipairs(alternatives(name)) do
    local one = one_type(alternative)
    if one == "nil" then
      may_be_nil = true
    elseif not seen[one] then
      seen[one] = true
      list[#list + 1] = one
    end
  end
  return (may_be_nil and "?" or "") .. table.concat(list, "|")
end

-- The values of a type that is a choice of strings: LDoc shows only "string".
local function choices(name)
  local list = {}
  for text in name:gmatch '"[^"]*"' do list[#list + 1] = text end
  return table.concat(list, ", ")
end

local function with_choices(field)
  local values = choices(field.type)
  if values == "" then return field.text end
  return field.text == "" and values or ("%s: %s"):format(values, field.text)
end

-- ---- Comments ------------------------------------------------------------------------------------------------

local Page = {}
Page.__index = Page

function Page:add(...)
  self[#self + 1] = table.concat { ... }
end

function Page:describe(lines)
  for i, line in ipairs(lines) do
    self:add(i == 1 and "--- " or "-- ", line)
  end
end

function Page:tagged(tag, field)
  local optional = field.is_optional and tag == "tparam" and "[opt]" or ""
  local name = field.name == "..." and "..." or field.name or ""
  self:add("-- @", tag, optional, " ", ldoc_type(field.type), " ", name, " ", with_choices(field))
end

function Page:fields(name, title, fields)
  if #fields == 0 then return end
  self:add("--- ", title)
  self:add("-- @table ", name)
  for _, field in ipairs(fields) do self:tagged("tfield", field) end
  self:add ""
end

function Page:functions(class)
  for _, f in ipairs(class.functions) do
    self:describe(f.lines)
    self:add("-- @function ", class.variable, f.sep, f.name)
    for _, param in ipairs(f.params) do self:tagged("tparam", param) end
    for _, result in ipairs(f.returns) do
      local text = with_choices(result)
      if result.name then text = text == "" and result.name or ("%s, %s"):format(result.name, text) end
      self:add("-- @treturn ", ldoc_type(result.type), " ", text)
    end
    self:add ""
  end
end

function Page:write(name)
  local file <close> = assert(io.open(("%s/%s.lua"):format(FOLDER, name), "w"))
  assert(file:write(table.concat(self, "\n"), "\n"))
end

local function new_page(kind, name, lines)
  local page = setmetatable({}, Page)
  page:describe(lines)
  page:add("-- @", kind, " ", name)
  page:add ""
  return page
end

-- ---- Pages ---------------------------------------------------------------------------------------------------

-- These have LDoc comments of their own, in their own files.
local DOCUMENTED = { policy = true, traces = true, trace = true, recorder = true }

local all = interface.load()
assert(os.execute(("rm -rf '%s' && mkdir -p '%s'"):format(FOLDER, FOLDER)))

local records = new_page("module", "tables", {
  "Tables of options and results: plain tables with these fields.",
})
for _, class in ipairs(all.classes) do
  if not class.variable then
    records:fields(class.name, class.lines[1], interface.fields(class))
  elseif not DOCUMENTED[class.name] then
    local is_object = not class.variable:find "^cl"
    local page = new_page(is_object and "classmod" or "module",
      is_object and class.name or class.name:gsub("^clalloc$", "clalloc"):gsub("^debug$", "clalloc.debug"), class.lines)
    page:fields("fields", "What can be read of it.", interface.fields(class))
    page:functions(class)
    page:write(class.name)
  end
end
records:write "tables"
