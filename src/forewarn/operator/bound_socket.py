"""The socket of the operator listener, bound to its address before anything answers on it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from forewarn.core.errors import InvalidSettings

# After SIGTERM up to six threads stop one after the other, each within this: at worst 8 s, where systemd would wait for 20 s.
STOP_WITHIN_S = 1.3


@contextmanager
def bound(address: str) -> Iterator[socket.socket]:
    """Yield a socket that is bound to HOST:PORT and does not listen yet."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it: an answer in two pieces must not wait for the first to be acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, int(port)))
        except OSError as error:
            raise InvalidSettings(
                f"operator: cannot listen on {address}: {error.strerror}; choose another with --operator HOST:PORT"
            ) from None
        yield listener
