-- The token of the owner who created the hook: the hook is disabled when that token ends. '' if an operator created it.
ALTER TABLE hooks ADD COLUMN owner_token TEXT NOT NULL DEFAULT '';
-- Deliveries are kept by the time of the attempt.
CREATE INDEX hook_deliveries_by_time ON hook_deliveries (hook_id, at, audit_id);
