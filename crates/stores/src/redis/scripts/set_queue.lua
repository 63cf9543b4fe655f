-- args: now, name, paused, max_running, retention, max_running_per_key, ageing. An empty argument leaves a setting alone,
-- `none` lifts it. A queue whose settings are all at their default has none.

-- A number, or what it was.
local function number_or(was)
  local text = arg()
  if text == 'none' then return NONE end
  return text ~= '' and tonumber(text) or was
end

verb('set_queue', {}, function()
  local name = arg()
  local s = queue_settings(name)
  s.paused = number_or(s.paused)
  s.max = number_or(s.max)
  local retention = arg()
  if retention == 'none' then
    s.keep, s.a, s.b = 0, NONE, NONE
  elseif retention ~= '' then
    s.keep, s.a, s.b = read('>Bdd', retention)
  end
  s.per_key = number_or(s.per_key)
  s.ageing = number_or(s.ageing)
  write_settings(name, s)
  touched = true
  finish()
  return 1
end)
