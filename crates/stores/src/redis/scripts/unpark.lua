-- args: now, key or '', signal, when it is forgotten, number of items, then for each the row as Rust judged it and the
-- settlement. When anything has changed since, nothing is written and the answer is `again`.

verb('unpark', {'allow-oom'}, function()
  local key, signal, forgotten_at = arg(), arg(), tonumber(arg())
  local items = {}
  for i = 1, tonumber(arg()) do
    local text = arg()
    items[i] = read_item()
    local r = job(items[i].seq)
    if not r or row_text(r) ~= text then return 'again' end
  end
  if key ~= '' then
    local kept = call('HGET', T .. ':signals', key)
    if kept and read('>d', kept) > NOW then return 'told' end
    if call('ZCARD', T .. ':park:' .. key) ~= #items then return 'again' end
    call('HSET', T .. ':signals', key, pack('>d', forgotten_at) .. signal)
    call('ZADD', T .. ':forget', forgotten_at, key)
    touched = true
  end
  for i = 1, #items do
    local r = job(items[i].seq)
    -- An earlier one's end may have taken it along.
    if r and r[STATE] == PARKED then apply(r, items[i]) end
  end
  finish()
  return 'done'
end)
