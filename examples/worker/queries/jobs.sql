-- name: Enqueue :one
INSERT INTO worker.job (customer, pages) VALUES ($1, $2) RETURNING id;

-- name: OpenJobs :many
SELECT j.*
  FROM worker.job j
  LEFT JOIN worker.progress p ON p.job_id = j.id
 WHERE p.job_id IS NULL OR p.done < j.pages
 ORDER BY j.id
 LIMIT $1;

-- name: PagesDone :one
SELECT coalesce((SELECT done FROM worker.progress WHERE job_id = $1), 0)::integer AS done;
