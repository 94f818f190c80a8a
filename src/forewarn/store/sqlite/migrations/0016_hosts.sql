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
