package postgres

// The statements of this package. What they call is in migrations/.
const (
	sqlSourceEpoch = `SELECT fencing.source_epoch($1, $2)`
	sqlRegistered  = `SELECT incarnation FROM fencing.source WHERE name = $1`

	sqlAcquireLease = `CALL fencing.acquire_lease($1, $2::pg_catalog.uuid, $3::pg_catalog.int8, NULL, NULL)`
	sqlRenewLease   = `SELECT fencing.renew_lease($1, $2::pg_catalog.uuid, $3, pg_catalog.make_interval(secs => $4::pg_catalog.float8 / 1000))`
	sqlReleaseLease = `CALL fencing.release_lease($1, $2::pg_catalog.uuid, $3, NULL)`
	sqlListen       = `LISTEN fencing_lease`

	sqlNextToken = `SELECT fencing.next_token()`

	// The lock first, the token after it, in one statement: nothing but the CTE's row makes the outer SELECT draw. A volatile
	// function in a session's own statement sees what committed while the statement waited, so the token is newer than the last
	// holder's. pid and backend_start name this very session, should it have to be ended from another.
	sqlTryAdvisory = `WITH lock AS MATERIALIZED (SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('fencing/' || $1, 0)) AS got)
SELECT CASE WHEN lock.got THEN fencing.next_token() END, pg_catalog.pg_backend_pid(),
       (SELECT a.backend_start FROM pg_catalog.pg_stat_activity a WHERE a.pid = pg_catalog.pg_backend_pid())
  FROM lock`
	sqlAdvisory = `WITH lock AS MATERIALIZED (SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended('fencing/' || $1, 0)))
SELECT fencing.next_token(), pg_catalog.pg_backend_pid(),
       (SELECT a.backend_start FROM pg_catalog.pg_stat_activity a WHERE a.pid = pg_catalog.pg_backend_pid())
  FROM lock`
	sqlUnlock = `SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended('fencing/' || $1, 0))`
	// CASE, because a WHERE clause may be evaluated in any order, and this one would then end every session there is.
	sqlEndSession = `SELECT pg_catalog.count(*) FROM (
    SELECT CASE WHEN a.pid = $1 AND a.backend_start = $2 THEN pg_catalog.pg_terminate_backend(a.pid) END AS ended
      FROM pg_catalog.pg_stat_activity a) AS session
 WHERE session.ended`
)
