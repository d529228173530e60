-- Every script in examples/ runs, in a short form, and says what its comment promises.
local lfs = require "lfs"

local BUILD = os.getenv "CLALLOC_BUILD" or "build"
local FOLDER = BUILD .. "/examples"
local LUA = "lua5.4 -W "

-- Arguments of the short form, and a line that must come.
local SHORT = {
  vadd = { "", "^11  22  33  44$" },
  heat = { "10", "^400 steps on .*, mean temperature 0%.1%d%d$" },
  mandelbrot = { FOLDER .. "/mandelbrot.ppm 160", "%d ms on .*; 1[89]%.%d %% of the pixels belong to the set$" },
  kmeans = { "5000", "farthest centre off by 0%.00%d+; 0 driver allocations after the first round$" },
  shared_data = { FOLDER .. "/shared_data " .. FOLDER .. "/shared_data.bin", "^C and Lua agree$" },
  heap_limit = { "", "^the limit held, and was raised$" },
  ["heap/lists"] = { "500", "^3190 nodes, as many divisors as Lua finds$" },
  ["heap/hash_table"] = { "2000", "^the table is Lua's$" },
  ["heap/graph"] = { "100", "^every edge is where Lua has it$" },
  ["heap/queue"] = { "500", "^every number is the product of its factors$" },
  ["heap/strings"] = { "300", "^Lua writes the same$" },
  tour = { "", "given back by trim$" },
  planned = { "", "^  one a fifth step came from the pool, the others from the plan +ok$" },
  policy = { "", "^  mine +reserves %d[%d.]+ MiB, 1%.2%d%d of that, in %d+ driver calls" },
  replay = { FOLDER .. "/lifetimes.csv", "^ +operations +4$" },
}

local function run(command)
  local pipe <close> = assert(io.popen("{ " .. command .. "; } 2>&1 </dev/null"))
  local output = pipe:read "a"
  local ok, how, code = pipe:close()
  assert(ok, ("%s: %s %d\n%s"):format(command, how, code, output))
  return output
end

local function has_line(output, pattern)
  for line in output:gmatch "[^\n]+" do
    if line:find(pattern) then return true end
  end
  return false
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  assert(file:write(text))
end

local function scripts()
  local names = {}
  for _, folder in ipairs { "", "heap/" } do
    for entry in lfs.dir("examples/" .. folder) do
      local name = entry:match "^(.*)%.lua$"
      if name then names[#names + 1] = folder .. name end
    end
  end
  table.sort(names)
  return names
end

describe("the example", function()
  setup(function()
    run(("mkdir -p '%s'"):format(FOLDER))
    run(("gcc -Isrc examples/c/shared_data.c -o '%s/shared_data' -L'%s' -Wl,-rpath,\"$(realpath '%s')\" "
      .. "-lclalloc -lOpenCL"):format(FOLDER, BUILD, BUILD))
    write(FOLDER .. "/lifetimes.csv", "id,lower,upper,size\n0,0,2,1000\n1,1,3,5000\n")
  end)

  for _, name in ipairs(scripts()) do
    it(name .. " runs", function()
      local arguments, pattern = table.unpack(SHORT[name] or { "", "" })
      local output = run(LUA .. ("examples/%s.lua %s"):format(name, arguments))
      assert(has_line(output, pattern), output)
    end)

    it(name .. " says on top what it does", function()
      local file <close> = assert(io.open(("examples/%s.lua"):format(name)))
      local head = file:read(4000):match "^(.-\n)[^%-]"
      assert(head and head:find "^%-%- " and head:find "[Yy]ou will see", head)
    end)
  end

  it("mandelbrot has written a picture of the size that it names", function()
    local file <close> = assert(io.open(FOLDER .. "/mandelbrot.ppm", "rb"))
    assert.equal("P6 160 120 255", file:read "l")
    local pixels = file:read "a"
    assert.equal(3 * 160 * 120, #pixels)
    local middle = 3 * (160 * 60 + 90)
    assert.equal("\0\0\0", pixels:sub(middle + 1, middle + 3))
    assert.not_equal("\0\0\0", pixels:sub(1, 3))
  end)
end)
