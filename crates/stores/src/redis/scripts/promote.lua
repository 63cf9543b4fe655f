-- args: now, limit. What has expired goes first, then what starts, then the parks whose time is over; each by time, then
-- seq. Parks that Rust must judge are handed back: row and options.

verb('promote', {'allow-oom'}, function()
  local limit = tonumber(arg())
  local changed, judged = 0, {}

  local function due(key, most)
    local list = call('ZRANGEBYSCORE', key, '-inf', NOW, 'LIMIT', 0, most)
    for i = 1, #list do list[i] = read('>I6', list[i]) end
    load(list)
    return list
  end

  local list = due(T .. ':expiries', limit)
  local met = #list
  for i = 1, #list do
    local r = job(list[i])
    -- An earlier one's end may have taken it along.
    if r and r[STATE] < RUNNING then
      end_job(r, CANCELLED, TOO_LATE)
      changed = changed + 1
    end
  end
  flush()
  list = due(T .. ':start', limit - met)
  met = met + #list
  for i = 1, #list do
    move(job(list[i]), READY)
    changed = changed + 1
  end
  flush()
  list = due(T .. ':parkends', limit - met)
  met = met + #list
  for i = 1, #list do
    local r = job(list[i])
    judged[#judged + 1] = {r.seq, row_text(r), options(r), field(r, PARK, 'k')}
  end
  finish()
  local next_at = limit > 0 and met >= limit and NOW or nil
  for _, name in ipairs({':expiries', ':start', ':parkends'}) do
    local first = call('ZRANGE', T .. name, 0, 0, 'WITHSCORES')[2]
    if first and (not next_at or tonumber(first) < next_at) then next_at = tonumber(first) end
  end
  return {changed, next_at and pack('>d', next_at) or false, judged}
end)
