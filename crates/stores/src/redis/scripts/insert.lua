-- Enqueue: first a plan that refuses everything that must be refused, then writes that cannot fail. So an insert is all
-- or nothing without an undo.

local read_jobs, stored_ids, plan, carry_out, take_places
-- Lua allows 200 names at once, so that what is only of use here stands in a block.
do

local INSERTED, DUPLICATE, SKIPPED, REPLACED, DEBOUNCED = 0, 1, 2, 3, 4
local POLICY_REPLACE, POLICY_DEBOUNCE = 1, 2

-- Gives out the next places; answers the one before. With the first of them, it is written down how all of this is laid out.
function take_places(count)
  local last = call('HINCRBY', T .. ':meta', 'seq', count) - count
  if last == 0 then call('HSET', T .. ':meta', 'layout', LAYOUT) end
  return last
end

-- Jobs as Rust's `encode` lays them out: the row, the payload, and whatever else the row says it has.
function read_jobs(count)
  local jobs = {}
  for i = 1, count do
    local text = arg()
    local r = unpack_row(0, false, text)
    if r[HAS] ~= 0 then
      if has(r, LONG) then r.long = arg() end
      if has(r, AFTER) then r.after = arg() end
      if has(r, EDGES) then r.parents = arg() end
      if has(r, UNIQUE) then
        r.unique = arg()
        r.policy, r.wait, r.cap = read('>Bdd', r.unique)
        r.unique = sub(r.unique, 18)
        r.scope = sub(r.unique, 17)
      end
    end
    jobs[i] = r
  end
  return jobs
end

-- Which of these ids are stored, and where.
function stored_ids(ids)
  local stored = {}
  for first = 1, #ids, CHUNK do
    local last = min(first + CHUNK - 1, #ids)
    local found = call('HMGET', T .. ':ids', unpack(ids, first, last))
    for i = first, last do
      local seq = found[i - first + 1]
      if seq then stored[ids[i]] = read('>I6', seq) end
    end
  end
  return stored
end

-- What an enqueue does to the holder of its key.
local function second_enqueue(policy, state, has_run)
  -- What a run has left behind (its checkpoint, what it has done outside) belongs to the payload that it was given.
  if policy == POLICY_REPLACE and state < RUNNING and not has_run then return REPLACED end
  if policy == POLICY_DEBOUNCE and state < RUNNING then return DEBOUNCED end
  return SKIPPED
end

-- What to do when the job's unique key is taken: how, the holder, and its state if its row is gone.
local function holder(r, taken)
  local member = taken[r.scope]
  -- A member of the same submission still waits, whatever its parents will do to it.
  if member then return second_enqueue(r.policy, BLOCKED, false), member[ID], member.seq end
  local found = call('HGET', T .. ':uniques', r.scope)
  if not found then return nil end
  local id, seq, ended, till = read(HOLDER, found)
  if ended ~= NOT_ENDED and not (till ~= NONE and till > NOW) then return nil end
  local row = job(seq)
  return second_enqueue(r.policy, row and row[STATE] or ended, row and row[STARTED] ~= NONE), id, seq, ended
end

local function same_content(stored, r)
  return stored[DIGEST] == r[DIGEST] and payload(stored) == payload(r)
end

-- Everything that a new job waits for must be stored, or be stored with it.
local function check_references(inserted, members_by_id)
  local joined
  for i = 1, #inserted do
    local r = inserted[i]
    if r.parents then
      local ids = {}
      for p = 1, #r.parents, 17 do ids[#ids + 1] = sub(r.parents, p, p + 15) end
      r.parent_ids, r.parent_seqs = ids, stored_ids(ids)
      for p = 1, #ids do
        local member = members_by_id[ids[p]]
        if member then r.parent_seqs[ids[p]] = member.seq end
        if not r.parent_seqs[ids[p]] then return {'parent', r[ID], ids[p]} end
      end
    end
    if r.after then
      if not joined then
        joined = {}
        for k = 1, #inserted do joined[inserted[k].lane.process] = true end
      end
      if not joined[r.after] and not process_exists(r.after) then return {'process', r[ID], r.after} end
      if r.lane.process == r.after and not flag(r, HELPER) then return {'own', r[ID], r.after} end
    end
  end
end

-- Decides about each job in the order given; changes nothing. Returns what refuses the whole, if anything.
function plan(jobs)
  local ids = {}
  for i = 1, #jobs do ids[i] = jobs[i][ID] end
  local stored, members_by_id, taken, inserted = stored_ids(ids), {}, {}, {}
  local last = tonumber(call('HGET', T .. ':meta', 'seq') or 0)
  for i = 1, #jobs do
    local r = jobs[i]
    local id = r[ID]
    if members_by_id[id] then return {'twice', id} end
    local seq = stored[id]
    if seq then
      if not same_content(job(seq), r) then return {'exists', id} end
      r.how, r.holder_id, r.seq = DUPLICATE, id, seq
    else
      if r.scope then r.how, r.holder_id, r.seq, r.holder_ended = holder(r, taken) end
      if not r.how then
        last = last + 1
        r.how, r.holder_id, r.seq = INSERTED, id, last
        members_by_id[id] = r
        inserted[#inserted + 1] = r
        if r.scope then taken[r.scope] = r end
      end
    end
  end
  return check_references(inserted, members_by_id), inserted
end

local function add_edges(r)
  for i = 1, #r.parent_ids do
    local id = r.parent_ids[i]
    local seq = r.parent_seqs[id]
    local on_failure = string.byte(r.parents, i * 17)
    write_edge(r, {seq, id, i, on_failure, 0, NOT_ENDED})
    call('ZADD', T .. ':ch:' .. seq, r.seq, r.key)
    local parent = job(seq)
    if not has(parent, CHILDREN) then
      touch(parent)
      parent[HAS] = bor(parent[HAS], CHILDREN)
    end
  end
end

local function add_new(r)
  local seq = r.seq
  rows[seq] = r
  r.key, r.touched = seq_key(seq), true
  order[#order + 1] = r
  fresh[floor(seq / BUCKET)] = true
  begin_turns(r.lane)
  if r[HAS] ~= 0 then
    if r.long then write(r, 'p', r.long) end
    if r.after then
      write(r, 'a', r.after)
      call('ZADD', T .. ':wait:' .. r.after, seq, r.key)
    end
    if r.unique then
      write(r, 'u', r.unique)
      local enqueue = read('>d', r.unique)
      local till = enqueue ~= NONE and NOW + enqueue or NONE
      call('HSET', T .. ':uniques', r.scope, pack(HOLDER, r[ID], seq, NOT_ENDED, till))
      call('ZREM', T .. ':windows', r.scope)
    end
  end
  if r.lane.process ~= '' then
    count_in_process(r, 1)
    put(T .. ':pj:' .. r.lane.process, seq, r.key)
  end
end

-- Pushes a waiting holder's start back; never earlier than the job waits anyway, for a retry or a rate limit.
local function debounce(r)
  local held = job(r.seq)
  touch(held)
  held[RUN_AT] = math.max(min(later(r.wait), held[CREATED] + r.cap), held[RUN_AT])
  if held[STATE] ~= BLOCKED then start_by_time(held) end
end

-- Lets a job just added find out what its parents and its process have done before. Also one that fell with another
-- member: once retried, it must not wait for parents that ended long ago.
local function open_new(r)
  local cause
  for i = 1, r.parent_ids and #r.parent_ids or 0 do
    local parent = job(r.parent_seqs[r.parent_ids[i]])
    if parent and parent[STATE] >= SUCCEEDED then
      if parent_ended(r, parent) == CANCELS and not cause then
        cause = BY_PARENT .. parent[ID] .. string.char(parent[STATE])
      end
    end
  end
  if r.after and flag(r, WAITS_PROCESS) and process_done(r.after) then
    set_flag(r, WAITS_PROCESS, false)
    r[WAITS] = r[WAITS] - 1
    call('ZREM', T .. ':wait:' .. r.after, r.key)
  end
  release(r)
  if cause then end_job(r, CANCELLED, cause) end
end

-- Carries out a plan made in this very call.
function carry_out(jobs, inserted)
  local index, opened = {}, {}
  if #inserted > 0 then
    take_places(#inserted)
    touched = true
  end
  for i = 1, #jobs do
    local r = jobs[i]
    if r.how == INSERTED then
      add_new(r)
      index[#index + 1] = r[ID]
      index[#index + 1] = r.key
    elseif r.how == REPLACED then
      -- The job that gets the new payload keeps its options.
      local held = job(r.seq)
      set_body(held, payload(r), options(held))
    elseif r.how == DEBOUNCED then
      debounce(r)
    end
  end
  each_chunk('HSET', T .. ':ids', index)
  -- Only now, with all rows there: parents may come after their children.
  for i = 1, #inserted do
    if inserted[i].parents then add_edges(inserted[i]) end
  end
  for i = 1, #inserted do
    if inserted[i].parents or inserted[i].after then open_new(inserted[i]) end
  end
  local replies = {}
  for i = 1, #jobs do
    local r = jobs[i]
    local row = job(r.seq)
    local state = row and row[STATE] or r.holder_ended
    if not state or state == NOT_ENDED then state = SUCCEEDED end
    replies[i] = pack('>c16I6BB', r.holder_id, r.seq, state, r.how)
  end
  return concat(replies)
end

end
