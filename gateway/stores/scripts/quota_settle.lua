-- Puts what a request has used in the place of what it holds. Does nothing the second time.
--
-- KEYS  1 the instance's reservations; 2 … the counters.
-- ARGV  1 request id; 2 instance; 3 time or ''; 4 '1' if the reservation may yet arrive, and is then to be ignored;
--       5 minutes over which a debt is spread; then, for each counter one after the other, 6 windows, 7 places of their
--       quantity in 9, 8 maxima; 9 used: requests, tokens, nano-dollars, answers.
local id, instance, at, minutes = ARGV[1], ARGV[2], clock(ARGV[3]), tonumber(ARGV[5])
local seen = redis.call('HGET', KEYS[1], id)
if seen == 'void' then return 0 end
if not seen then
  if ARGV[4] == '1' then
    redis.call('HSET', KEYS[1], id, 'void')
    redis.call('PEXPIRE', KEYS[1], KEEP)
  end
  return 0
end
redis.call('HDEL', KEYS[1], id)
local held = read_held(seen)
local since = held.at

-- Adds what was used beyond the reservation: what goes over the maximum is left to the minutes that follow.
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
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(redis.call('PTTL', key), leaves(last) + SLOT - at)))
end

-- A count of requests is final.
local windows, places, maxima, taken = words(ARGV[6]), words(ARGV[7]), words(ARGV[8]), words(ARGV[9])
for i = 2, #KEYS do
  local key, window, place = KEYS[i], windows[i - 1], tonumber(places[i - 1]) + 1
  local reserved, used = held[place], tonumber(taken[place])
  if window == 'now' then
    take(key, 'p:' .. instance, reserved)
  elseif window == 'minute' and place > 1 then
    take(key, 'p:' .. instance, reserved)
    local slot = slot_of(since)
    local live = slot >= slot_of(at) - SLOTS
    if used > reserved then
      charge(key, live and slot or slot_of(at), used - reserved, tonumber(maxima[i - 1]))
    elseif live then
      take(key, slot, reserved - used)
    end
  elseif window ~= 'minute' then
    local period = period_of(window, since)
    if period == period_of(window, at) then
      take(key, 'p:' .. instance, reserved)
      if used > 0 then
        add(key, 'used', used)
        redis.call('HSET', key, 'period', period)
        redis.call('PEXPIRE', key, string.format('%.0f', DAY + period_ends(window, period) - at))
      end
    end
  end
end
return 1
