-- args: now, limit, since when workers are forgotten. Deletes what retention no longer keeps.

local HELD_AGAIN = 86400000
-- Places looked at in one call, also of jobs that were retried or are gone.
local VISITED_MAX = 4000
-- Queues whose streams are looked at.
local STREAMS_MAX = 16
-- Among the cursors of queues, the ledger's: no queue has this name.
local LEDGER_CURSOR = ''

-- Removes a job whose time has come, unless it holds a child. Answers whether it went.
local function prune_job(seq, time)
  local r = job(seq)
  if not r or r[STATE] < SUCCEEDED or r[REMOVE] ~= time then return false end
  if not held_child(r) then
    remove(r)
    return true
  end
  touch(r)
  r[REMOVE] = later(HELD_AGAIN)
  prune_at(r.key, r[REMOVE])
  return false
end

-- Jobs that ended together are one member: their places. Answers how many went, and whether there are more.
local function prune_jobs(limit)
  local changed, visited = 0, 0
  while changed < limit do
    local first = call('ZRANGEBYSCORE', T .. ':prune', '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, 1)
    if #first == 0 then return changed, false end
    if visited >= VISITED_MAX then return changed, true end
    local together, time, seqs, left = first[1], tonumber(first[2]), {}, nil
    for i = 1, #together, 6 do seqs[#seqs + 1] = read('>I6', together, i) end
    visited = visited + #seqs
    load(seqs)
    for i = 1, #seqs do
      if changed == limit then
        left = sub(together, 6 * i - 5)
        break
      end
      if prune_job(seqs[i], time) then changed = changed + 1 end
    end
    call('ZREM', T .. ':prune', together)
    if left then call('ZADD', T .. ':prune', time, left) end
  end
  return changed, call('ZCOUNT', T .. ':prune', '-inf', NOW) > 0
end

-- Keys and signals whose time is over, from the hash that holds them and the set that orders them.
local function forget(hash, times, since)
  local names = call('ZRANGEBYSCORE', T .. times, '-inf', since, 'LIMIT', 0, CHUNK)
  if #names == 0 then return 0 end
  call('HDEL', T .. hash, unpack(names))
  call('ZREM', T .. times, unpack(names))
  touched = true
  return #names
end

-- The ledger's oldest days, a part of it a call.
local function forget_days()
  local oldest, days = floor(NOW / DAY) - LEDGER_KEPT_DAYS, {}
  local cursor = call('HGET', T .. ':cursors', LEDGER_CURSOR) or '0'
  local found = call('HSCAN', T .. ':ledger', cursor, 'COUNT', 1000)
  for i = 1, #found[2], 2 do
    if tonumber(string.match(found[2][i], '^%d+')) < oldest then days[#days + 1] = found[2][i] end
  end
  each_chunk('HDEL', T .. ':ledger', days)
  if found[1] ~= cursor then call('HSET', T .. ':cursors', LEDGER_CURSOR, found[1]) end
end

-- Whether a consumer of a stream is somebody's. One with pending entries stays until the rescuer has taken them.
local function is_needed(fields)
  local consumer = {}
  for f = 1, #fields, 2 do consumer[fields[f]] = fields[f + 1] end
  if consumer.name == RESCUER then return false end
  if consumer.pending > 0 or consumer.idle <= DAY or call('HEXISTS', T .. ':workers', consumer.name) == 1 then return true end
  return false, consumer.name
end

-- A stream without consumers and entries goes; the next claim makes it again.
local function tidy(queue)
  local stream, needed = T .. ':s:' .. queue, 0
  local consumers = attempt('XINFO', 'CONSUMERS', stream, 'workers')
  for k = 1, consumers.err and 0 or #consumers do
    local stays, nobodys = is_needed(consumers[k])
    if stays then needed = needed + 1 end
    if nobodys then call('XGROUP', 'DELCONSUMER', stream, 'workers', nobodys) end
  end
  if needed == 0 and attempt('XLEN', stream) == 0 then
    call('DEL', stream)
    call('SREM', T .. ':streams', queue)
    call('HDEL', T .. ':cursors', queue)
  end
end

verb('prune', {'allow-oom'}, function()
  local limit, silent_since = tonumber(arg()), tonumber(arg())
  local changed, cut = prune_jobs(limit)
  changed = changed + forget(':uniques', ':windows', NOW) + forget(':signals', ':forget', NOW)
  changed = changed + forget(':workers', ':seen', silent_since)
  forget_days()
  -- A few a call, drawn by the server; all have their turn.
  local streams = call('SRANDMEMBER', T .. ':streams', STREAMS_MAX)
  for i = 1, #streams do tidy(streams[i]) end
  finish()

  local next_at = cut and NOW or nil
  for _, name in ipairs({':prune', ':windows', ':forget'}) do
    local first = call('ZRANGE', T .. name, 0, 0, 'WITHSCORES')[2]
    if first and (not next_at or tonumber(first) < next_at) then next_at = tonumber(first) end
  end
  return {changed, next_at and pack('>d', next_at) or false}
end)
