-- Writers hold an advisory lock shared, a claim takes it alone. Nothing about it is wrong under READ COMMITTED.
CREATE FUNCTION advisory_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    stored bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('nightly'));
    SELECT token INTO stored FROM fencing.fence WHERE name = 'nightly';
    IF fencing.presented('nightly') IS DISTINCT FROM stored THEN
        RAISE EXCEPTION 'stale' USING ERRCODE = 'ZF001';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER advisory_guard BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH STATEMENT EXECUTE FUNCTION advisory_guard();

CREATE FUNCTION advisory_claim(lock_name text, wanted bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext(lock_name));
    UPDATE fencing.fence SET token = wanted WHERE name = lock_name AND token <= wanted;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale' USING ERRCODE = 'ZF001';
    END IF;
END
$$;
