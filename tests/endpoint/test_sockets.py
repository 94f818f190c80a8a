"""The sockets themselves: what a guest does not take at once, halves that close, breaks, and too few descriptors."""

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from forewarn.endpoint import sockets as wires
from forewarn.endpoint.loop import IN, OUT
from forewarn.endpoint.sockets import GuestSocket, Listener, Transport
from tests.endpoint.in_memory import ManualMonotonic
from tests.support.waiting import PATIENCE_S

MUCH = b"x" * 20_000_000


class Recorder:
    """A guest that writes down what it is told, and answers as it is told to."""

    def __init__(self) -> None:
        self.transport: Transport
        self.told: list[str] = []
        self.data = b""
        self.stays = True
        self.goes_on = False
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.on_pause: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None

    def connection_made(self, transport: Transport) -> bool:
        self.transport = transport
        self.told.append("made")
        return self.stays

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.on_data(data)

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.goes_on

    def pause_writing(self) -> None:
        self.told.append("pause")
        self.on_pause()

    def resume_writing(self) -> None:
        self.told.append("resume")
        self.on_resume()

    def connection_lost(self) -> None:
        self.told.append("lost")


class Pair:
    """A listener on a loop that turns when asked, and clients of it."""

    def __init__(self) -> None:
        self.clock = ManualMonotonic()
        self.loop = self.clock.loop
        self.open = ExitStack()
        self.guest = Recorder()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.address = listening.getsockname()
        self.listener = Listener(self.loop, listening, lambda: self.guest)

    def connect(self) -> socket.socket:
        client = self.call()
        self.turn_until(lambda: "made" in self.guest.told)
        self.open.callback(self.guest.transport.abort)
        return client

    def call(self) -> socket.socket:
        return self.open.enter_context(socket.create_connection(self.address, timeout=PATIENCE_S))

    def turn_until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline_s, self.guest.told
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
    """How much the client gets to read until the end, the loop turning meanwhile."""
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


def test_what_is_not_taken_at_once_is_kept_and_sent(pair: Pair) -> None:
    """More than the kernel takes: the guest is told to stop and to go on, and every byte arrives before the close."""
    client = pair.connect()
    pair.guest.transport.write(MUCH)
    pair.guest.transport.write(b"and more")
    assert pair.guest.told == ["made", "pause"]
    pair.guest.transport.close()
    assert "lost" not in pair.guest.told
    assert read_all(pair, client) == len(MUCH) + len(b"and more")
    assert pair.guest.told[-1] == "lost"
    assert "resume" not in pair.guest.told


def test_all_sent_is_told(pair: Pair) -> None:
    """Once the client has read it all, writing resumes, once."""
    client = pair.connect()
    pair.guest.transport.write(MUCH)
    client.setblocking(False)
    got = 0

    def taken() -> bool:
        nonlocal got
        with suppress(BlockingIOError):
            got += len(client.recv(1 << 20))
        return got == len(MUCH)

    pair.turn_until(taken)
    pair.turn_until(lambda: "resume" in pair.guest.told)
    assert pair.guest.told.count("resume") == 1


def test_the_end_of_our_half_comes_after_what_is_kept(pair: Pair) -> None:
    """`write_eof` loses nothing, and what the client says after it is still heard."""
    client = pair.connect()
    pair.guest.transport.write(MUCH)
    pair.guest.transport.write_eof()
    assert read_all(pair, client) == len(MUCH)
    client.setblocking(True)
    client.sendall(b"late")
    pair.turn_until(lambda: pair.guest.data == b"late")
    client.close()
    pair.turn_until(lambda: pair.guest.told[-1] == "lost")


def test_what_comes_while_the_end_waits_takes_nothing_of_it(pair: Pair) -> None:
    """Our half ends behind much that is kept, the client talks and reads a little: it gets every byte, and is heard."""
    client = pair.connect()
    pair.guest.on_pause = lambda: pair.guest.transport.pause_reading()
    pair.guest.transport.write(MUCH)
    pair.guest.transport.write_eof()
    pair.guest.transport.resume_reading()
    client.sendall(b"more")
    got = len(client.recv(1 << 20, socket.MSG_WAITALL))
    pair.turn_until(lambda: pair.guest.data == b"more")
    assert got + read_all(pair, client) == len(MUCH)
    client.setblocking(True)
    client.sendall(b", late")
    pair.turn_until(lambda: pair.guest.data == b"more, late")
    assert pair.guest.told == ["made", "pause"]


def test_one_that_is_not_read_is_not_cut_for_what_it_sends(pair: Pair) -> None:
    """News that were fetched before the pause: only a break ends it."""
    client = pair.connect()
    wire = pair.guest.transport
    assert isinstance(wire, GuestSocket)
    wire.write(MUCH)
    wire.pause_reading()
    client.sendall(b"more")
    wire.ready(IN | OUT)
    assert pair.guest.told == ["made", "pause"]
    assert pair.guest.data == b""
    wire.ready(OUT | wires.BROKEN)
    assert pair.guest.told[-1] == "lost"


def test_a_guest_that_closes_its_half_may_still_be_answered(pair: Pair) -> None:
    """Its end is told once, does not keep the loop busy, and the answer arrives."""
    client = pair.connect()
    pair.guest.goes_on = True
    client.shutdown(socket.SHUT_WR)
    pair.turn_until(lambda: "eof" in pair.guest.told)
    pair.turn_a_while()
    assert pair.guest.told.count("eof") == 1
    pair.guest.transport.write(b"answer")
    pair.guest.transport.close()
    assert client.recv(100) == b"answer"


@pytest.mark.parametrize("size", [1, wires.RECEIVE_BYTES, 3 * wires.RECEIVE_BYTES + 1])
def test_all_that_was_sent_and_the_end_after_it_are_heard(pair: Pair, size: int) -> None:
    """Both are there before the loop turns, and it is told of news only once: nothing of it may be left unread."""
    client = pair.connect()
    pair.turn_a_while()
    client.sendall(b"x" * size)
    client.shutdown(socket.SHUT_WR)
    pair.turn_until(lambda: pair.guest.told[-1] == "lost")
    assert pair.guest.data == b"x" * size
    assert pair.guest.told == ["made", "eof", "lost"]


def test_a_break_is_noticed_even_when_nothing_is_read(pair: Pair) -> None:
    """Reading is paused and the client resets the connection: it is lost, not watched for ever."""
    client = pair.connect()
    pair.turn_a_while()
    pair.guest.transport.pause_reading()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    pair.turn_until(lambda: pair.guest.told[-1] == "lost")
    pair.guest.transport.write(b"into the void")
    pair.guest.transport.close()
    assert pair.guest.told.count("lost") == 1


def test_what_is_sent_while_nothing_is_read_waits(pair: Pair) -> None:
    """Paused and resumed: nothing is lost, nothing comes early."""
    client = pair.connect()
    pair.guest.transport.pause_reading()
    client.sendall(b"early")
    pair.turn_a_while()
    assert pair.guest.data == b""
    pair.guest.transport.resume_reading()
    pair.turn_until(lambda: pair.guest.data == b"early")


def test_who_may_not_stay_is_closed(pair: Pair) -> None:
    """Refused before a byte is read."""
    pair.guest.stays = False
    client = pair.connect()
    assert client.recv(100) == b""
    assert pair.guest.told == ["made", "lost"]


def answer_the_next(pair: Pair) -> None:
    """Another client comes, and is served."""
    pair.guest = Recorder()
    pair.guest.on_data = lambda _: pair.guest.transport.write(b"fine")
    with pair.connect() as client:
        client.sendall(b"x")
        pair.turn_until(lambda: pair.guest.data == b"x")
        assert client.recv(10) == b"fine"


def test_an_error_while_sending_the_rest_cuts_one_connection(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever cannot go on after a pause is logged and cut; the next is answered."""

    def fail() -> None:
        raise ValueError("on purpose")

    client = pair.connect()
    pair.guest.on_resume = fail
    pair.guest.transport.write(MUCH)
    with caplog.at_level(logging.ERROR):
        assert read_all(pair, client) == len(MUCH)
    assert pair.guest.told == ["made", "pause", "resume", "lost"]
    assert "on purpose" in caplog.text
    answer_the_next(pair)


def test_an_error_cuts_one_connection(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Logged, this connection ends, the next is answered."""

    def fail(_: bytes) -> None:
        raise ValueError("on purpose")

    pair.guest.on_data = fail
    client = pair.connect()
    with caplog.at_level(logging.ERROR):
        client.sendall(b"x")
        pair.turn_until(lambda: pair.guest.told[-1] == "lost")
    assert "on purpose" in caplog.text
    answer_the_next(pair)


def test_what_a_child_keeps_open_is_not_heard_of(pair: Pair) -> None:
    """A forked process has the socket when we close it: the loop is not kept busy, and its number is another's."""
    client = pair.connect()
    assert isinstance(pair.guest.transport, GuestSocket)
    fd = pair.guest.transport._socket.fileno()
    pair.call()
    childs = os.dup(fd)
    pair.guest.transport.abort()
    pair.guest = Recorder()
    pair.turn_until(lambda: pair.guest.told == ["made"])
    pair.open.callback(pair.guest.transport.abort)
    assert isinstance(pair.guest.transport, GuestSocket)
    assert pair.guest.transport._socket.fileno() == fd
    client.sendall(b"to whom?")
    assert [pair.loop.turn(0.01) for _ in range(3)] == [0, 0, 0]
    assert pair.guest.told == ["made"]
    os.close(childs)


class Failing:
    """A listening socket that accepts nobody."""

    def __init__(self, real: socket.socket, number: int) -> None:
        self.fileno = real.fileno
        self.number = number
        self.tried = 0

    def _accept(self) -> tuple[int, object]:
        self.tried += 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_out_of_descriptors(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """Who cannot be let in waits at the door: said once, no spinning, and served when there is room again."""
    monkeypatch.setattr(wires, "ACCEPT_AGAIN_S", 1.0)
    real = pair.listener._socket
    client = pair.call()
    with caplog.at_level(logging.WARNING):
        failing = Failing(real, number)
        pair.listener._socket = failing  # type: ignore[assignment]
        pair.turn_until(lambda: failing.tried == 1)
        pair.turn_a_while()
        assert failing.tried == len(caplog.records) == 1
        assert f"{os.strerror(number)}; trying again in 1 s" in caplog.text
    pair.listener._socket = real
    pair.guest.on_data = lambda _: pair.guest.transport.write(b"at last")
    client.sendall(b"x")
    pair.clock.now_s += 1.0
    pair.turn_until(lambda: pair.guest.data == b"x")
    assert client.recv(10) == b"at last"
    pair.guest.transport.abort()


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN])
def test_one_that_left_at_the_door_keeps_nobody_waiting(
    pair: Pair, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """An error of one guest ends this turn's accepting; the next turn lets in who waits."""
    real = pair.listener._socket
    failing = Failing(real, number)
    pair.call()
    pair.listener._socket = failing  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        pair.turn_until(lambda: failing.tried == 1)
    assert [record.getMessage() for record in caplog.records] == [f"a guest could not be let in: {os.strerror(number)}"]
    pair.listener._socket = real
    pair.turn_until(lambda: pair.guest.told == ["made"])
    pair.guest.transport.abort()
