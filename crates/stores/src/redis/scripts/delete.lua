-- args: now, ids. Deletes ended jobs for good; answers how many went, and the others as id, state, held child.

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
  return {deleted, refused}
end)
