-- Raises a limit by the day or month to what was used at least, on a server that may have lost it.
--
-- KEYS  1 the counter.   ARGV  1 time or ''; 2 window; 3 used; 4 how many milliseconds ago that was so; 5 an instance
--       that reserves nothing any more, or ''.
if ARGV[5] ~= '' then redis.call('HDEL', KEYS[1], 'p:' .. ARGV[5]) end
local at, window, used = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local period = period_of(window, at)
if period_of(window, at - tonumber(ARGV[4])) ~= period then return 0 end
if tonumber(redis.call('HGET', KEYS[1], 'period') or period) ~= period then redis.call('DEL', KEYS[1]) end
if tonumber(redis.call('HGET', KEYS[1], 'used') or '0') >= used then return 0 end
redis.call('HSET', KEYS[1], 'period', period, 'used', text_of(used))
redis.call('PEXPIRE', KEYS[1], text_of(DAY + period_ends(window, period) - at))
return 1
