"""What operators talk to: API, portal, metrics and health pages.

Imports `service`, `store` and `core`; never `endpoint`.
"""
