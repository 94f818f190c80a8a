-- Who may use the operator side. The secret itself is kept by nobody.
CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 64),
    role       TEXT NOT NULL CHECK (role = 'viewer' OR role = 'operator' OR role = 'owner'),
    scopes     TEXT NOT NULL,
    digest     TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
    created    TEXT NOT NULL,
    created_by TEXT NOT NULL,
    CHECK ((role = 'owner') = (json_array_length(scopes) > 0))
) WITHOUT ROWID;
CREATE INDEX tokens_by_age ON tokens (created, id);

-- The answers to requests that must not be done twice; those of a token that is gone are forgotten by age like all others.
CREATE TABLE receipts (
    token_id TEXT NOT NULL,
    key      TEXT NOT NULL,
    digest   TEXT NOT NULL,
    status   INTEGER NOT NULL,
    body     TEXT NOT NULL,
    at       TEXT NOT NULL,
    PRIMARY KEY (token_id, key)
) WITHOUT ROWID;
CREATE INDEX receipts_by_age ON receipts (at);

-- Lists: a page is sought in an index that has its order, one seek for each scope, status and type asked for.
-- What has ended never changes: its indexes are written once. What is open is few, and read as it stands.
CREATE INDEX maintenances_by_status ON maintenances (status, created, id);
CREATE INDEX events_open ON events (number) WHERE ended IS NULL;
CREATE INDEX events_by_kind ON events (status, type, number) WHERE ended IS NOT NULL;
CREATE INDEX events_by_scope_and_kind ON events (scope, status, type, number) WHERE ended IS NOT NULL;
CREATE INDEX events_by_end ON events (ended, status, type, scope) WHERE ended IS NOT NULL;

-- An order lies in the scope of its event.
ALTER TABLE orders ADD COLUMN scope TEXT NOT NULL DEFAULT '';
UPDATE orders SET scope = (SELECT scope FROM events WHERE events.id = orders.id);
CREATE INDEX orders_by_scope ON orders (scope, state, issued, id);

-- The scopes a maintenance has events in, for finding maintenances by scope.
CREATE TABLE maintenance_scopes (
    scope          TEXT NOT NULL,
    status         TEXT NOT NULL,
    created        TEXT NOT NULL,
    maintenance_id TEXT NOT NULL REFERENCES maintenances (id) ON DELETE CASCADE,
    PRIMARY KEY (scope, status, created, maintenance_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX maintenance_scopes_by_maintenance ON maintenance_scopes (maintenance_id, scope);
INSERT INTO maintenance_scopes
SELECT DISTINCT e.scope, m.status, m.created, m.id FROM events e JOIN maintenances m ON m.id = e.maintenance_id;

CREATE TRIGGER events_lie_in_scopes AFTER INSERT ON events
BEGIN
    INSERT INTO maintenance_scopes
    SELECT new.scope, status, created, id FROM maintenances WHERE id = new.maintenance_id
    ON CONFLICT (maintenance_id, scope) DO NOTHING;
END;

CREATE TRIGGER maintenances_move_on AFTER UPDATE OF status ON maintenances
WHEN new.status <> old.status
BEGIN
    UPDATE maintenance_scopes SET status = new.status WHERE maintenance_id = new.id;
END;
