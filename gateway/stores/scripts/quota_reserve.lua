-- Counts a request against all of its limits, or against none.
--
-- KEYS  1 instances, a sorted set by when they were last heard of; 2 this instance's reservations, id -> when and how
--       much; 3 … the counters, one hash a limit.
-- ARGV  1 request id; 2 instance; 3 time or ''; 4 'keep' to remember the reservation for its settlement, 'extend' to put
--       another in its place; then, for each counter one after the other, 5 windows, 6 places of their quantity in 8,
--       7 maxima; 8 amounts: requests, tokens, nano-dollars, answers at once. Where less will do: 9 the least; 10 what is
--       usual, below which nothing is taken that reservations are in the way of; 11 of the room that there is, beyond
--       what is usual, only one part in so many.
-- Gives, as words: 1 admitted, 0 refused, -1 given back already; which limit refuses, from 0; milliseconds until there
--       is room, -1 when only reservations are in the way; what is held, as in 8; for each counter: what counts,
--       milliseconds until reset.
--
-- A counter's fields: minute: slot -> amount; of tokens also 'p:'..instance -> how much of that is only reserved. day,
-- month: 'period', 'used', and 'p:'..instance -> what it has reserved. now: 'p:'..instance. Of an instance that is silent
-- the places are free; what it has reserved of a day or month counts on, and as used once it is forgotten: what was sent
-- upstream may have been billed.
local id, instance, at, mode = ARGV[1], ARGV[2], clock(ARGV[3]), ARGV[4]
local windows, places, maxima = words(ARGV[5]), words(ARGV[6]), words(ARGV[7])
local function figures(text)
  local found = words(text)
  return {tonumber(found[1]), tonumber(found[2]), tonumber(found[3]), tonumber(found[4])}
end
local amounts = figures(ARGV[8])
local least = ARGV[9] and figures(ARGV[9]) or amounts
local usual = ARGV[10] and figures(ARGV[10]) or least
local share = tonumber(ARGV[11] or '1')
local slot = slot_of(at)
local seen = redis.call('HGET', KEYS[2], id)
if seen == 'void' and mode ~= 'extend' then
  redis.call('HDEL', KEYS[2], id)
  return '-1'
end
if mode == 'extend' and (not seen or seen == 'void') then return '0 -1 -1 0 0 0 0' end

local alive
local function is_alive(name)
  if not alive then
    alive = {[instance] = true}
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], at - SILENT, '+inf')) do alive[other] = true end
  end
  return alive[name]
end

-- What is reserved: by the instances that are alive, and by those that are forgotten, whose fields are taken out.
local function pending(key, held, all)
  local sum, lost = 0, 0
  for i = 1, #held, 2 do
    local field = held[i]
    if string.sub(field, 1, 2) == 'p:' then
      local name, amount = string.sub(field, 3), tonumber(held[i + 1])
      if name ~= instance and not redis.call('ZSCORE', KEYS[1], name) then
        redis.call('HDEL', key, field)
        lost = lost + amount
      elseif all or is_alive(name) then
        sum = sum + amount
      end
    end
  end
  return sum, lost
end

-- What counts, milliseconds until it no longer does, what of it will come free as requests end, and a function that
-- tells in how many milliseconds there will be room for an amount.
local function minute(key, held, maximum)
  local count, newest, slots, waiting = 0, nil, {}, false
  for i = 1, #held, 2 do
    local number, value = tonumber(held[i]), tonumber(held[i + 1])
    if not number then
      waiting = true
    elseif number < slot - SLOTS then
      redis.call('HDEL', key, held[i])
    elseif value > 0 then
      count = count + value
      newest = math.max(newest or number, number)
      slots[#slots + 1] = {number, value}
    end
  end
  local coming = waiting and math.min(pending(key, held), count) or 0
  local function wait(amount)
    if count - coming + amount <= maximum then return -1 end
    table.sort(slots, function(a, b) return a[1] < b[1] end)
    local left, found = count, 0
    for _, one in ipairs(slots) do
      left = left - one[2]
      found = leaves(one[1]) - at
      if left + amount <= maximum then break end
    end
    return found
  end
  return count, newest and leaves(newest) - at or 0, coming, wait
end

local function calendar(key, held, maximum, window)
  local period = period_of(window, at)
  local fields = {}
  for i = 1, #held, 2 do fields[held[i]] = held[i + 1] end
  if fields['period'] and tonumber(fields['period']) ~= period then
    redis.call('DEL', key)
    held, fields = {}, {}
  end
  local used = tonumber(fields['used'] or '0')
  local waiting, lost = pending(key, held, true)
  if lost > 0 then
    used = used + lost
    add(key, 'used', lost)
  end
  local reset = period_ends(window, period) - at
  local function wait(amount) return used + amount <= maximum and -1 or reset end
  return used + waiting, reset, waiting, wait
end

local function under_way(key, held)
  return (pending(key, held, false)), 0, 0, function() return -1 end
end

-- What is held, taken out of the counters and put back.
local function place_of(i) return tonumber(places[i - 2]) + 1 end
local function change(held, by)
  for i = 3, #KEYS do
    local key, window, amount = KEYS[i], windows[i - 2], held[place_of(i)]
    local field = 'p:' .. instance
    if window == 'minute' then
      if amount > 0 then by(key, field, amount) end
      field = slot_of(held.at)
    end
    local live = window == 'now' or window == 'minute' and field >= slot - SLOTS
    if window == 'day' or window == 'month' then
      live = tonumber(redis.call('HGET', key, 'period') or '-1') == period_of(window, held.at)
    end
    if live and amount > 0 then by(key, field, amount) end
  end
end
local before
if mode == 'extend' then
  before = read_held(seen)
  before.requests, before.answers = before[1], before[4]
  before[1], before[4], amounts[1], amounts[4] = 0, 0, 0, 0
  change(before, take)
end

local reply = {1, -1, -1, 0, 0, 0, 0}
local granted = {amounts[1], amounts[2], amounts[3], amounts[4]}
local refused, longest = -1, -2
for i = 3, #KEYS do
  local window, place, maximum = windows[i - 2], place_of(i), tonumber(maxima[i - 2])
  local held, most = redis.call('HGETALL', KEYS[i]), amounts[place]
  local count, reset, coming, wait
  if window == 'minute' then
    count, reset, coming, wait = minute(KEYS[i], held, maximum)
  elseif window == 'now' then
    count, reset, coming, wait = under_way(KEYS[i], held)
  else
    count, reset, coming, wait = calendar(KEYS[i], held, maximum, window)
  end
  if most > 0 then
    local free = maximum - count
    local most_here, need = math.min(most, free), math.min(least[place], most)
    if share > 1 then most_here = math.min(most_here, math.max(usual[place], math.floor(free / share))) end
    if free < usual[place] and usual[place] <= free + coming and window ~= 'now' then
      need = math.min(usual[place], most)
    end
    if most_here < need then
      local seconds = wait(need)
      if seconds > longest then refused, longest = i - 3, seconds end
    end
    granted[place] = math.min(granted[place], most_here)
  end
  reply[#reply + 1] = count
  reply[#reply + 1] = reset
end

local function told()
  for i, figure in ipairs(reply) do reply[i] = string.format('%.0f', figure) end
  return table.concat(reply, ' ')
end

if seen and mode ~= 'extend' then
  local held = read_held(seen)
  for j = 1, 4 do reply[3 + j] = held[j] end
  return told()
end
if refused >= 0 then
  if before then change(before, add) end
  reply[1], reply[2], reply[3] = 0, refused, longest
  return told()
end

for i = 3, #KEYS do
  local key, window, amount = KEYS[i], windows[i - 2], granted[place_of(i)]
  if amount > 0 then
    reply[2 * i + 2] = reply[2 * i + 2] + amount
    if window == 'minute' then
      add(key, slot, amount)
      if place_of(i) > 1 then add(key, 'p:' .. instance, amount) end
      redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), (SLOTS + 2) * SLOT))
      -- A debt, or a clock that was set back, may have left slots ahead of this one.
      reply[2 * i + 3] = math.max(reply[2 * i + 3], leaves(slot) - at)
    else
      add(key, 'p:' .. instance, amount)
      local ttl = DAY
      if window ~= 'now' then
        local period = period_of(window, at)
        redis.call('HSET', key, 'period', period)
        ttl = ttl + period_ends(window, period) - at
        redis.call('ZADD', KEYS[1] .. ':changed', string.format('%.0f', at), key)
      end
      redis.call('PEXPIRE', key, string.format('%.0f', ttl))
    end
  end
end
if before then granted[1], granted[4] = before.requests, before.answers end
for j = 1, 4 do reply[3 + j] = granted[j] end
if mode ~= '' then
  local held = {at, granted[1], granted[2], granted[3], granted[4]}
  for i, figure in ipairs(held) do held[i] = string.format('%.0f', figure) end
  redis.call('HSET', KEYS[2], id, table.concat(held, ' '))
  redis.call('PEXPIRE', KEYS[2], KEEP)
  redis.call('ZADD', KEYS[1], string.format('%.0f', at), instance)
end
return told()
