-- Who a backend waits for. A role without pg_monitor does not see the state and the times of another role's session: they
-- come back empty and negative. Pid 0 is a prepared transaction.
-- name: BlockingSessions :many
SELECT b.pid::integer                                   AS pid,
       COALESCE(s.application_name, '')::text           AS application_name,
       COALESCE(s.usename, '')::text                    AS role_name,
       COALESCE(s.state, '')::text                      AS state,
       COALESCE(extract(epoch FROM pg_catalog.clock_timestamp() - s.xact_start), -1)::float8 AS transaction_seconds
  FROM (SELECT DISTINCT pg_catalog.unnest(pg_catalog.pg_blocking_pids(sqlc.arg(pid)::integer)) AS pid) AS b
  LEFT JOIN pg_catalog.pg_stat_activity s ON s.pid = b.pid
 ORDER BY 5 DESC, 1;

-- Ends whoever keeps a claim waiting for the fence: the sessions that hold the fence, by its advisory lock or its row.
--
-- Spared are those in line themselves, and the search goes on to whoever they wait for. A session that queues for a fence waits for
-- the advisory lock and has none of it yet; or has, or waits for, the heavyweight lock on a tuple of fencing.fence. A claim that has
-- just got the fence has the advisory lock for itself, or a RowExclusiveLock on fencing.fence, and is running, so it is about to
-- commit.
--
-- All is decided before the first session is ended (volatile functions are evaluated after the sort): ending one lets the next
-- in line go ahead, which then no longer looks like one in line. Search and end are one statement, so that a session which has
-- just let go and moved on to other work is not ended for what it did before.
-- name: EvictFenceHolders :many
WITH RECURSIVE queueing(pid) AS MATERIALIZED (
    SELECT l.pid
      FROM pg_catalog.pg_locks l
     WHERE l.locktype = 'tuple' AND l.relation = 'fencing.fence'::pg_catalog.regclass
    UNION
    SELECT l.pid
      FROM pg_catalog.pg_locks l
      JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid AND a.state = 'active'
     WHERE l.locktype = 'relation' AND l.relation = 'fencing.fence'::pg_catalog.regclass AND l.mode = 'RowExclusiveLock' AND l.granted
     UNION
    SELECT l.pid
      FROM pg_catalog.pg_locks mine
      JOIN pg_catalog.pg_locks l ON (l.locktype, l.database, l.classid, l.objid, l.objsubid) = (mine.locktype, mine.database, mine.classid, mine.objid, mine.objsubid)
      LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid AND a.state = 'active'
     WHERE mine.pid = sqlc.arg(pid)::integer AND mine.locktype = 'advisory' AND NOT mine.granted
     GROUP BY l.pid
    HAVING NOT pg_catalog.bool_or(l.granted) OR pg_catalog.bool_or(l.granted AND l.mode = 'ExclusiveLock' AND a.pid IS NOT NULL)
), chain(pid) AS (
    SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(sqlc.arg(pid)::integer))
    UNION
    SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids(c.pid)) FROM chain c JOIN queueing q ON q.pid = c.pid
)
SELECT c.pid::integer                                   AS pid,
       COALESCE(s.application_name, '')::text           AS application_name,
       COALESCE(s.usename, '')::text                    AS role_name,
       COALESCE(s.state, '')::text                      AS state,
       COALESCE(extract(epoch FROM pg_catalog.clock_timestamp() - s.xact_start), -1)::float8 AS transaction_seconds,
       pg_catalog.pg_terminate_backend(c.pid)::boolean  AS terminated
  FROM chain c
  LEFT JOIN pg_catalog.pg_stat_activity s ON s.pid = c.pid
 WHERE c.pid NOT IN (0, sqlc.arg(pid)::integer)
   AND c.pid NOT IN (SELECT q.pid FROM queueing q)
 ORDER BY 1;

-- name: CancelBackend :one
SELECT pg_catalog.pg_cancel_backend(sqlc.arg(pid)::integer)::boolean AS cancelled;

-- Lets the server end this transaction should its client be frozen in the middle of it, with locks that others wait for.
-- name: BoundIdleTime :exec
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', true);
