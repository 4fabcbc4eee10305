-- Has all replicas remove a key from a partition.
--
-- KEYS  1 the partition's stream; 2 bytes by stream; 3 streams by when they expire.
-- ARGV  1 the replica; 2 the key; 3 … the ids of its entries' messages, as far as they are known.
-- Without a stream no other replica has the key.
if redis.call('EXISTS', stream) == 0 then return 0 end
-- The message must outlive the entries that it removes: they live no longer than the stream would now.
local time = redis.call('TIME')
local expires = time[1] + math.ceil(redis.call('PTTL', stream) / 1000)
local fields = {'origin', ARGV[1], 'forget', ARGV[2], 'expires', tostring(expires)}
redis.call('XADD', stream, '*', unpack(fields))
count(stream, size_of(fields))
for i = 3, #ARGV do
  local message = redis.call('XRANGE', stream, ARGV[i], ARGV[i])[1]
  if message then delete(stream, message) end
end
return 1
