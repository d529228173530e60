--- Random numbers: a counter-based generator, so that a seed gives the same numbers on every device.
--
-- Number i after `seed` comes from the cipher Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
-- 3", 2011; 20 rounds) with the seed as key and i as counter. Uniform numbers are its bits; normal ones come from them
-- by Box and Muller's method, with logarithm, root, sine and cosine made of additions and multiplications alone, which
-- every device rounds alike.
--
-- @module clalloc.tensor.random

local create = require "clalloc.tensor.create"
local Tensor = require "clalloc.tensor.type"
local dtype = require "clalloc.tensor.dtype"
local expression = require "clalloc.tensor.expression"
local fault = require "clalloc.tensor.fault"
local shape = require "clalloc.tensor.shape"

local random = {}

local THREEFRY = [[
uint2 cipher(uint k0, uint k1, ulong counter) {
  const uint key[3] = {k0, k1, 0x1BD11BDAu ^ k0 ^ k1};
  const uint turns[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  uint x = (uint)counter + key[0], y = (uint)(counter >> 32) + key[1];
  for (uint round = 0; round < 20; round++) {
    x += y;
    y = rotate(y, turns[round % 8]) ^ x;
    if (round % 4 == 3) {
      const uint turn = round / 4 + 1;
      x += key[turn % 3];
      y += key[(turn + 1) % 3] + turn;
    }
  }
  return (uint2)(x, y);
}
ulong joined(uint2 w) { return upsample(w.y, w.x); }
]]

-- Polynomials fitted for this file to the ends of f32: ln(1 + t) / t on [sqrt(1/2) - 1, sqrt(2) - 1], sin(pi/2 t) / t
-- in t * t, and cos(pi/2 t) in t * t, both on [0, 1].
local NORMAL = [[
float polynomial(const float *c, int n, float t) {
  float sum = c[n - 1];
  for (int i = n - 2; i >= 0; i--) sum = sum * t + c[i];
  return sum;
}
/* -2 ln((w + 1) / 2^32), not negative */
float radius2(uint w) {
  const float ln[] = {@LN@};
  const float u = (float)((w >> 8) + 1u);             /* 1 to 2^24, exact */
  const uint bits = as_uint(u);
  int exponent = (int)(bits >> 23) - 127 - 24;
  float m = as_float((bits & 0x7fffffu) | 0x3f800000u); /* 1 to 2 */
  if (m > 1.41421356f) { m = m * 0.5f; exponent = exponent + 1; }
  const float t = m - 1.0f;
  const float log_u = t * polynomial(ln, sizeof ln / sizeof *ln, t) + (float)exponent * 0.693147181f;
  return log_u < 0.0f ? -2.0f * log_u : 0.0f;
}
float root(float v) {
  if (v <= 0.0f) return 0.0f;
  float r = as_float(0x5f375a86u - (as_uint(v) >> 1));
  for (int i = 0; i < 4; i++) r = r * (1.5f - 0.5f * v * r * r);
  return v * r;
}
float normal(uint2 w, bool is_second) {
  const float sn[] = {@SIN@}, cs[] = {@COS@};
  const uint quarter = w.y >> 30;
  const float t = (float)((w.y >> 6) & 0xffffffu) * 5.9604644775390625e-8f;
  const float s = t * polynomial(sn, sizeof sn / sizeof *sn, t * t), c = polynomial(cs, sizeof cs / sizeof *cs, t * t);
  float sine = quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
  if (quarter == 1 || quarter == 2) cosine = -cosine;
  if (quarter >= 2) sine = -sine;
  return root(radius2(w.x)) * (is_second ? sine : cosine);
}
]]

local COEFFICIENTS = {
  LN = "1.000000000e+00f, -4.999998829e-01f, 3.333332402e-01f, -2.500158512e-01f, 2.000207167e-01f, " ..
    "-1.660912649e-01f, 1.418007877e-01f, -1.324084285e-01f, 1.291417006e-01f, -7.638591715e-02f",
  SIN = "1.570796320e+00f, -6.459637604e-01f, 7.968992260e-02f, -4.674150670e-03f, 1.516751182e-04f",
  COS = "9.999999998e-01f, -1.233700534e+00f, 2.536693225e-01f, -2.086268755e-02f, 9.177238807e-04f, " ..
    "-2.382453487e-05f",
}

local uniform = {
  name = "uniform",
  prelude = THREEFRY,
}

-- 24 or 53 bits: every value is exact.
function uniform.emit(kind, k0, k1)
  local w = ("cipher((uint)%s, (uint)%s, (ulong)c3 + (ulong)j)"):format(k0, k1)
  if kind == dtype.f32 then return ("(float)(%s.x >> 8) * 5.9604644775390625e-8f"):format(w) end
  return ("(double)(joined(%s) >> 11) * 1.1102230246251565e-16"):format(w)
end

local gaussian = {
  name = "gaussian",
  prelude = THREEFRY .. NORMAL:gsub("@(%u+)@", COEFFICIENTS),
}

function gaussian.emit(_, k0, k1)
  local place = "((ulong)c3 + (ulong)j)"
  return ("normal(cipher((uint)%s, (uint)%s, %s >> 1), %s & 1)"):format(k0, k1, place, place)
end

-- ---- The state -----------------------------------------------------------------------------------------------

local state = { seed = 0, used = 0 }

--- Starts the generator anew; without it, it starts with 0.
-- @tparam integer n any Lua integer
function random.seed(n)
  if math.type(n) ~= "integer" then fault("seed: integer expected, got %s", tostring(n)) end
  state.seed, state.used = n, 0
end

local function generate(what, op, ...)
  local list, name = shape.arguments(what, ...)
  local kind = dtype.of(what, name)
  if not kind.is_float then fault("%s: f32 or f64 expected, not %s", what, kind.name) end
  local out = create.room(what, list, name)
  if state.used % 2 == 1 then state.used = state.used + 1 end
  local function number(value, of) return { value = value, kind = of } end
  local node = expression.node(op, kind, dtype.u32, number(state.seed & 0xffffffff, dtype.u32),
    number(state.seed >> 32, dtype.u32), number(state.used, dtype.i64))
  Tensor.compute(what, out.cells, node)
  state.used = state.used + out.count
  return out
end

--- Uniform numbers from 0 up to but not including 1, of a shape; f32 (24 bits) or f64 (53 bits).
function random.rand(...) return generate("rand", uniform, ...) end

--- Normal numbers of mean 0 and deviation 1, of a shape; f64 gets the same numbers as f32.
function random.randn(...) return generate("randn", gaussian, ...) end

return random
