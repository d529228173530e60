-- busted's terminal output, then one plain line for scripts to read: "N passed, N failed".
return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.utfTerminal"(options)

  busted.subscribe({"suite", "end"}, function()
    local failed = handler.failuresCount + handler.errorsCount
    io.write(("%d passed, %d failed\n"):format(handler.successesCount, failed))
    io.flush()
    return nil, true
  end)
  return handler
end
