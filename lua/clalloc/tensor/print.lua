--- `tostring` of tensors, in Torch's layout: rows of a matrix, slices one after another, then kind and sizes.
--
-- Beyond 1000 elements only the corners are read and shown: three from either end of each dimension. Lines are at most
-- 80 wide. It never raises: what cannot be read says why.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local shape = require "clalloc.tensor.shape"
local view = require "clalloc.tensor.view"

local meta = Tensor.meta

local MOST, EDGE, WIDTH = 1000, 3, 80

-- ---- Numbers -------------------------------------------------------------------------------------------------

-- The exponents of the values that are neither 0 nor infinite nor NaN, and whether all are integral.
local function survey(list)
  local least, most, is_integral = math.huge, 0, true
  for _, v in ipairs(list) do
    local size = math.abs(v + 0.0)
    if size == size and size ~= math.huge and size > 0 then
      least, most = math.min(least, size), math.max(most, size)
      is_integral = is_integral and size % 1 == 0
    end
  end
  return least, most, is_integral
end

local function special(v)
  if v ~= v then return "nan" end
  if v == math.huge then return "inf" end
  if v == -math.huge then return "-inf" end
end

-- One format for all values: integers, four decimals, or exponents where those would not show them.
local function formatter(list)
  local least, most, is_integral = survey(list)
  if math.type(list[1]) == "integer" then return function(v) return ("%d"):format(v) end end
  if is_integral and most < 1e10 then return function(v) return ("%.0f"):format(v) end end
  if most >= 1e5 or least < 1e-3 then return function(v) return ("%.4e"):format(v) end end
  return function(v) return ("%.4f"):format(v) end
end

local function words_of(list)
  local format, words, width = formatter(list), {}, 0
  for i, v in ipairs(list) do
    words[i] = special(v) or format(v)
    width = math.max(width, #words[i])
  end
  return words, width + 1
end

-- ---- Layout --------------------------------------------------------------------------------------------------

-- Positions to show of a dimension whose ends alone were read: false where something is left out.
local function positions(shown, cut)
  local list = {}
  for i = 1, shown do
    if cut and i == EDGE + 1 then list[#list + 1] = false end
    list[#list + 1] = i
  end
  return list
end

local function right(word, width) return (" "):rep(width - #word) .. word end

local function row_text(words, width, at, columns, first, last)
  local parts = {}
  for k = first, last do
    parts[#parts + 1] = right(columns[k] and words[at + columns[k]] or "...", width)
  end
  return table.concat(parts, " ")
end

-- A matrix whose elements begin after place `at`, in as many blocks of columns as the width needs.
local function matrix(out, p, at)
  local rank = #p.sizes
  local rows, columns = p.shown[rank - 1], p.shown[rank]
  local step, width = p.sizes[rank], p.width
  local per = math.max(1, (WIDTH + 1) // (width + 1))
  for first = 1, #columns, per do
    local last = math.min(first + per - 1, #columns)
    if #columns > per then out[#out + 1] = ("Columns %d to %d"):format(first, last) end
    for _, i in ipairs(rows) do
      out[#out + 1] = i and row_text(p.words, width, at + (i - 1) * step, columns, first, last) or right("...", width)
    end
    if #columns > per and last < #columns then out[#out + 1] = "" end
  end
end

-- Walks the dimensions before the last two.
local function slices(out, p, d, at, label)
  if d > #p.sizes - 2 then
    out[#out + 1] = ("(%s,.,.) ="):format(table.concat(label, ","))
    matrix(out, p, at)
    out[#out + 1] = ""
    return
  end
  local step = 1
  for k = d + 1, #p.sizes do step = step * p.sizes[k] end
  for _, i in ipairs(p.shown[d]) do
    if i then
      label[d] = p.cut[d] and i > EDGE and i - p.sizes[d] + p.full[d] or i
      slices(out, p, d + 1, at + (i - 1) * step, label)
    else
      out[#out + 1] = "...\n"
    end
  end
  label[d] = nil
end

local function lines_of(p)
  local out = {}
  if #p.sizes == 0 then
    out[1] = " " .. p.words[1]
  elseif #p.sizes == 1 then
    for _, i in ipairs(p.shown[1]) do out[#out + 1] = right(i and p.words[i] or "...", p.width) end
  elseif #p.sizes == 2 then
    matrix(out, p, 0)
  else
    slices(out, p, 1, 0, {})
  end
  return out
end

-- The largest dimension first: then the copies of what is left are small.
local function corners(tensor)
  local part, cut = tensor:alias(), {}
  local order = {}
  for d in ipairs(tensor.sizes) do order[d] = d end
  table.sort(order, function(a, b) return tensor.sizes[a] > tensor.sizes[b] end)
  for _, d in ipairs(order) do
    local n = tensor.sizes[d]
    if n > 2 * EDGE then
      local whole <close> = part
      local head <close> = whole:narrow(d, 1, EDGE)
      local tail <close> = whole:narrow(d, n - EDGE + 1, EDGE)
      part, cut[d] = view.cat({ head, tail }, d), true
    end
  end
  return part, cut
end

local function picture(tensor)
  local part, cut
  if tensor.count > MOST then part, cut = corners(tensor) else part, cut = tensor:alias(), {} end
  local small <close> = part
  local words, width = words_of(small:tolist())
  local shown = {}
  for d, n in ipairs(small.sizes) do shown[d] = positions(n, cut[d]) end
  if next(cut) then width = math.max(width, 4) end -- as wide as the dots
  return { words = words, width = width, sizes = small.sizes, full = tensor.sizes, cut = cut, shown = shown }
end

-- ---- tostring ------------------------------------------------------------------------------------------------

local function label(tensor)
  if #tensor.sizes == 0 then return ("[%s scalar]"):format(tensor.kind.name) end
  return ("[%s tensor of size %s]"):format(tensor.kind.name, shape.text(tensor.sizes))
end

local function text_of(tensor)
  if tensor.count == 0 then return label(tensor) end
  local lines = lines_of(picture(tensor))
  lines[#lines + 1] = label(tensor)
  return table.concat(lines, "\n")
end

function meta.__tostring(tensor)
  if not tensor.cells and not tensor.node then return "tensor (closed)" end
  local ok, text = pcall(text_of, tensor)
  if ok then return text end
  return ("%s (cannot be read: %s)"):format(label(tensor), tostring(text))
end
