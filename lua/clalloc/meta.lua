---@meta clalloc
-- What there is, for editors that read LuaCATS annotations, for `cl.help` and for `make docs`: the one place where
-- the interface is written down. The first line of every comment stands alone. Nothing here runs; spec/meta_spec.lua
-- compares it with the module's real fields, both ways.

---OpenCL memory for Lua: devices, pooled buffers, streams, kernels, tensors.
---
---Misuse raises an error that names function, argument and value. What the environment refuses (memory, a limit, the
---driver) comes back as `nil, message, code`, so `assert` works; tensor operations raise that too. Every object has
---`close`, works with `<close>`, and is collected otherwise. Sizes and offsets are bytes and count from 0; dimensions
---and indices of tensors count from 1.
---@class clalloc
---@field version string the library's
---@field KiB integer 1024 bytes
---@field MiB integer 1024 KiB
---@field GiB integer 1024 MiB
local cl = {}

---A device: by index from 0, by type ("gpu", "cpu") or by a part of its name.
---
---Without a selector: what the environment's CLALLOC_DEVICE names, else a GPU, else a CPU. The same device is one
---device in the whole process, however often it is asked for.
---@param selector? integer|string
---@return clalloc.device device
function cl.device(selector) end

---All devices of all platforms.
---@return clalloc.device[] devices
function cl.devices() end

---A device with a capacity and no memory: for tests, and to replay traces of any size.
---@param options clalloc.simulation
---@return clalloc.device? device
---@return string? message
---@return string? code
function cl.simulate(options) end

---Makes a device, a stream or a pool the current one until the guard is closed.
---
---A stream leaves the pool that is current on its device, a pool leaves the stream; a device begins with its
---default ones.
---It counts for the running coroutine and those it resumes.
---@param target clalloc.device|clalloc.stream|clalloc.pool
---@return clalloc.guard guard
function cl.guard(target) end

---The current device and stream: the innermost guard's, else the defaults.
---@return clalloc.device device
---@return clalloc.stream stream
function cl.current() end

---Whether an address lies in a live allocation of this library.
---@param address integer|lightuserdata
---@return boolean
function cl.owns(address) end

---The allocation that an address lies in, and how far inside.
---@param address integer|lightuserdata
---@return clalloc.buffer|clalloc.host_buffer|nil buffer a view of the whole allocation; closing it frees nothing
---@return integer|string offset or a message
---@return string? code
function cl.resolve(address) end

---Local memory as an argument of a kernel.
---@param nbytes integer
---@return clalloc.localmem
function cl.localmem(nbytes) end

---The heap in OpenCL C, for the front of a source whose kernels have a parameter `CLA_HEAP heap`.
---
---`make install` puts the same text into clalloc_heap.cl. With `{heap = true}` the library adds it by itself.
---@return string
function cl.heap_source() end

---Seconds from a clock that runs on while the device works; only differences mean something.
---@return number seconds
function cl.clock() end

---Replays a trace through a pool and says what it cost.
---
---With `policies`, through a pool for each of them; the result is a list that prints as a table.
---@param trace clalloc.trace
---@param options? clalloc.replay_options
---@return clalloc.replay_result|clalloc.replay_comparison result
function cl.replay(trace, options) end

---Plans a trace: an offset for every allocation, so that no two that live at once overlap.
---
---Blocks of different streams share no memory: each stream has an area of its own.
---@param trace clalloc.trace
---@param options? clalloc.plan_options
---@return clalloc.plan? plan
---@return string? message
---@return string? code
function cl.plan(trace, options) end

---Prints what there is, or what a thing can do.
---
---The thing is an object, a function or table of the module, or a name: `cl.help(pool)`, `cl.help(pool.alloc)`,
---`cl.help "pool"`, `cl.help "pool:alloc"`.
---@param thing? any
function cl.help(thing) end

---A tensor of nested tables of numbers or booleans, or of one number.
---@param source table|number|boolean
---@param dtype? clalloc.dtype otherwise f32; u8 when all are booleans
---@return clalloc.tensor
function cl.tensor(source, dtype) end

---Zeros of a shape: `cl.zeros(2, 3)`, `cl.zeros({2, 3}, "f64")`.
---@param ... integer|integer[]|clalloc.dtype the sizes, or a list of them; then the kind
---@return clalloc.tensor
function cl.zeros(...) end

---Ones of a shape.
---@param ... integer|integer[]|clalloc.dtype as for `zeros`
---@return clalloc.tensor
function cl.ones(...) end

---A shape filled with a number: `cl.full({2, 3}, 7)`.
---@param sizes integer[]
---@param value number
---@param dtype? clalloc.dtype
---@return clalloc.tensor
function cl.full(sizes, value, dtype) end

---The numbers from first to last, both included: `cl.arange(0, 9)` has ten.
---@param first number
---@param last number
---@param step? number
---@param dtype? clalloc.dtype
---@return clalloc.tensor
function cl.arange(first, last, step, dtype) end

---Uniform numbers from 0 up to but not including 1, of a shape.
---@param ... integer|integer[]|clalloc.dtype as for `zeros`
---@return clalloc.tensor
function cl.rand(...) end

---Normal numbers of mean 0 and deviation 1, of a shape.
---@param ... integer|integer[]|clalloc.dtype as for `zeros`
---@return clalloc.tensor
function cl.randn(...) end

---Starts the random generator anew; a seed gives the same numbers on every device.
---@param n integer
function cl.seed(n) end

---A tensor over a buffer, without a copy.
---@param buffer clalloc.buffer a view too, beginning at a multiple of the element's size
---@param sizes? integer[] otherwise one dimension, as many elements as there are
---@param dtype? clalloc.dtype
---@return clalloc.tensor
function cl.from(buffer, sizes, dtype) end

---One tensor after another along a dimension.
---@param list clalloc.tensor[]
---@param dimension? integer
---@return clalloc.tensor
function cl.cat(list, dimension) end

---Reads a tensor that `t:save` wrote, to the current device.
---@param path string
---@return clalloc.tensor? tensor
---@return string? message
function cl.load_tensor(path) end

---Calls a function, then closes every tensor made in it but those it returns.
---@param body function
---@param ... any its arguments
---@return any ... what it returns
function cl.scope(body, ...) end

---Whether a value is a tensor.
---@param value any
---@return boolean
function cl.is_tensor(value) end

---Closes the compiled kernels of tensor operations; they are compiled again when needed.
function cl.forget_kernels() end

-- ---- Devices -------------------------------------------------------------------------------------------------

---A device: where memory is and kernels run.
---@class clalloc.device
---@field name string
---@field platform string
---@field vendor string
---@field version string of OpenCL that the device speaks
---@field driver_version string
---@field type "gpu"|"cpu"|"accelerator"|"custom"
---@field index? integer its place in `cl.devices()`, from 0; nil of a simulated one
---@field global_mem integer bytes of memory
---@field max_alloc integer bytes that the driver gives in one piece
---@field align integer alignment of sub-buffers in bytes; views that kernels take begin at multiples of it
---@field local_mem integer bytes of local memory
---@field max_group integer work-items in a group at most
---@field compute_units integer
---@field has_fp64 boolean whether kernels may use double
---@field has_rounded_divide boolean whether f32 division and sqrt can be rounded correctly, as tensors have it then
---@field has_svm boolean whether pools of shared virtual memory are possible
---@field simulated boolean
---@field default_stream clalloc.stream what is used where no stream is given or guarded
---@field host clalloc.host the cache of pinned memory
---@field heap clalloc.heap what kernels allocate from
local device = {}

---A buffer from the current pool, on the current stream.
---@param nbytes integer any number, 0 too
---@param options? clalloc.alloc_options
---@return clalloc.buffer? buffer
---@return string? message
---@return string? code "LIMIT", "NOMEM", "TOO_LARGE", "DRIVER"
function device:alloc(nbytes, options) end

---The default pool; with options, a new pool of your own.
---@param options? clalloc.pool_options
---@return clalloc.pool? pool
---@return string? message
---@return string? code
function device:pool(options) end

---A new stream: an in-order queue with a count of its commands.
---@return clalloc.stream? stream
---@return string? message
---@return string? code
function device:stream() end

---A gate: what waits for it stands still until it is opened.
---@return clalloc.gate? gate
---@return string? message
---@return string? code
function device:gate() end

---Builds kernels from OpenCL C; the same source gives the same object. Raises with the build log.
---@param source string
---@param options? string|clalloc.program_options compiler options, or a table
---@return clalloc.program? program
---@return string? message
---@return string? code
function device:program(source, options) end

---A new cache of pinned memory.
---@param options? clalloc.host_options
---@return clalloc.host? cache
---@return string? message
---@return string? code
function device:host_cache(options) end

---Simulated and `manual` only: completes the next n commands of a stream.
---@param stream clalloc.stream
---@param n? integer otherwise all
---@return integer completed
function device:complete(stream, n) end

---Lets go of this handle; buffers and streams of the device work on.
function device:close() end

---Options of `dev:alloc`.
---@class clalloc.alloc_options
---@field stream? clalloc.stream otherwise the current one
---@field pool? clalloc.pool otherwise the current one: a guard's, or the default pool

---Options of `dev:pool`.
---@class clalloc.pool_options
---@field policy? clalloc.policy_table|string a policy, or the name of one in `cl.policy`
---@field limit? integer most bytes reserved; otherwise 7/8 of the device's memory
---@field svm? boolean shared virtual memory: addresses are valid on the host
---@field commit? boolean false: leave backing of new segments to the driver's first use

---Options of `dev:program`.
---@class clalloc.program_options
---@field options? string for the compiler
---@field defines? table<string, string|number|boolean> macros
---@field heap? boolean kernels may call malloc, free, calloc, realloc and aligned_alloc, or take a CLA_HEAP parameter

---Options of `cl.simulate`.
---@class clalloc.simulation
---@field capacity? integer bytes
---@field align? integer alignment of sub-buffers in bytes
---@field max_alloc? integer most bytes in one piece
---@field refuse_above? integer the driver refuses larger pieces without saying so before
---@field lazy? boolean memory counts at its first use, not when the buffer is made
---@field manual? boolean commands complete when `dev:complete` says so, not at once
---@field accepts_oversize? boolean the driver makes buffers larger than it can back
---@field ordered_subs? boolean sub-buffers that overlap must be released newest first, as for NVIDIA's driver

-- ---- Pools ---------------------------------------------------------------------------------------------------

---A pool: segments from the driver, cut into blocks and reused.
---
---`tostring` gives one line; `pool:draw()` draws the segments, and so does the Lua prompt.
---@class clalloc.pool
---@field device clalloc.device
---@field limit integer most bytes reserved; may be set
---@field policy string the policy's name
local pool = {}

---A buffer from this pool.
---@param nbytes integer any number, 0 too
---@param stream? clalloc.stream|clalloc.pool_alloc_options otherwise the current one
---@return clalloc.buffer? buffer
---@return string? message
---@return string? code
function pool:alloc(nbytes, stream) end

---Gives free segments back to the driver.
---@return integer? freed bytes
---@return string? message
---@return string? code
function pool:trim() end

---The pool's figures.
---@return clalloc.pool_stats
function pool:stats() end

---Bytes of now, quickly; unlike `stats` it never changes what is allocated where.
---@return integer reserved
---@return integer active
---@return integer requested
---@return integer held
function pool:usage() end

---Starts the peak figures anew, at what is now.
---@return boolean
function pool:reset_peaks() end

---Every segment and block, as tables.
---@return clalloc.segment[]
function pool:snapshot() end

---A map of the segments as text, one character for each range of bytes.
---@param width? integer characters of the longest row, 64
---@param rows? integer segments at most, the largest; 16
---@return string
function pool:draw(width, rows) end

---Records what happens to blocks and segments in a ring of the newest events: `pool:trace(true)` starts it (anew),
---`pool:trace(false)` stops it, `pool:trace()` gives what there is, while it goes on too. Addresses are such that
---blocks tile their segments; they are not those of buffers. `lost` of the trace counts events there was no room for.
---@param on? boolean
---@param options? clalloc.pool_trace_options
---@return clalloc.trace|boolean|nil trace
---@return string? message
---@return integer? code
function pool:trace(on, options) end

---Options of `pool:trace(true)`.
---@class clalloc.pool_trace_options
---@field events? integer room for so many; 1048576 if left out, 48 bytes each

---Recounts everything; raises where the books disagree.
---@return boolean
function pool:check() end

---Sets the limit; the same as setting the field.
---@param nbytes integer
---@return boolean
function pool:set_limit(nbytes) end

---Frees the pool with all its buffers; of the default pool, lets go of this handle.
function pool:close() end

---Options of `pool:alloc`.
---@class clalloc.pool_alloc_options
---@field stream? clalloc.stream

---What `pool:stats` gives. Bytes and blocks are those of now, `peak_*` the most so far.
---@class clalloc.pool_stats
---@field active_bytes integer in live allocations, as set aside
---@field requested_bytes integer in live allocations, as asked for
---@field cached_bytes integer free, ready for use
---@field held_bytes integer freed, but other streams still use them
---@field reserved_bytes integer from the driver: active + cached + held
---@field active_blocks integer
---@field cached_blocks integer
---@field held_blocks integer
---@field segments integer
---@field largest_free integer bytes of the largest free block
---@field limit integer
---@field allocs integer so far
---@field frees integer so far
---@field driver_allocs integer buffers made by the driver
---@field driver_frees integer
---@field retries integer allocations that needed an out-of-memory step
---@field ooms integer allocations that failed
---@field peak_active_bytes integer
---@field peak_requested_bytes integer
---@field peak_cached_bytes integer
---@field peak_held_bytes integer
---@field peak_reserved_bytes integer

---A segment in a snapshot: one buffer of the driver's.
---@class clalloc.segment
---@field id integer
---@field size integer
---@field blocks clalloc.block[] from its start to its end

---A block in a snapshot.
---@class clalloc.block
---@field address integer
---@field offset integer in the segment
---@field size integer
---@field requested integer 0 when free
---@field stream integer id of the stream that owns it
---@field state "active"|"free"|"held"

-- ---- Buffers -------------------------------------------------------------------------------------------------

---A buffer: an allocation, or a view of one. `#buf` is its size.
---@class clalloc.buffer
---@field size integer bytes
---@field address integer a device address: any address inside stands for the allocation
---@field reserved integer bytes set aside for the allocation
---@field offset integer of a view in its allocation
---@field is_view boolean
---@field closed boolean also when the allocation has been freed otherwise
---@field device clalloc.device
---@field pool? clalloc.pool
---@field stream? clalloc.stream that it was allocated on
---@operator len: integer
local buffer = {}

---Writes a string into the buffer.
---@param bytes string
---@param offset? integer
---@param options? clalloc.command_options
---@return boolean|clalloc.event|nil done an event when async
---@return string? message
---@return string? code
function buffer:write(bytes, offset, options) end

---Reads bytes as a string, after what its stream was told before.
---@param offset? integer
---@param n? integer bytes; otherwise all the rest
---@param options? clalloc.command_options
---@return string|clalloc.event|nil bytes an event when async: its `data` has them
---@return string? message
---@return string? code
function buffer:read(offset, n, options) end

---Fills with a byte from 0 to 255, or a pattern of 1, 2, 4, 8 or 16 bytes.
---@param value integer|string
---@param options? clalloc.fill_options
---@return boolean|clalloc.event|nil done
---@return string? message
---@return string? code
function buffer:fill(value, options) end

---Copies from another buffer, of another device too.
---@param source clalloc.buffer|clalloc.host_buffer
---@param options? clalloc.copy_options
---@return boolean|clalloc.event|nil done
---@return string? message
---@return string? code
function buffer:copy(source, options) end

---Copies from pinned memory, without waiting.
---@param source clalloc.host_buffer
---@param offset? integer
---@param options? clalloc.transfer_options
---@return clalloc.event? event
---@return string? message
---@return string? code
function buffer:write_async(source, offset, options) end

---Copies to pinned memory, without waiting.
---@param target clalloc.host_buffer
---@param offset? integer
---@param options? clalloc.transfer_options
---@return clalloc.event? event
---@return string? message
---@return string? code
function buffer:read_async(target, offset, options) end

---A part of the buffer, sharing its memory.
---@param offset integer
---@param n? integer bytes; otherwise all the rest
---@return clalloc.buffer
function buffer:view(offset, n) end

---A part of the buffer in host memory, until the map is closed.
---@param mode "r"|"w"|"rw"|"discard"
---@param offset? integer
---@param n? integer bytes; otherwise all the rest
---@return clalloc.map? map
---@return string? message
---@return string? code
function buffer:map(mode, offset, n) end

---Says that a stream uses the buffer, where the library cannot see it.
---@param stream clalloc.stream
---@return boolean
function buffer:record(stream) end

---Frees the allocation; commands that use it finish first. Of a view, frees nothing.
function buffer:close() end

---Options of commands.
---@class clalloc.command_options
---@field stream? clalloc.stream otherwise the current one
---@field wait? clalloc.event|clalloc.gate|(clalloc.event|clalloc.gate)[] what comes first
---@field async? boolean return an event at once

---Options of `buf:fill`.
---@class clalloc.fill_options: clalloc.command_options
---@field offset? integer
---@field size? integer bytes; otherwise all the rest

---Options of `buf:copy`.
---@class clalloc.copy_options: clalloc.command_options
---@field offset? integer
---@field source_offset? integer
---@field size? integer bytes; otherwise as many as there are on both sides

---Options of `buf:write_async` and `buf:read_async`.
---@class clalloc.transfer_options
---@field size? integer bytes; otherwise as many as there are on both sides
---@field stream? clalloc.stream otherwise the current one
---@field wait? clalloc.event|clalloc.gate|(clalloc.event|clalloc.gate)[] what comes first

---A map: a part of a buffer in host memory. Closing it gives it back. `#m` is its size.
---@class clalloc.map
---@field size integer bytes
---@operator len: integer
local map = {}

---Bytes as a string.
---@param offset? integer
---@param n? integer
---@return string
function map:read(offset, n) end

---Writes a string.
---@param bytes string
---@param offset? integer
---@return boolean
function map:write(bytes, offset) end

---All bytes as a string.
---@return string
function map:string() end

---Gives the memory back to the device.
function map:close() end

-- ---- Pinned memory -------------------------------------------------------------------------------------------

---A cache of pinned host memory: `dev.host`, or one of your own.
---@class clalloc.host
---@field device clalloc.device
---@field kind "mapped"|"registered"|"svm"|"plain" how memory is pinned
---@field max_cached integer bytes kept free at most
---@field max_block integer larger blocks are not kept
local host = {}

---A piece of pinned memory.
---@param nbytes integer any number, 0 too
---@return clalloc.host_buffer? buffer
---@return string? message
---@return string? code
function host:alloc(nbytes) end

---Gives free blocks back.
---@return integer? freed bytes
---@return string? message
---@return string? code
function host:trim() end

---The cache's figures.
---@return clalloc.host_stats
function host:stats() end

---Starts the peak figures anew, at what is now.
---@return boolean
function host:reset_peaks() end

---Recounts everything; raises where the books disagree.
---@return boolean
function host:check() end

---Blocks that streams are done with become free; with a size, until one of it is.
---@param nbytes? integer
---@return boolean
function host:process_events(nbytes) end

---Sets how much is kept free.
---@param limits clalloc.host_limits
---@return boolean
function host:set_limits(limits) end

---Closes a cache of your own, its memory goes back as it becomes free; of `dev.host`, lets go of this handle.
function host:close() end

---Limits of `host:set_limits`.
---@class clalloc.host_limits
---@field max_cached? integer bytes kept free at most
---@field max_block? integer larger blocks are not kept

---Options of `dev:host_cache`.
---@class clalloc.host_options: clalloc.host_limits
---@field kind? "mapped"|"registered"|"svm"|"plain" how memory is pinned; otherwise mapped
---@field power_of_two_up_to? integer sizes are rounded to powers of two up to here
---@field steps_up_to? integer and to steps that waste an eighth at most up to here, to pages above
---@field background? boolean a thread frees blocks that streams are done with
---@field hooks? clalloc.host_hooks functions that choose, veto, delay and count

---Hooks of `dev:host_cache`: functions, each of them optional.
---@class clalloc.host_hooks
---@field allocate? fun(nbytes: integer, kind: string): any a block is made: a kind; false: plain; nil, message: fail
---@field free? fun(nbytes: integer, kind: string) a block goes back
---@field record? fun(stream: integer, ticket: integer) use by a stream has been recorded
---@field query? fun(stream: integer, ticket: integer, done: boolean): boolean false: not yet

---What `host:stats` gives. Bytes and blocks are those of now, `peak_*` the most so far.
---@class clalloc.host_stats
---@field active_bytes integer in live allocations, as set aside
---@field requested_bytes integer in live allocations, as asked for
---@field cached_bytes integer free, ready for use
---@field pending_bytes integer freed, but streams still use them
---@field reserved_bytes integer active + cached + pending
---@field plain_bytes integer that could not be pinned
---@field active_blocks integer
---@field cached_blocks integer
---@field pending_blocks integer
---@field reserved_blocks integer
---@field plain_blocks integer
---@field allocs integer so far
---@field frees integer so far
---@field hits integer allocations served from the cache
---@field driver_allocs integer blocks made
---@field driver_frees integer blocks given back
---@field alloc_us integer microseconds spent making blocks
---@field free_us integer microseconds spent giving blocks back
---@field longest_alloc_us integer
---@field longest_free_us integer
---@field failed_pins integer
---@field peak_active_bytes integer
---@field peak_reserved_bytes integer
---@field peak_pending_bytes integer
---@field classes table<integer, integer> by power of two, how many blocks are from that size up to its double
---@field missed_hooks? integer calls of hooks left out, as Lua could not be called

---A piece of pinned memory, or a view of one: Lua reads and writes it at once. `#h` is its size.
---@class clalloc.host_buffer
---@field size integer bytes
---@field address integer in host memory
---@field reserved integer bytes set aside
---@field offset integer of a view in its allocation
---@field is_pinned boolean
---@field is_view boolean
---@field closed boolean
---@field device clalloc.device
---@operator len: integer
local host_buffer = {}

---Bytes as a string.
---@param offset? integer
---@param n? integer
---@return string
function host_buffer:read(offset, n) end

---Writes a string.
---@param bytes string
---@param offset? integer
---@return boolean
function host_buffer:write(bytes, offset) end

---All bytes as a string.
---@return string
function host_buffer:string() end

---Fills with a byte.
---@param byte integer 0 to 255
---@param offset? integer
---@param n? integer
---@return boolean
function host_buffer:fill(byte, offset, n) end

---Copies from a buffer of the device, or from pinned memory.
---@param source clalloc.buffer|clalloc.host_buffer
---@param options? clalloc.copy_options
---@return boolean|clalloc.event|nil done
---@return string? message
---@return string? code
function host_buffer:copy(source, options) end

---A part of it, sharing its memory.
---@param offset integer
---@param n? integer bytes; otherwise all the rest
---@return clalloc.host_buffer
function host_buffer:view(offset, n) end

---Says that a stream uses the memory, where the library cannot see it.
---@param stream clalloc.stream
---@return boolean
function host_buffer:record(stream) end

---Frees the memory; the cache keeps it until streams are done with it.
function host_buffer:close() end

-- ---- Streams, events, gates ----------------------------------------------------------------------------------

---A stream: an in-order queue; memory freed on it is reused on it at once.
---@class clalloc.stream
---@field id integer
---@field device clalloc.device
local stream = {}

---Waits until every command is complete.
---@return boolean? done
---@return string? message
---@return string? code
function stream:finish() end

---Whether every command is complete.
---@return boolean? idle
---@return string? message
---@return string? code
function stream:query() end

---The next commands come after an event, a gate, what another stream has now, or a list of these.
---@param what clalloc.event|clalloc.gate|clalloc.stream|table
---@return boolean? done
---@return string? message
---@return string? code
function stream:wait(what) end

---The stream's counters.
---@return clalloc.stream_stats
function stream:stats() end

---Lets go of the stream; its commands run to their end.
function stream:close() end

---What `stream:stats` gives.
---@class clalloc.stream_stats
---@field submitted integer commands so far
---@field completed integer known complete
---@field markers integer marker events asked of the driver

---An event: one command on its way.
---@class clalloc.event
---@field done boolean
---@field stream? clalloc.stream nil when it has been closed
local event = {}

---Waits until the command is complete.
---@return boolean? done
---@return string? message
---@return string? code
function event:wait() end

---How far the command is.
---@return "queued"|"submitted"|"running"|"complete"|"error" state
function event:status() end

---Seconds that the command took on the device.
---@return number? seconds nil before the end
---@return string? message
---@return string? code
function event:seconds() end

---The command's times on the device's clock.
---@return clalloc.event_times? times nil before the end
---@return string? message
---@return string? code
function event:profile() end

---What an asynchronous read has read; waits for it.
---@return string? bytes nil of any other command
function event:data() end

---Lets go of the event; the command runs all the same.
function event:close() end

---What `event:profile` gives, in nanoseconds.
---@class clalloc.event_times
---@field queued integer
---@field submit integer
---@field start integer
---@field finish integer

---A gate: holds streams still until opened.
---@class clalloc.gate
---@field is_open boolean
---@field device clalloc.device
local gate = {}

---Lets everything through, for ever.
---@return boolean
function gate:open() end

---Opens the gate and lets go of it.
function gate:close() end

---A guard: makes a device, stream or pool current until it is closed.
---@class clalloc.guard
local guard = {}

---What was current before is current again.
function guard:close() end

-- ---- Programs and kernels ------------------------------------------------------------------------------------

---A program: `prog.name` is the kernel of that name; `pairs(prog)` goes through them.
---@class clalloc.program
---@field [string] clalloc.kernel
local program = {}

---The names of its kernels, sorted.
---@return string[]
function program:kernels() end

---Closes the program with its kernels.
function program:close() end

---A kernel: called with a table, it runs: `prog.saxpy{2.0, x, y, size = n}`.
---
---The list part are the arguments, checked and converted by the kernel's own types: numbers, buffers (false: a null
---pointer), `cl.localmem(nbytes)`, lists or strings for vectors, strings for structs.
---@class clalloc.kernel
---@field name string
---@field args clalloc.kernel_arg[] its parameters
---@field max_group integer work-items in a group at most
---@field preferred_multiple integer group sizes are best a multiple of it
---@field local_mem integer bytes of local memory that it uses
---@overload fun(launch: clalloc.launch): clalloc.event?, string?, string?
local kernel = {}

---The same as calling it, but makes no event, which takes less time: `prog.saxpy:launch{2.0, x, y, size = n}`.
---@param launch clalloc.launch
---@return true?
---@return string? message
---@return string? code
function kernel:launch(launch) end

---Lets go of the kernel; the program makes it again when asked.
function kernel:close() end

---What kernels of a device allocate from: `dev.heap`.
---
---One heap a device, made when the first kernel uses it; until then, and again after `reset`, its settings may be
---assigned: `dev.heap.limit = 64 * cl.MiB`. All streams share it. References are 32-bit numbers that stand for
---pointers: `cla_ref(heap, p)` in kernels, and `cla_at(heap, ref)` back; 0 is null. What looks at the heap waits for
---the kernels that use it first, so every figure is exact.
---@class clalloc.heap
---@field limit integer bytes that kernels can have, a whole number of pages; may be set before the first use
---@field counting boolean whether allocations are counted; may be set before the first use; otherwise true
---@field sites boolean whether blocks remember kernel and line; may be set before the first use; otherwise false
---@field device clalloc.device
local heap = {}

---How full the heap is, and what has happened in it.
---@return clalloc.heap_stats? stats
---@return string? message
---@return string? code
function heap:stats() end

---Recounts everything from the heap's notes; raises with the first contradiction.
---@return boolean? ok
---@return string? message
---@return string? code
function heap:check() end

---Every live block, in the order of the heap.
---@return clalloc.heap_block[]? blocks
---@return string? message
---@return string? code
function heap:blocks() end

---What is live, by kernel and line, or without sites by size; the most bytes first. Printing it gives a table.
---@return clalloc.heap_leak[]? leaks
---@return string? message
---@return string? code
function heap:leaks() end

---A block from the host, for kernels to use and to free. 0 bytes: 0, as malloc(0) is null.
---@param nbytes integer
---@return integer? ref
---@return string? message
---@return string? code
function heap:alloc(nbytes) end

---Frees a block, whoever allocated it; 0 is nothing. Raises for what is no live block.
---@param ref integer
---@return boolean? ok
---@return string? message
---@return string? code
function heap:free(ref) end

---Bytes of a live block.
---@param ref integer of the block, or into it
---@param nbytes integer
---@param offset? integer from the reference
---@return string? data
---@return string? message
---@return string? code
function heap:read(ref, nbytes, offset) end

---Writes into a live block.
---@param ref integer of the block, or into it
---@param data string
---@param offset? integer from the reference
---@return boolean? ok
---@return string? message
---@return string? code
function heap:write(ref, data, offset) end

---Gives the memory back, with all that is in it; the settings may be assigned again.
---
---Waits for the kernels that use the heap; raises behind a gate that this thread has not opened.
---@return boolean? ok
---@return string? message
---@return string? code
function heap:reset() end

---Both peaks begin anew at what is taken now.
---@param exact? boolean follow `peak_live` from here on, which costs time; otherwise not
---@return boolean? ok
---@return string? message
---@return string? code
function heap:reset_peaks(exact) end

---The most that a run takes: calls the function, waits for its kernels. For choosing a limit.
---@param f function
---@param ... any arguments for it
---@return integer? peak bytes of whole pages: what a limit has to cover
---@return integer|string peak_live bytes in live blocks; or the message
---@return string? code
function heap:measure(f, ...) end

---The heap as text: a character for each range of bytes.
---@param width? integer characters in a row; otherwise 64
---@param rows? integer rows at most; otherwise 16
---@return string? text
---@return string? message
---@return string? code
function heap:draw(width, rows) end

---Lets go of this handle; the heap stays with the device.
function heap:close() end

---What `heap:stats` gives. Without `counting` mallocs, frees and the peaks are 0.
---@class clalloc.heap_stats
---@field limit integer bytes that kernels can have
---@field reserved integer bytes of the buffer; 0 before the first use
---@field used integer bytes in live blocks, as set aside
---@field live_blocks integer
---@field largest_free integer bytes of the largest block that is free in one piece
---@field waste integer bytes in pages that only blocks of one size can get, outside live blocks
---@field peak integer most bytes taken at a time, whole pages
---@field peak_live integer most bytes in live blocks at a time, while it is followed
---@field mallocs integer that succeeded
---@field frees integer that succeeded
---@field failed integer allocations that got null
---@field largest_refused integer bytes of the largest of them
---@field double_frees integer frees of blocks that were free
---@field bad_frees integer frees of what is no block
---@field faults clalloc.heap_fault[] the first double and bad frees

---A double or bad free: it changed nothing.
---@class clalloc.heap_fault
---@field kind "double"|"foreign"|"misaligned"|"interior"
---@field pointer integer as the kernel gave it
---@field offset? integer in the heap; nil: outside
---@field item integer global linear id of the work-item

---A live block of the heap.
---@class clalloc.heap_block
---@field ref integer its reference
---@field offset integer in the heap, in bytes
---@field size integer bytes set aside
---@field kernel? string that allocated it; with sites
---@field line? integer of the source where; with sites

---Live blocks of one place, or of one size.
---@class clalloc.heap_leak
---@field blocks integer how many
---@field bytes integer set aside for them
---@field ref integer the first of them
---@field kernel? string that allocated them; with sites
---@field line? integer of the source where; with sites
---@field size? integer of each; without sites

---What a kernel is called with, besides its arguments.
---@class clalloc.launch
---@field [integer] any the arguments
---@field size integer|integer[] work-items, in one to three dimensions
---@field group? integer|integer[] work-items in a group
---@field offset? integer|integer[] of the first work-item
---@field stream? clalloc.stream otherwise the current one
---@field wait? clalloc.event|clalloc.gate|(clalloc.event|clalloc.gate)[] what comes first
---@field heap_need? integer bytes that must be free in the heap, or nothing is launched: waits for kernels that use it
---@field heap_oom? "count"|"error" error: waiting for the event raises when an allocation failed; otherwise count

---A parameter of a kernel.
---@class clalloc.kernel_arg
---@field name string
---@field type string
---@field qualifier string

---Local memory as an argument of a kernel.
---@class clalloc.localmem
---@field size integer bytes
local localmem = {}

-- ---- Policies ------------------------------------------------------------------------------------------------

---Policies: how a pool cuts, keeps and gets its memory.
---
---A policy is a table of decisions, each a constant, a name or a function; what is left out is as in `caching`.
---`limit`, `track`, `log`, `fail_after`, `fail_if`, `statistics` and `on_oom` take a policy, a table or a name, and
---give a policy around it; they are methods of policies, too: `cl.policy.torch():limit(n):track()`.
---@class clalloc.policy
cl.policy = {}

---Blocks are split, merged and kept; segments go back before more is reserved than ever before.
---@param parameters? clalloc.policy_table those that differ from the default
---@return clalloc.policy_table
function cl.policy.caching(parameters) end

---Every allocation goes to the driver, and every free too.
---@param parameters? clalloc.policy_table those that differ from the default
---@return clalloc.policy_table
function cl.policy.direct(parameters) end

---The rules of PyTorch's caching allocator: two pools, segments of 2 and of 20 MiB.
---@param parameters? clalloc.policy_table those that differ
---@return clalloc.policy_table
function cl.policy.torch(parameters) end

---A pool that grows by doubling, as RAPIDS' does, and never shrinks.
---@param parameters? table those that differ, and `initial`: bytes of the first segment, 256 MiB
---@return clalloc.policy_table
function cl.policy.rmm(parameters) end

---Sixteen sizes a power of two; freed blocks stay whole for their size, as in PyOpenCL's pool.
---@param parameters? clalloc.policy_table those that differ
---@return clalloc.policy_table
function cl.policy.bins(parameters) end

---Addresses only ascend; all is free again when nothing of the stream is live any more.
---@param parameters? table those that differ, and `chunk`: bytes of a segment, 64 MiB
---@return clalloc.policy_table
function cl.policy.arena(parameters) end

---Blocks are powers of two, at multiples of their size.
---@param parameters? table those that differ, and `chunk`: bytes of a segment, 64 MiB
---@return clalloc.policy_table
function cl.policy.buddy(parameters) end

---Rounds of a loop from a plan: one is recorded, placed offline, and the next ones run from that, without a search.
---
---The policy has `step()`, to be called where a round begins; `again()`, to record another round; `counts()`: a table
---with `phase`, `plans` made, `rounds` run from them, `planned` allocations, `deviations` (`unexpected` ones, and those
---whose place was `occupied`), `skipped` (planned and never asked for), `nbytes` of the plan, and a `fault`, if any.
---@param parameters? table those that differ; `warm_up` rounds before the recorded one, `seconds` of search, a `plan`
---@return clalloc.policy_table
function cl.policy.planned(parameters) end

---A policy from a table of decisions: checks its fields, and gives it the methods.
---@param decisions clalloc.policy_table
---@return clalloc.policy_table
function cl.policy.new(decisions) end

---The policy, but no more than so many bytes live at once.
---@param policy clalloc.policy_table|string
---@param nbytes integer
---@return clalloc.policy_table
function cl.policy.limit(policy, nbytes) end

---The policy, and who holds what: `p:leaks()` lists live allocations with a traceback, `p:report()` sums them up.
---@param policy clalloc.policy_table|string
---@return clalloc.policy_table
function cl.policy.track(policy) end

---The policy, and a log of what happens in the form that RMM writes and replays.
---@param policy clalloc.policy_table|string
---@param path string
---@return clalloc.policy_table? policy `p:flush()` writes what is still in memory
---@return string? message
---@return integer? code
function cl.policy.log(policy, path) end

---The policy, but allocations after the first n fail, as if memory had run out.
---@param policy clalloc.policy_table|string
---@param n integer
---@return clalloc.policy_table
function cl.policy.fail_after(policy, n) end

---The policy, but allocations fail for whose request the function returns true.
---@param policy clalloc.policy_table|string
---@param fn fun(request: clalloc.policy_request): boolean?
---@return clalloc.policy_table
function cl.policy.fail_if(policy, fn) end

---The policy, and counters that nest: `p:counters()`, `p:push()`, `p:pop()`.
---
---Each returns `bytes` and `allocations`, both with `value`, `peak` and `total` since the last push; `pop` adds them to
---those below.
---@param policy clalloc.policy_table|string
---@return clalloc.policy_table
function cl.policy.statistics(policy) end

---The policy, and a function that is asked when memory has run out: true is another try.
---@param policy clalloc.policy_table|string
---@param fn fun(request: clalloc.policy_request, times: integer): boolean?
---@return clalloc.policy_table
function cl.policy.on_oom(policy, fn) end

---The decisions and parameters of a policy, in bytes unless said otherwise.
---
---A function runs without locks, in protected mode, on the thread of the Lua state that made the pool, and must not
---allocate from that pool. nil is the default's answer; an error or a senseless answer fails the allocation.
---@class clalloc.policy_table
---@field name? string `direct` stands for that policy's parameters, anything else for caching's
---@field align? integer block sizes and offsets are multiples of it
---@field grain? integer segments are multiples of it
---@field growth_min? integer a new segment is half of what is reserved, but at least this
---@field growth_max? integer and at most this
---@field growth_share? integer or one part in so many of what is reserved, when that is more
---@field growth_cap? integer up to this
---@field max_split? integer larger blocks are neither split nor given to smaller requests; 0: no limit
---@field look? integer candidates that a `fit` function is shown at a time, 1 to 8; 8
---@field exclusive? boolean the last tenth of the limit is one segment: the device is for this program
---@field round? integer|"align"|"power_of_two"|fun(nbytes: integer): integer? the size of a block; asked once a size
---@field fit? "best"|"exact"|fun(request: clalloc.policy_request, candidates: clalloc.policy_block[]): any, any, any
---@field split? boolean|integer|fun(request: clalloc.policy_request, block: clalloc.policy_block): integer?
---@field grow? integer|"share"|"request"|fun(request: clalloc.policy_request, default: integer, refused?: integer): any
---@field keep? boolean|"peak"|fun(segment: clalloc.policy_request): boolean? false: a free segment goes back
---@field oom? false|fun(request: clalloc.policy_request, times: integer): boolean? true: another try
---@field admit? fun(request: clalloc.policy_request): boolean?, string?, string? false, message, code: it fails
---@field note? fun(event: clalloc.policy_event) is told of every allocation, free and failure

---What a decision is about; valid during the call.
---@class clalloc.policy_request
---@field nbytes integer asked for
---@field size integer rounded; of the segment in `keep`
---@field segment integer number of the segment, in `keep`
---@field stream integer id
---@field pool clalloc.pool
---@field active integer bytes of live blocks
---@field requested integer bytes asked for by them
---@field cached integer free bytes
---@field held integer bytes that wait for streams
---@field reserved integer
---@field peak_reserved integer
---@field limit integer
---@field alike integer live allocations of about this size

---A free block, as `fit` and `split` see it.
---@class clalloc.policy_block
---@field segment integer number, ascending in the order they were made
---@field segment_size integer
---@field offset integer in the segment
---@field size integer
---@field whole boolean the segment has no other block
---@field stream integer id of the owner; 0: nobody's
---@field age integer commands given to the owner since it was freed

---What `note` is told.
---@class clalloc.policy_event
---@field what "alloc"|"free"|"fail"
---@field address integer
---@field nbytes integer
---@field size integer
---@field segment integer
---@field offset integer
---@field stream integer
---@field pool clalloc.pool

-- ---- Traces --------------------------------------------------------------------------------------------------

---Traces: recordings of what a program asked of its allocator.
---@class clalloc.traces
cl.trace = {}

---Reads a trace: PyTorch snapshots, pickled or as CSV, RMM logs, lifetimes, timelines; found out from the content.
---@param path string NAME.initial.csv is read along
---@param options? clalloc.trace_options
---@return clalloc.trace
function cl.trace.load(path, options) end

---A trace of a recording that is there already, as columns.
---@param recording clalloc.recording
---@return clalloc.trace
function cl.trace.new(recording) end

---A recorder: tell it what is allocated and freed, and `finish` gives the trace.
---@return clalloc.recorder
function cl.trace.recorder() end

---A byte count for people: "11.57 GiB".
---@param nbytes integer
---@return string
function cl.trace.human(nbytes) end

---Options of `cl.trace.load`.
---@class clalloc.trace_options
---@field initial? string|false the file of what was live at the start, or false for none
---@field name? string
---@field device? integer whose allocations to take, from 0, where a snapshot has those of several devices

---A recording: what happened to an allocator's blocks and segments, as lists of one length.
---@class clalloc.recording
---@field events clalloc.event_columns
---@field before? table what existed before: `segments` and `blocks`; else found out from the end
---@field segments? table[] what is there after the last event; each with its `blocks`
---@field name? string
---@field device? integer number of the device, 0 if left out
---@field addressed? boolean of a trace's recording: false where `address` holds numbers that only tell blocks apart

---Columns of events, one event at each index.
---@class clalloc.event_columns
---@field action string[] `alloc`, `free`, `free_requested`, `free_completed`, `segment_alloc`, `oom`, ...
---@field address integer[]
---@field size integer[] requested bytes
---@field stream? integer[] 0 is the default one
---@field time_us? integer[] microseconds
---@field thread? integer[]
---@field block? integer[] bytes that the block takes up

---A trace: allocations and frees in program order.
---@class clalloc.trace
---@field name string
---@field format string
---@field operations integer
---@field allocations integer
---@field slots integer most blocks live at once
---@field streams integer one more than the highest stream number
---@field initial integer operations at the start that make what was live before
---@field peak_live integer the most bytes live at once
---@field failures integer allocations that failed in the recording
---@field lost integer of a pool's recording: events older than those there was room for
---@field scale integer what sizes were divided by
---@field op integer[] slot: allocates into it; -slot: frees it
---@field size integer[] bytes
---@field stream integer[]
---@field recording clalloc.recording what the trace was made of
local trace = {}

---The same trace with every size divided, rounded up.
---@param n integer at least 1
---@return clalloc.trace
function trace:scaled(n) end

---Writes the trace: as CSV, which `load` reads back, or for another tool.
---@param path string
---@param format? "csv"|"pickle"|"chrome"|"rmm"|"pytorch_snapshot" else by the suffix of path
---@param options? table `streams = false`: in an RMM log every stream is the default one
---@return boolean? done
---@return string? message
---@return integer? code
function trace:save(path, format, options) end

---A recorder of allocations.
---@class clalloc.recorder
local recorder = {}

---Notes an allocation.
---@param key any the buffer, or any other value that stands for it
---@param nbytes integer
---@param stream? any equal ones are the same stream
function recorder:alloc(key, nbytes, stream) end

---Notes a free.
---@param key any what `alloc` was given
function recorder:free(key) end

---The trace so far; recording may go on.
---@param name? string
---@return clalloc.trace
function recorder:finish(name) end

---Options of `cl.replay`.
---@class clalloc.replay_options
---@field device? clalloc.device simulated or real; otherwise the default one
---@field policy? clalloc.replay_policy otherwise "caching"
---@field policies? clalloc.replay_policy[] to be compared, in place of one
---@field limit? integer of the pool
---@field pool? clalloc.pool in place of a new one
---@field touch? boolean fill every allocation; otherwise on real devices only
---@field streams? clalloc.stream[]|integer for the trace's streams 1, 2, ...; or deal allocations out to so many
---@field details? boolean what the peak was made of, and what `plot` draws: further passes
---@field fit? boolean find the smallest limit at which everything succeeds: further passes
---@field driver_cost? number|clalloc.device seconds of a driver call, or where to measure it
---@field progress? fun(done: integer, total: integer) called about a hundred times

---A policy, its name, or a function that makes one for each pass.
---@alias clalloc.replay_policy string|clalloc.policy_table|fun(trace: clalloc.trace, device: clalloc.device): table

---What `cl.replay` gives; printing it gives a list.
---@class clalloc.replay_result
---@field name string
---@field policy string
---@field device string
---@field operations integer
---@field driver_calls integer allocations and frees asked of the driver
---@field driver_seconds? number estimated for them; with `driver_cost`
---@field peak_live integer bytes asked for
---@field peak_reserved integer bytes from the driver
---@field ratio number reserved / live; 1 wastes nothing
---@field seconds number
---@field ns_per_op number
---@field failed integer allocations
---@field first_failure? string
---@field internal_waste? number share of the active bytes nobody asked for, at the peak of reserved; with `details`
---@field external_fragmentation? number share of the reserved bytes that lay free at that peak; with `details`
---@field peak_operation? integer after which most was reserved and, of those, most was active; with `details`
---@field points? clalloc.replay_point[] at most 1,000; with `details`
---@field segments? clalloc.segment[] at the peak; with `details`
---@field smallest_limit? integer|false bytes; false: none found; with `fit`
local replay_result = {}

---Draws bytes over time and the segments at the peak as an SVG picture. Needs gnuplot, and `details`.
---@param path string
---@return boolean? done
---@return string? message
---@return string? code
function replay_result:plot(path) end

---What `cl.replay` gives for several policies: a list of results; printing it gives a table.
---@class clalloc.replay_comparison
local replay_comparison = {}

---Draws all of them side by side.
---@param path string
---@return boolean? done
---@return string? message
---@return string? code
function replay_comparison:plot(path) end

---Bytes after an operation.
---@class clalloc.replay_point
---@field operation integer
---@field reserved integer
---@field active integer
---@field requested integer

---Options of `cl.plan`.
---@class clalloc.plan_options
---@field align? integer offsets are multiples of it: a power of two; 512
---@field seconds? number of processor time to search for a lower plan, after the usual orders; 0
---@field steps? integer of search at most
---@field repeats? boolean the trace is one round of a loop: what is not freed in it lives all the time

---A plan: where each allocation of a trace goes. Lists count allocations in program order.
---@class clalloc.plan
---@field name string of the trace
---@field nbytes integer bytes that it takes
---@field peak_live integer the most bytes live at once, as asked for
---@field ratio number nbytes / peak_live
---@field floor integer the most bytes live at once on each stream, rounded up: no plan is lower
---@field align integer
---@field blocks integer allocations
---@field streams integer
---@field orders integer that were tried
---@field steps integer of search
---@field offset integer[] bytes
---@field size integer[] as asked for
---@field stream integer[]
---@field lower integer[] operation that allocates it
---@field upper integer[] operation that frees it
---@field always table<integer, true> blocks that live all the time, of a plan that `repeats`
---@field areas clalloc.plan_area[] of the streams, from 0
local plan = {}

---Checks that no two blocks that live at once overlap; raises naming two that do.
---@return boolean
function plan:check() end

---The part of a plan that is a stream's own.
---@class clalloc.plan_area
---@field offset integer bytes
---@field nbytes integer

-- ---- For tests -----------------------------------------------------------------------------------------------

---For tests: driver calls counted and made to fail, objects counted.
---@class clalloc.debug
cl.debug = {}

---Makes the n-th call of a kind from now fail, once; 0: none.
---@param call string "create_buffer" and so on; "any"
---@param n integer
---@param code? integer an OpenCL error
---@return boolean
function cl.debug.fail(call, n, code) end

---Whether a failure is still to come.
---@return boolean
function cl.debug.armed() end

---Driver calls so far: one number, or all by name.
---@param call? string
---@return integer|table<string, integer>
function cl.debug.calls(call) end

---Counts driver calls from 0 again.
function cl.debug.calls_reset() end

---Live driver objects: of one kind, "all", or each by name.
---@param kind? string
---@return integer|table<string, integer>
function cl.debug.live(kind) end

---The types of objects, by name: metatable, and the table that their fields are looked up in.
---@return table<string, {meta: table, names: table}>
function cl.debug.types() end

-- ---- Tensors -------------------------------------------------------------------------------------------------

---The kinds of numbers in tensors.
---@alias clalloc.dtype "f32"|"f64"|"i32"|"u32"|"i64"|"u8"

---A tensor: numbers of one kind in a shape, on a device.
---
---`+ - * / ^` are elementwise and broadcast. `t[i]` selects, `t[{i, j}]` is a number, `t[{{first, last}, {}}]` a view;
---`#t` is the first size. Elementwise results are computed when needed. Methods with a trailing underscore change the
---tensor and return it. Many numbers are read fastest by `totable`.
---
---`+ - *` of floats, and `/` and `sqrt` of f64, give the number nearest to the result; `/` and `sqrt` of f32 do where
---`device.has_rounded_divide`, elsewhere they may be wrong by 2.5 and 3 units in the last place. `t ^ 2`, `t ^ 3` and
---`t ^ 4` are products; other powers, `exp`, `log` and the like are as exact as the device's OpenCL C. A sum is added
---in the same order each time, but not in the same one on every device.
---@class clalloc.tensor
---@field add fun(self, other: clalloc.tensor|number): clalloc.tensor self + other
---@field sub fun(self, other: clalloc.tensor|number): clalloc.tensor self - other
---@field mul fun(self, other: clalloc.tensor|number): clalloc.tensor self * other, elementwise
---@field div fun(self, other: clalloc.tensor|number): clalloc.tensor self / other
---@field pow fun(self, other: clalloc.tensor|number): clalloc.tensor self ^ other
---@field maximum fun(self, other: clalloc.tensor|number): clalloc.tensor the greater of both
---@field minimum fun(self, other: clalloc.tensor|number): clalloc.tensor the lesser of both
---@field add_ fun(self, other: clalloc.tensor|number, factor?: number): clalloc.tensor adds other * factor
---@field sub_ fun(self, other: clalloc.tensor|number, factor?: number): clalloc.tensor subtracts other * factor
---@field mul_ fun(self, other: clalloc.tensor|number): clalloc.tensor multiplies in place
---@field div_ fun(self, other: clalloc.tensor|number): clalloc.tensor divides in place
---@field pow_ fun(self, other: clalloc.tensor|number): clalloc.tensor raises to a power in place
---@field maximum_ fun(self, other: clalloc.tensor|number): clalloc.tensor the greater of both, in place
---@field minimum_ fun(self, other: clalloc.tensor|number): clalloc.tensor the lesser of both, in place
---@field eq fun(self, other: clalloc.tensor|number): clalloc.tensor 1 where equal, else 0, as u8
---@field ne fun(self, other: clalloc.tensor|number): clalloc.tensor 1 where not equal
---@field lt fun(self, other: clalloc.tensor|number): clalloc.tensor 1 where less
---@field le fun(self, other: clalloc.tensor|number): clalloc.tensor 1 where less or equal
---@field gt fun(self, other: clalloc.tensor|number): clalloc.tensor 1 where greater
---@field ge fun(self, other: clalloc.tensor|number): clalloc.tensor 1 where greater or equal
---@field exp fun(self): clalloc.tensor e to the power of each element
---@field log fun(self): clalloc.tensor natural logarithms
---@field sqrt fun(self): clalloc.tensor square roots
---@field tanh fun(self): clalloc.tensor hyperbolic tangents
---@field sin fun(self): clalloc.tensor sines
---@field cos fun(self): clalloc.tensor cosines
---@field floor fun(self): clalloc.tensor rounded down
---@field ceil fun(self): clalloc.tensor rounded up
---@field neg fun(self): clalloc.tensor with the other sign
---@field abs fun(self): clalloc.tensor without a sign
---@field relu fun(self): clalloc.tensor negative elements as 0
---@field exp_ fun(self): clalloc.tensor `exp` in place
---@field log_ fun(self): clalloc.tensor `log` in place
---@field sqrt_ fun(self): clalloc.tensor `sqrt` in place
---@field tanh_ fun(self): clalloc.tensor `tanh` in place
---@field sin_ fun(self): clalloc.tensor `sin` in place
---@field cos_ fun(self): clalloc.tensor `cos` in place
---@field floor_ fun(self): clalloc.tensor `floor` in place
---@field ceil_ fun(self): clalloc.tensor `ceil` in place
---@field neg_ fun(self): clalloc.tensor `neg` in place
---@field abs_ fun(self): clalloc.tensor `abs` in place
---@field relu_ fun(self): clalloc.tensor `relu` in place
---@field dim fun(self): integer the number of dimensions
---@field numel fun(self): integer the number of elements
---@field dtype fun(self): clalloc.dtype the kind of its numbers
---@field offset fun(self): integer of the first element in the buffer, in elements
---@field nbytes fun(self): integer bytes of the elements
---@field is_contiguous fun(self): boolean whether elements lie one after another
---@field device fun(self): clalloc.device the device the elements are on
---@operator add(clalloc.tensor|number): clalloc.tensor
---@operator sub(clalloc.tensor|number): clalloc.tensor
---@operator mul(clalloc.tensor|number): clalloc.tensor
---@operator div(clalloc.tensor|number): clalloc.tensor
---@operator pow(clalloc.tensor|number): clalloc.tensor
---@operator unm: clalloc.tensor
---@operator len: integer
local tensor = {}

---The sizes as a list, or the size of a dimension.
---@param dimension? integer
---@return integer|integer[]
function tensor:size(dimension) end

---The strides in elements as a list, or that of a dimension.
---@param dimension? integer
---@return integer|integer[]
function tensor:stride(dimension) end

---The buffer that holds the elements, for kernels of your own, and where the first one is, in bytes.
---@return clalloc.buffer buffer
---@return integer offset
function tensor:buffer() end

---Whether shapes and elements are equal; NaN equals nothing.
---@param other clalloc.tensor
---@return boolean
function tensor:equal(other) end

---A tensor of its own over the same elements.
---@return clalloc.tensor
function tensor:alias() end

---The same elements in another shape; a size of -1 is found from the others.
---@param ... integer|integer[]
---@return clalloc.tensor
function tensor:view(...) end

---A view where that is possible, else a copy of that shape.
---@param ... integer|integer[]
---@return clalloc.tensor
function tensor:reshape(...) end

---All elements in one dimension: a view where possible, else a copy.
---@return clalloc.tensor
function tensor:flatten() end

---A part of a dimension.
---@param dimension integer
---@param first integer from 1
---@param length integer
---@return clalloc.tensor
function tensor:narrow(dimension, first, length) end

---One element of a dimension: a tensor of one dimension less.
---@param dimension integer
---@param i integer
---@return clalloc.tensor
function tensor:select(dimension, i) end

---Two dimensions exchanged.
---@param a integer
---@param b integer
---@return clalloc.tensor
function tensor:transpose(a, b) end

---The transpose of a matrix.
---@return clalloc.tensor
function tensor:t() end

---Repeats dimensions of size 1 and adds dimensions in front, without memory.
---@param ... integer|integer[] sizes; -1 keeps one
---@return clalloc.tensor
function tensor:expand(...) end

---Without a dimension of size 1, or without all of them.
---@param dimension? integer
---@return clalloc.tensor
function tensor:squeeze(dimension) end

---With a new dimension of size 1.
---@param dimension integer
---@return clalloc.tensor
function tensor:unsqueeze(dimension) end

---A copy in memory of its own.
---@return clalloc.tensor
function tensor:clone() end

---The same elements one after another: shares them when they are, else a copy.
---@return clalloc.tensor
function tensor:contiguous() end

---In another kind or on another device; shares the elements when it is that already.
---@param target clalloc.dtype|clalloc.device
---@return clalloc.tensor
function tensor:to(target) end

---Sets every element to a number.
---@param value number
---@return clalloc.tensor self
function tensor:fill(value) end

---Sets every element to 0.
---@return clalloc.tensor self
function tensor:zero() end

---Copies the elements of a tensor or of nested tables, which broadcast to its shape.
---@param source clalloc.tensor|table
---@return clalloc.tensor self
function tensor:copy(source) end

---Replaces every element x by an expression in OpenCL C: `t:apply "sqrt(x) + 3.5"`.
---@param text string
---@return clalloc.tensor self
function tensor:apply(text) end

---The same with further tensors: `t:map(other, "2 * x + y")`.
---@param ... clalloc.tensor|string up to five, then the text; their elements are y, z, w, u, v
---@return clalloc.tensor self
function tensor:map(...) end

---The product of two matrices, or of a matrix and a vector.
---@param other clalloc.tensor
---@return clalloc.tensor
function tensor:matmul(other) end

---The sum of all elements, or over a dimension.
---@param dimension? integer
---@param is_kept? boolean the dimension stays, with size 1
---@return clalloc.tensor
function tensor:sum(dimension, is_kept) end

---The mean of all elements, or over a dimension.
---@param dimension? integer
---@param is_kept? boolean
---@return clalloc.tensor
function tensor:mean(dimension, is_kept) end

---The greatest element, of all or over a dimension.
---@param dimension? integer
---@param is_kept? boolean
---@return clalloc.tensor
function tensor:max(dimension, is_kept) end

---The least element, of all or over a dimension.
---@param dimension? integer
---@param is_kept? boolean
---@return clalloc.tensor
function tensor:min(dimension, is_kept) end

---Where the greatest element is, from 1.
---@param dimension? integer
---@param is_kept? boolean
---@return clalloc.tensor
function tensor:argmax(dimension, is_kept) end

---Where the least element is, from 1.
---@param dimension? integer
---@param is_kept? boolean
---@return clalloc.tensor
function tensor:argmin(dimension, is_kept) end

---The only element, as a number.
---@return number
function tensor:item() end

---All elements as nested tables: the fast way to read many.
---@return table|number
function tensor:totable() end

---All elements, row after row, in one list.
---@return number[]
function tensor:tolist() end

---Computes the tensor now, if it has not been; does not wait for the device.
---@return clalloc.tensor self
function tensor:eval() end

---Writes the tensor to a file, for `cl.load_tensor`.
---@param path string
---@return boolean? done
---@return string? message
function tensor:save(path) end

---Lets go of the memory; it goes back when no other tensor shares it.
function tensor:close() end

return cl
