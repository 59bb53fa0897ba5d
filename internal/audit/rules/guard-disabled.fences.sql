-- The triggers that keep named fences are switched off.
SELECT 'fencing.fence', k.name, NULL, format('its trigger %I is switched off: fences can be lowered and deleted by hand', k.name), NULL,
       format('ALTER TABLE fencing.fence ENABLE TRIGGER %I;', k.name), NULL, NULL, 0
  FROM keeper k
 WHERE k.problem = 'disabled'
