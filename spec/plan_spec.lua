-- Plans of traces: where each allocation goes, made beforehand. spec/c/plan.c tests the planner itself.

local cl = require "clalloc"
local trace = cl.trace

-- Blocks as pairs of {first operation, size}, from a list of keys: a key's second appearance frees it.
local function recorded(list, streams)
  local rec, live = trace.recorder(), {}
  for _, item in ipairs(list) do
    local key, size = item[1], item[2]
    if live[key] then
      rec:free(key)
      live[key] = nil
    else
      rec:alloc(key, size, streams and streams[key])
      live[key] = true
    end
  end
  return rec:finish "made by hand"
end

local function random_trace(seed, operations, streams)
  math.randomseed(seed)
  local rec, live, key = trace.recorder(), {}, 0
  for _ = 1, operations do
    if #live > 0 and math.random(100) <= 45 then
      rec:free(table.remove(live, math.random(#live)))
    else
      key = key + 1
      live[#live + 1] = key
      rec:alloc(key, math.random(0, 1 << math.random(0, 20)), math.random(0, streams - 1))
    end
  end
  return rec:finish("seed " .. seed)
end

-- Pair by pair: blocks that live at once, or are of different streams, share no byte.
local function assert_apart(plan)
  for i = 1, plan.blocks do
    local low, high = plan.offset[i], plan.offset[i] + math.max(plan.size[i], 1)
    assert(low % plan.align == 0 and low >= 0 and high <= plan.nbytes, i)
    for j = 1, i - 1 do
      local meets = plan.stream[i] ~= plan.stream[j] or plan.lower[i] < plan.upper[j] and plan.lower[j] < plan.upper[i]
      if meets and low < plan.offset[j] + math.max(plan.size[j], 1) and plan.offset[j] < high then
        error(("blocks %d and %d share bytes"):format(i, j))
      end
    end
  end
end

describe("a plan", function()
  it("puts blocks that follow one another into the same place", function()
    local p = cl.plan(recorded { { 1, 1000 }, { 1 }, { 2, 1000 }, { 2 }, { 3, 512 } })
    assert.same({ 0, 0, 0 }, p.offset)
    assert.equal(1024, p.nbytes)
    assert.equal(1000, p.peak_live)
    assert.equal(1.024, p.ratio)
    assert.equal(1024, p.floor)
    assert.same({ 1, 3, 5 }, p.lower)
    assert.same({ 2, 4, 6 }, p.upper) -- the last is never freed
    assert.equal(3, p.blocks)
  end)

  it("keeps apart what lives at once, on one stream and on several", function()
    for seed = 1, 12 do
      local p = cl.plan(random_trace(seed, 600, 1 + seed % 3), { align = 1 << seed })
      assert_apart(p)
      assert.is_true(p:check())
      assert.is_true(p.nbytes >= p.floor)
    end
  end)

  it("gives each stream an area of its own", function()
    local p = cl.plan(recorded({ { 1, 600 }, { 1 }, { 2, 600 }, { 2 }, { 3, 5000 } }, { "a", "b", "b" }))
    assert.same({ offset = 0, nbytes = 0 }, p.areas[0])
    assert.same({ offset = 0, nbytes = 1024 }, p.areas[1])
    assert.same({ offset = 1024, nbytes = 5120 }, p.areas[2])
    assert.same({ 0, 1024, 1024 }, p.offset)
    assert.equal(6144, p.nbytes)
  end)

  it("is lower after a search, and the same after the same steps", function()
    local t = random_trace(3, 400, 1)
    local usual, searched = cl.plan(t), cl.plan(t, { steps = 300 })
    assert.equal(0, usual.steps)
    assert.is_true(searched.steps > 0 and searched.steps <= 300)
    assert.is_true(searched.nbytes < usual.nbytes)
    assert_apart(searched)
    assert.same(searched.offset, cl.plan(t, { steps = 300 }).offset)
  end)

  it("ends a search that has reached the floor", function()
    local t = recorded { { 1, 512 }, { 2, 512 }, { 1 }, { 3, 512 } }
    local p = cl.plan(t, { seconds = 1e9 })
    assert.equal(p.floor, p.nbytes)
    assert.equal(0, p.steps)
  end)

  it("lets what a round leaves behind live all the time", function()
    local t = recorded { { 1, 512 }, { 1 }, { 2, 512 } }
    assert.equal(512, cl.plan(t).nbytes)
    local p = cl.plan(t, { repeats = true })
    assert.equal(1024, p.nbytes)
    assert.same({ 1, 3 }, p.lower)
    assert.same({ [2] = true }, p.always)
    assert.equal(4, p.upper[2])
    assert.is_true(p:check())
    p.offset[2] = p.offset[1]
    assert.error_matches(function() p:check() end, "block %d at %d+ and block %d at %d+ overlap")
  end)

  it("of nothing is empty", function()
    local p = cl.plan(trace.recorder():finish())
    assert.equal(0, p.nbytes)
    assert.equal(1.0, p.ratio)
    assert.is_true(p:check())
    assert.matches("^plan of recorded: 0 blocks", tostring(p))
  end)

  it("of blocks of no bytes gives each an address", function()
    local p = cl.plan(recorded { { 1, 0 }, { 2, 0 } })
    assert.equal(1024, p.nbytes)
    assert.not_equal(p.offset[1], p.offset[2])
  end)

  it("notices when it was changed", function()
    local function changed(how)
      local p = cl.plan(recorded { { 1, 512 }, { 2, 512 }, { 1 }, { 2 } })
      how(p)
      return function() p:check() end
    end
    assert.error_matches(changed(function(p) p.offset[2] = p.offset[1] end),
      "block 1 at %d+ and block 2 at %d+ overlap")
    assert.error_matches(changed(function(p) p.offset[2] = 100 end), "block 2: offset 100 is no multiple of 512")
    assert.error_matches(changed(function(p) p.offset[1] = 1 << 20 end), "block 1 at 1048576 of 512 bytes: not inside")
    assert.error_matches(changed(function(p) p.offset[1] = -512 end), "block 1 at %-512 of 512 bytes: not inside")
    assert.error_matches(changed(function(p) p.offset[2] = nil end), "block 2 at nil")
    assert.error_matches(changed(function(p) p.size[2] = 600 end), "not inside")
    assert.error_matches(changed(function(p) p.upper[1] = 0 end), "block 1 lives from 1 to 0")
  end)

  it("refuses misuse", function()
    local t = recorded { { 1, 64 } }
    local function refuses(message, ...)
      local args = table.pack(...)
      assert.error_matches(function() cl.plan(table.unpack(args, 1, args.n)) end, message)
    end
    refuses("plan: trace: expected a trace, got nil")
    refuses("plan: trace: expected a trace, got string", "x.csv")
    refuses("plan: trace: expected a trace, got table", {})
    refuses("plan: options: expected a table, got number", t, 512)
    refuses("plan: no option is named 'alignment'; there are align, repeats, seconds, steps", t, { alignment = 512 })
    for _, align in ipairs { 0, -1, 3, 1.5, 2 ^ 53, "16", 0 / 0, math.mininteger } do
      refuses("plan: align: expected a power of two, got ", t, { align = align })
    end
    for _, seconds in ipairs { -1, 0 / 0, math.huge, "3" } do
      refuses("plan: seconds: expected a number of at least 0, got ", t, { seconds = seconds })
    end
    for _, steps in ipairs { -1, 1.5, "3", 0 / 0 } do
      refuses("plan: steps: expected an integer of at least 0, got ", t, { steps = steps })
    end
    refuses("below 2%^62", t, { align = 1 << 62 })
  end)
end)

-- Recordings of real programs, where they lie beside the checkout.

local FOLDER = "../shared/traces/"
local NAMES = {
  "pytorch_snapshot/lm_128_train.csv", "pytorch_snapshot/lm_512_infer.csv", "lifetimes/mindspore_resnet50.csv",
  "lifetimes/mindspore_pangu_2.6B.csv", "lifetimes/alexnet_train.log",
}

local function is_readable(path)
  local handle = io.open(path, "rb")
  return handle and handle:close()
end

if is_readable(FOLDER .. NAMES[1]) then
  describe("a plan of a recording", function()
    for _, name in ipairs(NAMES) do
      it("is within 2 % of what is live: " .. name, function()
        local p = cl.plan(trace.load(FOLDER .. name))
        assert.is_true(p:check())
        assert.is_true(p.ratio >= 1 and p.ratio <= 1.02, ("%.4f"):format(p.ratio))
      end)
    end
  end)
end
