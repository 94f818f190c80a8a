-- Find the maintenances that work on hosts.
CREATE INDEX maintenances_on_hosts ON maintenances (status, created, id) WHERE host_mode IS NOT NULL;
