"""The operator's API under `/v1`: calls (the table), dispatch, access, bodies, views, resolver, receipts, stream."""
