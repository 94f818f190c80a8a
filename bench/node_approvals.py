"""Five hundred machines of one scope approve through three nodes: how long until all are answered and the order is taken.

`approval = all`: the event starts with the last of them. The order counts as handed over when the database says that an
executor has taken it; the peer inserts as many rows, each in a transaction of its own, over three connections at once.
In a scope of four times as many machines, all of them approve too: it should take four times as long, not sixteen times.
"""

import json
import select
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
from tests.support.postgres_servers import Server

from bench.guests import HEADERS, PATH, address
from bench.load import IP_BIND_ADDRESS_NO_PORT, RECEIVE_BYTES, Wrong
from bench.measure import median_ratio
from bench.node_house import Node, node_on
from bench.report import Verdict, at_least, at_most, milliseconds, print_table
from bench.size import Size
from forewarn.core.change import Change
from forewarn.core.model import ApprovalMode, Machine, Scope, ScopeKind
from forewarn.store.postgres.store import PostgresStore

SCOPE, LARGE_SCOPE = "everybody", "four-times-as-many"
MORE = 4
LEAST_RATIO, MOST_GROWTH = 0.2, 4.5
PATIENCE_S = 120.0
MAKE_BARE = "CREATE TABLE approved (event text, machine int, who text, PRIMARY KEY (event, machine))"
ADD_BARE = "INSERT INTO approved VALUES (%s, %s, 'somebody')"
TAKEN = "SELECT 1 FROM forewarn.orders WHERE id = %s AND state <> 'open'"


class Approvers:
    """One connection for each machine, to the nodes in turn."""

    def __init__(self, nodes: Sequence[Node], count: int) -> None:
        self._sockets = [self._connected(nodes[number % len(nodes)].guest_port, number) for number in range(count)]

    def _connected(self, port: int, number: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((address(number), 0))
        made.connect(("127.0.0.1", port))
        return made

    def approve(self, event_id: str, which: range) -> tuple[float, float]:
        """All of them at once; when the last was sent, and when the last was answered."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        request = f"POST {PATH} HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        epoll, waiting = select.epoll(), {}
        for number in which:
            self._sockets[number].sendall(request)
            waiting[self._sockets[number].fileno()] = self._sockets[number]
            epoll.register(self._sockets[number], select.EPOLLIN)
        sent_s = time.monotonic()
        while waiting and time.monotonic() < sent_s + PATIENCE_S:
            for fd, _ in epoll.poll(1.0):
                data = waiting[fd].recv(RECEIVE_BYTES)
                if not data.startswith(b"HTTP/1.1 200 "):
                    raise Wrong(repr(data[:300]))
                epoll.unregister(fd)
                del waiting[fd]
        epoll.close()
        if waiting:
            raise Wrong(f"{len(waiting)} approvals were not answered within {PATIENCE_S:g} s")
        return sent_s, time.monotonic()

    def close(self) -> None:
        for each in self._sockets:
            each.close()


class Watch:
    """Looks at the order whenever a change is announced, in a thread of its own."""

    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(database, autocommit=True, prepare_threshold=0)
        self._connection.execute("LISTEN forewarn")

    @contextmanager
    def of(self, event_id: str) -> Iterator[list[float]]:
        """The moment it was seen taken is in the list at the end."""
        moments: list[float] = []
        thread = threading.Thread(target=lambda: moments.append(self._taken(event_id)))
        thread.start()
        yield moments
        thread.join(PATIENCE_S)
        if not moments or not moments[0]:
            raise RuntimeError("everybody said go, and no executor took the order")

    def _taken(self, event_id: str) -> float:
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s:
            if self._connection.execute(TAKEN, [event_id]).fetchone() is not None:
                return time.monotonic()
            for _ in self._connection.notifies(timeout=0.5, stop_after=1):
                pass
        return 0.0

    def close(self) -> None:
        self._connection.close()


def _bare_approvals(connections: Sequence["psycopg.Connection[tuple[object, ...]]"], event: str, count: int) -> float:
    def insert(first: int) -> None:
        for number in range(first, count, len(connections)):
            connections[first].execute(ADD_BARE, [event, number])

    threads = [threading.Thread(target=insert, args=[first]) for first in range(len(connections))]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began_s


def _fill(database: str, scopes: Mapping[str, range]) -> None:
    with closing(PostgresStore(database)) as store:
        now = store.now()
        kind, approval = ScopeKind.AVAILABILITY_SET, ApprovalMode.ALL
        store.apply(
            Change(
                at=now,
                scopes=tuple(
                    Scope(name=name, kind=kind, approval=approval, enabled=True, epoch=1, changed=now)
                    for name in scopes
                ),
                machines=tuple(
                    Machine(scope=name, name=f"vm-{number:04d}", addresses=(address(number),))
                    for name, which in scopes.items()
                    for number in which
                ),
            )
        )


def _announced(node: Node, scope: str) -> str:
    """A Redeploy of the whole scope; the id of its one event."""
    made = node.api("POST", "/v1/maintenances", {"type": "Redeploy", "targets": {"scope": scope}})
    found: list[dict[str, object]] = node.api("GET", f"/v1/events?maintenance={made['id']}")["items"]  # type: ignore[assignment]
    if len(found) != 1:
        raise RuntimeError(f"the maintenance has {len(found)} events instead of one")
    return str(found[0]["id"])


def _all_at_once(
    nodes: Sequence[Node], approvers: Approvers, watch: Watch, scope: str, which: range
) -> tuple[float, float]:
    """From the first sent until all are answered, and until the order is taken."""
    event_id = _announced(nodes[0], scope)
    began_s = time.monotonic()
    with watch.of(event_id) as taken:
        _, done_s = approvers.approve(event_id, which)
    nodes[0].api("POST", f"/v1/orders/{event_id}/finish", {})
    return done_s - began_s, taken[0] - began_s


def _last_alone(nodes: Sequence[Node], approvers: Approvers, watch: Watch, count: int) -> tuple[float, float]:
    """All others have approved: from the last one sent until it is answered, and until the order is taken."""
    event_id = _announced(nodes[0], SCOPE)
    approvers.approve(event_id, range(1, count))
    with watch.of(event_id) as taken:
        sent_s, done_s = approvers.approve(event_id, range(1))
    nodes[0].api("POST", f"/v1/orders/{event_id}/finish", {})
    return done_s - sent_s, taken[0] - sent_s


def measure_approvals(server: Server, folder: Path, size: Size) -> list[Verdict]:
    database, count = server.address(server.database()), size.node_approvers
    scopes = {SCOPE: range(count), LARGE_SCOPE: range(count, (1 + MORE) * count)}
    _fill(database, scopes)
    together: dict[str, list[tuple[float, float]]] = {name: [] for name in scopes}
    alone: list[tuple[float, float]] = []
    bare_s: list[float] = []
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(node_on(database, folder / f"node-{number}", FOREWARN_EXECUTOR="simulated"))
            for number in range(size.node_count)
        ]
        approvers = stack.enter_context(closing(Approvers(nodes, (1 + MORE) * count)))
        watch = stack.enter_context(closing(Watch(database)))
        peer = server.address(server.database())
        bare = [stack.enter_context(psycopg.connect(peer, autocommit=True, prepare_threshold=0)) for _ in nodes]
        bare[0].execute(MAKE_BARE)
        for turn in range(size.node_approvals):
            for name, which in scopes.items():
                together[name].append(_all_at_once(nodes, approvers, watch, name, which))
            bare_s.append(_bare_approvals(bare, str(turn), count))
            alone.append(_last_alone(nodes, approvers, watch, count))
    answered, many_answered = ([a for a, _ in together[name]] for name in scopes)
    rows = [
        _row(f"{count} approvals at once, until all are answered", answered, bare_s),
        _row(f"{count} approvals at once, until the order is taken", [t for _, t in together[SCOPE]], bare_s),
        _row(f"{count} bare commits over {size.node_count} connections at once", bare_s, bare_s),
        _row(f"{MORE * count} approvals at once, until all are answered", many_answered),
        _row("the last approval alone, until it is answered", [a for a, _ in alone]),
        _row("the last approval alone, until the order is taken", [t for _, t in alone]),
    ]
    title = (
        f"{count} machines of one scope approve through {size.node_count} nodes (approval = all),"
        f" {size.node_approvals} times in turns"
    )
    print_table(title, ["what", "median", "most", "bare commits / this"], rows)
    return [
        at_least(f"{count} bare commits / {count} approvals at once", median_ratio(bare_s, answered), LEAST_RATIO),
        at_most(
            f"{MORE * count} approvals at once / {count} approvals at once",
            median_ratio(many_answered, answered),
            MOST_GROWTH,
        ),
    ]


def _row(name: str, values: Sequence[float], bare_s: Sequence[float] = ()) -> list[str]:
    ratio = f"{median_ratio(bare_s, values):.2f}" if bare_s else ""
    return [name, milliseconds(statistics.median(values)), milliseconds(max(values)), ratio]
