local jobs = read_jobs(tonumber(arg()))
local refused, inserted = plan(jobs)
if refused then return refused end
local reply = carry_out(jobs, inserted)
finish()
return {'ok', reply}
