-- The guard that everybody writes first: look the fence up, and compare.
CREATE FUNCTION plain_select() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    stored bigint;
BEGIN
    SELECT token INTO stored FROM fencing.fence WHERE name = 'nightly';
    IF fencing.presented('nightly') IS DISTINCT FROM stored THEN
        RAISE EXCEPTION 'stale' USING ERRCODE = 'ZF001';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER plain_select BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH STATEMENT EXECUTE FUNCTION plain_select();
