-- The formats of traces: told apart by what a file holds when it is read, chosen by name when one is written.

local file = require "clalloc.trace.file"
local layout = require "clalloc.trace.layout"
local ledger = require "clalloc.trace.ledger"
local recording = require "clalloc.trace.recording"
local text = require "clalloc.trace.text"

local chrome = require "clalloc.trace.chrome"
local csv = require "clalloc.trace.csv"
local lifetimes = require "clalloc.trace.lifetimes"
local rmm = require "clalloc.trace.rmm"
local snapshot = require "clalloc.trace.snapshot"
local snapshot_csv = require "clalloc.trace.snapshot_csv"
local snapshot_pickle = require "clalloc.trace.snapshot_pickle"
local timeline = require "clalloc.trace.timeline"

local formats = {}

local TEXTS = { snapshot_csv, rmm, lifetimes.csv, lifetimes.log, timeline, csv }

local function read_whole(path)
  local handle, message = io.open(path, "rb")
  if not handle then
    error(message, 0)
  end
  local content, read_error = handle:read("a")
  handle:close()
  if not content then
    error(("%s: %s"):format(path, read_error), 0)
  end
  return content
end

local function exists(path)
  local handle = io.open(path, "rb")
  if handle then
    handle:close()
  end
  return handle ~= nil
end

local function recognise(source)
  local line, shapes = text.first_line(source), {}
  if line == snapshot_csv.initial_header then
    text.fail(source, "this lists what was live before a recording: load the recording, NAME.csv, instead")
  end
  for i, format in ipairs(TEXTS) do
    if format.matches(line) then
      return format
    end
    shapes[i] = format.header
  end
  text.fail(source, ("unknown header %s; known are %s"):format(text.excerpt(line), table.concat(shapes, "; ")))
end

-- NAME.initial.csv of NAME.csv.
local function read_companion(path, rec, wanted)
  if wanted == false then
    return
  end
  local companion = wanted or snapshot_csv.initial_path(path)
  if wanted or exists(companion) then
    local source = text.file(companion, read_whole(companion))
    snapshot_csv.read_initial(source, rec)
    return source
  end
end

-- Each row is one event, so the number of an event gives its line.
local function load_text(path, content, opts)
  local source, rec = text.file(path, content), recording.new()
  local format = recognise(source)
  local initial_file = format == snapshot_csv and read_companion(path, rec, opts.initial) or source
  local read, fault = pcall(format.read, source, rec)
  -- A reader that stopped has seen the rows above: what is wrong with one of those is said first.
  local pairing = ledger.pair(rec, function(k, reason)
    if k < 0 then
      text.fail(initial_file, reason, initial_file.initial_lines[-k])
    end
    text.fail(source, reason, source.line_of(k))
  end)
  if not read then
    error(fault, 0)
  end
  local disagreement = recording.disagreement(rec, pairing)
  if disagreement then
    text.fail(source, disagreement, source.line - 1)
  end
  return rec, pairing, format.name
end

--- Reads a file: its recording, the pairing of its events, and the name of its format.
-- Raises the string FILE:LINE: reason, or FILE: byte OFFSET: reason, for the first thing that is not as it should be.
function formats.load(path, opts)
  local content = read_whole(path)
  if snapshot.matches(content) then
    local rec, pairing = snapshot.load(path, content, opts)
    return rec, pairing, snapshot.name
  end
  return load_text(path, content, opts)
end

-- Writing: each writer takes path, recording and options, and returns true, or nil, message, code.

formats.writers = {}

function formats.writers.csv(path, rec)
  return file.replace(path, function(put) csv.write(put, rec) end)
end

local function write_addressed(write)
  return function(path, rec, opts)
    local addressed, message = layout.addressed(rec)
    if not addressed then
      return nil, message
    end
    return write(path, addressed, opts)
  end
end

formats.writers.rmm = write_addressed(function(path, rec, opts)
  return file.replace(path, function(put) rmm.write(put, rec, opts) end)
end)

formats.writers.pytorch_snapshot = write_addressed(function(path, rec)
  local companion = snapshot_csv.initial_path(path)
  if snapshot_csv.has_initial(rec) then
    local ok, message, code = file.replace(companion, function(put) snapshot_csv.write_initial(put, rec) end)
    if not ok then
      return nil, message, code
    end
  elseif exists(companion) then
    os.remove(companion)
  end
  return file.replace(path, function(put) snapshot_csv.write(put, rec) end)
end)

local function write_viewable(write)
  return function(path, rec)
    local viewable, message = layout.viewable(rec)
    if not viewable then
      return nil, message
    end
    return file.replace(path, function(put) write(put, viewable) end)
  end
end

formats.writers.pickle = write_viewable(snapshot_pickle.write)
formats.writers.chrome = write_viewable(chrome.write)

local names = {}
for name in pairs(formats.writers) do
  names[#names + 1] = name
end
table.sort(names)

--- The names of the formats that can be written, for messages.
formats.written = table.concat(names, ", ")

return formats
