-- args: now, seq of the last job before, count. Everything known of the next jobs, and which parents of each still exist; fewer
-- when their values are large.

-- Bytes of one answer, but for its last job.
local EXPORT_BYTES_MAX = 8000000

local function bytes_of(reply)
  local bytes = #reply[2]
  for i = 3, 5 do
    for _, value in ipairs(reply[i]) do bytes = bytes + (value and #value or 0) end
  end
  return bytes
end

verb('export_jobs', {'no-writes'}, function()
  local replies, bytes = {}, 0
  local list = next_seqs(tonumber(arg()), false, tonumber(arg()))
  for i = 1, #list do
    local r = job(list[i])
    local reply, parents = everything(r), {}
    local found = has(r, EDGES) and edges(r) or {}
    for k = 1, #found do
      if job(found[k][1]) then parents[#parents + 1] = found[k][1] end
    end
    reply[6] = parents
    replies[i] = reply
    bytes = bytes + bytes_of(reply)
    if bytes > EXPORT_BYTES_MAX then break end
  end
  return replies
end)
