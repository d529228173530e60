--- What tensors keep for each device: its handle and the kernels built for it.
--
-- Contexts and their kernels stay until `context.forget`.
--
-- @module clalloc.tensor.context

local core = require "clalloc.core"
local current = require "clalloc.tensor.current"
local fault = require "clalloc.tensor.fault"

local context = {}

local contexts = {}
local last = {}
local default = false -- the context that is current without a guard, once known

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
    default_id = device.default_stream.id,
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

local function step(level, key)
  local next_level = level[key]
  if not next_level then
    next_level = {}
    level[key] = next_level
  end
  return next_level
end

--- A kernel, by three keys; built when it is new.
-- @tparam table self
-- @param form
-- @param kind
-- @tparam string layout
-- @tparam string what the operation, for messages
-- @tparam function make called with the context and `...`, returns the source, which has one kernel, `run`, and the
-- compiler's options
-- @treturn table `run`, the kernel; `args`, a table to call it with, kept from one launch to the next
function context.kernel(self, form, kind, layout, what, make, ...)
  local level = self.kernels[form]
  level = level and level[kind]
  local kernel = level and level[layout]
  if kernel then return kernel end
  kernel = { run = build(self, what, make(self, ...)).run, args = false }
  step(step(self.kernels, form), kind)[layout] = kernel
  return kernel
end

--- Lets go of every device and kernel; they are found and built again when needed.
function context.forget()
  for _, own in ipairs(contexts) do own.kernels = {} end
  contexts, last, default = {}, {}, false
end

return context
