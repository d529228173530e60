-- Runs the C tests: every spec/c/NAME.c is one program, built by `make test`, that exits with 0 when all is well,
-- with 77 when this machine lacks what it needs. What it prints is shown when it fails.
local lfs = require "lfs"

local SECONDS = 300 -- a program that takes longer hangs
local SKIPPED = 77
local folder = (os.getenv "CLALLOC_BUILD" or "build") .. "/spec"

local function programs()
  local names = {}
  for entry in lfs.dir(folder) do
    local has_source = lfs.attributes("spec/c/" .. entry .. ".c", "mode") == "file"
    if has_source then names[#names + 1] = entry end
  end
  table.sort(names)
  return names
end

local function run(name)
  local pipe <close> = assert(io.popen(("timeout %d '%s/%s' 2>&1"):format(SECONDS, folder, name)))
  local output = pipe:read "a"
  local _, how, code = pipe:close()
  return how, code, output
end

describe("the C test", function()
  for _, name in ipairs(lfs.attributes(folder) and programs() or {}) do
    it(name, function()
      local how, code, output = run(name)
      if code == SKIPPED and how == "exit" then return pending(output) end
      assert(how == "exit" and code == 0, ("%s/%s: %s %d\n%s"):format(folder, name, how, code, output))
    end)
  end
end)
