-- Each audit entry has a hash that covers its content and the hash of the entry before it. Entries from before have none.
ALTER TABLE audit ADD COLUMN hash TEXT NOT NULL DEFAULT '';

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
