-- When a maintenance's current wave was first found saved: guests could see it from then on.
-- What was published before this was noted is taken to have been seen when it was published.
ALTER TABLE maintenances ADD COLUMN told TEXT;
UPDATE maintenances SET told = (
    SELECT max(published) FROM events WHERE maintenance_id = maintenances.id AND status = 'Scheduled'
) WHERE ended IS NULL;
