-- Budgets of the fleet: find what is down, and what waits for it to be up again.
ALTER TABLE maintenances ADD COLUMN waits_for_budget boolean NOT NULL DEFAULT false;
CREATE INDEX maintenances_waiting_for_budget ON maintenances (id) WHERE waits_for_budget;
CREATE INDEX events_visible ON events (status, number) WHERE status IN ('Scheduled', 'Started');
CREATE INDEX events_of_hosts ON events (maintenance_id, host) WHERE host <> '';
