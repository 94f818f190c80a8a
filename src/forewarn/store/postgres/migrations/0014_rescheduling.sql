-- Rescheduled events name what replaces them. A host is rescheduled as a whole.
ALTER TABLE events ADD COLUMN replaced_by plain NOT NULL DEFAULT '';
ALTER TABLE orders
    ADD COLUMN reschedules integer NOT NULL DEFAULT 0,
    ADD COLUMN requested_not_before timestamptz;
