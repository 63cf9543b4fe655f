-- ARGV: now, limit, idle time in milliseconds. Leases that have passed, oldest first, for Rust to judge: seq, row and
-- options. On the way, a few pending entries that nobody has renewed for long are looked at, from where the last look
-- ended: one whose jobs have all moved on, or that was trimmed or deleted, is dropped from the pending list.

local limit, idle_ms = tonumber(arg()), tonumber(arg())
local ENTRIES_MAX = 100
local RESCUER = 'rescuer'

local function tidy(queue)
  local stream = T .. ':s:' .. queue
  local cursor = call('HGET', T .. ':cursors', queue) or '0-0'
  local found = redis.pcall('XAUTOCLAIM', stream, 'workers', RESCUER, idle_ms, cursor, 'COUNT', ENTRIES_MAX)
  if found.err then return end
  if found[1] ~= cursor then call('HSET', T .. ':cursors', queue, found[1]) end
  for i = 1, #found[2] do
    local id, values = found[2][i][1], found[2][i][2]
    if call('HEXISTS', T .. ':deliveries', string.sub(id, 1, -3)) == 1 then
      -- The leases of its jobs decide, not the stream; it stays with its worker.
      call('XCLAIM', stream, 'workers', values[2], 0, id, 'JUSTID')
    else
      call('XACK', stream, 'workers', id)
      call('XDEL', stream, id)
    end
  end
end

local streams = call('SMEMBERS', T .. ':streams')
for i = 1, #streams do tidy(streams[i]) end

local list = call('ZRANGEBYSCORE', T .. ':leases', '-inf', NOW, 'LIMIT', 0, limit + 1)
local cut = #list > limit
if cut then list[#list] = nil end
for i = 1, #list do list[i] = read('>I6', list[i]) end
load(list)
local found = {}
for i = 1, #list do
  local r = job(list[i])
  found[i] = {r.seq, r.text, field(r, OPTIONS, 'o') or ''}
end
local next_at = cut and NOW or call('ZRANGE', T .. ':leases', #list, #list, 'WITHSCORES')[2]
return {found, next_at and pack('>d', tonumber(next_at)) or false}
