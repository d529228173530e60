-- Every driver call of a session fails in turn: the first, the second, and so on until the session makes
-- fewer calls than that; then the first, second, ... of each kind. Whatever fails, the script gets a
-- clean error, its pool's recount agrees, and nothing of the driver's is left when all is closed.
-- (ROCm/rocm-systems#11643)

local cl = require "clalloc"
local fault_session = require "spec.fault_session"

local SOURCE <const> = [[
kernel void add(global const uchar *x, global uchar *y, uint n) {
  for (uint i = 0; i < n; i++) y[i] += x[i];
}
]]

local Session = fault_session.new { NOMEM = true, LIMIT = true, DRIVER = true, UNSUPPORTED = true }

local function check(pool)
  local ok, message = pool:check()
  assert(ok, message)
end

-- Transfers between a buffer and the host, in every form.
function Session:transfer(dev, x, y, s)
  local text = ("some bytes "):rep(9)
  local wrote = self:try(x.write, x, text, 7, { stream = s })
  local back = self:try(x.read, x, 7, #text, { stream = s })
  if wrote and back and not dev.simulated then assert(back == text, "wrong bytes") end
  self:open(x.write, x, text, 200, { stream = s, async = true })
  local read = self:open(x.read, x, 200, 20, { stream = s, async = true })
  if read then
    self:try(read.wait, read)
    self:try(read.status, read)
    self:try(read.seconds, read)
    self:try(read.data, read)
  end
  self:try(x.fill, x, "ab", { offset = 2, size = 64, stream = s })
  self:open(x.fill, x, 1, { stream = s, async = true })
  self:try(y.copy, y, x, { size = 100, stream = s })
  self:open(y.copy, y, x, { size = 100, offset = 512, stream = s, async = true })
end

function Session:map(x)
  for _, mode in ipairs { "r", "rw", "discard" } do
    local map = self:try(x.map, x, mode, 0, 64)
    if map then
      if mode ~= "discard" then self:try(map.read, map) end
      if mode ~= "r" then self:try(map.write, map, "mapped") end
      map:close()
    end
  end
end

function Session:launch(dev, x, y, s)
  local prog = self:open(dev.program, dev, SOURCE)
  if not prog then return end
  local add = self:open(function() return prog.add end)
  if not add then return end
  local event = self:open(add, { x, y, 100, size = 1, stream = s })
  local view = self:open(y.view, y, dev.align, 256)
  if view then self:open(add, { x, view, 100, size = 1, stream = s, wait = event and { event } or nil }) end
  if event then self:try(event.wait, event) end
end

function Session:hold(dev, x, s, other)
  local gate = self:open(dev.gate, dev)
  if not gate then return end
  self:try(s.wait, s, gate)
  self:open(x.fill, x, 2, { stream = s, async = true })
  self:try(x.record, x, other)
  self:try(other.wait, other, s)
  self:try(s.query, s)
  self:try(gate.open, gate)
  self:try(s.finish, s)
  self:try(other.finish, other)
end

function Session:use(dev, pool, s, other)
  local x = self:open(pool.alloc, pool, 5000, s)
  local y = self:open(pool.alloc, pool, 70000, other)
  check(pool)
  if x and y then
    self:transfer(dev, x, y, s)
    self:map(x)
    check(pool)
    self:launch(dev, x, y, s)
    self:hold(dev, x, s, other)
    check(pool)
  end
  if x then x:close() end
  if y then y:close() end
  check(pool)
  -- More than is left: adopts, waits, gives back.
  local big = self:open(pool.alloc, pool, 3 * cl.MiB, other)
  local bigger = self:open(pool.alloc, pool, 1000, s)
  check(pool)
  if big then big:close() end
  if bigger then bigger:close() end
  self:try(pool.trim, pool)
  check(pool)
end

-- Copies to another device and back.
function Session:reach(dev, pool, s)
  local far = self:open(cl.simulate, { capacity = cl.MiB })
  if not far then return end
  local x, y = self:open(pool.alloc, pool, 1000, s), self:open(far.alloc, far, 1000)
  if not (x and y) then return end
  self:try(y.copy, y, x, { stream = s })
  self:try(x.copy, x, y, { stream = s })
  local there = self:open(y.copy, y, x, { stream = s, async = true })
  local back = self:open(x.copy, x, y, { stream = s, async = true })
  if dev.simulated then dev:complete(s) end -- a wait for one device does not make another do its part
  self:try(s.finish, s)
  if there then self:try(there.wait, there) end
  if back then self:try(back.wait, back) end
  check(pool)
end

function Session:run(open_device, options)
  local dev = self:open(open_device)
  if not dev then return end
  local pool = self:open(dev.pool, dev, options)
  local s, other = self:open(dev.stream, dev), self:open(dev.stream, dev)
  if pool and s and other then
    self:use(dev, pool, s, other)
    self:use(dev, pool, other, s)
    self:reach(dev, pool, s)
    local own = self:open(dev.alloc, dev, 100) -- the default pool and stream
    if own then self:try(own.fill, own, 0) end
  end
end

local devices = {
  ["a simulated device"] = {
    function() return cl.simulate { capacity = 64 * cl.MiB } end, { limit = 4 * cl.MiB },
  },
  ["a simulated device that completes commands late"] = {
    function() return cl.simulate { capacity = 64 * cl.MiB, manual = true } end, { limit = 4 * cl.MiB },
  },
  ["a simulated device that backs memory late"] = {
    function() return cl.simulate { capacity = 64 * cl.MiB, lazy = true } end,
    { limit = 4 * cl.MiB, commit = false },
  },
  ["a pool that keeps nothing"] = {
    function() return cl.simulate { capacity = 64 * cl.MiB } end, { policy = "direct" },
  },
}

describe("a session in which a driver call fails", function()
  after_each(function() cl.debug.fail("any", 0) end)

  for name, device in pairs(devices) do
    it("ends clean on " .. name .. ", whichever call it is", function()
      local calls, felt = Session:every_fault("any", {}, device[1], device[2])
      assert(calls > 100, calls)
      assert(felt > 50, felt)
    end)

    it("ends clean on " .. name .. ", whichever of a kind", function()
      for _, call in ipairs(Session:kinds(device[1], device[2])) do
        local calls = Session:every_fault(call, {}, device[1], device[2])
        assert(calls > 0 or call == "svm_free", call)
      end
    end)
  end

  it("ends clean on a real device, whichever call it is", function()
    local calls, felt = Session:every_fault("any", {}, cl.device, { limit = 4 * cl.MiB })
    assert(calls > 100, calls)
    assert(felt > 50, felt)
  end)

  it("ends clean on a real device, at the first and second call of each kind", function()
    for _, call in ipairs(Session:kinds(cl.device, { limit = 4 * cl.MiB })) do
      Session:every_fault(call, { most = 2 }, cl.device, { limit = 4 * cl.MiB })
    end
  end)

  it("ends clean in a pool of shared virtual memory", function()
    local dev <close> = cl.device()
    if not dev.has_svm then return pending "the device has no shared virtual memory" end
    local calls = { "svm_alloc", "create_buffer", "create_sub_buffer", "enqueue_migrate", "release_mem" }
    for _, call in ipairs(calls) do
      Session:every_fault(call, {}, cl.device, { limit = 4 * cl.MiB, svm = true })
    end
  end)
end)

describe("a program in which a call fails while devices are looked for and opened", function()
  local PROGRAM <const> = [[
    local cl = require "clalloc"
    local n, felt = 0, 0
    repeat
      n = n + 1
      cl.debug.fail("any", n)
      local ok, list, message = pcall(cl.devices)
      assert(ok and (list or type(message) == "string"), list)
      if not list then felt = felt + 1 end
      for _, dev in ipairs(list or {}) do dev:close() end
      local dev
      ok, dev, message = pcall(cl.device)
      assert(ok or type(dev) == "string")
      if not ok or not dev then felt = felt + 1 end
      if ok and dev then
        local buf = dev:alloc(100)
        if buf then buf:fill(0); buf:close() else felt = felt + 1 end
        dev:close()
      end
      list, dev = nil, nil
      collectgarbage()
      collectgarbage()
      local fired = not cl.debug.armed()
      cl.debug.fail("any", 0)
      assert(cl.debug.live "all" == 0, n .. ": driver objects are live")
    until not fired
    assert(n > 20 and felt > 5, n .. " calls, " .. felt .. " felt")
    io.write "clean"
  ]]

  it("goes on, and leaves nothing behind", function()
    local name = os.tmpname()
    local file <close> = assert(io.open(name, "w"))
    file:write(PROGRAM)
    file:close()
    local module = os.getenv "LUA_CPATH" and "" or
      ("LUA_PATH='%s' LUA_CPATH='%s'"):format(package.path, package.cpath)
    local pipe <close> = assert(io.popen(("%s timeout 120 lua5.4 %s 2>&1"):format(module, name)))
    local output = pipe:read "a"
    os.remove(name)
    assert.equal("clean", output)
  end)
end)
