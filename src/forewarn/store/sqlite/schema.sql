-- The current schema of the SQLite store. A new database is created from this file.
-- An older database gets the same schema from the files in migrations/.
-- Times are UTC text of fixed width (2030-01-01T00:00:00.000000Z), so that sorting the text sorts by time.
-- Three or more values are compared with OR or CASE: for IN with so many values, SQLite builds a table at every write.

CREATE TABLE scopes (
    name                TEXT PRIMARY KEY,
    kind                TEXT NOT NULL CHECK (kind = 'cloud-service' OR kind = 'availability-set'
                                             OR kind = 'placement-group' OR kind = 'standalone'),
    approval            TEXT NOT NULL CHECK (approval = 'any' OR approval = 'all' OR approval = 'operator'),
    approve_user_events INTEGER NOT NULL CHECK (approve_user_events IN (0, 1)),
    max_user_operations INTEGER NOT NULL CHECK (max_user_operations >= 0),
    terminate_notice_s  INTEGER NOT NULL CHECK (terminate_notice_s BETWEEN 300 AND 900),
    minimum_notice_s    TEXT NOT NULL,
    enabled             INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    epoch               INTEGER NOT NULL CHECK (epoch >= enabled),
    incarnation         INTEGER NOT NULL CHECK (incarnation >= 1),
    version             INTEGER NOT NULL CHECK (version >= 1),
    changed             TEXT,
    windows TEXT NOT NULL DEFAULT '[]',
    max_unavailable TEXT NOT NULL DEFAULT '',
    approval_opens_window INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE machines (
    scope         TEXT NOT NULL REFERENCES scopes (name),
    name          TEXT NOT NULL,
    update_domain INTEGER NOT NULL CHECK (update_domain >= 0),
    fault_domain  INTEGER NOT NULL CHECK (fault_domain >= 0),
    host          TEXT NOT NULL,
    interface     TEXT NOT NULL,
    instance_id   TEXT NOT NULL,
    labels        TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(labels)),
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE INDEX machines_by_host ON machines (host) WHERE host <> '';
CREATE INDEX machines_by_name ON machines (name);
CREATE UNIQUE INDEX machines_by_instance_id ON machines (instance_id) WHERE instance_id <> '';

-- How the endpoint recognises a caller: an (interface, address) pair belongs to one machine.
-- The address '' means that the interface alone identifies the machine.
CREATE TABLE machine_addresses (
    interface TEXT NOT NULL,
    address   TEXT NOT NULL,
    scope     TEXT NOT NULL,
    name      TEXT NOT NULL,
    PRIMARY KEY (interface, address),
    FOREIGN KEY (scope, name) REFERENCES machines (scope, name) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX machine_addresses_by_machine ON machine_addresses (scope, name);

CREATE TABLE maintenances (
    id          TEXT PRIMARY KEY,
    type        TEXT NOT NULL,
    source      TEXT NOT NULL,
    created     TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    not_before  TEXT,
    earliest    TEXT,
    duration_s  INTEGER NOT NULL,
    description TEXT NOT NULL,
    emergency   INTEGER NOT NULL,
    on_failure  TEXT NOT NULL CHECK (on_failure = 'hold' OR on_failure = 'cancel' OR on_failure = 'continue'),
    paused      INTEGER NOT NULL,
    cancelled   INTEGER NOT NULL,
    status      TEXT NOT NULL,
    wake_at     TEXT,
    version     INTEGER NOT NULL,
    ended       TEXT,
    told        TEXT,
    host_mode       TEXT CHECK (host_mode IN ('evacuate', 'in-place')),
    return_machines INTEGER NOT NULL DEFAULT 0,
    to_host         TEXT NOT NULL DEFAULT '',
    not_after       TEXT,
    drill_hold_s    INTEGER NOT NULL DEFAULT 0,
    continued_after INTEGER NOT NULL DEFAULT 0,
    waits_for_budget INTEGER NOT NULL DEFAULT 0,
    CHECK (CASE status
           WHEN 'Planned'   THEN ended IS NULL
           WHEN 'Running'   THEN ended IS NULL
           WHEN 'Paused'    THEN ended IS NULL
           WHEN 'Completed' THEN ended IS NOT NULL
           WHEN 'Cancelled' THEN ended IS NOT NULL
           WHEN 'Failed'    THEN ended IS NOT NULL
           ELSE 0 END),
    CHECK (ended IS NULL OR wake_at IS NULL)
) WITHOUT ROWID;
CREATE INDEX maintenances_by_wake ON maintenances (wake_at, id) WHERE wake_at IS NOT NULL;
CREATE INDEX maintenances_by_end ON maintenances (ended) WHERE ended IS NOT NULL;
CREATE INDEX maintenances_by_status ON maintenances (status, created, id);
CREATE INDEX maintenances_waiting_for_budget ON maintenances (waits_for_budget, id) WHERE waits_for_budget = 1;
CREATE INDEX maintenances_drills ON maintenances (created, id) WHERE drill_hold_s > 0;
CREATE INDEX maintenances_on_hosts ON maintenances (status, created, id) WHERE host_mode IS NOT NULL;

-- What an operator asked for, as JSON. Apart from the maintenances, whose rows are written at every wake-up.
CREATE TABLE maintenance_targets (
    maintenance_id TEXT PRIMARY KEY REFERENCES maintenances (id) ON DELETE CASCADE,
    targets        TEXT NOT NULL,
    strategy       TEXT NOT NULL DEFAULT '{}'
);

-- The scopes a maintenance has events in, for finding maintenances by scope.
CREATE TABLE maintenance_scopes (
    scope          TEXT NOT NULL,
    status         TEXT NOT NULL,
    created        TEXT NOT NULL,
    maintenance_id TEXT NOT NULL REFERENCES maintenances (id) ON DELETE CASCADE,
    PRIMARY KEY (scope, status, created, maintenance_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX maintenance_scopes_by_maintenance ON maintenance_scopes (maintenance_id, scope);

CREATE TRIGGER maintenances_move_on AFTER UPDATE OF status ON maintenances
WHEN new.status <> old.status
BEGIN
    UPDATE maintenance_scopes SET status = new.status WHERE maintenance_id = new.id;
END;

CREATE TABLE events (
    number           INTEGER PRIMARY KEY AUTOINCREMENT,
    id               TEXT NOT NULL UNIQUE,
    maintenance_id   TEXT NOT NULL REFERENCES maintenances (id),
    wave             INTEGER NOT NULL CHECK (wave >= 1),
    position         INTEGER NOT NULL,
    scope            TEXT NOT NULL,
    update_domain    INTEGER NOT NULL,
    type             TEXT NOT NULL CHECK (type = 'Freeze' OR type = 'Reboot' OR type = 'Redeploy' OR type = 'Preempt'
                                          OR type = 'Terminate'),
    source           TEXT NOT NULL CHECK (source IN ('Platform', 'User')),
    resources        TEXT NOT NULL CHECK (json_array_length(resources) >= 1),
    description      TEXT NOT NULL,
    duration_s       INTEGER NOT NULL,
    emergency        INTEGER NOT NULL,
    status           TEXT NOT NULL,
    born_approved    INTEGER NOT NULL,
    needs_approval   INTEGER NOT NULL,
    approval         TEXT NOT NULL CHECK (approval = 'any' OR approval = 'all' OR approval = 'operator'),
    sequence         INTEGER NOT NULL,
    published        TEXT,
    not_before       TEXT,
    minimum_notice_s INTEGER NOT NULL,
    started          TEXT,
    ended            TEXT,
    reason           TEXT NOT NULL,
    host             TEXT NOT NULL DEFAULT '',
    to_host          TEXT NOT NULL DEFAULT '',
    group_name       TEXT NOT NULL DEFAULT '',
    replaces         TEXT NOT NULL DEFAULT '',
    reschedules      INTEGER NOT NULL DEFAULT 0,
    requested_not_before TEXT,
    replaced_by      TEXT NOT NULL DEFAULT '',
    UNIQUE (maintenance_id, position),
    CHECK (CASE status
           WHEN 'Planned'   THEN ended IS NULL
           WHEN 'Scheduled' THEN ended IS NULL AND published IS NOT NULL
           WHEN 'Started'   THEN ended IS NULL AND published IS NOT NULL AND started IS NOT NULL
           WHEN 'Completed' THEN ended IS NOT NULL AND published IS NOT NULL AND started IS NOT NULL
           WHEN 'Abandoned' THEN ended IS NOT NULL AND published IS NOT NULL AND started IS NOT NULL
           WHEN 'Cancelled' THEN ended IS NOT NULL
           ELSE 0 END),
    CHECK ((published IS NULL) = (not_before IS NULL)),
    CHECK (not_before >= published AND started >= published AND ended >= started)
);
CREATE INDEX events_open_by_scope ON events (scope) WHERE ended IS NULL;
CREATE INDEX events_open_by_wave ON events (maintenance_id, status, wave) WHERE ended IS NULL;
CREATE INDEX events_worked_on ON events (maintenance_id, ended) WHERE started IS NOT NULL AND ended IS NOT NULL;
CREATE INDEX events_replaced ON events (maintenance_id) WHERE replaced_by <> '';
CREATE INDEX events_by_scope ON events (scope, number);
-- Ended events never change, so their indexes are written once. Open events are few and need no further index.
CREATE INDEX events_open ON events (number) WHERE ended IS NULL;
CREATE INDEX events_visible ON events (status, number) WHERE status IN ('Scheduled', 'Started');
CREATE INDEX events_of_hosts ON events (maintenance_id, host) WHERE host <> '';
CREATE INDEX events_by_kind ON events (status, type, number) WHERE ended IS NOT NULL;
CREATE INDEX events_by_scope_and_kind ON events (scope, status, type, number) WHERE ended IS NOT NULL;
CREATE INDEX events_by_end ON events (ended, status, type, scope) WHERE ended IS NOT NULL;

CREATE TRIGGER events_lie_in_scopes AFTER INSERT ON events
BEGIN
    INSERT INTO maintenance_scopes
    SELECT new.scope, status, created, id FROM maintenances WHERE id = new.maintenance_id
    ON CONFLICT (maintenance_id, scope) DO NOTHING;
END;

-- An ended event never changes. Every event keeps its id, its maintenance and, once published, its NotBefore.
CREATE TRIGGER events_are_final BEFORE UPDATE ON events
WHEN old.ended IS NOT NULL
  OR new.id <> old.id
  OR new.maintenance_id <> old.maintenance_id
  OR (old.published IS NOT NULL AND (new.published IS NOT old.published OR new.not_before IS NOT old.not_before))
  OR (old.status = 'Started'
      AND (new.status = 'Planned' OR new.status = 'Scheduled' OR new.status = 'Cancelled'))
  OR (old.status = 'Scheduled' AND new.status = 'Planned')
BEGIN
    SELECT RAISE(ABORT, 'an event is final once ended and never goes backwards');
END;

-- The machines of an event: to find events by machine, and to let a machine be in at most one started event.
CREATE TABLE event_machines (
    scope        TEXT NOT NULL,
    machine      TEXT NOT NULL,
    event_number INTEGER NOT NULL REFERENCES events (number) ON DELETE CASCADE,
    started      INTEGER NOT NULL,
    PRIMARY KEY (scope, machine, event_number)
) WITHOUT ROWID;
CREATE INDEX event_machines_by_event ON event_machines (event_number);
CREATE UNIQUE INDEX one_started_event_per_machine ON event_machines (scope, machine) WHERE started = 1;

CREATE TRIGGER events_name_machines AFTER INSERT ON events
BEGIN
    INSERT INTO event_machines (scope, machine, event_number, started)
    SELECT new.scope, value, new.number, new.status = 'Started' FROM json_each(new.resources);
END;

CREATE TRIGGER events_hold_machines AFTER UPDATE OF status ON events
WHEN (old.status = 'Started') <> (new.status = 'Started')
BEGIN
    UPDATE event_machines SET started = (new.status = 'Started') WHERE event_number = new.number;
END;

CREATE TABLE approvals (
    event_id TEXT NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    machine  TEXT NOT NULL,
    who      TEXT NOT NULL,
    at       TEXT NOT NULL,
    origin   TEXT NOT NULL,
    PRIMARY KEY (event_id, machine)
) WITHOUT ROWID;

-- An order in doubt names the node that has its work, and has no time limit. The order of an event has the event's id. The
-- order of a host has an id of its own and names its host and its maintenance; only it may be cancelled or abandoned.
-- No order outlives its event or its maintenance.
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
    reschedules    INTEGER NOT NULL DEFAULT 0,
    requested_not_before TEXT,
    CHECK (state <> 'in-doubt' OR (node <> '' AND deadline IS NULL)),
    CHECK ((host = '') = (maintenance_id = '')),
    CHECK (host <> '' OR (state <> 'cancelled' AND state <> 'abandoned' AND (state <> 'planned' OR phase = 'start')))
) WITHOUT ROWID;
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

CREATE TABLE audit (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    at             TEXT NOT NULL,
    who            TEXT NOT NULL,
    action         TEXT NOT NULL,
    origin         TEXT NOT NULL,
    scope          TEXT NOT NULL,
    maintenance_id TEXT NOT NULL,
    event_id       TEXT NOT NULL,
    detail         TEXT NOT NULL,
    hash           TEXT NOT NULL DEFAULT ''
);
CREATE INDEX audit_by_event ON audit (event_id, id) WHERE event_id <> '';
CREATE INDEX audit_by_maintenance ON audit (maintenance_id, id) WHERE maintenance_id <> '';
CREATE INDEX audit_by_scope ON audit (scope, id) WHERE scope <> '';

CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;

-- When a machine last polled. Not in machines: it is written in batches, and a crash may lose the last seconds.
CREATE TABLE last_seen (
    scope TEXT NOT NULL,
    name  TEXT NOT NULL,
    at    TEXT NOT NULL,
    PRIMARY KEY (scope, name),
    FOREIGN KEY (scope, name) REFERENCES machines (scope, name) ON DELETE CASCADE
) WITHOUT ROWID;

-- Who may use the API and the portal. The secret of a token is not stored, only its digest.
CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 64),
    role       TEXT NOT NULL CHECK (role = 'viewer' OR role = 'operator' OR role = 'owner' OR role = 'calendar'),
    scopes     TEXT NOT NULL,
    digest     TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
    created    TEXT NOT NULL,
    created_by TEXT NOT NULL,
    expires    TEXT,
    CHECK (role = 'calendar' OR (role = 'owner') = (json_array_length(scopes) > 0))
) WITHOUT ROWID;
CREATE INDEX tokens_by_age ON tokens (created, id);

-- When a token was last used. Apart from the tokens, and as loose as last_seen.
CREATE TABLE token_uses (
    token_id TEXT PRIMARY KEY REFERENCES tokens (id) ON DELETE CASCADE,
    at       TEXT NOT NULL
) WITHOUT ROWID;

-- A login of the portal. The session id itself is in the browser's cookie alone.
CREATE TABLE sessions (
    digest   TEXT PRIMARY KEY CHECK (length(digest) = 64),
    token_id TEXT NOT NULL,
    created  TEXT NOT NULL,
    expires  TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_token ON sessions (token_id, expires);
CREATE INDEX sessions_by_end ON sessions (expires);

-- The responses to requests with an Idempotency-Key. They are deleted by age, also after their token was deleted.
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

-- When a machine first saw an event. Written in batches like last_seen.
CREATE TABLE sightings (
    event_id TEXT NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    machine  TEXT NOT NULL,
    at       TEXT NOT NULL,
    PRIMARY KEY (event_id, machine)
) WITHOUT ROWID;

-- Until an operator confirms this row, no event starts because of time that passed after `trusted`.
CREATE TABLE clock_hold (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    trusted   TEXT NOT NULL,
    noticed   TEXT NOT NULL,
    jumped_s  INTEGER NOT NULL,
    node      TEXT NOT NULL,
    confirmed TEXT
);

-- A hold of the whole store: while `resumed` is NULL, no event starts and no order is handed out.
-- `identity` is the database for which an operator resumed it.
CREATE TABLE store_hold (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    cause    TEXT NOT NULL CHECK (cause = 'restored' OR cause = 'replaced' OR cause = 'requested'),
    detail   TEXT NOT NULL,
    who      TEXT NOT NULL,
    held     TEXT NOT NULL,
    resumed  TEXT,
    identity TEXT NOT NULL
);

-- Tells this database from every other one. A restored backup gets a new identity.
CREATE TABLE store_identity (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL
);
INSERT INTO store_identity VALUES (1, lower(hex(randomblob(16))));

-- Where the chain begins: entries up to here were pruned, or are older than the chain.
CREATE TABLE audit_start (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    id   INTEGER NOT NULL,
    hash TEXT NOT NULL
);
INSERT INTO audit_start SELECT 1, coalesce(max(id), 0), '' FROM audit;

CREATE TRIGGER audit_is_chained BEFORE INSERT ON audit
WHEN new.hash = ''
BEGIN
    SELECT RAISE(ABORT, 'an audit entry has a hash');
END;

-- A URL that gets a message for each audit entry of a scope, or of the whole fleet (''). The secrets sign the messages.
-- If an owner created it, it is disabled when the owner's token ends.
CREATE TABLE hooks (
    id                TEXT PRIMARY KEY,
    url               TEXT NOT NULL CHECK (length(url) <= 1024),
    scope             TEXT NOT NULL,
    kinds             TEXT NOT NULL CHECK (json_array_length(kinds) >= 1),
    shape             TEXT NOT NULL CHECK (shape = 'cloudevents' OR shape = 'slack' OR shape = 'teams'),
    secrets           TEXT NOT NULL CHECK (json_array_length(secrets) >= 1),
    old_secrets_until TEXT,
    created           TEXT NOT NULL,
    created_by        TEXT NOT NULL,
    cursor            INTEGER NOT NULL,
    delivered         TEXT,
    failing_since     TEXT,
    failures          INTEGER NOT NULL CHECK ((failures > 0) = (failing_since IS NOT NULL)),
    error             TEXT NOT NULL,
    disabled          TEXT,
    gap_after         INTEGER NOT NULL,
    gap_until         INTEGER NOT NULL,
    version           INTEGER NOT NULL CHECK (version >= 1),
    owner_token       TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX hooks_by_age ON hooks (created, id);

-- The last attempt to deliver an entry to a hook; of each hook the latest attempts only.
CREATE TABLE hook_deliveries (
    hook_id   TEXT NOT NULL REFERENCES hooks (id) ON DELETE CASCADE,
    audit_id  INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    at        TEXT NOT NULL,
    attempts  INTEGER NOT NULL,
    delivered INTEGER NOT NULL CHECK (delivered IN (0, 1)),
    status    INTEGER NOT NULL,
    took_ms   INTEGER NOT NULL,
    error     TEXT NOT NULL,
    PRIMARY KEY (hook_id, audit_id)
) WITHOUT ROWID;
CREATE INDEX hook_deliveries_by_time ON hook_deliveries (hook_id, at, audit_id);

-- What is known of a host: what the fleet lists, and whether it is cordoned, by the maintenance of this id or by an operator ('').
CREATE TABLE hosts (
    name         TEXT PRIMARY KEY,
    labels       TEXT NOT NULL CHECK (json_valid(labels)),
    fault_domain INTEGER NOT NULL CHECK (fault_domain BETWEEN 0 AND 999),
    connection   TEXT NOT NULL CHECK (length(connection) <= 512),
    listed       INTEGER NOT NULL CHECK (listed IN (0, 1)),
    cordoned     TEXT,
    cordoned_by  TEXT NOT NULL CHECK (cordoned_by = '' OR cordoned IS NOT NULL),
    version      INTEGER NOT NULL CHECK (version >= 1)
) WITHOUT ROWID;

-- What operators set for the whole fleet: one row. Windows and no-go times are JSON. A limit of 0 limits nothing.
CREATE TABLE fleet_rules (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    windows           TEXT NOT NULL CHECK (json_valid(windows)),
    no_go_times       TEXT NOT NULL CHECK (json_valid(no_go_times)),
    max_hosts_down    INTEGER NOT NULL CHECK (max_hosts_down >= 0),
    max_machines_down INTEGER NOT NULL CHECK (max_machines_down >= 0),
    version           INTEGER NOT NULL,
    reservations      INTEGER NOT NULL
);
INSERT INTO fleet_rules VALUES (1, '[]', '[]', 0, 0, 0, 0);
