-- It may be run again: fencing.protect changes nothing where all is as asked for.
CREATE SCHEMA IF NOT EXISTS gorm;

CREATE TABLE IF NOT EXISTS gorm.invoice (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    cents    bigint NOT NULL,
    state    text NOT NULL,
    paid_at  timestamptz
);

-- A fence in each row, in a column that the model does not know. There is one lock for each invoice, and an invoice exists before anybody
-- locks it and is never deleted: that is where row fences are enough. reentrant: one holder of the lock saves an invoice twice. New
-- invoices need no token (inserts => 'allow', the default).
SELECT fencing.protect('gorm.invoice', mode => 'reentrant');
