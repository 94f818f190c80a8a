"""Free ports for the servers of a test."""

import socket


def reserved_port() -> socket.socket:
    """Return a socket that keeps a free port of 127.0.0.1 for a server of ours.

    The socket is bound and does not listen: nobody else is given the port, connections are refused, and a server that sets
    SO_REUSEADDR too, as PostgreSQL and HTTPServer do, can listen on it, also when it is started again.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept
