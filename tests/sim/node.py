"""A simulated node: the real parts of `forewarn.app.node` on a simulated store and executor.

A node that dies loses every object and is built anew when it starts again; each such life has its own name. While a node is
busy (one of its calls takes long), only its follower, which has a thread of its own, and polls that memory can answer go
on. While the whole process is frozen, nothing goes on.

The real follower reads changes once a second. To save turns, this one reads just before its knowledge is used, as of some
moment within the last second, or when a notification arrives.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

from forewarn.app.node import EndpointParts, Times, follow
from forewarn.app.node import Node as Parts
from forewarn.core.change import Change
from forewarn.core.errors import Conflict, ForewarnError, InvariantBroken, RequestError, StoreUnavailable
from forewarn.endpoint.callers import Caller
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.exchange import Exchange
from forewarn.endpoint.identity import Trust
from forewarn.endpoint.limits import Limits
from forewarn.endpoint.protocol import Request, Response, plain_tag
from forewarn.service.clock import Reading
from forewarn.service.control import Submission
from forewarn.service.decisions import Once
from forewarn.store import SharedStore
from tests.sim.database import Database
from tests.sim.history import Alarm, Answered, Entry, NodeStarted
from tests.sim.parts import NodeExecutor, NodeFeed, NodeStore, Works, hang
from tests.sim.universe import MAX_HANGING, Crash, Universe

ORDER_TIMEOUT_S = 3_000
DISABLE_AFTER_S = 1_200
READ_EVERY_MS = 1_000
MAX_STALE_MS = 20_000
MAX_CYCLES = 50
# A guest that got no answer within this time has disconnected.
PATIENCE_MS = 10_000


class Shared:
    """What all nodes share: the database, the executed work, the notifications between them, and the history."""

    def __init__(self, universe: Universe, record: Callable[[Entry], None]) -> None:
        self.universe = universe
        self.record = record
        self.database = Database(universe, record)
        self.database.on_commit = self.notify_nodes
        self.works = Works(universe, record)
        self.nodes: list[Node] = []
        self.on_commit: Callable[[Change], None] = lambda _: None

    def notify_nodes(self, change: Change) -> None:
        """Notify every node of a commit: soon, late or, with a fault, never."""
        self.on_commit(change)
        for node in self.nodes if change.scopes else ():
            if not self.universe.chance(self.universe.faults.notification_lost):
                late_ms = (
                    self.universe.about_ms(self.universe.faults.notification_late_s) if self.universe.faults.on else 0
                )
                self.universe.later(late_ms, node.notification())


class Node:
    """A node. The attributes set in `start` and `_build` belong to its current life."""

    parts: Parts
    side: EndpointParts
    feed: NodeFeed

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._universe = shared.universe
        self._number = number
        self._lives = self._pid = 0
        self.name = f"n{number}:0#0"
        self.alive = self.busy = self.frozen = self.waiting = self._reading = self._up = False
        self.away_until_ms = self._awake_ms = 0
        self.saved_changes: list[Change] = []
        self._saved_reading = StateFolder()
        self._boots = 1

    # -- start and crash

    def start(self) -> None:
        """Start a new life; the node dies if it cannot be built."""
        if self.alive:
            return
        self._lives += 1
        if self._lives == 1 or not self._universe.chance(self._universe.faults.same_name):
            self._pid += 1
        self.name = f"n{self._number}:{self._pid}#{self._lives}"
        self._recovered = self._up = False
        self._awake_ms = self._universe.now_ms
        self.alive = True
        if self._lives > 1 and self._universe.chance(self._universe.faults.reboot):
            self._boots += 1
            self._saved_reading = StateFolder()
            self._universe.log(f"the machine of {self.name} was restarted")
        if self.enter(self._build) is not True:
            self.die()

    def _build(self) -> bool:
        shared, universe = self._shared, self._universe
        store = NodeStore(shared.database, universe, self, shared.record)
        self.feed = NodeFeed(store, universe)
        times = Times(universe.seconds, universe.seconds)
        sharing = cast(SharedStore, store)
        follower, clock = follow(sharing, times, self._saved_reading)
        self._read_ms = universe.now_ms
        self.parts = Parts(
            sharing,
            clock,
            NodeExecutor(shared.works, universe, self),
            host_executor=NodeExecutor(shared.works, universe, self),
            name=self.name.partition("#")[0],
            new_id=self._new_id,
            order_timeout_s=ORDER_TIMEOUT_S,
            retain_history_s=0,
            shared=sharing,
            follower=follower,
            alone=lambda: nullcontext(
                universe.chance(0.5)
            ),  # whether this process holds the lock of its state directory
            times=times,
            render_receipt=render_id,
        )
        shared.record(NodeStarted(universe.now_ms, self.name, f"n{self._number}, boot {self._boots}"))
        self.control = self.parts.control
        self.side = EndpointParts(
            self.parts,
            cast(Any, Inline()),
            cast(Any, Inline()),
            limits=Limits(requests_per_s=0),
            trust=Trust(),
            max_stale_s=MAX_STALE_MS / 1_000,
            disable_after_s=DISABLE_AFTER_S,
        )
        self.side.documents.load()
        self._up = True
        universe.log(f"{self.name} is up")
        return True

    def _new_id(self) -> str:
        """Return a new id; the node may hang here, in the middle of a decision."""
        if self._universe.chance(self._universe.faults.slow):
            hang(self._universe, self, "deciding")
        return self._universe.new_id()

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self._universe.log(f"{self.name} is dead")
            self._universe.later(self._universe.about_ms(30), self.start)

    def kill(self) -> None:
        """Kill the node from outside, unless it is busy."""
        if not self.busy:
            self.die()

    def enter(self, act: Callable[[], Any]) -> Any:
        """Call `act` on this node; return None if the node is dead, busy, dies of it, or cannot reach its store."""
        if not self.alive or self.busy:
            return None
        self.busy = True
        life = self.name
        try:
            return act()
        except Crash:
            self.die()
        except (Conflict, StoreUnavailable) as error:
            self._universe.log(f"{life} cannot: {error}")
        except InvariantBroken as error:
            self._shared.record(Alarm(self._universe.now_ms, life, str(error)))
        finally:
            self.busy = self.frozen = False
        return None

    def request(self, act: Callable[[], Any]) -> Any:
        """Make an operator's request; a refusal is an answer."""

        def call() -> Any:
            self.saved_changes.clear()
            self._catch_up()
            try:
                answer = act()
            except RequestError as error:
                self._universe.log(f"{self.name} refuses: {error}")
                return error
            self._record_answer()
            return answer

        return self.enter(call)

    def _record_answer(self) -> None:
        stages = tuple(
            (scope.name, scope.epoch, scope.incarnation) for change in self.saved_changes for scope in change.scopes
        )
        self._shared.record(Answered(self._universe.now_ms, self.name, stages))

    def wait(self, milliseconds: int) -> None:
        """Hang in the middle of a call: the store is slow, or the whole process is stopped."""
        self.waiting, self.frozen = True, self._universe.choose.random() < 0.5
        frozen = self.frozen
        # Another node may act on the same work meanwhile.
        other = self._universe.choose.choice(self._shared.nodes)
        self._universe.later(self._universe.choose.randrange(milliseconds + 1), other.cycle)
        self._universe.pass_time(milliseconds)
        self.waiting = self.frozen = False
        if frozen:
            self._awake_ms = self._universe.now_ms

    def stop(self, milliseconds: int) -> None:
        """Stop the process for a while, as SIGSTOP does."""
        if self._universe.hanging < MAX_HANGING:
            self.enter(lambda: self.wait(milliseconds))

    def lose_store(self, milliseconds: int) -> None:
        """Cut the node off from its store; it has read the changes until now."""
        self.enter(self._catch_up)
        self.away_until_ms = self._universe.now_ms + milliseconds
        self._universe.log(f"{self.name} has lost its store")

    # -- the ticker

    def cycle(self) -> None:
        """Cycle; then save when guests were last seen, as the real node does whether its ticker works or not."""
        self.enter(self._cycle)
        self.write_seen()

    def _cycle(self) -> None:
        self._catch_up()
        if not self._recovered:
            self.parts.ticker.recover()
            self._recovered = True
        for _ in range(MAX_CYCLES):
            if not self.parts.ticker.cycle():
                break

    def write_seen(self) -> None:
        if self._up and (self.side.endpoint.seen_callers or self.side.endpoint._first_seen):
            self.enter(self._write_seen)

    def _write_seen(self) -> None:
        self.side.write_seen()
        self.side.write_first_seen()

    # -- the follower

    def notification(self) -> Callable[[], None]:
        """Return what a notification sent now does on arrival; it does nothing in a later life of the node."""
        life = self.name

        def deliver() -> None:
            if self.name != life or not self._answers():
                return
            if not self.busy:
                self.enter(lambda: self._read_changes(self._universe.now_ms))
            elif self._may_read():
                self._read_changes(self._universe.now_ms)

        return deliver

    def _answers(self) -> bool:
        return self.alive and self._up and not self.frozen

    def _may_read(self) -> bool:
        """Whether the follower can read beside a call that hangs: it would wait for a lock that this call holds."""
        return not self._reading and not self.side.documents._lock.locked()

    def _catch_up(self) -> None:
        """Read changes if the last reading is more than a second old."""
        now_ms = self._universe.now_ms
        if now_ms - self._read_ms >= READ_EVERY_MS:
            self._read_changes(max(now_ms - self._universe.choose.randrange(READ_EVERY_MS), self._awake_ms))

    def _read_changes(self, at_ms: int) -> None:
        self._read_ms = self.feed.at_ms = at_ms
        self._reading = True
        follower = self.parts.follower
        assert follower is not None
        try:
            follower.poll(0.0)
        except StoreUnavailable:
            self._universe.log(f"{self.name} could not read changes")
        finally:
            self._reading = False

    # -- guests

    def answer(self, scope: str, machine: str, request: Request) -> "Connection | None":
        """Return the answered connection, or None without an answer. A busy node answers only from memory."""
        if not self._answers():
            return None
        connection = Connection(self.side.endpoint, self.side.documents.callers.named(scope, machine))
        if self.busy:
            if self._may_read():
                self._catch_up()
            if not self._from_memory(connection, request):
                return None
            Exchange(connection, request).start(None)
        else:
            start_ms = self._universe.now_ms
            self.enter(lambda: self._answer(connection, request))
            if self._universe.now_ms - start_ms > PATIENCE_MS:
                return None
        return connection if connection.status else None

    def _answer(self, connection: "Connection", request: Request) -> None:
        self.saved_changes.clear()
        self._catch_up()
        Exchange(connection, request).start(None)
        if connection.status == 200:
            self._record_answer()

    def _from_memory(self, connection: "Connection", request: Request) -> bool:
        """Whether memory can answer the request, without the writer thread."""
        view = connection.caller.view if connection.caller is not None else None
        tags = request.values("if-none-match")
        tag = plain_tag(tags[0]) if tags else None
        return (
            request.method == "GET"
            and view is not None
            and view.state.enabled
            and not (tag is not None and self.side.endpoint.is_behind(view.state, tag))
        )


class StateFolder:
    """The part of a node's state folder that outlives its process: a reading of the clock, since the machine started."""

    def __init__(self) -> None:
        self._reading: Reading | None = None

    def load(self) -> Reading | None:
        return self._reading

    def save(self, reading: Reading) -> bool:
        self._reading = reading
        return True


class Inline:
    """Stands for the writer thread and the guests' loop: runs each call at once in the only thread."""

    def submit(self, call: Callable[..., Any], *arguments: Any) -> "Written":
        try:
            call(*arguments)
        except ForewarnError as error:
            if isinstance(error, InvariantBroken):
                raise
            return Written(error)
        return Written(None)

    def call_from_thread(self, call: Callable[[], Any]) -> None:
        call()


class Written:
    """The part of a future that is used of a write that has ended."""

    def __init__(self, error: ForewarnError | None) -> None:
        self._error = error

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def exception(self) -> ForewarnError | None:
        return self._error

    def add_done_callback(self, call: Callable[["Written"], None]) -> None:
        call(self)


class Connection:
    """The part of a guest's connection that an exchange uses."""

    proxied = False
    interface = ""
    address = "10.0.0.1"
    gone = False

    def __init__(self, endpoint: EndpointState, caller: Caller | None) -> None:
        self.endpoint = endpoint
        self.caller = caller
        self.status = 0
        self.etag = ""
        self.body = b""

    def identify(self) -> Caller | None:
        return self.caller

    def keeps_open(self, request: Request) -> bool:
        return request.keep_alive

    def respond(self, response: Response, request: Request) -> None:
        del request
        self.status, self.body = response.status, response.body
        for line in response.extra:
            name, _, value = line.partition(b": ")
            if name == b"ETag":
                self.etag = value.decode()

    def reject(self, response: Response, request: Request) -> None:
        self.respond(response, request)

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        del keep
        head, _, body = data.partition(b"\r\n\r\n")
        tags = [line[6:] for line in head.split(b"\r\n") if line.startswith(b"ETag: ")]
        self.status, self.body, self.etag = status, body, tags[0].decode()

    def exchange_finished(self) -> None:
        """Do nothing: the real connection would read on."""


def render_id(once: Once, made: object) -> tuple[int, str]:
    """Save the id of a maintenance as the response."""
    del once
    assert isinstance(made, Submission)
    return 201, made.maintenance_id
