-- Ends whoever keeps the backend $1 waiting for a fence: the sessions that hold the fence, by its advisory lock or its row. Returns their
-- process ids.
--
-- Spared are those in line themselves, and the search goes on to whoever they wait for. A session that queues for a fence waits for the
-- advisory lock and has none of it yet; or has, or waits for, the heavyweight lock on a tuple of fencing.fence. A claim that has just got
-- the fence has the advisory lock for itself, or a RowExclusiveLock on fencing.fence, and is running, so it is about to commit.
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
     UNION
    SELECT l.pid
      FROM pg_catalog.pg_locks mine
      JOIN pg_catalog.pg_locks l ON (l.locktype, l.database, l.classid, l.objid, l.objsubid) = (mine.locktype, mine.database, mine.classid, mine.objid, mine.objsubid)
      LEFT JOIN pg_catalog.pg_stat_activity s ON s.pid = l.pid AND s.state = 'active'
     WHERE mine.pid = $1::pg_catalog.int4 AND mine.locktype = 'advisory' AND NOT mine.granted
     GROUP BY l.pid
    HAVING NOT pg_catalog.bool_or(l.granted) OR pg_catalog.bool_or(l.granted AND l.mode = 'ExclusiveLock' AND s.pid IS NOT NULL)
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
