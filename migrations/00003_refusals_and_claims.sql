-- Refusing (or recording) a write, and claiming a named fence.

-- +goose Up

-- A query for the primary key of a row of a table ($1), for error details; NULL where there is none.
--
-- to_jsonb runs a user's own cast to json, and the guards that ask are SECURITY DEFINER: only types
-- of PostgreSQL itself go through it, others through their output function.
-- +goose StatementBegin
CREATE FUNCTION fencing.key_query(target oid) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('SELECT %s', COALESCE((
        SELECT format('pg_catalog.jsonb_build_object(%s)', string_agg(
                   format(CASE WHEN a.atttypid < 16384 THEN '%L, ($1).%I' ELSE '%L, pg_catalog.concat(($1).%I)' END, a.attname, a.attname),
                   ', ' ORDER BY array_position(i.indkey::smallint[], a.attnum)))
          FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
         WHERE i.indrelid = target AND i.indisprimary
        HAVING count(*) > 0), 'NULL::jsonb'))
$$;
-- +goose StatementEnd

-- Whether a violation on a table is let through, and why: bypass or observe; NULL when it is refused.
-- +goose StatementBegin
CREATE FUNCTION fencing.tolerance(target oid, enforcement text) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN current_setting('fencing.bypass', true) <> ''
             AND pg_has_role(fencing.acting_role(), (SELECT relowner FROM pg_class WHERE oid = target), 'MEMBER') THEN 'bypass'
        WHEN enforcement = 'observe' THEN 'observe' END
$$;
-- +goose StatementEnd

-- Whether a violation that is let through is still to be logged: the first of its kind on its table
-- in this transaction.
-- +goose StatementBegin
CREATE FUNCTION fencing.to_be_logged(target oid, tolerance text, kind text) RETURNS boolean
LANGUAGE sql
AS $$ SELECT fencing.mark_once(pg_catalog.concat(CASE tolerance WHEN 'bypass' THEN tolerance ELSE kind END, ' ', target)) $$;
-- +goose StatementEnd

-- The one door through which every violation goes: logs it where it is let through, else refuses it.
--
-- kind       SQLSTATE  meaning
-- stale      ZF001     presented < stored; or equal, on a strict row fence
-- unfenced   ZF002     nothing presented
-- invalid    ZF003     not a token, or beyond max_advance
-- unclaimed  ZF004     presented > stored on a named fence
-- truncate   ZF005     TRUNCATE where fences are per row
-- fenceless  ZF002     a row whose fence has no name: a column of the template is NULL (logged as unfenced)
-- +goose StatementBegin
CREATE FUNCTION fencing.violated(
    target oid, tolerance text, kind text, fence text, key jsonb, presented bigint, stored bigint
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    actor       CONSTANT text := fencing.acting_role();
    application CONSTANT text := COALESCE(current_setting('application_name', true), '');
    statement   CONSTANT text := left(COALESCE(current_query(), ''), 2000);
    reason      CONSTANT text := current_setting('fencing.bypass', true);
    schema_name text;
    table_name  text;
    label       text;
    resource    text;
    shown       text := COALESCE(presented::text, 'NULL');
    state       text;
    message     text;
    hint        text;
BEGIN
    SELECT n.nspname, c.relname INTO STRICT schema_name, table_name
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    label := format('%I.%I', schema_name, table_name);

    IF presented = -1 AND fencing.presented(fence) = -1 THEN
        -- It stands for a setting that is no token: what was really set is more useful.
        shown := left(fencing.presented_text(fence), 100);
        presented := CASE WHEN shown ~ '^-?[0-9]{1,18}$' THEN shown::bigint END;
    END IF;

    IF tolerance = 'bypass' THEN
        INSERT INTO fencing.bypass_log (schema_name, table_name, role_name, application_name, reason, query)
        VALUES (schema_name, table_name, actor, application, reason, statement);
        RETURN;
    ELSIF tolerance = 'observe' THEN
        INSERT INTO fencing.violation (schema_name, table_name, kind, role_name, application_name, query,
                                       fence, key, presented, stored, xact)
        VALUES (schema_name, table_name, CASE kind WHEN 'fenceless' THEN 'unfenced' ELSE kind END, actor, application, statement,
                fence, key, presented, stored, pg_current_xact_id());
        RETURN;
    END IF;

    resource := CASE WHEN fence IS NOT NULL THEN format('fence "%s" (table %s)', fence, label)
                     WHEN key IS NOT NULL   THEN format('table %s, row %s', label, key)
                     ELSE format('table %s', label) END;

    CASE kind
    WHEN 'stale' THEN
        state := 'ZF001';
        IF presented = stored THEN
            message := format('stale fencing token %s: %s has accepted it already', fencing.token_text(presented), resource);
            hint := 'An earlier write of the same grant, not a newer holder: a strict fence takes each token once per row. '
                 || 'Take a retry for done, acquire a new token, or protect the table with mode => ''reentrant''.';
        ELSE
            message := format('stale fencing token %s: %s has accepted %s',
                              fencing.token_text(presented), resource, fencing.token_text(stored));
            hint := 'A newer holder of the lock has taken over. Stop, and acquire the lock again before writing.';
        END IF;
    WHEN 'unfenced' THEN
        state := 'ZF002';
        message := format('no fencing token presented: %s', resource);
        hint := CASE WHEN fence IS NULL
                     THEN 'Acquire the lock and run SELECT fencing.present(token) in this transaction, or set last_fencing_token in the statement.'
                     ELSE 'Acquire the lock, claim its fence, and run SELECT fencing.present(token) in this transaction.' END;
    WHEN 'fenceless' THEN
        state := 'ZF002';
        message := format('the row belongs to no fence: a column of %s is NULL or renamed', resource);
        hint := 'Fill the column in, or name it as it is called now with fencing.protect(table, fence => ...).';
    WHEN 'invalid' THEN
        state := 'ZF003';
        IF presented > 0 THEN
            message := format('fencing token %s is beyond max_advance: %s has accepted %s',
                              fencing.token_text(presented), resource, fencing.token_text(stored));
            hint := 'Check the token source. Where the jump is right, raise max_advance with fencing.protect.';
        ELSE
            message := format('invalid fencing token %s: %s', shown, resource);
            hint := 'A token is a whole number from 1 to 9223372036854775807: present the one that came with the lock.';
        END IF;
    WHEN 'unclaimed' THEN
        state := 'ZF004';
        message := CASE WHEN stored IS NULL
                        THEN format('fencing token %s is not claimed: %s has never been claimed',
                                    fencing.token_text(presented), resource)
                        ELSE format('fencing token %s is not claimed: %s stands at %s',
                                    fencing.token_text(presented), resource, fencing.token_text(stored)) END;
        hint := format('Run SELECT fencing.claim(%L, %s) in a transaction of its own, before the first read.', fence, presented);
    WHEN 'truncate' THEN
        state := 'ZF005';
        message := format('TRUNCATE is not possible under a fence per row: %s', resource);
        hint := 'TRUNCATE would erase the fences without checking them. Use DELETE under a token, '
             || 'or protect the table with one named fence.';
    END CASE;

    IF reason <> '' THEN
        hint := hint || format(' The bypass was not honoured: role %I is not a member of the table''s owner.', actor);
    END IF;

    RAISE EXCEPTION USING
        ERRCODE = state,
        MESSAGE = message,
        DETAIL  = jsonb_strip_nulls(jsonb_build_object('fence', fence, 'key', key, 'presented', presented, 'stored', stored))::text,
        HINT    = hint,
        SCHEMA  = schema_name,
        TABLE   = table_name,
        COLUMN  = CASE WHEN fence IS NULL THEN 'last_fencing_token' ELSE '' END; -- a named fence has no column
END
$$;
-- +goose StatementEnd

-- Whether a token goes further beyond the stored one than max_advance allows. The limit counts
-- within an epoch: a new epoch is a jump of 2^48, and is right exactly when this database knows it.
-- A resource that has never been fenced (stored 0 or NULL) has nothing to measure from.
-- +goose StatementBegin
CREATE FUNCTION fencing.advances_too_far(token bigint, stored bigint, max_advance bigint) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT max_advance IS NOT NULL AND COALESCE(stored, 0) > 0 AND token > stored AND (
        fencing.token_counter(token) - fencing.token_counter(stored) > max_advance
        OR (fencing.token_epoch(token) > fencing.token_epoch(stored)
            AND fencing.token_epoch(token) > (SELECT COALESCE(max(s.epoch), 0) FROM fencing.source s)))
$$;
-- +goose StatementEnd

-- The tightest max_advance among the guards that a fence's name belongs to; NULL when there is none.
-- The guards are found through pg_depend, whose index leads from the guard function to its triggers:
-- pg_trigger has no index for that, and a claim must not slow down with the number of tables.
-- +goose StatementBegin
CREATE FUNCTION fencing.max_advance_of(fence text) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT min(substring(word FROM '^max_advance=([0-9]+)$')::bigint)
          FROM pg_depend d
          JOIN pg_trigger t ON t.oid = d.objid AND t.tgparentid = 0
                           AND position('max_advance='::bytea IN t.tgargs) > 0
         CROSS JOIN LATERAL fencing.guard_arguments(t.tgargs) AS arguments
         CROSS JOIN LATERAL unnest(arguments) AS word
         WHERE d.refclassid = 'pg_proc'::regclass
           AND d.refobjid = 'fencing.guard_named()'::regprocedure
           AND d.classid = 'pg_trigger'::regclass
           AND starts_with(word, 'max_advance=')
           AND fence ~ fencing.fence_pattern(arguments[1]));
END
$$;
-- +goose StatementEnd

-- A trigger's arguments as text[]: pg_trigger keeps them as NUL-terminated strings in a bytea.
-- +goose StatementBegin
CREATE FUNCTION fencing.guard_arguments(tgargs bytea) RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    separator CONSTANT bytea := decode('00', 'hex');
    rest      bytea := tgargs;
    words     text[] := '{}';
    ending    integer;
BEGIN
    LOOP
        ending := position(separator IN rest);
        EXIT WHEN ending = 0;
        words := words || convert_from(substring(rest FROM 1 FOR ending - 1), getdatabaseencoding());
        rest := substring(rest FROM ending + 1);
    END LOOP;
    RETURN words;
END
$$;
-- +goose StatementEnd

-- The names that a fence template can produce, as an anchored regular expression.
-- +goose StatementBegin
CREATE FUNCTION fencing.fence_pattern(template text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
    -- Every character of the literal parts that is special in a regular expression is escaped first;
    -- braces are not special to the first step, so the placeholders survive it.
    SELECT '^' || regexp_replace(regexp_replace(template, '([][\\.^$*+?()|])', '\\\1', 'g'), '\{[^{}]*\}', '.*', 'g') || '$'
$$;
-- +goose StatementEnd

-- Claiming --------------------------------------------------------------------------------------

-- Raises a named fence to a token, and returns the token it stood at (0 when it is new). From the
-- moment this transaction has committed, nothing older can commit a write under the fence, and all
-- that older tokens have committed is visible to whoever starts reading.
--
-- Locks, until the end of the transaction: the fence's advisory lock, then FOR NO KEY UPDATE on its row.
-- The one waits for every older writer in flight that holds the lock shared, the other for those that
-- hold the row FOR SHARE (fencing.check_fence says who holds which): so it belongs in a transaction of its own.
-- +goose StatementBegin
CREATE FUNCTION fencing.claim(fence text, token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    previous bigint;
    ceiling  bigint;
BEGIN
    IF COALESCE(fence, '') = '' OR octet_length(fence) > 1024 THEN
        RAISE EXCEPTION 'a fence needs a name of 1 to 1024 bytes'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use the name of the lock.';
    END IF;
    IF token IS NULL OR token <= 0 THEN
        RAISE EXCEPTION 'invalid fencing token % for fence "%"', COALESCE(token::text, 'NULL'), fence
            USING ERRCODE = 'ZF003',
                  DETAIL = jsonb_strip_nulls(jsonb_build_object('fence', fence, 'presented', token))::text,
                  HINT = 'A token is a whole number from 1 to 9223372036854775807: claim with the one that came with the lock.',
                  SCHEMA = 'fencing', TABLE = 'fence', COLUMN = 'token';
    END IF;

    -- A claim that is acknowledged must survive a crash (remote_apply, which is stricter, stays).
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    PERFORM pg_advisory_xact_lock(fencing.fence_lock(fence));
    LOOP
        SELECT f.token INTO previous FROM fencing.fence f WHERE f.name = claim.fence FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        -- In a REPEATABLE READ transaction a first claim may be there that is not seen yet.
        INSERT INTO fencing.fence AS f (name, token, claimed_at, claimed_by)
        VALUES (claim.fence, claim.token, clock_timestamp(), fencing.acting_role())
            ON CONFLICT (name) DO NOTHING;
        IF FOUND THEN
            RETURN 0;
        END IF;
    END LOOP;

    IF token < previous THEN
        RAISE EXCEPTION 'stale fencing token %: fence "%" is claimed by %',
                        fencing.token_text(token), fence, fencing.token_text(previous)
            USING ERRCODE = 'ZF001',
                  DETAIL = jsonb_build_object('fence', fence, 'presented', token, 'stored', previous)::text,
                  HINT = 'A newer holder of the lock has taken over. Stop, and acquire the lock again.',
                  SCHEMA = 'fencing', TABLE = 'fence', COLUMN = 'token';
    END IF;

    IF token > previous THEN
        -- A step of one is within every limit, and by far the most common: no catalog look-up for it.
        IF previous > 0 AND token - previous > 1 THEN
            ceiling := fencing.max_advance_of(fence);
            IF fencing.advances_too_far(token, previous, ceiling) THEN
                RAISE EXCEPTION 'fencing token % is beyond max_advance: fence "%" stands at %, and may advance by % at most',
                                fencing.token_text(token), fence, fencing.token_text(previous), ceiling
                    USING ERRCODE = 'ZF003',
                          DETAIL = jsonb_build_object('fence', fence, 'presented', token, 'stored', previous)::text,
                          HINT = 'Check the token source. Where the jump is right, raise max_advance with fencing.protect.',
                          SCHEMA = 'fencing', TABLE = 'fence', COLUMN = 'token';
            END IF;
        END IF;
        UPDATE fencing.fence AS f
           SET token = claim.token, claimed_at = clock_timestamp(), claimed_by = fencing.acting_role()
         WHERE f.name = claim.fence;
        -- What this very transaction was allowed under an older token, it is not allowed any longer.
        PERFORM fencing.set_accepted(claim.fence, false);
    END IF;

    RETURN previous;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.claim(text, bigint) IS
    'Raises a named fence to a token, waiting for older writers in flight; returns the token it stood at, 0 when it is new. Run it in a transaction of its own, before the first read.';

-- Operators' repair: sets a fence to any token, for instance after an absurd one locked everybody
-- out. Logged like a bypass. Every holder has to claim again.
-- +goose StatementBegin
CREATE FUNCTION fencing.lower_fence(fence text, token bigint, reason text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    previous bigint;
BEGIN
    IF btrim(COALESCE(reason, '')) = '' THEN
        RAISE EXCEPTION 'lowering a fence needs a reason'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Say why, it is logged in fencing.bypass_log.';
    END IF;
    IF token IS NULL OR token < 0 THEN
        RAISE EXCEPTION 'a fence cannot be lowered to %', COALESCE(token::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Name the last token that was right, or 0.';
    END IF;
    PERFORM pg_advisory_xact_lock(fencing.fence_lock(fence));
    SELECT f.token INTO previous FROM fencing.fence f WHERE f.name = lower_fence.fence FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no fence "%"', fence
            USING ERRCODE = 'undefined_object', HINT = 'SELECT name, token FROM fencing.fence lists them.';
    END IF;
    IF token > previous THEN
        RAISE EXCEPTION 'fence "%" stands at %, below %', fence, fencing.token_text(previous), fencing.token_text(token)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Only fencing.claim raises a fence.';
    END IF;
    PERFORM set_config('fencing.lowering', fence, true);
    UPDATE fencing.fence AS f
       SET token = lower_fence.token, claimed_at = clock_timestamp(), claimed_by = fencing.acting_role()
     WHERE f.name = lower_fence.fence;
    PERFORM set_config('fencing.lowering', '', true);
    PERFORM fencing.set_accepted(lower_fence.fence, false);
    INSERT INTO fencing.bypass_log (schema_name, table_name, role_name, application_name, reason, query)
    VALUES ('fencing', 'fence', fencing.acting_role(), COALESCE(current_setting('application_name', true), ''),
            format('fence "%s" lowered from %s to %s: %s', fence, fencing.token_text(previous), fencing.token_text(token), reason),
            left(COALESCE(current_query(), ''), 2000));
    RETURN previous;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.lower_fence(text, bigint, text) IS
    'Lowers a named fence, with a reason that is logged; returns the token it stood at. For operators.';

-- A fence outlives what it guards: were its row deleted, a zombie could claim the name with its old
-- token. This holds for the owner of the schema too, who needs no other privilege.
-- +goose StatementBegin
CREATE FUNCTION fencing.keep_fence() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.name = OLD.name AND current_setting('fencing.lowering', true) = OLD.name THEN
            RETURN NEW;
        END IF;
        RAISE EXCEPTION 'fence "%" is not lowered or renamed by hand', OLD.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Use SELECT fencing.lower_fence(fence, token, reason).';
    END IF;
    RAISE EXCEPTION 'fences are never deleted'
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'A deleted fence would accept every old token again. Use SELECT fencing.lower_fence(fence, token, reason) to repair one.';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER keep_fence BEFORE UPDATE ON fencing.fence
    FOR EACH ROW WHEN (NEW.token < OLD.token OR NEW.name <> OLD.name) EXECUTE FUNCTION fencing.keep_fence();
CREATE TRIGGER keep_fences BEFORE DELETE OR TRUNCATE ON fencing.fence
    FOR EACH STATEMENT EXECUTE FUNCTION fencing.keep_fence();

REVOKE ALL ON FUNCTION
    fencing.key_query(oid), fencing.tolerance(oid, text), fencing.to_be_logged(oid, text, text),
    fencing.violated(oid, text, text, text, jsonb, bigint, bigint),
    fencing.advances_too_far(bigint, bigint, bigint), fencing.max_advance_of(text),
    fencing.guard_arguments(bytea), fencing.fence_pattern(text),
    fencing.claim(text, bigint), fencing.lower_fence(text, bigint, text), fencing.keep_fence()
FROM PUBLIC;

-- +goose Down
DROP TRIGGER keep_fences ON fencing.fence;
DROP TRIGGER keep_fence ON fencing.fence;
DROP FUNCTION fencing.keep_fence(), fencing.lower_fence(text, bigint, text), fencing.claim(text, bigint),
              fencing.fence_pattern(text), fencing.guard_arguments(bytea), fencing.max_advance_of(text),
              fencing.advances_too_far(bigint, bigint, bigint),
              fencing.violated(oid, text, text, text, jsonb, bigint, bigint),
              fencing.to_be_logged(oid, text, text), fencing.tolerance(oid, text), fencing.key_query(oid);
