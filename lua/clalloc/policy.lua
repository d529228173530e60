--- Policies: how a pool cuts, keeps and gets its memory.
--
-- A policy is a table of decisions; `dev:pool{policy = p}` takes it. A decision that is left out is the default's,
-- of `caching`; a constant or a name is the C core's business and costs nothing; a function is called:
--
-- * `round`: the size of a block. Bytes (a multiple of them), `"align"` (the default: of the alignment),
--   `"power_of_two"`, or `function(nbytes) return size end`, which is asked once for every size, and its answer
--   kept.
-- * `fit`: which free block. `"best"` (the default: of exactly the size, else the smallest that a bounded look
--   finds, beside live blocks rather than whole segments), `"exact"` (of exactly the size), or `function(request,
--   candidates)`. The candidates are free blocks that are large enough, the stream's own first, the smallest and
--   lowest first, at most eight. It answers one of them; `"more"` for the next ones; `"grow"` for a new segment;
--   `"best"` or nil for the default; or a place: `return candidate, offset`, or any table with the number of a
--   `segment`, and an offset in it. A place is taken exactly there, inside one free block, and not split further;
--   `return place, offset, "best"` (or `"grow"`) says what to do when it is not free, which is an error otherwise. A
--   segment just made is shown once, alone; what is no place in it means its beginning.
-- * `split`: how much of the block is cut off. `true` (the default: what is needed), `false` (nothing: it goes out
--   whole), the bytes of the largest block that is split, or `function(request, block) return nbytes end`.
-- * `grow`: the size of a new segment. `"share"` (the default: the `growth_` parameters), `"request"` (what is
--   needed, in grains), bytes (or the request, when that is more), or `function(request, default, refused) return
--   nbytes end`. `refused` are the bytes that the driver or the limit has just refused: a smaller answer is tried,
--   any other ends it.
-- * `keep`: whether a segment that has become wholly free stays. `"peak"` (the default: but segments go back before
--   more is reserved than ever before), `true`, `false`, or `function(segment) return boolean end`, which gets a
--   request whose `segment` and `size` are the segment's.
-- * `oom`: asked last, `function(request, times) return again end`: it may free something or raise the limit, and
--   returns true for another try, eight times at most. `false` is the default.
-- * `admit`: `function(request) return false, message, code end` refuses an allocation before anything is tried; the
--   code is `"LIMIT"` (the default) or `"NOMEM"`. It is asked again after garbage was collected, and after `oom`.
-- * `note`: `function(event)` is told of everything that happened: `event.what` is `"alloc"`, `"free"` or `"fail"`,
--   with `address`, `nbytes`, `size`, `segment`, `offset`, `stream` and `pool`.
--
-- A request has `nbytes` (asked for), `size` (rounded), `stream` (its id), `pool`, the pool's bytes `active`,
-- `requested`, `cached`, `held`, `reserved`, `peak_reserved` and `limit`, and `alike`, how many live allocations
-- have about this size. A candidate has `segment` (its number, ascending), `segment_size`, `offset`, `size`,
-- `whole`, `stream` (its owner's id, 0: nobody's) and `age` (commands of that stream since it was freed). These
-- tables are used again for the next call.
--
-- A function runs without any lock, on the thread of the Lua state that made the pool, and in protected mode. It may
-- free in its own pool, trim and close it; it cannot allocate from it, and cannot yield. An error, or an answer that
-- makes no sense, fails the allocation with an error that names the policy and the decision; the pool is as it was.
-- In an allocation or a free by another thread the default decides; `pool:stats().missed_decisions` counts that.
--
-- The parameters, in bytes unless said otherwise:
--
-- * `align`: block sizes and offsets are multiples of it, and of the device's own alignment.
-- * `grain`: segments are multiples of it.
-- * `growth_min`, `growth_max`: a new segment is half of what is reserved, within these bounds.
-- * `growth_share`, `growth_cap`: or one part in `growth_share` (a number) of what is reserved, when that is more,
--   up to `growth_cap`.
-- * `max_split`: larger blocks are neither split nor handed to smaller requests; 0: no limit.
-- * `exclusive` (a boolean): the program has the device to itself: the last tenth of the limit is taken as one
--   segment.
--
-- @module clalloc.policy

local policies = require "clalloc.policies"
local wrap = require "clalloc.policy_wrap"

local policy = {}

--- Blocks are split, merged and kept for reuse; segments go back before more is reserved than ever before.
-- @tparam[opt] table params those that differ
-- @treturn table the policy
-- @function caching
policy.caching = policies.caching

--- Every allocation goes to the driver, and every free too.
-- @tparam[opt] table params those that differ
-- @treturn table the policy
-- @function direct
policy.direct = policies.direct

--- The rules of PyTorch's caching allocator: two pools, segments of 2 and of 20 MiB.
-- @tparam[opt] table params those that differ
-- @treturn table the policy
-- @function torch
policy.torch = policies.torch

--- A pool that grows by doubling, as RAPIDS' does, and never shrinks.
-- @tparam[opt] table params those that differ, and `initial`: bytes of the first segment, 256 MiB
-- @treturn table the policy
-- @function rmm
policy.rmm = policies.rmm

--- Sizes rounded up to sixteen steps a power of two, freed blocks kept whole for their size, as PyOpenCL does.
-- @tparam[opt] table params those that differ
-- @treturn table the policy
-- @function bins
policy.bins = policies.bins

--- Addresses only ascend, and everything is free again when nothing is live any more.
-- @tparam[opt] table params those that differ, and `chunk`: bytes of a segment, 64 MiB
-- @treturn table the policy
-- @function arena
policy.arena = policies.arena

--- Blocks are powers of two, at multiples of their size.
-- @tparam[opt] table params those that differ, and `chunk`: bytes of a segment, 64 MiB
-- @treturn table the policy
-- @function buddy
policy.buddy = policies.buddy

--- A policy from a table of decisions: checks its fields, and gives it the methods below.
-- @tparam table t
-- @treturn table the policy
policy.new = wrap.new

--- The policy `p`, but no more than so many bytes live at once.
-- @tparam table p a policy, a table of decisions or a name; all that follow are methods of policies, too
-- @tparam integer nbytes
-- @treturn table the policy
-- @function limit
policy.limit = wrap.limit

--- The policy `p`, and who holds what: `tracked:leaks()` lists the live allocations, oldest first, with `address`,
-- `nbytes`, `size`, `stream` and `traceback`; `tracked:report()` is that as text, the same tracebacks taken together.
-- @tparam table p
-- @treturn table the policy
-- @function track
policy.track = wrap.track

--- The policy `p`, and a log of every allocation and free, in the form that RMM writes and replays.
-- @tparam table p
-- @tparam string path
-- @treturn table the policy; `logged:flush()` writes what is still in memory
-- @function log
policy.log = wrap.log

--- The policy `p`, but allocations after the first `n` fail, as if memory had run out.
-- @tparam table p
-- @tparam integer n
-- @treturn table the policy
-- @function fail_after
policy.fail_after = wrap.fail_after

--- The policy `p`, but allocations fail for whose request `fn` returns true.
-- @tparam table p
-- @tparam function fn
-- @treturn table the policy
-- @function fail_if
policy.fail_if = wrap.fail_if

--- The policy `p`, and counters that nest: `counted:counters()`, `counted:push()`, `counted:pop()` each return a
-- table with `bytes` and `allocations`, both with `value`, `peak` and `total`, since the last push. `pop` adds them to
-- those below.
-- @tparam table p
-- @treturn table the policy
-- @function statistics
policy.statistics = wrap.statistics

--- The policy `p`, and `fn(request, times)` is asked when memory has run out: true is another try.
-- @tparam table p
-- @tparam function fn
-- @treturn table the policy
-- @function on_oom
policy.on_oom = wrap.on_oom

return policy
