-- args: now, range of names as ZRANGEBYLEX takes it, limit. Processes with what is stored of them.

verb('processes', {'no-writes'}, function()
  local from, limit = arg(), tonumber(arg())
  local names = call('ZRANGEBYLEX', T .. ':procs', from, '+', 'LIMIT', 0, limit)
  local reply = {}
  for i = 1, #names do reply[i] = {names[i], call('HGETALL', T .. ':p:' .. names[i])} end
  return reply
end)
