"""What every store promises about reading: what a snapshot is about, hints in order, pages of history, forgetting."""

from dataclasses import replace

import msgspec
import pytest

from forewarn.core.change import Snapshot
from forewarn.core.errors import Invalid
from forewarn.core.model import ApprovalMode, Event, MaintenanceStatus, Order, OrderState, Status
from forewarn.store import AuditQuery, EventFirstSeen, EventQuery, Focus, MachineIdentity, MachineLastSeen, Store
from tests.support.records import (
    START,
    approval,
    at,
    change,
    ended,
    entry,
    event,
    machine,
    maintenance,
    order,
    scope,
)


@pytest.fixture
def fleet(store: Store) -> Store:
    """Three scopes on two hosts; M1 reaches over shop and blog, M2 lies in blog, M3 in wiki, M4 ended in shop.

    M1: E1 in shop (wave 1, approved), E2 in blog (wave 2, Planned), E0 in shop (ended already). M2: E3 in blog, Started.
    M3: E4 in wiki. M4: E5 in shop, Completed.
    """
    machines = [
        machine("web-0", host="h1", addresses=("10.0.0.1",)),
        machine("web-1", host="h2"),
        machine("db-0", scope="blog", host="h1"),
        machine("x", scope="wiki"),
    ]
    events = [
        event("E0", "M1", position=0, status=Status.CANCELLED, resources=("web-1",)),
        event("E1", "M1", position=1),
        event("E2", "M1", position=2, wave=2, scope="blog", resources=("db-0",), status=Status.PLANNED),
        event("E3", "M2", scope="blog", resources=("db-0",), status=Status.STARTED),
        event("E4", "M3", scope="wiki", resources=("x",)),
        event("E5", "M4", status=Status.COMPLETED),
    ]
    store.apply(
        change(
            scopes=[scope("shop"), scope("blog", approval=ApprovalMode.ALL), scope("wiki")],
            machines=machines,
            maintenances=[*(maintenance(f"M{n}") for n in (1, 2, 3)), ended(maintenance("M4"), at(1_000))],
            events=events,
            approvals=[approval("E1"), approval("E5")],
            orders=[order("E3"), order("E5", state=OrderState.DONE)],
        )
    )
    return store


def named(snapshot: Snapshot) -> dict[str, str]:
    """What a snapshot holds, by name: short enough to state in a test."""
    return {
        "scopes": " ".join(sorted(snapshot.scopes)),
        "machines": " ".join(sorted("/".join(key) for key in snapshot.machines)),
        "maintenances": " ".join(sorted(snapshot.maintenances)),
        "events": " ".join(sorted(snapshot.events)),
        "orders": " ".join(sorted(snapshot.orders)),
    }


def holds(scopes: str = "", machines: str = "", maintenances: str = "", events: str = "", orders: str = "") -> object:
    return {
        "scopes": scopes,
        "machines": machines,
        "maintenances": maintenances,
        "events": events,
        "orders": orders,
    }


# -- what a snapshot is about


def test_a_scope_brings_its_open_events_and_their_maintenances_whole(fleet: Store) -> None:
    """A decision about waves needs every event of a maintenance, also those elsewhere; not the scopes they are in."""
    assert named(fleet.snapshot(Focus(scopes=("shop",)))) == holds("shop", "", "M1", "E0 E1 E2")


def test_without_whole_only_open_events_of_the_scope_come(fleet: Store) -> None:
    """A poll needs no more than what is open in its scope."""
    assert named(fleet.snapshot(Focus(scopes=("shop",), whole_maintenances=False))) == holds("shop", "", "M1", "E1")


def test_without_open_events_only_the_named_events_come(fleet: Store) -> None:
    """What concerns one event, or none, does not read the others of the scope."""
    alone = Focus(whole_maintenances=False, open_events=False)
    seen = fleet.snapshot(replace(alone, events=("E1",)))
    assert named(seen) == holds("shop", "", "M1", "E1")
    assert seen.events["E1"].approvals == (approval("E1"),)
    assert named(fleet.snapshot(replace(alone, events=("E3",)))) == holds("blog", "", "M2", "E3", "E3")
    assert named(fleet.snapshot(replace(alone, scopes=("shop", "blog")))) == holds("blog shop")
    assert named(fleet.snapshot(replace(alone, machines=(("shop", "web-1"),)))) == holds("shop", "shop/web-1")


def next_in_shop(store: Store, *ending: str) -> str:
    focus = Focus(events=ending, scopes=("shop",), whole_maintenances=False, open_events=False, next_events=True)
    return " ".join(sorted(store.snapshot(focus).events))


def waiting_events(store: Store, **scope_fields: object) -> None:
    """M1 to M4 have a published event each, and wake-ups; E2 comes first by its NotBefore. M5 and M6 are planned."""
    published = [event(f"E{n}", f"M{n}", not_before=at(900 + (n != 2))) for n in (1, 2, 3, 4)]
    planned = [event("E5", "M5", status=Status.PLANNED), event("E6", "M6", status=Status.PLANNED, born_approved=True)]
    store.apply(
        change(
            scopes=[scope("shop", **scope_fields)],
            machines=[machine("web-0")],
            maintenances=[maintenance(f"M{n}", wake_at=at(900)) for n in range(1, 7)],
            events=[*published, *planned],
        )
    )


def test_the_event_that_is_first_to_be_ready_is_next(store: Store) -> None:
    """Of published events the first by NotBefore comes, then one with an approval or without a wake-up; none that ends."""
    waiting_events(store)
    assert next_in_shop(store) == "E2 E6"
    assert next_in_shop(store, "E2") == "E1 E2 E6"
    store.apply(change(approvals=[approval("E4")]))
    assert next_in_shop(store) == "E4 E6"
    store.apply(change(approvals=[approval("E3")]))
    assert next_in_shop(store) == "E3 E6"
    (first,) = (m for m in [store.maintenance("M2")] if m is not None)
    store.apply(change(maintenances=[replace(first, wake_at=None)]))
    assert next_in_shop(store) == "E2 E6"


def test_an_event_that_needs_no_approval_is_next(store: Store) -> None:
    """An event that needs no approval comes before one that waits for its notice."""
    waiting_events(store)
    store.apply(change(events=[event("E3", "M3", not_before=at(901), needs_approval=False)]))
    assert next_in_shop(store) == "E3 E6"


def test_unstarted_events_of_named_machines_are_next(store: Store) -> None:
    """What a machine may do depends on its host: whoever moves it must know its events that have not started."""
    waiting_events(store)
    focus = Focus(
        events=("E2",), machines=(("shop", "web-0"),), whole_maintenances=False, open_events=False, next_events=True
    )
    assert " ".join(sorted(store.snapshot(focus).events)) == "E1 E2 E3 E4 E5 E6"


def test_planned_events_are_next_in_a_scope_with_a_budget(store: Store) -> None:
    """A wave that is not published may wait for the budget of its scope, so the end of another event may move it."""
    waiting_events(store, max_unavailable="1")
    assert next_in_shop(store) == "E2 E5 E6"


def test_a_maintenance_without_open_events_of_its_scopes_is_whole(fleet: Store) -> None:
    """Its own events come, open ones too; the other events of their scopes do not."""
    seen = fleet.snapshot(Focus(maintenances=("M1",), open_events=False))
    assert (set(seen.maintenances), set(seen.events)) == ({"M1"}, {"E0", "E1", "E2"})


def test_a_snapshot_brings_the_other_maintenances_of_its_scopes(fleet: Store) -> None:
    """A snapshot of a scope has all its open events, with approvals and orders."""
    seen = fleet.snapshot(Focus(scopes=("blog",)))
    assert named(seen) == holds("blog", "", "M1 M2", "E0 E1 E2 E3", "E3")
    assert seen.events["E1"].approvals == (approval("E1"),)
    assert seen.orders["E3"] == order("E3")
    assert seen.scopes["blog"] == scope("blog", approval=ApprovalMode.ALL, version=1)


def test_inventory_brings_the_machines_of_the_named_scopes(fleet: Store) -> None:
    """Machines come only where they were asked for."""
    seen = fleet.snapshot(Focus(scopes=("shop", "wiki"), inventory=True, whole_maintenances=False))
    assert named(seen) == holds("shop wiki", "shop/web-0 shop/web-1 wiki/x", "M1 M3", "E1 E4")
    assert seen.machines["shop", "web-0"] == machine("web-0", host="h1", addresses=("10.0.0.1",))


def test_a_machine_brings_its_scope(fleet: Store) -> None:
    """The scope of a named machine is concerned, the scope's other machines are not there."""
    seen = fleet.snapshot(Focus(machines=(("shop", "web-1"), ("wiki", "x"))))
    assert named(seen) == holds("shop wiki", "shop/web-1 wiki/x", "M1 M3", "E0 E1 E2 E4")


def test_a_host_brings_its_machines_and_their_scopes(fleet: Store) -> None:
    """A host is the list of its machines, of many scopes."""
    seen = fleet.snapshot(Focus(hosts=("h1",), whole_maintenances=False))
    assert named(seen) == holds("blog shop", "blog/db-0 shop/web-0", "M1 M2", "E1 E2 E3", "E3")


def test_machines_without_a_host_are_on_no_host(fleet: Store) -> None:
    """An empty host is not a name."""
    assert named(fleet.snapshot(Focus(hosts=("",)))) == holds()


def test_machines_are_found_by_how_callers_are_known(store: Store) -> None:
    """By address, by interface and address, or by instance id; each once, with all its addresses, and nobody else."""
    store.apply(
        change(
            scopes=[scope("shop"), scope("blog")],
            machines=[
                machine("a", addresses=("10.0.0.1", "10.0.0.2"), instance_id="i-a"),
                machine("b", interface="br0", addresses=("10.0.0.1",)),
                machine("c", interface="br1"),
                machine("d", scope="blog", instance_id="i-d"),
                machine("e", scope="blog"),
            ],
        )
    )

    def found(**known_by: object) -> str:
        seen = store.snapshot(Focus(whole_maintenances=False, **known_by))  # type: ignore[arg-type]
        return " ".join(f"{m}{len(m.addresses) or ''}" for m in seen.machines.values())

    assert found(identities=(("", "10.0.0.2"), ("", "10.0.0.1"))) == "shop/a2"
    assert found(identities=(("br0", "10.0.0.1"), ("br1", ""))) == "shop/b1 shop/c"
    assert found(identities=(("br0", "10.0.0.9"), ("", "")), instance_ids=("i-d", "i-x")) == "blog/d"
    seen = store.snapshot(
        Focus(scopes=("shop",), inventory=True, instance_ids=("i-a", "i-d"), whole_maintenances=False)
    )
    assert sorted(map(str, seen.machines.values())) == ["blog/d", "shop/a", "shop/b", "shop/c"]
    assert seen.machines["shop", "a"].addresses == ("10.0.0.1", "10.0.0.2")
    known = sorted(
        msgspec.structs.replace(each, addresses=tuple(sorted(each.addresses))) for each in store.machine_identities()
    )
    assert known == [MachineIdentity.of(m) for _, m in sorted(store.inventory().machines.items())]
    assert [(each.name, each.interface, each.addresses) for each in known] == [
        ("d", "", ()),
        ("e", "", ()),
        ("a", "", ("10.0.0.1", "10.0.0.2")),
        ("b", "br0", ("10.0.0.1",)),
        ("c", "br1", ("",)),
    ]
    assert set(seen.scopes) == {"shop", "blog"}


def test_a_maintenance_concerns_the_scopes_where_it_is_open(fleet: Store) -> None:
    """What else is open there comes along, whole: it may be in the way."""
    assert named(fleet.snapshot(Focus(maintenances=("M1",)))) == holds("blog shop", "", "M1 M2", "E0 E1 E2 E3", "E3")
    assert named(fleet.snapshot(Focus(maintenances=("M2",)))) == holds("blog", "", "M1 M2", "E0 E1 E2 E3", "E3")


def test_an_ended_maintenance_is_whole_and_concerns_no_scope(fleet: Store) -> None:
    """History can be read by name, and nothing of the present comes with it."""
    assert named(fleet.snapshot(Focus(maintenances=("M4",)))) == holds("", "", "M4", "E5", "E5")


def test_a_maintenance_without_whole_brings_what_is_open(fleet: Store) -> None:
    """The maintenance itself always comes, its ended events do not."""
    assert named(fleet.snapshot(Focus(maintenances=("M4",), whole_maintenances=False))) == holds("", "", "M4")
    seen = fleet.snapshot(Focus(maintenances=("M1",), whole_maintenances=False))
    assert named(seen) == holds("blog shop", "", "M1 M2", "E1 E2 E3", "E3")


def test_an_event_comes_even_when_it_has_ended(fleet: Store) -> None:
    """A repeated approval of an ended event must find it; its scope is concerned."""
    seen = fleet.snapshot(Focus(events=("E5",), whole_maintenances=False))
    assert named(seen) == holds("shop", "", "M1 M4", "E1 E5", "E5")
    assert seen.events["E5"].approvals == (approval("E5"),)
    assert named(fleet.snapshot(Focus(events=("E5",)))) == holds("shop", "", "M1 M4", "E0 E1 E2 E5", "E5")


def test_what_is_unknown_is_absent(fleet: Store) -> None:
    """An unknown name is no error of the store; the caller reports it."""
    nobody = Focus(
        scopes=("gone",),
        machines=(("shop", "gone"), ("gone", "x")),
        hosts=("h9",),
        maintenances=("M9",),
        events=("E9",),
    )
    assert named(fleet.snapshot(nobody)) == holds("shop", "", "M1", "E0 E1 E2")


def test_an_empty_focus_is_about_nothing(fleet: Store) -> None:
    """A snapshot is never the fleet."""
    assert named(fleet.snapshot(Focus())) == holds()


def test_names_are_data_never_patterns(store: Store) -> None:
    """Quotes and wildcards in what is asked for match only themselves."""
    store.apply(change(scopes=[scope("a_c"), scope("abc")]))
    assert named(store.snapshot(Focus(scopes=("a_c", "'", '"', "%"), hosts=("%", "'"))))["scopes"] == "a_c"
    assert store.audit(AuditQuery(scope="'; DROP TABLE scopes; --")) == []
    assert set(store.inventory().scopes) == {"a_c", "abc"}


# -- hints


def test_the_longest_waiting_is_due_first(store: Store) -> None:
    """Due maintenances come by wake_at, then id, no more than asked for, and none before its time."""
    waking = {"M1": at(30), "M2": at(10.000001), "M3": at(10), "M4": at(10), "M5": at(31), "M6": None}
    store.apply(change(maintenances=[maintenance(i, wake_at=moment) for i, moment in waking.items()]))
    assert store.due(at(30), 10) == ["M3", "M4", "M2", "M1"]
    assert store.due(at(30), 3) == ["M3", "M4", "M2"]
    assert store.due(at(10), 10) == ["M3", "M4"]
    assert store.due(at(9.999999), 10) == []
    assert store.due(at(30), 10, latest_first=True) == ["M1", "M2", "M4", "M3"]
    assert store.due(at(30), 2, latest_first=True) == ["M1", "M2"]


def test_the_next_wakeup_is_the_earliest(store: Store) -> None:
    """It follows every change of wake_at, and there is none when nothing waits for time."""
    assert store.next_wakeup() is None
    store.apply(change(maintenances=[maintenance("M1", wake_at=at(50)), maintenance("M2", wake_at=at(40.5))]))
    assert store.next_wakeup() == at(40.5)
    store.apply(change(maintenances=[maintenance("M2", wake_at=None, version=1)]))
    assert store.next_wakeup() == at(50)
    store.apply(change(at(7), wakes=["M2"]))
    assert store.next_wakeup() == at(7)
    store.apply(change(maintenances=[ended(maintenance("M2", version=3), at(8))]))
    store.apply(change(maintenances=[maintenance("M1", version=1)]))
    assert store.next_wakeup() is None


def orders_in(store: Store, *states: OrderState, limit: int = 100) -> list[str]:
    return [o.id for o in store.orders(states, limit)]


def test_orders_come_oldest_first(store: Store) -> None:
    """Orders in the states asked for, by when they were issued, then id; a retried one queues anew."""
    work: list[Order] = [
        order("E3", issued=at(3)),
        order("E2", issued=at(1), state=OrderState.RUNNING),
        order("E1", issued=at(3)),
        order("E4", issued=at(2), state=OrderState.FAILED),
        order("E5", issued=at(0), state=OrderState.DONE),
    ]
    events = [event(o.id, position=n, resources=(o.id,), status=Status.STARTED) for n, o in enumerate(work)]
    store.apply(change(scopes=[scope()], maintenances=[maintenance()], events=events, orders=work))
    assert orders_in(store, OrderState.OPEN) == ["E1", "E3"]
    assert orders_in(store, OrderState.OPEN, OrderState.RUNNING) == ["E2", "E1", "E3"]
    assert orders_in(store, *OrderState) == ["E5", "E2", "E4", "E1", "E3"]
    assert orders_in(store, *OrderState, limit=2) == ["E5", "E2"]
    assert orders_in(store) == []
    store.apply(change(orders=[order("E4", issued=at(9), attempt=2), order("E1", state=OrderState.RUNNING)]))
    assert orders_in(store, OrderState.OPEN) == ["E3", "E4"]


# -- when machines last asked


def test_the_last_time_a_machine_asked_is_remembered(fleet: Store) -> None:
    """Each machine's last record; those that never asked and those there are not are not in it."""
    fleet.record_last_seen(
        [
            MachineLastSeen("shop", "web-0", at(5)),
            MachineLastSeen("shop", "web-1", at(6.000001)),
            MachineLastSeen("blog", "db-0", at(7)),
        ]
    )
    fleet.record_last_seen([MachineLastSeen("shop", "web-0", at(8))])
    fleet.record_last_seen([])
    shop = [("shop", "web-0"), ("shop", "web-1"), ("shop", "web-9")]
    assert fleet.last_seen(shop) == {("shop", "web-0"): at(8), ("shop", "web-1"): at(6.000001)}
    assert fleet.last_seen([("wiki", "x"), ("blog", "db-0"), ("nowhere", "web-0")]) == {("blog", "db-0"): at(7)}
    assert fleet.last_seen([]) == {}


def test_an_older_last_seen_time_replaces_no_later_one(fleet: Store) -> None:
    """A node that could not save a time for a while does not undo what another node has saved since."""
    fleet.record_last_seen([MachineLastSeen("shop", "web-0", at(8))])
    fleet.record_last_seen([MachineLastSeen("shop", "web-0", at(7))])
    assert fleet.last_seen([("shop", "web-0")]) == {("shop", "web-0"): at(8)}
    assert fleet.last_seen_by_scope(["shop"]) == {"shop": at(8)}


def test_a_machine_that_left_is_not_remembered(fleet: Store) -> None:
    """It is forgotten with the machine, a late record of it is no error, and a namesake begins anew."""
    fleet.record_last_seen([MachineLastSeen("wiki", "x", at(5)), MachineLastSeen("shop", "web-0", at(5))])
    fleet.apply(change(removed_machines=[("wiki", "x")]))
    fleet.record_last_seen([MachineLastSeen("wiki", "x", at(6)), MachineLastSeen("nowhere", "y", at(6))])
    fleet.apply(change(machines=[machine("x", scope="wiki"), machine("web-0", host="h2")]))
    assert fleet.last_seen([("wiki", "x"), ("shop", "web-0")]) == {("shop", "web-0"): at(5)}


def test_the_latest_of_a_scope_counts_for_all_of_it(fleet: Store) -> None:
    """Whichever of its machines asked last; a scope of which none ever did is not in it."""
    fleet.record_last_seen(
        [
            MachineLastSeen("shop", "web-0", at(8)),
            MachineLastSeen("shop", "web-1", at(6.000001)),
            MachineLastSeen("blog", "db-0", at(7)),
        ]
    )
    assert fleet.last_seen_by_scope(["shop", "wiki", "nowhere"]) == {"shop": at(8)}
    assert fleet.last_seen_by_scope([]) == {}


def test_being_seen_bumps_no_version(fleet: Store) -> None:
    """It is written apart: nobody's decision is disturbed by a poll."""
    before = fleet.inventory()
    fleet.record_last_seen([MachineLastSeen("shop", "web-0", at(5))])
    assert fleet.inventory() == before


def test_machines_are_found_by_their_name_alone(fleet: Store) -> None:
    """All that have it, by scope, with their addresses."""
    fleet.apply(change(machines=[machine("web-0", scope="wiki", addresses=("10.9.9.9",))]))
    assert [(m.scope, m.name) for m in fleet.machines_named("web-0")] == [("shop", "web-0"), ("wiki", "web-0")]
    assert fleet.machines_named("web-0")[1].addresses == ("10.9.9.9",)
    assert [m.scope for m in fleet.machines_named("web-0", limit=1)] == ["shop"]
    assert fleet.machines_named("nobody") == []


# -- history


def test_the_first_sight_of_an_event_stays(history: Store) -> None:
    """Each machine's first; a later one and one of an unknown event are no error; it goes with the event."""
    history.record_first_seen(
        [EventFirstSeen("E1", "web-1", at(5)), EventFirstSeen("E1", "web-0", at(6)), EventFirstSeen("X", "y", at(6))]
    )
    history.record_first_seen([EventFirstSeen("E1", "web-1", at(9))])
    assert history.first_seen("E1") == {"web-0": at(6), "web-1": at(5)}
    assert history.first_seen("E2") == {}


@pytest.fixture
def history(store: Store) -> Store:
    """Six events of two maintenances in two scopes, E1 the oldest, in every status."""
    events = [
        event(
            f"E{n}",
            f"M{n % 2}",
            position=n,
            scope="shop" if n <= 4 else "blog",
            resources=(f"web-{n % 3}", "web-x"),
            status=status,
        )
        for n, status in enumerate(Status, start=1)
    ]
    store.apply(change(maintenances=[maintenance("M0"), maintenance("M1")], approvals=[approval("E2")], events=events))
    return store


def ids(events: tuple[Event, ...]) -> str:
    return " ".join(e.id for e in events)


@pytest.mark.parametrize(
    "query, expected",
    [
        (EventQuery(), "E6 E5 E4 E3 E2 E1"),
        (EventQuery(scope="shop"), "E4 E3 E2 E1"),
        (EventQuery(scope="shop", machine="web-1"), "E4 E1"),
        (EventQuery(scope="blog", machine="web-1"), ""),
        (EventQuery(maintenance_id="M1"), "E5 E3 E1"),
        (EventQuery(statuses=(Status.COMPLETED, Status.PLANNED)), "E4 E1"),
        (EventQuery(statuses=()), ""),
        (EventQuery(scope="shop", statuses={Status.STARTED}), "E3"),
        (EventQuery(maintenance_id="M0", statuses={Status.STARTED}), ""),
        (EventQuery(maintenance_id="M1", scope="shop"), "E3 E1"),
        (EventQuery(scope="shop", machine="web-1", maintenance_id="M1"), "E1"),
        (EventQuery(scope="shop", machine="web-x", statuses=(Status.STARTED, Status.SCHEDULED)), "E3 E2"),
        (EventQuery(scope="nowhere"), ""),
        (EventQuery(maintenance_id="M9"), ""),
    ],
    ids=str,
)
def test_a_page_holds_what_matches_newest_first(history: Store, query: EventQuery, expected: str) -> None:
    """Every condition of a query counts, in any combination."""
    page = history.events(query)
    assert ids(page.events) == expected
    assert page.next_before is None


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
def test_pages_follow_one_another(history: Store, limit: int) -> None:
    """The cursor leads through everything once, and ends; what is published meanwhile does not disturb it."""
    seen: list[str] = []
    before = None
    for _ in range(6 // limit + 1):
        page = history.events(EventQuery(limit=limit, before=before))
        seen += [e.id for e in page.events]
        before = page.next_before
        if before is None:
            break
        history.apply(change(events=[event(f"new after {len(seen)}", "M1", position=10 + len(seen))]))
    assert seen == ["E6", "E5", "E4", "E3", "E2", "E1"]
    assert before is None


def test_pages_by_scope_machine_and_maintenance_have_cursors_too(history: Store) -> None:
    """Each way to ask goes on where its last page ended."""
    for query in (
        EventQuery(scope="shop", limit=1),
        EventQuery(scope="shop", machine="web-x", limit=1),
        EventQuery(maintenance_id="M0", limit=1),
    ):
        whole = history.events(replace(query, limit=50)).events
        first = history.events(query)
        assert ids(first.events) == whole[0].id
        assert ids(history.events(replace(query, limit=50, before=first.next_before)).events) == ids(whole[1:])


def test_an_event_in_a_page_has_its_approvals(history: Store) -> None:
    """A page shows events as a snapshot does."""
    found = {e.id: e for e in history.events(EventQuery(scope="shop")).events}
    assert found["E2"] == history.snapshot(Focus(events=("E2",))).events["E2"]
    assert found["E2"].approvals == (approval("E2"),)


def test_an_event_keeps_its_place_when_it_changes(history: Store) -> None:
    """Newest is what was planned last, not what moved last."""
    history.apply(change(events=[replace(history.events(EventQuery(scope="shop")).events[2], reason="moved")]))
    page = history.events(EventQuery(scope="shop"))
    assert ids(page.events) == "E4 E3 E2 E1"
    assert page.events[2].reason == "moved"


def test_a_machine_is_asked_for_with_its_scope() -> None:
    """A machine is known as scope/name: a name alone means nothing."""
    with pytest.raises(Invalid, match="machine goes with a scope"):
        EventQuery(machine="web-0")


def test_a_maintenance_nobody_knows_is_none(store: Store) -> None:
    """Asking by name for what is not there is no error."""
    assert store.maintenance("M9") is None


@pytest.mark.parametrize(
    "query, expected",
    [
        (AuditQuery(), "6 5 4 3 2 1"),
        (AuditQuery(limit=2), "6 5"),
        (AuditQuery(limit=2, before=5), "4 3"),
        (AuditQuery(scope="shop"), "6 5 4 2"),
        (AuditQuery(scope="shop", before=5, limit=1), "4"),
        (AuditQuery(maintenance_id="M1"), "6 5 3"),
        (AuditQuery(event_id="E1"), "6 4 3"),
        (AuditQuery(event_id="E1", before=6), "4 3"),
        (AuditQuery(maintenance_id="M1", scope="shop"), "6 5"),
        (AuditQuery(maintenance_id="M1", event_id="E1"), "6 3"),
        (AuditQuery(scope="shop", event_id="E1"), "6 4"),
        (AuditQuery(scope="shop", maintenance_id="M1", event_id="E1"), "6"),
        (AuditQuery(before=1), ""),
        (AuditQuery(event_id="E9"), ""),
    ],
    ids=str,
)
def test_the_audit_is_read_newest_first(store: Store, query: AuditQuery, expected: str) -> None:
    """Every condition counts, in any combination; `before` goes on where a page ended."""
    wanted = [
        entry("1"),
        entry("2", scope="shop"),
        entry("3", maintenance_id="M1", event_id="E1"),
        entry("4", scope="shop", event_id="E1", maintenance_id="M2"),
        entry("5", scope="shop", maintenance_id="M1"),
        entry("6", scope="shop", maintenance_id="M1", event_id="E1"),
    ]
    store.apply(change(audit=wanted))
    found = store.audit(query)
    assert " ".join(e.action for e in found) == expected
    assert [str(e.id) for e in found] == [e.action for e in found]


# -- forgetting


@pytest.fixture
def old(store: Store) -> Store:
    """M1, M2 and M3 ended at 100, 200 and 300, each with an event, an approval and an order; M4 is older and open."""
    numbers = range(1, 5)
    over = [ended(maintenance(f"M{n}"), at(100 * n)) for n in (1, 2, 3)]
    events = [
        event(f"E{n}", f"M{n}", status=Status.COMPLETED if n < 4 else Status.STARTED, started=at(1), not_before=at(1))
        for n in numbers
    ]
    events = [replace(e, ended=at(2)) if e.ended else e for e in events]
    store.apply(
        change(
            scopes=[scope()],
            machines=[machine()],
            maintenances=[*over, maintenance("M4", wake_at=at(1))],
            events=events,
            approvals=[approval(f"E{n}") for n in numbers],
            orders=[order(f"E{n}", state=OrderState.DONE if n < 4 else OrderState.OPEN) for n in numbers],
            audit=[entry(f"{n}", at=at(100 * n), maintenance_id=f"M{n}") for n in numbers],
        )
    )
    return store


def test_what_ended_before_is_forgotten_with_all_its_parts(old: Store) -> None:
    """Maintenances that ended before the cutoff go with their events, approvals and orders; audit entries go by age."""
    assert old.prune(at(200), 100) == 1 + 1 + 1
    seen = old.snapshot(Focus(maintenances=("M1", "M2"), events=("E1", "E2")))
    assert named(seen) == holds("shop", "", "M2 M4", "E2 E4", "E2 E4")
    assert old.maintenance("M1") is None
    assert ids(old.events(EventQuery()).events) == "E4 E3 E2"
    assert ids(old.events(EventQuery(scope="shop", machine="web-0")).events) == "E4 E3 E2"
    assert orders_in(old, *OrderState) == ["E2", "E3", "E4"]
    assert [e.action for e in old.audit(AuditQuery())] == ["4", "3", "2"]


def test_forgetting_never_touches_what_is_open(old: Store) -> None:
    """However old, an open maintenance and everything of it stays as it is."""
    before = old.snapshot(Focus(maintenances=("M4",)))
    assert old.prune(at(1_000_000), 100) == 3 + 3 + 4
    assert old.snapshot(Focus(maintenances=("M4",))) == before
    assert ids(old.events(EventQuery()).events) == "E4"
    assert old.due(at(1), 9) == ["M4"]
    assert set(old.inventory().machines) == {("shop", "web-0")}


def test_forgetting_is_bounded(old: Store) -> None:
    """No more than `limit` events and as many audit entries go at once; repeating gets to the end."""
    assert [old.prune(at(1_000), 2) for _ in range(4)] == [6, 4, 0, 0]
    assert ids(old.events(EventQuery()).events) == "E4"
    assert old.audit(AuditQuery()) == []


def test_a_large_maintenance_is_forgotten_bit_by_bit(store: Store) -> None:
    """However many events it has, no more than `limit` of them go at once; the maintenance goes with the last."""
    store.apply(
        change(
            scopes=[scope()],
            machines=[machine()],
            maintenances=[maintenance("M1", status=MaintenanceStatus.COMPLETED, ended=at(100))],
            events=[
                event(f"E{n}", "M1", position=n, status=Status.COMPLETED, started=at(1), not_before=at(1), ended=at(2))
                for n in range(5)
            ],
        )
    )
    left = []
    while store.prune(at(1_000), 2):
        left.append((store.maintenance("M1") is not None, len(store.events(EventQuery()).events)))
    assert left == [(True, 3), (True, 1), (False, 0)]


def test_forgetting_keeps_what_is_young_enough(old: Store) -> None:
    """The cutoff itself is not before the cutoff."""
    assert old.prune(at(100), 100) == 0
    assert ids(old.events(EventQuery()).events) == "E4 E3 E2 E1"


def test_an_audit_out_of_order_has_no_gap(store: Store) -> None:
    """After a clock was set back an old entry may stand behind a newer one: it stays as long as that one does."""
    store.apply(change(audit=[entry("young", at=at(500)), entry("old", at=at(1)), entry("late", at=at(600))]))
    assert store.prune(at(100), 100) == 0
    assert [e.action for e in store.audit(AuditQuery())] == ["late", "old", "young"]
    assert store.prune(at(550), 100) == 2
    assert [e.action for e in store.audit(AuditQuery())] == ["late"]


def test_numbers_are_not_given_again(old: Store) -> None:
    """A cursor or an audit id taken before forgetting never means something newer afterwards."""
    (newest,) = old.audit(AuditQuery(limit=1))
    old.prune(at(1_000), 100)
    old.apply(change(START, audit=[entry("next")]))
    assert [e.id for e in old.audit(AuditQuery())] == [newest.id + 1]
    old.apply(change(maintenances=[maintenance("M5")], events=[event("E5", "M5", resources=("web-5",))]))
    assert ids(old.events(EventQuery(limit=1)).events) == "E5"


@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_page_has_a_size(limit: int) -> None:
    """Nobody asks for nothing, or for everything at once."""
    with pytest.raises(Invalid, match="a page holds 1 to 1000"):
        EventQuery(limit=limit)
    with pytest.raises(Invalid, match="a page holds 1 to 1000"):
        AuditQuery(limit=limit)


def test_what_a_document_shows_is_all_that_is_read_for_it(store: Store) -> None:
    """Scopes and their open events, and nothing that guests do not see."""
    events = [event("E1", "M1", status=Status.STARTED)]
    store.apply(change(scopes=[scope()], maintenances=[maintenance("M1")], events=events, orders=[order("E1")]))
    store.apply(change(approvals=[approval("E1")]))
    shown = store.snapshot(Focus(scopes=("shop",), whole_maintenances=False, document_only=True))
    assert (list(shown.scopes), list(shown.events)) == (["shop"], ["E1"])
    assert (shown.maintenances, shown.orders, shown.events["E1"].approvals) == ({}, {}, ())


def test_ids_with_any_character_are_found(store: Store) -> None:
    """Characters that mean something in the notation of a list are ordinary ones in an id or in the name of a machine."""
    odd = ('a"b', "a\\b", "a,b", "{a}", "NULL", "'", "a b", "größe")
    events = [event(id_, position=number, resources=(f"{id_}-0",)) for number, id_ in enumerate(odd)]
    store.apply(change(scopes=[scope()], maintenances=[maintenance("M1")], events=events))
    found = store.snapshot(Focus(events=(*odd, "a\0b", "a\x1ab"), whole_maintenances=False, open_events=False)).events
    assert {i: each.resources for i, each in found.items()} == {each.id: each.resources for each in events}
