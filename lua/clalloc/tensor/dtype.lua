--- Element types: their names in Lua, OpenCL C and `string.pack`, what mixing two gives, and who supports them.
--
-- A kind is a record: `name`; `c`, the OpenCL C type; `size` in bytes; `pack`, the letter of `string.pack`;
-- `is_float`; `is_signed`; `lowest` and `highest`, the range of an integer kind, as Lua integers.
--
-- @module clalloc.tensor.dtype

local fault = require "clalloc.tensor.fault"

local dtype = {}

local function integer(name, c, size, pack, lowest, highest)
  return {
    name = name, c = c, size = size, pack = pack, lowest = lowest, highest = highest, is_float = false,
    is_signed = lowest < 0, unsigned = lowest < 0 and "u" .. c or c,
  }
end

local kinds = {
  f32 = { name = "f32", c = "float", size = 4, pack = "f", is_float = true, is_signed = true },
  f64 = { name = "f64", c = "double", size = 8, pack = "d", is_float = true, is_signed = true },
  i32 = integer("i32", "int", 4, "i4", -(1 << 31), (1 << 31) - 1),
  u32 = integer("u32", "uint", 4, "I4", 0, (1 << 32) - 1),
  i64 = integer("i64", "long", 8, "i8", math.mininteger, math.maxinteger),
  u8 = integer("u8", "uchar", 1, "B", 0, 255),
}

dtype.f32, dtype.f64, dtype.i32 = kinds.f32, kinds.f64, kinds.i32
dtype.u32, dtype.i64, dtype.u8 = kinds.u32, kinds.i64, kinds.u8

--- The kind of a name; raises for others.
-- @tparam string what the operation, for the message
-- @tparam[opt="f32"] string name
function dtype.of(what, name)
  local kind = kinds[name or "f32"]
  if not kind then
    fault("%s: no dtype is named '%s'; there are f32, f64, i32, u32, i64 and u8", what, tostring(name))
  end
  return kind
end

--- Raises when the device of a context lacks the kind.
function dtype.check(what, kind, context)
  if kind == kinds.f64 and not context.has_fp64 then
    fault("%s: f64 is not supported by %s", what, context.device.name)
  end
end

local order = { u8 = 1, i32 = 2, u32 = 2, i64 = 3, f32 = 4, f64 = 5 }

--- The kind that holds the values of both: floats before integers, wide before narrow, i64 for i32 and u32.
function dtype.common(a, b)
  if a == b then return a end
  if order[a.name] == order[b.name] then return kinds.i64 end
  return order[a.name] > order[b.name] and a or b
end

--- The kind in which a tensor of kind `kind` meets a Lua number: its own, but f32 for a float among integers.
function dtype.with_number(kind, value)
  if kind.is_float or math.type(value) == "integer" then return kind end
  return kinds.f32
end

--- Raises when an integer kind cannot hold the number; returns what to store.
function dtype.fit(what, kind, value)
  if kind.is_float then return value * 1.0 end -- keeps -0.0
  local n = math.tointeger(value)
  if not n then fault("%s: %s is not an integer, as %s needs", what, tostring(value), kind.name) end
  if n < kind.lowest or n > kind.highest then
    fault("%s: %d does not fit %s, which holds %d to %d", what, n, kind.name, kind.lowest, kind.highest)
  end
  return n
end

--- OpenCL C that converts a variable from one kind to another: floats to integers are cut towards zero and kept within
-- the range, NaN gives 0; integers wrap.
function dtype.convert(from, to, name)
  if from == to then return name end
  if not from.is_float or to.is_float then return ("(%s)%s"):format(to.c, name) end
  -- OpenCL C says 0 for NaN, but Mesa's rusticl gives the least integer.
  return ("(%s)(%s == %s ? convert_%s_sat(%s) : (%s)0)"):format(to.c, name, name, to.c, name, to.c)
end

return dtype
