-- The work on a host has an order of its own. SQLite cannot change a CHECK constraint or drop a foreign key, so the table of
-- orders is made anew: the order of a host has no event. Triggers do what the foreign key did.
ALTER TABLE maintenances ADD COLUMN host_mode TEXT CHECK (host_mode IN ('evacuate', 'in-place'));
ALTER TABLE maintenances ADD COLUMN return_machines INTEGER NOT NULL DEFAULT 0;
ALTER TABLE maintenances ADD COLUMN to_host TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN to_host TEXT NOT NULL DEFAULT '';
CREATE TABLE kept_orders AS SELECT * FROM orders;
DROP TABLE orders;
CREATE TABLE orders (
    id             TEXT PRIMARY KEY,
    issued         TEXT NOT NULL,
    deadline       TEXT,
    state          TEXT NOT NULL CHECK (state = 'planned' OR state = 'open' OR state = 'running' OR state = 'in-doubt'
                                        OR state = 'done' OR state = 'failed' OR state = 'cancelled' OR state = 'abandoned'),
    attempt        INTEGER NOT NULL CHECK (attempt >= 1),
    node           TEXT NOT NULL,
    taken          TEXT,
    ended          TEXT,
    reason         TEXT NOT NULL,
    output         TEXT NOT NULL,
    scope          TEXT NOT NULL DEFAULT '',
    host           TEXT NOT NULL DEFAULT '',
    maintenance_id TEXT NOT NULL DEFAULT '',
    position       INTEGER NOT NULL DEFAULT 0,
    phase          TEXT NOT NULL DEFAULT '' CHECK (phase = '' OR phase = 'stop' OR phase = 'start'),
    CHECK (state <> 'in-doubt' OR (node <> '' AND deadline IS NULL)),
    CHECK ((host = '') = (maintenance_id = '')),
    CHECK (host <> '' OR (state <> 'cancelled' AND state <> 'abandoned' AND (state <> 'planned' OR phase = 'start')))
) WITHOUT ROWID;
INSERT INTO orders (id, issued, deadline, state, attempt, node, taken, ended, reason, output, scope)
SELECT id, issued, deadline, state, attempt, node, taken, ended, reason, output, scope FROM kept_orders;
DROP TABLE kept_orders;
CREATE INDEX orders_by_state ON orders (state, issued, id);
CREATE INDEX orders_by_scope ON orders (scope, state, issued, id);
CREATE UNIQUE INDEX orders_of_hosts ON orders (maintenance_id, position) WHERE host <> '';
CREATE INDEX orders_of_hosts_by_state ON orders (state) WHERE host <> '';

CREATE TRIGGER orders_belong_to_something BEFORE INSERT ON orders
WHEN NOT CASE WHEN new.host = '' THEN EXISTS (SELECT 1 FROM events WHERE id = new.id)
         ELSE EXISTS (SELECT 1 FROM maintenances WHERE id = new.maintenance_id) END
BEGIN
    SELECT RAISE(ABORT, 'an order belongs to an event, or to the maintenance of its host');
END;

CREATE TRIGGER events_take_their_orders_along AFTER DELETE ON events
BEGIN
    DELETE FROM orders WHERE id = old.id;
END;

CREATE TRIGGER maintenances_take_their_orders_along AFTER DELETE ON maintenances
BEGIN
    DELETE FROM orders WHERE host <> '' AND maintenance_id = old.id;
END;
