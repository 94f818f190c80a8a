"""What a page of the portal costs with a small fleet and a large one, in turns: pages are paged, so it must grow little.

Real services on loopback in this process, asked over HTTP: the CPU time is theirs and, a little, that of asking. Each fleet comes
three times: its open events in many maintenances, all in one, and all in one with failed orders. In the small one every machine
is under maintenance, so that most pages are full and only the size differs. Between two changes pages are asked for again and
again: `first view` is what one costs when something has just changed. It is measured after each kind of change in CHANGES.
"""

import http.client
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from bench.fleet import BEGINNING, MACHINES_PER_SCOPE, UPDATE_DOMAINS, fill, scope_name
from bench.measure import NOTHING, Cost, cost_of, median, median_ratio
from bench.report import Verdict, at_most, print_table
from bench.size import Size
from forewarn.app.server import running
from forewarn.app.service import Service, new_id
from forewarn.core.change import Change
from forewarn.core.model import Actor, EventType, Machine, MaintenanceRequest, Scope, ScopeKind, Status, Targets
from forewarn.core.operator_model import Role, Token
from forewarn.core.order_verbs import Outcome
from forewarn.service.clock import ManualClock
from forewarn.service.settings import load
from forewarn.store import EventQuery, HostQuery

LARGEST_RATIO = 3.0
LARGEST_PAGE_BYTES = 300_000
PAST_EVENTS = 75
SMALL = (100, 25)
SHAPES = {
    "many": "a maintenance for each scope",
    "one": "one maintenance for all",
    "failed": "one maintenance for all, with failed orders",
}
FAILED_ORDERS = {"small": 5, "large": 50}
FAILURE = Outcome(
    False, reason="flash-controllers ended with 3", output="controller 1: verify failed at 0x0003f000\n" * 20
)
FORM = "application/x-www-form-urlencoded"
PAGES_PER_ROUND = 5
ACTOR = Actor("bench", "bench")
ELSEWHERE = "unrelated"  # after all other scopes and hosts in their lists


Costs = Mapping[str, list[list[Cost]]]  # by page; at the small place and at the large one, round by round


@dataclass(frozen=True, slots=True)
class Place:
    """A service with a fleet, and the addresses of its pages."""

    url: str
    paths: Mapping[str, str]
    changes: Mapping[str, Callable[[], None]]
    forms: Mapping[str, str] = field(default_factory=dict)

    def fetch(self, page: str) -> bytes:
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        try:
            form = self.forms.get(page)
            sent = {"Accept": "text/html", **({"Content-Type": FORM} if form else {})}
            connection.request("POST" if form else "GET", self.paths[page], form, sent)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{self.paths[page]}: {answer.status} {text[:200]!r}")
            return text
        finally:
            connection.close()


@contextmanager
def place(
    folder: Path,
    machines: int,
    open_events: int,
    *,
    at_once: bool = False,
    failed_orders: int = 0,
    elsewhere: bool = False,
) -> Iterator[Place]:
    """`at_once` plans all open events as one maintenance, else one for each scope; of its first wave so many orders fail.

    `elsewhere` adds the scope ELSEWHERE, which `a submission elsewhere` needs.
    """
    folder.mkdir()
    flags: dict[str, object] = {
        "store": f"sqlite:{folder}/forewarn.db",
        "state_dir": str(folder),
        "guest": "127.0.0.1:0",
        "operator": "127.0.0.1:0",
        "executor": "simulated",
        "token_free": "true",
        "rate_limit": "0",
    }
    service = Service(load(flags, {}), clock=ManualClock(BEGINNING))
    try:
        fill(service.store, machines)
        if elsewhere:
            service.store.apply(_elsewhere())
        # A past of more than a page: emergencies, done at once.
        for number in range(PAST_EVENTS):
            targets = Targets(scope=scope_name(number % 5), update_domain=number // 5 % UPDATE_DOMAINS)
            service.control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=targets, emergency=True), ACTOR)
            if number % 5 == 4:
                service.ticker.advance(1_000)
        _plan(service, open_events, at_once=at_once)
        if failed_orders:
            _fail(service, failed_orders)
        with running(service) as (_, url):
            found = Place(url, _paths(service), {name: partial(change, service) for name, change in CHANGES.items()})
            yield replace(found, forms={"Plan, previewed": _plan_form(found)})
    finally:
        service.close()


def _elsewhere() -> Change:
    """Add a scope of one machine that is not under maintenance."""
    scope = Scope(name=ELSEWHERE, kind=ScopeKind.AVAILABILITY_SET, enabled=True, epoch=1, changed=BEGINNING)
    machine = Machine(scope=ELSEWHERE, name="vm-00", host=ELSEWHERE, addresses=("10.255.0.1",))
    return Change(at=BEGINNING, scopes=(scope,), machines=(machine,))


def _plan(service: Service, open_events: int, *, at_once: bool) -> None:
    scopes = [scope_name(number) for number in range(open_events // UPDATE_DOMAINS)]
    if not at_once:
        for scope in scopes:
            service.control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope=scope)), ACTOR)
        return
    machines = tuple((scope, f"vm-{number:02d}") for scope in scopes for number in range(MACHINES_PER_SCOPE))
    service.control.submit(MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=machines)), ACTOR)


def _fail(service: Service, orders: int) -> None:
    """Start the first wave, and let its first orders fail."""
    wave = service.store.events(EventQuery(statuses=(Status.SCHEDULED,), limit=500)).events
    for event in wave:
        service.control.approve_event(event.id, ACTOR)
    service.ticker.advance(1)
    logging.disable(logging.ERROR)  # each failure is logged
    for event in wave[:orders]:
        service.control.report_order(event.id, FAILURE, ACTOR)
    logging.disable(logging.WARNING)


def _change_scope(service: Service) -> None:
    scope = scope_name(0)
    service.control.disable(scope, ACTOR)
    service.control.enable(scope, ACTOR)


def _submit_elsewhere(service: Service) -> None:
    """Submit a maintenance of a scope without other events, and cancel it, so that no page becomes longer."""
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope=ELSEWHERE))
    service.control.cancel_maintenance(service.control.submit(request, ACTOR), ACTOR)


def _submit_beside(service: Service) -> None:
    """Submit a maintenance of a scope that is under maintenance, and cancel it."""
    request = MaintenanceRequest(type=EventType.FREEZE, targets=Targets(scope=scope_name(0)))
    service.control.cancel_maintenance(service.control.submit(request, ACTOR), ACTOR)


def _create_token(service: Service) -> None:
    """Create a token and revoke it."""
    token = Token(id=new_id(), name="bench", role=Role.VIEWER, digest="0" * 64, created=BEGINNING)
    service.control.add_token(token, ACTOR)
    service.control.revoke_token(token.id, ACTOR)


CHANGES: dict[str, Callable[[Service], None]] = {
    "a scope change": _change_scope,
    "a submission elsewhere": _submit_elsewhere,
    "a submission in the same scope": _submit_beside,
    "a new token": _create_token,
}


def _paths(service: Service) -> dict[str, str]:
    statuses = (Status.SCHEDULED, Status.STARTED)
    (event,) = service.store.events(EventQuery(statuses=statuses, limit=1)).events
    machine = f"{event.scope}/{event.resources[0]}"
    (host,) = service.store.hosts_page(HostQuery(limit=1))
    return {
        "Now": "/",
        "Now, scheduled": "/?status=Scheduled",
        "Scopes": "/scopes",
        "Scope": f"/scopes/{event.scope}",
        "Machines": "/machines",
        "Machines, searched": f"/machines?q={machine}",
        "Machine": f"/machines/{machine}",
        "Hosts": "/hosts",
        "Host": f"/hosts/{host.name}",
        "Search": f"/search?q={machine}",
        "Search, a host": f"/search?q={host.name}",
        "Maintenances": "/maintenances",
        "Maintenance": f"/maintenances/{event.maintenance_id}",
        "Event": f"/events/{event.id}",
        "Orders": "/orders",
        "Orders, failed": "/orders?state=failed",
        "History": "/history",
        "History, a machine": f"/history?scope={event.scope}&machine={event.resources[0]}&status={event.status}",
        "Audit": "/audit",
        "Tokens": "/tokens",
        "Plan": "/plan",
        "Plan, previewed": "/plan",
    }


def _plan_form(place: Place) -> str:
    """Of a rolling reboot of a scope that is under maintenance already."""
    proof = re.search(rb'name="proof" value="(\w+)"', place.fetch("Plan"))
    if proof is None:
        raise RuntimeError("the plan's form has no proof")
    form = {
        "kind": "maintenance",
        "type": "Reboot",
        "target": "scope",
        "scope": place.paths["Scope"].rpartition("/")[2],
    }
    return urlencode(
        {**form, "source": "Platform", "on_failure": "hold", "step": "preview", "proof": proof[1].decode()}
    )


def run(folder: Path, size: Size) -> list[Verdict]:
    machines, open_events, rounds = size.portal
    with ExitStack() as stack:
        places = {
            (shape, scale): stack.enter_context(
                place(
                    folder / f"{shape}-{scale}",
                    *sizes,
                    at_once=shape != "many",
                    failed_orders=FAILED_ORDERS[scale] if shape == "failed" else 0,
                    elsewhere=True,
                )
            )
            for shape in SHAPES
            for scale, sizes in (("small", SMALL), ("large", (machines, open_events)))
        }
        pages = list(places["many", "small"].paths)
        again = {shape: {page: measure(_both(places, shape), page, rounds) for page in pages} for shape in SHAPES}
        first = {
            shape: {
                change: {page: measure(_both(places, shape), page, rounds, change) for page in pages}
                for change in CHANGES
            }
            for shape in SHAPES
        }
        largest = max(len(each.fetch(page)) for each in places.values() for page in each.paths)
    verdicts = [verdict for shape in SHAPES for verdict in _report(shape, again[shape], first[shape], size)]
    return [*verdicts, at_most("bytes of the largest page", largest, LARGEST_PAGE_BYTES)]


def _both(places: Mapping[tuple[str, str], Place], shape: str) -> list[Place]:
    return [places[shape, "small"], places[shape, "large"]]


def measure(places: Sequence[Place], page: str, rounds: int, change: str = "") -> list[list[Cost]]:
    """The cost of one page at each place, round by round; with `change` that change is made before each."""
    costs: list[list[Cost]] = [[] for _ in places]
    # At toy size one page, and nothing to warm up.
    pages, first_turn = (PAGES_PER_ROUND, 0) if rounds > 1 else (1, 1)
    for turn in range(first_turn, rounds + 1):
        for each, known in list(zip(places, costs, strict=True))[:: 1 if turn % 2 else -1]:
            spent = NOTHING
            for _ in range(pages):
                if change:
                    each.changes[change]()
                spent += cost_of(lambda each=each: each.fetch(page))  # type: ignore[misc]
            if turn:  # the first only warms up
                known.append(spent.each(pages))
    return costs


def _report(shape: str, again: Costs, first: Mapping[str, Costs], size: Size) -> list[Verdict]:
    machines, open_events, rounds = size.portal
    small, large = f"{SMALL[0]} / {SMALL[1]}", f"{machines:,} / {open_events:,}"
    title = f"CPU of a page, machines / open events ({SHAPES[shape]}), median of {rounds} interleaved rounds"
    rows = [[page, *_milliseconds(found), f"{_ratio(found):.2f}"] for page, found in again.items()]
    print_table(title, ["page", small, large, "ratio"], rows)
    title = f"CPU of a first view ({SHAPES[shape]}): {small}, {large}, ratio"
    rows = [[page, *(_cell(found[page]) for found in first.values())] for page in again]
    print_table(title, ["page", *(f"after {change}" for change in first)], rows)
    return [
        _verdict("a page", shape, again),
        *(_verdict(f"the first view after {change}", shape, found) for change, found in first.items()),
    ]


def _cell(found: Sequence[Sequence[Cost]]) -> str:
    return f"{', '.join(_milliseconds(found))}, {_ratio(found):.2f}"


def _verdict(what: str, shape: str, costs: Costs) -> Verdict:
    ratios = {page: _ratio(found) for page, found in costs.items()}
    worst = max(ratios, key=ratios.__getitem__)
    name = f"CPU of {what}, {SHAPES[shape]}, a large fleet over a small one ({worst}),"
    return at_most(name, ratios[worst], LARGEST_RATIO)


def _ratio(found: Sequence[Sequence[Cost]]) -> float:
    small, large = found
    return median_ratio([c.cpu_s for c in large], [c.cpu_s for c in small])


def _milliseconds(found: Sequence[Sequence[Cost]]) -> list[str]:
    return [f"{median(each).cpu_s * 1e3:.1f} ms" for each in found]
