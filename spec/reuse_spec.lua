-- Who gets freed memory, and when: streams as timelines, held blocks, the few events and sub-buffers that
-- takes, and how blocks are cut and merged.

local cl = require "clalloc"
local failure = require "spec.failure"

local MiB <const> = cl.MiB

describe("freed memory", function()
  local dev, pool
  local opened = {}

  local function note(it)
    opened[#opened + 1] = it
    return it
  end

  local function open(device, options)
    dev = note(device)
    pool = note(assert(dev:pool(options or {})))
  end

  local function alloc(nbytes, s) return note(assert(pool:alloc(nbytes, s))) end
  local function stream() return note(dev:stream()) end
  local function gate() return note(dev:gate()) end

  -- A command that does not wait.
  local function fill(buf, value, s)
    buf:fill(value, { stream = s, async = true }):close()
  end

  after_each(function()
    if pool then assert.is_true(pool:check()) end
    for i = #opened, 1, -1 do opened[i]:close() end
    dev, pool, opened = nil, nil, {}
  end)

  describe("goes back to the stream that freed it", function()
    before_each(function() open(cl.device()) end)

    it("at once, however far the device lags behind", function() -- inducer/pyopencl#447, the control
      local s, g = stream(), gate()
      s:wait(g)
      local h = alloc(4096, s)
      local address = h.address
      for i = 1, 20 do
        fill(h, i, s)
        h:close()
        h = alloc(4096, s)
        assert.equal(address, h.address)
      end
      fill(h, 99, s)
      assert.is_false(s:query())
      assert.equal(1, pool:stats().driver_allocs)
      g:open()
      s:finish()
      assert.equal(("c"):rep(4096), h:read())
    end)

    it("to no other while its commands are under way, to any when they are complete", function()
      local a, b, g = stream(), stream(), gate()
      local h = alloc(2 * MiB, a)
      local address = h.address
      a:wait(g)
      fill(h, 1, a)
      h:close()
      assert.not_equal(address, alloc(2 * MiB, b).address)
      g:open()
      a:finish()
      assert.equal(address, alloc(2 * MiB, b).address)
    end)

    it("in parts too: what is left stays with the stream it came from", function()
      local a, b, g = stream(), stream(), gate()
      local h = alloc(2 * MiB, a)
      a:wait(g)
      fill(h, 1, a)
      h:close()
      alloc(MiB, a)
      alloc(MiB, b)
      assert.equal(2, pool:stats().segments)
      alloc(MiB, a)
      assert.equal(2, pool:stats().segments)
      g:open()
    end)
  end)

  describe("adopted by another stream when memory is short", function()
    it("comes with a wait, so that the order of the data holds", function()
      open(cl.device(), { limit = 2 * MiB })
      local a, b, g = stream(), stream(), gate()
      local h, other = alloc(MiB, a), note(assert(dev:alloc(MiB)))
      local address = h.address
      alloc(MiB, a)
      a:wait(g)
      fill(h, 1, a)
      other:copy(h, { stream = a, async = true }):close()
      h:close()
      cl.debug.calls_reset()
      local mine = alloc(MiB, b)
      assert.equal(address, mine.address)
      assert.equal(1, cl.debug.calls "enqueue_barrier")
      fill(mine, 2, b)
      assert.is_false(b:query())
      g:open()
      b:finish()
      assert.equal(("\1"):rep(MiB), other:read())
      assert.equal(("\2"):rep(MiB), mine:read())
      assert.equal(1, pool:stats().retries)
    end)

    it("is taken without one when it turns out to be complete", function()
      open(cl.device(), { limit = 2 * MiB })
      local a, b, g = stream(), stream(), gate()
      alloc(0, b):close()
      local h = alloc(2 * MiB, a)
      a:wait(g)
      fill(h, 1, a)
      h:close()
      g:open()
      a:finish()
      cl.debug.calls_reset()
      alloc(2 * MiB, b)
      assert.equal(0, cl.debug.calls "enqueue_barrier")
    end)

    it("of a stream behind a shut gate makes the other stream wait, not the program", function()
      open(cl.device(), { limit = 2 * MiB })
      local a, b, g = stream(), stream(), gate()
      local h = alloc(2 * MiB, a)
      a:wait(g)
      fill(h, 1, a)
      h:close()
      local mine = alloc(2 * MiB, b)
      assert.is_true(pcall(fill, mine, 2, b))
      assert.matches("gate", failure(b.finish, b))
      g:open()
      assert.is_true(b:finish())
    end)
  end)

  describe("that other streams still use", function()
    -- inducer/pyopencl#447, meta-pytorch/torchrec#4231
    it("is not handed out before they are done", function()
      open(cl.device())
      local q1, q2, g = stream(), stream(), gate()
      local h, dst = alloc(64 * 1024, q1), note(assert(dev:alloc(64 * 1024)))
      h:write(("old bytes "):rep(6553) .. "______", 0, { stream = q1 })
      local old, address = h:read(), h.address
      q2:wait(g)
      dst:copy(h, { stream = q2, async = true }):close() -- seen by the library; `record` says it again
      h:record(q2)
      h:close()
      assert.equal(1, pool:stats().held_blocks)
      assert.equal(64 * 1024, pool:stats().held_bytes)
      local next_owner = alloc(64 * 1024, q1)
      assert.not_equal(address, next_owner.address)
      next_owner:fill(0xEE, { stream = q1 })
      g:open()
      q2:finish()
      assert.equal(old, dst:read())
      alloc(MiB * 2, q1) -- a miss asks the streams
      assert.equal(0, pool:stats().held_blocks)
    end)

    it("is held by a use the library did not see, once that is recorded", function()
      open(cl.device())
      local q1, q2, g = stream(), stream(), gate()
      local h = alloc(4096, q1)
      local address = h.address
      q2:wait(g)
      h:record(q2)
      h:close()
      assert.not_equal(address, alloc(4096, q1).address)
      g:open()
      q2:finish()
      assert.is_true(pool:trim() >= 0)
      assert.equal(0, pool:stats().held_blocks)
    end)

    it("is not held by what they do after the record", function()
      open(cl.device())
      local q1, q2, g = stream(), stream(), gate()
      local h = alloc(4096, q1)
      local address = h.address
      fill(h, 1, q2)
      h:record(q2)
      q2:finish()
      q2:wait(g)
      h:close()
      assert.equal(0, pool:stats().held_blocks)
      assert.equal(address, alloc(4096, q1).address)
      g:open()
    end)

    it("by several streams waits for each", function()
      open(cl.device())
      local q1, gates, others = stream(), {}, {}
      local h = alloc(4096, q1)
      for i = 1, 5 do
        gates[i], others[i] = gate(), stream()
        others[i]:wait(gates[i])
        fill(h, i, others[i])
      end
      h:close()
      for i = 5, 1, -1 do
        alloc(2 * MiB, q1):close()
        assert.equal(1, pool:stats().held_blocks)
        gates[i]:open()
        others[i]:finish()
      end
      pool:trim()
      assert.equal(0, pool:stats().held_blocks)
    end)

    it("does not keep back what waits for others", function() -- pytorch/pytorch#71616
      open(cl.device())
      local home, q1, q2, g = stream(), stream(), stream(), gate()
      q1:wait(g)
      local list = {}
      for i = 1, 101 do list[i] = alloc(2 * MiB, home) end
      local last = list[101].address
      for i = 1, 100 do
        fill(list[i]:view(0, 16), 1, q1)
        list[i]:record(q1)
        list[i]:close()
      end
      fill(list[101]:view(0, 16), 1, q2)
      list[101]:record(q2)
      q2:finish()
      list[101]:close()
      local before = pool:stats()
      assert.equal(100, before.held_blocks)
      assert.equal(last, alloc(2 * MiB, home).address)
      local after = pool:stats()
      assert.equal(before.driver_allocs, after.driver_allocs)
      assert.equal(100, after.held_blocks)
      g:open()
      q1:finish()
    end)

    it("stays where it is when the stream is closed meanwhile", function() -- pytorch/pytorch#66941
      open(cl.device())
      local queues = cl.debug.live "queue"
      local q1, q2, g = stream(), dev:stream(), gate()
      local h = alloc(4096, q1)
      local address = h.address
      q2:wait(g)
      fill(h, 1, q2)
      h:record(q2)
      q2:close()
      h:close()
      assert.equal(1, pool:stats().held_blocks)
      assert.not_equal(address, alloc(4096, q1).address)
      g:open()
      pool:trim()
      assert.equal(0, pool:stats().held_blocks)
      pool:check()
      assert.equal(queues + 1, cl.debug.live "queue")
    end)

    it("is kept while it is mapped", function()
      open(cl.device())
      local s = stream()
      local h = alloc(4096, s)
      local address = h.address
      h:write("mapped", 0, { stream = s })
      local map <close> = assert(h:map "r")
      h:close()
      assert.equal(1, pool:stats().held_blocks)
      assert.not_equal(address, alloc(4096, s).address)
      assert.equal("mapped", map:read(0, 6))
      map:close()
      dev.default_stream:finish()
      pool:trim()
      assert.equal(0, pool:stats().held_blocks)
    end)
  end)

  it("of streams that are closed serves those that come later", function() -- NVIDIA/cuml#2632
    open(cl.device())
    local list = {}
    for i = 1, 8 do
      local s <close> = dev:stream()
      list[i] = alloc(2 * MiB, s)
      fill(list[i], i, s)
    end
    for i = 1, 8 do list[i]:close() end
    local before = pool:stats()
    pool.limit = before.reserved_bytes
    local mine = alloc(2 * MiB, stream())
    assert.equal(before.driver_allocs, pool:stats().driver_allocs)
    mine:close()
    assert.equal(before.reserved_bytes, pool:trim())
    alloc(before.reserved_bytes)
    assert.equal(0, pool:stats().ooms)
  end)

  describe("costs the driver", function()
    it("no marker while there is one stream", function()
      open(cl.device())
      local s = stream()
      cl.debug.calls_reset()
      for _ = 1, 100 do
        local h <close> = assert(pool:alloc(4096, s))
        fill(h, 1, s)
      end
      assert.equal(0, cl.debug.calls "enqueue_marker")
      assert.equal(0, cl.debug.calls "get_event_info")
      s:finish()
    end)

    it("one marker for a burst of a hundred frees", function()
      open(cl.device())
      local s, other, g = stream(), stream(), gate()
      alloc(512, other)
      local list = {}
      for i = 1, 100 do
        list[i] = alloc(4096, s)
      end
      s:wait(g)
      for i = 1, 100 do fill(list[i], 1, s) end
      cl.debug.calls_reset()
      for i = 1, 100 do list[i]:close() end
      assert.equal(0, cl.debug.calls().total)
      local next_work = alloc(4096, s)
      fill(next_work, 2, s)
      assert.equal(1, cl.debug.calls "enqueue_marker")
      for _ = 1, 10 do fill(next_work, 3, s) end
      assert.equal(1, cl.debug.calls "enqueue_marker")
      g:open()
      s:finish()
    end)

    it("one marker for a burst of a hundred frees that others use", function()
      open(cl.device())
      local s, other, g = stream(), stream(), gate()
      other:wait(g)
      local list = {}
      for i = 1, 100 do
        list[i] = alloc(4096, s)
        fill(list[i], 1, other)
      end
      cl.debug.calls_reset()
      for i = 1, 100 do list[i]:close() end
      alloc(4 * MiB, s)
      assert.equal(1, cl.debug.calls "enqueue_marker")
      g:open()
      other:finish()
      alloc(8 * MiB, s)
      assert.equal(0, pool:stats().held_blocks)
    end)

    it("a few questions an allocation, however many blocks are pending", function() -- torch/cutorch#698
      open(cl.simulate { capacity = 8 * cl.GiB }) -- pytorch/pytorch#78279, pixeltrack-standalone#218
      local home, q1, q2, g = stream(), stream(), stream(), gate()
      q1:wait(g)
      q2:wait(g)
      local pending = 0
      for _, n in ipairs { 100, 1000, 10000 } do
        local list = {}
        for i = 1, n - pending do list[i] = alloc(4096, home) end
        for i, h in ipairs(list) do
          fill(h, 1, i % 2 == 0 and q1 or q2)
          h:close()
        end
        pending = n
        assert.equal(n, pool:stats().held_blocks)
        cl.debug.calls_reset()
        for _ = 1, 50 do alloc(20 * MiB, home) end -- each a miss
        assert.is_true(cl.debug.calls "get_event_info" <= 50 * (3 + 2))
        assert.is_true((cl.debug.calls "enqueue_marker") <= 2 * 50)
      end
      g:open()
      pool:trim()
      assert.equal(0, pool:stats().held_blocks)
    end)

    -- inducer/pyopencl#56, #625; candle-org/candle#165
    it("a bounded number of events over 100,000 rounds", function()
      open(cl.simulate { capacity = cl.GiB, manual = true })
      local q1, q2 = stream(), stream()
      local before, most = cl.debug.live "event", 0
      for i = 1, 100000 do
        local h = assert(pool:alloc(4096, q1))
        fill(h, 1, q1)
        h:record(q2)
        if i % 10 == 0 then fill(h, 2, q2) end
        h:close()
        if i % 50 == 0 then
          most = math.max(most, cl.debug.live "event" - before)
          dev:complete(q1)
          dev:complete(q2)
        end
      end
      assert(most <= 2 * 64, ("%d events at a time"):format(most))
      pool:trim()
      assert.is_true(pool:stats().peak_reserved_bytes <= 4 * MiB)
      q1:finish()
      q2:finish()
      assert.equal(before, cl.debug.live "event")
    end)

    it("a bounded number of events while nothing at all completes", function()
      open(cl.device())
      local q1, q2, g = stream(), stream(), gate()
      q1:wait(g)
      q2:wait(g)
      local before = cl.debug.live "event"
      for i = 1, 2000 do
        local h = assert(pool:alloc(512 * (i % 7), i % 2 == 0 and q1 or q2))
        h:record(i % 2 == 0 and q2 or q1)
        fill(h, 1, i % 3 == 0 and q1 or q2)
        h:close()
      end
      local most = cl.debug.live "event" - before
      assert(most <= 2 * 64, ("%d events at a time"):format(most))
      g:open()
      q1:finish()
      q2:finish()
      pool:trim()
      assert.equal(before, cl.debug.live "event")
      assert.equal(0, pool:stats().reserved_bytes)
    end)

    it("nothing at all when a round repeats", function()
      open(cl.device())
      local s, other = stream(), stream()
      alloc(512, other)
      local function round()
        local list = {}
        for i = 1, 200 do
          list[i] = assert(pool:alloc((i * 7919) % 50000 + 1, s))
          if i > 5 and i % 3 == 0 then list[i - 5]:close() end
        end
        for i = 200, 1, -1 do list[i]:close() end
      end
      round()
      round()
      cl.debug.calls_reset()
      for _ = 1, 5 do round() end
      assert.equal(0, cl.debug.calls().total)
    end)
  end)

  describe("is used through sub-buffers", function()
    it("that are made once for a place, not once for an allocation", function()
      open(cl.device())
      local s = stream()
      local function round()
        local list = {}
        for i = 1, 40 do
          list[i] = assert(pool:alloc(512 * (1 + i % 5), s))
          fill(list[i], i, s)
        end
        for i = 1, 40 do list[i]:close() end
      end
      cl.debug.calls_reset()
      round()
      if not dev.vendor:find "NVIDIA" then -- there transfers use the segment's own buffer
        assert.is_true(cl.debug.calls "create_sub_buffer" > 0)
      end
      round()
      cl.debug.calls_reset()
      for _ = 1, 20 do round() end
      assert.equal(0, cl.debug.calls "create_sub_buffer")
      s:finish()
    end)

    it("of which a bounded number is kept", function()
      open(cl.simulate { capacity = cl.GiB })
      local before, most = cl.debug.live "sub_buffer", 0
      alloc(16 * MiB):close() -- one segment
      for size = 1, 6000 do
        local h = assert(pool:alloc(512 * (1 + size % 3000)))
        fill(h, 0)
        h:close()
        most = math.max(most, cl.debug.live "sub_buffer" - before)
      end
      assert.equal(1, pool:stats().segments)
      assert(most <= 2048, ("%d sub-buffers at a time"):format(most))
      pool:trim()
      assert.equal(before, cl.debug.live "sub_buffer")
    end)

    it("of which views of one live buffer keep no more", function()
      open(cl.simulate { capacity = cl.GiB, align = 512 })
      local touch = dev:program("kernel void touch(global uchar *x, global uchar *y) {}").touch
      local before, most = cl.debug.live "sub_buffer", 0
      local h = alloc(4 * MiB)
      for i = 1, 5000 do
        local view <close> = h:view(512 * (i % 100 + 1), i)
        local other <close> = h:view(512 * (i % 99 + 1), i + 1)
        assert(touch { view, other, size = 1 }):close()
        most = math.max(most, cl.debug.live "sub_buffer" - before)
      end
      assert(most <= 2048, ("%d sub-buffers at a time"):format(most))
    end)

    it("unless the block fills its segment", function()
      open(cl.device())
      cl.debug.calls_reset()
      local h = alloc(2 * MiB)
      fill(h, 1)
      assert.equal(0, cl.debug.calls "create_sub_buffer")
      dev.default_stream:finish()
    end)

    -- pocl/pocl#1969, #1962, #1486; intel/llvm#10890
    it("that stay apart from their neighbours, round after round", function()
      open(cl.device())
      local align = dev.align
      local q1, q2 = stream(), stream()
      local a, b, c = alloc(align - 1, q1), alloc(1, q1), alloc(align + 1, q1)
      assert.equal(1, pool:stats().segments)
      local prog <close> = dev:program [[
        kernel void add(global uchar *a, global const uchar *b, uint n) {
          for (uint i = 0; i < n; i++) a[i] += b[0];
        }
      ]]
      local add <close> = prog.add
      for _, block in ipairs(pool:snapshot()[1].blocks) do -- the guards: what is set aside and not asked for
        assert.is_true(block.size >= block.requested)
      end
      c:fill(0x5A)
      for round = 1, 200 do
        local x, y = round % 100, round % 90 + 1
        a:fill(x, { stream = q1, async = true }):close()
        b:fill(y, { stream = q2, async = true }):close()
        q1:wait(q2)
        local event <close> = add { a, b, align - 1, size = 1, stream = q1 }
        assert.equal(string.char(x + y):rep(align - 1), a:read(0, align - 1, { stream = q1 }))
        assert.equal(string.char(y), b:read(0, 1, { stream = q1 }))
        assert.equal(("Z"):rep(align + 1), c:read(0, align + 1, { stream = q1 }))
        assert(event)
      end
    end)

    -- NVIDIA's driver (580) crashes when one is released before a later one that overlaps it; this one refuses
    it("that go newest first where they overlap", function()
      open(cl.simulate { capacity = cl.GiB, align = 512, ordered_subs = true })
      local touch = dev:program("kernel void touch(global uchar *x, global uchar *y) {}").touch
      local at_first, random, blocks = cl.debug.live "sub_buffer", 12345, {}
      local function draw(n)
        random = (random * 1103515245 + 12345) & 0x7fffffff
        return (random >> 8) % n + 1
      end
      for i = 1, 20000 do
        local k = draw(40)
        if blocks[k] and draw(3) == 1 then
          blocks[k]:close()
          blocks[k] = nil
        end
        blocks[k] = blocks[k] or assert(pool:alloc(draw(200) * 512))
        local size = blocks[k].size
        local view <close> = blocks[k]:view(draw(size // 512) * 512 - 512, 512)
        local offset = draw(size // 512) * 512 - 512
        local other <close> = blocks[k]:view(offset, draw(size - offset))
        assert(touch { draw(2) == 1 and blocks[k] or view, other, size = 1 }):close()
        if i % 5000 == 0 then pool:trim() end
      end
      for _, block in pairs(blocks) do block:close() end
      assert.is_true(cl.debug.live "sub_buffer" - at_first > 1000)
      pool:trim()
      assert.equal(0, pool:stats().reserved_bytes)
      assert.equal(at_first, cl.debug.live "sub_buffer")
    end)

    -- arrayfire/arrayfire#2917, #735, #734, #3321; ggml-org/llama.cpp#21212
    it("and views of them, ten thousand times, without anything piling up", function()
      collectgarbage()
      collectgarbage()
      local at_first = cl.debug.live "sub_buffer"
      open(cl.device())
      local prog <close> = dev:program "kernel void nothing(global int *x) { }"
      local nothing <close> = prog.nothing
      local s = stream()
      local h = alloc(64 * 1024, s)
      local view = note(h:view(dev.align, dev.align))
      local function use()
        nothing({ h, size = 1, stream = s }):close()
        nothing({ view, size = 1, stream = s }):close()
      end
      use()
      s:finish()
      collectgarbage() -- what earlier tests left
      collectgarbage()
      local before = cl.debug.live()
      for i = 1, 5000 do
        use()
        if i % 1000 == 0 then s:finish() end
      end
      s:finish()
      assert.same(before, cl.debug.live())
      view:close()
      h:close()
      pool:trim()
      assert.equal(0, pool:stats().reserved_bytes)
      assert.equal(at_first, cl.debug.live "sub_buffer")
    end)
  end)

  describe("goes back to the driver", function()
    -- pocl/pocl#812, inducer/pyopencl#332, apache/tvm#2737, KhronosGroup/OpenCL-Docs#1297
    it("only when the commands that use it are complete", function()
      open(cl.device())
      local s, g = stream(), gate()
      local h = alloc(2 * MiB, s)
      local buffers = cl.debug.live "buffer"
      s:wait(g)
      fill(h, 1, s)
      h:close()
      assert.equal(0, pool:trim())
      assert.equal(buffers, cl.debug.live "buffer")
      g:open()
      assert.equal(2 * MiB, pool:trim())
      assert.equal(buffers - 1, cl.debug.live "buffer")
    end)

    it("also when its pool is closed before", function()
      open(cl.device())
      local s, g = stream(), gate()
      local other = assert(dev:pool {})
      local h = assert(other:alloc(2 * MiB, s))
      s:wait(g)
      fill(h, 1, s)
      local buffers = cl.debug.live "buffer"
      other:close()
      assert.is_true(h.closed)
      assert.equal(buffers, cl.debug.live "buffer")
      g:open()
      s:finish()
      assert.equal(buffers - 1, cl.debug.live "buffer")
    end)

    it("in every round of a loop that trims, and memory stays flat", function()
      open(cl.device())
      local s = stream()
      for _ = 1, 100 do
        local h <close> = assert(pool:alloc(2 * MiB, s))
        fill(h, 1, s)
        h:close()
        assert.equal(2 * MiB, pool:trim())
        assert.equal(s:stats().submitted, s:stats().completed)
      end
      assert.equal(2 * MiB, pool:stats().peak_reserved_bytes)
    end)
  end)

  describe("is cut and merged", function()
    local function states()
      local list = {}
      for _, segment in ipairs(pool:snapshot()) do
        for _, b in ipairs(segment.blocks) do
          list[#list + 1] = ("%s %d+%d"):format(b.state, b.offset // 512, b.size // 512)
        end
      end
      return table.concat(list, ", ")
    end

    it("by need, as a snapshot shows", function()
      open(cl.simulate { capacity = cl.GiB })
      local a, b, c = alloc(512), alloc(1024), alloc(512)
      assert.equal("active 0+1, active 1+2, active 3+1, free 4+4092", states())
      b:close()
      assert.equal("active 0+1, free 1+2, active 3+1, free 4+4092", states())
      local half = alloc(512)
      assert.equal("active 0+1, active 1+1, free 2+1, active 3+1, free 4+4092", states())
      half:close()
      assert.equal("active 0+1, free 1+2, active 3+1, free 4+4092", states())
      c:close()
      assert.equal("active 0+1, free 1+4095", states())
      a:close()
      assert.equal("free 0+4096", states())
    end)

    it("per stream: neighbours of two streams stay apart until both are done", function()
      open(cl.simulate { capacity = cl.GiB, manual = true })
      local s, t = stream(), stream()
      local a = alloc(MiB, s)
      local b = alloc(MiB, t) -- the rest of the segment, where nothing was done yet
      fill(a, 0, s)
      assert.equal("active 0+2048, active 2048+2048", states())
      fill(b, 0, t)
      a:close()
      b:close()
      assert.equal("free 0+2048, free 2048+2048", states())
      pool:trim() -- waits for both
      assert.equal("", states())
    end)

    it("with blocks and figures that agree", function()
      open(cl.simulate { capacity = cl.GiB })
      local s, t = stream(), stream()
      for i = 1, 300 do
        local h = alloc((i * 7919) % 9000, i % 2 == 0 and s or t)
        if i % 5 == 0 then h:record(i % 2 == 0 and t or s) end
        if i % 3 == 0 then h:close() end
      end
      local bytes, blocks = { active = 0, free = 0, held = 0 }, { active = 0, free = 0, held = 0 }
      local requested, reserved, largest = 0, 0, 0
      local snapshot = pool:snapshot()
      for _, segment in ipairs(snapshot) do
        local at = 0
        for _, b in ipairs(segment.blocks) do
          assert.equal(at, b.offset)
          at = at + b.size
          bytes[b.state] = bytes[b.state] + b.size
          blocks[b.state] = blocks[b.state] + 1
          if b.state == "active" then requested = requested + b.requested end
          if b.state == "free" then largest = math.max(largest, b.size) end
        end
        assert.equal(segment.size, at)
        reserved = reserved + at
      end
      local stats = pool:stats()
      assert.equal(stats.active_bytes, bytes.active)
      assert.equal(stats.cached_bytes, bytes.free)
      assert.equal(stats.held_bytes, bytes.held)
      assert.equal(stats.active_blocks, blocks.active)
      assert.equal(stats.cached_blocks, blocks.free)
      assert.equal(stats.held_blocks, blocks.held)
      assert.equal(stats.requested_bytes, requested)
      assert.equal(stats.reserved_bytes, reserved)
      assert.equal(stats.largest_free, largest)
      assert.equal(stats.segments, #snapshot)
      assert.equal(stats.allocs - stats.frees, blocks.active)
    end)
  end)

  describe("under the policy `direct`", function()
    it("is the driver's at every allocation and free", function()
      open(cl.device(), { policy = "direct" })
      assert.equal("direct", pool.policy)
      local list = {}
      for i = 1, 10 do list[i] = alloc(5000) end
      assert.equal(10, pool:stats().segments)
      assert.equal(10 * 5120, pool:stats().reserved_bytes)
      for i = 1, 10 do
        list[i]:close()
        assert.equal(10 - i, pool:stats().segments)
      end
      assert.equal(10, pool:stats().driver_frees)
      assert.equal(0, pool:stats().cached_bytes)
    end)

    it("goes back when its commands are done, and not before", function()
      open(cl.device(), { policy = cl.policy.direct() })
      local s, g = stream(), gate()
      local h, keep = alloc(4096, s), alloc(4096, s)
      s:wait(g)
      fill(h, 1, s)
      h:close()
      assert.equal(2, pool:stats().segments)
      g:open()
      s:finish()
      keep:close()
      assert.equal(0, pool:stats().segments)
    end)

    it("is never handed out twice", function()
      open(cl.device(), { policy = "direct" })
      local s, g = stream(), gate()
      local h = alloc(4096, s)
      local address = h.address
      s:wait(g)
      fill(h, 1, s)
      h:close()
      assert.not_equal(address, alloc(4096, s).address)
      g:open()
    end)
  end)

  describe("of zero bytes", function()
    it("has an address of its own", function()
      open(cl.device())
      local seen = {}
      for _ = 1, 1000 do
        local h = alloc(0)
        assert.equal(0, h.size)
        assert.is_nil(seen[h.address])
        seen[h.address] = true
        assert.is_true(cl.owns(h.address))
      end
      assert.equal(1, pool:stats().segments)
      assert.equal(0, pool:stats().requested_bytes)
      assert.equal(1000, pool:stats().active_blocks)
    end)

    it("takes every command and needs none of the driver's", function()
      open(cl.device())
      local h, other = alloc(0), alloc(16)
      cl.debug.calls_reset()
      assert.is_true(h:write "")
      assert.equal("", h:read())
      assert.is_true(h:fill(1))
      assert.is_true(h:copy(other))
      assert.is_true(other:copy(h))
      assert.equal("", h:view(0, 0):read())
      assert.is_nil(cl.debug.calls().enqueue_write)
      assert.is_nil(cl.debug.calls().enqueue_fill)
      assert.is_nil(cl.debug.calls().enqueue_copy)
      assert.is_nil(cl.debug.calls().enqueue_read)
      assert.matches("outside", failure(h.write, h, "x"))
    end)

    it("goes back as any other", function()
      open(cl.device())
      for _ = 1, 100 do
        local h <close> = assert(pool:alloc(0))
        assert.is_false(h.closed)
      end
      assert.equal(0, pool:stats().active_blocks)
      assert.equal(2 * MiB, pool:trim())
    end)
  end)

  describe("of a pool of shared virtual memory", function()
    local function svm()
      open(cl.device())
      if not dev.has_svm then
        pending "the device has no shared virtual memory"
        return false
      end
      pool = note(assert(dev:pool { svm = true }))
      return true
    end

    it("comes and goes through the same functions", function()
      if not svm() then return end
      local s, g = stream(), gate()
      local a, b = alloc(10000, s), alloc(10000, s)
      a:write(("abcdefghij"):rep(1000), 0, { stream = s })
      b:copy(a, { stream = s })
      assert.equal(("abcdefghij"):rep(1000), b:read(0, 10000, { stream = s }))
      local found, offset = cl.resolve(a.address + 4321)
      assert.equal(a.address, found.address)
      assert.equal(4321, offset)
      local address = a.address
      s:wait(g)
      fill(a, 7, s)
      a:close()
      local again = alloc(10000, s)
      assert.equal(address, again.address)
      g:open()
      s:finish()
      assert.equal(("\7"):rep(10000), again:read())
      assert.equal(1, cl.debug.live "svm")
      b:close()
      again:close()
      assert.equal(2 * MiB, pool:trim())
      assert.is_nil(cl.debug.live().svm)
    end)

    it("has the addresses that kernels see", function()
      if not svm() then return end
      local prog <close> = dev:program [[
        kernel void where(global char *x, global ulong *out) { out[0] = (ulong)x; }
      ]]
      local where <close> = prog.where
      alloc(512)
      local x, out = alloc(4096), alloc(8)
      local event <close> = assert(where { x, out, size = 1 })
      assert.is_true(event:wait())
      assert.equal(x.address, (string.unpack("<i8", out:read())))
    end)

    it("is refused where there is none", function()
      local sim = note(cl.simulate { capacity = cl.GiB })
      assert.is_false(sim.has_svm)
      assert.matches("shared virtual memory", failure(sim.pool, sim, { svm = true }))
    end)
  end)
end)
