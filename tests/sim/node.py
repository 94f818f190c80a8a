"""A node: the real parts of `forewarn.app.node` on simulated ones, one life after the other.

Several lives never overlap: a node that dies loses every object, and its next life is built anew. While a node is busy (one
of its calls takes long) nobody else gets into its objects, but for its follower, which has a thread of its own, and polls that
memory alone can answer; none of them where the whole process is frozen.

The follower looks once a second. To save turns it does so here when somebody is about to use what it knows: as of some
moment within the last second, or later where a bell was heard.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, cast

from forewarn.app.node import EndpointParts, Times, follow
from forewarn.app.node import Node as Parts
from forewarn.core.change import Change
from forewarn.core.errors import Conflict, ForewarnError, InvariantBroken, RequestError, StoreUnavailable
from forewarn.endpoint.callers import Caller
from forewarn.endpoint.endpoint import Endpoint
from forewarn.endpoint.exchange import Exchange
from forewarn.endpoint.identity import Trust
from forewarn.endpoint.limits import Limits
from forewarn.endpoint.protocol import Request, Response, plain_tag
from forewarn.store import SharedStore
from tests.sim.database import Database
from tests.sim.history import Alarm, Answered, Born, Entry
from tests.sim.parts import NodeExecutor, NodeFeed, NodeStore, Works, hang
from tests.sim.universe import MAX_HANGING, Crash, Universe

ORDER_TIMEOUT_S = 3_000
DISABLE_AFTER_S = 1_200
LOOK_EVERY_MS = 1_000
MAX_STALE_MS = 20_000
MAX_CYCLES = 50
# A guest that got no answer by then has hung up.
PATIENCE_MS = 10_000


class Shared:
    """What all nodes have in common: the database, the world of work, the bells between them, and the record."""

    def __init__(self, universe: Universe, record: Callable[[Entry], None]) -> None:
        self.universe = universe
        self.record = record
        self.database = Database(universe, record)
        self.database.heard = self.ring
        self.works = Works(universe, record)
        self.nodes: list[Node] = []
        self.curious: Callable[[Change], None] = lambda _: None

    def ring(self, change: Change) -> None:
        """The database tells every node that listens, sooner or later, or never."""
        self.curious(change)
        for node in self.nodes if change.scopes else ():
            if not self.universe.chance(self.universe.faults.bell_lost):
                late_ms = self.universe.about_ms(self.universe.faults.bell_late_s) if self.universe.faults.on else 0
                self.universe.later(late_ms, node.bell())


class Node:
    """Everything below `start` belongs to the present life."""

    parts: Parts
    side: EndpointParts
    feed: NodeFeed

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._universe = shared.universe
        self._number = number
        self._lives = self._pid = 0
        self.name = f"n{number}:0#0"
        self.alive = self.busy = self.frozen = self.waiting = self._looking = self._up = False
        self.away_until_ms = self._awake_ms = 0
        self.told: list[Change] = []

    # -- life and death

    def start(self) -> None:
        """A new life, if it gets that far."""
        if self.alive:
            return
        self._lives += 1
        if self._lives == 1 or not self._universe.chance(self._universe.faults.same_name):
            self._pid += 1
        self.name = f"n{self._number}:{self._pid}#{self._lives}"
        self._recovered = self._up = False
        self._awake_ms = self._universe.now_ms
        self.alive = True
        self._shared.record(Born(self._universe.now_ms, self.name))
        if self.enter(self._build) is not True:
            self.die()

    def _build(self) -> bool:
        shared, universe = self._shared, self._universe
        store = NodeStore(shared.database, universe, self, shared.record)
        self.feed = NodeFeed(store, universe)
        times = Times(self._seconds, self._seconds)
        sharing = cast(SharedStore, store)
        follower, clock = follow(sharing, times)
        self._looked_ms = universe.now_ms
        self.parts = Parts(
            sharing,
            clock,
            NodeExecutor(shared.works, universe, self),
            name=self.name.partition("#")[0],
            new_id=self._new_id,
            order_timeout_s=ORDER_TIMEOUT_S,
            retain_history_s=0,
            shared=sharing,
            follower=follower,
            alone=lambda: nullcontext(
                universe.chance(0.5)
            ),  # one process at a time is at its place, and may not know it
            times=times,
        )
        self.control = self.parts.control
        self.side = EndpointParts(
            self.parts,
            cast(Any, AtOnce()),
            cast(Any, AtOnce()),
            limits=Limits(requests_per_s=0),
            trust=Trust(),
            max_stale_s=MAX_STALE_MS / 1_000,
            disable_after_s=DISABLE_AFTER_S,
        )
        self._up = True
        universe.say(f"{self.name} is up")
        return True

    def _seconds(self) -> float:
        return self._universe.now_ms / 1_000

    def _new_id(self) -> str:
        """In the middle of deciding: a place to be stopped at."""
        if self._universe.chance(self._universe.faults.slow):
            hang(self._universe, self, "deciding")
        return self._universe.new_id()

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self._universe.say(f"{self.name} is dead")
            self._universe.later(self._universe.about_ms(30), self.start)

    def kill(self) -> None:
        """From outside, between two things it does."""
        if not self.busy:
            self.die()

    def enter(self, act: Callable[[], Any]) -> Any:
        """Do something on this node; None where it is dead, busy, dies of it, or cannot reach its store."""
        if not self.alive or self.busy:
            return None
        self.busy = True
        life = self.name
        try:
            return act()
        except Crash:
            self.die()
        except (Conflict, StoreUnavailable) as error:
            self._universe.say(f"{life} cannot: {error}")
        except InvariantBroken as error:
            self._shared.record(Alarm(self._universe.now_ms, life, str(error)))
        finally:
            self.busy = self.frozen = False
        return None

    def ask(self, act: Callable[[], Any]) -> Any:
        """What an operator asks for: a refusal is an answer."""

        def asked() -> Any:
            self.told.clear()
            self._catch_up()
            try:
                answer = act()
            except RequestError as error:
                self._universe.say(f"{self.name} refuses: {error}")
                return error
            self._said_yes()
            return answer

        return self.enter(asked)

    def _said_yes(self) -> None:
        stages = tuple((scope.name, scope.epoch, scope.incarnation) for change in self.told for scope in change.scopes)
        self._shared.record(Answered(self._universe.now_ms, self.name, stages))

    def wait(self, milliseconds: int) -> None:
        """Stand still in the middle of something: a slow store, or the whole process stopped."""
        self.waiting, self.frozen = True, self._universe.choose.random() < 0.5
        frozen = self.frozen
        # Whatever is due here is due for another as well.
        other = self._universe.choose.choice(self._shared.nodes)
        self._universe.later(self._universe.choose.randrange(milliseconds + 1), other.cycle)
        self._universe.pass_time(milliseconds)
        self.waiting = self.frozen = False
        if frozen:
            self._awake_ms = self._universe.now_ms

    def stop(self, milliseconds: int) -> None:
        """As SIGSTOP between two things it does."""
        if self._universe.hanging < MAX_HANGING:
            self.enter(lambda: self.wait(milliseconds))

    def lose_store(self, milliseconds: int) -> None:
        """Until just now it could be looked at."""
        self.enter(self._catch_up)
        self.away_until_ms = self._universe.now_ms + milliseconds
        self._universe.say(f"{self.name} has lost its store")

    # -- the ticker

    def cycle(self) -> None:
        self.enter(self._cycle)

    def _cycle(self) -> None:
        self._catch_up()
        if not self._recovered:
            self.parts.ticker.recover()
            self._recovered = True
        for _ in range(MAX_CYCLES):
            if not self.parts.ticker.cycle():
                break
        self._write_seen()

    def write_seen(self) -> None:
        self.enter(self._write_seen)

    def _write_seen(self) -> None:
        self.side.write_seen()
        self.side.write_sightings()

    # -- the follower

    def bell(self) -> Callable[[], None]:
        """What a bell that rings now will do when it is heard: nothing, if it is heard by another life."""
        life = self.name

        def heard() -> None:
            if self.name != life or not self._answers():
                return
            if not self.busy:
                self.enter(lambda: self._look(self._universe.now_ms))
            elif self._may_look():
                self._look(self._universe.now_ms)

        return heard

    def _answers(self) -> bool:
        return self.alive and self._up and not self.frozen

    def _may_look(self) -> bool:
        """Beside a call that hangs, which must not have memory in its hands: it would be waited for."""
        return not self._looking and not self.side.documents._lock.locked()

    def _catch_up(self) -> None:
        """The last of the looks of every second."""
        now_ms = self._universe.now_ms
        if now_ms - self._looked_ms >= LOOK_EVERY_MS:
            self._look(max(now_ms - self._universe.choose.randrange(LOOK_EVERY_MS), self._awake_ms))

    def _look(self, at_ms: int) -> None:
        self._looked_ms = self.feed.at_ms = at_ms
        self._looking = True
        follower = self.parts.follower
        assert follower is not None
        try:
            follower.look(0.0)
        except StoreUnavailable:
            self._universe.say(f"{self.name} could not look")
        finally:
            self._looking = False

    # -- guests

    def answer(self, scope: str, machine: str, request: Request) -> "Connection | None":
        """None: no answer at all. A busy node still answers what memory can."""
        if not self._answers():
            return None
        connection = Connection(self.side.endpoint, self.side.documents.callers.named(scope, machine))
        if self.busy:
            if self._may_look():
                self._catch_up()
            if not self._from_memory(connection, request):
                return None
            Exchange(connection, request).start(None)
        else:
            begun_ms = self._universe.now_ms
            self.enter(lambda: self._answer(connection, request))
            if self._universe.now_ms - begun_ms > PATIENCE_MS:
                return None
        return connection if connection.status else None

    def _answer(self, connection: "Connection", request: Request) -> None:
        self.told.clear()
        self._catch_up()
        Exchange(connection, request).start(None)
        if connection.status == 200:
            self._said_yes()

    def _from_memory(self, connection: "Connection", request: Request) -> bool:
        """Whether the writer, which may be what hangs, is not needed."""
        view = connection.caller.view if connection.caller is not None else None
        tags = request.values("if-none-match")
        tag = plain_tag(tags[0]) if tags else None
        return (
            request.method == "GET"
            and view is not None
            and view.state.enabled
            and not (tag is not None and self.side.endpoint.is_behind(view.state, tag))
        )


class AtOnce:
    """The writer's thread and the guests' loop, where there is but one thread: what is asked for is done."""

    def submit(self, call: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except ForewarnError as error:
            if isinstance(error, InvariantBroken):
                raise
            future.set_exception(error)
        return future

    def call_from_thread(self, call: Callable[[], Any]) -> None:
        call()


class Connection:
    """A guest's connection, as far as an exchange deals with it."""

    proxied = False
    interface = ""
    address = "10.0.0.1"
    gone = False

    def __init__(self, endpoint: Endpoint, caller: Caller | None) -> None:
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

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        del keep
        head, _, body = data.partition(b"\r\n\r\n")
        tags = [line[6:] for line in head.split(b"\r\n") if line.startswith(b"ETag: ")]
        self.status, self.body, self.etag = status, body, tags[0].decode()

    def exchange_finished(self) -> None:
        """The connection would read on."""
