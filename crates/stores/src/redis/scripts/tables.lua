-- What every function begins with: rows, and the bookkeeping that every change of a row carries along. A row changes
-- after touch() and nowhere else, and finish() brings indexes, counters, the event and the notice in line, once a call.
-- keys[1] is the prefix of all keys, args[1] the time; functions never ask the server for it.
--
-- The library is run once, when it is loaded, and its locals live on from call to call: begin() sets them back. Lua hashes
-- every byte of every string it makes, and formats numbers slowly. So rows are short, names of fields are packed numbers,
-- and what many jobs share is worked out once a call. Names in capitals that stand for a number or a text are put in place
-- when the library is made (`scripts.rs`), so that they cost nothing.

-- While the library is loaded there are neither commands nor the modules of Lua; the first call finds them.
local call, attempt, band, bor, bnot, floor, min, pack, read, sub, byte, concat, format
local T, NOW, ARGV, at

-- "No time." A time is kept as its milliseconds and one more, in six bytes; Rust's `codec` does the same.
local NONE = -1
local BLOCKED, SCHEDULED, READY, RUNNING, PARKED, SUCCEEDED, FAILED, CANCELLED = 0, 1, 2, 3, 4, 5, 6, 7
-- A row has three parts: what jobs that come together mostly share, from STATE to RULE, behind the id and the digest of
-- what was handed in; then what its runs have left, unless it is FRESH; then payload and options.
local ID, DIGEST, STATE, FLAGS, PRIORITY, RUN_AT, EXPIRES, CREATED, HAS, WAITS, LANE, RULE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
-- TILL is the end of the lease while a job runs, the time of its end when it has ended, and otherwise when it came to wait as it
-- does, unless it was with its enqueue. LANE is queue, kind and
-- process, RULE the job's own retention. A short BODY (payload and options) or OUT (result) stands in the row, which
-- spares a field; a long one beside it, out of the way of every other change.
local STARTED, TILL, REMOVE, SPENT, FENCE, DELIVERY, WORKER, OUT, BODY = 13, 14, 15, 16, 17, 18, 19, 20, 21
local HEAD = '>c16c8BBi4I6I6I6HHHc0Bc0'
local LIVED = '>I6I6I6c14I4I6Hc0Hc0Hc0'
local SHARED = '>BBi4I6I6I6HHHc0Bc0'
local AT_SHARED = 25
-- FLAGS. FRESH is only in the bytes of a row.
local HELPER, CANCEL, WAITS_PROCESS, PARK_UNTIL, SUSPECT, DONE_AT_ONCE, FRESH = 1, 2, 4, 8, 16, 32, 64
-- HAS: which fields stand beside the row, and which keys.
local LONG, DATA, RESULT, ERROR, PARK, WAKE, RUNS, PROGRESS, LOG, AFTER, EDGES, UNIQUE, CHILDREN = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096
local FIELDS = {
  {LONG, 'p'}, {DATA, 'd'}, {RESULT, 'x'}, {ERROR, 'e'}, {PARK, 'k'}, {WAKE, 'w'}, {RUNS, 'h'}, {PROGRESS, 'g'},
  {AFTER, 'a'}, {UNIQUE, 'u'},
}
local BUCKET = 128
local NOTHING_SPENT = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
-- The bytes of SPENT that count crashes, when there were none.
local NO_CRASHES = '\0\0'
-- Below the number of values that Lua hands to a function.
local CHUNK = 4000
local DAY = 86400000

-- `fresh` are buckets with new rows, `prunes` ended jobs by the time at which they go, `unnoted` jobs that have moved on
-- from their delivery's note.
local order, puts, drops, writes, closed, fresh, prunes, unnoted = {}, {}, {}, {}, {}, {}, {}, {}
local rows, lanes, processes, settings, deliveries, scores, shared, news = {}, {}, {}, {}, {}, {}, {}, {}
local touched, shared_end, more, silent

-- What is to be written, once it is, or when a call before this one failed.
local function forget_changes()
  order = #order == 0 and order or {}
  puts = next(puts) == nil and puts or {}
  drops = next(drops) == nil and drops or {}
  writes = next(writes) == nil and writes or {}
  closed = next(closed) == nil and closed or {}
  fresh = next(fresh) == nil and fresh or {}
  prunes = next(prunes) == nil and prunes or {}
  unnoted = #unnoted == 0 and unnoted or {}
end

local function begin(keys, args)
  if not call then
    call, attempt, band, bor, bnot = redis.call, redis.pcall, bit.band, bit.bor, bit.bnot
    floor, min, pack, read = math.floor, math.min, struct.pack, struct.unpack
    sub, byte, concat, format = string.sub, string.byte, table.concat, string.format
  end
  T, NOW, ARGV, at, touched, shared_end, more, silent = keys[1], tonumber(args[1]), args, 1, false, 0, 0, false
  -- A new table costs far more than a look whether the old one was used.
  rows = next(rows) == nil and rows or {}
  lanes = next(lanes) == nil and lanes or {}
  processes = next(processes) == nil and processes or {}
  settings = next(settings) == nil and settings or {}
  deliveries = next(deliveries) == nil and deliveries or {}
  scores = next(scores) == nil and scores or {}
  shared = next(shared) == nil and shared or {}
  news = #news == 0 and news or {}
  forget_changes()
end

-- The next of the arguments.
local function arg()
  at = at + 1
  return ARGV[at]
end

local function bucket_key(bucket) return T .. ':j:' .. bucket end
local function note_key(bucket) return T .. ':r:' .. bucket end
local function has(r, what) return band(r[HAS], what) ~= 0 end
local function flag(r, what) return band(r[FLAGS], what) ~= 0 end
local function seq_key(seq) return pack('>I6', seq) end
-- Far faster than what the server makes of a number.
local function whole(number) return format('%d', number) end
local function add(map, key, number) map[key] = (map[key] or 0) + number end

local function each_chunk(command, key, list)
  for first = 1, #list, CHUNK do call(command, key, unpack(list, first, min(first + CHUNK - 1, #list))) end
end

-- Where the ready jobs of a queue and kind wait, those of each fair key apart.
local function ready_key(name, key)
  if key == '' then return T .. ':ready:' .. name end
  return T .. ':ready:' .. name .. '\31k\31' .. key
end

-- What the jobs of a lane share: names, keys, and what has been counted in this call.
local function lane(text)
  local l = lanes[text]
  if l then return l end
  local queue, kind, process, key = string.match(text, '^([^\31]*)\31([^\31]*)\31([^\31]*)\31?(.*)$')
  local name = queue .. '\31' .. kind
  l = {text = text, queue = queue, kind = kind, process = process, key = key, name = name, ready = ready_key(name, key),
    counts = {}, ledger = {}}
  lanes[text] = l
  return l
end

-- What a row's shared part says, worked out once for all that have the same.
local function facts(text)
  local f = shared[sub(text, AT_SHARED, shared_end)]
  if f then return f end
  local state, flags, priority, run_at, expires, _, what, _, in_lane, rule, from = read(SHARED, text, AT_SHARED)
  f = {state = state, flags = flags, priority = priority, run_at = run_at - 1, expires = expires - 1, what = what,
    lane = lane(in_lane), rule = rule, fresh = band(flags, FRESH) ~= 0, from = from}
  shared_end = from - 1
  shared[sub(text, AT_SHARED, shared_end)] = f
  return f
end

-- A delivery: queue, worker, the time of the claim, the end of its lease and how many jobs it has; then runs of neighbours that share their
-- facts: the first, how many, what a settlement needs to know of them, and id and fence of each.
local DELIVERED = '>Hc0Hc0ddH'
local NEIGHBOURS = '>I6HHc0Bc0BB'
local PROOF_BYTES = 20
-- In place of `what`: a settlement must look at the row.
local NOT_PLAIN = 255

local function delivery(number)
  local d = deliveries[number]
  if d then return d end
  local name = whole(number)
  local text = call('HGET', T .. ':deliveries', name)
  local queue, worker, started, till, count, from = read(DELIVERED, text)
  d = {number = number, name = name, queue = queue, worker = worker, started = started, till = till, count = count, text = text,
    from = from}
  deliveries[number] = d
  return d
end

local function neighbours(d)
  if d.runs then return d.runs end
  local runs, from, text = {}, d.from, d.text
  while from <= #text do
    local first, count, in_lane, rule, what, flags, proofs = read(NEIGHBOURS, text, from)
    runs[#runs + 1] = {first = first, count = count, lane = lane(in_lane), rule = rule, what = what, flags = flags,
      proofs = proofs, settled = 0}
    from = proofs + count * PROOF_BYTES
  end
  d.runs = runs
  return runs
end

local function unpack_row(seq, key, text)
  local r = {read(HEAD, text)}
  local from = r[STARTED]
  if band(r[FLAGS], FRESH) ~= 0 then
    r[FLAGS] = r[FLAGS] - FRESH
    r[STARTED], r[TILL], r[REMOVE], r[SPENT], r[FENCE], r[DELIVERY] = NONE, NONE, NONE, NOTHING_SPENT, 0, 0
    r[WORKER], r[OUT], r[BODY] = '', '', (read('>Hc0', text, from))
  else
    local started, till, remove
    started, till, remove, r[SPENT], r[FENCE], r[DELIVERY], r[WORKER], r[OUT], r[BODY] = read(LIVED, text, from)
    r[STARTED], r[TILL], r[REMOVE] = started - 1, till - 1, remove - 1
  end
  r[RUN_AT], r[EXPIRES], r[CREATED] = r[RUN_AT] - 1, r[EXPIRES] - 1, r[CREATED] - 1
  r.seq, r.key, r.text, r.touched, r.was, r.was_at, r.gone = seq, key, text, false, -1, 0, false
  r.lane = lane(r[LANE])
  return r
end

local function pack_row(r)
  local l, k, w, o, b = r[LANE], r[RULE], r[WORKER], r[OUT], r[BODY]
  local is_fresh = r[FENCE] == 0 and r[TILL] == NONE
  local head = pack(HEAD, r[ID], r[DIGEST], r[STATE], is_fresh and r[FLAGS] + FRESH or r[FLAGS], r[PRIORITY],
    r[RUN_AT] + 1, r[EXPIRES] + 1, r[CREATED] + 1, r[HAS], r[WAITS], #l, l, #k, k)
  if is_fresh then return head .. pack('>Hc0', #b, b) end
  return head .. pack(LIVED, r[STARTED] + 1, r[TILL] + 1, r[REMOVE] + 1, r[SPENT], r[FENCE], r[DELIVERY], #w, w, #o, o, #b, b)
end

local function row_text(r) return r.text or pack_row(r) end

-- A claim leaves the row as it was and notes only which delivery the job went with, in `r:N` at its place in the bucket;
-- whoever reads the row sees what that means, and whoever changes it writes it down.
local function under_way(r, number)
  local d = delivery(number)
  r.text, r.noted = false, true
  r[STATE], r[FENCE], r[WORKER], r[DELIVERY] = RUNNING, r[FENCE] + 1, d.worker, d.number
  r[STARTED], r[TILL] = d.started, d.till
end

local NOT_NOTED = '\0\0\0\0\0\0'

-- The delivery in the notes of a bucket, or 0.
local function noted(notes, seq)
  local from = seq % BUCKET * 6 + 1
  return #notes >= from + 5 and read('>I6', notes, from) or 0
end

-- Writes the same note for neighbours: which delivery they went with, or none.
local function write_notes(first, last, text)
  while first <= last do
    local bucket = floor(first / BUCKET)
    local till = min(last, bucket * BUCKET + BUCKET - 1)
    call('SETRANGE', note_key(bucket), first % BUCKET * 6, string.rep(text, till - first + 1))
    first = till + 1
  end
end

-- The plain success of a job that was as it had been enqueued is noted under `z` beside its row: when it ended, when it
-- goes and started, the worker, whether a long result stands beside it, fence and budgets; then the result.
local ENDED = '>I6I6I6Hc0B'
local ENDED_SPENT = '>I4c14'

local function ended(r, text)
  local finished, remove, started, worker, long, from = read(ENDED, text)
  r.text, r.end_noted = false, true
  r[FENCE], r[SPENT], from = read(ENDED_SPENT, text, from)
  r[STATE], r[WORKER], r[OUT] = SUCCEEDED, worker, sub(text, from)
  r[TILL], r[REMOVE], r[STARTED] = finished - 1, remove - 1, started - 1
  r[FLAGS] = bor(r[FLAGS], DONE_AT_ONCE)
  if long == 1 then r[HAS] = bor(r[HAS], RESULT) end
end

-- A row; nil when there is none.
local function job(seq)
  local r = rows[seq]
  if r == nil then
    local key, bucket = seq_key(seq), floor(seq / BUCKET)
    local text = call('HGET', bucket_key(bucket), key)
    r = text and unpack_row(seq, key, text) or false
    if r and r[STATE] == READY then
      local from = seq % BUCKET * 6
      local note = call('GETRANGE', note_key(bucket), from, from + 5)
      local number = #note == 6 and read('>I6', note) or 0
      if number > 0 then
        under_way(r, number)
      else
        local noted_end = call('HGET', bucket_key(bucket), key .. 'z')
        if noted_end then ended(r, noted_end) end
      end
    end
    rows[seq] = r
  end
  if r and not r.gone then return r end
end

-- The fields of many rows, with few calls: neighbours share one.
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
  local seqs, keys, ready, ready_seqs, names = {}, {}, {}, {}, {}
  for i = 1, #wanted do
    local seq = wanted[i]
    if rows[seq] == nil then
      rows[seq] = false
      seqs[#seqs + 1], keys[#keys + 1] = seq, seq_key(seq)
    end
  end
  local texts = row_texts(seqs, keys)
  local bucket, notes
  for i = 1, #seqs do
    local seq = seqs[i]
    local r = texts[i] and unpack_row(seq, keys[i], texts[i])
    rows[seq] = r
    if r and r[STATE] == READY then
      if floor(seq / BUCKET) ~= bucket then
        bucket = floor(seq / BUCKET)
        notes = call('GETRANGE', note_key(bucket), 0, -1)
      end
      local number = noted(notes, seq)
      if number > 0 then
        under_way(r, number)
      else
        local n = #ready + 1
        ready[n], ready_seqs[n], names[n] = r, seq, r.key .. 'z'
      end
    end
  end
  local ends = row_texts(ready_seqs, names)
  for i = 1, #ready do
    if ends[i] then ended(ready[i], ends[i]) end
  end
end

local function job_by_id(id)
  local key = call('HGET', T .. ':ids', id)
  return key and job((read('>I6', key)))
end

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

local function options_of(text) return sub(text, 5 + read('>I4', text)) end

local function options(r) return options_of(body(r)) end

local function payload(r) return (read('>I4c0', r.long or body(r))) end

local function set_body(r, new_payload, new_options)
  local new = pack('>I4c0', #new_payload, new_payload) .. new_options
  touch(r)
  if #new > BODY_IN_ROW_MAX then
    r[BODY] = ''
    set(r, LONG, 'p', new)
  else
    r[BODY] = new
    clear(r, LONG, 'p')
  end
end

local function set_flag(r, what, on)
  if flag(r, what) == on then return end
  touch(r)
  r[FLAGS] = on and bor(r[FLAGS], what) or band(r[FLAGS], bnot(what))
end

-- Jobs that come together mostly share a priority or a time, so that numbers are made into text once.
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

-- Counts jobs of a lane in their process: by state, helpers from 8 on.
local function count_members(l, state, flags, number)
  if l.process == '' then return end
  local p = process(l.process)
  local at_state = state + (band(flags, HELPER) ~= 0 and 8 or 0)
  add(p.delta, at_state, number)
  p.total = p.total + number
  if at_state < SUCCEEDED then p.unfinished = p.unfinished + number end
end

local function count_in_process(r, number) count_members(r.lane, r[STATE], r[FLAGS], number) end

-- The key that a park waits for.
local function park_key(park) return sub(park, 3, 2 + read('>H', park)) end

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
  if was ~= state and (state < RUNNING or state == PARKED) then
    local with_enqueue = r[FENCE] == 0 and r[CREATED] == NOW
    r[TILL] = with_enqueue and NONE or NOW
  end
end

-- The job that a lease is for, if it still holds: its place, id, fence and worker.
local function leased(text)
  local seq, id, fence, worker = read('>I6c16I4Hc0', text)
  local r = job(seq)
  if r and r[STATE] == RUNNING and r[FENCE] == fence and r[ID] == id and r[WORKER] == worker then return r end
end
