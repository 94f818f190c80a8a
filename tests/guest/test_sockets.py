"""One deadline for a whole connection: the resolution of the name, every address, the handshake, every byte."""

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.guest import sockets
from forewarn.guest.errors import Unreachable
from forewarn.guest.sockets import Deadline, ask, connect
from forewarn.guest.transport import Transport
from tests.support.waiting import PATIENCE_S


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yield a port on which each connection is handled by `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    # A connection that breaks off ends neither the thread nor the connections after it.
                    with listener.accept()[0] as talking, contextlib.suppress(OSError):
                        serve(talking)

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with contextlib.suppress(OSError):  # Windows ends `accept` when the listener is closed
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            accepting.join(5)


def test_a_hanging_resolution_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives the resolution of a name no time-out. The error is the same if no time is left from the start."""
    over = threading.Event()

    def forever(*_: Any, **__: Any) -> list[Any]:
        over.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", forever)
    began_s = time.monotonic()
    with pytest.raises(socket.timeout, match="registrar could not be looked up in time"):
        connect("registrar", 80, Deadline(0.2))
    with pytest.raises(socket.timeout, match="registrar could not be looked up in time"):
        connect("registrar", 80, Deadline(0))
    assert time.monotonic() - began_s < PATIENCE_S
    over.set()


def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first address of a name refuses, the second is used."""
    with listening(lambda talking: talking.sendall(talking.recv(100))) as port, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        both = [(socket.AF_INET, 0, 0, "", ("127.0.0.1", each)) for each in (nobody.getsockname()[1], port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        assert ask("registrar:80", "hello", Deadline(PATIENCE_S)) == "hello\n"
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
        with pytest.raises(ConnectionRefusedError):
            connect("registrar", 80, Deadline(PATIENCE_S))


def test_a_silent_address_does_not_take_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address gets its part of the deadline."""
    with listening(lambda talking: talking.sendall(talking.recv(100))) as port, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        both = [(socket.AF_INET, 0, 0, "", ("127.0.0.1", each)) for each in (silent.getsockname()[1], port)]
        with contextlib.ExitStack() as full:
            for _ in range(3):  # more than it takes: who comes next is not answered
                waiting = full.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(both[0][4])
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
            with pytest.raises(socket.timeout):
                connect("registrar", 80, Deadline(0.3))
            connect_to, given_s = sockets._connect_to, []

            def give_up_soon(family: int, address: Any, deadline: Deadline, source: Any = None) -> socket.socket:
                if address != both[0][4]:
                    return connect_to(family, address, deadline, source)
                given_s.append(deadline.left_s())
                return connect_to(family, address, Deadline(0.1), source)

            monkeypatch.setattr(sockets, "_connect_to", give_up_soon)
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
            assert ask("registrar:80", "hello", Deadline(PATIENCE_S)) == "hello\n"
            assert len(given_s) == 1
            assert given_s[0] <= PATIENCE_S / 2


@pytest.mark.posix
def test_an_expired_deadline_raises(tmp_path: Path) -> None:
    """Nothing begins after the deadline."""
    with pytest.raises(socket.timeout):
        Deadline(0).left_s()
    with pytest.raises(FileNotFoundError):
        ask(f"{tmp_path}/nobody", "hello", Deadline(PATIENCE_S))


def test_an_endless_answer_is_cut_off() -> None:
    """An answer longer than the limit raises OSError."""
    with (
        listening(lambda talking: talking.sendall(b"x" * 100_000)) as port,
        pytest.raises(OSError, match="its answer is longer than 1000 bytes"),
    ):
        ask(f"127.0.0.1:{port}", "hello", Deadline(PATIENCE_S), max_bytes=1000)


@pytest.mark.posix
def test_https_with_a_certificate_that_is_trusted_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host name is checked, and a hanging handshake ends at the deadline."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def serve(talking: socket.socket) -> None:
        with context.wrap_socket(talking, server_side=True) as wrapped:
            wrapped.recv(1000)
            wrapped.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    def status(url: str, timeout_s: float = PATIENCE_S) -> int:
        return Transport().request("GET", url, "/", headers={}, timeout_s=timeout_s).status

    with listening(serve) as port:
        with pytest.raises(Unreachable, match="no connection to https://localhost"):
            status(f"https://localhost:{port}")
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert status(f"https://localhost:{port}") == 204
        with pytest.raises(Unreachable):
            status(f"https://127.0.0.1:{port}")
    over = threading.Event()
    with listening(lambda _: over.wait()) as port:
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            status(f"https://localhost:{port}", 0.3)
        assert time.monotonic() - began_s < PATIENCE_S
        over.set()
