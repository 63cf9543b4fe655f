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

-- The next candidate of a lane, or nil; rows are read by the batch.
local function head(lane)
  if lane.i > #lane.list then
    if lane.over then return nil end
    local found = call('ZRANGE', lane.key, lane.from, lane.from + lane.step - 1, 'WITHSCORES')
    local list, seqs = {}, {}
    for k = 1, #found, 2 do
      local run_at, seq = read('>I6I6', found[k])
      list[#list + 1] = {tonumber(found[k + 1]), run_at, seq, found[k]}
      seqs[#seqs + 1] = seq
    end
    load(seqs)
    lane.list, lane.i, lane.from, lane.over = list, 1, lane.from + #list, #list < lane.step
  end
  return lane.list[lane.i]
end

local function comes_first(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  if a[2] ~= b[2] then return a[2] < b[2] end
  return a[3] < b[3]
end

local function lanes_of(queue, free)
  local lanes = {}
  local known = kinds or call('SMEMBERS', T .. ':lanes:' .. queue)
  for i = 1, #known do
    local key = T .. ':ready:' .. queue .. '\31' .. known[i]
    lanes[#lanes + 1] = {key = key, kind = known[i], from = 0, list = {}, i = 1, over = false, step = free}
    if suspects_left > 0 then
      local step = math.min(free, suspects_left)
      lanes[#lanes + 1] = {key = key .. '\31s', suspect = true, from = 0, list = {}, i = 1, over = false, step = step}
    end
  end
  return lanes
end

-- Up to `free` jobs of a queue, in the order of claims, and the expired ones met on the way.
local function choose(queue, free)
  local chosen, expired, lanes = {}, {}, lanes_of(queue, free)
  while #chosen < free and #expired < EXPIRED_MAX do
    local best, lane
    for i = 1, #lanes do
      local l = lanes[i]
      if not l.suspect or suspects_left > 0 then
        local candidate = head(l)
        if candidate and (not best or comes_first(candidate, best)) then best, lane = candidate, l end
      end
    end
    if not best then break end
    lane.i = lane.i + 1
    local r = job(best[3])
    if r[STARTED] == NONE and r[EXPIRES] ~= NONE and r[EXPIRES] <= NOW then
      expired[#expired + 1] = r
    else
      if lane.suspect then suspects_left = suspects_left - 1 end
      r.member = best[4]
      chosen[#chosen + 1] = r
    end
  end
  -- A lane that has run dry is forgotten; the next ready job of its kind makes it known again.
  for i = 1, #lanes do
    local l = lanes[i]
    if l.kind and not kinds and l.over and l.from == 0 and call('EXISTS', l.key, l.key .. '\31s') == 0 then
      call('SREM', T .. ':lanes:' .. queue, l.kind)
    end
  end
  return chosen, expired
end

-- Puts the jobs into the queue's stream, as one entry, and reads it as the worker's.
local function deliver(queue, chosen)
  local stream, keys = T .. ':s:' .. queue, {}
  local delivery = call('HINCRBY', T .. ':meta', 'delivery', 1)
  local name = whole(delivery)
  for i = 1, #chosen do
    chosen[i][DELIVERY] = delivery
    keys[i] = chosen[i].key
  end
  local jobs = table.concat(keys)
  call('HSET', T .. ':open', name, #chosen)
  call('HSET', T .. ':deliveries', name, pack('>Hc0', #queue, queue) .. jobs)
  call('ZADD', T .. ':leases', lease_text, name)
  call('XADD', stream, name .. '-0', 'worker', worker, 'jobs', jobs)
  local read_group = {'XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', stream, '>'}
  local reply = redis.pcall(unpack(read_group))
  if type(reply) == 'table' and reply.err then
    -- The first claim of this queue, or somebody destroyed the group: what was delivered before is in the rows.
    call('XGROUP', 'CREATE', stream, GROUP, whole(delivery - 1) .. '-0')
    call('SADD', T .. ':streams', queue)
    call(unpack(read_group))
  end
end

local function hand_out(queue, chosen)
  for i = 1, #chosen do
    local r = chosen[i]
    move(r, RUNNING)
    r[FENCE], r[WORKER], r[STARTED], r[TILL] = r[FENCE] + 1, worker, NOW, lease_till
    r[FLAGS] = band(r[FLAGS], bnot(CANCEL))
  end
  deliver(queue, chosen)
end

-- Whatever a worker gets beside the row, in which most payloads stand.
local BESIDE = {{LONG, 'p'}, {OPTIONS, 'o'}, {DATA, 'd'}, {ERROR, 'e'}, {WAKE, 'w'}}
local BESIDE_ANY = LONG + OPTIONS + DATA + ERROR + WAKE + EDGES

local function contents(chosen)
  local out = {}
  for i = 1, #chosen do
    local r = chosen[i]
    r.text = pack_row(r)
    local o = #out
    out[o + 1], out[o + 2], out[o + 3] = r.seq, r.text, false
    if has(r, BESIDE_ANY) then
      local values = {}
      for k = 1, #BESIDE do values[k] = field(r, BESIDE[k][1], BESIDE[k][2]) or false end
      values[#BESIDE + 1] = has(r, EDGES) and call('HGETALL', edge_key(r)) or false
      out[o + 3] = values
    end
  end
  return out
end

local claimed = {}
for q = 1, #queues do
  local queue = queues[q]
  local free = free_slots(queue, limit - #claimed)
  if free > 0 then
    -- What an expiry in an earlier queue has released is to be seen here.
    flush()
    local chosen, expired = choose(queue, free)
    for i = 1, #expired do end_job(expired[i], CANCELLED, TOO_LATE) end
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
