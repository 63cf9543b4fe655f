-- ARGV: now, lease end, leases. Renewals are no news for anybody. The stream's pending entries are claimed anew by their
-- own worker, so that they look as alive as they are.

local LEASE_ARG = '>I6I8'
local till, replies, seqs, fences = tonumber(arg()), {}, {}, {}
for i = 3, #ARGV do seqs[i - 2], fences[i - 2] = read(LEASE_ARG, ARGV[i]) end
load(seqs)
local alive = {}
for i = 1, #seqs do
  local r = job(seqs[i])
  if r and r[STATE] == RUNNING and r[FENCE] == fences[i] then
    r[LEASE] = till
    write(r, 'r', pack_row(r))
    put(T .. ':leases', till, seq_key(r.seq))
    alive[r[DELIVERY]] = r
    replies[i] = flag(r, CANCEL) and 2 or 1
  else
    replies[i] = 0
  end
end
flush()
for delivery, r in pairs(alive) do
  -- Without its stream or group a job is leased all the same.
  redis.pcall('XCLAIM', T .. ':s:' .. r[QUEUE], 'workers', r[WORKER], 0, string.format('%.0f-0', delivery), 'JUSTID')
end
return replies
