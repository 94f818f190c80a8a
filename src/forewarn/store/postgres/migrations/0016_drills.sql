-- Find the drills.
CREATE INDEX maintenances_drills ON maintenances (created, id) WHERE drill_hold_s > 0;
