-- An order may be in doubt: its work may have begun, and no node knows how it ended. It names the node that has its work,
-- and has no time limit.
ALTER TABLE orders
    DROP CONSTRAINT orders_state_check,
    ADD CONSTRAINT orders_state_check CHECK (state IN ('open', 'running', 'in-doubt', 'done', 'failed')),
    ADD CONSTRAINT orders_in_doubt_check CHECK (state <> 'in-doubt' OR (node <> '' AND deadline IS NULL));
