-- Settlements: what Rust's `state::settle` judged, written to a running or parked job.

local read_item, note_run, note_success, under_cancel, apply
local WAKE_CLEAR, WAKE_KEEP, WAKE_SET = 0, 1, 2
local OUTCOME_DONE, OUTCOME_PARK, OUTCOME_CANCEL = 0, 2, 8
-- The lease: seq, id, fence; the budgets; the lease's worker, by its place in the call; state, outcome, run_at, what becomes
-- of the wake, which values follow, follow-ups.
local ITEM = '>I6c16I4c14HBBdBBI4'
do

local V_RESULT = 2
local V_DATA, V_ERROR, V_PARK, V_USAGE, V_UNTIL, V_INVALID, V_WAKE = 1, 4, 8, 16, 32, 64, 128
local RUN = '>I8ddBHc0I4c0I4c0'

function read_item()
  local seq, id, fence, spent, worker, state, outcome, run_at, wake, values, follow_ups = read(ITEM, arg())
  local s = {seq = seq, id = id, worker = worker, fence = fence, state = state, outcome = outcome, run_at = run_at, spent = spent, wake = wake,
    follow_ups = follow_ups, run_outcome = outcome, data = nil, result = nil, error = nil, park = nil, usage = nil}
  if values == V_RESULT then
    s.result = arg()
    return s
  end
  if band(values, V_DATA) ~= 0 then s.data = arg() end
  if band(values, V_RESULT) ~= 0 then s.result = arg() end
  if band(values, V_ERROR) ~= 0 then s.error = arg() end
  if band(values, V_PARK) ~= 0 then s.park = arg() end
  if band(values, V_USAGE) ~= 0 then s.usage = arg() end
  if band(values, V_WAKE) ~= 0 then s.wake_value = arg() end
  s.has_until = band(values, V_UNTIL) ~= 0
  s.invalid = band(values, V_INVALID) ~= 0
  -- A park that ended at once by its signal was no failure of the run.
  s.run_error = outcome ~= OUTCOME_PARK and s.error or nil
  return s
end

-- The oldest of the runs goes when there are too many.
local function add_run(r, run)
  local runs = field(r, RUNS, 'h')
  if not runs then
    set(r, RUNS, 'h', '\1' .. run)
    return
  end
  local count, from = string.byte(runs), 2
  if count >= RUNS_KEPT_MAX then
    local skipped = {read(RUN, runs, 2)}
    from = skipped[#skipped]
    count = count - 1
  end
  set(r, RUNS, 'h', string.char(count + 1) .. sub(runs, from) .. run)
end

-- The last run of a success is in the row already: its fence, its worker, its two times.
function note_run(r, s)
  if s.run_outcome == OUTCOME_DONE and s.state == SUCCEEDED and not s.usage then
    set_flag(r, DONE_AT_ONCE, true)
    return
  end
  local error, usage, worker = s.run_error or '', s.usage or '', r[WORKER]
  add_run(r, pack(RUN, r[FENCE], r[STARTED], NOW, s.run_outcome, #worker, worker, #error, error, #usage, usage))
end

-- Before a success runs again, the history takes over what its row alone tells.
function note_success(r)
  if not flag(r, DONE_AT_ONCE) then return end
  local worker = r[WORKER]
  add_run(r, pack(RUN, r[FENCE], r[STARTED], r[TILL], OUTCOME_DONE, #worker, worker, 0, '', 0, ''))
  set_flag(r, DONE_AT_ONCE, false)
end

-- An end stands; everything else becomes `cancelled` when somebody asked for that first.
function under_cancel(s)
  s.state, s.run_at, s.park, s.error, s.run_error = CANCELLED, NONE, nil, WHILE_RUNNING, WHILE_RUNNING
  s.outcome = OUTCOME_CANCEL
end

function apply(r, s)
  touch(r)
  if s.run_at ~= NONE then r[RUN_AT] = s.run_at end
  if s.spent ~= r[SPENT] then
    r[SPENT] = s.spent
    set_flag(r, SUSPECT, sub(s.spent, 3, 4) ~= NO_CRASHES)
  end
  if s.data then set(r, DATA, 'd', s.data) end
  if s.result then
    if #s.result <= OUT_IN_ROW_MAX then r[OUT] = s.result else set(r, RESULT, 'x', s.result) end
  end
  -- A run that did not come to an answer of its own leaves the value to the next one.
  if s.wake == WAKE_CLEAR then clear(r, WAKE, 'w') end
  if s.state >= SUCCEEDED then
    end_job(r, s.state, s.error)
    return s.state
  end
  if s.error then set(r, ERROR, 'e', s.error) end
  move(r, s.state)
  clear(r, PARK, 'k')
  set_flag(r, PARK_UNTIL, false)
  if s.wake == WAKE_SET then set(r, WAKE, 'w', s.wake_value) end
  if s.state == PARKED then
    set(r, PARK, 'k', s.park)
    set_flag(r, PARK_UNTIL, s.has_until)
    call('ZADD', T .. ':park:' .. park_key(s.park), r.seq, r.key)
  end
  return s.state
end

end
