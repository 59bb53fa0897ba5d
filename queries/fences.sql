-- Fences, the last claimed first. name_like is a LIKE pattern with backslash as its escape.
-- name: ListFences :many
SELECT f.name::text AS name, f.token::bigint AS token, f.claimed_at::timestamptz AS claimed_at, f.claimed_by::text AS claimed_by
  FROM fencing.fence f
 WHERE f.name LIKE sqlc.arg(name_like)::text
 ORDER BY f.claimed_at DESC, f.name
 LIMIT sqlc.arg(max_rows)::bigint;

-- name: GetFence :many
SELECT f.name::text AS name, f.token::bigint AS token, f.claimed_at::timestamptz AS claimed_at, f.claimed_by::text AS claimed_by
  FROM fencing.fence f
 WHERE f.name = sqlc.arg(name)::text;

-- The lease of this name that has not run out, and how long it still has by the database's clock.
-- name: GetLease :many
SELECT l.token::bigint AS token, l.owner::text AS owner, l.acquired_at::timestamptz AS acquired_at,
       l.expires_at::timestamptz AS expires_at,
       (extract(epoch FROM l.expires_at - pg_catalog.clock_timestamp()) * 1000)::bigint AS expires_in_ms
  FROM fencing.lease l
 WHERE l.name = sqlc.arg(name)::text
   AND l.expires_at > pg_catalog.clock_timestamp();

-- name: NextToken :one
SELECT fencing.next_token()::bigint AS token;

-- name: ListSources :many
SELECT s.name::text AS name, COALESCE(s.incarnation, '')::text AS incarnation, s.epoch::integer AS epoch, s.since::timestamptz AS since
  FROM fencing.source s
 ORDER BY s.name;
