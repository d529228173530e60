--- What tensors keep for each device: its handle and the kernels built for it.
--
-- Contexts and their kernels stay until `context.forget`.
--
-- @module clalloc.tensor.context

local core = require "clalloc.core"
local current = require "clalloc.tensor.current"
local fault = require "clalloc.tensor.fault"
local step = require "clalloc.tensor.levels"

local context = {}

local contexts = {}
local last = {}
local default = false -- the context that is current without a guard, once known

-- Mesa's llvmpipe ends all loops of an item after 65535 iterations, counted together, and says nothing
-- (LP_MAX_TGSI_LOOP_ITERATIONS). Half of that leaves room for what a count here leaves out.
local LLVMPIPE_STEPS = 1 << 15

--- The context of a device: `takes_runs`, whether an item of work is best given many neighbouring elements, as where
-- an item is a thread's loop that the compiler makes vectors of; `most_steps`, the iterations of loops that an item may
-- make.
function context.of(device)
  if device == last.device then return last end
  for _, one in ipairs(contexts) do
    if one.device == device then
      last = one
      return one
    end
  end
  local is_llvmpipe = device.name:find "^llvmpipe" ~= nil -- a CPU that makes vectors of items
  local stream = device.default_stream
  local one = {
    device = stream.device, -- a handle that nobody else can close
    default_stream = stream,
    default_id = stream.id,
    takes_runs = device.type == "cpu" and not is_llvmpipe,
    most_steps = is_llvmpipe and LLVMPIPE_STEPS or math.maxinteger,
    units = device.compute_units,
    has_fp64 = device.has_fp64,
    max_group = device.max_group,
    local_mem = device.local_mem,
    kernels = {},
  }
  contexts[#contexts + 1] = one
  last = one
  return one
end

--- Whether a value is a device, open or closed.
function context.is_device(value)
  local meta = type(value) == "userdata" and getmetatable(value)
  return type(meta) == "table" and meta.__name == "clalloc.device"
end

--- The current device's context.
function context.current()
  if default and not current.is_guarded then return default end
  local own = context.of((core.current()))
  if not current.is_guarded then default = own end
  return own
end

--- The stream on which a command of this context runs now.
function context.stream(self)
  if not current.is_guarded then return self.default_stream, self.default_id end
  local device, stream = core.current()
  if device ~= self.device then stream = self.default_stream end
  return stream, stream.id
end

local function build(self, name, source, options)
  local ok, program, why = pcall(self.device.program, self.device, source, options)
  if not ok then fault("%s: %s", name, program) end
  if not program then fault("%s: %s", name, why) end
  return program
end

--- A kernel, by three keys; built when it is new.
-- @tparam table self
-- @param form
-- @param kind
-- @tparam string layout
-- @tparam string what the operation, for messages
-- @tparam function make called with the context and `...`, returns the source, which has one kernel, `run`, and the
-- compiler's options
-- @treturn table `run`, the kernel, and `launch`, its method; `most_group`, items it takes in a group; `args`, a table
-- to call it with, kept from one launch to the next
function context.kernel(self, form, kind, layout, what, make, ...)
  local level = self.kernels[form]
  level = level and level[kind]
  local kernel = level and level[layout]
  if kernel then return kernel end
  local run = build(self, what, make(self, ...)).run
  kernel = { run = run, launch = run.launch, most_group = run.max_group, args = false }
  step(step(self.kernels, form), kind)[layout] = kernel
  return kernel
end

--- Lets go of every device and kernel; they are found and built again when needed.
function context.forget()
  for _, own in ipairs(contexts) do own.kernels = {} end
  contexts, last, default = {}, {}, false
end

return context
