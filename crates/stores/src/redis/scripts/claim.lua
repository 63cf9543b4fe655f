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

-- The next candidate of a source, as its index, or nil; rows are read by the batch and not taken apart.
local function head(source)
  if source.i <= source.n then return source.i end
  if source.over then return nil end
  local members, seqs, keys = call('ZRANGE', source.key, source.from, source.from + source.step - 1), {}, {}
  local n = #members
  for i = 1, n do
    local key = string.sub(members[i], 7)
    keys[i], seqs[i] = key, read('>I6', key)
  end
  source.members, source.seqs, source.keys = members, seqs, keys
  source.texts = row_texts(seqs, keys)
  source.i, source.n, source.from, source.over = 1, n, source.from + n, n < source.step
  return n > 0 and 1 or nil
end

local function comes_first(a, i, b, k)
  local priority, run_at = read('>i4I6', a.texts[i], AT_PRIORITY)
  local other_priority, other_run_at = read('>i4I6', b.texts[k], AT_PRIORITY)
  if priority ~= other_priority then return priority < other_priority end
  if run_at ~= other_run_at then return run_at < other_run_at end
  return a.seqs[i] < b.seqs[k]
end

local function sources_of(queue, free)
  local sources = {}
  local known = kinds or call('SMEMBERS', T .. ':lanes:' .. queue)
  for i = 1, #known do
    local key = T .. ':ready:' .. queue .. '\31' .. known[i]
    sources[#sources + 1] = {key = key, kind = known[i], from = 0, i = 1, n = 0, over = false, step = free}
    if suspects_left > 0 then
      local step = math.min(free, suspects_left)
      sources[#sources + 1] = {key = key .. '\31s', suspect = true, from = 0, i = 1, n = 0, over = false, step = step}
    end
  end
  return sources
end

-- Up to `free` jobs of a queue, in the order of claims, and the expired ones met on the way.
local function choose(queue, free)
  local chosen, expired, sources = {seqs = {}, keys = {}, texts = {}}, {}, sources_of(queue, free)
  local n = 0
  while n < free and #expired < EXPIRED_MAX do
    local best, at_best
    for k = 1, #sources do
      local source = sources[k]
      if not source.suspect or suspects_left > 0 then
        local i = head(source)
        if i and (not best or comes_first(source, i, best, at_best)) then best, at_best = source, i end
      end
    end
    if not best then break end
    best.i = at_best + 1
    local text, key = best.texts[at_best], best.keys[at_best]
    local started, _, expires = read('>I6I6I6', text, AT_EXPIRES - 12)
    local expiring = expires > 0 and started == 0
    if expiring and expires - 1 <= NOW then
      expired[#expired + 1] = best.seqs[at_best]
    else
      if best.suspect then suspects_left = suspects_left - 1 end
      n = n + 1
      chosen.seqs[n], chosen.keys[n], chosen.texts[n] = best.seqs[at_best], key, text
      drop(best.key, best.members[at_best])
      if expiring then drop(T .. ':expiries', key) end
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
  local stream, keys, run = T .. ':s:' .. queue, chosen.keys, {}
  local number = call('HINCRBY', T .. ':meta', 'delivery', 1)
  local name = whole(number)
  for i = 1, #keys do run[2 * i - 1], run[2 * i] = keys[i], name end
  local jobs = table.concat(keys)
  call('HSET', T .. ':open', name, #keys)
  call('HSET', T .. ':deliveries', name, pack(DELIVERED, #queue, queue, #worker, worker, NOW, lease_till) .. jobs)
  each_chunk('HSET', T .. ':run', run)
  call('ZADD', T .. ':leases', lease_text, name)
  -- Somebody else's entry with a higher number, or another key in its place, keeps a job from nobody: see the rows.
  local added = redis.pcall('XADD', stream, name .. '-0', 'worker', worker, 'jobs', jobs)
  if type(added) == 'table' and added.err then return end
  local read_group = {'XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', stream, '>'}
  local reply = redis.pcall(unpack(read_group))
  if type(reply) == 'table' and reply.err then
    -- The first claim of this queue, or somebody destroyed the group: what was delivered before is in the rows.
    call('XGROUP', 'CREATE', stream, GROUP, whole(number - 1) .. '-0')
    call('SADD', T .. ':streams', queue)
    call(unpack(read_group))
  end
end

-- Whatever a worker gets beside the row.
local BESIDE = {{LONG, 'p'}, {DATA, 'd'}, {ERROR, 'e'}, {WAKE, 'w'}}
local BESIDE_ANY = LONG + DATA + ERROR + WAKE + EDGES

local function contents(seq, key, what)
  local bucket, values = bucket_key(floor(seq / BUCKET)), {}
  for k = 1, #BESIDE do values[k] = band(what, BESIDE[k][1]) ~= 0 and call('HGET', bucket, key .. BESIDE[k][2]) end
  values[#BESIDE + 1] = band(what, EDGES) ~= 0 and call('HGETALL', edge_key({seq = seq}))
  return values
end

-- Counts the jobs as running and adds them to the reply; their rows stay as they are.
local reply = {}
local function hand_out(queue, chosen)
  local o = #reply
  for i = 1, #chosen.seqs do
    local seq, text = chosen.seqs[i], chosen.texts[i]
    local what, in_lane = read('>HHc0', text, AT_HAS)
    local l = lane(in_lane)
    add(l.counts, READY, -1)
    add(l.counts, RUNNING, 1)
    if l.process ~= '' then
      local p, helper = process(l.process), band(string.byte(text, AT_STATE + 1), HELPER) ~= 0 and 8 or 0
      add(p.delta, READY + helper, -1)
      add(p.delta, RUNNING + helper, 1)
    end
    if i <= EVENT_CHANGES_MAX then note({string.sub(text, 1, 16), RUNNING, lane = l}) else note_more() end
    rows[seq] = nil
    reply[o + 1], reply[o + 2] = seq, text
    reply[o + 3] = band(what, BESIDE_ANY) ~= 0 and contents(seq, chosen.keys[i], what)
    o = o + 3
  end
  touched = true
  deliver(queue, chosen)
end

local claimed = 0
for q = 1, #queues do
  local queue = queues[q]
  -- What an earlier queue has changed is to be seen here.
  if q > 1 then flush() end
  local free = free_slots(queue, limit - claimed)
  if free > 0 then
    local chosen, expired = choose(queue, free)
    for i = 1, #expired do
      local r = job(expired[i])
      if r and r[STATE] == READY then end_job(r, CANCELLED, TOO_LATE) end
    end
    if #chosen.seqs > 0 then hand_out(queue, chosen) end
    claimed = claimed + #chosen.seqs
  end
end
finish()
return reply
