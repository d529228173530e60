"""The peer of device.pair.lua: PyOpenCL's memory pool, an allocation and its release of the size given, on the first
device. Prints the median nanoseconds of a pair."""
import sys
import time

import pyopencl as cl
import pyopencl.tools

size = int(sys.argv[1])
device = [d for p in cl.get_platforms() for d in p.get_devices()][0]
queue = cl.CommandQueue(cl.Context([device]))
pool = pyopencl.tools.MemoryPool(pyopencl.tools.ImmediateAllocator(queue))
pool.allocate(size).release()
runs = []
for _ in range(11):
    start = time.perf_counter_ns()
    for _ in range(50000):
        pool.allocate(size).release()
    runs.append((time.perf_counter_ns() - start) / 50000)
print(sorted(runs)[len(runs) // 2])
