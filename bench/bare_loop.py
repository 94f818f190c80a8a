"""The floor of a poll: the system calls that the guest listener makes, in plain Python, with one fixed answer and no check."""

import select
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DONT_WAIT = socket.MSG_DONTWAIT
RECEIVE_BYTES = 8 * 1024
MAX_ACCEPTED = 32
MAX_EVENTS = 1_024


def serve(listening: socket.socket, answer: bytes) -> None:
    """Answer every request until the process is ended."""
    epoll = select.epoll()
    by_fd: dict[int, socket.SocketType] = {listening.fileno(): listening}
    epoll.register(listening, select.EPOLLIN)
    while True:
        for fd, _ in epoll.poll(-1, MAX_EVENTS):
            connection = by_fd[fd]
            if connection is listening:
                for accepted in accept_some(listening):
                    by_fd[accepted.fileno()] = accepted
                    reply(accepted, answer)
                    epoll.register(accepted.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
            elif not reply(connection, answer):
                epoll.unregister(fd)
                del by_fd[fd]
                connection.close()


def accept_some(listening: socket.socket) -> Iterator["socket.SocketType"]:
    """Accept as the guest listener does: without the second socket object that `accept` makes."""
    family = int(listening.family)
    with suppress(BlockingIOError):
        for _ in range(MAX_ACCEPTED):
            fd, _ = listening._accept()  # type: ignore[attr-defined]
            yield socket.SocketType(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fd)


def reply(connection: "socket.SocketType", answer: bytes) -> bool:
    """Return whether the connection is still open."""
    try:
        if not connection.recv(RECEIVE_BYTES, DONT_WAIT):
            return False
        connection.send(answer, DONT_WAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=4_096) as server:
        server.setblocking(False)
        print(f"ready guest=http://127.0.0.1:{server.getsockname()[1]}", flush=True)
        serve(server, Path(sys.argv[1]).read_bytes())
