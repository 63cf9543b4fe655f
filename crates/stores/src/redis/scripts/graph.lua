-- What one job's end does to others: children are released, cancelled or held; who waits for a process starts with its
-- last job. Always within the call that ended the job.

-- Edges stand with the child, by the parent's seq: a job that is given a deleted parent's id is not the parent. Beside each the
-- parent's result, with an `x` behind its seq, or the reason why there is none, with an `r`.
local EDGE = '>c16I4BBB'
local ON_CANCEL, ON_RUN, ON_HOLD = 0, 1, 2
local NOT_ENDED = 255
local OPEN, SATISFIED, CANCELS, HOLDS = 0, 1, 2, 3
-- Reasons that Rust words when it reads them.
local BY_PARENT, ON_REQUEST, TOO_LATE, WHILE_RUNNING = '\1', '\2', '\3', '\4'

local function edge_key(child) return T .. ':e:' .. child.seq end

-- What an edge asks of the child as things are; the same rule as Rust's `graph::edge`.
local function standing(on_failure, satisfied, ended)
  if satisfied == 1 then return SATISFIED end
  if ended == NOT_ENDED then return OPEN end
  if ended == SUCCEEDED or on_failure == ON_RUN then return SATISFIED end
  return on_failure == ON_CANCEL and CANCELS or HOLDS
end

-- All edges of a child as lists of parent seq, id, index, policy, satisfied, ended.
local function edges(child)
  local found, list = call('HGETALL', edge_key(child)), {}
  for i = 1, #found, 2 do
    local parent = tonumber(found[i])
    if parent then list[#list + 1] = {parent, read(EDGE, found[i + 1])} end
  end
  return list
end

local function write_edge(child, edge)
  call('HSET', edge_key(child), edge[1], pack(EDGE, edge[2], edge[3], edge[4], edge[5], edge[6]))
end

local function members(key)
  local list = call('ZRANGE', key, 0, -1)
  for i = 1, #list do list[i] = read('>I6', list[i]) end
  return list
end

local function children(r)
  if not has(r, CHILDREN) then return {} end
  local list = members(T .. ':ch:' .. r.seq)
  load(list)
  return list
end

-- Ready or scheduled, whichever `run_at` says.
local function start_by_time(r) move(r, r[RUN_AT] > NOW and SCHEDULED or READY) end

-- Starts a blocked job that waits for nothing.
local function release(r)
  if r[STATE] == BLOCKED and r[WAITS] == 0 then start_by_time(r) end
end

-- Notes a parent's end on its edge and says what it asks of the child. An edge satisfied before asks nothing.
local function parent_ended(child, parent)
  local text = call('HGET', edge_key(child), parent.seq)
  if not text then return OPEN end
  local edge = {parent.seq, read(EDGE, text)}
  if edge[5] == 1 then return OPEN end
  touch(child)
  edge[6] = parent[STATE]
  local reason = field(parent, ERROR, 'e')
  if reason then call('HSET', edge_key(child), parent.seq .. 'r', reason) end
  local asked = standing(edge[4], edge[5], edge[6])
  if asked == SATISFIED then
    edge[5] = 1
    child[WAITS] = child[WAITS] - 1
    local result = parent[OUT] ~= '' and parent[OUT] or field(parent, RESULT, 'x')
    if result then call('HSET', edge_key(child), parent.seq .. 'x', result) end
  elseif asked == CANCELS and child[STATE] ~= BLOCKED then
    -- A child that has ended before stays as it is.
    asked = OPEN
  end
  write_edge(child, edge)
  return asked
end

-- The furthest time that a row can hold.
local TIME_MAX = 281474976710653
local function later(length) return min(NOW + length, TIME_MAX) end

-- When an ended job's row goes: nil for never, 0 for at once. The same rule as Rust's `Retention::removal`.
local function removal(rule, l, state)
  local keep, a, b
  if rule ~= '' then
    keep, a, b = read('>Bdd', rule)
  else
    local s = queue_settings(l.queue)
    keep, a, b = s.keep, s.a, s.b
  end
  if keep == 0 then
    if l.process ~= '' then return nil end
    keep, a, b = 2, DAY, 7 * DAY
  end
  if keep == 1 then return a ~= NONE and later(a) or nil end
  if keep == 2 then return later(state == SUCCEEDED and a or b) end
  return state == SUCCEEDED and 0 or later(7 * DAY)
end

-- Unique keys: the holder, how it ended, and until when the key stays taken whatever became of it.
local HOLDER = '>c16I6Bd'

local function free_unique(r, state)
  local text = beside(r, 'u')
  local _, success = read('>dd', text)
  local scope = sub(text, 17)
  local found = call('HGET', T .. ':uniques', scope)
  if not found then return end
  local id, seq, _, till = read(HOLDER, found)
  if seq ~= r.seq then return end
  if state == SUCCEEDED and success ~= NONE then till = NOW + success end
  -- Whether a window has passed is asked when the key is, so that a clock that steps back asks again.
  if till == NONE then
    call('HDEL', T .. ':uniques', scope)
  else
    call('HSET', T .. ':uniques', scope, pack(HOLDER, id, seq, state, till))
    call('ZADD', T .. ':windows', till, scope)
  end
end

-- The pruner looks at the job then, and at REMOVE, which tells whether that is still to be.
local function prune_at(key, time)
  local keys = prunes[time]
  if not keys then keys = {} prunes[time] = keys end
  keys[#keys + 1] = key
end

local function end_one(r, state, reason)
  local goes = removal(r[RULE], r.lane, state)
  move(r, state)
  r[TILL], r[REMOVE] = NOW, NONE
  r[FLAGS] = band(r[FLAGS], bnot(CANCEL + PARK_UNTIL))
  if has(r, PARK + WAKE) then
    clear(r, PARK, 'k')
    clear(r, WAKE, 'w')
  end
  if state == SUCCEEDED then
    clear(r, ERROR, 'e')
  elseif reason then
    set(r, ERROR, 'e', reason)
  end
  add(r.lane.ledger, state, 1)
  if has(r, UNIQUE) then free_unique(r, state) end
  if goes and goes > 0 then
    r[REMOVE] = goes
    prune_at(r.key, goes)
  end
  return goes == 0
end

-- Removes a row for good. Its unique key and its place in the ledger stay.
local function remove(r)
  touch(r)
  count_in_process(r, -1)
  r.gone = true
  call('HDEL', T .. ':ids', r[ID])
  if r.lane.process ~= '' then drop(T .. ':pj:' .. r.lane.process, r.key) end
  if has(r, CHILDREN) then call('DEL', T .. ':ch:' .. r.seq) end
  if has(r, LOG) then call('DEL', T .. ':log:' .. whole(r.seq)) end
  if has(r, EDGES) then
    local list = edges(r)
    for i = 1, #list do call('ZREM', T .. ':ch:' .. list[i][1], r.key) end
    call('DEL', edge_key(r))
  end
  if flag(r, WAITS_PROCESS) then call('ZREM', T .. ':wait:' .. field(r, AFTER, 'a'), r.key) end
end

-- Releases who waits for a process, once it is done.
local function tell_waiters(id)
  if id == '' or not process_done(id) then return end
  local waiting = members(T .. ':wait:' .. id)
  if #waiting == 0 then return end
  load(waiting)
  for i = 1, #waiting do
    local r = job(waiting[i])
    if r and flag(r, WAITS_PROCESS) then
      set_flag(r, WAITS_PROCESS, false)
      r[WAITS] = r[WAITS] - 1
      release(r)
    end
  end
  call('DEL', T .. ':wait:' .. id)
end

-- Ends a job and everything that falls with it, breadth first, children in seq order: the nearest parent is the one that
-- a child's error names. A list instead of recursion, because chains may be long.
local function end_job(r, state, reason)
  local endings, first, last, removals = {{r, state, reason}}, 1, 1, {}
  while first <= last do
    local ending = endings[first]
    endings[first] = nil
    first = first + 1
    local ended = ending[1]
    if not ended.gone and ended[STATE] < SUCCEEDED then
      if end_one(ended, ending[2], ending[3]) then removals[#removals + 1] = ended end
      local list = children(ended)
      for i = 1, #list do
        local child = job(list[i])
        if child then
          local asked = parent_ended(child, ended)
          release(child)
          if asked == CANCELS then
            last = last + 1
            endings[last] = {child, CANCELLED, BY_PARENT .. ended[ID] .. string.char(ended[STATE])}
          end
        end
      end
      tell_waiters(ended.lane.process)
    end
  end
  for i = 1, #removals do remove(removals[i]) end
end

-- A blocked child that a failed or cancelled job holds.
local function held_child(r)
  local list = children(r)
  for i = 1, #list do
    local child = job(list[i])
    if child and child[STATE] == BLOCKED then
      local text = call('HGET', edge_key(child), r.seq)
      if text then
        local _, _, on_failure, satisfied, ended = read(EDGE, text)
        if standing(on_failure, satisfied, ended) == HOLDS then return child end
      end
    end
  end
end
