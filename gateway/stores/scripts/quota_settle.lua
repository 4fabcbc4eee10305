-- Replaces what a request holds by what it used. Does nothing the second time. Returns the time.
--
-- KEYS  1 the instance's reservations; 2 limits by the day or month, by when something was last reserved or settled;
--       3 … the counters.
-- ARGV  1 request id; 2 instance; 3 time or ''; 4 '1' if the reservation may yet arrive, and is then to be ignored;
--       5 minutes over which a debt is spread; then, for each limit in order, 6 windows, 7 columns of their quantity,
--       8 maxima; 9 the amounts used.
local id, mine, at, minutes = ARGV[1], 'p:' .. ARGV[2], clock(ARGV[3]), tonumber(ARGV[5])
local used = amounts_of(ARGV[9])
local stored = redis.call('HGET', KEYS[1], id)
if stored == 'void' then return text_of(at) end
if not stored then
  if ARGV[4] == '1' then
    redis.call('HSET', KEYS[1], id, 'void')
    redis.call('PEXPIRE', KEYS[1], KEEP)
  end
  return text_of(at)
end
redis.call('HDEL', KEYS[1], id)
local held = read_held(stored)

-- Adds what was used beyond the reservation: what exceeds the maximum is a debt of the minutes that follow.
local function charge(key, slot, amount, maximum)
  local count, slots = 0, redis.call('HGETALL', key)
  for i = 1, #slots, 2 do
    local number, value = tonumber(slots[i]), tonumber(slots[i + 1])
    if number and number >= slot_of(at) - SLOTS and value > 0 then count = count + value end
  end
  local owed = math.min(amount, math.max(0, count + amount - maximum))
  local last = slot
  if amount > owed then add(key, slot, amount - owed) end
  for minute = 1, minutes do
    if owed <= 0 then break end
    local following = slot + minute * (SLOTS + 1)
    local there = tonumber(redis.call('HGET', key, following) or '0')
    local part = minute == minutes and owed or math.min(owed, maximum - there)
    if part > 0 then
      add(key, following, part)
      owed = owed - part
    end
    last = following
  end
  redis.call('PEXPIRE', key, text_of(math.max(redis.call('PTTL', key), leaves(last) + SLOT - at)))
end

for _, limit in ipairs(limits_of(3, ARGV[6], ARGV[7], ARGV[8])) do
  local key, window, column = limit.key, limit.window, limit.column
  local reserved, amount = held[column], used[column]
  if window == 'now' then
    take(key, mine, reserved)
  elseif window == 'minute' then
    if column ~= REQUESTS then -- a count of requests is final
      take(key, mine, reserved)
      local slot = slot_of(held.at)
      local live = slot >= slot_of(at) - SLOTS
      if amount > reserved then
        charge(key, live and slot or slot_of(at), amount - reserved, limit.maximum)
      elseif live then
        take(key, slot, reserved - amount)
      end
    end
  else
    local period = period_of(window, held.at)
    if period == period_of(window, at) then
      take(key, mine, reserved)
      if amount > 0 then
        add(key, 'used', amount)
        redis.call('ZADD', KEYS[2], text_of(at), key)
        redis.call('HSET', key, 'period', period)
        redis.call('PEXPIRE', key, text_of(DAY + period_ends(window, period) - at))
      end
    end
  end
end
return text_of(at)
