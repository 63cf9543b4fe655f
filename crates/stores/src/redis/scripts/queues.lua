-- What is set for a queue, and whose turn it is in it.

-- A queue's settings: `paused`, `max` running, `keep`, `a`, `b` for retention, running `per_key`, `ageing`; and the key that was
-- served `last`, nil while the queue has never had a fair key.
local SETTINGS = '>BdBddddB'

local function queue_settings(queue)
  local s = settings[queue]
  if s then return s end
  local text = call('HGET', T .. ':queues', queue)
  s = {paused = 0, max = NONE, keep = 0, a = NONE, b = NONE, per_key = NONE, ageing = NONE, last = nil}
  if text then
    local keyed, from
    s.paused, s.max, s.keep, s.a, s.b, s.per_key, s.ageing, keyed, from = read(SETTINGS, text)
    if keyed == 1 then s.last = sub(text, from) end
  end
  settings[queue] = s
  return s
end

local function write_settings(queue, s)
  if s.paused == 0 and s.max == NONE and s.keep == 0 and s.per_key == NONE and s.ageing == NONE and not s.last then
    call('HDEL', T .. ':queues', queue)
    return
  end
  local text = pack(SETTINGS, s.paused, s.max, s.keep, s.a, s.b, s.per_key, s.ageing, s.last and 1 or 0)
  call('HSET', T .. ':queues', queue, text .. (s.last or ''))
end

-- From its first fair key on, the keys of a queue take turns.
local function begin_turns(l)
  if l.key == '' then return end
  local s = queue_settings(l.queue)
  if s.last then return end
  s.last = ''
  write_settings(l.queue, s)
end
