"""One node at work, without HTTP: control, ticker, orders, leases, pruning, follower, settings, clock, logs, state directory.

Imports `executors`, `store` and `core`.
"""
