"""The figures of /metrics in Prometheus' format: requests of guests and operators, and the state of this node.

Figures are collected when /metrics is requested, outside the path of guests' requests. Figures that only the store knows are
left out while the store is away: no figure is better than an old one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn import __version__
from forewarn.operator.node_facts import Facts, Following, GuestCounts
from forewarn.operator.open_connections import OpenConnections
from forewarn.service.inventory import InventoryHealth


class GuestMetrics:
    """Exports the guest listener's counters."""

    def __init__(self, counts: Callable[[], GuestCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self._counts()
        requests = CounterMetricFamily("forewarn_guest_requests", "Requests of guests, by status.", labels=["status"])
        yield _by_label(requests, {str(status): count for status, count in sorted(counts.by_status.items())})
        text = "Requests of guests, by code path: answered from memory, or parsed."
        answers = CounterMetricFamily("forewarn_guest_lane", text, labels=["lane"])
        yield _by_label(answers, {"remembered": counts.remembered, "parsed": counts.parsed})
        yield from _gauges(
            ("forewarn_guest_connections", "Open connections of guests.", counts.connections),
            ("forewarn_guest_waiting", "Long polls that wait for a change.", counts.waiting),
            ("forewarn_guest_addresses_absent", "Listening addresses that do not exist now.", counts.absent_addresses),
        )
        text = "Connections closed at once, by the limit they were over."
        refused = CounterMetricFamily("forewarn_guest_connections_refused", text, labels=["limit"])
        yield _by_label(refused, counts.refused)
        for name, text, count in (
            ("connections_accepted", "Connections accepted.", counts.accepted),
            ("connections_paused", "Times a connection was not read because of rejected requests.", counts.paused),
            ("addresses_blocked", "Times an address was kept out because of a flood of connections.", counts.blocked),
            ("timed_out", "Connections closed because a deadline passed.", counts.timed_out),
            ("unknown_callers", "Requests of callers that are no known machine.", counts.unknown),
            ("forged_identities", "Instance ids without a valid signature, or not from a proxy.", counts.forged),
            ("documents_rendered", "Documents read again because they changed.", counts.rendered),
        ):
            yield CounterMetricFamily(f"forewarn_guest_{name}", text, count)


class OperatorMetrics:
    """Counts the responses of the operator listener, and exports the counters of its connections and of wrong tokens."""

    def __init__(self, open_connections: OpenConnections, failed_authentications: Callable[[], int]) -> None:
        self._open_connections = open_connections
        self._failed_authentications = failed_authentications
        self._responses: Counter[tuple[str, str]] = Counter()

    def count(self, app: ASGIApp) -> ASGIApp:
        """Return the application with its responses counted."""

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._responses[_kind(scope["path"]), str(message["status"])] += 1
                await send(message)

            await app(scope, receive, sent)

        return counting

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "forewarn_operator_requests", "Requests to the operator listener.", labels=["kind", "status"]
        )
        for (kind, status), count in sorted(self._responses.items()):
            requests.add_metric([kind, status], count)
        yield requests
        yield CounterMetricFamily(
            "forewarn_operator_authentication_failures",
            "Requests with a wrong or expired token.",
            self._failed_authentications(),
        )
        connections, prefix = self._open_connections, "forewarn_operator_connections"
        yield GaugeMetricFamily(prefix, "Open connections of operators.", connections.count)
        refused_text = "Connections of operators closed at once, by the limit they were over."
        refused = CounterMetricFamily(f"{prefix}_refused", refused_text, labels=["limit"])
        yield _by_label(refused, connections.refused)
        dropped_text = "Connections that were closed while they waited for their caller, by reason."
        dropped = CounterMetricFamily(f"{prefix}_dropped", dropped_text, labels=["reason"])
        yield _by_label(dropped, connections.dropped)
        overloaded_text = "Requests of operators answered 503 because too many were under way."
        yield CounterMetricFamily("forewarn_operator_overloaded", overloaded_text, connections.overloaded)


def _kind(path: str) -> str:
    if path.startswith("/v1/"):
        return "api"
    return "watching" if path in ("/healthz", "/readyz", "/metrics") else "portal"


class NodeMetrics:
    """Exports the state of this node; `checks` are those of /readyz."""

    def __init__(self, checks: Callable[[], Mapping[str, str]], facts: Callable[[], Facts] | None) -> None:
        self._checks = checks
        self._facts = facts

    def collect(self) -> Iterable[Metric]:
        ready = GaugeMetricFamily("forewarn_ready", "1 where a check of /readyz passes.", labels=["check"])
        yield _by_label(ready, {name: result == "ok" for name, result in self._checks().items()})
        if self._facts is not None:
            facts = self._facts()
            yield from _node(facts)
            yield from _work(facts)
            yield from _hooks(facts)
            yield from _inventory(facts.inventory)
            if facts.following is not None:
                yield from _following(facts.following)


def _node(facts: Facts) -> Iterator[Metric]:
    info = GaugeMetricFamily("forewarn_info", "What this node is; always 1.", labels=["version", "role", "store"])
    info.add_metric([__version__, facts.role, facts.store], 1)
    yield info
    yield from _gauges(
        ("forewarn_scopes", "Scopes this node knows.", facts.scopes),
        ("forewarn_machines", "Machines this node knows.", facts.machines),
        ("forewarn_ticker_leads", "1 where this node moves events and hands out orders.", facts.leads),
        ("forewarn_ticker_silent_seconds", "Seconds since the ticker completed a cycle.", facts.ticked_ago_s),
    )
    yield CounterMetricFamily(
        "forewarn_orders_taken_over", "Orders of dead nodes that this node took over.", facts.taken_over
    )
    yield from _gauges(
        ("forewarn_clock_held", "1 while a jump of the clock holds unapproved starts.", facts.clock_held),
        (
            "forewarn_store_held",
            "1 while the store is held: nothing starts and no order is handed out.",
            facts.store_held,
        ),
    )


def _work(facts: Facts) -> Iterator[Metric]:
    backlog = facts.backlog
    if backlog is None:
        return
    statuses = {"Planned": backlog.planned, "Scheduled": backlog.scheduled, "Started": backlog.started}
    yield _by_label(GaugeMetricFamily("forewarn_events", "Open events, by status.", labels=["status"]), statuses)
    states = {"open": backlog.open, "running": backlog.running, "in-doubt": backlog.in_doubt, "failed": backlog.failed}
    text = "Orders that have not ended well, by state."
    yield _by_label(GaugeMetricFamily("forewarn_orders", text, labels=["state"]), states)
    if facts.hosts is not None:
        text = "Hosts that the fleet lists or that are cordoned, by state."
        yield _by_label(GaugeMetricFamily("forewarn_hosts", text, labels=["state"]), facts.hosts)
    drill, text = facts.drill, "Machines of the last drill that has ended, by result."
    machines = {
        "ready": drill.ready,
        "not-ready": drill.measured - drill.ready,
        "not-measured": drill.machines - drill.measured,
    }
    yield _by_label(GaugeMetricFamily("forewarn_drill_machines", text, labels=["result"]), machines)
    if facts.budgets:
        used = GaugeMetricFamily("forewarn_budget_used", "What is down in the fleet, by budget.", labels=["budget"])
        yield _by_label(used, {name: use for name, (use, _) in facts.budgets.items()})
        limit = GaugeMetricFamily("forewarn_budget_limit", "How much may be down at once.", labels=["budget"])
        yield _by_label(limit, {name: most for name, (_, most) in facts.budgets.items()})
    overdue = "How long the most overdue event is past its NotBefore."
    yield from _gauges(
        ("forewarn_overdue_start_seconds", overdue, facts.overdue_s),
        ("forewarn_due_seconds", "How long due work has waited for the ticker.", facts.due_s),
    )


def _hooks(facts: Facts) -> Iterator[Metric]:
    text = "Attempts of this node to send messages to hooks, by result."
    yield _by_label(CounterMetricFamily("forewarn_hook_messages", text, labels=["result"]), facts.hook_messages)
    if facts.hooks is not None:
        yield _by_label(GaugeMetricFamily("forewarn_hooks", "Hooks, by state.", labels=["state"]), facts.hooks)
    failing = "How long the longest failing hook has failed; disabled hooks do not count."
    yield from _gauges(("forewarn_hook_failing_seconds", failing, facts.hook_failing_s))


def _inventory(inventory: InventoryHealth) -> Iterator[Metric]:
    text = "Hosts whose domains this node reads for the fleet, by state."
    yield _by_label(GaugeMetricFamily("forewarn_inventory_hosts", text, labels=["state"]), inventory.hosts)
    doubled = "Domains that are on several hosts."
    yield from _gauges(("forewarn_inventory_doubled", doubled, len(inventory.doubled)))


def _following(following: Following) -> Iterator[Metric]:
    pool = following.connections
    yield from _gauges(
        ("forewarn_store_silent_seconds", "Seconds since this node last heard from the database.", following.silent_s),
        ("forewarn_store_away", "1 while the database is away, and writes are refused.", following.away),
        ("forewarn_store_synchronous", "1 where a synchronous standby is known to be attached.", following.synchronous),
        ("forewarn_store_timeline", "The database's timeline: grows with each failover.", following.timeline),
    )
    text = "Connections of the pool, by state."
    connections = GaugeMetricFamily("forewarn_store_connections", text, labels=["state"])
    yield _by_label(connections, {"used": pool.used, "idle": pool.idle})
    yield GaugeMetricFamily("forewarn_store_connections_limit", "The most connections the pool makes.", pool.limit)


def _gauges(*figures: tuple[str, str, float | None]) -> Iterator[Metric]:
    """Yield a gauge for each name, help text and value; leave out values that are not known."""
    for name, text, value in figures:
        if value is not None:
            yield GaugeMetricFamily(name, text, value)


def _by_label(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def registry_of(*collectors: GuestMetrics | OperatorMetrics | NodeMetrics) -> CollectorRegistry:
    """Return a registry of these collectors and of the process's use of memory, CPU and descriptors."""
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    ProcessCollector(registry=registry)
    return registry
