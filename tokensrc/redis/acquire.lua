-- Takes the lock and draws its token, in one step.
-- KEYS: lock, source.  ARGV: owner, TTL in ms, incarnation to use if the source has none.
-- Returns {token, incarnation}, or {0, ms until the lock expires} when it is held.
-- A client that lost the answer sends the script again: the lock is then the caller's already.
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0, tostring(redis.call('PTTL', KEYS[1]))}
end
-- Counter and incarnation are fields of one hash, so that whatever loses one loses the other.
redis.call('HSETNX', KEYS[2], 'incarnation', ARGV[3])
return {redis.call('HINCRBY', KEYS[2], 'token', 1), redis.call('HGET', KEYS[2], 'incarnation')}
