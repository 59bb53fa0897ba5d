-- +goose Up
CREATE SCHEMA worker;

-- What there is to do. Anybody may add to it, without a lock, and nobody ever changes it: there is nothing here to fence.
CREATE TABLE worker.job (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer    text NOT NULL,
    pages       integer NOT NULL CHECK (pages > 0),
    enqueued_at timestamptz NOT NULL DEFAULT now()
);

-- How far it is. Only the worker that holds the job's lock may write here.
CREATE TABLE worker.progress (
    job_id bigint PRIMARY KEY REFERENCES worker.job,
    done   integer NOT NULL,
    worker text NOT NULL
);

-- One fence for each job, with the same name as the job's lock. A fence in the row itself would not do: the first write to a job is an
-- INSERT, and a worker reads how far the job is before it writes.
SELECT fencing.protect('worker.progress', fence => 'worker/job/{job_id}');

-- +goose Down
DROP SCHEMA worker CASCADE;
