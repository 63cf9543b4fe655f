-- Whose turn it is: the rules of Rust's `turns`. The keys of a queue's ready jobs stand in a ring a kind, sorted by name. Keys
-- of which nothing runs come first: a claim walks on from the key that was served last, and no further than it needs. Keys of
-- which something runs are no more than there are slots.

local choose
do

local KEYS_STEP_MIN, KEYS_STEP_MAX = 16, 1000

-- By bytes, whatever the server's locale.
local function precedes(a, b)
  for i = 1, min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The keys of some lanes in a range of names.
local function stretch(queue, known, from, to)
  local rings, seen = {}, {}
  for i = 1, #known do
    local kind = known[i].kind
    if not seen[kind] then
      seen[kind] = true
      rings[#rings + 1] = {name = T .. ':ring:' .. queue .. '\31' .. kind, from = from, to = to, keys = {}, i = 1,
        step = KEYS_STEP_MIN, over = false}
    end
  end
  return rings
end

local function head(ring)
  if ring.i <= #ring.keys then return ring.keys[ring.i] end
  if ring.over then return nil end
  ring.keys, ring.i = call('ZRANGEBYLEX', ring.name, ring.from, ring.to, 'LIMIT', 0, ring.step), 1
  ring.over = #ring.keys < ring.step
  ring.step = min(ring.step * 4, KEYS_STEP_MAX)
  if #ring.keys > 0 then ring.from = '(' .. ring.keys[#ring.keys] end
  return ring.keys[1]
end

-- The next key of any of the kinds, each once.
local function next_of(rings)
  local first
  for i = 1, #rings do
    local key = head(rings[i])
    if key and (not first or precedes(key, first)) then first = key end
  end
  for i = 1, #rings do
    if first and head(rings[i]) == first then rings[i].i = rings[i].i + 1 end
  end
  return first
end

-- A walk over all keys, from the one after the last on: to the end, then the jobs without a key, then from the beginning.
local function walk_from(queue, known, last)
  local stretches = {stretch(queue, known, '(' .. last, '+'), 'none', last ~= '' and stretch(queue, known, '-', '[' .. last) or nil}
  local at_stretch = 1
  return function()
    while stretches[at_stretch] do
      local rings = stretches[at_stretch]
      if rings == 'none' then
        at_stretch = at_stretch + 1
        return ''
      end
      local key = next_of(rings)
      if key then return key end
      at_stretch = at_stretch + 1
    end
    return nil
  end
end

-- The keys of a queue of which something runs, and how many: jobs without a key are what the counted ones leave.
local function running_keys(queue)
  local running, keyed = {}, 0
  local found = call('HGETALL', T .. ':keys:' .. queue)
  for i = 1, #found, 2 do
    running[found[i]] = tonumber(found[i + 1])
    keyed = keyed + running[found[i]]
  end
  local others = tonumber(call('HGET', T .. ':running', queue) or 0) - keyed
  if others > 0 then running[''] = others end
  return running
end

-- Keys in the order of their turns: from the one after the last on.
local function in_turn(keys, last)
  local function is_served(key) return not precedes(last, key) end
  table.sort(keys, function(a, b)
    if is_served(a) ~= is_served(b) then return is_served(b) end
    return precedes(a, b)
  end)
  return keys
end

-- Lets a line have its turn; answers whether it gave a job.
local function turn(line, chosen)
  if line.room <= 0 then return false end
  local before = chosen.n
  choose_from(line, chosen, 1)
  if chosen.n == before then return false end
  line.room, chosen.last = line.room - 1, line.key
  return true
end

-- Keys without a job for the claim that it passes on its way: what has expired there is the promoter's to clear.
local BARREN_KEYS_MAX = 1000

-- Jobs by turns: `rounds` holds, by the number of jobs of them that run, the lines that wait for their turn. Who has given goes
-- behind all others of which as many run.
local function choose_by_turns(queue, known, free, chosen, s, lines)
  local running, rounds, most = running_keys(queue), {}, 0
  local function room(key, count) return (s.per_key == NONE or key == '') and CHUNK or s.per_key - count end
  local function line(key, count)
    local new = line_of(queue, known, key, chosen.suspects, s.ageing)
    new.room, lines[#lines + 1] = room(key, count), new
    return new
  end
  local function wait(count, of)
    rounds[count] = rounds[count] or {}
    rounds[count][#rounds[count] + 1] = of
    most = math.max(most, count)
  end
  local busy = {}
  for key in pairs(running) do busy[#busy + 1] = key end
  for _, key in ipairs(in_turn(busy, s.last)) do
    -- A key at its limit is passed over.
    if room(key, running[key]) > 0 then wait(running[key], key) end
  end
  local next_key = walk_from(queue, known, s.last)
  local barren = 0
  while chosen.n < free and barren < BARREN_KEYS_MAX do
    local key = next_key()
    if not key then break end
    if not running[key] and room(key, 0) > 0 then
      local new = line(key, 0)
      if turn(new, chosen) then wait(1, new) else barren = barren + 1 end
    end
  end
  local count = 1
  while count <= most and chosen.n < free do
    local round = rounds[count] or {}
    for i = 1, #round do
      if chosen.n == free then break end
      local of = type(round[i]) == 'string' and line(round[i], count) or round[i]
      if turn(of, chosen) then wait(count + 1, of) end
    end
    count = count + 1
  end
end

-- Up to `free` jobs of a queue, in the order of claims, at most so many suspects, and the expired ones met on the way: all of
-- them out of their lanes. A queue that never had a fair key has one line, and remembers no turn.
function choose(queue, kinds, free, suspects)
  local chosen = {n = 0, seqs = {}, keys = {}, texts = {}, facts = {}, fences = {}, expired = {}, suspects = suspects}
  local s, known, lines = queue_settings(queue), known_lanes(queue, kinds), {}
  if s.last then
    choose_by_turns(queue, known, free, chosen, s, lines)
    if chosen.n > 0 and chosen.last ~= s.last then
      s.last = chosen.last
      write_settings(queue, s)
    end
  else
    lines[1] = line_of(queue, known, '', suspects, s.ageing)
    choose_from(lines[1], chosen, free)
  end
  for i = 1, #lines do put_back(lines[i]) end
  return chosen
end

end
