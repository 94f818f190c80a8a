-- A token may be for the calendar alone, of some scopes or of the whole fleet. SQLite cannot change a CHECK constraint, so the
-- table is made anew, and so is the table that refers to it.
CREATE TABLE kept_tokens AS SELECT * FROM tokens;
CREATE TABLE kept_token_uses AS SELECT * FROM token_uses;
DROP TABLE token_uses;
DROP TABLE tokens;
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
CREATE TABLE token_uses (
    token_id TEXT PRIMARY KEY REFERENCES tokens (id) ON DELETE CASCADE,
    at       TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO tokens (id, name, role, scopes, digest, created, created_by, expires)
    SELECT id, name, role, scopes, digest, created, created_by, expires FROM kept_tokens;
INSERT INTO token_uses (token_id, at) SELECT token_id, at FROM kept_token_uses;
DROP TABLE kept_tokens;
DROP TABLE kept_token_uses;
