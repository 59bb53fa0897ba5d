-- A row guard that compares the new value with the old one, and takes "unchanged" for "the same holder again".
CREATE FUNCTION not_lower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.last_fencing_token < OLD.last_fencing_token THEN
        RAISE EXCEPTION 'stale' USING ERRCODE = 'ZF001';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER not_lower BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION not_lower();
