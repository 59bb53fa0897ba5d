-- The lock that a foreign key takes. It keeps the fence's row from being deleted, and from nothing else.
CREATE FUNCTION for_key_share() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    stored bigint;
BEGIN
    SELECT token INTO stored FROM fencing.fence WHERE name = 'nightly' FOR KEY SHARE;
    IF fencing.presented('nightly') IS DISTINCT FROM stored THEN
        RAISE EXCEPTION 'stale' USING ERRCODE = 'ZF001';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER for_key_share BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH STATEMENT EXECUTE FUNCTION for_key_share();
