-- Heaps beyond 4 GiB, where references count in steps of 16 bytes, in memory that is there: on devices that have it.
-- Elsewhere the simulated device knows such heaps' sizes (heap_spec.lua).
local cl = require "clalloc"

local KERNELS = [[
kernel void take(CLA_HEAP heap, global uint *out, ulong nbytes) {
  global uchar *p = cla_malloc(heap, nbytes);
  out[0] = cla_ref(heap, p);
  out[1] = cla_at(heap, out[0]) == p;
  if (p == 0) return;
  p[0] = 1, p[nbytes / 2] = 2, p[nbytes - 1] = 3;
}

kernel void give(CLA_HEAP heap, global uint *out, uint ref, ulong nbytes) {
  global uchar *p = cla_at(heap, ref);
  out[0] = p[0], out[1] = p[nbytes / 2], out[2] = p[nbytes - 1];
  cla_free(heap, p);
}

kernel void take_small(CLA_HEAP heap, global uint *refs) {
  const uint i = get_global_id(0);
  global uint *p = cla_malloc(heap, 16 + i % 5000);
  refs[i] = cla_ref(heap, p);
  if (p != 0) p[3] = i;
}

kernel void give_small(CLA_HEAP heap, global uint *refs, global uint *nbad) {
  const uint i = get_global_id(0);
  global uint *p = cla_at(heap, refs[i]);
  if (p == 0 || p[3] != i) atomic_inc(nbad);
  cla_free(heap, p);
}
]]

describe("a heap", function()
  local dev, prog, out

  setup(function()
    dev = cl.device()
    prog = dev:program(cl.heap_source() .. KERNELS)
    out = assert(dev:alloc(12))
  end)
  teardown(function()
    out:close()
    prog:close()
    dev:close()
  end)
  after_each(function()
    assert(dev.heap:reset())
    dev.heap.limit = 8 * cl.MiB
  end)

  local function u32(n) return { string.unpack(("<" .. ("I4"):rep(n)), (out:read())) } end

  for _, gib in ipairs { 6, 32 } do
    it(("of %d GiB gives blocks above 4 GiB to kernels and host"):format(gib), function()
      local limit = gib * cl.GiB
      if math.min(dev.max_alloc, dev.global_mem // 2) < limit + limit // 64 then return pending "not so much memory" end
      local heap, large = dev.heap, limit - cl.GiB
      heap.limit = limit
      assert(assert(prog.take { heap, out, large, size = 1 }):wait())
      local ref, is_same = table.unpack(u32(2))
      assert.equal(1, is_same)
      assert.equal("\3", heap:read(ref, 1, large - 1)) -- its last byte: far above 4 GiB
      assert(heap:write(ref, "\7", large // 2))

      -- Small blocks lie at the other end, and the host's is one of them.
      local n <const> = 20000
      local refs <close> = assert(dev:alloc(4 * n))
      local nbad <close> = assert(dev:alloc(4))
      assert(nbad:fill(0))
      assert(assert(prog.take_small { heap, refs, size = n }):wait())
      local first = string.unpack("<I4", refs:read(0, 4))
      assert.equal("\0\0\0\0", heap:read(first, 4, 12))
      local mine = assert(heap:alloc(100))
      assert(heap:write(mine, "of the host"))
      assert.equal("host", heap:read(mine, 4, 7))
      local blocks = assert(heap:blocks())
      assert.equal(n + 2, #blocks)
      assert.is_true(blocks[#blocks].offset > 4 * cl.GiB)
      for i = 2, #blocks do assert.is_true(blocks[i].offset >= blocks[i - 1].offset + blocks[i - 1].size) end
      assert(heap:check())

      assert(assert(prog.give_small { heap, refs, nbad, size = n }):wait())
      assert.equal(0, string.unpack("<I4", nbad:read()))
      assert(heap:free(mine))
      assert(assert(prog.give { heap, out, ref, large, size = 1 }):wait())
      assert.same({ 1, 7, 3 }, { table.unpack(u32(3), 1, 3) })
      local stats = assert(heap:stats())
      assert.equal(0, stats.live_blocks)
      assert.equal(stats.limit, stats.largest_free)
      assert(heap:check())
    end)
  end
end)
