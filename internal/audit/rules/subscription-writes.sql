-- Logical replication subscriptions that write into protected tables: their workers are replicas, for which no guard fires.
SELECT m.label, s.subname::text, NULL, format('the subscription %I writes into it, and fires no guard', s.subname), NULL,
       format('ALTER SUBSCRIPTION %I DISABLE;', s.subname), r.schema_name, r.table_name, 0
  FROM member m
  JOIN relation r ON r.oid = m.relid
  JOIN pg_subscription_rel sr ON sr.srrelid = m.relid
  JOIN pg_subscription s ON s.oid = sr.srsubid AND s.subenabled
