"""The operator's API under `/v1`: shapes (what is said), access (who may), views (what is shown), calls (the table of it all)."""
