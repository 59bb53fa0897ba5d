-- What several rules need to know, read from the catalogs once for all of them: the rules are the branches of one statement
-- that begins with these. Nothing here reads a view or calls a function of the schema fencing. Whoever has altered the guards
-- may have altered those too; and a role needs no privilege to look into the catalogs.
WITH RECURSIVE

-- Every table that is the application's, partitions included.
relation AS MATERIALIZED (
    SELECT c.oid, n.nspname AS schema_name, c.relname AS table_name, format('%I.%I', n.nspname, c.relname) AS label,
           c.relkind = 'p' AS partitioned, c.relispartition AS part, c.relpersistence AS persistence, c.relowner AS owner,
           EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e') AS of_extension
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencing') AND n.nspname !~ '^pg_(temp|toast_temp)_'
),

-- Every table but partitions, with itself, its partitions at every level, and its inheritance children.
tree AS MATERIALIZED (
    SELECT r.oid AS root, r.oid AS relid FROM relation r WHERE NOT r.part
    UNION
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid
),

guard_function AS MATERIALIZED (
    SELECT p.oid, p.proname::text AS name
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = 'fencing' AND p.prorettype = 'trigger'::regtype
),

-- Every guard trigger, and whatever calls itself one.
guard AS MATERIALIZED (
    SELECT t.oid, t.tgrelid AS relid, t.tgname::text AS name, f.name AS function_name, t.tgargs AS packed, t.tgenabled AS enabled,
           t.tgparentid <> 0 AS cloned
      FROM pg_trigger t LEFT JOIN guard_function f ON f.oid = t.tgfoid
     WHERE t.tgconstraint = 0 AND (f.oid IS NOT NULL OR t.tgname LIKE 'zzz\_fencing\_%')
),

-- A trigger's arguments are NUL-terminated strings in a bytea. Many guards share theirs, so each is unpacked once.
unpacked AS MATERIALIZED (
    SELECT distinct_guard.packed, array_agg(convert_from(decode(word.hex[1], 'hex'), getdatabaseencoding()) ORDER BY word.position) AS arguments
      FROM (SELECT DISTINCT g.packed FROM guard g) AS distinct_guard
     CROSS JOIN LATERAL regexp_matches(encode(distinct_guard.packed, 'hex'), '((?:(?!00)..)*)00', 'g') WITH ORDINALITY AS word (hex, position)
     GROUP BY 1
),

-- The tables that have guards of their own. Where a table has guards of two minds, the one of its updates counts.
protected AS MATERIALIZED (
    SELECT DISTINCT ON (g.relid) g.relid, g.function_name = 'guard_named' AS named, u.arguments
      FROM guard g
      JOIN unpacked u ON u.packed = g.packed
      JOIN relation r ON r.oid = g.relid AND NOT r.part
     WHERE g.function_name IN ('guard_row', 'guard_named')
     ORDER BY g.relid, g.name = 'zzz_fencing_update' DESC, g.name
),

-- Every table that must have guards: the protected ones and all below them. One that is below several belongs to one of them.
member AS MATERIALIZED (
    SELECT DISTINCT ON (t.relid) t.root, t.relid, r.label, r.part, r.partitioned, r.persistence, r.owner
      FROM tree t
      JOIN protected p ON p.relid = t.root
      JOIN relation r ON r.oid = t.relid
     WHERE NOT EXISTS (SELECT FROM tree below JOIN protected above ON above.relid = below.root WHERE below.relid = t.root AND below.root <> t.root)
     ORDER BY t.relid, t.root
),

-- Templates one of whose columns was renamed since, with its name of now. The guards' conditions have followed: they depend on the
-- column, not on its name. Of two that were renamed nothing tells which is which.
renamed AS MATERIALIZED (
    SELECT p.relid, replace(p.arguments[1], format('{%s}', gone.name), format('{%s}', used.name)) AS template
      FROM protected p
     CROSS JOIN LATERAL (
         SELECT min(named.piece[1]) AS name
           FROM (SELECT DISTINCT m.piece FROM regexp_matches(p.arguments[1], '[{]([^{}]+)[}]', 'g') AS m (piece)) AS named
          WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p.relid AND a.attname = named.piece[1] AND NOT a.attisdropped)
         HAVING count(*) = 1) AS gone
     CROSS JOIN LATERAL (
         SELECT min(a.attname::text) AS name
           FROM pg_depend d
           JOIN guard g ON g.oid = d.objid AND g.relid = p.relid AND g.name = 'zzz_fencing_insert'
           JOIN pg_attribute a ON a.attrelid = p.relid AND a.attnum = d.refobjsubid
          WHERE d.classid = 'pg_trigger'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = p.relid AND d.refobjsubid > 0
            AND strpos(p.arguments[1], format('{%s}', a.attname)) = 0 AND a.attname !~ '[{}]'
         HAVING count(DISTINCT a.attname) = 1) AS used
     WHERE p.named
),

-- How a table and all below it are protected, and the command that protects it so.
fence AS MATERIALIZED (
    SELECT m.root, m.label, p.arguments,
           CASE WHEN NOT p.named THEN 'row' WHEN strpos(p.arguments[1], '{') > 0 THEN 'template' ELSE 'constant' END AS kind,
           p.arguments[1] = 'strict' AS single_use, p.arguments[2] AS enforcement, options.inserts, options.max_advance, options.words,
           ARRAY['protect', m.label]
               || CASE WHEN p.named THEN ARRAY['--fence', COALESCE(renamed.template, p.arguments[1])] WHEN p.arguments[1] = 'reentrant' THEN '{--mode,reentrant}'::text[] END
               || CASE WHEN options.inserts = 'require' THEN '{--inserts,require}'::text[] END
               || CASE WHEN options.max_advance IS NOT NULL THEN ARRAY['--max-advance', options.max_advance] END
               || CASE WHEN p.arguments[2] = 'observe' THEN '{--observe}'::text[] END AS command
      FROM protected p
      JOIN member m ON m.relid = p.relid AND m.root = p.relid
      LEFT JOIN renamed ON renamed.relid = p.relid
     CROSS JOIN LATERAL (
         SELECT max(substr(word, 9)) FILTER (WHERE position > 2 AND starts_with(word, 'inserts=')) AS inserts,
                max(substr(word, 13)) FILTER (WHERE position > 2 AND word ~ '^max_advance=[0-9]{1,18}$') AS max_advance,
                string_agg('''' || replace(word, '''', '''''') || '''', ', ' ORDER BY position) AS words
           FROM unnest(p.arguments) WITH ORDINALITY AS argument (word, position)) AS options
),

-- The names of a template's fences as an expression over the new and the old row, as PostgreSQL prints it, and whether the guard would make
-- the same of the columns.
fence_piece AS (
    SELECT m.relid, image.name AS image, piece.text,
           EXISTS (SELECT FROM pg_type base WHERE base.oid = t.typbasetype AND base.typtype = 'd')
           OR EXISTS (SELECT FROM pg_cast c WHERE c.castsource IN (t.oid, t.typbasetype) AND c.casttarget = 'text'::regtype AND c.castmethod = 'f') AS cast_is_another,
           row_number() OVER (PARTITION BY m.relid, image.name ORDER BY part.position, piece.half) AS number
      FROM fence f
      JOIN member m ON m.root = f.root AND NOT m.part
     CROSS JOIN (VALUES ('new'), ('old')) AS image (name)
     CROSS JOIN LATERAL regexp_matches(f.arguments[1], '([^{}]*)(?:[{]([^{}]+)[}])?', 'g') WITH ORDINALITY AS part (half, position)
      LEFT JOIN pg_attribute a ON a.attrelid = m.relid AND a.attname = part.half[2] AND NOT a.attisdropped
      LEFT JOIN pg_type t ON t.oid = a.atttypid
     CROSS JOIN LATERAL (VALUES
         (1, CASE WHEN part.half[1] <> '' THEN '''' || replace(part.half[1], '''', '''''') || '''::text' END),
         (2, CASE WHEN part.half[2] IS NULL THEN NULL
                  WHEN a.atttypid = 'text'::regtype THEN format('%s.%I', image.name, part.half[2])
                  ELSE format('(%s.%I)::text', image.name, part.half[2]) END)) AS piece (half, text)
     WHERE f.kind = 'template' AND piece.text IS NOT NULL
),
fence_expression AS MATERIALIZED (
    SELECT relid, image, repeat('(', count(*)::integer - 1)
               || string_agg(CASE number WHEN 1 THEN text ELSE ' || ' || text || ')' END, '' ORDER BY number) AS text,
           CASE WHEN bool_or(cast_is_another) THEN 'false' ELSE 'true' END AS told
      FROM fence_piece
     GROUP BY relid, image
),

-- What it looks like when a row of a partitioned table may move, at any level: one of the key columns changes. Where a key is an
-- expression, any change may move it: then there is no condition.
moving AS MATERIALIZED (
    SELECT m.root, count(DISTINCT a.attname) AS keys,
           CASE WHEN bool_and(a.attname IS NOT NULL)
                THEN string_agg(DISTINCT format(CASE WHEN a.atttypid = 'text'::regtype THEN '(new.%1$s IS DISTINCT FROM old.%1$s)'
                                                     ELSE '((new.%1$s)::text IS DISTINCT FROM (old.%1$s)::text)' END,
                                                quote_ident(a.attname)) COLLATE "C", ' OR ') END AS condition
      FROM fence f
      JOIN tree m ON m.root = f.root
      JOIN pg_partitioned_table p ON p.partrelid = m.relid
     CROSS JOIN LATERAL unnest(p.partattrs::smallint[]) AS key (attnum)
      LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = key.attnum AND key.attnum <> 0
     WHERE f.kind = 'row'
     GROUP BY m.root
),

-- The guards that fencing.protect makes, as pg_get_triggerdef prints them. (What fencing.expected_guards says table by table; a
-- test compares the two.)
expected AS (
    SELECT m.relid, guard.name,
           format('CREATE TRIGGER %s %s ON %s FOR EACH %sEXECUTE FUNCTION fencing.%s(%s)',
                  guard.name, guard.event, m.label, guard.each, guard.function_name, CASE WHEN guard.takes_arguments THEN f.words ELSE '' END) AS definition
      FROM fence f
      JOIN member m ON m.root = f.root
      LEFT JOIN fence_expression new ON new.relid = m.relid AND new.image = 'new'
      LEFT JOIN fence_expression old ON old.relid = m.relid AND old.image = 'old'
      LEFT JOIN moving ON moving.root = m.root
     CROSS JOIN LATERAL (
         SELECT 'zzz_fencing_statement', 'BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE', 'STATEMENT ', 'guard_named', true
          WHERE f.kind = 'constant'
         UNION ALL
         SELECT 'zzz_fencing_row', 'AFTER INSERT OR DELETE OR UPDATE',
                format('ROW WHEN ((fencing.accepted(''%s''::text) IS NOT TRUE)) ', replace(f.arguments[1], '''', '''''')), 'guard_named', true
          WHERE f.kind = 'constant' AND m.partitioned AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_truncate', 'BEFORE TRUNCATE', 'STATEMENT ', CASE f.kind WHEN 'row' THEN 'guard_row' ELSE 'guard_named' END, true
          WHERE f.kind <> 'constant'
         UNION ALL
         SELECT 'zzz_fencing_insert', 'BEFORE INSERT', format('ROW WHEN (fencing.to_be_checked(%s, %s)) ', new.text, new.told), 'guard_named', true
          WHERE f.kind = 'template' AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_delete', 'BEFORE DELETE', format('ROW WHEN (fencing.to_be_checked(%s, %s)) ', old.text, old.told), 'guard_named', true
          WHERE f.kind = 'template' AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_update', 'BEFORE UPDATE',
                format('ROW WHEN (fencing.to_be_checked(%s, %s)) ', new.text, CASE new.told WHEN 'true' THEN format('(%s = %s)', new.text, old.text) ELSE 'false' END),
                'guard_named', true
          WHERE f.kind = 'template' AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_insert', CASE f.enforcement WHEN 'observe' THEN 'BEFORE INSERT' ELSE 'AFTER INSERT' END,
                format('ROW WHEN ((new.last_fencing_token %s 0)) ', CASE f.inserts WHEN 'require' THEN '<=' ELSE '<' END), 'guard_row', true
          WHERE f.kind = 'row' AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_delete', 'BEFORE DELETE',
                format('ROW WHEN (((fencing.presented() %s old.last_fencing_token) IS NOT TRUE)) ', CASE WHEN f.single_use THEN '>' ELSE '>=' END),
                'guard_row', true
          WHERE f.kind = 'row' AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_stamp', 'BEFORE UPDATE',
                'ROW WHEN ((new.last_fencing_token = old.last_fencing_token)) ', 'stamp_row', false
          WHERE f.kind = 'row' AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_update', 'BEFORE UPDATE',
                format(CASE WHEN f.max_advance IS NULL THEN 'ROW WHEN (%1$s) '
                            ELSE 'ROW WHEN ((%1$s OR (((new.last_fencing_token - old.last_fencing_token) > %2$s) AND (old.last_fencing_token > 0)))) ' END,
                       CASE WHEN f.single_use THEN '((new.last_fencing_token > old.last_fencing_token) IS NOT TRUE)'
                            ELSE '(((new.last_fencing_token > old.last_fencing_token) OR ((new.last_fencing_token = old.last_fencing_token) AND (old.last_fencing_token > 0) AND ((old.last_fencing_token)::text = current_setting(''fencing.token''::text, true)))) IS NOT TRUE)' END,
                       CASE WHEN f.max_advance::numeric > 2147483647 THEN format('''%s''::bigint', f.max_advance) ELSE f.max_advance END),
                'guard_row', true
          WHERE f.kind = 'row' AND NOT m.part
         UNION ALL
         SELECT 'zzz_fencing_move', 'BEFORE UPDATE',
                format(CASE WHEN moving.condition IS NULL THEN 'ROW WHEN ((new.last_fencing_token > old.last_fencing_token)) '
                            WHEN moving.keys = 1 THEN 'ROW WHEN (((new.last_fencing_token > old.last_fencing_token) AND %s)) '
                            ELSE 'ROW WHEN (((new.last_fencing_token > old.last_fencing_token) AND (%s))) ' END, moving.condition),
                'mark_move', false
          WHERE f.kind = 'row' AND m.partitioned AND NOT m.part
     ) AS guard (name, event, each, function_name, takes_arguments)
),

-- What differs between the guards that the members have and those they should have: missing, altered, surplus or disabled.
-- PostgreSQL itself keeps the clones of row triggers on partitions like their original, but for whether they are switched on.
difference AS MATERIALIZED (
    SELECT m.root, m.relid, m.label, m.part, COALESCE(e.name, g.name) AS name, problem.kind AS problem
      FROM expected e
      FULL JOIN (SELECT g.*, CASE WHEN NOT g.cloned THEN pg_get_triggerdef(g.oid) END AS definition
                   FROM guard g JOIN member m ON m.relid = g.relid) AS g ON g.relid = e.relid AND g.name = e.name
      JOIN member m ON m.relid = COALESCE(e.relid, g.relid)
     CROSS JOIN LATERAL (SELECT CASE
               -- the definition is the present one: NULL when the trigger was dropped since the snapshot
               WHEN g.name IS NULL OR (g.definition IS NULL AND NOT g.cloned) THEN 'missing'
               WHEN e.name IS NOT NULL AND g.definition <> e.definition THEN 'altered'
               WHEN e.name IS NULL AND NOT g.cloned AND g.function_name IS NOT NULL THEN 'surplus'
               WHEN g.enabled IN ('D', 'R') AND (e.name IS NOT NULL OR g.cloned) THEN 'disabled' END) AS problem (kind)
     WHERE problem.kind IS NOT NULL
),

-- The column of a row fence, wherever a table has one of that name.
token_column AS MATERIALIZED (
    SELECT a.attrelid AS relid, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS not_null,
           a.attgenerated <> '' AS generated, a.attidentity <> '' AS identity, pg_get_expr(d.adbin, d.adrelid) AS default_value,
           'COALESCE(fencing.presented(), (0)::bigint)' AS wanted_default
      FROM relation r
      JOIN pg_attribute a ON a.attrelid = r.oid AND a.attname = 'last_fencing_token' AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
),

-- Tables that carry the column as protect leaves it, and have nothing that checks it.
bereft AS MATERIALIZED (
    SELECT r.oid AS relid, r.label
      FROM token_column t JOIN relation r ON r.oid = t.relid
     WHERE t.default_value = t.wanted_default AND NOT r.part AND NOT r.of_extension AND NOT EXISTS (SELECT FROM member m WHERE m.relid = r.oid)
),

-- Rows written since the statistics began, partitions' counted with their table.
activity AS MATERIALIZED (
    SELECT t.root AS relid, sum(pg_stat_get_tuples_inserted(t.relid)) AS inserted,
           sum(pg_stat_get_tuples_updated(t.relid)) AS updated, sum(pg_stat_get_tuples_deleted(t.relid)) AS deleted
      FROM tree t JOIN relation r ON r.oid = t.relid AND (r.part OR r.oid = t.root)
     GROUP BY t.root
),

-- Members that came by their place without all the guards that go with it: a partition added later has the clones of the row
-- triggers alone, an inheritance child has nothing, and a partition that was detached has lost the clones.
unguarded AS MATERIALIZED (
    SELECT DISTINCT d.root, d.relid, d.label, CASE WHEN d.part THEN 'added' WHEN d.relid <> d.root THEN 'child' ELSE 'detached' END AS kind
      FROM difference d
      JOIN fence f ON f.root = d.root
      LEFT JOIN (SELECT g.relid, array_agg(g.name) AS names FROM guard g GROUP BY g.relid) AS own ON own.relid = d.relid
     WHERE d.problem = 'missing'
       AND CASE WHEN d.part THEN true
                WHEN d.relid <> d.root THEN own.names IS NULL
                ELSE own.names = '{zzz_fencing_truncate}' AND (f.kind = 'template' OR d.relid IN (SELECT t.relid FROM token_column t)) END
),

-- The triggers that keep the named fences themselves from being lowered, renamed or deleted, and what is wrong with them.
keeper AS MATERIALIZED (
    SELECT k.name, k.definition, CASE WHEN t.oid IS NULL THEN 'missing' WHEN pg_get_triggerdef(t.oid) <> k.definition THEN 'altered'
                                      WHEN t.tgenabled IN ('D', 'R') THEN 'disabled' END AS problem
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'fencing'
     CROSS JOIN (VALUES
         ('keep_fence', 'CREATE TRIGGER keep_fence BEFORE UPDATE ON fencing.fence FOR EACH ROW WHEN (((new.token < old.token) OR (new.name <> old.name))) EXECUTE FUNCTION fencing.keep_fence()'),
         ('keep_fences', 'CREATE TRIGGER keep_fences BEFORE DELETE OR TRUNCATE ON fencing.fence FOR EACH STATEMENT EXECUTE FUNCTION fencing.keep_fence()')
     ) AS k (name, definition)
      LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = k.name
     WHERE c.relname = 'fence' AND EXISTS (SELECT FROM guard_function f WHERE f.name = 'keep_fence')
)
