--- Tensors: arrays of numbers on a device, with Torch's manners in Lua.
--
--     local a = cl.rand(1024, 1024)
--     local b = ((a + 1) * 2):relu():sum(2)      -- computed in one kernel, without memory in between
--     print(b:narrow(1, 1, 5))
--
-- `+ - * / ^` are elementwise and broadcast; `a:matmul(b)` is the product; comparisons are methods (`a:lt(b)`) and give
-- u8. Methods with a trailing underscore change their tensor. Dimensions and indices count from 1. `t[i]` selects, `#t`
-- is the first size.
--
-- **Memory.** Elementwise results are computed when needed, together with what they come from, so a part of an
-- expression takes none. Results of `matmul`, reductions and whatever has a name go back when closed (`close`, `local t
-- <close>`), at the end of a `cl.scope`, or when collected; the collector runs by itself when device memory grows.
-- Memory goes to the current pool and is reused at once.
--
-- **Order.** A tensor remembers the stream that last used it: on another one, its next command comes after. What an
-- expression reads may change before it is computed: it is computed first.
--
-- **Numbers.** `+ - *` of floats, and `/` and `sqrt` of f64, give the number nearest to the result. So do `/` and
-- `sqrt` of f32 where `device.has_rounded_divide`; elsewhere they may be wrong by 2.5 and 3 units in the last place, as
-- OpenCL C has it. `t ^ 2`, `t ^ 3` and `t ^ 4` are products; other powers, `exp`, `log` and the like are OpenCL C's. A
-- sum is added in the same order each time, but not in the same one on every device.
--
-- **Errors.** Tensor operations raise, for lack of memory too.
--
-- @module clalloc.tensor

local Tensor = require "clalloc.tensor.type"
local context = require "clalloc.tensor.context"
local create = require "clalloc.tensor.create"
local random = require "clalloc.tensor.random"
local scope = require "clalloc.tensor.scope"
local view = require "clalloc.tensor.view"
local file = require "clalloc.tensor.file"

-- These add methods to the type.
require "clalloc.tensor.elementwise"
require "clalloc.tensor.index"
require "clalloc.tensor.matmul"
require "clalloc.tensor.reduce"
require "clalloc.tensor.print"
Tensor.complete()

return {
  tensor = create.tensor,
  zeros = create.zeros,
  ones = create.ones,
  full = create.full,
  arange = create.arange,
  from = create.from,
  rand = random.rand,
  randn = random.randn,
  seed = random.seed,
  cat = view.cat,
  load_tensor = file.load,
  scope = scope.run,
  is_tensor = Tensor.is,
  forget_kernels = context.forget,
  methods = Tensor.methods,
}
