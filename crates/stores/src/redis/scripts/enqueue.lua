-- args: now, number of jobs, jobs, and last 1 if all ids differ. Answers `plain` with the place before the first, or `ok` with what became of each.

verb('enqueue', {}, function()
  local count = tonumber(arg())
  local last = ARGV[#ARGV] == '1' and enqueue_plain(count)
  if last then
    finish()
    return {'plain', last}
  end
  local jobs = read_jobs(count)
  local refused, inserted = plan(jobs)
  if refused then return refused end
  local reply = carry_out(jobs, inserted)
  finish()
  return {'ok', reply}
end)
