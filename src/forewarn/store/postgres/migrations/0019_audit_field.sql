-- The same field of the audit's hash, with casts that PostgreSQL can expand where the function is called, instead of running it.
CREATE OR REPLACE FUNCTION audit_field(content text) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT octet_length(content)::text || ':' || content $$;
