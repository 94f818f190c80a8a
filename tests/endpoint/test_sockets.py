"""Sockets: unsent bytes, half-closed connections, resets, errors of handlers, and a lack of file descriptors."""

import errno
import gc
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from forewarn.endpoint.loop import IN, OUT
from forewarn.endpoint.sockets import ACCEPT_AGAIN_S, BROKEN, RECEIVE_BYTES, GuestSocket, Listener, Transport
from tests.endpoint.in_memory import ManualMonotonic
from tests.support.waiting import PATIENCE_S

MUCH = b"x" * 20_000_000


class RecordingHandler:
    """A handler that records its calls and answers as a test sets it."""

    def __init__(self) -> None:
        self.transport: Transport
        self.calls: list[str] = []
        self.data = b""
        self.stays = True
        self.over_share = False
        self.goes_on = False
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.on_pause: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None

    def connection_made(self, transport: Transport) -> bool:
        self.transport = transport
        self.calls.append("made")
        return self.stays

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.on_data(data)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.goes_on

    def pause_writing(self) -> None:
        self.calls.append("pause")
        self.on_pause()

    def resume_writing(self) -> None:
        self.calls.append("resume")
        self.on_resume()

    def connection_lost(self) -> None:
        self.calls.append("lost")


class Pair:
    """A listener on a loop that a test turns, its handler, and clients."""

    def __init__(self) -> None:
        self.clock = ManualMonotonic()
        self.loop = self.clock.loop
        self.open = ExitStack()
        self.handler = RecordingHandler()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.address = listening.getsockname()
        self.listener = Listener(self.loop, listening, lambda: self.handler)

    def connect(self) -> socket.socket:
        client = self.open_client()
        self.turn_until(lambda: "made" in self.handler.calls)
        self.open.callback(self.handler.transport.abort)
        return client

    def open_client(self) -> socket.socket:
        return self.open.enter_context(socket.create_connection(self.address, timeout=PATIENCE_S))

    def turn_until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, self.handler.calls
            self.loop.turn(0.01)

    def turn_a_while(self) -> None:
        for _ in range(5):
            self.loop.turn(0.002)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.open.close()
    pair.listener.close()
    pair.loop.close()


def read_all(pair: Pair, client: socket.socket) -> int:
    """Read to the end while the loop turns; return how many bytes the client received."""
    client.setblocking(False)
    got = 0
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        pair.loop.turn()
        try:
            data = client.recv(1 << 20)
        except BlockingIOError:
            continue
        if not data:
            return got
        got += len(data)
    raise AssertionError(f"no end after {got} bytes")


def test_bytes_that_the_kernel_does_not_take_are_kept_and_sent(pair: Pair) -> None:
    """The handler is paused when the kernel takes no more, and every byte arrives before the close."""
    client = pair.connect()
    pair.handler.transport.write(MUCH)
    pair.handler.transport.write(b"and more")
    assert pair.handler.calls == ["made", "pause"]
    pair.handler.transport.close()
    assert "lost" not in pair.handler.calls
    assert read_all(pair, client) == len(MUCH) + len(b"and more")
    assert pair.handler.calls[-1] == "lost"
    assert "resume" not in pair.handler.calls


def test_writing_resumes_when_all_is_sent(pair: Pair) -> None:
    """The handler is resumed once, after the client has read everything."""
    client = pair.connect()
    pair.handler.transport.write(MUCH)
    client.setblocking(False)
    got = 0

    def all_read() -> bool:
        nonlocal got
        with suppress(BlockingIOError):
            got += len(client.recv(1 << 20))
        return got == len(MUCH)

    pair.turn_until(all_read)
    pair.turn_until(lambda: "resume" in pair.handler.calls)
    assert pair.handler.calls.count("resume") == 1


def test_write_eof_comes_after_the_kept_bytes(pair: Pair) -> None:
    """`write_eof` loses no bytes, and what the client sends after it is still received."""
    client = pair.connect()
    pair.handler.transport.write(MUCH)
    pair.handler.transport.write_eof()
    assert read_all(pair, client) == len(MUCH)
    client.setblocking(True)
    client.sendall(b"late")
    pair.turn_until(lambda: pair.handler.data == b"late")
    client.close()
    pair.turn_until(lambda: pair.handler.calls[-1] == "lost")


def test_bytes_received_before_write_eof_takes_effect_lose_nothing(pair: Pair) -> None:
    """While `write_eof` waits behind kept bytes the client sends more: it is received, and the client gets every byte."""
    client = pair.connect()
    pair.handler.on_pause = lambda: pair.handler.transport.pause_reading()
    pair.handler.transport.write(MUCH)
    pair.handler.transport.write_eof()
    pair.handler.transport.resume_reading()
    client.sendall(b"more")
    got = len(client.recv(1 << 20, socket.MSG_WAITALL))
    pair.turn_until(lambda: pair.handler.data == b"more")
    assert got + read_all(pair, client) == len(MUCH)
    client.setblocking(True)
    client.sendall(b", late")
    pair.turn_until(lambda: pair.handler.data == b"more, late")
    assert pair.handler.calls == ["made", "pause"]


def test_a_paused_connection_is_not_closed_for_what_it_sends(pair: Pair) -> None:
    """An event that was fetched before the pause does not end the connection; only a reset does."""
    client = pair.connect()
    transport = pair.handler.transport
    assert isinstance(transport, GuestSocket)
    transport.write(MUCH)
    transport.pause_reading()
    client.sendall(b"more")
    transport.ready(IN | OUT)
    assert pair.handler.calls == ["made", "pause"]
    assert pair.handler.data == b""
    transport.ready(OUT | BROKEN)
    assert pair.handler.calls[-1] == "lost"


def test_a_half_closed_guest_may_still_get_an_answer(pair: Pair) -> None:
    """The end of its half is reported once, does not keep the loop busy, and the answer arrives."""
    client = pair.connect()
    pair.handler.goes_on = True
    client.shutdown(socket.SHUT_WR)
    pair.turn_until(lambda: "eof" in pair.handler.calls)
    pair.turn_a_while()
    assert pair.handler.calls.count("eof") == 1
    pair.handler.transport.write(b"answer")
    pair.handler.transport.close()
    assert client.recv(100) == b"answer"


@pytest.mark.parametrize("size", [1, RECEIVE_BYTES, 3 * RECEIVE_BYTES + 1])
def test_bytes_and_the_end_after_them_are_received(pair: Pair, size: int) -> None:
    """Bytes and end that arrive before the loop turns are both received, although epoll reports them once."""
    client = pair.connect()
    pair.turn_a_while()
    client.sendall(b"x" * size)
    client.shutdown(socket.SHUT_WR)
    pair.turn_until(lambda: pair.handler.calls[-1] == "lost")
    assert pair.handler.data == b"x" * size
    assert pair.handler.calls == ["made", "eof", "lost"]


def test_a_reset_is_noticed_while_reading_is_paused(pair: Pair) -> None:
    """A paused connection that the client resets is lost, once."""
    client = pair.connect()
    pair.turn_a_while()
    pair.handler.transport.pause_reading()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    pair.turn_until(lambda: pair.handler.calls[-1] == "lost")
    pair.handler.transport.write(b"into the void")
    pair.handler.transport.close()
    assert pair.handler.calls.count("lost") == 1


def test_bytes_sent_during_a_pause_are_received_after_it(pair: Pair) -> None:
    """Nothing is received during the pause, and nothing is lost."""
    client = pair.connect()
    pair.handler.transport.pause_reading()
    client.sendall(b"early")
    pair.turn_a_while()
    assert pair.handler.data == b""
    pair.handler.transport.resume_reading()
    pair.turn_until(lambda: pair.handler.data == b"early")


@pytest.mark.parametrize("unsent", [b"", MUCH])
def test_a_closed_connection_is_freed_at_once(pair: Pair, unsent: bytes) -> None:
    """A closed connection leaves nothing to the garbage collector, also if bytes were still to be sent."""
    client = pair.connect()
    pair.handler.transport.write(unsent)
    pair.handler.transport.close()
    client.close()
    pair.turn_until(lambda: "lost" in pair.handler.calls)
    pair.open.pop_all()
    freed = weakref.ref(pair.handler)
    gc.disable()
    try:
        pair.handler = RecordingHandler()
        assert freed() is None
    finally:
        gc.enable()


def test_a_refused_connection_is_closed(pair: Pair) -> None:
    """A connection that the handler refuses is closed before a byte is read."""
    pair.handler.stays = False
    client = pair.connect()
    assert client.recv(100) == b""
    assert pair.handler.calls == ["made", "lost"]


def answer_the_next(pair: Pair) -> None:
    """Check that the next client is answered."""
    pair.handler = RecordingHandler()
    pair.handler.on_data = lambda _: pair.handler.transport.write(b"fine")
    with pair.connect() as client:
        client.sendall(b"x")
        pair.turn_until(lambda: pair.handler.data == b"x")
        assert client.recv(10) == b"fine"


def test_an_error_after_a_pause_closes_one_connection(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that fails in `resume_writing` is logged and its connection closed; the next client is answered."""

    def fail() -> None:
        raise ValueError("on purpose")

    client = pair.connect()
    pair.handler.on_resume = fail
    pair.handler.transport.write(MUCH)
    with caplog.at_level(logging.ERROR):
        assert read_all(pair, client) == len(MUCH)
    assert pair.handler.calls == ["made", "pause", "resume", "lost"]
    assert "on purpose" in caplog.text
    answer_the_next(pair)


def test_an_error_closes_one_connection(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that fails is logged and its connection closed; the next client is answered."""

    def fail(_: bytes) -> None:
        raise ValueError("on purpose")

    pair.handler.on_data = fail
    client = pair.connect()
    with caplog.at_level(logging.ERROR):
        client.sendall(b"x")
        pair.turn_until(lambda: pair.handler.calls[-1] == "lost")
    assert "on purpose" in caplog.text
    answer_the_next(pair)


def test_a_socket_that_a_child_keeps_open_is_not_watched(pair: Pair) -> None:
    """A closed socket that a forked process keeps open does not wake the loop, and its number can be used again."""
    gc.collect()  # no garbage frees a lower number later
    client = pair.connect()
    assert isinstance(pair.handler.transport, GuestSocket)
    fd = pair.handler.transport._socket.fileno()
    pair.open_client()
    copy_of_child = os.dup(fd)
    pair.handler.transport.abort()
    pair.handler = RecordingHandler()
    pair.turn_until(lambda: pair.handler.calls == ["made"])
    pair.open.callback(pair.handler.transport.abort)
    assert isinstance(pair.handler.transport, GuestSocket)
    assert pair.handler.transport._socket.fileno() == fd
    client.sendall(b"to whom?")
    assert [pair.loop.turn(0.01) for _ in range(3)] == [0, 0, 0]
    assert pair.handler.calls == ["made"]
    os.close(copy_of_child)


class FailingSocket:
    """A listening socket that fails to accept."""

    def __init__(self, real: socket.socket, number: int) -> None:
        self.fileno = real.fileno
        self.number = number
        self.attempts = 0

    def _accept(self) -> tuple[int, object]:
        self.attempts += 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_accepting_pauses_while_resources_are_scarce(pair: Pair, caplog: pytest.LogCaptureFixture, number: int) -> None:
    """The error is logged once, the loop does not spin, and the client is answered when there are resources again."""
    real = pair.listener._socket
    client = pair.open_client()
    with caplog.at_level(logging.WARNING):
        failing = FailingSocket(real, number)
        pair.listener._socket = failing  # type: ignore[assignment]
        pair.turn_until(lambda: failing.attempts == 1)
        pair.turn_a_while()
        assert failing.attempts == len(caplog.records) == 1
        assert f"{os.strerror(number)}; trying again in 1 s" in caplog.text
    pair.listener._socket = real
    pair.handler.on_data = lambda _: pair.handler.transport.write(b"at last")
    client.sendall(b"x")
    pair.clock.now_s += ACCEPT_AGAIN_S
    pair.turn_until(lambda: pair.handler.data == b"x")
    assert client.recv(10) == b"at last"
    pair.handler.transport.abort()


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN])
def test_a_client_that_left_before_accept_does_not_delay_others(
    pair: Pair, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """An error of one client is logged, and the next turn accepts the others."""
    real = pair.listener._socket
    failing = FailingSocket(real, number)
    pair.open_client()
    pair.listener._socket = failing  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        pair.turn_until(lambda: failing.attempts == 1)
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot accept a guest's connection: {os.strerror(number)}"
    ]
    pair.listener._socket = real
    pair.turn_until(lambda: pair.handler.calls == ["made"])
    pair.handler.transport.abort()
