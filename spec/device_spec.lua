-- Devices: found, chosen, described, current; simulated ones too.

local cl = require "clalloc"
local failure = require "spec.failure"

-- Runs a Lua program of its own and returns what it wrote, errors included.
local function output_of(program, environment)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(program)
  file:close()
  local pipe = assert(io.popen(("%s lua5.4 %s 2>&1"):format(environment or "", path)))
  local text = pipe:read("a")
  pipe:close()
  os.remove(path)
  return text
end

describe("the module", function()
  it("makes no OpenCL call when it is loaded", function()
    assert.equal("0\n", output_of([[print(require "clalloc".debug.calls().total)]]))
  end)

  it("loads twice in one process, each Lua state on its own", function()
    package.loaded["clalloc.core"] = nil
    local again = require "clalloc.core"
    local dev <close> = again.simulate{ capacity = cl.MiB }
    assert.equal("number", type(dev.align))
  end)

  it("has sizes and a version", function()
    assert.equal(1024, cl.KiB)
    assert.equal(1024 * cl.KiB, cl.MiB)
    assert.equal(1024 * cl.MiB, cl.GiB)
    assert.matches("^%d+%.%d+%.%d+$", cl.version)
  end)

  it("says what to install when there is no device", function()
    local text = output_of([[require "clalloc".device()]], "OCL_ICD_VENDORS=/nonexistent/")
    assert.matches("no OpenCL device", text)
    assert.matches("apt%-get install", text)
    assert.equal("0\n", output_of([[print(#require "clalloc".devices())]], "OCL_ICD_VENDORS=/nonexistent/"))
  end)

  it("has a clock that never goes back", function()
    local a = cl.clock()
    assert.is_true(cl.clock() >= a)
  end)
end)

describe("a device", function()
  local dev

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)

  it("is chosen by index, number in a string, type or part of its name", function()
    local by_index <close> = cl.device(dev.index)
    local by_text <close> = cl.device(tostring(dev.index))
    local by_type <close> = cl.device(dev.type)
    local by_name <close> = cl.device(dev.name:sub(2, 12):upper())
    assert.equal(dev, by_index)
    assert.equal(dev, by_text)
    assert.equal(dev.type, by_type.type)
    assert.equal("string", type(by_name.name))
  end)

  it("is chosen by the environment", function()
    local program = [[print(require "clalloc".device().index)]]
    assert.equal("0\n", output_of(program, "CLALLOC_DEVICE=0"))
    assert.matches("no device 'nosuch'; there are 0: ", output_of(program, "CLALLOC_DEVICE=nosuch"))
  end)

  it("that is not there raises, and the message lists those that are", function()
    assert.matches("no device 'nosuch'; there are 0: ", failure(cl.device, "nosuch"))
    assert.matches("no device 1000000", failure(cl.device, 1000000))
  end)

  it("is one of cl.devices(), which are all different", function()
    local all = cl.devices()
    assert.equal(dev, all[dev.index + 1])
    for i, one in ipairs(all) do
      assert.equal(i - 1, one.index)
      if one ~= dev then assert.not_equal(all[dev.index + 1], one) end
    end
    for _, one in ipairs(all) do one:close() end
  end)

  it("describes itself", function()
    for _, name in ipairs{ "name", "platform", "vendor", "version", "driver_version" } do
      assert.equal("string", type(dev[name]))
    end
    for _, name in ipairs{ "global_mem", "max_alloc", "max_group", "local_mem", "compute_units" } do
      assert.is_true(math.type(dev[name]) == "integer" and dev[name] > 0, name)
    end
    assert.equal("boolean", type(dev.has_fp64))
    assert.equal("boolean", type(dev.has_rounded_divide))
    assert.equal("boolean", type(dev.has_svm))
    assert.is_false(dev.simulated)
    assert.is_nil(dev.nosuch)
    local start = ("device (%s, "):format(dev.name)
    assert.equal(start, tostring(dev):sub(1, #start))
    assert.matches("^%d+%.%d [KMGT]iB, pool limit %d+%.%d [KMGT]iB%)$", tostring(dev):sub(#start + 1))
  end)

  it("gives its alignment in bytes, where OpenCL counts bits", function()
    assert.equal(0, dev.align & (dev.align - 1))
    assert.is_true(dev.align <= 4096)
  end)

  it("may be closed and opened again; closing ends one handle only", function()
    local a, b = cl.device(dev.index), cl.device(dev.index)
    a:close()
    a:close()
    assert.equal("device (closed)", tostring(a))
    assert.matches("attempt to use a closed device", failure(function() return a.name end))
    assert.matches("bad self %(attempt to use a closed device%)", failure(function() a:alloc(1) end))
    assert.equal(dev.name, b.name)
    b:close()
    local c <close> = cl.device(dev.index)
    assert.equal(dev, c)
  end)

  it("lives on for what was made with it", function()
    local sim = cl.simulate{ capacity = cl.MiB }
    local buf <close> = assert(sim:alloc(100))
    local stream <close> = sim:stream()
    sim:close()
    assert.is_true(buf:fill(1))
    assert.is_true(stream:finish())
    assert.equal("Simulated", buf.device.name:match("^%a+"))
  end)

  it("has a default stream", function()
    assert.equal(dev.default_stream, dev.default_stream)
    assert.is_true(dev.default_stream:finish())
  end)

  it("has a default pool, one for all handles", function()
    local again <close> = cl.device(dev.index)
    local a <close> = dev:pool()
    local b <close> = again:pool()
    assert.equal(a, b)
  end)
end)

describe("a simulated device", function()
  it("has the memory, alignment and largest allocation that it is told", function()
    local sim <close> = cl.simulate{ capacity = 80 * cl.GiB, align = 4096, max_alloc = 8 * cl.GiB }
    assert.is_true(sim.simulated)
    assert.is_true(sim.has_rounded_divide)
    assert.is_nil(sim.index)
    assert.equal(80 * cl.GiB, sim.global_mem)
    assert.equal(8 * cl.GiB, sim.max_alloc)
    assert.equal(4096, sim.align)
  end)

  it("keeps sizes of more than 32 bits whole (OpenCL.jl#183)", function()
    local sim <close> = cl.simulate{ capacity = 80 * cl.GiB }
    local nbytes = (1 << 32) + 4096
    local buf <close> = assert(sim:alloc(nbytes))
    assert.equal(nbytes, buf.size)
    assert.equal(nbytes, sim:pool():stats().requested_bytes)
    assert.equal(nbytes, sim:pool():snapshot()[1].blocks[1].requested)
    local address = buf.address + nbytes - 1
    local found, offset = cl.resolve(address)
    assert.equal(nbytes - 1, offset)
    found:close()
  end)

  it("completes commands when told to, if it is manual", function()
    local sim <close> = cl.simulate{ capacity = cl.MiB, manual = true }
    local stream <close> = sim:stream()
    local buf <close> = assert(sim:alloc(100, { stream = stream }))
    local first <close> = buf:fill(1, { stream = stream, async = true })
    local second <close> = buf:fill(2, { stream = stream, async = true })
    assert.is_false(first.done)
    assert.equal(1, sim:complete(stream, 1))
    assert.is_true(first.done)
    assert.is_false(second.done)
    assert.is_true(sim:complete(stream) >= 1)
    assert.is_true(second.done)
    stream:query() -- the question is a command too
    sim:complete(stream)
    assert.is_true(stream:query())
  end)

  it("ends with its last handle, also when pools and caches were closed while its commands stood still", function()
    collectgarbage()
    local before = cl.debug.live()
    local device = cl.simulate{ capacity = cl.GiB }
    local stream, gate, pool, host = device.default_stream, device:gate(), device:pool{}, device:host_cache{}
    local buf, pinned = assert(pool:alloc(4096)), assert(host:alloc(4096))
    stream:wait(gate)
    buf:fill(0, { async = true }):close()
    pinned:record(stream)
    for _, object in ipairs{ buf, pinned, pool, host, stream, gate, device } do object:close() end
    assert.same(before, cl.debug.live())
  end)

  it("completes nothing on a real device", function()
    local dev <close> = cl.device()
    assert.matches("is not simulated", failure(dev.complete, dev, dev.default_stream))
  end)

  it("refuses a description that makes no sense", function()
    assert.matches("capacity of 0", failure(cl.simulate, {}))
    assert.matches("no option is named 'size'", failure(cl.simulate, { size = 1 }))
    assert.matches("no power of two", failure(cl.simulate, { capacity = 1, align = 3 }))
    assert.matches("capacity: %-1 is negative", failure(cl.simulate, { capacity = -1 }))
    assert.matches("lazy: 1 is no boolean", failure(cl.simulate, { capacity = 1, lazy = 1 }))
    assert.matches("table expected", failure(cl.simulate))
  end)
end)

describe("cl.debug", function()
  it("counts driver calls by name", function()
    local sim <close> = cl.simulate{ capacity = cl.MiB }
    local before = cl.debug.calls("create_buffer")
    local _ <close> = assert(sim:alloc(1))
    assert.equal(before + 1, cl.debug.calls("create_buffer"))
    assert.equal(before + 1, cl.debug.calls().create_buffer)
    assert.equal(cl.debug.calls().total, cl.debug.calls().total)
    assert.matches("no driver call is named 'nosuch'", failure(cl.debug.calls, "nosuch"))
  end)

  it("counts live objects by kind", function()
    local before = cl.debug.live("queue")
    local sim <close> = cl.simulate{ capacity = cl.MiB }
    local with_device = cl.debug.live("queue")
    local stream = sim:stream()
    assert.is_true(with_device > before)
    assert.equal(with_device + 1, cl.debug.live("queue"))
    assert.equal(with_device + 1, cl.debug.live().queue)
    stream:close()
    assert.equal(with_device, cl.debug.live("queue"))
    assert.is_true(cl.debug.live("all") >= with_device)
    assert.matches("no kind of driver object is named 'nosuch'", failure(cl.debug.live, "nosuch"))
  end)

  it("makes the n-th driver call of a kind fail, once", function()
    local sim <close> = cl.simulate{ capacity = cl.MiB }
    cl.debug.fail("create_queue", 2, -5)
    local _ <close> = assert(sim:stream())
    assert.is_true(cl.debug.armed())
    local none, message, code = sim:stream()
    assert.is_nil(none)
    assert.equal("create_queue failed: CL_OUT_OF_RESOURCES (-5)", message)
    assert.equal("NOMEM", code)
    assert.is_false(cl.debug.armed())
    local _ <close> = assert(sim:stream())
  end)

  it("disarms with 0", function()
    cl.debug.fail(nil, 1000)
    cl.debug.fail("any", 0)
    assert.is_false(cl.debug.armed())
    assert.matches("no driver call is named 'nosuch'", failure(cl.debug.fail, "nosuch", 1))
  end)
end)

describe("the current device", function()
  it("is the default device and its default stream", function()
    local dev, stream = cl.current()
    local default <close> = cl.device()
    assert.equal(default, dev)
    assert.equal(default.default_stream, stream)
    dev:close()
    stream:close()
  end)
end)

describe("a device that cannot be opened", function()
  it("gives nil and a message with the driver's call and code", function()
    cl.debug.fail("create_context", 1, -6)
    local none, message, code = cl.simulate{ capacity = cl.MiB }
    assert.is_nil(none)
    assert.matches("create_context failed: CL_OUT_OF_HOST_MEMORY", message)
    assert.equal("NOMEM", code)
  end)
end)
