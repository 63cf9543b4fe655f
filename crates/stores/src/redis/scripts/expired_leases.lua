-- args: now, limit, idle time in milliseconds. Leases that have passed, oldest first, for Rust to judge: seq, row and
-- options. On the way, a few pending entries that nobody has renewed for long are looked at, from where the last look
-- ended: one whose jobs have all moved on, or that was trimmed or deleted, is dropped from the pending list.

local STREAMS_MAX, ENTRIES_MAX = 16, 100
local DELIVERIES_MAX, PASSED_MAX = 1000, 2000

local function tidy(queue, idle_ms)
  local stream = T .. ':s:' .. queue
  local cursor = call('HGET', T .. ':cursors', queue) or '0-0'
  local found = attempt('XAUTOCLAIM', stream, 'workers', RESCUER, idle_ms, cursor, 'COUNT', ENTRIES_MAX)
  if found.err then return end
  if found[1] ~= cursor then call('HSET', T .. ':cursors', queue, found[1]) end
  for i = 1, #found[2] do
    local id, values = found[2][i][1], found[2][i][2]
    local name = string.match(id, '^(%d+)-0$')
    if name and call('HEXISTS', T .. ':deliveries', name) == 1 then
      -- The leases of its jobs decide, not the stream; it stays with its worker.
      call('XCLAIM', stream, 'workers', values[2], 0, id, 'JUSTID')
    else
      call('XACK', stream, 'workers', id)
      call('XDEL', stream, id)
    end
  end
end

-- Adds a delivery's jobs whose lease has passed to the list; answers whether there are any, and the earliest of the other leases.
local function look_at(number, passed)
  local seqs, before, first = {}, #passed, nil
  local runs = neighbours(delivery(number))
  for k = 1, #runs do
    for seq = runs[k].first, runs[k].first + runs[k].count - 1 do seqs[#seqs + 1] = seq end
  end
  load(seqs)
  for k = 1, #seqs do
    local r = job(seqs[k])
    if r and r[STATE] == RUNNING and r[DELIVERY] == number then
      if r[TILL] <= NOW then
        passed[#passed + 1] = r
      elseif not first or r[TILL] < first then
        first = r[TILL]
      end
    end
  end
  return #passed > before, first
end

verb('expired_leases', {'allow-oom'}, function()
  local limit, idle_ms = tonumber(arg()), tonumber(arg())
  -- A few queues a call, drawn by the server; all have their turn.
  local streams = call('SRANDMEMBER', T .. ':streams', STREAMS_MAX)
  for i = 1, #streams do tidy(streams[i], idle_ms) end

  local passed, next_at = {}, nil
  local function sooner(time)
    if not next_at or time < next_at then next_at = time end
  end
  local due = call('ZRANGEBYSCORE', T .. ':leases', '-inf', NOW, 'LIMIT', 0, DELIVERIES_MAX)
  for i = 1, #due do
    if #passed > PASSED_MAX then break end
    local any, first = false, nil
    if call('HEXISTS', T .. ':deliveries', due[i]) == 1 then any, first = look_at(tonumber(due[i]), passed) end
    if first then sooner(first) end
    -- A delivery stands by its earliest lease, or by one that was renewed since; that is put right on the way. One without
    -- a lease was left by hand, or by a server that evicts, and would be looked at for ever.
    if first and not any then
      call('ZADD', T .. ':leases', whole(first), due[i])
    elseif not any then
      call('ZREM', T .. ':leases', due[i])
    end
  end
  table.sort(passed, function(a, b)
    if a[TILL] ~= b[TILL] then return a[TILL] < b[TILL] end
    return a.seq < b.seq
  end)
  local found = {}
  for i = 1, min(limit, #passed) do found[i] = {passed[i].seq, row_text(passed[i]), options(passed[i])} end
  if #passed > limit or #due == DELIVERIES_MAX then sooner(NOW) end
  local later_one = call('ZRANGEBYSCORE', T .. ':leases', '(' .. whole(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if later_one then sooner(tonumber(later_one)) end
  return {found, next_at and pack('>d', next_at) or false}
end)
