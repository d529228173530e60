-- Timelines of bytes: seq,thread,bytes_delta,time_us. There are no addresses: a free, which is a negative number of
-- bytes, goes to the newest live block of that size.

local text = require "clalloc.trace.text"

local check = text.check

local timeline = { name = "timeline", header = "seq,thread,bytes_delta,time_us" }

local ROW = {
  row = "^%d+,(%d+),(%-?)(%d+),(%d+)\r?\n",
  columns = {
    { "seq", check.whole }, { "thread", check.whole }, { "bytes_delta", check.delta }, { "time_us", check.whole },
  },
}

function timeline.matches(line)
  return line == timeline.header
end

local function append(events, action, key, nbytes, thread, time_us)
  local n = #events.action + 1
  events.action[n], events.address[n], events.size[n] = action, key, nbytes
  events.thread[n], events.time_us[n] = thread, time_us
end

--- Reads the events. Blocks are told apart by their number.
function timeline.read(file, rec)
  text.skip_header(file)
  file.first_event = file.line
  local events, blocks, live = rec.events, 0, {} -- live: size -> keys, newest last
  rec.addressed, events.thread, events.time_us = false, {}, {}
  text.each_row(file, ROW, function(thread_text, sign, digits, time_text)
    local thread, bad_thread = text.whole("thread", thread_text)
    local nbytes, bad_size = text.whole("bytes_delta", digits)
    local time_us, bad_time = text.whole("time_us", time_text)
    if not (thread and nbytes and time_us) then
      return bad_thread or bad_size or bad_time
    elseif nbytes == 0 then
      return "bytes_delta is 0: neither an allocation nor a free"
    end
    local keys = live[nbytes]
    if sign == "" then
      blocks, keys = blocks + 1, keys or {}
      live[nbytes], keys[#keys + 1] = keys, blocks
      append(events, "alloc", blocks, nbytes, thread, time_us)
    elseif not keys or #keys == 0 then
      return ("free of %d bytes, and no block of that size is live"):format(nbytes)
    else
      append(events, "free", table.remove(keys), nbytes, thread, time_us)
    end
  end)
end

return timeline
