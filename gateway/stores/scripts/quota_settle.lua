-- Puts what a request has used in the place of what it had reserved. Does nothing the second time.
--
-- KEYS  1 the instance's reservations; 2 … the counters.
-- ARGV  1 request id; 2 instance; 3 time or ''; 4 '1' if the reservation may yet arrive, and is then to be ignored;
--       then, for each counter one after the other, 5 windows; 6 reserved; 7 used.
local id, instance, at = ARGV[1], ARGV[2], clock(ARGV[3])
local since = redis.call('HGET', KEYS[1], id)
if since == 'void' then return 0 end
if not since then
  if ARGV[4] == '1' then
    redis.call('HSET', KEYS[1], id, 'void')
    redis.call('PEXPIRE', KEYS[1], KEEP)
  end
  return 0
end
redis.call('HDEL', KEYS[1], id)
since = tonumber(since)

-- What is no longer there, or has expired, must not become a debt.
local function take(key, field, amount)
  if amount ~= '0' and redis.call('HINCRBY', key, field, '-' .. amount) <= 0 then redis.call('HDEL', key, field) end
end

local windows, held, taken = words(ARGV[5]), words(ARGV[6]), words(ARGV[7])
for i = 2, #KEYS do
  local key, window, reserved, used = KEYS[i], windows[i - 1], held[i - 1], taken[i - 1]
  if window == 'now' then
    take(key, 'p:' .. instance, reserved)
  elseif window == 'minute' then
    local slot = slot_of(since)
    if reserved ~= used and slot >= slot_of(at) - SLOTS then
      if used ~= '0' then redis.call('HINCRBY', key, slot, used) end
      take(key, slot, reserved)
      redis.call('PEXPIRE', key, (SLOTS + 2) * SLOT)
    end
  else
    local period = period_of(window, since)
    if period == period_of(window, at) then
      take(key, 'p:' .. instance, reserved)
      if used ~= '0' then
        redis.call('HINCRBY', key, 'used', used)
        redis.call('HSET', key, 'period', period)
        redis.call('PEXPIRE', key, string.format('%.0f', DAY + period_ends(window, period) - at))
      end
    end
  end
end
return 1
