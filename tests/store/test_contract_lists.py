"""What every store promises about lists: their order, pages without gaps or repeats, and that nobody sees too much."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from forewarn.core.errors import Invalid
from forewarn.core.model import (
    ENDED,
    OPEN,
    UNFINISHED,
    EventType,
    Host,
    HostMode,
    MaintenanceStatus,
    OrderState,
    Status,
    Targets,
)
from forewarn.core.progress import WaveProgress, wave_progress
from forewarn.store import (
    MAX_SEARCHED,
    AuditQuery,
    Backlog,
    Counts,
    EventQuery,
    Focus,
    HostCount,
    HostQuery,
    MachineLastSeen,
    MachineQuery,
    MaintenanceQuery,
    OpenWavesQuery,
    OrderQuery,
    ScopeQuery,
    Store,
)
from forewarn.store.postgres.store import PostgresStore
from forewarn.store.sql import lists
from tests.conftest import STORES
from tests.support.postgres_servers import ANY_TIME_S, SHARED, UNHURRIED
from tests.support.records import (
    EVENT_ORDER_STATES,
    UNICODE,
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

SCOPES = ("blog", "shop", "wiki")
STATES = EVENT_ORDER_STATES
TYPES = list(EventType)
WITHIN: list[tuple[str, ...]] = [(), ("shop",), ("wiki", "blog"), ("shop", "shop"), ("nowhere", "blog"), ("",), SCOPES]


@pytest.fixture(scope="module", params=sorted(STORES))
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A fleet that all tests of this module read. A test that changes it takes `own_fleet`."""

    def refuse(*_: object) -> None:
        pytest.fail("other tests read this fleet as well: take own_fleet")

    if request.param == "postgres":
        made: Store = PostgresStore(SHARED.fresh(), decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    else:
        made = STORES[request.param](tmp_path_factory.mktemp("fleet"))
    fill(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "apply", refuse)
        patch.setattr(made, "record_last_seen", refuse)
        yield made
    made.close()


@pytest.fixture
def own_fleet(store: Store) -> Store:
    """A fleet that the test may change."""
    fill(store)
    return store


def fill(store: Store) -> None:
    """Add three scopes of four machines on two hosts; M0 to M11 with two events each, M3 and M7 in two scopes.

    Maintenances come two in a second, the later half ended. Event 2n and 2n+1 belong to Mn, each second one is ended, at
    its own number; every event has an order and an audit entry, and one entry lies in no scope.
    """
    machines = [
        machine(f"vm-{n}", scope=name, host=f"h{n % 2}", addresses=(f"10.0.{i}.{n}",))
        for i, name in enumerate(SCOPES)
        for n in range(4)
    ]
    statuses = list(MaintenanceStatus)
    work = [maintenance(f"M{n}", created=at(n // 2), status=statuses[n % 3]) for n in range(12)]
    work[6:] = [replace(ended(m, at(100)), status=statuses[3 + n % 3]) for n, m in enumerate(work[6:])]
    events = [_event(n) for n in range(24)]
    store.apply(
        change(
            scopes=[scope(name) for name in SCOPES],
            machines=machines,
            maintenances=work,
            events=events,
            orders=[order(e.id, issued=at(n // 3), state=STATES[n % 4]) for n, e in enumerate(events)],
            audit=[*(entry(f"{n}", scope=e.scope, event_id=e.id) for n, e in enumerate(events)), entry("of no scope")],
        )
    )


def _event(n: int, **fields: Any) -> Any:
    over = {"status": Status.COMPLETED, "published": at(0), "not_before": at(0), "started": at(0), "ended": at(n)}
    known: dict[str, Any] = {
        "position": n,
        "scope": SCOPES[(n // 2 + (n % 2 if n // 2 in (3, 7) else 0)) % 3],
        "type": TYPES[n % 5],
        "resources": (f"vm-{n}", "vm-x"),
        **(over if n % 2 else {}),
    }
    return event(f"E{n:02}", f"M{n // 2}", **known | fields)


def keys(found: list[Any]) -> list[Any]:
    return [getattr(thing, "key", None) or getattr(thing, "id", None) or thing.name for thing in found]


# -- how many


@pytest.mark.parametrize("within", [None, *WITHIN], ids=str)
def test_counts_are_what_the_lists_hold(fleet: Store, within: tuple[str, ...] | None) -> None:
    """Every open event, scope and machine that a list would show is counted once."""

    def some(**query: Any) -> int:
        return len(fleet.events(EventQuery(within=within, limit=1_000, **query)).events)

    counts = fleet.counts(within)
    assert counts.planned == some(statuses=(Status.PLANNED,))
    assert counts.scheduled == some(statuses=(Status.SCHEDULED,))
    assert counts.started == some(statuses=(Status.STARTED,))
    assert counts.scopes == len(fleet.scopes_page(ScopeQuery(within=within)))
    assert counts.machines == len(fleet.machines_page(MachineQuery(within=within)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"within": ("shop", "wiki")},
        {"within": ()},
        {"scope": "shop"},
        {"statuses": (Status.STARTED,)},
        {"types": (TYPES[0], TYPES[2])},
        {"host": "h0"},
        {"host": "h1", "scope": "blog"},
        {"text": "e04"},
        {"text": "shop/vm-2"},
        {"text": "m5 reboot"},
        {"text": "reboot"},
        {"text": "nothing like it"},
    ],
    ids=str,
)
def test_open_waves_count_the_open_events_that_match(fleet: Store, fields: dict[str, Any]) -> None:
    """By maintenance, wave and status, newest first."""
    query = OpenWavesQuery(**fields)
    hosts = {machine.key: machine.host for machine in fleet.machines_page(MachineQuery())}
    listed = EventQuery(scope=query.scope, within=query.within, statuses=query.statuses, types=query.types, limit=1_000)
    expected: Counter[tuple[str, int, Status]] = Counter()
    for each in fleet.events(listed).events:
        on = {hosts.get((each.scope, name)) for name in each.resources}
        named = [each.id, each.maintenance_id, each.type, each.description]
        named += [f"{each.scope}/{name}" for name in each.resources]
        if query.host in ("", *on) and any(query.text in text.lower() for text in named):
            expected[each.maintenance_id, each.wave, each.status] += 1
    found, counts = fleet.open_waves(query)
    by_status: Counter[Status] = Counter()
    for (_, _, status), number in expected.items():
        by_status[status] += number
    assert counts == by_status
    assert fleet.open_waves(replace(query, limit=2)) == (found[:2], counts)
    assert [((w.maintenance_id, w.wave, w.status), w.events) for w in found] == list(expected.items())
    rows = {each.id: each for each in fleet.maintenances(MaintenanceQuery())}
    for wave in found:
        row = rows[wave.maintenance_id]
        assert (wave.type, wave.description, wave.created) == (row.type, row.description, row.created)


def test_failed_and_in_doubt_count_started_events(store: Store) -> None:
    """What an operator must resolve: neither work under way, nor what was given up."""
    started = {"status": Status.STARTED, "published": at(0), "not_before": at(0), "started": at(0)}
    events = [event(f"E{n}", "M0", position=n, resources=(f"vm-{n}",), **started) for n in range(5)]
    events[2] = replace(events[2], status=Status.ABANDONED, ended=at(1))
    states = (OrderState.FAILED, OrderState.RUNNING, OrderState.FAILED, OrderState.IN_DOUBT, OrderState.IN_DOUBT)
    orders = [order(e.id, state=state) for e, state in zip(events, states, strict=True)]
    store.apply(change(scopes=[scope("shop")], maintenances=[maintenance("M0")], events=events, orders=orders))
    counts = store.counts(None)
    assert (counts.started, counts.failed, counts.in_doubt) == (4, 1, 2)
    assert store.counts(("shop",)) == counts
    assert store.counts(()) == Counts()


def test_the_backlog_is_what_is_not_over(store: Store) -> None:
    """Open events by status, orders by state without those done or given up, and the two moments that may be late."""
    assert store.backlog() == Backlog()
    fields: list[dict[str, Any]] = [
        {"status": Status.PLANNED},
        {"not_before": at(1_800)},
        {"not_before": at(1_700)},
        *[{"status": Status.STARTED} for _ in range(3)],
        {"status": Status.ABANDONED},
        {"status": Status.COMPLETED},
        {"status": Status.STARTED},
    ]
    events = [event(f"E{n}", "M0", position=n, resources=(f"vm-{n}",), **each) for n, each in enumerate(fields)]
    states = (
        OrderState.OPEN,
        OrderState.RUNNING,
        OrderState.FAILED,
        OrderState.FAILED,
        OrderState.DONE,
        OrderState.IN_DOUBT,
    )
    orders = [order(f"E{n}", state=state) for n, state in enumerate(states, 3)]
    waking = [maintenance("M0", wake_at=at(7)), maintenance("M1", wake_at=at(5)), maintenance("M2", wake_at=None)]
    store.apply(change(scopes=[scope("shop")], maintenances=waking, events=events, orders=orders))
    assert store.backlog() == Backlog(
        planned=1,
        scheduled=2,
        started=4,
        failed=1,
        in_doubt=1,
        open=1,
        running=1,
        earliest_start=at(1_700),
        earliest_wake=at(5),
    )


# -- order and conditions


@pytest.mark.parametrize(
    "query, expected",
    [
        (ScopeQuery(), "blog shop wiki"),
        (ScopeQuery(limit=2), "blog shop"),
        (ScopeQuery(after="blog"), "shop wiki"),
        (ScopeQuery(after="c"), "shop wiki"),
        (ScopeQuery(within=("wiki", "gone", "blog")), "blog wiki"),
        (ScopeQuery(within=("wiki", "blog"), limit=1), "blog"),
        (ScopeQuery(within=("wiki", "blog"), after="blog"), "wiki"),
        (ScopeQuery(within=()), ""),
    ],
    ids=str,
)
def test_scopes_come_by_name(fleet: Store, query: ScopeQuery, expected: str) -> None:
    """Every condition counts; a scope is read as a snapshot reads it."""
    found = fleet.scopes_page(query)
    assert " ".join(s.name for s in found) == expected
    assert found == [fleet.scopes()[s.name] for s in found]


@pytest.mark.parametrize(
    "query, expected",
    [
        (MachineQuery(limit=5), "blog/vm-0 blog/vm-1 blog/vm-2 blog/vm-3 shop/vm-0"),
        (MachineQuery(after=("blog", "vm-3"), limit=2), "shop/vm-0 shop/vm-1"),
        (MachineQuery(after=("shop", ""), limit=1), "shop/vm-0"),
        (MachineQuery(scope="shop"), "shop/vm-0 shop/vm-1 shop/vm-2 shop/vm-3"),
        (MachineQuery(scope="shop", after=("shop", "vm-1")), "shop/vm-2 shop/vm-3"),
        (MachineQuery(scope="shop", after=("blog", "vm-2"), limit=1), "shop/vm-0"),
        (MachineQuery(scope="shop", after=("wiki", "vm-0")), ""),
        (MachineQuery(host="h1"), "blog/vm-1 blog/vm-3 shop/vm-1 shop/vm-3 wiki/vm-1 wiki/vm-3"),
        (MachineQuery(host="h1", after=("blog", "vm-3"), limit=2), "shop/vm-1 shop/vm-3"),
        (MachineQuery(host="h1", scope="wiki"), "wiki/vm-1 wiki/vm-3"),
        (MachineQuery(host="h1", within=("wiki", "blog"), limit=3), "blog/vm-1 blog/vm-3 wiki/vm-1"),
        (MachineQuery(within=("wiki", "blog"), after=("blog", "vm-2"), limit=2), "blog/vm-3 wiki/vm-0"),
        (MachineQuery(within=("blog",), scope="shop"), ""),
        (MachineQuery(within=("blog",), scope="blog", limit=1), "blog/vm-0"),
        (MachineQuery(scope="nowhere"), ""),
        (MachineQuery(host="h9"), ""),
    ],
    ids=str,
)
def test_machines_come_by_scope_and_name(fleet: Store, query: MachineQuery, expected: str) -> None:
    """Every condition counts, in any combination; a machine comes with its addresses."""
    found = fleet.machines_page(query)
    assert " ".join(map(str, found)) == expected
    assert found == [fleet.inventory().machines[m.key] for m in found]


def test_the_last_time_exactly_these_machines_asked(own_fleet: Store) -> None:
    """Those that were not asked about, never asked or do not exist are not in it."""
    own_fleet.record_last_seen(
        [
            MachineLastSeen("shop", "vm-0", at(5)),
            MachineLastSeen("shop", "vm-1", at(6)),
            MachineLastSeen("blog", "vm-0", at(7)),
        ]
    )
    machines = [("shop", "vm-1"), ("blog", "vm-0"), ("wiki", "vm-0"), ("nowhere", "x")]
    assert own_fleet.last_seen(machines) == {("shop", "vm-1"): at(6), ("blog", "vm-0"): at(7)}
    assert own_fleet.last_seen([]) == {}


def test_maintenances_come_newest_first(own_fleet: Store) -> None:
    """By when they were asked for, then id; each as it is read by its id; in the statuses asked for."""
    found = own_fleet.maintenances(MaintenanceQuery())
    assert " ".join(keys(found)) == "M11 M10 M9 M8 M7 M6 M5 M4 M3 M2 M1 M0"
    assert found == [own_fleet.maintenance(m.id) for m in found]
    for statuses in ((MaintenanceStatus.FAILED,), (MaintenanceStatus.PLANNED, MaintenanceStatus.CANCELLED), ()):
        wanted = [m for m in found if m.status in statuses]
        assert own_fleet.maintenances(MaintenanceQuery(statuses=statuses)) == wanted
    own_fleet.apply(change(maintenances=[ended(found[-1], at(50))]))
    assert keys(own_fleet.maintenances(MaintenanceQuery(statuses=(MaintenanceStatus.COMPLETED,)))) == ["M9", "M6", "M0"]


@pytest.mark.parametrize(
    ("text", "within", "expected"),
    [
        ("m1", None, "M1"),
        ("reboot", None, "M0 M1 M2 M3"),
        ("kernel 5%", None, "M0"),
        ("für größe Ω", None, "M1"),
        ("op/we", None, "M0"),
        ("op/we", ("blog",), ""),
        ("blog/web-0", None, ""),
        ("shop/db", None, ""),
        ("blog", None, "M0 M1"),
        ("blog", ("shop",), ""),
        ("rack", None, "M2"),
        ("rack", ("shop",), ""),
        ("machines", None, ""),
        ("hosts", None, ""),
        ("%", None, "M0 M1"),
        ("_", None, ""),
    ],
)
def test_maintenances_are_found_by_a_part_of_what_names_them(
    store: Store, text: str, within: tuple[str, ...] | None, expected: str
) -> None:
    """The id, the type, the description, the creator, or a target within the scopes of the caller."""
    found = (
        maintenance("M0", description="Kernel 5%", targets=Targets(machines=(("shop", "Web-0"), ("blog", "db-1")))),
        maintenance("M1", description=UNICODE, targets=Targets(scopes=("blog",))),
        maintenance("M2", targets=Targets(hosts=("Rack-1",))),
        maintenance("M3", targets=None),
    )
    store.apply(change(maintenances=found))
    pages = MaintenanceQuery(limit=3)
    first = store.maintenance_keys(pages)
    second = store.maintenance_keys(replace(pages, before=first[-1]))
    assert [*first, *second] == [(each.created, each.id) for each in store.maintenances(MaintenanceQuery())]
    matching = store.search_maintenances([i for _, i in (*first, *second)], text, within)
    assert " ".join(sorted(matching)) == expected
    assert matching == {i: store.maintenance(i) for i in matching}


def test_a_maintenance_is_within_each_scope_it_has_an_event_in(own_fleet: Store) -> None:
    """It comes once, under the status it has by now; one without events lies nowhere."""
    own_fleet.apply(change(maintenances=[maintenance("M99")]))
    assert keys(own_fleet.maintenances(MaintenanceQuery(within=("blog",)))) == ["M9", "M6", "M3", "M0"]
    assert keys(own_fleet.maintenances(MaintenanceQuery(within=("shop",)))) == ["M10", "M7", "M4", "M3", "M1"]
    both = MaintenanceQuery(within=("shop", "blog"))
    assert keys(own_fleet.maintenances(both)) == ["M10", "M9", "M7", "M6", "M4", "M3", "M1", "M0"]
    (first,) = own_fleet.maintenances(replace(both, before=(at(1), "M3"), limit=1))
    assert first.id == "M1"
    own_fleet.apply(change(maintenances=[ended(first, at(50))]))
    completed = replace(both, statuses=(MaintenanceStatus.COMPLETED,))
    assert keys(own_fleet.maintenances(completed)) == ["M9", "M6", "M1"]


def test_maintenances_that_work_on_hosts_are_found_among_all_others(own_fleet: Store) -> None:
    """A page of maintenances on hosts has these alone, of the requested status and scopes, newest first."""
    modes = (None, HostMode.EVACUATE, HostMode.IN_PLACE, None)
    rows = [maintenance(f"H{n}", created=at(n), host_mode=mode) for n, mode in enumerate(modes)]
    rows[2] = ended(rows[2], at(9))
    own_fleet.apply(change(maintenances=rows, events=[event("EH", "H1"), event("EO", "H3")]))
    assert keys(own_fleet.maintenances(MaintenanceQuery(on_hosts=True))) == ["H2", "H1"]
    assert keys(own_fleet.maintenances(MaintenanceQuery(on_hosts=True, statuses=UNFINISHED))) == ["H1"]
    assert keys(own_fleet.maintenances(MaintenanceQuery(on_hosts=True, before=(at(2), "H2")))) == ["H1"]
    assert keys(own_fleet.maintenances(MaintenanceQuery(on_hosts=True, within=("shop",)))) == ["H1"]
    assert own_fleet.maintenances(MaintenanceQuery(on_hosts=True, within=("blog",))) == []
    assert own_fleet.maintenance_keys(MaintenanceQuery(on_hosts=True)) == [(at(2), "H2"), (at(1), "H1")]


def test_drills_come_newest_first(own_fleet: Store) -> None:
    """Whatever their status; within scopes, those that have an event there; other maintenances are left out."""
    drills = [maintenance(f"D{n}", created=at(n), drill_hold_s=60) for n in range(3)]
    drills[1] = ended(drills[1], at(9))
    own_fleet.apply(change(maintenances=drills, events=[event("ED", "D1", status=Status.COMPLETED)]))
    assert keys(own_fleet.drills(MaintenanceQuery())) == ["D2", "D1", "D0"]
    assert keys(own_fleet.drills(MaintenanceQuery(limit=1, before=(at(2), "D2")))) == ["D1"]
    assert keys(own_fleet.drills(MaintenanceQuery(within=("shop", "blog")))) == ["D1"]
    assert own_fleet.drills(MaintenanceQuery(within=("blog",))) == []


def test_a_page_of_orders_is_newest_first(own_fleet: Store) -> None:
    """By when they were issued, then id, in the states asked for; a retried one comes anew."""
    every = own_fleet.orders(tuple(OrderState), 500)[::-1]
    assert own_fleet.orders_page(OrderQuery()) == every
    for states in ((OrderState.DONE,), {OrderState.OPEN, OrderState.FAILED}, ()):
        assert own_fleet.orders_page(OrderQuery(states=states)) == [o for o in every if o.state in states]
    own_fleet.apply(change(orders=[order("E03", issued=at(99), attempt=2)]))
    assert keys(own_fleet.orders_page(OrderQuery(limit=1))) == ["E03"]
    assert keys(own_fleet.orders_page(OrderQuery(limit=1, within=(_event(3).scope,)))) == ["E03"]


def test_orders_of_abandoned_events_can_be_left_out(store: Store) -> None:
    """A failed order stays failed after its event was abandoned; a page of what is left to resolve does not show it."""
    events = [event(f"E{n}", "M0", position=n, resources=(f"vm-{n}",), status=Status.STARTED) for n in range(3)]
    events[1] = replace(events[1], status=Status.ABANDONED, ended=at(5_000))
    orders = [order(e.id, state=OrderState.FAILED) for e in events]
    store.apply(change(scopes=[scope("shop")], maintenances=[maintenance("M0")], events=events, orders=orders))
    for within in (None, ("shop",)):
        failed = OrderQuery(states=(OrderState.FAILED,), within=within)
        assert keys(store.orders_page(failed)) == ["E2", "E1", "E0"]
        assert keys(store.orders_page(replace(failed, abandoned=False))) == ["E2", "E0"]
        assert keys(store.orders_page(replace(failed, abandoned=False, limit=1, before=(at(900), "E2")))) == ["E0"]


EVENT_QUERIES = [
    EventQuery(types=(EventType.PREEMPT,)),
    EventQuery(types={EventType.PREEMPT, EventType.FREEZE}, statuses=(Status.COMPLETED,)),
    EventQuery(types=()),
    EventQuery(scope="shop", types=(EventType.REBOOT,)),
    EventQuery(scope="shop", statuses=OPEN),
    EventQuery(scope="shop", machine="vm-x", types=(EventType.REBOOT, EventType.FREEZE)),
    EventQuery(maintenance_id="M3", types=(EventType.REBOOT, EventType.REDEPLOY)),
    EventQuery(maintenance_id="M3", since=at(8)),
    EventQuery(since=at(11)),
    EventQuery(since=at(11.000001)),
    EventQuery(since=at(0), statuses=(Status.COMPLETED,)),
    EventQuery(since=at(5), statuses=OPEN),
    EventQuery(since=at(5), types=(EventType.TERMINATE, EventType.REBOOT)),
    EventQuery(since=at(9), scope="blog"),
    EventQuery(since=at(9), scope="blog", statuses=ENDED),
    EventQuery(since=at(9), scope="shop", machine="vm-x"),
    EventQuery(since=at(99)),
    EventQuery(since=at(99), statuses=ENDED),
]


def matching(store: Store, query: EventQuery) -> list[str]:
    """What the query means, said a second time: over everything there is."""
    return [
        e.id
        for e in store.events(EventQuery(limit=500)).events
        if query.scope in ("", e.scope)
        and (query.within is None or e.scope in query.within)
        and (not query.machine or query.machine in e.resources)
        and query.maintenance_id in ("", e.maintenance_id)
        and e.status in query.statuses
        and e.type in query.types
        and (query.since is None or e.ended is None or e.ended >= query.since)
    ]


@pytest.mark.parametrize("gathered", [0, 5, 1_000])
@pytest.mark.parametrize("query", EVENT_QUERIES, ids=range(len(EVENT_QUERIES)))
def test_every_condition_on_events_counts(
    fleet: Store, query: EventQuery, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any combination, for everyone and for owners, however many ended since and by whatever way they are found."""
    monkeypatch.setattr(lists, "MAX_GATHERED", gathered)
    for within in (None, *WITHIN):
        narrowed = replace(query, within=within)
        page = fleet.events(narrowed)
        assert keys(list(page.events)) == matching(fleet, narrowed), within
        assert page.next_before is None


def test_since_takes_what_was_open_then(fleet: Store) -> None:
    """What ended at that very moment was still open; what is open now was open ever since."""
    shown = keys(list(fleet.events(EventQuery(since=at(21), statuses=ENDED)).events))
    assert shown == ["E23", "E21"]
    assert len(fleet.events(EventQuery(since=at(99))).events) == 12


# -- pages

PAGED: dict[str, tuple[str, Any, Callable[[Any], object]]] = {
    "scopes": ("scopes_page", ScopeQuery(), lambda s: s.name),
    "machines": ("machines_page", MachineQuery(), lambda m: m.key),
    "machines of a scope": ("machines_page", MachineQuery(scope="shop"), lambda m: m.key),
    "machines of a host": ("machines_page", MachineQuery(host="h1"), lambda m: m.key),
    "maintenances": ("maintenances", MaintenanceQuery(), lambda m: (m.created, m.id)),
    "orders": ("orders_page", OrderQuery(), lambda o: (o.issued, o.id)),
    "audit": ("audit", AuditQuery(), lambda e: e.id),
    "audit of a scope": ("audit", AuditQuery(scope="shop"), lambda e: e.id),
    "audit as a stream": ("audit", AuditQuery(after=0), lambda e: e.id),
}
PAGES_OF_EVENTS = {
    "all": EventQuery(),
    "of a scope": EventQuery(scope="shop"),
    "of two types": EventQuery(types=TYPES[:2]),
    "open": EventQuery(statuses=OPEN),
    "since": EventQuery(since=at(9)),
    "of a machine": EventQuery(scope="shop", machine="vm-x"),
}


def add_more(store: Store, turn: int) -> None:
    """One more of everything, before and after all that is there."""
    more = _event(100 + turn, type=TYPES[0], scope="shop")
    store.apply(
        change(
            scopes=[scope(f"a{turn}"), scope(f"z{turn}")],
            machines=[machine(f"{name}{turn}", scope="shop", host="h1") for name in "az"],
            maintenances=[maintenance(more.maintenance_id, created=at(1_000 + turn))],
            events=[more],
            orders=[order(more.id, issued=at(1_000 + turn))],
            audit=[entry("more", scope="shop")],
        )
    )


@pytest.mark.parametrize("within", [None, ("wiki", "shop")], ids=["for all", "for an owner"])
@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("name", PAGED)
def test_a_list_is_read_in_pages(own_fleet: Store, name: str, limit: int, within: tuple[str, ...] | None) -> None:
    """Each row that was there comes once and in order, whatever is added between the pages."""
    method, query, cursor = PAGED[name]
    query = replace(query, within=within)
    read = getattr(own_fleet, method)
    onwards = "before" if hasattr(query, "before") and getattr(query, "after", None) is None else "after"
    whole = keys(read(query))
    seen: list[Any] = []
    page = read(replace(query, limit=limit))
    for turn in range(2 * len(whole)):
        seen += keys(page)
        if len(page) < limit:
            break
        if turn < 3:
            add_more(own_fleet, 2 * turn)
        page = read(replace(query, limit=limit, **{onwards: cursor(page[-1])}))
    assert [key for key in seen if key in whole] == whole
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("within", [None, ("wiki", "shop")], ids=["for all", "for an owner"])
@pytest.mark.parametrize("gathered", [0, 1_000])
@pytest.mark.parametrize("limit", [1, 4, 50])
@pytest.mark.parametrize("query", PAGES_OF_EVENTS.values(), ids=PAGES_OF_EVENTS)
def test_events_are_read_in_pages(
    own_fleet: Store,
    query: EventQuery,
    limit: int,
    gathered: int,
    within: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cursor leads through everything once, and ends, whatever is added between the pages."""
    monkeypatch.setattr(lists, "MAX_GATHERED", gathered)
    query = replace(query, within=within)
    whole = keys(list(own_fleet.events(query).events))
    assert len(whole) > 4
    seen: list[str] = []
    page = own_fleet.events(replace(query, limit=limit))
    for turn in range(len(whole)):
        seen += keys(list(page.events))
        if page.next_before is None:
            break
        add_more(own_fleet, 2 * turn)
        page = own_fleet.events(replace(query, limit=limit, before=page.next_before))
    assert page.next_before is None
    assert seen == whole


@pytest.mark.parametrize(
    "query, expected",
    [
        (AuditQuery(after=0), "1 2 3 4 5 6"),
        (AuditQuery(after=2, limit=2), "3 4"),
        (AuditQuery(after=6), ""),
        (AuditQuery(after=1, scope="shop"), "3 5"),
        (AuditQuery(after=1, maintenance_id="M1"), "3 6"),
        (AuditQuery(after=1, event_id="E1"), "4 6"),
        (AuditQuery(after=4, event_id="E1", maintenance_id="M1", scope="wiki"), "6"),
        (AuditQuery(after=0, within=("shop", "blog"), limit=3), "1 3 4"),
        (AuditQuery(after=3, within=("shop", "blog")), "4 5"),
        (AuditQuery(after=0, within=("blog",), event_id="E1"), "4"),
        (AuditQuery(after=0, within=("wiki",), maintenance_id="M1"), "6"),
        (AuditQuery(within=("shop", "blog")), "5 4 3 1"),
        (AuditQuery(within=("shop", "blog"), before=4, limit=1), "3"),
        (AuditQuery(within=("blog",), scope="shop"), ""),
        (AuditQuery(within=(), event_id="E1"), ""),
    ],
    ids=str,
)
def test_the_audit_is_a_stream_too(store: Store, query: AuditQuery, expected: str) -> None:
    """After an id it is read oldest first; every condition counts, in any combination."""
    wanted = [
        entry("1", scope="shop", maintenance_id="M1", event_id="E1"),
        entry("2"),
        entry("3", scope="shop", maintenance_id="M1"),
        entry("4", scope="blog", event_id="E1"),
        entry("5", scope="shop"),
        entry("6", scope="wiki", maintenance_id="M1", event_id="E1"),
    ]
    store.apply(change(audit=wanted))
    assert " ".join(e.action for e in store.audit(query)) == expected


# -- who sees what


@pytest.mark.parametrize("within", WITHIN, ids=str)
def test_an_owner_sees_nothing_of_other_scopes(fleet: Store, within: tuple[str, ...]) -> None:
    """Whatever is listed, and whatever else is asked, it lies in the scopes named; and all that lies there is listed."""
    by_id = {e.id: e for e in fleet.events(EventQuery(limit=500)).events}
    assert [s.name for s in fleet.scopes_page(ScopeQuery(within=within))] == [s for s in SCOPES if s in within]
    inventory = sorted(fleet.inventory().machines)
    for host in ("", "h0", "h1"):
        found = fleet.machines_page(MachineQuery(within=within, host=host))
        wanted = [k for k in inventory if k[0] in within and (not host or fleet.inventory().machines[k].host == host)]
        assert keys(found) == wanted
    orders = [o for o in fleet.orders_page(OrderQuery()) if by_id[o.id].scope in within]
    assert fleet.orders_page(OrderQuery(within=within)) == orders
    lies = {e.maintenance_id for e in by_id.values() if e.scope in within}
    wanted_ids = [m.id for m in fleet.maintenances(MaintenanceQuery()) if m.id in lies]
    assert keys(fleet.maintenances(MaintenanceQuery(within=within))) == wanted_ids
    named = {"scope": "shop", "maintenance_id": "M3", "event_id": "E06"}
    conditions: list[dict[str, Any]] = [{}, *({key: value} for key, value in named.items()), {"after": 0}]
    for condition in conditions:
        entries = [e for e in fleet.audit(AuditQuery(**condition)) if e.scope and e.scope in within]
        assert fleet.audit(AuditQuery(within=within, **condition)) == entries
    conditions = [{}, {"scope": "shop"}, {"scope": "shop", "machine": "vm-x"}, {"maintenance_id": "M3"}]
    for condition in conditions:
        events = [e for e in fleet.events(EventQuery(**condition)).events if e.scope in within]
        assert list(fleet.events(EventQuery(within=within, **condition)).events) == events


# -- ids by their beginning


@pytest.mark.parametrize("within", [None, *WITHIN], ids=str)
@pytest.mark.parametrize("prefix", ["E", "E0", "E1", "E11", "M", "M1", "M11", "X", ""])
def test_ids_are_found_by_their_beginning(fleet: Store, prefix: str, within: tuple[str, ...] | None) -> None:
    """Every id that starts so and lies in the named scopes, in order, up to the limit."""
    visible = [e for e in fleet.events(EventQuery(limit=500)).events if within is None or e.scope in within]
    events = sorted({e.id for e in visible if e.id.startswith(prefix)})
    maintenances = sorted({e.maintenance_id for e in visible if e.maintenance_id.startswith(prefix)})
    assert fleet.ids_starting("event", prefix, within, 100) == events
    assert fleet.ids_starting("order", prefix, within, 100) == events
    assert fleet.ids_starting("maintenance", prefix, within, 100) == maintenances
    assert fleet.ids_starting("event", prefix, within, 2) == events[:2]


# -- what is refused

QUERIES: list[Callable[..., object]] = [
    ScopeQuery,
    MachineQuery,
    MaintenanceQuery,
    OrderQuery,
    EventQuery,
    AuditQuery,
]


@pytest.mark.parametrize("query", QUERIES)
def test_every_list_has_its_limits(query: Callable[..., object]) -> None:
    """A page has a size, and a token owns so many scopes and no more."""
    for limit in (0, -1, 1_001):
        with pytest.raises(Invalid, match="a page holds 1 to 1000"):
            query(limit=limit)
    with pytest.raises(Invalid, match="within names 33 scopes: at most 32"):
        query(within=tuple(f"s{n}" for n in range(33)))


def test_a_page_is_no_stream() -> None:
    """Before and after exclude each other."""
    with pytest.raises(Invalid, match="before and after exclude each other"):
        AuditQuery(before=5, after=1)


# -- progress


def test_progress_is_counted_by_wave_and_scope(fleet: Store) -> None:
    """As the core counts it from the events themselves; without an event in these scopes a maintenance is left out."""
    snapshot = fleet.snapshot(Focus(maintenances=tuple(f"M{n}" for n in range(12))))
    for within in (None, ("shop",), ()):
        expected: dict[str, tuple[WaveProgress, ...]] = {}
        for maintenance_id in snapshot.maintenances:
            seen = [
                e
                for e in snapshot.events.values()
                if e.maintenance_id == maintenance_id and (within is None or e.scope in within)
            ]
            expected |= {maintenance_id: wave_progress(seen, snapshot.orders)} if seen else {}
        assert fleet.wave_progress([*snapshot.maintenances, "nowhere"], within) == expected


def test_progress_tells_every_status_and_order_apart(store: Store) -> None:
    """Two waves with an event of each status, a Started event with an order of each state, and completed orders."""
    moments = {"published": at(0), "not_before": at(900)}
    statuses = [
        _event(
            n, position=n, wave=1 + n % 2, status=status, started=None, ended=None, resources=(f"vm-{n}",), **moments
        )
        for n, status in enumerate([Status.PLANNED, Status.SCHEDULED])
    ]
    over = [
        event(f"O{n}", position=10 + n, status=status, minimum_notice_s=n, resources=(f"vm-{10 + n}",))
        for n, status in enumerate(sorted(ENDED))
    ]
    begun = [
        event(f"S{n}", position=20 + n, status=Status.STARTED, resources=(f"vm-{20 + n}",))
        for n in range(len(EVENT_ORDER_STATES))
    ]
    done = [
        event(f"D{n}", position=30 + n, wave=3, status=Status.COMPLETED, resources=(f"vm-{30 + n}",), reason="done")
        for n in range(4)
    ]
    statuses = [replace(e, maintenance_id="M0", scope="shop") for e in statuses]
    events = [replace(e, maintenance_id="M0") for e in (*statuses, *over, *begun, *done)]
    orders = [order(e.id, state=state) for e, state in zip(begun, EVENT_ORDER_STATES, strict=True)]
    by_itself, retried, finished_by_operator = (
        replace(order(e.id), state=OrderState.DONE, reason="done") for e in done[:3]
    )
    orders += [by_itself, replace(retried, attempt=2), replace(finished_by_operator, reason="it burnt")]
    store.apply(change(scopes=[scope()], maintenances=[maintenance("M0")], events=events, orders=orders))
    counted = wave_progress(events, {o.id: o for o in orders})
    assert store.wave_progress(["M0"], None) == {"M0": counted}
    assert (counted[0].running, counted[0].failed, counted[0].in_doubt, counted[0].undone) == (3, 1, 1, 2)
    assert [wave.resolved for wave in counted] == [1, 0, 2]
    snapshot = store.snapshot(Focus(maintenances=("M0",)))
    assert wave_progress(snapshot.events.values(), snapshot.orders) == counted


# -- searches


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (MachineQuery(text="vm-3"), "blog/vm-3 shop/vm-3 wiki/vm-3"),
        (MachineQuery(text="hop/vm-"), "shop/vm-0 shop/vm-1 shop/vm-2 shop/vm-3"),
        (MachineQuery(text="hop/vm-", host="h1"), "shop/vm-1 shop/vm-3"),
        (MachineQuery(text="vm-1", scope="wiki"), "wiki/vm-1"),
        (MachineQuery(text="vm-1", within=("wiki", "blog")), "blog/vm-1 wiki/vm-1"),
        (MachineQuery(text="vm-1", within=()), ""),
        (MachineQuery(text="vm-1", after=("blog", "vm-1")), "shop/vm-1 wiki/vm-1"),
        (MachineQuery(text="vm-1", limit=2), "blog/vm-1 shop/vm-1"),
        (MachineQuery(text="h0", scope="shop"), "shop/vm-0 shop/vm-2"),
        (MachineQuery(text="10.0.2."), "wiki/vm-0 wiki/vm-1 wiki/vm-2 wiki/vm-3"),
        (MachineQuery(text="%"), ""),
        (MachineQuery(text="vm_1"), ""),
        (MachineQuery(text="\\"), ""),
    ],
    ids=str,
)
def test_machines_are_found_by_a_part_of_what_names_them(fleet: Store, query: MachineQuery, expected: str) -> None:
    """Scope and name, host or address, together with every other filter, in the order of the list."""
    assert " ".join(map(str, fleet.machines_page(query))) == expected


def test_a_search_ignores_case(store: Store) -> None:
    """Names keep theirs."""
    store.apply(
        change(scopes=[scope("Shop")], machines=[machine("Web-A", scope="Shop", host="Rack-1", instance_id="VM-AB")])
    )
    for text in ("shop/web-a", "rack", "vm-ab"):
        assert keys(store.machines_page(MachineQuery(text=text))) == [("Shop", "Web-A")]
    assert keys(store.scopes_page(ScopeQuery(text="ho"))) == ["Shop"]
    assert store.hosts_page(HostQuery(text="ack-1")) == [HostCount(Host(name="Rack-1"), 1)]


def test_scopes_and_hosts_are_found_by_a_part_of_their_name(fleet: Store) -> None:
    """Within the scopes of the caller, page by page."""
    assert keys(fleet.scopes_page(ScopeQuery(text="o"))) == ["blog", "shop"]
    assert keys(fleet.scopes_page(ScopeQuery(text="o", after="blog"))) == ["shop"]
    assert keys(fleet.scopes_page(ScopeQuery(text="o", within=("shop", "wiki")))) == ["shop"]
    assert fleet.hosts_page(HostQuery()) == [HostCount(Host(name="h0"), 6), HostCount(Host(name="h1"), 6)]
    assert fleet.hosts_page(HostQuery(limit=1)) == [HostCount(Host(name="h0"), 6)]
    assert fleet.hosts_page(HostQuery(after="h0", within=("shop",))) == [HostCount(Host(name="h1"), 2)]
    assert fleet.hosts_page(HostQuery(text="1", within=())) == []


def test_hosts_without_machines_are_listed_too(own_fleet: Store) -> None:
    """A listed or cordoned host is shown to callers who see all scopes, in the order of names; a row that says nothing is not."""
    h1, cordoned = Host(name="h1", listed=True), Host(name="Kvm-1", cordoned=at(1))
    own_fleet.apply(change(hosts=[h1, Host(name="h00", listed=True), cordoned, Host(name="h2")]))
    h1, cordoned, empty = (replace(host, version=1) for host in (h1, cordoned, Host(name="h00", listed=True)))
    every = [HostCount(cordoned, 0), HostCount(Host(name="h0"), 6), HostCount(empty, 0), HostCount(h1, 6)]
    assert own_fleet.hosts_page(HostQuery()) == every
    assert [own_fleet.hosts_page(HostQuery(limit=1, after=after)) for after in ("", "Kvm-1", "h0", "h00")] == [
        [each] for each in every
    ]
    assert own_fleet.hosts_page(HostQuery(text="kvm")) == [HostCount(cordoned, 0)]
    assert own_fleet.hosts_page(HostQuery(within=("shop",))) == [HostCount(Host(name="h0"), 2), HostCount(h1, 2)]
    assert every[1].name == "h0"


def test_events_of_a_host_are_those_of_its_machines(store: Store) -> None:
    """Where the machines are now; each event once, with every other filter."""
    machines = [machine(f"web-{n}", host="h0" if n < 2 else "h1") for n in range(3)]
    events = [
        event("E0", position=0, resources=("web-0", "web-1")),
        event("E1", position=1, resources=("web-1",), status=Status.COMPLETED),
        event("E2", position=2, resources=("web-2",)),
    ]
    store.apply(change(scopes=[scope()], machines=machines, maintenances=[maintenance()], events=events))
    for query, expected in (
        (EventQuery(host="h0"), ["E1", "E0"]),
        (EventQuery(host="h0", statuses=OPEN), ["E0"]),
        (EventQuery(host="h0", limit=1), ["E1"]),
        (EventQuery(host="h0", within=("blog",)), []),
        (EventQuery(host="h1", scope="shop", maintenance_id="M1"), ["E2"]),
        (EventQuery(host="h2"), []),
    ):
        assert keys(list(store.events(query).events)) == expected
    with pytest.raises(Invalid, match="exclude each other"):
        EventQuery(host="h0", scope="shop", machine="web-0")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (EventQuery(text="kernel 5%"), ["E2"]),
        (EventQuery(text="kernel"), ["E3", "E2"]),
        (EventQuery(text="op/web-1"), ["E1", "E0"]),
        (EventQuery(text="e2"), ["E2"]),
        (EventQuery(text="m1", statuses=OPEN), ["E3", "E1", "E0"]),
        (EventQuery(text="reboot", within=("blog",)), []),
        (EventQuery(text="für größe Ω, 保守"), ["E0"]),
        (EventQuery(text="nosuch"), []),
        (EventQuery(text="["), []),
        (EventQuery(text="]"), []),
        (EventQuery(text="web-0,"), []),
        (EventQuery(text="shop/web-0 shop/web-1"), []),
        (EventQuery(text="e0 m1"), []),
        (EventQuery(text="reboot wartung"), []),
        (EventQuery(text="für größe ω"), []),
        (EventQuery(text="_"), []),
    ],
    ids=lambda value: value.text if isinstance(value, EventQuery) else "-".join(value),
)
def test_events_are_found_by_a_part_of_what_names_them(store: Store, query: EventQuery, expected: list[str]) -> None:
    """One id, the type, the description, or scope and name of one machine, in any case of ASCII, in every call."""
    events = [
        event("E0", position=0, resources=("web-0", "web-1"), description=UNICODE),
        event("E1", position=1, resources=("Web-1",)),
        event("E2", position=2, resources=("web-2",), status=Status.COMPLETED, description="Kernel 5%"),
        event("E3", position=3, resources=("web-3",), description="kernel 50"),
    ]
    store.apply(change(scopes=[scope()], maintenances=[maintenance()], events=events))
    assert keys(list(store.events(query).events)) == expected
    opened = [each for each in expected if each != "E2"]
    waves, counts = store.open_waves(OpenWavesQuery(text=query.text, within=query.within))
    assert sum(wave.events for wave in waves) == sum(counts.values()) == len(opened)


def test_a_search_of_events_continues_after_a_bounded_part(store: Store) -> None:
    """Its pages together hold every match once, even if some pages are empty."""
    half, most = MAX_SEARCHED, 2 * MAX_SEARCHED + 1
    needles = (half, half - 1, 0)
    events = [
        event(f"E{n}", position=n, resources=(f"web-{n}",), description="needle" if n in needles else "hay")
        for n in range(most)
    ]
    store.apply(change(scopes=[scope()], maintenances=[maintenance()], events=events))
    for limit in (1, 2, 50):
        met: list[str] = []
        page = store.events(EventQuery(text="needle", limit=limit))
        while page.next_before is not None:
            met += keys(list(page.events))
            page = store.events(EventQuery(text="needle", limit=limit, before=page.next_before))
        assert [*met, *keys(list(page.events))] == [f"E{n}" for n in needles]
