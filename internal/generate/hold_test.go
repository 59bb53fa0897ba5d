package generate_test

const holdSQL = `
CREATE OR REPLACE FUNCTION fencing.hold(fence text, token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    checked record;
BEGIN
    IF fencing.presented() IS NULL THEN
        PERFORM fencing.present(token);
    END IF;
    IF fencing.presented(fence) IS DISTINCT FROM token THEN
        PERFORM fencing.present(token, fence);
    END IF;
    checked := fencing.check_fence(fence, true);
    IF checked.kind = 'stale' THEN
        RAISE EXCEPTION 'stale fencing token %: fence "%" is claimed by %', fencing.token_text(token), fence, fencing.token_text(checked.stored)
            USING ERRCODE = 'ZF001', DETAIL = jsonb_build_object('fence', fence, 'presented', token, 'stored', checked.stored)::text,
                  HINT = 'A newer holder of the lock has taken over. Stop, and acquire the lock again.';
    ELSIF checked.kind IS NOT NULL THEN
        RAISE EXCEPTION 'fencing token % is not claimed: fence "%"', fencing.token_text(token), fence
            USING ERRCODE = 'ZF004', DETAIL = jsonb_strip_nulls(jsonb_build_object('fence', fence, 'presented', token, 'stored', checked.stored))::text,
                  HINT = 'claim first';
    END IF;
    RETURN token;
END
$$;`
