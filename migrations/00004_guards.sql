-- The guards: trigger functions that check a write against its fence.
--
-- Trigger functions need neither EXECUTE nor USAGE from whoever writes. The checking ones are
-- SECURITY DEFINER, to read fences and log violations on behalf of roles that may do neither.
-- Their arguments are words, so that \d explains itself:
--
--     guard_row  ('strict' | 'reentrant', 'enforce' | 'observe' [, 'inserts=require'] [, 'max_advance=N'] …)
--     guard_named('fence or template',    'enforce' | 'observe' [, 'max_advance=N'])
--
-- The functions that only guards call run under the guards' search_path, and pin none of their own:
-- it would be set and reset for every row.

-- +goose Up

-- An option among a guard's arguments: guard_option('max_advance', TG_ARGV) is 1000 for 'max_advance=1000'.
-- +goose StatementBegin
CREATE FUNCTION fencing.guard_option(option text, arguments text[]) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT substr(word, length(option) + 2) FROM unnest(arguments) WITH ORDINALITY AS a(word, position)
     WHERE position > 2 AND starts_with(word, option || '=')
$$;
-- +goose StatementEnd

-- Row fences ------------------------------------------------------------------------------------

-- Stamps a row whose statement left the column alone with the presented token, where that is greater;
-- everything else is left to the update guard, which fires after this one. Called for each such row, it does no
-- more than it must, and names nothing outside pg_catalog: it runs as the writer, who may have no USAGE on
-- this schema. The first row of a token that was set by hand (SET LOCAL, PGOPTIONS) notes that it is a number.
-- +goose StatementBegin
CREATE FUNCTION fencing.stamp_row() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    token CONSTANT text := pg_catalog.current_setting('fencing.token', true);
BEGIN
    IF (token OPERATOR(pg_catalog.=) pg_catalog.current_setting('fencing.checked', true)) IS NOT TRUE THEN
        IF (token OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,17}$') IS NOT TRUE THEN
            RETURN NEW;
        END IF;
        PERFORM pg_catalog.set_config('fencing.checked', token, true);
    ELSIF token OPERATOR(pg_catalog.=) '' THEN
        RETURN NEW;
    END IF;
    NEW.last_fencing_token := GREATEST(NEW.last_fencing_token, token::pg_catalog.int8);
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- An UPDATE that moves a row to another partition fires BEFORE UPDATE, then BEFORE DELETE on the same
-- row. Where the update was accepted for the token its statement set, nothing else tells that delete
-- from a real one, so the accepted row is noted by its place. The place is exact: a row version is
-- replaced at most once, and the note is gone with the transaction or savepoint. It counts within its
-- statement only, for the update may yet be called off by another trigger.
-- +goose StatementBegin
CREATE FUNCTION fencing.mark_move() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_catalog.set_config('fencing.moving',
        pg_catalog.concat(TG_RELID, ' ', OLD.ctid, ' ', pg_catalog.date_part('epoch', pg_catalog.statement_timestamp())), true);
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Checks one row write that is not plainly right (the triggers' WHEN clauses let those through
-- without a call), or refuses a TRUNCATE.
-- +goose StatementBegin
CREATE FUNCTION fencing.guard_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    single_use CONSTANT boolean := TG_ARGV[0] = 'strict';
    tolerance  CONSTANT text    := fencing.tolerance(TG_RELID, TG_ARGV[1]);
    presented  bigint;
    stored     bigint;
    written    bigint;
    kind       text;
    key        jsonb;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        IF tolerance IS NULL OR fencing.to_be_logged(TG_RELID, tolerance, 'truncate') THEN
            PERFORM fencing.violated(TG_RELID, tolerance, 'truncate', NULL, NULL, NULL, NULL);
        END IF;
        RETURN NULL;
    END IF;

    IF TG_OP = 'INSERT' THEN
        written := NEW.last_fencing_token;
        presented := NULLIF(written, 0);
        kind := CASE WHEN written < 0 THEN 'invalid'
                     WHEN written = 0 AND fencing.guard_option('inserts', TG_ARGV) = 'require' THEN 'unfenced' END;
        IF TG_WHEN = 'BEFORE' AND kind = 'invalid' AND tolerance = 'observe' THEN
            NEW.last_fencing_token := 0; -- let in, but not as a token
        END IF;
    ELSIF TG_OP = 'DELETE' THEN
        stored := COALESCE(OLD.last_fencing_token, 0);
        presented := fencing.presented();
        kind := CASE WHEN current_setting('fencing.moving', true)
                          = concat(TG_RELID, ' ', OLD.ctid, ' ', date_part('epoch', statement_timestamp())) THEN NULL
                     WHEN presented IS NULL THEN 'unfenced'
                     WHEN presented < 0 THEN 'invalid'
                     WHEN presented < stored OR (presented = stored AND single_use) THEN 'stale' END;
    ELSE
        stored := COALESCE(OLD.last_fencing_token, 0);
        written := NEW.last_fencing_token;
        IF written = stored THEN
            -- The statement left the column alone, or copied it through: what is presented counts.
            presented := fencing.presented();
            IF presented > stored THEN
                NEW.last_fencing_token := presented;
            END IF;
        ELSE
            presented := written;
        END IF;
        kind := CASE WHEN presented IS NULL AND written IS NOT NULL THEN 'unfenced'
                     WHEN presented IS NULL OR presented < 0 THEN 'invalid'
                     WHEN presented < stored OR (presented = stored AND single_use) THEN 'stale'
                     WHEN fencing.advances_too_far(presented, stored, fencing.guard_option('max_advance', TG_ARGV)::bigint) THEN 'invalid' END;
        IF kind IS NOT NULL AND tolerance = 'observe' AND (written IS NULL OR written < stored) THEN
            -- In observe a fence still only grows: were it lowered, the next violation would go unseen.
            NEW.last_fencing_token := stored;
        END IF;
    END IF;

    IF kind IS NOT NULL AND (tolerance IS NULL OR fencing.to_be_logged(TG_RELID, tolerance, kind)) THEN
        IF TG_OP = 'INSERT' THEN
            EXECUTE fencing.key_query(TG_RELID) INTO key USING NEW;
        ELSE
            EXECUTE fencing.key_query(TG_RELID) INTO key USING OLD;
        END IF;
        PERFORM fencing.violated(TG_RELID, tolerance, kind, NULL, key, presented, stored);
    END IF;

    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Named fences ----------------------------------------------------------------------------------

-- Checks what is presented against one named fence; kind is NULL when it is accepted.
--
-- Locks, until the end of the transaction, so that a claim waits and no newer holder can start while this write
-- is in flight. The fence is never raised here: two writers that both upgraded their lock would deadlock.
--
-- For a table's one fence, and a transaction's first, under READ COMMITTED, that is the fence's advisory lock, shared. It is taken first and the
-- fence read by a statement of its own after it, which sees every claim that has committed: whoever claims holds
-- the lock alone until then. Many writers of one holder share it at no cost, where each would add itself
-- to the list of a row's lockers, and write that list anew.
--
-- Under REPEATABLE READ and SERIALIZABLE every statement reads the snapshot of the first, however long it waited for the
-- lock: it is FOR SHARE on the fence's row there, which fails (40001) when the row has changed since. FOR KEY SHARE would
-- not do, it does not conflict with a claim. FOR SHARE too for the further ones where each row has its fence: there may be
-- any number of them in a transaction, and room for advisory locks is limited.
-- +goose StatementBegin
CREATE FUNCTION fencing.check_fence(fence text, one_of_many boolean, OUT kind text, OUT presented bigint, OUT stored bigint)
LANGUAGE plpgsql
AS $$
BEGIN
    IF fence IS NULL THEN
        kind := 'fenceless';
        RETURN;
    END IF;
    IF fencing.accepted(fence) THEN
        RETURN;
    END IF;
    presented := CASE WHEN current_setting('fencing.tokens', true) <> '' THEN fencing.presented(fence) ELSE fencing.presented() END;
    IF presented IS NULL THEN
        kind := 'unfenced';
        RETURN;
    ELSIF presented < 0 THEN
        kind := 'invalid';
        RETURN;
    END IF;
    IF NOT one_of_many AND current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        PERFORM pg_advisory_xact_lock_shared(fencing.fence_lock(fence));
        SELECT f.token INTO stored FROM fencing.fence f WHERE f.name = check_fence.fence;
    ELSE
        SELECT f.token INTO stored FROM fencing.fence f WHERE f.name = check_fence.fence FOR SHARE;
    END IF;
    IF presented = stored THEN
        PERFORM fencing.set_accepted(fence, true);
    ELSE
        kind := CASE WHEN presented < stored THEN 'stale' ELSE 'unclaimed' END;
    END IF;
END
$$;
-- +goose StatementEnd

-- A query for the fences that two images of a row of a table ($1 and $2) belong to: the template with its {columns}
-- filled in, by their types' output functions (a cast to text could be a user's own, and would run as this schema's
-- owner); NULL when a column is, or is there no longer under its name.
-- +goose StatementBegin
CREATE FUNCTION fencing.fence_query(target oid, template text) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    first      text := '';
    second     text := '';
    rest       text := template;
    opening    integer;
    closing    integer;
    col        text;
BEGIN
    LOOP
        opening := strpos(rest, '{');
        IF opening = 0 THEN
            RETURN format('SELECT %s%L, %s%L', first, rest, second, rest);
        END IF;
        closing := strpos(rest, '}');
        col := substr(rest, opening + 1, closing - opening - 1);
        IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = col AND NOT a.attisdropped) THEN
            RETURN 'SELECT NULL, NULL';
        END IF;
        first := first || format('%L || CASE WHEN ($1).%2$I IS NOT NULL THEN concat(($1).%2$I) END || ', substr(rest, 1, opening - 1), col);
        second := second || format('%L || CASE WHEN ($2).%2$I IS NOT NULL THEN concat(($2).%2$I) END || ', substr(rest, 1, opening - 1), col);
        rest := substr(rest, closing + 1);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION fencing.guard_named() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The table's one fence, or the row's, as the trigger's condition has told it.
    fence     text := CASE WHEN strpos(TG_ARGV[0], '{') = 0 THEN TG_ARGV[0]
                           WHEN TG_LEVEL = 'ROW' THEN current_setting('fencing.asked', true) END;
    former    text;
    fences    text[];
    tolerance text;
    checked   record;
    key       jsonb;
BEGIN
    -- The plain case of a transaction's first fence, in as few steps as can be, for it is all that a small transaction pays:
    -- check_fence does the same, and says what is wrong. Only where nothing is remembered yet: a fence that is held by its row must not
    -- be waited for by its advisory lock. (The lock is a condition because a statement of its own costs more. The fence is read
    -- by the next statement, on a snapshot that is younger than the lock.)
    IF fence <> '' AND COALESCE(current_setting('fencing.accepted_first', true), '') = ''
       AND COALESCE(current_setting('fencing.token', true), '') <> '' AND current_setting('transaction_isolation') = 'read committed'
       AND pg_advisory_xact_lock_shared(fencing.fence_lock(fence)) IS NOT NULL
    THEN
        -- CASE, because what follows a NULL in an AND is evaluated too.
        IF (CASE WHEN (SELECT f.token::text FROM fencing.fence f WHERE f.name = fence) = current_setting('fencing.token', true)
                      AND COALESCE(current_setting('fencing.tokens', true), '') = ''
                 THEN set_config('fencing.accepted_first', concat(current_setting('fencing.token', true), '  ', fence), true) END) IS NOT NULL
        THEN
            IF TG_LEVEL = 'STATEMENT' THEN
                RETURN NULL;
            ELSIF TG_OP = 'DELETE' THEN
                RETURN OLD;
            END IF;
            RETURN NEW;
        END IF;
    END IF;

    IF fence <> '' THEN
        fences := ARRAY[fence];
    ELSIF TG_OP = 'TRUNCATE' THEN
        -- Of a table whose rows have a fence each: no one token could answer for all.
        tolerance := fencing.tolerance(TG_RELID, TG_ARGV[1]);
        IF tolerance IS NULL OR fencing.to_be_logged(TG_RELID, tolerance, 'truncate') THEN
            PERFORM fencing.violated(TG_RELID, tolerance, 'truncate', TG_ARGV[0], NULL, NULL, NULL);
        END IF;
        RETURN NULL;
    ELSE
        IF TG_OP = 'INSERT' THEN
            EXECUTE fencing.fence_query(TG_RELID, TG_ARGV[0]) INTO former, fence USING NEW, NEW;
        ELSIF TG_OP = 'DELETE' THEN
            EXECUTE fencing.fence_query(TG_RELID, TG_ARGV[0]) INTO former, fence USING OLD, OLD;
        ELSE
            EXECUTE fencing.fence_query(TG_RELID, TG_ARGV[0]) INTO former, fence USING OLD, NEW;
        END IF;
        -- A row that moves from one fence to another needs both.
        fences := CASE WHEN fence IS NOT DISTINCT FROM former THEN ARRAY[fence] ELSE ARRAY[former, fence] END;
    END IF;

    FOREACH fence IN ARRAY fences LOOP
        checked := fencing.check_fence(fence, strpos(TG_ARGV[0], '{') > 0);
        IF checked.kind IS NOT NULL THEN
            tolerance := fencing.tolerance(TG_RELID, TG_ARGV[1]);
            IF tolerance IS NULL OR fencing.to_be_logged(TG_RELID, tolerance, checked.kind) THEN
                IF TG_LEVEL = 'ROW' AND TG_OP = 'INSERT' THEN
                    EXECUTE fencing.key_query(TG_RELID) INTO key USING NEW;
                ELSIF TG_LEVEL = 'ROW' THEN
                    EXECUTE fencing.key_query(TG_RELID) INTO key USING OLD;
                END IF;
                PERFORM fencing.violated(TG_RELID, tolerance, checked.kind, COALESCE(fence, TG_ARGV[0]), key,
                                         checked.presented, checked.stored);
            END IF;
        END IF;
    END LOOP;

    IF TG_LEVEL = 'STATEMENT' THEN
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Presents a token for one named fence and checks it there and then, for a statement that wants to be sure of its fence by itself,
-- whatever became of the guards: SELECT … WHERE (SELECT fencing.hold(fence, token)) = token. What is accepted is remembered for
-- the guards, which then check nothing again.
--
-- Locks: what check_fence takes, until the end of the transaction. So it is not PUBLIC's: whoever may call it can keep claims waiting.
-- +goose StatementBegin
CREATE FUNCTION fencing.hold(fence text, token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    checked record;
BEGIN
    IF fencing.presented() IS NULL THEN
        PERFORM fencing.present(token); -- for what triggers and foreign keys write elsewhere on behalf of this statement
    END IF;
    IF fencing.presented(fence) IS DISTINCT FROM token THEN
        PERFORM fencing.present(token, fence);
    END IF;
    IF COALESCE(fence, '') = '' OR (token > 0) IS NOT TRUE THEN
        PERFORM fencing.present(token, fence); -- refuses both, also where they were presented by hand
    END IF;
    checked := fencing.check_fence(fence, true);
    IF checked.kind = 'stale' THEN
        RAISE EXCEPTION 'stale fencing token %: fence "%" is claimed by %',
                        fencing.token_text(token), fence, fencing.token_text(checked.stored)
            USING ERRCODE = 'ZF001',
                  DETAIL = jsonb_build_object('fence', fence, 'presented', token, 'stored', checked.stored)::text,
                  HINT = 'A newer holder of the lock has taken over. Stop, and acquire the lock again.',
                  SCHEMA = 'fencing', TABLE = 'fence', COLUMN = 'token';
    ELSIF checked.kind IS NOT NULL THEN
        RAISE EXCEPTION 'fencing token % is not claimed: fence "%" %', fencing.token_text(token), fence,
                        CASE WHEN checked.stored IS NULL THEN 'has never been claimed' ELSE 'stands at ' || fencing.token_text(checked.stored) END
            USING ERRCODE = 'ZF004',
                  DETAIL = jsonb_strip_nulls(jsonb_build_object('fence', fence, 'presented', token, 'stored', checked.stored))::text,
                  HINT = format('Run SELECT fencing.claim(%L, %s) in a transaction of its own, before the first read.', fence, token),
                  SCHEMA = 'fencing', TABLE = 'fence', COLUMN = 'token';
    END IF;
    RETURN token;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.hold(text, bigint) IS
    'Presents a token for a named fence and checks it at once; claims of the fence wait until this transaction ends. Returns the token. ZF001 when it is stale, ZF004 when it is not claimed.';

REVOKE ALL ON FUNCTION
    fencing.guard_option(text, text[]), fencing.stamp_row(), fencing.mark_move(), fencing.guard_row(),
    fencing.check_fence(text, boolean), fencing.fence_query(oid, text), fencing.guard_named(), fencing.hold(text, bigint)
FROM PUBLIC;

-- +goose Down
DROP FUNCTION fencing.hold(text, bigint), fencing.guard_named(), fencing.fence_query(oid, text), fencing.check_fence(text, boolean),
              fencing.guard_row(), fencing.mark_move(), fencing.stamp_row(), fencing.guard_option(text, text[]);
