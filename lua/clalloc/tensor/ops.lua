--- What an element can be computed from: each operation as OpenCL C.
--
-- An operation is a record: `name`, its key; `emit(kind, a, b, operand)`, an expression of type `kind.c` from simple
-- expressions of type `operand.c`; optionally `prelude`, functions it needs. Integers wrap: they are added as unsigned,
-- since signed overflow means nothing in C.
--
-- @module clalloc.tensor.ops

local ops = {}

local function infix(name, sign)
  ops[name] = {
    name = name,
    emit = function(kind, a, b)
      if kind.is_float then return ("%s %s %s"):format(a, sign, b) end
      return ("(%s)((%s)%s %s (%s)%s)"):format(kind.c, kind.unsigned, a, sign, kind.unsigned, b)
    end,
  }
end

infix("add", "+")
infix("sub", "-")
infix("mul", "*")
infix("div", "/")

ops.neg = {
  name = "neg",
  emit = function(kind, a)
    if kind.is_float then return "-" .. a end
    return ("(%s)(0 - (%s)%s)"):format(kind.c, kind.unsigned, a)
  end,
}

local function call(name, c)
  ops[name] = {
    name = name,
    emit = function(_, a, b) return b and ("%s(%s, %s)"):format(c, a, b) or ("%s(%s)"):format(c, a) end,
  }
end

for _, name in ipairs { "exp", "log", "sqrt", "tanh", "sin", "cos", "floor", "ceil" } do call(name, name) end
call("pow", "pow")

-- Powers that are products: OpenCL C lets `pow` be wrong by 16 units in the last place, also of 10 ^ 2.
local function product(name, text)
  return { name = name, emit = function(_, a) return (text:gsub("a", a)) end }
end

ops.powers = {
  [2] = product("square", "a * a"), [3] = product("cube", "a * a * a"), [4] = product("fourth", "(a * a) * (a * a)"),
}

ops.abs = {
  name = "abs",
  emit = function(kind, a)
    if kind.is_float then return ("fabs(%s)"):format(a) end
    if not kind.is_signed then return a end
    return ("%s < 0 ? (%s)(0 - (%s)%s) : %s"):format(a, kind.c, kind.unsigned, a, a)
  end,
}

-- NaN stays what it is.
ops.relu = { name = "relu", emit = function(kind, a) return ("%s < 0 ? (%s)0 : %s"):format(a, kind.c, a) end }

local function choose(name, sign)
  ops[name] = {
    name = name,
    emit = function(kind, a, b)
      if not kind.is_float then return ("%s %s %s ? %s : %s"):format(a, sign, b, a, b) end
      return ("%s %s %s || %s != %s ? %s : %s"):format(a, sign, b, a, a, a, b)
    end,
  }
end

choose("maximum", ">")
choose("minimum", "<")

local function comparison(name, sign)
  ops[name] = {
    name = name,
    emit = function(_, a, b) return ("%s %s %s ? 1 : 0"):format(a, sign, b) end,
  }
end

comparison("eq", "==")
comparison("ne", "!=")
comparison("lt", "<")
comparison("le", "<=")
comparison("gt", ">")
comparison("ge", ">=")

ops.cast = { name = "cast", emit = function(_, a) return a end }

-- The position of the element among those of a contiguous result or a reduced dimension, from 0.
ops.position = { name = "position", emit = function() return "(long)j" end }

-- The position where it holds the wanted value, else the largest integer: the least of these is where it is first.
ops.found = {
  name = "found",
  emit = function(_, a, b, kind)
    local nan = kind.is_float and ("|| (%s != %s && %s != %s)"):format(a, a, b, b) or ""
    return ("%s == %s %s ? (long)j + 1 : LONG_MAX"):format(a, b, nan)
  end,
}

local codes = {}

--- The operation that runs statements of the user's: `names` are what they call the operands, the first is assigned.
function ops.code(text, names)
  local name = ("code(%s) %s"):format(table.concat(names, ","), text)
  if not codes[name] then codes[name] = { name = name, text = text, names = names } end
  return codes[name]
end

return ops
