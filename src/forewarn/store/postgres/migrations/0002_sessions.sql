-- Logins of the portal, the end of a token, and when a token was last used.

-- A login of the portal. The session id itself is in the browser's cookie alone.
CREATE TABLE sessions (
    digest   plain PRIMARY KEY CHECK (length(digest) = 64),
    token_id plain NOT NULL,
    created  timestamptz NOT NULL,
    expires  timestamptz NOT NULL
);
CREATE INDEX sessions_by_token ON sessions (token_id, expires);
CREATE INDEX sessions_by_end ON sessions (expires);

ALTER TABLE tokens ADD COLUMN expires timestamptz;

-- When a token was last used. Apart from the tokens, and as loose as last_seen.
CREATE TABLE token_uses (
    token_id plain PRIMARY KEY REFERENCES tokens (id) ON DELETE CASCADE,
    at       timestamptz NOT NULL
);
