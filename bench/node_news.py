"""How soon a change that one node has acknowledged is polled from another, beside a bare LISTEN/NOTIFY round trip.

An operator schedules and cancels through node A's API; a guest of that scope asks node B, with a long poll that is already
waiting, and with plain polls a millisecond apart. The guest has its own thread and a plain socket. An answer that came before
the operator's own counts as 0.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
from tests.support.postgres_servers import Server
from tests.support.waiting import PATIENCE_S

from bench.guests import POLL, build_at, long_poll, scope_name
from bench.load import Task, ask, connected, etag_of
from bench.measure import quantile
from bench.node_house import Node, Operator, node_on
from bench.report import Verdict, at_most, milliseconds, print_table
from bench.size import Size

MOST_P99_S = 0.050
REST_S = 0.001  # between two plain polls: who never rests takes the processor from those it waits for
CHANNEL = "bench"
MAKE_BARE = "CREATE TABLE rung (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"
RING_BARE = f"INSERT INTO rung DEFAULT VALUES RETURNING pg_notify('{CHANNEL}', number::text)"


class Times:
    """Of each change: from the request, and from its acknowledgement, to the moment another node or a guest saw it."""

    def __init__(self) -> None:
        self.sent_s: list[float] = []
        self.acknowledged_s: list[float] = []

    def add(self, change: Callable[[], None], seen: Callable[[], float]) -> None:
        """`seen` waits in a thread of its own, which is there before the change."""
        moments: list[float] = []
        watcher = threading.Thread(target=lambda: moments.append(seen()))
        watcher.start()
        sent_s = time.monotonic()
        change()
        acknowledged_s = time.monotonic()
        watcher.join(PATIENCE_S)
        if not moments:
            raise RuntimeError("a change was acknowledged and never seen")
        self.sent_s.append(moments[0] - sent_s)
        self.acknowledged_s.append(max(0.0, moments[0] - acknowledged_s))

    def row(self, name: str) -> list[str]:
        figures = [quantile(each, part) for each in (self.acknowledged_s, self.sent_s) for part in (0.5, 0.99, 1.0)]
        return [name, *map(milliseconds, figures)]


class Toggle:
    """Schedules an event in the first scope, or takes it back, through a node's API."""

    def __init__(self, node: Node) -> None:
        self._operator = Operator(node.operator_port)
        self._published = ""

    def __call__(self) -> None:
        if self._published:
            self._operator.ask("POST", f"/v1/maintenances/{self._published}/cancel")
            self._published = ""
        else:
            request = {"type": "Redeploy", "targets": {"machines": [f"{scope_name(0)}/vm-0000"]}}
            self._published = str(self._operator.ask("POST", "/v1/maintenances", request)["id"])


class Guest:
    """Of the first scope, at one node."""

    def __init__(self, node: Node) -> None:
        self._connection = connected(Task(mode="", port=node.guest_port, core=0, connections=1), 0)
        self._etag = etag_of(ask(self._connection, POLL))

    def by_long_poll(self) -> float:
        return self._seen(long_poll(self._etag, int(PATIENCE_S)))

    def by_plain_polls(self) -> float:
        while (seen_s := self._seen(POLL)) == 0.0:
            time.sleep(REST_S)
        return seen_s

    def _seen(self, request: bytes) -> float:
        """When it showed something else than before; 0 if it did not."""
        etag = etag_of(ask(self._connection, request))
        if etag == self._etag:
            return 0.0
        self._etag = etag
        return time.monotonic()


class Bare:
    """The peer: one connection inserts a row, notifies and commits, another listens."""

    def __init__(self, address: str) -> None:
        self._ringing = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        self._listening = psycopg.connect(address, autocommit=True)
        self._ringing.execute(MAKE_BARE)
        self._listening.execute(f"LISTEN {CHANNEL}")

    def ring(self) -> None:
        self._ringing.execute(RING_BARE)

    def heard(self) -> float:
        heard = any(True for _ in self._listening.notifies(timeout=PATIENCE_S, stop_after=1))
        return time.monotonic() if heard else 0.0

    def close(self) -> None:
        self._ringing.close()
        self._listening.close()


def measure_news(server: Server, folder: Path, size: Size) -> list[Verdict]:
    address = server.address(server.database())
    build_at(address, folder, scopes=1, per_scope=2, announced=False)
    waited, polled, bare = Times(), Times(), Times()
    with (
        node_on(address, folder / "a") as a,
        node_on(address, folder / "b") as b,
        closing(Bare(server.address(server.database()))) as peer,
    ):
        change, guest = Toggle(a), Guest(b)
        for _ in range(size.node_changes):
            waited.add(change, guest.by_long_poll)
            polled.add(change, guest.by_plain_polls)
            bare.add(peer.ring, peer.heard)
    rows = [
        waited.row("node A to node B, waiting long poll"),
        polled.row("node A to node B, plain polls"),
        bare.row("bare INSERT, NOTIFY and COMMIT to LISTEN"),
    ]
    title = f"From a change to its first sight elsewhere, {size.node_changes} of each in turns"
    print_table(title, ["what", "ack p50", "p99", "max", "sent p50", "p99", "max"], rows)
    longest = {"long poll": waited, "plain polls": polled}
    return [
        at_most(
            f"ms from acknowledged on one node to polled from another, {name}, p99,",
            quantile(each.acknowledged_s, 0.99) * 1e3,
            MOST_P99_S * 1e3,
        )
        for name, each in longest.items()
    ]
