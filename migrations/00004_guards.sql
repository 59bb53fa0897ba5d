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

-- Stamps a row whose statement left the column alone with the presented token. Its trigger's WHEN
-- has established that the token is greater than the stored one.
-- +goose StatementBegin
CREATE FUNCTION fencing.stamp_row() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.last_fencing_token := pg_catalog.current_setting('fencing.token', true)::pg_catalog.int8;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- An UPDATE that moves a row to another partition fires BEFORE UPDATE, then BEFORE DELETE on the same
-- row. Where the update was accepted for the token its statement set, nothing else tells that delete
-- from a real one, so the accepted row is noted by its place. The place is exact: a row version is
-- replaced at most once, and the note is gone with the transaction or savepoint.
-- +goose StatementBegin
CREATE FUNCTION fencing.mark_move() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_catalog.set_config('fencing.moving', pg_catalog.concat(TG_RELID, ' ', OLD.ctid), true);
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
    single_use  CONSTANT boolean := TG_ARGV[0] = 'strict';
    enforcement CONSTANT text    := TG_ARGV[1];
    presented   bigint;
    stored      bigint;
    written     bigint;
    kind        text;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM fencing.violated(TG_RELID, enforcement, 'truncate', NULL, NULL, NULL, NULL);
        RETURN NULL;
    END IF;

    IF TG_OP = 'INSERT' THEN
        -- AFTER INSERT: it sees what was really stored, and leaves COPY its batches.
        written := NEW.last_fencing_token;
        kind := CASE WHEN written < 0 THEN 'invalid'
                     WHEN written = 0 AND fencing.guard_option('inserts', TG_ARGV) = 'require' THEN 'unfenced' END;
        IF kind IS NOT NULL THEN
            PERFORM fencing.violated(TG_RELID, enforcement, kind, NULL, to_jsonb(NEW),
                                     NULLIF(written, 0), NULL);
        END IF;
        RETURN NULL;
    END IF;

    presented := fencing.presented();
    stored := COALESCE(OLD.last_fencing_token, 0);

    IF TG_OP = 'DELETE' THEN
        kind := CASE WHEN presented IS NULL THEN 'unfenced'
                     WHEN presented < stored OR (presented = stored AND single_use) THEN 'stale' END;
        IF kind IS NOT NULL
           AND current_setting('fencing.moving', true) IS DISTINCT FROM concat(TG_RELID, ' ', OLD.ctid) THEN
            PERFORM fencing.violated(TG_RELID, enforcement, kind, NULL, to_jsonb(OLD),
                                     presented, stored);
        END IF;
        RETURN OLD;
    END IF;

    written := NEW.last_fencing_token;
    IF written IS NULL OR written < 0 THEN
        kind := 'invalid';
        presented := written;
    ELSIF written > stored THEN
        IF fencing.advances_too_far(written, stored, fencing.guard_option('max_advance', TG_ARGV)::bigint) THEN
            kind := 'invalid';
        END IF;
        presented := written;
    ELSIF written < stored THEN
        kind := 'stale';
        presented := written;
    ELSIF presented IS NULL THEN
        kind := 'unfenced';
    ELSIF presented < stored OR (presented = stored AND single_use) THEN
        kind := 'stale';
    END IF;

    IF kind IS NOT NULL THEN
        PERFORM fencing.violated(TG_RELID, enforcement, kind, NULL, to_jsonb(OLD),
                                 presented, stored);
        -- Let through: in observe a fence still only grows, or the next violation would go unseen. An
        -- operator who bypasses may set it to anything.
        IF enforcement = 'observe' AND (written IS NULL OR written < stored)
           AND COALESCE(current_setting('fencing.bypass', true), '') = '' THEN
            NEW.last_fencing_token := stored;
        END IF;
    ELSIF presented > written THEN
        NEW.last_fencing_token := presented;
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Named fences ----------------------------------------------------------------------------------

-- Checks what is presented against one named fence.
--
-- Locks: FOR SHARE on the fence's row, until the end of the transaction: a claim waits for it, so no
-- newer holder can start while this write is in flight. FOR KEY SHARE, a plain read or an advisory
-- lock would not do: the first does not conflict with a claim, the others pass on an old snapshot.
-- The fence is never raised here: two writers that both upgraded their share would deadlock.
-- +goose StatementBegin
CREATE FUNCTION fencing.check_fence(target oid, fence text, enforcement text, image jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    presented bigint := fencing.presented(fence);
    stored    bigint;
    kind      text := 'unfenced';
BEGIN
    IF presented IS NOT NULL THEN
        SELECT f.token INTO stored FROM fencing.fence f WHERE f.name = check_fence.fence FOR SHARE;
        IF presented = stored THEN
            PERFORM fencing.set_accepted(fence, true);
            RETURN;
        END IF;
        kind := CASE WHEN presented < stored THEN 'stale' ELSE 'unclaimed' END;
    END IF;
    PERFORM fencing.violated(target, enforcement, kind, fence, image, presented, stored);
END
$$;
-- +goose StatementEnd

-- The fence a row belongs to: the template with its {columns} filled in; NULL when one of them is.
-- +goose StatementBegin
CREATE FUNCTION fencing.fence_of(template text, image jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    fence   text := '';
    rest    text := template;
    opening integer;
    closing integer;
BEGIN
    LOOP
        opening := strpos(rest, '{');
        IF opening = 0 THEN
            RETURN fence || rest;
        END IF;
        closing := strpos(rest, '}');
        fence := fence || substr(rest, 1, opening - 1) || (image ->> substr(rest, opening + 1, closing - opening - 1));
        rest := substr(rest, closing + 1);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Checks the fence of one row, unless this transaction has been accepted by it already.
-- +goose StatementBegin
CREATE FUNCTION fencing.check_row_fence(target oid, template text, fence text, enforcement text, image jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF fence IS NULL THEN
        PERFORM fencing.violated(target, enforcement, 'fenceless', template, image, NULL, NULL);
    ELSIF fencing.accepted(fence) IS NOT TRUE THEN
        PERFORM fencing.check_fence(target, fence, enforcement, image);
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION fencing.guard_named() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    template    CONSTANT text := TG_ARGV[0];
    enforcement CONSTANT text := TG_ARGV[1];
    image       jsonb;
    fence       text;
    former      text;
BEGIN
    IF TG_LEVEL = 'STATEMENT' OR strpos(template, '{') = 0 THEN
        IF strpos(template, '{') > 0 THEN
            -- TRUNCATE of a table whose rows have a fence each: no one token could answer for all.
            PERFORM fencing.violated(TG_RELID, enforcement, 'truncate', NULL, NULL, NULL, NULL);
        ELSIF fencing.accepted(template) IS NOT TRUE THEN
            PERFORM fencing.check_fence(TG_RELID, template, enforcement, NULL);
        END IF;
        RETURN NULL; -- a statement trigger's, or an AFTER trigger's, result is ignored
    END IF;

    image := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
    fence := fencing.fence_of(template, image);
    PERFORM fencing.check_row_fence(TG_RELID, template, fence, enforcement, image);
    IF TG_OP = 'UPDATE' THEN
        -- A row that moves from one fence to another needs both.
        former := fencing.fence_of(template, to_jsonb(OLD));
        IF former IS DISTINCT FROM fence THEN
            PERFORM fencing.check_row_fence(TG_RELID, template, former, enforcement, to_jsonb(OLD));
        END IF;
    END IF;

    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION
    fencing.guard_option(text, text[]), fencing.stamp_row(), fencing.mark_move(),
    fencing.guard_row(), fencing.check_fence(oid, text, text, jsonb), fencing.check_row_fence(oid, text, text, text, jsonb),
    fencing.fence_of(text, jsonb), fencing.guard_named()
FROM PUBLIC;

-- +goose Down
DROP FUNCTION fencing.guard_named(), fencing.check_row_fence(oid, text, text, text, jsonb),
              fencing.fence_of(text, jsonb), fencing.check_fence(oid, text, text, jsonb),
              fencing.guard_row(), fencing.mark_move(), fencing.stamp_row(),
              fencing.guard_option(text, text[]);
