-- What every script begins with: rows, and the bookkeeping that every change of a row carries along. A row changes
-- after touch() and nowhere else, and finish() brings indexes, counters, the event and the notice in line, once a call.
-- KEYS[1] is the prefix of all keys, ARGV[1] the time; scripts never ask the server for it.

local T, NOW = KEYS[1], tonumber(ARGV[1])
local call, band, bor, bnot, floor = redis.call, bit.band, bit.bor, bit.bnot, math.floor
local pack, read = struct.pack, struct.unpack

-- "No time." Rust's `codec` has the same.
local NONE = -9007199254740991
local BLOCKED, SCHEDULED, READY, RUNNING, PARKED, SUCCEEDED, FAILED, CANCELLED = 0, 1, 2, 3, 4, 5, 6, 7
local ID, STATE, FLAGS, PRIORITY, RUN_AT, CREATED, STARTED, FINISHED, EXPIRES, LEASE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local SPENT, FENCE, WAITS, DELIVERY, DIGEST, HAS, QUEUE, KIND, PROCESS, WORKER, PAYLOAD = 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21
-- A short payload stands in the row, which spares a field; a long one beside it, out of the way of every other change.
local ROW = '>c16BBi4ddddddc20I8I4I8c8HHc0Hc0Hc0Hc0Hc0'
-- FLAGS
local HELPER, CANCEL, WAITS_PROCESS, PARK_UNTIL, SUSPECT = 1, 2, 4, 8, 16
-- HAS: which fields stand beside the row, and which keys.
local OPTIONS, DATA, RESULT, ERROR, PARK, WAKE, RUNS, PROGRESS, LOG, AFTER, EDGES, UNIQUE, RETENTION, CHILDREN, LONG =
  1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384
local FIELDS = {
  {OPTIONS, 'o'}, {DATA, 'd'}, {RESULT, 'x'}, {ERROR, 'e'}, {PARK, 'k'}, {WAKE, 'w'}, {RUNS, 'h'}, {PROGRESS, 'g'},
  {AFTER, 'a'}, {UNIQUE, 'u'}, {RETENTION, 't'}, {LONG, 'p'},
}
local BUCKET = 128
-- The bytes of SPENT that count crashes, when there were none.
local NO_CRASHES = '\0\0\0\0'
-- Below the number of values that Lua hands to a function.
local CHUNK = 4000
local EVENT_CHANGES_MAX, EVENTS_KEPT_MAX = 16, 10000
local DAY = 86400000

local rows, order, touched = {}, {}, false
local puts, drops, writes, closed = {}, {}, {}, {}
-- Buckets with new rows.
local fresh = {}
local counts, ledger, running, processes, settings = {}, {}, {}, {}, {}

local function bucket_key(bucket) return T .. ':j:' .. bucket end

local function each_chunk(command, key, list)
  for first = 1, #list, CHUNK do call(command, key, unpack(list, first, math.min(first + CHUNK - 1, #list))) end
end

local function unpack_row(seq, text)
  return {seq = seq, text = text, touched = false, was = -1, was_at = 0, was_suspect = false, was_expiring = false,
    gone = false, read(ROW, text)}
end

local function pack_row(r)
  local q, k, p, w, l = r[QUEUE], r[KIND], r[PROCESS], r[WORKER], r[PAYLOAD]
  return pack(ROW, r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], r[14], r[15], r[16],
    #q, q, #k, k, #p, p, #w, w, #l, l)
end

local function has(r, what) return band(r[HAS], what) ~= 0 end
local function flag(r, what) return band(r[FLAGS], what) ~= 0 end
local function seq_key(seq) return pack('>I6', seq) end

-- A row; nil when there is none.
local function job(seq)
  local r = rows[seq]
  if r == nil then
    local text = call('HGET', bucket_key(floor(seq / BUCKET)), seq .. 'r')
    r = text and unpack_row(seq, text) or false
    rows[seq] = r
  end
  if r and not r.gone then return r end
end

-- Reads many rows with few calls; neighbours share one.
local function load(seqs)
  local i, n = 1, #seqs
  while i <= n do
    local bucket, names, found = floor(seqs[i] / BUCKET), {}, {}
    while i <= n and floor(seqs[i] / BUCKET) == bucket and #names < CHUNK do
      if rows[seqs[i]] == nil then
        names[#names + 1] = seqs[i] .. 'r'
        found[#found + 1] = seqs[i]
      end
      i = i + 1
    end
    if #names > 0 then
      local texts = call('HMGET', bucket_key(bucket), unpack(names))
      for k = 1, #found do rows[found[k]] = texts[k] and unpack_row(found[k], texts[k]) or false end
    end
  end
end

local function seq_of(id)
  local seq = call('HGET', T .. ':ids', id)
  return seq and tonumber(seq)
end

local function job_by_id(id)
  local seq = seq_of(id)
  return seq and job(seq)
end

local function is_expiring(r) return r[EXPIRES] ~= NONE and r[STARTED] == NONE and r[STATE] < RUNNING end

-- Before any change of a row.
local function touch(r)
  touched = true
  r.text = false
  if r.touched then return end
  r.touched = true
  order[#order + 1] = r
  r.was, r.was_at, r.was_suspect, r.was_expiring = r[STATE], r[RUN_AT], flag(r, SUSPECT), is_expiring(r)
end

local function write(r, letter, value)
  local bucket = floor(r.seq / BUCKET)
  local names = writes[bucket]
  if not names then names = {} writes[bucket] = names end
  names[r.seq .. letter] = value
end

-- What stands beside the row under a letter.
local function beside(r, letter)
  local bucket, name = floor(r.seq / BUCKET), r.seq .. letter
  local names = writes[bucket]
  local value = names and names[name]
  if value == nil then value = call('HGET', bucket_key(bucket), name) end
  return value or nil
end

-- The same, where the row says that there is something.
local function field(r, what, letter)
  return has(r, what) and beside(r, letter) or nil
end

local function set(r, what, letter, value)
  touch(r)
  r[HAS] = bor(r[HAS], what)
  write(r, letter, value)
end

local function clear(r, what, letter)
  if not has(r, what) then return end
  touch(r)
  r[HAS] = band(r[HAS], bnot(what))
  write(r, letter, false)
end

local function payload_of(r) return has(r, LONG) and beside(r, 'p') or r[PAYLOAD] end

local function set_flag(r, what, on)
  if flag(r, what) == on then return end
  touch(r)
  r[FLAGS] = on and bor(r[FLAGS], what) or band(r[FLAGS], bnot(what))
end

local function add(map, key, number) map[key] = (map[key] or 0) + number end

local function put(key, score, member)
  local list = puts[key]
  if not list then list = {} puts[key] = list end
  local n = #list
  list[n + 1], list[n + 2] = score, member
end

local function drop(key, member)
  local list = drops[key]
  if not list then list = {} drops[key] = list end
  list[#list + 1] = member
end

-- A process: `open`, and jobs by state in [1..8], helpers in [9..16].
local function process(id)
  local p = processes[id]
  if p then return p end
  p = {open = false, known = false, delta = {}, total = 0, unfinished = 0}
  local found = call('HGETALL', T .. ':p:' .. id)
  for i = 1, #found, 2 do
    p.known = true
    if found[i] == 'open' then
      p.open = true
    else
      local at, number = tonumber(found[i]), tonumber(found[i + 1])
      p.total = p.total + number
      if at < SUCCEEDED then p.unfinished = p.unfinished + number end
    end
  end
  processes[id] = p
  return p
end

local function process_exists(id)
  local p = process(id)
  return p.open or p.total > 0
end

-- Whether nobody needs to wait for it any more.
local function process_done(id)
  local p = process(id)
  return not p.open and p.unfinished == 0
end

local function count_in_process(r, number)
  if r[PROCESS] == '' then return end
  local p = process(r[PROCESS])
  local at = r[STATE] + (flag(r, HELPER) and 8 or 0)
  add(p.delta, at, number)
  p.total = p.total + number
  if at < SUCCEEDED then p.unfinished = p.unfinished + number end
end

-- `paused`, `max` and `keep`, `a`, `b`: a queue's settings.
local function queue_settings(queue)
  local s = settings[queue]
  if s then return s end
  local text = call('HGET', T .. ':queues', queue)
  s = {paused = 0, max = NONE, keep = 0, a = NONE, b = NONE}
  if text then s.paused, s.max, s.keep, s.a, s.b = read('>BdBdd', text) end
  settings[queue] = s
  return s
end

-- Moves a row to a state.
local function move(r, state)
  touch(r)
  if r[STATE] == RUNNING then
    local left = closed[r[QUEUE]]
    if not left then left = {} closed[r[QUEUE]] = left end
    add(left, r[DELIVERY], 1)
    r[DELIVERY] = 0
    if flag(r, CANCEL) then call('ZREM', T .. ':cancels:' .. r[WORKER], seq_key(r.seq)) end
  end
  if r[STATE] == PARKED and state ~= PARKED then
    local park = field(r, PARK, 'k')
    local length = park and read('>H', park)
    if length then call('ZREM', T .. ':park:' .. string.sub(park, 3, 2 + length), seq_key(r.seq)) end
  end
  count_in_process(r, -1)
  r[STATE] = state
  count_in_process(r, 1)
end

local flush, finish
-- Lua allows 200 names at once, so that what is only of use here stands in a block.
do

local function lane_key(r, suspect)
  return T .. ':ready:' .. r[QUEUE] .. '\31' .. r[KIND] .. (suspect and '\31s' or '')
end

-- Ready jobs of equal priority sort by these bytes: time, then submission.
local function ready_member(run_at, seq)
  return pack('>I6I6', math.max(0, math.min(run_at, 2 ^ 47)), seq)
end

-- States whose jobs are listed by an index of their own.
local LISTED = {[BLOCKED] = true, [PARKED] = true, [FAILED] = true, [CANCELLED] = true}

local function leave(r)
  local key, was = seq_key(r.seq), r.was
  if was == READY then
    drop(lane_key(r, r.was_suspect), ready_member(r.was_at, r.seq))
  elseif was == SCHEDULED then
    drop(T .. ':start', key)
  elseif was == RUNNING then
    drop(T .. ':leases', key)
  elseif was == PARKED then
    drop(T .. ':parkends', key)
  end
  if LISTED[was] then drop(T .. ':in:' .. was, key) end
  if was >= SUCCEEDED and r[PROCESS] ~= '' and not flag(r, HELPER) then drop(T .. ':pe:' .. r[PROCESS], key) end
end

local function enter(r)
  local key, state = seq_key(r.seq), r[STATE]
  if state == READY then
    local lane = lane_key(r, flag(r, SUSPECT))
    if not puts[lane] then call('SADD', T .. ':lanes:' .. r[QUEUE], r[KIND]) end
    put(lane, r[PRIORITY], ready_member(r[RUN_AT], r.seq))
  elseif state == SCHEDULED then
    put(T .. ':start', r[RUN_AT], key)
  elseif state == RUNNING then
    put(T .. ':leases', r[LEASE], key)
  elseif state == PARKED and flag(r, PARK_UNTIL) then
    put(T .. ':parkends', r[RUN_AT], key)
  end
  if LISTED[state] then put(T .. ':in:' .. state, r.seq, key) end
  if state >= SUCCEEDED and r[PROCESS] ~= '' and not flag(r, HELPER) then put(T .. ':pe:' .. r[PROCESS], r.seq, key) end
end

local function index_row(r)
  local state = r.gone and -1 or r[STATE]
  local suspect = flag(r, SUSPECT)
  local stays = state == r.was and r[RUN_AT] == r.was_at and suspect == r.was_suspect
  if not stays then
    if r.was >= 0 then leave(r) end
    if state >= 0 then enter(r) end
  end
  local expiring = state >= 0 and is_expiring(r)
  if r.was_expiring and not expiring then
    drop(T .. ':expiries', seq_key(r.seq))
  elseif expiring and not r.was_expiring then
    put(T .. ':expiries', r[EXPIRES], seq_key(r.seq))
  end
  if state == r.was then return end
  local lane = r[QUEUE] .. '\31' .. r[KIND] .. '\31'
  if r.was >= 0 then add(counts, lane .. r.was, -1) end
  if state >= 0 then add(counts, lane .. state, 1) end
  if r.was == RUNNING then add(running, r[QUEUE], -1) end
  if state == RUNNING then add(running, r[QUEUE], 1) end
end

-- Everything that belongs to a job that is gone.
local function write_row(r)
  if not r.gone then
    write(r, 'r', r.text or pack_row(r))
    return
  end
  write(r, 'r', false)
  for i = 1, #FIELDS do
    if has(r, FIELDS[i][1]) then write(r, FIELDS[i][2], false) end
  end
end

local function flush_processes()
  for id, p in pairs(processes) do
    local key = T .. ':p:' .. id
    if not (p.open or p.total > 0) then
      if p.known then
        call('DEL', key)
        call('ZREM', T .. ':procs', id)
      end
      p.known = false
    else
      for at, number in pairs(p.delta) do
        if number ~= 0 and call('HINCRBY', key, at, number) == 0 then call('HDEL', key, at) end
      end
      if p.seal and p.open then call('HSET', key, 'open', 1) end
      if p.seal and not p.open then call('HDEL', key, 'open') end
      if not p.known then call('ZADD', T .. ':procs', 0, id) end
      p.known = true
    end
    p.delta, p.seal = {}, nil
  end
end

local function flush_counts(key, map)
  for name, number in pairs(map) do
    if number ~= 0 and call('HINCRBY', key, name, number) == 0 then call('HDEL', key, name) end
  end
end

local function flush_buckets()
  for bucket, names in pairs(writes) do
    local sets, dels = {}, {}
    for name, value in pairs(names) do
      if value then
        local n = #sets
        sets[n + 1], sets[n + 2] = name, value
      else
        dels[#dels + 1] = name
      end
    end
    local key = bucket_key(bucket)
    each_chunk('HDEL', key, dels)
    each_chunk('HSET', key, sets)
    if #sets > 0 then
      if fresh[bucket] then call('ZADD', T .. ':buckets', bucket, bucket) end
    elseif call('EXISTS', key) == 0 then
      call('ZREM', T .. ':buckets', bucket)
    end
  end
end

-- A delivery is one entry of the queue's stream: the jobs that one claim handed to one worker. It is acknowledged and
-- deleted with the last of them.
local function close_deliveries(queue, left)
  local stream = T .. ':s:' .. queue
  for delivery, jobs in pairs(left) do
    if call('HINCRBY', T .. ':deliveries', delivery, -jobs) <= 0 then
      local id = string.format('%.0f-0', delivery)
      call('HDEL', T .. ':deliveries', delivery)
      call('XACK', stream, 'workers', id)
      call('XDEL', stream, id)
    end
  end
end

local news, more = {}, 0

local function note(r)
  if #news >= EVENT_CHANGES_MAX then
    more = more + 1
    return
  end
  local q, k, p, progress = r[QUEUE], r[KIND], r[PROCESS], r.progress or ''
  news[#news + 1] = pack('>c16BHc0Hc0Hc0I4c0', r[ID], r[STATE], #q, q, #k, k, #p, p, #progress, progress)
end

-- Writes what has changed so far, so that indexes can be read again.
function flush()
  if #order == 0 and next(writes) == nil and next(processes) == nil then return end
  for i = 1, #order do
    local r = order[i]
    if (r[STATE] ~= r.was and not (r.gone and r.was >= SUCCEEDED)) or r.progress then note(r) end
    index_row(r)
    write_row(r)
    r.touched, r.was, r.progress = false, -1, nil
  end
  order = {}
  for queue, left in pairs(closed) do close_deliveries(queue, left) end
  for key, list in pairs(drops) do each_chunk('ZREM', key, list) end
  for key, list in pairs(puts) do each_chunk('ZADD', key, list) end
  flush_buckets()
  flush_processes()
  flush_counts(T .. ':counts', counts)
  flush_counts(T .. ':running', running)
  flush_counts(T .. ':ledger', ledger)
  puts, drops, writes, closed, fresh, counts, running, ledger = {}, {}, {}, {}, {}, {}, {}, {}
end

-- The end of every script that writes: one event, one notice. A call that changed nothing must wake nobody.
function finish()
  flush()
  if #news > 0 then
    local id = call('HINCRBY', T .. ':meta', 'event', 1)
    call('XADD', T .. ':events', 'MAXLEN', '~', EVENTS_KEPT_MAX, id .. '-0', 'at', NOW, 'more', more, 'changes',
      table.concat(news))
  end
  if touched then call('PUBLISH', T .. ':changed', '') end
end

end

-- The next of ARGV.
local at = 1
local function arg()
  at = at + 1
  return ARGV[at]
end
