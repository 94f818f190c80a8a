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
