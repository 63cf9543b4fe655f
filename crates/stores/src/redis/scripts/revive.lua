-- A person's verbs that let jobs run: retry an ended one, with the children that fell with it, drop the edges that hold
-- one, and start one before its time. ARGV: now, verb, whether data is kept, ids.

verb('revive', {}, function()
  local verb, keep_data = arg(), arg() == '1'

  -- Takes the job's unique key again, unless another unfinished job has it; answers with that one.
  local function take_unique_again(r)
    local text = field(r, UNIQUE, 'u')
    if not text then return nil end
    local enqueue = read('>d', text)
    local scope = sub(text, 17)
    local found = call('HGET', T .. ':uniques', scope)
    if found then
      local id, seq, ended = read(HOLDER, found)
      if ended == NOT_ENDED and seq ~= r.seq then return id end
    end
    local till = enqueue ~= NONE and r[CREATED] + enqueue or NONE
    call('HSET', T .. ':uniques', scope, pack(HOLDER, r[ID], r.seq, NOT_ENDED, till))
    call('ZREM', T .. ':windows', scope)
    return nil
  end

  -- Makes an ended job blocked, without what its end left behind; what was learnt (data, history, fence) stays.
  local function reset(r)
    note_success(r)
    move(r, BLOCKED)
    -- Continues and parks are counted on; failures, crashes and throttles begin anew.
    r[SPENT] = string.rep('\0', 6) .. sub(r[SPENT], 7)
    set_flag(r, SUSPECT, false)
    r[REMOVE] = NONE
    clear(r, ERROR, 'e')
    clear(r, RESULT, 'x')
    r[OUT] = ''
    -- A job that has expired would be cancelled again before it could run.
    if r[EXPIRES] ~= NONE and r[EXPIRES] <= NOW then r[EXPIRES] = NONE end
    local open = flag(r, WAITS_PROCESS) and 1 or 0
    local list = has(r, EDGES) and edges(r) or {}
    for i = 1, #list do
      if list[i][5] == 0 then open = open + 1 end
    end
    r[WAITS] = open
  end

  -- Whether the parent's retry lets the child wait again: it waits or fell, or is to be told how the parent ends this time. A
  -- child that works on what it was told is left to it.
  local function is_reopened(edge, state)
    if edge[5] == 0 then return true end
    local told = edge[4] == ON_RUN and (edge[6] == FAILED or edge[6] == CANCELLED)
    return told and state ~= RUNNING and state ~= PARKED
  end

  -- The same rule as Rust's `graph::comes_back`.
  local function comes_back(on_failure, child)
    local state, reason = child[STATE], field(child, ERROR, 'e')
    local fell = state == CANCELLED and reason and sub(reason, 1, 1) == BY_PARENT
    if on_failure == ON_CANCEL then return fell end
    local ran = state == SCHEDULED or state == READY or state == SUCCEEDED or state == FAILED
    return on_failure == ON_RUN and (fell or ran)
  end

  -- Lets a child wait for its parent again, and says whether that brings the child back: it fell by its parents, or ran
  -- because this one failed, and no other of them keeps it down.
  local function reopen_edge(child, parent)
    local list, found = edges(child), nil
    for i = 1, #list do
      if list[i][1] == parent.seq and is_reopened(list[i], child[STATE]) then found = list[i] end
    end
    if not found then return false end
    touch(child)
    if found[5] == 1 then child[WAITS] = child[WAITS] + 1 end
    found[5], found[6] = 0, NOT_ENDED
    write_edge(child, found)
    call('HDEL', edge_key(child), parent.seq .. 'x', parent.seq .. 'r')
    for i = 1, #list do
      if standing(list[i][4], list[i][5], list[i][6]) == CANCELS then return false end
    end
    return comes_back(found[4], child)
  end

  local function revive_children(r)
    local parents, first = {r}, 1
    while parents[first] do
      local parent = parents[first]
      first = first + 1
      local list = children(parent)
      for i = 1, #list do
        local child = job(list[i])
        if child and reopen_edge(child, parent) and not take_unique_again(child) then
          reset(child)
          parents[#parents + 1] = child
        end
      end
    end
  end

  local function retry(r)
    if r[STATE] ~= FAILED and r[STATE] ~= CANCELLED then return {'state', r[STATE]} end
    local other = take_unique_again(r)
    if other then return {'unique', other, sub(field(r, UNIQUE, 'u'), 17)} end
    touch(r)
    -- Who retries a child does not want to wait for parents that have failed.
    local list = has(r, EDGES) and edges(r) or {}
    for i = 1, #list do
      if list[i][6] ~= NOT_ENDED and list[i][5] == 0 then
        list[i][5] = 1
        write_edge(r, list[i])
      end
    end
    r[RUN_AT] = NOW
    if not keep_data then clear(r, DATA, 'd') end
    reset(r)
    release(r)
    revive_children(r)
    return r[STATE]
  end

  local function unhold(r)
    if r[STATE] ~= BLOCKED then return {'state', r[STATE]} end
    local list, held = edges(r), false
    for i = 1, #list do
      local edge = list[i]
      if standing(edge[4], edge[5], edge[6]) == HOLDS then
        held = true
        touch(r)
        edge[5] = 1
        r[WAITS] = r[WAITS] - 1
        write_edge(r, edge)
      end
    end
    if not held then return {'free'} end
    release(r)
    return r[STATE]
  end

  local function run_now(r)
    if r[STATE] ~= SCHEDULED then return {'state', r[STATE]} end
    move(r, READY)
    r[RUN_AT] = NOW
    return READY
  end

  local verbs = {retry = retry, unhold = unhold, run_now = run_now}
  local replies = {}
  for i = at + 1, #ARGV do
    local r = job_by_id(ARGV[i])
    replies[#replies + 1] = r and verbs[verb](r) or {'gone'}
  end
  finish()
  return replies
end)
