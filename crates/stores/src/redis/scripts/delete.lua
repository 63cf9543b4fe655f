-- args: now, ids. Deletes ended jobs for good, and the events that name no other; answers how many went, and the others as id,
-- state, held child.

-- The ids that an event names.
local function named(changes)
  local ids, from = {}, 1
  while from <= #changes do
    local id, _, _, _, _, _, next_one = read(CHANGE, changes, from)
    ids[#ids + 1], from = id, next_one
  end
  return ids
end

local function forget_events()
  local entries, gone = call('XRANGE', T .. ':events', '-', '+'), {}
  for i = 1, #entries do
    local fields = entries[i][2]
    local ids, known = named(fields[#fields]), false
    for _, seq in pairs(stored_ids(ids)) do known = known or seq ~= nil end
    if not known then gone[#gone + 1] = entries[i][1] end
  end
  each_chunk('XDEL', T .. ':events', gone)
end

verb('delete', {'allow-oom'}, function()
  local deleted, refused = 0, {}
  touched = true
  for i = 2, #ARGV do
    local r = job_by_id(ARGV[i])
    if r then
      local child = r[STATE] >= SUCCEEDED and held_child(r)
      if r[STATE] < SUCCEEDED or child then
        refused[#refused + 1] = {r[ID], r[STATE], child and child[ID] or ''}
      else
        remove(r)
        deleted = deleted + 1
      end
    end
  end
  finish()
  if deleted > 0 then forget_events() end
  return {deleted, refused}
end)
