"""The load: guests in a process of their own, on a core of their own.

Run as a program with a Task as JSON: it prepares, prints `ready`, begins at a line on its input, and prints what it saw as
JSON. Moments are of the monotonic clock, which all processes of a machine share.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from bench.guests import POLL, address, long_poll

IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h: the port is chosen at connect, where it may be one used for another address
RECEIVE_BYTES = 65_536
BATCH = 16
GIVE_UP_AFTER_S = 60.0
LONG_WAIT_S = 60
TRY_AGAIN_S = 0.005
RETRY_AFTER_S = 1.0  # as the service asks a guest whose machine it has not loaded yet
PROBE_EVERY_S = 0.002
FLOOD_AT_ONCE = 64
FLOOD_IDLE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`sources` is how many machines the connections come from, one after the other."""

    mode: str
    port: int
    core: int
    connections: int
    sources: int = 1
    first_source: int = 0
    seconds: float = 0.0
    probe_source: int = -1


class Wrong(Exception):
    """An answer that is not the document."""


def connected(task: Task, number: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    made.bind((address(task.first_source + number % task.sources), 0))
    made.connect(("127.0.0.1", task.port))
    return made


def await_line() -> None:
    """Wait for the next line on the input. It reads not a byte more: a line behind it stays where `select` sees it."""
    while os.read(sys.stdin.fileno(), 1) not in (b"\n", b""):
        pass


def line_is_there() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def ask(connection: socket.socket, request: bytes = POLL) -> bytes:
    """One whole answer, the careful way."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += _some(connection)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise Wrong(head.decode("latin-1"))
    return head + b"\r\n\r\n" + body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(RECEIVE_BYTES)
    if not data:
        raise Wrong("the connection was closed")
    return data


def etag_of(answer: bytes) -> str:
    return answer.lower().split(b"etag: ")[1].split(b"\r\n")[0].decode()


class Crowd:
    """Open connections that each have polled once, and an epoll on them. Every answer is as long as the first."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.epoll = select.epoll()
        self.by_fd: dict[int, socket.socket] = {}
        self.length = 0
        for number in range(task.connections):
            connection = connected(task, number)
            self.length = len(ask(connection))
            self.by_fd[connection.fileno()] = connection
            self.epoll.register(connection, select.EPOLLIN)

    def read(self, timeout_s: float) -> list[int]:
        """The connections that now have their whole answer."""
        ready = [fd for fd, _ in self.epoll.poll(timeout_s)]
        for fd in ready:
            data = self.by_fd[fd].recv(RECEIVE_BYTES)
            while len(data) < self.length and data:
                data += _some(self.by_fd[fd])
            if not data.startswith(b"HTTP/1.1 200 "):
                raise Wrong(repr(data[:200]))
        return ready


def keep_alive(task: Task) -> Callable[[], dict[str, object]]:
    """Each connection asks again as soon as it is answered, until the time is over and there was an answer."""
    crowd = Crowd(task)

    def go() -> dict[str, object]:
        answered = 0
        end_s = time.monotonic() + task.seconds
        for connection in crowd.by_fd.values():
            connection.send(POLL)
        while time.monotonic() < end_s or not answered:
            for fd in crowd.read(1.0):
                crowd.by_fd[fd].send(POLL)
                answered += 1
        return {"answered": answered}

    return go


def connect(task: Task) -> Callable[[], dict[str, object]]:
    """A connection for each request, closed after the answer; `connections` at once."""
    with connected(task, 0) as first:
        length = len(ask(first))
    sources = [(address(task.first_source + number), 0) for number in range(task.sources)]

    def go() -> dict[str, object]:
        epoll, by_fd, opened = select.epoll(), {}, 0
        end_s = time.monotonic() + task.seconds

        def one_more() -> None:
            nonlocal opened
            made = socket.socket()
            made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            made.bind(sources[opened % len(sources)])
            made.connect(("127.0.0.1", task.port))
            made.send(POLL)
            by_fd[made.fileno()] = made
            epoll.register(made, select.EPOLLIN)
            opened += 1

        for _ in range(task.connections):
            one_more()
        while by_fd:
            for fd, _ in epoll.poll(1.0):
                connection = by_fd.pop(fd)
                data = connection.recv(RECEIVE_BYTES)
                while len(data) < length:
                    data += _some(connection)
                if not data.startswith(b"HTTP/1.1 200 "):
                    raise Wrong(repr(data[:200]))
                connection.close()
                if time.monotonic() < end_s:
                    one_more()
        return {"answered": opened}

    return go


def idle(task: Task) -> Callable[[], dict[str, object]]:
    """Connections that have polled once and now say nothing."""
    crowd = Crowd(task)
    return lambda: {"answered": len(crowd.by_fd)}


def paced(task: Task) -> Callable[[], dict[str, object]]:
    """Every connection polls once a second, evenly spread over it, until the time is over and there was an answer."""
    crowd = Crowd(task)
    turn = list(crowd.by_fd.values())

    def go() -> dict[str, object]:
        sent = answered = 0
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < task.seconds or not answered:
            due = int(passed_s * len(turn))
            while sent < due:
                turn[sent % len(turn)].send(POLL)
                sent += 1
            answered += len(crowd.read(0.001))
        return {"answered": answered, "sent": sent}

    return go


def wait(task: Task) -> Callable[[], dict[str, object]]:
    """Long polls until each is answered, and meanwhile one connection that polls again and again."""
    with connected(task, 0) as first:
        request = long_poll(etag_of(ask(first)), LONG_WAIT_S)
    epoll, by_fd = select.epoll(), {}
    for number in range(task.connections):
        connection = connected(task, number)
        connection.send(request)
        by_fd[connection.fileno()] = connection
        epoll.register(connection, select.EPOLLIN)
    probe = Probe(task) if task.probe_source >= 0 else None

    def go() -> dict[str, object]:
        first_s = last_s = 0.0
        give_up_s = time.monotonic() + LONG_WAIT_S / 2
        while by_fd and time.monotonic() < give_up_s:
            if probe is not None:
                probe.look(during=bool(first_s))
            # Few at a time, so that the probe's answer is seen soon after it came.
            for fd, _ in epoll.poll(0.001, BATCH):
                data = by_fd.pop(fd).recv(RECEIVE_BYTES)
                if not data.startswith(b"HTTP/1.1 200 "):
                    raise Wrong(repr(data[:200]))
                last_s = time.monotonic()
                first_s = first_s or last_s
        return {"left": len(by_fd), "last_s": last_s, "probes_s": probe.took_s if probe else []}

    return go


class Probe:
    """One poller beside a crowd: sends, looks whether the answer is there, sends again."""

    def __init__(self, task: Task) -> None:
        self._connection = connected(Task(mode="", port=task.port, core=0, connections=1), task.probe_source)
        ask(self._connection)
        self._connection.setblocking(False)
        self._sent_s = 0.0
        self.took_s: list[float] = []

    def look(self, *, during: bool) -> None:
        if self._sent_s:
            try:
                self._connection.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            if during:
                self.took_s.append(time.monotonic() - self._sent_s)
        self._sent_s = time.monotonic()
        self._connection.send(POLL)


def probe(task: Task) -> Callable[[], dict[str, object]]:
    """One poller with a rest after each answer, until there was one and the next line is on the input; how long each took."""
    connection = connected(task, 0)
    ask(connection)

    def go() -> dict[str, object]:
        took_s: list[float] = []
        while not took_s or not line_is_there():
            sent_s = time.monotonic()
            ask(connection)
            took_s.append(time.monotonic() - sent_s)
            time.sleep(PROBE_EVERY_S)
        await_line()
        return {"probes_s": took_s}

    return go


def probe_machines(task: Task) -> Callable[[], dict[str, object]]:
    """Poll as one machine after the other, each below its rate, until the time is over; how long each answer took.

    A machine polls twice in its turn: on its open connection, and on a new one.
    """
    open_connections = [connected(task, number) for number in range(task.sources)]
    for connection in open_connections:
        ask(connection)

    def go() -> dict[str, object]:
        kept_s: list[float] = []
        new_s: list[float] = []
        end_s = time.monotonic() + task.seconds
        while time.monotonic() < end_s or not new_s:
            time.sleep(PROBE_EVERY_S)
            number = len(kept_s) % task.sources
            sent_s = time.monotonic()
            ask(open_connections[number])
            kept_s.append(time.monotonic() - sent_s)
            time.sleep(PROBE_EVERY_S)
            sent_s = time.monotonic()
            with connected(task, number) as fresh:
                ask(fresh)
            new_s.append(time.monotonic() - sent_s)
        return {"kept_s": kept_s, "new_s": new_s}

    return go


def flood(task: Task) -> Callable[[], dict[str, object]]:
    """Send as many requests as the server takes on each connection, and connect again at once if it is closed."""
    poller = select.epoll()
    by_fd: dict[int, socket.socket] = {}
    seen = {"connections": 0, "answers": 0}

    def connect_again() -> None:
        made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((address(task.first_source), 0))
        made.connect_ex(("127.0.0.1", task.port))
        by_fd[made.fileno()] = made
        poller.register(made, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        seen["connections"] += 1

    def serve(fd: int) -> None:
        """Read what is there, and fill the connection with requests again."""
        connection = by_fd[fd]
        try:
            with suppress(BlockingIOError):
                data = connection.recv(RECEIVE_BYTES)
                seen["answers"] += data.count(b"HTTP/1.1 ")
                if not data:
                    raise ConnectionResetError
            with suppress(BlockingIOError):
                connection.send(POLL * FLOOD_AT_ONCE)
        except OSError:
            del by_fd[fd]
            connection.close()
            connect_again()

    def go() -> dict[str, object]:
        for _ in range(task.connections):
            connect_again()
        while not line_is_there():
            for fd, _ in poller.poll(FLOOD_IDLE_S):
                serve(fd)
        await_line()
        return dict(seen)

    return go


def storm(task: Task) -> Callable[[], dict[str, object]]:
    """Connections that are all lost with the server; as soon as it accepts again all come back at once."""
    crowd = Crowd(task)

    def go() -> dict[str, object]:
        while crowd.by_fd:
            for fd, _ in crowd.epoll.poll(1.0):
                crowd.by_fd.pop(fd).close()
        up_s = _until_accepted(task)
        return {"up_s": up_s, "answered_s": _all_again(task, up_s)}

    return go


def _until_accepted(task: Task) -> float:
    while True:
        try:
            connected(task, 0).close()
            return time.monotonic()
        except ConnectionRefusedError:
            time.sleep(TRY_AGAIN_S)


def _all_again(task: Task, up_s: float) -> list[float]:
    """When each got its document, in seconds since the server accepted again.

    The server accepts before it has loaded every machine. A guest of a machine that is not loaded gets 503 and polls again.
    """
    epoll, by_fd, answered_s = select.epoll(), {}, []
    polls_again_s: dict[int, float] = {}
    for number in range(task.connections):
        made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((address(task.first_source + number % task.sources), 0))
        made.connect_ex(("127.0.0.1", task.port))
        by_fd[made.fileno()] = made
        epoll.register(made, select.EPOLLOUT)
    while by_fd and time.monotonic() - up_s < GIVE_UP_AFTER_S:
        for fd in [fd for fd, due_s in polls_again_s.items() if due_s <= time.monotonic()]:
            del polls_again_s[fd]
            by_fd[fd].send(POLL)
        for fd, event in epoll.poll(TRY_AGAIN_S if polls_again_s else 1.0):
            if event & select.EPOLLOUT:
                by_fd[fd].send(POLL)
                epoll.modify(fd, select.EPOLLIN)
                continue
            data = by_fd[fd].recv(RECEIVE_BYTES)
            if data.startswith(b"HTTP/1.1 503 "):
                polls_again_s[fd] = time.monotonic() + RETRY_AFTER_S
                continue
            if not data.startswith(b"HTTP/1.1 200 "):
                raise Wrong(repr(data[:200]))
            answered_s.append(time.monotonic() - up_s)
            epoll.unregister(fd)
            # Kept open: these guests have come back to stay.
            _STAYING.append(by_fd.pop(fd))
    return answered_s


_STAYING: list[socket.socket] = []
MODES = {each.__name__: each for each in (keep_alive, connect, idle, paced, wait, probe, probe_machines, flood, storm)}


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    os.sched_setaffinity(0, {task.core})
    go = MODES[task.mode](task)
    print("ready", flush=True)
    await_line()
    print(json.dumps(go()), flush=True)
    await_line()


def arguments(task: Task) -> list[str]:
    return [sys.executable, "-m", "bench.load", json.dumps(asdict(task))]


if __name__ == "__main__":
    main()
