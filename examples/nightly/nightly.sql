-- The report of each day. Every statement is a transaction of its own, and there is nothing about locks or tokens here: each of them presents
-- the token that the session was started with. For fencectl lint, which cannot see that:
-- fencectl:presented-file nightly.sh runs it under fencectl lock

INSERT INTO nightly.report (day, sold)
SELECT day, sum(cents) FROM nightly.sale GROUP BY day
ON CONFLICT (day) DO UPDATE SET sold = EXCLUDED.sold, run = DEFAULT;

UPDATE nightly.report
   SET refunded = r.refunded, run = DEFAULT
  FROM (SELECT day, sum(cents) AS refunded FROM nightly.refund GROUP BY day) r
 WHERE r.day = report.day;
