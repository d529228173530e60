rockspec_format = "3.0"
package = "clalloc"
version = "scm-1"

-- In a checkout: luarocks --lua-version 5.4 make
-- Where OpenCL is not found: OPENCL_DIR=DIR, or OPENCL_INCDIR=DIR OPENCL_LIBDIR=DIR
source = {
  url = "git+file://.", -- the checkout that this file lies in; to pack a rock, the address of a repository or archive
}

description = {
  summary = "OpenCL memory, scripted: a caching device allocator, streams, kernels and tensors",
  detailed = [[
    A memory runtime for OpenCL. Device addresses are pointers that survive arithmetic, memory is reused in the order of
    streams without waiting, and everything can be asked about, limited, recorded and replayed.]],
  license = "MIT",
  labels = { "opencl", "gpu", "allocator", "tensor" },
}

dependencies = { "lua ~> 5.4" }
supported_platforms = { "linux" }
external_dependencies = {
  OPENCL = { header = "CL/cl.h", library = "OpenCL" },
}

build = {
  type = "builtin",
  modules = {
    ["clalloc.core"] = {
      sources = {
        "src/driver/faults.c",
        "src/driver/opencl.c",
        "src/driver/sim_command.c",
        "src/driver/sim_program.c",
        "src/driver/sim_queue.c",
        "src/driver/sim_source.c",
        "src/driver/simulated.c",
        "src/host/background.c",
        "src/host/blocks.c",
        "src/host/hooks.c",
        "src/host/host_cache.c",
        "src/host/inspect.c",
        "src/host/life.c",
        "src/host/magazines.c",
        "src/host/pending.c",
        "src/host/sizes.c",
        "src/lua/argument.c",
        "src/lua/buffer.c",
        "src/lua/check.c",
        "src/lua/debug.c",
        "src/lua/device.c",
        "src/lua/event.c",
        "src/lua/gate.c",
        "src/lua/guard.c",
        "src/lua/host.c",
        "src/lua/host_buffer.c",
        "src/lua/host_copy.c",
        "src/lua/host_hooks.c",
        "src/lua/kernel.c",
        "src/lua/map.c",
        "src/lua/module.c",
        "src/lua/options.c",
        "src/lua/pool.c",
        "src/lua/program.c",
        "src/lua/signature.c",
        "src/lua/sim.c",
        "src/lua/stream.c",
        "src/lua/typedefs.c",
        "src/lua/world.c",
        "src/pool/alloc.c",
        "src/pool/bins.c",
        "src/pool/block.c",
        "src/pool/free.c",
        "src/pool/inspect.c",
        "src/pool/owner.c",
        "src/pool/policy.c",
        "src/pool/pool.c",
        "src/pool/segment.c",
        "src/pool/transfer.c",
        "src/runtime/address_map.c",
        "src/runtime/debug.c",
        "src/runtime/device.c",
        "src/runtime/error.c",
        "src/runtime/event.c",
        "src/runtime/gate.c",
        "src/runtime/lock.c",
        "src/runtime/stream.c",
      },
      defines = { "_GNU_SOURCE", "CL_TARGET_OPENCL_VERSION=300", "CLA_STATIC" },
      incdirs = { "src", "$(OPENCL_INCDIR)" },
      libdirs = { "$(OPENCL_LIBDIR)" },
      libraries = { "OpenCL", "m", "pthread" },
    },
    ["clalloc.draw"] = "lua/clalloc/draw.lua",
    ["clalloc.help"] = "lua/clalloc/help.lua",
    ["clalloc"] = "lua/clalloc/init.lua",
    ["clalloc.interface"] = "lua/clalloc/interface.lua",
    ["clalloc.meta"] = "lua/clalloc/meta.lua",
    ["clalloc.policy"] = "lua/clalloc/policy.lua",
    ["clalloc.repl"] = "lua/clalloc/repl.lua",
    ["clalloc.replay"] = "lua/clalloc/replay.lua",
    ["clalloc.tensor"] = "lua/clalloc/tensor.lua",
    ["clalloc.tensor.context"] = "lua/clalloc/tensor/context.lua",
    ["clalloc.tensor.create"] = "lua/clalloc/tensor/create.lua",
    ["clalloc.tensor.current"] = "lua/clalloc/tensor/current.lua",
    ["clalloc.tensor.dtype"] = "lua/clalloc/tensor/dtype.lua",
    ["clalloc.tensor.elementwise"] = "lua/clalloc/tensor/elementwise.lua",
    ["clalloc.tensor.expression"] = "lua/clalloc/tensor/expression.lua",
    ["clalloc.tensor.fault"] = "lua/clalloc/tensor/fault.lua",
    ["clalloc.tensor.file"] = "lua/clalloc/tensor/file.lua",
    ["clalloc.tensor.index"] = "lua/clalloc/tensor/index.lua",
    ["clalloc.tensor.layout"] = "lua/clalloc/tensor/layout.lua",
    ["clalloc.tensor.loops"] = "lua/clalloc/tensor/loops.lua",
    ["clalloc.tensor.matmul"] = "lua/clalloc/tensor/matmul.lua",
    ["clalloc.tensor.ops"] = "lua/clalloc/tensor/ops.lua",
    ["clalloc.tensor.print"] = "lua/clalloc/tensor/print.lua",
    ["clalloc.tensor.random"] = "lua/clalloc/tensor/random.lua",
    ["clalloc.tensor.reduce"] = "lua/clalloc/tensor/reduce.lua",
    ["clalloc.tensor.scope"] = "lua/clalloc/tensor/scope.lua",
    ["clalloc.tensor.shape"] = "lua/clalloc/tensor/shape.lua",
    ["clalloc.tensor.storage"] = "lua/clalloc/tensor/storage.lua",
    ["clalloc.tensor.type"] = "lua/clalloc/tensor/type.lua",
    ["clalloc.tensor.values"] = "lua/clalloc/tensor/values.lua",
    ["clalloc.tensor.view"] = "lua/clalloc/tensor/view.lua",
    ["clalloc.trace"] = "lua/clalloc/trace.lua",
    ["clalloc.trace_formats"] = "lua/clalloc/trace_formats.lua",
    ["clalloc.trace_ledger"] = "lua/clalloc/trace_ledger.lua",
  },
}
