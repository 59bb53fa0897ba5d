-- Holds the fence as it should, and accepts tokens beyond it: two holders, neither of whom has claimed, write as they like.
CREATE FUNCTION not_older() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    stored bigint;
BEGIN
    SELECT token INTO stored FROM fencing.fence WHERE name = 'nightly' FOR SHARE;
    IF (fencing.presented('nightly') >= stored) IS NOT TRUE THEN
        RAISE EXCEPTION 'stale' USING ERRCODE = 'ZF001';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER not_older BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH STATEMENT EXECUTE FUNCTION not_older();
