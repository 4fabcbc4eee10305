-- Adds an entry to its partition, and removes what is too old or too much.
--
-- KEYS  1 the partition's stream; 2 bytes by stream; 3 streams by when they expire.
-- ARGV  1 the entry's time to live in milliseconds; 2 bytes that all partitions may have; 3 entries that this one may
--       have; 4 … the message's fields, name and value in turn. 'expires' is in seconds since 1970.
-- Returns the message's id.
local time = redis.call('TIME')
local now, ttl = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1])
local max_bytes, max_entries = tonumber(ARGV[2]), tonumber(ARGV[3])
local fields = {}
for i = 4, #ARGV do fields[#fields + 1] = ARGV[i] end

for _, name in ipairs(redis.call('ZRANGEBYSCORE', expiries, '-inf', now, 'LIMIT', 0, 16)) do
  if redis.call('EXISTS', name) == 0 then drop(name) end
end
if redis.call('EXISTS', stream) == 0 then drop(stream) end

local id = redis.call('XADD', stream, '*', unpack(fields))
local total = count(stream, size_of(fields))

-- The stream lives as long as its longest-lived entry.
local left = math.max(redis.call('PTTL', stream), ttl)
redis.call('PEXPIRE', stream, left)
redis.call('ZADD', expiries, now + left, stream)
for _, key in ipairs({sizes, expiries}) do
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), left + 60000))
end

local function is_old(message)
  local fields = message[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'expires' then return tonumber(fields[i + 1]) * 1000 <= now end
  end
  return false
end
local first = oldest(stream)
while first[1] ~= id and (is_old(first) or redis.call('XLEN', stream) > max_entries) do
  total = delete(stream, first)
  first = oldest(stream)
end

-- Too many bytes: the entries of the streams that expire first go first, the oldest of each.
while total > max_bytes do
  local name = redis.call('ZRANGE', expiries, 0, 0)[1]
  local message = name and oldest(name)
  if not message then
    if not name then break end
    drop(name)
    total = tonumber(redis.call('HGET', sizes, 'total'))
  else
    total = delete(name, message)
    if redis.call('XLEN', name) == 0 then
      redis.call('DEL', name)
      drop(name)
    end
  end
end
return id
