-- Adds what was used during an outage of the store. Does nothing the second time.
--
-- KEYS  1 a marker that it was done; 2 … the counters.
-- ARGV  1 time or ''; 2 how many milliseconds ago it was used; then, for each limit in order, 3 windows, 4 columns of
--       their quantity; 5 the amounts used.
local at = clock(ARGV[1])
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', KEEP) then return 0 end
local since, used = at - tonumber(ARGV[2]), amounts_of(ARGV[5])
for _, limit in ipairs(limits_of(2, ARGV[3], ARGV[4])) do
  local key, window, amount = limit.key, limit.window, used[limit.column]
  if amount > 0 then
    if window == 'minute' and slot_of(since) >= slot_of(at) - SLOTS then
      add(key, slot_of(since), amount)
      redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), (SLOTS + 2) * SLOT))
    elseif window == 'day' or window == 'month' then
      local period = period_of(window, at)
      if period_of(window, since) == period then
        if tonumber(redis.call('HGET', key, 'period') or period) ~= period then redis.call('DEL', key) end
        add(key, 'used', amount)
        redis.call('HSET', key, 'period', period)
        redis.call('PEXPIRE', key, text_of(DAY + period_ends(window, period) - at))
      end
    end
  end
end
return 1
