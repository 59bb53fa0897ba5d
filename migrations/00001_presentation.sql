-- Tables, and how a transaction presents its fencing token.
--
-- Functions here qualify every name, or pin their search_path, and write no backslash into a literal
-- unless they pin standard_conforming_strings too: they mean the same in every session.

-- +goose Up
CREATE SCHEMA IF NOT EXISTS fencing;

COMMENT ON SCHEMA fencing IS
    'Fencing tokens: refuses the writes of a lock holder that has lost its lock. Managed by fencectl.';

-- Fences ----------------------------------------------------------------------------------------

-- fillfactor and the absence of further indexes keep claims HOT: a busy fence is updated and locked
-- all the time, and must not bloat an index with each claim.
CREATE TABLE fencing.fence (
    name       text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 1024),
    token      bigint      NOT NULL CHECK (token >= 0),
    claimed_at timestamptz NOT NULL,
    claimed_by text        NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE  fencing.fence            IS 'Named fences: the highest token claimed for each. Raised by fencing.claim, never deleted.';
COMMENT ON COLUMN fencing.fence.name       IS 'The name of the lock that guards the resource.';
COMMENT ON COLUMN fencing.fence.token      IS 'Writes under an older token are refused; 0 after an operator lowered the fence that far.';
COMMENT ON COLUMN fencing.fence.claimed_at IS 'When the token was last changed (database clock).';
COMMENT ON COLUMN fencing.fence.claimed_by IS 'The role that changed it.';

-- What was let through --------------------------------------------------------------------------

-- Append-only, without a unique key that concurrent writers would have to agree on: observing a
-- table must not make its writers wait for each other.
CREATE TABLE fencing.violation (
    id               bigint      GENERATED ALWAYS AS IDENTITY,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_name      text        NOT NULL,
    table_name       text        NOT NULL,
    kind             text        NOT NULL,
    role_name        text        NOT NULL,
    application_name text        NOT NULL,
    query            text        NOT NULL,
    fence            text,
    key              jsonb,
    presented        bigint,
    stored           bigint,
    xact             xid8        NOT NULL
);
CREATE INDEX violation_at ON fencing.violation USING brin (at);

COMMENT ON TABLE  fencing.violation           IS 'Writes that a guard in observe let through: at most one row per transaction, table and kind.';
COMMENT ON COLUMN fencing.violation.kind      IS 'stale, unfenced, invalid, unclaimed or truncate: in enforce these are ZF001 to ZF005.';
COMMENT ON COLUMN fencing.violation.role_name IS 'The role the session acted as (SET ROLE included).';
COMMENT ON COLUMN fencing.violation.query     IS 'The statement the client sent, its first 2,000 characters.';
COMMENT ON COLUMN fencing.violation.fence     IS 'The named fence; null for a row fence.';
COMMENT ON COLUMN fencing.violation.key       IS 'The primary key of the first row concerned; null where there is none.';

CREATE TABLE fencing.bypass_log (
    id               bigint      GENERATED ALWAYS AS IDENTITY,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_name      text        NOT NULL,
    table_name       text        NOT NULL,
    role_name        text        NOT NULL,
    application_name text        NOT NULL,
    reason           text        NOT NULL,
    query            text        NOT NULL
);
CREATE INDEX bypass_log_at ON fencing.bypass_log USING brin (at);

COMMENT ON TABLE fencing.bypass_log IS 'Every use of fencing.bypass and fencing.lower_fence: at most one row per transaction and table.';

-- Tokens as numbers -----------------------------------------------------------------------------

-- A token is a positive bigint: 15 bits of epoch above 48 bits of the source's own counter.
-- +goose StatementBegin
CREATE FUNCTION fencing.make_token(epoch integer, counter bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (epoch::bigint OPERATOR(pg_catalog.<<) 48) OPERATOR(pg_catalog.|) counter;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION fencing.token_epoch(token bigint) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (token OPERATOR(pg_catalog.>>) 48)::integer;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION fencing.token_counter(token bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN token OPERATOR(pg_catalog.&) 281474976710655;
-- +goose StatementEnd

-- How people read a token: "34" in epoch 0, "1:34" in epoch 1.
-- +goose StatementBegin
CREATE FUNCTION fencing.token_text(token bigint) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN token < 0 OR fencing.token_epoch(token) = 0 THEN token::text
                ELSE fencing.token_epoch(token) || ':' || fencing.token_counter(token) END
$$;
-- +goose StatementEnd

-- Presenting ------------------------------------------------------------------------------------

-- Reading never fails: what is no token reads as a negative number, and the guard that meets it refuses
-- it (ZF003), or records it where it only observes. Were it an error here, it would come out of a
-- trigger's WHEN clause or a column's default, before any guard had a say.

-- A token in text form: NULL for nothing; negative for what is no token.
-- +goose StatementBegin
CREATE FUNCTION fencing.parse_token(raw text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF COALESCE(raw, '') = '' THEN
        RETURN NULL;
    ELSIF raw ~ '^[[:space:]]*[-+]?[0-9]{1,19}[[:space:]]*$' THEN
        IF raw::numeric BETWEEN -9223372036854775807 AND 9223372036854775807 AND raw::numeric <> 0 THEN
            RETURN raw::bigint;
        END IF;
    END IF;
    RETURN -1;
END
$$;
-- +goose StatementEnd

-- What this transaction has set, as text: for a fence by name its own token if it has one, else the
-- transaction's. A custom setting reads NULL before its first use in a session, and '' once a
-- transaction that set it locally is over: both mean nothing.
-- +goose StatementBegin
CREATE FUNCTION fencing.presented_text(fence text) RETURNS text
LANGUAGE plpgsql STABLE -- not parallel: it may start a subtransaction
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tokens CONSTANT text := NULLIF(current_setting('fencing.tokens', true), '');
    held   jsonb;
BEGIN
    IF fence IS NOT NULL AND tokens IS NOT NULL THEN
        BEGIN
            held := tokens::jsonb;
        EXCEPTION WHEN data_exception THEN
            RETURN tokens;
        END;
        IF jsonb_typeof(held) <> 'object' THEN
            RETURN tokens || ' is no JSON object';
        ELSIF held ? fence THEN
            RETURN COALESCE(held ->> fence, 'NULL');
        END IF;
    END IF;
    RETURN NULLIF(current_setting('fencing.token', true), '');
END
$$;
-- +goose StatementEnd

-- SECURITY DEFINER, so that reading needs no privilege but its own.
-- +goose StatementBegin
CREATE FUNCTION fencing.presented(fence text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT fencing.parse_token(fencing.presented_text(fence)) $$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.presented(text) IS
    'The token this transaction presents for a fence: its own, else the transaction''s. NULL when there is none, negative when what is set is no token.';

-- The same for the transaction's token, on the hot path: guards and column defaults call it for
-- every row. A single expression, so that the planner inlines it; the common token forms are decided
-- here, everything else by the function above. RETURN, not a string: its names are resolved now, so that
-- a writer needs no USAGE on the schema for it.
--
-- fencing.checked is the token once more, put there by whoever has seen that it is a number: to compare
-- the two costs a third of looking at the digits. It means nothing unless it equals the token.
-- +goose StatementBegin
CREATE FUNCTION fencing.presented() RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE pg_catalog.current_setting('fencing.token', true)
    WHEN '' THEN NULL
    WHEN pg_catalog.current_setting('fencing.checked', true) THEN pg_catalog.current_setting('fencing.checked', true)::pg_catalog.int8
    ELSE CASE
        WHEN pg_catalog.current_setting('fencing.token', true) OPERATOR(pg_catalog.~) '^[1-9][0-9]{0,17}$'
            THEN pg_catalog.current_setting('fencing.token', true)::pg_catalog.int8
        WHEN pg_catalog.current_setting('fencing.token', true) IS NOT NULL
            THEN fencing.presented(NULL::pg_catalog.text) END
END;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.presented() IS
    'The token this transaction presents (setting fencing.token). NULL when there is none, negative when what is set is no token.';

-- Presents for the rest of the transaction.
-- +goose StatementBegin
CREATE FUNCTION fencing.present(token bigint) RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    IF (token OPERATOR(pg_catalog.>) 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'invalid fencing token %', COALESCE(token::pg_catalog.text, 'NULL')
            USING ERRCODE = 'ZF003',
                  DETAIL = pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object('presented', token))::pg_catalog.text,
                  HINT = 'A token is a whole number from 1 to 9223372036854775807: present the one that came with the lock.';
    END IF;
    PERFORM pg_catalog.set_config('fencing.token', token::pg_catalog.text, true),
            pg_catalog.set_config('fencing.checked', token::pg_catalog.text, true);
    RETURN token;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.present(bigint) IS
    'Presents a fencing token for the current transaction, and returns it. ZF003 when it is not positive.';

-- +goose StatementBegin
CREATE FUNCTION fencing.present(token bigint, fence text) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF COALESCE(fence, '') = '' THEN
        RAISE EXCEPTION 'a fence needs a name'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Name the lock the token belongs to, or call fencing.present(token) for the whole transaction.';
    ELSIF (token > 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'invalid fencing token % for fence "%"', COALESCE(token::text, 'NULL'), fence
            USING ERRCODE = 'ZF003',
                  DETAIL = jsonb_strip_nulls(jsonb_build_object('fence', fence, 'presented', token))::text,
                  HINT = 'A token is a whole number from 1 to 9223372036854775807: present the one that came with the lock.';
    END IF;
    PERFORM set_config('fencing.tokens',
        (COALESCE(NULLIF(current_setting('fencing.tokens', true), '')::jsonb, '{}') || jsonb_build_object(fence, token))::text,
        true);
    RETURN token;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.present(bigint, text) IS
    'Presents a fencing token for one fence alone, for the current transaction: a transaction may hold several locks.';

-- How long the transaction may last -------------------------------------------------------------

-- A holder that is paused in the middle of a transaction keeps its successor's claim waiting; a limit ends
-- the transaction with the lease. One call with its plans kept, because it comes with every transaction.
-- +goose StatementBegin
CREATE FUNCTION fencing.limit_transaction(idle_ms bigint, total_ms bigint) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    -- As the settings print: 0, or a number with a unit that an interval understands.
    idle  CONSTANT text := pg_catalog.current_setting('idle_in_transaction_session_timeout');
    total CONSTANT text := pg_catalog.current_setting('transaction_timeout', true); -- NULL before PostgreSQL 17
BEGIN
    IF idle_ms OPERATOR(pg_catalog.>) 0
       AND (idle OPERATOR(pg_catalog.=) '0'
            OR (EXTRACT(epoch FROM idle::pg_catalog.interval) OPERATOR(pg_catalog.*) 1000) OPERATOR(pg_catalog.>) idle_ms) THEN
        PERFORM pg_catalog.set_config('idle_in_transaction_session_timeout', idle_ms::pg_catalog.text, true);
    END IF;
    IF total_ms OPERATOR(pg_catalog.>) 0
       AND (total OPERATOR(pg_catalog.=) '0'
            OR (EXTRACT(epoch FROM total::pg_catalog.interval) OPERATOR(pg_catalog.*) 1000) OPERATOR(pg_catalog.>) total_ms) THEN
        PERFORM pg_catalog.set_config('transaction_timeout', total_ms::pg_catalog.text, true);
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.limit_transaction(bigint, bigint) IS
    'Has the server end the current transaction when its client idles in it for longer than the first number of milliseconds, or (from PostgreSQL 17) when it lasts longer than the second; 0 for no limit, and a shorter one that is set already stays.';

-- Presents a token and limits the transaction: what comes with the BEGIN of every transaction that a program has under a lock, so
-- it is one statement, without a result, and two steps where nothing is unusual. (PL/pgSQL makes an expression ready once in each
-- transaction, and CALL needs no plan.)
-- +goose StatementBegin
CREATE PROCEDURE fencing.present(token bigint, idle_ms bigint, total_ms bigint)
LANGUAGE plpgsql
AS $$
BEGIN
    -- CASE, because what follows a NULL in an AND is evaluated too.
    IF (CASE WHEN token OPERATOR(pg_catalog.>) 0
             THEN pg_catalog.set_config('fencing.token', token::pg_catalog.text, true) OPERATOR(pg_catalog.=)
                  pg_catalog.set_config('fencing.checked', token::pg_catalog.text, true) END)
    THEN
        IF (CASE WHEN idle_ms OPERATOR(pg_catalog.>) 0
                      AND pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.=) '0'
                      AND pg_catalog.current_setting('transaction_timeout', true) IS NULL -- before PostgreSQL 17
                 THEN pg_catalog.set_config('idle_in_transaction_session_timeout', idle_ms::pg_catalog.text, true) END) IS NOT NULL
        THEN
            RETURN;
        END IF;
        IF idle_ms OPERATOR(pg_catalog.>) 0 OR total_ms OPERATOR(pg_catalog.>) 0 THEN
            PERFORM fencing.limit_transaction(idle_ms, total_ms);
        END IF;
        RETURN;
    END IF;
    PERFORM fencing.present(token); -- refuses it
END
$$;
-- +goose StatementEnd

COMMENT ON PROCEDURE fencing.present(bigint, bigint, bigint) IS
    'fencing.present and fencing.limit_transaction in one: presents a fencing token for the current transaction, which must have begun, and limits it to so many milliseconds of idling and in all; 0 for no limit. ZF003 when the token is not positive.';

-- Per-transaction memory ------------------------------------------------------------------------

-- A named fence is checked once per transaction: from then on the transaction keeps claims of it
-- waiting (fencing.check_fence), so that it cannot be raised before the transaction ends, and the answer
-- cannot change. The memory is transaction-local settings: one for the first fence, because most transactions
-- have no other, and a small direct-mapped cache. They vanish at the end of the transaction and with a savepoint
-- that is rolled back, exactly as the locks do. An entry repeats the settings it was checked under, so presenting
-- another token is checked afresh. Its size is bounded, so a bulk write over many fences costs no more per
-- row than one over few.
-- +goose StatementBegin
CREATE FUNCTION fencing.accepted(fence text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN pg_catalog.current_setting('fencing.accepted_first', true)
       OPERATOR(pg_catalog.=)
       pg_catalog.concat(pg_catalog.current_setting('fencing.token', true), ' ',
                         pg_catalog.current_setting('fencing.tokens', true), ' ', fence)
    OR pg_catalog.current_setting(
           pg_catalog.concat('fencing.accepted_', pg_catalog.hashtext(fence) OPERATOR(pg_catalog.&) 1023), true)
       OPERATOR(pg_catalog.=)
       pg_catalog.concat(pg_catalog.current_setting('fencing.token', true), ' ',
                         pg_catalog.current_setting('fencing.tokens', true), ' ', fence);
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.accepted(text) IS
    'Whether this transaction''s token has been checked against a named fence already (claims of the fence wait for it until it ends).';

-- Whether a row's guard has to be called, which its WHEN clause asks; and it tells the guard the fence as it does so: to make a name of
-- columns again, a trigger function takes longer than for the check. Nothing comes between a BEFORE trigger's condition and its
-- function. Where the name is not to be told, '' is, and the guard makes it, or both names of a row that moves from one fence to another.
--
-- PL/pgSQL, which a single row pays less for than for having SQL put into its statement's plan; many rows pay the same. It runs as the
-- writer, who may have no USAGE on this schema: it names nothing outside pg_catalog.
-- +goose StatementBegin
CREATE FUNCTION fencing.to_be_checked(fence text, told boolean) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    IF told AND pg_catalog.current_setting('fencing.accepted_first', true) OPERATOR(pg_catalog.=)
                pg_catalog.concat(pg_catalog.current_setting('fencing.token', true), ' ',
                                  pg_catalog.current_setting('fencing.tokens', true), ' ', fence)
    THEN
        RETURN false;
    END IF;
    IF told AND pg_catalog.current_setting('fencing.accepted_first', true) OPERATOR(pg_catalog.<>) '' THEN
        IF pg_catalog.current_setting(pg_catalog.concat('fencing.accepted_', pg_catalog.hashtext(fence) OPERATOR(pg_catalog.&) 1023), true)
           OPERATOR(pg_catalog.=)
           pg_catalog.concat(pg_catalog.current_setting('fencing.token', true), ' ',
                             pg_catalog.current_setting('fencing.tokens', true), ' ', fence)
        THEN
            RETURN false;
        END IF;
    END IF;
    RETURN pg_catalog.set_config('fencing.asked', CASE WHEN told AND fence IS NOT NULL THEN fence ELSE '' END, true) IS NOT NULL;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.to_be_checked(text, boolean) IS
    'For the conditions of guards: whether this transaction has yet to be checked against the fence of a row, which it notes for the guard.';

-- Remembers that what is presented now was accepted by a fence, or forgets it; then the first fence is not another's to be. A
-- single expression, which is inlined.
-- +goose StatementBegin
CREATE FUNCTION fencing.set_accepted(fence text, accepted boolean) RETURNS text
LANGUAGE sql
RETURN pg_catalog.concat(
    pg_catalog.set_config(
        pg_catalog.concat('fencing.accepted_', pg_catalog.hashtext(fence) OPERATOR(pg_catalog.&) 1023),
        CASE WHEN accepted THEN pg_catalog.concat(pg_catalog.current_setting('fencing.token', true), ' ',
                                                  pg_catalog.current_setting('fencing.tokens', true), ' ', fence)
             ELSE '' END,
        true),
    CASE WHEN NOT accepted THEN pg_catalog.set_config('fencing.accepted_first', 'forgotten', true)
         WHEN COALESCE(pg_catalog.current_setting('fencing.accepted_first', true), '') OPERATOR(pg_catalog.=) ''
             THEN pg_catalog.set_config('fencing.accepted_first',
                      pg_catalog.concat(pg_catalog.current_setting('fencing.token', true), ' ',
                                        pg_catalog.current_setting('fencing.tokens', true), ' ', fence), true) END);
-- +goose StatementEnd

-- The key of the advisory lock that stands for a named fence. 64 bits: two fences that shared one would
-- only wait for each other, and so would an application's own lock with that number. The seed is any number but 0, which others
-- hash their own names with.
-- +goose StatementBegin
CREATE FUNCTION fencing.fence_lock(fence text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.hashtextextended(fence, 7094703062094545218);
-- +goose StatementEnd

-- True the first time a mark is made in this transaction; keeps logs to one row per transaction.
-- +goose StatementBegin
CREATE FUNCTION fencing.mark_once(mark text) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    marks text := COALESCE(current_setting('fencing.marks', true), '');
BEGIN
    IF strpos(marks, '<' || mark || '>') > 0 THEN
        RETURN false;
    END IF;
    PERFORM set_config('fencing.marks', marks || '<' || mark || '>', true);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- Who is writing: inside a SECURITY DEFINER function current_user is the function's owner, so the
-- session's own choice is read instead.
-- +goose StatementBegin
CREATE FUNCTION fencing.acting_role() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED
RETURN COALESCE(NULLIF(pg_catalog.current_setting('role', true), 'none'), session_user::pg_catalog.text);
-- +goose StatementEnd

-- Bypass ----------------------------------------------------------------------------------------

-- +goose StatementBegin
CREATE FUNCTION fencing.bypass(reason text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF btrim(COALESCE(reason, '')) = '' THEN
        RAISE EXCEPTION 'a bypass needs a reason'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Say why, it is logged: SELECT fencing.bypass(''restoring order 17 from the backup of Monday'').';
    END IF;
    PERFORM set_config('fencing.bypass', reason, true);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.bypass(text) IS
    'Lets this transaction write without a valid token, where the role is a superuser or a member of the table''s owner. Logged in fencing.bypass_log.';

-- +goose StatementBegin
CREATE FUNCTION fencing.version() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '0.1.0'::pg_catalog.text;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.version() IS 'The version of the SQL layer in this database.';

-- Privileges: presenting is everybody's; the rest is granted role by role (fencectl grant).
REVOKE ALL ON FUNCTION
    fencing.make_token(integer, bigint), fencing.token_epoch(bigint), fencing.token_counter(bigint), fencing.token_text(bigint),
    fencing.parse_token(text), fencing.presented_text(text), fencing.set_accepted(text, boolean), fencing.fence_lock(text), fencing.mark_once(text), fencing.acting_role(), fencing.bypass(text),
    fencing.present(bigint), fencing.present(bigint, text), fencing.presented(), fencing.presented(text), fencing.limit_transaction(bigint, bigint),
    fencing.accepted(text), fencing.to_be_checked(text, boolean), fencing.version()
FROM PUBLIC;
REVOKE ALL ON PROCEDURE fencing.present(bigint, bigint, bigint) FROM PUBLIC;
GRANT USAGE ON SCHEMA fencing TO PUBLIC;
GRANT EXECUTE ON FUNCTION
    fencing.present(bigint), fencing.present(bigint, text), fencing.presented(), fencing.presented(text), fencing.limit_transaction(bigint, bigint),
    fencing.accepted(text), fencing.to_be_checked(text, boolean)
TO PUBLIC;
GRANT EXECUTE ON PROCEDURE fencing.present(bigint, bigint, bigint) TO PUBLIC;

-- +goose Down
DROP FUNCTION fencing.version(), fencing.bypass(text), fencing.acting_role(), fencing.mark_once(text),
              fencing.fence_lock(text), fencing.set_accepted(text, boolean),
              fencing.to_be_checked(text, boolean), fencing.accepted(text),
              fencing.limit_transaction(bigint, bigint), fencing.present(bigint, text), fencing.present(bigint),
              fencing.presented(), fencing.presented(text), fencing.presented_text(text), fencing.parse_token(text),
              fencing.token_text(bigint), fencing.token_counter(bigint), fencing.token_epoch(bigint),
              fencing.make_token(integer, bigint);
DROP PROCEDURE fencing.present(bigint, bigint, bigint);
DROP TABLE fencing.bypass_log, fencing.violation, fencing.fence;
REVOKE USAGE ON SCHEMA fencing FROM PUBLIC;
