-- Maintenance of large fleets: labels, windows, no-go times, limits, strategies, rescheduled events and drills.
ALTER TABLE machines ADD COLUMN labels TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(labels));
ALTER TABLE scopes ADD COLUMN windows TEXT NOT NULL DEFAULT '[]';
ALTER TABLE scopes ADD COLUMN max_unavailable TEXT NOT NULL DEFAULT '';
ALTER TABLE scopes ADD COLUMN approval_opens_window INTEGER NOT NULL DEFAULT 0;
ALTER TABLE maintenances ADD COLUMN not_after TEXT;
ALTER TABLE maintenances ADD COLUMN drill_hold_s INTEGER NOT NULL DEFAULT 0;
ALTER TABLE maintenances ADD COLUMN continued_after INTEGER NOT NULL DEFAULT 0;
ALTER TABLE maintenance_targets ADD COLUMN strategy TEXT NOT NULL DEFAULT '{}';
ALTER TABLE events ADD COLUMN group_name TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN replaces TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN reschedules INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN requested_not_before TEXT;

-- What operators set for the whole fleet: one row. Windows and no-go times are JSON. A limit of 0 limits nothing.
CREATE TABLE fleet_rules (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    windows           TEXT NOT NULL CHECK (json_valid(windows)),
    no_go_times       TEXT NOT NULL CHECK (json_valid(no_go_times)),
    max_hosts_down    INTEGER NOT NULL CHECK (max_hosts_down >= 0),
    max_machines_down INTEGER NOT NULL CHECK (max_machines_down >= 0),
    version           INTEGER NOT NULL,
    reservations      INTEGER NOT NULL
);
INSERT INTO fleet_rules VALUES (1, '[]', '[]', 0, 0, 0, 0);
