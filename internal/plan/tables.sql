-- What the catalogs say of every table that could have a fence, in one statement for all of them.
WITH RECURSIVE
relation AS MATERIALIZED (
    SELECT c.oid, c.relkind = 'p' AS partitioned, c.relispartition AS part, c.relpersistence = 'u' AS unlogged
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencing') AND n.nspname !~ '^pg_(temp|toast_temp)_'
),
tree AS MATERIALIZED (
    SELECT r.oid AS root, r.oid AS relid, 0 AS depth FROM relation r WHERE NOT r.part
    UNION
    SELECT t.root, i.inhrelid, t.depth + 1 FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid
),
-- Partitions count for their table. An inheritance child is a table of its own.
below AS MATERIALIZED (
    SELECT t.root,
           sum(pg_stat_get_tuples_inserted(t.relid)) FILTER (WHERE r.part OR t.depth = 0)::bigint AS inserted,
           sum(pg_stat_get_tuples_updated(t.relid)) FILTER (WHERE r.part OR t.depth = 0)::bigint AS updated,
           sum(pg_stat_get_tuples_deleted(t.relid)) FILTER (WHERE r.part OR t.depth = 0)::bigint AS deleted,
           sum(pg_stat_get_live_tuples(t.relid)) FILTER (WHERE r.part OR t.depth = 0)::bigint AS live,
           count(*) FILTER (WHERE NOT r.part AND t.depth > 0) AS children,
           bool_or(r.unlogged) AS unlogged
      FROM tree t JOIN relation r ON r.oid = t.relid
     GROUP BY t.root
),
-- The named fence of a table, or '' where its fence is in its rows: the guard that sees an UPDATE has it in its arguments.
guarded AS MATERIALIZED (
    SELECT t.tgrelid AS relid,
           COALESCE(max(convert_from(decode(substring(encode(t.tgargs, 'hex') FROM '^((?:(?!00)..)*)00'), 'hex'), getdatabaseencoding()))
                        FILTER (WHERE p.proname = 'guard_named'), '') AS fence
      FROM pg_trigger t
      JOIN pg_proc p ON p.oid = t.tgfoid
      JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'fencing'
     WHERE p.proname IN ('guard_row', 'guard_named')
     GROUP BY t.tgrelid
),
-- A named fence reads the columns that name it as text: of these types there is one text for one value. Braces end a template's column.
naming AS MATERIALIZED (
    SELECT a.attrelid AS relid, a.attnum, a.attname, a.attnotnull AS not_null,
           (t.typtype = 'e' OR t.typname IN ('int2', 'int4', 'int8', 'text', 'varchar', 'uuid')) AND a.attgenerated = '' AND a.attname !~ '[{}]' AS usable
      FROM relation r
      JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_type t ON t.oid = a.atttypid
     WHERE NOT r.part
),
primary_key AS MATERIALIZED (
    SELECT i.indrelid AS relid, array_agg(n.attname::text ORDER BY k.position) AS columns, array_agg(k.attnum ORDER BY k.position) AS numbers,
           bool_and(n.usable) AS usable
      FROM pg_index i
     CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (attnum, position)
      JOIN naming n ON n.relid = i.indrelid AND n.attnum = k.attnum
     WHERE i.indisprimary AND k.position <= i.indnkeyatts
     GROUP BY i.indrelid
),
-- Foreign keys through which a write of the table referred to writes into the table, and where that is their primary key the columns
-- in its order.
cascade_key AS MATERIALIZED (
    SELECT con.conrelid AS relid, con.conname::text AS name, con.confrelid AS parent, con.confdeltype = 'c' AS deletes,
           CASE WHEN bool_and(n.usable AND n.not_null) AND count(*) = cardinality(pk.columns) AND count(p.position) = count(*)
                THEN array_agg(n.attname::text ORDER BY p.position) END AS columns
      FROM pg_constraint con
      JOIN relation r ON r.oid = con.conrelid AND NOT r.part
     CROSS JOIN LATERAL unnest(con.conkey, con.confkey) AS k (attnum, parent_attnum)
      JOIN naming n ON n.relid = con.conrelid AND n.attnum = k.attnum
      LEFT JOIN primary_key pk ON pk.relid = con.confrelid
      LEFT JOIN LATERAL unnest(pk.numbers) WITH ORDINALITY AS p (attnum, position) ON p.attnum = k.parent_attnum
     WHERE con.contype = 'f' AND con.conparentid = 0 AND con.confrelid <> con.conrelid
       AND (con.confdeltype IN ('c', 'n', 'd') OR con.confupdtype IN ('c', 'n', 'd'))
     GROUP BY con.oid, con.conrelid, con.conname, con.confrelid, con.confdeltype, pk.columns
)
SELECT r.oid::bigint, r.partitioned, COALESCE(b.unlogged, false), COALESCE(b.children, 0),
       COALESCE(b.inserted, 0), COALESCE(b.updated, 0), COALESCE(b.deleted, 0), COALESCE(b.live, 0),
       g.relid IS NOT NULL AS guarded, COALESCE(g.fence, '') AS fence,
       COALESCE(pk.columns, '{}') AS key, COALESCE(pk.usable, false) AS key_usable,
       (SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
         WHERE a.attrelid = r.oid AND a.attname = 'last_fencing_token' AND NOT a.attisdropped) AS column_type,
       COALESCE((SELECT jsonb_agg(jsonb_build_object('name', c.name, 'parent', c.parent::bigint, 'deletes', c.deletes, 'columns', c.columns) ORDER BY c.name)
                   FROM cascade_key c WHERE c.relid = r.oid), '[]') AS cascades,
       ARRAY(SELECT quote_ident(w.rulename) FROM pg_rewrite w WHERE w.ev_class = r.oid ORDER BY 1) AS rules,
       -- a template and a constant write rows of a table that a subscription writes past every guard
       EXISTS (SELECT FROM pg_subscription_rel s JOIN tree t ON t.relid = s.srrelid WHERE t.root = r.oid) AS subscribed
  FROM relation r
  LEFT JOIN below b ON b.root = r.oid
  LEFT JOIN guarded g ON g.relid = r.oid
  LEFT JOIN primary_key pk ON pk.relid = r.oid
 WHERE NOT r.part
