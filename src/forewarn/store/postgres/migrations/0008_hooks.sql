-- A URL that gets a message for each audit entry of a scope, or of the whole fleet (''). The secrets sign the messages.
CREATE TABLE hooks (
    id                plain PRIMARY KEY,
    url               text NOT NULL CHECK (length(url) <= 1024),
    scope             text NOT NULL,
    kinds             text[] NOT NULL CHECK (cardinality(kinds) >= 1),
    shape             text NOT NULL CHECK (shape IN ('cloudevents', 'slack', 'teams')),
    secrets           text[] NOT NULL CHECK (cardinality(secrets) >= 1),
    old_secrets_until timestamptz,
    created           timestamptz NOT NULL,
    created_by        text NOT NULL,
    cursor            bigint NOT NULL,
    delivered         timestamptz,
    failing_since     timestamptz,
    failures          integer NOT NULL CHECK ((failures > 0) = (failing_since IS NOT NULL)),
    error             text NOT NULL,
    disabled          timestamptz,
    gap_after         bigint NOT NULL,
    gap_until         bigint NOT NULL,
    version           integer NOT NULL CHECK (version >= 1)
);
CREATE INDEX hooks_by_age ON hooks (created, id);

-- The last attempt to deliver an entry to a hook; of each hook the latest entries only.
CREATE TABLE hook_deliveries (
    hook_id   plain NOT NULL REFERENCES hooks (id) ON DELETE CASCADE,
    audit_id  bigint NOT NULL,
    kind      text NOT NULL,
    at        timestamptz NOT NULL,
    attempts  integer NOT NULL,
    delivered boolean NOT NULL,
    status    integer NOT NULL,
    took_ms   integer NOT NULL,
    error     text NOT NULL,
    PRIMARY KEY (hook_id, audit_id)
);
