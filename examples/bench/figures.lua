-- What the Lua benchmarks share: the one line a figure, medians, and the output of another program.

local figures = {}

--- Prints a figure; `ratio` is ours / theirs unless it is given.
function figures.line(name, ours, unit, peer, theirs, ratio)
  local text = "bench %s ours=%.4g %s peer=%s:%.4g ratio=%.3f"
  print(text:format(name, ours, unit, peer, theirs, ratio or ours / theirs))
end

--- The median of a list, which is sorted.
function figures.median(values)
  table.sort(values)
  return values[#values // 2 + 1]
end

--- What a shell command prints; raises when it fails.
function figures.output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  assert(pipe:close(), command .. " failed")
  return text
end

return figures
