-- Maintenance of large fleets: labels, windows, no-go times, limits, strategies, rescheduled events and drills.
ALTER TABLE machines ADD COLUMN labels text NOT NULL DEFAULT '{}';
ALTER TABLE scopes
    ADD COLUMN windows text[] NOT NULL DEFAULT '{}',
    ADD COLUMN max_unavailable text NOT NULL DEFAULT '',
    ADD COLUMN approval_opens_window boolean NOT NULL DEFAULT false;
ALTER TABLE maintenances
    ADD COLUMN not_after timestamptz,
    ADD COLUMN drill_hold_s integer NOT NULL DEFAULT 0,
    ADD COLUMN continued_after integer NOT NULL DEFAULT 0;
ALTER TABLE maintenance_targets ADD COLUMN strategy text NOT NULL DEFAULT '{}';
ALTER TABLE events
    ADD COLUMN group_name text NOT NULL DEFAULT '',
    ADD COLUMN replaces plain NOT NULL DEFAULT '',
    ADD COLUMN reschedules integer NOT NULL DEFAULT 0,
    ADD COLUMN requested_not_before timestamptz;

-- What operators set for the whole fleet: one row. Windows and no-go times are JSON. A limit of 0 limits nothing.
CREATE TABLE fleet_rules (
    one               boolean PRIMARY KEY CHECK (one),
    windows           text NOT NULL,
    no_go_times       text NOT NULL,
    max_hosts_down    integer NOT NULL CHECK (max_hosts_down >= 0),
    max_machines_down integer NOT NULL CHECK (max_machines_down >= 0),
    version           integer NOT NULL,
    reservations      bigint NOT NULL
);
INSERT INTO fleet_rules VALUES (true, '[]', '[]', 0, 0, 0, 0);
