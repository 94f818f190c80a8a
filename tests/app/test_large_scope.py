"""What a write costs in a scope with many open events, counted in rows that are read and written, not in time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.document import NEWEST, VERSIONS
from forewarn.core.fleet import Fleet
from forewarn.core.model import Actor, EventType, Machine, MaintenanceRequest, Scope, ScopeKind, Source, Status, Targets
from forewarn.core.order_verbs import Outcome, Unknown
from forewarn.core.transitions import Verb
from forewarn.endpoint.documents import Documents
from forewarn.service.clock import ManualClock
from forewarn.service.settings import Settings
from forewarn.store import EventQuery, Focus
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import START
from tests.support.services import STILL

OPERATOR = Actor("operator")
FEW, MANY = 20, 1_000


class CountingStore(MemoryStore):
    """Counts the events, maintenances and orders of snapshots, and the rows of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.written = 0

    def snapshot(self, focus: Focus) -> Snapshot:
        found = super().snapshot(focus)
        self.read += len(found.events) + len(found.maintenances) + len(found.orders)
        return found

    def apply(self, change: Change) -> None:
        super().apply(change)
        parts = (change.scopes, change.maintenances, change.events, change.approvals, change.orders, change.wakes)
        self.written += sum(map(len, parts))


class LargeScope:
    """A scope with restarts of many machines; nobody approved them, except one that has started. Users requested two."""

    def __init__(self, open_events: int) -> None:
        self.store = CountingStore()
        self.service = Service(
            Settings(store="memory:", executor="external"),
            clock=ManualClock(START),
            store=self.store,
            node="here",
            times=STILL,
        )
        self.control = self.service.control
        keys = [("shop", f"web-{number:03}") for number in range(open_events)]
        fleet = Fleet(
            {"shop": Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)},
            {key: Machine(scope=key[0], name=key[1]) for key in keys},
        )
        self.control.apply_fleet(fleet, OPERATOR)
        self.control.enable("shop", OPERATOR)
        for key in keys[:2]:
            self.restart(key)
        self.service.ticker.advance(0)
        self.waiting, self.started = self.store.events(EventQuery()).events
        self.copy_waiting([name for _, name in keys[2:]])
        self.documents = Documents(self.store, self.service.clock)
        self.documents.load()
        self.control.listen(self.documents.on_change)
        self.control.approve_event(self.started.id, OPERATOR)
        self.control.tick([self.started.maintenance_id], OPERATOR)
        assert self.control.event(self.started.id)[0].status is Status.STARTED

    def restart(self, key: tuple[str, str], type_: EventType = EventType.REBOOT) -> None:
        targets = Targets(machines=(key,))
        self.control.submit(MaintenanceRequest(type=type_, targets=targets, source=Source.USER), OPERATOR)

    def copy_waiting(self, machines: list[str]) -> None:
        """Save a copy of the waiting event, with a maintenance of its own, for each of these machines."""
        known, _ = self.control.maintenance(self.waiting.maintenance_id)
        self.store.apply(
            Change(
                at=START,
                maintenances=tuple(
                    replace(known, id=f"M-{name}", version=0, source=Source.PLATFORM) for name in machines
                ),
                events=tuple(
                    replace(
                        self.waiting,
                        id=f"E-{name}",
                        maintenance_id=f"M-{name}",
                        source=Source.PLATFORM,
                        resources=(name,),
                        sequence=number,
                    )
                    for number, name in enumerate(machines, start=self.waiting.sequence + 1)
                ),
            )
        )

    def cost(self, write: Callable[["LargeScope"], object]) -> tuple[int, int]:
        self.store.read = self.store.written = 0
        write(self)
        return self.store.read, self.store.written


def approve(scope: LargeScope) -> None:
    event = scope.waiting
    scope.control.approve("shop", event.resources[0], [event.id], Actor("guest"))


def approve_as_operator(scope: LargeScope) -> None:
    scope.control.approve_event(scope.waiting.id, OPERATOR)


def take_order(scope: LargeScope) -> None:
    scope.control.take_order(scope.started.id, OPERATOR, node="here")


def take_over_order(scope: LargeScope) -> None:
    take_order(scope)
    scope.control.take_over_order(scope.started.id, OPERATOR, node="there", of="here")


def restart_another(scope: LargeScope) -> None:
    scope.restart(("shop", scope.waiting.resources[0]), EventType.REDEPLOY)


def cancel(scope: LargeScope) -> None:
    scope.control.cancel_event(scope.waiting.id, OPERATOR)


def finish(scope: LargeScope) -> None:
    scope.control.report_order(scope.started.id, Outcome(ok=True), OPERATOR)


def fail(scope: LargeScope) -> None:
    scope.control.report_order(scope.started.id, Outcome(ok=False), OPERATOR)


def doubt(scope: LargeScope) -> None:
    take_order(scope)
    scope.control.report_order(scope.started.id, Unknown(), OPERATOR)


def resolve(scope: LargeScope, verb: Verb) -> None:
    fail(scope)
    scope.control.resolve_failure(scope.started.id, verb, OPERATOR)


retry, finish_failed, abandon = (partial(resolve, verb=verb) for verb in (Verb.RETRY, Verb.FINISH, Verb.ABANDON))
CONCERN_ONE_EVENT = [
    approve, approve_as_operator, take_order, take_over_order,
    cancel, finish, fail, doubt, retry, finish_failed, abandon,
]  # fmt: skip


def start(scope: LargeScope) -> None:
    scope.control.approve_event(scope.waiting.id, OPERATOR)
    scope.control.tick([scope.waiting.maintenance_id], OPERATOR)


@pytest.mark.parametrize("write", CONCERN_ONE_EVENT)
def test_what_concerns_one_event_does_not_grow_with_the_others(write: Callable[[LargeScope], object]) -> None:
    """In a large scope as many rows are read and written as in a small one, also for the documents in memory."""
    assert LargeScope(MANY).cost(write) == LargeScope(FEW).cost(write)


def test_the_end_of_an_event_wakes_one_of_those_that_wait_for_it() -> None:
    """Approved events of one machine queue: the end of one wakes one other maintenance, and a tick of it starts the next."""
    scope = LargeScope(FEW)
    scope.control.cancel_event(scope.waiting.id, OPERATOR)
    targets = Targets(machines=(("shop", scope.started.resources[0]),))
    for _ in range(3):
        scope.control.submit(MaintenanceRequest(type=EventType.FREEZE, targets=targets), OPERATOR)
    queued = scope.store.events(EventQuery(types=frozenset({EventType.FREEZE}))).events
    for event in queued:
        scope.control.approve_event(event.id, OPERATOR)
    running = scope.started
    for _ in queued:
        scope.control.tick(scope.store.due(START, 100), OPERATOR)
        assert scope.store.due(START, 100) == []
        scope.control.report_order(running.id, Outcome(ok=True), OPERATOR)
        assert len(scope.store.due(START, 100)) == 2
        assert running.maintenance_id in scope.store.due(START, 100)
        scope.control.tick(scope.store.due(START, 100), OPERATOR)
        (running,) = (e for e in queued if scope.control.event(e.id)[0].status is Status.STARTED)


def test_memory_shows_what_is_saved_whether_it_was_read_or_not() -> None:
    """A change that guests do not see keeps the events in memory; a change that they see replaces them."""
    scope = LargeScope(MANY)
    for write in (take_order, approve, cancel, finish):
        write(scope)
        state = scope.documents.views["shop"].state
        assert state.body(len(VERSIONS) - 1) == scope.control.document("shop", VERSIONS[NEWEST])
        assert state.scope == scope.store.scopes()["shop"]


def test_a_guest_has_not_seen_what_is_only_planned() -> None:
    """The state of a document holds only the events that guests see, not those of later waves."""
    scope = LargeScope(FEW)
    scope.control.apply_fleet(
        Fleet(
            {"wide": Scope(name="wide", kind=ScopeKind.AVAILABILITY_SET)},
            {("wide", f"m-{n}"): Machine(scope="wide", name=f"m-{n}", update_domain=n) for n in range(2)},
        ),
        OPERATOR,
    )
    scope.control.enable("wide", OPERATOR)
    scope.control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="wide")), OPERATOR)
    assert [event.resources for event in scope.documents.views["wide"].state.events] == [("m-0",)]


@pytest.mark.parametrize("write", [restart_another, cancel, finish, start])
def test_events_that_only_wait_for_approval_are_not_written(write: Callable[[LargeScope], object]) -> None:
    """The start or end of an event wakes no maintenance that waits only for its own approval or notice."""
    assert LargeScope(MANY).cost(write)[1] == LargeScope(FEW).cost(write)[1]
