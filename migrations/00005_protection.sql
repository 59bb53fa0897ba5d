-- Protecting tables: which guards a table has, and the functions that put them there.
--
-- The catalog is the registry. What protects a table is read from its triggers and nowhere else, so
-- that it cannot say anything but what is enforced, and survives a dump.

-- +goose Up

-- Every guard trigger, clones on partitions included.
CREATE VIEW fencing.guard AS
SELECT t.oid AS trigger_oid, t.tgrelid AS relid, t.tgname AS name, p.proname AS function_name,
       fencing.guard_arguments(t.tgargs) AS arguments, t.tgenabled AS enabled, t.tgparentid <> 0 AS cloned
  FROM pg_catalog.pg_trigger t
  JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'fencing'
 WHERE p.proname IN ('guard_row', 'guard_named', 'stamp_row', 'mark_move');

COMMENT ON VIEW fencing.guard IS 'Every guard trigger, as the catalog has it.';

-- One row per protected table. A partition is part of its partitioned table; every guard of a table
-- carries the same arguments, so that any of them tells how the table is protected.
CREATE VIEW fencing.protection AS
SELECT c.oid AS relid, n.nspname AS schema_name, c.relname AS table_name,
       CASE WHEN g.named THEN 'named' ELSE 'row' END AS kind,
       CASE WHEN NOT g.named THEN g.arguments[1] END AS mode,
       CASE WHEN g.named THEN g.arguments[1] END AS fence,
       CASE WHEN NOT g.named THEN COALESCE(fencing.guard_option('inserts', g.arguments), 'allow') END AS inserts,
       g.arguments[2] AS enforcement,
       fencing.guard_option('max_advance', g.arguments)::bigint AS max_advance,
       g.guards, g.arguments
  FROM (SELECT DISTINCT ON (relid) relid, function_name = 'guard_named' AS named, arguments,
               (count(*) OVER (PARTITION BY relid))::integer AS guards
          FROM fencing.guard WHERE function_name IN ('guard_row', 'guard_named')
         -- where a half-altered table has guards of two minds, the one of its updates counts
         ORDER BY relid, name = 'zzz_fencing_update' DESC, name) g
  JOIN pg_catalog.pg_class c ON c.oid = g.relid AND NOT c.relispartition
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace;

COMMENT ON VIEW fencing.protection IS 'The protected tables, read from their guard triggers.';

-- Which guards a table must have ----------------------------------------------------------------

-- A table, its partitions at every level, and its inheritance children. A part is a partition: row
-- triggers of the partitioned table are cloned to it, statement triggers are not.
-- +goose StatementBegin
CREATE FUNCTION fencing.tree(target oid) RETURNS TABLE (relid oid, part boolean, partitioned boolean, label text)
LANGUAGE sql STABLE ROWS 5
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
    WITH RECURSIVE member (oid, part) AS (
        SELECT target, false
        UNION
        SELECT i.inhrelid, c.relispartition
          FROM member JOIN pg_inherits i ON i.inhparent = member.oid JOIN pg_class c ON c.oid = i.inhrelid
         WHERE c.relkind IN ('r', 'p')
    )
    SELECT m.oid, m.part, c.relkind = 'p', format('%I.%I', n.nspname, c.relname)
      FROM member m JOIN pg_class c ON c.oid = m.oid JOIN pg_namespace n ON n.oid = c.relnamespace
$$;
-- +goose StatementEnd

-- The fence's name as an expression over a row variable (new or old), exactly as PostgreSQL prints it.
-- +goose StatementBegin
CREATE FUNCTION fencing.fence_expression(target oid, template text, row_variable text) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
DECLARE
    expression text;
    piece      text;
BEGIN
    FOR piece IN
        SELECT half.piece
          FROM regexp_matches(template, '([^{}]*)(?:[{]([^{}]+)[}])?', 'g') WITH ORDINALITY AS m(part, position)
          LEFT JOIN pg_attribute a ON a.attrelid = target AND a.attname = m.part[2] AND NOT a.attisdropped
         CROSS JOIN LATERAL (VALUES
             (1, CASE WHEN m.part[1] <> '' THEN fencing.quoted(m.part[1]) || '::text' END),
             (2, CASE WHEN m.part[2] IS NULL THEN NULL
                      WHEN a.atttypid = 'text'::regtype THEN format('%s.%I', row_variable, m.part[2])
                      ELSE format('(%s.%I)::text', row_variable, m.part[2]) END)) AS half (position, piece)
         WHERE half.piece IS NOT NULL
         ORDER BY m.position, half.position
    LOOP
        expression := CASE WHEN expression IS NULL THEN piece ELSE format('(%s || %s)', expression, piece) END;
    END LOOP;
    RETURN expression;
END
$$;
-- +goose StatementEnd

-- A string literal as PostgreSQL prints it in definitions: without E'' (unlike quote_literal).
-- +goose StatementBegin
CREATE FUNCTION fencing.quoted(literal text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT pg_catalog.concat('''', pg_catalog.replace(literal, '''', ''''''), '''') $$;
-- +goose StatementEnd

-- The guards that belong on a table protected with these arguments, as pg_get_triggerdef prints them:
-- what is compared with the catalog is also what is executed. Clones are PostgreSQL's own business and
-- are not listed.
-- +goose StatementBegin
CREATE FUNCTION fencing.expected_guards(target oid, named boolean, arguments text[])
RETURNS TABLE (relid oid, name text, definition text)
LANGUAGE plpgsql STABLE ROWS 10
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
AS $$
DECLARE
    words     CONSTANT text := (SELECT string_agg(fencing.quoted(word), ', ' ORDER BY position)
                                  FROM unnest(arguments) WITH ORDINALITY AS a(word, position));
    single_use CONSTANT boolean := arguments[1] = 'strict';
    ceiling   CONSTANT text := fencing.guard_option('max_advance', arguments);
    template  CONSTANT boolean := strpos(arguments[1], '{') > 0;
    refused   text;
    told      boolean;
    new_name  text;
    old_name  text;
    moving    text;
    keys      integer;
    member    record;
BEGIN
    FOR member IN SELECT t.* FROM fencing.tree(target) t ORDER BY t.part, t.label LOOP
        relid := member.relid;

        IF named AND NOT template THEN
            name := 'zzz_fencing_statement';
            definition := format('CREATE TRIGGER zzz_fencing_statement BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencing.guard_named(%s)',
                                 member.label, words);
            RETURN NEXT;
            IF member.partitioned AND NOT member.part THEN
                -- Cloned to partitions that come later, whose direct writes fire no statement trigger of
                -- ours. AFTER, so that it costs neither row locks nor COPY's batches; once the fence has
                -- been accepted its WHEN is false, and nothing is called or queued.
                name := 'zzz_fencing_row';
                definition := format('CREATE TRIGGER zzz_fencing_row AFTER INSERT OR DELETE OR UPDATE ON %s FOR EACH ROW WHEN ((fencing.accepted(%s::text) IS NOT TRUE)) EXECUTE FUNCTION fencing.guard_named(%s)',
                                     member.label, fencing.quoted(arguments[1]), words);
                RETURN NEXT;
            END IF;
            CONTINUE;
        END IF;

        name := 'zzz_fencing_truncate';
        definition := format('CREATE TRIGGER zzz_fencing_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencing.%s(%s)',
                             member.label, CASE WHEN named THEN 'guard_named' ELSE 'guard_row' END, words);
        RETURN NEXT;
        CONTINUE WHEN member.part;

        IF named THEN
            -- The conditions tell the guard the fence's name where that is what the guard itself would make of the columns: a type may have
            -- a cast to text that is not its output, which is what a name is made of.
            told := NOT EXISTS (
                SELECT FROM regexp_matches(arguments[1], '[{]([^{}]+)[}]', 'g') AS col (name)
                  JOIN pg_attribute a ON a.attrelid = member.relid AND a.attname = col.name[1] AND NOT a.attisdropped
                  JOIN pg_type t ON t.oid = a.atttypid
                 WHERE EXISTS (SELECT FROM pg_type base WHERE base.oid = t.typbasetype AND base.typtype = 'd')
                    OR EXISTS (SELECT FROM pg_cast c WHERE c.castsource IN (t.oid, t.typbasetype) AND c.casttarget = 'text'::regtype AND c.castmethod = 'f'));
            new_name := fencing.fence_expression(relid, arguments[1], 'new');
            old_name := fencing.fence_expression(relid, arguments[1], 'old');
            name := 'zzz_fencing_insert';
            definition := format('CREATE TRIGGER zzz_fencing_insert BEFORE INSERT ON %s FOR EACH ROW WHEN (fencing.to_be_checked(%s, %s)) EXECUTE FUNCTION fencing.guard_named(%s)',
                                 member.label, new_name, told::text, words);
            RETURN NEXT;
            name := 'zzz_fencing_delete';
            definition := format('CREATE TRIGGER zzz_fencing_delete BEFORE DELETE ON %s FOR EACH ROW WHEN (fencing.to_be_checked(%s, %s)) EXECUTE FUNCTION fencing.guard_named(%s)',
                                 member.label, old_name, told::text, words);
            RETURN NEXT;
            name := 'zzz_fencing_update';
            definition := format('CREATE TRIGGER zzz_fencing_update BEFORE UPDATE ON %s FOR EACH ROW WHEN (fencing.to_be_checked(%s, %s)) EXECUTE FUNCTION fencing.guard_named(%s)',
                                 member.label, new_name, CASE WHEN told THEN format('(%s = %s)', new_name, old_name) ELSE 'false' END, words);
            RETURN NEXT;
            CONTINUE;
        END IF;

        -- Row fences. IS NOT TRUE, not NOT: a NULL token must reach the guard, never pass by it.
        --
        -- Inserts are checked AFTER, as they were stored, which leaves COPY its batches. In observe BEFORE,
        -- for then an invalid token is taken out of the row that is let in.
        name := 'zzz_fencing_insert';
        definition := format('CREATE TRIGGER zzz_fencing_insert %s INSERT ON %s FOR EACH ROW WHEN ((new.last_fencing_token %s 0)) EXECUTE FUNCTION fencing.guard_row(%s)',
                             CASE arguments[2] WHEN 'observe' THEN 'BEFORE' ELSE 'AFTER' END, member.label, CASE fencing.guard_option('inserts', arguments) WHEN 'require' THEN '<=' ELSE '<' END, words);
        RETURN NEXT;

        name := 'zzz_fencing_delete';
        definition := format('CREATE TRIGGER zzz_fencing_delete BEFORE DELETE ON %s FOR EACH ROW WHEN (((fencing.presented() %s old.last_fencing_token) IS NOT TRUE)) EXECUTE FUNCTION fencing.guard_row(%s)',
                             member.label, CASE WHEN single_use THEN '>' ELSE '>=' END, words);
        RETURN NEXT;

        name := 'zzz_fencing_stamp';
        definition := format('CREATE TRIGGER zzz_fencing_stamp BEFORE UPDATE ON %s FOR EACH ROW WHEN ((new.last_fencing_token = old.last_fencing_token)) EXECUTE FUNCTION fencing.stamp_row()',
                             member.label);
        RETURN NEXT;

        -- The presented token is compared as text, which costs a tenth of reading it as a number (0 is none). What is the same number in
        -- other digits is the guard's to see.
        name := 'zzz_fencing_update';
        refused := CASE WHEN single_use THEN '((new.last_fencing_token > old.last_fencing_token) IS NOT TRUE)'
                        ELSE '(((new.last_fencing_token > old.last_fencing_token) OR ((new.last_fencing_token = old.last_fencing_token) AND (old.last_fencing_token > 0) AND ((old.last_fencing_token)::text = current_setting(''fencing.token''::text, true)))) IS NOT TRUE)' END;
        IF ceiling IS NOT NULL THEN
            refused := format('(%s OR (((new.last_fencing_token - old.last_fencing_token) > %s) AND (old.last_fencing_token > 0)))', refused,
                              CASE WHEN ceiling::bigint > 2147483647 THEN format('''%s''::bigint', ceiling) ELSE ceiling END);
        END IF;
        definition := format('CREATE TRIGGER zzz_fencing_update BEFORE UPDATE ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION fencing.guard_row(%s)',
                             member.label, refused, words);
        RETURN NEXT;

        IF member.partitioned THEN
            -- A change of these columns can move a row, at one level or another; where a key is an
            -- expression, any change can.
            -- Compared as text, which PostgreSQL prints in the same way whatever the type: at worst a row that
            -- stays is marked.
            SELECT CASE WHEN bool_and(a.attname IS NOT NULL)
                        THEN string_agg(DISTINCT format(CASE WHEN a.atttypid = 'text'::regtype THEN '(new.%1$s IS DISTINCT FROM old.%1$s)'
                                                             ELSE '((new.%1$s)::text IS DISTINCT FROM (old.%1$s)::text)' END,
                                                        quote_ident(a.attname)) COLLATE "C", ' OR ') END,
                   count(DISTINCT a.attname)
              INTO moving, keys
              FROM fencing.tree(target) t
              JOIN pg_partitioned_table p ON p.partrelid = t.relid
             CROSS JOIN LATERAL unnest(p.partattrs::smallint[]) AS key (attnum)
              LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = key.attnum AND key.attnum <> 0;
            name := 'zzz_fencing_move';
            definition := format('CREATE TRIGGER zzz_fencing_move BEFORE UPDATE ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION fencing.mark_move()',
                                 member.label,
                                 CASE WHEN moving IS NULL THEN '(new.last_fencing_token > old.last_fencing_token)'
                                      WHEN keys = 1 THEN format('((new.last_fencing_token > old.last_fencing_token) AND %s)', moving)
                                      ELSE format('((new.last_fencing_token > old.last_fencing_token) AND (%s))', moving) END);
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- What differs between the guards a table should have and those it has: the work of protect, and the
-- findings of an audit. A problem is missing, altered, disabled or surplus.
-- +goose StatementBegin
CREATE FUNCTION fencing.guard_problems(target oid, named boolean, arguments text[])
RETURNS TABLE (relid oid, label text, name text, problem text, definition text)
LANGUAGE sql STABLE ROWS 5
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
SET standard_conforming_strings = on
AS $$
    WITH tree AS (SELECT * FROM fencing.tree(target)),
    expected AS (SELECT * FROM fencing.expected_guards(target, named, arguments)),
    actual AS (
        SELECT tree.relid, tree.label, t.tgname::text AS name, t.tgenabled, t.tgparentid <> 0 AS cloned,
               t.tgfoid IN (SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencing'::regnamespace) AS ours,
               pg_get_triggerdef(t.oid) AS definition
          FROM tree -- before PostgreSQL 15 clones count as internal
          JOIN pg_trigger t ON t.tgrelid = tree.relid AND (NOT t.tgisinternal OR t.tgparentid <> 0)
         WHERE t.tgname LIKE 'zzz\_fencing\_%'
            OR t.tgfoid IN (SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencing'::regnamespace)
    )
    SELECT COALESCE(e.relid, a.relid), COALESCE(a.label, (SELECT tree.label FROM tree WHERE tree.relid = e.relid)),
           COALESCE(e.name, a.name), p.problem, e.definition
      FROM expected e
      FULL JOIN actual a ON a.relid = e.relid AND a.name = e.name
     CROSS JOIN LATERAL (SELECT CASE
               WHEN a.name IS NULL THEN 'missing'
               -- (no definition: the trigger is gone, but for an old snapshot)
               WHEN e.name IS NOT NULL AND a.definition IS DISTINCT FROM e.definition THEN 'altered'
               WHEN e.name IS NULL AND NOT a.cloned AND a.ours THEN 'surplus'
               WHEN a.tgenabled IN ('D', 'R') THEN 'disabled' END) AS p (problem)
     WHERE p.problem IS NOT NULL
$$;
-- +goose StatementEnd

-- Makes a table's guards what they should be. The caller holds the lock.
-- +goose StatementBegin
CREATE FUNCTION fencing.repair_guards(target oid, named boolean, arguments text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
SET standard_conforming_strings = on
AS $$
DECLARE
    work record;
BEGIN
    -- A surplus guard on a partition would collide with the clone of the same name: out first.
    FOR work IN SELECT * FROM fencing.guard_problems(target, named, arguments) g WHERE g.problem = 'surplus' LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', work.name, work.label);
    END LOOP;
    FOR work IN
        SELECT g.*, (SELECT t.tgenabled FROM pg_trigger t WHERE t.tgrelid = g.relid AND t.tgname = g.name) AS enabled
          FROM fencing.guard_problems(target, named, arguments) g WHERE g.problem IN ('missing', 'altered') ORDER BY g.label
    LOOP
        EXECUTE regexp_replace(work.definition, '^CREATE TRIGGER', 'CREATE OR REPLACE TRIGGER');
        IF work.enabled = 'A' THEN
            -- somebody wants it to fire in replication too; replacing has forgotten that
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', work.label, work.name);
        END IF;
    END LOOP;
    FOR work IN SELECT * FROM fencing.guard_problems(target, named, arguments) g WHERE g.problem = 'disabled' LOOP
        EXECUTE format('ALTER TABLE ONLY %s ENABLE TRIGGER %I', work.label, work.name);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- The column ------------------------------------------------------------------------------------

-- Marks the columns that protect added, and explains them in \d+: only these are ever dropped.
-- +goose StatementBegin
CREATE FUNCTION fencing.column_note() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 'The highest fencing token accepted for this row. Added by fencing.protect.'::pg_catalog.text $$;
-- +goose StatementEnd

-- What a table's column is now; no row where there is none. The settings are those of a dump, so that
-- a default means the same when it is given back in another session.
--
-- noted: it carries our comment. ours: its default stamps. ready: there is nothing left to do to it.
-- +goose StatementBegin
CREATE FUNCTION fencing.token_column(target oid)
RETURNS TABLE (type text, nullable boolean, default_value text, computed boolean, inherited boolean, noted boolean, ours boolean, ready boolean)
LANGUAGE sql STABLE ROWS 1
SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off
SET datestyle = iso
SET intervalstyle = postgres
SET extra_float_digits = 1
AS $$
    SELECT c.type, c.nullable, c.default_value, c.computed, c.inherited, c.noted, c.ours, c.type = 'bigint' AND NOT c.nullable AND c.ours
      FROM (SELECT format_type(a.atttypid, a.atttypmod) AS type,
                   -- a NOT NULL that is not validated (PostgreSQL 18) may still have NULLs behind it
                   NOT a.attnotnull OR EXISTS (SELECT FROM pg_constraint n WHERE n.conrelid = a.attrelid AND n.contype = 'n'
                                                  AND n.conkey = ARRAY[a.attnum] AND NOT n.convalidated) AS nullable,
                   pg_get_expr(d.adbin, d.adrelid) AS default_value,
                   a.attgenerated <> '' OR a.attidentity <> '' AS computed,
                   a.attinhcount > 0 AS inherited,
                   col_description(a.attrelid, a.attnum) IS NOT DISTINCT FROM fencing.column_note() AS noted,
                   pg_get_expr(d.adbin, d.adrelid) IS NOT DISTINCT FROM 'COALESCE(fencing.presented(), (0)::bigint)' AS ours
              FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = target AND a.attname = 'last_fencing_token' AND NOT a.attisdropped) c
$$;
-- +goose StatementEnd

-- Gives a table's column back: drops one that protect added (or leaves it with a plain default of 0),
-- and returns an adopted one to the default and nullability it had.
--
-- Whether it was adopted, its guards' arguments say; without guards (a copy made with LIKE) the comment
-- is all there is, and only a column that carries it is dropped.
-- +goose StatementBegin
CREATE FUNCTION fencing.release_column(target oid, arguments text[], drop_column boolean) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET datestyle = iso
SET intervalstyle = postgres
SET standard_conforming_strings = on
AS $$
DECLARE
    label    CONSTANT text := (SELECT t.label FROM fencing.tree(target) t WHERE t.relid = target);
    adopted  CONSTANT text := (SELECT word FROM unnest(arguments) AS word WHERE starts_with(word, 'adopted='));
    "column" record;
    added    boolean;
BEGIN
    SELECT * INTO "column" FROM fencing.token_column(target);
    added := FOUND AND adopted IS NULL AND ("column".noted OR arguments IS NOT NULL);
    IF drop_column AND added AND NOT "column".inherited THEN
        EXECUTE format('ALTER TABLE %s DROP COLUMN last_fencing_token', label);
        RETURN;
    ELSIF "column".ours THEN
        EXECUTE format('ALTER TABLE %s ALTER COLUMN last_fencing_token %s', label,
                       CASE WHEN adopted IS NULL THEN 'SET DEFAULT 0'
                            ELSE COALESCE('SET DEFAULT ' || fencing.guard_option('default', arguments), 'DROP DEFAULT') END);
        IF adopted = 'adopted=nullable' THEN
            EXECUTE format('ALTER TABLE %s ALTER COLUMN last_fencing_token DROP NOT NULL', label);
        END IF;
    END IF;
    IF drop_column AND adopted IS NOT NULL AND NOT "column".inherited THEN
        RAISE NOTICE 'the column last_fencing_token of % was there before fencing.protect, and is kept', label;
    END IF;
END
$$;
-- +goose StatementEnd

-- protect, unprotect, enforce, observe ----------------------------------------------------------

-- Says why a relation cannot be protected; returns silently where it can.
-- +goose StatementBegin
CREATE FUNCTION fencing.check_target(target regclass) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation record;
    what     text;
    hint     text;
BEGIN
    SELECT c.relkind, c.relispartition, c.relpersistence, c.relowner, n.nspname, format('%I.%I', n.nspname, c.relname) AS label,
           (SELECT max(pt.relid::regclass::text) FROM pg_partition_ancestors(c.oid) AS pt(relid)
             WHERE NOT (SELECT a.relispartition FROM pg_class a WHERE a.oid = pt.relid)) AS root
      INTO relation
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no table to protect: %', COALESCE(target::text, 'NULL')
            USING ERRCODE = 'undefined_table', HINT = 'Name an existing table, for instance fencing.protect(''public.jobs'').';
    END IF;
    CASE
        WHEN relation.nspname IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencing') THEN
            what := 'a system table'; hint := 'Protect the tables of the application.';
        WHEN relation.relkind = 'v' THEN
            what := 'a view'; hint := 'Protect the table it selects from: writes through the view reach that table''s guards.';
        WHEN relation.relkind = 'm' THEN
            what := 'a materialized view'; hint := 'It is only refreshed, never written: protect the tables it selects from.';
        WHEN relation.relkind = 'f' THEN
            what := 'a foreign table'; hint := 'Its rows are written on the other server too: protect the table there.';
        WHEN relation.relkind NOT IN ('r', 'p') THEN
            what := 'not a table'; hint := 'Name an ordinary or a partitioned table.';
        WHEN relation.relpersistence = 't' THEN
            what := 'a temporary table'; hint := 'No other session can write it: there is nothing to fence.';
        WHEN relation.relispartition THEN
            what := format('a partition of %s', relation.root); hint := format('Protect %s: its partitions are protected with it.', relation.root);
        ELSE NULL;
    END CASE;
    IF what IS NOT NULL THEN
        RAISE EXCEPTION '% is %', relation.label, what USING ERRCODE = 'wrong_object_type', HINT = hint;
    END IF;
    IF NOT pg_has_role(current_user, relation.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'role % does not own table %', quote_ident(current_user), relation.label
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('Run it as %I, or as a member of that role.', pg_get_userbyid(relation.relowner));
    END IF;
END
$$;
-- +goose StatementEnd

-- Two changes of one table's protection take turns, so that the second sees what the first has done.
-- Not a lock on the table: where nothing is to be changed, no writer shall wait.
-- +goose StatementBegin
CREATE FUNCTION fencing.take_turns(target regclass) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$ SELECT pg_advisory_xact_lock('fencing.protection'::regclass::oid::integer, target::oid::integer) $$;
-- +goose StatementEnd

-- Checks that a fence's template names columns whose text form is one and the same everywhere, and
-- that a row always has one.
-- +goose StatementBegin
CREATE FUNCTION fencing.check_template(target regclass, template text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    placeholder text;
    col         record;
BEGIN
    IF template = '' OR octet_length(template) > 1024 THEN
        RAISE EXCEPTION 'a fence needs a name of 1 to 1024 bytes' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use the name of the lock, for instance jobs/nightly, or a template, for instance account/{account_id}.';
    END IF;
    IF template !~ '^([^{}]|[{][^{}]+[}])*$' THEN
        RAISE EXCEPTION 'the fence % has unbalanced braces', quote_literal(template) USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Braces enclose a column''s name: account/{account_id}.';
    END IF;
    FOR placeholder IN SELECT m[1] FROM regexp_matches(template, '[{]([^{}]+)[}]', 'g') AS m LOOP
        SELECT a.attnotnull, a.attgenerated, base.typname, base.typtype, format_type(a.atttypid, a.atttypmod) AS type
          INTO col
          FROM pg_attribute a
         CROSS JOIN LATERAL (
             WITH RECURSIVE chain (oid, typname, typtype, typbasetype) AS (
                 SELECT t.oid, t.typname, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
                 UNION ALL
                 SELECT t.oid, t.typname, t.typtype, t.typbasetype FROM chain JOIN pg_type t ON t.oid = chain.typbasetype
                  WHERE chain.typtype = 'd')
             SELECT chain.typname, chain.typtype FROM chain WHERE chain.typtype <> 'd') AS base
         WHERE a.attrelid = target AND a.attname = placeholder AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the fence % names the column %, which table % does not have', quote_literal(template), quote_ident(placeholder), target
                USING ERRCODE = 'undefined_column', HINT = 'Put the column''s name between the braces as it is stored, without quotes.';
        ELSIF col.attgenerated <> '' THEN
            RAISE EXCEPTION 'column % of % is generated, and cannot name a fence', quote_ident(placeholder), target
                USING ERRCODE = 'invalid_column_reference', HINT = 'Its value is computed after the guard has run: use the columns it is computed from.';
        ELSIF NOT col.attnotnull THEN
            RAISE EXCEPTION 'column % of % may be NULL, and cannot name a fence', quote_ident(placeholder), target
                USING ERRCODE = 'invalid_column_reference',
                      HINT = format('A row without it would belong to no fence. First: ALTER TABLE %s ALTER COLUMN %I SET NOT NULL;', target, placeholder);
        ELSIF col.typtype <> 'e' AND col.typname NOT IN ('int2', 'int4', 'int8', 'text', 'varchar', 'uuid', 'name', 'citext') THEN
            RAISE EXCEPTION 'column % of % has type %, and cannot name a fence', quote_ident(placeholder), target, col.type
                USING ERRCODE = 'datatype_mismatch', HINT = 'Only integers, text, varchar, uuid and enums have one text form.';
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Checks that no trigger of the application's has a guard's name: it is not ours to replace.
-- +goose StatementBegin
CREATE FUNCTION fencing.check_names(target regclass) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken record;
BEGIN
    SELECT n.nspname, c.relname, t.label, g.tgname AS name INTO taken
      FROM fencing.tree(target) t
      JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_trigger g ON g.tgrelid = t.relid AND starts_with(g.tgname::text, 'zzz_fencing_')
     WHERE NOT EXISTS (SELECT FROM fencing.guard ours WHERE ours.trigger_oid = g.oid)
     ORDER BY t.label COLLATE "C", g.tgname LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% has a trigger % that is none of ours', taken.label, quote_ident(taken.name)
            USING ERRCODE = 'duplicate_object', SCHEMA = taken.nspname, TABLE = taken.relname,
                  HINT = format('Give it another name: ALTER TRIGGER %I ON %s RENAME TO another_name;', taken.name, taken.label);
    END IF;
END
$$;
-- +goose StatementEnd

-- Checks that the table has, or can be given, the column of a row fence.
-- +goose StatementBegin
CREATE FUNCTION fencing.check_column(target regclass, protected boolean) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation record;
    "column" record;
    child    text;
BEGIN
    SELECT n.nspname, c.relname, format('%I.%I', n.nspname, c.relname) AS label, NULLIF(c.reloftype, 0)::regtype::text AS of_type
      INTO relation
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    SELECT * INTO "column" FROM fencing.token_column(target);

    -- A child's own default would be overwritten with its parent's, and could not be given back.
    SELECT t.label INTO child
      FROM fencing.tree(target) t CROSS JOIN LATERAL fencing.token_column(t.relid) c
     WHERE t.relid <> target AND NOT protected
       AND (c.type, c.nullable, c.default_value) IS DISTINCT FROM ("column".type, "column".nullable, "column".default_value)
     ORDER BY t.label COLLATE "C" LIMIT 1;
    IF child IS NOT NULL THEN
        RAISE EXCEPTION 'column last_fencing_token of %, a child of %, is not that of its parent', child, relation.label
            USING ERRCODE = 'invalid_table_definition', SCHEMA = relation.nspname, TABLE = relation.relname, COLUMN = 'last_fencing_token',
                  HINT = format('Give the column the same type, default and nullability in %s and in %s, or rename it in the child.', relation.label, child);
    ELSIF "column".type IS NULL AND relation.of_type IS NOT NULL THEN
        RAISE EXCEPTION '% is a table of the type %, and has no column last_fencing_token', relation.label, relation.of_type
            USING ERRCODE = 'wrong_object_type', SCHEMA = relation.nspname, TABLE = relation.relname,
                  HINT = format('Protect it with a named fence, which needs no column. Or first: ALTER TYPE %s ADD ATTRIBUTE last_fencing_token bigint CASCADE;',
                                relation.of_type);
    ELSIF "column".type <> 'bigint' OR "column".computed THEN
        RAISE EXCEPTION 'column last_fencing_token of % is %, not a plain bigint', relation.label,
                        "column".type || CASE WHEN "column".computed THEN ', generated or identity' ELSE '' END
            USING ERRCODE = 'datatype_mismatch', SCHEMA = relation.nspname, TABLE = relation.relname, COLUMN = 'last_fencing_token',
                  HINT = 'Rename it, or change its type to bigint; or protect the table with a named fence, which needs no column.';
    END IF;
END
$$;
-- +goose StatementEnd

-- What protect cannot mend, it says.
-- +goose StatementBegin
CREATE FUNCTION fencing.warn_of_gaps(target regclass, named boolean, fence text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT t.label,
               c.relpersistence = 'u' AND NOT named AS unlogged,
               EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = t.relid) AS rules,
               -- BEFORE ROW triggers (1 | 2) of UPDATE (16), and of INSERT (4) where that guard is one too
               (SELECT string_agg(quote_ident(g.tgname), ', ' ORDER BY g.tgname)
                  FROM pg_trigger g
                 WHERE g.tgrelid = t.relid AND NOT g.tgisinternal AND g.tgtype & 3 = 3
                   AND g.tgtype & CASE WHEN named THEN 20 ELSE 16 END > 0
                   AND g.tgname > 'zzz_fencing_update' AND (NOT named OR strpos(fence, '{') > 0)) AS later
          FROM fencing.tree(target) t JOIN pg_class c ON c.oid = t.relid
         ORDER BY t.part, t.label
    LOOP
        IF member.unlogged THEN
            RAISE WARNING '% is unlogged: a crash empties it, its row fences with it', member.label;
        END IF;
        IF member.rules THEN
            RAISE WARNING '% has rewrite rules: a write that a rule redirects does not reach the guards', member.label;
        END IF;
        IF member.later IS NOT NULL THEN
            RAISE WARNING '% has BEFORE triggers that run after the guards, and could change what they accepted: %', member.label, member.later;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Protects a table, or changes how it is protected.
--
-- Locks, until the end of the transaction: none where everything is as asked for already; SHARE ROW
-- EXCLUSIVE (readers go on) where only guards are made or changed; ACCESS EXCLUSIVE, briefly, where
-- the column is added or guards of the other kind are dropped. Nothing is rewritten and, unless an
-- adopted column is nullable, nothing is scanned.
-- +goose StatementBegin
CREATE FUNCTION fencing.protect(
    target regclass, mode text DEFAULT 'strict', fence text DEFAULT NULL, inserts text DEFAULT 'allow',
    observe boolean DEFAULT false, max_advance bigint DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    named       CONSTANT boolean := fence IS NOT NULL;
    schema_name text;
    table_name  text;
    label       text;
    known       record;
    protected   boolean;
    arguments   text[];
    "column"    record;
    missing     boolean := false;
    nulls       boolean;
    negatives   boolean;
    exclusive   boolean := false;
    broken      boolean;
BEGIN
    IF mode IS NULL OR mode NOT IN ('strict', 'reentrant') THEN
        RAISE EXCEPTION 'mode % is not known', COALESCE(quote_literal(mode), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use ''strict'' (each token writes a row once) or ''reentrant''.';
    ELSIF inserts IS NULL OR inserts NOT IN ('allow', 'require') THEN
        RAISE EXCEPTION 'inserts % is not known', COALESCE(quote_literal(inserts), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use ''allow'' (a new row needs no token) or ''require''.';
    ELSIF max_advance NOT BETWEEN 1 AND 281474976710655 THEN
        RAISE EXCEPTION 'max_advance % is out of range', max_advance
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It is how far one token may be ahead of the one before: from 1 to 281474976710655.';
    ELSIF observe IS NULL THEN
        RAISE EXCEPTION 'observe is NULL' USING ERRCODE = 'invalid_parameter_value', HINT = 'Use true or false.';
    END IF;
    PERFORM fencing.check_target(target);
    IF named THEN
        PERFORM fencing.check_template(target, fence);
    END IF;

    SELECT n.nspname, c.relname, format('%I.%I', n.nspname, c.relname) INTO schema_name, table_name, label
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;

    PERFORM fencing.take_turns(target);

    SELECT p.kind = 'named' AS named, p.arguments INTO known FROM fencing.protection p WHERE p.relid = target;
    protected := FOUND;

    IF NOT protected THEN
        PERFORM fencing.check_names(target);
    END IF;

    arguments := ARRAY[CASE WHEN named THEN fence ELSE mode END, CASE WHEN observe THEN 'observe' ELSE 'enforce' END];
    IF NOT named AND inserts = 'require' THEN
        arguments := arguments || 'inserts=require'::text;
    END IF;
    IF max_advance IS NOT NULL THEN
        arguments := arguments || format('max_advance=%s', max_advance);
    END IF;

    SELECT * INTO "column" FROM fencing.token_column(target);
    IF named THEN
        exclusive := protected AND NOT known.named;
    ELSE
        missing := "column".type IS NULL;
        PERFORM fencing.check_column(target, protected);
        IF missing THEN
            exclusive := true;
        ELSE
            exclusive := (protected AND known.named)
                OR EXISTS (SELECT FROM fencing.tree(target) t CROSS JOIN LATERAL fencing.token_column(t.relid) c WHERE NOT c.ready);
            -- What an adopted column was is kept in the guards' arguments, for unprotect.
            IF protected AND NOT known.named THEN
                arguments := arguments || ARRAY(
                    SELECT word FROM unnest(known.arguments) AS word WHERE starts_with(word, 'adopted=') OR starts_with(word, 'default='));
            ELSIF NOT "column".noted THEN
                arguments := arguments || CASE WHEN "column".nullable THEN 'adopted=nullable' ELSE 'adopted=not null' END;
                IF "column".default_value IS NOT NULL AND NOT "column".ours THEN
                    arguments := arguments || ('default=' || "column".default_value);
                END IF;
            END IF;
        END IF;
    END IF;

    -- The strongest lock this needs, first: an upgrade later could deadlock.
    SELECT count(*) > 0, exclusive OR COALESCE(bool_or(g.problem = 'surplus'), false) INTO broken, exclusive
      FROM fencing.guard_problems(target, named, arguments) g;
    IF NOT broken AND NOT exclusive THEN
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE %s IN %s MODE', label, CASE WHEN exclusive THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END);

    IF named THEN
        IF protected AND NOT known.named THEN
            PERFORM fencing.release_column(t.relid, known.arguments, false) FROM fencing.tree(target) t ORDER BY t.part;
        END IF;
    ELSE
        IF missing THEN
            -- A constant default fills the existing rows without a rewrite. The expression comes after. (IF NOT
            -- EXISTS: a transaction with an old snapshot does not see a column that was added meanwhile.)
            EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS last_fencing_token bigint NOT NULL DEFAULT 0', label);
            EXECUTE format('COMMENT ON COLUMN %s.last_fencing_token IS %L', label, fencing.column_note());
        ELSIF NOT "column".ready THEN
            EXECUTE format('SELECT bool_or(last_fencing_token IS NULL), bool_or(last_fencing_token < 0) FROM %s', label) INTO nulls, negatives;
            IF negatives THEN
                RAISE EXCEPTION 'column last_fencing_token of % has negative numbers', label
                    USING ERRCODE = 'check_violation', SCHEMA = schema_name, TABLE = table_name, COLUMN = 'last_fencing_token',
                          HINT = format('They would accept other negative numbers, which are no tokens. First: UPDATE %s SET last_fencing_token = 0 WHERE last_fencing_token < 0;', label);
            ELSIF nulls THEN
                RAISE EXCEPTION 'column last_fencing_token of % has NULLs', label
                    USING ERRCODE = 'not_null_violation', SCHEMA = schema_name, TABLE = table_name, COLUMN = 'last_fencing_token',
                          HINT = format('A NULL can be compared with no token. First: UPDATE %s SET last_fencing_token = 0 WHERE last_fencing_token IS NULL;', label);
            END IF;
            IF "column".nullable THEN
                EXECUTE format('ALTER TABLE %s ALTER COLUMN last_fencing_token SET NOT NULL', label);
            END IF;
        END IF;
        IF exclusive THEN
            -- Stamps new rows with the presented token, COPY's included, without a trigger.
            EXECUTE format('ALTER TABLE %s ALTER COLUMN last_fencing_token SET DEFAULT COALESCE(fencing.presented(), 0::bigint)', label);
        END IF;
    END IF;

    PERFORM fencing.repair_guards(target, named, arguments);

    PERFORM fencing.warn_of_gaps(target, named, arguments[1]);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.protect(regclass, text, text, text, boolean, bigint) IS
    'Fences a table: from now on a write needs a fencing token that is not stale. A second call changes the options.';

-- enforce and observe keep everything else as it is.
-- +goose StatementBegin
CREATE FUNCTION fencing.set_enforcement(target regclass, enforcement text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known    record;
    strength text;
BEGIN
    PERFORM fencing.check_target(target);
    PERFORM fencing.take_turns(target);
    SELECT p.kind = 'named' AS named, p.arguments INTO known FROM fencing.protection p WHERE p.relid = target;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table % is not protected', target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('SELECT fencing.protect(%L) protects it.', target);
    END IF;
    IF known.named THEN
        PERFORM fencing.check_template(target, known.arguments[1]); -- a column may have been renamed since
    END IF;
    known.arguments[2] := enforcement;
    SELECT CASE WHEN bool_or(g.problem = 'surplus') THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END INTO strength
      FROM fencing.guard_problems(target, known.named, known.arguments) g HAVING count(*) > 0;
    IF FOUND THEN
        EXECUTE format('LOCK TABLE %s IN %s MODE', target, strength);
        PERFORM fencing.repair_guards(target, known.named, known.arguments);
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION fencing.enforce(target regclass) RETURNS void
LANGUAGE sql
AS $$ SELECT fencing.set_enforcement(target, 'enforce') $$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.enforce(regclass) IS 'Makes the guards of a protected table refuse.';

-- +goose StatementBegin
CREATE FUNCTION fencing.observe(target regclass) RETURNS void
LANGUAGE sql
AS $$ SELECT fencing.set_enforcement(target, 'observe') $$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.observe(regclass) IS 'Makes the guards of a protected table record violations in fencing.violation and let them through.';

-- Takes the guards off, under ACCESS EXCLUSIVE. The column that protect added stays, unless asked;
-- one that was there before is given back as it was.
-- +goose StatementBegin
CREATE FUNCTION fencing.unprotect(target regclass, drop_column boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    members record;
    member  record;
BEGIN
    PERFORM fencing.check_target(target);
    PERFORM fencing.take_turns(target);
    -- Each member's guards, and what they say of its column, before they are dropped.
    SELECT array_agg(t.relid ORDER BY t.part, t.label) AS relids,
           jsonb_object_agg(t.relid, (SELECT to_jsonb(g.arguments) FROM fencing.guard g
                                       WHERE g.relid = t.relid AND g.function_name = 'guard_row' LIMIT 1)) AS arguments,
           bool_or(EXISTS (SELECT FROM fencing.guard g WHERE g.relid = t.relid)
                   OR COALESCE((SELECT c.ours OR (drop_column AND c.noted) FROM fencing.token_column(t.relid) c), false)) AS found
      INTO members
      FROM fencing.tree(target) t;
    IF NOT members.found THEN
        RAISE NOTICE 'table % is not protected', target;
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', target);
    FOR member IN
        SELECT t.label, g.name FROM fencing.tree(target) t JOIN fencing.guard g ON g.relid = t.relid
         WHERE NOT g.cloned ORDER BY t.part, t.label
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', member.name, member.label);
    END LOOP;
    FOR member IN SELECT relid FROM unnest(members.relids) AS relid LOOP
        PERFORM fencing.release_column(member.relid,
            NULLIF(ARRAY(SELECT jsonb_array_elements_text(NULLIF(members.arguments -> member.relid::text, 'null'::jsonb))), '{}'), drop_column);
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.unprotect(regclass, boolean) IS
    'Takes the guards off a table, and with drop_column the column that protect added.';

REVOKE ALL ON FUNCTION
    fencing.tree(oid), fencing.fence_expression(oid, text, text), fencing.quoted(text),
    fencing.expected_guards(oid, boolean, text[]), fencing.guard_problems(oid, boolean, text[]),
    fencing.repair_guards(oid, boolean, text[]), fencing.column_note(), fencing.token_column(oid),
    fencing.release_column(oid, text[], boolean), fencing.check_target(regclass), fencing.take_turns(regclass), fencing.check_template(regclass, text),
    fencing.check_names(regclass), fencing.check_column(regclass, boolean), fencing.warn_of_gaps(regclass, boolean, text),
    fencing.protect(regclass, text, text, text, boolean, bigint), fencing.set_enforcement(regclass, text),
    fencing.enforce(regclass), fencing.observe(regclass), fencing.unprotect(regclass, boolean)
FROM PUBLIC;

-- +goose Down
DROP FUNCTION fencing.unprotect(regclass, boolean), fencing.observe(regclass), fencing.enforce(regclass),
              fencing.set_enforcement(regclass, text), fencing.protect(regclass, text, text, text, boolean, bigint),
              fencing.warn_of_gaps(regclass, boolean, text), fencing.check_column(regclass, boolean), fencing.check_names(regclass),
              fencing.check_template(regclass, text), fencing.take_turns(regclass), fencing.check_target(regclass),
              fencing.release_column(oid, text[], boolean), fencing.token_column(oid), fencing.column_note(),
              fencing.repair_guards(oid, boolean, text[]), fencing.guard_problems(oid, boolean, text[]),
              fencing.expected_guards(oid, boolean, text[]), fencing.quoted(text),
              fencing.fence_expression(oid, text, text), fencing.tree(oid);
DROP VIEW fencing.protection, fencing.guard;
