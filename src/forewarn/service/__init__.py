"""One node at work, without HTTP: control, decisions, ticker, follower, settings, clock, logs.

Imports `executors`, `store` and `core`.
"""
