-- Ends whoever keeps the backend $1 waiting for a fence: the sessions that hold the fence's row. Returns their process ids.
--
-- Spared are those in line themselves, and the search goes on to whoever they wait for: a session that queues for a fence has, or waits for,
-- the heavyweight lock on a tuple of fencing.fence; a claim that has just got the row has a RowExclusiveLock on fencing.fence and is
-- running, so it is about to commit.
--
-- All is decided before the first session is ended, hence the aggregate: ending one lets the next in line go ahead, which then no longer
-- looks like one in line. Search and end are one statement, so that a session which has let go and moved on is not ended for what it did
-- before. Pid 0 is a prepared transaction, which no session can be ended for.
WITH RECURSIVE queueing(pid) AS MATERIALIZED (
    SELECT l.pid
      FROM pg_catalog.pg_locks l
     WHERE l.locktype = 'tuple' AND l.relation = 'fencing.fence'::pg_catalog.regclass
     UNION
    SELECT l.pid
      FROM pg_catalog.pg_locks l
      JOIN pg_catalog.pg_stat_activity s ON s.pid = l.pid AND s.state = 'active'
     WHERE l.locktype = 'relation' AND l.relation = 'fencing.fence'::pg_catalog.regclass AND l.mode = 'RowExclusiveLock' AND l.granted
), chain(pid) AS (
    SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids($1::pg_catalog.int4))
     UNION
    SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(c.pid)) FROM chain c JOIN queueing q ON q.pid = c.pid
)
SELECT victim
  FROM pg_catalog.unnest((
           SELECT pg_catalog.array_agg(c.pid)
             FROM chain c
            WHERE c.pid NOT IN (0, $1::pg_catalog.int4) AND c.pid NOT IN (SELECT q.pid FROM queueing q)
       )) AS victim
 WHERE pg_catalog.pg_terminate_backend(victim)
