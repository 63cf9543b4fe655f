-- args: now, process, 1 to seal it or 0 to open it. Sealing one that does not exist changes nothing.

verb('seal', {}, function()
  local id, sealed = arg(), arg() == '1'
  touched = true
  if not sealed then
    local p = process(id)
    p.open, p.seal = true, true
  elseif process_exists(id) then
    local p = process(id)
    p.open, p.seal = false, true
    tell_waiters(id)
  end
  finish()
  return 1
end)
