-- Extends the lock if it is the owner's. KEYS: lock.  ARGV: owner, TTL in ms.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
