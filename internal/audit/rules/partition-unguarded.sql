-- Partitions that were added to a protected table, or detached from one, and not protected since.
SELECT f.label, NULL, 'warning',
       format(CASE count(*) WHEN 1 THEN 'a partition was added and not protected since, so that a TRUNCATE of it is not checked: %2$s'
                   ELSE '%1$s partitions were added and not protected since, so that a TRUNCATE of them is not checked: %2$s' END,
              count(*), array_to_string((array_agg(u.label ORDER BY u.label))[1:3], ', ')
                        || CASE WHEN count(*) > 3 THEN format(' and %s more', count(*) - 3) ELSE '' END),
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM unguarded u
  JOIN fence f ON f.root = u.root
  JOIN relation r ON r.oid = u.root
 WHERE u.kind = 'added'
 GROUP BY f.root, f.label, f.command, r.schema_name, r.table_name
UNION ALL
SELECT f.label, NULL, NULL, 'has lost all its row guards, as a partition does when it is detached: only TRUNCATE is still checked',
       f.command, NULL, r.schema_name, r.table_name, 0
  FROM unguarded u
  JOIN fence f ON f.root = u.root
  JOIN relation r ON r.oid = u.root
 WHERE u.kind = 'detached'
UNION ALL
-- A protected table that was attached to one that is not: its guards go on checking, and no list of protected tables has it.
SELECT r.label, NULL, 'warning',
       format('has guards of its own and is a partition of %s, which is not protected: fencing.protection does not list it, and nothing checks the other partitions', root.label),
       ARRAY['protect', root.label]
           || CASE WHEN own.named THEN ARRAY['--fence', own.arguments[1]] WHEN own.arguments[1] = 'reentrant' THEN '{--mode,reentrant}'::text[] END
           || CASE WHEN 'inserts=require' = ANY (own.arguments[3:]) THEN '{--inserts,require}'::text[] END
           || (SELECT ARRAY['--max-advance', substr(word, 13)] FROM unnest(own.arguments[3:]) AS word WHERE word ~ '^max_advance=[0-9]{1,18}$' LIMIT 1)
           || CASE WHEN own.arguments[2] = 'observe' THEN '{--observe}'::text[] END,
       -- protect takes a column that is there as it is; here those of the two tables have to be alike
       CASE WHEN NOT own.named AND (NOT c.not_null OR c.default_value IS DISTINCT FROM c.wanted_default) THEN
           format('BEGIN; ALTER TABLE %s ALTER COLUMN last_fencing_token SET NOT NULL, ALTER COLUMN last_fencing_token SET DEFAULT COALESCE(fencing.presented(), 0::bigint); '
                      'SELECT fencing.protect(%L, %L, inserts => %L, observe => %s, max_advance => %s); COMMIT;',
                  root.label, root.label, own.arguments[1], CASE WHEN 'inserts=require' = ANY (own.arguments[3:]) THEN 'require' ELSE 'allow' END,
                  CASE WHEN own.arguments[2] = 'observe' THEN 'true' ELSE 'false' END,
                  COALESCE((SELECT substr(word, 13) FROM unnest(own.arguments[3:]) AS word WHERE word ~ '^max_advance=[0-9]{1,18}$' LIMIT 1), 'NULL')) END,
       r.schema_name, r.table_name, 0
  FROM relation r
  JOIN (SELECT DISTINCT ON (g.relid) g.relid, g.function_name = 'guard_named' AS named, u.arguments
          FROM guard g JOIN unpacked u ON u.packed = g.packed
         WHERE g.function_name IN ('guard_row', 'guard_named') AND NOT g.cloned
         ORDER BY g.relid, g.name = 'zzz_fencing_update' DESC, g.name) AS own ON own.relid = r.oid
  JOIN tree t ON t.relid = r.oid
  JOIN relation root ON root.oid = t.root
  LEFT JOIN token_column c ON c.relid = root.oid
 WHERE r.part AND NOT EXISTS (SELECT FROM member m WHERE m.relid = r.oid)
