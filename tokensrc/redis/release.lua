-- Frees the lock if it is the owner's. KEYS: lock.  ARGV: owner.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
