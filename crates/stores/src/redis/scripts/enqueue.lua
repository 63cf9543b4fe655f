-- args: now, number of jobs, jobs. Answers `plain` with the place before the first, or `ok` with what became of each.

verb('enqueue', {}, function()
  local count = tonumber(arg())
  local last = enqueue_plain(count)
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
