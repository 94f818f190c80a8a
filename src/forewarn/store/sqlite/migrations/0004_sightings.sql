-- Who saw which event first, and machines found by their name alone.
CREATE INDEX machines_by_name ON machines (name);

-- When a machine first saw an event. As loose as last_seen.
CREATE TABLE sightings (
    event_id TEXT NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    machine  TEXT NOT NULL,
    at       TEXT NOT NULL,
    PRIMARY KEY (event_id, machine)
) WITHOUT ROWID;
