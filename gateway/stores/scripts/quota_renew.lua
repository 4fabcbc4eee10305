-- Says that an instance is alive, and forgets those that have long been silent.
--
-- KEYS  1 instances; 2 this instance's reservations.   ARGV  1 instance; 2 time or ''.
local at = clock(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
redis.call('PEXPIRE', KEYS[1], DAY)
redis.call('PEXPIRE', KEYS[2], KEEP)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', at - KEEP))
return 1
