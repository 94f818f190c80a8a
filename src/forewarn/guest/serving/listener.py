"""The sockets on which clients connect, one for each; a thread accepts connections, and each connection has a thread.

A socket file is made under the mode of the configuration, so that the file's mode decides who may connect. Every local user may
connect to a port of 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import stat
import threading
from email.utils import formatdate
from http.client import responses
from pathlib import Path
from typing import Callable, Dict

from forewarn.guest.errors import ConfigError
from forewarn.guest.serving import protocol
from forewarn.guest.serving.answers import Answers
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.protocol import Answer
from forewarn.guest.serving.requests import BadRequest, Request, RequestReader
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.system import system

MAX_CONNECTIONS = 16
# A client that has not taken an answer after so long is cut off.
SEND_TIMEOUT_S = 10.0
# Requests per second of one client, and how many at once.
RATE_PER_S, BURST = 50.0, 100.0
BACKLOG = 64

log = logging.getLogger("forewarn.guest.serving")


class Listener:
    """Listens for the clients from `start` to `close`."""

    def __init__(
        self, clients: Clients, answers: Answers, *, burst: float = BURST, send_timeout_s: float = SEND_TIMEOUT_S
    ) -> None:
        self._clients, self._answers = clients, answers
        self._send_timeout_s = send_timeout_s
        self._lock = threading.Lock()
        self._connections: Dict[str, int] = {client.name: 0 for client in clients.served}
        self._rates: Dict[str, _Rate] = {client.name: _Rate(clients.time.monotonic, burst) for client in clients.served}
        self._sockets: Dict[str, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        # Closing the second socket ends the thread that accepts connections.
        self._closing = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="clients", daemon=True)

    def start(self) -> None:
        """Listen for every client, or raise ConfigError or OSError."""
        for client in self._clients.served:
            listening = self._sockets[client.name] = _listen(client)
            listening.setblocking(False)  # a connection may be gone again before it is accepted
            self._selector.register(listening, selectors.EVENT_READ, client)
        self._selector.register(self._closing[0], selectors.EVENT_READ)
        with system.no_signals_for_new_threads():  # those that it starts get none either
            self._thread.start()

    def ports(self) -> Dict[str, int]:
        """Return the port of each client that has one; a test lets the system choose it."""
        return {
            client.name: self._sockets[client.name].getsockname()[1]
            for client in self._clients.served
            if client.path is None
        }

    def close(self) -> None:
        """Accept no further connection and remove the socket files; connections end with the process."""
        self._closing[1].close()
        if self._thread.is_alive():
            self._thread.join()
        self._closing[0].close()
        self._selector.close()
        for client in self._clients.served:
            if client.name in self._sockets:
                self._sockets.pop(client.name).close()
                if client.path is not None:
                    with contextlib.suppress(OSError):
                        client.path.unlink()

    def _accept(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                try:
                    connection, _ = key.fileobj.accept()  # type: ignore[union-attr]
                except OSError as error:  # it was closed again, or this process has too many files open
                    log.debug("a connection cannot be accepted: %s", error)
                    self._clients.time.sleep(0.01)
                    continue
                self._serve_if_allowed(key.data, connection)

    def _serve_if_allowed(self, client: ServedClient, connection: socket.socket) -> None:
        with self._lock:
            if self._connections[client.name] >= MAX_CONNECTIONS:
                connection.close()
                return
            self._connections[client.name] += 1
        try:
            threading.Thread(target=self._serve, args=(client, connection), daemon=True).start()
        except RuntimeError:  # the system allows no further thread
            self._ended(client, connection)

    def _ended(self, client: ServedClient, connection: socket.socket) -> None:
        connection.close()
        with self._lock:
            self._connections[client.name] -= 1

    def _serve(self, client: ServedClient, connection: socket.socket) -> None:
        try:
            self._serve_requests(client, connection)
        except OSError as error:
            log.debug("a connection of client %r ended: %s", client.name, error)
        except Exception:  # a fault ends the connection and not the agent
            log.exception("a fault while serving client %r: please report it", client.name)
        finally:
            self._ended(client, connection)

    def _serve_requests(self, client: ServedClient, connection: socket.socket) -> None:
        reader = RequestReader(connection)
        while True:
            try:
                request = reader.next()
            except BadRequest as error:
                self._send(connection, protocol.UNREADABLE[error.status], Request("GET", "", body=None))
                return
            if request is None:
                return
            self._clients.hear(client)
            allowed = self._rates[client.name].allows()
            answer = self._answers.answer(client, request, connection) if allowed else protocol.TOO_MANY
            self._send(connection, answer, request)
            if not request.keeps_open:
                return

    def _send(self, connection: socket.socket, answer: Answer, request: Request) -> None:
        published = self._clients.published()
        date = published.date(self._clients.time.monotonic()) if published is not None else ""
        headers = [f"HTTP/1.1 {answer.status} {responses.get(answer.status, '')}".rstrip()]
        if answer.body:
            headers.append(f"Content-Type: {answer.content_type}")
        if answer.status != 304:
            headers.append(f"Content-Length: {len(answer.body)}")
        headers += [f"{name}: {value}" for name, value in answer.headers]
        headers.append(f"Date: {date or formatdate(self._clients.time.wall(), usegmt=True)}")
        if not request.keeps_open:
            headers.append("Connection: close")
        elif request.http_1_0:
            headers.append("Connection: keep-alive")
        data = ("\r\n".join(headers) + "\r\n\r\n").encode("latin-1", "replace")
        connection.settimeout(self._send_timeout_s)  # `sendall` has one deadline for everything
        connection.sendall(data + (answer.body if request.method != "HEAD" else b""))


class _Rate:
    """A token bucket."""

    def __init__(self, monotonic: Callable[[], float], burst: float) -> None:
        self._monotonic, self._burst = monotonic, burst
        self._lock = threading.Lock()
        self._tokens, self._at_s = burst, monotonic()

    def allows(self) -> bool:
        with self._lock:
            now_s = self._monotonic()
            self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * RATE_PER_S)
            self._at_s = now_s
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


def _listen(client: ServedClient) -> socket.socket:
    try:
        if client.path is None:
            return socket.create_server(("127.0.0.1", client.port), backlog=BACKLOG)
        problem = socket_problem(client)
        if problem:
            raise ConfigError(f"client {client.name!r}: {problem}")
        return _listen_on_file(client.path, client.mode)
    except OSError as error:
        raise OSError(f"client {client.name!r}: {client.address}: {error.strerror}") from None


def _listen_on_file(path: Path, mode: int) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, "this system has no socket files for Python")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            listening.setblocking(False)
            # Only a refusal shows that no program has the socket: another error may come from one that is busy, or is no stream.
            if listening.connect_ex(str(path)) != errno.ECONNREFUSED:
                raise OSError(errno.EADDRINUSE, "another program listens there")
            path.unlink()  # an agent that was killed left it
        listening.bind(str(path))
        path.chmod(mode)
        listening.listen(BACKLOG)  # nobody can connect before this
    except BaseException:
        listening.close()
        raise
    return listening


def socket_problem(client: ServedClient) -> str:
    """Return why the agent cannot listen on the socket file, or ""."""
    path = client.path
    if path is None:
        return ""
    folder = path.parent
    try:
        if not folder.is_dir():
            return f"there is no folder {folder}: create it"
        problem = system.others_may_write(folder)
        if not problem and folder.stat().st_mode & 0o022:  # in a sticky folder others could come before the agent
            problem = f"other users may write {folder}: use another folder"
        if problem:
            return f"socket {path} is refused: another program could take its place: {problem}"
        if not os.access(folder, os.W_OK):
            return f"{folder} cannot be written to"
        if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
            return f"{path} exists and is not a socket"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
