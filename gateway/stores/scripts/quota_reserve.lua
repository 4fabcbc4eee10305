-- Counts a request against all of its limits, or against none.
--
-- KEYS  1 instances, a sorted set by when they were last seen; 2 this instance's reservations, id -> when and how
--       much; 3 … the counters, one hash for each limit.
-- ARGV  1 request id; 2 instance; 3 time or ''; 4 'keep' to store the reservation for its settlement, 'extend' to replace
--       the stored one; 5 how often the instance was renewed at least; then, for each limit in order, 6 windows,
--       7 columns of their quantity, 8 maxima; 9 the amounts wanted. Where less will do: 10 the least; 11 the usual
--       amounts, below which nothing is granted that reservations are in the way of; 12 beyond the usual, at most the
--       free capacity divided by this is granted.
-- Returns, separated by spaces: 1 admitted, 0 refused, -1 already released, -2 the server was renewed less often, and
--       has lost its data since; which limit refuses, from 0; milliseconds
--       until there is capacity, -1 when only reservations are in the way; the amounts held; for each limit: what
--       counts, milliseconds until reset.
--
-- A counter's fields: minute: slot -> amount; for tokens also 'p:'..instance -> how much of that is only reserved. day,
-- month: 'period', 'used', and 'p:'..instance -> what it has reserved. now: 'p:'..instance. The slots of a silent
-- instance are free; what it has reserved of a day or month still counts, nobody waits for it, and it counts as used once
-- the instance is removed: what was sent upstream may have been billed.
local id, instance, at, mode = ARGV[1], ARGV[2], clock(ARGV[3]), ARGV[4]
local limits = limits_of(3, ARGV[6], ARGV[7], ARGV[8])
local wanted = amounts_of(ARGV[9])
local least = ARGV[10] and amounts_of(ARGV[10]) or wanted
local usual = ARGV[11] and amounts_of(ARGV[11]) or least
local divisor = tonumber(ARGV[12] or '1')
local slot, mine = slot_of(at), 'p:' .. instance
local stored, renewed = unpack(redis.call('HMGET', KEYS[2], id, RENEWED))
if tonumber(renewed or '-1') < tonumber(ARGV[5]) then return '-2' end
if stored == 'void' and mode ~= 'extend' then
  redis.call('HDEL', KEYS[2], id)
  return '-1'
end
if mode == 'extend' and (not stored or stored == 'void') then return '0 -1 -1 0 0 0 0' end

local alive
local function is_alive(name)
  if not alive then
    alive = {[instance] = true}
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], at - SILENT, '+inf')) do alive[other] = true end
  end
  return alive[name]
end

-- What is reserved by live instances (by all with `all`), and by removed ones, whose fields are deleted.
local function pending(key, fields, all)
  local sum, lost = 0, 0
  for i = 1, #fields, 2 do
    local field = fields[i]
    if string.sub(field, 1, 2) == 'p:' then
      local name, amount = string.sub(field, 3), tonumber(fields[i + 1])
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

-- Each of the three sets, on its limit: what counts, milliseconds until it no longer does, what of it will be released
-- as requests end, and a function that returns in how many milliseconds there will be capacity for an amount.
local function read_minute(limit, fields)
  local count, newest, slots, reserved = 0, nil, {}, false
  for i = 1, #fields, 2 do
    local number, value = tonumber(fields[i]), tonumber(fields[i + 1])
    if not number then
      reserved = true
    elseif number < slot - SLOTS then
      redis.call('HDEL', limit.key, fields[i])
    elseif value > 0 then
      count = count + value
      newest = math.max(newest or number, number)
      slots[#slots + 1] = {number, value}
    end
  end
  limit.count, limit.reset = count, newest and leaves(newest) - at or 0
  limit.releasable = reserved and math.min(pending(limit.key, fields), count) or 0
  function limit.wait(amount)
    if count - limit.releasable + amount <= limit.maximum then return -1 end
    table.sort(slots, function(a, b) return a[1] < b[1] end)
    local left, found = count, 0
    for _, one in ipairs(slots) do
      left = left - one[2]
      found = leaves(one[1]) - at
      if left + amount <= limit.maximum then break end
    end
    return found
  end
end

local function read_calendar(limit, fields)
  local period = period_of(limit.window, at)
  local by_name = {}
  for i = 1, #fields, 2 do by_name[fields[i]] = fields[i + 1] end
  if by_name['period'] and tonumber(by_name['period']) ~= period then
    redis.call('DEL', limit.key)
    fields, by_name = {}, {}
  end
  local used = tonumber(by_name['used'] or '0')
  local reserved, lost = pending(limit.key, fields, true)
  if lost > 0 then
    used = used + lost
    add(limit.key, 'used', lost)
  end
  limit.count, limit.reset = used + reserved, period_ends(limit.window, period) - at
  -- A silent instance releases nothing. Asked only where little is left: who is alive takes a command.
  local scarce = limit.maximum - limit.count < math.max(usual[limit.column], least[limit.column])
  limit.releasable = scarce and pending(limit.key, fields) or 0
  function limit.wait(amount)
    return limit.count - limit.releasable + amount <= limit.maximum and -1 or limit.reset
  end
end

local function read_now(limit, fields)
  limit.count, limit.reset, limit.releasable = pending(limit.key, fields, false), 0, 0
  function limit.wait() return -1 end
end

local READ = {minute = read_minute, now = read_now, day = read_calendar, month = read_calendar}

-- Takes what is held out of the counters (`by` is take), or puts it back (add).
local function change(held, by)
  for _, limit in ipairs(limits) do
    local key, window, amount = limit.key, limit.window, held[limit.column]
    local field, live = mine, window == 'now'
    if window == 'minute' then
      if amount > 0 then by(key, mine, amount) end
      field = slot_of(held.at)
      live = field >= slot - SLOTS
    elseif window == 'day' or window == 'month' then
      live = tonumber(redis.call('HGET', key, 'period') or '-1') == period_of(window, held.at)
    end
    if live and amount > 0 then by(key, field, amount) end
  end
end

-- An extension takes out what the request holds, and reserves anew; the request itself and its slots stay counted.
local before
if mode == 'extend' then
  before = read_held(stored)
  before.requests, before.answers = before[REQUESTS], before[ANSWERS]
  before[REQUESTS], before[ANSWERS], wanted[REQUESTS], wanted[ANSWERS] = 0, 0, 0, 0
  change(before, take)
end

-- What can be granted of each column, and the refusing limit with the longest wait.
local granted = {wanted[1], wanted[2], wanted[3], wanted[4]}
local refusing, longest = -1, -2
for i, limit in ipairs(limits) do
  READ[limit.window](limit, redis.call('HGETALL', limit.key))
  local column = limit.column
  local most, normal = wanted[column], usual[column]
  if most > 0 then
    local free = limit.maximum - limit.count
    local grant, need = math.min(most, free), math.min(least[column], most)
    if divisor > 1 then grant = math.min(grant, math.max(normal, math.floor(free / divisor))) end
    if free < normal and normal <= free + limit.releasable and limit.window ~= 'now' then
      need = math.min(normal, most)
    end
    if grant < need then
      local milliseconds = limit.wait(need)
      if milliseconds > longest then refusing, longest = i - 1, milliseconds end
    end
    granted[column] = math.min(granted[column], grant)
  end
end

local function reply(admitted, held)
  local figures = {admitted, admitted == 1 and -1 or refusing, admitted == 1 and -1 or longest}
  for column = 1, 4 do figures[#figures + 1] = held[column] end
  for _, limit in ipairs(limits) do
    figures[#figures + 1] = limit.count
    figures[#figures + 1] = limit.reset
  end
  for i, figure in ipairs(figures) do figures[i] = text_of(figure) end
  return table.concat(figures, ' ')
end

if stored and mode ~= 'extend' then return reply(1, read_held(stored)) end
if refusing >= 0 then
  if before then change(before, add) end
  return reply(0, {0, 0, 0, 0})
end

for _, limit in ipairs(limits) do
  local key, window, column = limit.key, limit.window, limit.column
  local amount = granted[column]
  if amount > 0 then
    limit.count = limit.count + amount
    if window == 'minute' then
      add(key, slot, amount)
      if column ~= REQUESTS then add(key, mine, amount) end
      redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), (SLOTS + 2) * SLOT))
      -- A debt, or a clock that was set back, may have left slots ahead of this one.
      limit.reset = math.max(limit.reset, leaves(slot) - at)
    else
      add(key, mine, amount)
      local ttl = DAY
      if window ~= 'now' then
        local period = period_of(window, at)
        redis.call('HSET', key, 'period', period)
        ttl = ttl + period_ends(window, period) - at
        redis.call('ZADD', KEYS[1] .. ':changed', text_of(at), key)
      end
      redis.call('PEXPIRE', key, text_of(ttl))
    end
  end
end
if before then granted[REQUESTS], granted[ANSWERS] = before.requests, before.answers end
if mode ~= '' then
  redis.call('HSET', KEYS[2], id, write_held(at, granted))
  redis.call('PEXPIRE', KEYS[2], KEEP)
  redis.call('ZADD', KEYS[1], text_of(at), instance)
end
return reply(1, granted)
