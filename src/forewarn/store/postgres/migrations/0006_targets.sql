-- What an operator asked for, as JSON. Apart from the maintenances, whose rows are written at every wake-up.
CREATE TABLE maintenance_targets (
    maintenance_id plain PRIMARY KEY REFERENCES maintenances (id) ON DELETE CASCADE,
    targets        text  NOT NULL
);
