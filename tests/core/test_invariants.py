"""Every invariant is broken here by hand, in a before/after pair, to see that it is caught and named.

Each pair is legal but for the one thing it breaks: `after` keeps the books (orders, incarnation, time) as a draft would.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from forewarn.core.change import Snapshot
from forewarn.core.errors import InvariantBroken
from forewarn.core.fleet_rules import FleetRules, FleetUse
from forewarn.core.invariants import check_invariants
from forewarn.core.model import (
    Approval,
    ApprovalMode,
    ClockHold,
    Event,
    EventType,
    HostMode,
    Maintenance,
    OnFailure,
    Order,
    OrderState,
    Phase,
    Scope,
    Source,
    Status,
    Strategy,
)
from tests.support.builders import START, at, event, guid, machine, maintenance, scope

NOW = at(20)


def snapshot(
    *events: Event,
    scopes: Iterable[Scope] = (),
    maintenances: Iterable[Maintenance] = (),
    orders: Iterable[Order] = (),
) -> Snapshot:
    """Return a snapshot of these events in enabled scopes, with their maintenances and the orders of started ones."""
    every = {e.scope: scope(e.scope, incarnation=5, changed=START) for e in events}
    implied = {e.maintenance_id: replace(maintenance(), id=e.maintenance_id) for e in events}
    work = {e.id: Order(id=e.id, issued=e.started) for e in events if e.started is not None}
    return Snapshot(
        scopes=every | {s.name: s for s in scopes},
        maintenances=implied | {m.id: m for m in maintenances},
        events={e.id: e for e in events},
        orders=work | {o.id: o for o in orders},
    )


def after(before: Snapshot, *events: Event, now: datetime = NOW, **parts: Any) -> Snapshot:
    """Return `before` with these events changed and everything else consistent; `parts` replaces whole maps."""
    merged = {**before.events, **{e.id: e for e in events}}
    orders = {**before.orders}
    for each in events:
        if each.started is not None:
            orders.setdefault(each.id, Order(id=each.id, issued=each.started))
    scopes = {
        name: replace(known, incarnation=known.incarnation + 1, changed=now)
        if _shown(before.events.values(), name) != _shown(merged.values(), name)
        else known
        for name, known in before.scopes.items()
    }
    implied = {e.maintenance_id: replace(maintenance(), id=e.maintenance_id) for e in events} | {**before.maintenances}
    consistent: dict[str, Any] = {"scopes": scopes, "maintenances": implied, "events": merged, "orders": orders}
    return replace(before, **consistent | parts)


def _shown(events: Iterable[Event], name: str) -> set[tuple[str, Status]]:
    return {(e.id, e.status) for e in events if e.scope == name and e.status in ("Scheduled", "Started")}


def started(subject: Event, moment: datetime = NOW, **facts: Any) -> Event:
    return replace(subject, status=Status.STARTED, started=moment, **facts)


def approved(subject: Event, *machines: str) -> Event:
    given = tuple(Approval(event_id=subject.id, machine=name, who="x", at=START) for name in machines)
    return replace(subject, approvals=given)


def broken(before: Snapshot, then: Snapshot, now: datetime = NOW) -> str:
    """The sentence of the invariant that the pair breaks."""
    with pytest.raises(InvariantBroken) as caught:
        check_invariants(before, then, now)
    message = str(caught.value)
    assert message.endswith("; nothing was saved, please report this")
    return message.removesuffix("; nothing was saved, please report this")


def kept(before: Snapshot, then: Snapshot, now: datetime = NOW) -> bool:
    """The pair breaks nothing."""
    check_invariants(before, then, now)
    return True


# -- 1. an event starts only with its go, or past NotBefore, or needing none; and never before `earliest`


def test_1_no_start_without_approval_before_not_before() -> None:
    """An event that is not approved does not start before its NotBefore."""
    before = snapshot(event())
    early = started(event(), at(14))
    assert broken(before, after(before, early)) == (
        f"invariant 1: event {guid(1)} would start without approval and before its NotBefore"
    )
    assert kept(before, after(before, started(event(), at(15))))


@pytest.mark.parametrize("observed, enough", [(None, False), (at(1), False), (START, True)])
def test_2_guests_see_the_event_for_the_minimum_notice(observed: datetime | None, enough: bool) -> None:
    """Past NotBefore, an event does not start if guests saw it too late or its publication was not observed."""
    before = snapshot(event(), maintenances=[maintenance(observed_published_at=observed)])
    then = after(before, started(event(), at(15)))
    assert kept(before, then) if enough else "before guests could see it" in broken(before, then)
    go = approved(event(), "web-0")
    assert kept(
        snapshot(go, maintenances=[maintenance(observed_published_at=observed)]), after(before, started(go, at(1)))
    )


def test_8_an_event_seen_too_late_may_be_overtaken() -> None:
    """The event is not due, though its NotBefore has passed."""
    late = event(2, maintenance_id=guid(901), not_before=at(14))
    before = snapshot(event(), late, maintenances=[maintenance(901, observed_published_at=at(5))])
    assert kept(before, after(before, started(event(), at(15))), at(15))


@pytest.mark.parametrize(
    "mode, machines, enough",
    [
        (ApprovalMode.ANY, (), False),
        (ApprovalMode.ANY, ("web-9",), True),
        (ApprovalMode.ANY, ("",), True),
        (ApprovalMode.ALL, ("web-0",), False),
        (ApprovalMode.ALL, ("web-0", "web-9"), False),
        (ApprovalMode.ALL, ("web-0", "web-1"), True),
        (ApprovalMode.ALL, ("",), True),
        (ApprovalMode.OPERATOR, ("web-0", "web-1"), False),
        (ApprovalMode.OPERATOR, ("",), True),
    ],
)
def test_1_whose_approval_counts(mode: ApprovalMode, machines: tuple[str, ...], enough: bool) -> None:
    """An approval of any machine, all machines or an operator counts, as the setting says; an operator's always counts."""
    subject = approved(event(approval_mode=mode, resources=("web-0", "web-1")), *machines)
    before = snapshot(subject)
    then = after(before, started(subject, at(1)))
    assert kept(before, then) if enough else broken(before, then).startswith("invariant 1:")


@pytest.mark.parametrize("facts", [{"born_approved": True}, {"needs_approval": False}])
def test_1_events_that_need_no_approval_may_start(facts: dict[str, bool]) -> None:
    """An event approved at creation, or that needs no approval, may start."""
    before = snapshot(event(**facts))
    assert kept(before, after(before, started(event(**facts), at(1))))


def test_1_never_before_earliest() -> None:
    """Not even an approved event past its NotBefore starts before `earliest`."""
    subject = approved(event(), "web-0")
    before = snapshot(subject, maintenances=[maintenance(earliest=at(30))])
    assert broken(before, after(before, started(subject, at(29)))) == (
        f"invariant 1: event {guid(1)} would start before the earliest start of its maintenance"
    )
    assert kept(before, after(before, started(subject, at(30)), now=at(30)), at(30))


def test_1_never_at_the_deadline_or_later() -> None:
    """Not even an approved event starts at `not_after`."""
    subject = approved(event(), "web-0")
    before = snapshot(subject, maintenances=[maintenance(not_after=at(10))])
    assert broken(before, after(before, started(subject, at(10)))) == (
        f"invariant 1: event {guid(1)} would start after the deadline of its maintenance"
    )
    assert kept(before, after(before, started(subject, at(9))))


def test_1_never_before_the_time_it_was_rescheduled_to() -> None:
    """Not even an approved event."""
    subject = approved(event(requested_not_before=at(30)), "web-0")
    before = snapshot(subject)
    assert broken(before, after(before, started(subject, at(29)))) == (
        f"invariant 1: event {guid(1)} would start before the time it was rescheduled to"
    )
    assert kept(before, after(before, started(subject, at(30)), now=at(30)), at(30))


def test_1_no_event_is_rescheduled_past_the_deadline() -> None:
    """It could only be cancelled."""
    before = snapshot(event(), maintenances=[maintenance(not_after=at(60))])
    moved = event(2, status=Status.PLANNED, published=None, not_before=None, requested_not_before=at(60))
    assert broken(before, after(before, moved)) == (
        f"invariant 1: event {guid(2)} would be rescheduled past the deadline of its maintenance"
    )


def test_3_an_event_replaces_one_that_ends_for_it() -> None:
    """The event it replaces is cancelled in the same change, and names it."""
    before = snapshot(event())
    moved = event(2, status=Status.PLANNED, published=None, not_before=None, replaces=guid(1))
    assert broken(before, after(before, moved)) == (
        f"invariant 3: event {guid(2)} would replace event {guid(1)}, which does not end for it"
    )


def test_11_no_executor_gets_the_order_of_a_drill() -> None:
    """It is done from the beginning."""
    subject = approved(event(), "web-0")
    before = snapshot(subject, maintenances=[maintenance(drill_hold_s=60)])
    assert broken(before, after(before, started(subject, at(1)))) == (
        f"invariant 11: order {guid(1)} of a drill would be open"
    )


def test_15_a_drill_is_not_visible_beside_a_real_event() -> None:
    """The drill ends when the real event is published."""
    drilled = event(2, maintenance_id=guid(901), status=Status.PLANNED, published=None, not_before=None)
    before = snapshot(event(), drilled, maintenances=[maintenance(), maintenance(901, drill_hold_s=60)])
    shown = replace(drilled, status=Status.SCHEDULED, published=at(1), not_before=at(16), minimum_notice_s=900)
    assert broken(before, after(before, shown)).startswith(
        f"invariant 15: event {guid(2)} of a drill would be visible beside a real event of shop"
    )


# -- 2. the minimum notice is given, and NotBefore never changes after publication


def published(minutes: float, **facts: Any) -> Event:
    return event(published=at(1), not_before=at(minutes), **facts)


def test_2_the_minimum_notice_is_given() -> None:
    """NotBefore is at least the minimum notice after the publication in an enabled scope."""
    before = snapshot(event(status=Status.PLANNED, published=None, not_before=None))
    assert broken(before, after(before, published(15.9))) == (
        f"invariant 2: event {guid(1)} would give shop less than its minimum notice"
    )
    assert kept(before, after(before, published(16)))


def test_2_the_notice_is_the_scopes_own() -> None:
    """A scope with a minimum notice of an hour gets an hour."""
    hour = scope(minimum_notice_s={EventType.REBOOT: 3_600}, incarnation=5)
    before = snapshot(event(status=Status.PLANNED, published=None, not_before=None), scopes=[hour])
    assert broken(before, after(before, published(60.9))).startswith("invariant 2:")
    assert kept(before, after(before, published(61)))


def test_2_no_notice_for_disabled_scopes_and_approval_at_creation() -> None:
    """A disabled scope and an event approved at creation get no minimum notice."""
    asleep = scope(enabled=False, incarnation=5)
    before = snapshot(event(status=Status.PLANNED, published=None, not_before=None), scopes=[asleep])
    assert kept(before, after(before, published(1, needs_approval=False)))
    born = event(status=Status.PLANNED, born_approved=True, published=None, not_before=None)
    before = snapshot(born)
    assert kept(before, after(before, started(replace(born, published=NOW, not_before=NOW))))


@pytest.mark.parametrize("facts", [{"not_before": at(14)}, {"not_before": at(16)}, {"published": at(-1)}])
def test_2_not_before_never_changes(facts: dict[str, Any]) -> None:
    """NotBefore becomes neither earlier nor later after publication, also in a disabled scope."""
    for known in (scope(incarnation=5), scope(enabled=False, incarnation=5)):
        before = snapshot(event(), scopes=[known])
        assert broken(before, after(before, event(**facts))) == (
            f"invariant 2: event {guid(1)} would change its NotBefore after publication"
        )


def test_2_a_scope_enabled_later_sees_the_event_as_it_is() -> None:
    """An event published without notice keeps its NotBefore when the scope is enabled."""
    subject = event(not_before=at(1), needs_approval=False)
    before = snapshot(subject)
    assert kept(before, after(before, started(subject, at(1))))


# -- 3. an event stays itself


@pytest.mark.parametrize(
    "name, value",
    [
        ("maintenance_id", guid(901)),
        ("wave", 2),
        ("position", 7),
        ("scope", "ship"),
        ("update_domain", 1),
        ("type", EventType.FREEZE),
        ("source", Source.USER),
        ("resources", ("web-1",)),
    ],
)
def test_3_an_event_keeps_its_identity(name: str, value: Any) -> None:
    """The scope, machines, type and maintenance of an event never change."""
    before = snapshot(event())
    then = after(before, replace(event(), **{name: value}))
    assert broken(before, then) == f"invariant 3: event {guid(1)} would change its {name}"


def test_3_the_wave_of_a_rescheduled_event_moves_back_until_it_is_published() -> None:
    """Another event got an earlier time."""
    moved = event(wave=2, status=Status.PLANNED, published=None, not_before=None, requested_not_before=NOW)
    assert kept(snapshot(moved), after(snapshot(moved), replace(moved, wave=3)))
    for then in (replace(moved, wave=1), replace(moved, wave=3, status=Status.CANCELLED, ended=NOW)):
        assert "would change its wave" in broken(snapshot(moved), after(snapshot(moved), then))


# -- 4. the incarnation follows the visible document


def test_4_the_incarnation_grows_by_one_with_the_document() -> None:
    """A visible change raises the incarnation by one: not by zero, not by two."""
    before = snapshot(event())
    then = after(before, started(event()))
    for wrong in (4, 5, 7):
        off = {"shop": replace(then.scopes["shop"], incarnation=wrong)}
        assert broken(before, replace(then, scopes=off)) == (
            f"invariant 4: the incarnation of shop would be {wrong} instead of 6"
        )
    assert kept(before, then)


def test_4_the_document_does_not_change_unnoticed() -> None:
    """A visible change without a written scope is an error."""
    before = snapshot(event())
    then = replace(after(before, started(event())), scopes=before.scopes)
    assert broken(before, then) == "invariant 4: the document of shop would change while its incarnation stays"


def test_4_the_incarnation_stays_with_the_document() -> None:
    """Without a visible change the incarnation stays."""
    before = snapshot(event())
    then = replace(before, scopes={"shop": replace(before.scopes["shop"], incarnation=6)})
    assert broken(before, then) == "invariant 4: the incarnation of shop would be 6 instead of 5"
    assert kept(before, replace(before, scopes={"shop": replace(before.scopes["shop"], max_user_operations=3)}))


@pytest.mark.parametrize(
    "known, wanted",
    [
        ({"enabled": True, "epoch": 1}, {"enabled": True, "epoch": 2}),
        ({"enabled": True, "epoch": 1}, {"enabled": False, "epoch": 2}),
        ({"enabled": False, "epoch": 1}, {"enabled": False, "epoch": 2}),
        ({"enabled": False, "epoch": 1}, {"enabled": True, "epoch": 3}),
        ({"enabled": False, "epoch": 1}, {"enabled": True, "epoch": 0}),
    ],
)
def test_4_an_epoch_starts_only_with_enabling(known: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A new epoch is the next number, and the scope becomes enabled."""
    before = snapshot(event(), scopes=[scope(incarnation=5, **known)])
    then = replace(before, scopes={"shop": scope(incarnation=1, **wanted)})
    assert broken(before, then) == "invariant 4: shop would start an epoch without being enabled"


def test_4_an_epoch_starts_at_incarnation_one() -> None:
    """The transaction that enables a scope again sets its incarnation to 1."""
    before = snapshot(event(), scopes=[scope(incarnation=5, enabled=False)])
    again = scope(enabled=True, epoch=2, incarnation=6)
    assert broken(before, replace(before, scopes={"shop": again})) == (
        "invariant 4: the incarnation of shop would be 6 instead of 1"
    )
    assert kept(before, replace(before, scopes={"shop": replace(again, incarnation=1)}))


def test_4_a_new_scope_has_no_past() -> None:
    """A new scope is not compared with anything."""
    assert kept(Snapshot(), Snapshot(scopes={"shop": scope(incarnation=9)}))


# -- 5. resources


@pytest.mark.parametrize("resources", [(), ("web-1", "web-0"), ("web-0", "web-0")])
def test_5_resources_are_sorted_and_not_empty(resources: tuple[str, ...]) -> None:
    """resources is non-empty and sorted, each machine once."""
    assert broken(snapshot(), after(snapshot(), event(resources=resources))) == (
        f"invariant 5: event {guid(1)} would have resources that are empty, unsorted or duplicated"
    )


# -- 6. one update domain at a time, and a machine in one started event


@pytest.mark.parametrize("type_", [EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY])
def test_6_one_update_domain_at_a_time(type_: EventType) -> None:
    """Events in two update domains of a scope do not start together."""
    one = event(1, type=type_)
    two = event(2, type=type_, maintenance_id=guid(901), update_domain=1, resources=("web-1",))
    before = snapshot(one, two)
    assert broken(before, after(before, started(one), started(two))) == (
        "invariant 6: update domains [0, 1] of one scope would have started events at once"
    )
    assert kept(before, after(before, started(one)))


def test_6_a_rolling_event_waits_for_other_update_domains() -> None:
    """A rolling event does not start while any event, even an exempt one, is started in another update domain."""
    user = started(event(1, source=Source.USER), at(15))
    rolling = event(2, update_domain=1, resources=("web-1",))
    before = snapshot(user, rolling)
    assert broken(before, after(before, started(rolling))) == (
        f"invariant 6: event {guid(2)} would start while event {guid(1)} is started in another update domain"
    )


def test_6_the_same_update_domain_may_go_down_together() -> None:
    """Within one update domain, and in other scopes, events run side by side."""
    beside = started(event(1, resources=("web-1",)), at(15))
    elsewhere = started(event(2, scope="ship", update_domain=4), at(15))
    before = snapshot(beside, elsewhere, event(3))
    assert kept(before, after(before, started(event(3))))


@pytest.mark.parametrize(
    "facts", [{"source": Source.USER}, {"type": EventType.PREEMPT}, {"emergency": True, "born_approved": True}]
)
def test_6_exempt_events_start_beside_a_rolling_one(facts: dict[str, Any]) -> None:
    """User events, Preempt and emergencies are exempt from the update-domain rule."""
    rolling, exempt = started(event(1), at(15)), event(2, update_domain=1, resources=("web-1",), **facts)
    before = snapshot(rolling, exempt)
    assert kept(before, after(before, started(exempt)))
    together = snapshot(event(1), exempt)
    assert kept(together, after(together, started(event(1)), started(exempt)))


def test_6_a_machine_is_in_one_started_event() -> None:
    """No exemption lets two started events share a machine."""
    one = started(event(1, type=EventType.PREEMPT), at(15))
    two = event(2, source=Source.USER, resources=("web-0", "web-1"))
    before = snapshot(one, two)
    assert broken(before, after(before, started(two))) == (
        f"invariant 6: machine shop/web-0 would be in started events {guid(1)} and {guid(2)} at once"
    )


def test_6_a_machine_is_known_by_scope_and_name() -> None:
    """Two scopes may each have a machine web-0."""
    one, two = started(event(1), at(15)), event(2, scope="ship")
    before = snapshot(one, two)
    assert kept(before, after(before, started(two)))


# -- 7. never backwards, and ended is final

LEGAL = {
    ("absent", "Planned"),
    ("absent", "Scheduled"),
    ("absent", "Started"),
    ("Planned", "Scheduled"),
    ("Planned", "Started"),
    ("Planned", "Cancelled"),
    ("Scheduled", "Started"),
    ("Scheduled", "Cancelled"),
    ("Started", "Completed"),
    ("Started", "Abandoned"),
}


@pytest.mark.parametrize("old", ["absent", *Status])
@pytest.mark.parametrize("new", Status)
def test_7_every_step_from_every_status(old: str, new: Status) -> None:
    """A status never goes backwards, and an ended status is final."""

    def in_status(status: str) -> Event:
        has_started = status in ("Started", "Completed", "Abandoned")
        next_event = event(status=Status(status), reason=f"now {status}")
        return replace(next_event, started=NOW) if has_started else next_event

    before = snapshot() if old == "absent" else snapshot(in_status(old))
    then = after(before, in_status(new))
    if (old, new) in LEGAL or old == new:
        assert kept(before, then)
    else:
        was = "None" if old == "absent" else old
        assert broken(before, then) == f"invariant 7: event {guid(1)} would go from {was} to {new}"


# -- 8. a wave starts in one transaction, one wave is visible, due waves do not overtake


def test_8_a_wave_leaves_no_event_behind() -> None:
    """Events of a wave start in one transaction, except cancelled ones."""
    one, two = event(1), event(2, scope="ship")
    before = snapshot(one, two)
    assert broken(before, after(before, started(one))) == (
        f"invariant 8: event {guid(2)} would be left behind by the other events of its wave"
    )
    assert kept(before, after(before, started(one), started(two)))
    assert kept(before, after(before, started(one), replace(two, status=Status.CANCELLED, ended=NOW)))


def test_8_later_waves_are_not_left_behind() -> None:
    """Only the events of the same wave start together."""
    later = event(2, wave=2, status=Status.PLANNED, published=None, not_before=None, update_domain=1)
    before = snapshot(event(1), later)
    assert kept(before, after(before, started(event(1))))


def test_8_one_wave_is_visible() -> None:
    """Wave n+1 is not visible while wave n is."""
    running = started(event(1), at(15))
    planned = event(2, wave=2, status=Status.PLANNED, published=None, not_before=None, update_domain=1)
    before = snapshot(running, planned)
    published = replace(planned, status=Status.SCHEDULED, published=NOW, not_before=at(35))
    assert broken(before, after(before, published)) == (
        f"invariant 8: waves [1, 2] of maintenance {guid(900)} would be visible at once"
    )
    ended = replace(running, status=Status.COMPLETED, ended=NOW)
    assert kept(before, after(before, ended, published))


@pytest.mark.parametrize(
    "on_failure, state, attempt, legal",
    [
        (OnFailure.CONTINUE, OrderState.FAILED, 1, True),
        (OnFailure.CONTINUE, OrderState.RUNNING, 1, False),
        (OnFailure.CONTINUE, OrderState.RUNNING, 2, True),
        (OnFailure.HOLD, OrderState.FAILED, 1, False),
        (OnFailure.HOLD, OrderState.RUNNING, 2, False),
        (OnFailure.CANCEL, OrderState.FAILED, 1, False),
    ],
)
def test_8_a_failed_event_is_passed_over(on_failure: OnFailure, state: OrderState, attempt: int, legal: bool) -> None:
    """Only with on_failure = continue, the next wave is visible beside an event whose order has failed once."""
    running = started(event(1), at(15))
    planned = event(2, wave=2, status=Status.PLANNED, published=None, not_before=None, update_domain=1)
    before = snapshot(
        running,
        planned,
        maintenances=[maintenance(on_failure=on_failure)],
        orders=[Order(id=running.id, issued=at(15), state=state, attempt=attempt)],
    )
    then = after(before, replace(planned, status=Status.SCHEDULED, published=NOW, not_before=at(35)))
    assert kept(before, then) if legal else broken(before, then).startswith("invariant 8: waves [1, 2]")


def rivals(**first: Any) -> tuple[Event, Event]:
    """A wave that was due first, and one of another maintenance behind it in the same scope."""
    ahead = approved(event(1, not_before=at(16), **{"resources": ("web-1",), **first}), "web-0")
    behind = approved(event(2, maintenance_id=guid(901), not_before=at(17)), "web-0")
    return ahead, behind


def test_8_due_waves_do_not_overtake() -> None:
    """A later wave does not start while an earlier due wave waits in the scope."""
    ahead, behind = rivals()
    before = snapshot(ahead, behind)
    assert broken(before, after(before, started(behind))) == (
        f"invariant 8: event {guid(2)} would overtake event {guid(1)} in shop"
    )
    assert kept(before, after(before, started(ahead)))
    assert kept(before, after(before, started(ahead), started(behind)))


def test_8_equal_waves_go_by_id() -> None:
    """Waves with the same NotBefore start in the order of their ids."""
    ahead, behind = rivals()
    ahead, behind = replace(ahead, not_before=at(17)), behind
    before = snapshot(ahead, behind)
    assert broken(before, after(before, started(behind))).startswith("invariant 8:")
    assert kept(before, after(before, started(ahead)))


@pytest.mark.parametrize("limits", [{"paused": True}, {"earliest": at(21)}, {"not_after": at(20)}])
def test_8_a_held_wave_may_be_overtaken(limits: dict[str, Any]) -> None:
    """A paused maintenance, or one before its earliest start or past its deadline, is not due."""
    before = snapshot(*rivals(), maintenances=[maintenance(**limits)])
    assert kept(before, after(before, started(rivals()[1])))


def test_8_an_unapproved_wave_may_be_overtaken() -> None:
    """A wave with an event that is neither approved nor past its NotBefore is not due."""
    ahead, behind = rivals()
    waiting = event(3, scope="ship", not_before=at(16))
    before = snapshot(ahead, behind, replace(waiting, not_before=at(30)))
    assert kept(before, after(before, started(behind)))
    for go in (waiting, approved(waiting, "web-0"), replace(waiting, not_before=at(30), needs_approval=False)):
        before = snapshot(ahead, behind, go)
        assert broken(before, after(before, started(behind))).startswith("invariant 8:")


def test_8_a_started_or_unpublished_wave_may_be_overtaken() -> None:
    """A wave with a started event, or with one approved at creation and not visible, does not count as due."""
    ahead, behind = rivals()
    born = event(3, scope="ship", status=Status.PLANNED, born_approved=True, published=None, not_before=None)
    before = snapshot(ahead, behind, born)
    assert kept(before, after(before, started(behind)))
    later = event(3, wave=2, status=Status.PLANNED, published=None, not_before=None, update_domain=1)
    before = snapshot(ahead, behind, later)
    assert broken(before, after(before, started(behind))).startswith("invariant 8:")


def test_8_an_emergency_overtakes() -> None:
    """An emergency does not queue."""
    ahead, behind = rivals()
    emergency = replace(behind, emergency=True, born_approved=True)
    before = snapshot(ahead, emergency)
    assert kept(before, after(before, started(emergency)))


@pytest.mark.parametrize("asked_at, legal", [(15, True), (17, False)])
def test_8_a_wave_approved_at_creation_queues_by_its_submission(asked_at: float, legal: bool) -> None:
    """The event has no NotBefore until it starts, so the time of its submission counts."""
    ahead, _ = rivals()
    born = event(
        2,
        maintenance_id=guid(901),
        source=Source.USER,
        status=Status.PLANNED,
        born_approved=True,
        published=None,
        not_before=None,
    )
    beside = approved(event(3, maintenance_id=guid(901), source=Source.USER, scope="ship", not_before=at(60)), "web-0")
    rival_beside = replace(ahead, id=guid(4), maintenance_id=guid(902), scope="ship", resources=("web-5",))
    created = [maintenance(901, created=at(asked_at))]
    before = snapshot(ahead, born, beside, rival_beside, maintenances=created)
    then = after(before, started(replace(born, published=NOW, not_before=NOW)), started(beside))
    assert kept(before, then) if legal else broken(before, then).startswith("invariant 8:")


# -- 9, 11 and 13


def test_9_an_approval_is_recorded_once() -> None:
    """One machine approves an event once."""
    before = snapshot(event())
    assert broken(before, after(before, approved(event(), "web-0", "web-0"))) == (
        f"invariant 9: event {guid(1)} would record an approval twice"
    )
    assert kept(before, after(before, approved(event(), "web-0", "web-1", "")))


def test_11_a_started_event_has_an_order() -> None:
    """No event starts without an order."""
    before = snapshot(event())
    assert broken(before, after(before, started(event()), orders={})) == (
        f"invariant 11: event {guid(1)} would be Started without an order"
    )


def order_step(known: Order, order: Order) -> tuple[Snapshot, Snapshot]:
    before = snapshot(started(event(), at(15)), orders=[known])
    return before, replace(before, orders={order.id: order})


TAKEN = Order(id=guid(1), issued=at(15), state=OrderState.RUNNING, node="a:1", taken=at(15))
DOUBTFUL = replace(TAKEN, state=OrderState.IN_DOUBT)


def test_11_work_begins_again_only_as_a_new_attempt() -> None:
    """An order that was taken is not open again within its attempt, and is not retried while it runs."""
    for known in (TAKEN, DOUBTFUL):
        message = broken(*order_step(known, Order(id=guid(1), issued=at(16))))
        assert message == f"invariant 11: order {guid(1)} would go from {known.state} to open within one attempt"
    again = Order(id=guid(1), issued=at(16), attempt=2)
    assert broken(*order_step(TAKEN, again)) == (
        f"invariant 11: order {guid(1)} would go from attempt 1, which is running, to another"
    )
    skipped = broken(*order_step(DOUBTFUL, replace(again, attempt=3)))
    assert skipped == f"invariant 11: order {guid(1)} would go from attempt 1, which is in-doubt, to another"
    assert kept(*order_step(DOUBTFUL, again))
    assert kept(*order_step(replace(TAKEN, state=OrderState.FAILED), again))


def test_11_an_order_in_doubt_names_its_node_and_has_no_time_limit() -> None:
    """Nothing but a report, the return of its node or an operator ends the doubt."""
    assert kept(*order_step(TAKEN, DOUBTFUL))
    for wrong in (replace(DOUBTFUL, node=""), replace(DOUBTFUL, deadline=at(60))):
        assert broken(*order_step(TAKEN, wrong)) == (
            f"invariant 11: order {guid(1)} would be in doubt without a node, or with a time limit"
        )


def test_11_only_a_started_event_has_an_order_in_doubt() -> None:
    """An event that ends takes its order out of doubt."""
    before = snapshot(started(event(), at(15)), orders=[DOUBTFUL])
    ended = replace(before.events[guid(1)], status=Status.ABANDONED, ended=NOW)
    then = after(before, ended, orders={guid(1): replace(DOUBTFUL, reason="gone")})
    assert broken(before, then) == f"invariant 11: order {guid(1)} would be in doubt although its event is Abandoned"


@pytest.mark.parametrize("changed", [None, at(-1)])
def test_13_time_does_not_run_backwards(changed: datetime | None) -> None:
    """The time of a scope's last change never becomes earlier."""
    before = snapshot(event())
    then = after(before, started(event()))
    off = {"shop": replace(then.scopes["shop"], changed=changed)}
    assert broken(before, replace(then, scopes=off)) == "invariant 13: time would run backwards for shop"


# -- what is legal


def test_an_unchanged_snapshot_is_legal() -> None:
    """A snapshot may stay as it is."""
    before = snapshot(event(), started(event(2, resources=("web-1",)), at(15)))
    assert kept(before, before)


def test_only_changed_events_are_checked() -> None:
    """An old fault in an unchanged event does not block later decisions."""
    odd = event(7, scope="ship", maintenance_id=guid(901), resources=("web-9", "web-8"))
    before = snapshot(odd, event())
    assert kept(before, after(before, started(event())))


def test_a_broken_invariant_is_a_fault_of_the_service() -> None:
    """InvariantBroken has status 500 and a code of its own."""
    assert (InvariantBroken.status, InvariantBroken.code) == (500, "invariant_broken")


# -- 11. work on hosts


def host_order(state: OrderState = OrderState.PLANNED, **facts: Any) -> Order:
    return Order(
        **{
            "id": guid(800),
            "issued": START,
            "host": "a",
            "maintenance_id": guid(900),
            "position": 1,
            "state": state,
            **facts,
        }
    )


def on_hosts(*orders: Order, mode: HostMode = HostMode.EVACUATE, read: str = "a", **facts: Any) -> Snapshot:
    """Return a snapshot with these orders and with shop/web-0 on a host, in a started event if `event_of` is given."""
    event_of, host = facts.get("event_of"), facts.get("host", "a")
    return replace(
        snapshot(*([event_of] if event_of else []), maintenances=[maintenance(host_mode=mode)], orders=orders),
        machines={("shop", "web-0"): machine(host=host)},
        read_hosts=frozenset(read),
    )


def breaks(before: Snapshot, then: Snapshot, sentence: str) -> None:
    message = broken(before, then)
    assert message.startswith("invariant 11: ")
    assert sentence in message


STARTED = event(status=Status.STARTED, started=at(15), host="a")
DOWN = Order(id=STARTED.id, issued=at(15), state=OrderState.PLANNED, phase=Phase.START)


@pytest.mark.parametrize("state", [OrderState.OPEN, OrderState.RUNNING])
def test_work_begins_only_on_an_empty_host(state: OrderState) -> None:
    """The last machine has left before the order of the host opens, and before it is taken."""
    known = host_order(OrderState.PLANNED if state is OrderState.OPEN else OrderState.OPEN)
    breaks(on_hosts(known), on_hosts(replace(known, state=state, node="n")), "while shop/web-0 is on it")
    check_invariants(on_hosts(known, host="b"), on_hosts(replace(known, state=state, node="n"), host="b"), NOW)
    breaks(on_hosts(known), on_hosts(replace(known, state=state), read="b"), "its machines are not known")


@pytest.mark.parametrize("state", [OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT])
def test_one_maintenance_at_a_time_works_on_a_host(state: OrderState) -> None:
    """The work does not begin while another order of the host is in hand; that of another host does not matter."""
    known, other = host_order(), host_order(state, id=guid(801), maintenance_id=guid(901), node="n")
    opened = replace(known, state=OrderState.OPEN)
    breaks(on_hosts(known, other, host="b"), on_hosts(opened, other, host="b"), f"while order {other.id} of it is")
    elsewhere = replace(other, host="c")
    check_invariants(on_hosts(known, elsewhere, host="b"), on_hosts(opened, elsewhere, host="b"), NOW)


@pytest.mark.parametrize("state", [OrderState.RUNNING, OrderState.IN_DOUBT])
def test_a_machine_that_arrives_does_not_end_work_that_has_begun(state: OrderState) -> None:
    """Another node takes over what has begun."""
    known = host_order(state, node="one")
    check_invariants(on_hosts(known), on_hosts(replace(known, state=OrderState.RUNNING, node="two")), NOW)


def test_work_in_place_begins_only_when_every_machine_is_shut_down() -> None:
    """Each machine on the host is in a started event whose order waits to start it again."""
    planned, opened = host_order(), host_order(OrderState.OPEN)
    for work in (replace(DOWN, phase=Phase.STOP, state=OrderState.RUNNING), replace(DOWN, state=OrderState.OPEN)):
        parts: Any = {"mode": HostMode.IN_PLACE, "event_of": STARTED}
        breaks(on_hosts(planned, work, **parts), on_hosts(opened, work, **parts), "while shop/web-0 is on it")
    parts = {"mode": HostMode.IN_PLACE, "event_of": STARTED}
    check_invariants(on_hosts(planned, DOWN, **parts), on_hosts(opened, DOWN, **parts), NOW)


def test_a_cancelled_host_is_never_worked_on() -> None:
    """Cancelled and abandoned orders of hosts are final."""
    for state in (OrderState.CANCELLED, OrderState.ABANDONED):
        for later in (OrderState.OPEN, OrderState.RUNNING, OrderState.DONE):
            known = host_order(state)
            breaks(
                on_hosts(known, host="b"),
                on_hosts(replace(known, state=later), host="b"),
                f"from {state} to {later}",
            )


def test_an_order_of_a_host_keeps_its_host() -> None:
    """Its id stands for one host of one maintenance."""
    known = host_order()
    for other in (replace(known, host="b"), replace(known, maintenance_id=guid(901))):
        breaks(on_hosts(known), on_hosts(other), "would belong to another host or maintenance")
    breaks(on_hosts(known), on_hosts(replace(known, position=2)), "nobody rescheduled its host")
    moved = replace(known, reschedules=1, position=2)
    assert kept(on_hosts(moved), on_hosts(replace(moved, position=3)))
    breaks(on_hosts(moved), on_hosts(replace(moved, position=1)), "nobody rescheduled its host")
    check_invariants(on_hosts(known), on_hosts(replace(known, position=2, reschedules=1)), NOW)


def test_machines_are_shut_down_only_in_a_started_event() -> None:
    """An order that shuts machines down belongs to an event that its guests see as Started."""
    unannounced = replace(DOWN, state=OrderState.OPEN, phase=Phase.STOP)
    before = on_hosts(host_order(), mode=HostMode.IN_PLACE, event_of=event(host="a"))
    breaks(before, replace(before, orders={**before.orders, DOWN.id: unannounced}), "no started event announces it")


@pytest.mark.parametrize("state", [OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT])
def test_machines_are_not_started_while_their_host_is_worked_on(state: OrderState) -> None:
    """The order that starts them again opens when the order of the host is over."""
    parts: Any = {"mode": HostMode.IN_PLACE, "event_of": STARTED}
    work = host_order(state, node="n")
    again = replace(DOWN, state=OrderState.OPEN, attempt=2)
    breaks(on_hosts(work, DOWN, **parts), on_hosts(work, again, **parts), "would start machines while")
    over = host_order(OrderState.FAILED)
    check_invariants(on_hosts(over, DOWN, **parts), on_hosts(over, again, **parts), NOW)


# -- 8. what the strategy of a maintenance holds back

ENDED = event(1, status=Status.COMPLETED, started=START, ended=at(10))
PLANNED = event(2, wave=2, status=Status.PLANNED, published=None, not_before=None, sequence=0)
PUBLISHED = replace(PLANNED, status=Status.SCHEDULED, published=NOW, not_before=at(35))


def following(
    strategy: Strategy, *events: Event, hold: ClockHold | None = None, **facts: Any
) -> tuple[Snapshot, Snapshot]:
    """A pair in which the second wave is published after the first."""
    orders = facts.pop("orders", ())
    before = snapshot(
        *(events or (ENDED,)), PLANNED, maintenances=[maintenance(strategy=strategy, **facts)], orders=orders
    )
    before = replace(before, hold=hold)
    return before, after(before, PUBLISHED)


def test_8_a_wave_waits_for_the_bake_time() -> None:
    """The bake time counts from the end of the earlier waves, by the clock that is trusted."""
    too_early = following(Strategy(bake_s=601))
    assert broken(*too_early) == f"invariant 8: wave 2 of maintenance {guid(900)} would not wait for the bake time"
    assert kept(*following(Strategy(bake_s=600)))
    hold = ClockHold(trusted=at(19), noticed=NOW, jumped_s=60)
    assert "would not wait for the bake time" in broken(*following(Strategy(bake_s=600), hold=hold))
    failed = Order(id=guid(1), issued=START, ended=at(15), state=OrderState.FAILED)
    pair = following(
        Strategy(bake_s=600),
        replace(ENDED, status=Status.STARTED, ended=None),
        orders=[failed],
        on_failure=OnFailure.CONTINUE,
    )
    assert "would not wait for the bake time" in broken(*pair)
    early = ClockHold(trusted=at(5), noticed=NOW, jumped_s=60)
    assert kept(*following(Strategy(pause_after=2), hold=early))
    cancelled = replace(ENDED, status=Status.CANCELLED, started=None)
    assert kept(*following(Strategy(bake_s=601), cancelled))


def test_8_a_wave_waits_for_an_operator() -> None:
    """After the wave `pause_after`, an operator must let the maintenance continue."""
    strategy = Strategy(pause_after=1)
    assert broken(*following(strategy)) == (
        f"invariant 8: wave 2 of maintenance {guid(900)} would follow without an operator"
    )
    assert kept(*following(strategy, continued_after=1))
    assert kept(*following(Strategy(pause_after=2)))


def test_8_a_wave_waits_at_the_limit_of_failures() -> None:
    """As many unresolved failures as the limit let no further wave move."""
    failed = Order(id=guid(1), issued=START, ended=START, state=OrderState.FAILED)
    facts: dict[str, Any] = {"orders": [failed], "on_failure": OnFailure.CONTINUE}
    pair = following(Strategy(max_failures="50%"), replace(ENDED, status=Status.STARTED, ended=None), **facts)
    assert broken(*pair) == f"invariant 8: wave 2 of maintenance {guid(900)} would move on after 1 failures"
    assert kept(*following(Strategy(max_failures="2"), replace(ENDED, status=Status.STARTED, ended=None), **facts))
    assert kept(*following(Strategy(max_failures="1"), orders=[failed], on_failure=OnFailure.CONTINUE))


def test_6_a_scope_has_one_update_domain_in_a_wave() -> None:
    """The events of a wave start together. User events and emergencies are not bound."""
    first, second = event(1, wave=1), event(2, wave=1, update_domain=1, resources=("web-1",))
    before = snapshot(first)
    assert broken(before, after(before, second)) == "invariant 6: wave 1 would have update domains 0 and 1 of shop"
    assert kept(before, after(before, replace(second, wave=2, status=Status.PLANNED, published=None)))
    users = [replace(each, source=Source.USER) for each in (first, second)]
    assert kept(snapshot(users[0]), after(snapshot(users[0]), users[1]))


# -- 16. what is published fits into the budgets


def test_16_a_scope_keeps_its_budget() -> None:
    """An event is not published if more machines than allowed would be unavailable, unless they are so already."""
    shop_2 = scope("shop", incarnation=5, changed=START, max_unavailable="2")
    visible = event(resources=("web-0", "web-1"))
    planned = event(
        2,
        maintenance_id=guid(901),
        resources=("web-1", "web-2"),
        status=Status.PLANNED,
        published=None,
        not_before=None,
    )
    published = replace(planned, status=Status.SCHEDULED, published=NOW, not_before=at(40))
    before = snapshot(visible, planned, scopes=[shop_2])
    then = after(before, published)
    assert broken(before, then) == "invariant 16: 3 machines of shop would be unavailable, and 2 may be"
    fits = {"shop": replace(then.scopes["shop"], max_unavailable="3")}
    assert kept(before, replace(then, scopes=fits))
    share = {"shop": replace(then.scopes["shop"], max_unavailable="30%")}
    assert kept(replace(before, machine_counts={"shop": 10}), replace(then, scopes=share))
    assert broken(replace(before, machine_counts={"shop": 9}), replace(then, scopes=share)).endswith("2 may be")
    same = replace(published, resources=("web-1",))
    assert kept(snapshot(visible, replace(planned, resources=("web-1",)), scopes=[shop_2]), after(before, same))


def test_16_events_that_never_wait_may_exceed_a_budget() -> None:
    """A user's event that becomes visible in the same change does not count against the published one."""
    shop_1 = scope("shop", incarnation=5, changed=START, max_unavailable="1")
    planned = event(status=Status.PLANNED, published=None, not_before=None)
    users = replace(event(2, maintenance_id=guid(901), resources=("web-1",), source=Source.USER), status=Status.PLANNED)
    before = snapshot(planned, replace(users, published=None, not_before=None), scopes=[shop_1])
    visible = [replace(e, status=Status.SCHEDULED, published=NOW, not_before=at(40)) for e in (planned, users)]
    assert kept(before, after(before, *visible))


@pytest.mark.parametrize("in_use, legal", [(3, True), (4, False)])
def test_16_the_fleet_keeps_its_budget_of_machines(in_use: int, legal: bool) -> None:
    """What is down elsewhere counts; an event that ends in the same change makes room."""
    ends, stays = event(resources=("web-0",)), event(2, maintenance_id=guid(901), resources=("web-1",))
    planned = event(3, maintenance_id=guid(902), resources=("web-1", "web-2"))
    unpublished = replace(planned, status=Status.PLANNED, published=None, not_before=None)
    before = replace(
        snapshot(ends, stays, unpublished),
        fleet_rules=FleetRules(max_machines_down=3),
        fleet_use=FleetUse(machines=in_use),
    )
    then = after(
        before,
        replace(ends, status=Status.CANCELLED, ended=NOW),
        replace(planned, published=NOW, not_before=at(40)),
    )
    assert (
        kept(before, then)
        if legal
        else broken(before, then) == "invariant 16: 4 machines of the fleet would be down, and 3 may be"
    )


@pytest.mark.parametrize(
    "of_others, facts, legal",
    [
        ("kvm-9", {"host": "kvm-1"}, False),
        ("kvm-1", {"host": "kvm-1"}, True),
        ("kvm-9", {"group": "kvm-1"}, False),
        ("kvm-9", {"scope": "shop"}, True),
    ],
)
def test_16_the_fleet_keeps_its_budget_of_hosts(of_others: str, facts: dict[str, Any], legal: bool) -> None:
    """A published event takes its host down, or its group if the machines are grouped by host."""
    planned = event(**facts)
    unpublished = replace(planned, status=Status.PLANNED, published=None, not_before=None)
    by_host = maintenance(strategy=Strategy(group_by="host"))
    before = replace(
        snapshot(unpublished, maintenances=[by_host]),
        fleet_rules=FleetRules(max_hosts_down=1),
        fleet_use=FleetUse(hosts=frozenset({(guid(901), of_others)})),
    )
    then = after(before, replace(planned, published=NOW, not_before=at(40)))
    assert (
        kept(before, then)
        if legal
        else broken(before, then) == "invariant 16: 2 hosts of the fleet would be down, and 1 may be"
    )


@pytest.mark.parametrize(
    "emergency, status, legal",
    [
        (False, None, False),
        (True, None, True),
        (False, Status.COMPLETED, True),
        (False, Status.CANCELLED, False),
    ],
)
def test_16_work_on_a_host_begins_within_the_budget(emergency: bool, status: Status | None, legal: bool) -> None:
    """The work on an empty host takes it down; a host whose turn has begun is down already, and an emergency never waits."""
    work = Order(id=guid(2), issued=START, host="kvm-1", maintenance_id=guid(900), state=OrderState.PLANNED, position=1)
    left = event(status=status or Status.PLANNED, started=at(15), ended=at(16), host="kvm-1")
    hosts = maintenance(host_mode=HostMode.EVACUATE, emergency=emergency)
    before = replace(
        snapshot(*([left] if status else []), maintenances=[hosts], orders=[work]),
        read_hosts=frozenset({"kvm-1"}),
        fleet_rules=FleetRules(max_hosts_down=1),
        fleet_use=FleetUse(hosts=frozenset({(guid(901), "kvm-9")})),
    )
    then = replace(before, orders={**before.orders, work.id: replace(work, state=OrderState.OPEN)})
    assert kept(before, then) if legal else "2 hosts of the fleet would be down" in broken(before, then)
