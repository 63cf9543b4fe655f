-- Writes what a call has changed: rows, indexes, counters, deliveries; then one event and one notice.

-- What names of lanes end with where jobs wait that have lost leases.
local SUSPECTS = '\31s'
-- The consumer as which the rescuer looks at pending entries.
local RESCUER = 'rescuer'
local flush, finish, note, note_more, ready_member, put_ready, write_rows, drop_rows
-- Lua allows 200 names at once, so that what is only of use here stands in a block.
do

-- Ended jobs whose time is the same go together, at most 128 to a member of the sorted set.
local PRUNE_BYTES = 768
-- States whose jobs are listed by an index of their own.
local LISTED = {[BLOCKED] = true, [PARKED] = true, [FAILED] = true, [CANCELLED] = true}

-- Ready jobs of equal priority sort by these bytes: time, then submission. Neighbours that became ready together are one
-- member: the first, and how many.
function ready_member(run_at, seq, count) return pack('>I6I6H', math.max(0, run_at), seq, count) end

-- Puts a member into a lane, or into that of its suspects. It is known from then on: its kind to its queue, its key to the ring
-- of both.
function put_ready(l, apart, priority, member)
  local key = l.ready .. apart
  if not puts[key] then
    call('SADD', T .. ':lanes:' .. l.queue, l.kind .. apart)
    if l.key ~= '' then call('ZADD', T .. ':ring:' .. l.name, 0, l.key) end
  end
  put(key, priority, member)
end

-- More than any member counts.
local PROBE = 65535

-- Takes one job out of a lane, out of the middle of its neighbours if need be.
local function drop_ready(r)
  local key, run_at, seq = r.was_suspect and r.lane.ready .. SUSPECTS or r.lane.ready, r.was_at, r.seq
  if call('ZREM', key, ready_member(run_at, seq, 1)) == 1 then return end
  local score, probe = whole(r.was_priority or r[PRIORITY]), ready_member(run_at, seq, PROBE)
  call('ZADD', key, score, probe)
  local rank = call('ZRANK', key, probe)
  local member = rank > 0 and call('ZRANGE', key, rank - 1, rank - 1)[1]
  call('ZREM', key, probe)
  local _, first, count = read('>I6I6H', member or probe)
  if not member or first > seq or first + count <= seq then return end
  call('ZREM', key, member)
  if first < seq then call('ZADD', key, score, ready_member(run_at, first, seq - first)) end
  local left = first + count - 1 - seq
  if left > 0 then call('ZADD', key, score, ready_member(run_at, seq + 1, left)) end
end

local function leave(r)
  local was = r.was
  if was == READY then
    if not r.unindexed then drop_ready(r) end
  elseif was == SCHEDULED then
    drop(T .. ':start', r.key)
  elseif was == PARKED then
    drop(T .. ':parkends', r.key)
  end
  if LISTED[was] then drop(T .. ':in:' .. was, r.key) end
  if was >= SUCCEEDED and r.lane.process ~= '' and not flag(r, HELPER) then drop(T .. ':pe:' .. r.lane.process, r.key) end
end

local function enter(r)
  local state = r[STATE]
  if state == READY then
    put_ready(r.lane, flag(r, SUSPECT) and SUSPECTS or '', r[PRIORITY], ready_member(r[RUN_AT], r.seq, 1))
  elseif state == SCHEDULED then
    put(T .. ':start', r[RUN_AT], r.key)
  elseif state == PARKED and flag(r, PARK_UNTIL) then
    put(T .. ':parkends', r[RUN_AT], r.key)
  end
  if LISTED[state] then put(T .. ':in:' .. state, r.seq, r.key) end
  if state >= SUCCEEDED and r.lane.process ~= '' and not flag(r, HELPER) then
    put(T .. ':pe:' .. r.lane.process, r.seq, r.key)
  end
end

local function index_row(r)
  local state, was = r.gone and -1 or r[STATE], r.was
  local moved = r[RUN_AT] ~= r.was_at or (r.was_priority or r[PRIORITY]) ~= r[PRIORITY]
  if state ~= was or moved or (r.was_suspect or false) ~= flag(r, SUSPECT) then
    if was >= 0 then leave(r) end
    if state >= 0 then enter(r) end
  end
  if r[EXPIRES] ~= NONE or r.was_expiring then
    local expiring = state >= 0 and is_expiring(r)
    if r.was_expiring and not expiring then
      drop(T .. ':expiries', r.key)
    elseif expiring and not r.was_expiring then
      put(T .. ':expiries', r[EXPIRES], r.key)
    end
  end
  if state ~= was then
    local counts = r.lane.counts
    if was >= 0 then add(counts, was, -1) end
    if state >= 0 then add(counts, state, 1) end
  end
end

-- A job's change in an event: id, state, queue, kind, process, progress.
local CHANGE = '>c16BHc0Hc0Hc0I4c0'

function note_more(count) more = more + count end

function note(r)
  if silent then return end
  if #news >= EVENT_CHANGES_MAX then return note_more(1) end
  local q, k, p, progress = r.lane.queue, r.lane.kind, r.lane.process, r.progress or ''
  news[#news + 1] = pack(CHANGE, r[ID], r[STATE], #q, q, #k, k, #p, p, #progress, progress)
end

-- The fields of a row, or their removal with everything beside it.
local function write_row(r)
  local names = writes_of(r.seq)
  if r.noted then
    unnoted[#unnoted + 1] = r.seq
    r.noted = nil
  end
  if r.end_noted then
    names[r.key .. 'z'] = false
    r.end_noted = nil
  end
  if not r.gone then
    names[r.key] = r.text or pack_row(r)
    return
  end
  names[r.key] = false
  if r[HAS] == 0 then return end
  for i = 1, #FIELDS do
    if has(r, FIELDS[i][1]) then names[r.key .. FIELDS[i][2]] = false end
  end
end

-- Writes fields of a bucket, given as name and value by turns.
function write_rows(bucket, sets, is_new)
  each_chunk('HSET', bucket_key(bucket), sets)
  if is_new then call('ZADD', T .. ':buckets', bucket, bucket) end
end

-- Deletes fields of a bucket, and with its last field all that is left of it.
function drop_rows(bucket, names)
  local key = bucket_key(bucket)
  each_chunk('HDEL', key, names)
  if call('EXISTS', key) == 0 then
    call('ZREM', T .. ':buckets', bucket)
    call('DEL', note_key(bucket))
  end
end

local function flush_buckets()
  for bucket, names in pairs(writes) do
    local sets, dels, s, d = {}, {}, 0, 0
    for name, value in pairs(names) do
      if value then
        sets[s + 1], sets[s + 2] = name, value
        s = s + 2
      else
        d = d + 1
        dels[d] = name
      end
    end
    write_rows(bucket, sets, s > 0 and fresh[bucket])
    if d > 0 then drop_rows(bucket, dels) end
  end
end

local function flush_processes()
  for id, p in pairs(processes) do
    local key = T .. ':p:' .. id
    if p.open or p.total > 0 then
      for at_state, number in pairs(p.delta) do
        if number ~= 0 and call('HINCRBY', key, at_state, number) == 0 then call('HDEL', key, at_state) end
      end
      if p.seal and p.open then call('HSET', key, 'open', 1) end
      if p.seal and not p.open then call('HDEL', key, 'open') end
      if not p.known then call('ZADD', T .. ':procs', 0, id) end
      p.known = true
    elseif p.known then
      call('DEL', key)
      call('ZREM', T .. ':procs', id)
      p.known = false
    end
    p.delta, p.seal = {}, nil
  end
end

local function count(key, name, number)
  if number ~= 0 and call('HINCRBY', key, name, number) == 0 then call('HDEL', key, name) end
end

local function flush_lanes()
  for _, l in pairs(lanes) do
    for state, number in pairs(l.counts) do
      count(T .. ':counts', l.name .. '\31' .. state, number)
      if state == RUNNING then
        count(T .. ':running', l.queue, number)
        if l.key ~= '' then count(T .. ':keys:' .. l.queue, l.key, number) end
      end
    end
    for state, number in pairs(l.ledger) do
      count(T .. ':ledger', floor(NOW / DAY) .. '\31' .. l.name .. '\31' .. state, number)
    end
    l.counts, l.ledger = {}, {}
  end
end

-- A delivery is one entry of a queue's stream: the jobs that one claim handed to one worker. It is acknowledged and
-- deleted with the last of them.
local function close_deliveries()
  for number, jobs in pairs(closed) do
    local d = delivery(number)
    local name, stream = d.name, T .. ':s:' .. d.queue
    local in_parts = jobs < d.count
    if in_parts then jobs = call('HINCRBY', T .. ':closed', name, jobs) end
    if jobs >= d.count then
      if in_parts then call('HDEL', T .. ':closed', name) end
      call('HDEL', T .. ':deliveries', name)
      call('ZREM', T .. ':leases', name)
      attempt('XACK', stream, 'workers', name .. '-0')
      attempt('XDEL', stream, name .. '-0')
    end
  end
end

local function flush_prunes()
  for time, places in pairs(prunes) do
    local text = concat(places)
    for first = 1, #text, PRUNE_BYTES do call('ZADD', T .. ':prune', time, sub(text, first, first + PRUNE_BYTES - 1)) end
  end
end

-- Writes what has changed so far, so that indexes can be read again.
function flush()
  for i = 1, #order do
    local r = order[i]
    if (r[STATE] ~= r.was and not (r.gone and r.was >= SUCCEEDED)) or r.progress then note(r) end
    index_row(r)
    write_row(r)
    r.touched, r.was, r.progress, r.unindexed, r.was_suspect, r.was_expiring, r.was_priority = false, -1, nil, nil, nil, nil, nil
  end
  close_deliveries()
  for i = 1, #unnoted do write_notes(unnoted[i], unnoted[i], NOT_NOTED) end
  for key, list in pairs(drops) do each_chunk('ZREM', key, list) end
  for key, list in pairs(puts) do each_chunk('ZADD', key, list) end
  flush_buckets()
  flush_processes()
  flush_lanes()
  flush_prunes()
  forget_changes()
end

-- The end of every script that writes: one event, one notice. A call that changed nothing must wake nobody.
function finish()
  flush()
  if #news > 0 then
    local id = call('HINCRBY', T .. ':meta', 'event', 1)
    call('XADD', T .. ':events', 'MAXLEN', '~', EVENTS_KEPT_MAX, id .. '-0', 'at', whole(NOW), 'more', more, 'changes',
      concat(news))
  end
  if touched then call('PUBLISH', T .. ':changed', '') end
end

end
