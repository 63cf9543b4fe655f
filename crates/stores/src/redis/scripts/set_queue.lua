-- args: now, name, paused, max_running, retention. An empty argument leaves a setting alone, `none` lifts it. A queue whose
-- settings are all at their default has none.

verb('set_queue', {}, function()
  local name, paused, max, retention = arg(), arg(), arg(), arg()
  local s = queue_settings(name)
  if paused ~= '' then s.paused = tonumber(paused) end
  if max == 'none' then s.max = NONE elseif max ~= '' then s.max = tonumber(max) end
  if retention == 'none' then
    s.keep, s.a, s.b = 0, NONE, NONE
  elseif retention ~= '' then
    s.keep, s.a, s.b = read('>Bdd', retention)
  end
  if s.paused == 0 and s.max == NONE and s.keep == 0 then
    call('HDEL', T .. ':queues', name)
  else
    call('HSET', T .. ':queues', name, pack('>BdBdd', s.paused, s.max, s.keep, s.a, s.b))
  end
  touched = true
  finish()
  return 1
end)
