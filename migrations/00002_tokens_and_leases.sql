-- Token sources: this database's own tokens, the epochs of all sources, and leases.

-- +goose Up

CREATE TABLE fencing.source (
    name        text        PRIMARY KEY CHECK (name <> ''),
    incarnation text,
    epoch       integer     NOT NULL CHECK (epoch BETWEEN 0 AND 32767),
    since       timestamptz NOT NULL
);

COMMENT ON TABLE  fencing.source             IS 'Token sources, and the epoch in which each issues: raised when a source''s numbers may have gone back.';
COMMENT ON COLUMN fencing.source.name        IS 'postgres is this database; others are named by whoever uses them.';
COMMENT ON COLUMN fencing.source.incarnation IS 'What issues the numbers: for postgres system identifier and timeline, else a cluster or run id; null until first used.';
COMMENT ON COLUMN fencing.source.epoch       IS 'The high 15 bits of the tokens issued by this incarnation.';

INSERT INTO fencing.source (name, incarnation, epoch, since) VALUES ('postgres', NULL, 0, now());

-- CACHE 1: a cached block would hand out older numbers later. Logged, so that a crash cannot reset it.
CREATE SEQUENCE fencing.token_seq AS bigint MINVALUE 1 MAXVALUE 281474976710655 CACHE 1 NO CYCLE;

COMMENT ON SEQUENCE fencing.token_seq IS 'The counter of fencing.next_token, the low 48 bits of a token. Call the function: nextval alone is not a token.';

-- What issues this database's tokens: the cluster, and the timeline it is on, which changes at every
-- promotion and point-in-time recovery. (The control file's timeline lags behind a promotion; the
-- name of the WAL segment does not.)
-- +goose StatementBegin
CREATE FUNCTION fencing.incarnation() RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN pg_catalog.concat((pg_catalog.pg_control_system()).system_identifier, '/',
        pg_catalog.concat('x', pg_catalog."left"(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::pg_catalog."bit"(32)::pg_catalog.int4);
END
$$;
-- +goose StatementEnd

-- A new token, greater than every token of this database before it. Use it only once its transaction
-- has committed: a crash before that may issue it again.
--
-- Locks: none, but for the first call in each incarnation (after installation, a promotion, a restore),
-- which locks the source's row until the end of its transaction; the calls after it wait for that. Like a
-- claim, it belongs in a short transaction.
--
-- Two things make a committed token safe from being issued twice. synchronous_commit, and a WAL
-- record of this very transaction: nextval logs 32 numbers ahead, so a transaction that draws one of
-- them writes no WAL, its commit flushes nothing, and the record that reserved the number may still
-- be in another session's unflushed WAL when the server crashes.
-- +goose StatementBegin
CREATE FUNCTION fencing.next_token() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    current text := fencing.incarnation();
    known   record;
    step    integer;
    message pg_lsn;
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    message := pg_logical_emit_message(true, 'fencing', '');

    SELECT s.incarnation, s.epoch INTO STRICT known FROM fencing.source s WHERE s.name = 'postgres';

    IF known.incarnation IS DISTINCT FROM current THEN
        -- Once per incarnation. The lock lets one session decide; the others read its decision.
        SELECT s.incarnation, s.epoch INTO STRICT known FROM fencing.source s WHERE s.name = 'postgres' FOR UPDATE;
        IF known.incarnation IS DISTINCT FROM current THEN
            -- The first incarnation ever keeps epoch 0. After that the epoch rises by as much as the
            -- timeline did: of two standbys promoted one after the other, neither of which saw the
            -- other's epoch, the later still issues the greater tokens.
            step := CASE
                WHEN known.incarnation IS NULL THEN 0
                WHEN split_part(known.incarnation, '/', 1) = split_part(current, '/', 1)
                    THEN GREATEST(1, split_part(current, '/', 2)::integer - split_part(known.incarnation, '/', 2)::integer)
                ELSE 1 END;
            UPDATE fencing.source AS s
               SET incarnation = current, epoch = s.epoch + step, since = clock_timestamp()
             WHERE s.name = 'postgres'
            RETURNING s.incarnation, s.epoch INTO known;
        END IF;
    END IF;

    RETURN fencing.make_token(known.epoch, nextval('fencing.token_seq'));
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.next_token() IS
    'Issues a fencing token from this database, greater than all before it. Valid once the transaction has committed.';

-- The epoch of an outside source. The first incarnation seen is remembered; NULL for any other one,
-- until an operator adopts it: a worker pointed at the wrong cluster must not issue tokens.
-- +goose StatementBegin
CREATE FUNCTION fencing.source_epoch(source text, incarnation text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known record;
BEGIN
    IF COALESCE(source, '') IN ('', 'postgres') OR COALESCE(incarnation, '') = '' THEN
        RAISE EXCEPTION 'source_epoch needs the name of an outside source and its incarnation'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The name postgres is this database''s own: fencing.next_token() keeps its epoch.';
    END IF;
    LOOP
        SELECT s.incarnation, s.epoch INTO known FROM fencing.source s WHERE s.name = source_epoch.source;
        IF FOUND THEN
            RETURN CASE WHEN known.incarnation = source_epoch.incarnation THEN known.epoch END;
        END IF;
        INSERT INTO fencing.source AS s (name, incarnation, epoch, since)
        VALUES (source_epoch.source, source_epoch.incarnation, 0, clock_timestamp())
            ON CONFLICT (name) DO NOTHING;
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.source_epoch(text, text) IS
    'The epoch in which an outside token source issues; remembers the first incarnation seen, NULL for another until fencing.adopt_epoch.';

-- Operators: accept that a source has a new incarnation, or that the known one's numbers may have gone
-- back (a store restored in place keeps its identity): either way the epoch rises.
-- +goose StatementBegin
CREATE FUNCTION fencing.adopt_epoch(source text, incarnation text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known record;
BEGIN
    IF COALESCE(source, '') IN ('', 'postgres') OR COALESCE(incarnation, '') = '' THEN
        RAISE EXCEPTION 'adopt_epoch needs the name of an outside source and its new incarnation'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'This database''s own epoch rises by itself at the next fencing.next_token().';
    END IF;
    SELECT s.incarnation, s.epoch INTO known FROM fencing.source s WHERE s.name = adopt_epoch.source FOR UPDATE;
    IF NOT FOUND THEN
        RETURN fencing.source_epoch(source, incarnation);
    END IF;
    IF known.epoch = 32767 THEN
        RAISE EXCEPTION 'source "%" has used up its epochs', source
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Name the source anew, and lower the fences it has raised.';
    END IF;
    UPDATE fencing.source AS s
       SET incarnation = adopt_epoch.incarnation, epoch = s.epoch + 1, since = clock_timestamp()
     WHERE s.name = adopt_epoch.source
    RETURNING s.incarnation, s.epoch INTO known;
    RETURN known.epoch;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.adopt_epoch(text, text) IS
    'Accepts an incarnation of an outside token source, new or restored in place, and raises its epoch; returns the epoch. For operators.';

-- Leases ----------------------------------------------------------------------------------------

-- fillfactor keeps acquisitions and renewals HOT.
CREATE TABLE fencing.lease (
    name        text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 1024),
    token       bigint      NOT NULL CHECK (token >= 0),
    owner       uuid        NOT NULL,
    acquired_at timestamptz NOT NULL,
    renewed_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE  fencing.lease            IS 'Locks with a time limit. All times are this database''s clock. A free lease is one that has expired.';
COMMENT ON COLUMN fencing.lease.token      IS 'The fencing token of the latest grant.';
COMMENT ON COLUMN fencing.lease.owner      IS 'Random for each grant: what renews and releases it.';
COMMENT ON COLUMN fencing.lease.expires_at IS 'Others may acquire from then on.';

-- Acquires a lease and issues its token in one statement, one round trip. token is NULL when somebody
-- holds it; expires_in is then how long at most.
--
-- The token is drawn under the row's lock: drawn any earlier, a session that then waits for the row
-- could come out with an older token than the grant before its own.
-- +goose StatementBegin
CREATE FUNCTION fencing.acquire_lease(
    name text, owner uuid, ttl interval, OUT token bigint, OUT expires_in interval
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    instant timestamptz;
BEGIN
    IF COALESCE(name, '') = '' OR octet_length(name) > 1024 OR owner IS NULL OR ttl IS NULL OR ttl <= interval '0' THEN
        RAISE EXCEPTION 'acquire_lease needs a name of 1 to 1024 bytes, an owner and a positive time limit'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'SELECT * FROM fencing.acquire_lease(''jobs/nightly'', gen_random_uuid(), ''30s'').';
    END IF;
    LOOP
        -- A lease that is free is locked at once; one that is held is not locked, for a waiter's poll should not write. (The
        -- condition is evaluated again if it had to wait for the lock.)
        PERFORM FROM fencing.lease l WHERE l.name = acquire_lease.name AND l.expires_at <= clock_timestamp() FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT l.expires_at - clock_timestamp() INTO expires_in FROM fencing.lease l WHERE l.name = acquire_lease.name;
        IF expires_in > interval '0' THEN
            RETURN;
        ELSIF NOT FOUND THEN
            INSERT INTO fencing.lease AS l (name, token, owner, acquired_at, renewed_at, expires_at)
            VALUES (acquire_lease.name, 0, acquire_lease.owner, '-infinity', '-infinity', '-infinity')
                ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
    token := fencing.next_token();
    instant := clock_timestamp();
    UPDATE fencing.lease AS l
       SET token = acquire_lease.token, owner = acquire_lease.owner,
           acquired_at = instant, renewed_at = instant, expires_at = instant + ttl
     WHERE l.name = acquire_lease.name;
    expires_in := ttl;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.acquire_lease(text, uuid, interval) IS
    'Acquires a lease and issues its token, in one statement; token is NULL, and expires_in says for how long at most, while somebody else holds it.';

-- False when the lease is not, or no longer, this grant's. An expired lease that nobody has taken
-- since is not renewed either: its holder may have been told that it was lost.
-- +goose StatementBegin
CREATE FUNCTION fencing.renew_lease(name text, owner uuid, token bigint, ttl interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    instant timestamptz := clock_timestamp();
BEGIN
    IF ttl IS NULL OR ttl <= interval '0' THEN
        RAISE EXCEPTION 'renew_lease needs a positive time limit' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- An acknowledged renewal must survive a crash: its holder counts on it.
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    UPDATE fencing.lease AS l
       SET renewed_at = instant, expires_at = instant + ttl
     WHERE l.name = renew_lease.name AND l.owner = renew_lease.owner AND l.token = renew_lease.token
       AND l.expires_at > clock_timestamp();
    RETURN FOUND;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.renew_lease(text, uuid, bigint, interval) IS
    'Extends a lease that is still this grant''s; false when it is lost.';

-- Frees this grant's lease and wakes the waiters (channel fencing_lease, payload: the name). The row
-- stays, with its token.
-- +goose StatementBegin
CREATE FUNCTION fencing.release_lease(name text, owner uuid, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE fencing.lease AS l
       SET expires_at = LEAST(l.expires_at, clock_timestamp())
     WHERE l.name = release_lease.name AND l.owner = release_lease.owner AND l.token = release_lease.token;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('fencing_lease', release_lease.name);
    RETURN true;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencing.release_lease(text, uuid, bigint) IS
    'Frees a lease, if it is still this grant''s, and wakes waiters; false when it is not.';

-- The two calls that the time to a lock consists of, as programs make them: CALL is not planned, which is a tenth of the whole. They run
-- as the caller, who needs the privilege for the function, and everybody may have these.
-- +goose StatementBegin
CREATE PROCEDURE fencing.acquire_lease(name text, owner uuid, ttl_ms bigint, INOUT token bigint, INOUT expires_in_ms bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    answer CONSTANT record := fencing.acquire_lease(name, owner, pg_catalog.make_interval(secs => ttl_ms::pg_catalog.float8 OPERATOR(pg_catalog./) 1000));
BEGIN
    token := answer.token;
    expires_in_ms := EXTRACT(epoch FROM answer.expires_in) OPERATOR(pg_catalog.*) 1000;
END
$$;
-- +goose StatementEnd

COMMENT ON PROCEDURE fencing.acquire_lease(text, uuid, bigint, bigint, bigint) IS
    'The function of that name, in milliseconds: CALL fencing.acquire_lease(name, owner, ttl_ms, NULL, NULL).';

-- Does not wait for the disk: a release that a crash undoes leaves the lease held until it lapses, which harms nobody, and
-- whoever acquires it next waits for the disk, which by then has the release too.
-- +goose StatementBegin
CREATE PROCEDURE fencing.release_lease(name text, owner uuid, token bigint, INOUT released boolean)
LANGUAGE plpgsql
AS $$
BEGIN
    released := fencing.release_lease(name, owner, token) AND pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL;
END
$$;
-- +goose StatementEnd

COMMENT ON PROCEDURE fencing.release_lease(text, uuid, bigint, boolean) IS
    'The function of that name, without waiting for the disk: CALL fencing.release_lease(name, owner, token, NULL).';

REVOKE ALL ON FUNCTION
    fencing.incarnation(), fencing.next_token(),
    fencing.source_epoch(text, text), fencing.adopt_epoch(text, text),
    fencing.acquire_lease(text, uuid, interval), fencing.renew_lease(text, uuid, bigint, interval),
    fencing.release_lease(text, uuid, bigint)
FROM PUBLIC;
REVOKE ALL ON PROCEDURE fencing.acquire_lease(text, uuid, bigint, bigint, bigint), fencing.release_lease(text, uuid, bigint, boolean) FROM PUBLIC;
GRANT EXECUTE ON PROCEDURE fencing.acquire_lease(text, uuid, bigint, bigint, bigint), fencing.release_lease(text, uuid, bigint, boolean) TO PUBLIC;

-- +goose Down
DROP PROCEDURE fencing.release_lease(text, uuid, bigint, boolean), fencing.acquire_lease(text, uuid, bigint, bigint, bigint);
DROP FUNCTION fencing.release_lease(text, uuid, bigint), fencing.renew_lease(text, uuid, bigint, interval),
              fencing.acquire_lease(text, uuid, interval), fencing.adopt_epoch(text, text), fencing.source_epoch(text, text),
              fencing.next_token(), fencing.incarnation();
DROP TABLE fencing.lease;
DROP SEQUENCE fencing.token_seq;
DROP TABLE fencing.source;
