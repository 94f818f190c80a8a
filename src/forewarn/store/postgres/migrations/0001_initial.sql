-- The shared store's first schema, in a PostgreSQL schema of its own.
-- Names and ids sort by their bytes, as they do everywhere else in forewarn, whatever the database's language is.
CREATE DOMAIN plain AS text COLLATE "C";

CREATE TABLE scopes (
    name                plain PRIMARY KEY,
    kind                text NOT NULL CHECK (kind IN ('cloud-service', 'availability-set', 'placement-group', 'standalone')),
    approval            text NOT NULL CHECK (approval IN ('any', 'all', 'operator')),
    approve_user_events boolean NOT NULL,
    max_user_operations integer NOT NULL CHECK (max_user_operations >= 0),
    terminate_notice_s  integer NOT NULL CHECK (terminate_notice_s BETWEEN 300 AND 900),
    minimum_notice_s    text NOT NULL,
    enabled             boolean NOT NULL,
    epoch               bigint NOT NULL CHECK (epoch >= enabled::integer),
    incarnation         bigint NOT NULL CHECK (incarnation >= 1),
    version             bigint NOT NULL CHECK (version >= 1),
    changed             timestamptz
);

CREATE TABLE machines (
    scope         plain NOT NULL REFERENCES scopes (name),
    name          plain NOT NULL,
    update_domain integer NOT NULL CHECK (update_domain >= 0),
    fault_domain  integer NOT NULL CHECK (fault_domain >= 0),
    host          plain NOT NULL,
    interface     text NOT NULL,
    instance_id   text NOT NULL,
    PRIMARY KEY (scope, name)
);
CREATE INDEX machines_by_host ON machines (host, scope, name) WHERE host <> '';
CREATE INDEX machines_by_name ON machines (name, scope);
CREATE UNIQUE INDEX machines_by_instance_id ON machines (instance_id) WHERE instance_id <> '';

-- Who a caller is: an (interface, address) pair belongs to one machine; address '' means the interface alone tells.
CREATE TABLE machine_addresses (
    interface text NOT NULL,
    address   plain NOT NULL,
    scope     plain NOT NULL,
    name      plain NOT NULL,
    PRIMARY KEY (interface, address),
    FOREIGN KEY (scope, name) REFERENCES machines (scope, name) ON DELETE CASCADE
);
CREATE INDEX machine_addresses_by_machine ON machine_addresses (scope, name);

CREATE TABLE maintenances (
    id          plain PRIMARY KEY,
    type        text NOT NULL,
    source      text NOT NULL,
    created     timestamptz NOT NULL,
    created_by  text NOT NULL,
    not_before  timestamptz,
    earliest    timestamptz,
    duration_s  integer NOT NULL,
    description text NOT NULL,
    emergency   boolean NOT NULL,
    on_failure  text NOT NULL CHECK (on_failure IN ('hold', 'cancel', 'continue')),
    paused      boolean NOT NULL,
    cancelled   boolean NOT NULL,
    status      text NOT NULL,
    wake_at     timestamptz,
    version     bigint NOT NULL,
    ended       timestamptz,
    told        timestamptz,
    CHECK (CASE WHEN status IN ('Planned', 'Running', 'Paused') THEN ended IS NULL
                WHEN status IN ('Completed', 'Cancelled', 'Failed') THEN ended IS NOT NULL
                ELSE false END),
    CHECK (ended IS NULL OR wake_at IS NULL)
);
CREATE INDEX maintenances_by_wake ON maintenances (wake_at, id) WHERE wake_at IS NOT NULL;
CREATE INDEX maintenances_by_end ON maintenances (ended) WHERE ended IS NOT NULL;
CREATE INDEX maintenances_by_status ON maintenances (status, created, id);

-- The scopes a maintenance has events in, for finding maintenances by scope.
CREATE TABLE maintenance_scopes (
    scope          plain NOT NULL,
    status         text NOT NULL,
    created        timestamptz NOT NULL,
    maintenance_id plain NOT NULL REFERENCES maintenances (id) ON DELETE CASCADE,
    PRIMARY KEY (scope, status, created, maintenance_id)
);
CREATE UNIQUE INDEX maintenance_scopes_by_maintenance ON maintenance_scopes (maintenance_id, scope);

CREATE FUNCTION maintenances_move_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE maintenance_scopes SET status = new.status WHERE maintenance_id = new.id;
    RETURN NULL;
END $$;
CREATE TRIGGER maintenances_move_on AFTER UPDATE OF status ON maintenances
FOR EACH ROW WHEN (new.status <> old.status) EXECUTE FUNCTION maintenances_move_on();

CREATE TABLE events (
    number           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id               plain NOT NULL UNIQUE,
    maintenance_id   plain NOT NULL REFERENCES maintenances (id),
    wave             integer NOT NULL CHECK (wave >= 1),
    position         integer NOT NULL,
    scope            plain NOT NULL,
    update_domain    integer NOT NULL,
    type             text NOT NULL CHECK (type IN ('Freeze', 'Reboot', 'Redeploy', 'Preempt', 'Terminate')),
    source           text NOT NULL CHECK (source IN ('Platform', 'User')),
    resources        text[] NOT NULL CHECK (cardinality(resources) >= 1),
    description      text NOT NULL,
    duration_s       integer NOT NULL,
    emergency        boolean NOT NULL,
    status           text NOT NULL,
    born_approved    boolean NOT NULL,
    needs_approval   boolean NOT NULL,
    approval         text NOT NULL CHECK (approval IN ('any', 'all', 'operator')),
    sequence         bigint NOT NULL,
    published        timestamptz,
    not_before       timestamptz,
    minimum_notice_s integer NOT NULL,
    started          timestamptz,
    ended            timestamptz,
    reason           text NOT NULL,
    UNIQUE (maintenance_id, position),
    CHECK (CASE status
           WHEN 'Planned'   THEN ended IS NULL
           WHEN 'Scheduled' THEN ended IS NULL AND published IS NOT NULL
           WHEN 'Started'   THEN ended IS NULL AND published IS NOT NULL AND started IS NOT NULL
           WHEN 'Completed' THEN ended IS NOT NULL AND published IS NOT NULL AND started IS NOT NULL
           WHEN 'Abandoned' THEN ended IS NOT NULL AND published IS NOT NULL AND started IS NOT NULL
           WHEN 'Cancelled' THEN ended IS NOT NULL
           ELSE false END),
    CHECK ((published IS NULL) = (not_before IS NULL)),
    CHECK (not_before >= published AND started >= published AND ended >= started)
);
CREATE INDEX events_open_by_scope ON events (scope, number) WHERE ended IS NULL;
CREATE INDEX events_by_scope ON events (scope, number);
-- What has ended never changes: its indexes are written once. What is open is few, and read as it stands.
CREATE INDEX events_open ON events (number) WHERE ended IS NULL;
CREATE INDEX events_by_kind ON events (status, type, number) WHERE ended IS NOT NULL;
CREATE INDEX events_by_scope_and_kind ON events (scope, status, type, number) WHERE ended IS NOT NULL;
CREATE INDEX events_by_end ON events (ended, status, type, scope) WHERE ended IS NOT NULL;

-- "Ended statuses are final"; an event keeps its id, its maintenance and, once told, its NotBefore.
CREATE FUNCTION events_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'an event is final once ended and never goes backwards' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER events_are_final BEFORE UPDATE ON events FOR EACH ROW
WHEN (old.ended IS NOT NULL
      OR new.id <> old.id
      OR new.maintenance_id <> old.maintenance_id
      OR (old.published IS NOT NULL
          AND (new.published IS DISTINCT FROM old.published OR new.not_before IS DISTINCT FROM old.not_before))
      OR (old.status = 'Started' AND new.status IN ('Planned', 'Scheduled', 'Cancelled'))
      OR (old.status = 'Scheduled' AND new.status = 'Planned'))
EXECUTE FUNCTION events_are_final();

-- The machines of an event, for finding events by machine and for "a machine is in at most one started event".
CREATE TABLE event_machines (
    scope        plain NOT NULL,
    machine      plain NOT NULL,
    event_number bigint NOT NULL REFERENCES events (number) ON DELETE CASCADE,
    started      boolean NOT NULL,
    PRIMARY KEY (scope, machine, event_number)
);
CREATE INDEX event_machines_by_event ON event_machines (event_number);
CREATE UNIQUE INDEX one_started_event_per_machine ON event_machines (scope, machine) WHERE started;

CREATE FUNCTION events_come() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO maintenance_scopes
    SELECT new.scope, status, created, id FROM maintenances WHERE id = new.maintenance_id
    ON CONFLICT (maintenance_id, scope) DO NOTHING;
    INSERT INTO event_machines (scope, machine, event_number, started)
    SELECT new.scope, unnest(new.resources), new.number, new.status = 'Started';
    RETURN NULL;
END $$;
CREATE TRIGGER events_come AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION events_come();

CREATE FUNCTION events_hold_machines() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE event_machines SET started = (new.status = 'Started') WHERE event_number = new.number;
    RETURN NULL;
END $$;
CREATE TRIGGER events_hold_machines AFTER UPDATE OF status ON events FOR EACH ROW
WHEN ((old.status = 'Started') <> (new.status = 'Started')) EXECUTE FUNCTION events_hold_machines();

CREATE TABLE approvals (
    event_id plain NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    machine  plain NOT NULL,
    who      text NOT NULL,
    at       timestamptz NOT NULL,
    origin   text NOT NULL,
    PRIMARY KEY (event_id, machine)
);

CREATE TABLE orders (
    id       plain PRIMARY KEY REFERENCES events (id) ON DELETE CASCADE,
    issued   timestamptz NOT NULL,
    deadline timestamptz,
    state    text NOT NULL CHECK (state IN ('open', 'running', 'done', 'failed')),
    attempt  integer NOT NULL CHECK (attempt >= 1),
    node     text NOT NULL,
    taken    timestamptz,
    ended    timestamptz,
    reason   text NOT NULL,
    output   text NOT NULL,
    scope    plain NOT NULL DEFAULT ''
);
CREATE INDEX orders_by_state ON orders (state, issued, id);
CREATE INDEX orders_by_scope ON orders (scope, state, issued, id);

-- Its ids grow in the order of commits: whoever writes one holds a lock from the id's birth to the commit.
CREATE TABLE audit (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL,
    who            text NOT NULL,
    action         text NOT NULL,
    origin         text NOT NULL,
    scope          plain NOT NULL,
    maintenance_id plain NOT NULL,
    event_id       plain NOT NULL,
    detail         text NOT NULL
);
CREATE INDEX audit_by_event ON audit (event_id, id) WHERE event_id <> '';
CREATE INDEX audit_by_maintenance ON audit (maintenance_id, id) WHERE maintenance_id <> '';
CREATE INDEX audit_by_scope ON audit (scope, id) WHERE scope <> '';

CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is append-only' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();

-- When a machine last asked. Apart from the machines: written in batches, and a crash may lose the last few seconds.
CREATE TABLE last_seen (
    scope plain NOT NULL,
    name  plain NOT NULL,
    at    timestamptz NOT NULL,
    PRIMARY KEY (scope, name),
    FOREIGN KEY (scope, name) REFERENCES machines (scope, name) ON DELETE CASCADE
);

-- When a machine first saw an event. As loose as last_seen.
CREATE TABLE sightings (
    event_id plain NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    machine  plain NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (event_id, machine)
);

-- Who may use the operator side. The secret itself is kept by nobody.
CREATE TABLE tokens (
    id         plain PRIMARY KEY,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 64),
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'owner')),
    scopes     text[] NOT NULL,
    digest     text NOT NULL UNIQUE CHECK (length(digest) = 64),
    created    timestamptz NOT NULL,
    created_by text NOT NULL,
    CHECK ((role = 'owner') = (cardinality(scopes) > 0))
);
CREATE INDEX tokens_by_age ON tokens (created, id);

-- The answers to requests that must not be done twice; those of a token that is gone are forgotten by age like all others.
CREATE TABLE receipts (
    token_id plain NOT NULL,
    key      plain NOT NULL,
    digest   text NOT NULL,
    status   integer NOT NULL,
    body     text NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (token_id, key)
);
CREATE INDEX receipts_by_age ON receipts (at);

-- What other nodes must read again, each with the transaction that wrote it: a node reads on from the oldest transaction
-- that was still open when it last looked, so a late commit is never missed. A change too large to name says `everything`.
CREATE TABLE changes (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    everything boolean NOT NULL,
    scopes     jsonb NOT NULL,
    machines   jsonb NOT NULL
);
CREATE INDEX changes_by_xid ON changes (xid);
CREATE INDEX changes_by_age ON changes (at);

CREATE FUNCTION refuse_late() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'decided too long ago' USING ERRCODE = 'FW001';
END $$;

-- Which database this is, and what of `changes` was forgotten. A database with another identity or timeline is a copy or a
-- promoted replica: guests may have seen what it never had.
CREATE TABLE cluster (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    identity   text NOT NULL,
    timeline   bigint NOT NULL,
    forgotten  xid8 NOT NULL
);

-- Who lives and until when, by this database's clock; `ticker` is the name of the ticker's own lease.
CREATE TABLE leases (
    name  text PRIMARY KEY,
    node  text NOT NULL,
    until timestamptz NOT NULL
);

-- While there is a row that nobody confirmed, no event starts because of time that passed after `trusted`.
CREATE TABLE clock_hold (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    trusted   timestamptz NOT NULL,
    noticed   timestamptz NOT NULL,
    jumped_s  integer NOT NULL,
    node      text NOT NULL,
    confirmed timestamptz
);
