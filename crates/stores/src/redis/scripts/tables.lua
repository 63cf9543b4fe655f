-- What every script begins with: rows, and the bookkeeping that every change of a row carries along. A row changes
-- after touch() and nowhere else, and finish() brings indexes, counters, the event and the notice in line, once a call.
-- KEYS[1] is the prefix of all keys, ARGV[1] the time; scripts never ask the server for it.
--
-- Lua hashes every byte of every string it makes, and formats numbers slowly. So rows are short, names of fields are
-- packed numbers, and what many jobs share (their lane) is worked out once a call. Names in capitals that stand for a
-- number or a text are put in place when the script is loaded (`scripts.rs`), so that they cost nothing.

local T, NOW = KEYS[1], tonumber(ARGV[1])
local call, band, bor, bnot, floor = redis.call, bit.band, bit.bor, bit.bnot, math.floor
local pack, read = struct.pack, struct.unpack

-- "No time." A time is kept as its milliseconds and one more, in six bytes; Rust's `codec` does the same.
local NONE = -1
local BLOCKED, SCHEDULED, READY, RUNNING, PARKED, SUCCEEDED, FAILED, CANCELLED = 0, 1, 2, 3, 4, 5, 6, 7
-- TILL is the end of the lease while a job runs, and the time of its end when it has ended. FIXED is the time of the
-- enqueue and the digest of what was handed in. LANE is queue, kind and process.
local ID, STATE, FLAGS, PRIORITY, RUN_AT, STARTED, TILL, EXPIRES, REMOVE = 1, 2, 3, 4, 5, 6, 7, 8, 9
local SPENT, FENCE, WAITS, DELIVERY, FIXED, HAS, LANE, WORKER, RULE, BODY, OUT = 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20
-- RULE is the job's own retention. A short BODY (payload and options) or OUT (result) stands in the row, which spares a
-- field; a long one beside it, out of the way of every other change.
local ROW = '>c16BBi4I6I6I6I6I6c14I4HI6c14HHc0Hc0Bc0Hc0Hc0'
-- Where in a row a claim finds what it needs: state and flags, priority and time, the expiry, HAS and LANE.
local AT_STATE, AT_PRIORITY, AT_EXPIRES, AT_HAS = 17, 19, 41, 93
-- A result up to this size stands in the row.
local OUT_IN_ROW_MAX = 512
-- FLAGS
local HELPER, CANCEL, WAITS_PROCESS, PARK_UNTIL, SUSPECT, DONE_AT_ONCE = 1, 2, 4, 8, 16, 32
-- HAS: which fields stand beside the row, and which keys.
local LONG, DATA, RESULT, ERROR, PARK, WAKE, RUNS, PROGRESS, LOG, AFTER, EDGES, UNIQUE, CHILDREN = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096
local FIELDS = {
  {LONG, 'p'}, {DATA, 'd'}, {RESULT, 'x'}, {ERROR, 'e'}, {PARK, 'k'}, {WAKE, 'w'}, {RUNS, 'h'}, {PROGRESS, 'g'},
  {AFTER, 'a'}, {UNIQUE, 'u'},
}
local BUCKET = 128
-- The bytes of SPENT that count crashes, when there were none.
local NO_CRASHES = '\0\0'
-- Below the number of values that Lua hands to a function.
local CHUNK = 4000
local DAY = 86400000

-- `fresh` are buckets with new rows, `prunes` ended jobs by the time at which they go.
local rows, order, touched = {}, {}, false
local puts, drops, writes, closed, fresh, prunes, unnoted = {}, {}, {}, {}, {}, {}, {}
local lanes, processes, settings, deliveries = {}, {}, {}, {}

local function bucket_key(bucket) return T .. ':j:' .. bucket end
local function has(r, what) return band(r[HAS], what) ~= 0 end
local function flag(r, what) return band(r[FLAGS], what) ~= 0 end
local function seq_key(seq) return pack('>I6', seq) end
-- Far faster than what the server makes of a number.
local function whole(number) return string.format('%d', number) end
local function add(map, key, number) map[key] = (map[key] or 0) + number end

local function each_chunk(command, key, list)
  for first = 1, #list, CHUNK do call(command, key, unpack(list, first, math.min(first + CHUNK - 1, #list))) end
end

-- What the jobs of a lane share: names, keys, and what has been counted in this call.
local function lane(text)
  local l = lanes[text]
  if l then return l end
  local queue, kind, process = string.match(text, '^([^\31]*)\31([^\31]*)\31(.*)$')
  local name = queue .. '\31' .. kind
  l = {queue = queue, kind = kind, process = process, name = name, ready = T .. ':ready:' .. name, counts = {}, ledger = {}}
  lanes[text] = l
  return l
end

-- A delivery: queue, worker, the time of the claim and the end of its lease, then the jobs.
local DELIVERED = '>Hc0Hc0dd'

local function delivery(name)
  local d = deliveries[name]
  if d then return d end
  local queue, worker, started, till, jobs = read(DELIVERED, call('HGET', T .. ':deliveries', name))
  d = {number = tonumber(name), queue = queue, worker = worker, started = started, till = till, jobs = jobs}
  deliveries[name] = d
  return d
end

local function unpack_row(seq, key, text)
  local r = {seq = seq, key = key, text = text, lane = false, touched = false, was = -1, was_at = 0, gone = false,
    read(ROW, text)}
  for i = RUN_AT, REMOVE do r[i] = r[i] - 1 end
  r.lane = lane(r[LANE])
  return r
end

local function pack_row(r)
  local l, w, k, b, o = r[LANE], r[WORKER], r[RULE], r[BODY], r[OUT]
  return pack(ROW, r[1], r[2], r[3], r[4], r[5] + 1, r[6] + 1, r[7] + 1, r[8] + 1, r[9] + 1, r[10], r[11], r[12], r[13],
    r[14], r[15], #l, l, #w, w, #k, k, #b, b, #o, o)
end

local function row_text(r) return r.text or pack_row(r) end

-- A claim leaves the row as it was and notes only which delivery the job went with (`run`); whoever reads the row sees
-- what that means, and whoever changes it writes it down.
local function under_way(r, name)
  local d = delivery(name)
  r.text, r.noted = false, true
  r[STATE], r[FENCE], r[WORKER], r[DELIVERY] = RUNNING, r[FENCE] + 1, d.worker, d.number
  r[STARTED], r[TILL] = d.started, d.till
end

-- A row; nil when there is none.
local function job(seq)
  local r = rows[seq]
  if r == nil then
    local key = seq_key(seq)
    local text = call('HGET', bucket_key(floor(seq / BUCKET)), key)
    r = text and unpack_row(seq, key, text) or false
    if r and r[STATE] == READY then
      local name = call('HGET', T .. ':run', key)
      if name then under_way(r, name) end
    end
    rows[seq] = r
  end
  if r and not r.gone then return r end
end

-- The texts of many rows, with few calls: neighbours share one.
local function row_texts(seqs, keys)
  local i, n, texts = 1, #seqs, {}
  while i <= n do
    local bucket, first = floor(seqs[i] / BUCKET), i
    while i <= n and i - first < CHUNK and floor(seqs[i] / BUCKET) == bucket do i = i + 1 end
    local found = call('HMGET', bucket_key(bucket), unpack(keys, first, i - 1))
    for k = first, i - 1 do texts[k] = found[k - first + 1] end
  end
  return texts
end

-- Reads many rows.
local function load(wanted)
  local seqs, keys, ready, running = {}, {}, {}, {}
  for i = 1, #wanted do
    local seq = wanted[i]
    if rows[seq] == nil then
      rows[seq] = false
      seqs[#seqs + 1], keys[#keys + 1] = seq, seq_key(seq)
    end
  end
  local texts = row_texts(seqs, keys)
  for i = 1, #seqs do
    local r = texts[i] and unpack_row(seqs[i], keys[i], texts[i])
    rows[seqs[i]] = r
    if r and r[STATE] == READY then ready[#ready + 1], running[#running + 1] = r, r.key end
  end
  for first = 1, #ready, CHUNK do
    local last = math.min(first + CHUNK - 1, #ready)
    local names = call('HMGET', T .. ':run', unpack(running, first, last))
    for i = first, last do
      if names[i - first + 1] then under_way(ready[i], names[i - first + 1]) end
    end
  end
end

local function job_by_id(id)
  local key = call('HGET', T .. ':ids', id)
  return key and job((read('>I6', key)))
end

local function created(r) return (read('>I6', r[FIXED])) - 1 end

local function is_expiring(r) return r[EXPIRES] ~= NONE and r[STARTED] == NONE and r[STATE] < RUNNING end

-- Before any change of a row.
local function touch(r)
  r.text = false
  if r.touched then return end
  touched = true
  r.touched = true
  order[#order + 1] = r
  r.was, r.was_at = r[STATE], r[RUN_AT]
  if r[EXPIRES] ~= NONE then r.was_expiring = is_expiring(r) end
  if flag(r, SUSPECT) then r.was_suspect = true end
end

-- Fields to be written, `false` for those to be deleted.
local function writes_of(seq)
  local bucket = floor(seq / BUCKET)
  local names = writes[bucket]
  if not names then names = {} writes[bucket] = names end
  return names
end

local function write(r, letter, value) writes_of(r.seq)[r.key .. letter] = value end

-- What stands beside the row under a letter.
local function beside(r, letter)
  local bucket, name = floor(r.seq / BUCKET), r.key .. letter
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

-- Payload and options.
local function body(r) return has(r, LONG) and beside(r, 'p') or r[BODY] end

local function options(r)
  local text = body(r)
  local _, from = read('>I4c0', text)
  return string.sub(text, from)
end

local function set_flag(r, what, on)
  if flag(r, what) == on then return end
  touch(r)
  r[FLAGS] = on and bor(r[FLAGS], what) or band(r[FLAGS], bnot(what))
end

-- Jobs that come together mostly share a priority or a time.
local scores = {}

local function put(key, score, member)
  local list, text = puts[key], scores[score]
  if not list then list = {} puts[key] = list end
  if not text then text = whole(score) scores[score] = text end
  local n = #list
  list[n + 1], list[n + 2] = text, member
end

local function drop(key, member)
  local list = drops[key]
  if not list then list = {} drops[key] = list end
  list[#list + 1] = member
end

-- A process: `open`, and how many jobs, helpers left out of `unfinished`.
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
  local id = r.lane.process
  if id == '' then return end
  local p = process(id)
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

-- The key that a park waits for.
local function park_key(park) return string.sub(park, 3, 2 + read('>H', park)) end

-- Moves a row to a state.
local function move(r, state)
  touch(r)
  local was = r[STATE]
  if was == RUNNING then
    add(closed, r[DELIVERY], 1)
    r[DELIVERY] = 0
    if flag(r, CANCEL) then call('ZREM', T .. ':cancels:' .. r[WORKER], r.key) end
  elseif was == PARKED and state ~= PARKED then
    local park = field(r, PARK, 'k')
    if park then call('ZREM', T .. ':park:' .. park_key(park), r.key) end
  end
  if r.lane.process == '' then
    r[STATE] = state
  else
    count_in_process(r, -1)
    r[STATE] = state
    count_in_process(r, 1)
  end
end

-- The next of ARGV.
local at = 1
local function arg()
  at = at + 1
  return ARGV[at]
end
