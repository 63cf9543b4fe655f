-- args: now, limit, since when workers are forgotten. Deletes what retention no longer keeps.

verb('prune', {'allow-oom'}, function()
  local limit, silent_since = tonumber(arg()), tonumber(arg())
  local HELD_AGAIN = DAY
  -- Places looked at, also of jobs that were retried or are gone.
  local VISITED_MAX = 4000
  -- Queues looked at.
  local STREAMS_MAX = 16
  -- No queue has this name.
  local LEDGER_CURSOR = ''
  local changed = 0

  -- A member is the places of jobs that ended together. One that was retried, or is gone, is passed over.
  local cut, visited = false, 0
  while changed < limit do
    if visited >= VISITED_MAX then
      cut = true
      break
    end
    local first = call('ZRANGEBYSCORE', T .. ':prune', '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, 1)
    if #first == 0 then break end
    local together, time, seqs, left = first[1], tonumber(first[2]), {}, nil
    for i = 1, #together, 6 do seqs[#seqs + 1] = read('>I6', together, i) end
    visited = visited + #seqs
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

  -- The ledger's oldest days.
  if call('HLEN', T .. ':ledger') > 0 then
    local oldest, days = floor(NOW / DAY) - LEDGER_KEPT_DAYS, {}
    local cursor = call('HGET', T .. ':cursors', LEDGER_CURSOR) or '0'
    local found = call('HSCAN', T .. ':ledger', cursor, 'COUNT', 1000)
    for i = 1, #found[2], 2 do
      if tonumber(string.match(found[2][i], '^%d+')) < oldest then days[#days + 1] = found[2][i] end
    end
    each_chunk('HDEL', T .. ':ledger', days)
    if found[1] ~= cursor then call('HSET', T .. ':cursors', LEDGER_CURSOR, found[1]) end
  end

  -- Consumers that are nobody's any more; one with pending entries stays until the rescuer has taken them. A stream without
  -- consumers and entries goes; the next claim makes it again. A few queues a call, drawn by the server.
  local streams = call('SRANDMEMBER', T .. ':streams', STREAMS_MAX)
  for i = 1, #streams do
    local stream = T .. ':s:' .. streams[i]
    local consumers = attempt('XINFO', 'CONSUMERS', stream, 'workers')
    local left = consumers.err and 0 or #consumers
    for k = 1, left do
      local consumer = {}
      for f = 1, #consumers[k], 2 do consumer[consumers[k][f]] = consumers[k][f + 1] end
      if consumer.name == RESCUER then
        left = left - 1
      elseif consumer.pending == 0 and consumer.idle > DAY and call('HEXISTS', T .. ':workers', consumer.name) == 0 then
        call('XGROUP', 'DELCONSUMER', stream, 'workers', consumer.name)
        left = left - 1
      end
    end
    if left == 0 and attempt('XLEN', stream) == 0 then
      call('DEL', stream)
      call('SREM', T .. ':streams', streams[i])
      call('HDEL', T .. ':cursors', streams[i])
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
