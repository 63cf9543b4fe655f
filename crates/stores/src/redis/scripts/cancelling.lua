-- args: now, worker. Its running jobs that somebody wants to end, in seq order.

verb('cancelling', {'no-writes'}, function()
  local key = T .. ':cancels:' .. arg()
  local list = call('ZRANGE', key, 0, -1)
  local ids = {}
  for i = 1, #list do
    local r = job(read('>I6', list[i]))
    if r and r[STATE] == RUNNING and flag(r, CANCEL) then ids[#ids + 1] = r[ID] end
  end
  return ids
end)
