-- Row triggers that run after the guard has accepted a row, and may still change what it has accepted: its token under a row
-- fence, the columns that name its fence under a template. BEFORE ROW (1 | 2) triggers fire in the byte order of their names.
-- Renaming one renames its clones on partitions; before PostgreSQL 15 it does not, and they are renamed one by one.
SELECT r.label, t.tgname::text, NULL,
       format('its trigger %I runs after %s, and may change what that has accepted', t.tgname, g.name),
       NULL,
       -- a name of at most 63 bytes that sorts first, and says of what
       format('ALTER TRIGGER %I ON %s RENAME TO %I;', t.tgname, r.label,
              'before_fencing_' || CASE WHEN octet_length(t.tgname::text) <= 48 THEN t.tgname::text ELSE md5(t.tgname::text) END),
       r.schema_name, r.table_name, 0
  FROM member m
  JOIN fence f ON f.root = m.root AND f.kind <> 'constant'
  JOIN relation r ON r.oid = m.relid
  JOIN pg_trigger t ON t.tgrelid = m.relid AND t.tgconstraint = 0 AND t.tgtype & 3 = 3 AND t.tgenabled <> 'D'
   AND (t.tgparentid = 0 OR current_setting('server_version_num')::integer < 150000)
  JOIN guard g ON g.relid = m.relid AND t.tgname::text COLLATE "C" > g.name COLLATE "C"
   AND (g.name = 'zzz_fencing_update' AND t.tgtype & 16 > 0
        OR g.name = 'zzz_fencing_insert' AND t.tgtype & 4 > 0 AND f.kind = 'template' AND t.tgtype & 16 = 0)
 WHERE NOT EXISTS (SELECT FROM guard own WHERE own.oid = t.oid AND own.function_name IS NOT NULL)
