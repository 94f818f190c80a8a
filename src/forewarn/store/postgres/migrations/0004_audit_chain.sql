-- Each audit entry has a hash that covers its content and the hash of the entry before it. Entries from before have none.
ALTER TABLE audit ADD COLUMN hash text NOT NULL DEFAULT '';

-- Where the chain begins: entries up to here were pruned, or are older than the chain.
CREATE TABLE audit_start (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    id   bigint NOT NULL,
    hash text NOT NULL
);
INSERT INTO audit_start SELECT true, coalesce(max(id), 0), '' FROM audit;

-- A field as it is hashed: its length in bytes, a colon, its content. forewarn.store.audit_chain does the same.
CREATE FUNCTION audit_field(content text) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT octet_length(content) || ':' || content $$;

-- A change holds the lock of commits from before its first audit entry to its end, so the newest entry is the one before.
CREATE FUNCTION audit_is_chained() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    previous text;
BEGIN
    SELECT hash INTO previous FROM audit ORDER BY id DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT hash INTO previous FROM audit_start;
    END IF;
    NEW.hash := encode(sha256(convert_to(previous || E'\n'
        || audit_field(to_char(NEW.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) || audit_field(NEW.who)
        || audit_field(NEW.action) || audit_field(NEW.origin) || audit_field(NEW.scope)
        || audit_field(NEW.maintenance_id) || audit_field(NEW.event_id) || audit_field(NEW.detail), 'UTF8')), 'hex');
    RETURN NEW;
END $$;
CREATE TRIGGER audit_is_chained BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_chained();
