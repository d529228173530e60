-- A network of two layers learns a function of the plane from points, with tensors.
--
--   lua5.4 examples/network.lua [steps]
--
-- You will see: the loss, falling; for the first steps also the loss of the same network in plain Lua, which agrees;
-- and, after the steps that warm the cache up, how many driver allocations the training made: none.

local cl = require "clalloc"

local POINTS, HIDDEN, RATE, MOMENTUM = 256, 32, 0.03, 0.9
local COMPARED, WARM_UP = 5, 20

local NAMES = { "w1", "b1", "w2", "b2" }

local network = {}

-- ---- With tensors ----------------------------------------------------------------------------------------------

--- Points in the square from -1 to 1, and a wave over it.
-- @treturn tensor points, n x 2
-- @treturn tensor values, n x 1
function network.data(n)
  local points = (cl.rand(n, 2) * 2 - 1):eval()
  local x, y = points:narrow(2, 1, 1), points:narrow(2, 2, 1)
  return points, ((x * 3):sin() * (y * 2):cos()):eval()
end

--- Weights and their velocities, by name.
function network.new(hidden)
  local net = {
    w1 = cl.randn(2, hidden):mul_(0.7),
    b1 = cl.zeros(hidden),
    w2 = cl.randn(hidden, 1):mul_(1 / math.sqrt(hidden)),
    b2 = cl.zeros(1),
  }
  net.velocity = {}
  for _, name in ipairs(NAMES) do net.velocity[name] = (net[name] * 0):eval() end
  return net
end

--- The mean square error and its gradient by every weight.
-- @treturn tensor loss, without dimensions
-- @treturn table gradients by name
function network.gradient(net, points, values)
  local n = #points
  local active = (points:matmul(net.w1) + net.b1):tanh():eval()
  local error_ = (active:matmul(net.w2) + net.b2 - values):eval()
  local by_output = (error_ * (2 / n)):eval()
  local by_hidden = (by_output:matmul(net.w2:t()) * (1 - active * active)):eval()
  return (error_ * error_):mean(), {
    w1 = points:t():matmul(by_hidden),
    b1 = by_hidden:sum(1),
    w2 = active:t():matmul(by_output),
    b2 = by_output:sum(1),
  }
end

--- One step of gradient descent with momentum. Whatever it makes goes back at its end. The inner scope ends before
-- weights change: expressions in it that nobody needs any more would be computed first otherwise.
-- @treturn number the loss before it
function network.step(net, points, values)
  return cl.scope(function()
    local loss, gradients = cl.scope(network.gradient, net, points, values)
    for _, name in ipairs(NAMES) do
      local gradient = gradients[name]
      net.velocity[name]:mul_(MOMENTUM):sub_(gradient, RATE)
      net[name]:add_(net.velocity[name])
    end
    return loss:item()
  end)
end

-- ---- In plain Lua ----------------------------------------------------------------------------------------------

local function zeros_like(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = type(v) == "table" and zeros_like(v) or 0 end
  return out
end

local function plain_copy(net)
  local copy = { velocity = {} }
  for _, name in ipairs(NAMES) do
    copy[name] = net[name]:totable()
    copy.velocity[name] = net.velocity[name]:totable()
  end
  return copy
end

local function plain_gradient(net, points, values)
  local n, hidden, loss = #points, #net.b1, 0
  local g = { w1 = zeros_like(net.w1), b1 = zeros_like(net.b1), w2 = zeros_like(net.w2), b2 = { 0 } }
  for i, p in ipairs(points) do
    local active, output = {}, net.b2[1]
    for h = 1, hidden do
      local v = p[1] * net.w1[1][h] + p[2] * net.w1[2][h] + net.b1[h]
      active[h] = 1 - 2 / (math.exp(2 * v) + 1)
      output = output + active[h] * net.w2[h][1]
    end
    local e = output - values[i][1]
    loss = loss + e * e / n
    local by_output = 2 * e / n
    g.b2[1] = g.b2[1] + by_output
    for h = 1, hidden do
      local by_hidden = by_output * net.w2[h][1] * (1 - active[h] * active[h])
      g.w2[h][1] = g.w2[h][1] + active[h] * by_output
      g.b1[h] = g.b1[h] + by_hidden
      g.w1[1][h] = g.w1[1][h] + p[1] * by_hidden
      g.w1[2][h] = g.w1[2][h] + p[2] * by_hidden
    end
  end
  return loss, g
end

local function plain_update(weights, velocity, gradient)
  for i, v in ipairs(weights) do
    if type(v) == "table" then
      plain_update(v, velocity[i], gradient[i])
    else
      velocity[i] = MOMENTUM * velocity[i] - RATE * gradient[i]
      weights[i] = v + velocity[i]
    end
  end
end

local function plain_step(net, points, values)
  local loss, g = plain_gradient(net, points, values)
  for _, name in ipairs(NAMES) do plain_update(net[name], net.velocity[name], g[name]) end
  return loss
end

-- ---- Training --------------------------------------------------------------------------------------------------

local function driver_allocations(tensor)
  return tensor:device():pool():stats().driver_allocs
end

--- Trains and prints.
-- @tparam integer steps more than 20
-- @treturn boolean whether the loss fell from line to line, and to a tenth; plain Lua agreed; and the cache sufficed
function network.train(steps)
  cl.seed(1)
  local points, values = network.data(POINTS)
  local net = network.new(HIDDEN)
  local plain, plain_points, plain_values = plain_copy(net), points:totable(), values:totable()
  local first, loss, before
  local agrees, falls, shown = true, true, math.huge
  collectgarbage() -- what was left behind so far
  print(("  %d points, %d hidden units, on %s"):format(POINTS, HIDDEN, points:device().name))
  for step = 1, steps do
    loss = network.step(net, points, values)
    first = first or loss
    if step == WARM_UP then before = driver_allocations(points) end
    if step <= COMPARED or step == steps or step % (steps // 8) == 0 then
      falls, shown = falls and loss < shown, loss
    end
    if step <= COMPARED then
      local want = plain_step(plain, plain_points, plain_values)
      agrees = agrees and math.abs(loss - want) <= 1e-4 * want
      print(("  step %4d  loss %.6f  in plain Lua %.6f"):format(step, loss, want))
    elseif step == steps or step % (steps // 8) == 0 then
      print(("  step %4d  loss %.6f"):format(step, loss))
    end
  end
  local made = driver_allocations(points) - before
  print(("  driver allocations in steps %d to %d: %d"):format(WARM_UP + 1, steps, made))
  for _, name in ipairs(NAMES) do
    net[name]:close()
    net.velocity[name]:close()
  end
  return falls and loss < first / 10 and agrees and made == 0
end

if arg and arg[0] and arg[0]:find "network%.lua$" then
  if not network.train(math.max(tonumber(arg[1]) or 400, WARM_UP + 1)) then os.exit(1) end
end

return network
