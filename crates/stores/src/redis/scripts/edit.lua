-- Changes a job that is as its caller has seen it; answers 1 then, 0 otherwise. args: now, id, state, fence and digest as seen,
-- digest, priority, options, and the payload if it is new.

verb('edit', {}, function()
  local r = job_by_id(arg())
  if not r or r[STATE] ~= tonumber(arg()) or r[FENCE] ~= tonumber(arg()) or r[DIGEST] ~= arg() then return 0 end
  local digest, priority, new_options, new_payload = arg(), tonumber(arg()), arg(), arg()
  touch(r)
  r.was_priority = r[PRIORITY]
  r[DIGEST], r[PRIORITY] = digest, priority
  set_body(r, new_payload or payload(r), new_options)
  if new_payload then clear(r, DATA, 'd') end
  finish()
  return 1
end)
