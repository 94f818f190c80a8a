-- A clock that jumped forward, until an operator confirms it.
-- While there is a row, no event starts because of time that passed after `trusted`.
CREATE TABLE clock_hold (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    trusted  TEXT NOT NULL,
    noticed  TEXT NOT NULL,
    jumped_s INTEGER NOT NULL,
    node     TEXT NOT NULL
);
