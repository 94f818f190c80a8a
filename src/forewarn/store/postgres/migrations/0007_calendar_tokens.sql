-- A token may be for the calendar alone, of some scopes or of the whole fleet.
ALTER TABLE tokens
    DROP CONSTRAINT tokens_role_check,
    ADD CONSTRAINT tokens_role_check CHECK (role IN ('viewer', 'operator', 'owner', 'calendar')),
    DROP CONSTRAINT tokens_check,
    ADD CONSTRAINT tokens_check CHECK (role = 'calendar' OR (role = 'owner') = (cardinality(scopes) > 0));
