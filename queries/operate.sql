-- name: ClaimFence :one
SELECT fencing.claim(sqlc.arg(fence)::text, sqlc.arg(token)::bigint)::bigint AS previous;

-- name: LowerFence :one
SELECT fencing.lower_fence(sqlc.arg(fence)::text, sqlc.arg(token)::bigint, sqlc.arg(reason)::text)::bigint AS previous;

-- name: AdoptEpoch :one
SELECT fencing.adopt_epoch(sqlc.arg(source)::text, sqlc.arg(incarnation)::text)::integer AS epoch;
