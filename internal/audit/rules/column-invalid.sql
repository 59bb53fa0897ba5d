-- The token columns of row fences that are not as the guards need them.
SELECT m.label, NULL, NULL, 'its column last_fencing_token ' || array_to_string(defect.words, ', and '),
       CASE WHEN c.relid IS NULL THEN f.command END,
       CASE WHEN c.relid IS NOT NULL THEN
           CASE WHEN c.not_null THEN format('ALTER TABLE %s %s;', m.label, array_to_string(defect.clauses, ', '))
                ELSE format('BEGIN; SELECT fencing.bypass(''filling in missing tokens''); UPDATE %1$s SET last_fencing_token = 0 WHERE last_fencing_token IS NULL; ALTER TABLE %1$s %2$s; COMMIT;',
                            m.label, array_to_string(defect.clauses, ', ')) END END,
       r.schema_name, r.table_name, 0
  FROM member m
  JOIN fence f ON f.root = m.root AND f.kind = 'row'
  JOIN relation r ON r.oid = m.relid
  LEFT JOIN token_column c ON c.relid = m.relid
 CROSS JOIN LATERAL (
     SELECT array_agg(d.words ORDER BY d.step) FILTER (WHERE d.words IS NOT NULL) AS words,
            array_agg('ALTER COLUMN last_fencing_token ' || d.clause ORDER BY d.step) FILTER (WHERE d.clause IS NOT NULL) AS clauses
       FROM (VALUES
           (1, 'is missing', NULL, c.relid IS NULL),
           (2, 'is an identity column', 'DROP IDENTITY', c.identity),
           (3, 'is generated', 'DROP EXPRESSION', c.generated),
           (4, NULL, 'DROP DEFAULT', c.type <> 'bigint' AND c.default_value IS NOT NULL AND NOT c.generated),
           (5, format('is %s, not bigint', c.type), 'TYPE bigint USING last_fencing_token::bigint', c.type <> 'bigint'),
           (6, 'may be NULL, which compares with no token', 'SET NOT NULL', NOT c.not_null),
           (7, CASE WHEN c.type = 'bigint' AND NOT c.identity AND NOT c.generated THEN
                    CASE WHEN c.default_value IS NULL THEN 'has no default, so new rows are not stamped with the token'
                         ELSE 'has another default than the presented token' END END,
               'SET DEFAULT COALESCE(fencing.presented(), 0::bigint)', c.default_value IS DISTINCT FROM c.wanted_default AND c.relid IS NOT NULL)
       ) AS d (step, words, clause, applies)
      WHERE d.applies) AS defect
 WHERE defect.words IS NOT NULL
