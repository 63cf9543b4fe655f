-- args: now, ids. Everything known of each job that exists.

verb('get', {'no-writes'}, function()
  local replies = {}
  for i = 2, #ARGV do
    local r = job_by_id(ARGV[i])
    if r then replies[#replies + 1] = everything(r) end
  end
  return replies
end)
