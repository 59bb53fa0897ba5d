-- The triggers that keep named fences are gone.
SELECT 'fencing.fence', k.name, NULL, format('its trigger %I is gone: fences can be lowered and deleted by hand', k.name), NULL, k.definition || ';',
       NULL, NULL, 0
  FROM keeper k
 WHERE k.problem = 'missing'
