"""How a request becomes waves of events, and what notice a wave gives."""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from forewarn.core.change import Snapshot
from forewarn.core.errors import Invalid, NotFound, Refused
from forewarn.core.model import (
    MAX_MACHINES_PER_MAINTENANCE,
    ApprovalMode,
    Event,
    EventType,
    Machine,
    Maintenance,
    OnFailure,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.core.planning import due_notice_s, plan, publication, target_machines
from tests.support.builders import START, at, event, guid, key, machine, maintenance, request, scope

# Two shops of three machines in two update domains each, and a machine of its own; spread over two hosts.
FLEET = [
    machine("shop/web-0", 0, host="h1"),
    machine("shop/web-1", 1, host="h2"),
    machine("shop/web-2", 0, host="h2"),
    machine("ship/app-0", 5, host="h1"),
    machine("ship/app-1", 7, host="h1"),
    machine("ship/app-2", 7, host="h2"),
    machine("solo/solo", 0, host="h2"),
]
SCOPES = [scope("shop"), scope("ship"), scope("solo", kind=ScopeKind.STANDALONE)]


def snapshot(**scopes: Any) -> Snapshot:
    """The fleet; keyword arguments replace scopes."""
    return Snapshot(
        scopes={each.name: each for each in SCOPES} | scopes,
        machines={each.key: each for each in FLEET},
    )


def names(machines: list[Machine]) -> list[str]:
    return [str(each) for each in machines]


def planned(*machines: str, within: Snapshot | None = None, **options: Any) -> tuple[Maintenance, list[Event]]:
    ids = (guid(number) for number in count(1))
    submitted = request(*machines, **options)
    return plan(within or snapshot(), submitted, now=START, created_by="alice", new_id=ids.__next__)[:2]


def waves(events: list[Event]) -> list[str]:
    """Each event as `wave scope#domain resources`, in order."""
    return [f"{e.wave} {e.scope}#{e.update_domain} {','.join(e.resources)}" for e in events]


# -- which machines are meant


def test_targets_by_name() -> None:
    """Named machines are targeted each once, in the given order."""
    targets = Targets(machines=(key("ship/app-1"), key("shop/web-0"), key("ship/app-1")))
    assert names(target_machines(targets, snapshot().machines)) == ["ship/app-1", "shop/web-0"]


def test_targets_by_scope() -> None:
    """A scope without an update domain targets every machine in it."""
    found = target_machines(Targets(scope="shop"), snapshot().machines)
    assert names(found) == ["shop/web-0", "shop/web-1", "shop/web-2"]


def test_targets_by_update_domain() -> None:
    """A scope with an update domain targets the machines of that domain, also of domain 0."""
    found = target_machines(Targets(scope="shop", update_domain=0), snapshot().machines)
    assert names(found) == ["shop/web-0", "shop/web-2"]


def test_targets_by_host() -> None:
    """A host targets its machines of all scopes."""
    assert names(target_machines(Targets(hosts=("h1",)), snapshot().machines)) == [
        "shop/web-0",
        "ship/app-0",
        "ship/app-1",
    ]
    assert len(target_machines(Targets(hosts=("h1", "h2", "h1")), snapshot().machines)) == len(FLEET)


@pytest.mark.parametrize(
    "targets, complaint",
    [
        (
            Targets(machines=(("shop", "web-0"), ("shop", "web-9"))),
            "there is no machine shop/web-9: check its scope and name in the fleet",
        ),
        (Targets(machines=(("ship", "web-0"),)), "there is no machine ship/web-0"),
        (Targets(hosts=("h1", "h9")), "no machine is on host 'h9': check the name of the host in the fleet"),
        (Targets(scope="shed"), "scope 'shed' has no machine$"),
        (Targets(scopes=("shop", "shed")), "scope 'shed' has no machine$"),
        (Targets(scope="shop", update_domain=4), "scope 'shop' has no machine in update domain 4$"),
    ],
)
def test_a_target_without_machines_is_not_found(targets: Targets, complaint: str) -> None:
    """The message names the target."""
    with pytest.raises(NotFound, match=complaint):
        target_machines(targets, snapshot().machines)


def test_a_maintenance_has_at_most_a_hundred_thousand_machines() -> None:
    """One machine more is refused with advice."""
    web = machine("shop/web-0")
    fleet = dict.fromkeys((("shop", str(number)) for number in range(MAX_MACHINES_PER_MAINTENANCE)), web)
    assert len(target_machines(Targets(scope="shop"), fleet)) == MAX_MACHINES_PER_MAINTENANCE == 100_000
    with pytest.raises(
        Invalid, match="the targets are 100001 machines: submit several maintenances of at most 100000 machines each"
    ):
        target_machines(Targets(scope="shop"), fleet | {("shop", "one-more"): web})


# -- how they become waves


def test_a_wave_holds_the_next_update_domain_of_every_scope() -> None:
    """Wave k holds the k-th targeted update domain, ascending, of every targeted scope."""
    _, events = planned(*(str(each) for each in FLEET))
    assert waves(events) == [
        "1 ship#5 app-0",
        "1 shop#0 web-0,web-2",
        "1 solo#0 solo",
        "2 ship#7 app-1,app-2",
        "2 shop#1 web-1",
    ]


def test_only_targeted_update_domains_count() -> None:
    """The first targeted update domain of a scope is in wave 1, whatever its number."""
    _, events = planned("ship/app-2", "shop/web-1")
    assert waves(events) == ["1 ship#7 app-2", "1 shop#1 web-1"]


def test_a_host_that_spans_update_domains() -> None:
    """A host that carries several update domains of a scope takes as many waves."""
    _, events = planned(targets=Targets(hosts=("h1",)))
    assert waves(events) == ["1 ship#5 app-0", "1 shop#0 web-0", "2 ship#7 app-1"]


@pytest.mark.parametrize("type_", [EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY])
def test_an_emergency_is_one_wave(type_: EventType) -> None:
    """An emergency has one event per update domain, all in one wave and approved at creation."""
    _, events = planned(*(str(each) for each in FLEET), type=type_, emergency=True)
    assert waves(events) == [
        "1 ship#5 app-0",
        "1 ship#7 app-1,app-2",
        "1 shop#0 web-0,web-2",
        "1 shop#1 web-1",
        "1 solo#0 solo",
    ]
    assert all(e.emergency and e.born_approved for e in events)


@pytest.mark.parametrize(
    "type_, source",
    [(EventType.REBOOT, Source.USER), (EventType.REDEPLOY, Source.USER), (EventType.PREEMPT, Source.PLATFORM)],
)
def test_one_event_per_machine_in_one_wave(type_: EventType, source: Source) -> None:
    """User events and Preempt: one event per machine, one wave."""
    _, events = planned("shop/web-2", "shop/web-0", "ship/app-0", type=type_, source=source)
    assert waves(events) == ["1 ship#5 app-0", "1 shop#0 web-0", "1 shop#0 web-2"]


def test_terminate_is_for_placement_groups() -> None:
    """Terminate: one event per machine, and only where every machine is in a placement-group."""
    group = snapshot(shop=scope("shop", kind=ScopeKind.PLACEMENT_GROUP))
    _, events = planned("shop/web-1", "shop/web-0", type=EventType.TERMINATE, within=group)
    assert waves(events) == ["1 shop#0 web-0", "1 shop#1 web-1"]
    with pytest.raises(
        Refused,
        match="Terminate needs a scope of kind placement-group: machine ship/app-0 is in a scope of kind availability-set",
    ):
        planned("shop/web-0", "ship/app-0", type=EventType.TERMINATE, within=group)


# -- what is fixed at submission


def test_the_maintenance_keeps_the_request() -> None:
    """All fields of the request are kept, with who submitted it and when."""
    kept, _ = planned(
        "shop/web-0",
        type=EventType.FREEZE,
        not_before=at(60),
        earliest=at(30),
        duration_s=9,
        description="new switch",
        on_failure=OnFailure.CONTINUE,
    )
    assert kept == Maintenance(
        id=guid(1),
        targets=Targets(machines=(("shop", "web-0"),)),
        type=EventType.FREEZE,
        source=Source.PLATFORM,
        created=START,
        created_by="alice",
        not_before=at(60),
        earliest=at(30),
        duration_s=9,
        description="new switch",
        on_failure=OnFailure.CONTINUE,
        wake_at=START,
    )


def test_the_ids_of_all_waves_are_fixed_at_submission() -> None:
    """Every event exists from the start: Planned, numbered, with an id of its own."""
    kept, events = planned("shop/web-0", "shop/web-1", duration_s=9, description="new switch")
    assert [e.id for e in events] == [guid(2), guid(3)]
    assert [e.position for e in events] == [0, 1]
    for each in events:
        assert each.status is Status.PLANNED
        assert each.maintenance_id == kept.id
        assert (each.description, each.duration_s, each.type) == ("new switch", 9, EventType.REBOOT)
        assert each.published is each.not_before is each.started is None


def test_approval_at_creation_is_a_setting_for_user_events() -> None:
    """approve_user_events approves user events of the scope at creation, and no platform events."""
    within = snapshot(shop=scope("shop", approve_user_events=True, approval=ApprovalMode.ALL))
    _, events = planned("shop/web-0", "ship/app-0", source=Source.USER, within=within)
    assert [(e.scope, e.born_approved, e.approval_mode) for e in events] == [
        ("ship", False, "any"),
        ("shop", True, "all"),
    ]
    _, events = planned("shop/web-0", within=within)
    assert [e.born_approved for e in events] == [False]


# -- what publication fixes


def published(
    *events: Event, requested: Maintenance | None = None, **scopes: Any
) -> dict[str, tuple[float, float, int, bool]]:
    """Per scope: minutes until publication and NotBefore, the notice, whether approval is needed."""
    known = {each.name: each for each in SCOPES} | scopes
    fixed = publication(requested or maintenance(), events, known, lambda name: known[name].changed or START)
    return {
        e.scope: (
            (fixed[e.id].published - START) / timedelta(minutes=1),
            (fixed[e.id].not_before - START) / timedelta(minutes=1),
            fixed[e.id].minimum_notice_s,
            fixed[e.id].needs_approval,
        )
        for e in events
    }


@pytest.mark.parametrize(
    "type_, minutes",
    [
        (EventType.FREEZE, 15),
        (EventType.REBOOT, 15),
        (EventType.REDEPLOY, 10),
        (EventType.PREEMPT, 0.5),
        (EventType.TERMINATE, 5),
    ],
)
def test_the_minimum_notice_of_each_type(type_: EventType, minutes: float) -> None:
    """NotBefore is publication plus the type's minimum notice."""
    assert published(event(type=type_)) == {"shop": (0, minutes, minutes * 60, True)}


def test_a_scope_may_have_more_notice() -> None:
    """The scope's own minimum notice and terminate notice replace the protocol's."""
    patient = scope("shop", minimum_notice_s={EventType.REBOOT: 3_600}, terminate_notice_s=900)
    assert published(event(), shop=patient) == {"shop": (0, 60, 3_600, True)}
    assert published(event(type=EventType.FREEZE), shop=patient) == {"shop": (0, 15, 900, True)}
    assert published(event(type=EventType.TERMINATE), shop=patient) == {"shop": (0, 15, 900, True)}


@pytest.mark.parametrize("requested_minutes, minutes", [(-60, 15), (10, 15), (15, 15), (16, 16), (600, 600)])
def test_not_before_is_the_later_of_request_and_notice(requested_minutes: float, minutes: float) -> None:
    """NotBefore = max(requested NotBefore, publication + minimum notice)."""
    requested = maintenance(not_before=at(requested_minutes))
    assert published(event(), requested=requested) == {"shop": (0, minutes, 900, True)}


def test_a_disabled_scope_gets_no_minimum_notice() -> None:
    """In a disabled scope NotBefore is now, and no approval is needed."""
    assert published(event(), shop=scope("shop", enabled=False)) == {"shop": (0, 0, 0, False)}


@pytest.mark.parametrize("requested_minutes, minutes", [(-60, 0), (5, 5)])
def test_a_disabled_scope_with_a_requested_start(requested_minutes: float, minutes: float) -> None:
    """In a disabled scope NotBefore is the requested one, and an approval can bring the start forward."""
    requested = maintenance(not_before=at(requested_minutes))
    assert published(event(), requested=requested, shop=scope("shop", enabled=False)) == {"shop": (0, minutes, 0, True)}


def test_a_wave_shares_the_latest_not_before() -> None:
    """All events of a wave share one NotBefore, the latest any of them needs; a disabled scope shares it too."""
    slow = scope("ship", minimum_notice_s={EventType.REBOOT: 3_600})
    asleep = scope("solo", enabled=False)
    wave = [event(1), event(2, scope="ship"), event(3, scope="solo")]
    assert published(*wave, ship=slow, solo=asleep) == {
        "shop": (0, 60, 900, True),
        "ship": (0, 60, 3_600, True),
        "solo": (0, 60, 0, False),
    }


def test_notice_counts_from_the_scopes_own_time() -> None:
    """If a scope's last change is ahead of the clock, publication and notice count from that change."""
    ahead = scope("ship", changed=at(7))
    assert published(event(1), event(2, scope="ship"), ship=ahead) == {
        "shop": (0, 22, 900, True),
        "ship": (7, 22, 900, True),
    }


@pytest.mark.parametrize("microseconds, rounded_s", [(0, 900), (1, 901), (999_999, 901)])
def test_not_before_is_a_whole_second(microseconds: int, rounded_s: int) -> None:
    """Guests see whole seconds, so NotBefore is rounded up."""
    now = START + timedelta(microseconds=microseconds)
    fixed = publication(maintenance(), [event()], {"shop": scope()}, lambda _: now)[guid(1)]
    assert fixed.not_before == START + timedelta(seconds=rounded_s)
    assert fixed.published == now


def test_a_wave_without_its_scope_has_no_notice() -> None:
    """The scope was removed: nobody can say what notice the wave would give."""
    assert due_notice_s([event()], {}) is None
    assert due_notice_s([event()], {"shop": scope(enabled=True)}) == 900
