-- examples/replay.lua, as a user runs it.

local files = require "spec.trace_files"

local function quoted(text)
  return "'" .. text:gsub("'", [['\'']]) .. "'"
end

-- Exit code, standard output, standard error.
local function run_example(arguments)
  local out, err = os.tmpname(), os.tmpname()
  -- The environment's module, not this process's: that may be one with a sanitizer in it.
  local command = ("LUA_PATH=%s LUA_CPATH=%s lua5.4 examples/replay.lua %s >%s 2>%s"):format(
    quoted(os.getenv "LUA_PATH" or package.path), quoted(os.getenv "LUA_CPATH" or package.cpath), arguments, out, err)
  local _, _, code = os.execute(command)
  local texts = {}
  for i, path in ipairs { out, err } do
    local handle = assert(io.open(path, "rb"))
    texts[i] = handle:read("a")
    handle:close()
    os.remove(path)
  end
  return code, texts[1], texts[2]
end

-- A file with this source, gone at the end of the scope. Its name says that it is Lua.
local function policy_file(source)
  local name = os.tmpname()
  os.remove(name)
  local file <close> = assert(io.open(name .. ".lua", "w"))
  file:write(source)
  return setmetatable({ path = name .. ".lua" }, { __close = function() os.remove(name .. ".lua") end })
end

-- What Python prints for a program given this input; nil without Python.
local function python(program, input)
  local name = os.tmpname()
  local file = assert(io.open(name, "w"))
  file:write(input)
  file:close()
  local pipe = assert(io.popen(("command -v python3 >/dev/null && python3 -c '%s' <%s"):format(program, name)))
  local said = pipe:read "a"
  pipe:close()
  os.remove(name)
  return said ~= "" and said or nil
end

describe("examples/replay.lua", function()
  local path

  before_each(function()
    path = os.tmpname()
    assert(files.rounds(10, files.MIXED):save(path, "pytorch_snapshot"))
  end)

  after_each(function()
    os.remove(path)
  end)

  local function append(text)
    local handle = assert(io.open(path, "ab"))
    handle:write(text)
    handle:close()
  end

  it("prints the figures of each file", function()
    local code, out, err = run_example(("%s %s --simulate 1"):format(path, path))
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal(2, select(2, out:gsub("operations +140\n", "")))
  end)

  it("takes a policy and a scale", function()
    local code, out = run_example(path .. " --simulate=0.5 --policy direct --scale 64")
    assert.equal(0, code)
    assert.matches("sizes / 64", out, 1, true)
    assert.matches("policy direct", out, 1, true)
    assert.matches("driver calls +140\n", out)
  end)

  it("stops at a malformed row with file, line and reason", function()
    append("0,alloc,0x1,-5,0,0\n")
    local code, out, err = run_example(path .. " --simulate 1")
    assert.equal(1, code)
    assert.equal("", out)
    assert.equal(("replay.lua: %s:212: size is negative: -5\n"):format(path), err)
  end)

  it("fails when allocations fail", function()
    append("0,alloc,0x1,4294967296,0,0\n")
    local code, out, err = run_example(path .. " --simulate 1")
    assert.equal(1, code)
    assert.matches("failed allocations +1\n", out)
    assert.equal("replay.lua: 1 allocations failed\n", err)
  end)

  it("names what is wrong with its arguments", function()
    local function refuses(arguments, message)
      local code, out, err = run_example(arguments)
      assert.equal(2, code)
      assert.equal("", out)
      assert.equal(1, err:find("replay.lua: " .. message .. "\nUsage: ", 1, true), err)
    end
    refuses("", "missing argument 'FILE'")
    refuses("x --policy best", "unknown policy 'best'; there are: "
      .. "arena, bins, buddy, caching, direct, planned, rmm, torch")
    refuses("x --scale 0", "--scale wants a whole number of at least 1, got '0'")
    refuses("x --scale", "option '--scale' requires an argument")
    refuses("x --simulate lots", "--simulate wants a number of GiB above 0, got 'lots'")
    refuses("x --simulate 1 --device 0", "option '--device' can not be used together with option '--simulate'")
    refuses("x --policy caching,", "--policy wants names or files separated by commas, got 'caching,'")
    refuses("x --limit 0", "--limit wants a number of GiB above 0, got '0'")
    refuses("x --limit=nan", "--limit wants a number of GiB above 0, got 'nan'")
    refuses("x --streams 0", "--streams wants a whole number of at least 1 and at most 1024, got '0'")
    refuses("x --streams 2.5", "--streams wants a whole number of at least 1 and at most 1024, got '2.5'")
    refuses("x --cost none", "--cost wants a number of microseconds above 0, got 'none'")
    refuses("x --plot=", "--plot wants the name of a file")
    refuses("x y --plot a.svg", "--plot draws one FILE, there are 2")
    refuses("x --json=1", "option '--json' does not take arguments")
    refuses("x --fit --fit=yes", "option '--fit' does not take arguments")
    refuses("x --fast", "unknown option '--fast'")
    refuses("x -f", "unknown option '-f'\nDid you mean '-h'?")
  end)

  it("compares policies in one run, with those of a file", function()
    local mine <close> = policy_file 'return require "clalloc".policy.caching { grain = 512 }'
    local maker <close> = policy_file 'return function(t, d) return d.simulated and t.slots and "direct" end'
    local code, out, err = run_example(("%s --simulate 1 --policy caching,direct,%s,%s --fit --cost 100"):format(path,
      mine.path, maker.path))
    assert.equal("", err)
    assert.equal(0, code)
    assert.matches("\n  policy +driver calls +driver time +peak live +peak reserved +ratio +internal +external "
      .. "+smallest limit +/ live +ns/op\n", out)
    assert.matches("\n  caching +%d+ ", out)
    assert.equal(2, select(2, out:gsub("\n  direct +140 +14%.0 ms ", "")))
    assert.matches("driver time: 100 us a call, as told\n", out, 1, true)
  end)

  it("says whether it fits", function()
    local fits = run_example(path .. " --simulate 1 --limit 0.1")
    local code, out, err = run_example(path .. " --simulate 1 --limit 0.002")
    assert.equal(0, fits)
    assert.equal(1, code)
    assert.matches("first failure: operation 5, 3145728 bytes: out of memory", out, 1, true)
    assert.equal("replay.lua: 10 allocations failed\n", err)
  end)

  it("deals allocations out to streams", function()
    local code, out = run_example(path .. " --simulate 1 --streams 3")
    assert.equal(0, code)
    assert.matches("operations +140\n", out)
  end)

  it("prints JSON", function()
    local mine <close> = policy_file 'return { name = "a \\"policy\\"\\n" }'
    local code, out, err = run_example(("%s %s --simulate 1 --json --cost 2 --policy caching,direct,%s"):format(path,
      path, mine.path))
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal(6, select(2, out:gsub('"operations": 140, ', "")))
    assert.equal(2, select(2, out:gsub('"policy": "direct", ', "")))
    assert.equal("[{", out:sub(1, 2))
    assert.equal("}]\n", out:sub(-3))
    local read = python("import json, sys; print(len(json.load(sys.stdin)))", out)
    assert.equal("6\n", read or "6\n")
  end)

  it("draws", function()
    local picture = os.tmpname()
    local code, _, err = run_example(("%s --simulate 1 --plot %s"):format(path, picture))
    if err:find "gnuplot is not installed" then return pending "gnuplot" end
    assert.equal("", err)
    assert.equal(0, code)
    local file <close> = assert(io.open(picture))
    assert.matches("^<%?xml .*<svg .*</svg>%s*$", file:read "a")
    os.remove(picture)
    local where = "/no/such/folder/x.svg"
    local failed, _, why = run_example(("%s --simulate 1 --plot %s"):format(path, where))
    assert.equal(1, failed)
    assert.equal("replay.lua: plot: /no/such/folder/x.svg: No such file or directory\n", why)
  end)

  it("names what is wrong with a policy file", function()
    local function refuses(source, message)
      local mine <close> = policy_file(source)
      local code, out, err = run_example(path .. " --simulate 1 --policy " .. mine.path)
      assert.equal(2, code)
      assert.equal("", out)
      assert.matches(message, err)
      assert.matches("\nUsage: ", err, 1, true)
    end
    refuses("return 7", ": it must return a policy, or a function that makes one, and returned number\n")
    refuses("", ": it must return a policy, or a function that makes one, and returned nil\n")
    refuses("return { no_such_decision = 1 }", "policy.new: no parameter is named 'no_such_decision'\n")
    refuses("return { round = {} }", "policy.new: round: table: 0x%x+ is no such decision\n")
    refuses("return {", ":1: unexpected symbol near <eof>\n")
    refuses("error 'no luck'", "no luck\n")
    local code, _, err = run_example(path .. " --simulate 1 --policy ./no-such.lua")
    assert.equal(2, code)
    assert.matches("replay.lua: cannot open ./no-such.lua", err, 1, true)
  end)

  it("names what is wrong with the policy that a file returns", function()
    local function fails(source, message)
      local mine <close> = policy_file(source)
      local code, _, err = run_example(path .. " --simulate 1 --policy " .. mine.path)
      assert.equal(1, code)
      assert.matches(message, err)
    end
    fails("return function() return 7 end", "replay: policy: expected a policy from the function, got number\n")
    fails("return function() error 'no luck' end", "no luck\n")
  end)

  it("explains itself", function()
    local code, out = run_example "--help"
    assert.equal(0, code)
    assert.matches("Usage: replay.lua ", out, 1, true)
  end)
end)
