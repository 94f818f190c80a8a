-- When a machine last asked. Apart from the machines: written in batches, and a crash may lose the last few seconds.
CREATE TABLE last_seen (
    scope TEXT NOT NULL,
    name  TEXT NOT NULL,
    at    TEXT NOT NULL,
    PRIMARY KEY (scope, name),
    FOREIGN KEY (scope, name) REFERENCES machines (scope, name) ON DELETE CASCADE
) WITHOUT ROWID;
