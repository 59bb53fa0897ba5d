-- Tables that nothing fences.
SELECT r.label, NULL, NULL,
       CASE WHEN a.inserted + a.updated + a.deleted > 0
            THEN format('has no fence; %s (%s inserted, %s updated, %s deleted) since its statistics began',
                        CASE WHEN a.inserted + a.updated + a.deleted = 1 THEN '1 row was written'
                             ELSE to_char(a.inserted + a.updated + a.deleted, 'FM999,999,999,999,999,999') || ' rows were written' END,
                        to_char(a.inserted, 'FM999,999,999,999,999,990'), to_char(a.updated, 'FM999,999,999,999,999,990'),
                        to_char(a.deleted, 'FM999,999,999,999,999,990'))
            ELSE 'has no fence; no write was seen since its statistics began' END,
       ARRAY['protect', r.label], NULL,
       r.schema_name, r.table_name, a.inserted + a.updated + a.deleted
  FROM relation r
  JOIN activity a ON a.relid = r.oid
 WHERE NOT r.part AND NOT r.of_extension
   AND NOT EXISTS (SELECT FROM member m WHERE m.relid = r.oid) AND NOT EXISTS (SELECT FROM bereft b WHERE b.relid = r.oid)
