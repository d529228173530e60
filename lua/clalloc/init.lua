--- OpenCL memory for Lua: `local cl = require "clalloc"`.
--
-- The C module does the work; this file adds what is written in Lua. Loading it makes no OpenCL call.
--
-- @module clalloc

if _VERSION ~= "Lua 5.4" then
  error(("clalloc needs Lua 5.4; this is %s"):format(_VERSION), 2)
end

local cl = require "clalloc.core"

cl.policy = require "clalloc.policy"
cl.trace = require "clalloc.trace"
cl.replay = require "clalloc.replay"

cl.KiB = 1 << 10
cl.MiB = 1 << 20
cl.GiB = 1 << 30

-- Tensors are loaded when the first is made.
for _, name in ipairs {
  "tensor", "zeros", "ones", "full", "arange", "rand", "randn", "seed", "from", "cat", "load_tensor", "scope",
  "is_tensor", "forget_kernels",
} do
  cl[name] = function(...) return require "clalloc.tensor"[name](...) end
end

return cl
