-- What readers share: the next jobs in order, and everything that is known of one.

-- The next places that have a job, by bucket, until there are enough.
local function next_seqs(cursor, newest_first, count)
  local list = {}
  local command = newest_first and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
  local from = cursor and floor((newest_first and cursor - 1 or cursor + 1) / BUCKET)
  local buckets = call(command, T .. ':buckets', from or (newest_first and '+inf' or '-inf'),
    newest_first and '-inf' or '+inf', 'LIMIT', 0, count)
  for b = 1, #buckets do
    local first = tonumber(buckets[b]) * BUCKET
    local seqs = {}
    for k = 0, BUCKET - 1 do seqs[k + 1] = newest_first and first + BUCKET - 1 - k or first + k end
    load(seqs)
    for k = 1, BUCKET do
      local seq = seqs[k]
      local beyond = not cursor or (newest_first and seq < cursor) or (not newest_first and seq > cursor)
      if beyond and job(seq) then list[#list + 1] = seq end
      if #list >= count then return list end
    end
  end
  return list
end

-- Seq, row, the fields, edges, log.
local function everything(r)
  local names = {'p', 'd', 'x', 'e', 'k', 'h', 'g', 'a', 'w'}
  for k = 1, #names do names[k] = r.key .. names[k] end
  return {
    r.seq,
    row_text(r),
    call('HMGET', bucket_key(floor(r.seq / BUCKET)), unpack(names)),
    has(r, EDGES) and call('HGETALL', edge_key(r)) or {},
    has(r, LOG) and call('LRANGE', T .. ':log:' .. whole(r.seq), 0, -1) or {},
  }
end
