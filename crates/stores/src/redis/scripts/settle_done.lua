-- The common case of a settlement, hundreds at a time: a job that nothing depends on has run once and is done. Rows are
-- not taken apart into tables here, which makes it three times as fast; whatever is less common goes the usual way, and
-- comes to the same.

-- Whether all that follows in ARGV is of this kind; then what a settlement needs of it.
local function read_done(count)
  local from, seen, seqs, fences, spents, results = at, {}, {}, {}, {}, {}
  for i = 1, count do
    local seq, fence, state, outcome, _, spent, _, values, follow_ups = read(ITEM, arg())
    if values ~= V_RESULT or outcome ~= OUTCOME_DONE or state ~= SUCCEEDED or follow_ups > 0 or seen[seq] then
      at = from
      return nil
    end
    seen[seq], seqs[i], fences[i], spents[i], results[i] = true, seq, fence, spent, arg()
  end
  return seqs, fences, spents, results
end

-- Replies, or nil when any of the jobs is not of this kind; then nothing has been changed.
local function settle_done(count)
  local from = at
  local seqs, fences, spents, results = read_done(count)
  if not seqs then return nil end
  local keys = {}
  for i = 1, count do keys[i] = seq_key(seqs[i]) end
  local texts, runs = row_texts(seqs, keys), call('HMGET', T .. ':run', unpack(keys))
  for i = 1, #seqs do
    if texts[i] then
      local state, high, low = string.byte(texts[i], AT_STATE), string.byte(texts[i], AT_HAS, AT_HAS + 1)
      if state ~= READY or not runs[i] or high ~= 0 or low > LONG then
        at = from
        return nil
      end
    end
  end

  local replies, ids, waited = {}, {}, {}
  for i = 1, #seqs do
    local id, _, flags, priority, run_at, _, _, expires, _, _, fence, waits, _, fixed, what, in_lane, _, rule, body
    if texts[i] then
      id, _, flags, priority, run_at, _, _, expires, _, _, fence, waits, _, fixed, what, in_lane, _, rule, body =
        read(ROW, texts[i])
    end
    if not id or fence + 1 ~= fences[i] then
      replies[i] = {'lost'}
    else
      local d, l, names, out = delivery(runs[i]), lane(in_lane), writes_of(seqs[i]), results[i]
      local goes = removal(rule, l, SUCCEEDED)
      if goes == 0 then
        names[keys[i]] = false
        if what == LONG then names[keys[i] .. 'p'] = false end
        ids[#ids + 1] = id
      else
        if goes then prune_at(keys[i], goes) end
        if #out > OUT_IN_ROW_MAX then
          what = bor(what, RESULT)
          names[keys[i] .. 'x'] = out
          out = ''
        end
        names[keys[i]] = pack(ROW, id, SUCCEEDED, bor(flags, DONE_AT_ONCE), priority, run_at, d.started + 1, NOW + 1, expires,
          goes and goes + 1 or 0, spents[i], fence + 1, waits, 0, fixed, what, #in_lane, in_lane, #d.worker, d.worker, #rule,
          rule, #body, body, #out, out)
        add(l.counts, SUCCEEDED, 1)
      end
      add(l.counts, RUNNING, -1)
      add(l.ledger, SUCCEEDED, 1)
      add(closed, d.number, 1)
      unnoted[#unnoted + 1] = keys[i]
      if i <= EVENT_CHANGES_MAX then note({id, SUCCEEDED, lane = l}) else note_more() end
      if l.process ~= '' then
        local row = {seq = seqs[i], key = keys[i], lane = l, [STATE] = RUNNING, [FLAGS] = flags}
        count_in_process(row, -1)
        row[STATE] = SUCCEEDED
        if goes ~= 0 then count_in_process(row, 1) end
        if goes == 0 then
          drop(T .. ':pj:' .. l.process, keys[i])
        elseif not flag(row, HELPER) then
          put(T .. ':pe:' .. l.process, seqs[i], keys[i])
        end
        waited[l.process] = true
      end
      replies[i] = SUCCEEDED
    end
  end
  touched = true
  each_chunk('HDEL', T .. ':ids', ids)
  for id in pairs(waited) do tell_waiters(id) end
  return replies
end
