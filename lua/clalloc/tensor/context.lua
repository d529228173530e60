--- What tensors keep for each device: its handle and the kernels built for it.
--
-- Contexts and their kernels stay until `context.forget`.
--
-- @module clalloc.tensor.context

local core = require "clalloc.core"
local fault = require "clalloc.tensor.fault"

local context = {}

local contexts = {}
local last = {}

--- The context of a device.
function context.of(device)
  if device == last.device then return last end
  for _, one in ipairs(contexts) do
    if one.device == device then
      last = one
      return one
    end
  end
  local one = {
    device = device,
    default_stream = device.default_stream,
    is_cpu = device.type == "cpu",
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

--- The current device's context.
function context.current()
  local device = core.current()
  return context.of(device)
end

--- The stream on which a command of this context runs now.
function context.stream(self)
  local device, stream = core.current()
  return device == self.device and stream or self.default_stream
end

local function build(self, name, source, options)
  local ok, program, why = pcall(self.device.program, self.device, source, options)
  if not ok then fault("%s: %s", name, program) end
  if not program then fault("%s: %s", name, why) end
  return program
end

--- The kernel of a key, built from `make()` when it is new.
-- @tparam table self
-- @tparam string key equal keys mean equal sources
-- @tparam string name of the operation, for messages
-- @tparam function make returns the source, which has one kernel, `run`, and the compiler's options
function context.kernel(self, key, name, make)
  local kernel = self.kernels[key]
  if kernel then return kernel end
  kernel = build(self, name, make()).run
  self.kernels[key] = kernel
  return kernel
end

--- Lets go of every device and kernel; they are found and built again when needed.
function context.forget()
  contexts, last = {}, {}
end

return context
