-- Counts a request against all of its limits, or against none.
--
-- KEYS  1 instances, a sorted set by when they were last heard of; 2 this instance's reservations, id -> when;
--       3 … the counters, one hash a limit.
-- ARGV  1 request id; 2 instance; 3 time or ''; 4 '1' to remember the reservation for its settlement;
--       then, for each counter one after the other, 5 windows; 6 maxima; 7 amounts.
-- Gives, as words: 1 admitted, 0 refused, -1 given back already; which limit refuses, from 0; milliseconds until there
--       is room, -1 when only reservations are in the way; for each counter: what counts, milliseconds until reset.
--
-- A counter's fields: minute: slot -> amount. day, month: 'period', 'used', and 'p:'..instance -> what it has reserved.
-- now: 'p:'..instance. What an instance that is silent has reserved does not count.
local id, instance, at = ARGV[1], ARGV[2], clock(ARGV[3])
local windows, maxima, amounts = words(ARGV[5]), words(ARGV[6]), words(ARGV[7])
local slot = slot_of(at)
local seen = redis.call('HGET', KEYS[2], id)
if seen == 'void' then
  redis.call('HDEL', KEYS[2], id)
  return '-1'
end

local alive
local function is_alive(name)
  if not alive then
    alive = {[instance] = true}
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], at - SILENT, '+inf')) do alive[other] = true end
  end
  return alive[name]
end

-- What the instances that are alive have reserved.
local function pending(key, held)
  local sum = 0
  for i = 1, #held, 2 do
    local field = held[i]
    if string.sub(field, 1, 2) == 'p:' then
      local name = string.sub(field, 3)
      if is_alive(name) then
        sum = sum + tonumber(held[i + 1])
      elseif not redis.call('ZSCORE', KEYS[1], name) then
        redis.call('HDEL', key, field)
      end
    end
  end
  return sum
end

local function minute(key, held, amount, maximum)
  local count, newest, slots = 0, nil, {}
  for i = 1, #held, 2 do
    local number, value = tonumber(held[i]), tonumber(held[i + 1])
    if number < slot - SLOTS then
      redis.call('HDEL', key, held[i])
    elseif value > 0 then
      count = count + value
      newest = math.max(newest or number, number)
      slots[#slots + 1] = {number, value}
    end
  end
  local wait
  if count + amount > maximum then
    table.sort(slots, function(a, b) return a[1] < b[1] end)
    local left = count
    wait = 0
    for _, one in ipairs(slots) do
      left = left - one[2]
      wait = leaves(one[1]) - at
      if left + amount <= maximum then break end
    end
  end
  return count, newest and leaves(newest) - at or 0, wait
end

local function calendar(key, held, amount, maximum, window)
  local period, used = period_of(window, at), 0
  local fields = {}
  for i = 1, #held, 2 do fields[held[i]] = held[i + 1] end
  if fields['period'] and tonumber(fields['period']) ~= period then
    redis.call('DEL', key)
    held, fields = {}, {}
  end
  used = tonumber(fields['used'] or '0')
  local count = used + pending(key, held)
  local reset = period_ends(window, period) - at
  if count + amount <= maximum then return count, reset, nil end
  return count, reset, used + amount <= maximum and -1 or reset
end

local reply = {1, -1, -1}
local refused, longest = -1, -2
for i = 3, #KEYS do
  local window, amount, maximum = windows[i - 2], tonumber(amounts[i - 2]), tonumber(maxima[i - 2])
  local held = redis.call('HGETALL', KEYS[i])
  local count, reset, wait
  if window == 'minute' then
    count, reset, wait = minute(KEYS[i], held, amount, maximum)
  elseif window == 'now' then
    count, reset = pending(KEYS[i], held), 0
    if count + amount > maximum then wait = -1 end
  else
    count, reset, wait = calendar(KEYS[i], held, amount, maximum, window)
  end
  if wait and wait > longest then refused, longest = i - 3, wait end
  reply[#reply + 1] = count
  reply[#reply + 1] = reset
end

local function told()
  for i, figure in ipairs(reply) do reply[i] = string.format('%.0f', figure) end
  return table.concat(reply, ' ')
end

if seen then return told() end
if refused >= 0 then
  reply[1], reply[2], reply[3] = 0, refused, longest
  return told()
end

for i = 3, #KEYS do
  local key, window, amount = KEYS[i], windows[i - 2], amounts[i - 2]
  if amount ~= '0' then
    reply[2 * i - 2] = reply[2 * i - 2] + tonumber(amount)
    if window == 'minute' then
      redis.call('HINCRBY', key, slot, amount)
      redis.call('PEXPIRE', key, (SLOTS + 2) * SLOT)
      -- A clock that was set back may have left slots ahead of this one.
      reply[2 * i - 1] = math.max(reply[2 * i - 1], leaves(slot) - at)
    else
      redis.call('HINCRBY', key, 'p:' .. instance, amount)
      local ttl = DAY
      if window ~= 'now' then
        local period = period_of(window, at)
        redis.call('HSET', key, 'period', period)
        ttl = ttl + period_ends(window, period) - at
      end
      redis.call('PEXPIRE', key, string.format('%.0f', ttl))
    end
  end
end
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[2], id, string.format('%.0f', at))
  redis.call('PEXPIRE', KEYS[2], KEEP)
  redis.call('ZADD', KEYS[1], string.format('%.0f', at), instance)
end
return told()
