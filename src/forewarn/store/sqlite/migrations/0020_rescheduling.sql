-- Rescheduled events name what replaces them. A host is rescheduled as a whole.
ALTER TABLE events ADD COLUMN replaced_by TEXT NOT NULL DEFAULT '';
ALTER TABLE orders ADD COLUMN reschedules INTEGER NOT NULL DEFAULT 0;
ALTER TABLE orders ADD COLUMN requested_not_before TEXT;
