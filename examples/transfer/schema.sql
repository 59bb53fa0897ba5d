-- It may be run again: fencing.protect changes nothing where all is as asked for.
CREATE SCHEMA IF NOT EXISTS transfer;

CREATE TABLE IF NOT EXISTS transfer.account (
    account_id bigint PRIMARY KEY,
    cents      bigint NOT NULL CHECK (cents >= 0)
);

-- Not protected: rows are only ever added here, by transactions that also write under the fences of both accounts. When those are
-- refused, the entry is gone with them.
CREATE TABLE IF NOT EXISTS transfer.entry (
    entry_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    from_account bigint NOT NULL REFERENCES transfer.account,
    to_account   bigint NOT NULL REFERENCES transfer.account,
    cents        bigint NOT NULL CHECK (cents > 0)
);

-- One fence for each account, so that transfers between other accounts go on beside this one.
SELECT fencing.protect('transfer.account', fence => 'account/{account_id}');
