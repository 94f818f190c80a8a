-- A hold of the whole store: while `resumed` is NULL, no event starts and no order is handed out.
-- `identity` is the database for which an operator resumed it. The row always exists: a change that begins work locks it.
CREATE TABLE store_hold (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    cause    text NOT NULL CHECK (cause IN ('restored', 'replaced', 'requested')),
    detail   text NOT NULL,
    who      text NOT NULL,
    held     timestamptz NOT NULL,
    resumed  timestamptz,
    identity text NOT NULL
);
INSERT INTO store_hold VALUES (true, 'requested', 'never', '', '1970-01-01T00:00:00Z', '1970-01-01T00:00:00Z', '');
