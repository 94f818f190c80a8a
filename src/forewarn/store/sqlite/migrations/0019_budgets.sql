-- Budgets of the fleet: find what is down, and what waits for it to be up again.
ALTER TABLE maintenances ADD COLUMN waits_for_budget INTEGER NOT NULL DEFAULT 0;
CREATE INDEX maintenances_waiting_for_budget ON maintenances (waits_for_budget, id) WHERE waits_for_budget = 1;
CREATE INDEX events_visible ON events (status, number) WHERE status IN ('Scheduled', 'Started');
CREATE INDEX events_of_hosts ON events (maintenance_id, host) WHERE host <> '';
