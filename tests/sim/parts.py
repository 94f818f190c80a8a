"""What a node stands on, simulated: its clock, its way to the shared store, and the executor that does the work.

Every call of the store and of the executor is a place where a node may be stopped, slowed down, refused or killed.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Protocol

from forewarn.clock import Jump
from forewarn.core.errors import Conflict, Refused, StoreUnavailable
from forewarn.core.lifecycle import Outcome, Report
from forewarn.core.model import Change
from forewarn.executors import Progress, Work
from forewarn.store.memory import MemoryStore
from tests.sim.history import Acknowledged, Asked, Begun, Committed, Entry, Forgotten
from tests.sim.universe import MAX_HANGING, Crash, Universe

CALL_WITHIN_MS = 5_000


class Life(Protocol):
    """One life of a node, as far as its parts deal with it."""

    name: str
    off_ms: int
    away_until_ms: int
    told: list[Change]
    waiting: bool

    def wait(self, milliseconds: int) -> None:
        """Stand still while the others go on."""


class NodeClock:
    """The wall clock as this node reads it: off by a little, and where everybody's jumps it jumps along.

    A node may be stopped at any moment; the worst is right after it looked at the clock.
    """

    name = "system"
    steady = False

    def __init__(self, universe: Universe, life: Life) -> None:
        self._universe = universe
        self._life = life

    def glance(self) -> datetime:
        return self._universe.wall(self._life.off_ms)

    def jump(self) -> Jump | None:
        """A jump is everybody's here: there is no boot clock to hold it against."""
        return None

    def note_jump(self, jump: Jump) -> None:
        """There is none."""

    def now(self) -> datetime:
        now = self._universe.wall(self._life.off_ms)
        if self._universe.chance(self._universe.faults.slow / 10):
            hang(self._universe, self._life, "the thought of it")
        return now

    def seconds_until(self, moment: datetime) -> float | None:
        return max(0.0, (moment - self.now()).total_seconds())

    def move_to(self, moment: datetime) -> None:
        raise Refused(f"time is not ours to move to {moment}")


def disturb(universe: Universe, life: Life, call: str) -> None:
    """Before and after every call: a node may be slow here, or die."""
    faults = universe.faults
    if universe.chance(faults.slow):
        hang(universe, life, call)
    if universe.chance(faults.crash):
        universe.say(f"{life.name} dies in {call}")
        raise Crash


def hang(universe: Universe, life: Life, call: str) -> None:
    if universe.hanging < MAX_HANGING and not life.waiting:
        milliseconds = universe.about_ms(universe.faults.slow_s)
        universe.say(f"{life.name} hangs in {call} for {milliseconds / 1000:.1f} s")
        life.wait(milliseconds)


class NodeStore:
    """One node's way to the store all nodes share. A call may fail before or after it took effect: nobody can tell."""

    def __init__(
        self,
        shared: MemoryStore,
        universe: Universe,
        life: Life,
        record: Callable[[Entry], None],
        ring: Callable[[Change], None],
    ) -> None:
        self._shared = shared
        self._universe = universe
        self._life = life
        self._record = record
        self._ring_others = ring

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._shared, name)

        def call(*arguments: Any) -> Any:
            self._before(name)
            answer = method(*arguments)
            self._after(name)
            return answer

        self.__dict__[name] = call
        return call

    def apply(self, change: Change) -> None:
        begun_ms = self._universe.now_ms
        self._before("apply")
        if self._universe.now_ms - begun_ms > CALL_WITHIN_MS:
            raise StoreUnavailable("a transaction that stands still is rolled back")
        if self._universe.chance(self._universe.faults.conflict):
            raise Conflict("two transactions met, and this one gave way")
        self._shared.apply(change)
        self._universe.say(f"{self._life.name} saved {told(change)}")
        self._record(Committed(self._universe.now_ms, self._life.name, change))
        self._ring_others(change)
        self._after("apply")
        self._record(Acknowledged(self._universe.now_ms, self._life.name, change))
        self._life.told.append(change)

    def _before(self, call: str) -> None:
        disturb(self._universe, self._life, call)
        if self._universe.now_ms < self._life.away_until_ms or self._universe.chance(self._universe.faults.fail_before):
            raise StoreUnavailable(f"the store was away at {call}")

    def _after(self, call: str) -> None:
        disturb(self._universe, self._life, call)
        if self._universe.chance(self._universe.faults.fail_after):
            self._universe.say(f"{self._life.name} does not hear the end of {call}")
            raise StoreUnavailable(f"the store did not answer {call}: it may have happened or not")


def told(change: Change) -> str:
    """A change in a line of the trace."""
    parts = [f"{s.name}={s.epoch}.{s.incarnation}{'' if s.enabled else ' off'}" for s in change.scopes]
    parts += [f"{_short(e.id)} {e.status}" for e in change.events]
    parts += [f"{_short(a.event_id)} approved by {a.machine or 'operator'}" for a in change.approvals]
    parts += [f"order {_short(o.id)}/{o.attempt} {o.state}" for o in change.orders]
    parts += [f"maintenance {_short(m.id)} {m.status}" for m in change.maintenances]
    return ", ".join(parts) or "nothing visible"


def _short(id_: str) -> str:
    return id_[:8].lstrip("0")


class Works:
    """The world the executors of all nodes act on: an order it knows by id and attempt is not done again."""

    def __init__(self, universe: Universe, record: Callable[[Entry], None]) -> None:
        self._universe = universe
        self._record = record
        self._known: dict[tuple[str, int], tuple[int, Outcome]] = {}

    def begin(self, life: str, key: tuple[str, int]) -> None:
        performed = key not in self._known
        if performed:
            ok = not self._universe.chance(self._universe.faults.work_fails)
            ends_ms = self._universe.now_ms + self._universe.about_ms(120)
            self._known[key] = (ends_ms, Outcome(ok, "done" if ok else "broke"))
        self._universe.say(f"{life} begins {_short(key[0])}/{key[1]}{'' if performed else ', which was known'}")
        self._record(Begun(self._universe.now_ms, life, *key, performed))

    def status(self, life: str, key: tuple[str, int]) -> Progress | Outcome:
        answer: Progress | Outcome = Progress.UNKNOWN
        if key in self._known:
            answer = self.outcome(key) or Progress.RUNNING
        self._universe.say(f"{life} asks for {_short(key[0])}/{key[1]}: {answer}")
        self._record(Asked(self._universe.now_ms, life, *key, answer is Progress.UNKNOWN))
        return answer

    def outcome(self, key: tuple[str, int]) -> Outcome | None:
        """How it ended, if it has."""
        ends_ms, outcome = self._known.get(key, (self._universe.now_ms + 1, None))
        return outcome if ends_ms <= self._universe.now_ms else None

    def end_ms(self, key: tuple[str, int]) -> int | None:
        return self._known[key][0] if key in self._known else None

    def forget(self) -> None:
        """One of the orders it knows, as if it had never heard of it."""
        if self._known:
            key = self._universe.choose.choice(sorted(self._known))
            del self._known[key]
            self._universe.say(f"the executor forgets {_short(key[0])}/{key[1]}")
            self._record(Forgotten(self._universe.now_ms, *key))


class NodeExecutor:
    """A node's hand in that world. What it waits for is in its memory alone."""

    takes_orders = True

    def __init__(self, works: Works, universe: Universe, life: Life, number: int) -> None:
        # Each node's own: a node takes up what its earlier lives left, and nobody else's.
        self.name = f"executor-{number}"
        self._works = works
        self._universe = universe
        self._life = life
        self._awaited: dict[tuple[str, int], None] = {}

    def status(self, work: Work) -> Progress | Outcome:
        disturb(self._universe, self._life, "status")
        return self._works.status(self._life.name, (work.order.id, work.order.attempt))

    def free_slots(self) -> int:
        return 3

    def begin(self, work: Work) -> None:
        disturb(self._universe, self._life, "begin")
        if self._universe.chance(self._universe.faults.cannot_begin):
            raise OSError("there is nobody to do it")
        self._works.begin(self._life.name, (work.order.id, work.order.attempt))
        self.watch(work)
        disturb(self._universe, self._life, "begin")

    def watch(self, work: Work) -> None:
        self._awaited[work.order.id, work.order.attempt] = None

    def reports(self, now: datetime) -> list[Report]:
        del now
        ended = {key: outcome for key in self._awaited if (outcome := self._works.outcome(key)) is not None}
        for key in ended:
            del self._awaited[key]
        reports = [Report(*key, outcome) for key, outcome in ended.items()]
        return reports * 2 if reports and self._universe.chance(self._universe.faults.report_twice) else reports

    def next_report(self) -> datetime | None:
        ends = [end_ms for key in self._awaited if (end_ms := self._works.end_ms(key)) is not None]
        return self._universe.wall(self._life.off_ms + min(ends) - self._universe.now_ms) if ends else None

    def settled(self, report: Report) -> None:
        """It could be forgotten now; the world keeps it."""

    def tidy(self, running: Collection[Work]) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing is held."""
