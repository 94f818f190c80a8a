"""What a page of each list costs with a short past and a long one, in turns: it must not grow with the history.

Both pasts are long enough to fill a page of 50 with every list and every filter (five for scopes), so that only finding it
can differ.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

from bench.fleet import BEGINNING, MACHINES_PER_SCOPE, scope_name
from bench.history import Past, build
from bench.measure import Cost, cost_of, median, median_ratio
from bench.report import Verdict, at_most, print_table
from bench.size import Size
from forewarn.core.model import EventType, OrderState, Status
from forewarn.core.operator_model import Role
from forewarn.operator.api import admin, events, inventory, maintenances, orders
from forewarn.operator.api.access import Identity
from forewarn.operator.api.context import Api, CallContext, Paged, Result, Searched
from forewarn.service.clock import ManualClock
from forewarn.service.control import Control
from forewarn.store import AuditQuery, EventQuery, MachineQuery, MaintenanceQuery, OrderQuery, ScopeQuery, Store
from forewarn.store.sqlite.store import SqliteStore

LARGEST_RATIO = 3.0
PAGES_PER_ROUND = 5
FIVE = tuple(scope_name(number) for number in range(5))
HOUR = timedelta(hours=1)
EVER = BEGINNING - timedelta(days=365)
OPERATOR = Identity("bench", "bench", Role.OPERATOR, None, b"", "")

Page = Callable[[Store], object]


def _events(**conditions: object) -> Page:
    return lambda store: store.events(EventQuery(**conditions))  # type: ignore[arg-type]


def _call(do: Callable[[Api, CallContext], Result], query: Paged) -> Page:
    """A whole call of the API without the network: find the call, perform it, encode the JSON."""

    def page(store: Store) -> object:
        clock = ManualClock(BEGINNING)
        control = Control(store, clock, new_id=str, order_timeout_s=0)
        api = Api(control, store, clock, advance=lambda _: None, new_id=str, random=bytes)
        context = CallContext(caller=OPERATOR, path={}, query=query, body=None, key="", digest="")
        return do(api, context).encoded()

    return page


PAGES: dict[str, Page] = {
    "scopes, five": lambda store: store.scopes_page(ScopeQuery(limit=5)),
    "scopes, within five scopes": lambda store: store.scopes_page(ScopeQuery(within=FIVE)),
    "machines": lambda store: store.machines_page(MachineQuery()),
    "machines, one scope": lambda store: store.machines_page(MachineQuery(scope=FIVE[2])),
    "machines, one host": lambda store: store.machines_page(MachineQuery(host="host-000003")),
    "machines, within five scopes": lambda store: store.machines_page(MachineQuery(within=FIVE)),
    "last seen of 50 machines": lambda store: store.last_seen(
        [(scope, f"vm-{n:02d}") for scope in FIVE for n in range(min(10, MACHINES_PER_SCOPE))]
    ),
    "maintenances": lambda store: store.maintenances(MaintenanceQuery()),
    "maintenances, within five scopes": lambda store: store.maintenances(MaintenanceQuery(within=FIVE)),
    "orders, newest first": lambda store: store.orders_page(OrderQuery()),
    "orders, within five scopes": lambda store: store.orders_page(OrderQuery(within=FIVE)),
    "orders, oldest first": lambda store: store.orders(tuple(OrderState), 50),
    "audit": lambda store: store.audit(AuditQuery()),
    "audit, one scope": lambda store: store.audit(AuditQuery(scope=FIVE[2])),
    "audit, within five scopes": lambda store: store.audit(AuditQuery(within=FIVE)),
    "audit, as a stream": lambda store: store.audit(AuditQuery(after=100)),
    "events": _events(),
    "events, a rare status": _events(statuses=(Status.ABANDONED,)),
    "events, a rare type": _events(types=(EventType.TERMINATE,)),
    "events, since an hour ago": _events(since=BEGINNING - HOUR),
    "events, since for ever": _events(since=EVER),
    "events, a rare type since for ever": _events(types=(EventType.TERMINATE,), since=EVER),
    "events, one scope": _events(scope=FIVE[2]),
    "events, one scope, a status": _events(scope=FIVE[2], statuses=(Status.COMPLETED,)),
    "events, one machine": _events(scope=FIVE[2], machine="vm-00"),
    "events, within five scopes": _events(within=FIVE),
    "GET /v1/scopes?limit=5": _call(inventory.list_scopes, Searched(limit=5)),
    "GET /v1/machines": _call(inventory.list_machines, inventory.MachinesQuery()),
    "GET /v1/maintenances": _call(maintenances.list_maintenances, maintenances.MaintenancesQuery()),
    "GET /v1/events": _call(events.list_events, events.EventsQuery()),
    "GET /v1/events, ended": _call(events.list_events, events.EventsQuery(status=(Status.COMPLETED,))),
    "GET /v1/events, open": _call(events.list_events, events.EventsQuery(status=(Status.SCHEDULED, Status.STARTED))),
    "GET /v1/orders": _call(orders.list_orders, orders.OrdersQuery()),
    "GET /v1/audit": _call(admin.list_audit, admin.AuditsQuery()),
    "events, within five, since an hour ago": _events(within=FIVE, since=BEGINNING - HOUR),
}


def run(folder: Path, size: Size) -> list[Verdict]:
    paths = {past: folder / f"{past.ended}.db" for past in size.pasts}
    built = {past: cost_of(lambda past=past, path=path: build(path, past)) for past, path in paths.items()}  # type: ignore[misc]
    rows = [[str(past), f"{built[past].wall_s:.1f} s", f"{_mebibytes(path):,.0f} MiB"] for past, path in paths.items()]
    print_table("Building the past in SQLite, by SQL in bulk", ["past", "wall", "file"], rows)
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(SqliteStore(path))) for path in paths.values()]
        costs = {name: _measure(page, stores, size.list_rounds) for name, page in PAGES.items()}
    return _report(costs, size)


def _mebibytes(path: Path) -> float:
    return path.stat().st_size / 2**20


def _measure(page: Page, stores: Sequence[Store], rounds: int) -> list[list[Cost]]:
    """The cost of one page on each store, round by round."""

    def pages(store: Store) -> None:
        for _ in range(PAGES_PER_ROUND):
            page(store)

    costs: list[list[Cost]] = [[] for _ in stores]
    for turn in range(rounds + 1):
        # Who goes first finds colder caches: they take turns at that too.
        for store, known in list(zip(stores, costs, strict=True))[:: 1 if turn % 2 else -1]:
            cost = cost_of(lambda store=store: pages(store))  # type: ignore[misc]
            if turn:  # the first only warms up
                known.append(cost.each(PAGES_PER_ROUND))
    return costs


def _report(costs: Mapping[str, list[list[Cost]]], size: Size) -> list[Verdict]:
    ratios = {name: _ratio(short, long) for name, (short, long) in costs.items()}
    rows = [[name, *(_milliseconds(each) for each in found), f"{ratios[name]:.2f}"] for name, found in costs.items()]
    title = f"CPU of a page of 50, median of {size.list_rounds} interleaved rounds"
    print_table(title, ["list", *map(_name, size.pasts), "ratio"], rows)
    worst = max(ratios, key=ratios.__getitem__)
    return [at_most(f"page CPU, a long past over a short one ({worst}),", ratios[worst], LARGEST_RATIO)]


def _name(past: Past) -> str:
    return f"{past.ended:,} ended"


def _ratio(short: Sequence[Cost], long: Sequence[Cost]) -> float:
    return median_ratio([c.cpu_s for c in long], [c.cpu_s for c in short])


def _milliseconds(costs: Sequence[Cost]) -> str:
    return f"{median(costs).cpu_s * 1e3:.2f} ms"
