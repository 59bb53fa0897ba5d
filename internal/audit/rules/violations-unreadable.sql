-- Violations that this role may not read.
recent_violation AS (SELECT f.root, NULL::bigint AS violations FROM fence f)
