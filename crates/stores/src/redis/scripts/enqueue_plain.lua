-- The common case of an enqueue, hundreds at a time: new jobs that wait for nobody and have no unique key. Rows are stored
-- as they came, which makes it twice as fast; whatever is less common goes the usual way, and comes to the same.

-- The place before the first of the jobs, or nil when any of them is not of this kind; then nothing has been changed.
local function enqueue_plain(count)
  local texts, longs, ids, seen, from = {}, {}, {}, {}, at
  for i = 1, count do
    local text = arg()
    local high, low = string.byte(text, AT_HAS, AT_HAS + 1)
    local id = string.sub(text, 1, 16)
    if high ~= 0 or low > LONG or seen[id] then
      at = from
      return nil
    end
    seen[id], texts[i], ids[i] = true, text, id
    if low == LONG then longs[i] = arg() end
  end
  if next(stored_ids(ids)) then
    at = from
    return nil
  end

  local last = call('HINCRBY', T .. ':meta', 'seq', count) - count
  local index, names, bucket = {}, nil, nil
  for i = 1, count do
    local seq, text = last + i, texts[i]
    local key = seq_key(seq)
    index[2 * i - 1], index[2 * i] = ids[i], key
    if floor(seq / BUCKET) ~= bucket then
      bucket, names = floor(seq / BUCKET), writes_of(seq)
      fresh[bucket] = true
    end
    names[key] = text
    if longs[i] then names[key .. 'p'] = longs[i] end
    local state, flags, priority, run_at, _, _, expires = read('>BBi4I6I6I6I6', text, AT_STATE)
    local _, in_lane = read('>HHc0', text, AT_HAS)
    local l = lane(in_lane)
    add(l.counts, state, 1)
    if state == READY then
      if not puts[l.ready] then call('SADD', T .. ':lanes:' .. l.queue, l.kind) end
      put(l.ready, priority, pack('>I6I6', run_at - 1, seq))
    else
      put(T .. ':start', run_at - 1, key)
    end
    if expires > 0 then put(T .. ':expiries', expires - 1, key) end
    if i <= EVENT_CHANGES_MAX then note({ids[i], state, lane = l}) else note_more() end
    if l.process ~= '' then
      count_in_process({lane = l, [STATE] = state, [FLAGS] = flags}, 1)
      put(T .. ':pj:' .. l.process, seq, key)
    end
  end
  touched = true
  each_chunk('HSET', T .. ':ids', index)
  return last
end
