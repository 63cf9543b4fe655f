-- The common case of an enqueue, hundreds at a time: new jobs that wait for nobody and have no unique key. Rows are stored
-- as they came, and neighbours with the same facts are indexed as one; whatever is less common goes the usual way, and comes
-- to the same.

local enqueue_plain
do

-- Enters neighbours with the same facts into indexes and counters.
local function index_plain(f, first, count, ids, from)
  local l = f.lane
  begin_turns(l)
  add(l.counts, f.state, count)
  if f.state == READY then
    put_ready(l, '', f.priority, ready_member(f.run_at, first, count))
  else
    for seq = first, first + count - 1 do put(T .. ':start', f.run_at, seq_key(seq)) end
  end
  if f.expires ~= NONE then
    for seq = first, first + count - 1 do put(T .. ':expiries', f.expires, seq_key(seq)) end
  end
  if l.process ~= '' then
    count_members(l, f.state, f.flags, count)
    for seq = first, first + count - 1 do put(T .. ':pj:' .. l.process, seq, seq_key(seq)) end
  end
  local named = min(count, EVENT_CHANGES_MAX)
  for i = from, from + named - 1 do note({ids[i], [STATE] = f.state, lane = l}) end
  note_more(count - named)
end

-- The rows, and where each job is, by the place before the first.
local function store_plain(last, texts, longs, ids)
  local index, sets, n, bucket = {}, {}, 0, floor((last + 1) / BUCKET)
  for i = 1, #texts do
    local seq = last + i
    local key = seq_key(seq)
    if seq % BUCKET == 0 and n > 0 then
      write_rows(bucket, sets, true)
      sets, n = {}, 0
    end
    if n == 0 then bucket = floor(seq / BUCKET) end
    index[2 * i - 1], index[2 * i] = ids[i], key
    sets[n + 1], sets[n + 2] = key, texts[i]
    n = n + 2
    if longs[i] then
      sets[n + 1], sets[n + 2] = key .. 'p', longs[i]
      n = n + 2
    end
  end
  write_rows(bucket, sets, true)
  each_chunk('HSET', T .. ':ids', index)
end

-- Whether any of these ids is stored.
local function any_stored(ids)
  for first = 1, #ids, CHUNK do
    local last = min(first + CHUNK - 1, #ids)
    local found = call('HMGET', T .. ':ids', unpack(ids, first, last))
    for i = 1, last - first + 1 do
      if found[i] then return true end
    end
  end
  return false
end

-- The place before the first of the jobs, or nil when any of them is not of this kind; then nothing has been changed.
function enqueue_plain(count)
  local texts, longs, ids, from = {}, {}, {}, at
  -- Where neighbours with the same facts begin, and these.
  local begins, alike, f = {}, {}, nil
  for i = 1, count do
    local text = arg()
    local now_f = facts(text)
    if now_f.what > LONG then
      at = from
      return nil
    end
    texts[i], ids[i] = text, sub(text, 1, 16)
    if now_f.what == LONG then longs[i] = arg() end
    if now_f ~= f then
      f = now_f
      begins[#begins + 1], alike[#alike + 1] = i, f
    end
  end
  if any_stored(ids) then
    at = from
    return nil
  end
  local last = take_places(count)
  store_plain(last, texts, longs, ids)
  begins[#begins + 1] = count + 1
  for k = 1, #alike do
    local i = begins[k]
    index_plain(alike[k], last + i, begins[k + 1] - i, ids, i)
  end
  touched = true
  return last
end

end
