-- args: now, lease, what is given (data, progress), data, progress, log lines.

verb('save', {}, function()
  local r = leased(arg())
  local given = arg()
  local data, progress = arg(), arg()

  if not r then return 0 end
  touch(r)
  -- The same data again is no progress.
  if string.find(given, 'd', 1, true) and data ~= field(r, DATA, 'd') then
    r[SPENT] = sub(r[SPENT], 1, 2) .. NO_CRASHES .. sub(r[SPENT], 5)
    set_flag(r, SUSPECT, false)
    set(r, DATA, 'd', data)
  end
  if string.find(given, 'g', 1, true) then
    set(r, PROGRESS, 'g', progress)
    r.progress = progress
  end
  if at < #ARGV then
    r[HAS] = bor(r[HAS], LOG)
    local key = T .. ':log:' .. whole(r.seq)
    for i = at + 1, #ARGV do call('RPUSH', key, ARGV[i]) end
    call('LTRIM', key, -LOG_LINES_MAX, -1)
  end
  finish()
  return 1
end)
