-- malloc and free in kernels on a GPU, against the best of three CUDA allocators on an H200 (CUDA's own, Gallatin,
-- Ouroboros; their heaps had 4, 8 and 8 GiB). You will see one line a cell: how many blocks, of how many bytes,
-- microseconds by profiling events and the ratio to the best peer's, then what is measured only here.
--
--   make -s libraries benches && CLALLOC_DEVICE=NVIDIA lua5.4 examples/bench/heap_gpu.lua [HEAP_MIB [count]]
--
-- HEAP_MIB: 8192 if left out. CLALLOC_DEVICE: part of a platform's or device's name; if it has "NVIDIA" in it,
-- the kernels are compiled for at most 64 registers an item.
local build = os.getenv "CLALLOC_BUILD" or "build"
local output_of = dofile("examples/bench/figures.lua").output_of
local TIE = 2 -- microseconds

-- Best peer: malloc / free / ten rounds of malloc, write and free; microseconds, profiled, best of three.
local PEERS = {
  [1024] = {
    [16] = {9, 8, 46}, [64] = {8, 7, 47}, [256] = {8, 8, 49}, [1024] = {7, 8, 49}, [4096] = {8, 7, 49},
    [8192] = {8, 7, 50},
  },
  [10000] = {
    [16] = {9, 8, 86}, [64] = {9, 7, 88}, [256] = {8, 8, 103}, [1024] = {9, 11, 105}, [4096] = {8, 15, 104},
    [8192] = {9, 14, 104},
  },
  [100000] = {
    [16] = {18, 10, 165}, [64] = {17, 12, 271}, [256] = {15, 14, 860}, [1024] = {16, 19, 1026}, [4096] = {17, 16, 1029},
    [8192] = {14, 18, 922},
  },
  [1000000] = {[16] = {80, 24}, [64] = {80, 27}, [256] = {78, 26}, [1024] = {78, 24}},
}

local function against(ours, theirs)
  if ours == 0 or not theirs then return ("%8s %6s"):format(ours > 0 and ("%.1f"):format(ours) or "-", "") end
  local word = ours <= theirs and "" or ours <= theirs + TIE and "=" or "!"
  return ("%8.1f %5.2f%1s"):format(ours, ours / theirs, word)
end

local heap_mib = arg[1] or "8192"
local is_nvidia = (os.getenv "CLALLOC_DEVICE" or ""):find "NVIDIA" ~= nil
local options = (arg[2] or "") .. (is_nvidia and ",nv" or "")
local cells, behind = 0, 0
print(("heap of %s MiB, microseconds, each with its ratio to the best peer's (=: within 2 us, !: slower)")
  :format(heap_mib))
print(("%8s %5s %15s %15s %15s %9s"):format("blocks", "bytes", "malloc", "free", "churn10", "cold"))
for text in output_of(("%s/bench/heap_gpu %s '%s'"):format(build, heap_mib, options)):gmatch "[^\n]+" do
  local n, size, malloc, free, churn, cold, rest =
    text:match "^cell %d+ (%d+) (%d+) ([%d.]+) ([%d.]+) ([%d.]+) ([%d.]+)(.*)$"
  if n then
    local peer = rest == "" and (PEERS[tonumber(n)] or {})[tonumber(size)] or {}
    local ours = {tonumber(malloc), tonumber(free), tonumber(churn)}
    for i = 1, 3 do
      if ours[i] > 0 and peer[i] then
        cells = cells + 1
        if ours[i] > peer[i] + TIE then behind = behind + 1 end
      end
    end
    print(("%8s %5s %s %s %s %9.1f%s"):format(n, size == "0" and "any" or size, against(ours[1], peer[1]),
      against(ours[2], peer[2]), against(ours[3], peer[3]), tonumber(cold), rest))
  else
    print((text:gsub("^making", "making the heap:"):gsub("^nothing", "empty kernel, items:")
      :gsub("^steady (%d+) (%d+)", "malloc, 40 rounds of %1 x %2, least, median, most:"):gsub(" x 0,", " x any,")
      :gsub("^cold", "first malloc of 1000000 x 64:"):gsub("^failing", "100000 mallocs that fail:")))
  end
end
print(("%d of %d figures behind the best peer by more than %d us"):format(behind, cells, TIE))
