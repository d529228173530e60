-- 10,000 broken traces: each is read, or refused with file and position; what was read can be saved in every format and
-- is the same when it is read again. CLALLOC_SEED chooses others. Needs no device.

local trace = require "clalloc.trace"
local files = require "spec.trace_files"

local SEED = math.tointeger(tonumber(os.getenv "CLALLOC_SEED" or 1)) or 1
local CASES = 5000 -- of pickles, and of texts
local INSTRUCTIONS, KIBIBYTES = 20000000, 200 * 1024 -- of one case: far above what any of these files takes

-- Correct files to begin with.

local function saved(t, format)
  local path = files.path()
  assert(t:save(path, format))
  local content = files.read(path)
  os.remove(path)
  return content
end

local function originals()
  local t = trace.new(files.random_recording(11, 60, 15))
  local rec = trace.recorder()
  for i = 1, 12 do
    rec:alloc(i, i * 300, i % 2)
    if i > 4 then rec:free(i - 4) end
  end
  local texts = {
    saved(t, "csv"), saved(t, "rmm"), saved(t, "pytorch_snapshot"), saved(rec:finish(), "csv"),
    "id,lower,upper,size\n0,0,9,100\n1,2,3,8\n2,3,9007199254740992,64\n", "0 4 92928\n1 3 256\n2 9 1\n",
    "seq,thread,bytes_delta,time_us\n0,0,512,0\n1,1,512,3\n2,0,4096,3\n3,1,-512,4\n4,0,-4096,5\n",
  }
  return { saved(t, "pickle"), saved(rec:finish(), "pickle") }, texts
end

-- What breaks them.

local OPCODES = "(}])tldueas.NKMJGXhjqrcRbio012\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x93\x94\x95"
local FRAGMENTS = {
  "0", "-", "-1", "1.5", "1e9", "nan", "9007199254740993", "18446744073709551616", "0x", "(nil)", "alloc", "free",
  "segment_alloc", "\r\n", "\n", ",", ",,", "#1", "\0", "\xff", "\xEF\xBB\xBF", "%d%s", "final_block", ("9"):rep(400),
}

local function random_piece(content)
  local first = math.random(#content)
  return content:sub(first, first + math.random(0, 40))
end

local function random_insertion(content)
  local dice = math.random(4)
  if dice == 1 then
    return string.char(math.random(0, 255))
  elseif dice == 2 then
    local i = math.random(#OPCODES)
    return OPCODES:sub(i, i)
  elseif dice == 3 then
    return FRAGMENTS[math.random(#FRAGMENTS)]
  end
  return random_piece(content)
end

local function mutate(content)
  for _ = 1, math.random(3) do
    local at = math.random(#content)
    local head, tail = content:sub(1, at - 1), content:sub(at)
    local dice = math.random(6)
    if dice == 1 then
      content = head
    elseif dice == 2 then
      content = head .. tail:sub(math.random(2, 20))
    elseif dice == 3 then
      content = head .. string.char(tail:byte(1) ~ 1 << math.random(0, 7)) .. tail:sub(2)
    elseif dice == 4 then
      content = head .. random_insertion(content) .. tail:sub(2)
    else
      content = head .. random_insertion(content) .. tail
    end
    if #content == 0 then break end
  end
  return content
end

-- A case that takes too long or too much is an error that has no position.
local function bounded(f, ...)
  local left, start = INSTRUCTIONS, collectgarbage "count"
  debug.sethook(function()
    left = left - 10000
    if left < 0 then error "it does not end" end
    if collectgarbage "count" - start > KIBIBYTES then error "it takes too much memory" end
  end, "", 10000)
  local results = table.pack(pcall(f, ...))
  debug.sethook()
  return table.unpack(results, 1, results.n)
end

local function has_position(message, path)
  if type(message) ~= "string" or message:sub(1, #path) ~= path then return false end
  local rest = message:sub(#path + 1)
  return rest:find "^:%d+: ." or rest:find "^: byte %d+: ."
end

-- Sizes in order; those of the initial blocks, which a pickle gives in order of address, by size.
local function sizes_of(t)
  local initial = table.move(t.size, 1, t.initial, 1, {})
  table.sort(initial)
  return table.concat(initial, ",") .. ";" .. table.concat(t.size, ",", t.initial + 1)
end

local function check_saving(t, path)
  for _, format in ipairs { "csv", "pickle", "rmm", "chrome" } do
    os.remove(path) -- some file systems wait for the disk when a file is written over
    local ok, saved_it, message = bounded(t.save, t, path, format)
    if not ok then return ("save as %s raises %s"):format(format, saved_it) end
    if not saved_it and not message:find "^the blocks do not fit addresses" then return message end
    if saved_it and format ~= "chrome" then
      local reread, again = bounded(trace.load, path)
      if not reread then return ("read again as %s: %s"):format(format, again) end
      local expected = format == "rmm" and table.concat(t.size, ",") or sizes_of(t)
      if expected ~= (format == "rmm" and table.concat(again.size, ",") or sizes_of(again)) then
        return ("not the same as %s"):format(format)
      end
    end
  end
end

local function run(contents)
  math.randomseed(SEED)
  local path, outcome = files.path "", { read = 0, refused = 0 }
  for case = 1, CASES do
    local content = mutate(contents[math.random(#contents)])
    os.remove(path)
    files.write(path, content)
    local ok, result = bounded(trace.load, path)
    local fault
    if ok then
      outcome.read = outcome.read + 1
      fault = check_saving(result, path)
    else
      outcome.refused = outcome.refused + 1
      fault = not has_position(result, path) and "no position: " .. tostring(result) or nil
    end
    if fault then
      error(("seed %d, case %d: %s\n%q"):format(SEED, case, fault, content))
    end
  end
  return outcome
end

describe(("broken traces (seed %d)"):format(SEED), function()
  local pickles, texts

  setup(function() pickles, texts = originals() end)
  after_each(files.remove_all)

  it("as pickles are refused with file and byte, or read", function()
    local outcome = run(pickles)
    assert.is_true(outcome.refused > CASES // 2)
    assert.is_true(outcome.read > CASES // 100)
  end)

  it("as text are refused with file and line, or read", function()
    local outcome = run(texts)
    assert.is_true(outcome.refused > CASES // 2)
    assert.is_true(outcome.read > CASES // 100)
  end)
end)
