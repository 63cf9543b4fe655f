-- args: now, name, expected time, next time, jobs. A schedule is its next and last time and then what Rust wrote.

verb('fire', {}, function()
  local name, expected, next_at = arg(), tonumber(arg()), tonumber(arg())
  local found = call('HGET', T .. ':schedules', name)
  if not found or read('>d', found) ~= expected then return {'no'} end
  local jobs = read_jobs(tonumber(arg()))
  local refused, inserted = plan(jobs)
  if refused then return refused end
  carry_out(jobs, inserted)
  call('HSET', T .. ':schedules', name, pack('>dd', next_at, NOW) .. sub(found, 17))
  touched = true
  finish()
  return {'ok'}
end)
