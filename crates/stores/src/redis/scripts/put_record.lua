-- args: now, name, expected version, value. A record is its version and its value; it wakes nobody.

verb('put_record', {'allow-oom'}, function()
  local name, expected, value = arg(), tonumber(arg()), arg()
  local found = call('HGET', T .. ':records', name)
  if (found and read('>I6', found) or 0) ~= expected then return 0 end
  call('HSET', T .. ':records', name, pack('>I6', expected + 1) .. value)
  return 1
end)
