-- args: now, lease end, leases. Renewals are no news for anybody. The stream's pending entries are claimed anew by their
-- own worker, so that they look as alive as they are.

verb('extend', {'allow-oom'}, function()
  local till, replies, seqs = tonumber(arg()), {}, {}
  for i = 3, #ARGV do seqs[i - 2] = read('>I6', ARGV[i]) end
  load(seqs)
  local alive, renewed = {}, {}
  for i = 1, #seqs do
    local r = leased(ARGV[i + 2])
    if r then
      if not r.renewed then add(renewed, r[DELIVERY], 1) end
      touch(r)
      r.renewed, r[TILL] = true, till
      alive[r[DELIVERY]] = r
      replies[i] = flag(r, CANCEL) and 2 or 1
    else
      replies[i] = 0
    end
  end
  flush()
  for number, r in pairs(alive) do
    local name = whole(number)
    -- A delivery stands in the order of leases by its earliest.
    local left = delivery(number).count - tonumber(call('HGET', T .. ':closed', name) or 0)
    local all = left == renewed[number]
    call('ZADD', T .. ':leases', all and 'XX' or 'LT', whole(till), name)
    -- Without its stream or group a job is leased all the same.
    attempt('XCLAIM', T .. ':s:' .. r.lane.queue, 'workers', r[WORKER], 0, name .. '-0', 'JUSTID')
  end
  return replies
end)
