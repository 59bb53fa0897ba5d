-- The triggers that keep named fences are others.
SELECT 'fencing.fence', k.name, NULL, format('its trigger %I is not the one that fencectl installed', k.name), NULL,
       replace(k.definition, 'CREATE TRIGGER', 'CREATE OR REPLACE TRIGGER') || ';', NULL, NULL, 0
  FROM keeper k
 WHERE k.problem = 'altered'
