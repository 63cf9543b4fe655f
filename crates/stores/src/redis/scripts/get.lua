-- args: now, ids. Everything known of each job that exists: seq, row, the fields, edges, log.

verb('get', {'no-writes'}, function()
  local replies = {}
  for i = 2, #ARGV do
    local r = job_by_id(ARGV[i])
    if r then
      local reply = {r.seq, row_text(r)}
      local names = {'p', 'd', 'x', 'e', 'k', 'h', 'g', 'a'}
      for k = 1, #names do names[k] = r.key .. names[k] end
      reply[3] = call('HMGET', bucket_key(floor(r.seq / BUCKET)), unpack(names))
      reply[4] = has(r, EDGES) and call('HGETALL', edge_key(r)) or {}
      reply[5] = has(r, LOG) and call('LRANGE', T .. ':log:' .. whole(r.seq), 0, -1) or {}
      replies[#replies + 1] = reply
    end
  end
  return replies
end)
