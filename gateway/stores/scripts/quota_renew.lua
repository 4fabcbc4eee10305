-- Refreshes an instance's entry, removes those of long silent instances, and reports which counters have changed.
--
-- KEYS  1 instances; 2 this instance's reservations; 3 limits by the day or month, by when something was last reserved or
--       settled; 4 the last report.
-- ARGV  1 instance; 2 time or ''; 3 since when changes are reported; 4 how many at most; 5 how often the instance was
--       renewed at least, -1 for a new one; 6 how many milliseconds old the report may be: another's will do.
-- Returns how often it was renewed now, -1 if this is less often: then the server has lost its data since, or has older
--       data now, and nothing is changed; how many instances are alive; until when changes are reported; the time of the
--       report; the report as JSON, of each change: the counter's key, what was used, what counts.
local at, since, most, shared = clock(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6])
local renewed = tonumber(redis.call('HGET', KEYS[2], RENEWED) or '-1')
if renewed < tonumber(ARGV[5]) then return {'-1', 0, since, text_of(at), '[]'} end
renewed = redis.call('HINCRBY', KEYS[2], RENEWED, 1)
redis.call('PEXPIRE', KEYS[2], KEEP)
redis.call('ZADD', KEYS[1], text_of(at), ARGV[1])
local alive = redis.call('ZCOUNT', KEYS[1], text_of(at - SILENT), '+inf')

-- Reading is most of the work, and grows with the counters: who asks soon after another is told what that one was.
if since ~= '-inf' and shared > 0 then
  local from, till, made, report = unpack(redis.call('HMGET', KEYS[4], 'from', 'until', 'made', 'report'))
  local age = at - tonumber(made or at)
  if age > 0 and age <= shared and tonumber(from) <= tonumber(since) and tonumber(since) <= tonumber(till) then
    return {renewed, alive, till, made, report}
  end
end

redis.call('PEXPIRE', KEYS[1], DAY)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text_of(at - KEEP))
redis.call('PEXPIRE', KEYS[3], 33 * DAY)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', text_of(at - 32 * DAY))

-- Others have read up to an earlier time: a second more, where that is not too much, is for them.
local from = since
if since ~= '-inf' then
  local earlier = text_of(tonumber(since) - 1000)
  if redis.call('ZCOUNT', KEYS[3], earlier, '+inf') < most then from = earlier end
end
local changed = redis.call('ZRANGEBYSCORE', KEYS[3], from, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local till, found = since, {}
for i = 1, #changed, 2 do
  local fields, used, count = redis.call('HGETALL', changed[i]), 0, 0
  for j = 1, #fields, 2 do
    if fields[j] == 'used' then used = tonumber(fields[j + 1]) end
    if string.sub(fields[j], 1, 2) == 'p:' then count = count + tonumber(fields[j + 1]) end
  end
  till = changed[i + 1]
  found[#found + 1] = changed[i]
  found[#found + 1] = text_of(used)
  found[#found + 1] = text_of(used + count)
end
-- What was settled while this ran may be reported again, so that a client can count what it has not read of.
if since ~= '-inf' then
  if #changed < 2 * most then till = tonumber(till) - 1000 end
  till = text_of(math.max(tonumber(since), tonumber(till)))
end
local report = #found > 0 and cjson.encode(found) or '[]'
if since == '-inf' then
  redis.call('DEL', KEYS[4]) -- it may be of before a loss
else
  redis.call('HSET', KEYS[4], 'from', from, 'until', till, 'made', text_of(at), 'report', report)
  redis.call('PEXPIRE', KEYS[4], KEEP)
end
return {renewed, alive, till, text_of(at), report}
