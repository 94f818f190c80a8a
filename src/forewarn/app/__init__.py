"""The wiring: builds one node from its settings and runs it.

`node`: the parts, without settings. `service`: the node with its settings. `server`: the service with its threads.

Imports every package below it; only `cli`, `testing` and `demo` import it.
"""
