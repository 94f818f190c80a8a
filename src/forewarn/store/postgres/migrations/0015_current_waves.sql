-- Ticks of large maintenances: find the current wave without reading the others.
CREATE INDEX events_open_by_wave ON events (maintenance_id, status, wave) WHERE ended IS NULL;
CREATE INDEX events_worked_on ON events (maintenance_id, ended) WHERE started IS NOT NULL AND ended IS NOT NULL;
