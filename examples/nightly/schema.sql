CREATE SCHEMA nightly;

-- Written by everybody, all day long.
CREATE TABLE nightly.sale (
    sale_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day     date NOT NULL,
    cents   bigint NOT NULL
);
CREATE TABLE nightly.refund (
    refund_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day       date NOT NULL,
    cents     bigint NOT NULL
);

-- Written by the nightly run alone.
CREATE TABLE nightly.report (
    day      date PRIMARY KEY,
    sold     bigint NOT NULL,
    refunded bigint NOT NULL DEFAULT 0,
    run      bigint NOT NULL DEFAULT fencing.presented() -- the token of the run that wrote this line last
);

-- One fence for the whole table, with the name of the script's lock.
SELECT fencing.protect('nightly.report', fence => 'nightly/report');
