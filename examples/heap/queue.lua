-- A queue of results whose lengths nobody knows before: kernels that produce them allocate each with its own size.
--
-- Work-item n factors its number, and puts a record with the prime factors in front of a list that all share, by
-- compare-and-swap; primes produce nothing. The records come in any order. Another kernel takes them, one work-item a
-- record, copies them where the host wants them, and frees them.
--
-- You will see how many records and words there were, and at the end "every number is the product of its factors". The
-- argument is how many numbers there are (20000).

local cl = require "clalloc"

local N = math.tointeger(arg[1] or 20000)
local FIRST = 1000000

local SOURCE = [[
typedef struct record {
  uint next; /* a reference */
  uint number, nfactors;
} record; /* its factors lie behind it */

static global uint *factors_of(global record *r) { return (global uint *)(r + 1); }

static uint factor(uint number, uint *factors) {
  uint n = 0;
  for (uint d = 2; d * d <= number; d += 1 + (d & 1))
    for (; number % d == 0; number /= d) factors[n++] = d;
  if (number > 1) factors[n++] = number;
  return n;
}

kernel void produce(CLA_HEAP heap, uint first, volatile global uint *head, volatile global uint *totals) {
  uint factors[32];
  const uint number = first + get_global_id(0), n = factor(number, factors);
  if (n < 2) return;
  global record *r = cla_malloc(heap, sizeof(record) + n * sizeof(uint));
  if (!r) return;
  r->number = number;
  r->nfactors = n;
  for (uint i = 0; i < n; i++) factors_of(r)[i] = factors[i];
  const uint mine = cla_ref(heap, r);
  atomic_inc(&totals[0]);
  atomic_add(&totals[1], 2 + n);
  for (;;) { /* another round only when another item was faster; what reads the records is another kernel */
    const uint now = *head;
    r->next = now;
    if (atomic_cmpxchg(head, now, mine) == now) return;
  }
}

/* Numbers the records, which nothing else touches now: one item walks the list. */
kernel void number(CLA_HEAP heap, global const uint *head, global uint *refs) {
  uint n = 0;
  for (uint r = head[0]; r; r = ((global record *)cla_at(heap, r))->next) refs[n++] = r;
}

kernel void consume(CLA_HEAP heap, global const uint *refs, volatile global uint *end, global uint *out) {
  global record *r = cla_at(heap, refs[get_global_id(0)]);
  uint at = atomic_add(end, 2 + r->nfactors);
  out[at++] = r->number;
  out[at++] = r->nfactors;
  for (uint i = 0; i < r->nfactors; i++) out[at++] = factors_of(r)[i];
  cla_free(heap, r);
}
]]

local dev <close> = cl.device()
local heap = dev.heap
local program <close> = assert(dev:program(SOURCE, { heap = true }))
local head <close> = assert(dev:alloc(4))
local totals <close> = assert(dev:alloc(8))
head:fill(0)
totals:fill(0)

assert(program.produce { heap, FIRST, head, totals, size = N })
local nrecords, nwords = string.unpack("<I4I4", totals:read())
local stats = heap:stats()
assert(stats.live_blocks == nrecords and stats.failed == 0)
print(("%d records of %d words: %s"):format(nrecords, nwords, tostring(heap)))

local refs <close> = assert(dev:alloc(4 * nrecords))
local out <close> = assert(dev:alloc(4 * nwords))
totals:fill(0)
assert(program.number { heap, head, refs, size = 1 })
assert(program.consume { heap, refs, totals, out, size = nrecords })
stats = heap:stats()
assert(heap:check() and stats.live_blocks == 0 and stats.bad_frees == 0 and stats.double_frees == 0)

-- Lua's factors: smallest first, as the kernel has them.
local function factors_of(number)
  local factors, d = {}, 2
  while d * d <= number do
    if number % d == 0 then
      factors[#factors + 1] = d
      number = number // d
    else
      d = d + 1
    end
  end
  if number > 1 then factors[#factors + 1] = number end
  return table.concat(factors, " ")
end

local seen, data, at = {}, out:read(), 1
for _ = 1, nrecords do
  local number, n
  number, n, at = string.unpack("<I4I4", data, at)
  local factors = { string.unpack("<" .. ("I4"):rep(n), data, at) }
  at = table.remove(factors)
  assert(not seen[number], "a record twice")
  seen[number] = table.concat(factors, " ")
end
assert(at == #data + 1)
for number = FIRST, FIRST + N - 1 do
  local factors = factors_of(number)
  assert(seen[number] == (factors:find " " and factors or nil), number)
end
print "every number is the product of its factors"
