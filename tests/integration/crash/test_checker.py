"""The checker itself: a true history gives no complaint, and each kind of error gives one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from forewarn.core.fleet import Fleet
from forewarn.core.model import (
    Actor,
    Event,
    EventType,
    Machine,
    MaintenanceRequest,
    MaintenanceStatus,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Status,
    Targets,
)
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.executors.external import ExternalExecutor
from forewarn.service.clock import ManualClock
from forewarn.service.control import Control
from forewarn.service.ticker import Ticker
from forewarn.store import Focus
from forewarn.store.memory import MemoryStore
from tests.integration.crash.checker import StoredState, complaints, read_store, unfinished
from tests.integration.crash.history import History, Recorder, documents
from tests.integration.crash.worker import BEGINNING

OPERATOR = Actor("operator", "test")


@dataclass(frozen=True, slots=True)
class Case:
    """What was recorded, and what the database stored."""

    history: History
    stored: StoredState

    def event(self, status: Status) -> Event:
        return next(e for e in self.stored.snapshot.events.values() if e.status is status)

    def with_event(self, event: Event) -> "Case":
        snapshot = self.stored.snapshot
        return self._with(events={**snapshot.events, event.id: event})

    def without_event(self, event_id: str) -> "Case":
        return self._with(events={i: e for i, e in self.stored.snapshot.events.items() if i != event_id})

    def with_order(self, order: Order) -> "Case":
        return self._with(orders={**self.stored.snapshot.orders, order.id: order})

    def without_order(self, order_id: str) -> "Case":
        return self._with(orders={i: o for i, o in self.stored.snapshot.orders.items() if i != order_id})

    def order(self, status: Status) -> Order:
        return self.stored.snapshot.orders[self.event(status).id]

    def with_scope(self, **fields: object) -> "Case":
        (scope,) = self.stored.snapshot.scopes.values()
        return self._with(scopes={scope.name: replace(scope, **fields)})  # type: ignore[arg-type]

    def with_maintenance(self, status: MaintenanceStatus, /, **fields: object) -> "Case":
        known = self.stored.snapshot.maintenances
        maintenance = next(m for m in known.values() if m.status is status)
        return self._with(maintenances={**known, maintenance.id: replace(maintenance, **fields)})  # type: ignore[arg-type]

    def without_audit(self, action: str) -> "Case":
        entry = next(e for e in self.stored.audit if e.action == action)
        return Case(self.history, replace(self.stored, audit=tuple(e for e in self.stored.audit if e is not entry)))

    def with_audit_twice(self, action: str, **fields: object) -> "Case":
        entry = next(e for e in self.stored.audit if e.action == action)
        again = replace(entry, **fields)  # type: ignore[arg-type]
        return Case(self.history, replace(self.stored, audit=(*self.stored.audit, again)))

    def with_shown(self, **fields: object) -> "Case":
        """Add a document that a guest saw: the newest one with other fields."""
        shown = [*self.history.shown, replace(self.history.shown[-1], **fields)]  # type: ignore[arg-type]
        history = History(self.history.saved, self.history.plans, shown, self.history.faults)
        return Case(history, self.stored)

    def _with(self, **parts: object) -> "Case":
        snapshot = replace(self.stored.snapshot, **parts)  # type: ignore[arg-type]
        return Case(self.history, replace(self.stored, snapshot=snapshot))


@pytest.fixture(scope="module")
def true(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return the history of a real service: with an event in every status and an order in every final state."""
    record = tmp_path_factory.mktemp("history") / "record.jsonl"
    store, clock, ids, recorder = MemoryStore(), ManualClock(BEGINNING), count(1), Recorder(record)
    control = Control(store, clock, new_id=lambda: f"ID-{next(ids)}", order_timeout_s=0)
    control.listen(recorder.saved)
    ticker = Ticker(control, store, clock, ExternalExecutor(), node="n", retain_history_s=0)

    def observe() -> None:
        ticker.cycle_until_idle()
        recorder.shown(documents(store.snapshot(Focus(scopes=("shop",), whole_maintenances=False))))

    def submit(*machines: str) -> list[Event]:
        targets = Targets(machines=tuple(("shop", name) for name in machines))
        maintenance_id = control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=targets), OPERATOR)
        _, events = control.maintenance(maintenance_id)
        recorder.plan(maintenance_id, [e.id for e in events])
        observe()
        return events

    machines = {("shop", f"vm-{n}"): Machine(scope="shop", name=f"vm-{n}", update_domain=n) for n in range(6)}
    fleet = Fleet({"shop": Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)}, machines)
    control.apply_fleet(fleet, OPERATOR)
    control.enable("shop", OPERATOR)
    observe()
    (done,) = submit("vm-0")
    control.approve("shop", "vm-0", [done.id], OPERATOR)
    observe()
    control.report_order(done.id, Outcome(ok=True), OPERATOR)
    observe()
    (cancelled,) = submit("vm-1")
    control.cancel_event(cancelled.id, OPERATOR)
    observe()
    (abandoned,) = submit("vm-2")
    control.approve_event(abandoned.id, OPERATOR)
    observe()
    control.report_order(abandoned.id, Outcome(ok=False), OPERATOR)
    control.resolve_failure(abandoned.id, Verb.ABANDON, OPERATOR)
    observe()
    started, *_ = submit("vm-3", "vm-4")
    control.approve("shop", "vm-3", [started.id], OPERATOR)
    observe()
    submit("vm-5")
    history = History()
    history.read(record)
    return Case(history, read_store(store))


def test_a_true_history_gives_no_complaint(true: Case) -> None:
    """What really happened is correct, in whatever status it is."""
    assert complaints(true.history, true.stored) == []
    assert {e.status for e in true.stored.snapshot.events.values()} == set(Status)
    assert len(true.history.saved) > 15
    assert len(true.history.plans) == 5
    assert len(true.history.shown) > 10


DAY = timedelta(days=1)
WRONG: dict[str, tuple[str, Callable[[Case], Case]]] = {
    # acknowledged and lost
    "an event is gone": (
        "was acknowledged as Cancelled and is None",
        lambda c: c.without_event(c.event(Status.CANCELLED).id),
    ),
    "an event went back": (
        "was acknowledged as Completed and is Started",
        lambda c: c.with_event(replace(c.event(Status.COMPLETED), status=Status.STARTED, ended=None)),
    ),
    "an event ended otherwise": (
        "was acknowledged as Abandoned and is Completed",
        lambda c: c.with_event(replace(c.event(Status.ABANDONED), status=Status.COMPLETED)),
    ),
    "an approval is gone": (
        "by vm-3 was acknowledged and is lost",
        lambda c: c.with_event(replace(c.event(Status.STARTED), approvals=())),
    ),
    "an operator's approval is gone": (
        "by an operator was acknowledged and is lost",
        lambda c: c.with_event(replace(c.event(Status.ABANDONED), approvals=())),
    ),
    "an order is gone": ("(attempt 1) and is None", lambda c: c.without_order(c.event(Status.STARTED).id)),
    "an order went back": (
        "was acknowledged as done (attempt 1) and is open",
        lambda c: c.with_order(replace(c.order(Status.COMPLETED), state=OrderState.OPEN)),
    ),
    "a scope has an older version": ("scope shop was acknowledged at version", lambda c: c.with_scope(version=1)),
    "a scope has an older incarnation": (
        "scope shop was acknowledged at version",
        lambda c: c.with_scope(incarnation=1),
    ),
    "a scope is in an older epoch": (
        "scope shop was acknowledged at version",
        lambda c: c.with_scope(epoch=0, enabled=False),
    ),
    "a maintenance has an older version": (
        "was acknowledged at version",
        lambda c: c.with_maintenance(MaintenanceStatus.COMPLETED, version=1),
    ),
    "a maintenance goes on after its end": (
        "was acknowledged as Failed and is Running",
        lambda c: c.with_maintenance(MaintenanceStatus.FAILED, status=MaintenanceStatus.RUNNING),
    ),
    "an audit entry is gone": (
        "an audit entry was acknowledged and is lost",
        lambda c: c.without_audit("event published"),
    ),
    # lost or doubled
    "a planned event is missing": (
        "was planned with 2 events and has others",
        lambda c: c.without_event(c.event(Status.PLANNED).id),
    ),
    "an event is doubled": (
        "one is lost or doubled",
        lambda c: c.with_event(replace(c.event(Status.PLANNED), id="ID-99")),
    ),
    "events without their maintenance": (
        "are there without it",
        lambda c: c.with_event(replace(c.event(Status.PLANNED), id="ID-99", maintenance_id="nobody", position=0)),
    ),
    # started twice, orders skipped
    "an event started twice": ("event started 2 times in the audit", lambda c: c.with_audit_twice("event started")),
    "an event completed twice": (
        "event completed 2 times in the audit",
        lambda c: c.with_audit_twice("event completed"),
    ),
    "a start nobody noted": ("event started 0 times in the audit", lambda c: c.without_audit("event started")),
    "a start of no event": ("there is no event ID-99", lambda c: c.with_audit_twice("event started", event_id="ID-99")),
    "a start without an order": (
        "is Started and has no order",
        lambda c: c.without_order(c.event(Status.STARTED).id),
    ),
    "an order without a start": (
        "is Scheduled and has an order",
        lambda c: c.with_order(replace(c.order(Status.STARTED), id=c.event(Status.SCHEDULED).id)),
    ),
    "a completed event with a failed order": (
        "is Completed and its order failed",
        lambda c: c.with_order(replace(c.order(Status.COMPLETED), state=OrderState.FAILED)),
    ),
    "half a wave started": (
        "has started by half",
        lambda c: c.with_event(replace(c.event(Status.PLANNED), wave=c.event(Status.STARTED).wave)),
    ),
    # documents
    "an incarnation with two contents": ("had two contents", lambda c: c.with_shown(content="{}")),
    "an incarnation that went back": ("went back to epoch 1, incarnation 1", lambda c: c.with_shown(incarnation=1)),
    "a document nobody was shown": (
        "had two contents",
        lambda c: c.with_event(replace(c.event(Status.SCHEDULED), description="another")),
    ),
    # rules of the core
    "a machine in two started events": (
        "invariant 6",
        lambda c: c.with_event(
            replace(
                c.event(Status.SCHEDULED),
                status=Status.STARTED,
                started=BEGINNING + DAY,
                resources=c.event(Status.STARTED).resources,
                update_domain=c.event(Status.STARTED).update_domain,
            )
        ).with_order(replace(c.order(Status.STARTED), id=c.event(Status.SCHEDULED).id)),
    ),
    "a start nobody approved": (
        "invariant 1",
        lambda c: c.with_event(replace(c.event(Status.STARTED), approvals=())),
    ),
    "less notice than was promised": (
        "gave less notice than it promised",
        lambda c: c.with_event(replace(c.event(Status.SCHEDULED), not_before=BEGINNING)),
    ),
    # the rest
    "a damaged file": ("the file is damaged: row 7", lambda c: Case(c.history, replace(c.stored, damage=("row 7",)))),
    "a fault the worker saw": (
        "the worker itself saw: boom",
        lambda c: Case(History(c.history.saved, c.history.plans, c.history.shown, ["boom"]), c.stored),
    ),
}


@pytest.mark.parametrize(("sentence", "bend"), WRONG.values(), ids=WRONG)
def test_a_wrong_history_gives_a_complaint(true: Case, sentence: str, bend: Callable[[Case], Case]) -> None:
    """The complaint names what is wrong."""
    wrong = bend(true)
    assert any(sentence in complaint for complaint in complaints(wrong.history, wrong.stored))


def test_what_has_not_ended_is_named(true: Case) -> None:
    """After the end nothing may be open; an order is done, or its event was abandoned."""
    text = " ".join(unfinished(true.stored))
    for status in ("Planned", "Scheduled", "Started"):
        assert f"event {true.event(Status(status)).id} is still {status}" in text
    assert "is still Running" in text
    assert f"the order of event {true.event(Status.STARTED).id} is open and the event is Started" in text
    assert true.event(Status.COMPLETED).id not in text
    assert true.event(Status.ABANDONED).id not in text


def test_an_order_may_be_further_on_than_acknowledged(true: Case) -> None:
    """The kill came between saving and acknowledging: more than was acknowledged is no loss."""
    retried = replace(true.order(Status.STARTED), attempt=2)
    further = true.with_order(retried).with_scope(version=99)
    assert complaints(further.history, further.stored) == []


def test_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    """The kill may come while a line is written."""
    path = tmp_path / "record.jsonl"
    recorder = Recorder(path)
    recorder.plan("M1", ["E1", "E2"])
    recorder.plan("M2", ["E3"])
    path.write_bytes(path.read_bytes()[:-4])
    history = History()
    history.read(path)
    history.read(tmp_path / "never-written.jsonl")
    assert history.plans == {"M1": ("E1", "E2")}
