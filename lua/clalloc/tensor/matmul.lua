--- The matrix product.
--
-- A group computes a tile of the result, TILE x TILE, from tiles of the operands that it copies to local memory; each
-- item sums PATCH x PATCH elements in registers. Operands may have any strides: a transpose costs nothing.
--
-- @classmod tensor

local Tensor = require "clalloc.tensor.type"
local context = require "clalloc.tensor.context"
local dtype = require "clalloc.tensor.dtype"
local fault = require "clalloc.tensor.fault"
local loops = require "clalloc.tensor.loops"
local shape = require "clalloc.tensor.shape"

local methods = Tensor.methods

-- A tile's side, elements of a side per item, columns and rows of operands copied at a time. The last is for devices
-- that take fewer items in a group.
local FORMS = {
  cpu = { { tile = 64, patch = 8, depth = 32 }, { tile = 16, patch = 4, depth = 16 } },
  other = {
    { tile = 64, patch = 4, depth = 16 }, { tile = 32, patch = 4, depth = 16 }, { tile = 16, patch = 4, depth = 16 },
  },
}

local SOURCE = [[
#if HAS_FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define SIDE (TILE / PATCH)
#define ITEMS (SIDE * SIDE)

kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void run(global T *c, global const T *a, INDEX a_start, INDEX a_row, INDEX a_column,
         global const T *b, INDEX b_start, INDEX b_row, INDEX b_column, INDEX m, INDEX k, INDEX n) {
  local T a_tile[DEPTH][TILE], b_tile[DEPTH][TILE];
  const int x = get_local_id(0), y = get_local_id(1), item = y * SIDE + x;
  const INDEX row = (INDEX)get_group_id(1) * TILE, column = (INDEX)get_group_id(0) * TILE;
  T sum[PATCH][PATCH];
  for (int i = 0; i < PATCH; i++)
    for (int j = 0; j < PATCH; j++) sum[i][j] = 0;
  for (INDEX at = 0; at < k; at += DEPTH) {
    for (int e = item; e < DEPTH * TILE; e += ITEMS) {
      const int d = e / TILE, side = e % TILE;
      const INDEX inner = at + d;
      b_tile[d][side] = inner < k && column + side < n
        ? b[b_start + inner * b_row + (column + side) * b_column] : (T)0;
    }
    for (int e = item; e < DEPTH * TILE; e += ITEMS) {
      const int d = e % DEPTH, side = e / DEPTH;
      const INDEX inner = at + d;
      a_tile[d][side] = inner < k && row + side < m
        ? a[a_start + (row + side) * a_row + inner * a_column] : (T)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int d = 0; d < DEPTH; d++)
      for (int i = 0; i < PATCH; i++)
        for (int j = 0; j < PATCH; j++)
          sum[i][j] = MULTIPLY_ADD(a_tile[d][y * PATCH + i], b_tile[d][J(j)], sum[i][j]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < PATCH; i++)
    for (int j = 0; j < PATCH; j++) {
      const INDEX r = row + y * PATCH + i, s = column + J(j);
      if (r < m && s < n) c[r * n + s] = sum[i][j];
    }
}
]]

local function source(own, kind, index, form)
  local multiply_add = kind.is_float and "fma(a, b, c)" or
    ("(%s)((%s)(a) * (%s)(b) + (%s)(c))"):format(kind.c, kind.unsigned, kind.unsigned, kind.unsigned)
  local text = SOURCE:gsub("%f[%w_]%u+%f[^%w_]", { T = kind.c, INDEX = index })
  return text, {
    defines = {
      TILE = form.tile, PATCH = form.patch, DEPTH = form.depth,
      HAS_FP64 = own.has_fp64 and 1 or 0, ["MULTIPLY_ADD(a, b, c)"] = multiply_add,
      -- Neighbouring items take neighbouring columns, but on a CPU an item has its own, for vector instructions.
      ["J(j)"] = own.takes_runs and "(x * PATCH + (j))" or "(x + (j) * SIDE)",
    },
  }
end

-- The kernel of the first form whose group and tiles the device takes.
local function kernel_of(own, kind, index)
  local forms = own.takes_runs and FORMS.cpu or FORMS.other
  for i, form in ipairs(forms) do
    local side = form.tile // form.patch
    local local_nbytes = 2 * form.tile * form.depth * kind.size
    if i == #forms or (side * side <= own.max_group and local_nbytes <= own.local_mem) then
      local kernel = context.kernel(own, form, kind, index, "matmul", source, kind, index, form)
      if i == #forms or kernel.most_group >= side * side then return kernel, form end
    end
  end
end

local function product(own, a, b, sizes, strides_a, strides_b)
  local m, k, n = sizes[1], sizes[2], sizes[3]
  local out = Tensor.room("matmul", own, a.kind, { m, n }, m * n)
  local reach = math.max(m * n, a.start + m * strides_a[1] + k * strides_a[2],
    b.start + k * strides_b[1] + n * strides_b[2])
  local index = reach >= 1 << 30 and "long" or "int"
  local kernel, form = kernel_of(own, a.kind, index)
  local side = form.tile // form.patch
  loops.launch(own, "matmul", kernel, {
    out.storage.buffer, a.storage.buffer, a.start, strides_a[1], strides_a[2],
    b.storage.buffer, b.start, strides_b[1], strides_b[2], m, k, n,
    size = { (n + form.tile - 1) // form.tile * side, (m + form.tile - 1) // form.tile * side },
    group = { side, side },
  }, out, { a, b })
  return out
end

-- Iterations that an item makes for each column of the left operand, when no loop is unrolled, at most.
local STEPS = 32

local function from(view, distance)
  return { storage = view.storage, kind = view.kind, start = view.start + distance }
end

-- Where steps are limited, a deep product is the sum of shallower ones. Gives a tensor of m x n.
local function sum_of_products(own, a, b, sizes, strides_a, strides_b)
  local m, k, n = sizes[1], sizes[2], sizes[3]
  local depth = own.most_steps // STEPS
  local total = Tensor.over("matmul", product(own, a, b, { m, math.min(k, depth), n }, strides_a, strides_b))
  for at = depth, k - 1, depth do
    local part <close> = Tensor.over("matmul", product(own, from(a, at * strides_a[2]), from(b, at * strides_b[1]),
      { m, math.min(k - at, depth), n }, strides_a, strides_b))
    total:add_(part)
  end
  return total
end

local function check(a, b)
  for _, x in ipairs { a, b } do
    if #x.sizes < 1 or #x.sizes > 2 then
      fault("matmul: %s and %s: matrices or vectors expected", shape.text(a.sizes), shape.text(b.sizes))
    end
  end
  Tensor.check_devices("matmul", a, b)
  local k, l = a.sizes[#a.sizes], b.sizes[1]
  if k ~= l then
    fault("matmul: %s and %s do not match (%d ~= %d)", shape.text(a.sizes), shape.text(b.sizes), k, l)
  end
end

-- A vector on the left is a row, on the right a column.
local function as_matrix(view, is_left)
  local sizes, strides = view.sizes, view.strides
  if #sizes == 2 then return sizes[1], sizes[2], strides end
  if is_left then return 1, sizes[1], { 0, strides[1] } end
  return sizes[1], 1, { strides[1], 0 }
end

local function result_sizes(a, b, m, n)
  local sizes = {}
  if #a.sizes == 2 then sizes[1] = m end
  if #b.sizes == 2 then sizes[#sizes + 1] = n end
  return sizes
end

--- The product of two matrices, m x k and k x n; a vector stands for a row on the left, for a column on the right, and
-- its dimension goes away. Kinds mix as in arithmetic; integers wrap. Computed at once.
-- @tparam tensor other
-- @treturn tensor
function methods:matmul(other)
  Tensor.check("matmul", self)
  Tensor.check("matmul", other)
  check(self, other)
  local kind = dtype.common(self.kind, other.kind)
  local left <close> = self:to(kind.name)
  local right <close> = other:to(kind.name)
  local a, b = Tensor.need("matmul", left), Tensor.need("matmul", right)
  local m, k, strides_a = as_matrix(a, true)
  local _, n, strides_b = as_matrix(b, false)
  local sizes = result_sizes(a, b, m, n)
  local count = shape.count("matmul", sizes)
  local own = Tensor.context(self)
  if m * n == 0 or k == 0 then
    return Tensor.over("matmul", Tensor.room("matmul", own, kind, sizes, count)):fill(0)
  end
  local out = sum_of_products(own, a, b, { m, k, n }, strides_a, strides_b)
  if #sizes == 2 then return out end
  local matrix <close> = out
  return matrix:view(sizes)
end

return methods.matmul
