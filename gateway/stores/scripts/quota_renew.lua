-- Says that an instance is alive, forgets those that have long been silent, and tells what has changed.
--
-- KEYS  1 instances; 2 this instance's reservations; 3 limits by the day or month, by when something was last reserved;
--       4 this instance's own mark.
-- ARGV  1 instance; 2 time or ''; 3 since when changes are told; 4 how many at most.
-- Gives 1 if the instance has left its mark, how many are alive, until when changes are told; of each: its key, what was used,
--       what counts.
local at, since = clock(ARGV[2]), ARGV[3]
local known = redis.call('EXISTS', KEYS[4])
redis.call('SET', KEYS[4], '1', 'PX', KEEP)
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
redis.call('PEXPIRE', KEYS[1], DAY)
redis.call('PEXPIRE', KEYS[2], KEEP)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', at - KEEP))
redis.call('PEXPIRE', KEYS[3], 33 * DAY)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', at - 32 * DAY))

local changed = redis.call('ZRANGEBYSCORE', KEYS[3], since, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local told = {known, redis.call('ZCOUNT', KEYS[1], string.format('%.0f', at - SILENT), '+inf'), since}
for i = 1, #changed, 2 do
  local fields, used, count = redis.call('HGETALL', changed[i]), 0, 0
  for j = 1, #fields, 2 do
    if fields[j] == 'used' then used = tonumber(fields[j + 1]) end
    if string.sub(fields[j], 1, 2) == 'p:' then count = count + tonumber(fields[j + 1]) end
  end
  told[3] = changed[i + 1]
  told[#told + 1] = changed[i]
  told[#told + 1] = string.format('%.0f', used)
  told[#told + 1] = string.format('%.0f', used + count)
end
return told
