-- An order may be in doubt: its work may have begun, and no node knows how it ended. It names the node that has its work,
-- and has no time limit. SQLite cannot change a CHECK constraint, so the table is made anew.
CREATE TABLE kept_orders AS SELECT * FROM orders;
DROP TABLE orders;
CREATE TABLE orders (
    id       TEXT PRIMARY KEY REFERENCES events (id) ON DELETE CASCADE,
    issued   TEXT NOT NULL,
    deadline TEXT,
    state    TEXT NOT NULL CHECK (state = 'open' OR state = 'running' OR state = 'in-doubt' OR state = 'done' OR state = 'failed'),
    attempt  INTEGER NOT NULL CHECK (attempt >= 1),
    node     TEXT NOT NULL,
    taken    TEXT,
    ended    TEXT,
    reason   TEXT NOT NULL,
    output   TEXT NOT NULL,
    scope    TEXT NOT NULL DEFAULT '',
    CHECK (state <> 'in-doubt' OR (node <> '' AND deadline IS NULL))
) WITHOUT ROWID;
INSERT INTO orders SELECT * FROM kept_orders;
DROP TABLE kept_orders;
CREATE INDEX orders_by_state ON orders (state, issued, id);
CREATE INDEX orders_by_scope ON orders (scope, state, issued, id);
