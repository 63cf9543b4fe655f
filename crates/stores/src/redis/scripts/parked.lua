-- args: now, target (`key`, `ids`, `waiting`), key, ids. The parked jobs that an unpark is about, in seq order: seq, id,
-- row and options, for Rust to judge. `told` when the key has its signal already.

verb('parked', {'no-writes'}, function()
  local target, key = arg(), arg()
  local list = {}
  if target == 'key' then
    local signal = call('HGET', T .. ':signals', key)
    if signal and read('>d', signal) > NOW then return 'told' end
    list = call('ZRANGE', T .. ':park:' .. key, 0, -1)
    for i = 1, #list do list[i] = read('>I6', list[i]) end
  else
    local seen = {}
    for i = at + 1, #ARGV do
      local r = job_by_id(ARGV[i])
      if r and r[STATE] == PARKED and not seen[r.seq] then
        seen[r.seq] = true
        local park = field(r, PARK, 'k')
        if target == 'ids' or park_key(park) == key then list[#list + 1] = r.seq end
      end
    end
    table.sort(list)
  end
  load(list)
  local reply = {}
  for i = 1, #list do
    local r = job(list[i])
    local o = #reply
    reply[o + 1], reply[o + 2], reply[o + 3] = r.seq, row_text(r), options(r)
  end
  return reply
end)
