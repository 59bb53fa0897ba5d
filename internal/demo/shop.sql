-- The application of the demo: a small shop. It knows nothing of fencing.

CREATE SCHEMA shop;

CREATE TABLE shop.accounts (
    account_id    bigint      PRIMARY KEY,
    owner         text        NOT NULL,
    balance_cents bigint      NOT NULL CHECK (balance_cents >= 0),
    updated_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE shop.orders (
    order_id    bigint      PRIMARY KEY,
    account_id  bigint      NOT NULL REFERENCES shop.accounts,
    status      text        NOT NULL CHECK (status IN ('placed', 'paid', 'shipped', 'payment_failed')),
    placed_at   timestamptz NOT NULL,
    total_cents bigint      NOT NULL
);
CREATE INDEX orders_by_account ON shop.orders (account_id);

CREATE TABLE shop.order_items (
    order_id   bigint  NOT NULL REFERENCES shop.orders ON DELETE CASCADE,
    line       integer NOT NULL,
    sku        text    NOT NULL,
    quantity   integer NOT NULL CHECK (quantity > 0),
    unit_cents bigint  NOT NULL,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE shop.jobs (
    job_id         bigint PRIMARY KEY,
    name           text   NOT NULL UNIQUE,
    state          text   NOT NULL CHECK (state IN ('queued', 'running', 'done')),
    orders_settled bigint NOT NULL DEFAULT 0
);

CREATE TABLE shop.events (
    event_id    bigint      GENERATED ALWAYS AS IDENTITY,
    occurred_at timestamptz NOT NULL,
    order_id    bigint      NOT NULL,
    kind        text        NOT NULL,
    PRIMARY KEY (event_id, occurred_at)
) PARTITION BY RANGE (occurred_at);
CREATE TABLE shop.events_2026_01 PARTITION OF shop.events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE shop.events_2026_02 PARTITION OF shop.events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
CREATE TABLE shop.events_other   PARTITION OF shop.events DEFAULT;

INSERT INTO shop.accounts (account_id, owner, balance_cents)
SELECT n, format('customer %s', n), 10000 FROM generate_series(1, 100) AS n;

INSERT INTO shop.orders (order_id, account_id, status, placed_at, total_cents)
SELECT n, 1 + n % 100, 'paid', timestamptz '2026-01-01 08:00+00' + n * interval '1 hour', 500 + n
  FROM generate_series(1, 1200) AS n;

INSERT INTO shop.order_items (order_id, line, sku, quantity, unit_cents)
SELECT o.order_id, line, format('SKU-%s', 1 + (o.order_id + line) % 40), line, 250
  FROM shop.orders o CROSS JOIN generate_series(1, 2) AS line;

INSERT INTO shop.jobs (job_id, name, state) VALUES
    (1, 'settle-payments', 'queued'), (2, 'rebuild-search', 'done'), (3, 'send-reminders', 'queued');

INSERT INTO shop.events (occurred_at, order_id, kind)
SELECT o.placed_at, o.order_id, 'order placed' FROM shop.orders o;

ANALYZE shop.accounts, shop.orders, shop.order_items, shop.jobs, shop.events;
