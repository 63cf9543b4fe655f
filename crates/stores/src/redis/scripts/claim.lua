-- args: now, worker, lease end, limit, suspects, number of queues, queues, number of kinds or -1, kinds. Moves the best jobs
-- into the queue's stream and reads them back as the worker's, so that the group's pending list says who has what. Answers
-- the places, the rows, what stands beside some of them, and queues whose streams had entries of somebody else.

local GROUP = 'workers'
-- A delivery is read as a whole by every settlement out of it, so that it must not grow too long.
local DELIVERY_MAX = 128

local worker, lease_text

-- How many more jobs of a queue may run.
local function free_slots(queue, left)
  local s = queue_settings(queue)
  if s.paused == 1 then return 0 end
  if s.max == NONE then return left end
  return min(left, s.max - tonumber(call('HGET', T .. ':running', queue) or 0))
end

-- Counts neighbours as running and tells of them; their rows stay as they are.
local function count_running(f, count, texts, from)
  local l = f.lane
  add(l.counts, READY, -count)
  add(l.counts, RUNNING, count)
  count_members(l, READY, f.flags, -count)
  count_members(l, RUNNING, f.flags, count)
  local named = min(count, EVENT_CHANGES_MAX)
  for i = from, from + named - 1 do note({sub(texts[i], 1, 16), [STATE] = RUNNING, lane = l}) end
  note_more(count - named)
end

-- The chosen jobs from `first` to `last` as a delivery's bytes, in runs of neighbours with the same facts; notes them as
-- delivered.
local function delivered(chosen, first, last, head, note_text)
  local parts, p, i = {head}, 1, first
  local seqs, texts, all_facts = chosen.seqs, chosen.texts, chosen.facts
  while i <= last do
    local f, from = all_facts[i], i
    local head_at, before = p + 1, seqs[i] - i
    p = head_at
    while i <= last and all_facts[i] == f and seqs[i] - i == before do
      parts[p + 1], parts[p + 2] = sub(texts[i], 1, 16), f.fresh and '\0\0\0\1' or pack('>I4', chosen.fences[i])
      p, i = p + 2, i + 1
    end
    local text, plain = f.lane.text, f.fresh and f.what <= LONG
    parts[head_at] = pack(NEIGHBOURS, seqs[from], i - from, #text, text, #f.rule, f.rule, plain and f.what or NOT_PLAIN, f.flags)
    write_notes(seqs[from], seqs[i - 1], note_text)
    count_running(f, i - from, texts, from)
  end
  return concat(parts)
end

-- Queues whose streams have entries that somebody else wrote.
local foreign

local function failed(reply) return type(reply) == 'table' and reply.err end

-- Adds an entry to a stream and reads it as the worker's. False when somebody else's entry is in the way: one with a higher
-- number, behind which ours cannot stand, or one that is read in its place.
local function record(queue, stream, number, jobs)
  local id = whole(number) .. '-0'
  if failed(attempt('XADD', stream, id, 'worker', worker, 'jobs', jobs)) then return false end
  local reply = attempt('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', stream, '>')
  if failed(reply) then
    -- The first claim of this queue, or somebody destroyed the group: what was delivered before is in the rows.
    call('XGROUP', 'CREATE', stream, GROUP, whole(number - 1) .. '-0')
    call('SADD', T .. ':streams', queue)
    reply = call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', stream, '>')
  end
  return reply and reply[1][2][1][1] == id
end

-- Puts the jobs into the queue's stream, as one entry, and reads it as the worker's.
local function deliver(queue, chosen, first, last)
  local stream, number = T .. ':s:' .. queue, call('HINCRBY', T .. ':meta', 'delivery', 1)
  local name = whole(number)
  local head = pack(DELIVERED, #queue, queue, #worker, worker, NOW, tonumber(lease_text), last - first + 1)
  call('HSET', T .. ':deliveries', name, delivered(chosen, first, last, head, pack('>I6', number)))
  call('ZADD', T .. ':leases', lease_text, name)
  local jobs = concat(chosen.keys, '', first, last)
  if record(queue, stream, number, jobs) then return end
  -- The record goes on in a new stream: what the old one said of running jobs is in their rows. The caller is told. Another key in
  -- its place is left alone; it keeps a job from nobody.
  foreign[#foreign + 1] = queue
  if call('TYPE', stream).ok ~= 'stream' then return end
  call('DEL', stream)
  record(queue, stream, number, jobs)
end

-- Whatever a worker gets beside the row.
local BESIDE = {{LONG, 'p'}, {DATA, 'd'}, {ERROR, 'e'}, {WAKE, 'w'}}
local BESIDE_ANY = LONG + DATA + ERROR + WAKE + EDGES

local function contents(index, seq, key, what)
  local bucket, values = bucket_key(floor(seq / BUCKET)), {index}
  for k = 1, #BESIDE do values[k + 1] = band(what, BESIDE[k][1]) ~= 0 and call('HGET', bucket, key .. BESIDE[k][2]) end
  values[#BESIDE + 2] = band(what, EDGES) ~= 0 and call('HGETALL', edge_key({seq = seq}))
  return values
end

local function hand_out(queue, chosen, reply)
  local places, texts, besides, n = reply[1], reply[2], reply[3], reply.n
  for i = 1, chosen.n do
    local what = chosen.facts[i].what
    n = n + 1
    places[n], texts[n] = chosen.keys[i], chosen.texts[i]
    rows[chosen.seqs[i]] = nil
    if what ~= 0 and band(what, BESIDE_ANY) ~= 0 then
      besides[#besides + 1] = contents(n, chosen.seqs[i], chosen.keys[i], what)
    end
  end
  reply.n = n
  for first = 1, chosen.n, DELIVERY_MAX do deliver(queue, chosen, first, min(first + DELIVERY_MAX - 1, chosen.n)) end
  touched = true
end

local function read_names(count)
  local names, seen = {}, {}
  for _ = 1, count do
    local name = arg()
    if not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  return names
end

verb('claim', {'allow-oom'}, function()
  worker, lease_text, foreign = arg(), arg(), {}
  local limit, suspects = tonumber(arg()), tonumber(arg())
  local queues = {}
  for i = 1, tonumber(arg()) do queues[i] = arg() end
  local kinds_given = tonumber(arg())
  local kinds = kinds_given >= 0 and read_names(kinds_given) or nil
  local reply = {{}, {}, {}, n = 0}
  for q = 1, #queues do
    local queue = queues[q]
    -- What an earlier queue has changed is to be seen here.
    if q > 1 then flush() end
    local free = free_slots(queue, limit - reply.n)
    if free > 0 then
      local chosen = choose(queue, kinds, free, suspects)
      suspects = chosen.suspects
      for i = 1, #chosen.expired do
        local r = job(chosen.expired[i])
        if r and r[STATE] == READY then
          r.unindexed = true
          end_job(r, CANCELLED, TOO_LATE)
        end
      end
      if chosen.n > 0 then hand_out(queue, chosen, reply) end
    end
  end
  finish()
  reply[1], reply[4] = concat(reply[1]), foreign
  return reply
end)
