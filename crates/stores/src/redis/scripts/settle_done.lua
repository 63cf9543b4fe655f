-- The common case of a settlement, hundreds at a time: a job that nothing depends on has run once and is done. Its delivery
-- tells all that is needed, so that no row is read, and its end is noted beside the row; whatever is less common goes the
-- usual way, and comes to the same.
--
-- Such settlements come as runs of neighbours: how many and whose, their places, id and fence of each; then for each the
-- name of its note, and fence, budgets and result, which the note ends with.

local read_done, done_items, settle_done
do

local PLACE_BYTES = 6
-- Fence and budgets before the result.
local TAIL_BYTES = 18

-- The runs that follow in the arguments, and how many jobs they have.
function read_done(count)
  local given, jobs = {}, 0
  for i = 1, count do
    local worker, n = read('>HH', arg())
    local places, proofs = arg(), arg()
    given[i] = {worker = worker, count = n, places = places, proofs = proofs, first = read('>I6', places), args = at}
    at, jobs = at + 2 * n, jobs + n
  end
  return given, jobs
end

-- The same, as settlements of the usual way.
function done_items(given)
  local items = {}
  for i = 1, #given do
    local run = given[i]
    for k = 0, run.count - 1 do
      local id, fence = read('>c16I4', run.proofs, k * PROOF_BYTES + 1)
      local tail = ARGV[run.args + 2 * k + 2]
      items[#items + 1] = {seq = run.first + k, id = id, worker = run.worker, fence = fence, spent = sub(tail, 5, TAIL_BYTES),
        state = SUCCEEDED, outcome = OUTCOME_DONE, run_outcome = OUTCOME_DONE, run_at = NONE, wake = WAKE_CLEAR, follow_ups = 0,
        result = sub(tail, TAIL_BYTES + 1)}
    end
  end
  return items
end

-- The neighbours of a delivery among which this place is.
local function run_of(d, seq)
  local runs = neighbours(d)
  for i = 1, #runs do
    if runs[i].first <= seq and seq < runs[i].first + runs[i].count then return runs[i] end
  end
end

-- How many jobs from `seq` on have the same note, up to `most`.
local function same_notes(notes, seq, most, number)
  local from, note = seq % BUCKET * 6 + 1, pack('>I6', number)
  if sub(notes, from, from + 6 * most - 1) == string.rep(note, most) then return most end
  local n = 1
  while n < most and noted(notes, seq + n) == number do n = n + 1 end
  return n
end

-- Cuts a run into pieces of one bucket and one delivery's neighbours; false when a job is not of this kind. A piece whose
-- lease is another's is lost.
local function cut(given, workers, pieces)
  local seq, last, bucket, notes = given.first, given.first + given.count - 1, nil, nil
  while seq <= last do
    if floor(seq / BUCKET) ~= bucket then
      bucket = floor(seq / BUCKET)
      notes = call('GETRANGE', note_key(bucket), 0, -1)
    end
    local number = noted(notes, seq)
    if number == 0 then return false end
    local d = delivery(number)
    local run = run_of(d, seq)
    if not run or run.what == NOT_PLAIN then return false end
    local n = same_notes(notes, seq, min(last + 1, run.first + run.count, (bucket + 1) * BUCKET) - seq, number)
    local mine, theirs = (seq - given.first) * PROOF_BYTES, run.proofs + (seq - run.first) * PROOF_BYTES - 1
    local bytes = n * PROOF_BYTES
    local proven = workers[given.worker] == d.worker
      and sub(given.proofs, mine + 1, mine + bytes) == sub(d.text, theirs + 1, theirs + bytes)
    if not proven and n > 1 then
      -- Some of them are: one by one.
      n = 1
      proven = workers[given.worker] == d.worker
        and sub(given.proofs, mine + 1, mine + PROOF_BYTES) == sub(d.text, theirs + 1, theirs + PROOF_BYTES)
    end
    pieces[#pieces + 1] = {seq = seq, count = n, bucket = bucket, d = d, run = run, lost = not proven, given = given,
      from = seq - given.first}
    seq = seq + n
  end
  return true
end

-- What a job's end comes to for its neighbours: whether they go at once, and what their notes begin with.
local function judge(d, run)
  if run.ended then return end
  run.goes = removal(run.rule, run.lane, SUCCEEDED)
  run.ended = pack(ENDED, NOW + 1, run.goes and run.goes + 1 or 0, d.started + 1, #d.worker, d.worker, 0)
end

-- Notes the ends of a piece.
local function write_ends(piece)
  local run, args = piece.run, piece.given.args + 2 * piece.from
  local prefix, sets, n = run.ended, {}, 0
  for _ = 1, piece.count do
    local name, tail = ARGV[args + 1], ARGV[args + 2]
    args = args + 2
    if #tail <= OUT_IN_ROW_MAX + TAIL_BYTES then
      sets[n + 1], sets[n + 2] = name, prefix .. tail
      n = n + 2
    else
      sets[n + 1], sets[n + 2] = name, sub(prefix, 1, -2) .. '\1' .. sub(tail, 1, TAIL_BYTES)
      sets[n + 3], sets[n + 4] = sub(name, 1, PLACE_BYTES) .. 'x', sub(tail, TAIL_BYTES + 1)
      n = n + 4
    end
  end
  write_rows(piece.bucket, sets)
  local from = piece.from * PLACE_BYTES
  if run.goes then prune_at(sub(piece.given.places, from + 1, from + piece.count * PLACE_BYTES), run.goes) end
end

-- Removes the jobs of a piece for good.
local function remove_piece(piece)
  local names, ids, is_long = {}, {}, piece.run.what == LONG
  for k = piece.from, piece.from + piece.count - 1 do
    local key = sub(piece.given.places, k * PLACE_BYTES + 1, (k + 1) * PLACE_BYTES)
    names[#names + 1] = key
    if is_long then names[#names + 1] = key .. 'p' end
    ids[#ids + 1] = sub(piece.given.proofs, k * PROOF_BYTES + 1, k * PROOF_BYTES + 16)
  end
  drop_rows(piece.bucket, names)
  call('HDEL', T .. ':ids', unpack(ids))
end

-- A process has its jobs, and of those that ended its results.
local function in_process(piece)
  local run = piece.run
  local l = run.lane
  count_members(l, RUNNING, run.flags, -piece.count)
  if run.goes ~= 0 then count_members(l, SUCCEEDED, run.flags, piece.count) end
  for seq = piece.seq, piece.seq + piece.count - 1 do
    if run.goes == 0 then
      drop(T .. ':pj:' .. l.process, seq_key(seq))
    elseif band(run.flags, HELPER) == 0 then
      put(T .. ':pe:' .. l.process, seq, seq_key(seq))
    end
  end
end

local function settle_piece(piece)
  local run, n = piece.run, piece.count
  local l = run.lane
  judge(piece.d, run)
  write_notes(piece.seq, piece.seq + n - 1, NOT_NOTED)
  if run.goes == 0 then remove_piece(piece) else write_ends(piece) end
  add(closed, piece.d.number, n)
  add(l.counts, RUNNING, -n)
  add(l.ledger, SUCCEEDED, n)
  if run.goes ~= 0 then add(l.counts, SUCCEEDED, n) end
  if l.process ~= '' then in_process(piece) end
  local named = min(n, EVENT_CHANGES_MAX)
  for k = piece.from, piece.from + named - 1 do
    note({sub(piece.given.proofs, k * PROOF_BYTES + 1, k * PROOF_BYTES + 16), [STATE] = SUCCEEDED, lane = l})
  end
  note_more(n - named)
end

-- Replies, or nil when any of the jobs is not of this kind; then nothing has been changed.
function settle_done(given, workers)
  local pieces, replies, all = {}, {}, true
  for i = 1, #given do
    if not cut(given[i], workers, pieces) then return nil end
  end
  for i = 1, #pieces do
    local piece = pieces[i]
    if piece.lost then
      all = false
    else
      settle_piece(piece)
      touched = true
    end
    for _ = 1, piece.count do replies[#replies + 1] = piece.lost and {'lost'} or SUCCEEDED end
  end
  -- Once all are counted.
  for i = 1, #pieces do tell_waiters(pieces[i].run.lane.process) end
  return all and SUCCEEDED or replies
end

end
