-- Random operations on two pools and four streams, compared with a model in Lua; see random_world.lua.

local cl = require "clalloc"
local run = dofile "spec/random_world.lua"

local OPERATIONS <const> = 20000 -- for each of the seeds
local SEEDS <const> = { 1, 2, 3, 4, 5 }

describe("random operations", function()
  local dev

  setup(function() dev = cl.device() end)
  teardown(function() dev:close() end)

  for _, seed in ipairs(SEEDS) do
    it(("leave every byte where it belongs: seed %d"):format(seed), function()
      assert(run(dev, seed, OPERATIONS) > 0, "the limit was never reached")
    end)
  end
end)
