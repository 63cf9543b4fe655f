-- How a claim finds its jobs. Ready jobs lie in a sorted set a lane (queue and kind; suspects apart), neighbours as one
-- member; a claim merges the lanes of a queue by priority, time and submission.

local choose
do

-- Expired jobs that one claim cancels on its way.
local EXPIRED_MAX = 1000
-- Members of a lane that are read at first; four times as many each time after that.
local STEP_MIN, STEP_MAX = 8, 1000

-- Reads the next members of a lane.
local function read_members(source)
  local found = call('ZRANGE', source.key, source.from, source.from + source.step - 1, 'WITHSCORES')
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

local function comes_first(a, b)
  if a.priority ~= b.priority then return a.priority < b.priority end
  if a.run_at ~= b.run_at then return a.run_at < b.run_at end
  return a.seq < b.seq
end

-- How many of the best source's neighbours come before the next job of another.
local function ahead(best, other)
  if best.priority ~= other.priority or best.run_at ~= other.run_at then return best.left end
  return other.seq - best.seq
end

local function source_of(key, kind)
  return {key = key, kind = kind, from = 0, i = 1, n = 0, left = 0, over = false, step = STEP_MIN}
end

local function sources_of(queue, kinds, suspects)
  local sources = {}
  local known = kinds or call('SMEMBERS', T .. ':lanes:' .. queue)
  for i = 1, #known do
    local key = T .. ':ready:' .. queue .. '\31' .. known[i]
    sources[#sources + 1] = source_of(key, known[i])
    if suspects > 0 then
      local source = source_of(key .. '\31s')
      source.suspect = true
      sources[#sources + 1] = source
    end
  end
  return sources
end

-- The source whose job is next, and how many of its neighbours may be taken in one go.
local function best_of(sources, suspects)
  local best, second
  for k = 1, #sources do
    local source = sources[k]
    if (not source.suspect or suspects > 0) and head(source) then
      if not best or comes_first(source, best) then
        best, second = source, best
      elseif not second or comes_first(source, second) then
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

-- What is left of members that were taken in part goes back.
local function put_back(sources, queue, kinds)
  for i = 1, #sources do
    local source = sources[i]
    if source.left > 0 and not source.stored then
      put(source.key, source.priority, ready_member(source.run_at, source.seq, source.left))
    end
    -- A lane that has run dry is forgotten; the next ready job of its kind makes it known again.
    if source.kind and not kinds and source.over and source.from == 0
      and call('EXISTS', source.key, source.key .. '\31s') == 0 then
      call('SREM', T .. ':lanes:' .. queue, source.kind)
    end
  end
end

-- What a job that is not as it was enqueued has been through: the fence of its last run, and whether it has started.
local function lived(f, text)
  local started, _, _, _, fence = read(LIVED, text, f.from)
  return fence, started > 0
end

-- Adds neighbours to what is chosen, or to the expired; a row that is gone is passed over. Answers how many were chosen.
local function examine(chosen, expired, seqs, keys, texts)
  local n = chosen.n
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

-- Up to `free` jobs of a queue, in the order of claims, at most so many suspects, and the expired ones met on the way.
-- All of them are out of their lanes. Also how many suspects may still be taken.
function choose(queue, kinds, free, suspects)
  local chosen, expired = {n = 0, seqs = {}, keys = {}, texts = {}, facts = {}, fences = {}}, {}
  local sources = sources_of(queue, kinds, suspects)
  while chosen.n < free and #expired < EXPIRED_MAX do
    local best, most = best_of(sources, suspects)
    if not best then break end
    local count, first, seqs, keys = min(most, free - chosen.n), best.seq, {}, {}
    for i = 1, count do
      local seq = first + i - 1
      seqs[i], keys[i] = seq, pack('>I6', seq)
    end
    local taken = examine(chosen, expired, seqs, keys, row_texts(seqs, keys))
    if best.suspect then suspects = suspects - taken end
    take(best, count)
  end
  put_back(sources, queue, kinds)
  return chosen, expired, suspects
end

end
