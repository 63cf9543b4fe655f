-- args: now, number of pieces, pieces, each after a letter that says what it is. Jobs come as a row, then whatever the row says
-- it has, log and edges. First all are read, and a job whose place is another's refuses everything; then all is written.

-- A job as Rust's `import` lays it out.
local function read_job()
  local seq = tonumber(arg())
  local r = unpack_row(seq, seq_key(seq), arg())
  r.values, r.log, r.edges = {}, {}, {}
  for i = 1, #FIELDS do
    if has(r, FIELDS[i][1]) then r.values[FIELDS[i][2]] = arg() end
  end
  if has(r, LOG) then
    for i = 1, tonumber(arg()) do r.log[i] = arg() end
  end
  if has(r, EDGES) then
    for i = 1, tonumber(arg()) do r.edges[i] = {arg(), arg(), arg(), arg()} end
  end
  return r
end

-- Whether the job is there already, or came before in this call; an answer when its place, or its id, is another's.
local function is_stored(r, seen)
  local at_place, same = job(r.seq) or seen[r.seq], job_by_id(r[ID]) or seen[r[ID]]
  seen[r.seq], seen[r[ID]] = r, r
  if at_place and at_place[ID] ~= r[ID] or same and same.seq ~= r.seq then return nil, {'taken', r[ID], whole(r.seq)} end
  return at_place ~= nil
end

local function mark_parent(parent)
  if not parent or has(parent, CHILDREN) then return end
  touch(parent)
  parent[HAS] = bor(parent[HAS], CHILDREN)
end

-- Edges are named by their parent; one whose parent is gone by a number below zero, which no job has.
local function put_edges(r)
  for i = 1, #r.edges do
    local name, text, result, reason = unpack(r.edges[i])
    call('HSET', edge_key(r), name, text)
    if result ~= '' then call('HSET', edge_key(r), name .. 'x', result) end
    if reason ~= '' then call('HSET', edge_key(r), name .. 'r', reason) end
    if tonumber(name) > 0 then
      call('ZADD', T .. ':ch:' .. name, r.seq, r.key)
      mark_parent(job(tonumber(name)))
    end
  end
end

-- No later job gets a place up to this.
local function raise_seq(seq)
  if tonumber(call('HGET', T .. ':meta', 'seq') or 0) >= seq then return end
  call('HSET', T .. ':meta', 'seq', whole(seq), 'layout', LAYOUT)
end

local function put_job(r)
  local seq = r.seq
  raise_seq(seq)
  rows[seq], r.touched, order[#order + 1] = r, true, r
  fresh[floor(seq / BUCKET)] = true
  begin_turns(r.lane)
  for letter, value in pairs(r.values) do write(r, letter, value) end
  each_chunk('RPUSH', T .. ':log:' .. whole(seq), r.log)
  call('HSET', T .. ':ids', r[ID], r.key)
  if r.lane.process ~= '' then
    count_in_process(r, 1)
    put(T .. ':pj:' .. r.lane.process, seq, r.key)
  end
  if r[STATE] == PARKED then call('ZADD', T .. ':park:' .. park_key(r.values.k), seq, r.key) end
  if flag(r, WAITS_PROCESS) then call('ZADD', T .. ':wait:' .. r.values.a, seq, r.key) end
  if r[REMOVE] ~= NONE then prune_at(r.key, r[REMOVE]) end
  -- Children may have come before.
  if call('EXISTS', T .. ':ch:' .. seq) == 1 then mark_parent(r) end
  put_edges(r)
end

local function put_queue(name, text)
  local s = queue_settings(name)
  local paused, max, keep, a, b, per_key, ageing, keyed, from = read(SETTINGS, text)
  if keyed == 1 then s.last = sub(text, from) end
  if paused == 1 or max ~= NONE or keep ~= 0 or per_key ~= NONE or ageing ~= NONE then
    s.paused, s.max, s.keep, s.a, s.b, s.per_key, s.ageing = paused, max, keep, a, b, per_key, ageing
  end
  write_settings(name, s)
end

-- By letter: how many arguments a piece has, and how it is written.
local PIECES = {
  L = {1, function(seq) raise_seq(tonumber(seq)) end},
  Q = {2, put_queue},
  P = {1, function(id)
    local p = process(id)
    p.open, p.seal = true, true
  end},
  U = {3, function(scope, text, till)
    call('HSET', T .. ':uniques', scope, text)
    if till ~= '' then call('ZADD', T .. ':windows', till, scope) else call('ZREM', T .. ':windows', scope) end
  end},
  S = {3, function(key, text, till)
    call('HSET', T .. ':signals', key, text)
    call('ZADD', T .. ':forget', till, key)
  end},
  C = {2, function(name, text) call('HSET', T .. ':schedules', name, text) end},
  D = {2, function(name, jobs) call('HSET', T .. ':ledger', name, jobs) end},
  R = {2, function(name, text) call('HSET', T .. ':records', name, text) end},
}

verb('import', {}, function()
  local pieces, seen = {}, {}
  for i = 1, tonumber(arg()) do
    local letter = arg()
    if letter == 'J' then
      local r = read_job()
      local stored, refused = is_stored(r, seen)
      if refused then return refused end
      pieces[i] = {put_job, r, skip = stored}
    else
      local kind = PIECES[letter]
      pieces[i] = {kind[2], unpack(ARGV, at + 1, at + kind[1])}
      at = at + kind[1]
    end
  end
  for i = 1, #pieces do
    if not pieces[i].skip then pieces[i][1](unpack(pieces[i], 2)) end
  end
  -- Nothing has happened to what comes from elsewhere.
  touched, silent = true, true
  finish()
  return {'ok'}
end)
