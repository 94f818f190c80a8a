"""One node at work, without HTTP: control, decisions, ticker, orders, leases, pruning, follower, settings, clock, logs, files.

Imports `executors`, `store` and `core`.
"""
