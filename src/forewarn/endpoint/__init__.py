"""What guests talk to: sockets, HTTP parser, protocol, documents in memory.

Imports `service`, `store` and `core`; never `operator`.
"""
