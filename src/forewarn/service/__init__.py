"""One node at work, without HTTP: control, ticker, follower, settings, clock, logs.

Imports `executors`, `store` and `core`.
"""
