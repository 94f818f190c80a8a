"""The wiring: builds one node from its settings and runs it.

Imports every room below; only `cli`, `testing` and `demo` import it.
"""
