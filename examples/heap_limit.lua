-- The limit of the heap that kernels allocate from, as CUDA has it: settable until the first kernel, then fixed.
--
-- A kernel takes 7 MiB of the 8 MiB that a heap has by default. From then on the limit cannot be raised: the attempt
-- raises an error, and a kernel that asks for 8 MiB gets null. `dev.heap:reset()` starts again with an empty heap; with
-- twice the limit the same kernel gets its 8 MiB.
--
-- You will see what each step gives, with a map of the heap in between, and then "the limit held, and was raised".

local cl = require "clalloc"

local dev <close> = cl.device()
local program <close> = assert(dev:program([[
kernel void take(ulong nbytes, global uint *out) {
  global uchar *p = malloc(nbytes);
  if (p) p[0] = p[nbytes - 1] = 1; /* both ends are there */
  out[0] = p != 0;
}
]], { heap = true }))
local answer <close> = assert(dev:alloc(4))

-- Does a kernel get so many bytes? It keeps them.
local function take(nbytes)
  local event <close> = assert(program.take { nbytes, answer, size = 1 })
  assert(event:wait())
  return string.unpack("<I4", answer:read()) == 1
end

print(dev.heap)
assert(take(7 * cl.MiB))
print "a kernel took 7 MiB"

local is_raised, message = pcall(function() dev.heap.limit = 16 * cl.MiB end)
assert(not is_raised)
print("raising the limit: " .. message)
assert(not take(8 * cl.MiB))
print "8 MiB beside them: null"
print(dev.heap:draw(64, 4))

assert(dev.heap:reset())
dev.heap.limit = 16 * cl.MiB
assert(take(8 * cl.MiB))
print "after a reset, with a limit of 16 MiB: 8 MiB"
assert(dev.heap:check())
print "the limit held, and was raised"
