-- Vector addition in ten lines. You will see: 11  22  33  44
local cl = require "clalloc"
local dev <close> = cl.device()
local a <close> = assert(dev:alloc(16))
local b <close> = assert(dev:alloc(16))
a:write(string.pack("<ffff", 1, 2, 3, 4))
b:write(string.pack("<ffff", 10, 20, 30, 40))
local prog = dev:program "kernel void add(global float *a, global float *b) { int i = get_global_id(0); a[i] += b[i]; }"
prog.add { a, b, size = 4 }
print(("%g  %g  %g  %g"):format(string.unpack("<ffff", a:read())))
