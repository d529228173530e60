-- malloc in kernels under Oclgrind, a simulator that watches every access: no invalid read or write, no misuse of the
-- API, and no data race but those on the list below. Each program is an example with few work-items, or the one below.
-- Oclgrind sees no order that atomics make, so it has to report what hands memory from item to item within a kernel.

local OCLGRIND = os.execute "command -v oclgrind >/dev/null 2>&1"

-- Kernels with races that are none, and why.
local ALLOWED = {
  count = "a node is filled in before compare-and-swap puts it into its chain, where other items read it",
  update = "realloc frees arrays that items after it get again",
  spell = "realloc frees strings that items after it get again",
  own = "an item frees its block, and another gets it",
}

-- And in any kernel: the heap looks at the words it keeps about itself without an atomic, as a hint where to try;
-- what it then does is an atomic, whose result decides. It reads and writes such words as volatile, which it does with
-- no word of a block, and programs here do with none at all outside `count`.
local function is_hint(access)
  return access:find "load volatile" or access:find "store volatile" or access:find "@_Z%d+atomic_"
end

-- Blocks that stay with their item, within a kernel or across kernels; all five functions.
local OWN = [==[
local cl = require "clalloc"
local dev <close> = cl.device()
local program <close> = assert(dev:program([[
kernel void own(global ulong *out) {
  const uint i = get_global_id(0);
  global uint *p = malloc(16 + i % 5 * 40);
  global uint *q = calloc(3, 4);
  if (p && q) { p[0] = i; p[3] = 1; q[0] += i; out[i] = p[0] == q[0]; }
  q = realloc(q, 100);
  if (q && q[0] == i) { q[24] = 1; out[i] += 1; }
  free(p);
  free(q);
}
kernel void make(global ulong *out) {
  global ulong *p = aligned_alloc(64, 64 + get_global_id(0) % 3 * 5000);
  if (p) *p = get_global_id(0);
  out[get_global_id(0)] = (ulong)p;
}
kernel void take(global ulong *out) {
  global ulong *p = (global ulong *)out[get_global_id(0)];
  out[get_global_id(0)] = p && *p == get_global_id(0) ? 2 : 0;
  free(p);
}
]], { heap = true }))
local out <close> = assert(dev:alloc(8 * 48))
for _, kernels in ipairs { { "own" }, { "make", "take" }, { "make", "take" } } do
  for _, name in ipairs(kernels) do assert(program[name] { out, size = 48, group = 8 }) end
  assert(out:read() == string.pack("<I8", 2):rep(48))
end
assert(dev.heap:check() and dev.heap:stats().live_blocks == 0)
print "done"
]==]

-- Two items write one block.
local RACE = [==[
local cl = require "clalloc"
local dev <close> = cl.device()
local program <close> = assert(dev:program([[
kernel void make(global ulong *out) { *out = (ulong)malloc(16); }
kernel void clash(global ulong *out) { *(global uint *)*out = get_global_id(0); }
]], { heap = true }))
local out <close> = assert(dev:alloc(8))
assert(program.make { out, size = 1 })
assert(program.clash { out, size = 2, group = 1 })
dev.default_stream:finish()
print "done"
]==]

local PROGRAMS = {
  { "examples/heap/lists.lua 30", "as many divisors as Lua finds" },
  { "examples/heap/hash_table.lua 100", "the table is Lua's" },
  { "examples/heap/graph.lua 10", "every edge is where Lua has it" },
  { "examples/heap/queue.lua 60", "every number is the product of its factors" },
  { "examples/heap/strings.lua 30", "Lua writes the same" },
  { "-", "done" },
}

-- What the program prints, and what Oclgrind reports.
local function run(options, script, text)
  local input, output = os.tmpname(), os.tmpname()
  local file <close> = assert(io.open(input, "w"))
  assert(file:write(text or OWN))
  assert(file:flush())
  local command = ("env -u CLALLOC_DEVICE timeout 300 oclgrind %s lua5.4 -W %s <%s 2>%s"):format(
    options, script, input, output)
  local pipe <close> = assert(io.popen(command))
  local printed = pipe:read "a"
  local report <close> = assert(io.open(output))
  local reported = report:read "a"
  os.remove(input)
  os.remove(output)
  return printed, reported
end

-- The kernel and the two accesses of each race: the access stands below its entity.
local function races(report)
  local list = {}
  for text in (report .. "\n"):gmatch "data race at global memory address(.-)\n\t?\n\n" do
    local race = { kernel = text:match "Kernel: (%S+)", text = text }
    for access in text:gmatch "entity:[^\n]*\n%s*([^\n]+)" do race[#race + 1] = access end
    list[#list + 1] = race
  end
  return list
end

local function is_known(race)
  return ALLOWED[race.kernel] or (is_hint(race[1]) and is_hint(race[2]))
end

describe("malloc in kernels, watched by Oclgrind,", function()
  if not OCLGRIND then return pending "oclgrind is not installed" end

  for _, program in ipairs(PROGRAMS) do
    local script, wanted = table.unpack(program)

    it("makes no mistake in " .. script, function()
      local printed, report = run("--check-api --max-errors 10", script)
      assert.equal("", report)
      assert.matches(wanted, printed, 1, true)
    end)

    it("has no data race but those known in " .. script, function()
      local printed, report = run("--data-races --max-errors 100000", script)
      assert.matches(wanted, printed, 1, true)
      local list, _, count = races(report), report:gsub("data race at global", "")
      assert.equal(count, #list) -- every report is understood
      for _, race in ipairs(list) do
        assert.equal(2, #race, race.text)
        assert(is_known(race), ("a data race in %s:\n%s"):format(race.kernel, race.text))
      end
    end)
  end

  it("would be seen in a race for a block", function()
    local printed, report = run("--data-races", "-", RACE)
    assert.matches("done", printed)
    local list = races(report)
    assert.equal(1, #list)
    assert.equal("clash", list[1].kernel)
    assert.is_falsy(is_known(list[1]))
  end)
end)
