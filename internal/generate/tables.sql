-- The protected tables with all that statements on them are made of, as one JSON document for each; one query however many tables there are.
-- The session's search_path is empty, so that types and expressions are printed with their schemas.
SELECT pg_catalog.json_build_object(
           'schema', p.schema_name,
           'name', p.table_name,
           'quoted', pg_catalog.format('%I.%I', p.schema_name, p.table_name),
           'kind', p.kind,
           'mode', p.mode,
           'fence', p.fence,
           'own_column', NOT EXISTS (SELECT FROM pg_catalog.unnest(p.arguments) AS word WHERE pg_catalog.starts_with(word, 'adopted=')),
           'columns', (
               SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
                          'name', a.attname,
                          'quoted', pg_catalog.quote_ident(a.attname),
                          'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
                          'text', a.atttypid = 'pg_catalog.text'::pg_catalog.regtype,
                          'not_null', a.attnotnull,
                          'identity', a.attidentity <> '',
                          'generated', a.attgenerated <> '',
                          'default', CASE WHEN a.attgenerated = '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END) ORDER BY a.attnum)
                 FROM pg_catalog.pg_attribute a
                 LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                WHERE a.attrelid = p.relid AND a.attnum > 0 AND NOT a.attisdropped),
           -- The primary key, else the oldest unique key without NULLs: what names one row.
           'key', (
               SELECT pg_catalog.array_agg(a.attname ORDER BY k.position)
                 FROM (SELECT i.indexrelid, i.indkey, i.indnkeyatts
                         FROM pg_catalog.pg_index i
                        WHERE i.indrelid = p.relid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
                          AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute n
                                           WHERE n.attrelid = p.relid AND NOT n.attnotnull
                                             AND n.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]))
                        ORDER BY i.indisprimary DESC, i.indexrelid
                        LIMIT 1) AS i
                CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY AS k (attnum, position)
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = p.relid AND a.attnum = k.attnum
                WHERE k.position <= i.indnkeyatts))
  FROM fencing.protection p
 ORDER BY p.schema_name, p.table_name
