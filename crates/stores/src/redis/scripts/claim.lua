-- ARGV: now, worker, lease end, limit, suspects, number of queues, queues, number of kinds or -1, kinds.
-- Ready jobs lie in a sorted set a lane (queue and kind; suspects apart); a claim merges the lanes of a queue, moves the
-- best into the queue's stream and reads them back as the worker's, so that the group's pending list says who has what.

-- Expired jobs that one claim cancels on its way.
local EXPIRED_MAX = 1000
local GROUP = 'workers'

local worker, lease_text = arg(), arg()
local lease_till = tonumber(lease_text)
local limit, suspects_left = tonumber(arg()), tonumber(arg())
local queues, kinds = {}, nil
for i = 1, tonumber(arg()) do queues[i] = arg() end
local kinds_given = tonumber(arg())
if kinds_given >= 0 then
  kinds = {}
  local seen = {}
  for _ = 1, kinds_given do
    local kind = arg()
    if not seen[kind] then
      seen[kind] = true
      kinds[#kinds + 1] = kind
    end
  end
end

-- How many more jobs of a queue may run.
local function free_slots(queue, left)
  local s = queue_settings(queue)
  if s.paused == 1 then return 0 end
  if s.max == NONE then return left end
  return math.min(left, s.max - tonumber(call('HGET', T .. ':running', queue) or 0))
end

-- Rows of candidates, not taken apart: most of what is in them a claim need not know.
local function texts(seqs, list)
  local i, n = 1, #seqs
  while i <= n do
    local bucket, names, first = floor(seqs[i] / BUCKET), {}, i
    while i <= n and floor(seqs[i] / BUCKET) == bucket do
      names[#names + 1] = seq_key(seqs[i])
      i = i + 1
    end
    local found = call('HMGET', bucket_key(bucket), unpack(names))
    for k = 1, #names do list[first + k - 1].key, list[first + k - 1].text = names[k], found[k] end
  end
end

-- The next candidate of a lane, or nil; rows are read by the batch.
local function head(source)
  if source.i > #source.list then
    if source.over then return nil end
    local found = call('ZRANGE', source.key, source.from, source.from + source.step - 1, 'WITHSCORES')
    local list, seqs = {}, {}
    for k = 1, #found, 2 do
      local run_at, seq = read('>I6I6', found[k])
      local n = #seqs + 1
      list[n] = {priority = tonumber(found[k + 1]), run_at = run_at, seq = seq, member = found[k], key = false, text = false}
      seqs[n] = seq
    end
    texts(seqs, list)
    source.list, source.i, source.from, source.over = list, 1, source.from + #list, #list < source.step
  end
  return source.list[source.i]
end

local function comes_first(a, b)
  if a.priority ~= b.priority then return a.priority < b.priority end
  if a.run_at ~= b.run_at then return a.run_at < b.run_at end
  return a.seq < b.seq
end

local function sources_of(queue, free)
  local sources = {}
  local known = kinds or call('SMEMBERS', T .. ':lanes:' .. queue)
  for i = 1, #known do
    local key = T .. ':ready:' .. queue .. '\31' .. known[i]
    sources[#sources + 1] = {key = key, kind = known[i], from = 0, list = {}, i = 1, over = false, step = free}
    if suspects_left > 0 then
      local step = math.min(free, suspects_left)
      sources[#sources + 1] = {key = key .. '\31s', suspect = true, from = 0, list = {}, i = 1, over = false, step = step}
    end
  end
  return sources
end

-- A job that has never started and is past its expiry.
local function has_expired(candidate)
  local started, _, expires = read('>I6I6I6', candidate.text, AT_EXPIRES - 12)
  candidate.expiring = expires > 0 and started == 0
  return candidate.expiring and expires - 1 <= NOW
end

-- Up to `free` jobs of a queue, in the order of claims, and the expired ones met on the way.
local function choose(queue, free)
  local chosen, expired, sources = {}, {}, sources_of(queue, free)
  while #chosen < free and #expired < EXPIRED_MAX do
    local best, from
    for i = 1, #sources do
      local source = sources[i]
      if not source.suspect or suspects_left > 0 then
        local candidate = head(source)
        if candidate and (not best or comes_first(candidate, best)) then best, from = candidate, source end
      end
    end
    if not best then break end
    from.i = from.i + 1
    if has_expired(best) then
      expired[#expired + 1] = best
    else
      if from.suspect then suspects_left = suspects_left - 1 end
      best.from = from.key
      chosen[#chosen + 1] = best
    end
  end
  -- A lane that has run dry is forgotten; the next ready job of its kind makes it known again.
  for i = 1, #sources do
    local source = sources[i]
    if source.kind and not kinds and source.over and source.from == 0 and call('EXISTS', source.key, source.key .. '\31s') == 0 then
      call('SREM', T .. ':lanes:' .. queue, source.kind)
    end
  end
  return chosen, expired
end

-- Puts the jobs into the queue's stream, as one entry, and reads it as the worker's.
local function deliver(queue, chosen)
  local stream, keys, run = T .. ':s:' .. queue, {}, {}
  local number = call('HINCRBY', T .. ':meta', 'delivery', 1)
  local name = whole(number)
  for i = 1, #chosen do
    local key = chosen[i].key
    keys[i], run[2 * i - 1], run[2 * i] = key, key, name
  end
  local jobs = table.concat(keys)
  call('HSET', T .. ':open', name, #chosen)
  call('HSET', T .. ':deliveries', name, pack(DELIVERED, #queue, queue, #worker, worker, NOW, lease_till) .. jobs)
  each_chunk('HSET', T .. ':run', run)
  call('ZADD', T .. ':leases', lease_text, name)
  call('XADD', stream, name .. '-0', 'worker', worker, 'jobs', jobs)
  local read_group = {'XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', stream, '>'}
  local reply = redis.pcall(unpack(read_group))
  if type(reply) == 'table' and reply.err then
    -- The first claim of this queue, or somebody destroyed the group: what was delivered before is in the rows.
    call('XGROUP', 'CREATE', stream, GROUP, whole(number - 1) .. '-0')
    call('SADD', T .. ':streams', queue)
    call(unpack(read_group))
  end
end

-- Counts the jobs as running; their rows stay as they are.
local function hand_out(queue, chosen)
  for i = 1, #chosen do
    local c = chosen[i]
    local state, flags = read('>BB', c.text, AT_STATE)
    local what, name = read('>HHc0', c.text, AT_HAS)
    local l = lane(name)
    c.has = what
    add(l.counts, READY, -1)
    add(l.counts, RUNNING, 1)
    if l.process ~= '' then
      local p, helper = process(l.process), band(flags, HELPER) ~= 0 and 8 or 0
      add(p.delta, state + helper, -1)
      add(p.delta, RUNNING + helper, 1)
    end
    drop(c.from, c.member)
    if c.expiring then drop(T .. ':expiries', c.key) end
    note({string.sub(c.text, 1, 16), RUNNING, lane = l})
    rows[c.seq] = nil
  end
  touched = true
  deliver(queue, chosen)
end

-- Whatever a worker gets beside the row.
local BESIDE = {{LONG, 'p'}, {DATA, 'd'}, {ERROR, 'e'}, {WAKE, 'w'}}
local BESIDE_ANY = LONG + DATA + ERROR + WAKE + EDGES

local function contents(chosen)
  local out = {}
  for i = 1, #chosen do
    local c = chosen[i]
    local o = #out
    out[o + 1], out[o + 2], out[o + 3] = c.seq, c.text, false
    if band(c.has, BESIDE_ANY) ~= 0 then
      local bucket, values = bucket_key(floor(c.seq / BUCKET)), {}
      for k = 1, #BESIDE do
        values[k] = band(c.has, BESIDE[k][1]) ~= 0 and call('HGET', bucket, c.key .. BESIDE[k][2])
      end
      values[#BESIDE + 1] = band(c.has, EDGES) ~= 0 and call('HGETALL', edge_key(c))
      out[o + 3] = values
    end
  end
  return out
end

local claimed = {}
for q = 1, #queues do
  local queue = queues[q]
  -- What an earlier queue has changed is to be seen here.
  if q > 1 then flush() end
  local free = free_slots(queue, limit - #claimed)
  if free > 0 then
    local chosen, expired = choose(queue, free)
    for i = 1, #expired do
      local r = job(expired[i].seq)
      if r and r[STATE] == READY then end_job(r, CANCELLED, TOO_LATE) end
    end
    if #chosen > 0 then hand_out(queue, chosen) end
    for i = 1, #chosen do claimed[#claimed + 1] = chosen[i] end
  end
end
if #claimed == 0 then
  finish()
  return {}
end
local reply = contents(claimed)
finish()
return reply
