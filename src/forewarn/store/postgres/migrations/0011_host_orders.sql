-- The work on a host has an order of its own, which has no event: triggers do what the foreign key did.
ALTER TABLE maintenances
    ADD COLUMN host_mode text CHECK (host_mode IN ('evacuate', 'in-place')),
    ADD COLUMN return_machines boolean NOT NULL DEFAULT false,
    ADD COLUMN to_host text NOT NULL DEFAULT '';
ALTER TABLE events
    ADD COLUMN host plain NOT NULL DEFAULT '',
    ADD COLUMN to_host plain NOT NULL DEFAULT '';
ALTER TABLE orders
    DROP CONSTRAINT orders_id_fkey,
    DROP CONSTRAINT orders_state_check,
    ADD COLUMN host plain NOT NULL DEFAULT '',
    ADD COLUMN maintenance_id plain NOT NULL DEFAULT '',
    ADD COLUMN position integer NOT NULL DEFAULT 0,
    ADD COLUMN phase text NOT NULL DEFAULT '' CHECK (phase IN ('', 'stop', 'start')),
    ADD CONSTRAINT orders_state_check CHECK (
        state IN ('planned', 'open', 'running', 'in-doubt', 'done', 'failed', 'cancelled', 'abandoned')),
    ADD CONSTRAINT orders_host_check CHECK ((host = '') = (maintenance_id = '')),
    ADD CONSTRAINT orders_event_check CHECK (
        host <> '' OR (state NOT IN ('cancelled', 'abandoned') AND (state <> 'planned' OR phase = 'start')));
CREATE UNIQUE INDEX orders_of_hosts ON orders (maintenance_id, position) WHERE host <> '';
CREATE INDEX orders_of_hosts_by_state ON orders (state) WHERE host <> '';

CREATE FUNCTION orders_belong_to_something() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.host = '' THEN
        PERFORM FROM events WHERE id = new.id;
    ELSE
        PERFORM FROM maintenances WHERE id = new.maintenance_id;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'an order belongs to an event, or to the maintenance of its host' USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER orders_belong_to_something BEFORE INSERT ON orders
FOR EACH ROW EXECUTE FUNCTION orders_belong_to_something();

CREATE FUNCTION events_take_their_orders_along() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM orders WHERE id = old.id;
    RETURN NULL;
END $$;
CREATE TRIGGER events_take_their_orders_along AFTER DELETE ON events
FOR EACH ROW EXECUTE FUNCTION events_take_their_orders_along();

CREATE FUNCTION maintenances_take_their_orders_along() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM orders WHERE host <> '' AND maintenance_id = old.id;
    RETURN NULL;
END $$;
CREATE TRIGGER maintenances_take_their_orders_along AFTER DELETE ON maintenances
FOR EACH ROW EXECUTE FUNCTION maintenances_take_their_orders_along();
