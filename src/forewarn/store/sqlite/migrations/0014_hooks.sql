-- A URL that gets a message for each audit entry of a scope, or of the whole fleet (''). The secrets sign the messages.
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
    version           INTEGER NOT NULL CHECK (version >= 1)
) WITHOUT ROWID;
CREATE INDEX hooks_by_age ON hooks (created, id);

-- The last attempt to deliver an entry to a hook; of each hook the latest entries only.
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
