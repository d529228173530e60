-- The same data in a C program and in Lua.
--
--   cc -Isrc examples/c/shared_data.c -o build/shared_data -Lbuild -Wl,-rpath,$PWD/build -lclalloc -lOpenCL
--   lua5.4 examples/shared_data.lua build/shared_data [FILE]
--
-- You will see four lines of figures, then "C and Lua agree". The C program makes numbers on the device and writes them
-- as they lie in memory; Lua reads them into a buffer and says the same of them. Then a kernel of Lua's changes every
-- number, the file is written again, and the C program says the same of it as Lua.

local cl = require "clalloc"

local PROGRAM = arg[1] or error("usage: shared_data.lua PROGRAM [FILE]; the script's comment says what to build", 0)
local PATH = arg[2] or os.tmpname()

local function run(what)
  local pipe <close> = assert(io.popen(("'%s' %s '%s'"):format(PROGRAM, what, PATH)))
  local line = pipe:read "l"
  assert(pipe:close())
  print(("C   %-6s %s"):format(what, line))
  return line
end

local function figures(what, bytes)
  local sum, bits = 0, 0
  for position = 1, #bytes, 4 do
    local number = string.unpack("<I4", bytes, position)
    sum, bits = sum + number, bits ~ number
  end
  local line = ("%d numbers, sum %d, xor %d"):format(#bytes // 4, sum, bits)
  print(("Lua %-6s %s"):format(what, line))
  return line
end

local function slurp()
  local file <close> = assert(io.open(PATH, "rb"))
  return file:read "a"
end

local function spit(bytes)
  local file <close> = assert(io.open(PATH, "wb"))
  assert(file:write(bytes))
end

local dev <close> = cl.device()
local made = run "write"
local bytes = slurp()
local buffer <close> = assert(dev:alloc(#bytes))
buffer:write(bytes)
local is_equal = figures("read", buffer:read()) == made

dev:program "kernel void flip(global uint *x) { x[get_global_id(0)] ^= 0x55aa55aa; }"
  .flip { buffer, size = #bytes // 4 }:close()
local changed = buffer:read()
spit(changed)
is_equal = figures("write", changed) == run "read" and is_equal
if not arg[2] then os.remove(PATH) end

print(is_equal and "C and Lua agree" or "C and Lua do not agree")
os.exit(is_equal, true)
