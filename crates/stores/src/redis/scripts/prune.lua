-- args: now, limit, since when workers are forgotten. Deletes what retention no longer keeps.

verb('prune', {'allow-oom'}, function()
  local limit, silent_since = tonumber(arg()), tonumber(arg())
  local HELD_AGAIN = DAY
  local changed = 0

  -- A member is the places of jobs that ended together. One that was retried, or is gone, is passed over.
  local cut = false
  while changed < limit do
    local first = call('ZRANGEBYSCORE', T .. ':prune', '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, 1)
    if #first == 0 then break end
    local together, time, seqs, left = first[1], tonumber(first[2]), {}, nil
    for i = 1, #together, 6 do seqs[#seqs + 1] = read('>I6', together, i) end
    load(seqs)
    for i = 1, #seqs do
      if changed == limit then
        left = sub(together, 6 * i - 5)
        break
      end
      local r = job(seqs[i])
      if r and r[STATE] >= SUCCEEDED and r[REMOVE] == time then
        if held_child(r) then
          touch(r)
          r[REMOVE] = later(HELD_AGAIN)
          prune_at(r.key, r[REMOVE])
        else
          remove(r)
          changed = changed + 1
        end
      end
    end
    call('ZREM', T .. ':prune', together)
    if left then
      call('ZADD', T .. ':prune', time, left)
      cut = true
    end
  end
  cut = cut or (changed == limit and call('ZCOUNT', T .. ':prune', '-inf', NOW) > 0)

  -- Keys and signals whose time is over, from the hash that holds them and the set that orders them.
  local function forget(hash, times)
    local names = call('ZRANGEBYSCORE', T .. times, '-inf', NOW, 'LIMIT', 0, CHUNK)
    if #names == 0 then return end
    call('HDEL', T .. hash, unpack(names))
    call('ZREM', T .. times, unpack(names))
    changed, touched = changed + #names, true
  end
  forget(':uniques', ':windows')
  forget(':signals', ':forget')

  local gone = call('ZRANGEBYSCORE', T .. ':seen', '-inf', silent_since, 'LIMIT', 0, CHUNK)
  for i = 1, #gone do
    call('HDEL', T .. ':workers', gone[i])
    call('ZREM', T .. ':seen', gone[i])
    changed, touched = changed + 1, true
  end

  -- Consumers that are nobody's any more. One with pending entries stays until the rescuer has taken them.
  local streams = call('SMEMBERS', T .. ':streams')
  for i = 1, #streams do
    local stream = T .. ':s:' .. streams[i]
    local consumers = attempt('XINFO', 'CONSUMERS', stream, 'workers')
    for k = 1, consumers.err and 0 or #consumers do
      local consumer = {}
      for f = 1, #consumers[k], 2 do consumer[consumers[k][f]] = consumers[k][f + 1] end
      if consumer.pending == 0 and consumer.idle > DAY and call('HEXISTS', T .. ':workers', consumer.name) == 0 then
        call('XGROUP', 'DELCONSUMER', stream, 'workers', consumer.name)
      end
    end
  end
  finish()

  local next_at = cut and NOW or nil
  for _, name in ipairs({':prune', ':windows', ':forget'}) do
    local first = call('ZRANGE', T .. name, 0, 0, 'WITHSCORES')[2]
    if first and (not next_at or tonumber(first) < next_at) then next_at = tonumber(first) end
  end
  return {changed, next_at and pack('>d', next_at) or false}
end)
