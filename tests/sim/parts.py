"""The simulated surroundings of a node: its connection to the shared database, and its executor.

At every call of the store or the executor, a node may be stopped, slowed down, refused or killed.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, StoreUnavailable
from forewarn.core.fast_init import replace
from forewarn.core.order_verbs import OrderReport, Outcome
from forewarn.executors import Executor, HostWork, Progress, Unknown, Work
from forewarn.service.leases import TICKER_LEASE
from forewarn.store import EventFirstSeen, FeedPosition, FeedUpdate, Focus, MachineLastSeen
from tests.sim.database import Database, Tables
from tests.sim.history import Acknowledged, Entry, ExecutorCalled, Forgotten, StatusRequested
from tests.sim.universe import MAX_HANGING, Crash, Universe

CALL_WITHIN_MS = 5_000
MORE_OFTEN = 5
# Simulated nodes act less often than every second, so their leases last longer.
LEASE_TIMES = 15


class Life(Protocol):
    """The part of a node that its store and executor use."""

    name: str
    away_until_ms: int
    saved_changes: list[Change]
    waiting: bool
    feed: "NodeFeed"

    def wait(self, milliseconds: int) -> None:
        """Hang while the other nodes go on."""


def disturb(universe: Universe, life: Life, call: str) -> None:
    """Let the node hang or die, by chance; called before and after every call."""
    faults = universe.faults
    risk = faults.slow + faults.crash
    if not risk or not faults.on or life.waiting:
        return
    drawn = universe.random()
    if drawn < faults.slow:
        hang(universe, life, call)
    elif drawn < risk:
        universe.log(f"{life.name} dies in {call}")
        raise Crash


def hang(universe: Universe, life: Life, call: str) -> None:
    if universe.hanging < MAX_HANGING and not life.waiting:
        milliseconds = universe.about_ms(universe.faults.slow_s)
        universe.log(f"{life.name} hangs in {call} for {milliseconds / 1000:.1f} s")
        life.wait(milliseconds)


class NodeStore:
    """A node's connection to the shared database. A call may fail before or after it took effect."""

    def __init__(self, database: Database, universe: Universe, life: Life, record: Callable[[Entry], None]) -> None:
        self._database = database
        self._universe = universe
        self._life = life
        self._record = record

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(Tables, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._before(name)
            answer = method(self._database.memory, *arguments, **keywords)
            self._after(name)
            return answer

        self.__dict__[name] = call
        return call

    def snapshot(self, focus: Focus) -> Snapshot:
        """Read a snapshot; agree on a new server first, if there is one, as the real store does."""
        self._before("snapshot")
        database = self._database
        if database.agreed != database.timeline:
            database.adopt()
        snapshot = database.memory.snapshot(focus)
        self._after("snapshot")
        return snapshot

    def apply(self, change: Change) -> None:
        start_ms = self._universe.now_ms
        self._before("apply")
        self._transaction(change, start_ms)
        name = self._life.name
        self._universe.log(lambda: f"{name} saved {summary(change)}")
        self._after("apply")
        self._record(Acknowledged(self._universe.now_ms, self._life.name, change))
        self._life.saved_changes.append(change)

    def _transaction(self, change: Change, start_ms: int) -> None:
        """Commit the change. The transaction may be open for a while, in which others commit or the server fails over."""
        xid, timeline = self._database.begin(), self._database.timeline
        try:
            disturb(self._universe, self._life, "the transaction")
            if self._universe.chance(self._universe.faults.slow_commit):
                hang(self._universe, self._life, "the commit")
            if timeline != self._database.timeline or self._universe.now_ms - start_ms > CALL_WITHIN_MS:
                raise StoreUnavailable("the transaction took too long and was rolled back")
            if self._universe.chance(self._universe.faults.conflict):
                raise Conflict("two transactions conflicted, and this one was rolled back")
            if timeline != self._database.agreed:
                self._database.adopt()
                raise Conflict("the database has failed over: decide again on what it holds now")
            self._database.commit(xid, self._life.name, change)
        finally:
            self._database.end(xid)

    def record_last_seen(self, seen: Collection[MachineLastSeen]) -> None:
        self._called("record_last_seen", self._database.write, "record_last_seen", seen)

    def record_first_seen(self, sightings: Collection[EventFirstSeen]) -> None:
        self._called("record_first_seen", self._database.write, "record_first_seen", sightings)

    # -- shared

    def feed(self) -> "NodeFeed":
        return self._life.feed

    def poll(self, since: FeedPosition | None, at_ms: int) -> FeedUpdate:
        """Return the changes since the position, as of that moment; agree on a new server first, if there is one."""
        self._before("look")
        start_ms, database = self._universe.now_ms, self._database
        news = database.poll(since, at_ms)
        if database.agreed != database.timeline and database.adopt():
            news = database.poll(since, self._universe.now_ms)
        self._after("look")
        took_s = (self._universe.now_ms - start_ms) / 1_000
        return replace(news, received_s=news.sent_s + took_s) if took_s else news

    def now(self) -> datetime:
        """Return the time. A node hangs here more often, because right after reading the clock is the worst moment."""
        self._before("now")
        now = self._universe.wall()
        if self._universe.chance(MORE_OFTEN * self._universe.faults.slow):
            hang(self._universe, self._life, "now")
        self._after("now")
        return now

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        lasts_s = seconds * LEASE_TIMES
        if name == TICKER_LEASE and self._universe.faults.all_tick:
            lasts_s = 0.0
        return bool(self._called("take_lease", self._database.take_lease, name, node, lasts_s))

    def drop_lease(self, name: str, node: str) -> None:
        self._called("drop_lease", self._database.drop_lease, name, node)

    def live_nodes(self, past_s: float = 0.0, *, kind: str = "node") -> set[str]:
        lasts_s = past_s * LEASE_TIMES
        return cast(set[str], self._called("live_nodes", self._database.live_nodes, lasts_s, kind))

    def forget_changes(self, limit: int) -> int:
        del limit
        return int(self._called("forget_changes", self._database.forget_changes))

    def _called(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self._before(name)
        answer = call(*arguments)
        self._after(name)
        return answer

    def _before(self, call: str) -> None:
        universe, life = self._universe, self._life
        faults = universe.faults
        if faults.on and (faults.slow or faults.crash):
            disturb(universe, life, call)
        if universe.now_ms < life.away_until_ms or (
            faults.fail_before and faults.on and universe.random() < faults.fail_before
        ):
            raise StoreUnavailable(f"the store was away at {call}")

    def _after(self, call: str) -> None:
        universe = self._universe
        faults = universe.faults
        if not faults.on:
            return
        if faults.slow or faults.crash:
            disturb(universe, self._life, call)
        if faults.fail_after and faults.on and universe.random() < faults.fail_after:
            universe.log(f"{self._life.name} gets no answer to {call}")
            raise StoreUnavailable(f"the store did not answer {call}: it may have happened or not")


class NodeFeed:
    """A node's feed of changes. Its follower reads just before its knowledge is used, not every second."""

    def __init__(self, store: NodeStore, universe: Universe) -> None:
        self._store = store
        self._universe = universe
        # The moment as of which the feed is read: up to a second ago.
        self.at_ms = universe.now_ms

    def poll(self, since: FeedPosition | None, wait_s: float) -> FeedUpdate:
        del wait_s
        return self._store.poll(since, self.at_ms)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def summary(change: Change) -> str:
    """Return the change as one line of the trace."""
    parts = [f"{s.name}={s.epoch}.{s.incarnation}{'' if s.enabled else ' off'}" for s in change.scopes]
    parts += [f"{_short(e.id)} {e.status}" for e in change.events]
    parts += [f"{_short(a.event_id)} approved by {a.machine or 'operator'}" for a in change.approvals]
    parts += [f"{o.host} order {_short(o.id)}/{o.attempt} {o.phase} {o.state}".strip() for o in change.orders]
    parts += [f"{m} on {m.host}" for m in change.machines]
    parts += [f"{h.name} {'cordoned' if h.cordoned else 'not cordoned'}" for h in change.hosts]
    parts += [f"maintenance {_short(m.id)} {m.status}" for m in change.maintenances]
    return ", ".join(parts) or "nothing visible"


def _short(id_: str) -> str:
    return id_[:8].lstrip("0")


class Works:
    """The work that the executors of all nodes do: an order known by id and attempt is not done again.

    Work that must not be repeated is known only in the state folder of the node that began it, and is never forgotten there.
    Instead it may be lost: nobody learns how it ended.
    """

    def __init__(self, universe: Universe, record: Callable[[Entry], None]) -> None:
        self._universe = universe
        self._record = record
        # By state folder, id and attempt; all nodes share one folder where work may be repeated.
        self._known: dict[tuple[str, str, int], tuple[int, Outcome | Unknown]] = {}

    def _in_folder(self, life: str, key: tuple[str, int]) -> tuple[str, str, int]:
        return "" if self._universe.repeatable else life.partition(":")[0], *key

    def begin(self, life: str, work: Work | HostWork) -> None:
        key = (work.order.id, work.order.attempt)
        known = self._in_folder(life, key)
        performed = known not in self._known
        moved: dict[tuple[str, str], str] = {}
        if performed:
            ok = not self._universe.chance(self._universe.faults.work_fails)
            ends_ms = self._universe.now_ms + self._universe.about_ms(120)
            if isinstance(work, Work):
                moved = self._moved(work)
                ok = ok and len(moved) == len(work.targets)
            self._known[known] = (ends_ms, Outcome(ok, "done" if ok else "broke", new_hosts=moved or None))
        self._universe.log(f"{life} executes {_short(key[0])}/{key[1]}{'' if performed else ', which was known'}")
        self._record(ExecutorCalled(self._universe.now_ms, life, *key, performed, tuple(sorted({*moved.values()}))))

    def _moved(self, work: Work) -> dict[tuple[str, str], str]:
        """Return the new hosts of the machines that have somewhere to go: one of the best two, as a host may be full."""
        choose = self._universe.choose
        return {
            (work.event.scope, name): choose.choice(hosts[:2]) for name, hosts in sorted(work.targets.items()) if hosts
        }

    def status(self, life: str, key: tuple[str, int]) -> Progress | Outcome | Unknown:
        answer: Progress | Outcome | Unknown = Unknown()
        if self._in_folder(life, key) in self._known:
            answer = self.outcome(life, key) or Progress.RUNNING
        self._universe.log(f"{life} requests the status of {_short(key[0])}/{key[1]}: {answer}")
        self._record(StatusRequested(self._universe.now_ms, life, *key, isinstance(answer, Unknown)))
        return answer

    def outcome(self, life: str, key: tuple[str, int]) -> Outcome | Unknown | None:
        """Return how the order ended, if it has."""
        ends_ms, outcome = self._known.get(self._in_folder(life, key), (self._universe.now_ms + 1, None))
        return outcome if ends_ms <= self._universe.now_ms else None

    def end_ms(self, life: str, key: tuple[str, int]) -> int | None:
        known = self._in_folder(life, key)
        return self._known[known][0] if known in self._known else None

    def forget(self) -> None:
        """Forget one of the known orders, or lose it where work must not be repeated."""
        if not self._known:
            return
        known = self._universe.choose.choice(sorted(self._known))
        if self._universe.repeatable:
            del self._known[known]
            self._universe.log(f"the executor forgets {_short(known[1])}/{known[2]}")
            self._record(Forgotten(self._universe.now_ms, known[1], known[2]))
        else:
            self._known[known] = (self._universe.now_ms, Unknown("lost"))
            self._universe.log(f"the executor loses {_short(known[1])}/{known[2]}")


class NodeExecutor(Executor):
    """A node's executor of events or of hosts. It keeps the orders it waits for only in memory."""

    name = "hands"

    def __init__(self, works: Works, universe: Universe, life: Life) -> None:
        self.repeatable = universe.repeatable
        self._works = works
        self._universe = universe
        self._life = life
        self._awaited: dict[tuple[str, int], None] = {}

    def status(self, work: Work | HostWork) -> Progress | Outcome | Unknown:
        disturb(self._universe, self._life, "status")
        return self._works.status(self._life.name, (work.order.id, work.order.attempt))

    def free_slots(self) -> int:
        return 3

    def take(self, work: Work | HostWork) -> None:
        disturb(self._universe, self._life, "begin")
        if self._universe.chance(self._universe.faults.cannot_begin):
            raise OSError("the executor cannot do the work")
        self._works.begin(self._life.name, work)
        self.watch(work)
        disturb(self._universe, self._life, "begin")

    def watch(self, work: Work | HostWork) -> None:
        self._awaited[work.order.id, work.order.attempt] = None

    def reports(self, now: datetime) -> list[OrderReport]:
        del now
        ended = {key: outcome for key in self._awaited if (outcome := self._outcome(key)) is not None}
        for key in ended:
            del self._awaited[key]
        reports = [OrderReport(*key, outcome) for key, outcome in ended.items()]
        return reports * 2 if reports and self._universe.chance(self._universe.faults.report_twice) else reports

    def _outcome(self, key: tuple[str, int]) -> Outcome | Unknown | None:
        return self._works.outcome(self._life.name, key)

    def next_report(self) -> datetime | None:
        ends = [end_ms for key in self._awaited if (end_ms := self._works.end_ms(self._life.name, key)) is not None]
        return self._universe.wall() + timedelta(milliseconds=min(ends) - self._universe.now_ms) if ends else None
