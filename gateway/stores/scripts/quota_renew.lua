-- Refreshes an instance's entry, removes those of long silent instances, and reports which counters have changed.
--
-- KEYS  1 instances; 2 this instance's reservations; 3 limits by the day or month, by when something was last reserved or
--       settled.
-- ARGV  1 instance; 2 time or ''; 3 since when changes are reported; 4 how many at most; 5 how often the instance was
--       renewed at least, -1 for a new one.
-- Returns how often it was renewed now, -1 if this is less often: then the server has lost its data since, or has older
--       data now, and nothing is changed; how many instances are alive; until when changes are reported; the time; of each
--       change: the counter's key, what was used, what counts.
local at, since = clock(ARGV[2]), ARGV[3]
local renewed = tonumber(redis.call('HGET', KEYS[2], RENEWED) or '-1')
if renewed < tonumber(ARGV[5]) then return {'-1', 0, since, text_of(at)} end
renewed = redis.call('HINCRBY', KEYS[2], RENEWED, 1)
redis.call('ZADD', KEYS[1], text_of(at), ARGV[1])
redis.call('PEXPIRE', KEYS[1], DAY)
redis.call('PEXPIRE', KEYS[2], KEEP)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text_of(at - KEEP))
redis.call('PEXPIRE', KEYS[3], 33 * DAY)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', text_of(at - 32 * DAY))

local changed = redis.call('ZRANGEBYSCORE', KEYS[3], since, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local report = {renewed, redis.call('ZCOUNT', KEYS[1], text_of(at - SILENT), '+inf'), since, text_of(at)}
for i = 1, #changed, 2 do
  local fields, used, count = redis.call('HGETALL', changed[i]), 0, 0
  for j = 1, #fields, 2 do
    if fields[j] == 'used' then used = tonumber(fields[j + 1]) end
    if string.sub(fields[j], 1, 2) == 'p:' then count = count + tonumber(fields[j + 1]) end
  end
  report[3] = changed[i + 1]
  report[#report + 1] = changed[i]
  report[#report + 1] = text_of(used)
  report[#report + 1] = text_of(used + count)
end
-- What was settled while this ran may be reported again, so that a client can count what it has not read of.
if since ~= '-inf' and #changed < 2 * tonumber(ARGV[4]) then
  report[3] = text_of(math.max(tonumber(since), tonumber(report[3]) - 1000))
end
return report
