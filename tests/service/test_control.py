"""The use cases: decided again after a conflict, and bounded."""

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.app.node import Times
from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, InvalidFleet, NotFound, Refused
from forewarn.core.model import (
    ClockHold,
    EventType,
    Machine,
    MaintenanceRequest,
    Scope,
    ScopeKind,
    Status,
    Targets,
)
from forewarn.core.preview import forecast
from forewarn.service.clock import ManualClock
from forewarn.service.control import Control
from forewarn.service.decisions import MAX_DECISION_AGE_S, MAX_TRIES
from forewarn.service.settings import Settings
from forewarn.service.ticker import BATCH
from forewarn.store import EventQuery, Focus, Inventory
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import START
from tests.support.records import event
from tests.support.services import (
    OPERATOR,
    ContendedStore,
    make_service,
    reboot,
)


@pytest.mark.parametrize(("times", "fails"), [(MAX_TRIES - 1, False), (MAX_TRIES, True)])
def test_a_request_is_decided_again_after_a_conflict(times: int, fails: bool) -> None:
    """After a conflict the request is read and decided again; after too many conflicts it fails and changes nothing."""
    store = ContendedStore()
    service = make_service(store)
    store.times = times
    if fails:
        with pytest.raises(Conflict, match="try again"):
            reboot(service)
        assert not store.events(EventQuery()).events
    else:
        assert service.control.event(reboot(service))[0].status is Status.SCHEDULED


def test_a_decision_that_is_too_old_is_made_again() -> None:
    """A process that was stopped between deciding and saving must not publish a notice of which half has passed."""
    clock, boot_s = ManualClock(START), [0.0]
    service = make_service(MemoryStore())

    def stopped_once() -> str:
        if boot_s[0] == 0.0:
            clock.move_to(START + timedelta(minutes=10))
            boot_s[0] = 600.0
        return next(ids)

    ids = iter("abcd")
    control = Control(service.store, clock, new_id=stopped_once, order_timeout_s=0, monotonic=lambda: boot_s[0])
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=(("s-0", "m"),)))
    _, (event,) = control.maintenance(control.submit(request, OPERATOR))
    assert (event.published, event.not_before) == (START + timedelta(minutes=10), START + timedelta(minutes=25))
    assert event.id == "d"


def test_a_decision_about_very_many_events_may_take_a_minute_and_no_longer() -> None:
    """More events may take more time, but a process that was stopped for long must decide again."""
    now_s = 0.0
    service = make_service(MemoryStore())
    control = Control(service.store, service.clock, new_id=str, order_timeout_s=0, monotonic=lambda: now_s)
    for events, most_s in ((0, 5.0), (1_000, 6.0), (100_000, 60.0)):
        change = Change(at=START, events=(event(),) * events)
        now_s = most_s
        control._refuse_old(0.0, change)
        now_s = most_s + 1
        with pytest.raises(Conflict, match="too long ago"):
            control._refuse_old(0.0, change)


def test_a_tick_that_was_stopped_is_a_conflict() -> None:
    """What a tick decided too long ago is not saved: the next cycle decides again, on a smaller batch."""
    now_s, stopped_s = 0.0, 0.0

    class StoppingStore(MemoryStore):
        """The process is stopped while it reads the current waves."""

        def snapshot(self, focus: Focus) -> Snapshot:
            nonlocal now_s, stopped_s
            if focus.current_waves:
                now_s, stopped_s = now_s + stopped_s, 0.0
            return super().snapshot(focus)

    service = make_service(StoppingStore(), scopes=BATCH, enabled=False, times=Times(monotonic=lambda: now_s))
    for i in range(BATCH):
        service.control.submit(
            MaintenanceRequest(
                type=EventType.REBOOT,
                targets=Targets(machines=((f"s-{i}", "m"),)),
                not_before=START + timedelta(hours=1),
            ),
            OPERATOR,
        )
    service.clock.move_to(START + timedelta(hours=1))
    stopped_s = MAX_DECISION_AGE_S + 1
    with pytest.raises(Conflict, match="too long ago"):
        service.ticker.cycle()
    for started in (BATCH // 2, BATCH):
        service.ticker.cycle()
        assert len(service.store.events(EventQuery(statuses=[Status.STARTED], limit=500)).events) == started


def test_the_preview_knows_a_held_clock() -> None:
    """While the clock is held, no passing of time starts an event."""
    service = make_service(MemoryStore())
    hold = ClockHold(trusted=START, noticed=START, jumped_s=3_000)
    service.store.apply(Change(at=START, hold=hold))
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=(("s-0", "m"),)))
    planned = service.control.plan(request, OPERATOR)
    (wave,) = forecast(planned.snapshot, planned.maintenance_id, planned.at).waves
    assert (wave.latest, "clock" in wave.may_wait_for) == (None, True)


def test_one_machine_is_changed_without_reading_the_whole_fleet() -> None:
    """A PUT or DELETE of one machine or scope does not read the whole fleet, but still keeps its rules."""

    class Vast(MemoryStore):
        def inventory(self) -> Inventory:
            raise AssertionError("it was read whole")

    service = Service(Settings(store="memory:"), clock=ManualClock(START), store=Vast(), node="here")
    control, shop, blog = service.control, *(Scope(name=n, kind=ScopeKind.AVAILABILITY_SET) for n in ("shop", "blog"))
    assert control.put_scope(shop, OPERATOR) == (True, ())
    assert control.put_scope(replace(shop, approve_user_events=True), OPERATOR) == (False, ())
    control.put_scope(blog, OPERATOR)
    first = Machine(scope="shop", name="a", addresses=("10.0.0.1",), instance_id="i-1")
    assert control.put_machine(first, OPERATOR)
    assert not control.put_machine(replace(first, addresses=("10.0.0.1", "10.0.0.2")), OPERATOR)
    for taken in ({"addresses": ("10.0.0.2",)}, {"instance_id": "i-1"}):
        with pytest.raises(InvalidFleet, match="belongs to shop/a already"):
            control.put_machine(Machine(scope="blog", name="b", **taken), OPERATOR)
    assert control.put_machine(Machine(scope="shop", name="b"), OPERATOR)
    with pytest.raises(InvalidFleet, match="a standalone scope has one machine"):
        control.put_scope(replace(shop, kind=ScopeKind.STANDALONE), OPERATOR)
    with pytest.raises(Refused, match="has 2 machines"):
        control.remove_scope("shop", OPERATOR)
    for key in (("shop", "a"), ("shop", "b")):
        control.remove_machine(key, OPERATOR)
    control.remove_scope("shop", OPERATOR)
    with pytest.raises(NotFound):
        control.remove_scope("shop", OPERATOR)
    with pytest.raises(NotFound):
        control.remove_machine(first.key, OPERATOR)
