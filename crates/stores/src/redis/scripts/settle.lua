-- args: now, mode, number of workers, workers, number of items, items; each item with its follow-up jobs. When a signal
-- waits for a park among them, nothing is written and the answer names it, so that Rust can judge what it does and ask again.
-- Mode `rescue` takes leases away; there, the row as Rust judged it stands before each item. Mode `done` has plain successes
-- in the form of `settle_done.lua`.

local mode, workers

local function held(s)
  local r = job(s.seq)
  if not r or r[STATE] ~= RUNNING or r[FENCE] ~= s.fence then return nil end
  -- Somebody renewed it, or it has made progress since the rescuer looked.
  if mode == 'rescue' then return row_text(r) == s.seen and r or nil end
  -- A server that lost its last writes may have given the same place and fence to another.
  if r[ID] ~= s.id or r[WORKER] ~= workers[s.worker] then return nil end
  return r
end

local function read_items(count)
  local items = {}
  for i = 1, count do
    local seen = mode == 'rescue' and arg()
    local s = read_item()
    s.seen = seen
    s.jobs = s.follow_ups > 0 and read_jobs(s.follow_ups) or nil
    items[i] = s
  end
  return items
end

-- A job that has children, or is not as it was enqueued, takes the usual way although it is done.
local function done_or_items(count)
  local given, jobs = read_done(count)
  local replies = jobs <= CHUNK and settle_done(given, workers)
  return replies, not replies and done_items(given)
end

-- Signals that came before the park. One that Rust was told of is in the item already, which parks no more.
local function waiting_signals(items)
  local waiting = {}
  for i = 1, #items do
    local s = items[i]
    local r = s.state == PARKED and s.park and held(s)
    if r and not flag(r, CANCEL) then
      local signal = call('HGET', T .. ':signals', park_key(s.park))
      if signal and read('>d', signal) > NOW then
        waiting[#waiting + 1] = {i, sub(signal, 9), options(r)}
      end
    end
  end
  return waiting
end

local function settle_one(r, s)
  local refused
  local cancelled = flag(r, CANCEL) and s.state < SUCCEEDED
  if cancelled then
    under_cancel(s)
  elseif s.invalid then
    refused = {'check'}
  end
  -- Follow-ups first: they belong to the process before this job's end could complete it. What the handler planned
  -- before it was cancelled is not to happen.
  if not refused and s.jobs and not cancelled then
    local inserted
    refused, inserted = plan(s.jobs)
    if not refused then carry_out(s.jobs, inserted) end
  end
  if refused then return refused end
  if cancelled and mode ~= 'rescue' then s.run_outcome = OUTCOME_CANCEL end
  note_run(r, s)
  return apply(r, s)
end

verb('settle', {'allow-oom'}, function()
  mode, workers = arg(), {}
  for i = 1, tonumber(arg()) do workers[i] = arg() end
  local count, done, items = tonumber(arg()), nil, nil
  if mode == 'done' then done, items = done_or_items(count) else items = read_items(count) end
  if done then
    finish()
    return {'settled', done}
  end

  local seqs = {}
  for i = 1, #items do seqs[i] = items[i].seq end
  load(seqs)
  local waiting = waiting_signals(items)
  if #waiting > 0 then return {'signals', waiting} end
  local replies = {}
  for i = 1, #items do
    local r = held(items[i])
    replies[i] = r and settle_one(r, items[i]) or {'lost'}
  end
  finish()
  return {'settled', replies}
end)
