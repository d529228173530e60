-- The network of examples/network.lua: its gradient against finite differences, and its training.

local cl = require "clalloc"
local network = dofile "examples/network.lua"

describe("a network of two layers", function()
  teardown(function()
    cl.forget_kernels()
    collectgarbage()
    collectgarbage()
    cl.current().default_stream:query() -- lets go of its markers
  end)

  it("has the gradient that finite differences show", function()
    cl.seed(3)
    local points, values = network.data(16)
    local net = network.new(5)
    local function loss_of()
      return cl.scope(function() return (network.gradient(net, points, values)):item() end)
    end
    local _, gradients = network.gradient(net, points, values)
    for name, gradient in pairs(gradients) do
      local weights, list = net[name]:view(-1), gradient:tolist()
      for i = 1, math.min(#list, 6) do
        local kept, h = weights[i], 1e-2
        weights[i] = kept + h
        local above = loss_of()
        weights[i] = kept - h
        local below = loss_of()
        weights[i] = kept
        local want = (above - below) / (2 * h)
        assert.near(want, list[i], 2e-3 * math.max(1, math.abs(want)), ("%s[%d]"):format(name, i))
      end
    end
  end)

  it("learns, as plain Lua does, without a driver allocation once warm", function()
    local print_ = print
    _G.print = function() end
    local ok, learned = pcall(network.train, 300)
    _G.print = print_
    assert.is_true(ok, learned)
    assert.is_true(learned)
  end)
end)
