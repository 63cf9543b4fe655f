-- The common case of a settlement, hundreds at a time: a job that nothing depends on has run once and is done. Its delivery
-- tells all that is needed, so that no row is read, and its end is noted beside the row; whatever is less common goes the
-- usual way, and comes to the same.

local settle_done
do

-- From STATE on: succeeded, done, no time, no wake, a result and no follow-ups.
local PLAIN_DONE = '\5\0\191\240\0\0\0\0\0\0\0\2\0\0\0\0'

-- The run of neighbours in a delivery that has this place.
local function run_of(d, seq)
  local runs = neighbours(d)
  for i = 1, #runs do
    local run = runs[i]
    if run.first <= seq and seq < run.first + run.count then return run end
  end
end

-- Reads what follows in the arguments; nil when any of it is not of this kind.
local function read_done(count)
  local items, seqs, results, seen = {}, {}, {}, {}
  for i = 1, count do
    local item = arg()
    if sub(item, AT_ITEM_STATE) ~= PLAIN_DONE then return nil end
    local seq = read('>I6', item)
    if seen[seq] then return nil end
    seen[seq], items[i], seqs[i], results[i] = true, item, seq, arg()
  end
  return items, seqs, results
end

-- For each job its delivery and its neighbours there; nil when any of the jobs is not of this kind. `lost` are those whose
-- lease is another.
local function find_deliveries(items, seqs, workers)
  local ds, runs, lost, bucket, notes = {}, {}, {}, nil, nil
  for i = 1, #seqs do
    local seq, item = seqs[i], items[i]
    if floor(seq / BUCKET) ~= bucket then
      bucket = floor(seq / BUCKET)
      notes = call('GETRANGE', note_key(bucket), 0, -1)
    end
    local number = noted(notes, seq)
    if number == 0 then return nil end
    local d = delivery(number)
    local run = d.last
    if not run or seq < run.first or seq >= run.first + run.count then run = run_of(d, seq) end
    if not run or run.what == NOT_PLAIN then return nil end
    d.last = run
    local from = run.proofs + (seq - run.first) * PROOF_BYTES
    if sub(item, 7, 26) ~= sub(d.text, from, from + 19) or workers[read('>H', item, AT_ITEM_WORKER)] ~= d.worker then
      lost[i] = true
    end
    ds[i], runs[i] = d, run
  end
  return ds, runs, lost
end

-- What a job's end comes to for its neighbours: whether they go at once, and what their notes begin with.
local function judge(d, run)
  local goes = removal(run.rule, run.lane, SUCCEEDED)
  run.goes, run.judged = goes, true
  run.ended = pack(ENDED, NOW + 1, goes and goes + 1 or 0, d.started + 1, #d.worker, d.worker, 0)
  run.ended_long = sub(run.ended, 1, -2) .. '\1'
end

-- Counts what has been settled of each run of neighbours.
local function count_settled(ds)
  for i = 1, #ds do
    local d = ds[i]
    if d and not d.counted then
      d.counted = true
      local runs = neighbours(d)
      for k = 1, #runs do
        local run = runs[k]
        local n, l = run.settled, run.lane
        if n > 0 then
          add(closed, d.number, n)
          add(l.counts, RUNNING, -n)
          add(l.ledger, SUCCEEDED, n)
          count_members(l, RUNNING, run.flags, -n)
          if run.goes ~= 0 then
            add(l.counts, SUCCEEDED, n)
            count_members(l, SUCCEEDED, run.flags, n)
          end
          if l.process ~= '' then tell_waiters(l.process) end
        end
      end
    end
  end
end

-- A job of a process is among its jobs, and once it has ended among its results.
local function in_process(run, seq, key)
  local process_id = run.lane.process
  if run.goes == 0 then
    drop(T .. ':pj:' .. process_id, key)
  elseif band(run.flags, HELPER) == 0 then
    put(T .. ':pe:' .. process_id, seq, key)
  end
end

-- Replies, or nil when any of the jobs is not of this kind; then nothing has been changed.
function settle_done(workers, count)
  local from = at
  local items, seqs, results = read_done(count)
  local ds, runs, lost
  if items then ds, runs, lost = find_deliveries(items, seqs, workers) end
  if not ds then
    at = from
    return nil
  end

  local ids, sets, dels, bucket, first, last, told = {}, {}, {}, nil, nil, nil, 0
  local function write_bucket()
    if first then write_notes(first, last, NOT_NOTED) end
    if #sets > 0 then write_rows(bucket, sets) end
    if #dels > 0 then drop_rows(bucket, dels) end
    sets, dels, first = {}, {}, nil
  end
  for i = 1, count do
    if not lost[i] then
      local seq, item, run, out = seqs[i], items[i], runs[i], results[i]
      local key = sub(item, 1, 6)
      if floor(seq / BUCKET) ~= bucket then
        write_bucket()
        bucket = floor(seq / BUCKET)
      end
      if first and seq == last + 1 then
        last = seq
      else
        if first then write_notes(first, last, NOT_NOTED) end
        first, last = seq, seq
      end
      if not run.judged then judge(ds[i], run) end
      if run.goes == 0 then
        dels[#dels + 1] = key
        if run.what == LONG then dels[#dels + 1] = key .. 'p' end
        ids[#ids + 1] = sub(item, 7, 22)
      else
        local n, is_long = #sets, #out > OUT_IN_ROW_MAX
        sets[n + 1] = key .. 'z'
        sets[n + 2] = is_long and run.ended_long .. sub(item, 23, 40) or run.ended .. sub(item, 23, 40) .. out
        if is_long then sets[n + 3], sets[n + 4] = key .. 'x', out end
        if run.goes then prune_at(key, run.goes) end
      end
      run.settled = run.settled + 1
      if run.lane.process ~= '' then in_process(run, seq, key) end
      if told < EVENT_CHANGES_MAX then note({sub(item, 7, 22), [STATE] = SUCCEEDED, lane = run.lane}) else note_more(1) end
      told = told + 1
    end
  end
  write_bucket()
  each_chunk('HDEL', T .. ':ids', ids)
  count_settled(ds)
  touched = true
  if next(lost) == nil then return SUCCEEDED end
  local replies = {}
  for i = 1, count do replies[i] = lost[i] and {'lost'} or SUCCEEDED end
  return replies
end

end
