-- Raises a limit by the day or month to what was used at least, on a server that may have lost it.
--
-- KEYS  1 the counter; 2 what has been told since the loss.
-- ARGV  1 time or ''; 2 window; 3 used, as far as the caller knows; 4 how many milliseconds ago that was so. After a
--       loss: 5 the instance, which reserves nothing any more, or ''; 6 when it last read the counter, by this server's
--       clock; 7 what it has settled itself since then: times and amounts; 8 what had been used when it read.
--
-- After a loss each instance knows what all had settled when it last read, and what it has settled itself since. What
-- was used is the latest of the former, and of the latter what all have settled later than that; or what a ledger has.
local at, window, used, mine = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[5]
if mine ~= '' then redis.call('HDEL', KEYS[1], 'p:' .. mine) end
local period = period_of(window, at)
if period_of(window, at - tonumber(ARGV[4])) ~= period then return 0 end
if tonumber(redis.call('HGET', KEYS[1], 'period') or period) ~= period then redis.call('DEL', KEYS[1]) end
local found = tonumber(redis.call('HGET', KEYS[1], 'used') or '0')

local function put(amount)
  redis.call('HSET', KEYS[1], 'period', period, 'used', text_of(amount))
  redis.call('PEXPIRE', KEYS[1], text_of(DAY + period_ends(window, period) - at))
end

if mine == '' then
  if found >= used then return 0 end
  put(used)
  return 1
end

local function settled_after(text, since)
  local sum, fields = 0, fields_of(text)
  for i = 1, #fields, 2 do
    if tonumber(fields[i]) > since then sum = sum + tonumber(fields[i + 1]) end
  end
  return sum
end

local told = {}
local fields = redis.call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do told[fields[i]] = fields[i + 1] end
if tonumber(told['period'] or period) ~= period then
  redis.call('DEL', KEYS[2])
  told = {}
end
local read, read_at = tonumber(ARGV[8]), tonumber(ARGV[6])
if told['read_at'] and tonumber(told['read_at']) > read_at then
  read, read_at = tonumber(told['read']), tonumber(told['read_at'])
end
told['d:' .. mine] = ARGV[7]
local total = read
for name, text in pairs(told) do
  if string.sub(name, 1, 2) == 'd:' then total = total + settled_after(text, read_at) end
end
local before = tonumber(told['total'] or '0')
total = math.max(total, used, before)
local first = tonumber(told['found'] or found) -- the server may have had it all, or some of it
local more = math.max(first, total) - math.max(first, before)
redis.call(
  'HSET', KEYS[2], 'period', period, 'read', text_of(read), 'read_at', text_of(read_at), 'd:' .. mine, ARGV[7],
  'total', text_of(total), 'found', text_of(first)
)
redis.call('PEXPIRE', KEYS[2], TELLING)
if more <= 0 then return 0 end
put(found + more)
return 1
