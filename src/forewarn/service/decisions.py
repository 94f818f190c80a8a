"""How a decision becomes a saved change: read, decide, save, notify the listeners; decide again after a conflict.

Nothing here knows a use case or a rule. `control` builds the use cases on it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from forewarn.core.change import Change, Snapshot
from forewarn.core.clock_hold import hold_clock
from forewarn.core.errors import Conflict, KeyReused, ServiceError, StoreUnavailable
from forewarn.core.fast_init import replace
from forewarn.core.host_orders import OVER
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import UNFINISHED, ClockHold, HostMode, OrderState, Scope, StoreHold
from forewarn.core.operator_model import Receipt
from forewarn.service.clock import Clock
from forewarn.store import MAX_PAGE, Focus, MaintenanceQuery, Store

MAX_TRIES = 20
# There are at least two tries, even if the first took longer than MAX_DECISION_AGE_S.
MIN_TRIES = 2
# Notice counts from the moment of the decision: a process that was stopped between deciding and saving must decide again.
MAX_DECISION_AGE_S = 5.0
# A decision about many events takes longer. Each event adds this much to the allowed age, up to the limit below.
MORE_AGE_PER_EVENT_S = 0.001
MAX_MORE_AGE_S = 55.0

MAX_WAITING_HOSTS = 100_000
DEFAULT_MAX_RESCHEDULES = 3
# The holds of the clock and of the store, and nothing else.
HOLDS = Focus(whole_maintenances=False, open_events=False)

log = logging.getLogger("forewarn.service.decisions")

Listener = Callable[[Change], None]
Decision = Callable[[Snapshot, datetime], Change]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Once:
    """A request with an Idempotency-Key: `digest` tells whether a second request with the key is the same request.

    `response` describes the response to save with the change. Only the function that renders receipts reads it.
    """

    token_id: str
    key: str
    digest: str
    response: Any = None


# Renders the response to save with a change: its status and body.
RenderReceipt = Callable[[Once, Any], tuple[int, str]]


def render_nothing(*_: object) -> tuple[int, str]:
    """Save an empty response."""
    return 200, ""


class RepeatedRequest(Exception):
    """The request was answered before; `receipt` holds the saved response."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__(receipt.key)
        self.receipt = receipt


class Decisions:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        new_id: Callable[[], str],
        order_timeout_s: int,
        max_reschedules: int = DEFAULT_MAX_RESCHEDULES,
        node: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[int], None] = lambda _: None,
        render_receipt: RenderReceipt = render_nothing,
    ) -> None:
        """`pause` waits a little before another try, given the number of tries so far.

        `render_receipt` runs inside the decision of a request with an Idempotency-Key, and again after each conflict.
        """
        self._pause = pause
        self._render_receipt = render_receipt
        self._node = node
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._order_timeout_s = order_timeout_s
        self._max_reschedules = max_reschedules
        self._monotonic = monotonic
        self._listeners: list[Listener] = []
        self._unchanged_listeners: list[Callable[[Iterable[Scope]], None]] = []
        # One decision at a time in this process: a version check should only fail because of another process.
        self._deciding = threading.Lock()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every change after it is saved and before the request that made it is answered."""
        self._listeners.append(listener)

    def listen_to_unchanged(self, listener: Callable[[Iterable[Scope]], None]) -> None:
        """Call `listener` with the scopes of a request that repeats an earlier change."""
        self._unchanged_listeners.append(listener)

    def clock_hold(self) -> ClockHold | None:
        return self._store.snapshot(HOLDS).hold

    def last_clock_hold(self) -> ClockHold | None:
        """Return the hold of the clock, or the last one that an operator confirmed."""
        snapshot = self._store.snapshot(HOLDS)
        return snapshot.hold or snapshot.confirmed

    def store_hold(self) -> StoreHold | None:
        return self._store.snapshot(HOLDS).store_hold

    def _now(self) -> datetime:
        """Return the time for a decision, and save a jump of the clock first. Call this before reading the snapshot."""
        now = self._clock.now()
        jump = self._clock.jump()
        if jump is not None:
            hold = ClockHold(trusted=jump.trusted, noticed=now, jumped_s=int(jump.seconds), node=self._node)
            snapshot = self._store.snapshot(HOLDS)
            unread_s = self._clock.seconds_since(jump)
            change = hold_clock(snapshot, hold, since=jump.since, unread_s=unread_s, now=now)
            if not change.empty:
                self._store.apply(change)
                log.error(
                    "the clock jumped forward by %d s: unapproved starts wait for `forewarn clock confirm`",
                    jump.seconds,
                )
            self._clock.note_jump(jump)
            self._notify(change)
        # The decision relies on this reading of the clock: if this process dies, the next one must know the reading.
        self._clock.save_reading()
        return now

    def watch_clock(self) -> None:
        """Save a reading of the clock, and a jump of it if there was one."""
        if self._clock.jump() is None:
            self._clock.save_reading()
            return
        with self._deciding:
            self._now()

    def refuse_repetition(self, once: Once | None) -> None:
        """Raise RepeatedRequest if this request was answered before, KeyReused if its key came with another request."""
        receipt = self._store.receipt(once.token_id, once.key) if once is not None else None
        if receipt is None or once is None:
            return
        if receipt.digest != once.digest:
            raise KeyReused(f"Idempotency-Key {once.key!r} came with another request before: use a new key")
        raise RepeatedRequest(receipt)

    def _decide(self, focus: Focus, decide: Decision) -> Change:
        def decide_alone(snapshot: Snapshot, now: datetime) -> tuple[Change, Change]:
            change = decide(snapshot, now)
            return change, change

        return self._decide_once(focus, decide_alone, None)

    def _decide_once(
        self, focus: Focus, decide: Callable[[Snapshot, datetime], tuple[Change, T]], once: Once | None
    ) -> T:
        """Save what `decide` returns and return what it made; decide again after a conflict."""
        for _ in self._tries():
            with self._deciding:
                self.refuse_repetition(once)
                decided_s, now = self._monotonic(), self._now()
                snapshot = self._store.snapshot(focus)
                change, made = decide(snapshot, now)
                change = self._with_receipt(change, once, made)
                if self._save(change, decided_s):
                    for listener in self._unchanged_listeners if change.empty else ():
                        listener(snapshot.scopes.values())
                    return made
        raise too_many_conflicts()

    def _with_receipt(self, change: Change, once: Once | None, made: Any) -> Change:
        if once is None:
            return change
        status, body = self._render_receipt(once, made)
        receipt = Receipt(
            token_id=once.token_id, key=once.key, digest=once.digest, status=status, body=body, at=change.at
        )
        return replace(change, receipts=(receipt,))

    def _tries(self) -> Iterator[int]:
        """Yield the number of tries so far, and pause before each further try, without holding the lock."""
        begun_s = self._monotonic()
        for tried in range(MAX_TRIES):
            if tried:
                self._pause(tried)
            if tried >= MIN_TRIES and self._monotonic() - begun_s > MAX_DECISION_AGE_S:
                return
            yield tried

    def _save(self, change: Change, decided_s: float | None = None) -> bool:
        """Return False after a conflict. Without `decided_s` the age is not checked, because the change contains no notice."""
        change = waking_others(self._store, change)
        if not change.empty:
            try:
                if decided_s is not None:
                    self._refuse_old(decided_s, change)
                self._store.apply(change)
            except Conflict:
                return False
        if not self._notify(change):
            raise StoreUnavailable(
                "the change is saved, but this node cannot show it yet: read the object before you repeat the request"
            )
        return True

    def _refuse_old(self, decided_s: float, change: Change) -> None:
        most_s = MAX_DECISION_AGE_S + min(MORE_AGE_PER_EVENT_S * len(change.events), MAX_MORE_AGE_S)
        if self._monotonic() - decided_s > most_s:
            raise Conflict("it was decided too long ago: this process was stopped meanwhile")

    def _notify(self, change: Change) -> bool:
        """Call every listener with a saved change and return whether all succeeded. A failure stops no other listener."""
        succeeded = True
        for listener in self._listeners if not change.empty else ():
            try:
                listener(change)
            except ServiceError as error:
                log.error("a saved change cannot be shown yet: %s", error)
                succeeded = False
            except Exception:
                log.exception("a saved change cannot be shown yet")
                succeeded = False
        return succeeded


def too_many_conflicts() -> Conflict:
    return Conflict("other requests kept changing the same scopes: try again")


def waking_others(store: Store, change: Change) -> Change:
    """Return the change with a wake-up for the maintenances that may have waited for it.

    A maintenance may wait until another one has ended its work on a host, or until machines can be sent to a host again.
    """
    over = {order.host for order in change.orders if order.host and order.state in OVER}
    uncordoned = [host for host in change.hosts if host.cordoned is None] if change.hosts else []
    if not (over or change.removed_hosts or uncordoned):
        return change
    evacuations = _unfinished_evacuations(store)
    return wake_hosts(store, replace(change, wakes=tuple(sorted({*change.wakes, *evacuations}))), over)


def _unfinished_evacuations(store: Store) -> Iterator[str]:
    before: tuple[datetime, str] | None = None
    while page := store.maintenances(MaintenanceQuery(statuses=UNFINISHED, before=before, limit=MAX_PAGE)):
        yield from (each.id for each in page if each.host_mode is HostMode.EVACUATE)
        before = page[-1].created, page[-1].id


def wake_hosts(store: Store, change: Change, hosts: Collection[str]) -> Change:
    """Return the change with a wake-up for maintenances whose work on one of these hosts is planned or open."""
    waiting = store.orders({OrderState.PLANNED, OrderState.OPEN}, MAX_WAITING_HOSTS, of_hosts=True) if hosts else ()
    wakes = {order.maintenance_id for order in waiting if order.host in hosts}
    return replace(change, wakes=tuple(sorted({*change.wakes, *wakes}))) if wakes else change
