-- Count the events of a maintenance that other events replace.
CREATE INDEX events_replaced ON events (maintenance_id) WHERE replaced_by <> '';
