-- args: now, ids. Answers 1 cancelled, 2 asked to end, 3 not found, or 10 and the state that it ended in.

verb('cancel', {'allow-oom'}, function()
  local replies = {}
  for i = 2, #ARGV do
    local r = job_by_id(ARGV[i])
    if not r then
      replies[i - 1] = 3
    elseif r[STATE] >= SUCCEEDED then
      replies[i - 1] = 10 + r[STATE]
    elseif r[STATE] == RUNNING then
      touch(r)
      set_flag(r, CANCEL, true)
      call('ZADD', T .. ':cancels:' .. r[WORKER], r.seq, r.key)
      replies[i - 1] = 2
    else
      end_job(r, CANCELLED, ON_REQUEST)
      replies[i - 1] = 1
    end
  end
  finish()
  return replies
end)
