-- args: now, index or '' for all jobs, cursor or '', 1 for newest first, count, 1 for payloads, a letter or ''. The next jobs
-- in seq order, and before them whether there were too many bytes for all: seq, row, long body, error, park, what stands under
-- the letter. An index is a sorted set of them by seq. A long payload that nobody asks for stays here.

verb('walk', {'no-writes'}, function()
  local index, cursor, newest_first, count = arg(), tonumber(arg()), arg() == '1', tonumber(arg())
  local with_payloads, letter = arg() == '1', arg()
  -- Bytes that one call looks at, but for the last job.
  local BYTES_MAX = 4000000

  local function by_index()
    local command = newest_first and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
    local from = cursor and '(' .. string.format('%.0f', cursor) or (newest_first and '+inf' or '-inf')
    local list = call(command, T .. index, from, newest_first and '-inf' or '+inf', 'LIMIT', 0, count)
    for i = 1, #list do list[i] = read('>I6', list[i]) end
    return list
  end

  local list = index == '' and next_seqs(cursor, newest_first, count) or by_index()
  load(list)
  local reply, o, bytes = {0}, 1, 0
  for i = 1, #list do
    local r = job(list[i])
    local long, value = field(r, LONG, 'p'), letter ~= '' and beside(r, letter) or ''
    bytes = bytes + (long and #long or 0) + #value
    if long and not with_payloads then long = pack('>I4', 0) .. options_of(long) end
    reply[o + 1], reply[o + 2] = r.seq, row_text(r)
    reply[o + 3] = long or false
    reply[o + 4] = field(r, ERROR, 'e') or false
    reply[o + 5] = field(r, PARK, 'k') or false
    reply[o + 6] = value ~= '' and value or false
    o = o + 6
    if bytes > BYTES_MAX and i < #list then
      reply[1] = 1
      break
    end
  end
  return reply
end)
