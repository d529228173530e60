-- Gives a recording what a format needs and it lacks: addresses, for instance.
--
-- Never changes a recording: gives another one that shares what is the same.

local ledger = require "clalloc.trace.ledger"

local layout = {}

local FIRST_ADDRESS, ALIGNMENT = 0x10000000, 512

local function with(original, changes)
  local copy = {}
  for key, value in pairs(original) do
    copy[key] = value
  end
  for key, value in pairs(changes) do
    copy[key] = value
  end
  return copy
end

local function divide(nbytes, n)
  return nbytes // n + (nbytes % n > 0 and 1 or 0)
end

--- The recording with the sizes of its blocks divided by n, rounded up. Addresses and segments would not fit them any
-- more: blocks are told apart by their numbers, and what happened to segments is left out.
function layout.scaled(rec, n)
  local pairing, from = ledger.pair(rec), rec.events
  local events = { action = {}, address = {}, size = {} }
  local optional = { "stream", "time_us", "thread" }
  for _, name in ipairs(optional) do
    events[name] = from[name] and {}
  end
  local count = 0
  for k, action in ipairs(from.action) do
    local block = pairing.owner[k]
    if block > 0 or action == "oom" then
      count = count + 1
      events.action[count], events.address[count] = action, block
      events.size[count] = divide(block > 0 and pairing.bytes[block] or from.size[k], n)
      for _, name in ipairs(optional) do
        if from[name] then
          events[name][count] = from[name][k]
        end
      end
    end
  end
  local blocks = with(rec.before.blocks, { address = {}, size = {} })
  for i, nbytes in ipairs(rec.before.blocks.size) do
    blocks.address[i], blocks.size[i] = i, divide(nbytes, n)
  end
  return {
    addressed = false, device = rec.device, events = events,
    before = { segments = { address = {}, size = {} }, blocks = blocks },
  }
end

-- Every slot gets a range of addresses as large as the largest block it ever holds, so no two blocks overlap. Nil when
-- they do not fit the addresses below the limit.
local function addresses_of_blocks(pairing, limit)
  local _, slot_of = ledger.assemble(pairing)
  local largest = {}
  for block, slot in ipairs(slot_of) do
    largest[slot] = math.max(largest[slot] or 1, pairing.bytes[block])
  end
  local start, address = {}, FIRST_ADDRESS
  for slot, nbytes in ipairs(largest) do
    start[slot] = address
    address = address + (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    if address > limit then
      return nil
    end
  end
  local addresses = {}
  for block, slot in ipairs(slot_of) do
    addresses[block] = start[slot]
  end
  return addresses
end

--- The recording with made-up addresses, at which no two blocks overlap. What happened to segments, which lay
-- elsewhere, is left out.
-- Nil and a message when blocks and addresses do not fit below the limit.
function layout.readdressed(rec, limit)
  local pairing, from = ledger.pair(rec), rec.events
  local addresses = addresses_of_blocks(pairing, limit)
  if not addresses then
    return nil, ("the blocks do not fit addresses below 0x%x"):format(limit)
  end
  local events = {}
  for name in pairs(from) do
    events[name] = {}
  end
  local count = 0
  for k, action in ipairs(from.action) do
    local block = pairing.owner[k]
    if not action:find "^segment" then
      count = count + 1
      for name, column in pairs(from) do
        events[name][count] = column[k]
      end
      events.address[count] = addresses[block] or rec.addressed and from.address[k] or 0
    end
  end
  local blocks = with(rec.before.blocks, { address = table.move(addresses, 1, pairing.initial, 1, {}) })
  return with(rec, {
    addressed = true, events = events, segments = false,
    before = { segments = { address = {}, size = {} }, blocks = blocks },
  })
end

--- The recording if it has addresses, else with made-up ones.
function layout.addressed(rec)
  if rec.addressed then
    return rec
  end
  return layout.readdressed(rec, 1 << 62)
end

return layout
