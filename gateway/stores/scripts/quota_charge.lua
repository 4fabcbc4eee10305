-- Adds what was used while the store was away. Does nothing the second time.
--
-- KEYS  1 the mark that it was done; 2 … the counters.
-- ARGV  1 time or ''; 2 how many milliseconds ago it was used; then, for each counter one after the other, 3 windows,
--       4 places of their quantity in 5; 5 used: requests, tokens, nano-dollars, answers.
local at = clock(ARGV[1])
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', KEEP) then return 0 end
local since = at - tonumber(ARGV[2])
local windows, places, taken = words(ARGV[3]), words(ARGV[4]), words(ARGV[5])
for i = 2, #KEYS do
  local key, window, used = KEYS[i], windows[i - 1], tonumber(taken[tonumber(places[i - 1]) + 1])
  if used > 0 then
    if window == 'minute' and slot_of(since) >= slot_of(at) - SLOTS then
      add(key, slot_of(since), used)
      redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), (SLOTS + 2) * SLOT))
    elseif window == 'day' or window == 'month' then
      local period = period_of(window, at)
      if period_of(window, since) == period then
        if tonumber(redis.call('HGET', key, 'period') or period) ~= period then redis.call('DEL', key) end
        add(key, 'used', used)
        redis.call('HSET', key, 'period', period)
        redis.call('PEXPIRE', key, string.format('%.0f', DAY + period_ends(window, period) - at))
      end
    end
  end
end
return 1
