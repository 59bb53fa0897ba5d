-- The token sequence stands before a token that it has issued: it was set back, and will issue the same ones again. Leases take
-- their tokens from it and from nowhere else.
SELECT 'fencing.token_seq', 'backwards', NULL,
       format('was moved backwards: it stands at %s, and has issued %s', COALESCE(counter.value, 0), issued.counter), NULL,
       format('SELECT setval(''fencing.token_seq'', %s);', issued.counter), NULL, NULL, 0
  FROM (SELECT max(l.token & 281474976710655) AS counter
          FROM fencing.lease l JOIN fencing.source s ON s.name = 'postgres' AND s.epoch = l.token >> 48) AS issued
 CROSS JOIN LATERAL (SELECT pg_sequence_last_value('fencing.token_seq'::regclass) AS value) AS counter
 WHERE issued.counter > COALESCE(counter.value, 0)
