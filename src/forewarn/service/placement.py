"""Read from the store where the machines of an event may go; `core.placement` holds the rules."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from itertools import groupby

from forewarn.core.change import Snapshot
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.fast_init import replace
from forewarn.core.hosts import IN_MAINTENANCE
from forewarn.core.model import Event, Host, HostMode, Machine, Order, OrderState
from forewarn.core.placement import Hosts, targets
from forewarn.store import MAX_PAGE, Focus, HostCount, HostQuery, Store

MAX_HOST_ORDERS = 10_000
MAX_RUNNING_ORDERS = 1_000_000
# The targets of a batch of orders are chosen at once, and a change is read a moment after the time that it has.
CHOSEN_WITHIN = timedelta(seconds=60)


def leaves_host(event: Event) -> bool:
    """Whether the machines of the event go to another host."""
    return EVENT_TYPES[event.type].changes_host or is_live(event)


def is_live(event: Event) -> bool:
    """Whether the event moves running machines: it empties a host, or brings machines back, by a type that stops none."""
    rules = EVENT_TYPES[event.type]
    return event.host != "" and HostMode.EVACUATE in rules.host_modes and not rules.changes_host


class FleetHosts:
    """The hosts as a batch of orders needs them: read when they are first needed, and not again for the other orders."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def rows(self) -> dict[str, Host]:
        return self._store.hosts()

    @cached_property
    def _hosts(self) -> Hosts:
        return read_hosts(self._store, self.rows)

    @cached_property
    def _planned(self) -> Mapping[str, set[str]]:
        """The hosts of each maintenance that wait for their turn."""
        planned: dict[str, set[str]] = defaultdict(set)
        for order in self._store.orders({OrderState.PLANNED}, MAX_HOST_ORDERS, of_hosts=True):
            planned[order.maintenance_id].add(order.host)
        return planned

    def connections(self, event: Event, hosts: Iterable[str]) -> dict[str, str]:
        """Return how to reach the hosts of the event's machines; all hosts if the machines leave them."""
        rows = self.rows if leaves_host(event) else rows_of(self._store, hosts)
        return {host.name: host.connection for host in rows.values() if host.connection}

    def targets(self, event: Event) -> dict[str, tuple[str, ...]]:
        """Return the hosts that each machine of the event may go to, the best first; nothing if the machines stay."""
        if not leaves_host(event):
            return {}
        of_scope = _machines_of(self._store, event.scope)
        leaving = [machine for machine in of_scope if machine.name in event.resources]
        emptied_next = self._planned[event.maintenance_id] if event.host else ()
        return targets(leaving, of_scope, replace(self._hosts, emptied_next=emptied_next), to_host=event.to_host)


def with_target_hosts(store: Store, snapshot: Snapshot, *, needed: bool = False) -> Snapshot:
    """Return the snapshot with the hosts that machines may be sent to, if `needed` or if a maintenance in it evacuates hosts."""
    evacuates = [m for m in snapshot.maintenances.values() if m.host_mode is HostMode.EVACUATE and m.ended is None]
    if not needed and not evacuates:
        return snapshot
    return replace(snapshot, target_hosts=Hosts(rows=store.hosts(), in_maintenance=hosts_in_maintenance(store)))


def closed(store: Store, host: str) -> str:
    """Return why no machine may be sent to a host now, or ""."""
    return Hosts(rows=rows_of(store, (host,)), in_maintenance=hosts_in_maintenance(store)).why_not(host)


def no_target(store: Store, event: Event) -> str:
    """Return why the machines of the event cannot go to the host that an operator named, or ""."""
    why = closed(store, event.to_host) if leaves_host(event) and event.to_host else ""
    return f"{why}, and its machines must go there: uncordon it or wait, then retry" if why else ""


def may_arrive(store: Store, order: Order) -> str:
    """Return which order may still bring machines to the host of another order, or "".

    Its targets were chosen before the host was cordoned, or about then: a cordon shows a moment after its time.
    """
    host = rows_of(store, (order.host,)).get(order.host)
    cordoned = host.cordoned if host is not None else None
    begun = [
        each.id
        for each in store.orders({OrderState.RUNNING, OrderState.IN_DOUBT}, MAX_RUNNING_ORDERS)
        if cordoned is None or each.taken is None or each.taken <= cordoned + CHOSEN_WITHIN
    ]
    if not begun:
        return ""
    events = store.snapshot(Focus(events=tuple(begun), whole_maintenances=False, open_events=False)).events
    for event in events.values():
        leaves_this = event.host == order.host and not event.returns
        if leaves_host(event) and not leaves_this and event.to_host in ("", order.host):
            return (
                f"the order of event {event.id} may still bring machines to host {order.host}: wait until it has ended"
            )
    return ""


def rows_of(store: Store, hosts: Iterable[str]) -> Mapping[str, Host]:
    """Return those of these hosts that have a row."""
    named = tuple({host for host in hosts if host})
    focus = Focus(hosts=named, whole_maintenances=False, open_events=False, document_only=True)
    return store.snapshot(focus).hosts


def planned_targets(
    store: Store, leaving: Iterable[Machine], to_host: str, *, emptied_next: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return where machines of any scope may go now, by `scope/name`; each is placed as if the ones before had moved."""
    hosts = replace(read_hosts(store, store.hosts()), emptied_next=emptied_next)
    found: dict[str, tuple[str, ...]] = {}
    for scope, group in groupby(sorted(leaving, key=lambda machine: machine.key), key=lambda machine: machine.scope):
        placed = targets(group, _machines_of(store, scope), hosts, to_host=to_host)
        found |= {f"{scope}/{name}": names for name, names in placed.items()}
        arrived = Counter(names[0] for names in placed.values() if names)
        hosts = replace(hosts, machines=Counter(hosts.machines) + arrived)
    return found


def read_hosts(store: Store, rows: dict[str, Host]) -> Hosts:
    """Return what placement reads. Without a list of hosts nothing is chosen by their machines, so these are not counted."""
    machines = _machines_on_hosts(store) if any(host.listed for host in rows.values()) else {}
    return Hosts(rows=rows, machines=machines, in_maintenance=hosts_in_maintenance(store))


def hosts_in_maintenance(store: Store) -> frozenset[str]:
    return frozenset(order.host for order in store.orders(IN_MAINTENANCE, MAX_HOST_ORDERS, of_hosts=True))


def _machines_of(store: Store, scope: str) -> list[Machine]:
    focus = Focus(scopes=(scope,), inventory=True, whole_maintenances=False, open_events=False)
    return list(store.snapshot(focus).machines.values())


def _machines_on_hosts(store: Store) -> dict[str, int]:
    return {each.name: each.machines for each in every_host(store)}


def every_host(store: Store, *, page: int = MAX_PAGE) -> Iterator[HostCount]:
    """Iterate over the hosts that carry machines, that the fleet lists, or that are cordoned, by name; read `page` at once."""
    after: str | None = ""
    while after is not None:
        hosts = store.hosts_page(HostQuery(after=after, limit=page))
        yield from hosts
        after = hosts[-1].name if len(hosts) == page else None
