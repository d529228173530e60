--- OpenCL memory for Lua: `local cl = require "clalloc"`.
--
-- The C module does the work; this file adds what is written in Lua. Loading it makes no OpenCL call. Every Lua can
-- read this file, so that others than 5.4 get to the message below.
--
-- @module clalloc

if _VERSION ~= "Lua 5.4" then
  error(("clalloc needs Lua 5.4; this is %s. Start it with lua5.4."):format(_VERSION), 2)
end

local cl = require "clalloc.core"

cl.policy = require "clalloc.policy"
cl.trace = require "clalloc.trace"
cl.replay = require "clalloc.replay"
cl.plan = require "clalloc.plan"

cl.KiB = 1024
cl.MiB = 1024 * cl.KiB
cl.GiB = 1024 * cl.MiB

-- Tensors are loaded when the first is made; they have to know of every guard.
require "clalloc.tensor.current"
for _, name in ipairs {
  "tensor", "zeros", "ones", "full", "arange", "rand", "randn", "seed", "from", "cat", "load_tensor", "scope",
  "is_tensor", "forget_kernels",
} do
  cl[name] = function(...) return require "clalloc.tensor"[name](...) end
end

function cl.help(...) require "clalloc.help".show(...) end

local types = cl.debug.types()
types.pool.names.draw = require "clalloc.draw".drawer(types.pool.meta.__tostring, types.pool.names.snapshot)
require "clalloc.heap"(types.heap)
types.pool.names.trace = require "clalloc.trace.pool"(cl.pool_trace)
cl.pool_trace = nil

local repl = require "clalloc.repl"
if repl.is_interactive() then repl.install(types) end

setmetatable(cl, {
  __tostring = function() return ("clalloc %s; cl.help() lists what there is"):format(cl.version) end,
})

return cl
