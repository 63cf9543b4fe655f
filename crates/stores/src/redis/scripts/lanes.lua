-- How a claim finds its jobs. Ready jobs lie in a sorted set a lane (queue, kind and fair key; suspects apart), neighbours as
-- one member; the lanes of a key are merged by priority, time and submission, or as ageing has it.

local known_lanes, line_of, choose_from, put_back
do

-- Expired jobs that one claim cancels on its way.
local EXPIRED_MAX = 1000
-- Members of a lane that are read at first; four times as many each time after that.
local STEP_MIN, STEP_MAX = 8, 1000

-- Reads the next members of a lane, or of one priority in it.
local function read_members(source)
  local found
  if source.level then
    found = call('ZRANGEBYSCORE', source.key, source.level, source.level, 'WITHSCORES', 'LIMIT', source.from, source.step)
  else
    found = call('ZRANGE', source.key, source.from, source.from + source.step - 1, 'WITHSCORES')
  end
  source.members, source.i, source.n = found, 1, #found
  source.from = source.from + #found / 2
  source.over = #found / 2 < source.step
  source.step = min(source.step * 4, STEP_MAX)
end

-- Whether a source has a next job; `priority`, `run_at` and `seq` say which, `left` how many neighbours follow with it.
local function head(source)
  if source.left > 0 then return true end
  if source.i > source.n then
    if source.over then return false end
    read_members(source)
    if source.n == 0 then return false end
  end
  source.member = source.members[source.i]
  source.run_at, source.seq, source.left = read('>I6I6H', source.member)
  source.priority, source.i, source.stored = tonumber(source.members[source.i + 1]), source.i + 2, true
  return true
end

-- The same order as Rust's `turns::rank`. By differences, which a number of Lua holds exactly.
local function comes_first(a, b, ageing)
  if ageing ~= NONE then
    local later_by = (a.priority - b.priority) * ageing + a.run_at - b.run_at
    if later_by ~= 0 then return later_by < 0 end
  end
  if a.priority ~= b.priority then return a.priority < b.priority end
  if a.run_at ~= b.run_at then return a.run_at < b.run_at end
  return a.seq < b.seq
end

-- How many of the best source's neighbours come before the next job of another.
local function ahead(best, other)
  if best.priority ~= other.priority or best.run_at ~= other.run_at then return best.left end
  return other.seq - best.seq
end

local function source_of(key, l, suspect, level)
  return {key = key, lane = l, suspect = suspect, level = level, from = 0, i = 1, n = 0, left = 0, over = false,
    step = STEP_MIN}
end

-- Adds a lane as one source, or with ageing as one for each priority in use: within a priority, waiting changes nothing.
local function add_sources(sources, key, l, suspect, ageing)
  local level = ageing ~= NONE and call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or nil
  repeat
    sources[#sources + 1] = source_of(key, l, suspect, level)
    level = level and call('ZRANGEBYSCORE', key, '(' .. level, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  until not level
end

-- The lanes of a queue that may have ready jobs of these kinds, or of any: kinds, and which of them are of suspects.
function known_lanes(queue, kinds)
  local wanted = kinds and {}
  for i = 1, kinds and #kinds or 0 do wanted[kinds[i]] = true end
  local known, names = {}, call('SMEMBERS', T .. ':lanes:' .. queue)
  for i = 1, #names do
    local name = names[i]
    local suspect = sub(name, -#SUSPECTS) == SUSPECTS
    local kind = suspect and sub(name, 1, -1 - #SUSPECTS) or name
    if not wanted or wanted[kind] then known[#known + 1] = {name = name, kind = kind, suspect = suspect} end
  end
  return known
end

-- The ready jobs of one key, or without a key, in these lanes.
function line_of(queue, known, key, suspects, ageing)
  local sources = {}
  for i = 1, #known do
    local l = known[i]
    if not l.suspect or suspects > 0 then
      local ready = ready_key(queue .. '\31' .. l.kind, key)
      add_sources(sources, l.suspect and ready .. SUSPECTS or ready, l, l.suspect, ageing)
    end
  end
  return {queue = queue, key = key, ageing = ageing, sources = sources}
end

-- The source whose job is next, and how many of its neighbours may be taken in one go.
local function best_of(line, suspects)
  local sources, ageing, best, second = line.sources, line.ageing, nil, nil
  for k = 1, #sources do
    local source = sources[k]
    if (not source.suspect or suspects > 0) and head(source) then
      if not best or comes_first(source, best, ageing) then
        best, second = source, best
      elseif not second or comes_first(source, second, ageing) then
        second = source
      end
    end
  end
  if not best then return nil, 0 end
  local most = second and min(best.left, ahead(best, second)) or best.left
  return best, best.suspect and min(most, suspects) or most
end

-- Takes neighbours out of their lane.
local function take(source, count)
  if source.stored then drop(source.key, source.member) end
  source.stored, source.seq, source.left = false, source.seq + count, source.left - count
end

-- Forgets a lane that has run dry; the next ready job of its kind and key makes it known again.
local function forget_dry(line, source)
  local ring = T .. ':ring:' .. line.queue .. '\31' .. source.lane.kind
  if line.key == '' then
    if call('EXISTS', source.key, ring) == 0 then call('SREM', T .. ':lanes:' .. line.queue, source.lane.name) end
    return
  end
  local ready = ready_key(line.queue .. '\31' .. source.lane.kind, line.key)
  if call('EXISTS', ready, ready .. SUSPECTS) == 0 then call('ZREM', ring, line.key) end
end

-- What is left of members that were taken in part goes back.
function put_back(line)
  for i = 1, #line.sources do
    local source = line.sources[i]
    if source.left > 0 and not source.stored then
      put(source.key, source.priority, ready_member(source.run_at, source.seq, source.left))
    end
    if source.over and source.from == 0 then forget_dry(line, source) end
  end
end

-- What a job that is not as it was enqueued has been through: the fence of its last run, and whether it has started.
local function lived(f, text)
  local started, _, _, _, fence = read(LIVED, text, f.from)
  return fence, started > 0
end

-- Adds neighbours to what is chosen, or to the expired; a row that is gone is passed over. Answers how many were chosen.
local function examine(chosen, seqs, keys, texts)
  local n, expired = chosen.n, chosen.expired
  for i = 1, #seqs do
    local text = texts[i]
    if text then
      local f, fence, has_started = facts(text), 0, false
      if not f.fresh then fence, has_started = lived(f, text) end
      local is_expiring = f.expires ~= NONE and not has_started
      if is_expiring and f.expires <= NOW then
        expired[#expired + 1] = seqs[i]
      else
        if is_expiring then drop(T .. ':expiries', keys[i]) end
        n = n + 1
        chosen.seqs[n], chosen.keys[n], chosen.texts[n], chosen.facts[n], chosen.fences[n] = seqs[i], keys[i], text, f, fence + 1
      end
    end
  end
  local count = n - chosen.n
  chosen.n = n
  return count
end

-- Adds up to `count` jobs of a line to what is chosen, and the expired ones met on the way; all of them are out of their
-- lanes then.
function choose_from(line, chosen, count)
  local till = chosen.n + count
  while chosen.n < till and #chosen.expired < EXPIRED_MAX do
    local best, most = best_of(line, chosen.suspects)
    if not best then return end
    local number, first, seqs, keys = min(most, till - chosen.n), best.seq, {}, {}
    for i = 1, number do
      local seq = first + i - 1
      seqs[i], keys[i] = seq, pack('>I6', seq)
    end
    local taken = examine(chosen, seqs, keys, row_texts(seqs, keys))
    if best.suspect then chosen.suspects = chosen.suspects - taken end
    take(best, number)
  end
end

end
