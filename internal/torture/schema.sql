-- What the workers write. Every write of a row is logged in torture.effect by the same transaction.
CREATE SCHEMA torture;

CREATE TABLE torture.item (
    lock    text,
    n       integer,
    version bigint NOT NULL DEFAULT 0, -- counts the writes
    op      text   NOT NULL DEFAULT '', -- the last of them
    PRIMARY KEY (lock, n)
);
CREATE TABLE torture.reentrant (LIKE torture.item INCLUDING ALL);
CREATE TABLE torture.strict (LIKE torture.item INCLUDING ALL);

-- Not protected, and not unique: it is the instrument, and must be able to show what should not be.
CREATE TABLE torture.effect (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    op      text   NOT NULL,
    target  text   NOT NULL,
    version bigint NOT NULL,
    token   bigint NOT NULL
);

CREATE ROLE worker LOGIN;
GRANT USAGE ON SCHEMA torture TO worker;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA torture TO worker;
