-- It may be run again: fencing.protect changes nothing where all is as asked for.
CREATE SCHEMA IF NOT EXISTS leader;

CREATE TABLE IF NOT EXISTS leader.plan (
    round      bigint PRIMARY KEY,
    planned_by text NOT NULL,
    planned_at timestamptz NOT NULL DEFAULT now()
);

-- One fence for the whole table, with the name of the election: whoever writes here must be the leader, whatever the row.
SELECT fencing.protect('leader.plan', fence => 'leader/scheduler');
