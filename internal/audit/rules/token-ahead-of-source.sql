-- Fences that stand beyond every token that this database has issued, although it issues theirs: there is a lease of that name.
-- Fences without a lease may be fed by any source, and are not judged.
SELECT format('fence %s', f.name), NULL, NULL,
       format('stands at %s, and the newest token ever issued for it is %s: every holder is refused', f.token, l.token),
       ARRAY['fence', 'lower', f.name, l.token::text, '--reason', 'beyond every token that was issued'], NULL, NULL, NULL, 0
  FROM fencing.fence f
  JOIN fencing.lease l ON l.name = f.name
  JOIN fencing.source s ON s.name = 'postgres'
 WHERE f.token > l.token
   AND f.token > (s.epoch::bigint << 48) + COALESCE(pg_sequence_last_value('fencing.token_seq'::regclass), 0)
