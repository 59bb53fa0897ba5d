-- Properties of the token sequence under which it may issue a token twice, or an older one later.
SELECT 'fencing.token_seq', defect.name, NULL, defect.message, NULL, defect.statement, NULL, NULL, 0
  FROM pg_sequence s
  JOIN pg_class c ON c.oid = s.seqrelid AND c.relname = 'token_seq'
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'fencing'
 CROSS JOIN LATERAL (VALUES
     ('cache', s.seqcache > 1, format('keeps %s numbers ready in each session: a session issues an older token after another has issued a newer one', s.seqcache),
      'ALTER SEQUENCE fencing.token_seq CACHE 1;'),
     ('cycle', s.seqcycle, 'starts over when it is used up', 'ALTER SEQUENCE fencing.token_seq NO CYCLE;'),
     ('unlogged', c.relpersistence = 'u', 'is unlogged: a crash resets it, and it issues the same tokens again', 'ALTER SEQUENCE fencing.token_seq SET LOGGED;'),
     ('increment', s.seqincrement < 1, 'counts down', 'ALTER SEQUENCE fencing.token_seq INCREMENT BY 1;'),
     ('range', s.seqtypid <> 'bigint'::regtype OR s.seqmax <> 281474976710655,
      CASE WHEN s.seqtypid <> 'bigint'::regtype THEN format('is %s: it runs out of tokens early', format_type(s.seqtypid, NULL))
           WHEN s.seqmax > 281474976710655 THEN 'may count beyond 48 bits, into the epoch of its tokens'
           ELSE format('runs out of tokens at %s', s.seqmax) END,
      'ALTER SEQUENCE fencing.token_seq AS bigint MAXVALUE 281474976710655;')
 ) AS defect (name, applies, message, statement)
 WHERE defect.applies
