-- A set of address ranges [first, last) that do not overlap, kept in order.
--
-- In chunks, so that adding to a set of many thousand moves a few hundred entries only.

local Intervals = {}
Intervals.__index = Intervals

local CHUNK = 256

local intervals = {}

--- An empty set.
function intervals.new()
  return setmetatable({ chunks = { { first = {}, last = {} } } }, Intervals)
end

-- The last index of a sorted list whose value is at most the given one, or 0.
local function last_at_most(list, value)
  local low, high = 0, #list
  while low < high do
    local middle = (low + high + 1) // 2
    if list[middle] <= value then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

-- Chunk and index of the last range that begins at or before the address; index 0 in the first chunk if none does.
local function locate(self, address)
  local chunks = self.chunks
  local low, high = 1, #chunks
  while low < high do
    local middle = (low + high + 1) // 2
    if chunks[middle].first[1] <= address then
      low = middle
    else
      high = middle - 1
    end
  end
  return low, last_at_most(chunks[low].first, address)
end

--- First and last of the range that holds an address, or nil.
function Intervals:find(address)
  local c, i = locate(self, address)
  local chunk = self.chunks[c]
  if i > 0 and address < chunk.last[i] then
    return chunk.first[i], chunk.last[i]
  end
end

local function split(self, c)
  local chunk = self.chunks[c]
  local half, count = #chunk.first // 2, #chunk.first
  local upper = {
    first = table.move(chunk.first, half + 1, count, 1, {}), last = table.move(chunk.last, half + 1, count, 1, {}),
  }
  for i = count, half + 1, -1 do
    chunk.first[i], chunk.last[i] = nil, nil
  end
  table.insert(self.chunks, c + 1, upper)
end

--- Adds a range that is not empty. False when it overlaps one that is there.
function Intervals:add(first, last)
  local c, i = locate(self, first)
  local chunk = self.chunks[c]
  if i > 0 and chunk.last[i] > first then
    return false
  end
  local next_first = chunk.first[i + 1]
  if not next_first and self.chunks[c + 1] then
    next_first = self.chunks[c + 1].first[1]
  end
  if next_first and next_first < last then
    return false
  end
  table.insert(chunk.first, i + 1, first)
  table.insert(chunk.last, i + 1, last)
  if #chunk.first > CHUNK then
    split(self, c)
  end
  return true
end

--- Removes a range that is there as a whole. False when it is not.
function Intervals:remove(first, last)
  local c, i = locate(self, first)
  local chunk = self.chunks[c]
  if i == 0 or chunk.first[i] ~= first or chunk.last[i] ~= last then
    return false
  end
  table.remove(chunk.first, i)
  table.remove(chunk.last, i)
  if #chunk.first == 0 and #self.chunks > 1 then
    table.remove(self.chunks, c)
  end
  return true
end

--- Adds a range and joins it with those that it touches.
function Intervals:join(first, last)
  local below, above = self:find(first - 1)
  if below and above == first then
    self:remove(below, above)
    first = below
  end
  local next_first, next_last = self:find(last)
  if next_first == last then
    self:remove(next_first, next_last)
    last = next_last
  end
  return self:add(first, last)
end

--- Takes a range out of one that holds it. False when none does.
function Intervals:cut(first, last)
  local outer_first, outer_last = self:find(first)
  if not outer_first or outer_last < last then
    return false
  end
  self:remove(outer_first, outer_last)
  return (outer_first == first or self:add(outer_first, first)) and (outer_last == last or self:add(last, outer_last))
end

--- Calls f(first, last) for each range in order.
function Intervals:each(f)
  for _, chunk in ipairs(self.chunks) do
    for i, first in ipairs(chunk.first) do
      f(first, chunk.last[i])
    end
  end
end

return intervals
