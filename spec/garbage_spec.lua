-- Garbage: device memory held by objects that nothing refers to. The binding collects before memory runs out,
-- and what the collector does with an object, in whatever order and however often, ends it once.

local cl = require "clalloc"
local failure = require "spec.failure"
local every_type = dofile "spec/every_type.lua"

local CAPACITY = 100 * 1000 * 1000
local TEMPORARY = 10 * 1000 * 1000

-- Counts collections: the sentinel's finalizer leaves a new one behind.
local function count_collections()
  local count, is_counting = 0, true
  local meta = {}
  function meta.__gc()
    count = count + 1
    if is_counting then setmetatable({}, meta) end
  end
  setmetatable({}, meta)
  return function() return count end, function() is_counting = false end
end

-- Runs f under a mode of the collector, then puts back the one that was.
local function in_mode(mode, f)
  local was = collectgarbage(mode)
  local ok, message = xpcall(f, debug.traceback)
  collectgarbage(was)
  if not ok then error(message, 0) end
end

local function collect()
  collectgarbage()
  collectgarbage()
end

local MODES = { "incremental", "generational" }

describe("device memory that nothing refers to", function()
  local sim, pool

  before_each(function()
    sim = cl.simulate{ capacity = CAPACITY }
    pool = sim:pool()
  end)
  after_each(function()
    collectgarbage "restart"
    collect()
    assert.is_true(pool:check())
    assert.equal(0, pool:stats().active_bytes)
    pool:close()
    sim:close()
  end)

  -- torch/torch7#229, #280; torch/cutorch#219, #707; chainer/chainer#2257
  local function check_bounded(make, most)
    collect()
    local collections, stop = count_collections()
    for i = 1, 1000 do make(i) end
    stop()
    local stats = pool:stats()
    assert.is_true(stats.allocs >= 1000)
    assert.equal(0, stats.ooms)
    assert.is_true(stats.peak_active_bytes < CAPACITY)
    assert.is_true(stats.peak_reserved_bytes <= stats.limit)
    assert.is_true(collections() <= (most or 200), ("%d collections"):format(collections()))
  end

  for _, mode in ipairs(MODES) do
    it("never fills a device with a loop of temporaries, in " .. mode .. " mode", function()
      in_mode(mode, function()
        check_bounded(function() assert(sim:alloc(TEMPORARY)) end)
      end)
    end)

    it("is found in cycles with tables, closures and views, in " .. mode .. " mode", function()
      local by_buffer = setmetatable({}, { __mode = "k" })
      in_mode(mode, function()
        check_bounded(function()
          local t = { buffer = assert(sim:alloc(TEMPORARY)) }
          t.self = t
          t.view = t.buffer:view(1)
          t.read = function() return t.view.size end
          by_buffer[t.buffer] = t
        end)
      end)
    end)

    it("is found when a live set turns over, in " .. mode .. " mode", function()
      local ring = {}
      in_mode(mode, function()
        -- Room for four more beside the four that live.
        check_bounded(function(i) ring[i % 4] = assert(sim:alloc(TEMPORARY)) end, 1000 // 4 + 10)
      end)
      assert.equal(TEMPORARY, ring[0].size)
    end)
  end

  it("is found on a pool's own limit, whatever the device has", function()
    local big <close> = cl.simulate{ capacity = 80 * cl.GiB }
    local small <close> = big:pool{ limit = 300 * cl.MiB }
    for _ = 1, 500 do assert(small:alloc(100 * cl.MiB)) end
    assert.is_true(small:stats().peak_reserved_bytes <= 300 * cl.MiB)
    collect()
  end)

  it("is not found while the collector is stopped: the error says so, and nothing is lost", function()
    collect()
    collectgarbage "stop"
    local got, message, code = 0, nil, nil
    while not message do
      local buf
      buf, message, code = sim:alloc(TEMPORARY)
      got = got + (buf and 1 or 0)
      assert.is_true(got <= 10)
    end
    assert.matches("the garbage collector is stopped", message)
    assert.is_true(code == "LIMIT" or code == "NOMEM")
    assert.is_true(pool:check())
    assert.equal(got * TEMPORARY, pool:stats().requested_bytes)
    collectgarbage "restart"
    for _ = 1, 20 do assert(sim:alloc(TEMPORARY)) end
    assert.equal(1, pool:stats().ooms)
  end)

  it("does not run the collector for a program that closes", function()
    local counted
    in_mode("incremental", function()
      local pause = collectgarbage("setpause", 1000)
      collect()
      local collections, stop = count_collections()
      for _ = 1, 2000 do
        local scoped <close> = assert(sim:alloc(TEMPORARY))
        assert(sim:alloc(scoped.size)):close()
      end
      stop()
      counted = collections()
      collectgarbage("setpause", pause)
    end)
    assert.equal(0, counted)
  end)
end)

describe("an object", function()
  local dev, o

  for _, kind in ipairs{ "simulated", "real" } do
    describe("of a " .. kind .. " device", function()
      local function make()
        dev = kind == "real" and cl.device() or cl.simulate{ capacity = cl.GiB }
        o = every_type.make(cl, dev)
      end
      local function close_all()
        for i = #every_type.NAMES, 1, -1 do o[every_type.NAMES[i]]:close() end
        o, dev = nil, nil
        collect()
      end

      -- mlua-rs/rlua#19: finalizers called by hand, and again by the collector.
      it("is closed by its finalizer, called by hand as often as one likes", function()
        make()
        for _, name in ipairs(every_type.NAMES) do
          local object = o[name]
          local gc = getmetatable(object).__gc
          gc(object)
          gc(object)
          if name ~= "buffer" and name ~= "view" then
            assert.matches("closed", tostring(object), name)
          end
          object:close()
          getmetatable(object).__close(object)
          gc(object)
        end
        close_all()
      end)

      it("is closed by close, a scope and the collector together", function()
        make()
        for _, name in ipairs(every_type.NAMES) do
          do
            local scoped <close> = o[name]
            scoped:close()
          end
          collectgarbage()
          assert.matches("closed", tostring(o[name]), name)
        end
        close_all()
      end)

      -- torch/torch7#447: the freed tensor that was touched again.
      it("refuses every method and property once closed, and says what it was", function()
        make()
        local closed = {
          device = { "alloc", "pool", "stream", "gate", "program" },
          stream = { "finish", "query", "wait", "stats" },
          gate = { "open" },
          pool = { "alloc", "trim", "stats", "snapshot", "check", "reset_peaks", "set_limit" },
          buffer = { "write", "read", "fill", "copy", "view", "map", "record" },
          view = { "write", "read", "fill", "copy", "view", "map", "record" },
          map = { "read", "write", "string" },
          program = { "kernels" },
          event = { "wait", "status", "seconds", "profile", "data" },
        }
        local methods = {}
        for name, list in pairs(closed) do
          for _, method in ipairs(list) do
            methods[#methods + 1] = { name = name, method = method, f = assert(o[name][method]) }
          end
        end
        local objects, launch = o, o.kernel
        close_all()
        for _, m in ipairs(methods) do
          local message = failure(m.f, objects[m.name], 1, 1)
          assert.matches("closed", message, m.name .. ":" .. m.method)
        end
        assert.matches("closed", failure(function() launch{ size = 1 } end))
        assert.matches("closed", failure(cl.guard, objects.stream))
        assert.matches("closed", failure(function() return #objects.buffer end))
      end)

      it("keeps its finalizer from objects of other types", function()
        make()
        for _, name in ipairs(every_type.NAMES) do
          local gc = getmetatable(o[name]).__gc
          for _, other in ipairs{ io.stdout, {}, "text", 1, o[name == "gate" and "pool" or "gate"] } do
            assert.matches("expected", failure(gc, other))
          end
          assert.matches("expected", failure(gc))
        end
        assert.matches("shut", tostring(o.gate))
        close_all()
      end)

      -- CorsixTH/CorsixTH#3196, lgi-devs/lgi#230: seen again after its finalizer.
      it("that another finalizer brings back, before or after its own, is closed in the end", function()
        local saved
        local meta = { __gc = function(t) saved = t.object end }
        -- Finalizers run in the reverse order of marking: the early one after the object's own.
        local function let_go(name, is_early)
          local early = setmetatable({}, meta)
          make()
          local late = setmetatable({}, meta)
          local holder = is_early and early or late
          holder.object = o[name]
          o[name], dev = nil, nil
        end
        for _, name in ipairs(every_type.NAMES) do
          for _, is_early in ipairs{ true, false } do
            let_go(name, is_early)
            collect()
            if saved then
              assert.equal("string", type(tostring(saved)))
              pcall(function() return saved.size, saved.device end)
              saved:close()
              saved:close()
              assert.matches("closed", tostring(saved))
            end
            for _, rest in pairs(o) do rest:close() end
            o, saved = nil, nil
            collect()
          end
        end
      end)

      it("that a weak table still shows to a finalizer is usable or closed, nothing else", function()
        make()
        local seen, weak = 0, setmetatable({}, { __mode = "k" })
        for _, name in ipairs(every_type.NAMES) do weak[o[name]] = name end
        setmetatable({}, { __gc = function()
          for object in pairs(weak) do
            seen = seen + 1
            assert(type(tostring(object)) == "string")
            object:close()
          end
        end })
        o, dev = nil, nil
        collect()
        assert.equal(#every_type.NAMES, seen)
        collect()
        assert.is_nil(next(weak))
      end)
    end)
  end

  it("is new when its address lives again", function()
    local sim <close> = cl.simulate{ capacity = cl.GiB }
    local first = assert(sim:alloc(4096))
    local view, address = first:view(16), first.address
    first:close()
    local second <close> = assert(sim:alloc(4096))
    assert.equal(address, second.address)
    assert.not_equal(first, second)
    assert.equal("buffer (closed)", tostring(first))
    assert.equal("buffer (freed)", tostring(view))
    assert.matches("freed", failure(view.fill, view, 0))
    first:close()
    view:close()
    getmetatable(first).__gc(first)
    assert.is_true(second:fill(0))
    local resolved <close> = cl.resolve(address)
    assert.equal(second.address, resolved.address)
    assert.is_true(resolved:fill(0))
  end)

  it("built anew while an old one of the same source is being collected is not the dead one", function()
    local sim <close> = cl.simulate{ capacity = cl.GiB }
    local source = "kernel void anew(global int *x) { x[0] = 1; }"
    local found
    setmetatable({ sim:program(source) }, { __gc = function() found = sim:program(source) end })
    collect()
    local buf <close> = assert(sim:alloc(4))
    local event <close> = assert(found.anew{ buf, size = 1 })
    assert.is_true(event:wait())
    found:close()
  end)
end)

describe("buffers closed by hand under a collector that never rests", function()
  -- torch/torch7#447
  for mode, count in pairs{ incremental = 10000, generational = 100000 } do
    it("are freed once each, in " .. mode .. " mode", function()
      local sim <close> = cl.simulate{ capacity = cl.GiB }
      local pool <close> = sim:pool()
      in_mode(mode, function()
        local pause = collectgarbage("setpause", 0)
        for _ = 1, count do assert(sim:alloc(10)):close() end
        collectgarbage("setpause", pause)
      end)
      collect()
      assert.is_true(pool:check())
      local stats = pool:stats()
      assert.equal(count, stats.allocs)
      assert.equal(count, stats.frees)
      assert.equal(0, stats.active_blocks)
    end)
  end
end)

describe("a script that uses every type", function()
  local STRESS = {
    ["with a pause of zero"] = { "incremental", 1, 1000, 0 },
    ["in tiny steps"] = { "incremental", 100, 25, 1 },
    ["in generational mode with tiny generations"] = { "generational", 1, 1 },
  }
  for title, how in pairs(STRESS) do
    it("runs the same under the collector " .. title, function()
      local was = collectgarbage(table.unpack(how))
      local ok, message = xpcall(function()
        for i = 1, 12 do
          local o = every_type.make(cl, i % 2 == 0 and cl.device() or cl.simulate{ capacity = cl.GiB })
          every_type.use(cl, o)
          if i % 3 == 0 then
            for _, name in ipairs(every_type.NAMES) do o[name]:close() end
          else
            o.guard:close()
          end
        end
      end, debug.traceback)
      collectgarbage(was)
      collectgarbage("incremental", 200, 100, 13)
      collectgarbage("generational", 20, 100)
      collectgarbage(was)
      assert(ok, message)
      collect()
    end)
  end
end)

describe("a finalizer", function()
  -- Runs f in one; gives what f gave.
  local function in_finalizer(f)
    local results
    setmetatable({}, { __gc = function() results = table.pack(pcall(f)) end })
    collect()
    assert(results, "the finalizer has not run")
    assert(results[1], results[2])
    return table.unpack(results, 2, results.n)
  end

  it("may make and use every type", function()
    for _, dev in ipairs{ cl.device(), cl.simulate{ capacity = cl.GiB } } do
      in_finalizer(function()
        local o = every_type.make(cl, dev)
        every_type.use(cl, o)
        for _, name in ipairs(every_type.NAMES) do o[name]:close() end
      end)
    end
  end)

  it("may leave to later collections what it makes", function()
    local sim <close> = cl.simulate{ capacity = cl.GiB }
    local pool <close> = sim:pool()
    in_finalizer(function()
      for i = 1, 100 do assert(sim:alloc(i)) end
      assert(sim:stream())
      assert(sim:gate())
    end)
    collect()
    assert.equal(100, pool:stats().allocs)
    assert.equal(0, pool:stats().active_blocks)
  end)

  it("gets an error where a collection would be needed, and memory again outside", function()
    local sim <close> = cl.simulate{ capacity = CAPACITY }
    local pool <close> = sim:pool()
    for _ = 1, 2 do
      local got, message = in_finalizer(function()
        local message
        for _ = 1, 20 do
          local buf, why = sim:alloc(TEMPORARY)
          message = message or (not buf and why) or nil
        end
        return pool:stats().active_blocks, message
      end)
      assert.is_true(got >= 1 and got <= 10)
      assert.equal("string", type(message))
      assert.is_true(pool:check())
      for _ = 1, 50 do assert(sim:alloc(TEMPORARY)) end
      collect()
    end
    assert.equal(0, pool:stats().active_blocks)
  end)

  -- The collection that an allocation runs may close what the allocation uses.
  local function closes_during_alloc(pick)
    local sim = cl.simulate{ capacity = CAPACITY }
    local pool = sim:pool{ limit = 90 * 1000 * 1000 }
    local stream = sim:stream()
    local objects = { device = sim, pool = pool, stream = stream }
    for _ = 1, 8 do assert(pool:alloc(TEMPORARY, stream)) end
    local closed = 0
    for _, name in ipairs(pick) do
      setmetatable({ objects[name] }, { __gc = function(t)
        t[1]:close()
        closed = closed + 1
      end })
    end
    pcall(function()
      for _ = 1, 20 do pool:alloc(TEMPORARY, stream) end
    end)
    assert.equal(#pick, closed)
    for _, object in pairs(objects) do object:close() end
    collect()
  end

  it("may close pool, stream and device under an allocation", function()
    local before = cl.debug.live()
    closes_during_alloc{ "pool" }
    closes_during_alloc{ "stream" }
    closes_during_alloc{ "device" }
    closes_during_alloc{ "stream", "pool", "device" }
    closes_during_alloc{ "device", "pool", "stream" }
    assert.same(before, cl.debug.live())
  end)

  it("may close the guard and the default pool's handle under an allocation", function()
    local before = cl.debug.live()
    local sim = cl.simulate{ capacity = CAPACITY }
    local stream = sim:stream()
    local guard = cl.guard(stream)
    setmetatable({}, { __gc = function()
      guard:close()
      stream:close()
      sim:pool():close()
    end })
    for _ = 1, 50 do assert(sim:alloc(TEMPORARY)) end
    assert.equal("guard (closed)", tostring(guard))
    sim:close()
    stream, sim, guard = nil, nil, nil
    collect()
    assert.same(before, cl.debug.live())
    assert.is_nil(stream or sim or guard)
  end)

  it("that fails disturbs no allocation", function()
    local sim <close> = cl.simulate{ capacity = CAPACITY }
    warn "@off"
    for i = 1, 100 do
      setmetatable({}, { __gc = function() error("on purpose " .. i) end })
      assert(sim:alloc(TEMPORARY))
    end
    collect()
    warn "@on"
  end)
end)
