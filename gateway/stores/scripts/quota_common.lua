-- Put before each of the quota scripts: windows of time, and the limits that a script is given. All times are
-- milliseconds since 1970, UTC.
local SLOT, SLOTS, DAY = 1000, 60, 86400000
local SILENT = 10000 -- an instance that has not renewed its entry for this long has crashed: it does so each second
local KEEP = 3600000 -- and after this long is removed
local TELLING = 60000 -- for so long after a loss the instances' accounts of it are put together
local RENEWED = '#' -- among an instance's reservations, how often it was renewed

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

-- The fields of a text, separated by spaces: packing many figures into one argument saves the client time.
local function fields_of(text)
  local found = {}
  for field in string.gmatch(text, '%S+') do found[#found + 1] = field end
  return found
end

local function text_of(figure) return string.format('%.0f', figure) end

-- The four columns of an amount: requests, tokens, nano-dollars, answers at once. In Lua they are 1 to 4.
local REQUESTS, ANSWERS = 1, 4
local function amounts_of(text)
  local found = fields_of(text)
  return {tonumber(found[1]), tonumber(found[2]), tonumber(found[3]), tonumber(found[4])}
end

-- The limits that a script is given: one for each key from KEYS[first] on, each with its key, its window, the column of
-- its quantity, and its maximum. The arguments are lists separated by spaces, in the order of the keys; columns from 0.
local function limits_of(first, windows, columns, maxima)
  windows, columns, maxima = fields_of(windows), fields_of(columns), fields_of(maxima or '')
  local limits = {}
  for i = 1, #KEYS - first + 1 do
    limits[i] = {
      key = KEYS[first + i - 1], window = windows[i], column = tonumber(columns[i]) + 1, maximum = tonumber(maxima[i]),
    }
  end
  return limits
end

-- What was removed, or has expired, must not become a debt.
local function take(key, field, amount)
  if amount > 0 and redis.call('HINCRBY', key, field, text_of(-amount)) <= 0 then
    redis.call('HDEL', key, field)
  end
end

local function add(key, field, amount)
  return redis.call('HINCRBY', key, field, text_of(amount))
end

-- A reservation as the instance's hash has it: its time, then its amounts.
local function read_held(text)
  local at, amounts = string.match(text, '^(%S+) (.*)$')
  local held = amounts_of(amounts)
  held.at = tonumber(at)
  return held
end

local function write_held(at, amounts)
  return table.concat({text_of(at), text_of(amounts[1]), text_of(amounts[2]), text_of(amounts[3]), text_of(amounts[4])}, ' ')
end
