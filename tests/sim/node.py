"""A node: the real control, ticker, documents and guest endpoint on simulated parts, one life after the other.

Several lives never overlap: a node that dies loses every object, and its next life is built anew. While a node is busy (one
of its calls takes long) nobody else gets into its objects; polls that memory alone can answer still are, unless it is frozen.

Between nodes it does what `serve` on a shared store does: a bell names the scopes to read again; once a second everything is
read again, for a bell may be lost; a guest that brings a newer tag than ours makes us read before we answer; and with
memory older than MAX_STALE_MS no document is shown.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, cast

from forewarn.control import Control
from forewarn.core.errors import Conflict, ForewarnError, InvariantBroken, RequestError, StoreUnavailable
from forewarn.core.model import Change, Scope
from forewarn.store import Store
from forewarn.store.memory import MemoryStore
from forewarn.ticker import Ticker
from forewarn.web.answers import Answer, Request, plain_tag
from forewarn.web.attendance import Attendance
from forewarn.web.documents import Caller, Documents
from forewarn.web.exchange import Exchange
from forewarn.web.guests import Guests, Limits
from forewarn.web.identity import Trust
from tests.sim.history import Alarm, Answered, Entry
from tests.sim.parts import NodeClock, NodeExecutor, NodeStore, Works, hang
from tests.sim.universe import MAX_HANGING, Crash, Universe

ORDER_TIMEOUT_S = 3_000
DISABLE_AFTER_S = 1_200
REREAD_MS = 1_000
MAX_STALE_MS = 20_000
MAX_CYCLES = 50
# A guest that got no answer by then has hung up.
PATIENCE_MS = 10_000


class Shared:
    """What all nodes have in common: the store, the world of work, the bells between them, and the record."""

    def __init__(self, universe: Universe, record: Callable[[Entry], None]) -> None:
        self.universe = universe
        self.record = record
        self.store = MemoryStore()
        self.works = Works(universe, record)
        self.nodes: list[Node] = []
        # What was saved, in order: whoever knows how far it has read knows what it missed.
        self.log: list[tuple[int, Change]] = []
        self.curious: Callable[[Change], None] = lambda _: None

    def ring(self, change: Change) -> None:
        """The store tells every node that listens, sooner or later, or never."""
        self.log.append((self.universe.now_ms, change))
        self.curious(change)
        for node in self.nodes if change.scopes else ():
            if not self.universe.chance(self.universe.faults.bell_lost):
                late_ms = self.universe.about_ms(self.universe.faults.bell_late_s) if self.universe.faults.on else 0
                self.universe.later(late_ms, node.bell(change))


class Node:
    """Everything below `start` belongs to the present life."""

    control: Control
    ticker: Ticker
    documents: Documents
    store: Store

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._universe = shared.universe
        self._number = number
        self._lives = 0
        self.name = f"n{number}.0"
        self.alive = self.busy = self.frozen = self.waiting = False
        self.off_ms = self.away_until_ms = 0
        self.told: list[Change] = []

    # -- life and death

    def start(self) -> None:
        """A new life, if it gets that far."""
        if self.alive:
            return
        self._lives += 1
        self.name = f"n{self._number}.{self._lives}"
        self._recovered = False
        self.alive = True
        if self.enter(self._build) is not True:
            self.die()

    def _build(self) -> bool:
        shared, universe = self._shared, self._universe
        self.store = cast(Store, NodeStore(shared.store, universe, self, shared.record, shared.ring))
        clock = NodeClock(universe, self)
        executor = NodeExecutor(shared.works, universe, self, self._number)
        self.control = Control(
            self.store,
            clock,
            new_id=self._new_id,
            order_timeout_s=ORDER_TIMEOUT_S,
            monotonic=lambda: universe.now_ms / 1_000,
        )
        self.documents = Documents(self.store, clock)
        self._fresh_ms, self._read_to = universe.now_ms, len(shared.log)
        self.documents.load()
        self.control.listen(self.documents.heard)
        self._guests = Guests(
            self.documents,
            self.control,
            cast(Any, AtOnce()),
            cast(Any, AtOnce()),
            limits=Limits(requests_per_s=0),
            trust=Trust(),
        )
        self._attendance = Attendance(self.documents, self.control, self.store, disable_after_s=DISABLE_AFTER_S)
        self.ticker = Ticker(self.control, self.store, clock, executor, node=self.name, retain_history_s=0)
        self.ticker.add_chore(self._attendance)
        universe.say(f"{self.name} is up")
        return True

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
        self._universe.pass_time(milliseconds)
        self.waiting = self.frozen = False

    def stop(self, milliseconds: int) -> None:
        """As SIGSTOP between two things it does."""
        if self._universe.hanging < MAX_HANGING:
            self.enter(lambda: self.wait(milliseconds))

    # -- the ticker

    def cycle(self) -> None:
        self.enter(self._cycle)

    def _cycle(self) -> None:
        if not self._recovered:
            self.ticker.recover()
            self._recovered = True
        self.reread()
        for _ in range(MAX_CYCLES):
            if not self.ticker.cycle():
                break
        self._write_seen()

    def write_seen(self) -> None:
        self.enter(self._write_seen)

    def _write_seen(self) -> None:
        if seen := self._guests.take_seen():
            try:
                self._attendance.write(seen)
            except StoreUnavailable:
                self._guests.not_written(seen)
                raise

    # -- memory

    def bell(self, change: Change) -> Callable[[], None]:
        """What a bell that rings now will do when it is heard: nothing, if it is heard by another life."""
        life = self.name

        def heard() -> None:
            if self.busy and self.name == life:
                self._universe.later(1_000, heard)
            elif self.name == life:
                self.enter(lambda: self.read([change]))

        return heard

    def read(self, changes: Collection[Change]) -> None:
        """What these changed, as it is now."""
        scopes = {scope.name: scope for change in changes for scope in change.scopes}
        removed = tuple(key for change in changes for key in change.removed_machines)
        if scopes:
            self.documents.heard(
                Change(at=self._universe.wall(), scopes=tuple(scopes.values()), removed_machines=removed)
            )

    def reread(self) -> None:
        """Once a second, whatever bells were heard: all that was saved until the last time, some part of a second ago."""
        if self._universe.now_ms - self._fresh_ms < REREAD_MS:
            return
        last_ms = self._universe.now_ms - self._universe.choose.randrange(REREAD_MS)
        self.store.next_wakeup()  # the question itself, which may fail
        end = bisect_right(self._shared.log, last_ms, lo=self._read_to, key=lambda saved: saved[0])
        self.read([change for _, change in self._shared.log[self._read_to : end]])
        self._fresh_ms, self._read_to = last_ms, end

    # -- guests

    def answer(self, scope: str, machine: str, request: Request) -> "Connection | None":
        """None: no answer at all. A busy node still answers what memory can."""
        if not self.alive or self.frozen:
            return None
        connection = Connection(self._guests, self.documents.named(scope, machine))
        if self.busy:
            if not self._from_memory(connection, request):
                return None
            Exchange(connection, request).begin(None)
        else:
            begun_ms = self._universe.now_ms
            self.enter(lambda: self._answer(connection, request))
            if self._universe.now_ms - begun_ms > PATIENCE_MS:
                return None
        return connection if connection.status else None

    def _answer(self, connection: "Connection", request: Request) -> None:
        self.told.clear()
        try:
            self.reread()
        except StoreUnavailable:
            self._universe.say(f"{self.name} could not read again")
        caller = connection.caller
        if self._universe.now_ms - self._fresh_ms > MAX_STALE_MS:
            return
        if caller is not None and caller.view is not None and self._is_newer(caller, request):
            self.documents.refresh([caller.scope])
        Exchange(connection, request).begin(None)
        if connection.status == 200:
            self._said_yes()

    def _from_memory(self, connection: "Connection", request: Request) -> bool:
        caller = connection.caller
        return (
            request.method == "GET"
            and caller is not None
            and caller.view is not None
            and caller.view.state.enabled
            and not self._is_newer(caller, request)
            and self._universe.now_ms - self._fresh_ms <= MAX_STALE_MS
        )

    def _is_newer(self, caller: Caller, request: Request) -> bool:
        """Whether the guest has seen more than we have."""
        tags = request.values("if-none-match")
        view = caller.view
        return bool(tags) and view is not None and stage(plain_tag(tags[0]) or "") > stage_of(view.state.scope)


def stage(etag: str) -> tuple[int, int]:
    """(epoch, incarnation) of one of our tags; (0, 0) for anything else."""
    incarnation, _, epoch = etag.strip('"').partition("-")
    return (int(epoch or 1), int(incarnation)) if incarnation.isdigit() and (not epoch or epoch.isdigit()) else (0, 0)


def stage_of(scope: Scope) -> tuple[int, int]:
    return (max(scope.epoch, 1), scope.incarnation)


class AtOnce:
    """The writer's thread and the guests' loop, where there is but one thread: what is asked for is done."""

    def submit(self, call: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(call())
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

    def __init__(self, guests: Guests, caller: Caller | None) -> None:
        self.guests = guests
        self.caller = caller
        self.status = 0
        self.etag = ""
        self.body = b""

    def identify(self) -> Caller | None:
        return self.caller

    def keeps(self, request: Request) -> bool:
        return request.keep_alive

    def answer(self, answer: Answer, request: Request) -> None:
        del request
        self.status, self.body = answer.status, answer.body
        for line in answer.extra:
            name, _, value = line.partition(b": ")
            if name == b"ETag":
                self.etag = value.decode()

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        del keep
        head, _, body = data.partition(b"\r\n\r\n")
        tags = [line[6:] for line in head.split(b"\r\n") if line.startswith(b"ETag: ")]
        self.status, self.body, self.etag = status, body, tags[0].decode()

    def answered(self) -> None:
        """The connection would read on."""
