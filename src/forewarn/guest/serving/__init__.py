"""Serves the document to other programs on this machine, its clients, so that only the agent polls the endpoint.

A client speaks the protocol of the endpoint, on a socket file or a port of its own. `clients` is what the agent's thread and the
threads of connections share. The agent gives it every document and asks it which clients to wait for. No rule about approving is
here: see `decide`.
"""
