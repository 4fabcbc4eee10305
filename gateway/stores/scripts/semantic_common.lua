-- Put before the scripts of the semantic cache. A partition is a stream; all of them share a hash of their bytes, by
-- stream and in total, and a sorted set of when each stream expires (milliseconds since 1970).
local stream, sizes, expiries = KEYS[1], KEYS[2], KEYS[3]

-- Bytes of a message's fields: names and values, and about what Redis keeps beside them.
local function size_of(fields)
  local size = 100
  for _, text in ipairs(fields) do size = size + #text end
  return size
end

local function count(name, bytes)
  redis.call('HINCRBY', sizes, name, bytes)
  return redis.call('HINCRBY', sizes, 'total', bytes)
end

-- Deletes a message, and returns the bytes of all streams.
local function delete(name, message)
  redis.call('XDEL', name, message[1])
  return count(name, -size_of(message[2]))
end

local function oldest(name) return redis.call('XRANGE', name, '-', '+', 'COUNT', 1)[1] end

-- Stops counting a stream that is gone.
local function drop(name)
  local size = tonumber(redis.call('HGET', sizes, name) or '0')
  if size > 0 then redis.call('HINCRBY', sizes, 'total', -size) end
  redis.call('HDEL', sizes, name)
  redis.call('ZREM', expiries, name)
end
