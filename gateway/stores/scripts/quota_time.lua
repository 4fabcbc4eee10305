-- Shared by the quota scripts, and put before them: windows of time. All times are milliseconds since 1970, UTC.
local SLOT, SLOTS, DAY = 1000, 60, 86400000
local SILENT = 10000 -- an instance that has not been heard of for this long has crashed: it tells each second
local KEEP = 3600000 -- and after this long is forgotten

-- Redis's own clock, unless the caller gives the time.
local function clock(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function slot_of(at) return math.floor(at / SLOT) end

-- When a slot no longer counts.
local function leaves(slot) return (slot + SLOTS + 1) * SLOT end

-- Months since year 0; after https://howardhinnant.github.io/date_algorithms.html
local function month_of(at)
  local z = math.floor(at / DAY) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400
  if month <= 2 then year = year + 1 end
  return year * 12 + month - 1
end

local function month_begins(number)
  local year, month = math.floor(number / 12), number % 12 + 1
  if month <= 2 then year = year - 1 end
  local era = math.floor(year / 400)
  local yoe = year - era * 400
  local doy = math.floor((153 * (month > 2 and month - 3 or month + 9) + 2) / 5)
  local doe = yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy
  return (era * 146097 + doe - 719468) * DAY
end

local function period_of(window, at)
  if window == 'day' then return math.floor(at / DAY) end
  return month_of(at)
end

local function period_ends(window, period)
  if window == 'day' then return (period + 1) * DAY end
  return month_begins(period + 1)
end

-- The words of a text. Many figures travel as one argument: for a client each argument has its price.
local function words(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do found[#found + 1] = word end
  return found
end

-- What is no longer there, or has expired, must not become a debt.
local function take(key, field, amount)
  if amount > 0 and redis.call('HINCRBY', key, field, string.format('%.0f', -amount)) <= 0 then
    redis.call('HDEL', key, field)
  end
end

local function add(key, field, amount)
  return redis.call('HINCRBY', key, field, string.format('%.0f', amount))
end

-- What a request holds, as its reservation was written down: when, and how much of each quantity.
local function read_held(text)
  local found = words(text)
  return {at = tonumber(found[1]), tonumber(found[2]), tonumber(found[3]), tonumber(found[4]), tonumber(found[5])}
end
